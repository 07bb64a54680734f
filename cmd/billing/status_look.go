package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"billing/cmd/billing/config"
	"billing/internal/admin"
	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/txsink"

	"golang.org/x/sync/errgroup"
)

// Bounds of one look. Nothing is waited for: what does not answer is said.
const (
	wholeLook    = 20 * time.Second // all of it
	serverWithin = 5 * time.Second  // a server
	stableWithin = 3 * time.Second  // an open Kafka transaction of a lane: an owner's is shorter
	lanesWithin  = 12 * time.Second // all lanes, once a broker has answered
	askWithin    = 2 * time.Second  // an instance
	looksAtOnce  = 16
)

// looker looks at a job from outside: at Kafka, at the shards, and at what the
// instances say of themselves. It changes nothing anywhere.
type looker struct {
	cfg   *config.Config
	kafka *consume.Client
	sink  *txsink.Sink

	checked bool // the shards are those of the configuration: their ports work
}

func newLooker(c *config.Config) (*looker, error) {
	sink, kafka, err := openToLook(c, sinkConfig(c, quiet))
	if err != nil {
		return nil, err
	}
	return &looker{cfg: c, sink: sink, kafka: kafka}, nil
}

func (l *looker) close() {
	l.kafka.Close()
	_ = l.sink.Close() // nothing was written
}

// seen is what one look has found, source by source.
type seen struct {
	job, topic string
	at         time.Time       // when it began
	topicID    checkpoint.UUID // zero where it is not known

	absent  []string   // the job's own topics that are not there
	lanes   []laneSeen // by partition; none where the topic is not known
	group   string     // its state; "" where it is not known
	members []memberSeen
	shards  []shardSeen

	failures []error // refusals of the job, servers that could not be reached or failed
}

// laneSeen is what Kafka has of a lane, and what its next session would meet.
type laneSeen struct {
	partition int32
	at        time.Time            // before the log's end was asked for
	read      *reading             // nil where it could not be read
	decision  *checkpoint.Decision // nil where there is none, or none that can be believed
	next      int64                // the first offset that is not decided; -1 where that is not known
	undecided *consume.Undecided   // from next on; nil where that is not known

	judged   bool  // by foreseen
	foreseen error // a *checkpoint.Refusal, or why it could not be found out
}

// memberSeen is a member of the group, and its own word.
type memberSeen struct {
	consume.Member
	said *admin.Instance // nil where it could not be asked
	why  string          // it could not
}

// shardSeen is a shard.
type shardSeen struct {
	name   string
	number int
	view   txsink.Look
	failed bool // it could not be asked: view says nothing
}

// look looks once.
func (l *looker) look(ctx context.Context) *seen {
	ctx, cancel := context.WithTimeout(ctx, wholeLook)
	defer cancel()
	s := &seen{job: l.cfg.Job, topic: l.cfg.Kafka.Topic, at: time.Now()}
	var both sync.WaitGroup
	var input *consume.Input
	var ofKafka, ofShards, later []error
	both.Go(func() { input, ofKafka = l.lookKafka(ctx, s) })
	both.Go(func() { ofShards = l.lookShards(ctx, s) })
	both.Wait()
	// The shards are read once more, after the decisions: what was prepared before
	// those is then decided, or is not.
	both.Go(func() { askMembers(ctx, s) })
	both.Go(func() { later = l.viewShards(ctx, s) })
	both.Wait()
	s.failures = slices.Concat(ofKafka, ofShards, later)
	if input != nil {
		s.topicID = input.ID
	}
	if input != nil && l.checked {
		l.foresee(ctx, s, *input)
	}
	return s
}

// lookShards reads every shard, and holds them against the configuration.
func (l *looker) lookShards(ctx context.Context, s *seen) []error {
	for i, shard := range l.cfg.Shards {
		s.shards = append(s.shards, shardSeen{name: shard.Name, number: i})
	}
	l.checked = false
	if failures := l.viewShards(ctx, s); len(failures) > 0 {
		return failures
	}
	ctx, cancel := context.WithTimeout(ctx, serverWithin)
	defer cancel()
	err := l.sink.Check(ctx)
	l.checked = err == nil
	return checkpoint.Problems(err)
}

// viewShards reads every shard that has not failed before.
func (l *looker) viewShards(ctx context.Context, s *seen) []error {
	ctx, cancel := context.WithTimeout(ctx, serverWithin)
	defer cancel()
	errs := make([]error, len(s.shards))
	var all sync.WaitGroup
	for i := range s.shards {
		if shard := &s.shards[i]; !shard.failed {
			all.Go(func() {
				view, err := l.sink.Look(ctx, i)
				shard.view, shard.failed, errs[i] = view, err != nil, err
			})
		}
	}
	all.Wait()
	return checkpoint.Problems(errors.Join(errs...))
}

// lookKafka reads the group and the lanes. The input is nil where it is not
// there, or where no broker answers.
func (l *looker) lookKafka(ctx context.Context, s *seen) (*consume.Input, []error) {
	try, cancel := context.WithTimeout(ctx, serverWithin)
	defer cancel()
	input, err := l.kafka.LookUp(try)
	if err != nil {
		return nil, checkpoint.Problems(err)
	}
	ctx, cancel = context.WithTimeout(ctx, lanesWithin)
	defer cancel()
	var check, group, topics error
	var all sync.WaitGroup
	all.Go(func() { _, check = l.kafka.Check(ctx) })
	all.Go(func() {
		var members []consume.Member
		s.group, members, group = l.kafka.Members(ctx)
		for _, m := range members {
			s.members = append(s.members, memberSeen{Member: m})
		}
	})
	all.Go(func() { s.absent, topics = l.kafka.CheckTopics(ctx, input, l.cfg.FirstStart) })
	all.Wait()

	s.lanes = make([]laneSeen, input.Partitions)
	lanes := make([]error, input.Partitions)
	var some errgroup.Group
	some.SetLimit(looksAtOnce)
	for p := range input.Partitions {
		some.Go(func() error {
			s.lanes[p], lanes[p] = l.lookLane(ctx, p, s.absent)
			return nil
		})
	}
	_ = some.Wait() // each lane keeps its own error
	return &input, checkpoint.Problems(errors.Join(check, group, topics, errors.Join(lanes...)))
}

// lookLane reads one lane. absent are the job's own topics that are not there.
func (l *looker) lookLane(ctx context.Context, partition int32, absent []string) (laneSeen, error) {
	s := laneSeen{partition: partition, at: time.Now(), next: -1}
	r, err := l.readLane(ctx, partition, absent)
	if err != nil {
		return s, err
	}
	s.read = &r
	s.decision = believed(&r)
	next := r.LogStart // where a first start begins
	switch {
	case s.decision != nil:
		next = s.decision.Next
	case r.HasOffset || r.Record != "":
		return s, nil
	}
	if next > r.LogEnd {
		// An owner at work has passed the end since it was asked for. If not, see
		// offset-beyond-end.
		s.at = time.Now()
		if _, r.LogEnd, err = l.kafka.End(ctx, partition); err != nil {
			return s, err
		}
	}
	if next > r.LogEnd {
		return s, nil
	}
	if s.next = next; next < r.LogStart {
		return s, nil // what was there can't be read any more
	}
	u, err := l.kafka.Undecided(ctx, partition, next, r.LogEnd)
	if err != nil {
		return s, err
	}
	s.undecided = &u
	return s, nil
}

// reading is a lane as it was read.
type reading struct {
	checkpoint.Read
	open   bool // an open Kafka transaction was in the way: it is read as it was before that
	moving bool // an owner at work has moved on between the readings of the two copies
}

// unstable: each of the copies was made, and a later decision may have been too.
func (r *reading) unstable() bool { return r.open || r.moving }

// readLane reads a lane stably, as far as there is time for it.
func (l *looker) readLane(ctx context.Context, partition int32, absent []string) (reading, error) {
	return readUntilClear(ctx,
		func(ctx context.Context) (checkpoint.Read, error) {
			return l.kafka.LookWithout(ctx, partition, absent)
		},
		func(ctx context.Context) (checkpoint.Read, error) { return l.kafka.LookNow(ctx, partition) })
}

func readUntilClear(ctx context.Context, look, lookNow func(context.Context) (checkpoint.Read, error)) (reading, error) {
	within := stableWithin
	var before *checkpoint.Read // whose copies differ
	for slow := false; ; {
		stable, cancel := context.WithTimeout(ctx, within)
		r, err := look(stable)
		cancel()
		switch {
		case consume.Unstable(err):
			r, err = lookNow(ctx)
			return reading{Read: r, open: true}, err
		case err != nil && (slow || ctx.Err() != nil):
			return reading{}, err
		case err != nil: // the broker is slow, and gets most of the time that is left
			slow = true
			if deadline, ok := ctx.Deadline(); ok {
				within = max(within, time.Until(deadline)*2/3)
			}
		case !r.HasOffset || r.Metadata == r.Record:
			return reading{Read: r}, nil
		case before == nil:
			before = &r
		default:
			same := before.Offset == r.Offset && before.Metadata == r.Metadata && before.Record == r.Record
			return reading{Read: r, moving: !same}, nil
		}
	}
}

// believed is the decision that is shown of a lane: the last one that the service
// has made, as far as that is known; nil for none.
func believed(r *reading) *checkpoint.Decision {
	offset, offsetErr := checkpoint.ParseDecision(r.Metadata)
	record, recordErr := checkpoint.ParseDecision(r.Record)
	ours := r.HasOffset && offsetErr == nil && offset.Next == r.Offset
	switch {
	case ours && r.Metadata == r.Record:
		return &offset
	case ours && r.unstable() && recordErr == nil:
		// One copy may be of the decision before: both were made.
		if record.Next < offset.Next {
			return &record
		}
		return &offset
	case !ours && recordErr == nil:
		return &record // the offset has expired, or somebody has set it
	}
	return nil // see decisions-unequal
}

// foresee finds out what the next session would meet, of each lane whose owner
// has not said how it is.
func (l *looker) foresee(ctx context.Context, s *seen, input consume.Input) {
	job := newJob(l.cfg, l.sink, l.kafka, input, nil)
	var some errgroup.Group
	some.SetLimit(looksAtOnce)
	for i := range s.lanes {
		lane := &s.lanes[i]
		if lane.read == nil || lane.read.open || s.owner(lane.partition).said != nil {
			continue
		}
		id := checkpoint.Lane{Topic: s.topic, Partition: lane.partition}
		some.Go(func() error {
			lane.judged = true
			first := &lane.read.Read // what is refused by it is read again
			_, _, lane.foreseen = job.ForeseeLane(ctx, id, func(ctx context.Context) (checkpoint.Read, error) {
				if r := first; r != nil {
					first = nil
					return *r, nil
				}
				return l.kafka.LookWithout(ctx, lane.partition, s.absent)
			})
			return nil
		})
	}
	_ = some.Wait() // each lane keeps its own
}
