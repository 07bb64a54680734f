package model

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
)

var lane = checkpoint.Lane{Topic: "in", Partition: 2}

// named puts the branch's name beside a call, for who records it.
type named struct{ checkpoint.Shard }

type branchName struct{}

func (n named) Prepare(ctx context.Context, b *checkpoint.Branch) error {
	return n.Shard.Prepare(context.WithValue(ctx, branchName{}, b.GTRID), b)
}

func (n named) Commit(ctx context.Context, g checkpoint.GTRID) error {
	return n.Shard.Commit(context.WithValue(ctx, branchName{}, g), g)
}

func (n named) Rollback(ctx context.Context, g checkpoint.GTRID) error {
	return n.Shard.Rollback(context.WithValue(ctx, branchName{}, g), g)
}

func toGTRID(g checkpoint.GTRID) gtrid {
	if g == "" {
		return gtrid{}
	}
	n, err := g.Parse()
	if err != nil {
		panic(err)
	}
	return gtrid{uint8(n.Incarnation), uint8(n.Seq)}
}

// toCall is what the model knows of an event.
func toCall(e checkpointtest.Event, landed bool) call {
	op, on, onShard := strings.Cut(e.Call, " on s")
	c := call{op: op, landed: landed, late: e.Fault == checkpointtest.Late && !e.Applied}
	if onShard {
		c.on = int(on[0] - '0')
	}
	if checkpointtest.Who(e.Ctx) == "B" {
		c.who = 1
	}
	if g, ok := e.Ctx.Value(branchName{}).(checkpoint.GTRID); ok {
		c.g = toGTRID(g)
	}
	c.applied, c.refused = e.Applied && e.Err == nil, e.Applied && e.Err != nil
	c.answer = e.Fault == checkpointtest.None
	c.after.d = decision{uint8(e.Decision.Incarnation), uint8(e.Decision.Seq), toGTRID(e.Decision.GTRID).inc}
	for i := range e.Rows {
		c.after.row[i] = uint8(e.Rows[i])
		for _, g := range e.Prepared[i] {
			c.after.prepared[i] = toGTRID(g)
		}
	}
	return c
}

// ids is a dedup state that remembers offsets.
type ids struct{ n, sum uint64 }

func (s *ids) Load(data []byte) (int64, error) {
	s.n, s.sum = s.n+1, s.sum+binary.LittleEndian.Uint64(data)
	return 1 << 60, nil
}

func (s *ids) Restored(int64) (uint64, uint64) { return s.n, s.sum }

// conformEpochs is how many epochs of one record a run makes.
const conformEpochs = 3

func work(ctx context.Context, job *checkpoint.Job) error {
	state := &ids{}
	s, err := checkpoint.Open(ctx, job, lane, func() bool { return true }, state)
	if err != nil {
		return err
	}
	defer s.Close()
	for next := s.Decision().Next; next < conformEpochs; next++ {
		var data bytes.Buffer
		_ = binary.Write(&data, binary.LittleEndian, uint64(next))
		state.n, state.sum = state.n+1, state.sum+uint64(next)
		err := s.Checkpoint(ctx, &checkpoint.Epoch{
			Next: next + 1, Counts: checkpoint.Counts{In: 1, Applied: 1},
			Chunks:     []checkpoint.Chunk{{BucketEnd: 1 << 60, Data: data.Bytes()}},
			StateCount: state.n, StateChecksum: state.sum,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// run has owners work until everything is money, and gives the calls in the
// order in which the servers saw them.
func run(t *testing.T, w *checkpointtest.World, names ...string) []call {
	t.Helper()
	w.LogEnd = conformEpochs
	var mu sync.Mutex
	waits := rand.New(rand.NewPCG(1, 1))
	again := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(waits.IntN(20000)) * time.Millisecond
	}
	var calls []call
	w.Record(func(e checkpointtest.Event) {
		calls = append(calls, toCall(e, e.Fault == checkpointtest.Late && e.Applied))
	})
	var wg sync.WaitGroup
	for _, name := range names {
		ctx := checkpointtest.As(t.Context(), name)
		shards := w.Shards()
		for i := range shards {
			shards[i] = named{shards[i]}
		}
		job := &checkpoint.Job{
			Name: "job", Topic: lane.Topic, Set: checkpoint.UUID{7}, Fingerprint: "fp", Build: "test", FirstStart: true,
			Kafka: w, Shards: shards, Limits: checkpoint.DefaultLimits(30 * time.Second),
		}
		wg.Go(func() {
			for range 200 {
				err := work(ctx, job)
				var refused *checkpoint.Refusal
				if errors.As(err, &refused) {
					t.Errorf("%s: %v", name, err) // the model has no refusal
				}
				if err == nil || refused != nil {
					return
				}
				<-time.After(again()) // two that try again at once fence each other for long
			}
		})
	}
	wg.Wait()
	if end := calls[len(calls)-1].after; end.row != [shards]uint8{conformEpochs, conformEpochs} || end.prepared != [shards]gtrid{} {
		t.Errorf("the run ends with %+v", end)
	}
	return calls
}

// refuses holds the calls against the model and gives the number of the first
// one that is no step of it, or -1.
func (m *Model) refuses(calls []call) int {
	r := m.start()
	for i := range calls {
		if !r.see(&calls[i]) {
			return i
		}
	}
	return -1
}

var whole = &Model{Epochs: conformEpochs, Wire: wires}

func conforms(t *testing.T, what string, calls []call) {
	t.Helper()
	if i := whole.refuses(calls); i >= 0 {
		for _, c := range calls[max(0, i-25) : i+1] {
			t.Logf("%+v", c)
		}
		t.Fatalf("%s: call %d of %d is no step of the model: %+v", what, i, len(calls), calls[i])
	}
}

// TestCodeRunsAsTheModel: what the code of internal/checkpoint asks of its
// servers is a run of the model, call by call: with each call failed, its answer
// lost, or late; with two owners that freeze before each call; and with faults at
// random.
func TestCodeRunsAsTheModel(t *testing.T) {
	runs, seen := 0, 0
	hold := func(t *testing.T, what string, calls []call) {
		t.Helper()
		runs++
		seen += len(calls)
		conforms(t, what, calls)
	}
	for _, fault := range []checkpointtest.Fault{checkpointtest.None, checkpointtest.Failed, checkpointtest.Lost, checkpointtest.Late} {
		for i, hit := 1, true; hit && !t.Failed(); i++ {
			synctest.Test(t, func(t *testing.T) {
				w := checkpointtest.NewWorld(lane, shards)
				hit = false
				w.Plan(func(n int, _ string) checkpointtest.Fault {
					if n == i {
						hit = fault != checkpointtest.None
						return fault
					}
					return checkpointtest.None
				})
				var n atomic.Int64 // shards are called side by side
				w.Before(func(context.Context, string) {
					if n.Add(1) == int64(i+1+i%9) {
						w.Land()
					}
				})
				hold(t, fmt.Sprintf("call %d: %s", i, fault), run(t, w, "A"))
			})
		}
	}
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			w := checkpointtest.NewWorld(lane, shards)
			r := rand.New(rand.NewPCG(seed, 1))
			w.Plan(func(n int, _ string) checkpointtest.Fault {
				if n < 400 && r.IntN(9) == 0 {
					return checkpointtest.Fault(1 + r.IntN(2))
				}
				return checkpointtest.None
			})
			var mu sync.Mutex
			pauses := rand.New(rand.NewPCG(seed, 2))
			w.Before(func(context.Context, string) {
				mu.Lock()
				d := time.Duration(pauses.IntN(3)) * time.Duration(pauses.IntN(400)) * time.Millisecond
				mu.Unlock()
				<-time.After(d)
			})
			hold(t, fmt.Sprintf("seed %d", seed), run(t, w, "A", "B"))
		})
	}
	t.Logf("%d runs, %d calls", runs, seen)
}

// TestOtherRunsAreRefused: a run of the code is no run of a model that is broken
// in what the run does; nor is one from which a call was taken.
func TestOtherRunsAreRefused(t *testing.T) {
	var calls []call
	synctest.Test(t, func(t *testing.T) {
		calls = run(t, checkpointtest.NewWorld(lane, shards), "A")
	})
	conforms(t, "the run itself", calls)
	for name, b := range map[string]Broken{
		"S4 before S3": {SettleFirst: true},
		"S2 before S1": {ReadFirst: true},
		"no S3":        {NoTakeover: true},
	} {
		if (&Model{Epochs: conformEpochs, Wire: wires, Broken: b}).refuses(calls) < 0 {
			t.Errorf("%s: a model without it accepts the code", name)
		}
	}
	for i, c := range calls {
		if !slices.Contains([]string{"InitProducerID", "TxnOffsetCommit", "EndTxn", "XA PREPARE", "XA COMMIT"}, c.op) {
			continue
		}
		if whole.refuses(slices.Delete(slices.Clone(calls), i, i+1)) < 0 {
			t.Errorf("the run without call %d (%s) is accepted", i, c.op)
		}
	}
}
