package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
)

func newStatusCommand() *cobra.Command {
	var asJSON, watch bool
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the lanes: owner, progress, lag, what is stopped and why",
		Long: `Shows every lane of the job: who has it, the last decision (INCARNATION, SEQ and
NEXT), how far it is behind in offsets and in event time, up to when it is
complete, what is in doubt, and for a lane that does not work the reason and the
next step. It works from any machine that reaches Kafka and MySQL, also when no
instance runs, and changes nothing anywhere.

It asks Kafka, the shards, and each instance in the consumer group at its admin
port. Where the owner of a lane can't be asked, or nobody has it, it says what a
session of the lane would be refused for now.

  STATE           the owner's word: running, recovering, paused, stopped; else
                  unowned, not asked, assigned, rebalancing or unknown
  NEXT            the first offset that is not decided
  LAG             offsets from there to the end of the partition
  EVENT-LAG       age of the largest event time that is decided, 0 when no
                  record waits
  COMPLETE-UP-TO  everything written to the partition before this moment, by
                  Kafka's timestamps, is decided
  IN-DOUBT        prepared branches on all shards; those of a lane at work are
                  its epochs in flight

Servers that are away cost 5 s, and no look takes more than 20. The fields of
--json are in docs/watching.md.`,
		Example: `  billing status --config config.yaml

  # again every 5 s, until Ctrl-C
  billing status --config config.yaml --watch --every 5s

  # lanes that do not work
  billing status --config config.yaml --json |
    jq '.lanes[] | select(.reason) | {lane, state, reason, next_step}'`,
		Annotations: exits(`0  everything could be read, also when lanes are stopped
2  wrong usage or configuration
3  the job as a whole would be refused
4  Kafka, a lane's decision or a shard could not be read: what is known is
   shown all the same (an instance that does not answer is no error)`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("every") && !watch {
				return &usageError{errors.New("--every is how often --watch looks: give both")}
			}
			if every < leastEvery {
				return &usageError{fmt.Errorf("--every %s: want at least %s", every, leastEvery)}
			}
			c, err := loadConfig(configFlag(cmd), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			l, err := newLooker(c)
			if err != nil {
				return err
			}
			defer l.close()
			write := writeStatus
			if asJSON {
				write = writeStatusJSON
			}
			out := cmd.OutOrStdout()
			if watch {
				write, separator := watched(asJSON, isTerminal(out))
				return watchStatus(cmd.Context(), out, every, separator, write, l.look)
			}
			a, err := l.look(cmd.Context()).joined()
			if cmd.Context().Err() != nil {
				return fmt.Errorf("status: interrupted: %w", cmd.Context().Err())
			}
			if werr := write(out, a); werr != nil {
				return werr
			}
			if err != nil {
				return &reportedError{err}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "answer in JSON; with --watch one object a line")
	cmd.Flags().BoolVar(&watch, "watch", false, "look again and again, until SIGINT")
	cmd.Flags().DurationVar(&every, "every", 2*time.Second, "`SPAN` that --watch waits between two looks")
	return cmd
}

const leastEvery = 100 * time.Millisecond

func writeStatusJSON(w io.Writer, a *statusAnswer) error { return writeJSON(w, a) }

// writeStatusLine writes an answer as one line of JSON.
func writeStatusLine(w io.Writer, a *statusAnswer) error {
	if err := json.NewEncoder(w).Encode(a); err != nil {
		return fmt.Errorf("status: write: %w", err)
	}
	return nil
}

// clearScreen has a terminal begin anew.
const clearScreen = "\x1b[H\x1b[2J\x1b[3J"

// watched is how --watch writes answers, and what is before each but the first.
func watched(asJSON, terminal bool) (write func(io.Writer, *statusAnswer) error, separator string) {
	switch {
	case asJSON:
		return writeStatusLine, ""
	case terminal:
		return func(w io.Writer, a *statusAnswer) error {
			var b bytes.Buffer // at once: a screen that is being drawn flickers
			b.WriteString(clearScreen)
			if err := writeStatusAt(&b, a); err != nil {
				return err
			}
			_, err := w.Write(b.Bytes())
			return err //nolint:wrapcheck // as writeStatus
		}, ""
	}
	return writeStatusAt, "\n"
}

// writeStatusAt writes the answer for people who look again and again, with the
// moment of this look.
func writeStatusAt(w io.Writer, a *statusAnswer) error {
	if _, err := fmt.Fprintf(w, "%s\n", a.At.UTC().Format(time.RFC3339)); err != nil {
		return fmt.Errorf("status: write: %w", err)
	}
	return writeStatus(w, a)
}

// watchStatus looks again and again until ctx ends. What goes wrong in one look
// is part of its answer, and the next one is another.
func watchStatus(ctx context.Context, out io.Writer, every time.Duration, separator string, write func(io.Writer, *statusAnswer) error, look func(context.Context) *seen) error {
	for first := true; ; first = false {
		a, _ := look(ctx).joined() //nolint:errcheck // see above
		if ctx.Err() != nil {
			return nil //nolint:nilerr // told to end
		}
		if !first {
			if _, err := io.WriteString(out, separator); err != nil {
				return fmt.Errorf("status: write: %w", err)
			}
		}
		if err := write(out, a); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}
