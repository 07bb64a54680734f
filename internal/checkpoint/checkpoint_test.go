package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
)

// TestCheckpointOrder: all prepared before the Kafka transaction begins, the
// decision before the first commit, the rows read back on every shard before
// anything is counted or trimmed.
func TestCheckpointOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 1)
		e := new(events).listen(job)
		s, state := mustOpen(t, job)
		defer s.Close()
		w.Plan(nil)
		if err := s.Checkpoint(t.Context(), state.feed(2, 4)); err != nil {
			t.Fatal(err)
		}
		calls := w.Calls()
		order := []string{"XA PREPARE", "Produce chunks", "Produce decision", "TxnOffsetCommit", "EndTxn", "XA COMMIT", "SELECT epoch"}
		for i := range order[1:] {
			if order[i] == "XA COMMIT" { // each shard reads its own row back
				continue
			}
			last, first := -1, len(calls)
			for n, c := range calls {
				if strings.HasPrefix(c, order[i]) {
					last = n
				}
				if strings.HasPrefix(c, order[i+1]) {
					first = min(first, n)
				}
			}
			if last < 0 || first == len(calls) || last > first {
				t.Errorf("%s must be over before %s begins: %v", order[i], order[i+1], calls)
			}
		}
		for _, shard := range []string{"s0", "s1"} {
			if slices.Index(calls, "SELECT epoch on "+shard) < slices.Index(calls, "XA COMMIT on "+shard) {
				t.Errorf("the row of %s was not read back: %v", shard, calls)
			}
		}
		if !slices.Equal(e.phases, []string{"prepare", "decide", "commit"}) || !slices.Equal(e.counted(), []string{"2/2"}) {
			t.Errorf("phases %v, counted %v", e.phases, e.committed)
		}
		exact(t, w, 2, 4)
	})
}

// TestPrepareFails: whatever a failed phase 1 has left is rolled back, no Kafka
// transaction begins, and the session is over.
func TestPrepareFails(t *testing.T) {
	for _, shard := range []string{"s0", "s1"} {
		for _, fault := range []checkpointtest.Fault{checkpointtest.Failed, checkpointtest.Lost} {
			synctest.Test(t, func(t *testing.T) {
				w, job := started(t, 2, 1)
				s, state := mustOpen(t, job)
				w.Plan(onCall("XA PREPARE on "+shard, 1, fault))
				err := s.Checkpoint(t.Context(), state.feed(2, 4))
				if !errors.Is(err, checkpointtest.ErrInjected) || !strings.Contains(err.Error(), shard) {
					t.Errorf("got %v", err)
				}
				if calls := w.Calls(); count(calls, "XA ROLLBACK") != 2 || count(calls, "Produce") > 0 || count(calls, "EndTxn") > 0 {
					t.Errorf("calls: %v", calls)
				}
				isOver(t, w, s, state)
				runToEnd(t, w, job, 2, 8)
			})
		}
	}
}

// isOver fails unless the session does nothing any more.
func isOver(t *testing.T, w *world, s *checkpoint.Session, state *ids) {
	t.Helper()
	w.Plan(nil)
	var broken *checkpoint.InvariantError
	d := s.Decision()
	if err := s.Checkpoint(t.Context(), state.feed(d.Next, d.Next+2)); !errors.As(err, &broken) {
		t.Errorf("a checkpoint after an error: %v", err)
	}
	if err := s.Advance(t.Context(), d.Next+2); !errors.As(err, &broken) {
		t.Errorf("an advance after an error: %v", err)
	}
	if calls := w.Calls(); len(calls) > 0 {
		t.Errorf("a session that is over called %v", calls)
	}
	s.Close()
}

// netted is a shard on which a net decides in phase 1.
type netted struct {
	checkpoint.Shard
	net string
}

func (s netted) Prepare(context.Context, *checkpoint.Branch) error {
	return fmt.Errorf("prepare: %w", errors.Join(&checkpoint.NetError{Net: s.net, Err: errors.New("0 rows")}, checkpoint.ErrRolledBack))
}

// TestPrepareTellsItsNets: a net that decided in phase 1 is told, of each shard.
func TestPrepareTellsItsNets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 1)
		e := new(events).listen(job)
		s, state := mustOpen(t, job)
		for i, net := range []string{"compare-and-set", "epoch-key"} {
			job.Shards[i] = netted{job.Shards[i], net}
		}
		if err := s.Checkpoint(t.Context(), state.feed(2, 4)); err == nil {
			t.Error("no error")
		}
		if !slices.Equal(e.nets, []string{"compare-and-set", "epoch-key"}) {
			t.Errorf("nets: %v", e.nets)
		}
		isOver(t, w, s, state)
		exact(t, w, 2, 2)
	})
}

// TestLedgerRowsExist: the ledger's unique key decided. The entries come through
// to the caller, and nothing of the epoch is left.
func TestLedgerRowsExist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 1)
		want := []checkpoint.ExistingRow{{Key: [16]byte{1}, Content: [8]byte{2}, Offset: 1, Time: 3}, {Key: [16]byte{4}, Offset: 0}}
		w.Shard(1).Exists = func(*checkpoint.Branch) []checkpoint.ExistingRow { return want }
		s, state := mustOpen(t, job)
		err := s.Checkpoint(t.Context(), state.feed(2, 4))
		var exist *checkpoint.RowsExistError
		if !errors.As(err, &exist) || exist.Shard != "s1" || !slices.Equal(exist.Entries, want) {
			t.Errorf("got %v, %+v", err, exist)
		}
		w.Shard(1).Exists = nil
		isOver(t, w, s, state)
		runToEnd(t, w, job, 2, 8)
	})
}

// TestDecisionFails: an error before EndTxn can't be a decision. The Kafka
// transaction is aborted, and the branches are rolled back.
func TestDecisionFails(t *testing.T) {
	for _, call := range []string{"Produce chunks", "Produce decision", "TxnOffsetCommit"} {
		for _, fault := range []checkpointtest.Fault{checkpointtest.Failed, checkpointtest.Lost} {
			synctest.Test(t, func(t *testing.T) {
				w, job := started(t, 2, 1)
				s, state := mustOpen(t, job)
				w.Plan(onCall(call, 1, fault))
				err := s.Checkpoint(t.Context(), state.feed(2, 4))
				if !errors.Is(err, checkpointtest.ErrInjected) || errors.Is(err, checkpoint.ErrOutcomeUnknown) {
					t.Errorf("%s: %v", call, err)
				}
				if calls := w.Calls(); count(calls, "XA ROLLBACK") != 2 || count(calls, "EndTxn abort") != 1 || slices.Contains(calls, "EndTxn") || count(calls, "XA COMMIT") > 0 {
					t.Errorf("%s: calls %v", call, calls)
				}
				isOver(t, w, s, state)
				runToEnd(t, w, job, 2, 8)
			})
		}
	}
}

// TestOutcomeUnknown: after EndTxn without an answer no branch is touched and
// not another word is said to the broker. The next session does what is so.
func TestOutcomeUnknown(t *testing.T) {
	for _, fault := range []checkpointtest.Fault{checkpointtest.Failed, checkpointtest.Lost} {
		synctest.Test(t, func(t *testing.T) {
			w, job := started(t, 2, 1)
			s, state := mustOpen(t, job)
			w.Plan(onCall("EndTxn", 1, fault))
			err := s.Checkpoint(t.Context(), state.feed(2, 4))
			if !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
				t.Errorf("got %v", err)
			}
			calls := w.Calls()
			if end := slices.Index(calls, "EndTxn"); end != len(calls)-1 {
				t.Errorf("after EndTxn: %v", calls[end:])
			}
			if n := len(w.Shard(0).PreparedNow()) + len(w.Shard(1).PreparedNow()); n != 2 {
				t.Errorf("%d branches prepared, want both", n)
			}
			isOver(t, w, s, state)
			runToEnd(t, w, job, 2, 8)
		})
	}
}

// plainKafka's EndTxn answers with an error that says nothing of an unknown
// outcome.
type plainKafka struct{ checkpoint.Kafka }

func (k plainKafka) Fence(ctx context.Context, l checkpoint.Lane) (checkpoint.Owner, error) {
	o, err := k.Kafka.Fence(ctx, l)
	return plainOwner{o}, err
}

type plainOwner struct{ checkpoint.Owner }

func (o plainOwner) Commit(ctx context.Context) error {
	if err := o.Owner.Commit(ctx); err != nil {
		return errors.New("plain")
	}
	return nil
}

// TestAnyEndTxnErrorIsUnknown: what kind of error EndTxn gives does not matter.
func TestAnyEndTxnErrorIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 1)
		job.Kafka = plainKafka{w}
		s, state := mustOpen(t, job)
		w.Plan(onCall("EndTxn", 1, checkpointtest.Lost))
		if err := s.Checkpoint(t.Context(), state.feed(2, 4)); !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
			t.Errorf("got %v", err)
		}
		if n := count(w.Calls(), "XA ROLLBACK"); n > 0 {
			t.Error("a branch that is decided was rolled back")
		}
		isOver(t, w, s, state)
		runToEnd(t, w, job, 2, 8)
	})
}

// TestNotAssignedBeforeEndTxn: a look before phase 1 and the last one before the
// decision say that the lane is not ours any more.
func TestNotAssignedBeforeEndTxn(t *testing.T) {
	for looks, offsets := range []int{0, 1} { // by looks that were right, how far it came
		synctest.Test(t, func(t *testing.T) {
			w, job := started(t, 2, 1)
			left := 1000
			state := &ids{}
			s, err := checkpoint.Open(t.Context(), job, lane, func() bool { left--; return left >= 0 }, state)
			if err != nil {
				t.Fatal(err)
			}
			left = looks
			w.Plan(nil)
			if err := s.Checkpoint(t.Context(), state.feed(2, 4)); !errors.Is(err, checkpoint.ErrNotAssigned) {
				t.Errorf("got %v", err)
			}
			calls := w.Calls()
			if slices.Contains(calls, "EndTxn") || count(calls, "TxnOffsetCommit") != offsets || count(calls, "XA PREPARE") != 2*offsets ||
				count(calls, "XA ROLLBACK") != 2*offsets || count(calls, "EndTxn abort") != offsets {
				t.Errorf("after %d looks: calls: %v", looks, calls)
			}
			isOver(t, w, s, state)
			runToEnd(t, w, job, 2, 8)
		})
	}
}

// TestNoTimeLeft: a transaction that might time out before EndTxn arrives is
// not decided, whether the time went in a call or between them.
func TestNoTimeLeft(t *testing.T) {
	for _, in := range []string{"Produce decision", "the last look"} {
		synctest.Test(t, func(t *testing.T) {
			w, job := started(t, 2, 1)
			slow := false
			wait := func() {
				if slow {
					<-time.After(job.Limits.Transaction*2/3 + time.Millisecond)
				}
			}
			w.Before(func(_ context.Context, call string) {
				if call == in {
					wait()
				}
			})
			state := &ids{}
			s, err := checkpoint.Open(t.Context(), job, lane, func() bool {
				if in == "the last look" {
					wait()
				}
				return true
			}, state)
			if err != nil {
				t.Fatal(err)
			}
			slow = true
			w.Plan(nil)
			if err := s.Checkpoint(t.Context(), state.feed(2, 4)); err == nil || errors.Is(err, checkpoint.ErrOutcomeUnknown) {
				t.Errorf("%s: %v", in, err)
			}
			if calls := w.Calls(); slices.Contains(calls, "EndTxn") || count(calls, "XA ROLLBACK") != 2 || count(calls, "EndTxn abort") != 1 {
				t.Errorf("%s: calls %v", in, calls)
			}
			slow = false
			isOver(t, w, s, state)
			runToEnd(t, w, job, 2, 8)
		})
	}
}

// TestShutdownBeforeEndTxn: a cancelled context before EndTxn is C9, and what
// C9 has to do is still done.
func TestShutdownBeforeEndTxn(t *testing.T) {
	for _, at := range []string{"XA PREPARE on s0", "Produce chunks", "Produce decision", "TxnOffsetCommit"} {
		synctest.Test(t, func(t *testing.T) {
			w, job := started(t, 2, 1)
			s, state := mustOpen(t, job)
			ctx, cancel := context.WithCancel(t.Context())
			w.Before(func(_ context.Context, call string) {
				if call == at {
					cancel()
				}
			})
			w.Plan(nil)
			if err := s.Checkpoint(ctx, state.feed(2, 4)); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", at, err)
			}
			if calls := w.Calls(); slices.Contains(calls, "EndTxn") || count(calls, "XA ROLLBACK") != 2 {
				t.Errorf("%s: calls %v", at, calls)
			}
			if began := !strings.HasPrefix(at, "XA "); began != slices.Contains(w.Calls(), "EndTxn abort") {
				t.Errorf("%s: calls %v", at, w.Calls())
			}
			for i := range 2 {
				if left := w.Shard(i).PreparedNow(); len(left) > 0 {
					t.Errorf("%s: left prepared: %v", at, left)
				}
			}
			isOver(t, w, s, state)
		})
	}
}

// TestShutdownDuringEndTxn: the decision is not cancelled. What is decided and
// could not be committed any more stays prepared for the next session.
func TestShutdownDuringEndTxn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 1)
		s, state := mustOpen(t, job)
		ctx, cancel := context.WithCancel(t.Context())
		w.Before(func(_ context.Context, call string) {
			if call == "EndTxn" {
				cancel()
			}
		})
		if err := s.Checkpoint(ctx, state.feed(2, 4)); !errors.Is(err, context.Canceled) || errors.Is(err, checkpoint.ErrOutcomeUnknown) {
			t.Errorf("got %v", err)
		}
		if d := lastDecision(w); d.Seq != 2 || d.Next != 4 {
			t.Errorf("the decision was cancelled: %+v", d)
		}
		isOver(t, w, s, state)
		runToEnd(t, w, job, 2, 8)
	})
}

// TestEndTxnHasABound: an EndTxn that never answers is an unknown outcome after
// its deadline.
func TestEndTxnHasABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 1, 1)
		s, state := mustOpen(t, job)
		w.Before(func(ctx context.Context, call string) {
			if call == "EndTxn" {
				<-ctx.Done()
			}
		})
		began := time.Now()
		if err := s.Checkpoint(t.Context(), state.feed(2, 4)); !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took < job.Limits.End || took > job.Limits.End+time.Second {
			t.Errorf("waited for %s, want %s", took, job.Limits.End)
		}
		s.Close()
	})
}

// TestEpochMustAddUp: an epoch that is empty, goes back, or whose outcomes are
// not its records, is never prepared.
func TestEpochMustAddUp(t *testing.T) {
	for name, change := range map[string]func(e *checkpoint.Epoch){
		"no records":        func(e *checkpoint.Epoch) { e.Counts = checkpoint.Counts{} },
		"a record too many": func(e *checkpoint.Epoch) { e.Counts.In++ },
		"one counted twice": func(e *checkpoint.Epoch) { e.Counts.Duplicates++ },
		"offset stays":      func(e *checkpoint.Epoch) { e.Next = 2 },
		"offset goes back":  func(e *checkpoint.Epoch) { e.Next = 1 },
	} {
		synctest.Test(t, func(t *testing.T) {
			w, job := started(t, 1, 1)
			s, state := mustOpen(t, job)
			w.Plan(nil)
			e := state.feed(2, 4)
			change(e)
			var broken *checkpoint.InvariantError
			if err := s.Checkpoint(t.Context(), e); !errors.As(err, &broken) {
				t.Errorf("%s: %v", name, err)
			}
			if calls := w.Calls(); len(calls) > 0 {
				t.Errorf("%s: %v", name, calls)
			}
			isOver(t, w, s, state)
		})
	}
}
