package repair

import (
	"context"
	"fmt"
	"slices"
	"time"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/dedup"
	"billing/internal/event"
)

// replay reads the messages of the lost epochs again, and gives each epoch as it
// was, in order.
type replay struct {
	*Loss
	cfg     *Config
	done    func(*epoch, *aggregate.Epoch) error
	decoder *event.Decoder
	state   *dedup.State // at the decision
	horizon horizon

	at        int              // index of the epoch that is being filled
	filling   *aggregate.Epoch // of epochs[at]
	clock     clock            // when its records had their outcomes
	applied   []int64          // offsets that the state has, and that were not met yet
	gone      int64            // such offsets that Kafka does not have
	firstGone int64
	unsure    []int64 // offsets of records whose outcome can't be told
	unsureAll int64
}

// replay calls done for each of the lost epochs. It fails with a *checkpoint.Refusal
// where an outcome can't be told exactly, once all messages are read.
func (l *Loss) replay(ctx context.Context, cfg *Config, step string, done func(*epoch, *aggregate.Epoch) error) error {
	first, last := l.epochs[0], l.epochs[len(l.epochs)-1]
	if err := l.allThere(ctx, cfg, first.from, last.next); err != nil {
		return err
	}
	state, err := l.restore(ctx, cfg)
	if err != nil {
		return err
	}
	r := &replay{
		Loss: l, cfg: cfg, done: done, decoder: event.NewDecoder(cfg.Decoder), state: state,
		horizon: newHorizon(l, cfg, state), applied: state.AppliedIn(first.from, last.next),
	}
	r.begin(0)
	read := int64(0)
	err = cfg.whileItMoves(ctx, func(kctx context.Context, w *watch) error {
		return cfg.Kafka.ReadInput(kctx, l.Lane.Partition, first.from, last.next, func(rec *event.Record, written time.Time) error {
			defer w.hold()() // what is booked meanwhile has bounds of its own
			for rec.Offset >= r.epochs[r.at].next {
				if err := r.end(); err != nil {
					return err
				}
			}
			if read++; read%1000 == 0 && cfg.Progress != nil {
				cfg.Progress(l.Lane, step, rec.Offset-first.from, last.next-first.from)
			}
			return r.take(rec, written)
		})
	})
	for err == nil && r.at < len(r.epochs) {
		err = r.end()
	}
	if err != nil {
		return err //nolint:wrapcheck // it says itself what it is
	}
	return r.whole()
}

// allThere refuses what Kafka does not have any more.
func (l *Loss) allThere(ctx context.Context, cfg *Config, from, next int64) error {
	r, err := l.look(ctx, cfg)
	if err != nil {
		return err
	}
	switch {
	case r.TopicID != l.Decision.TopicID:
		return l.refuse(checkpoint.ReasonTopicRecreated, "a recreated topic does not have the messages of the old one; see the runbook", "the topic has id %s, the decision was made with %s", r.TopicID, l.Decision.TopicID)
	case r.LogStart > from:
		return l.refuse(ReasonMessagesDeleted, deletedAdvice, "the lost epochs have the offsets %d to %d, but the partition begins at %d: %d of them were deleted", from, next-1, r.LogStart, min(r.LogStart, next)-from)
	case r.LogEnd < next:
		return l.refuse(ReasonMessagesDeleted, deletedAdvice, "the lost epochs have the offsets %d to %d, but the partition ends at %d", from, next-1, r.LogEnd)
	}
	i := slices.IndexFunc(l.epochs, func(e *epoch) bool { return len(e.shown) == 0 })
	if i < 0 {
		return nil // a shard says how many messages each epoch had
	}
	var compacted bool
	err = cfg.whileItMoves(ctx, func(ctx context.Context, _ *watch) (err error) {
		compacted, err = cfg.Kafka.Compacted(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if compacted {
		return l.refuse(ReasonNotExact, "restore one shard from a later copy: with what it shows the others are repaired; without one, see the runbook",
			"the topic is compacted, and no shard has epoch %d: nobody knows whether Kafka still has all messages of it", l.epochs[i].seq)
	}
	return nil
}

// look reads the lane, which must be as it was found.
func (l *Loss) look(ctx context.Context, cfg *Config) (r checkpoint.Read, err error) {
	err = cfg.whileItMoves(ctx, func(ctx context.Context, _ *watch) (err error) {
		r, err = cfg.Kafka.Look(ctx, l.Lane.Partition)
		return err
	})
	if err == nil {
		err = l.still(&r)
	}
	return r, err
}

// still says of a lane that was repaired by somebody else, and has gone on since, that
// nothing of what was found is true any more. A takeover changes nothing.
func (l *Loss) still(r *checkpoint.Read) error {
	d, err := checkpoint.ParseDecision(r.Record)
	if err == nil && (d.Seq != l.Decision.Seq || d.GTRID != l.Decision.GTRID || d.StateNext != l.Decision.StateNext) {
		return fmt.Errorf("lane %s has gone on to epoch %d since it was looked at: somebody else has repaired it, perhaps. Next step: run it again", l.Lane, d.Seq)
	}
	return nil
}

const deletedAdvice = "raise the topic's retention, so that no more is deleted; take the messages from where they are kept, and end this job with a new one, as the runbook says"

// restore is S5: the dedup state as it was at the decision.
func (l *Loss) restore(ctx context.Context, cfg *Config) (*dedup.State, error) {
	d := &l.Decision
	damaged := func(wrong string, args ...any) error {
		return l.refuse(checkpoint.ReasonStateDamaged, "restore topic "+cfg.Job.Name+".state from a copy: without it nobody can tell what was applied; see the runbook", wrong, args...)
	}
	state := dedup.New()
	err := cfg.whileItMoves(ctx, func(ctx context.Context, w *watch) error {
		return cfg.Kafka.ReadState(ctx, l.Lane.Partition, d.OldestLive, func(offset int64, data []byte) error {
			defer w.hold()()
			if _, err := state.Load(data); err != nil {
				return damaged("the chunk at offset %d of %s.state can't be read: %s", offset, cfg.Job.Name, err)
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("restore the dedup state: %w", err)
	}
	if count, checksum := state.Restored(d.ForgottenBefore); count != d.Count || checksum != d.Checksum {
		// Not so of a lane that has gone on while its state was read.
		if _, err := l.look(ctx, cfg); err != nil {
			return nil, err
		}
		return nil, damaged("%s.state from offset %d gives %d entries with checksum %016x, the decision of epoch %d says %d with %016x", cfg.Job.Name, d.OldestLive, count, checksum, d.Seq, d.Count, d.Checksum)
	}
	return state, nil
}

func (r *replay) begin(i int) {
	r.at = i
	if i == len(r.epochs) {
		return
	}
	e := r.epochs[i]
	r.clock = r.start.clockOf(e.seq)
	r.filling = aggregate.New(aggregate.Config{
		Topic: r.Lane.Topic, Partition: r.Lane.Partition, Shards: len(r.cfg.Job.Shards), Window: r.cfg.Window, Ledger: e.ledgerOn,
	})
}

// end closes the epoch that is being filled.
func (r *replay) end() error {
	e := r.epochs[r.at]
	r.passed(e.next)
	// What is gone, or can't be told at all, is said at the end, with all of its kind.
	if r.unsureAll == 0 && r.gone == 0 {
		if err := r.compare(e, r.filling); err != nil {
			return err
		}
		if was, ok := r.start.reached[e.seq]; ok {
			if !r.horizon.reaches(was) {
				return r.refuse(ReasonNotExact, "use the configuration that the epochs were written with: dedup.lateness, or what messages are valid, was another then; if dedup.lateness was changed between these epochs, see the runbook",
					"with these messages the lane's stream time and horizon come to %s, the decision of epoch %d says %d and %d", r.horizon, e.seq, was.streamTime, was.forgottenBefore)
			}
			r.horizon.is(was)
		}
		if err := r.done(e, r.filling); err != nil {
			return err
		}
	}
	r.begin(r.at + 1)
	return nil
}

// whole is what can be said only when all messages are read.
func (r *replay) whole() error {
	switch {
	case r.gone > 0:
		return r.refuse(ReasonMessagesDeleted, deletedAdvice,
			"%d of the messages that were applied (the first at offset %d) are not in Kafka any more: they were deleted or compacted away", r.gone, r.firstGone)
	case r.unsureAll > 0:
		return r.refuse(ReasonNotExact, "see the runbook: look these messages up where they come from, and end this job with a new one",
			"of %d messages (the first at offsets %v) it can't be told any more whether they were booked: their time, or that of an event with the same id, is so long ago that the ids are forgotten since, or nobody knows the clock of then", r.unsureAll, r.unsure)
	}
	return nil
}

// Compute finds what the lost epochs were, and compares it with what other shards
// show. It changes nothing. Its error is a *checkpoint.Refusal where that can't be
// done exactly.
func (l *Loss) Compute(ctx context.Context, cfg *Config) error {
	for _, m := range l.Missing {
		m.Epochs, m.Records, m.Applied, m.Rejects = nil, 0, 0, 0
		clear(m.Sums)
	}
	return l.replay(ctx, cfg, "compute", func(e *epoch, filled *aggregate.Epoch) error {
		for _, m := range l.Missing {
			if e.seq <= m.Has {
				continue
			}
			part := &filled.Parts[m.number]
			rejects := int64(len(part.Rejects))
			m.Epochs = append(m.Epochs, MissingEpoch{Seq: e.seq, From: e.from, Next: e.next, GTRID: e.gtrid, Records: filled.Counts.In, Applied: part.Applied, Rejects: rejects})
			m.Records += filled.Counts.In
			m.Applied += part.Applied
			m.Rejects += rejects
			for currency, s := range part.Sums {
				sum := m.Sums[currency]
				if sum == nil {
					sum = new(Sum)
					m.Sums[currency] = sum
				}
				sum.Charge.AddSum(s.Charge)
				sum.Credit.AddSum(s.Credit)
				sum.Entries += s.Entries
			}
		}
		return nil
	})
}
