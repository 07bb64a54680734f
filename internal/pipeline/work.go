package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/dedup"
	"billing/internal/event"
	"billing/internal/failpoint"
)

// chunkBytes bounds one record of the state topic.
const chunkBytes = 512 << 10

// idsRecheck is how often a lane that waits for dedup.max_ids looks again.
const idsRecheck = time.Second

// work is one session's stream: records in, epochs out. Everything but the
// fields that say otherwise belongs to the goroutine that called run.
type work struct {
	l     *lane
	cfg   *Config
	s     *checkpoint.Session // of the committer and the sweeper
	carry *[]checkpoint.ExistingRow

	decoder *event.Decoder
	event   event.Event // reused for every record

	// What the stream has come to: running epoch included.
	state           *dedup.State
	streamTime      int64 // µs since 1970 UTC; 0 before the first
	forgottenBefore int64
	position        int64 // offset behind the last record taken
	leaderEpoch     int32

	epoch *aggregate.Epoch // being filled
	rest  []event.Record   // of the batch in hand, not taken yet

	jobs     chan job    // cap 1: one epoch in flight; closed by run
	results  chan result // cap 1: so that the committer never waits for us
	inFlight bool
	barrier  *time.Timer
	armed    bool // the barrier's timer runs: the epoch has its first record
	due      bool // the barrier's time has come
	waiting  bool // for room under dedup.max_ids
}

// job is what the committer does with the session, one at a time. It returns
// the position that it found, 0 for none.
type job func(ctx context.Context) (position int64, err error)

type result struct {
	position int64
	err      error
}

func newWork(l *lane, s *checkpoint.Session, state *dedup.State, carry *[]checkpoint.ExistingRow) *work {
	cfg := &l.p.cfg
	d := s.Decision()
	w := &work{
		l: l, cfg: cfg, s: s, carry: carry, state: state,
		decoder:    event.NewDecoder(cfg.Decoder),
		streamTime: d.StreamTime, forgottenBefore: d.ForgottenBefore,
		position: d.Next, leaderEpoch: d.LeaderEpoch,
		epoch: aggregate.New(aggregate.Config{
			Topic: l.id.Topic, Partition: l.id.Partition, Shards: len(cfg.Job.Shards), Window: cfg.Window, Ledger: cfg.Ledger,
		}),
		jobs:    make(chan job, 1),
		results: make(chan result, 1),
		barrier: time.NewTimer(time.Hour),
	}
	w.barrier.Stop()
	w.moveHorizon()
	w.adopt(*carry)
	return w
}

// adopt adds ids that a ledger has and the restored state had not: their records
// come out as duplicates, where before they failed the whole epoch. The time
// that comes with them is one at which the record that failed was not too old,
// so that the entry is still alive when that record is met again.
func (w *work) adopt(rows []checkpoint.ExistingRow) {
	for i := range rows {
		r := &rows[i]
		if _, known := w.state.Lookup(&r.Key, w.forgottenBefore); !known {
			w.state.Add(&r.Key, r.Content, r.Offset, r.Time)
		}
	}
	if len(rows) > 0 {
		w.l.log.Warn("ids that only the ledger knew are added to the dedup state", "ids", len(rows))
	}
}

// run works until the first error, or until the lane leaves. It returns when
// the committer and the sweeper have ended.
func (w *work) run() error {
	ctx, cancel := context.WithCancel(w.l.ctx)
	swept := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { w.commitJobs(ctx) })
	wg.Go(func() { swept <- w.s.Sweep(ctx) })
	defer func() {
		cancel()
		close(w.jobs)
		wg.Wait()
		w.barrier.Stop()
	}()

	idle := time.NewTicker(w.cfg.IdleMove / 4)
	defer idle.Stop()
	recheck := time.NewTicker(idsRecheck)
	defer recheck.Stop()

	for {
		if err := w.fill(); err != nil {
			return err
		}
		w.cut()

		ready := w.l.inbox.ready
		if !w.room() {
			ready = nil // back-pressure: the inbox fills, and pauses the partition
		}
		select {
		case <-ready:
		case r := <-w.results:
			if err := w.done(r); err != nil {
				return err
			}
		case <-w.barrier.C:
			w.armed, w.due = false, true
		case <-recheck.C: // fill looks at dedup.max_ids again
		case <-idle.C:
			w.idle()
		case err := <-swept:
			if err == nil {
				err = ctx.Err()
			}
			return err
		case <-w.l.leave:
			return w.finish()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fill takes records, one batch at most, as long as there is room for them.
func (w *work) fill() error {
	if len(w.rest) == 0 && w.room() {
		b, ok := w.l.inbox.take()
		if !ok {
			return nil
		}
		if b.err != nil {
			return w.unreadable(b.err)
		}
		w.rest = b.records
		w.l.update(func(s *Status) { s.End = max(s.End, b.highWatermark) })
	}
	if len(w.rest) == 0 {
		return nil
	}
	now := w.cfg.Now().Add(w.cfg.Skew).UnixMicro()
	i := 0
	for ; i < len(w.rest) && w.room(); i++ {
		if err := w.take(&w.rest[i], now); err != nil {
			return err
		}
		if w.full() {
			w.cut() // not in flight: an empty epoch goes on at once
		}
	}
	w.rest = w.rest[i:]
	if len(w.rest) == 0 {
		w.rest = nil // the batch may go
		select {     // there may be another one
		case w.l.inbox.ready <- struct{}{}:
		default:
		}
	}
	if !w.epoch.Empty() {
		if !w.armed && !w.due {
			w.armed = true
			w.barrier.Reset(w.cfg.Interval)
		}
		failpoint.Hit(failpoint.Polled, 0)
	}
	w.l.countIDs(int64(w.state.Len()))
	w.l.update(func(s *Status) { s.Position, s.IDs = w.position, int64(w.state.Len()) })
	return nil
}

// full: the epoch has come to its bound.
func (w *work) full() bool {
	return w.epoch.Counts.In >= int64(w.cfg.MaxRecords) || w.epoch.Bytes >= w.cfg.MaxBytes
}

// room: another record may be taken. The epoch that is full waits for the one
// in flight, and ids need room in memory.
func (w *work) room() bool {
	if w.full() {
		return false
	}
	over := w.l.p.ids.Load() >= w.cfg.MaxIDs
	if over != w.waiting {
		w.waiting = over
		w.maxIDs(over)
	}
	return !w.waiting
}

func (w *work) maxIDs(over bool) {
	if !over {
		w.l.log.Info("lane goes on", "reason", "max-ids")
		w.l.update(func(s *Status) { s.State, s.Since, s.Reason, s.Message = Running, time.Now(), "", "" })
		return
	}
	msg := fmt.Sprintf("this instance holds %d ids, dedup.max_ids allows %d. Next step: raise it (about 60 bytes of memory an id), or add instances", w.l.p.ids.Load(), w.cfg.MaxIDs)
	w.l.log.Error("lane paused", "reason", "max-ids", "err", msg)
	w.l.update(func(s *Status) { s.State, s.Since, s.Reason, s.Message = Paused, time.Now(), "max-ids", msg })
}

// cut is C1: when a barrier is due and nothing is in flight, the epoch is frozen
// and the lane goes on with an empty one. Freezing hands over pointers: no copy,
// no pause; encoding is the committer's.
func (w *work) cut() {
	if w.inFlight || w.epoch.Empty() || !w.due && !w.full() {
		return
	}
	epoch, adds := w.epoch, w.state.Freeze(w.forgottenBefore)
	e := &checkpoint.Epoch{
		Next: w.position, LeaderEpoch: w.leaderEpoch,
		StreamTime: w.streamTime, ForgottenBefore: w.forgottenBefore,
		Counts:     checkpoint.Counts(epoch.Counts),
		StateCount: adds.Count, StateChecksum: adds.Checksum,
		Contents: epoch,
	}
	w.epoch = epoch.Next()
	w.armed, w.due = false, false
	w.barrier.Stop()
	w.send(func(ctx context.Context) (int64, error) {
		chunks := adds.Chunks(chunkBytes)
		e.Chunks = make([]checkpoint.Chunk, len(chunks))
		for i, c := range chunks {
			e.Chunks[i] = checkpoint.Chunk{BucketEnd: c.BucketEnd, Data: c.Data}
		}
		return 0, w.s.Checkpoint(ctx, e)
	})
}

func (w *work) send(j job) {
	w.inFlight = true
	w.l.update(func(s *Status) { s.InFlight = true })
	w.jobs <- j // cap 1 and nothing in flight: never blocks
}

// commitJobs is the committer: the only user of the session besides the sweep.
func (w *work) commitJobs(ctx context.Context) {
	for j := range w.jobs {
		position, err := j(ctx)
		w.results <- result{position, err}
		if err != nil {
			return
		}
	}
}

// done takes the committer's result.
func (w *work) done(r result) error {
	w.inFlight = false
	var exist *checkpoint.RowsExistError
	if errors.As(r.err, &exist) {
		*w.carry = append(*w.carry, exist.Entries...)
		if f := w.cfg.Job.Listener.Net; f != nil {
			f(w.l.id, "ledger", r.err)
		}
	}
	if r.err != nil {
		return r.err
	}
	*w.carry = nil
	w.position = max(w.position, r.position)
	d := w.s.Decision()
	w.l.update(func(s *Status) {
		s.InFlight = false
		s.decided(&d)
		s.Position = w.position
	})
	return nil
}

// idle moves the offset of a lane that has had no records for a while.
func (w *work) idle() {
	d := w.s.Decision()
	if w.inFlight || !w.epoch.Empty() || len(w.rest) > 0 || time.Since(w.decided()) < w.cfg.IdleMove {
		return
	}
	from := w.position
	w.send(func(ctx context.Context) (int64, error) {
		next, err := w.l.p.source.SkipTail(ctx, w.l.id.Partition, from)
		if err != nil {
			w.l.log.Warn("can't look behind the last record", "err", err)
			next = from
		}
		if next <= d.Next {
			return 0, nil
		}
		return next, w.s.Advance(ctx, next)
	})
}

func (w *work) decided() time.Time {
	w.l.statusMu.Lock()
	defer w.l.statusMu.Unlock()
	return w.l.status.Decided
}

// finish ends the session while the lane leaves: what is in flight is waited
// for, what was being filled is dropped; its records are read again by the next
// owner. The committer ends in bounded time when the lane's context does.
func (w *work) finish() error {
	if !w.inFlight {
		return nil
	}
	return w.done(<-w.results)
}

// unreadable: the partition can't be read on from the lane's offset. The lane
// never jumps.
func (w *work) unreadable(err error) error {
	var refused *checkpoint.Refusal
	if errors.As(err, &refused) {
		return err
	}
	return &checkpoint.Refusal{Reason: checkpoint.ReasonOffsetOutOfRange, What: w.l.id.String(),
		Wrong: fmt.Sprintf("the partition can't be read from offset %d on", w.position),
		Next:  "were messages deleted or lost? See the runbook", Err: err}
}
