package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"billing/cmd/billing/config"
	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/loadgen"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// loadFlags are what the command line says of a load.
type loadFlags struct {
	count, accounts, transactions           int
	rate, skew, duplicates, bad, abortShare float64
	seed                                    int64
	everyday                                bool
}

// Bounds of the command line.
const (
	defaultTransaction = 1000    // messages, where there must be Kafka transactions
	maxTransaction     = 100_000 // they are held in memory, and so is an aborted copy
)

func newProduceCommand() *cobra.Command {
	f := &loadFlags{}
	cmd := &cobra.Command{
		Use:   "produce",
		Short: "Write a test load whose answer is known",
		Long: `Writes a load to kafka.topic, made for the configuration: charges and credits of
many accounts in all forms of a message, repeats, conflicts, and messages that
are bad in every way. Then it writes, as JSON on stdout, what must come of them
on a fresh topic and job. Use it to try a deployment out. It touches no
database, but what it writes is booked like anything else: it is not for a topic
whose bookings matter. The same seed and flags give the same ids, accounts,
amounts and outcomes; times are relative to the start.

  messages             written for good: the sum of the outcomes
  outcomes             of them applied, duplicate, conflict and rejected: the
                       sums of applied, duplicates, conflicts and rejected of
                       billing_epoch
  reasons              the rejected ones by their reason in billing_rejects
  currencies           what the totals of each currency add up to
  transactions         Kafka transactions that were committed; 0: none were used
  aborted              Kafka transactions that were aborted, with
                       aborted_messages messages, which come on top and must
                       leave no trace
  seed                 repeats the load
  topic, partitions    where it was written
  started              when
  seconds, messages_per_second
                       how long it took, and how fast it was
  interrupted          a signal came before all was written; the answer is of
                       what was
  totals               the rows of billing_totals, of all shards together

SIGTERM and SIGINT end it after what is on its way. If a message could not be
written, or if the end of a Kafka transaction is not known, the topic holds an
unknown part of the load, and there is no answer.`,
		Example: `  # a quick one, on a fresh topic
  billing produce --config config.yaml --count 100000 > answer.json
  billing verify --config config.yaml --answer answer.json

  # an hour of 500 messages a second, most of them for few accounts
  billing produce --config config.yaml --count 1800000 --rate 500 \
    --accounts 10000 --skew 0.8 > answer.json

  # in Kafka transactions, a fifth of them aborted once before they are
  # committed
  billing produce --config config.yaml --count 50000 --aborted 0.2 > answer.json`,
		Annotations: exits(`0  written, or ended by a signal: the answer is of what was written
2  wrong usage or configuration
3  there is no such topic
4  a broker could not be reached or failed: no answer`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			usage := f.check(cmd.Flags())
			c, err := loadConfig(configFlag(cmd), cmd.ErrOrStderr())
			if err = errors.Join(usage, err); err != nil {
				return err
			}
			return produce(cmd.Context(), c, f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&f.count, "count", 10_000, "`MESSAGES` to write, repeats and bad ones included")
	flags.Float64Var(&f.rate, "rate", 0, "`MESSAGES` a second, evenly, such as 500 or 0.2; 0 is as fast as possible")
	flags.IntVar(&f.accounts, "accounts", 100, "`NUMBER` of different accounts")
	flags.Float64Var(&f.skew, "skew", 0, "`SHARE` of the messages, 0 to 1, that goes to the hottest hundredth of the accounts")
	flags.Float64Var(&f.duplicates, "duplicates", 0.1, "`SHARE` of the messages, 0 to 1, that have an earlier one's id; one in ten of them says something else")
	flags.Float64Var(&f.bad, "bad", 0.01, "`SHARE` of the messages, 0 to 1, that are no valid event")
	flags.BoolVar(&f.everyday, "everyday", false, "amounts such as invoices have, below 10000 with two places; without it some are as large or as fine as there are")
	flags.Int64Var(&f.seed, "seed", 0, "`NUMBER` that decides all that is random (default a random one, which the answer names)")
	flags.IntVar(&f.transactions, "transactions", 0, fmt.Sprintf("`MESSAGES` in one Kafka transaction; 0 writes without (default 0, or %d with --aborted)", defaultTransaction))
	flags.Float64Var(&f.abortShare, "aborted", 0, "`SHARE` of the Kafka transactions, 0 to 1, that are aborted once, with other messages among theirs, before they are committed")
	return cmd
}

// check completes the flags and says what is wrong with them, all at once.
func (f *loadFlags) check(flags *pflag.FlagSet) error {
	var problems []string
	wrong := func(bad bool, format string, args ...any) {
		if bad {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	share := func(name string, s float64) {
		wrong(!(s >= 0 && s <= 1), "--%s is %v: give a share from 0 to 1", name, s)
	}
	wrong(f.count < 0, "--count is %d: give 0 or more messages", f.count)
	badRate := !(f.rate >= 0) || math.IsInf(f.rate, 0)
	wrong(badRate, "--rate is %v: give messages a second, or 0 for as fast as possible", f.rate)
	const year = 365 * 24 * 3600
	wrong(!badRate && f.rate > 0 && float64(f.count)/f.rate > loadgen.MostYears*year,
		"--count %d at --rate %v takes more than %d years: give fewer, or a higher rate", f.count, f.rate, loadgen.MostYears)
	wrong(f.accounts < 1, "--accounts is %d: give 1 or more", f.accounts)
	share("skew", f.skew)
	share("duplicates", f.duplicates)
	share("bad", f.bad)
	wrong(f.duplicates <= 1 && f.bad <= 1 && f.duplicates+f.bad > 1, "--duplicates and --bad are %.4g together: give at most 1", f.duplicates+f.bad)
	share("aborted", f.abortShare)
	if f.abortShare > 0 && !flags.Changed("transactions") {
		f.transactions = defaultTransaction
	}
	wrong(f.transactions < 0 || f.transactions > maxTransaction, "--transactions is %d: give 0 to %d messages", f.transactions, maxTransaction)
	wrong(f.abortShare > 0 && f.transactions == 0, "--aborted needs Kafka transactions: give --transactions 1 or more, or leave it out")
	if !flags.Changed("seed") {
		f.seed = rand.Int64N(1 << 53) // what every reader of JSON can hold
	}
	if len(problems) > 0 {
		return &usageError{errors.New(strings.Join(problems, "\n"))}
	}
	return nil
}

// clocksApart is how far the clocks of this machine and of the service's may be
// apart, with a dedup.skew of 0.
const clocksApart = time.Minute

// config is the load, made to fit the configuration.
func (f *loadFlags) config(c *config.Config, partitions int32, now time.Time) loadgen.Config {
	return loadgen.Config{
		Count: f.count, Accounts: f.accounts, Skew: f.skew, Duplicates: f.duplicates, Bad: f.bad, Everyday: f.everyday, Seed: f.seed,
		Partitions: partitions, Rate: f.rate,
		// At the start of a window, so that the seed decides all the rest.
		Now:      now.Add(-clocksApart).Truncate(c.Aggregate.Window),
		Lateness: c.Dedup.Lateness, Window: c.Aggregate.Window, TypePrefix: c.Message.TypePrefix,
		Currencies: c.Message.Currencies, AmountAsNumber: c.Message.AmountAsNumber,
	}
}

// produce is the whole command.
func produce(ctx context.Context, c *config.Config, f *loadFlags, out, errOut io.Writer) error {
	log := newLogger(errOut, c)
	kafka, err := consume.Open(kafkaConfig(c, log, nil))
	if err != nil {
		return &usageError{err}
	}
	defer kafka.Close()
	input, held, err := lookAtInput(ctx, kafka)
	if err != nil {
		return fmt.Errorf("produce: nothing was written: %w", err)
	}
	if held {
		fmt.Fprintf(errOut, "warning: topic %s has had records before: the answer is that of a fresh topic\n", c.Kafka.Topic)
	}
	if int64(f.count) > c.Dedup.MaxIDs {
		fmt.Fprintf(errOut, "warning: --count %d may be more ids than one instance holds by dedup.max_ids (%d): its lanes would pause\n", f.count, c.Dedup.MaxIDs)
	}
	cfg := f.config(c, input.Partitions, time.Now())
	if err := cfg.Check(); err != nil {
		return &usageError{err}
	}
	transactionalID := ""
	if f.transactions > 0 {
		transactionalID = fmt.Sprintf("%s-produce-%016x", c.Job, rand.Uint64())
	}
	// From here on a signal is no error: the answer is of what is written by then.
	opening, cancel := context.WithTimeout(context.WithoutCancel(ctx), reachWithin)
	to, err := kafka.OpenLoad(opening, transactionalID)
	cancel()
	if err != nil {
		return fmt.Errorf("produce: nothing was written: %w", err)
	}
	defer to.Close(ctx)

	w := newLoadWriting(cfg, f, to)
	begun := time.Now()
	told := newProgress(errOut, isTerminal(errOut)).tell(ctx, func() string {
		n := w.written()
		return fmt.Sprintf("produce: %d of %d messages written, %.0f a second", n, f.count, float64(n)/time.Since(begun).Seconds())
	})
	err = w.run(ctx)
	told()
	if err != nil {
		return fmt.Errorf("produce: topic %s holds an unknown part of the load, so there is no answer (next step: a fresh topic and job): %w", c.Kafka.Topic, err)
	}
	return writeLoadAnswer(out, w.answer(c.Kafka.Topic, input.Partitions), w.load.Totals())
}

// reachWithin bounds the first look at Kafka.
const reachWithin = 10 * time.Second

// lookAtInput finds the input topic, and whether it has ever had a record.
func lookAtInput(ctx context.Context, kafka *consume.Client) (input consume.Input, held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	// A topic that was just made may be unknown to a broker for a moment.
	for begin := time.Now(); ; {
		input, err = kafka.LookUp(ctx)
		r := checkpoint.AsRefusal(err)
		if r == nil || r.Reason != checkpoint.ReasonTopicMissing || time.Since(begin) > missingFor {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(250 * time.Millisecond):
		}
	}
	for p := int32(0); err == nil && !held && p < input.Partitions; p++ {
		var end int64
		_, end, err = kafka.End(ctx, p)
		held = end > 0
	}
	return input, held, err
}
