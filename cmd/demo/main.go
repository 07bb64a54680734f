// Command demo shows on one machine, in about a minute, what exactly-once is for:
// a plain loop and the service book the same messages from the same broker in
// a private MySQL, both are killed by SIGKILL at the same bad moments, and every
// row in their tables is compared with what it had to be.
//
//	main.go         command line, signals
//	story.go        what happens, from top to bottom
//	play.go         one contender at work: killed, started again, to the end
//	moments.go      the bad moments, and how a process is caught in one
//	contender.go    who the two are: the service, and
//	plain.go        the plain loop: batch, dedup, write, commit the offset
//	plain_shard.go  what it writes, to the tables in plain.sql
//	broker.go       Kafka: embedded, or in a container
//	mysqld.go       the private MySQL
//	docker.go       throw-away containers
//	leftovers.go    what a run that was killed has left
//	child.go        child processes
//	tables.go       what the tables say
//	compare.go      that beside what had to come out
//	report.go       what is known at the end
//	print.go        that for people
//	screen.go       progress
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitShown  = 0 // ours is exact, and the plain loop is not
	exitWrong  = 1 // ours is not exact, or the plain loop is
	exitUsage  = 2 // wrong usage
	exitFailed = 4 // it could not be run
)

const plainLoopCommand = "plain-loop"

type options struct {
	billing    string // the service's binary
	mysqld     string // a mysqld, the root directory of a tree that has one, or image:NAME
	kafkaImage string // "": the embedded broker
	count      int    // messages
	seed       int64  // of the load
	json       bool
	self       string // this binary
}

// batch is how many records one batch of the plain loop has at most, and one
// epoch of a lane: small enough that there are some between two kills.
func (o options) batch() int { return min(max(o.count/100, 100), 2000) }

func (o options) usesDocker() bool {
	return o.kafkaImage != "" || strings.HasPrefix(o.mysqld, imagePrefix)
}

func (o options) broker(ctx context.Context) (*broker, error) {
	if o.kafkaImage != "" {
		return realBroker(ctx, o.kafkaImage)
	}
	return embeddedBroker(ctx)
}

func main() {
	// A reader that has gone (demo | head) shall not end the process before all is
	// cleaned up: it is an error of writing then. The signal comes of every socket.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// errUsage is a command line that can't be understood.
var errUsage = errors.New("wrong usage")

// errWrong says that the demo has not shown what it says. The report tells.
var errWrong = errors.New("not what had to come out")

func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	cmd := newCommand() //nolint:contextcheck // it gets ctx when it is executed
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	err := cmd.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitShown
	case errors.Is(err, errWrong):
		return exitWrong
	case errors.Is(err, errUsage):
		fmt.Fprintf(errOut, "demo: %v\nRun it by `make demo` or scripts/demo, which find what it needs; --help says what it takes.\n", err)
		return exitUsage
	case ctx.Err() != nil:
		if left := besides(err, ctx.Err()); len(left) > 0 {
			fmt.Fprintf(errOut, "demo: interrupted, and something may be left: %v\n", errors.Join(left...))
			break
		}
		fmt.Fprintln(errOut, "demo: interrupted; everything it had started is stopped and removed")
	default:
		fmt.Fprintf(errOut, "demo: FAILED: %v\n", err)
	}
	return exitFailed
}

// besides are the joined errors that are not of one kind.
func besides(err, kind error) (others []error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // the parts of this one
		for _, e := range joined.Unwrap() {
			others = append(others, besides(e, kind)...)
		}
		return others
	}
	if !errors.Is(err, kind) {
		others = append(others, err)
	}
	return others
}

func newCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See exactly-once at work, beside a plain loop",
		Long: `Two contenders book the same messages, with repeats, conflicts and bad ones among them,
from one broker in a private MySQL, each in two databases of its own: a plain loop (take
a batch, remove its repeats, write it, commit the offset), and this service. One after the
other, and both are killed by SIGKILL at the same three bad moments and started again.

Then their tables are compared with the answer of the load, which was known before. Every
figure comes from SELECTs on the databases and from the load's JSON. No server that runs
already is touched, and nothing is left running.

Needs Go, and for MySQL one of: a mysqld 8.0.30 or later on the PATH (it need not run);
root on Debian, to make a private one; a Docker engine. The broker is embedded, or by
KAFKA=real one in a container.

Exit codes of scripts/demo (make has its own): 0 ours is exact and the plain loop is not;
1 ours is not exact, or the plain loop is; 2 wrong usage; 4 it could not be run.

With --json the answer is one object on stdout:
  exact                     what exit code 0 says
  mysql, broker             versions
  expected                  messages, seed, entries (to be booked), repeats, conflicts, rejected,
                            reasons, totals (rows), money
  plain_loop, ours          what each came to:
    exact                   no difference of any kind
    messages_accounted_for  on the shard that has most
    entries_booked          rows of the ledger
    doubled_written_again   of them, messages that are there more than once
    doubled_repeats         of them, repeats of an event that is there already
    booked_conflicts        of them, other contents under an id that is there already
    booked_rejected         ids too many, which had to be rejected
    lost                    ids too few
    conflicts_kept, rejected_kept
    totals_right            rows of the totals that are what they had to be
    totals_right_in_ledger  the same, added up from the ledger
    branches_left_prepared
    money                   by currency: charges, credits, net, and how much that is too
                            much: charges_too_much, credits_too_much, net_too_much
    differences, first_differences
    kills                   wanted and moment, facts, messages (with committed offsets),
                            recovery_seconds (from SIGKILL to the first new booking)
    seconds, messages_per_second   from the first start to the last message, kills included,
                            less the time for which it was frozen in order to look
  verify                    what billing verify says of ours: ok, differences, seconds`,
		Example: `  make demo
  make demo KAFKA=real
  make demo ARGS='--count 50000 --seed 7'
  make demo ARGS=--json | jq .plain_loop.lost`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%w: unknown argument %q", errUsage, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(); err != nil {
				return err
			}
			return run(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.count, "count", 200_000, "`MESSAGES` to write, repeats and bad ones included; 5000 or more")
	flags.Int64Var(&o.seed, "seed", 1, "`NUMBER` of the load: the same one makes the same messages, but for their times")
	flags.BoolVar(&o.json, "json", false, "answer in JSON")
	flags.StringVar(&o.billing, "billing", "", "`FILE` that is the service's binary (scripts/demo gives it)")
	flags.StringVar(&o.mysqld, "mysqld", "", "`PATH` of a mysqld or of a tree that has one, or image:NAME (scripts/demo gives it)")
	flags.StringVar(&o.kafkaImage, "kafka-image", "", "`NAME` of an image of Kafka, instead of the embedded broker (KAFKA=real gives it)")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w", errUsage, err) })
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetHelpCommand(&cobra.Command{Hidden: true})
	cmd.AddCommand(&cobra.Command{
		Use:    plainLoopCommand + " CONFIG",
		Short:  "The plain loop, which the demo starts and kills",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE:   func(cmd *cobra.Command, args []string) error { return runPlainLoop(cmd.Context(), args[0]) },
	})
	return cmd
}

const leastCount = 5000

// complete checks the options and makes paths absolute: the children work elsewhere.
func (o *options) complete() (err error) {
	if o.billing == "" || o.mysqld == "" {
		return fmt.Errorf("%w: --billing and --mysqld are missing", errUsage)
	}
	if o.count < leastCount {
		return fmt.Errorf("%w: --count is %d: give %d or more", errUsage, o.count, leastCount)
	}
	if o.billing, err = filepath.Abs(o.billing); err != nil {
		return err
	}
	if !strings.HasPrefix(o.mysqld, imagePrefix) {
		if o.mysqld, err = filepath.Abs(o.mysqld); err != nil {
			return err
		}
	}
	o.self, err = os.Executable()
	return err
}

// run runs the demo and says what has come out.
func run(ctx context.Context, o options, out, errOut io.Writer) error {
	s := newScreen(errOut, styleOf(errOut, os.Getenv))
	s.title("%s messages, two contenders, three SIGKILLs each", grouped(int64(o.count)))
	r, err := tell(ctx, o, s)
	s.clear()
	if err != nil {
		return err
	}
	r.judge()
	if o.json {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		err = e.Encode(r)
	} else {
		err = r.print(out, styleOf(out, os.Getenv))
	}
	if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	if !r.Exact {
		return errWrong
	}
	return nil
}
