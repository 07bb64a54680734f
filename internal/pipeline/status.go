package pipeline

import (
	"sort"
	"time"

	"billing/internal/checkpoint"
)

// State is what a lane is doing.
type State string

// The states of a lane.
const (
	Recovering State = "recovering" // S0 to S5, or waiting to try again
	Running    State = "running"
	Paused     State = "paused"  // running, and taking no records: see Status.Reason
	Stopped    State = "stopped" // refused; it looks again every minute
)

// PausedByMaxIDs is why a lane is paused.
const PausedByMaxIDs = "max-ids"

// Status is a lane as health, metrics and logs show it.
type Status struct {
	Lane         checkpoint.Lane
	State        State
	Since        time.Time // of this state
	Reason       string    // of a stopped or paused lane
	Message      string    // likewise, with the next step
	NextStep     string    // the next step alone
	Failures     int       // sessions that have failed since the lane last moved
	LastError    string    // of the last one; "" once the lane has moved
	Incarnation  int64
	Seq          int64     // of the last decision
	Next         int64     // its offset
	StreamTime   time.Time // largest event time applied; zero before the first
	Moved        time.Time // when a decision last moved the lane; before the first, when it was assigned
	Pending      bool      // records were taken that are not decided
	PendingSince time.Time // since when without a pause
	Position     int64     // offset behind the last record taken
	End          int64     // of the partition, as last heard of; -1 before
	Unread       time.Time // since when nothing is delivered though the partition has more; zero otherwise
	IDs          int64     // dedup entries
	InDoubt      bool      // an epoch is between its barrier and its last commit, or was when its session ended
}

// Behind is the number of offsets that are not decided; 0 when unknown.
func (s *Status) Behind() int64 { return max(0, s.End-s.Next) }

// Known reports whether Behind is known: a session has begun, and the partition's
// end was heard of.
func (s *Status) Known() bool { return s.Incarnation > 0 && s.End >= 0 }

// Age is how far the lane is behind in event time: the age of the largest event
// time that is decided while there are offsets that are not, else 0. It is not
// known before the first decision.
func (s *Status) Age(now time.Time) (age time.Duration, known bool) {
	switch {
	case !s.Known():
		return 0, false
	case s.Behind() == 0:
		return 0, true
	case s.StreamTime.IsZero():
		return 0, false
	}
	return max(0, now.Sub(s.StreamTime)), true
}

// calm is how long a lane that has recovered, and has nothing to do, counts as
// one that may fail again: a failure shows when there is something to do.
const calm = 30 * time.Second

// Failing is the number of sessions that have failed since the lane last moved,
// 0 once it runs well with nothing to do.
func (s *Status) Failing() int {
	if s.State == Running && !s.Pending && time.Since(s.Since) > calm {
		return 0
	}
	return s.Failures
}

// Starved is for how long the lane runs and is delivered nothing although its
// partition has more.
func (s *Status) Starved() time.Duration {
	if s.State != Running || s.Pending || s.Unread.IsZero() {
		return 0
	}
	return time.Since(s.Unread)
}

// Stalled is for how long the lane has had records to decide and decided
// nothing.
func (s *Status) Stalled() time.Duration {
	if !s.Pending {
		return 0
	}
	since := s.Moved
	if s.PendingSince.After(since) {
		since = s.PendingSince
	}
	return time.Since(since)
}

// Status returns all lanes of this process, by partition.
func (p *Pipeline) Status() []Status {
	p.mu.Lock()
	lanes := make([]*lane, 0, len(p.lanes))
	for _, l := range p.lanes {
		lanes = append(lanes, l)
	}
	p.mu.Unlock()
	out := make([]Status, 0, len(lanes))
	for _, l := range lanes {
		l.statusMu.Lock()
		st := l.status
		l.statusMu.Unlock()
		st.End, st.Unread = l.inbox.reached(), l.inbox.unreadSince()
		out = append(out, st)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Lane.Partition < out[j].Lane.Partition })
	return out
}

func (l *lane) update(fn func(s *Status)) {
	l.statusMu.Lock()
	defer l.statusMu.Unlock()
	fn(&l.status)
}

// enter begins a state.
func (s *Status) enter(state State, reason, message, nextStep string) {
	if s.State != state {
		s.State, s.Since = state, time.Now()
	}
	s.Reason, s.Message, s.NextStep = reason, message, nextStep
}

// failed notes a session's end; refused is nil where the next one may go on.
func (l *lane) failed(refused *checkpoint.Refusal, err error) {
	l.update(func(s *Status) {
		if refused != nil {
			s.enter(Stopped, refused.Reason, err.Error(), refused.Next)
		} else {
			s.enter(Recovering, "", err.Error(), "")
		}
		s.Failures, s.LastError = l.failures, err.Error()
	})
}

// running notes that a session has recovered. The lane has not moved by that:
// one that recovers again and again gets nowhere.
func (l *lane) running(incarnation int64, d *checkpoint.Decision) {
	l.update(func(s *Status) {
		s.enter(Running, "", "", "")
		s.InDoubt = false
		s.Incarnation, s.Position = incarnation, d.Next
		s.found(d)
	})
}

func (s *Status) found(d *checkpoint.Decision) {
	s.Seq, s.Next = d.Seq, d.Next
	if d.StreamTime != 0 {
		s.StreamTime = time.UnixMicro(d.StreamTime).UTC()
	}
}

// moved notes a decision of this session.
func (s *Status) moved(d *checkpoint.Decision) {
	s.found(d)
	s.Moved, s.Failures, s.LastError = time.Now(), 0, ""
}
