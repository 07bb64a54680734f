package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
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
	wholeLook    = 15 * time.Second // all of it
	serverWithin = 5 * time.Second  // a server
	stableWithin = 2 * time.Second  // an open Kafka transaction of a lane: an owner's is shorter
	lanesWithin  = 8 * time.Second  // all lanes, once a broker has answered
	askWithin    = 2 * time.Second  // an instance
	looksAtOnce  = 16
)

// looker looks at a job from outside: at Kafka, at the shards, and at what the
// instances say of themselves. It changes nothing anywhere.
type looker struct {
	cfg   *config.Config
	kafka *consume.Client
	sink  *txsink.Sink
	dials *dials

	checked bool // the shards are those of the configuration: their ports work
}

func newLooker(c *config.Config) (*looker, error) {
	quiet := slog.New(slog.DiscardHandler) // what goes wrong is part of the answer
	l := &looker{cfg: c, dials: new(dials)}
	sinkCfg := sinkConfig(c, quiet)
	sink, err := txsink.Open(sinkCfg)
	if err != nil {
		return nil, &usageError{err}
	}
	kafkaCfg := kafkaConfig(c, quiet, nil)
	kafkaCfg.Dial = l.dials.dial
	kafka, err := consume.Open(kafkaCfg)
	if err != nil {
		return nil, errors.Join(&usageError{err}, sink.Close())
	}
	l.sink, l.kafka = sink, kafka
	return l, nil
}

func (l *looker) close() {
	l.kafka.Close()
	_ = l.sink.Close() // nothing was written
}

// dials are the connections to brokers: the client library tries again by
// itself, and at the end only says that the time is up.
type dials struct {
	mu   sync.Mutex
	last error
}

func (d *dials) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: serverWithin}).DialContext(ctx, network, address)
	if ctx.Err() == nil || err == nil {
		d.mu.Lock()
		d.last = err
		d.mu.Unlock()
	}
	return c, err //nolint:wrapcheck // it is a net.Dialer's
}

// explain adds why the last connection was not had.
func (d *dials) explain(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil || strings.Contains(err.Error(), d.last.Error()) {
		return err
	}
	return fmt.Errorf("%w (the last connection: %w)", err, d.last)
}

// ofKafka is an error of Kafka's side for people.
func (l *looker) ofKafka(err error) error {
	if checkpoint.AsRefusal(err) != nil {
		return err
	}
	return unanswered(l.dials.explain(err), fmt.Sprintf("look whether the brokers run, and whether this machine reaches %s (kafka.brokers) and the addresses that those name", strings.Join(l.cfg.Kafka.Brokers, ", ")))
}

// ofShard is an error of a shard for people.
func ofShard(name string, err error) error {
	if checkpoint.AsRefusal(err) != nil {
		return err
	}
	return unanswered(err, fmt.Sprintf("look whether the server of shard %s runs, and whether this machine reaches the address in its DSN", name))
}

// unanswered adds the next step, where nobody has answered.
func unanswered(err error, next string) error {
	var refused *net.OpError
	if !errors.As(err, &refused) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w. Next step: %s", err, next)
}

// seen is what one look has found, source by source.
type seen struct {
	job, topic string
	at         time.Time // when it began

	began   bool       // the job's own topics are there
	lanes   []laneSeen // by partition; none where the topic is not known
	group   string     // its state; "" where it is not known
	members []memberSeen
	shards  []shardSeen

	failures []error // refusals of the job, servers that could not be reached or failed
}

// laneSeen is what Kafka has of a lane, and what its next session would meet.
type laneSeen struct {
	partition int32
	at        time.Time // before the log's end was asked for
	read      *checkpoint.Read
	decision  *checkpoint.Decision // nil where there is none, or none that can be believed
	unstable  bool                 // an open Kafka transaction: decision was made, a later one may have been too
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
	if input != nil && l.checked {
		l.foresee(ctx, s, *input)
	}
	return s
}

// lookShards reads every shard, and holds them against the configuration once.
func (l *looker) lookShards(ctx context.Context, s *seen) []error {
	for i, shard := range l.cfg.Shards {
		s.shards = append(s.shards, shardSeen{name: shard.Name, number: i})
	}
	failures := l.viewShards(ctx, s)
	if len(failures) > 0 || l.checked {
		return failures
	}
	ctx, cancel := context.WithTimeout(ctx, serverWithin)
	defer cancel()
	err := l.sink.Check(ctx)
	l.checked = err == nil
	return split(err)
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
	var failures []error
	for i, err := range errs {
		for _, err := range split(err) {
			failures = append(failures, ofShard(s.shards[i].name, err))
		}
	}
	return failures
}

// lookKafka reads the group and the lanes. The input is nil where it is not
// there, or where no broker answers.
func (l *looker) lookKafka(ctx context.Context, s *seen) (found *consume.Input, failures []error) {
	try, cancel := context.WithTimeout(ctx, serverWithin)
	defer cancel()
	input, err := l.kafka.LookUp(try)
	if err != nil {
		for _, err := range split(err) {
			failures = append(failures, l.ofKafka(err))
		}
		return nil, failures
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
	all.Go(func() { topics = l.kafka.EnsureTopics(ctx, false) })
	all.Wait()

	// The job's own topics are made by its first start.
	s.began = true
	if r := checkpoint.AsRefusal(topics); r != nil && r.Reason == checkpoint.ReasonTopicMissing {
		s.began = false
		if l.cfg.FirstStart {
			topics = nil
		}
	}
	s.lanes = make([]laneSeen, input.Partitions)
	lanes := make([]error, input.Partitions)
	var some errgroup.Group
	some.SetLimit(looksAtOnce)
	for p := range input.Partitions {
		some.Go(func() error {
			s.lanes[p], lanes[p] = l.lookLane(ctx, p, input, s.began)
			return nil
		})
	}
	_ = some.Wait() // each lane keeps its own error
	for _, err := range append([]error{check, group, topics}, lanes...) {
		for _, err := range split(err) {
			failures = append(failures, l.ofKafka(err))
		}
	}
	return &input, failures
}

// lookLane reads one lane. Of a job that has not begun there is only the input.
func (l *looker) lookLane(ctx context.Context, partition int32, input consume.Input, began bool) (laneSeen, error) {
	s := laneSeen{partition: partition, at: time.Now(), next: -1}
	r := checkpoint.Read{TopicID: input.ID, Partitions: input.Partitions}
	var err error
	if began {
		r, s.unstable, err = l.readLane(ctx, partition)
	} else {
		r.LogStart, r.LogEnd, err = l.kafka.End(ctx, partition)
	}
	if err != nil {
		return s, err
	}
	s.read = &r
	s.decision = believed(&r, s.unstable)
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

// readLane reads a lane stably; where an open Kafka transaction does not let it,
// as it was before that.
func (l *looker) readLane(ctx context.Context, partition int32) (r checkpoint.Read, unstable bool, err error) {
	for range 3 {
		stable, cancel := context.WithTimeout(ctx, stableWithin)
		r, err = l.kafka.Look(stable, partition)
		cancel()
		switch {
		case consume.Unstable(err):
			r, err = l.kafka.LookNow(ctx, partition)
			return r, true, err //nolint:wrapcheck // it names the lane
		case err == nil && (!r.HasOffset || r.Metadata == r.Record):
			return r, false, nil
		}
		// The broker is slow, or an owner has decided between the readings of the two
		// copies.
	}
	return r, false, err //nolint:wrapcheck // it names the lane
}

// believed is the decision that is shown of a lane: the last one that the service
// has made, as far as that is known; nil for none.
func believed(r *checkpoint.Read, unstable bool) *checkpoint.Decision {
	offset, offsetErr := checkpoint.ParseDecision(r.Metadata)
	record, recordErr := checkpoint.ParseDecision(r.Record)
	ours := r.HasOffset && offsetErr == nil && offset.Next == r.Offset
	switch {
	case ours && r.Metadata == r.Record:
		return &offset
	case ours && unstable && recordErr == nil:
		// Read without waiting, one copy may be of the decision before: both were made.
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
		if lane.read == nil || lane.unstable || s.owner(lane.partition).said != nil {
			continue
		}
		id := checkpoint.Lane{Topic: s.topic, Partition: lane.partition}
		some.Go(func() error {
			lane.judged = true
			if !s.began { // there is nothing more to read
				_, lane.foreseen = job.Foresee(ctx, id, lane.read)
				return nil
			}
			first := lane.read // what is refused by it is read again
			_, _, lane.foreseen = job.ForeseeLane(ctx, id, func(ctx context.Context) (checkpoint.Read, error) {
				if r := first; r != nil {
					first = nil
					return *r, nil
				}
				return l.kafka.Look(ctx, lane.partition)
			})
			return nil
		})
	}
	_ = some.Wait() // each lane keeps its own
}

// split takes apart what a check has joined: each refusal by itself, and what
// else there is.
func split(err error) (all []error) {
	if err == nil {
		return nil
	}
	var parts []error
	switch e := err.(type) { //nolint:errorlint // the tree is walked here
	case *checkpoint.Refusal:
		return []error{err}
	case interface{ Unwrap() []error }:
		parts = e.Unwrap()
	case interface{ Unwrap() error }:
		parts = []error{e.Unwrap()}
	}
	if checkpoint.AsRefusal(err) == nil {
		return []error{err}
	}
	for _, part := range parts {
		all = append(all, split(part)...)
	}
	return all
}
