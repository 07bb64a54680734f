package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"billing/internal/admin"
	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/pipeline"
)

// view is what health, readiness and gauges see of the service.
type view struct {
	job                   string
	interval, maxInterval time.Duration // of the checkpoints
	limit                 int64
	lanes                 atomic.Pointer[pipeline.Pipeline]
	kafka                 atomic.Pointer[consume.Client]
	waiting               atomic.Pointer[string] // for a server at the start

	mu    sync.Mutex
	waits map[string]waited // by lane
}

// waited is the last answer of a server that was not what a lane asked for.
type waited struct {
	why  string
	when time.Time
}

// waitCounts is for how long it explains what the lane does: who still waits
// says so again within it.
const waitCounts = 30 * time.Second

// wait notes why a lane asks again; "" that it goes on.
func (v *view) wait(lane checkpoint.Lane, why string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.waits == nil {
		v.waits = map[string]waited{}
	}
	if why == "" {
		delete(v.waits, lane.String())
		return
	}
	v.waits[lane.String()] = waited{why, time.Now()}
}

func (v *view) waitOf(lane checkpoint.Lane) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.waits[lane.String()]
	if time.Since(w.when) > waitCounts {
		return ""
	}
	return w.why
}

func (v *view) status() []pipeline.Status {
	if p := v.lanes.Load(); p != nil {
		return p.Status()
	}
	return nil
}

// A lane is called stuck when it is stopped or paused, or after so many failed
// sessions or so long a time without a decision, or without records though its
// partition has more.
const (
	stuckFailures = 5
	stuckAfter    = 2 * time.Minute
	stalledAfter  = 10 * time.Second // from here on health says what the lane waits for
	starvedAfter  = 45 * time.Second // likewise, for records: it is looked at every lagEvery
)

// notes are what is wrong with no lane.
func (v *view) notes() (notes []string) {
	if w := v.waiting.Load(); w != nil {
		notes = append(notes, *w)
	}
	if problem := v.groupProblem(); problem != "" {
		notes = append(notes, problem)
	}
	return notes
}

// health names the lanes that do not work. The process is never dead inside as
// long as it can answer: lanes and servers are repaired outside of it.
func (v *view) health() admin.Report {
	r := admin.Report{Notes: v.notes()}
	for _, s := range v.status() {
		r.Lanes = append(r.Lanes, laneHealth(&s, v.waitOf(s.Lane)))
	}
	return r
}

// instance is what /status says.
func (v *view) instance() admin.Instance {
	i := admin.Instance{Job: v.job, Build: thisBuild().Version, Notes: []string{}, Lanes: []admin.InstanceLane{}}
	i.Notes = append(i.Notes, v.notes()...)
	for _, s := range v.status() {
		i.Lanes = append(i.Lanes, admin.InstanceLane{
			Lane: laneHealth(&s, v.waitOf(s.Lane)), Reason: s.Reason, NextStep: s.NextStep,
			Incarnation: s.Incarnation, Seq: s.Seq, Next: s.Next, Position: s.Position, Moved: s.Moved,
			InDoubt: s.InDoubt, Failures: s.Failures, LastError: s.LastError, IDs: s.IDs,
		})
	}
	// Last: a member that has left the group meanwhile does not vouch for its lanes.
	if k := v.kafka.Load(); k != nil {
		i.Member, _ = k.Generation()
	}
	return i
}

// laneHealth is what an operator is told of a lane. wait is the last answer that
// was not what the lane asked for, "" for none.
func laneHealth(s *pipeline.Status, wait string) admin.Lane {
	l := admin.Lane{Lane: s.Lane.String(), State: string(s.State), Since: s.Since, Why: s.Message}
	switch {
	case s.State == pipeline.Stopped, s.State == pipeline.Paused:
		l.Stuck = true
	case s.Failing() >= stuckFailures:
		l.Stuck = true
		l.Why = fmt.Sprintf("%d sessions have failed since the lane last moved at %s, the last one: %s", s.Failures, s.Moved.UTC().Format(time.RFC3339), s.LastError)
	case s.Stalled() > stuckAfter:
		l.Stuck = true
		l.Why = fmt.Sprintf("records are waiting and nothing was decided for %s: %s", s.Stalled().Round(time.Second), why(s, wait))
	case s.Starved() > starvedAfter:
		l.Stuck = s.Starved() > stuckAfter
		l.Why = starved(s)
	case s.State != pipeline.Running || s.Failing() > 0:
		l.Why = why(s, wait)
	case s.Stalled() > stalledAfter:
		l.Why = fmt.Sprintf("nothing was decided for %s: %s", s.Stalled().Round(time.Second), why(s, wait))
	}
	return l
}

// starved says that a lane gets nothing to read. Offsets that hold no records
// (aborted, compacted, control) are passed within a minute.
func starved(s *pipeline.Status) string {
	return fmt.Sprintf("%d offsets wait and nothing was delivered for %s: the brokers answer no fetch, or a Kafka transaction that a producer has left open holds the records back", s.End-s.Position, s.Starved().Round(time.Second))
}

// why is what is known of a lane that does not work.
func why(s *pipeline.Status, wait string) string {
	order := []string{s.Message, wait, s.LastError}
	if s.State == pipeline.Recovering {
		order = []string{wait, s.Message, s.LastError} // what it waits for now, before why the last session ended
	}
	for _, w := range order {
		if w != "" {
			return w
		}
	}
	if s.InDoubt {
		return fmt.Sprintf("epoch %d waits for an answer of a shard or of the broker", s.Seq+1)
	}
	return "on its way"
}

// laneReady says why a lane is not ready, "" for one that is: it has recovered,
// and its last decision is young or there is nothing to do.
func laneReady(s *pipeline.Status, wait string, young time.Duration) string {
	switch {
	case s.State != pipeline.Running:
		return fmt.Sprintf("lane %s is %s: %s", s.Lane, s.State, why(s, wait))
	case s.Failing() > 0:
		return fmt.Sprintf("lane %s has recovered and not moved since: %s", s.Lane, s.LastError)
	case s.Starved() > max(young, starvedAfter):
		return fmt.Sprintf("lane %s: %s", s.Lane, starved(s))
	case s.Stalled() > young:
		return fmt.Sprintf("lane %s has records waiting and made no decision for %s: %s", s.Lane, s.Stalled().Round(time.Second), why(s, wait))
	}
	return ""
}

func (v *view) groupProblem() string {
	k := v.kafka.Load()
	if k == nil {
		return ""
	}
	if problem := k.GroupProblem(); problem != "" {
		return problem
	}
	if k.Joined() && len(v.status()) > 0 && !k.Fresh() {
		return "the consumer group has not answered for kafka.session_timeout: lanes decide nothing until it does"
	}
	return ""
}

// young is how old the last decision of a lane with records waiting may be.
func (v *view) young() time.Duration {
	return max(30*time.Second, 10*v.interval, 3*v.maxInterval)
}

// ready: every assigned lane has recovered, and its last decision is young or
// there is nothing to do. None assigned: ready, once the group has taken us in.
func (v *view) ready() (bool, string) {
	k := v.kafka.Load()
	if v.lanes.Load() == nil || k == nil {
		if w := v.waiting.Load(); w != nil {
			return false, *w
		}
		return false, "starting"
	}
	if problem := v.groupProblem(); problem != "" {
		return false, problem
	}
	if !k.Joined() {
		return false, "joining the consumer group"
	}
	for _, s := range v.status() {
		if not := laneReady(&s, v.waitOf(s.Lane), v.young()); not != "" {
			return false, not
		}
	}
	return true, ""
}

func (v *view) gauges() Gauges {
	g := gaugesOf(v.status(), v.limit, time.Now())
	if k := v.kafka.Load(); k != nil {
		g.Member = k.Joined() && v.groupProblem() == ""
	}
	return g
}

func gaugesOf(lanes []pipeline.Status, limit int64, now time.Time) Gauges {
	g := Gauges{DedupLimit: limit}
	for _, s := range lanes {
		l := LaneGauges{Partition: s.Lane.Partition, State: string(s.State), Reason: s.Reason, Lag: s.Behind(), LagKnown: s.Known(), Decided: s.Moved}
		l.Age, l.AgeKnown = s.Age(now)
		g.Lanes = append(g.Lanes, l)
		g.DedupEntries += s.IDs
		if s.InDoubt {
			g.InDoubt++
		}
	}
	return g
}
