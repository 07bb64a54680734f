package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"billing/cmd/billing/config"
	"billing/internal/audit"
	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/txsink"
)

// Bounds of looking.
const (
	lookWithin = 10 * time.Second // one look at a shard, and what Kafka is asked at a time
	tryWithin  = 3 * time.Second  // one try to read a lane: an owner's Kafka transaction is shorter
	listWithin = 30 * time.Second // all that is read of lanes
)

// preparedBranches lists what is prepared on the shards' servers. problems are
// what could not be asked, or is not as recorded.
func preparedBranches(ctx context.Context, c *config.Config) (branches []audit.Branch, problems []error, err error) {
	sink, kafka, err := openToLook(c, sinkConfig(c, quiet))
	if err != nil {
		return nil, nil, err
	}
	defer sink.Close()
	defer kafka.Close()
	branches, problems = audit.ListBranches(ctx, audit.Question{
		Job: c.Job, Topic: c.Kafka.Topic, Shards: shardsToSee{sink, shardNames(c)}, Kafka: &kafkaToSee{Client: kafka, firstStart: c.FirstStart},
		Within: lookWithin, LaneWithin: tryWithin, LanesWithin: listWithin,
	})
	return branches, problems, nil
}

// shardsToSee is MySQL's side as audit needs it.
type shardsToSee struct {
	sink  *txsink.Sink
	names []string
}

// Names implements audit.BranchShards.
func (s shardsToSee) Names() []string { return s.names }

// See implements audit.BranchShards.
func (s shardsToSee) See(ctx context.Context, shard int) (audit.Seen, error) {
	look, err := s.sink.Look(ctx, shard)
	if err != nil {
		return audit.Seen{}, err
	}
	seen := audit.Seen{Server: look.Server, Set: look.Set, Problems: look.Problems, Written: map[checkpoint.GTRID]audit.Written{}}
	for _, x := range look.XIDs {
		listed := audit.XID{FormatID: x.FormatID, GTRID: x.GTRID, BQUAL: x.BQUAL, Shard: -1}
		for i := range s.names {
			if x.OnShard(i) {
				listed.Shard = i
			}
		}
		seen.Listed = append(seen.Listed, listed)
	}
	for _, e := range look.Newest {
		seen.Written[e.GTRID] = audit.Written{Lane: e.Lane, From: e.From, Next: e.Next, Records: e.Records, PreparedAt: e.PreparedAt}
	}
	return seen, nil
}

// kafkaToSee is Kafka's side as audit needs it.
type kafkaToSee struct {
	*consume.Client
	firstStart bool

	absent []string // topics of the job that a first start will make
}

// Topic implements audit.BranchKafka.
func (k *kafkaToSee) Topic(ctx context.Context) (checkpoint.UUID, error) {
	input, err := k.LookUp(ctx)
	if err != nil {
		return checkpoint.UUID{}, fmt.Errorf("decisions can't be read: %w", err)
	}
	// A lane's Look would wait for a topic that is missing. What else is wrong with
	// the job's topics a start refuses, and keeps nobody from reading them.
	absent, err := k.CheckTopics(ctx, input, k.firstStart)
	var unreadable []error
	for _, err := range checkpoint.Problems(err) {
		if r := checkpoint.AsRefusal(err); r == nil || r.Reason == checkpoint.ReasonTopicMissing {
			unreadable = append(unreadable, err)
		}
	}
	if err := errors.Join(unreadable...); err != nil {
		return checkpoint.UUID{}, fmt.Errorf("decisions can't be read: %w", err)
	}
	k.absent = absent
	return input.ID, nil
}

// Look implements audit.BranchKafka.
func (k *kafkaToSee) Look(ctx context.Context, partition int32) (checkpoint.Read, error) {
	return k.LookWithout(ctx, partition, k.absent)
}

// Owned implements audit.BranchKafka.
func (k *kafkaToSee) Owned(ctx context.Context) (func(partition int32) bool, error) {
	state, members, err := k.Members(ctx)
	if err != nil {
		return nil, err
	}
	owned := map[int32]bool{}
	for _, m := range members {
		for _, p := range m.Lanes {
			owned[p] = true
		}
	}
	// In a rebalance the group does not say who has what, and lanes work on.
	all := state != "Stable" && len(members) > 0
	return func(partition int32) bool { return all || owned[partition] }, nil
}
