package pipeline_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/aggregate"
	"billing/internal/pipeline"
)

// TestIdleLaneNeverPassesARecord: when an idle lane would look behind its position,
// a record has come that is not decided: its epoch is being filled, or its batch
// waits for room. The lane's offset stays before it.
func TestIdleLaneNeverPassesARecord(t *testing.T) {
	t.Run("in the epoch", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, func(c *pipeline.Config) { c.Interval, c.MaxInterval = c.IdleMove/2, c.IdleMove })
			r.run(func() {
				r.topic.append(messages(0, 1)...)
				sleep(5 * time.Minute)
				want(t, "the lane is idle behind", r.status().Next, 1)
				r.topic.append(messages(1, 2)...)
				r.topic.ends(9, nil)
				sleep(20 * time.Second) // the idle lane looks each 15
				if s := r.status(); s.Next != 1 || s.Seq != 1 || !s.Pending {
					t.Errorf("while the epoch is filled: %+v", s)
				}
				if skips, _ := r.topic.count(); skips != 0 {
					t.Errorf("looked %d times behind a record that is not decided", skips)
				}
				sleep(20 * time.Second)
				if s := r.status(); s.State != pipeline.Running || s.Next != 2 || s.Seq != 2 {
					t.Errorf("behind the epoch: %+v", s)
				}
				want(t, "counts", r.counts(), aggregate.Counts{In: 2, Applied: 2})
			})
		})
	})
	t.Run("in the batch in hand", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, func(c *pipeline.Config) { c.MaxIDs = 5 })
			r.topic.atOnce = 100
			r.run(func() {
				r.topic.append(messages(0, 100)...)
				r.topic.ends(200, nil) // were it asked, it would not know of what is in hand
				sleep(10 * time.Minute)
				if s := r.status(); s.State != pipeline.Paused || s.Position >= 100 || s.Next != s.Position || s.Seq != 1 {
					t.Errorf("without room: %+v", s)
				}
				if skips, _ := r.topic.count(); skips != 0 {
					t.Errorf("looked %d times behind a record that is in hand", skips)
				}
			})
		})
	})
}

// TestRecordsWhileIdleLaneMoves: records come while the idle lane looks behind its
// last one, or while its offset is decided. They are taken meanwhile, and the
// position stays behind them.
func TestRecordsWhileIdleLaneMoves(t *testing.T) {
	for _, at := range []string{"SkipTail", "EndTxn"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				armed, held := false, make(chan struct{}) // armed in virtual time: nobody calls then
				r.world.Before(func(_ context.Context, call string) {
					if armed && call == at {
						armed = false
						<-held
					}
				})
				r.run(func() {
					r.topic.append(messages(0, 3)...)
					sleep(30 * time.Second)
					release := func() { close(held) }
					if at == "SkipTail" {
						release = r.topic.hold()
					} else {
						armed = true
					}
					r.topic.ends(5, nil)
					skips := 0
					for until := time.Now().Add(2 * time.Minute); skips == 0 && time.Now().Before(until); skips, _ = r.topic.count() {
						sleep(time.Second)
					}
					if skips != 1 || r.status().Next != 3 {
						t.Fatalf("looked %d times, %+v", skips, r.status())
					}
					r.topic.append("control", "control")
					r.topic.append(messages(5, 7)...)
					synctest.Wait()
					want(t, "position before the lane has moved", r.status().Position, 7)
					release()
					synctest.Wait()
					if s := r.status(); s.Position != 7 || s.Next != 5 || s.Seq != 1 {
						t.Errorf("the lane has moved: %+v", s)
					}
					sleep(5 * time.Second)
					if s := r.status(); s.State != pipeline.Running || s.Next != 7 || s.Seq != 2 {
						t.Errorf("behind the records: %+v", s)
					}
					want(t, "counts", r.counts(), aggregate.Counts{In: 5, Applied: 5})
				})
			})
		})
	}
}

// TestIdleLaneCantLook: when it can't be seen what is behind the last record, the
// offset follows what was delivered, and no further: there may be one.
func TestIdleLaneCantLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.run(func() {
			r.topic.append(messages(0, 3)...)
			sleep(5 * time.Second)
			r.topic.ends(9, errors.New("no leader"))
			sleep(5 * time.Minute)
			if s := r.status(); s.State != pipeline.Running || s.Next != 3 || s.Position != 3 {
				t.Errorf("nothing was delivered behind the last record: %+v", s)
			}
			if skips, _ := r.topic.count(); skips < 2 {
				t.Errorf("asked %d times", skips)
			}
			r.topic.append("control")
			sleep(5 * time.Minute)
			if s := r.status(); s.State != pipeline.Running || s.Next != 4 || s.Position != 4 || s.Seq != 1 {
				t.Errorf("a marker was delivered: %+v", s)
			}
			r.topic.ends(9, nil)
			sleep(2 * time.Minute)
			if s := r.status(); s.Next != 9 || s.Seq != 1 {
				t.Errorf("it can be seen again: %+v", s)
			}
		})
	})
}

// TestRevokedWhileLooking: a lane that goes does not wait for what looks behind its
// last record.
func TestRevokedWhileLooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		var began time.Time
		r.run(func() {
			r.topic.append(messages(0, 3)...)
			sleep(5 * time.Second)
			r.topic.hold()
			r.topic.ends(9, nil)
			sleep(5 * time.Minute)
			if skips, _ := r.topic.count(); skips != 1 {
				t.Errorf("looks %d times at once", skips)
			}
			began = time.Now()
		})
		if took := time.Since(began); took > time.Minute {
			t.Errorf("left after %s", took)
		}
		want(t, "decided", r.world.Decisions[len(r.world.Decisions)-1].Next, 3)
	})
}
