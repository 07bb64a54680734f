package repair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"billing/internal/checkpoint"
)

// epoch is a decided epoch that some shard lacks.
type epoch struct {
	seq        int64
	from, next int64
	gtrid      checkpoint.GTRID
	ledgerOn   bool
	shown      map[int]*checkpoint.BookedEpoch // by the number of the shard that has it
}

// start is where the lost epochs begin, as far as it is known.
type start struct {
	offset  int64               // of a lane of which nothing is left: where its first epoch began
	reached map[int64]reached   // by epoch: what the stream had come to at its end, where a decision says so
	written map[int64]time.Time // by epoch: when it was prepared or decided, by the clock of the service
}

// reached is what a stream has come to, µs since 1970 UTC.
type reached struct{ streamTime, forgottenBefore int64 }

// findEpochs puts the lost epochs together: from the shards that have them, and
// from the decisions that Kafka still has.
func (l *Loss) findEpochs(ctx context.Context, cfg *Config) error {
	first := l.Missing[0]
	for _, m := range l.Missing {
		if m.Has < first.Has {
			first = m
		}
	}
	for seq := first.Has + 1; seq <= l.Decision.Seq; seq++ {
		l.epochs = append(l.epochs, &epoch{seq: seq, shown: map[int]*checkpoint.BookedEpoch{}})
	}
	d := &l.Decision
	l.start.written = map[int64]time.Time{}
	l.start.reached = map[int64]reached{
		0:     {}, // the lane's first epoch follows on nothing
		d.Seq: {d.StreamTime, d.ForgottenBefore},
	}
	for i := range cfg.Job.Shards {
		// With the two before: they bound the clock of then.
		err := cfg.MySQL.Epochs(ctx, i, l.Lane, max(first.Has-1, 1), l.Decision.Seq, func(e *checkpoint.BookedEpoch) error {
			l.start.written[e.Seq] = e.PreparedAt
			if e.Seq > first.Has {
				l.epoch(e.Seq).shown[i] = e
				return nil
			}
			if e.Seq == first.Has && (e.GTRID != first.row.GTRID || e.OffsetNext != first.From) {
				return l.hole(first, fmt.Sprintf("its epoch %d is of branch %s up to offset %d, but shard %s has it of %s up to %d",
					e.Seq, first.row.GTRID, first.From, cfg.Job.Shards[i].Name(), e.GTRID, e.OffsetNext))
			}
			return nil
		})
		if err != nil {
			return err //nolint:wrapcheck // a refusal, or one that names the shard
		}
	}
	past, err := l.past(ctx, cfg, first.Has)
	if err != nil {
		return err
	}
	return l.join(cfg, first, past)
}

// past are the decisions that Kafka still has, by the epoch that each of them
// decided, with those that say what the lane had come to before.
func (l *Loss) past(ctx context.Context, cfg *Config, has int64) (map[int64]checkpoint.Decision, error) {
	own := map[int64]checkpoint.Decision{} // the epoch's own, and not a takeover's or an idle lane's
	enough := func(text string) bool {
		d, err := checkpoint.ParseDecision(text)
		return err == nil && d.Seq <= has
	}
	before := int64(-1) // the epoch of the decision before
	note := func(text string, written time.Time) error {
		d, err := checkpoint.ParseDecision(text)
		if err != nil {
			return fmt.Errorf("a decision of the past: %w", err)
		}
		if before >= 0 && d.Seq == before+1 {
			own[d.Seq] = d
			if l.start.written[d.Seq].Before(written) {
				l.start.written[d.Seq] = written
			}
		}
		if d.Seq == 0 {
			l.start.offset = d.Next
		}
		if d.Seq == 0 && before < 0 {
			// The first takeover: no record was taken before it.
			l.start.written[-1], l.start.written[0] = written, written
		}
		if d.Seq <= l.Decision.Seq {
			l.start.reached[d.Seq] = reached{d.StreamTime, d.ForgottenBefore}
		}
		before = d.Seq
		return nil
	}
	err := cfg.whileItMoves(ctx, func(ctx context.Context, w *watch) error {
		return cfg.Kafka.PastDecisions(ctx, l.Lane.Partition, func(decision string) bool {
			defer w.hold()()
			return enough(decision)
		}, note)
	})
	if err != nil {
		return nil, fmt.Errorf("lane %s: %w", l.Lane, err)
	}
	return own, nil
}

// join makes the chain of the lost epochs, each beginning where the one before
// ended.
func (l *Loss) join(cfg *Config, first *Missing, past map[int64]checkpoint.Decision) error {
	at := first.From
	unknownFrom, unknownTo := int64(0), int64(0)
	for _, e := range l.epochs {
		known := false
		claim := func(who string, gtrid checkpoint.GTRID, next int64) error {
			if known && (gtrid != e.gtrid || next != e.next) {
				return l.refuse(ReasonNotExact, "billing verify says which of them is wrong", "of epoch %d %s has branch %s up to offset %d, and before it was found as %s up to %d", e.seq, who, gtrid, next, e.gtrid, e.next)
			}
			known, e.gtrid, e.next = true, gtrid, next
			return nil
		}
		var errs []error
		for _, i := range slices.Sorted(maps.Keys(e.shown)) {
			shown := e.shown[i]
			errs = append(errs, claim("shard "+cfg.Job.Shards[i].Name(), shown.GTRID, shown.OffsetNext))
			if e.from = shown.OffsetFrom; unknownFrom == 0 && e.from != at && e.seq != 1 {
				errs = append(errs, l.refuse(ReasonNotExact, "billing verify says what is wrong", "epoch %d begins at offset %d on shard %s, the one before ends at %d", e.seq, e.from, cfg.Job.Shards[i].Name(), at))
			}
		}
		if d, ok := past[e.seq]; ok {
			errs = append(errs, claim("the decision of then", d.GTRID, d.Next))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		if len(e.shown) == 0 {
			e.from = at
		}
		switch {
		case !known && unknownFrom == 0:
			unknownFrom, unknownTo = e.seq, e.seq
		case !known:
			unknownTo = e.seq
		}
		at = e.next
	}
	last := l.epochs[len(l.epochs)-1]
	if unknownFrom > 0 {
		return l.refuse(ReasonEpochsUnknown, "restore the shard to a later moment; where there is none, see the runbook",
			"no shard has the epochs %d to %d, and topic %s.decision has their decisions no more: where each of them ends is not known", unknownFrom, unknownTo, cfg.Job.Name)
	}
	if last.gtrid != l.Decision.GTRID {
		return l.refuse(ReasonNotExact, "billing verify says what is wrong", "epoch %d was found as branch %s, the decision names %s", last.seq, last.gtrid, l.Decision.GTRID)
	}
	if err := l.ledgers(cfg, first); err != nil {
		return err
	}
	if first.Has == 0 && len(l.epochs[0].shown) == 0 {
		l.epochs[0].from = l.start.offset
	}
	for _, m := range l.Missing {
		m.From, m.Next = l.epoch(m.Has+1).from, last.next
	}
	return nil
}

// ledgers says of each lost epoch whether the ledger was on. Where no shard shows
// it, it was as before and behind them.
func (l *Loss) ledgers(cfg *Config, first *Missing) error {
	on := cfg.Ledger // of a lane of which nothing is left
	if first.row != nil {
		on = first.row.LedgerOn
	}
	unshown := int64(0) // the first of the epochs before this one that nobody shows
	meets := func(seq int64, then bool) error {
		if unshown > 0 && then != on {
			return l.refuse(ReasonNotExact, "set ledger.enabled, for the repair, to what it was when they were written; if it was switched between them, see the runbook",
				"no shard shows whether the ledger was on in the epochs %d to %d: before them it was %t, and then %t", unshown, seq-1, on, then)
		}
		unshown, on = 0, then
		return nil
	}
	for _, e := range l.epochs {
		for _, shown := range e.shown {
			if err := meets(e.seq, shown.LedgerOn); err != nil {
				return err
			}
		}
		if e.ledgerOn = on; len(e.shown) == 0 && unshown == 0 {
			unshown = e.seq
		}
	}
	return meets(l.Decision.Seq+1, cfg.Ledger)
}
