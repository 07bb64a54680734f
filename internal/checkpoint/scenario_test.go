package checkpoint_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
)

// started is a world in which epochs of two records each are money, with the
// job that did it.
func started(t *testing.T, shards int, epochs int64) (*checkpointtest.World, *checkpoint.Job) {
	t.Helper()
	w := checkpointtest.NewWorld(lane, shards)
	w.LogEnd = 1000
	job := newJob(w)
	if err := session(t.Context(), job, 2*epochs, 2); err != nil {
		t.Fatal(err)
	}
	return w, job
}

// interrupted is started with one epoch more, whose session failed at the call.
func interrupted(t *testing.T, shards int, epochs int64, call string, fault checkpointtest.Fault) (*checkpointtest.World, *checkpoint.Job) {
	t.Helper()
	w, job := started(t, shards, epochs)
	s, state := mustOpen(t, job)
	w.Plan(onCall(call, 1, fault))
	if err := s.Checkpoint(t.Context(), state.feed(2*epochs, 2*epochs+2)); err == nil {
		t.Fatalf("the checkpoint did not fail at %s", call)
	}
	s.Close()
	w.Plan(nil)
	return w, job
}

func yes() bool { return true }

func mustOpen(t *testing.T, job *checkpoint.Job) (*checkpoint.Session, *ids) {
	t.Helper()
	state := &ids{}
	s, err := checkpoint.Open(t.Context(), job, lane, yes, state)
	if err != nil {
		t.Fatal(err)
	}
	return s, state
}

func tryOpen(t *testing.T, job *checkpoint.Job) error {
	t.Helper()
	s, err := checkpoint.Open(t.Context(), job, lane, yes, &ids{})
	if err == nil {
		s.Close()
	}
	return err
}

// onCall plans a fault for the n-th call of this name, from 1; the name may be
// the beginning of the call's.
func onCall(name string, n int, fault checkpointtest.Fault) func(int, string) checkpointtest.Fault {
	return func(_ int, call string) checkpointtest.Fault {
		if strings.HasPrefix(call, name) {
			if n--; n == 0 {
				return fault
			}
		}
		return checkpointtest.None
	}
}

// refusedWith fails unless err is a refusal of this reason and scope that a
// person can act on.
func refusedWith(t *testing.T, err error, reason string, scope checkpoint.Scope, says ...string) *checkpoint.Refusal {
	t.Helper()
	var r *checkpoint.Refusal
	if !errors.As(err, &r) {
		t.Fatalf("got %v, want refusal %s", err, reason)
	}
	if r.Reason != reason || r.Scope != scope {
		t.Fatalf("got reason %s scope %d, want %s %d: %v", r.Reason, r.Scope, reason, scope, err)
	}
	if r.What != lane.String() || r.Wrong == "" || r.Next == "" {
		t.Fatalf("refusal without lane, what is wrong or the next step: %+v", r)
	}
	for _, s := range append(says, lane.String(), "Next step: ", "("+reason+")") {
		if !strings.Contains(err.Error(), s) {
			t.Fatalf("%q does not say %q", err, s)
		}
	}
	return r
}

// changes are the calls that change something on MySQL or decide.
func changes(calls []string) []string {
	var out []string
	for _, c := range calls {
		if c == "EndTxn" || strings.HasPrefix(c, "XA COMMIT") || strings.HasPrefix(c, "XA ROLLBACK") || strings.HasPrefix(c, "XA PREPARE") {
			out = append(out, c)
		}
	}
	return out
}

func count(calls []string, name string) (n int) {
	for _, c := range calls {
		if strings.HasPrefix(c, name) {
			n++
		}
	}
	return n
}

func lastDecision(w *checkpointtest.World) checkpoint.Decision {
	return w.Decisions[len(w.Decisions)-1]
}

// changeD changes both copies of the last decision.
func changeD(t *testing.T, w *checkpointtest.World, change func(d *checkpoint.Decision)) {
	t.Helper()
	d := lastDecision(w)
	change(&d)
	text, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	w.SetDecision(text)
	w.SetOffset(d.Next, text)
}

// gtridOf is D's gtrid with another incarnation or seq.
func gtridOf(d checkpoint.Decision, incarnation, seq int64) checkpoint.GTRID {
	return checkpoint.GTRID(fmt.Sprintf("%s%012x%012x", d.GTRID[:len(d.GTRID)-24], incarnation, seq))
}

// events collects what a job's listener is told.
type events struct {
	mu        sync.Mutex
	committed []string // "seq/in", with "r" for recovered
	records   int64
	takenOver []checkpoint.Decision
	nets      []string
	waits     []string
	moved     int
	at        []checkpoint.At // of inDoubt
	inDoubt   []string        // "shard branches"
	settled   []string
	steps     []string
	recovered []string // "seq/records"
	phases    []string
}

func (e *events) listen(job *checkpoint.Job) *events {
	with := func(fn func()) {
		e.mu.Lock()
		defer e.mu.Unlock()
		fn()
	}
	job.Listener = checkpoint.Listener{
		TakenOver: func(_ checkpoint.At, d checkpoint.Decision) { with(func() { e.takenOver = append(e.takenOver, d) }) },
		InDoubt: func(at checkpoint.At, shards []checkpoint.ShardBranches) {
			with(func() {
				e.at = append(e.at, at)
				for _, s := range shards {
					e.inDoubt = append(e.inDoubt, fmt.Sprintf("%s %d", s.Shard, len(s.InDoubt)))
				}
			})
		},
		Settled: func(_ checkpoint.At, shards []checkpoint.ShardBranches, _ time.Duration, _ error) {
			with(func() {
				for _, s := range shards {
					e.settled = append(e.settled, fmt.Sprintf("%s c%d r%d", s.Shard, len(s.Committed), len(s.RolledBack)))
				}
			})
		},
		Committed: func(_ checkpoint.Lane, d checkpoint.Decision, c checkpoint.Counts, recovered bool) {
			with(func() {
				e.records += c.In
				e.committed = append(e.committed, fmt.Sprintf("%d/%d", d.Seq, c.In)+map[bool]string{true: "r"}[recovered])
			})
		},
		Moved:   func(checkpoint.Lane, checkpoint.Decision) { with(func() { e.moved++ }) },
		Net:     func(_ checkpoint.At, net string, _ error) { with(func() { e.nets = append(e.nets, net) }) },
		Waiting: func(_ checkpoint.At, step, _ string, _ error) { with(func() { e.waits = append(e.waits, step) }) },
		Step: func(_ checkpoint.Lane, step checkpoint.Step, _ time.Duration) {
			with(func() { e.steps = append(e.steps, checkpoint.Steps[step]) })
		},
		Recovered: func(_ checkpoint.Lane, d checkpoint.Decision, c checkpoint.Counts, r checkpoint.Recovery) {
			with(func() { e.recovered = append(e.recovered, fmt.Sprintf("%d/%d", d.Seq, c.In)) })
		},
		Phase: func(_ checkpoint.At, name string, _ time.Duration) {
			with(func() { e.phases = append(e.phases, name) })
		},
	}
	return e
}

func (e *events) counted() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.committed)
}

// hours is a dedup state in buckets: a chunk is its bucket's end and offsets.
type hours struct{ entries map[int64][]uint64 }

func (s *hours) Load(data []byte) (int64, error) {
	end := int64(binary.LittleEndian.Uint64(data))
	s.add(end, data[8:])
	return end, nil
}

func (s *hours) add(end int64, data []byte) {
	if s.entries == nil {
		s.entries = map[int64][]uint64{}
	}
	for ; len(data) > 0; data = data[8:] {
		s.entries[end] = append(s.entries[end], binary.LittleEndian.Uint64(data))
	}
}

func (s *hours) Restored(forgottenBefore int64) (n, sum uint64) {
	for end, offsets := range s.entries {
		if end <= forgottenBefore {
			delete(s.entries, end)
			continue
		}
		for _, o := range offsets {
			n++
			sum += o
		}
	}
	return n, sum
}

// epoch makes the epoch of one record at offset next-1, in the bucket that ends
// at end, and forgets the buckets up to forgottenBefore.
func (s *hours) epoch(next, end, forgottenBefore int64) *checkpoint.Epoch {
	data := binary.LittleEndian.AppendUint64(nil, uint64(end))
	data = binary.LittleEndian.AppendUint64(data, uint64(next-1))
	s.add(end, data[8:])
	n, sum := s.Restored(forgottenBefore)
	return &checkpoint.Epoch{
		Next: next, StreamTime: end, ForgottenBefore: forgottenBefore, Counts: checkpoint.Counts{In: 1, Applied: 1},
		Chunks:     []checkpoint.Chunk{{BucketEnd: end, Data: data}},
		StateCount: n, StateChecksum: sum, Contents: [2]int64{next - 1, next},
	}
}

// runToEnd has the lane work until all records up to end are in, and checks
// that each is there once.
func runToEnd(t *testing.T, w *checkpointtest.World, job *checkpoint.Job, shards int, end int64) {
	t.Helper()
	if err := owner(context.WithoutCancel(t.Context()), job, end, 2); err != nil {
		t.Fatal(err)
	}
	exact(t, w, shards, end)
}
