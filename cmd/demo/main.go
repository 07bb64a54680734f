// Command demo shows exactly-once billing on one machine in about a minute:
// an embedded broker, a private MySQL with two shards, the real service, and a
// load whose totals are known before it is written. The service is killed with
// SIGKILL in the middle of its work. At the end every row in the tables is
// compared with what it had to be.
//
//	main.go     command line, signals
//	story.go    what happens, from top to bottom
//	broker.go   the embedded Kafka, and the load
//	mysqld.go   the private MySQL
//	service.go  the service, and child processes in general
//	tables.go   what the tables say
//	report.go   that beside what had to come out
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

type options struct {
	billing string // the service's binary
	mysqld  string // a mysqld, or the root directory of a tree that has one
	count   int    // messages
	seed    int64  // of the load
}

// errDifferent says that the tables are not what they had to be; the report has
// said how.
var errDifferent = errors.New("the tables differ from what had to come out")

func main() {
	// A reader that has gone (demo | head) ends the demo like a signal, with
	// everything cleaned up.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	var o options
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(errOut)
	flags.StringVar(&o.billing, "billing", "", "the service's binary (`FILE`)")
	flags.StringVar(&o.mysqld, "mysqld", "", "mysqld 8.0.30 or later, or the root directory of a tree that has one (`PATH`)")
	flags.IntVar(&o.count, "count", 20_000, "messages to write, duplicates and bad ones included")
	flags.Int64Var(&o.seed, "seed", 1, "of the load: the same seed makes the same messages, but for their times")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if o.billing == "" || o.mysqld == "" || o.count < 1000 || flags.NArg() > 0 {
		fmt.Fprintln(errOut, "demo: needs --billing and --mysqld, and --count of 1000 or more. Next step: run it by `make demo` or scripts/demo, which find both")
		return 2
	}
	for _, path := range []*string{&o.billing, &o.mysqld} { // the children work elsewhere
		absolute, err := filepath.Abs(*path)
		if err != nil {
			fmt.Fprintf(errOut, "demo: FAILED: %v\n", err)
			return 1
		}
		*path = absolute
	}
	begin := time.Now()
	err := tell(ctx, o, out, progress{begin, errOut})
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(errOut, "demo: interrupted; everything it had started is stopped and removed")
	case !errors.Is(err, errDifferent):
		fmt.Fprintf(errOut, "demo: FAILED: %v\n", err)
	}
	return 1
}

// progress says on stderr what is going on, one line each.
type progress struct {
	begin time.Time
	w     io.Writer
}

func (p progress) say(format string, args ...any) {
	fmt.Fprintf(p.w, "demo: %5.1f s  %s\n", time.Since(p.begin).Seconds(), fmt.Sprintf(format, args...))
}
