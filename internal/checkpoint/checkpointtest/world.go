// Package checkpointtest has fakes of what the protocol needs of Kafka and
// MySQL. They keep the contracts of checkpoint's ports: fences, transactions
// that are visible only when committed, prepared branches that hold the lock of
// their lane's row. Each call can be told to fail, to be applied and have its
// answer lost, or to arrive late. They watch the protocol's rules while they
// are used: see World.Sound.
//
// world.go has the world and its faults, owner.go the producer, shard.go a
// shard, rules.go what is watched, record.go what was called.
package checkpointtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"billing/internal/checkpoint"
)

// Fault is what happens to one call.
type Fault int

// The faults.
const (
	None   Fault = iota
	Failed       // not applied, an error is returned
	Lost         // applied, an error is returned
	Late         // an error is returned, and it is applied by a later Land
)

func (f Fault) String() string {
	return [...]string{"none", "failed", "applied, answer lost", "late"}[f]
}

// ErrInjected is what a call answers that was told to fail.
var ErrInjected = errors.New("injected fault")

// World is one Kafka cluster and its shards, for one lane.
type World struct {
	mu     sync.Mutex
	plan   func(n int, call string) Fault
	n      int
	calls  []string
	check  func(call string)
	before func(ctx context.Context, call string)
	behind func(ctx context.Context, call string)
	record func(e Event)
	late   []lateCall // in the order of the calls
	shards []*Shard

	lane       checkpoint.Lane
	fences     int // the latest owner's number: all others are fenced
	hasOffset  bool
	offset     int64
	metadata   string
	decision   string
	chunks     []chunk
	stateStart int64
	stateEnd   int64
	TopicID    checkpoint.UUID
	Partitions int32
	LogStart   int64
	LogEnd     int64
	open       *transaction
	Decisions  []checkpoint.Decision // every committed D, in order

	text       string    // the last of Decisions, as it was written
	epochs     []decided // what was decided, by seq, from 1
	violations []string
	noted      map[string]bool                   // what was wrong with the state and is in violations
	byHand     bool                              // the state was changed by hand, and is not whole again
	names      map[name]map[checkpoint.GTRID]int // branches by whose they are, with the shards that were told to prepare them
}

// decided is what an epoch's first decision says of it.
type decided struct {
	gtrid checkpoint.GTRID
	next  int64
}

type lateCall struct {
	ctx   context.Context
	call  string
	apply func() error
}

type chunk struct {
	offset int64
	data   []byte
}

type transaction struct {
	decision string
	offset   int64
	metadata string
	chunks   []chunk
}

// NewWorld makes a cluster that knows nothing of the lane, and empty shards.
func NewWorld(lane checkpoint.Lane, shards int) *World {
	w := &World{lane: lane, TopicID: checkpoint.UUID{1}, Partitions: 4, noted: map[string]bool{}, names: map[name]map[checkpoint.GTRID]int{}}
	for i := range shards {
		w.shards = append(w.shards, &Shard{world: w, number: i, epochs: map[int64]epoch{}, prepared: map[checkpoint.GTRID]*checkpoint.Branch{}, used: map[checkpoint.GTRID]bool{}})
	}
	return w
}

// Plan says what happens to the n-th call (from 1) from now on; nil: all work.
func (w *World) Plan(fn func(n int, call string) Fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plan, w.n, w.calls = fn, 0, nil
}

// Check has fn called after every call that changed something, with the world
// locked: it reads through the exported fields and View.
func (w *World) Check(fn func(call string)) { w.check = fn }

// Before has fn called before each call, with no lock held: it may wait, which
// freezes the caller there, and may use the world meanwhile. Set it before the
// first call.
func (w *World) Before(fn func(ctx context.Context, call string)) { w.before = fn }

// Behind has fn called behind each call, applied or not, before the caller has
// its answer, with no lock held: it may wait, as Before's may. Set it before the
// first call.
func (w *World) Behind(fn func(ctx context.Context, call string)) { w.behind = fn }

type who struct{}

// As names the process that calls with this context.
func As(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, who{}, name)
}

// Who is the name that As gave, "" without one.
func Who(ctx context.Context) string {
	name, _ := ctx.Value(who{}).(string)
	return name
}

// Land applies the calls that were planned as Late, in their order.
func (w *World) Land() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.late {
		err := l.apply() // nobody waits for the answer any more
		w.recorded(l.ctx, l.call, Late, true, err)
		w.applied("a late call")
	}
	w.late = nil
}

// Calls lists the calls since Plan.
func (w *World) Calls() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.calls...)
}

// CallsLocked is Calls for a plan or a check, which have the world locked.
func (w *World) CallsLocked() []string { return append([]string(nil), w.calls...) }

// Shards are the ports of the world's shards.
func (w *World) Shards() []checkpoint.Shard {
	var out []checkpoint.Shard
	for _, s := range w.shards {
		out = append(out, s)
	}
	return out
}

// Waiting is how many late calls have not landed.
func (w *World) Waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.late)
}

// do runs one external call: apply is what the server does.
func (w *World) do(ctx context.Context, call string, apply func() error) error {
	if w.before != nil {
		w.before(ctx, call)
	}
	err := w.serve(ctx, call, apply)
	if w.behind != nil {
		w.behind(ctx, call)
	}
	return err
}

func (w *World) serve(ctx context.Context, call string, apply func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	w.n++
	w.calls = append(w.calls, call)
	fault := None
	if w.plan != nil {
		fault = w.plan(w.n, call)
	}
	switch fault {
	case Failed:
		w.recorded(ctx, call, Failed, false, nil)
		return fmt.Errorf("%s: %w", call, ErrInjected)
	case Late:
		if !reads(call) { // a late look changes nothing
			w.late = append(w.late, lateCall{ctx, call, apply})
		}
		w.recorded(ctx, call, Late, false, nil)
		return fmt.Errorf("%s: no answer: %w", call, ErrInjected)
	case None, Lost: // applied
	}
	err := apply()
	w.recorded(ctx, call, fault, true, err)
	w.applied(call)
	if err == nil && fault == Lost {
		return fmt.Errorf("%s: answer lost: %w", call, ErrInjected)
	}
	return err
}

// applied looks at the stored state behind a step.
func (w *World) applied(call string) {
	if !reads(call) {
		w.watch(call)
	}
	if w.check != nil {
		w.check(call)
	}
}

func reads(call string) bool {
	for _, r := range []string{"Read", "XA RECOVER", "SELECT"} {
		if strings.HasPrefix(call, r) {
			return true
		}
	}
	return false
}

// LoseOffset makes the group's offset expire.
func (w *World) LoseOffset() { w.byHand, w.hasOffset = true, false }

// SetOffset sets the group's offset as an administrator does.
func (w *World) SetOffset(offset int64, metadata string) {
	w.byHand, w.hasOffset, w.offset, w.metadata = true, true, offset, metadata
}

// Metadata is the metadata of the group's offset.
func (w *World) Metadata() string { return w.metadata }

// SetDecision replaces the record of the decision topic.
func (w *World) SetDecision(d string) { w.byHand, w.decision = true, d }

// DropChunk removes the first chunk of the state topic.
func (w *World) DropChunk() { w.chunks = w.chunks[1:] }

// Chunk is the data of the i-th chunk of the state topic, to be changed.
func (w *World) Chunk(i int) []byte { return w.chunks[i].data }

// Chunks is the number of chunks in the state topic.
func (w *World) Chunks() int { return len(w.chunks) }

// AddChunk writes a chunk that no decision knows of.
func (w *World) AddChunk(data []byte) {
	w.chunks = append(w.chunks, chunk{w.stateEnd, data})
	w.stateEnd++
}

// SetStateStart deletes the state topic's records before the offset, as a
// retention by time would.
func (w *World) SetStateStart(before int64) {
	w.byHand, w.stateStart = true, before
	for len(w.chunks) > 0 && w.chunks[0].offset < before {
		w.chunks = w.chunks[1:]
	}
}

// SetStateEnd cuts the state topic off at the offset, as an unclean election
// would.
func (w *World) SetStateEnd(end int64) {
	w.byHand, w.stateEnd = true, end
	w.chunks = slices.DeleteFunc(w.chunks, func(c chunk) bool { return c.offset >= end })
}

// StateEnd is the high watermark of the state topic.
func (w *World) StateEnd() int64 { return w.stateEnd }

// StateStart is the log start of the state topic.
func (w *World) StateStart() int64 { return w.stateStart }

// AppliedOn is a copy of a shard's Applied, for use while an owner is at work.
func (w *World) AppliedOn(shard int) []any {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]any(nil), w.shards[shard].Applied...)
}

// With runs fn while no call is being carried out: to change the world under
// owners at work.
func (w *World) With(fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn()
}
