package consume

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/checkpoint"
)

// Read is S2's reading. Under this Owner's fence all of it is final, except
// for what a later owner does.
func (o *Owner) Read(ctx context.Context) (checkpoint.Read, error) {
	ctx, cancel := context.WithTimeout(ctx, o.client.cfg.ReadTimeout)
	defer cancel()
	r, err := o.read(ctx)
	if err != nil {
		return checkpoint.Read{}, fmt.Errorf("kafka: lane %s: %w", o.lane, err)
	}
	return r, nil
}

func (o *Owner) read(ctx context.Context) (r checkpoint.Read, err error) {
	if r.LogStart, r.LogEnd, err = o.input.bounds(ctx); err != nil {
		return r, err
	}
	r.TopicID, r.Partitions = o.input.id, o.input.partitions

	if err := o.readOffset(ctx, &r); err != nil {
		return r, err
	}

	start, end, err := o.decisions.bounds(ctx)
	if err != nil {
		return r, err
	}
	record, err := o.decisions.last(ctx, start, end)
	if err != nil {
		return r, err
	}
	if record != nil {
		r.Record = string(record.Value)
	}

	r.StateStart, r.StateEnd, err = o.state.bounds(ctx)
	return r, err
}

// readOffset reads the group's offset of the lane with require-stable: without
// it the broker answers the old offset after an acknowledged commit, while the
// markers are still being written.
func (o *Owner) readOffset(ctx context.Context, r *checkpoint.Read) error {
	return o.input.retry(ctx, "the group's offset of", func() error {
		req := kmsg.NewPtrOffsetFetchRequest()
		req.RequireStable = true
		rt := kmsg.NewOffsetFetchRequestGroupTopic()
		rt.Topic, rt.TopicID, rt.Partitions = o.lane.Topic, o.input.id, []int32{o.lane.Partition}
		rg := kmsg.NewOffsetFetchRequestGroup()
		rg.Group = o.client.cfg.Job
		rg.Topics = append(rg.Topics, rt)
		req.Groups = append(req.Groups, rg)
		resp, err := req.RequestWith(ctx, o.cl)
		if err != nil {
			return err
		}
		if len(resp.Groups) != 1 {
			return errors.New("an answer without the group")
		}
		group := &resp.Groups[0]
		r.HasOffset, r.Offset, r.Metadata = false, 0, ""
		err = kerr.ErrorForCode(group.ErrorCode)
		if errors.Is(err, kerr.GroupIDNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(group.Topics) != 1 || len(group.Topics[0].Partitions) != 1 {
			return errNoPartition
		}
		answer := &group.Topics[0].Partitions[0]
		if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
			return err // UNSTABLE_OFFSET_COMMIT is transient
		}
		if answer.Offset < 0 {
			return nil
		}
		r.HasOffset, r.Offset = true, answer.Offset
		if answer.Metadata != nil {
			r.Metadata = *answer.Metadata
		}
		return nil
	})
}

// ReadState is S5's reading. It holds one fetch's answer in memory at a time,
// beside what fn keeps.
func (o *Owner) ReadState(ctx context.Context, from int64, fn func(offset int64, data []byte) error) error {
	start, end, err := o.state.bounds(ctx)
	if err != nil {
		return fmt.Errorf("kafka: lane %s: %w", o.lane, err)
	}
	// An error of fn comes back as it is.
	var own error
	err = o.state.readTo(ctx, max(from, start), end, func(r *kgo.Record) error {
		own = fn(r.Offset, r.Value)
		return own
	})
	if own != nil {
		return own
	}
	if err != nil {
		return fmt.Errorf("kafka: lane %s: %w", o.lane, err)
	}
	return nil
}
