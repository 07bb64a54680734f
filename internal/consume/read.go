package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/checkpoint"
)

// laneLogs are the partitions that a lane is made of, by one client. They are
// used by one goroutine at a time.
type laneLogs struct {
	cl    *kgo.Client
	group string
	lane  checkpoint.Lane

	// The job's own two are nil for LookWithout where they are not there yet.
	input, decisions, state *partitionLog

	now bool // nothing is waited for: what is open is read as it was before it
}

func (c *Client) logsOf(cl *kgo.Client, lane checkpoint.Lane) laneLogs {
	return laneLogs{
		cl: cl, group: c.cfg.Job, lane: lane,
		input:     newPartitionLog(cl, lane.Topic, lane.Partition),
		decisions: newPartitionLog(cl, c.DecisionTopic(), lane.Partition),
		state:     newPartitionLog(cl, c.StateTopic(), lane.Partition),
	}
}

// Read is S2's reading. Under this Owner's fence all of it is final, except
// for what a later owner does.
func (o *Owner) Read(ctx context.Context) (checkpoint.Read, error) {
	ctx, cancel := context.WithTimeout(ctx, o.client.cfg.ReadTimeout)
	defer cancel()
	return o.readStable(ctx)
}

// Look is Read for who is no owner, such as the operator's tools: stable, but
// under no fence. An owner at work moves on meanwhile, also between the reading
// of the two copies of its decision; who has to know reads again. It waits for an
// open Kafka transaction of the lane until ctx ends: then Unstable says so of the
// error.
func (c *Client) Look(ctx context.Context, partition int32) (checkpoint.Read, error) {
	return c.LookWithout(ctx, partition, nil)
}

// LookWithout is Look where topics of the job are absent: they are read as empty,
// as they will be made.
func (c *Client) LookWithout(ctx context.Context, partition int32, absent []string) (checkpoint.Read, error) {
	o := c.lookersLogs(partition)
	for _, own := range []**partitionLog{&o.decisions, &o.state} {
		if slices.Contains(absent, (*own).topic) {
			*own = nil
		}
	}
	return o.look(ctx)
}

// lookersLogs are a lane's by the client that lanes share.
func (c *Client) lookersLogs(partition int32) laneLogs {
	o := c.logsOf(c.reads, checkpoint.Lane{Topic: c.cfg.Topic, Partition: partition})
	o.decisions.wait = 0
	return o
}

// LookNow is Look that waits for no open Kafka transaction: the decision that it
// gives was made, but a later one may have been made too. Its two copies need not
// be of one moment.
func (c *Client) LookNow(ctx context.Context, partition int32) (checkpoint.Read, error) {
	o := c.lookersLogs(partition)
	o.now = true
	return o.look(ctx)
}

// failedLane is an error of who looks at a lane.
func (c *Client) failedLane(partition int32, err error) error {
	lane := checkpoint.Lane{Topic: c.cfg.Topic, Partition: partition}.String()
	return failed(lane, "lane "+lane, err)
}

func (o *laneLogs) look(ctx context.Context) (checkpoint.Read, error) {
	r, err := o.read(ctx)
	if err != nil {
		return checkpoint.Read{}, failed(o.lane.String(), "lane "+o.lane.String(), err)
	}
	return r, nil
}

// Unstable reports whether a reading has failed because a Kafka transaction was
// open for all of its time.
func Unstable(err error) bool {
	return errors.Is(err, errOpenTransaction) || errors.Is(err, kerr.UnstableOffsetCommit)
}

func (o *laneLogs) readStable(ctx context.Context) (checkpoint.Read, error) {
	r, err := o.read(ctx)
	if err != nil {
		return checkpoint.Read{}, fmt.Errorf("kafka: lane %s: %w", o.lane, err)
	}
	return r, nil
}

func (o *laneLogs) read(ctx context.Context) (r checkpoint.Read, err error) {
	if r.LogStart, r.LogEnd, err = o.input.bounds(ctx); err != nil {
		return r, err
	}
	r.TopicID, r.Partitions = o.input.id, o.input.partitions

	// The input was raised while we run: a new lane finds nothing of its own.
	for _, own := range []*partitionLog{o.decisions, o.state} {
		if own == nil {
			continue
		}
		has, err := own.count(ctx)
		if err != nil {
			return r, err
		}
		if has < r.Partitions {
			return r, refusePartitions(o.lane.String(), own.topic, has, o.lane.Topic, r.Partitions)
		}
	}

	if err := o.readOffset(ctx, &r); err != nil {
		return r, err
	}

	if o.decisions != nil {
		start, end, err := o.decisions.bounds(ctx)
		if o.now && err == nil {
			end, err = o.decisions.stable(ctx)
		}
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
	}
	if o.state != nil {
		r.StateStart, r.StateEnd, err = o.state.bounds(ctx)
	}
	return r, err
}

// readOffset reads the group's offset of the lane with require-stable: without
// it the broker answers the old offset after an acknowledged commit, while the
// markers are still being written.
func (o *laneLogs) readOffset(ctx context.Context, r *checkpoint.Read) error {
	return o.input.retry(ctx, "the group's offset of", func() error {
		req := kmsg.NewPtrOffsetFetchRequest()
		req.RequireStable = !o.now
		rt := kmsg.NewOffsetFetchRequestGroupTopic()
		rt.Topic, rt.TopicID, rt.Partitions = o.lane.Topic, o.input.id, []int32{o.lane.Partition}
		rg := kmsg.NewOffsetFetchRequestGroup()
		rg.Group = o.group
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
func (o *laneLogs) ReadState(ctx context.Context, from int64, passed func(), fn func(offset int64, data []byte) error) error {
	start, end, err := o.state.bounds(ctx)
	if err != nil {
		return fmt.Errorf("kafka: lane %s: %w", o.lane, err)
	}
	// An error of fn comes back as it is.
	var own error
	err = o.state.readTo(ctx, max(from, start), end, passed, func(r *kgo.Record) error {
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

// SkipTail says how far an idle lane's position may move from an offset over
// what holds no committed record: aborted, compacted, control. It gives from
// itself where there is nothing to pass, or a record. The leader epoch before
// the new position is not known: Start it with -1.
func (c *Client) SkipTail(ctx context.Context, partition int32, from int64) (next int64, err error) {
	log := newPartitionLog(c.reads, c.cfg.Topic, partition)
	const few = 64 << 10 // bytes; a tail without records is small, and goes on at the next call
	got, err := log.fetch(ctx, from, 0, few)
	if err != nil {
		return from, fmt.Errorf("kafka: %w", err)
	}
	if len(got.records) > 0 {
		return from, nil
	}
	return max(got.next, from), nil
}

// End gives the log's start and its high watermark.
func (c *Client) End(ctx context.Context, partition int32) (start, highWatermark int64, err error) {
	start, highWatermark, err = newPartitionLog(c.reads, c.cfg.Topic, partition).bounds(ctx)
	if err != nil {
		return 0, 0, c.failedLane(partition, err)
	}
	return start, highWatermark, nil
}

// Ends gives the high watermarks of this member's partitions, by one request to
// each broker that leads some of them. A partition that gives none now is
// missing; an error says that all of them are.
func (c *Client) Ends(ctx context.Context) (map[int32]int64, error) {
	ends := map[int32]int64{}
	m := c.member.Load()
	if m == nil {
		return ends, nil
	}
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = c.cfg.Topic
	for _, partition := range m.ours(all) {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp, rp.CurrentLeaderEpoch = partition, latest, -1
		rt.Partitions = append(rt.Partitions, rp)
	}
	if len(rt.Partitions) == 0 {
		return ends, nil
	}
	req := newListOffsets()
	req.Topics = append(req.Topics, rt)
	var errs []error
	for _, shard := range c.fetch.cl.RequestSharded(ctx, req) {
		resp, ok := shard.Resp.(*kmsg.ListOffsetsResponse)
		if shard.Err != nil || !ok {
			errs = append(errs, shard.Err)
			continue
		}
		for i := range resp.Topics {
			for j := range resp.Topics[i].Partitions {
				answer := &resp.Topics[i].Partitions[j]
				if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
					errs = append(errs, fmt.Errorf("partition %d: %w", answer.Partition, err))
					continue
				}
				ends[answer.Partition] = answer.Offset
			}
		}
	}
	if len(ends) == 0 {
		return nil, fmt.Errorf("kafka: list the end offsets of topic %s: %w", c.cfg.Topic, errors.Join(errs...))
	}
	return ends, nil
}
