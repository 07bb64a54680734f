package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
	"billing/internal/event"
	"billing/internal/pipeline"
)

// TestBarrier: an epoch ends after the interval, counted from its first record,
// or when it is full; no records, no epoch.
func TestBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.run(func() {
			sleep(10 * time.Second)
			want(t, "epochs without a record", r.epochs(0), []int64(nil))
			r.topic.append(messages(0, 3)...)
			sleep(900 * time.Millisecond)
			want(t, "epochs before the interval is over", r.epochs(0), []int64(nil))
			sleep(200 * time.Millisecond)
			want(t, "epochs after it", r.epochs(0), []int64{3})
			r.topic.append(messages(3, 253)...)
			sleep(time.Millisecond)
			want(t, "full epochs", r.epochs(1), []int64{3, 100, 100})
			sleep(time.Second)
			want(t, "the rest", r.epochs(1), []int64{3, 100, 100, 50})
			s := r.status()
			if s.Next != 253 || s.Seq != 4 || s.Pending || s.Behind() != 0 || s.State != pipeline.Running || s.IDs != 253 {
				t.Errorf("status: %+v", s)
			}
		})
	})
}

// TestOneInFlightOneFilling: while an epoch waits for a shard the next one is
// filled, and when that is full too the partition is paused; nothing is lost.
func TestOneInFlightOneFilling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *pipeline.Config) { c.MaxRecords = 10 })
		gate := make(chan struct{})
		r.world.Before(func(_ context.Context, call string) {
			if call == "XA PREPARE on s1" {
				<-gate
			}
		})
		r.run(func() {
			big := messages(0, 400)
			for i := range big {
				big[i] = big[i][:len(big[i])-1] + `,"pad":"` + string(make([]byte, 0)) + fmt.Sprintf("%0100000d", i) + `"}`
			}
			r.topic.append(big...)
			sleep(time.Second)
			s := r.status()
			want(t, "taken: one epoch in flight, one filled", s.Position, 20)
			want(t, "epochs", r.epochs(0), []int64(nil))
			if _, pauses := r.topic.count(); pauses != 1 {
				t.Errorf("the partition was paused %d times", pauses)
			}
			if !s.Pending || !s.InDoubt {
				t.Errorf("status: %+v", s)
			}
			close(gate)
			sleep(10 * time.Second)
			want(t, "records", r.counts(), aggregate.Counts{In: 400, Applied: 400})
		})
	})
}

// TestMaxIDs: beyond the bound the lane pauses and says so; what was restored
// counts; and it goes on when the rule forgets ids.
func TestMaxIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		<-time.After(48 * time.Hour) // away from the year 2000, before which no event is
		r := newRig(t, func(c *pipeline.Config) { c.MaxIDs = 50 })
		r.run(func() {
			now := time.Now()
			for i := range 49 {
				r.topic.append(message(fmt.Sprint(i), now.Add(-10*time.Hour)))
			}
			sleep(2 * time.Second)
			want(t, "below the bound", r.counts(), aggregate.Counts{In: 49, Applied: 49})
			// The last one moves the horizon: the 49 are forgotten by the rule, and
			// their memory is given back when the epoch is frozen.
			r.topic.append(message("new", now), message("next", now))
			sleep(5 * time.Second)
			s := r.status()
			if s.State != pipeline.Running || s.Next != 51 {
				t.Errorf("the lane did not go on after ids were forgotten: %+v", s)
			}
		})
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *pipeline.Config) { c.MaxIDs = 50 })
		r.run(func() {
			r.topic.append(messages(0, 60)...)
			sleep(5 * time.Second)
			s := r.status()
			if s.State != pipeline.Paused || s.Reason != pipeline.PausedByMaxIDs || s.Next != 50 || s.Message == "" || !strings.HasSuffix(s.Message, ". Next step: "+s.NextStep) {
				t.Errorf("status: %+v", s)
			}
		})
		// The next owner in this process has the restored ids from the start.
		r.run(func() {
			sleep(5 * time.Second)
			if s := r.status(); s.State != pipeline.Paused || s.IDs != 50 {
				t.Errorf("status after a restart: %+v", s)
			}
		})
	})
}

// TestIdleLaneFollowsTail: the offset of a lane without records follows a tail
// that has none, once a minute, and markers that come late break nothing. Nobody
// is asked while the partition ends where the lane is.
func TestIdleLaneFollowsTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.run(func() {
			r.topic.append(messages(0, 5)...)
			sleep(2 * time.Second)
			r.lanes.Reach(map[int32]int64{0: 5})
			sleep(10 * time.Minute)
			if skips, _ := r.topic.count(); skips != 0 {
				t.Errorf("looked %d times behind the end", skips)
			}
			r.topic.append(messages(5, 6)...)
			sleep(2 * time.Second)
			r.topic.mu.Lock()
			r.topic.tail = 9
			r.topic.mu.Unlock()
			r.lanes.Reach(map[int32]int64{0: 9})
			sleep(50 * time.Second)
			if skips, _ := r.topic.count(); skips != 0 {
				t.Errorf("looked %d times before the lane was idle for a minute", skips)
			}
			sleep(30 * time.Second)
			s := r.status()
			if s.Next != 9 || s.Seq != 2 {
				t.Errorf("status: %+v", s)
			}
			// Control records at offsets that the lane has passed already.
			r.topic.append("control")
			synctest.Wait()
			want(t, "position after a late marker", r.status().Position, 9)
			r.topic.append("control", "control")
			r.topic.append(messages(9, 11)...)
			sleep(3 * time.Second)
			s = r.status()
			if s.State != pipeline.Running || s.Next != 11 || s.Seq != 3 {
				t.Errorf("after late markers: %+v", s)
			}
			want(t, "the next epoch begins where the last one ended", r.world.Shard(0).From(3), 6)
		})
	})
}

// TestIdleLaneFollowsMarkers: markers that were delivered move the lane's position
// and make no epoch; its offset follows all the same.
func TestIdleLaneFollowsMarkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.run(func() {
			r.topic.append(messages(0, 3)...)
			sleep(10 * time.Second)
			r.topic.append("control")
			sleep(10 * time.Minute)
			if s := r.status(); s.Position != 4 || s.Next != 4 || s.Seq != 1 {
				t.Errorf("status: %+v", s)
			}
			if skips, _ := r.topic.count(); skips != 1 {
				t.Errorf("looked %d times behind the marker", skips)
			}
		})
	})
}

// TestTakenBatchesMayGo: what a batch's texts lie in is free once the batch is taken,
// though the lane gets no other one.
func TestTakenBatchesMayGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.run(func() {
			synctest.Wait() // for the session
			freed := func() weak.Pointer[byte] {
				var records []event.Record
				buffer := make([]byte, 0, 1<<16)
				for i, m := range append(messages(0, 20), "{}") {
					from := len(buffer)
					buffer = append(buffer, m...)
					records = append(records, event.Record{Offset: int64(i), LeaderEpoch: 1, Value: buffer[from:]})
				}
				r.lanes.Deliver(0, r.topic.session, records, len(buffer), 21)
				return weak.Make(&buffer[:1][0])
			}()
			synctest.Wait()
			if s := r.status(); s.Position != 21 || !s.Pending {
				t.Fatalf("status: %+v", s)
			}
			runtime.GC()
			if freed.Value() != nil {
				t.Error("the batch is held")
			}
			sleep(2 * time.Second)
			want(t, "counts", r.counts(), aggregate.Counts{In: 21, Applied: 20, Rejected: 1})
		})
	})
}

// TestRevokedFinishesInFlight: the epoch in flight is finished, what was being
// filled is dropped and read again by the next owner.
func TestRevokedFinishesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.world.Before(func(ctx context.Context, call string) {
			if call == "XA PREPARE on s1" {
				select {
				case <-time.After(3 * time.Second): // a slow shard
				case <-ctx.Done():
				}
			}
		})
		r.run(func() {
			r.topic.append(messages(0, 110)...)
			synctest.Wait()
		})
		want(t, "epochs after the revocation", r.epochs(0), []int64{100})
		r.run(func() { sleep(5 * time.Second) })
		want(t, "records", r.counts(), aggregate.Counts{In: 110, Applied: 110})
	})
}

// TestRevokedDropsWhatHangs: an epoch that can't be finished in the time that
// the group gives is rolled back, and the lane has let go.
func TestRevokedDropsWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		var once sync.Once
		r.world.Before(func(ctx context.Context, call string) {
			if call == "XA PREPARE on s1" {
				once.Do(func() { <-ctx.Done() })
			}
		})
		r.run(func() {
			r.topic.append(messages(0, 5)...)
			sleep(2 * time.Second)
		})
		want(t, "epochs", r.epochs(0), []int64(nil))
		for i := range 2 {
			want(t, "prepared", r.world.Shard(i).PreparedNow(), []checkpoint.GTRID(nil))
		}
		r.run(func() { sleep(5 * time.Second) })
		want(t, "records", r.counts(), aggregate.Counts{In: 5, Applied: 5})
	})
}

// TestRowsThatOnlyTheLedgerKnew come out as duplicates in the next session, on
// whichever shards they were met.
func TestRowsThatOnlyTheLedgerKnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		row := func(b *checkpoint.Branch, shard int) []checkpoint.ExistingRow {
			for _, p := range b.Contents.(*aggregate.Epoch).Parts {
				for _, l := range p.Ledger.All() {
					if l.Offset == int64(10+shard) {
						return []checkpoint.ExistingRow{{Key: l.Key, Content: l.Content, Offset: 2, Time: l.Time}}
					}
				}
			}
			return nil
		}
		for i := range 2 {
			r.world.Shard(i).Exists = func(b *checkpoint.Branch) []checkpoint.ExistingRow { return row(b, i) }
		}
		r.run(func() {
			r.topic.append(messages(0, 20)...)
			sleep(10 * time.Second)
		})
		want(t, "records", r.counts(), aggregate.Counts{In: 20, Applied: 18, Duplicates: 2})
		want(t, "nets", r.nets.all(), []string{"ledger", "ledger"})
		// What both shards said was learnt at once.
		want(t, "sessions", r.world.Decisions[len(r.world.Decisions)-1].Incarnation, 2)
	})
}

// TestForgottenStaysForgotten: a later session with a larger lateness does not accept again what an earlier one has
// forgotten: it could not tell a duplicate.
func TestForgottenStaysForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		<-time.After(48 * time.Hour) // away from the year 2000, before which no event is
		r := newRig(t, nil)          // with a lateness of one hour
		old := message("old", time.Now().Add(-10*time.Hour))
		r.run(func() {
			r.topic.append(old, message("new", time.Now()))
			sleep(2 * time.Second)
		})
		r.world.LogEnd = 1 << 40
		again := newRig(t, func(c *pipeline.Config) {
			c.Lateness = 24 * time.Hour
			c.Job.Kafka, c.Job.Shards = ended{r.world, r.topic}, r.world.Shards()
		})
		again.world, again.topic.records = r.world, r.topic.records
		again.run(func() {
			again.topic.append(old)
			sleep(2 * time.Second)
		})
		want(t, "records", again.counts(), aggregate.Counts{In: 3, Applied: 2, Rejected: 1})
	})
}

// TestStreamStartsBehindTheInbox: what is delivered in the moment in which the stream starts is not dropped.
func TestStreamStartsBehindTheInbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.topic.append(messages(0, 3)...) // the topic delivers them before Start returns
		r.run(func() { sleep(2 * time.Second) })
		want(t, "records", r.counts(), aggregate.Counts{In: 3, Applied: 3})
	})
}

// TestLaneThatGetsNowhere: sessions that fail again and again are counted until
// the lane moves, also when each of them recovers well.
func TestLaneThatGetsNowhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		var broken atomic.Bool
		broken.Store(true)
		r.world.Plan(func(_ int, call string) checkpointtest.Fault {
			if broken.Load() && call == "XA PREPARE on s1" {
				return checkpointtest.Failed
			}
			return checkpointtest.None
		})
		r.run(func() {
			began := time.Now()
			r.topic.append(messages(0, 5)...)
			sleep(time.Minute)
			s := r.status()
			if s.Failures < 5 || s.LastError == "" || s.Moved.After(began) {
				t.Errorf("status: %+v", s)
			}
			broken.Store(false)
			sleep(10 * time.Second)
			if s := r.status(); s.Failures != 0 || s.LastError != "" || s.Next != 5 || s.State != pipeline.Running {
				t.Errorf("after the repair: %+v", s)
			}
			broken.Store(true)
			r.topic.append(messages(5, 6)...)
			sleep(1300 * time.Millisecond)
			if s := r.status(); s.Failures == 0 || s.Failures > 3 {
				t.Errorf("the next trouble is counted from its own beginning: %+v", s)
			}
			broken.Store(false)
		})
		// A lane that failed, recovered and has nothing to do is well again.
		r.run(func() {
			sleep(time.Second)
			r.lanes.Failed(0, 0, nil) // of no session: dropped
			r.topic.mu.Lock()
			r.topic.unread = errors.New("a broker's bad day")
			r.topic.mu.Unlock()
			r.topic.pump()
			synctest.Wait()
			r.topic.mu.Lock()
			r.topic.unread = nil
			r.topic.mu.Unlock()
			sleep(5 * time.Second)
			if s := r.status(); s.State != pipeline.Running || s.Failing() != 1 {
				t.Errorf("just recovered: %+v", s)
			}
			sleep(time.Minute)
			if s := r.status(); s.Failing() != 0 {
				t.Errorf("idle for a minute: %+v", s)
			}
		})
	})
}

// TestStoppedLaneLooksAgain: a refusal stops the lane, with reason and next
// step, and a repair needs no restart.
func TestStoppedLaneLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.run(func() {
			r.topic.append(messages(0, 5)...)
			sleep(2 * time.Second)
		})
		was := r.world.Metadata()
		r.world.SetOffset(0, "")
		r.run(func() {
			sleep(30 * time.Second)
			s := r.status()
			if s.State != pipeline.Stopped || s.Reason != checkpoint.ReasonOffsetReset || s.NextStep == "" || !strings.HasSuffix(s.Message, ". Next step: "+s.NextStep) {
				t.Errorf("status: %+v", s)
			}
			r.world.With(func() { r.world.SetOffset(5, was) })
			sleep(time.Minute)
			if s := r.status(); s.State != pipeline.Running || s.Reason != "" {
				t.Errorf("after the repair: %+v", s)
			}
		})
	})
}

// TestRefusalEndsTheProcess: it reaches whoever runs the pipeline, once.
func TestRefusalEndsTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.run(func() { sleep(time.Second) })
		r.world.Partitions++
		r.run(func() {
			sleep(5 * time.Minute)
			select {
			case err := <-r.lanes.Fatal():
				if refused := checkpoint.AsRefusal(err); refused == nil || refused.Reason != checkpoint.ReasonPartitionsChanged {
					t.Errorf("got %v", err)
				}
			default:
				t.Error("nobody was told")
			}
		})
		select {
		case err := <-r.lanes.Fatal():
			t.Errorf("a second time: %v", err)
		default:
		}
	})
}

// TestUnreadable: what can't be read on ends the session; a refusal stops the
// lane, anything else starts a new session.
func TestUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.run(func() {
			r.topic.append(messages(0, 5)...)
			sleep(2 * time.Second)
			r.topic.mu.Lock()
			r.topic.unread = &checkpoint.Refusal{Reason: checkpoint.ReasonOffsetOutOfRange, What: "in/0", Wrong: "w", Next: "n"}
			r.topic.mu.Unlock()
			r.topic.pump()
			sleep(5 * time.Second)
			if s := r.status(); s.State != pipeline.Stopped || s.Reason != checkpoint.ReasonOffsetOutOfRange || s.Next != 5 {
				t.Errorf("status: %+v", s)
			}
			r.topic.mu.Lock()
			r.topic.unread = nil
			r.topic.mu.Unlock()
			r.topic.append(messages(5, 8)...)
			sleep(2 * time.Minute)
			want(t, "records", r.counts(), aggregate.Counts{In: 8, Applied: 8})
		})
	})
}

// TestDrain: a pipeline that is drained starts no lane any more.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.lanes.Assigned([]int32{0})
		sleep(time.Second)
		r.lanes.Drain(t.Context())
		r.lanes.Assigned([]int32{0, 1})
		if left := r.lanes.Status(); len(left) != 0 {
			t.Errorf("%d lanes", len(left))
		}
	})
}

// TestStreamOfRowsThatOnlyTheLedgerKnew: ids that come again after they were
// forgotten, one after the other: the epoch that meets them is tried again as it
// was, not with what has arrived since, or the lane would never get through.
func TestStreamOfRowsThatOnlyTheLedgerKnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		known := map[[16]byte]bool{}
		r.world.Shard(0).Exists = func(b *checkpoint.Branch) (rows []checkpoint.ExistingRow) {
			for _, p := range b.Contents.(*aggregate.Epoch).Parts {
				for _, l := range p.Ledger.All() {
					if !known[l.Key] {
						known[l.Key] = true
						rows = append(rows, checkpoint.ExistingRow{Key: l.Key, Offset: -1, Time: l.Time})
					}
				}
			}
			return rows
		}
		r.run(func() {
			for i := range 200 {
				r.topic.append(messages(i, i+1)...)
				sleep(500 * time.Millisecond)
			}
			if s := r.status(); s.Next < 150 {
				t.Errorf("got to offset %d of 200 while they came: %+v", s.Next, s)
			}
			sleep(time.Minute)
			want(t, "records", r.counts(), aggregate.Counts{In: 200, Conflicts: 200})
		})
	})
}

// TestIDThatTheEpochItselfForgets: the state that is restored still knows an id, and the epoch's own events move the
// horizon over it before it comes again. The ledger is asked once.
func TestIDThatTheEpochItselfForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		<-time.After(48*time.Hour + 30*time.Minute) // half past, away from the year 2000, before which no event is
		r := newRig(t, nil)                         // with a lateness of one hour
		for i := range 2 {
			r.world.Shard(i).Exists = func(b *checkpoint.Branch) []checkpoint.ExistingRow { return r.booked(b, i) }
		}
		a := func() string { return message("a", time.Now()) }
		other := func() string { return message(time.Now().String(), time.Now()) }
		r.run(func() {
			r.topic.append(other(), message("a", time.Now().Add(-50*time.Minute))) // of the hour before
			sleep(40 * time.Minute)
			r.topic.append(other(), a())
			sleep(2 * time.Hour) // 13:10, where it began at 10:30
			want(t, "records", r.counts(), aggregate.Counts{In: 4, Applied: 3, Conflicts: 1})
			want(t, "nets", len(r.nets.all()), 1)
			r.topic.append(other(), a()) // the state has forgotten it once more, the session has not
			sleep(5 * time.Second)
		})
		r.run(func() { // the next one has what the state remembers
			sleep(55 * time.Minute)
			r.topic.append(other(), a())
			sleep(5 * time.Second)
		})
		want(t, "records", r.counts(), aggregate.Counts{In: 8, Applied: 5, Conflicts: 3})
		want(t, "nets", len(r.nets.all()), 1)
		want(t, "sessions", r.world.Decisions[len(r.world.Decisions)-1].Incarnation, 3)
	})
}

// booked is the ledger's unique key: ids of the branch that the shard has booked.
func (r *rig) booked(b *checkpoint.Branch, shard int) (rows []checkpoint.ExistingRow) {
	times := map[[16]byte]int64{} // of the branch's ids
	for _, l := range b.Contents.(*aggregate.Epoch).Parts[shard].Ledger.All() {
		times[l.Key] = l.Time
	}
	for _, c := range r.world.Shard(shard).Applied {
		for _, l := range c.(*aggregate.Epoch).Parts[shard].Ledger.All() {
			if at, ok := times[l.Key]; ok {
				rows = append(rows, checkpoint.ExistingRow{Key: l.Key, Content: l.Content, Offset: l.Offset, Time: max(l.Time, at)})
			}
		}
	}
	return rows
}

// slowShard takes a second for each record of a branch.
type slowShard struct{ checkpoint.Shard }

func (s slowShard) Prepare(ctx context.Context, b *checkpoint.Branch) error {
	select {
	case <-time.After(time.Duration(b.Counts.In) * time.Second):
		return s.Shard.Prepare(ctx, b)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", checkpoint.ErrRolledBack, ctx.Err())
	}
}

// TestSlowShard: an epoch that takes a shard too long is tried again with fewer
// records, so that epochs go on completing.
func TestSlowShard(t *testing.T) {
	for _, bound := range []int{1000, 40} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, func(c *pipeline.Config) {
				c.MaxRecords = bound
				c.Job.Limits.Prepare = time.Duration(bound) * 150 * time.Millisecond
				for i, s := range c.Job.Shards {
					c.Job.Shards[i] = slowShard{s}
				}
			})
			r.run(func() {
				r.topic.append(messages(0, 1000)...)
				sleep(4 * time.Hour)
				want(t, "records", r.counts(), aggregate.Counts{In: 1000, Applied: 1000})
				for _, in := range r.epochs(0) {
					if in > int64(bound) {
						t.Errorf("an epoch of %d records, %d are configured", in, bound)
					}
				}
				if s := r.status(); s.Failures != 0 || s.State != pipeline.Running {
					t.Errorf("status: %+v", s)
				}
			})
		})
	}
}

// silentShard answers nothing for so many branches.
type silentShard struct {
	checkpoint.Shard
	left *atomic.Int32
}

func (s silentShard) Prepare(ctx context.Context, b *checkpoint.Branch) error {
	if s.left.Add(-1) < 0 {
		return s.Shard.Prepare(ctx, b)
	}
	<-ctx.Done()
	return fmt.Errorf("%w: %w", checkpoint.ErrRolledBack, ctx.Err())
}

// TestSilentShard: a shard that was silent once is not slow: what had fitted
// before is tried again whole. It is slow when it happens again. And while it is
// silent the lane says what it waits for.
func TestSilentShard(t *testing.T) {
	for silences, want := range [][]int64{{100, 50}, {100, 50}, {100, 25, 25}} {
		synctest.Test(t, func(t *testing.T) {
			var left atomic.Int32
			var waits list
			r := newRig(t, func(c *pipeline.Config) {
				c.MaxRecords = 100
				c.Job.Listener.Waiting = func(at checkpoint.At, step, what string, _ error) {
					waits.add(fmt.Sprint(at.Seq, " ", step, " ", what))
				}
				c.Job.Shards[0] = silentShard{c.Job.Shards[0], &left}
			})
			r.run(func() {
				r.topic.append(messages(0, 100)...)
				sleep(time.Minute)
				left.Store(int32(silences))
				r.topic.append(messages(100, 150)...)
				sleep(30 * time.Minute)
				if got := r.epochs(0); !slices.Equal(got, want) {
					t.Errorf("%d silences: epochs of %v records, want %v", silences, got, want)
				}
				if said := slices.Contains(waits.all(), "2 C3 prepare on shard s0"); said != (silences > 0) {
					t.Errorf("%d silences: waits: %v", silences, waits.all())
				}
			})
		})
	}
}

// smallShard takes branches of so many records at most.
type smallShard struct{ checkpoint.Shard }

func (s smallShard) Prepare(ctx context.Context, b *checkpoint.Branch) error {
	if b.Counts.In > 30 {
		return fmt.Errorf("%w: %w", checkpoint.ErrRolledBack, checkpoint.ErrTooLarge)
	}
	return s.Shard.Prepare(ctx, b)
}

// TestEpochTooLargeForAShard: it is tried again with fewer records.
func TestEpochTooLargeForAShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *pipeline.Config) { c.Job.Shards[1] = smallShard{c.Job.Shards[1]} })
		r.run(func() {
			r.topic.append(messages(0, 300)...)
			sleep(10 * time.Minute)
			want(t, "records", r.counts(), aggregate.Counts{In: 300, Applied: 300})
		})
	})
}
