package checkpoint_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
)

// foresee is what the lane's next session would meet; nothing but reads is done
// for it.
func foresee(t *testing.T, w *world, job *checkpoint.Job) error {
	t.Helper()
	before := len(w.Calls())
	_, _, err := job.ForeseeLane(t.Context(), lane, w.Look)
	for _, call := range w.Calls()[before:] {
		if count([]string{call}, "Read ")+count([]string{call}, "XA RECOVER")+count([]string{call}, "SELECT") == 0 {
			t.Errorf("a look calls %s", call)
		}
	}
	return err
}

// sameRefusal: what was foreseen is what the session met, word for word.
func sameRefusal(t *testing.T, foreseen, met error) {
	t.Helper()
	f, m := checkpoint.AsRefusal(foreseen), checkpoint.AsRefusal(met)
	if f == nil || m == nil || f.Error() != m.Error() || f.Scope != m.Scope {
		t.Errorf("foreseen %v\n     met %v", foreseen, met)
	}
}

// TestForeseeNothing: what a session would end or wait for is no refusal.
func TestForeseeNothing(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T) (*world, *checkpoint.Job){
		"an undecided epoch": func(t *testing.T) (*world, *checkpoint.Job) {
			w, job := started(t, 2, 2)
			w.Shard(1).Put(branch(lastDecision(w), 1, 3))
			return w, job
		},
		"a decided epoch": func(t *testing.T) (*world, *checkpoint.Job) {
			return interrupted(t, 2, 2, "EndTxn", checkpointtest.Lost)
		},
		"some committed": func(t *testing.T) (*world, *checkpoint.Job) {
			w, job := interrupted(t, 2, 2, "EndTxn", checkpointtest.Lost)
			if err := w.Shard(1).Commit(t.Context(), lastDecision(w).GTRID); err != nil {
				t.Fatal(err)
			}
			return w, job
		},
		"a commit that is executing": func(t *testing.T) (*world, *checkpoint.Job) {
			w, job := interrupted(t, 2, 2, "EndTxn", checkpointtest.Lost)
			w.Shard(1).Execute(lastDecision(w).GTRID)
			time.AfterFunc(job.Limits.LookAgain/2, w.Shard(1).Finish)
			return w, job
		},
		"a commit that ends between the looks at two rows": func(t *testing.T) (*world, *checkpoint.Job) {
			w, job := interrupted(t, 1, 2, "EndTxn", checkpointtest.Lost)
			w.Shard(0).Execute(lastDecision(w).GTRID)
			finish := sync.OnceFunc(w.Shard(0).Finish)
			w.Before(func(_ context.Context, call string) {
				if call == "SELECT epoch on s0" {
					finish()
				}
			})
			return w, job
		},
		"a first start": func(*testing.T) (*world, *checkpoint.Job) {
			w := checkpointtest.NewWorld(lane, 2)
			return w, newJob(w)
		},
		"a foreign branch": func(t *testing.T) (*world, *checkpoint.Job) {
			w, job := started(t, 1, 1)
			b := branch(lastDecision(w), 9, 9)
			b.GTRID = "foreign"
			w.Shard(0).Put(b)
			return w, job
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, job := prepare(t)
				if err := foresee(t, w, job); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestForeseeShardAway: a shard that does not answer is no refusal, and hides
// none of the other's.
func TestForeseeShardAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 2, 3)
		w.Plan(func(_ int, call string) checkpointtest.Fault {
			if call == "XA RECOVER on s0" {
				return checkpointtest.Failed
			}
			return checkpointtest.None
		})
		if err := foresee(t, w, job); err == nil || checkpoint.AsRefusal(err) != nil {
			t.Errorf("one shard away: %v", err)
		}
		w.Shard(1).LoseEpoch()
		if r := checkpoint.AsRefusal(foresee(t, w, job)); r == nil || r.Reason != checkpoint.ReasonLostEpoch {
			t.Errorf("one shard away, the other has lost an epoch: %v", r)
		}
	})
}

// TestForeseeLaterOwner: a branch of a later incarnation says that the decision
// is not the last one, and nothing about the lane.
func TestForeseeLaterOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 1, 3)
		w.Shard(0).Put(branch(lastDecision(w), 9, 4))
		if err := foresee(t, w, job); !errors.Is(err, checkpoint.ErrSuperseded) || checkpoint.AsRefusal(err) != nil {
			t.Errorf("got %v", err)
		}
	})
}

// TestForeseeIsBounded: what can't be made sure of ends with the caller's
// context, and not as a refusal.
func TestForeseeIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 1, 3)
		w.Shard(0).LoseEpoch()
		ctx, cancel := context.WithTimeout(t.Context(), job.Limits.LookAgain/2)
		defer cancel()
		_, _, err := job.ForeseeLane(ctx, lane, w.Look)
		if !errors.Is(err, context.DeadlineExceeded) || checkpoint.AsRefusal(err) != nil {
			t.Errorf("got %v", err)
		}
	})
}

// TestForeseeBesideAnOwner freezes an owner before its i-th call and a looker
// before its j-th; the owner goes on to its end, then the looker. For every i
// and j nothing of what the looker has seen is taken for a refusal.
func TestForeseeBesideAnOwner(t *testing.T) {
	const end, step = 8, 2
	looks, clean := 0, 0
	for i, ownerMore := 1, true; ownerMore; i++ {
		for j, lookerMore := 1, true; lookerMore; j++ {
			synctest.Test(t, func(t *testing.T) {
				w, job := started(t, 2, 1)
				a := &frozen{who: "owner", at: i, thaw: make(chan struct{})}
				b := &frozen{who: "looker", at: j, thaw: make(chan struct{})}
				w.Before(func(ctx context.Context, call string) {
					a.before(ctx, call)
					b.before(ctx, call)
				})
				worked, looked := make(chan error, 1), make(chan error, 1)
				go func() { worked <- session(checkpointtest.As(t.Context(), "owner"), newJob(w), end, step) }()
				synctest.Wait()
				go func() {
					_, _, err := job.ForeseeLane(checkpointtest.As(t.Context(), "looker"), lane, w.Look)
					looked <- err
				}()
				synctest.Wait()
				close(a.thaw)
				if err := <-worked; err != nil {
					t.Fatal(err)
				}
				close(b.thaw)
				err := <-looked
				if checkpoint.AsRefusal(err) != nil {
					t.Fatalf("owner frozen before call %d, looker before call %d: %v", i, j, err)
				}
				looks++
				if err == nil {
					clean++
				}
				ownerMore, lookerMore = a.n >= i, b.n >= j
			})
		}
	}
	if clean < looks/2 {
		t.Errorf("of %d looks only %d had an answer", looks, clean)
	}
	t.Logf("%d looks, %d with an answer", looks, clean)
}

// TestForeseeTornReads: what is read of Kafka in pieces while an owner moves may
// not fit together. It is read again.
func TestForeseeTornReads(t *testing.T) {
	for name, tear := range map[string]func(r *checkpoint.Read, then checkpoint.Read){
		"the copies":       func(r *checkpoint.Read, then checkpoint.Read) { r.Offset, r.Metadata = then.Offset, then.Metadata },
		"the end before D": func(r *checkpoint.Read, _ checkpoint.Read) { r.LogEnd = 3 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, job := started(t, 1, 1)
				then, err := w.Look(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				runToEnd(t, w, job, 1, 6)
				n := 0
				r, _, err := job.ForeseeLane(t.Context(), lane, func(ctx context.Context) (checkpoint.Read, error) {
					r, err := w.Look(ctx)
					if n++; n == 1 {
						tear(&r, then)
					}
					return r, err
				})
				if err != nil || r.Offset != 6 || n < 2 {
					t.Errorf("%d reads: offset %d, %v", n, r.Offset, err)
				}
			})
		})
	}
}
