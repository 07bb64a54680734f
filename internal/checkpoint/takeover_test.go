package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
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
	for _, call := range []string{"InitProducerID", "Read", "Produce decision", "TxnOffsetCommit"} {
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

// TestTwoOwners freezes owner A before its i-th call; owner B starts and is
// frozen before its j-th call; A thaws and goes on until its session is over;
// B thaws and works to the end. For every i and j, on one and two shards, from
// three states that a dead session may have left. Nothing is lost or doubled,
// and each epoch is counted once.
func TestTwoOwners(t *testing.T) {
	const end, step, past = 6, 2, 400
	for _, left := range []struct {
		name  string
		call  string
		fault checkpointtest.Fault
	}{
		{"nothing", "", checkpointtest.None},
		{"an undecided epoch", "EndTxn", checkpointtest.Failed},
		{"a decided epoch", "EndTxn", checkpointtest.Lost},
	} {
		for _, shards := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s on %d", left.name, shards), func(t *testing.T) {
				runs := 0
				for i, more := 1, true; more; i++ {
					for j, moreB := 1, true; moreB; j += shards {
						runs++
						synctest.Test(t, func(t *testing.T) {
							var w *checkpointtest.World
							if left.call == "" {
								w, _ = started(t, shards, 1)
							} else {
								w, _ = interrupted(t, shards, 1, left.call, left.fault)
							}
							w.Check(notAhead(t, w, shards))
							a := &frozen{who: "A", at: i, thaw: make(chan struct{})}
							b := &frozen{who: "B", at: j, thaw: make(chan struct{})}
							w.Before(func(ctx context.Context, call string) {
								a.before(ctx, call)
								b.before(ctx, call)
							})
							jobA, jobB := newJob(w), newJob(w)
							countA, countB := new(events).listen(jobA), new(events).listen(jobB)
							doneA, doneB := make(chan error, 1), make(chan error, 1)
							ctx := t.Context()
							go func() { doneA <- session(checkpointtest.As(ctx, "A"), jobA, end, step) }()
							synctest.Wait() // A is frozen, or has ended
							go func() { doneB <- owner(checkpointtest.As(ctx, "B"), jobB, end, step) }()
							synctest.Wait() // B is frozen, or waits to try again, or has ended
							close(a.thaw)
							errA := <-doneA
							close(b.thaw)
							errB := <-doneB

							where := fmt.Sprintf("A frozen at call %d, B at call %d: ", i, j)
							var refused *checkpoint.Refusal
							var broken *checkpoint.InvariantError
							if errors.As(errA, &refused) || errors.As(errA, &broken) {
								t.Errorf("%sA ended with %v: a superseded owner has nothing to refuse", where, errA)
							}
							if errB != nil {
								t.Fatalf("%sB: %v", where, errB)
							}
							exact(t, w, shards, end)
							if left.fault != checkpointtest.Lost { // two recoveries of one epoch at once may differ, see claims
								once(t, where, countA, countB)
								if n := len(countA.counted()) + len(countB.counted()); n != 2 {
									t.Errorf("%scounted %v and %v, want both epochs", where, countA.counted(), countB.counted())
								}
							}
							more, moreB = a.n >= i, b.n >= j
						})
						if t.Failed() {
							return
						}
						if runs > past*past {
							t.Fatal("no end in sight")
						}
					}
				}
			})
		}
	}
}

// once fails when an epoch was counted by two owners, or twice by one.
func once(t *testing.T, where string, all ...*events) {
	t.Helper()
	seen := map[string]bool{}
	for _, e := range all {
		for _, c := range e.counted() {
			seq, _, _ := strings.Cut(c, "/")
			if seen[seq] {
				t.Errorf("%sepoch %s is counted twice", where, seq)
			}
			seen[seq] = true
		}
	}
}

// TestLateCalls has the i-th call answered with an error and applied before
// the k-th call after it, for every i and k that make a difference: requests
// that a network held back, a prepare of a session that is over, a decision
// that arrives before the next fence or behind it.
func TestLateCalls(t *testing.T) {
	const end, step = 4, 2
	for _, shards := range []int{1, 2} {
		clean := false
		for i := 1; !clean; i++ {
			for k := 1; k <= 40 && !clean; k++ {
				synctest.Test(t, func(t *testing.T) {
					w := checkpointtest.NewWorld(lane, shards)
					w.LogEnd = end
					w.Check(notAhead(t, w, shards))
					var mu sync.Mutex
					hit, after := "", 0
					w.Plan(func(n int, call string) checkpointtest.Fault {
						if n != i {
							return checkpointtest.None
						}
						mu.Lock()
						defer mu.Unlock()
						hit = call
						return checkpointtest.Late
					})
					w.Before(func(context.Context, string) {
						mu.Lock()
						due := false
						if hit != "" {
							after++
							due = after == k
						}
						mu.Unlock()
						if due {
							w.Land()
						}
					})
					job := newJob(w)
					e := new(events).listen(job)
					if err := owner(t.Context(), job, end, step); err != nil {
						t.Fatalf("%d shards, call %d (%s) late by %d calls: %v", shards, i, hit, k, err)
					}
					exact(t, w, shards, end)
					once(t, fmt.Sprintf("call %d (%s) late by %d: ", i, hit, k), e)
					clean = hit == ""
				})
			}
		}
	}
}
