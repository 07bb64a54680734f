package checkpoint_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
)

// TestTakeoverFirst: before the takeover is known committed, no branch is
// touched; after it, every shard is settled, and only then the state is read.
func TestTakeoverFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := interrupted(t, 2, 1, "EndTxn", checkpointtest.Failed)
		w.Plan(nil)
		s, _ := mustOpen(t, job)
		defer s.Close()
		calls := w.Calls()
		decided, state := -1, -1
		for i, c := range calls {
			switch {
			case c == "EndTxn":
				decided = i
			case c == "ReadState":
				state = i
			case strings.Contains(c, " on s") && decided < 0:
				t.Errorf("%s before the takeover", c)
			case strings.Contains(c, " on s") && state >= 0:
				t.Errorf("%s after the restore began", c)
			}
		}
		if decided < 0 || state < decided || count(calls, "XA ROLLBACK") != 2 {
			t.Errorf("calls: %v", calls)
		}
		for i := range 2 {
			if left := w.Shard(i).PreparedNow(); len(left) > 0 {
				t.Errorf("left prepared: %v", left)
			}
		}
	})
}

// TestTakeoverOutcomeUnknown: a takeover whose answer is missing is never taken
// as done, made or not. The next session reads what is so and adds one.
func TestTakeoverOutcomeUnknown(t *testing.T) {
	for _, c := range []struct {
		fault checkpointtest.Fault
		next  int64
	}{
		{checkpointtest.Failed, 3}, // the same number again: nothing on MySQL has carried it
		{checkpointtest.Lost, 4},
	} {
		t.Run(c.fault.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, job := interrupted(t, 2, 1, "EndTxn", checkpointtest.Lost)
				w.Plan(onCall("EndTxn", 1, c.fault))
				err := tryOpen(t, job)
				if !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
					t.Fatalf("got %v", err)
				}
				if calls := w.Calls(); count(calls, "XA ") > 0 || count(calls, "EndTxn abort") > 0 {
					t.Errorf("after an unknown outcome: %v", calls)
				}
				w.Plan(nil)
				s, _ := mustOpen(t, job)
				if got := s.Incarnation(); got != c.next {
					t.Errorf("incarnation %d, want %d", got, c.next)
				}
				s.Close()
				runToEnd(t, w, job, 2, 8)
			})
		})
	}
}

// TestTakeoverFails: an error before EndTxn aborts, and nothing is decided.
func TestTakeoverFails(t *testing.T) {
	for _, call := range []string{"InitProducerID", "Read input", "Read offset", "Read decision", "Read state", "Produce decision", "TxnOffsetCommit"} {
		for _, fault := range []checkpointtest.Fault{checkpointtest.Failed, checkpointtest.Lost} {
			synctest.Test(t, func(t *testing.T) {
				w, job := started(t, 1, 1)
				decided := len(w.Decisions)
				w.Plan(onCall(call, 1, fault))
				err := tryOpen(t, job)
				if !errors.Is(err, checkpointtest.ErrInjected) || errors.Is(err, checkpoint.ErrOutcomeUnknown) {
					t.Errorf("%s %s: %v", call, fault, err)
				}
				began := strings.HasPrefix(call, "Produce") || strings.HasPrefix(call, "Txn")
				if aborts := count(w.Calls(), "EndTxn abort"); began != (aborts == 1) || len(changes(w.Calls())) > 0 {
					t.Errorf("%s %s: calls %v", call, fault, w.Calls())
				}
				if len(w.Decisions) != decided {
					t.Errorf("%s %s: decided", call, fault)
				}
			})
		}
	}
}

// TestIncarnationGrows: each session takes the next number, whether the one
// before ended well or not, and the decision stays what it was.
func TestIncarnationGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 3)
		before := lastDecision(w)
		e := new(events).listen(job)
		for n := int64(2); n < 6; n++ {
			s, _ := mustOpen(t, job)
			if s.Incarnation() != n || s.Decision().Incarnation != n {
				t.Errorf("incarnation %d, want %d", s.Incarnation(), n)
			}
			s.Close()
		}
		d := lastDecision(w)
		if len(e.takenOver) != 4 || e.takenOver[0] != before {
			t.Errorf("told of %+v", e.takenOver)
		}
		d.Incarnation = before.Incarnation
		if d != before {
			t.Errorf("a takeover changed the decision: %+v, was %+v", d, before)
		}
	})
}

// frozen stops a process before its i-th call, until thaw is closed.
type frozen struct {
	who  string
	at   int
	n    int
	mu   sync.Mutex
	thaw chan struct{}
}

func (f *frozen) before(ctx context.Context, _ string) {
	if checkpointtest.Who(ctx) != f.who {
		return
	}
	f.mu.Lock()
	f.n++
	stop := f.n >= f.at
	f.mu.Unlock()
	if stop {
		<-f.thaw
	}
}
