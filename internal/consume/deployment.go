package consume

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/checkpoint"
)

// LookUp finds the input topic as it is now. Its errors are Check's.
func (c *Client) LookUp(ctx context.Context) (Input, error) {
	t, err := describeTopic(ctx, c.fetch.cl, c.cfg.Topic)
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return Input{}, refuse(checkpoint.ReasonTopicMissing, c.cfg.Topic, "create it, or correct kafka.topic", "there is no topic of this name")
	}
	if err != nil {
		return Input{}, failed(c.cfg.Topic, "look up topic "+c.cfg.Topic, err)
	}
	return Input{ID: t.TopicID, Partitions: int32(len(t.Partitions)), Replication: len(t.Partitions[0].Replicas)}, nil
}

// Decisions reads the decisions that the job's lanes were left with, by
// partition: those of the group's offsets, and where the group has none, the
// last of the decision topic. It is for what never changes in them, so it waits
// for no open transaction. The job's topics exist (EnsureTopics).
func (c *Client) Decisions(ctx context.Context, in Input) (map[int32]string, error) {
	found, err := c.groupMetadata(ctx, in)
	if err != nil {
		return nil, failed("group "+c.cfg.Job, "read the group's offsets", err)
	}
	for n := range in.Partitions {
		if _, ok := found[n]; ok {
			continue
		}
		d, err := c.lastDecision(ctx, n)
		if err != nil {
			return nil, failed(c.DecisionTopic(), "read the last decision", err)
		}
		if d != "" {
			found[n] = d
		}
	}
	return found, nil
}

// lookWithin bounds the wait for one lane's record: behind somebody's open
// transaction only that lane waits longer, when it starts.
const lookWithin = 2 * time.Second

// lastDecision is the last committed record of a lane's decisions, "" where
// there is none or an open transaction is before it.
func (c *Client) lastDecision(ctx context.Context, partition int32) (string, error) {
	log := newPartitionLog(c.reads, c.DecisionTopic(), partition)
	start, end, err := log.bounds(ctx)
	if err != nil {
		return "", err
	}
	look, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	record, err := log.last(look, start, end)
	switch {
	case err != nil && look.Err() != nil && ctx.Err() == nil:
		return "", nil //nolint:nilerr // see above
	case err != nil:
		return "", err
	case record == nil:
		return "", nil
	}
	return string(record.Value), nil
}

// groupMetadata is the metadata of the group's committed offsets, as they are
// now; of an open transaction the offset before it.
func (c *Client) groupMetadata(ctx context.Context, in Input) (found map[int32]string, err error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	rt := kmsg.NewOffsetFetchRequestGroupTopic()
	rt.Topic, rt.TopicID = c.cfg.Topic, in.ID
	for n := range in.Partitions {
		rt.Partitions = append(rt.Partitions, n)
	}
	rg := kmsg.NewOffsetFetchRequestGroup()
	rg.Group = c.cfg.Job
	rg.Topics = append(rg.Topics, rt)
	req.Groups = append(req.Groups, rg)
	err = again(ctx, transient, func() error {
		found = map[int32]string{}
		resp, err := req.RequestWith(ctx, c.fetch.cl)
		if err != nil {
			return err
		}
		if len(resp.Groups) != 1 {
			return errors.New("an answer without the group")
		}
		err = kerr.ErrorForCode(resp.Groups[0].ErrorCode)
		if errors.Is(err, kerr.GroupIDNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, t := range resp.Groups[0].Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return err
				}
				if p.Offset >= 0 && p.Metadata != nil && *p.Metadata != "" {
					found[p.Partition] = *p.Metadata
				}
			}
		}
		return nil
	})
	return found, err
}
