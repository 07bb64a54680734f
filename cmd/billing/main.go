// Command billing is an exactly-once billing service: it reads usage events
// from Kafka and books them in MySQL. This package is the wiring, the only
// place that sees everything; configuration is in its own folder.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"billing/cmd/billing/config"
	"billing/internal/checkpoint"

	"github.com/spf13/cobra"
)

// Exit codes: users and their scripts rely on them.
const (
	exitDone       = 0 // done and right
	exitDifference = 1 // a difference was found (verify)
	exitUsage      = 2 // wrong usage or configuration
	exitRefused    = 3 // refused for safety
	exitFailed     = 4 // a server could not be reached or failed
)

func main() {
	// The first signal asks the command to end; the second one ends the process
	// at once, which the protocol allows at any moment.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs one command line and returns its exit code. Answers go to out,
// errors to errOut.
func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	root := newRootCommand() //nolint:contextcheck // its commands get ctx when one is executed
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	cmd, err := root.ExecuteContextC(ctx)
	code := exitCode(err)
	var told *reportedError
	if err != nil && !errors.As(err, &told) {
		fmt.Fprintf(errOut, "billing: %s\n", err)
		var u *usageError
		if errors.As(err, &u) {
			fmt.Fprintf(errOut, "Run '%s --help' for what it takes.\n", cmd.CommandPath())
		}
	}
	return code
}

// usageError is a command line that can't be understood.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// reportedError is an error whose text the command has already written as its
// answer: only the exit code is left of it.
type reportedError struct{ err error }

func (e *reportedError) Error() string { return e.err.Error() }
func (e *reportedError) Unwrap() error { return e.err }

// differenceError says that a command did all its work and found differences,
// which it has written as its answer.
type differenceError struct{ count int }

func (e *differenceError) Error() string { return fmt.Sprintf("differences found: %d", e.count) }

// exitCode is the code that an error of a command ends the process with. A
// refusal wins over whatever else went wrong with it.
func exitCode(err error) int {
	var (
		refusal    *checkpoint.Refusal
		usage      *usageError
		wrong      *config.Error
		difference *differenceError
	)
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &refusal):
		return exitRefused
	case errors.As(err, &usage), errors.As(err, &wrong):
		return exitUsage
	case errors.As(err, &difference):
		return exitDifference
	}
	return exitFailed
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "billing COMMAND",
		Short: "Exactly-once billing from Kafka to MySQL",
		Long: `Reads usage events from a Kafka topic and books each charge and credit exactly
once in one or more MySQL databases.

Answers go to stdout, errors and progress to stderr. The config.yaml that comes
with the service explains every key. Each can also be given by an environment
variable: BILLING_ and its path in upper case with _, such as
BILLING_KAFKA_TOPIC; lists by comma, BILLING_SHARDS as JSON.

Words:
  shard        one MySQL database
  lane         one partition of the input topic
  epoch        the records of a lane that are booked together; SEQ counts them
  branch       what an epoch writes on one shard: an XA transaction, prepared
               until it is committed or rolled back
  decision     the record in Kafka that makes an epoch booked
  session      a lane at work on one instance; INCARNATION counts them
  in doubt     prepared on a shard, and neither committed nor rolled back yet`,
		Example: `  # the first steps; first_start allows a new job's first start
  billing config check --config config.yaml
  billing migrate --config config.yaml
  billing config check --config config.yaml --connect
  BILLING_FIRST_START=true billing run --config config.yaml

  # what a command does and takes
  billing status --help`,
		Annotations: exits(`0  done and right
1  a difference was found (verify, lookup, repair)
2  wrong usage or configuration
3  refused for safety: going on could lose or double money
4  a server could not be reached or failed`),
		Version:       thisBuild().Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().String("config", "", "configuration `FILE`; without it $"+config.FileVariable+", else "+config.DefaultFile+" if there is one, else the environment alone")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("config") && configFlag(cmd) == "" {
			return &usageError{errors.New("--config is empty: name a file, or leave it out")}
		}
		return nil
	}
	root.AddCommand(
		newRunCommand(),
		newMigrateCommand(),
		newConfigCommand(),
		newStatusCommand(),
		newVerifyCommand(),
		newLookupCommand(),
		newXACommand(),
		newRepairCommand(),
		newProduceCommand(),
		newHealthcheckCommand(),
		newVersionCommand(),
	)
	root.SetHelpCommand(newHelpCommand())
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if err := writeHelp(cmd.OutOrStdout(), cmd); err != nil {
			cmd.PrintErrln("billing: " + err.Error())
		}
	})
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	strict(root)
	return root
}

// strict makes every command line that is not understood an error: cobra by
// itself answers a group without a command, or with an unknown one, with help
// and success. Errors from within a command stay as they are.
func strict(cmd *cobra.Command) {
	cmd.SuggestionsMinimumDistance = 2
	if args := cmd.Args; args != nil {
		cmd.Args = func(c *cobra.Command, a []string) error {
			if err := args(c, a); err != nil {
				if c.Runnable() && len(a) > 0 && !c.HasSubCommands() {
					err = fmt.Errorf("%s takes no arguments, got %q", c.CommandPath(), a)
				}
				return &usageError{err}
			}
			return nil
		}
	}
	if !cmd.Runnable() {
		cmd.Args = cobra.ArbitraryArgs
		cmd.DisableFlagsInUseLine = true
		cmd.RunE = func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noSuchCommand(c, args[0])
			}
			return &usageError{fmt.Errorf("a command is missing after %q", c.CommandPath())}
		}
	}
	for _, sub := range cmd.Commands() {
		strict(sub)
	}
}

// loadConfig reads the configuration that --config names (path; "" for the
// default places). Warnings go to warn; an error is a *config.Error with all
// problems.
func loadConfig(path string, warn io.Writer) (*config.Config, error) {
	return config.Load(path, warn, checkDSN)
}

// configFlag is the value of --config.
func configFlag(cmd *cobra.Command) string {
	path, err := cmd.Flags().GetString("config")
	if err != nil {
		panic(err) // the root command defines it
	}
	return path
}
