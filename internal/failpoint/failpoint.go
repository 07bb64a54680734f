//go:build !failpoints

package failpoint

// Enabled reports whether this binary was built with fail points.
const Enabled = false

// Hit does nothing in this build.
func Hit(Point, int) {}

// Armed is false in this build.
func Armed(Point) bool { return false }
