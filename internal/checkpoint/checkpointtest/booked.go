package checkpointtest

import (
	"context"
	"fmt"

	"billing/internal/checkpoint"
)

// What a repair asks of a world, beside Look.

// ReadChunks calls fn for the committed chunks of the state topic from the offset on.
func (w *World) ReadChunks(ctx context.Context, from int64, fn func(offset int64, data []byte) error) error {
	return (&Owner{world: w}).ReadState(ctx, from, func() {}, fn)
}

// Booked are the branches of the epochs in [from, to] that the shard has, in order.
func (s *Shard) Booked(ctx context.Context, from, to int64) (all []*checkpoint.Branch, err error) {
	err = s.world.do(ctx, s.call("SELECT epochs"), func() error {
		for seq := from; seq <= to; seq++ {
			if e, ok := s.epochs[seq]; ok {
				all = append(all, e.branch)
			}
		}
		return nil
	})
	return all, err
}

// Rebook writes an epoch in a local transaction, if the shard ends with the one
// before and nobody holds the lock of the lane's row.
func (s *Shard) Rebook(ctx context.Context, b *checkpoint.Branch) error {
	return s.world.do(ctx, s.call("Rebook"), func() error {
		if len(s.prepared) > 0 || s.hidden != nil {
			return fmt.Errorf("lock wait timeout on %s", s.Name())
		}
		has := int64(0)
		if s.lane != nil {
			has = s.lane.Seq
		}
		if has != b.Seq-1 {
			return fmt.Errorf("%s is at epoch %d, epoch %d is not booked", s.Name(), has, b.Seq)
		}
		s.world.rule(s.world.named(b.GTRID), "%s: epoch %d is booked again as %s, which no decision names", s.Name(), b.Seq, b.GTRID)
		c := *b
		s.apply(&c)
		return nil
	})
}
