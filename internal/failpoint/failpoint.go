//go:build !failpoints

// Package failpoint names the places at which the tests kill or hold the real
// binary. Without the build tag "failpoints" every Hit compiles to nothing.
package failpoint

// Enabled reports whether this binary was built with fail points.
const Enabled = false

// Hit does nothing in this build.
func Hit(Point, int) {}

// Armed is false in this build.
func Armed(Point) bool { return false }
