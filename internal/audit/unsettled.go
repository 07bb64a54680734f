package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"billing/internal/checkpoint"
)

// ReasonGroupHasMembers is the refusal to settle lanes that instances have: they
// do it themselves, and nobody takes a lane from one that may be at work.
const ReasonGroupHasMembers = "group-has-members"

// UnsettledLane is a lane for which S0 to S4 has something to do, or to say.
type UnsettledLane struct {
	Lane checkpoint.Lane
	Why  string
}

// Unsettled finds the lanes of the job that have a prepared branch on a shard,
// or whose decided epoch is not on every shard, or of which a shard has more than
// is decided, or whose decision can't be told.
// elsewhere counts the branches of the job that are of other topics. The job's
// shards and topics are checked, and no member of its group is at work. look is
// checkpoint's Read without a fence; one lane gets so long for it. An error says
// that a shard did not answer.
func Unsettled(ctx context.Context, job *checkpoint.Job, look func(ctx context.Context, partition int32) (checkpoint.Read, error), within time.Duration) (lanes []UnsettledLane, elsewhere int, err error) {
	why, elsewhere, err := preparedLanes(ctx, job)
	if err != nil {
		return nil, 0, err
	}
	var mu sync.Mutex // of why and errs
	var errs []error
	eachOf(int(job.Partitions), func(i int) {
		lane := checkpoint.Lane{Topic: job.Topic, Partition: int32(i)}
		mu.Lock()
		_, prepared := why[lane.Partition]
		mu.Unlock()
		if prepared {
			return
		}
		says, err := unsettled(ctx, job, lane, look, within)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			errs = append(errs, err)
		} else if says != "" {
			why[lane.Partition] = says
		}
	})
	if len(errs) > 0 {
		return nil, 0, errors.Join(errs...)
	}
	for partition, w := range why {
		lanes = append(lanes, UnsettledLane{Lane: checkpoint.Lane{Topic: job.Topic, Partition: partition}, Why: w})
	}
	slices.SortFunc(lanes, func(a, b UnsettledLane) int { return int(a.Lane.Partition) - int(b.Lane.Partition) })
	return lanes, elsewhere, nil
}

// preparedLanes are the lanes of the job's topic that have prepared branches, by
// partition, with what is prepared.
func preparedLanes(ctx context.Context, job *checkpoint.Job) (why map[int32]string, elsewhere int, err error) {
	on := map[int32][]string{} // names of shards
	for _, shard := range job.Shards {
		gtrids, err := shard.Prepared(ctx, checkpoint.OwnerPrefix(job.Name, job.Set))
		if err != nil {
			return nil, 0, fmt.Errorf("shard %s: list prepared branches: %w", shard.Name(), err)
		}
		for _, g := range gtrids {
			n, err := g.Parse()
			if err != nil {
				continue // not of this service
			}
			if !onTopic(n, job.TopicID) || n.Partition >= job.Partitions {
				elsewhere++
				continue
			}
			if !slices.Contains(on[n.Partition], shard.Name()) {
				on[n.Partition] = append(on[n.Partition], shard.Name())
			}
		}
	}
	why = map[int32]string{}
	for partition, shards := range on {
		why[partition] = "prepared on " + strings.Join(shards, ", ")
	}
	return why, elsewhere, nil
}

// unsettled says why a lane without a prepared branch is not settled, "" for one
// that is.
func unsettled(ctx context.Context, job *checkpoint.Job, lane checkpoint.Lane, look func(ctx context.Context, partition int32) (checkpoint.Read, error), within time.Duration) (string, error) {
	lctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	r, err := look(lctx, lane.Partition)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		// Perhaps a dead owner's Kafka transaction is open: S1's fence ends it.
		return "its decision can't be read: " + err.Error(), nil
	}
	d, known, err := job.Decided(lane, &r)
	switch {
	case err != nil:
		return "its decision can't be told", nil //nolint:nilerr // S2 refuses it, with the whole message
	}
	for _, shard := range job.Shards {
		has, ok, err := shard.LaneRow(ctx, lane)
		switch {
		case err != nil:
			return "", fmt.Errorf("shard %s: %w", shard.Name(), err)
		case ok && has.Seq > d.Seq: // of a lane without a decision all are
			return fmt.Sprintf("%s has its epochs up to %d, more than are decided", shard.Name(), has.Seq), nil
		}
		if !known || d.Seq == 0 {
			continue
		}
		row, ok, err := shard.EpochRow(ctx, lane, d.Seq)
		switch {
		case err != nil:
			return "", fmt.Errorf("shard %s: %w", shard.Name(), err)
		case !ok:
			return fmt.Sprintf("the decided epoch %d is not on %s", d.Seq, shard.Name()), nil
		case row.GTRID != d.GTRID:
			return fmt.Sprintf("epoch %d on %s is not by the branch that is decided", d.Seq, shard.Name()), nil
		}
	}
	return "", nil
}
