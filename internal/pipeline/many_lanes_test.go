package pipeline_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
	"billing/internal/pipeline"
)

// many are the worlds and partitions of many lanes, as one Kafka and its shards.
type many struct {
	worlds []*checkpointtest.World
	topics []*topic
	lanes  *pipeline.Pipeline
}

func (m *many) Fence(ctx context.Context, lane checkpoint.Lane) (checkpoint.Owner, error) {
	return m.worlds[lane.Partition].Fence(ctx, lane)
}

func (m *many) Start(p int32, session uint64, offset int64, epoch int32) {
	m.topics[p].Start(p, session, offset, epoch)
}
func (m *many) Stop(p int32)          { m.topics[p].Stop(p) }
func (m *many) Pause(p int32)         { m.topics[p].Pause(p) }
func (m *many) Resume(p int32)        { m.topics[p].Resume(p) }
func (m *many) Assigned(p int32) bool { return true }
func (m *many) SkipTail(ctx context.Context, p int32, from int64) (int64, error) {
	return m.topics[p].SkipTail(ctx, p, from)
}

// manyShard is one shard of all the worlds.
type manyShard struct {
	checkpoint.Shard // of world 0: its name
	of               *many
	number           int
}

func (s manyShard) at(partition int32) checkpoint.Shard {
	return s.of.worlds[partition].Shards()[s.number]
}

func (s manyShard) by(g checkpoint.GTRID) checkpoint.Shard {
	n, err := g.Parse()
	if err != nil {
		panic(err)
	}
	return s.at(n.Partition)
}

func (s manyShard) EndOlder(ctx context.Context, lane checkpoint.Lane) error {
	return s.at(lane.Partition).EndOlder(ctx, lane)
}

func (s manyShard) Prepared(ctx context.Context, prefix string) (all []checkpoint.GTRID, err error) {
	for p := range s.of.worlds {
		found, err := s.at(int32(p)).Prepared(ctx, prefix)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func (s manyShard) LaneRow(ctx context.Context, lane checkpoint.Lane) (checkpoint.LaneRow, bool, error) {
	return s.at(lane.Partition).LaneRow(ctx, lane)
}

func (s manyShard) EpochRow(ctx context.Context, lane checkpoint.Lane, seq int64) (checkpoint.EpochRow, bool, error) {
	return s.at(lane.Partition).EpochRow(ctx, lane, seq)
}

func (s manyShard) Prepare(ctx context.Context, b *checkpoint.Branch) error {
	return s.at(b.Lane.Partition).Prepare(ctx, b)
}
func (s manyShard) Commit(ctx context.Context, g checkpoint.GTRID) error {
	return s.by(g).Commit(ctx, g)
}
func (s manyShard) Rollback(ctx context.Context, g checkpoint.GTRID) error {
	return s.by(g).Rollback(ctx, g)
}

func newMany(t *testing.T, lanes int, change func(*pipeline.Config)) *many {
	t.Helper()
	m := &many{}
	r := newRig(t, func(cfg *pipeline.Config) {
		cfg.Job.Kafka = m
		cfg.Job.Shards = []checkpoint.Shard{manyShard{cfg.Job.Shards[0], m, 0}}
		change(cfg)
	})
	m.lanes = r.lanes
	m.lanes.Bind(m)
	for p := range int32(lanes) {
		w := checkpointtest.NewWorld(checkpoint.Lane{Topic: "in", Partition: p}, 1)
		w.Partitions, w.LogEnd = int32(lanes), 1<<40
		m.worlds = append(m.worlds, w)
		m.topics = append(m.topics, &topic{partition: p, handler: r.lanes})
	}
	return m
}

// TestSharesOfManyLanes: 64 lanes share what is too little for one record each,
// with messages that are larger than any share. Each epoch goes over its bound by
// one record at the most, all records go through, and what one lane's leaving
// frees the others have.
func TestSharesOfManyLanes(t *testing.T) {
	const lanes, size, each = 64, 60_000, 5
	synctest.Test(t, func(t *testing.T) {
		m := newMany(t, lanes, func(cfg *pipeline.Config) { cfg.MemoryBytes = 4 * lanes * size / 2 })
		var all []int32
		for p := range int32(lanes) {
			all = append(all, p)
			for range each {
				m.topics[p].append(strings.Repeat("x", size)) // no event: it is kept
			}
		}
		m.lanes.Assigned(all)
		sleep(time.Minute)
		for p, w := range m.worlds {
			in := int64(0)
			for _, c := range w.AppliedOn(0) {
				e := c.(*aggregate.Epoch)
				if in += e.Counts.In; e.Counts.In > 1 || e.Bytes > size/2+2*size {
					t.Errorf("lane %d: an epoch of %d records and %d bytes, with a share of %d", p, e.Counts.In, e.Bytes, size/2)
				}
			}
			if in != each {
				t.Errorf("lane %d: %d of %d records are booked", p, in, each)
			}
		}
		if n := m.lanes.Waiting(); n != 0 {
			t.Errorf("%d bytes wait though all is taken", n)
		}

		// One lane alone has all of it.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		m.lanes.Revoked(ctx, all[1:])
		before := len(m.worlds[0].AppliedOn(0))
		for range each {
			m.topics[0].append(strings.Repeat("x", size))
		}
		sleep(time.Minute)
		last := m.worlds[0].AppliedOn(0)[before:]
		if len(last) != 1 || last[0].(*aggregate.Epoch).Counts.In != each {
			t.Errorf("a lane that is alone needs %d epochs for %d records", len(last), each)
		}
		m.lanes.Revoked(ctx, all[:1])
		for _, w := range m.worlds {
			if err := w.Sound(); err != nil {
				t.Error(err)
			}
		}
	})
}
