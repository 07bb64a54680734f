//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// Enabled reports whether this binary was built with fail points.
const Enabled = true

// FAILPOINT=POINT:N:ACTION acts at the N-th hit (from 1) of the point; for the
// points with a shard number only shard 0 counts. The actions:
//
//   - kill (the default): the process kills itself with SIGKILL;
//   - stop: it freezes itself with SIGSTOP, and goes on from there after SIGCONT;
//   - hold: only who has come to the point waits, until the process gets SIGUSR1;
//     everything else in it goes on, heartbeats among it.
var (
	armed  Point
	after  int64
	action string
	hits   atomic.Int64
	goOn   = make(chan os.Signal, 1) // one hit waits, once
)

func init() {
	spec := os.Getenv("FAILPOINT")
	if spec == "" {
		return
	}
	parts := strings.Split(spec, ":")
	armed, after, action = Point(parts[0]), 1, "kill"
	if len(parts) > 1 {
		n, err := strconv.ParseInt(parts[1], 10, 64)
		if err != nil || n < 1 {
			panic("FAILPOINT: want POINT:N:ACTION, got " + spec)
		}
		after = n
	}
	if len(parts) > 2 {
		action = parts[2]
	}
	switch action {
	case "kill":
	case "stop":
		signal.Notify(goOn, syscall.SIGCONT)
	case "hold":
		signal.Notify(goOn, syscall.SIGUSR1)
	default:
		panic("FAILPOINT: no action " + action)
	}
}

// Hit acts if p is armed and this is its hit. shard is the shard's number where
// the point is passed once a shard, else 0.
func Hit(p Point, shard int) {
	if p != armed || shard != 0 || hits.Add(1) != after {
		return
	}
	switch action {
	case "kill":
		fmt.Fprintf(os.Stderr, "failpoint %s: killed\n", p)
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // nothing after the point may run while the signal is on its way
	case "stop":
		fmt.Fprintf(os.Stderr, "failpoint %s: stopped\n", p)
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
		<-goOn // the signal may take another thread first: nothing behind the point runs before SIGCONT
		fmt.Fprintf(os.Stderr, "failpoint %s: goes on\n", p)
	case "hold":
		fmt.Fprintf(os.Stderr, "failpoint %s: held\n", p)
		<-goOn
		fmt.Fprintf(os.Stderr, "failpoint %s: goes on\n", p)
	}
}

// Armed reports whether p is the point at which this process dies or waits: some
// points need the shards one after the other, which otherwise go in parallel.
func Armed(p Point) bool { return p == armed }
