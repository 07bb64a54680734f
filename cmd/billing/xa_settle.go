package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"billing/internal/audit"
	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/event"
)

// Bounds of settling lanes.
const (
	givenWithin   = 30 * time.Second // the group gives us the lanes
	settledWithin = 2 * time.Minute  // one lane, all its tries
	settleTries   = 5
	settlePause   = time.Second // between two of them
	settleAtOnce  = 8           // lanes side by side
)

// group is the consumer group, as who settles lanes needs it.
type group interface {
	Run(ctx context.Context, h consume.Handler) error
	Members(ctx context.Context) (state string, members []consume.Member, err error)
	Generation() (memberID string, generation int32)
	GroupProblem() string
}

// settled is what became of a lane.
type settled struct {
	Lane   checkpoint.Lane
	D      checkpoint.Decision        // that it was settled by; zero where it was not
	Shards []checkpoint.ShardBranches // what S4 found and did, of all its tries; none before S4
	Err    error                      // nil: settled

	cancel  context.CancelFunc // while it is being settled
	stopped chan struct{}      // likewise: closed at its end
	taken   bool               // the group has taken the lane away meanwhile
	ended   bool
}

// settler is a member of the group for no longer than it takes: of the lanes
// that it is given it settles those that are in doubt, by S0 to S4.
type settler struct {
	job      *checkpoint.Job
	assigned func(partition int32) bool // S0
	log      *slog.Logger
	work     context.Context // of all lanes
	slots    chan struct{}   // holds a token for each lane that is being settled
	changed  chan struct{}   // cap 1: who waits looks at all lanes

	mu    sync.Mutex         // of the rest
	lanes map[int32]*settled // those in doubt, by partition
	late  error              // why who has no lane now gets none any more; nil: it may
}

// settle joins the group, settles the lanes, and leaves. Each lane says for
// itself what became of it. When ctx ends it stops where it is: what was begun
// can be begun again.
func settle(ctx context.Context, job *checkpoint.Job, g group, assigned func(partition int32) bool, lanes []audit.UnsettledLane, log *slog.Logger) []*settled {
	work, stop := context.WithCancel(ctx)
	defer stop()
	s := &settler{job: job, assigned: assigned, log: log, work: work, slots: make(chan struct{}, settleAtOnce), changed: make(chan struct{}, 1), lanes: map[int32]*settled{}}
	all := make([]*settled, len(lanes))
	for i, u := range lanes {
		all[i] = &settled{Lane: u.Lane}
		s.lanes[u.Lane.Partition] = all[i]
	}
	job.Listener = s.listener() //nolint:contextcheck // an event has none

	member, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	ended := make(chan error, 1) // cap 1: Run ends whether or not somebody still waits
	go func() { ended <- g.Run(member, s) }()
	patience := time.NewTimer(givenWithin)
	defer patience.Stop()
	left, interrupted := (<-chan error)(ended), ctx.Done()
	for !s.done() {
		select {
		case <-s.changed:
		case <-patience.C:
			s.giveUp(notGiven(ctx, job.Name, g))
		case err := <-left:
			left = nil
			s.giveUp(fmt.Errorf("consumer group: %w", err))
		case <-interrupted:
			interrupted = nil
			s.giveUp(errInterrupted)
		}
	}
	leave()
	if left != nil {
		<-left //nolint:errcheck // a group that was left has nothing to say any more
	}
	return all
}

var errInterrupted = errors.New("interrupted before the lane was settled. Next step: run it again, what was begun can be begun again")

// notGiven is why the group has not given us a lane.
func notGiven(ctx context.Context, job string, g group) error {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	_, members, err := g.Members(ctx)
	own, _ := g.Generation()
	members = slices.DeleteFunc(members, func(m consume.Member) bool { return m.ID == own })
	if err == nil && len(members) > 0 {
		return hasMembers(job, members, "somebody has joined it meanwhile")
	}
	return errors.Join(fmt.Errorf("the consumer group %s has not given us the lane for %s %s", job, givenWithin, g.GroupProblem()), err)
}

// hasMembers refuses to take lanes from instances.
func hasMembers(job string, members []consume.Member, since string) error {
	var list []string
	for _, m := range members {
		what := m.ID
		if m.Instance != "" {
			what += ", kafka.instance_id " + m.Instance
		}
		lanes := "no lanes now"
		if len(m.Lanes) > 0 {
			lanes = "lanes " + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(m.Lanes)), ", "), "[]")
		}
		list = append(list, fmt.Sprintf("%s at %s with %s", what, m.Host, lanes))
	}
	return &checkpoint.Refusal{Scope: checkpoint.EndsProcess, Reason: audit.ReasonGroupHasMembers, What: job,
		Wrong: fmt.Sprintf("the consumer group has %s, %s: %s", number(len(members), "member"), since, strings.Join(list, "; ")),
		Next:  "instances that run settle their lanes by themselves: leave it to them, or stop all of them. One that has died stays a member until its kafka.session_timeout is over: try again then"}
}

// number is so many things for people.
func number(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return strconv.Itoa(n) + " " + thing
}

// Assigned implements consume.Handler.
func (s *settler) Assigned(partitions []int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range partitions {
		if l := s.lanes[p]; l != nil && !l.ended && l.cancel == nil {
			ctx, cancel := context.WithTimeout(s.work, settledWithin)
			l.cancel, l.stopped, l.taken = cancel, make(chan struct{}), false
			go s.settle(ctx, l, l.stopped)
		}
	}
}

// Revoked implements consume.Handler. The next owner's S4 does what is left.
func (s *settler) Revoked(ctx context.Context, partitions []int32) {
	for _, stopped := range s.take(partitions) {
		select {
		case <-stopped:
		case <-ctx.Done():
		}
	}
}

// Lost implements consume.Handler.
func (s *settler) Lost(partitions []int32) {
	for _, stopped := range s.take(partitions) {
		<-stopped // bounded: every wait of a cancelled session is
	}
}

// take stops the work on lanes; it has ended when what it returns is closed.
func (s *settler) take(partitions []int32) (stopped []chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range partitions {
		if l := s.lanes[p]; l != nil && l.cancel != nil {
			l.taken = true
			l.cancel()
			stopped = append(stopped, l.stopped)
			s.log.Warn("the group has taken the lane away", "lane", l.Lane.String())
		}
	}
	return stopped
}

// Deliver implements consume.Handler: nothing is fetched.
func (s *settler) Deliver(int32, uint64, []event.Record, int, int64) {}

// Waiting implements consume.Handler.
func (s *settler) Waiting() int64 { return 0 }

// Failed implements consume.Handler.
func (s *settler) Failed(int32, uint64, error) {}

// settle is the work on one lane that is ours.
func (s *settler) settle(ctx context.Context, l *settled, stopped chan struct{}) {
	defer close(stopped)
	d, err := s.try(ctx, l.Lane)

	s.mu.Lock()
	defer s.mu.Unlock()
	l.cancel()
	l.cancel = nil
	if s.work.Err() != nil && err != nil && checkpoint.AsRefusal(err) == nil {
		err = errInterrupted
	}
	switch {
	case err == nil:
		l.D = d
		s.end(l, nil)
	case !l.taken:
		s.end(l, err)
	case s.late != nil:
		s.end(l, s.late)
	} // else it may be given to us again
}

// end notes what became of a lane, mu held.
func (s *settler) end(l *settled, err error) {
	l.ended, l.Err = true, err
	if err != nil && checkpoint.AsRefusal(err) == nil && !strings.Contains(err.Error(), "Next step: ") {
		l.Err = fmt.Errorf("%w. Next step: see to the server that it names, and run it again: what was begun can be begun again", err)
	}
	select {
	case s.changed <- struct{}{}:
	default: // who waits has not looked since the last one
	}
}

// giveUp ends the lanes that are not ours: they were not given to us, and are
// not taken any more.
func (s *settler) giveUp(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late = why
	for _, l := range s.lanes {
		if !l.ended && l.cancel == nil {
			s.end(l, why)
		}
	}
}

func (s *settler) done() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lanes {
		if !l.ended {
			return false
		}
	}
	return true
}

// try does S0 to S4. After an error that is no refusal it begins at S0 again, as
// a lane of the service does.
func (s *settler) try(ctx context.Context, lane checkpoint.Lane) (d checkpoint.Decision, err error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return d, ctx.Err()
	}
	for n := 1; ; n++ {
		d, err = checkpoint.Settle(ctx, s.job, lane, func() bool { return s.assigned(lane.Partition) })
		var broken *checkpoint.InvariantError
		switch {
		case err == nil, checkpoint.AsRefusal(err) != nil, ctx.Err() != nil, n == settleTries:
			return d, err
		case errors.As(err, &broken):
			return d, &checkpoint.Refusal{Reason: checkpoint.ReasonInvariant, What: lane.String(), Err: err,
				Wrong: "something is as it can't be, and nothing was guessed",
				Next:  "keep the decision and the lane's rows, and report it; see the runbook"}
		}
		s.log.Warn("the lane is not settled, beginning again", "lane", lane.String(), "err", err)
		select {
		case <-time.After(settlePause):
		case <-ctx.Done():
			return d, err
		}
	}
}

// listener notes what is done to each lane, and tells of waits.
func (s *settler) listener() checkpoint.Listener {
	return checkpoint.Listener{
		TakenOver: func(at checkpoint.At, d checkpoint.Decision) {
			s.log.Info("lane taken over", "lane", at.Lane.String(), "incarnation", at.Incarnation, "decided", branchName(d.GTRID))
		},
		Settled: func(at checkpoint.At, shards []checkpoint.ShardBranches, _ time.Duration, _ error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			l := s.lanes[at.Lane.Partition]
			if l.Shards == nil {
				l.Shards = slices.Clone(shards)
				return
			}
			for i := range shards {
				was := &l.Shards[i]
				was.Answered = was.Answered || shards[i].Answered
				for _, g := range shards[i].InDoubt {
					if !slices.Contains(was.InDoubt, g) {
						was.InDoubt = append(was.InDoubt, g)
					}
				}
				was.Committed = append(was.Committed, shards[i].Committed...)
				was.RolledBack = append(was.RolledBack, shards[i].RolledBack...)
			}
		},
		Waiting: func(at checkpoint.At, step, what string, err error) {
			s.log.Warn("waiting", "lane", at.Lane.String(), "step", step, "what", what, "err", err)
		},
		Net: func(at checkpoint.At, net string, err error) {
			s.log.Warn("a net decided", "lane", at.Lane.String(), "net", net, "err", err)
		},
	}
}
