package pipeline_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/pipeline"
)

// large lets epochs be as large as they come.
func large(c *pipeline.Config) { c.MaxRecords, c.MaxRows = 1<<30, 1<<30 }

// trickle has so many records come every 100 ms.
func (r *rig) trickle(records int, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		n := len(r.topic.records)
		r.topic.append(messages(n, n+records)...)
		sleep(100 * time.Millisecond)
	}
}

// TestEpochOfALaneThatKeepsUp ends after the interval, however much is coming.
func TestEpochOfALaneThatKeepsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, large)
		r.run(func() {
			r.trickle(50, 5*time.Second)
			sleep(2 * time.Second)
			want(t, "epochs", r.epochs(0), []int64{500, 500, 500, 500, 500})
		})
	})
}

// TestEpochOfALaneThatIsBehind stays open for MaxInterval, and no longer than
// records come.
func TestEpochOfALaneThatIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *pipeline.Config) { large(c); c.Ledger = false })
		r.run(func() {
			synctest.Wait()
			r.lanes.Reach(map[int32]int64{0: 1 << 40})
			r.trickle(50, 10*time.Second)
			want(t, "epochs", r.epochs(0), []int64{2500, 2500})
			// Behind an open Kafka transaction nothing comes: what was read is not held up.
			r.trickle(50, time.Second)
			sleep(600 * time.Millisecond)
			want(t, "epochs when nothing comes any more", r.epochs(0), []int64{2500, 2500, 500})
		})
	})
}

// rows are those of each committed epoch.
func (r *rig) rows() (n []int) {
	for _, c := range r.world.AppliedOn(0) {
		n = append(n, c.(*aggregate.Epoch).Rows())
	}
	return n
}

// TestEpochsGrowByRows: a lane begins with few rows and doubles them, up to the
// bound; and where a shard needs longer than MaxInterval it gets as many as it takes
// in that time.
func TestEpochsGrowByRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *pipeline.Config) { large(c); c.MaxRows = 10_000 })
		r.run(func() {
			r.topic.append(messages(0, 40_000)...)
			sleep(10 * time.Second)
			want(t, "rows", r.rows(), []int{2000, 4000, 8000, 10_000, 10_000, 6012})
		})
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *pipeline.Config) {
			large(c)
			c.Job.Shards[0] = perRow{c.Job.Shards[0], 2 * time.Millisecond}
		})
		r.run(func() {
			r.topic.append(messages(0, 16_000)...)
			sleep(2 * time.Minute)
			// The second one was full while the first was at work, and took 4 s: 2500 are
			// what 5 s are for.
			want(t, "rows", r.rows(), []int{2000, 2000, 2500, 2500, 2500, 2500, 2014})
		})
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *pipeline.Config) {
			large(c)
			c.Job.Shards[0] = perRow{c.Job.Shards[0], 20 * time.Millisecond}
		})
		r.run(func() {
			r.topic.append(messages(0, 5000)...)
			sleep(5 * time.Minute)
			want(t, "rows of a shard that is very slow", r.rows(), []int{2000, 2000, 500, 500, 10})
		})
	})
}

// TestEpochsStayFarBelowTheBoundOfPhaseOne, whatever max_interval is: an epoch that
// takes too long ends its session.
func TestEpochsStayFarBelowTheBoundOfPhaseOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *pipeline.Config) {
			large(c)
			c.MaxInterval, c.Job.Limits.Prepare = time.Minute, time.Minute
			c.Job.Shards[0] = perRow{c.Job.Shards[0], 2 * time.Millisecond}
		})
		r.run(func() {
			r.topic.append(messages(0, 60_000)...)
			sleep(10 * time.Minute)
			want(t, "records", r.counts(), aggregate.Counts{In: 60_000, Applied: 60_000})
			for _, n := range r.rows() {
				if n > 7500+1 { // 15 s
					t.Errorf("an epoch of %d rows", n)
				}
			}
		})
	})
}

// TestFirstEpochOfALaneThatIsBack: it waits for nothing, neither for the interval nor
// until it is large; but where the session before has failed here, it is as any other.
func TestFirstEpochOfALaneThatIsBack(t *testing.T) {
	for _, ledger := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var fails atomic.Bool
			r := newRig(t, func(c *pipeline.Config) {
				large(c)
				c.Ledger = ledger
				c.Job.Shards[0] = failing{c.Job.Shards[0], &fails}
			})
			r.topic.atOnce = 3000
			r.topic.append(messages(0, 10_000)...)
			r.run(func() {
				if ledger {
					want(t, "rows at once", r.rows()[:2], []int{500, 1000})
				} else {
					want(t, "epochs at once", r.epochs(0), []int64{3000})
				}
				sleep(20 * time.Second)
				want(t, "records", r.counts(), aggregate.Counts{In: 10_000, Applied: 10_000})

				fails.Store(true)
				r.topic.append(messages(10_000, 20_000)...)
				sleep(10 * time.Second)
				fails.Store(false)
				before := len(r.rows())
				sleep(20 * time.Second)
				if first := r.rows()[before]; ledger && first != 2000 {
					t.Errorf("behind a failure: an epoch of %d rows", first)
				}
				if first := r.epochs(0)[before]; !ledger && first != 10_000 {
					t.Errorf("behind a failure: an epoch of %d records", first)
				}
			})
		})
	}
}

// failing is a shard that takes nothing while it fails.
type failing struct {
	checkpoint.Shard
	fails *atomic.Bool
}

func (s failing) Prepare(ctx context.Context, b *checkpoint.Branch) error {
	if s.fails.Load() {
		return checkpoint.ErrRolledBack
	}
	return s.Shard.Prepare(ctx, b)
}

// perRow is a shard that needs so long for each row.
type perRow struct {
	checkpoint.Shard
	each time.Duration
}

func (s perRow) Prepare(ctx context.Context, b *checkpoint.Branch) error {
	select {
	case <-time.After(time.Duration(b.Contents.(*aggregate.Epoch).Rows()) * s.each):
		return s.Shard.Prepare(ctx, b)
	case <-ctx.Done():
		return checkpoint.ErrRolledBack
	}
}

// TestEpochsEndByMemory: messages that share a row of the totals are many in one
// epoch; what bounds it are the ids that it adds.
func TestEpochsEndByMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *pipeline.Config) { large(c); c.Ledger, c.MaxBytes = false, 1<<20 })
		r.run(func() {
			r.topic.append(messages(0, 40_000)...)
			sleep(10 * time.Second)
			got := r.epochs(0)
			if len(got) != 3 || got[0] < 15_000 || got[0] > 15_500 || got[1] != got[0] {
				t.Errorf("epochs of %v records", got)
			}
			want(t, "rows", r.rows(), []int{2, 2, 2})
		})
	})
}
