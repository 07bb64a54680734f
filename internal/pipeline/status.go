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

// Status is a lane as health, metrics and logs show it.
type Status struct {
	Lane        checkpoint.Lane
	State       State
	Since       time.Time // of this state
	Reason      string    // of a stopped or paused lane
	Message     string    // likewise, with the next step
	Incarnation int64
	Seq         int64     // of the last decision
	Next        int64     // its offset
	StreamTime  time.Time // largest event time applied; zero before the first
	Decided     time.Time // when the last decision was made or found
	Position    int64     // offset behind the last record taken
	End         int64     // of the partition, as last delivered; -1 before
	IDs         int64     // dedup entries
	InFlight    bool      // an epoch is between its barrier and its last commit
}

// Behind is the number of offsets that are not decided; 0 when unknown.
func (s *Status) Behind() int64 { return max(0, s.End-s.Next) }

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
		out = append(out, l.status)
		l.statusMu.Unlock()
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Lane.Partition < out[j].Lane.Partition })
	return out
}

func (l *lane) update(fn func(s *Status)) {
	l.statusMu.Lock()
	defer l.statusMu.Unlock()
	fn(&l.status)
}

func (l *lane) setState(state State) {
	l.update(func(s *Status) {
		if s.State != state {
			s.State, s.Since = state, time.Now()
		}
		s.Reason, s.Message, s.InFlight = "", "", false
	})
}

func (l *lane) setStopped(reason string, err error) {
	l.setState(Stopped)
	l.update(func(s *Status) { s.Reason, s.Message = reason, err.Error() })
}

func (l *lane) running(incarnation int64, d *checkpoint.Decision) {
	l.setState(Running)
	l.update(func(s *Status) {
		s.Incarnation, s.Position, s.End = incarnation, d.Next, -1
		s.decided(d)
	})
}

func (s *Status) decided(d *checkpoint.Decision) {
	s.Seq, s.Next, s.Decided = d.Seq, d.Next, time.Now()
	if d.StreamTime != 0 {
		s.StreamTime = time.UnixMicro(d.StreamTime).UTC()
	}
}

// micros formats µs since 1970 for people.
func micros(us int64) string { return time.UnixMicro(us).UTC().Format(time.RFC3339Nano) }
