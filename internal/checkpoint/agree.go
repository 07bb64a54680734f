package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// agree is S2's judgement: which D the lane goes on from, or why it must not.
// It changes nothing anywhere.
func (s *Session) agree(ctx context.Context, r *Read) (Decision, error) {
	job, lane := s.job, s.lane
	s.topicID = r.TopicID
	s.prefix = LanePrefix(OwnerPrefix(job.Name, job.Set), r.TopicID, lane.Partition)

	d, err := s.choose(ctx, r)
	if err != nil {
		return Decision{}, err
	}
	if job.Partitions != 0 && r.Partitions != job.Partitions {
		// Also for a lane that is new: the count has changed since the process started.
		return Decision{}, partitionsChanged(lane, r.Partitions, job.Partitions)
	}
	if d.Seq == 0 && d.Incarnation == 0 {
		return d, nil // a first start: made from r, nothing to compare
	}
	if err := job.sameDeployment(lane, &d, r.TopicID, r.Partitions); err != nil {
		return Decision{}, err
	}
	if !r.HasOffset {
		s.net(&d, "offset-expired", fmt.Errorf("the group's offset is gone, offset %d of the decision is stored again", d.Next))
	}

	stop := func(reason, next, wrong string, args ...any) error {
		return &Refusal{Reason: reason, What: lane.String(), Wrong: fmt.Sprintf(wrong, args...), Next: next}
	}
	switch {
	case d.Next < r.LogStart:
		return Decision{}, stop(ReasonUnreadDeleted, "find the deleted messages elsewhere and send them again; see the runbook",
			"the next message to bill is at offset %d, but the partition begins at %d: %d offsets were deleted unread", d.Next, r.LogStart, r.LogStart-d.Next)
	case d.Next > r.LogEnd:
		return Decision{}, stop(ReasonOffsetBeyondEnd, "wait for the partition's leader to recover; if messages were lost by an unclean election, see the runbook",
			"the next message to bill is at offset %d, but the partition ends at %d: Kafka has lost messages that were billed", d.Next, r.LogEnd)
	case r.StateEnd < d.StateNext:
		return Decision{}, stop(ReasonStateDeleted, s.damagedNext(),
			"the lane has written %s.state up to offset %d, but the partition ends at %d: it was lost or created again", job.Name, d.StateNext, r.StateEnd)
	case d.Count > 0 && d.OldestLive < r.StateStart:
		return Decision{}, stop(ReasonStateDeleted, s.damagedNext(),
			"the dedup state is needed from offset %d of %s.state on, but the partition begins at %d", d.OldestLive, job.Name, r.StateStart)
	}
	return d, nil
}

// Foresee is S2's judgement on what was read of a lane under no fence: the
// decision that a session would go on from, or the *Refusal that it would meet.
// It changes nothing. What an owner at work does between two reads may look like
// a refusal: who has one reads and asks again.
func (job *Job) Foresee(ctx context.Context, lane Lane, r *Read) (Decision, error) {
	return (&Session{job: job, lane: lane}).agree(ctx, r)
}

// partitionsChanged is why nothing goes on: keys have moved between lanes.
func partitionsChanged(lane Lane, now, then int32) *Refusal {
	return &Refusal{Scope: EndsProcess, Reason: ReasonPartitionsChanged, What: lane.String(),
		Wrong: fmt.Sprintf("topic %s now has %d partitions, the job was started with %d: keys have moved between lanes, and with them the ids to compare with", lane.Topic, now, then),
		Next:  "stop the producers, and start a new job, with databases of its own, on a new topic with what is not billed yet; see the runbook"}
}

func topicRecreated(lane Lane, now, then UUID) *Refusal {
	return &Refusal{Scope: EndsProcess, Reason: ReasonTopicRecreated, What: lane.String(),
		Wrong: fmt.Sprintf("topic %s now has the id %s, the job was started with %s: it was deleted and created again", lane.Topic, now, then),
		Next:  "a recreated topic needs a new job name and new databases; the old tables stay as they are"}
}

// sameDeployment compares what must not change between runs of a job with what
// a lane was written with. The topic is as it is now. It returns all refusals,
// joined.
func (job *Job) sameDeployment(lane Lane, d *Decision, topic UUID, partitions int32) error {
	refuse := func(reason, next, wrong string, args ...any) *Refusal {
		return &Refusal{Scope: EndsProcess, Reason: reason, What: lane.String(), Wrong: fmt.Sprintf(wrong, args...), Next: next}
	}
	switch {
	case d.Job != job.Name || d.Topic != lane.Topic || d.Partition != lane.Partition:
		r := refuse(ReasonFingerprint, "use another job name",
			"the decision belongs to job %q, lane %s/%d", d.Job, d.Topic, d.Partition)
		r.Keys = []string{"job"}
		return r
	case d.TopicID != topic:
		return topicRecreated(lane, topic, d.TopicID)
	}
	var problems []error
	if d.Partitions != partitions {
		problems = append(problems, partitionsChanged(lane, partitions, d.Partitions))
	}
	if d.Shards != len(job.Shards) {
		problems = append(problems, refuse(ReasonShardsChanged, "restore the list of shards",
			"%d shards are configured, the lane was written with %d", len(job.Shards), d.Shards))
	}
	if d.Fingerprint != job.Fingerprint {
		r := refuse(ReasonFingerprint, "give this deployment another job name, or restore what the job was started with",
			"the lane was written with another set of shards, window or type prefix: then %s (fingerprint %s), here %s (%s). If these are equal, the databases are another set. Another deployment uses this job's name, or the configuration was changed",
			d.Settings, d.Fingerprint, job.Settings, job.Fingerprint)
		if r.Keys = differing(d.Settings, job.Settings); len(r.Keys) == 0 {
			r.Keys = []string{"shards"}
		}
		problems = append(problems, r)
	}
	return errors.Join(problems...)
}

// SameTopic compares the input topic as it is now with what it was when the
// process started. Its error is a *Refusal that ends the process: a lane at work
// reads nothing that would tell it that keys have moved to it.
func (job *Job) SameTopic(topic UUID, partitions int32) error {
	lane := Lane{Topic: job.Topic}
	switch {
	case topic != job.TopicID:
		return topicRecreated(lane, topic, job.TopicID)
	case partitions != job.Partitions:
		return partitionsChanged(lane, partitions, job.Partitions)
	}
	return nil
}

// SameDeployment compares this process with the decisions that the job's lanes
// were left with, as far as they can be read, before any lane starts: a lane
// that is new has none of its own, and would start beside lanes that refuse.
// Its error is a *Refusal that ends the process.
func (job *Job) SameDeployment(found map[int32]string, topic UUID, partitions int32) error {
	for _, n := range slices.Sorted(maps.Keys(found)) {
		lane := Lane{Topic: job.Topic, Partition: n}
		d, err := ParseDecision(found[n])
		if errors.Is(err, ErrDecisionVersion) {
			return newerDecision(lane, "the group's offset", err)
		}
		if err != nil {
			continue // an administrator's offset: the lane itself says so
		}
		if err := job.sameDeployment(lane, &d, topic, partitions); err != nil {
			return err
		}
	}
	return nil
}

func newerDecision(lane Lane, where string, err error) *Refusal {
	return &Refusal{Scope: EndsProcess, Reason: ReasonDecisionVersion, What: lane.String(),
		Wrong: "the decision in " + where + " was written by a newer build", Next: "run the newer build", Err: err}
}

// choose picks the D to judge, or makes the one of a first start.
func (s *Session) choose(ctx context.Context, r *Read) (Decision, error) {
	d, known, err := s.job.Decided(s.lane, r)
	if err == nil && !known {
		return s.firstStart(ctx, r)
	}
	return d, err
}

// Decided is the D that Kafka shows of a lane; known is false where it shows
// none. Equal copies are the rule; each other case is a *Refusal. Of the job it
// needs the name and Accept.
func (job *Job) Decided(lane Lane, r *Read) (d Decision, known bool, err error) {
	parse := func(text, where string) (Decision, error) {
		d, err := ParseDecision(text)
		if errors.Is(err, ErrDecisionVersion) {
			return d, newerDecision(lane, where, err)
		}
		return d, err
	}

	switch {
	case !r.HasOffset && r.Record == "":
		return d, false, nil

	case !r.HasOffset:
		// The group's offset expired while the group was idle; the topic's D
		// stands, and the takeover stores its offset again. A recreated topic
		// loses its offsets too: agree compares the topic's id.
		d, err := parse(r.Record, job.Name+".decision")
		if err != nil {
			return d, true, job.unequal(lane, r, err)
		}
		return d, true, nil
	}

	d, err = parse(r.Metadata, "the group's offset")
	var refused *Refusal
	if errors.As(err, &refused) {
		return d, true, err
	}
	if err != nil || d.Next != r.Offset {
		// Only the service commits offsets with a D: somebody else set this one.
		if job.Accept == nil || !job.Accept(ReasonOffsetReset, lane.String()) {
			return d, true, &Refusal{Reason: ReasonOffsetReset, What: lane.String(),
				Wrong: fmt.Sprintf("the group's offset %d was not stored by this service: an administrator has set it", r.Offset),
				Next:  fmt.Sprintf("to drop that offset and go on from the lane's own decision, start once with --accept %s:%s", ReasonOffsetReset, lane), Err: err}
		}
		if d, err = parse(r.Record, job.Name+".decision"); err != nil {
			return d, true, job.unequal(lane, r, err)
		}
		return d, true, nil
	}
	if r.Record != r.Metadata {
		return d, true, job.unequal(lane, r, nil)
	}
	return d, true, nil
}

func (job *Job) unequal(lane Lane, r *Read, err error) error {
	var refused *Refusal
	if errors.As(err, &refused) {
		return err
	}
	return &Refusal{Reason: ReasonDecisionsUnequal, What: lane.String(),
		Wrong: fmt.Sprintf("the two copies of the decision differ: the group's offset says %s, %s.decision says %s; in full: %q and %q", Brief(r.Metadata), job.Name, Brief(r.Record), r.Metadata, r.Record),
		Next:  "find out which of the two was changed or lost (a restored or recreated topic, a deleted group); see the runbook", Err: err}
}

// Brief is what a person compares two copies of D by.
func Brief(text string) string {
	d, err := ParseDecision(text)
	switch {
	case text == "":
		return "nothing"
	case err != nil:
		return "what is no decision"
	}
	return fmt.Sprintf("epoch %d of incarnation %d up to offset %d", d.Seq, d.Incarnation, d.Next)
}

// firstStart makes the D before all: seq 0, incarnation 0, the log's start. It
// must be wanted, and no shard may know the lane.
func (s *Session) firstStart(ctx context.Context, r *Read) (Decision, error) {
	job, lane := s.job, s.lane
	if r.StateStart < r.StateEnd {
		return Decision{}, &Refusal{Reason: ReasonLaneKnown, What: lane.String(),
			Wrong: fmt.Sprintf("neither the group nor %s.decision knows the lane, but %s.state has offsets %d to %d of it", job.Name, job.Name, r.StateStart, r.StateEnd),
			Next:  fmt.Sprintf("restore topic %s.decision; see the runbook", job.Name)}
	}
	err := job.eachShard(false, func(_ int, shard Shard) error {
		row, ok, err := shard.LaneRow(ctx, lane)
		if err != nil {
			return fmt.Errorf("shard %s: read the lane's row: %w", shard.Name(), err)
		}
		if ok {
			return &Refusal{Reason: ReasonLaneKnown, What: lane.String(),
				Wrong: fmt.Sprintf("Kafka knows nothing of the lane, but shard %s has its epochs up to %d (next offset %d): the group's offsets and topic %s.decision were lost", shard.Name(), row.Seq, row.Next, job.Name),
				Next:  "restore them; starting again would bill every message twice; see the runbook"}
		}
		return nil
	})
	if err != nil {
		return Decision{}, err
	}
	if !job.FirstStart {
		return Decision{}, &Refusal{Reason: ReasonFirstStart, What: lane.String(),
			Wrong: "neither Kafka nor MySQL knows the lane, and first_start is off",
			Next:  "if this job is new, set first_start: true; if not, the group's offsets and topic " + job.Name + ".decision were lost: restore them"}
	}
	return Decision{
		Version: decisionVersion, Job: job.Name,
		Topic: lane.Topic, TopicID: r.TopicID, Partition: lane.Partition, Partitions: r.Partitions,
		Shards: len(job.Shards), Fingerprint: job.Fingerprint, Settings: job.Settings,
		Next: r.LogStart, LeaderEpoch: -1,
		StateFrom: r.StateEnd, StateNext: r.StateEnd, OldestLive: r.StateEnd,
	}, nil
}
