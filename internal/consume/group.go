package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/event"
)

// Handler is told what happens to this instance's lanes. Assigned, Revoked and
// Lost come one at a time, in the group's order; Deliver and Failed come one
// at a time from one other goroutine. Start, Stop, Pause and Resume may be
// called from all of them.
type Handler interface {
	// Assigned: the partitions are ours from now on. It returns at once.
	Assigned(partitions []int32)

	// Revoked: the partitions go to another member, or we leave the group. The
	// group waits until it returns, the lanes having let go; ctx gives them
	// half the rebalance timeout. Until then Assigned still says yes.
	Revoked(ctx context.Context, partitions []int32)

	// Lost: the group has thrown us out, another member may be at work
	// already: there is nothing to finish. It returns when the lanes have ended,
	// in bounded time, so that a lane that is assigned again meets no older one
	// here: we join again only after it. Assigned says no from before it is
	// called. Nothing else waits: there is no membership to keep alive, and
	// fetching and the other calls go on.
	Lost(partitions []int32)

	// Deliver gives records in the order of their offsets, control records
	// among them. session is the number that the partition was started with:
	// one of an older session is to be dropped. records is the handler's to
	// keep; bytes is what they take in memory. It must be
	// cheap: all partitions wait for it.
	Deliver(partition int32, session uint64, records []event.Record, bytes int, highWatermark int64)

	// Waiting is how many bytes of what was delivered lanes still hold as it came:
	// no more is fetched beyond Config.FetchBytes. It may be called by any
	// goroutine, for each batch, and returns at once.
	Waiting() int64

	// Failed: fetching has stopped, as after Stop. The position never jumps: an
	// offset that is out of range, or a log that was cut below it, comes as a
	// *checkpoint.Refusal. After any other error a new session may go on.
	Failed(partition int32, session uint64, err error)
}

// membership is one Run's part in the group.
type membership struct {
	cl      *kgo.Client
	handler Handler
	log     *clientLogger
	topic   string

	half time.Duration // the time that Revoked gets

	calls    sync.Mutex // the handler's: one at a time
	mu       sync.Mutex
	assigned map[int32]bool

	joined  atomic.Bool
	problem atomic.Pointer[groupProblem] // nil while we are in the group

	born   time.Time
	beat   atomic.Int64 // when the last request was sent by which the group has us, ns after born; 0 before the first
	synced atomic.Int64 // when the last SyncGroup was sent that was answered, in whatever way; likewise
}

// Run joins the group and works until ctx ends; then it leaves and returns
// nil. A static member leaves nothing: its restart gets its lanes back. A
// broker that is away is waited for. Run is called once.
func (c *Client) Run(ctx context.Context, h Handler) error {
	if !c.running.CompareAndSwap(false, true) {
		return errors.New("kafka: the client runs already")
	}
	m := &membership{handler: h, log: c.log, topic: c.cfg.Topic, half: c.cfg.RebalanceTimeout / 2, assigned: map[int32]bool{}, born: time.Now()}
	opts := []kgo.Opt{
		kgo.WithHooks(m),
		kgo.ClientID(c.cfg.memberClientID()),
		kgo.ConsumerGroup(c.cfg.Job),
		kgo.ConsumeTopics(c.cfg.Topic),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(c.cfg.SessionTimeout),
		kgo.RebalanceTimeout(c.cfg.RebalanceTimeout),
		// Who is left hears of a dead member's lanes by the answer to a heartbeat.
		kgo.HeartbeatInterval(min(c.cfg.SessionTimeout/10, time.Second)),
		kgo.DisableAutoCommit(),
		// Membership only: it consumes nothing, wherever the group's offsets are.
		kgo.AdjustFetchOffsetsFn(func(context.Context, map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
			return map[string]map[int32]kgo.Offset{}, nil
		}),
		kgo.OnPartitionsAssigned(m.onAssigned),
		kgo.OnPartitionsRevoked(m.onRevoked),
		kgo.OnPartitionsLost(m.onLost),
	}
	if c.cfg.InstanceID != "" {
		opts = append(opts, kgo.InstanceID(c.cfg.InstanceID))
	}
	life, die := context.WithCancel(context.WithoutCancel(ctx))
	defer die()
	opts = append(opts, kgo.WithContext(life))
	var err error
	if m.cl, err = kgo.NewClient(c.options(opts...)...); err != nil {
		return fmt.Errorf("kafka group client: %w", err)
	}
	m.cl.PauseFetchTopics(c.cfg.Topic)
	c.member.Store(m)

	// The fetching goes on until the group is left: a lane that lets go may
	// still call Stop, and nothing is to wait for it then.
	fetching, stop := context.WithCancel(context.WithoutCancel(ctx))
	var fetcher, beats sync.WaitGroup
	fetcher.Go(func() { c.fetch.run(fetching, h) })
	beating, still := context.WithCancel(fetching)
	beats.Go(func() { c.keepFresh(beating, m) })

	for ctx.Err() == nil {
		m.cl.PollFetches(ctx) // only errors come, and the client logs those itself
	}

	// The lanes let go while the heartbeats still go out; then the library's own
	// callback finds nothing left.
	m.revoke(ctx, m.ours(all))
	// From here on we are silent. If the leave is lost, the group would wait for
	// us to join its next rebalance as long as it hears of us.
	still()
	beats.Wait()
	if c.cfg.InstanceID == "" { // a static member stays in the group, for its restart
		leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.LeaveTimeout)
		defer cancel()
		if err := c.leave(leave, m); err != nil {
			c.cfg.Logger.Warn("kafka: the group was not left; the lanes move when the session times out", "error", err, "after", c.cfg.SessionTimeout)
		}
	}
	die() // Close would wait for a join that is on its way, for as long as that takes
	m.cl.Close()
	stop()
	fetcher.Wait()
	return nil
}

// joinGrace is for how long leaving waits for a join that is on its way.
const joinGrace = 200 * time.Millisecond

// leave leaves the group. The library first waits for a join that is on its way,
// and a join waits for every member, a dead one too: we would be given lanes
// with nobody to work on them. So the group is then told by a request of our
// own, which ends the join.
func (c *Client) leave(ctx context.Context, m *membership) error {
	left := make(chan error, 1) // cap 1: who leaves never waits for us
	go func() { left <- m.cl.LeaveGroupContext(ctx) }()
	grace, cancel := context.WithTimeout(ctx, joinGrace)
	defer cancel()
	select {
	case err := <-left:
		return err
	case <-grace.Done():
	}
	if id, _ := m.cl.GroupMetadata(); id != "" {
		member := kmsg.NewLeaveGroupRequestMember()
		member.MemberID = id
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group = c.cfg.Job
		req.Members = append(req.Members, member)
		_, _ = req.RequestWith(ctx, c.fetch.cl) // whether it has worked, the library finds out
	}
	return <-left
}

// Assigned reports whether the partition is this member's, as the group last
// said.
func (c *Client) Assigned(partition int32) bool {
	m := c.member.Load()
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.assigned[partition]
}

// Generation gives the group's member id and generation of this moment; "" and
// -1 before the first join.
func (c *Client) Generation() (memberID string, generation int32) {
	m := c.member.Load()
	if m == nil {
		return "", -1
	}
	return m.cl.GroupMetadata()
}

func (m *membership) onAssigned(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
	m.in()
	m.calls.Lock()
	defer m.calls.Unlock()
	ps := slices.Sorted(slices.Values(topics[m.topic]))
	m.mu.Lock()
	for _, p := range ps {
		m.assigned[p] = true
	}
	m.mu.Unlock()
	if len(ps) > 0 {
		m.handler.Assigned(ps)
	}
}

func (m *membership) onRevoked(ctx context.Context, _ *kgo.Client, topics map[string][]int32) {
	m.revoke(ctx, topics[m.topic])
}

// revoke takes those of the partitions that are ours away in good order.
func (m *membership) revoke(ctx context.Context, partitions []int32) {
	m.calls.Lock()
	defer m.calls.Unlock()
	ps := m.ours(among(partitions))
	if len(ps) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.half)
	defer cancel()
	m.handler.Revoked(ctx, ps)
	m.drop(ps)
}

func (m *membership) onLost(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
	// At once, also while Revoked is at work: what it waits for is not ours to
	// finish any more.
	ps := m.ours(among(topics[m.topic]))
	m.drop(ps)
	if len(ps) == 0 {
		return
	}
	m.calls.Lock()
	defer m.calls.Unlock()
	m.handler.Lost(ps)
}

func all(int32) bool { return true }

func among(partitions []int32) func(int32) bool {
	return func(p int32) bool { return slices.Contains(partitions, p) }
}

// ours gives the assigned partitions that are wanted, in order.
func (m *membership) ours(wanted func(int32) bool) []int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ps []int32
	for p := range m.assigned {
		if wanted(p) {
			ps = append(ps, p)
		}
	}
	slices.Sort(ps)
	return ps
}

func (m *membership) drop(partitions []int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range partitions {
		delete(m.assigned, p)
	}
}
