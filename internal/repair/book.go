package repair

import (
	"context"
	"errors"
	"fmt"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
)

// Book books the lost epochs on the shards that lack them, oldest first; Compute
// has gone well. After an error it may be called again, also by another process:
// what is there is not written twice.
func (l *Loss) Book(ctx context.Context, cfg *Config) error {
	for _, m := range l.Missing {
		if err := l.endBranches(ctx, cfg, m); err != nil {
			return err
		}
	}
	err := l.replay(ctx, cfg, "book", func(e *epoch, filled *aggregate.Epoch) error {
		for _, m := range l.Missing {
			if e.seq > m.Has && e.seq != m.decidedHere() {
				if err := l.book(ctx, cfg, m, e, filled); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, m := range l.Missing {
		if _, err := l.row(ctx, cfg, m, l.epochs[len(l.epochs)-1]); err != nil {
			return err
		}
	}
	return nil
}

// endBranches ends what the shard has come back with: it holds the lane's row.
func (l *Loss) endBranches(ctx context.Context, cfg *Config, m *Missing) error {
	shard := cfg.Job.Shards[m.number]
	for _, b := range m.Branches {
		var err error
		if b.Decided {
			err = shard.Commit(ctx, b.GTRID)
		} else {
			err = shard.Rollback(ctx, b.GTRID)
		}
		if err != nil && !errors.Is(err, checkpoint.ErrNotListed) {
			return fmt.Errorf("shard %s: lane %s: end branch %s: %w", m.Shard, l.Lane, b.GTRID, err)
		}
		if !b.Decided {
			continue
		}
		// Only the row proves it.
		if _, err := l.row(ctx, cfg, m, l.epoch(b.Seq)); err != nil {
			return err
		}
	}
	return nil
}

// book writes one epoch on one shard.
func (l *Loss) book(ctx context.Context, cfg *Config, m *Missing, e *epoch, filled *aggregate.Epoch) error {
	shard := cfg.Job.Shards[m.number]
	var digest []byte
	if e.seq > 1 {
		before, ok, err := shard.EpochRow(ctx, l.Lane, e.seq-1)
		if err != nil {
			return fmt.Errorf("shard %s: lane %s: %w", m.Shard, l.Lane, err)
		}
		if !ok {
			return l.hole(m, fmt.Sprintf("it has no row of epoch %d", e.seq-1))
		}
		digest = before.Digest
	}
	n, err := e.gtrid.Parse()
	if err != nil {
		return fmt.Errorf("lane %s: epoch %d: %w", l.Lane, e.seq, err)
	}
	err = cfg.MySQL.Rebook(ctx, m.number, &checkpoint.Branch{
		Lane: l.Lane, TopicID: l.Decision.TopicID, GTRID: e.gtrid, Incarnation: n.Incarnation, Seq: e.seq,
		OffsetFrom: e.from, OffsetNext: e.next, Counts: checkpoint.Counts(filled.Counts), PrevDigest: digest, Contents: filled,
	}, e.ledgerOn, l.start.written[e.seq])
	if err == nil {
		return nil
	}
	// A lost answer, or somebody was faster: the row decides.
	if _, rerr := l.row(ctx, cfg, m, e); rerr != nil {
		return errors.Join(err, rerr)
	}
	return nil
}

// row looks that the shard has the epoch.
func (l *Loss) row(ctx context.Context, cfg *Config, m *Missing, e *epoch) (checkpoint.EpochRow, error) {
	row, ok, err := cfg.Job.Shards[m.number].EpochRow(ctx, l.Lane, e.seq)
	switch {
	case err != nil:
		return row, fmt.Errorf("shard %s: lane %s: %w", m.Shard, l.Lane, err)
	case !ok:
		return row, fmt.Errorf("shard %s: lane %s: epoch %d is not there", m.Shard, l.Lane, e.seq)
	case row.GTRID != e.gtrid:
		return row, l.refuse(ReasonNotExact, "billing verify says what is wrong", "epoch %d on shard %s is of branch %s, and %s is the decided one", e.seq, m.Shard, row.GTRID, e.gtrid)
	}
	return row, nil
}
