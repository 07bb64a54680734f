package audit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
)

// fakeShard answers what Unsettled asks, and nothing else.
type fakeShard struct {
	checkpoint.Shard
	name     string
	prepared []checkpoint.GTRID
	rows     map[int32]checkpoint.GTRID // of the epoch 9 of a lane; "" for an error
	ahead    map[int32]bool             // lanes of which it has an epoch more
	err      error
}

func (f *fakeShard) Name() string { return f.name }

func (f *fakeShard) Prepared(_ context.Context, prefix string) (found []checkpoint.GTRID, err error) {
	for _, g := range f.prepared {
		if strings.HasPrefix(string(g), prefix) {
			found = append(found, g)
		}
	}
	return found, f.err
}

func (f *fakeShard) EpochRow(_ context.Context, lane checkpoint.Lane, seq int64) (row checkpoint.EpochRow, ok bool, err error) {
	g, ok := f.rows[lane.Partition]
	if ok && g == "" {
		return row, false, errors.New("no answer")
	}
	return checkpoint.EpochRow{GTRID: g}, ok && seq == 9, nil
}

func (f *fakeShard) LaneRow(_ context.Context, lane checkpoint.Lane) (row checkpoint.LaneRow, ok bool, err error) {
	if _, ok = f.rows[lane.Partition]; ok {
		row.Seq = 9
	}
	if f.ahead[lane.Partition] {
		row.Seq, ok = row.Seq+1, true
	}
	return row, ok, nil
}

// TestUnsettled: lanes with a branch on any shard, with a decided epoch that some
// shard lacks, and with a decision that can't be told; no others.
func TestUnsettled(t *testing.T) {
	gtrid := func(partition int32, incarnation, seq int64) checkpoint.GTRID {
		return checkpoint.GTRID(gtridOf(testJob, topicID, partition, incarnation, seq))
	}
	const lanes = 9
	fresh := func() (*checkpoint.Job, []*fakeShard, *fakeKafka) {
		kafka := &fakeKafka{reads: map[int32][]checkpoint.Read{}}
		shards := []*fakeShard{{name: "eu-0", rows: map[int32]checkpoint.GTRID{}}, {name: "eu-1", rows: map[int32]checkpoint.GTRID{}}}
		for p := range int32(lanes) {
			kafka.reads[p] = []checkpoint.Read{decidedBy(t, p, 6, 5, 9)}
			for _, s := range shards {
				s.rows[p] = gtrid(p, 5, 9)
			}
		}
		job := &checkpoint.Job{Name: testJob, Topic: testTopic, TopicID: topicID, Partitions: lanes, Set: set, Shards: []checkpoint.Shard{shards[0], shards[1]}}
		return job, shards, kafka
	}
	const patience = 5 * time.Second
	lines := func(found []UnsettledLane) (out []string) {
		for _, u := range found {
			out = append(out, u.Lane.String()+": "+u.Why)
		}
		return out
	}

	job, _, kafka := fresh()
	found, elsewhere, err := Unsettled(t.Context(), job, kafka.Look, patience)
	if err != nil || len(found) > 0 || elsewhere > 0 || kafka.looked != lanes {
		t.Errorf("nothing in doubt: %v, %d elsewhere, %v; %d lanes looked at", found, elsewhere, err, kafka.looked)
	}

	synctest.Test(t, func(t *testing.T) {
		job, shards, kafka := fresh()
		shards[0].prepared = []checkpoint.GTRID{gtrid(1, 6, 10)}
		shards[1].prepared = []checkpoint.GTRID{gtrid(1, 6, 10), gtrid(1, 5, 9), gtrid(2, 6, 10),
			checkpoint.GTRID(gtridOf(testJob, checkpoint.UUID{2}, 3, 6, 10)), checkpoint.GTRID(gtridOf("other", topicID, 3, 6, 10))}
		kafka.hang = map[int32]bool{1: true, 4: true} // of lane 1 nothing needs to be read
		delete(shards[1].rows, 5)
		shards[0].rows[6] = gtrid(6, 4, 9)
		kafka.reads[7] = []checkpoint.Read{{HasOffset: true, Offset: 3}}
		kafka.reads[8] = []checkpoint.Read{decidedBy(t, 8, 1, 0, 0)} // taken over, and no epoch yet
		for _, s := range shards {
			delete(s.rows, 8)
			delete(s.rows, 0)
		}
		kafka.reads[0] = nil // never started
		shards[1].ahead = map[int32]bool{3: true}
		begun := time.Now()
		found, elsewhere, err := Unsettled(t.Context(), job, kafka.Look, patience)
		if err != nil || elsewhere != 1 {
			t.Errorf("%d elsewhere, %v", elsewhere, err)
		}
		wantLines(t, lines(found),
			"usage/1: prepared on eu-0, eu-1", "usage/2: prepared on eu-1",
			"usage/3: eu-1 has its epochs up to 10, more than are decided",
			"usage/4: its decision can't be read: lane 4: unstable: context deadline exceeded",
			"usage/5: the decided epoch 9 is not on eu-1", "usage/6: epoch 9 on eu-0 is not by the branch that is decided",
			"usage/7: its decision can't be told")
		if took := time.Since(begun); took != patience {
			t.Errorf("took %s, want %s", took, patience)
		}
	})

	// A lane without a decision has no epoch anywhere.
	job, _, kafka = fresh()
	kafka.reads[2] = nil
	if found, _, err := Unsettled(t.Context(), job, kafka.Look, patience); err != nil || len(found) != 1 || found[0].Why != "eu-0 has its epochs up to 9, more than are decided" {
		t.Errorf("%v, %v", found, err)
	}

	// What a shard does not answer is never taken for settled.
	job, shards, kafka := fresh()
	shards[1].rows[3] = ""
	if found, _, err := Unsettled(t.Context(), job, kafka.Look, patience); err == nil || !strings.Contains(err.Error(), "shard eu-1: no answer") {
		t.Errorf("%v, %v", found, err)
	}
	shards[1].err = errors.New("no list")
	if found, _, err := Unsettled(t.Context(), job, kafka.Look, patience); err == nil || !strings.Contains(err.Error(), "shard eu-1: list prepared branches: no list") {
		t.Errorf("%v, %v", found, err)
	}
	job, _, kafka = fresh()
	kafka.hang = map[int32]bool{2: true}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if found, _, err := Unsettled(ctx, job, kafka.Look, patience); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v, %v", found, err)
	}
}
