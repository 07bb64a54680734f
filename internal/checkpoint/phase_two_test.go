package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
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

// TestPhaseTwoKeepsTrying: commits that fail, or whose answers are lost, are
// tried again until the row is there.
func TestPhaseTwoKeepsTrying(t *testing.T) {
	for _, call := range []string{"XA COMMIT on s1", "SELECT epoch on s1"} {
		for _, fault := range []checkpointtest.Fault{checkpointtest.Failed, checkpointtest.Lost} {
			synctest.Test(t, func(t *testing.T) {
				w, job := started(t, 2, 1)
				e := new(events).listen(job)
				s, state := mustOpen(t, job)
				defer s.Close()
				failures := 5
				w.Plan(func(_ int, c string) checkpointtest.Fault {
					if c == call && failures > 0 {
						failures--
						return fault
					}
					return checkpointtest.None
				})
				if err := s.Checkpoint(t.Context(), state.feed(2, 4)); err != nil {
					t.Errorf("%s %s: %v", call, fault, err)
				}
				exact(t, w, 2, 4)
				if !slices.Contains(e.waits, "C8") {
					t.Errorf("nobody was told: %v", e.waits)
				}
			})
		}
	}
}

// TestPhaseTwoShardAway: a shard that is away for longer than phase 2 waits ends
// the session; the epoch stays prepared, and the next session commits it.
func TestPhaseTwoShardAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 1)
		s, state := mustOpen(t, job)
		away := true
		w.Plan(func(_ int, call string) checkpointtest.Fault {
			if away && (call == "XA COMMIT on s1" || call == "SELECT epoch on s1") {
				return checkpointtest.Failed
			}
			return checkpointtest.None
		})
		began := time.Now()
		err := s.Checkpoint(t.Context(), state.feed(2, 4))
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "was not seen committed") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took < job.Limits.PhaseTwo {
			t.Errorf("gave up after %s", took)
		}
		away = false
		isOver(t, w, s, state)
		runToEnd(t, w, job, 2, 8)
	})
}

// TestPhaseTwoCommitExecuting: the branch is neither listed nor a row while its
// commit executes; phase 2 looks again.
func TestPhaseTwoCommitExecuting(t *testing.T) {
	for _, finishes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w, job := started(t, 2, 1)
			s, state := mustOpen(t, job)
			w.Before(func(_ context.Context, call string) {
				if prepared := w.Shard(1).PreparedNow(); call == "XA COMMIT on s1" && len(prepared) == 1 {
					w.Shard(1).Execute(prepared[0]) // another connection commits it
					if finishes {
						time.AfterFunc(job.Limits.LookAgain/2, w.Shard(1).Finish)
					}
				}
			})
			began := time.Now()
			err := s.Checkpoint(t.Context(), state.feed(2, 4))
			if (err == nil) != finishes {
				t.Fatalf("finishes %t: %v", finishes, err)
			}
			if finishes {
				exact(t, w, 2, 4)
				s.Close()
				return
			}
			if took := time.Since(began); took < job.Limits.LookAgain || !strings.Contains(err.Error(), "neither prepared nor committed") {
				t.Errorf("after %s: %v", took, err)
			}
			isOver(t, w, s, state)
			// The next session looks again by itself, and only then refuses.
			w.Before(nil)
			refusedWith(t, tryOpen(t, job), checkpoint.ReasonLostEpoch, checkpoint.StopsLane)
			w.Shard(1).Finish() // a restart of the server brings it to its end
			runToEnd(t, w, job, 2, 8)
		})
	}
}

// TestCommitAnsweredAndNotDone: XA COMMIT answers OK and commits nothing. Only
// the row proves a commit, so the lane stops before it builds on it.
func TestCommitAnsweredAndNotDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 1)
		s, state := mustOpen(t, job)
		w.Shard(1).SwallowCommit = true
		if err := s.Checkpoint(t.Context(), state.feed(2, 4)); err == nil {
			t.Error("an epoch that a shard does not have was taken for committed")
		}
		isOver(t, w, s, state)
		refusedWith(t, tryOpen(t, job), checkpoint.ReasonLostEpoch, checkpoint.StopsLane, "shard s1", "epoch 2")
	})
}

// TestPhaseTwoNextOwnerFaster: the branch is gone at our own phase 2 because a
// next owner has committed it. The row decides; that is no error.
func TestPhaseTwoNextOwnerFaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 1)
		s, state := mustOpen(t, job)
		next := newJob(w)
		var faster atomic.Bool
		w.Before(func(_ context.Context, call string) {
			if strings.HasPrefix(call, "XA COMMIT") && faster.CompareAndSwap(false, true) {
				if err := session(context.Background(), next, 4, 2); err != nil {
					t.Error(err)
				}
			}
		})
		if err := s.Checkpoint(t.Context(), state.feed(2, 4)); err != nil {
			t.Errorf("got %v", err)
		}
		exact(t, w, 2, 4)
		// Its next epoch is not decided: the lane is the other's.
		if err := s.Checkpoint(t.Context(), state.feed(4, 6)); err == nil {
			t.Error("a superseded owner decided")
		}
		runToEnd(t, w, next, 2, 8)
	})
}

// TestPhaseTwoOtherRow: the row of our epoch names another branch: nothing is
// built on it.
func TestPhaseTwoOtherRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 1)
		s, state := mustOpen(t, job)
		defer s.Close()
		w.Plan(func(_ int, call string) checkpointtest.Fault {
			if call == "SELECT epoch on s1" {
				w.Shard(1).SetEpochGTRID(2, gtridOf(w.Decisions[1], 1, 1))
			}
			return checkpointtest.None
		})
		err := s.Checkpoint(t.Context(), state.feed(2, 4))
		refusedWith(t, err, checkpoint.ReasonInvariant, checkpoint.StopsLane, "shard s1")
	})
}

// elsewhere is a shard behind whose address another server answers, to the calls
// that it was told of.
type elsewhere struct {
	checkpoint.Shard
	mu    sync.Mutex
	calls []string
}

func (s *elsewhere) answers(calls ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = calls
}

func (s *elsewhere) refusal(call string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.calls, call) {
		return nil
	}
	return fmt.Errorf("connect: %w", &checkpoint.Refusal{Scope: checkpoint.EndsProcess, Reason: checkpoint.ReasonServerChanged, What: s.Name()})
}

func (s *elsewhere) Prepared(ctx context.Context, prefix string) ([]checkpoint.GTRID, error) {
	if err := s.refusal("Prepared"); err != nil {
		return nil, err
	}
	return s.Shard.Prepared(ctx, prefix)
}

func (s *elsewhere) Commit(ctx context.Context, g checkpoint.GTRID) error {
	if err := s.refusal("Commit"); err != nil {
		return errors.Join(err, checkpoint.ErrNotSent)
	}
	return s.Shard.Commit(ctx, g)
}

func (s *elsewhere) EpochRow(ctx context.Context, l checkpoint.Lane, seq int64) (checkpoint.EpochRow, bool, error) {
	if err := s.refusal("EpochRow"); err != nil {
		return checkpoint.EpochRow{}, false, err
	}
	return s.Shard.EpochRow(ctx, l, seq)
}

// TestPhaseTwoRefusesOtherServer: behind a shard's address another server answers
// in phase 2. The session ends with that at once; the epoch is the next one's.
func TestPhaseTwoRefusesOtherServer(t *testing.T) {
	for _, calls := range [][]string{{"Commit", "EpochRow"}, {"Commit"}, {"EpochRow"}} {
		synctest.Test(t, func(t *testing.T) {
			w, job := started(t, 2, 1)
			changed := &elsewhere{Shard: job.Shards[1]}
			job.Shards[1] = changed
			s, state := mustOpen(t, job)
			changed.answers(calls...)
			began := time.Now()
			err := s.Checkpoint(t.Context(), state.feed(2, 4))
			if r := checkpoint.AsRefusal(err); r == nil || r.Reason != checkpoint.ReasonServerChanged || time.Since(began) > 0 {
				t.Errorf("%v: after %s: %v", calls, time.Since(began), err)
			}
			isOver(t, w, s, state)
			changed.answers()
			runToEnd(t, w, job, 2, 8)
		})
	}
}
