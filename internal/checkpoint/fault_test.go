package checkpoint_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
)

var lane = checkpoint.Lane{Topic: "in", Partition: 2}

func newJob(w *checkpointtest.World) *checkpoint.Job {
	return &checkpoint.Job{
		Name: "job", Topic: lane.Topic, Set: checkpoint.UUID{7}, Fingerprint: "fp", Build: "test", FirstStart: true,
		Kafka: w, Shards: w.Shards(), Limits: checkpoint.DefaultLimits(30 * time.Second),
	}
}

// ids is a dedup state that remembers offsets.
type ids struct{ n, sum uint64 }

func (s *ids) Load(data []byte) (int64, error) {
	for len(data) > 0 {
		s.n++
		s.sum += binary.LittleEndian.Uint64(data)
		data = data[8:]
	}
	return 1 << 60, nil
}

func (s *ids) Restored(int64) (uint64, uint64) { return s.n, s.sum }

// feed makes the epoch of the records [from, to): each shard gets the range.
func (s *ids) feed(from, to int64) *checkpoint.Epoch {
	var data bytes.Buffer
	for o := from; o < to; o++ {
		_ = binary.Write(&data, binary.LittleEndian, uint64(o))
		s.n++
		s.sum += uint64(o)
	}
	return &checkpoint.Epoch{
		Next: to, LeaderEpoch: 0, StreamTime: to, Counts: checkpoint.Counts{In: to - from, Applied: to - from},
		Chunks:     []checkpoint.Chunk{{BucketEnd: 1 << 60, Data: data.Bytes()}},
		StateCount: s.n, StateChecksum: s.sum, Contents: [2]int64{from, to},
	}
}

// owner works as a lane does: session after session until all records are in.
func owner(ctx context.Context, job *checkpoint.Job, end, step int64) error {
	for tries := 0; ; tries++ {
		if tries > 1000 {
			return errors.New("no end in sight")
		}
		err := session(ctx, job, end, step)
		var refused *checkpoint.Refusal
		var broken *checkpoint.InvariantError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &refused), errors.As(err, &broken):
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func session(ctx context.Context, job *checkpoint.Job, end, step int64) error {
	state := &ids{}
	s, err := checkpoint.Open(ctx, job, lane, func() bool { return true }, state)
	if err != nil {
		return err
	}
	defer s.Close()
	d := s.Decision()
	for next := d.Next; next < end; next += step {
		if err := s.Checkpoint(ctx, state.feed(next, min(next+step, end))); err != nil {
			return err
		}
	}
	return nil
}

// exact fails unless every shard has every record once, in order, nothing is
// prepared, the chain has no hole, and D agrees.
func exact(t *testing.T, w *checkpointtest.World, shards int, end int64) {
	t.Helper()
	if err := w.Sound(); err != nil {
		t.Fatalf("rules broken:\n%v", err)
	}
	for i := range shards {
		s := w.Shard(i)
		next := int64(0)
		for _, c := range s.Applied {
			r := c.([2]int64)
			if r[0] != next {
				t.Fatalf("shard %d: range %v applied where %d was due: lost or doubled", i, r, next)
			}
			next = r[1]
		}
		if next != end {
			t.Fatalf("shard %d: applied up to %d, want %d", i, next, end)
		}
		if left := s.PreparedNow(); len(left) > 0 {
			t.Fatalf("shard %d: left prepared: %v", i, left)
		}
		n, err := s.Chain()
		if err != nil {
			t.Fatal(err)
		}
		if last := w.Decisions[len(w.Decisions)-1]; last.Seq != n || last.Next != end {
			t.Fatalf("shard %d has %d epochs, D says %d (offset %d)", i, n, last.Seq, last.Next)
		}
	}
}

// notAhead fails when a shard shows an epoch that no committed D names: money
// before the decision. Called after every single step.
func notAhead(t *testing.T, w *checkpointtest.World, shards int) func(string) {
	return func(call string) {
		decided := int64(0)
		if n := len(w.Decisions); n > 0 {
			decided = w.Decisions[n-1].Next
		}
		for i := range shards {
			if a := w.Shard(i).Applied; len(a) > 0 && a[len(a)-1].([2]int64)[1] > decided {
				t.Errorf("after %s: shard %d shows records up to %d, decided is %d", call, i, a[len(a)-1].([2]int64)[1], decided)
			}
		}
	}
}

// TestManyCallsFail fails calls at random, several in one run.
func TestManyCallsFail(t *testing.T) {
	const end, step = 20, 3
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			w := checkpointtest.NewWorld(lane, 2)
			w.LogEnd = end
			w.Check(notAhead(t, w, 2))
			r := rand.New(rand.NewPCG(seed, 1))
			var trail []string
			w.Plan(func(n int, call string) checkpointtest.Fault {
				if n > 2000 || r.IntN(8) != 0 {
					return checkpointtest.None
				}
				f := checkpointtest.Fault(1 + r.IntN(2))
				trail = append(trail, fmt.Sprintf("%d %s: %s", n, call, f))
				return f
			})
			if err := owner(t.Context(), newJob(w), end, step); err != nil {
				t.Fatalf("seed %d: %v\n%v", seed, err, trail)
			}
			exact(t, w, 2, end)
		})
	}
}
