package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/audit"
	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
	"billing/internal/consume"
)

// stateless is the dedup state of lanes that remember nothing.
type stateless struct{}

func (stateless) Load([]byte) (int64, error)      { return 0, nil }
func (stateless) Restored(int64) (uint64, uint64) { return 0, 0 }

// inDoubt is a lane of two shards whose third epoch was prepared and had its
// EndTxn lost on the way (Failed) or on the way back (Lost).
func inDoubt(t *testing.T, endTxn checkpointtest.Fault) (*checkpointtest.World, *checkpoint.Job) {
	t.Helper()
	lane := checkpoint.Lane{Topic: "usage"}
	w := checkpointtest.NewWorld(lane, 2)
	w.LogEnd = 1000
	job := &checkpoint.Job{Name: "job", Topic: lane.Topic, Set: checkpoint.UUID{1}, Fingerprint: "f", Build: "test", FirstStart: true,
		Kafka: w, Shards: w.Shards(), Limits: checkpoint.DefaultLimits(30 * time.Second)}
	s, err := checkpoint.Open(t.Context(), job, lane, func() bool { return true }, stateless{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for n := range int64(3) {
		if n == 2 {
			w.Plan(func(_ int, call string) checkpointtest.Fault {
				if call == "EndTxn" {
					return endTxn
				}
				return checkpointtest.None
			})
		}
		err := s.Checkpoint(t.Context(), &checkpoint.Epoch{Next: 10 * (n + 1), Counts: checkpoint.Counts{In: 1, Applied: 1}, Contents: n})
		if (err == nil) != (n < 2) {
			t.Fatalf("epoch %d: %v", n+1, err)
		}
	}
	w.Plan(nil)
	return w, job
}

// fakeGroup does with its only other party what the script says.
type fakeGroup struct {
	script  func(ctx context.Context, g *fakeGroup, h consume.Handler)
	members []consume.Member
	problem string
	fails   error

	mu   sync.Mutex
	ours bool
	left bool
}

func (g *fakeGroup) assigned(int32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ours
}

func (g *fakeGroup) give(h consume.Handler, partitions ...int32) {
	g.mu.Lock()
	g.ours = true
	g.mu.Unlock()
	h.Assigned(partitions)
}

func (g *fakeGroup) Run(ctx context.Context, h consume.Handler) error {
	if g.script != nil {
		g.script(ctx, g, h)
	}
	if g.fails != nil {
		return g.fails
	}
	<-ctx.Done()
	h.Revoked(context.WithoutCancel(ctx), []int32{0, 1})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left = true
	return nil
}

func (g *fakeGroup) Members(context.Context) (string, []consume.Member, error) {
	return "Stable", append([]consume.Member{{ID: "us", Host: "10.0.0.1"}}, g.members...), nil
}
func (g *fakeGroup) Generation() (string, int32) { return "us", 3 }
func (g *fakeGroup) GroupProblem() string        { return g.problem }

// TestSettle: the lane in doubt is settled when the group gives it, and every
// other end is told as what it is.
func TestSettle(t *testing.T) {
	giveAll := func(_ context.Context, g *fakeGroup, h consume.Handler) { g.give(h, 0, 1) }
	for _, c := range []struct {
		name      string
		endTxn    checkpointtest.Fault
		spoil     func(w *checkpointtest.World)
		group     *fakeGroup
		interrupt time.Duration
		code      int
		says      []string
		shards    string // what S4 did; "" for nothing
		takes     time.Duration
	}{
		{name: "undecided", endTxn: checkpointtest.Failed, group: &fakeGroup{script: giveAll}, shards: "s0 d1 c0 r1, s1 d1 c0 r1"},
		{name: "decided", endTxn: checkpointtest.Lost, group: &fakeGroup{script: giveAll}, shards: "s0 d1 c1 r0, s1 d1 c1 r0"},
		{name: "a shard is away for a moment", endTxn: checkpointtest.Lost, group: &fakeGroup{script: giveAll}, shards: "s0 d1 c1 r0, s1 d1 c1 r0",
			spoil: func(w *checkpointtest.World) { w.Plan(first(3, "XA COMMIT on s1", checkpointtest.Failed)) }},
		{name: "a shard is away for longer than the group may take", endTxn: checkpointtest.Lost, group: &fakeGroup{script: giveAll}, shards: "s0 d1 c1 r0, s1 d1 c1 r0", takes: givenWithin + 10*time.Second,
			spoil: func(w *checkpointtest.World) { w.Plan(until(givenWithin+10*time.Second, "XA COMMIT on s1")) }},
		{name: "the takeover fails twice", endTxn: checkpointtest.Lost, group: &fakeGroup{script: giveAll}, shards: "s0 d1 c1 r0, s1 d1 c1 r0", takes: 2 * settlePause,
			spoil: func(w *checkpointtest.World) { w.Plan(first(2, "EndTxn", checkpointtest.Failed)) }},
		{name: "the brokers fail for good", endTxn: checkpointtest.Lost, group: &fakeGroup{script: giveAll}, code: exitFailed, takes: (settleTries - 1) * settlePause,
			says: []string{"fence", "injected fault"}, spoil: func(w *checkpointtest.World) { w.Plan(first(1000, "InitProducerID", checkpointtest.Failed)) }},
		{name: "a shard has lost the epoch", endTxn: checkpointtest.Lost, group: &fakeGroup{script: giveAll}, code: exitRefused,
			says: []string{"(lost-epoch)", "shard s1"}, shards: "s0 d1 c1 r0, s1 d0 c0 r0", takes: 5 * time.Second,
			spoil: func(w *checkpointtest.World) {
				if err := w.Shard(1).Commit(context.Background(), w.Shard(1).PreparedNow()[0]); err != nil {
					panic(err)
				}
				w.Shard(1).LoseEpoch()
			}},
		{name: "the group gives nothing", endTxn: checkpointtest.Lost, group: &fakeGroup{problem: "not in the consumer group job: no rights"}, code: exitFailed,
			says: []string{"has not given us the lane for 30s", "no rights"}, takes: givenWithin},
		{name: "somebody else has joined", endTxn: checkpointtest.Lost, code: exitRefused, takes: givenWithin,
			group: &fakeGroup{members: []consume.Member{{ID: "them", Instance: "i-7", Host: "10.0.0.9", Lanes: []int32{0, 1}}}},
			says:  []string{"(group-has-members) job", "1 member", "them, kafka.instance_id i-7 at 10.0.0.9 with lanes 0, 1"}},
		{name: "the group fails", endTxn: checkpointtest.Lost, group: &fakeGroup{fails: errors.New("no client")}, code: exitFailed, says: []string{"consumer group: no client"}},
		{name: "interrupted before it was given", endTxn: checkpointtest.Lost, group: &fakeGroup{}, interrupt: time.Second, code: exitFailed, says: []string{"interrupted", "run it again"}, takes: time.Second},
		{name: "interrupted in the middle", endTxn: checkpointtest.Lost, group: &fakeGroup{script: giveAll}, interrupt: time.Second, code: exitFailed, says: []string{"interrupted", "run it again"}, takes: time.Second,
			shards: "s0 d1 c0 r0, s1 d1 c0 r0", spoil: func(w *checkpointtest.World) { w.Plan(first(1000, "XA COMMIT", checkpointtest.Failed)) }},
		{name: "taken away and given back", endTxn: checkpointtest.Lost, shards: "s0 d1 c1 r0, s1 d1 c1 r0", takes: 5 * time.Second,
			group: &fakeGroup{script: func(ctx context.Context, g *fakeGroup, h consume.Handler) {
				g.give(h, 0, 1)
				after(ctx, time.Second)
				h.Revoked(ctx, []int32{0})
				after(ctx, 4*time.Second)
				g.give(h, 0)
			}},
			spoil: func(w *checkpointtest.World) { w.Plan(until(2*time.Second, "XA COMMIT")) }},
		{name: "lost for good", endTxn: checkpointtest.Lost, shards: "s0 d1 c0 r0, s1 d1 c0 r0", takes: givenWithin, code: exitFailed, says: []string{"has not given us"},
			group: &fakeGroup{script: func(ctx context.Context, g *fakeGroup, h consume.Handler) {
				g.give(h, 0, 1)
				after(ctx, time.Second)
				h.Lost([]int32{0, 1})
			}},
			spoil: func(w *checkpointtest.World) { w.Plan(first(1000, "XA COMMIT", checkpointtest.Failed)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, job := inDoubt(t, c.endTxn)
				if c.spoil != nil {
					c.spoil(w)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.interrupt > 0 {
					time.AfterFunc(c.interrupt, cancel)
				}
				begun := time.Now()
				lanes := settle(ctx, job, c.group, c.group.assigned, []audit.UnsettledLane{{Lane: checkpoint.Lane{Topic: "usage"}}}, slog.New(slog.DiscardHandler))
				took := time.Since(begun)
				if took < c.takes || took > c.takes+1500*time.Millisecond { // waits of S4 have jitter
					t.Errorf("took %s, want %s", took, c.takes)
				}
				if len(lanes) != 1 || exitCode(lanes[0].Err) != c.code {
					t.Fatalf("%+v: exit %d, want %d: %v", lanes, exitCode(lanes[0].Err), c.code, lanes[0].Err)
				}
				l := lanes[0]
				for _, s := range c.says {
					if !strings.Contains(fmt.Sprint(l.Err), s) {
						t.Errorf("%v does not say %q", l.Err, s)
					}
				}
				var did []string
				for _, s := range l.Shards {
					did = append(did, fmt.Sprintf("%s d%d c%d r%d", s.Shard, len(s.InDoubt), len(s.Committed), len(s.RolledBack)))
				}
				if got := strings.Join(did, ", "); got != c.shards {
					t.Errorf("done: %s, want %s", got, c.shards)
				}
				if (l.Err == nil) != (l.D.Incarnation > 1) {
					t.Errorf("settled by %+v", l.D)
				}
				if left := len(w.Shard(0).PreparedNow()) + len(w.Shard(1).PreparedNow()); l.Err == nil && left > 0 {
					t.Errorf("%d branches are left prepared", left)
				}
				if c.group.fails == nil && !c.group.left {
					t.Error("the group was not left")
				}
				if err := w.Sound(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// first has the first n calls of this name end so.
func first(n int, name string, fault checkpointtest.Fault) func(int, string) checkpointtest.Fault {
	return func(_ int, call string) checkpointtest.Fault {
		if strings.HasPrefix(call, name) && n > 0 {
			n--
			return fault
		}
		return checkpointtest.None
	}
}

// until has calls of this name fail for so long.
func until(d time.Duration, name string) func(int, string) checkpointtest.Fault {
	end := time.Now().Add(d)
	return func(_ int, call string) checkpointtest.Fault {
		if strings.HasPrefix(call, name) && time.Now().Before(end) {
			return checkpointtest.Failed
		}
		return checkpointtest.None
	}
}

// after waits in a bubble.
func after(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
