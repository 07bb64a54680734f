package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"billing/cmd/billing/config"
	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/event"
	"billing/internal/repair"
	"billing/internal/txsink"

	"github.com/spf13/cobra"
)

func newRepairCommand() *cobra.Command {
	var asJSON, apply, dryRun bool
	var only, accept []string
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "Book again the epochs that a shard has lost",
		Long: `For a shard that came back older: restored from a backup, failed over to a
replica that lacked something, or with a branch rolled back by hand. Its lanes
stop with lost-epoch or old-branch. This shows which epochs and offsets of which
lanes are missing on which shard, reads their messages from Kafka again, and
says what they add. The dedup state in Kafka says of each message whether it was
applied, and what comes out must be what the other shards still show. Where an
outcome can't be told exactly it says so, and books nothing of that lane.

It changes nothing (--dry-run, which is the default) until it is told to with
--apply. It may be used beside the instances at work: they leave the lanes alone
that lack something, and take them up within a minute after it is booked. It can
be ended and begun again at any moment.

What was kept in billing_rejects is open again: a state that the operator had
given it since is lost with the shard.

It needs the configuration that the epochs were written with: message,
aggregate.window, dedup.lateness, dedup.skew, and where no shard has an epoch
any more ledger.enabled. If Kafka does not have the messages any more,
it says so, and what can be done.

Refusals that --accept REASON:WHAT overrides:
` + acceptText() + `
The fields of --json: job, topic, dry_run; lanes, each with lane, result
(missing, booked, refused, failed), reason and message, seq (of the decision),
and shards, each with shard, has_seq (its last epoch), seq_from, seq_to,
offset_from, offset_next, records, applied, kept, sums (currency, charge_amount,
credit_amount, entry_count), branches (gtrid, seq, action), epochs (seq,
offset_from, offset_next, gtrid, records, applied, kept).`,
		Example: `  # what is missing, and what will be booked
  billing repair --config config.yaml

  # book it
  billing repair --config config.yaml --apply
  billing verify --config config.yaml

  # the shard is on another server now
  billing repair --config config.yaml --accept server-changed:b --apply`,
		Annotations: exits(`0  no shard lacks anything, or everything is booked that was missing
1  a shard lacks epochs: they can be booked, and nothing was changed
2  wrong usage or configuration
3  refused, or a lane is: the others are booked all the same
4  a server could not be reached or failed; run it again`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("dry-run") && cmd.Flags().Changed("apply") && apply == dryRun {
				return &usageError{errors.New("--apply and --dry-run: want one of them")}
			}
			apply = apply || cmd.Flags().Changed("dry-run") && !dryRun
			c, err := loadConfig(configFlag(cmd), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			log := newLogger(cmd.ErrOrStderr(), c)
			accepts, err := parseAccept(accept, c, log, checkpoint.ReasonServerChanged)
			if err != nil {
				return &usageError{err}
			}
			partitions, err := lanesOf(only, c.Kafka.Topic)
			if err != nil {
				return &usageError{err}
			}
			shown := newProgress(cmd.ErrOrStderr(), isTerminal(cmd.ErrOrStderr()))
			r := &repairing{c: c, apply: apply, log: log, shown: shown}
			if err := r.open(cmd.Context(), accepts, partitions); err != nil {
				r.close()
				return fmt.Errorf("repair: %w", err)
			}
			defer r.close()
			r.run(cmd.Context())
			shown.clear()
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), newRepairAnswer(r))
			} else {
				err = writeRepair(cmd.OutOrStdout(), newRepairAnswer(r))
			}
			if err != nil {
				return err
			}
			return r.problem()
		},
	}
	cmd.Flags().BoolVar(&apply, "apply", false, "book what is missing")
	cmd.Flags().BoolVar(&dryRun, "dry-run", true, "only show what is missing and what would be booked")
	cmd.Flags().StringArrayVar(&only, "lane", nil, "only this `LANE`, as TOPIC/PARTITION; may be repeated")
	cmd.Flags().BoolVar(&asJSON, "json", false, "answer in JSON")
	cmd.Flags().StringArrayVar(&accept, "accept", nil, "override the refusal `REASON:WHAT`, which is one of those above; may be repeated")
	return cmd
}

// lanesOf are the partitions of the lanes that were named; none means all.
func lanesOf(names []string, topic string) (partitions []int32, err error) {
	for _, name := range names {
		p, ok := partitionOf(name, topic)
		if !ok {
			return nil, fmt.Errorf("--lane %q: want a lane of topic %s, such as %s/0", name, topic, topic)
		}
		if !slices.Contains(partitions, p) {
			partitions = append(partitions, p)
		}
	}
	return partitions, nil
}

// repairing is one repair at work.
type repairing struct {
	c     *config.Config
	apply bool
	log   *slog.Logger
	shown *progress

	sink  *txsink.Sink
	kafka *consume.Client
	cfg   repair.Config
	lanes []checkpoint.Lane

	found  []repair.Finding // of all lanes, by partition
	booked map[checkpoint.Lane]bool
}

// open connects to both sides and looks at them as a start does. Its error says
// that nothing was changed.
func (r *repairing) open(ctx context.Context, accepts *acceptance, partitions []int32) (err error) {
	sinkCfg := sinkConfig(r.c, r.log)
	sinkCfg.Accept, sinkCfg.Repairs, sinkCfg.LooksOnly = accepts.accept, true, !r.apply
	if r.sink, err = txsink.Open(sinkCfg); err != nil {
		return &usageError{err}
	}
	if r.kafka, err = consume.Open(kafkaConfig(r.c, quiet, nil)); err != nil {
		return &usageError{err}
	}
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	input, err := r.kafka.Check(ctx)
	if err != nil {
		return err
	}
	if err := r.kafka.EnsureTopics(ctx, false); err != nil {
		return nothingMade(err)
	}
	decisions, err := r.kafka.Decisions(ctx, input)
	if err != nil {
		return err
	}
	if err := r.sink.Check(ctx); err != nil {
		return notEmpty(err)
	}
	accepts.tellUnused(checkpoint.ReasonServerChanged)
	job := newJob(r.c, r.sink, r.kafka, input, nil)
	job.FirstStart = true // a lane that has not started yet lacks nothing
	if err := job.SameDeployment(decisions, input.ID, input.Partitions); err != nil {
		return err
	}
	if len(partitions) == 0 {
		for p := range input.Partitions {
			partitions = append(partitions, p)
		}
	}
	slices.Sort(partitions)
	for _, p := range partitions {
		if p >= input.Partitions {
			return &usageError{fmt.Errorf("--lane %s/%d: the topic has %d partitions", r.c.Kafka.Topic, p, input.Partitions)}
		}
		r.lanes = append(r.lanes, checkpoint.Lane{Topic: r.c.Kafka.Topic, Partition: p})
	}
	var mu sync.Mutex
	r.cfg = repair.Config{
		Job: job, Kafka: r.kafka, MySQL: r.sink,
		Decoder: event.Config{TypePrefix: r.c.Message.TypePrefix, Currencies: r.c.Message.Currencies, AmountAsNumber: r.c.Message.AmountAsNumber},
		Window:  r.c.Aggregate.Window, Lateness: r.c.Dedup.Lateness, Skew: r.c.Dedup.Skew, Ledger: r.c.Ledger.Enabled,
		Progress: func(lane checkpoint.Lane, step string, done, total int64) {
			mu.Lock()
			defer mu.Unlock()
			r.shown.show(func() string { return fmt.Sprintf("repair: %s of %s: offset %d of %d", step, lane, done, total) })
		},
	}
	return nil
}

// notEmpty says of tables that are missing what that means for a repair: it books
// epochs, and makes no tables.
func notEmpty(err error) error {
	var all []error
	for _, err := range checkpoint.Problems(err) {
		if r := checkpoint.AsRefusal(err); r != nil && r.Reason == checkpoint.ReasonMigrationsPending {
			pending := *r
			pending.Next = "restore the shard from a copy first, however old, billing_meta and billing_schema with it: an empty database can't be repaired. If the copy is in, and older than an upgrade: billing migrate"
			err = &pending
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}

func (r *repairing) close() {
	if r.kafka != nil {
		r.kafka.Close()
	}
	if r.sink != nil {
		if err := r.sink.Close(); err != nil {
			r.log.Warn("close", "err", err)
		}
	}
}

// run finds what is missing, computes all of it, and only then books, if it is
// told to. Each lane says for itself what became of it.
func (r *repairing) run(ctx context.Context) {
	r.found = repair.Find(ctx, &r.cfg, r.lanes)
	for i := range r.found {
		if f := &r.found[i]; f.Loss != nil {
			f.Err = f.Loss.Compute(ctx, &r.cfg)
		}
	}
	r.booked = map[checkpoint.Lane]bool{}
	if !r.apply {
		return
	}
	for i := range r.found {
		f := &r.found[i]
		if f.Loss == nil || f.Err != nil {
			continue
		}
		begun := time.Now()
		if f.Err = f.Loss.Book(ctx, &r.cfg); f.Err != nil {
			continue
		}
		r.booked[f.Lane] = true
		for _, m := range f.Loss.Missing {
			r.shown.clear()
			r.log.Info("booked again", "lane", f.Lane.String(), "shard", m.Shard, "seq_from", m.Has+1, "seq_to", f.Loss.Decision.Seq,
				"applied", m.Applied, "kept", m.Rejects, "took", time.Since(begun).Round(time.Millisecond))
		}
	}
}

// problem is what the exit code is made of.
func (r *repairing) problem() error {
	var errs []error
	missing := 0
	for _, f := range r.found {
		switch {
		case f.Err != nil:
			errs = append(errs, fmt.Errorf("lane %s: %w", f.Lane, f.Err))
		case f.Loss != nil && !r.booked[f.Lane]:
			missing++
		}
	}
	switch {
	case len(errs) > 0:
		return fmt.Errorf("repair: %w", errors.Join(errs...))
	case missing > 0:
		return &reportedError{&differenceError{missing}}
	}
	return nil
}

// repairAnswer is the answer in JSON, from which that for people is written.
type repairAnswer struct {
	Job    string             `json:"job"`
	Topic  string             `json:"topic"`
	DryRun bool               `json:"dry_run"`
	Lanes  []repairLaneAnswer `json:"lanes"`
}

type repairLaneAnswer struct {
	Lane    string              `json:"lane"`
	Result  string              `json:"result"`
	Reason  string              `json:"reason,omitempty"`
	Message string              `json:"message,omitempty"`
	Seq     int64               `json:"seq,omitempty"`
	Shards  []repairShardAnswer `json:"shards"`
}

type repairShardAnswer struct {
	Shard    string               `json:"shard"`
	Has      int64                `json:"has_seq"`
	From     int64                `json:"seq_from"`
	To       int64                `json:"seq_to"`
	Offset   int64                `json:"offset_from"`
	Next     int64                `json:"offset_next"`
	Records  int64                `json:"records"`
	Applied  int64                `json:"applied"`
	Kept     int64                `json:"kept"`
	Sums     []repairSumAnswer    `json:"sums"`
	Branches []repairBranchAnswer `json:"branches"`
	Epochs   []repairEpochAnswer  `json:"epochs"`
}

type repairSumAnswer struct {
	Currency string `json:"currency"`
	Charge   string `json:"charge_amount"`
	Credit   string `json:"credit_amount"`
	Entries  int64  `json:"entry_count"`
}

type repairBranchAnswer struct {
	GTRID  string `json:"gtrid"`
	Seq    int64  `json:"seq"`
	Action string `json:"action"` // commit or roll-back
}

type repairEpochAnswer struct {
	Seq     int64  `json:"seq"`
	From    int64  `json:"offset_from"`
	Next    int64  `json:"offset_next"`
	GTRID   string `json:"gtrid"`
	Records int64  `json:"records"`
	Applied int64  `json:"applied"`
	Kept    int64  `json:"kept"`
}

// Results of a lane.
const (
	laneMissing = "missing"
	laneBooked  = "booked"
	laneRefused = "refused"
	laneFailed  = "failed"
)

func newRepairAnswer(r *repairing) *repairAnswer {
	a := &repairAnswer{Job: r.c.Job, Topic: r.c.Kafka.Topic, DryRun: !r.apply, Lanes: []repairLaneAnswer{}}
	for _, f := range r.found {
		if f.Loss == nil && f.Err == nil {
			continue
		}
		l := repairLaneAnswer{Lane: f.Lane.String(), Result: laneMissing, Shards: []repairShardAnswer{}}
		switch refused := checkpoint.AsRefusal(f.Err); {
		case refused != nil:
			l.Result, l.Reason, l.Message = laneRefused, refused.Reason, f.Err.Error()
		case f.Err != nil:
			l.Result, l.Message = laneFailed, f.Err.Error()
		case r.booked[f.Lane]:
			l.Result = laneBooked
		}
		if f.Loss != nil {
			l.Seq = f.Loss.Decision.Seq
			for _, m := range f.Loss.Missing {
				l.Shards = append(l.Shards, newRepairShardAnswer(m, f.Loss.Decision.Seq))
			}
		}
		a.Lanes = append(a.Lanes, l)
	}
	return a
}

func newRepairShardAnswer(m *repair.Missing, to int64) repairShardAnswer {
	a := repairShardAnswer{
		Shard: m.Shard, Has: m.Has, From: m.Has + 1, To: to, Offset: m.From, Next: m.Next,
		Records: m.Records, Applied: m.Applied, Kept: m.Rejects,
		Sums: []repairSumAnswer{}, Branches: []repairBranchAnswer{}, Epochs: []repairEpochAnswer{},
	}
	for _, currency := range sortedKeys(m.Sums) {
		s := m.Sums[currency]
		a.Sums = append(a.Sums, repairSumAnswer{currency, s.Charge.String(), s.Credit.String(), s.Entries})
	}
	for _, b := range m.Branches {
		action := "roll-back"
		if b.Decided {
			action = "commit"
		}
		a.Branches = append(a.Branches, repairBranchAnswer{string(b.GTRID), b.Seq, action})
	}
	for _, e := range m.Epochs {
		a.Epochs = append(a.Epochs, repairEpochAnswer{e.Seq, e.From, e.Next, string(e.GTRID), e.Records, e.Applied, e.Rejects})
	}
	return a
}

// writeRepair writes the answer for people.
func writeRepair(w io.Writer, a *repairAnswer) error {
	_, err := io.WriteString(w, repairText(a))
	if err != nil {
		return fmt.Errorf("repair: write: %w", err)
	}
	return nil
}
