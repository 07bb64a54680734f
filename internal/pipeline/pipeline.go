// Package pipeline is a lane at work: it takes the records that Kafka delivers,
// gives each one of four outcomes, cuts epochs at barriers and hands them to the
// protocol, and starts a new session after any error.
//
// Each assigned lane has one goroutine that processes records (work.go), and,
// while a session lasts, one that runs checkpoints and one that sweeps. One
// epoch is filled while one is in flight; when both are full, the lane stops
// taking records and its partition is paused.
package pipeline

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/event"
)

// Config is how lanes work. All fields are set by the caller.
type Config struct {
	Job *checkpoint.Job

	Interval    time.Duration // from a lane's first record to its barrier
	MaxInterval time.Duration // likewise, of a lane that is behind; and how long a checkpoint should take
	MaxRows     int           // that an epoch writes; a barrier comes at the latest then
	MaxRecords  int           // of an epoch; likewise
	MaxBytes    int64         // held by an epoch, ids included; likewise, and not more than its lane's share

	// What all lanes hold of messages, see shares: waiting, in epochs that are
	// filled and in those that are committed. The ids are beside it.
	MemoryBytes int64

	Lateness time.Duration // how much older than the lane's stream time an event may be
	Skew     time.Duration // how far ahead of Now an event may be
	MaxIDs   int64         // dedup entries of all lanes of this process; beyond it lanes pause

	Window  time.Duration // of totals
	Ledger  bool
	Decoder event.Config

	StoppedRetry time.Duration // after which a stopped lane looks again
	IdleMove     time.Duration // after which an idle lane's offset follows a tail without records

	Now func() time.Time // the clock for in_future; never for lateness

	// UnknownFields, if set, is told how many fields of a message no rule knows,
	// once for each time that the message is read.
	UnknownFields func(n int64)

	// Paused, if set, is told how long a barrier has held up its lane's stream, by
	// the lane's goroutine.
	Paused func(d time.Duration)

	Logger *slog.Logger
}

// Source is what the lanes need of Kafka's consumer. All methods may be called
// from any goroutine and return at once, but SkipTail.
type Source interface {
	// Start has the partition delivered from offset on, each batch with the
	// session's number (S6). leaderEpoch is of the record before, -1 unknown.
	Start(partition int32, session uint64, offset int64, leaderEpoch int32)
	// Stop ends deliveries; a last one may still be on its way.
	Stop(partition int32)
	// Pause and Resume hold deliveries back without losing any.
	Pause(partition int32)
	Resume(partition int32)
	// Assigned reports whether the partition is this member's and the group's
	// heartbeats are fresh (S0).
	Assigned(partition int32) bool
	// SkipTail reports how far the position may move from the given offset over
	// a tail without records; from itself when there is none.
	SkipTail(ctx context.Context, partition int32, from int64) (int64, error)
}

// Pipeline runs the lanes of this process. Assigned, Revoked and Lost come one
// at a time, as the group says them: Revoked and Lost return when the lanes have
// ended, so that a lane that is assigned again never has two owners here. The
// rest may come from any goroutine, at any time.
type Pipeline struct {
	cfg    Config
	source Source

	shares  *shares
	ids     atomic.Int64  // dedup entries of all lanes
	session atomic.Uint64 // the last session number given out

	mu       sync.Mutex
	lanes    map[int32]*lane
	draining bool

	fatal     chan error // cap 1: the first refusal that ends the process
	fatalOnce sync.Once
}

// New makes a pipeline without lanes. Bind its source before the group runs.
func New(cfg Config) *Pipeline {
	return &Pipeline{cfg: cfg, shares: newShares(cfg.MemoryBytes), lanes: map[int32]*lane{}, fatal: make(chan error, 1)}
}

// Bind sets where records come from. It is called once, before any callback.
func (p *Pipeline) Bind(s Source) { p.source = s }

// Fatal delivers at most one error: a refusal that must end the process.
func (p *Pipeline) Fatal() <-chan error { return p.fatal }

func (p *Pipeline) fail(err error) {
	p.fatalOnce.Do(func() { p.fatal <- err })
}

// Assigned starts a lane for each partition.
func (p *Pipeline) Assigned(partitions []int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range partitions {
		if p.draining || p.lanes[n] != nil {
			continue
		}
		l := newLane(p, n)
		p.lanes[n] = l
		go l.run()
	}
	p.shares.divide(len(p.lanes))
	p.cfg.Logger.Info("lanes assigned", "partitions", partitions)
}

// Revoked has the lanes let go and returns when they have. Each finishes the
// epoch in flight if it can before ctx ends, and drops what it was filling.
func (p *Pipeline) Revoked(ctx context.Context, partitions []int32) {
	p.release(ctx, p.take(partitions))
	p.cfg.Logger.Info("lanes given up", "partitions", partitions)
}

// Lost ends the lanes at once: they are somebody else's already.
func (p *Pipeline) Lost(partitions []int32) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p.release(ctx, p.take(partitions))
	p.cfg.Logger.Warn("lanes lost: the group did not hear from this instance, or this instance not from the group", "partitions", partitions)
}

// Drain lets go of all lanes, as Revoked does, and starts none any more.
func (p *Pipeline) Drain(ctx context.Context) {
	p.mu.Lock()
	p.draining = true
	var all []int32
	for n := range p.lanes {
		all = append(all, n)
	}
	p.mu.Unlock()
	p.release(ctx, p.take(all))
}

func (p *Pipeline) take(partitions []int32) []*lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	var lanes []*lane
	for _, n := range partitions {
		if l := p.lanes[n]; l != nil {
			lanes = append(lanes, l)
			// It stays in the map, for health to see, until it has ended.
		}
	}
	return lanes
}

func (p *Pipeline) release(ctx context.Context, lanes []*lane) {
	var wg sync.WaitGroup
	for _, l := range lanes {
		wg.Go(func() { l.end(ctx) })
	}
	wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range lanes {
		if p.lanes[l.id.Partition] == l {
			delete(p.lanes, l.id.Partition)
		}
	}
	p.shares.divide(len(p.lanes))
}

// Deliver takes records of a partition, in offset order. bytes is what they
// hold in memory.
func (p *Pipeline) Deliver(partition int32, session uint64, records []event.Record, bytes int, highWatermark int64) {
	if l := p.lane(partition); l != nil {
		l.inbox.put(batch{session: session, records: records, bytes: bytes, highWatermark: highWatermark})
	}
}

// Reach tells how far partitions go, for the lag: a lane that takes nothing
// hears nothing of its end.
func (p *Pipeline) Reach(ends map[int32]int64) {
	for n, end := range ends {
		if l := p.lane(n); l != nil {
			l.inbox.reach(end)
		}
	}
}

// Failed reports that a partition can't be read on: its offset is out of range,
// or its log was truncated. The lane never jumps.
func (p *Pipeline) Failed(partition int32, session uint64, err error) {
	if l := p.lane(partition); l != nil {
		l.inbox.put(batch{session: session, err: err})
	}
}

func (p *Pipeline) lane(partition int32) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lanes[partition]
}
