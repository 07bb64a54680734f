package checkpoint_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
)

// branch is one that a dead or later session of the lane could have prepared.
func branch(d checkpoint.Decision, incarnation, seq int64) *checkpoint.Branch {
	return &checkpoint.Branch{
		Lane: lane, TopicID: d.TopicID, GTRID: gtridOf(d, incarnation, seq), Incarnation: incarnation, Seq: seq,
		OffsetFrom: d.Next, OffsetNext: d.Next + 2, Contents: [2]int64{d.Next, d.Next + 2},
	}
}

// TestSettleEndsWhatIsLeft: an undecided epoch is rolled back, a decided one is
// committed, on the shards that still have it.
func TestSettleEndsWhatIsLeft(t *testing.T) {
	for _, c := range []struct {
		call    string
		fault   checkpointtest.Fault
		inDoubt []string
		settled []string
		seq     int64
		end     int64
	}{
		{"XA PREPARE on s1", checkpointtest.Lost, []string{"s0 0", "s1 0"}, []string{"s0 c0 r0", "s1 c0 r0"}, 2, 4}, // its own C9 rolled both back
		{"EndTxn", checkpointtest.Failed, []string{"s0 1", "s1 1"}, []string{"s0 c0 r1", "s1 c0 r1"}, 2, 4},
		{"EndTxn", checkpointtest.Lost, []string{"s0 1", "s1 1"}, []string{"s0 c1 r0", "s1 c1 r0"}, 3, 6},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, job := interrupted(t, 2, 2, c.call, c.fault)
			e := new(events).listen(job)
			s, _ := mustOpen(t, job)
			s.Close()
			if at := (checkpoint.At{Lane: lane, Incarnation: s.Incarnation(), Seq: c.seq}); !slices.Equal(e.inDoubt, c.inDoubt) || !slices.Equal(e.at, []checkpoint.At{at}) {
				t.Errorf("%s %s: in doubt %v at %v, want %v at %v", c.call, c.fault, e.inDoubt, e.at, c.inDoubt, at)
			}
			if !slices.Equal(e.settled, c.settled) {
				t.Errorf("%s %s: settled %v, want %v", c.call, c.fault, e.settled, c.settled)
			}
			exact(t, w, 2, c.end)
		})
	}
}

// TestOlderConnectionsEndFirst: a branch that is not prepared yet is in no list. On each shard the connections of older
// sessions are ended before its branches are listed, and what one has prepared until then is found. A shard that could not
// end them is asked again, and nothing is listed before.
func TestOlderConnectionsEndFirst(t *testing.T) {
	for _, failures := range []int{0, 3} {
		synctest.Test(t, func(t *testing.T) {
			w, job := started(t, 2, 2)
			asked := [2]int{}
			w.Plan(func(_ int, call string) checkpointtest.Fault {
				shard, ok := strings.CutPrefix(call, "IS_USED_LOCK on s")
				if !ok {
					return checkpointtest.None
				}
				if i := shard[0] - '0'; asked[i] < failures {
					asked[i]++
					return checkpointtest.Failed
				}
				return checkpointtest.None
			})
			w.Before(func(_ context.Context, call string) {
				if shard, ok := strings.CutPrefix(call, "IS_USED_LOCK on s"); ok && count(w.Calls(), call) == failures {
					w.Shard(int(shard[0] - '0')).Put(branch(lastDecision(w), 1, 3)) // in the instant before its connection ends
				}
			})
			e := new(events).listen(job)
			s, _ := mustOpen(t, job)
			s.Close()
			if want := []string{"s0 c0 r1", "s1 c0 r1"}; !slices.Equal(e.settled, want) {
				t.Errorf("%d failures: settled %v, want %v", failures, e.settled, want)
			}
			if slices.Contains(e.waits, "S4") != (failures > 0) {
				t.Errorf("%d failures: waits %v", failures, e.waits)
			}
			exact(t, w, 2, 4)
		})
	}
}

// TestSomeCommitted: a session died between two shards' commits; the rest is
// committed by the next one.
func TestSomeCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := interrupted(t, 2, 2, "EndTxn", checkpointtest.Lost)
		if err := w.Shard(1).Commit(t.Context(), lastDecision(w).GTRID); err != nil {
			t.Fatal(err)
		}
		s, _ := mustOpen(t, job)
		s.Close()
		exact(t, w, 2, 6)
	})
}

// TestSettleRefuses: what S4 must not go on from, with nothing changed.
func TestSettleRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(w *world)
		reason string
		says   []string
	}{
		"a branch of an epoch before": {func(w *world) {
			w.Shard(1).Put(branch(lastDecision(w), 1, 2))
		}, checkpoint.ReasonOldBranch, []string{"shard s1", "epoch 2", "epoch 3 is decided"}},
		"an epoch is lost": {func(w *world) {
			w.Shard(1).LoseEpoch()
		}, checkpoint.ReasonLostEpoch, []string{"shard s1", "epoch 3", "offsets up to 6", "up to 2 (next offset 4)"}},
		"a branch was rolled back by hand": {func(w *world) {
			w.Shard(0).ComeBack()
			if err := w.Shard(0).Commit(context.Background(), lastDecision(w).GTRID); err != nil {
				panic(err)
			}
			w.Shard(0).LoseEpoch()
		}, checkpoint.ReasonLostEpoch, []string{"shard s0", "epoch 3"}},
		"everything on a shard is lost": {func(w *world) {
			for range 3 {
				w.Shard(0).LoseEpoch()
			}
		}, checkpoint.ReasonLostEpoch, []string{"shard s0", "no epoch of the lane"}},
		"a shard is ahead": {func(w *world) {
			w.Shard(1).SetLaneRow(&checkpoint.LaneRow{Incarnation: 1, Seq: 4, Next: 8})
		}, checkpoint.ReasonShardAhead, []string{"shard s1", "up to 4 (next offset 8)", "epoch 3 (offset 6)"}},
		"a shard is ahead, and another has the branch still prepared": {func(w *world) {
			w.Shard(1).SetLaneRow(&checkpoint.LaneRow{Incarnation: 1, Seq: 4, Next: 8})
			w.Shard(0).Put(branch(lastDecision(w), 1, 4))
		}, checkpoint.ReasonShardAhead, []string{"shard s1", "up to 4 (next offset 8)", "epoch 3 (offset 6)"}},
		"a branch of an epoch that no decision comes before": {func(w *world) {
			w.Shard(1).SetLaneRow(&checkpoint.LaneRow{Incarnation: 1, Seq: 4, Next: 8})
			w.Shard(1).Put(branch(lastDecision(w), 1, 5))
		}, checkpoint.ReasonShardAhead, []string{"shard s1", "prepared branch", "of epoch 5", "epoch 3 (offset 6)"}},
		"the lane's row went back by hand": {func(w *world) {
			w.Shard(1).SetLaneRow(&checkpoint.LaneRow{Incarnation: 1, Seq: 2, Next: 4})
		}, checkpoint.ReasonInvariant, []string{"shard s1", "billing_lane says epoch 2"}},
		"the lane's row was deleted by hand": {func(w *world) {
			w.Shard(1).SetLaneRow(nil)
		}, checkpoint.ReasonInvariant, []string{"shard s1", "changed by hand"}},
		"the epoch's row has another branch": {func(w *world) {
			w.Shard(1).SetEpochGTRID(3, gtridOf(lastDecision(w), 1, 2))
		}, checkpoint.ReasonInvariant, []string{"shard s1", "epoch 3", "the decision names"}},
		"a branch with the new incarnation": {func(w *world) {
			w.Shard(1).Put(branch(lastDecision(w), 2, 4))
		}, checkpoint.ReasonInvariant, []string{"shard s1", "this session's incarnation"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, job := started(t, 2, 3)
				c.damage(w)
				w.Plan(nil)
				foreseen := foresee(t, w, job)
				err := tryOpen(t, job)
				refusedWith(t, err, c.reason, checkpoint.StopsLane, c.says...)
				sameRefusal(t, foreseen, err)
				if did := changes(w.Calls()); !slices.Equal(did, []string{"EndTxn"}) { // the takeover
					t.Errorf("changed: %v", did)
				}
			})
		})
	}
}

// TestSupersededBranch: a branch of a larger incarnation belongs to a later
// owner. It is left alone, the session ends, and nobody is told to repair.
func TestSupersededBranch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 3)
		later := branch(lastDecision(w), 9, 4)
		w.Shard(0).Put(later)
		w.Plan(nil)
		err := tryOpen(t, job)
		var refused *checkpoint.Refusal
		if !errors.Is(err, checkpoint.ErrSuperseded) || errors.As(err, &refused) {
			t.Errorf("got %v", err)
		}
		if did := changes(w.Calls()); !slices.Equal(did, []string{"EndTxn"}) {
			t.Errorf("changed: %v", did)
		}
		if left := w.Shard(0).PreparedNow(); !slices.Equal(left, []checkpoint.GTRID{later.GTRID}) {
			t.Errorf("prepared: %v", left)
		}
	})
}

// TestSupersededIsNoRefusal: a session that froze in S4 and finds the epochs of
// the next owner ends as superseded: the lane is not refused for them.
func TestSupersededIsNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 1, 1)
		a := &frozen{who: "A", at: 9, thaw: make(chan struct{})} // behind its takeover
		w.Before(a.before)
		done := make(chan error, 1)
		ctx := checkpointtest.As(t.Context(), "A")
		go func() { done <- session(ctx, newJob(w), 8, 2) }()
		synctest.Wait()
		if n := lastDecision(w).Incarnation; n != 2 {
			t.Fatalf("A is not frozen behind its takeover: %d", n)
		}
		runToEnd(t, w, job, 1, 8)
		close(a.thaw)
		err := <-done
		var refused *checkpoint.Refusal
		if !errors.Is(err, checkpoint.ErrSuperseded) || errors.As(err, &refused) {
			t.Errorf("got %v", err)
		}
		exact(t, w, 1, 8)
	})
}

// TestCommitExecuting: while a commit executes, its branch is neither listed
// nor a row. S4 looks again, and nothing is lost.
func TestCommitExecuting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := interrupted(t, 2, 2, "EndTxn", checkpointtest.Lost)
		w.Shard(1).Execute(lastDecision(w).GTRID)
		time.AfterFunc(job.Limits.LookAgain/2, w.Shard(1).Finish)
		s, _ := mustOpen(t, job)
		s.Close()
		exact(t, w, 2, 6)
	})
}

// hiding is a shard that at times does not list what is prepared, or can't.
type hiding struct {
	checkpoint.Shard
	list func() (hidden bool, err error)
}

func (h hiding) Prepared(ctx context.Context, prefix string) ([]checkpoint.GTRID, error) {
	if hidden, err := h.list(); hidden || err != nil {
		return nil, err
	}
	return h.Shard.Prepared(ctx, prefix)
}

// TestSeenAgainIsLookedForAgain: a branch that was in no place is listed again, or nobody can say, before the time for
// looking is up. From the next look that does not find it the whole time counts.
func TestSeenAgainIsLookedForAgain(t *testing.T) {
	for name, between := range map[string]error{"listed": nil, "no answer": checkpointtest.ErrInjected} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, job := interrupted(t, 2, 2, "EndTxn", checkpointtest.Lost)
				third, began := job.Limits.LookAgain*6/10, time.Now()
				w.Shard(1).Attached = 1 << 20
				time.AfterFunc(3*third, func() { w.With(func() { w.Shard(1).Attached = 0 }) })
				job.Shards[1] = hiding{job.Shards[1], func() (bool, error) {
					switch time.Since(began) / third {
					case 0, 2:
						return true, nil
					case 1:
						return false, between
					default:
						return false, nil
					}
				}}
				s, _ := mustOpen(t, job)
				s.Close()
				exact(t, w, 2, 6)
			})
		})
	}
}

// TestUnknownXIDProvesNothing: the server answers "unknown XID" for branches
// that it lists, while another connection has them. S4 looks again until they
// are ended.
func TestUnknownXIDProvesNothing(t *testing.T) {
	for fault, end := range map[checkpointtest.Fault]int64{checkpointtest.Failed: 4, checkpointtest.Lost: 6} {
		synctest.Test(t, func(t *testing.T) {
			w, job := interrupted(t, 2, 2, "EndTxn", fault)
			w.Shard(1).Attached = 3
			s, _ := mustOpen(t, job)
			s.Close()
			exact(t, w, 2, end)
		})
	}
}

// TestLostEpochOnlyAfterLookingAgain: the lane is refused for a lost epoch not
// before it has looked for the whole time.
func TestLostEpochOnlyAfterLookingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 1, 2)
		w.Shard(0).LoseEpoch()
		began := time.Now()
		err := tryOpen(t, job)
		refusedWith(t, err, checkpoint.ReasonLostEpoch, checkpoint.StopsLane)
		if took := time.Since(began); took < job.Limits.LookAgain || took > job.Limits.LookAgain+5*time.Second {
			t.Errorf("looked for %s, want %s", took, job.Limits.LookAgain)
		}
		w.Plan(nil)
		if err := tryOpen(t, job); err == nil {
			t.Error("the second session took the lost epoch for granted")
		}
		if n := count(w.Calls(), "XA RECOVER"); n < 5 {
			t.Errorf("looked %d times", n)
		}
	})
}

// TestShardAway: a shard that does not answer is asked again until the time for
// it is up; that is no refusal, and the next session finds everything.
func TestShardAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := interrupted(t, 2, 2, "EndTxn", checkpointtest.Lost)
		e := new(events).listen(job)
		w.Plan(func(_ int, call string) checkpointtest.Fault {
			if strings.HasSuffix(call, " on s1") {
				return checkpointtest.Failed
			}
			return checkpointtest.None
		})
		began := time.Now()
		err := tryOpen(t, job)
		var refused *checkpoint.Refusal
		if !errors.Is(err, context.DeadlineExceeded) || errors.As(err, &refused) || !strings.Contains(err.Error(), "s1") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took > job.Limits.Settle+time.Second {
			t.Errorf("waited for %s", took)
		}
		if !slices.Contains(e.waits, "S4") {
			t.Errorf("nobody was told: %v", e.waits)
		}
		w.Plan(nil)
		runToEnd(t, w, job, 2, 8)
	})
}

// TestOwnBranchComesBackBeforeStart: a shard was failed over to a replica that
// had received the prepare only. D's own branch is committed again, whatever
// its incarnation.
func TestOwnBranchComesBackBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 3)
		w.Shard(1).ComeBack()
		s, _ := mustOpen(t, job)
		s.Close()
		exact(t, w, 2, 6)
		runToEnd(t, w, job, 2, 10)
	})
}
