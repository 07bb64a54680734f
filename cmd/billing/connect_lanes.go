package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"billing/cmd/billing/config"
	"billing/internal/checkpoint"
	"billing/internal/txsink"
)

// foresee asks of each lane what its next session would be told. sink and kafka
// are nil where they could not be asked.
func foresee(ctx context.Context, c *config.Config, sink *txsink.Sink, kafka *asked, f *findings) {
	why := ""
	for _, key := range []string{"job", "aggregate.window", "message.type_prefix"} {
		if !c.Usable(key) {
			why = key + " has a problem"
		}
	}
	switch {
	case why != "":
	case kafka == nil:
		why = "no broker could be asked"
	case kafka.input == nil:
		why = "the input topic could not be looked up"
	case !kafka.lanes:
		why = "the topics of the job have a problem"
	case sink == nil || sink.SetID().IsZero():
		why = "no shard says to which set it belongs"
	}
	if why != "" {
		f.skip(why, checkSame, checkLanes)
		return
	}
	job := newJob(c, sink, kafka.Client, *kafka.input, nil)
	job.FirstStart = c.FirstStart || !c.Usable("first_start")
	job.Limits.LookAgain = lookAgain
	nets := &netsSeen{}
	job.Listener.Net = nets.saw
	found := foreseeAll(ctx, job, func(ctx context.Context, partition int32) (checkpoint.Read, error) {
		return kafka.LookWithout(ctx, partition, kafka.absent)
	})
	found.tell(c, f)
	f.warnings = append(f.warnings, nets.warnings()...)
}

// foreseen is what was found of a job's lanes.
type foreseen struct {
	lanes   int
	blind   int     // lanes of which the shards could not be asked
	job     []error // refusals that end the process, each once
	refused []error // refusals that stop a lane
	failed  []error // lanes that could not be asked, in order
}

// foreseeAll asks for all lanes, some at a time.
func foreseeAll(ctx context.Context, job *checkpoint.Job, look func(context.Context, int32) (checkpoint.Read, error)) *foreseen {
	ctx, cancel := context.WithTimeout(ctx, connectLanes)
	defer cancel()
	errs := make([]error, job.Partitions)
	slots := make(chan struct{}, lanesAtOnce) // a token for each lane that is being asked
	var wg sync.WaitGroup
	for n := range job.Partitions {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			lane := checkpoint.Lane{Topic: job.Topic, Partition: n}
			_, _, errs[n] = job.ForeseeLane(ctx, lane, func(ctx context.Context) (checkpoint.Read, error) { return look(ctx, n) })
		})
	}
	wg.Wait()
	found := &foreseen{lanes: len(errs)}
	for _, err := range errs {
		found.note(err)
	}
	return found
}

// note sorts what was found of one lane.
func (s *foreseen) note(err error) {
	switch {
	case err == nil, errors.Is(err, checkpoint.ErrSuperseded): // another owner has just taken it
		return
	case checkpoint.AsRefusal(err) != nil:
	case errors.Is(err, txsink.ErrNotChecked):
		s.blind++
		return
	default:
		s.failed = append(s.failed, err)
		return
	}
	for _, err := range checkpoint.Problems(err) {
		r := checkpoint.AsRefusal(err)
		switch {
		case r == nil:
		case r.Scope != checkpoint.EndsProcess:
			s.refused = append(s.refused, r)
		case !slices.ContainsFunc(s.job, func(other error) bool { return checkpoint.AsRefusal(other).Reason == r.Reason }):
			s.job = append(s.job, r) // what one lane was written with, the others were too
		}
	}
}

// tell makes checks and problems of it.
func (s *foreseen) tell(c *config.Config, f *findings) {
	var same, lanes []problem
	for _, err := range s.job {
		same = append(same, problemsOf(c, "job", err)...)
	}
	for _, err := range s.refused {
		lanes = append(lanes, problemsOf(c, "kafka.topic", err)...)
	}
	if len(s.failed) > 0 {
		err := s.failed[0]
		if more := len(s.failed) - 1; more > 0 {
			err = fmt.Errorf("%w (and %d more lanes)", err, more)
		}
		lanes = append(lanes, problemsOf(c, "kafka.topic", err)...)
	}
	f.add(checkSame, "", same...)
	switch {
	case len(lanes) == 0 && s.blind > 0:
		f.skip("the shards have a problem: only what Kafka knows of the lanes was checked", checkLanes)
	default:
		f.add(checkLanes, fmt.Sprintf("%d of %d", s.lanes, s.lanes), lanes...)
	}
}

// netsSeen are nets that would decide at the next start.
type netsSeen struct {
	mu  sync.Mutex
	all map[string]string // by lane and net
}

func (n *netsSeen) saw(at checkpoint.At, net string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all == nil {
		n.all = map[string]string{}
	}
	n.all[at.Lane.String()+" "+net] = fmt.Sprintf("kafka.topic: lane %s: net %s: %v", at.Lane, net, err)
}

func (n *netsSeen) warnings() (all []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, key := range sortedKeys(n.all) {
		all = append(all, n.all[key])
	}
	return all
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
