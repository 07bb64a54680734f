package pipeline_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/aggregate"
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

// TestRecordsAreDecodedAhead, across barriers and in every mixture: what was decoded
// is each record's own.
func TestRecordsAreDecodedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *pipeline.Config) { c.MaxRecords = 7 })
		r.run(func() {
			synctest.Wait()
			var batch []event.Record
			accounts := map[int64]string{} // by offset, of those that are applied
			counts := aggregate.Counts{}
			for i := range int64(100) {
				rec := event.Record{Offset: i, LeaderEpoch: 1}
				// An escape makes the decoder write the text to memory of its own.
				text := strings.Replace(message(fmt.Sprint(i), time.Now()), `"subject":"a"`, fmt.Sprintf(`"subject":"\u0061%d"`, i), 1)
				switch i % 9 {
				case 3:
					rec.Control = true
				case 5:
					text = fmt.Sprintf(`{"n":%d}`, i)
					counts.Rejected++
				case 7:
					text = string(batch[i-1].Value) // the same one again
					counts.Duplicates++
				default:
					accounts[i] = fmt.Sprint("a", i)
					counts.Applied++
				}
				if !rec.Control {
					rec.Value = []byte(text)
					counts.In++
				}
				batch = append(batch, rec)
			}
			r.lanes.Deliver(0, 1, batch, 0, 100)
			sleep(5 * time.Second)
			want(t, "counts", r.counts(), counts)
			for shard := range 2 {
				for _, c := range r.world.AppliedOn(shard) {
					for _, row := range c.(*aggregate.Epoch).Parts[shard].Ledger.All() {
						if string(row.Account()) != accounts[row.Offset] || string(row.ID()) != fmt.Sprint(row.Offset) {
							t.Errorf("offset %d is booked as id %q of account %q", row.Offset, row.ID(), row.Account())
						}
						delete(accounts, row.Offset)
					}
				}
			}
			if len(accounts) > 0 {
				t.Errorf("not booked: %v", accounts)
			}
		})
	})
}
