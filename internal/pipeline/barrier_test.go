package pipeline_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/event"
	"billing/internal/pipeline"
)

// TestStreamGoesOnAfterABarrier: with the rest of the batch in hand, whether or not
// anything is delivered; and each barrier's pause is told once.
func TestStreamGoesOnAfterABarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pauses := 0
		r := newRig(t, func(c *pipeline.Config) {
			c.MaxRecords = 10
			c.Paused = func(d time.Duration) {
				pauses++
				if d != 0 {
					t.Errorf("a pause of %s, in which nothing was waited for", d)
				}
			}
		})
		gate := make(chan struct{})
		r.world.Before(func(_ context.Context, call string) {
			if call == "XA PREPARE on s1" {
				<-gate
			}
		})
		r.run(func() {
			synctest.Wait()
			var batch []event.Record
			for i, m := range messages(0, 35) {
				batch = append(batch, event.Record{Offset: int64(i), LeaderEpoch: 1, Value: []byte(m)})
			}
			r.lanes.Deliver(0, 1, batch, 0, 35)
			synctest.Wait()
			want(t, "taken: one epoch in flight, one filled", r.status().Position, 20)
			want(t, "barriers", pauses, 1)
			gate <- struct{}{}
			sleep(time.Millisecond)
			want(t, "taken when the first one is committed", r.status().Position, 30)
			close(gate)
			sleep(2 * time.Second)
			want(t, "epochs", r.epochs(0), []int64{10, 10, 10, 5})
			want(t, "barriers", pauses, 4)
		})
	})
}
