package checkpoint_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
)

// TestCountedOnce: the records of an epoch are counted once, by whoever
// finished it, in all the ways in which one can be finished.
func TestCountedOnce(t *testing.T) {
	restart := func(t *testing.T, job *checkpoint.Job) {
		s, _ := mustOpen(t, job)
		s.Close()
	}
	for name, c := range map[string]struct {
		call  string
		nth   int
		fault checkpointtest.Fault
		then  func(t *testing.T, w *world, job *checkpoint.Job)
		want  []string
	}{
		"by phase 2":          {want: []string{"2/2"}},
		"not when undecided":  {call: "EndTxn", nth: 1, fault: checkpointtest.Failed, want: nil},
		"by the recovery":     {call: "EndTxn", nth: 1, fault: checkpointtest.Lost, want: []string{"2/2r"}},
		"answer lost on s0":   {call: "XA COMMIT on s0", nth: 1, fault: checkpointtest.Lost, want: []string{"2/2"}},
		"not done on s0":      {call: "XA COMMIT on s0", nth: 1, fault: checkpointtest.Failed, want: []string{"2/2"}},
		"not done on s1":      {call: "XA COMMIT on s1", nth: 1, fault: checkpointtest.Failed, want: []string{"2/2"}},
		"row not read on s1":  {call: "SELECT epoch on s1", nth: 1, fault: checkpointtest.Failed, want: []string{"2/2"}},
		"again after restart": {then: func(t *testing.T, _ *world, job *checkpoint.Job) { restart(t, job) }, want: []string{"2/2"}},
		"branch came back, committed by the next session": {then: func(t *testing.T, w *world, job *checkpoint.Job) {
			w.Shard(0).ComeBack()
			restart(t, job)
			restart(t, job)
		}, want: []string{"2/2"}},
		"branch came back, committed by the sweep": {then: func(t *testing.T, w *world, job *checkpoint.Job) {
			_, _, stop := sweeping(t, job)
			w.Shard(0).ComeBack()
			turns(job, 2)
			if err := stop(); err != nil {
				t.Error(err)
			}
			restart(t, job)
		}, want: []string{"2/2"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, job := started(t, 2, 1)
				e := new(events).listen(job)
				s, state := mustOpen(t, job)
				if c.call != "" {
					w.Plan(onCall(c.call, c.nth, c.fault))
				}
				_ = s.Checkpoint(t.Context(), state.feed(2, 4)) // what it answers is not the matter here
				s.Close()
				w.Plan(nil)
				if c.then != nil {
					c.then(t, w, job)
				} else {
					restart(t, job)
				}
				if got := e.counted(); !slices.Equal(got, c.want) {
					t.Errorf("counted %v, want %v", got, c.want)
				}
			})
		})
	}
}

// TestCountedByTheOneWhoFinishes: phase 2 failed half way, and another process
// finished the epoch, or the same one did.
func TestCountedByTheOneWhoFinishes(t *testing.T) {
	for _, away := range []string{"s0", "s1"} {
		for _, other := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s away, another process %t", away, other), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, job := started(t, 2, 1)
					mine := new(events).listen(job)
					s, state := mustOpen(t, job)
					gone := true
					w.Before(func(ctx context.Context, call string) {
						if gone && (call == "XA COMMIT on "+away || call == "SELECT epoch on "+away) {
							<-ctx.Done() // it never arrives
						}
					})
					if err := s.Checkpoint(t.Context(), state.feed(2, 4)); err == nil {
						t.Fatal("phase 2 went through without a shard")
					}
					s.Close()
					gone = false
					next, theirs := job, mine
					if other {
						next = newJob(w)
						theirs = new(events).listen(next)
					}
					s, _ = mustOpen(t, next)
					s.Close()
					all := mine.counted()
					if other {
						all = append(all, theirs.counted()...)
					}
					if !slices.Equal(all, []string{"2/2r"}) {
						t.Errorf("counted %v, want it once, by the recovery", all)
					}
				})
			})
		}
	}
}
