package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	l   *lane
	cfg *Config
	s   *checkpoint.Session // of the committer and the sweeper
	log *slog.Logger        // the lane's, with the session's incarnation

	decoder *event.Decoder
	ahead   [ahead]decoded // used again for the next ones

	// What the stream has come to: running epoch included.
	state           *dedup.State
	booked          map[[16]byte]checkpoint.ExistingRow // by key: ids for which a ledger refused an epoch; asked where state does not know one
	streamTime      int64                               // µs since 1970 UTC; 0 before the first
	forgottenBefore int64
	position        int64 // offset behind the last record taken
	leaderEpoch     int32

	epoch *aggregate.Epoch // being filled
	rest  []event.Record   // of the batch in hand, not taken yet

	jobs     chan job    // cap 1: one epoch in flight; closed by run
	results  chan result // cap 1: so that the committer never waits for us
	inFlight bool
	decided  time.Time // when the last decision was made, or the session began
	barrier  *time.Timer
	armed    bool // the barrier's timer runs: the epoch has its first record
	due      bool // the barrier's time has come
	waiting  bool // for room under dedup.max_ids
	heard    bool // the session was told of the first record
	pace     pace

	cutBegan time.Time // while cutting
	cutting  bool      // since the barrier no record was taken, and somebody wants to know how long that lasts
}

// job is what the committer does with the session, one at a time: an epoch, or
// an idle lane's look behind its last record.
type job func(ctx context.Context) result

type result struct {
	epoch    *checkpoint.Epoch // that was to be committed; nil for an idle lane's look
	rows     int               // that it writes
	took     time.Duration     // from C2 to C8
	position int64             // that an idle lane has moved to; 0 for none
	err      error
}

func newWork(l *lane, s *checkpoint.Session, state *dedup.State) *work {
	cfg := &l.p.cfg
	d := s.Decision()
	w := &work{
		l: l, cfg: cfg, s: s, state: state, booked: l.retried.rows, log: l.log.With("incarnation", s.Incarnation()),
		decoder:    event.NewDecoder(cfg.Decoder),
		streamTime: d.StreamTime, forgottenBefore: d.ForgottenBefore,
		position: d.Next, leaderEpoch: d.LeaderEpoch,
		epoch: aggregate.New(aggregate.Config{
			Topic: l.id.Topic, Partition: l.id.Partition, Shards: len(cfg.Job.Shards), Window: cfg.Window, Ledger: cfg.Ledger,
		}),
		jobs:    make(chan job, 1),
		results: make(chan result, 1),
		barrier: time.NewTimer(time.Hour),
		decided: time.Now(),
		pace:    newPace(cfg),
	}
	w.barrier.Stop()
	w.moveHorizon()
	if n := len(w.booked); n > 0 {
		w.log.Warn("ids that the dedup state did not know are known from the ledger", "seq", d.Seq, "ids", n)
	}
	w.countIDs() // what was restored counts before the first record does
	return w
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

	for {
		w.cut() // of what waited for the epoch in flight; the batch in hand goes on
		if err := w.fill(); err != nil {
			return err
		}
		w.cut()
		w.tell()

		ready := w.l.inbox.ready
		var recheck <-chan time.Time
		if !w.room() {
			ready = nil // back-pressure: the inbox fills, and pauses the partition
			recheck = time.After(idsRecheck)
		}
		select {
		case <-ready:
		case r := <-w.results:
			if err := w.done(r); err != nil {
				return err
			}
		case <-w.barrier.C:
			if w.keepOpen() {
				w.barrier.Reset(openLook)
			} else {
				w.armed, w.due = false, true
			}
		case <-recheck: // other lanes may have made room under dedup.max_ids
		case <-idle.C:
			w.idle()
		case err := <-swept:
			if err == nil {
				err = ctx.Err()
			}
			return err
		case <-w.l.leave.Done():
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
		w.hear()
	}
	if len(w.rest) == 0 {
		return nil
	}
	now := w.cfg.Now().Add(w.cfg.Skew).UnixMicro()
	i := 0
	for ; i < len(w.rest) && w.room(); i++ {
		if i%ahead == 0 {
			w.decode(w.rest[i:min(i+ahead, len(w.rest))])
		}
		if err := w.take(&w.rest[i], &w.ahead[i%ahead], now); err != nil {
			return err
		}
		if w.cutting {
			w.resumed()
		}
		if w.full() {
			w.cut() // not in flight: an empty epoch goes on at once
		}
		if i%countEvery == 0 {
			w.countIDs()
		}
	}
	w.rest = w.rest[i:]
	if len(w.rest) == 0 {
		w.rest = nil // the batch may go, and what was decoded of it: texts lie in its bytes
		clear(w.ahead[:])
		select { // there may be another one
		case w.l.inbox.ready <- struct{}{}:
		default:
		}
	}
	if !w.epoch.Empty() {
		if w.pace.back {
			w.due = true
		}
		if !w.armed && !w.due {
			w.armed = true
			w.pace.begun = time.Now()
			w.barrier.Reset(w.cfg.Interval)
		}
		failpoint.Hit(failpoint.Polled, 0)
	}
	w.countIDs()
	return nil
}

// hear tells the session of the lane's first record.
func (w *work) hear() {
	if w.heard {
		return
	}
	if i := slices.IndexFunc(w.rest, func(r event.Record) bool { return !r.Control }); i >= 0 {
		if w.s.FirstRecord(w.rest[i].Offset) && w.l.failures == 0 {
			w.pace.comeBack()
		}
		w.heard = true
	}
}

// countEvery is after how many records the ids are counted: all lanes share the
// counter.
const countEvery = 64

// countIDs keeps what dedup.max_ids is held against.
func (w *work) countIDs() { w.l.countIDs(int64(w.state.Len())) }

// room: another record may be taken. The epoch that is full waits for the one
// in flight, and ids need room in memory.
func (w *work) room() bool { return !w.full() && !w.overMaxIDs() }

func (w *work) overMaxIDs() bool { return w.l.p.ids.Load() >= w.cfg.MaxIDs }

// tell keeps the lane's status, and says when it pauses and goes on.
func (w *work) tell() {
	if w.cutting {
		w.resumed() // there is nothing to take
	}
	pending := w.inFlight || !w.epoch.Empty() || len(w.rest) > 0
	over := w.overMaxIDs()
	if over != w.waiting {
		w.waiting = over
		if over {
			const next = "raise it (about 60 bytes of memory an id), or add instances"
			msg := fmt.Sprintf("this instance holds %d ids, dedup.max_ids allows %d. Next step: %s", w.l.p.ids.Load(), w.cfg.MaxIDs, next)
			w.log.Error("lane paused", "seq", w.s.Decision().Seq, "reason", PausedByMaxIDs, "err", msg)
			w.l.update(func(s *Status) { s.enter(Paused, PausedByMaxIDs, msg, next) })
		} else {
			w.log.Info("lane goes on", "seq", w.s.Decision().Seq, "reason", PausedByMaxIDs)
			w.l.update(func(s *Status) { s.enter(Running, "", "", "") })
		}
	}
	w.l.update(func(s *Status) {
		if pending && !s.Pending {
			s.PendingSince = time.Now()
		}
		s.Pending, s.Position, s.IDs = pending, w.position, w.l.counted
	})
}

// cut is C1: when a barrier is due and nothing is in flight, the epoch is frozen
// and the lane goes on with an empty one. Freezing hands over pointers: no copy,
// no pause; encoding is the committer's.
func (w *work) cut() {
	if w.inFlight || w.epoch.Empty() || !w.due && !w.full() {
		return
	}
	if w.cfg.Paused != nil {
		w.cutting, w.cutBegan = true, time.Now()
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
	w.armed, w.due, w.pace.back = false, false, false
	w.barrier.Stop()
	w.countIDs() // freezing may have dropped what is forgotten
	w.l.update(func(s *Status) { s.InDoubt = true })
	w.send(func(ctx context.Context) result {
		chunks := adds.Chunks(chunkBytes)
		e.Chunks = make([]checkpoint.Chunk, len(chunks))
		for i, c := range chunks {
			e.Chunks[i] = checkpoint.Chunk{BucketEnd: c.BucketEnd, Data: c.Data}
		}
		begun := time.Now()
		err := w.s.Checkpoint(ctx, e)
		return result{epoch: e, rows: epoch.Rows(), took: time.Since(begun), err: err}
	})
}

// resumed tells how long the barrier has held up the stream: until its next record
// was taken, as what a fresh epoch needs of memory is asked for then.
func (w *work) resumed() {
	w.cutting = false
	w.cfg.Paused(time.Since(w.cutBegan))
}

func (w *work) send(j job) {
	w.inFlight = true
	w.jobs <- j // cap 1 and nothing in flight: never blocks
}

// commitJobs is the committer: the only user of the session besides the sweep.
func (w *work) commitJobs(ctx context.Context) {
	for j := range w.jobs {
		r := j(ctx)
		w.results <- r
		if r.err != nil {
			return
		}
	}
}

// done takes the committer's result.
func (w *work) done(r result) error {
	w.inFlight = false
	if r.err != nil {
		if r.epoch != nil {
			w.failed(r.epoch, r.err)
		}
		return r.err // the epoch stays in doubt until the next session has recovered
	}
	w.l.update(func(s *Status) { s.InDoubt = false })
	if r.epoch != nil {
		n := w.l.retried.maxRecords
		w.l.retried = retried{fits: max(w.l.retried.fits, r.epoch.Counts.In)}
		// Slowly back to the configured bound: what was too much may be so again.
		if grown := n + n/8 + 1; n > 0 && grown < int64(w.cfg.MaxRecords) {
			w.l.retried.maxRecords = grown
		}
		w.pace.follow(r.rows, r.took)
	}
	w.position = max(w.position, r.position)
	if r.epoch != nil || r.position > 0 {
		d := w.s.Decision()
		w.decided = time.Now()
		w.l.failures = 0
		w.l.update(func(s *Status) { s.moved(&d) })
	}
	return nil
}

// failed remembers what the next session needs to do better with the epoch.
func (w *work) failed(e *checkpoint.Epoch, err error) {
	found := checkpoint.EveryRowsExist(err)
	for _, exist := range found {
		w.l.retried.remember(exist.Entries)
		if f := w.cfg.Job.Listener.Net; f != nil {
			f(checkpoint.At{Lane: w.l.id, Incarnation: w.s.Incarnation(), Seq: w.s.Decision().Seq + 1}, "ledger", exist)
		}
	}
	if len(found) > 0 {
		w.l.retried.upTo = e.Next
		return
	}
	if errors.Is(err, checkpoint.ErrTooLarge) {
		w.halve(e, "an epoch was too large for a shard: the next ones are smaller")
		return
	}
	sent := errors.Is(err, checkpoint.ErrOutcomeUnknown) || w.s.Decision().Next >= e.Next // to C7: its size was not too much
	if sent || !errors.Is(err, context.DeadlineExceeded) || w.l.ctx.Err() != nil {
		return
	}
	if e.Counts.In <= w.l.retried.fits {
		w.l.retried.fits = 0 // more went through: a server that is silent. If it happens again, it is slow
		return
	}
	w.halve(e, "an epoch took too long: the next ones are smaller")
}

// halve has the next session take half of the epoch's records.
func (w *work) halve(e *checkpoint.Epoch, why string) {
	w.l.retried.maxRecords = max(e.Counts.In/2, 1)
	w.log.Warn(why, "seq", w.s.Decision().Seq+1, "records", e.Counts.In, "next", w.l.retried.maxRecords)
}

// idle moves the offset of a lane that has had no records for a while.
func (w *work) idle() {
	if w.inFlight || !w.epoch.Empty() || len(w.rest) > 0 || time.Since(w.decided) < w.cfg.IdleMove {
		return
	}
	from, decided := w.position, w.s.Decision()
	if w.l.inbox.reached() <= decided.Next {
		return // nothing is behind it, records or not
	}
	w.send(func(ctx context.Context) result {
		next, err := w.l.p.source.SkipTail(ctx, w.l.id.Partition, from)
		if err != nil {
			if ctx.Err() == nil {
				w.log.Warn("can't look behind the last record", "seq", decided.Seq, "err", err)
			}
			next = from
		}
		if next <= decided.Next {
			return result{}
		}
		return result{position: next, err: w.s.Advance(ctx, next)}
	})
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

// unreadable: the partition can't be read on from the lane's offset. What the
// source calls a refusal stops the lane: it never jumps. The rest may heal.
func (w *work) unreadable(err error) error {
	return fmt.Errorf("read from offset %d on: %w", w.position, err)
}
