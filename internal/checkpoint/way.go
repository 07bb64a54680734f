package checkpoint

import "time"

// Step is a part of a session's way from its beginning to its first epoch.
type Step int

// The steps, in their order.
const (
	StepFence    Step = iota // S1, of two tries the sum
	StepRead                 // S2, likewise
	StepTakeover             // S3
	StepSettle               // S4
	StepRestore              // S5
	StepFetch                // S6: until the lane had its first record
	StepFill                 // until its epoch was frozen and the committer had it
	StepPrepare              // C3
	StepDecide               // C4 to C7: the first new decision is known
	StepCommit               // C8: every shard shows it
	steps
)

// Steps are all of them, by the names that metrics and the log have for them.
var Steps = [steps]string{"fence", "read", "takeover", "settle", "restore", "fetch", "fill", "prepare", "decide", "commit"}

// Recovery is how long each step took.
type Recovery struct {
	Took   [steps]time.Duration
	Chunks int // of the dedup state, read in S5
}

// Until is from the session's beginning to the end of a step.
func (r *Recovery) Until(last Step) (took time.Duration) {
	for _, d := range r.Took[:last+1] {
		took += d
	}
	return took
}

// way is what a session notes until its first epoch is committed. It is used by
// who may use the session then.
type way struct {
	Recovery
	last time.Time // when the last step ended
	end  int64     // of the input partition, in S2
}

func newWay() *way { return &way{last: time.Now()} }

// passed notes and tells the end of a step that is done once.
func (s *Session) passed(step Step) {
	if s.way == nil {
		return
	}
	s.spent(step)
	s.tell(step)
}

// spent notes what a step took, or a part of one that is done twice.
func (s *Session) spent(step Step) {
	now := time.Now()
	s.way.Took[step] += now.Sub(s.way.last)
	s.way.last = now
}

// tell tells what a step took altogether.
func (s *Session) tell(step Step) {
	if f := s.job.Listener.Step; f != nil {
		f(s.lane, step, s.way.Took[step])
	}
}

// recovered tells that the first epoch is committed.
func (s *Session) recovered(d *Decision, c Counts) {
	s.passed(StepCommit)
	if s.way != nil && s.job.Listener.Recovered != nil {
		s.job.Listener.Recovered(s.lane, *d, c, s.way.Recovery)
	}
	s.way = nil
}

// Recovery is how long the steps took of which the session has come to the end.
// It is called before the first record comes.
func (s *Session) Recovery() Recovery { return s.way.Recovery }

// FirstRecord tells the session where the lane's first record was, before the
// Checkpoint that has it. It reports whether that had been waiting when the session
// began: a lane that had nothing to do does not recover, and its first epoch says
// nothing of that.
func (s *Session) FirstRecord(offset int64) (waited bool) {
	if offset >= s.way.end {
		s.way = nil
		return false
	}
	s.passed(StepFetch)
	return true
}
