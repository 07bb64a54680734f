package checkpoint_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
)

// TestAdvance: the offset of an idle lane follows a tail without records, with
// the same seq and branch; the next epoch still begins where the last one
// ended, so that the chain has no hole, in this session and in a later one.
func TestAdvance(t *testing.T) {
	for _, again := range []bool{false, true} {
		for _, epochs := range []int64{0, 1} {
			synctest.Test(t, func(t *testing.T) {
				w, job := started(t, 2, epochs)
				e := new(events).listen(job)
				s, state := mustOpen(t, job)
				before := lastDecision(w)
				for _, next := range []int64{5, 9} {
					w.Plan(nil)
					if err := s.Advance(t.Context(), next); err != nil {
						t.Fatal(err)
					}
					if count(w.Calls(), "XA ") > 0 {
						t.Errorf("an advance touched MySQL: %v", w.Calls())
					}
				}
				d := lastDecision(w)
				if d.Next != 9 || d.LeaderEpoch != -1 {
					t.Errorf("moved to %d, leader epoch %d", d.Next, d.LeaderEpoch)
				}
				d.Next, d.LeaderEpoch = before.Next, before.LeaderEpoch
				if d != before || e.moved != 2 || len(e.counted()) > 0 {
					t.Errorf("an advance changed the decision: %+v, was %+v; told %d, counted %v", d, before, e.moved, e.committed)
				}
				if again {
					s.Close()
					s, state = mustOpen(t, job)
				}
				defer s.Close()
				epoch := state.feed(9, 11)
				if err := s.Checkpoint(t.Context(), epoch); err != nil {
					t.Fatal(err)
				}
				if err := w.Sound(); err != nil {
					t.Error(err)
				}
				for i := range 2 {
					if n, err := w.Shard(i).Chain(); err != nil || n != epochs+1 {
						t.Errorf("again %t: %d epochs, %v", again, n, err)
					}
					// A first epoch begins where the lane did: nothing was before it.
					want := before.Next
					if epochs == 0 {
						want = 9
					}
					if from := w.Shard(i).From(epochs + 1); from != want {
						t.Errorf("again %t: the epoch begins at %d, want %d", again, from, want)
					}
				}
			})
		}
	}
}

// TestAdvanceFails: the session is over, and the next one goes on from
// whichever offset is decided.
func TestAdvanceFails(t *testing.T) {
	for _, call := range []string{"Produce decision", "TxnOffsetCommit", "EndTxn"} {
		for _, fault := range []checkpointtest.Fault{checkpointtest.Failed, checkpointtest.Lost} {
			synctest.Test(t, func(t *testing.T) {
				w, job := started(t, 1, 1)
				s, state := mustOpen(t, job)
				w.Plan(onCall(call, 1, fault))
				if err := s.Advance(t.Context(), 9); err == nil {
					t.Errorf("%s %s: no error", call, fault)
				}
				isOver(t, w, s, state)
				w.Plan(nil)
				s, _ = mustOpen(t, job)
				want := int64(2)
				if call == "EndTxn" && fault == checkpointtest.Lost {
					want = 9
				}
				if d := s.Decision(); d.Next != want {
					t.Errorf("%s %s: offset %d, want %d", call, fault, d.Next, want)
				}
				s.Close()
			})
		}
	}
}

// TestAdvanceNeverGoesBack is invariant 6.
func TestAdvanceNeverGoesBack(t *testing.T) {
	for _, next := range []int64{0, 1, 2} {
		synctest.Test(t, func(t *testing.T) {
			w, job := started(t, 1, 1)
			s, state := mustOpen(t, job)
			w.Plan(nil)
			var broken *checkpoint.InvariantError
			if err := s.Advance(t.Context(), next); !errors.As(err, &broken) {
				t.Errorf("to %d: %v", next, err)
			}
			if calls := w.Calls(); len(calls) > 0 {
				t.Errorf("to %d: %v", next, calls)
			}
			isOver(t, w, s, state)
		})
	}
}
