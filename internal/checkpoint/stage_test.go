package checkpoint_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
)

// stage has owners act one call at a time, in an order that a test gives: a call
// has a gate before it and one behind it, where it is applied and its answer is
// still on the way. So a run is the same each time, on two shards too, whose
// calls are made side by side.
type stage struct {
	t     *testing.T
	w     *checkpointtest.World
	shard order

	mu      sync.Mutex
	waiting []*gate
	arrived chan struct{} // of capacity 1: somebody waits at a gate, or has ended
	actors  map[string]*actor

	now   *gate // whose call is carried out
	last  string
	fault func(g *gate) checkpointtest.Fault
	trail []string // faults and switches, for messages
}

// order is which shard's call goes first.
type order int

const (
	firstShard order = iota // as far as it can
	lastShard
	inTurn
)

func (o order) String() string { return [...]string{"s0 first", "s1 first", "in turn"}[o] }

// gate is where a call waits.
type gate struct {
	who    string
	call   string
	behind bool
	n      int // of the actor's calls, from 1
	open   chan struct{}
}

func (g *gate) String() string {
	return fmt.Sprintf("%s %s call %d (%s)", g.who, map[bool]string{false: "before", true: "behind"}[g.behind], g.n, g.call)
}

// actor is a process.
type actor struct {
	events *events
	cancel context.CancelFunc
	calls  int
	dead   bool // its calls reach nobody
	ended  bool
	err    error
}

func newStage(t *testing.T, w *checkpointtest.World, o order) *stage {
	s := &stage{t: t, w: w, shard: o, arrived: make(chan struct{}, 1), actors: map[string]*actor{}}
	w.Before(func(ctx context.Context, call string) { s.stop(ctx, call, false) })
	w.Behind(func(ctx context.Context, call string) { s.stop(ctx, call, true) })
	t.Cleanup(func() { // of what is left when a test has failed
		for who, a := range s.actors {
			if !a.ended {
				s.kill(who)
			}
		}
	})
	w.Plan(func(_ int, call string) checkpointtest.Fault {
		f := checkpointtest.None
		switch {
		case s.actors[s.now.who].dead:
			return checkpointtest.Failed
		case s.fault != nil:
			f = s.fault(s.now)
		}
		if f != checkpointtest.None {
			s.trail = append(s.trail, fmt.Sprintf("%s: %s", s.now, f))
		}
		return f
	})
	return s
}

// start has a process begin: it works until run returns.
func (s *stage) start(who string, run func(ctx context.Context, job *checkpoint.Job) error) *actor {
	synctest.Wait() // a call may be on its way
	job := newJob(s.w)
	ctx, cancel := context.WithCancel(checkpointtest.As(s.t.Context(), who))
	a := &actor{events: new(events).listen(job), cancel: cancel}
	committed := job.Listener.Committed
	job.Listener.Committed = func(l checkpoint.Lane, d checkpoint.Decision, c checkpoint.Counts, recovered bool) {
		if !a.dead {
			s.w.Published(d, c)
			committed(l, d, c, recovered)
		}
	}
	s.actors[who] = a
	go func() {
		defer cancel()
		err := run(ctx, job)
		s.mu.Lock()
		a.ended, a.err = true, err
		s.mu.Unlock()
		s.wake()
	}()
	return a
}

func (s *stage) wake() {
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

func (s *stage) stop(ctx context.Context, call string, behind bool) {
	g := &gate{who: checkpointtest.Who(ctx), call: call, behind: behind, open: make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, g)
	s.mu.Unlock()
	s.wake()
	<-g.open
}

// next has one call of the actor pass one gate; nil when the actor has ended.
// Where it waits for time, time passes.
func (s *stage) next(who string) *gate {
	for {
		synctest.Wait()
		s.mu.Lock()
		g := s.first(who)
		ended := s.actors[who].ended
		s.mu.Unlock()
		if g != nil {
			if !g.behind {
				s.actors[who].calls++
				g.n = s.actors[who].calls
			} else {
				g.n = s.actors[who].calls
			}
			s.now = g
			close(g.open)
			return g
		}
		if ended {
			return nil
		}
		<-s.arrived
	}
}

// first takes the gate of the actor that is to open first.
func (s *stage) first(who string) *gate {
	at := -1
	for i, g := range s.waiting {
		if g.who == who && (at < 0 || s.less(g, s.waiting[at])) {
			at = i
		}
	}
	if at < 0 {
		return nil
	}
	g := s.waiting[at]
	s.waiting = slices.Delete(s.waiting, at, at+1)
	if _, shard, on := strings.Cut(g.call, " on "); on {
		s.last = shard
	}
	return g
}

func (s *stage) less(a, b *gate) bool {
	rank := func(g *gate) int {
		_, shard, on := strings.Cut(g.call, " on ")
		switch {
		case !on:
			return -1
		case s.shard == firstShard && shard == "s0", s.shard == lastShard && shard == "s1", s.shard == inTurn && shard != s.last:
			return 0
		default:
			return 1
		}
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.call, b.call)) < 0
}

// run has the actor pass n gates, and waits until it is at the next one; false
// when it ended before.
func (s *stage) run(who string, n int) bool {
	for range n {
		if s.next(who) == nil {
			return false
		}
	}
	synctest.Wait()
	return true
}

// end has the actor go on to its end, and gives its error.
func (s *stage) end(who string) error {
	for n := 0; s.next(who) != nil; n++ {
		if n > 20000 {
			s.t.Fatalf("no end of %s in sight: %v", who, s.trail)
		}
	}
	return s.actors[who].err
}

// kill has the actor do nothing any more that anybody could see.
func (s *stage) kill(who string) {
	synctest.Wait()
	s.actors[who].dead = true
	s.actors[who].cancel()
	_ = s.end(who) // in its memory it goes on until it knows
}

// script is what the lane's partition has: epochs, and a tail without records
// that an idle lane's offset follows.
type script []struct {
	next int64
	idle bool
}

var (
	threeEpochs = script{{2, false}, {3, true}, {5, false}, {7, false}}
	twoEpochs   = script{{2, false}, {4, false}}
)

// world is one in which the first parts of the script are done.
func (s script) world(t *testing.T, shards, done int) *checkpointtest.World {
	w := checkpointtest.NewWorld(lane, shards)
	if done > 0 {
		if err := s[:done].work(t.Context(), newJob(w)); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// ranges are the epochs' contents, in order.
func (s script) ranges() (out [][2]int64) {
	from := int64(0)
	for _, p := range s {
		if !p.idle {
			out = append(out, [2]int64{from, p.next})
		}
		from = p.next
	}
	return out
}

func (s script) end() int64 { return s[len(s)-1].next }

// work is a session that works through the script from where D is. The partition
// has no more than what it has come to.
func (s script) work(ctx context.Context, job *checkpoint.Job) error {
	grow := func(next int64) {
		w, _ := job.Kafka.(*checkpointtest.World)
		w.With(func() { w.LogEnd = max(w.LogEnd, next) })
	}
	state := &hours{}
	session, err := checkpoint.Open(ctx, job, lane, yes, state)
	if err != nil {
		return err
	}
	defer session.Close()
	for _, p := range s {
		d := session.Decision()
		if p.next <= d.Next {
			continue
		}
		grow(p.next)
		switch {
		case p.idle:
			err = session.Advance(ctx, p.next)
		default:
			err = session.Checkpoint(ctx, state.records(d.Next, p.next))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// records is the epoch of the records [from, to). Each has a bucket of its own
// hour; the last two hours live.
func (s *hours) records(from, to int64) *checkpoint.Epoch {
	var chunks []checkpoint.Chunk
	for o := from; o < to; o++ {
		data := binary.LittleEndian.AppendUint64(nil, uint64(o+1))
		data = binary.LittleEndian.AppendUint64(data, uint64(o))
		s.add(o+1, data[8:])
		chunks = append(chunks, checkpoint.Chunk{BucketEnd: o + 1, Data: data})
	}
	n, sum := s.Restored(to - 2)
	return &checkpoint.Epoch{
		Next: to, StreamTime: to, ForgottenBefore: to - 2, Counts: checkpoint.Counts{In: to - from, Applied: to - from},
		Chunks: chunks, StateCount: n, StateChecksum: sum, Contents: [2]int64{from, to},
	}
}

// own is a process that owns the lane: session after session, until a refusal
// or the end of the script.
func (s script) own(ctx context.Context, job *checkpoint.Job) error {
	for tries := 0; ; tries++ {
		err := s.work(ctx, job)
		if err == nil || final(err) || tries > 60 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// final reports whether a lane stops for good at err: no fault that ends by
// itself may bring that about.
func final(err error) bool {
	var refused *checkpoint.Refusal
	var broken *checkpoint.InvariantError
	return errors.As(err, &refused) || errors.As(err, &broken)
}

// finished fails unless the whole script is money, once and in order, on every
// shard, nothing of it is in doubt, no rule was broken on the way, and a next
// session starts from it at once.
func (s script) finished(t *testing.T, w *checkpointtest.World, shards int) error {
	if err := w.Sound(); err != nil {
		return fmt.Errorf("rules broken:\n%w", err)
	}
	w.Before(nil)
	w.Behind(nil)
	w.Plan(nil)
	w.Land()
	for i := range shards {
		if left := w.Shard(i).PreparedNow(); len(left) > 0 {
			return fmt.Errorf("shard %d: left prepared: %v", i, left)
		}
		var got [][2]int64
		for _, c := range w.AppliedOn(i) {
			got = append(got, c.([2]int64))
		}
		if !slices.Equal(got, s.ranges()) {
			return fmt.Errorf("shard %d: %v is money, want %v", i, got, s.ranges())
		}
	}
	if d := lastDecision(w); d.Next != s.end() || d.Seq != int64(len(s.ranges())) {
		return fmt.Errorf("decided is epoch %d up to %d", d.Seq, d.Next)
	}
	job := newJob(w)
	e := new(events).listen(job)
	if err := s.work(t.Context(), job); err != nil || len(e.waits) > 0 || len(e.nets) > 0 || len(e.counted()) > 0 {
		return fmt.Errorf("the next session: %w, waits %v, nets %v, counted %v", err, e.waits, e.nets, e.counted())
	}
	if err := w.Sound(); err != nil {
		return fmt.Errorf("rules broken by the next session:\n%w", err)
	}
	return nil
}
