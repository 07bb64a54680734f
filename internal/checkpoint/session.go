package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"billing/internal/failpoint"
)

// Session is a lane from its takeover to the first error or its revocation.
// Open, Checkpoint, Advance and Close are called by one goroutine at a time;
// Sweep may run beside them.
type Session struct {
	job      *Job
	lane     Lane
	assigned func() bool
	owner    Owner
	prefix   string // of the lane's gtrids
	topicID  UUID

	incarnation int64
	decision    atomic.Pointer[Decision] // D: the last known committed
	phase2      atomic.Bool              // C8 works on D's gtrid and is its only committer
	seenAll     atomic.Bool              // no shard has more of the lane than the takeover's D

	epochNext int64           // where epoch D.Seq ended; D.Next may be larger on an idle lane
	digests   [][]byte        // by shard: of the row of epoch D.Seq
	index     map[int64]int64 // live bucket's end -> first offset of <job>.state with entries of it
	ended     bool            // after an error: only Close

	way *way // to the first epoch; nil once that was told of
}

// Open starts a session: S0 to S5, the only way to start and the only way to
// recover. It fills state. The caller does S6 with Decision's offset, and
// closes the session. Open fails with an *OpenError around
//
//   - a *Refusal: the lane or the process stops;
//   - ErrNotAssigned or ErrSuperseded: the lane is somebody else's;
//   - anything else: try again, from S0.
func Open(ctx context.Context, job *Job, lane Lane, assigned func() bool, state State) (*Session, error) {
	s := newSession(job, lane, assigned)
	if err := s.open(ctx, state); err != nil {
		s.Close()
		return nil, s.notOpened(err)
	}
	return s, nil
}

func newSession(job *Job, lane Lane, assigned func() bool) *Session {
	return &Session{job: job, lane: lane, assigned: assigned, index: map[int64]int64{}, digests: make([][]byte, len(job.Shards)), way: newWay()}
}

func (s *Session) notOpened(err error) error {
	return &OpenError{At: s.at(cmp.Or(s.decision.Load(), &Decision{})), Err: err}
}

// Settle is S0 to S4, for the operator's tools: afterwards nothing of the lane is
// in doubt, and nobody owns it. It returns the decision that it settled by. Its
// errors are Open's.
func Settle(ctx context.Context, job *Job, lane Lane, assigned func() bool) (Decision, error) {
	s := newSession(job, lane, assigned)
	defer s.Close()
	if err := s.takeOver(ctx); err != nil {
		return Decision{}, s.notOpened(err)
	}
	return s.Decision(), nil
}

// OpenError is why a session did not start, and how far it came.
type OpenError struct {
	At  At // its incarnation is 0 when the takeover is not known committed
	Err error
}

func (e *OpenError) Error() string { return "start a session: " + e.Err.Error() }

// Unwrap gives the cause.
func (e *OpenError) Unwrap() error { return e.Err }

// open is S0 to S5.
func (s *Session) open(ctx context.Context, state State) (err error) {
	defer guard(&err)
	if err := s.takeOver(ctx); err != nil {
		return err
	}

	// S5: the dedup state is what it was at D. The sweep runs from here on: what
	// a frozen predecessor prepares while a large state is restored would hold
	// the lane's row when the first epoch needs it.
	rctx, cancel := context.WithCancelCause(ctx)
	swept := make(chan error, 1)
	go func() {
		err := s.Sweep(rctx)
		if err != nil {
			cancel(err)
		}
		swept <- err
	}()
	err = s.restore(rctx, state)
	cancel(nil)
	if serr := <-swept; serr != nil {
		err = serr
	}
	if err != nil {
		return s.unlessSuperseded(ctx, err)
	}
	s.passed(StepRestore)
	return nil
}

// takeOver is S0 to S4.
func (s *Session) takeOver(ctx context.Context) (err error) {
	defer guard(&err)

	// S0: only what is ours is touched.
	if !s.assigned() {
		return ErrNotAssigned
	}

	// S1, S2: fence, then read. No earlier outcome of the lane changes any more.
	found, err := s.fenceAndRead(ctx)
	if err != nil {
		return err
	}

	failpoint.Hit(failpoint.DecisionRead, 0)

	// S3: the takeover. Its known commit proves that nobody has fenced since S1,
	// so that found is the last decision and every smaller incarnation is dead
	// for ever. Before this line nothing on MySQL may be changed: a session
	// frozen between S1 and S2 reads a later owner's D, and would roll back the
	// later owner's branch.
	d := found
	d.Incarnation++
	d.Build, d.Settings = s.job.Build, s.job.Settings
	if err := s.decide(ctx, &d, nil); err != nil {
		// Unknown or failed, it is never taken as done: the next session reads
		// D again. The same number again is harmless: nothing on MySQL has
		// carried it.
		return fmt.Errorf("takeover: %w", err)
	}
	s.incarnation = d.Incarnation
	s.decision.Store(&d)
	s.passed(StepTakeover)
	failpoint.Hit(failpoint.TakeoverDecided, 0)
	if f := s.job.Listener.TakenOver; f != nil {
		f(s.at(&d), found)
	}

	// S4: every shard shows exactly the epochs up to D, and nothing is in doubt.
	// It comes before the restore because prepared branches hold row locks.
	if err := s.settleAll(ctx); err != nil {
		return s.unlessSuperseded(ctx, err)
	}
	s.passed(StepSettle)
	failpoint.Hit(failpoint.Settled, 0)
	return nil
}

// unlessSuperseded looks again before a lane is refused after its takeover: a
// later owner has moved on meanwhile, so its epochs look undecided to us, and
// the state that it trimmed looks lost. What such a session finds is no fact
// about the lane.
func (s *Session) unlessSuperseded(ctx context.Context, found error) error {
	if AsRefusal(found) == nil {
		return found
	}
	rctx, cancel := context.WithTimeout(ctx, s.job.Limits.Read)
	defer cancel()
	r, err := s.owner.Read(rctx)
	if err != nil {
		return fmt.Errorf("look whether the lane has been taken over: %w (before it: %s)", err, found.Error())
	}
	if d, err := ParseDecision(r.Record); err == nil && d.Incarnation > s.incarnation {
		return fmt.Errorf("%w: incarnation %d, ours is %d (before it: %s)", ErrSuperseded, d.Incarnation, s.incarnation, found.Error())
	}
	return found
}

// fenceAndRead is S1 and S2. Two copies of D that are unequal under two fences
// are permanent: one is never picked.
func (s *Session) fenceAndRead(ctx context.Context) (Decision, error) {
	for try := 0; ; try++ {
		if !s.assigned() {
			return Decision{}, ErrNotAssigned // S0, before every fence
		}
		fctx, cancel := context.WithTimeout(ctx, s.job.Limits.Fence)
		owner, err := s.job.Kafka.Fence(fctx, s.lane)
		cancel()
		if err != nil {
			return Decision{}, fmt.Errorf("fence: %w", err)
		}
		s.owner = owner
		s.spent(StepFence)
		failpoint.Hit(failpoint.Fenced, 0)

		d, err := s.read(ctx)
		s.spent(StepRead)
		if err == nil {
			// Once for both tries.
			s.tell(StepFence)
			s.tell(StepRead)
			return d, nil
		}
		s.owner = nil
		owner.Close()
		if isUnequal(err) && try == 0 {
			continue
		}
		return Decision{}, fmt.Errorf("read the decision: %w", err)
	}
}

// read is S2: what Kafka knows of the lane, and the judgement on it. What is
// refused is read again first: Kafka is read in parts, one after the other, and
// then the shards. A later owner may have fenced us since and moved on between
// them, so that two copies of D look unequal, or D looks beyond the partition's
// end. Then the second reading fits together, and the takeover finds out the rest.
func (s *Session) read(ctx context.Context) (Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, s.job.Limits.Read)
	defer cancel()
	r, err := s.owner.Read(ctx)
	if err != nil {
		return Decision{}, err
	}
	s.way.end = r.LogEnd
	d, err := s.agree(ctx, &r)
	if AsRefusal(err) == nil {
		return d, err
	}
	again, rerr := s.owner.Read(ctx)
	if rerr != nil {
		return Decision{}, fmt.Errorf("look again: %w (before it: %s)", rerr, err.Error())
	}
	s.way.end = again.LogEnd
	d, err = s.agree(ctx, &again)
	if AsRefusal(err) != nil && !again.Same(&r) {
		return Decision{}, fmt.Errorf("the decision has moved while it was read, twice (the last time: %s)", err.Error())
	}
	return d, err
}

func isUnequal(err error) bool {
	r := AsRefusal(err)
	return r != nil && r.Reason == ReasonDecisionsUnequal
}

// restore is S5.
func (s *Session) restore(ctx context.Context, state State) error {
	d := s.decision.Load()

	// The bound is on progress, not on the whole: a large state takes long.
	rctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stuck := time.AfterFunc(s.job.Limits.Restore, func() {
		cancel(fmt.Errorf("no progress for %s", s.job.Limits.Restore))
	})
	defer stuck.Stop()

	passed := func() { stuck.Reset(s.job.Limits.Restore) }
	err := s.owner.ReadState(rctx, d.OldestLive, passed, func(offset int64, data []byte) error {
		s.way.Chunks++
		end, err := state.Load(data)
		if errors.Is(err, ErrChunkVersion) {
			return &Refusal{Scope: EndsProcess, Reason: ReasonChunkVersion, What: s.lane.String(),
				Wrong: fmt.Sprintf("the chunk at offset %d of %s.state was written by a newer build", offset, s.job.Name),
				Next:  "run the newer build", Err: err}
		}
		if err != nil {
			return &Refusal{Reason: ReasonStateDamaged, What: s.lane.String(),
				Wrong: fmt.Sprintf("the chunk at offset %d of %s.state can't be read", offset, s.job.Name),
				Next:  s.damagedNext(), Err: err}
		}
		if end > d.ForgottenBefore {
			s.remember(end, offset)
		}
		return nil
	})
	if err != nil {
		if cause := context.Cause(rctx); cause != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return fmt.Errorf("restore: %w", err)
	}
	count, checksum := state.Restored(d.ForgottenBefore)
	if count != d.Count || checksum != d.Checksum {
		return &Refusal{Reason: ReasonStateDamaged, What: s.lane.String(),
			Wrong: fmt.Sprintf("%s.state from offset %d gave %d entries with checksum %016x, the decision of epoch %d says %d with %016x: a chunk is missing or was added",
				s.job.Name, d.OldestLive, count, checksum, d.Seq, d.Count, d.Checksum),
			Next: s.damagedNext()}
	}
	return nil
}

func (s *Session) damagedNext() string {
	return fmt.Sprintf("restore partition %d of topic %s.state from a copy; without one, see the runbook (%s)",
		s.lane.Partition, s.job.Name, ReasonStateDamaged)
}

// remember notes where a bucket's first chunk is.
func (s *Session) remember(bucketEnd, offset int64) {
	if first, ok := s.index[bucketEnd]; !ok || offset < first {
		s.index[bucketEnd] = offset
	}
}

// Decision is the last known committed D.
func (s *Session) Decision() Decision { return *s.decision.Load() }

// Incarnation is the session's number.
func (s *Session) Incarnation() int64 { return s.incarnation }

// Close ends the session. It sends nothing about a transaction: the next
// fence, by whoever owns the lane then, ends what is open.
func (s *Session) Close() {
	s.ended = true
	if s.owner != nil {
		s.owner.Close()
	}
}
