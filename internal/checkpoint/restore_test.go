package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
)

// broken is a dedup state whose Load fails.
type broken struct {
	ids
	err error
}

func (b *broken) Load([]byte) (int64, error) { return 0, b.err }

// TestRestoreRefuses: the dedup state that is read must be the one of the
// decision, or the lane does not start.
func TestRestoreRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(w *world)
		state  checkpoint.State
		reason string
		scope  checkpoint.Scope
		says   string
	}{
		"a chunk is missing":          {damage: func(w *world) { w.DropChunk() }, reason: checkpoint.ReasonStateDamaged, says: "gave 4 entries"},
		"a chunk was added":           {damage: func(w *world) { w.AddChunk(make([]byte, 8)) }, reason: checkpoint.ReasonStateDamaged, says: "gave 7 entries"},
		"an entry was changed":        {damage: func(w *world) { w.Chunk(1)[0] ^= 1 }, reason: checkpoint.ReasonStateDamaged, says: "checksum"},
		"a chunk can't be read":       {state: &broken{err: errors.New("CRC wrong")}, reason: checkpoint.ReasonStateDamaged, says: "CRC wrong"},
		"a newer build wrote a chunk": {state: &broken{err: fmt.Errorf("version 9: %w", checkpoint.ErrChunkVersion)}, reason: checkpoint.ReasonChunkVersion, scope: checkpoint.EndsProcess, says: "newer build"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, job := started(t, 1, 3)
				if c.damage != nil {
					c.damage(w)
				}
				if c.state == nil {
					c.state = &ids{}
				}
				w.Plan(nil)
				s, err := checkpoint.Open(t.Context(), job, lane, yes, c.state)
				if err == nil {
					s.Close()
				}
				refusedWith(t, err, c.reason, c.scope, "job.state", c.says)
				if did := changes(w.Calls()); !slices.Equal(did, []string{"EndTxn"}) { // the takeover
					t.Errorf("changed: %v", did)
				}
			})
		})
	}
}

// TestRestoreIsRepaired: a damaged state stops the lane and nothing else; with
// the chunk back it starts by itself.
func TestRestoreIsRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 1, 3)
		w.Chunk(1)[0] ^= 1
		refusedWith(t, tryOpen(t, job), checkpoint.ReasonStateDamaged, checkpoint.StopsLane)
		w.Chunk(1)[0] ^= 1
		runToEnd(t, w, job, 1, 10)
	})
}

// TestRestoreReadsFromOldestLive: a restore gives what was there, and reads no
// chunk that is not needed. Buckets come, overlap, go out of order and die;
// after each epoch a new session restores the same.
func TestRestoreReadsFromOldestLive(t *testing.T) {
	const hour = int64(3600)
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 1, 0)
		chunks := 0                                      // that the last restore has read
		type step struct{ end, forgotten, oldest int64 } // bucket, horizon, first offset that is still needed
		for i, c := range []step{
			{1 * hour, 0, 0},
			{2 * hour, 0, 0},
			{1 * hour, 0, 0},         // a late one: its bucket's first chunk stays the first
			{3 * hour, 1 * hour, 2},  // bucket 1 died; 2's first chunk is the second of the topic
			{3 * hour, 2 * hour, 6},  // bucket 2 died
			{9 * hour, 3 * hour, 10}, // all but the new one died
			{10 * hour, 9 * hour, 12},
		} {
			state := &hours{}
			s, err := checkpoint.Open(t.Context(), job, lane, yes, state)
			if err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
			if err := s.Checkpoint(t.Context(), state.epoch(s.Decision().Next+1, c.end, c.forgotten)); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
			s.Close()

			again := &hours{}
			if s, err = checkpoint.Open(t.Context(), job, lane, yes, again); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
			chunks = s.Recovery().Chunks
			s.Close()
			if fmt.Sprint(again.entries) != fmt.Sprint(state.entries) {
				t.Errorf("step %d: restored %v, want %v", i, again.entries, state.entries)
			}
			d := lastDecision(w)
			if d.OldestLive != c.oldest {
				t.Errorf("step %d: oldest live offset %d, want %d", i, d.OldestLive, c.oldest)
			}
			if start := w.StateStart(); start != c.oldest {
				t.Errorf("step %d: trimmed up to %d, want %d", i, start, c.oldest)
			}
		}
		if err := w.Sound(); err != nil {
			t.Error(err)
		}
		if chunks != 1 {
			t.Errorf("the last restore read %d chunks, one is alive", chunks)
		}
	})
}

// TestTrimFails: it costs disk space and nothing else; the next epoch that
// moves the oldest live offset trims all.
func TestTrimFails(t *testing.T) {
	const hour = int64(3600)
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 1, 0)
		e := new(events).listen(job)
		state := &hours{}
		s, err := checkpoint.Open(t.Context(), job, lane, yes, state)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		w.Plan(onCall("DeleteRecords", 1, checkpointtest.Failed))
		for i, c := range []struct{ end, forgotten, start int64 }{{hour, 0, 0}, {2 * hour, hour, 0}, {3 * hour, hour, 0}, {4 * hour, 3 * hour, 6}} {
			if err := s.Checkpoint(t.Context(), state.epoch(int64(i)+1, c.end, c.forgotten)); err != nil {
				t.Fatal(err)
			}
			if got := w.StateStart(); got != c.start {
				t.Errorf("epoch %d: trimmed up to %d, want %d", i+1, got, c.start)
			}
		}
		if !slices.Equal(e.waits, []string{"C8"}) {
			t.Errorf("waits: %v", e.waits)
		}
		if n := count(w.Calls(), "DeleteRecords"); n != 2 {
			t.Errorf("trimmed %d times: only when the oldest live offset moves", n)
		}
	})
}

// TestRestoreWithoutProgress: a restore is bounded by its progress, not by its
// length. The error is no refusal.
func TestRestoreWithoutProgress(t *testing.T) {
	for _, c := range []struct {
		wait func(l checkpoint.Limits) time.Duration
		ok   bool
	}{
		{func(l checkpoint.Limits) time.Duration { return l.Restore / 2 }, true}, // three of these are longer than the bound
		{func(l checkpoint.Limits) time.Duration { return l.Restore + time.Second }, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, job := started(t, 1, 3)
			job.Kafka = slowKafka{job.Kafka, c.wait(job.Limits)}
			err := tryOpen(t, job)
			var refused *checkpoint.Refusal
			if (err == nil) != c.ok || errors.As(err, &refused) {
				t.Errorf("got %v, want success %t", err, c.ok)
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// slowKafka takes its time for each chunk of the state.
type slowKafka struct {
	checkpoint.Kafka
	wait time.Duration
}

func (k slowKafka) Fence(ctx context.Context, l checkpoint.Lane) (checkpoint.Owner, error) {
	o, err := k.Kafka.Fence(ctx, l)
	return slowOwner{o, k.wait}, err
}

type slowOwner struct {
	checkpoint.Owner
	wait time.Duration
}

func (o slowOwner) ReadState(ctx context.Context, from int64, passed func(), fn func(int64, []byte) error) error {
	return o.Owner.ReadState(ctx, from, passed, func(offset int64, data []byte) error {
		select {
		case <-time.After(o.wait):
			return fn(offset, data)
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}
