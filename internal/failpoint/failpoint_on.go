//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// Enabled reports whether this binary was built with fail points.
const Enabled = true

// FAILPOINT=POINT:N kills the process with SIGKILL at the N-th hit (from 1) of
// the point; for the points with a shard number only shard 0 counts.
var (
	armed Point
	after int64
	hits  atomic.Int64
)

func init() {
	spec := os.Getenv("FAILPOINT")
	if spec == "" {
		return
	}
	name, n, _ := strings.Cut(spec, ":")
	count, err := strconv.ParseInt(n, 10, 64)
	if n != "" && err != nil {
		panic("FAILPOINT: want POINT:N, got " + spec)
	}
	armed, after = Point(name), max(count, 1)
}

// Hit kills the process if p is armed and this is its hit. shard is the shard's
// number where the point is passed once a shard, else 0.
func Hit(p Point, shard int) {
	if p != armed || shard != 0 || hits.Add(1) != after {
		return
	}
	fmt.Fprintf(os.Stderr, "failpoint %s: killed\n", p)
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {} // nothing after the point may run while the signal is on its way
}

// Armed reports whether p is the point at which this process dies: some points
// need the shards one after the other, which otherwise go in parallel.
func Armed(p Point) bool { return p == armed }
