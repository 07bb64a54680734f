package checkpoint_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
)

// sweeping opens a session whose sweep runs; stop ends both and gives the
// sweep's error.
func sweeping(t *testing.T, job *checkpoint.Job) (s *checkpoint.Session, state *ids, stop func() error) {
	t.Helper()
	s, state = mustOpen(t, job)
	ctx, cancel := context.WithCancel(t.Context())
	swept := make(chan error, 1)
	go func() { swept <- s.Sweep(ctx) }()
	return s, state, func() error {
		cancel()
		s.Close()
		return <-swept
	}
}

// turns lets the sweep run n times.
func turns(job *checkpoint.Job, n int) {
	<-time.After(time.Duration(n)*job.Limits.Sweep + time.Millisecond)
	synctest.Wait()
}

// TestSweepCommitsOwnBranchComeBack: the same while the lane runs, in the
// session that made the epoch and in a later one.
func TestSweepCommitsOwnBranchComeBack(t *testing.T) {
	for _, ours := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w, job := started(t, 2, 3)
			end := int64(6)
			e := new(events).listen(job)
			s, state, stop := sweeping(t, job)
			if ours {
				if err := s.Checkpoint(t.Context(), state.feed(6, 8)); err != nil {
					t.Fatal(err)
				}
				end = 8
			}
			w.Shard(1).ComeBack()
			turns(job, 2)
			if err := stop(); err != nil {
				t.Error(err)
			}
			exact(t, w, 2, end)
			if !slices.Equal(e.nets, []string{"sweep"}) {
				t.Errorf("nets: %v", e.nets)
			}
		})
	}
}

// TestSweepRollsBackLatePrepare: a frozen predecessor prepares after the new
// owner's recovery. The sweep rolls it back, and the lane goes on.
func TestSweepRollsBackLatePrepare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 3)
		a := &frozen{who: "A", at: 1, thaw: make(chan struct{})}
		arm := make(chan struct{})
		w.Before(func(ctx context.Context, call string) {
			select {
			case <-arm:
			default:
				return
			}
			if strings.HasPrefix(call, "XA ROLLBACK") && checkpointtest.Who(ctx) == "A" {
				<-ctx.Done() // A is cut off from here on: it can't clean up
			}
			if strings.HasPrefix(call, "XA START") {
				a.before(ctx, call)
			}
		})
		sA, stateA := mustOpen(t, job)
		close(arm)
		done := make(chan error, 1)
		ctx := checkpointtest.As(t.Context(), "A")
		go func() { done <- sA.Checkpoint(ctx, stateA.feed(6, 8)) }()
		synctest.Wait() // frozen in phase 1

		jobB := newJob(w)
		e := new(events).listen(jobB)
		sB, stateB, stop := sweeping(t, jobB)
		close(a.thaw)
		synctest.Wait()
		if len(w.Shard(0).PreparedNow())+len(w.Shard(1).PreparedNow()) != 2 {
			t.Fatal("nothing was prepared late")
		}
		turns(jobB, 1) // one interval is enough
		if left := append(w.Shard(0).PreparedNow(), w.Shard(1).PreparedNow()...); len(left) > 0 {
			t.Errorf("left prepared: %v", left)
		}
		if err := <-done; err == nil {
			t.Error("the superseded owner's epoch was decided")
		}
		if err := sB.Checkpoint(t.Context(), stateB.feed(6, 10)); err != nil {
			t.Errorf("the living owner: %v", err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		exact(t, w, 2, 10)
		if !slices.Equal(e.nets, []string{"sweep", "sweep"}) {
			t.Errorf("nets: %v", e.nets)
		}
	})
}

// TestSweepNeverRollsBackLargerIncarnation: a zombie's sweep meets the living
// owner's branch. It leaves it alone and ends.
func TestSweepNeverRollsBackLargerIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 3)
		_, _, stop := sweeping(t, job) // incarnation 2
		living := branch(lastDecision(w), 3, 4)
		w.Shard(0).Put(living)
		w.Plan(nil)
		turns(job, 2)
		if did := changes(w.Calls()); len(did) > 0 {
			t.Errorf("changed: %v", did)
		}
		if left := w.Shard(0).PreparedNow(); !slices.Equal(left, []checkpoint.GTRID{living.GTRID}) {
			t.Errorf("prepared: %v", left)
		}
		if err := stop(); !errors.Is(err, checkpoint.ErrSuperseded) {
			t.Errorf("the sweep ended with %v", err)
		}
	})
}

// TestSweepLeavesEpochInFlight: our own prepared branch, not decided yet, is
// left alone, however long it takes; and while phase 2 works, it alone commits.
func TestSweepLeavesEpochInFlight(t *testing.T) {
	for _, at := range []string{"Produce decision", "XA COMMIT on s1"} {
		synctest.Test(t, func(t *testing.T) {
			w, job := started(t, 2, 3)
			thaw := make(chan struct{})
			w.Before(func(ctx context.Context, call string) {
				if call == at && checkpointtest.Who(ctx) == "lane" {
					<-thaw
				}
			})
			e := new(events).listen(job)
			s, state, stop := sweeping(t, job)
			done := make(chan error, 1)
			ctx := checkpointtest.As(t.Context(), "lane")
			go func() { done <- s.Checkpoint(ctx, state.feed(6, 8)) }()
			turns(job, 5)
			if left := w.Shard(1).PreparedNow(); len(left) != 1 {
				t.Errorf("%s: the sweep ended the epoch in flight", at)
			}
			close(thaw)
			if err := <-done; err != nil {
				t.Errorf("%s: %v", at, err)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			exact(t, w, 2, 8)
			if len(e.nets) > 0 {
				t.Errorf("%s: nets %v", at, e.nets)
			}
		})
	}
}

// slowList is a shard whose list of prepared branches arrives late: it is as it was when it was made.
type slowList struct {
	checkpoint.Shard
	arrive func(list []checkpoint.GTRID)
}

func (s slowList) Prepared(ctx context.Context, prefix string) ([]checkpoint.GTRID, error) {
	list, err := s.Shard.Prepared(ctx, prefix)
	s.arrive(list)
	return list, err
}

// TestSweepJudgesByTheDecisionBeforeTheList: while a list is on its way, the epoch in flight that it shows is decided and
// committed, and the next one too. It is no old branch that came back.
func TestSweepJudgesByTheDecisionBeforeTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 1, 3)
		decide, arrive, shown := make(chan struct{}), make(chan struct{}), 0
		job.Shards[0] = slowList{job.Shards[0], func(list []checkpoint.GTRID) {
			if shown = len(list); shown > 0 {
				<-arrive
			}
		}}
		w.Before(func(_ context.Context, call string) {
			if call == "Produce decision" && len(w.Shard(0).PreparedNow()) > 0 {
				<-decide
			}
		})
		s, state, stop := sweeping(t, job)
		done := make(chan error, 1)
		go func() {
			err := s.Checkpoint(t.Context(), state.feed(6, 8))
			done <- errors.Join(err, s.Checkpoint(t.Context(), state.feed(8, 10)))
		}()
		turns(job, 1)
		if shown != 1 {
			t.Fatalf("%d branches are listed, want the epoch in flight", shown)
		}
		close(decide)
		if err := <-done; err != nil {
			t.Error(err)
		}
		close(arrive)
		turns(job, 1)
		if err := stop(); err != nil {
			t.Errorf("the sweep ended with %v", err)
		}
		exact(t, w, 1, 10)
	})
}

// TestSweepRefusesOldBranch: a shard that comes back older while the lane runs.
func TestSweepRefusesOldBranch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 3)
		_, _, stop := sweeping(t, job)
		w.Shard(1).Put(branch(lastDecision(w), 1, 2))
		w.Plan(nil)
		turns(job, 2)
		err := stop()
		refusedWith(t, err, checkpoint.ReasonOldBranch, checkpoint.StopsLane, "shard s1")
		if did := changes(w.Calls()); len(did) > 0 {
			t.Errorf("changed: %v", did)
		}
	})
}

// TestSweepRefusesOtherServer: behind a shard's address another server answers
// while the lane runs. What it lists is not asked for again.
func TestSweepRefusesOtherServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, job := started(t, 2, 3)
		e := new(events).listen(job)
		changed := &elsewhere{Shard: job.Shards[1]}
		job.Shards[1] = changed
		_, _, stop := sweeping(t, job)
		changed.answers("Prepared")
		turns(job, 2)
		changed.answers() // the sweep has ended before
		turns(job, 1)
		if r := checkpoint.AsRefusal(stop()); r == nil || r.Reason != checkpoint.ReasonServerChanged {
			t.Errorf("the sweep ended with %v, waits %v", r, e.waits)
		}
	})
}

// TestSweepOnlyAssigned: a lane that is not this member's is not swept: what is
// prepared there may be the next owner's to judge.
func TestSweepOnlyAssigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 3)
		var away atomic.Bool
		s, err := checkpoint.Open(t.Context(), job, lane, func() bool { return !away.Load() }, &ids{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		away.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		swept := make(chan error, 1)
		go func() { swept <- s.Sweep(ctx) }()
		w.Shard(1).Put(branch(lastDecision(w), 1, 4))
		w.Plan(nil)
		turns(job, 3)
		if calls := w.Calls(); len(calls) > 0 {
			t.Errorf("not assigned, called: %v", calls)
		}
		away.Store(false) // the heartbeats are fresh again
		turns(job, 1)
		if left := w.Shard(1).PreparedNow(); len(left) > 0 {
			t.Errorf("assigned again, left prepared: %v", left)
		}
		cancel()
		if err := <-swept; err != nil {
			t.Error(err)
		}
		exact(t, w, 2, 6)
	})
}

// TestSweepOutlivesShardAway: a shard that does not answer does not end the
// session by the sweep; it is told, and asked again.
func TestSweepOutlivesShardAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 3)
		e := new(events).listen(job)
		_, _, stop := sweeping(t, job)
		w.Plan(func(_ int, call string) checkpointtest.Fault {
			if call == "XA RECOVER on s1" {
				return checkpointtest.Failed
			}
			return checkpointtest.None
		})
		turns(job, 3)
		w.Plan(nil)
		w.Shard(1).Put(branch(lastDecision(w), 1, 4))
		turns(job, 2)
		if left := w.Shard(1).PreparedNow(); len(left) > 0 {
			t.Errorf("left prepared: %v", left)
		}
		if err := stop(); err != nil || !slices.Contains(e.waits, "sweep") {
			t.Errorf("%v, waits %v", err, e.waits)
		}
	})
}

// TestSweepsComeTogether: whenever a lane's session began, all of a process sweep
// at the same moments, so that they can share a shard's answer.
func TestSweepsComeTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := checkpointtest.NewWorld(lane, 1)
		job := newJob(w)
		var mu sync.Mutex
		var looks []time.Time
		w.Before(func(ctx context.Context, call string) {
			if checkpointtest.Who(ctx) == "sweeper" {
				mu.Lock()
				defer mu.Unlock()
				looks = append(looks, time.Now())
			}
		})
		s, _ := mustOpen(t, job)
		defer s.Close()
		begun := time.Now()
		ctx, cancel := context.WithCancel(checkpointtest.As(t.Context(), "sweeper"))
		swept := make(chan error, 3)
		for range 3 { // three lanes' sweeps, which begin one after the other
			go func() { swept <- s.Sweep(ctx) }()
			<-time.After(300 * time.Millisecond)
		}
		turns(job, 2)
		cancel()
		for range 3 {
			if err := <-swept; err != nil {
				t.Error(err)
			}
		}
		if len(looks) != 2*3 {
			t.Fatalf("%d looks", len(looks))
		}
		for i, at := range looks {
			if want := time.Duration(1+i/3) * job.Limits.Sweep; at.Sub(begun) != want {
				t.Errorf("look %d after %s, want %s", i, at.Sub(begun), want)
			}
		}
	})
}
