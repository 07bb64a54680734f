package checkpoint_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
)

// TestRecoveryIsTold: each step with its time, in order, and at the first epoch's end
// all of them together, once. Of a lane that had nothing to do only the session's own
// steps are told.
func TestRecoveryIsTold(t *testing.T) {
	for _, waiting := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w, job := started(t, 1, 3)
			if !waiting {
				w.LogEnd = 6
			}
			job.Shards[0] = slowly{job.Shards[0]}
			e := new(events).listen(job)
			var whole checkpoint.Recovery
			told := job.Listener.Recovered
			job.Listener.Recovered = func(l checkpoint.Lane, d checkpoint.Decision, c checkpoint.Counts, r checkpoint.Recovery) {
				told(l, d, c, r)
				whole = r
			}
			s, state := mustOpen(t, job)
			defer s.Close()
			if r := s.Recovery(); r.Chunks != 3 || r.Took[checkpoint.StepSettle] < time.Second || r.Until(checkpoint.StepRestore) != r.Took[checkpoint.StepSettle] {
				t.Errorf("after the restore: %+v", r)
			}
			<-time.After(2 * time.Second)
			if got := s.FirstRecord(6); got != waiting {
				t.Errorf("the first record had been waiting: %t", got)
			}
			<-time.After(3 * time.Second)
			for n := int64(6); n < 10; n += 2 {
				if err := s.Checkpoint(t.Context(), state.feed(n, n+2)); err != nil {
					t.Fatal(err)
				}
			}
			steps, recovered := checkpoint.Steps[:], []string{"4/2"}
			if !waiting {
				steps, recovered = steps[:checkpoint.StepRestore+1], nil
			}
			if !slices.Equal(e.steps, steps) {
				t.Errorf("steps: %q, want %q", e.steps, steps)
			}
			if !slices.Equal(e.recovered, recovered) {
				t.Errorf("recovered: %q, want %q", e.recovered, recovered)
			}
			for step, want := range map[checkpoint.Step]int{checkpoint.StepFetch: 2, checkpoint.StepFill: 3, checkpoint.StepPrepare: 4, checkpoint.StepDecide: 0, checkpoint.StepCommit: 5} {
				if got := whole.Took[step]; waiting && got != time.Duration(want)*time.Second {
					t.Errorf("%s took %s, want %d s", checkpoint.Steps[step], got, want)
				}
			}
			if settled := whole.Took[checkpoint.StepSettle]; waiting && whole.Until(checkpoint.StepDecide) != settled+9*time.Second {
				t.Errorf("decided after %s", whole.Until(checkpoint.StepDecide))
			}
		})
	}
}

// slowly is a shard that needs a second to list, four to prepare and five to commit.
type slowly struct{ checkpoint.Shard }

func (s slowly) Prepared(ctx context.Context, prefix string) ([]checkpoint.GTRID, error) {
	<-time.After(time.Second)
	return s.Shard.Prepared(ctx, prefix)
}

func (s slowly) Prepare(ctx context.Context, b *checkpoint.Branch) error {
	<-time.After(4 * time.Second)
	return s.Shard.Prepare(ctx, b)
}

func (s slowly) Commit(ctx context.Context, g checkpoint.GTRID) error {
	<-time.After(5 * time.Second)
	return s.Shard.Commit(ctx, g)
}
