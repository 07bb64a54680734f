package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/dedup"
)

// lane is one assigned partition of this process, from its assignment to its
// revocation: a row of sessions.
type lane struct {
	p   *Pipeline
	id  checkpoint.Lane
	log *slog.Logger

	inbox inbox

	leave  context.Context // ends when the lane has to let go: finish what is in flight, then return
	letGo  context.CancelFunc
	ctx    context.Context // ends when the time for that is up
	cancel context.CancelFunc
	done   chan struct{} // closed by run

	statusMu sync.Mutex
	status   Status

	// Owned by run.
	at       checkpoint.At // the session, or the last one, and the epoch that D names
	counted  int64         // entries of this lane in Pipeline.ids
	failures int           // sessions that have failed since the lane last moved
	retried  retried
}

// retried is what a lane remembers of an epoch that failed, for the next session.
type retried struct {
	rows map[[16]byte]checkpoint.ExistingRow // by key: that the ledger had and the dedup state did not
	// The epoch with these rows ends where it ended before. Otherwise it would
	// take in what has arrived since, and with it perhaps other ids of the kind,
	// again and again.
	upTo int64
	// An epoch that failed is tried again with half of its records: a shard may
	// be too slow for all of them. It grows again with each one that succeeds; 0
	// is the configured bound.
	maxRecords int64
	// So many records went through in one epoch: no more than that are no reason
	// to halve at the first time-out.
	fits int64
}

func (r *retried) remember(rows []checkpoint.ExistingRow) {
	if r.rows == nil {
		r.rows = make(map[[16]byte]checkpoint.ExistingRow, len(rows))
	}
	for _, row := range rows {
		r.rows[row.Key] = row
	}
}

func newLane(p *Pipeline, partition int32) *lane {
	id := checkpoint.Lane{Topic: p.cfg.Job.Topic, Partition: partition}
	l := &lane{
		p: p, id: id,
		log:   p.cfg.Logger.With("lane", id.String()),
		inbox: inbox{source: p.source, shares: p.shares, partition: partition, end: -1, ready: make(chan struct{}, 1)},
		done:  make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.leave, l.letGo = context.WithCancel(l.ctx)
	l.status = Status{Lane: id, State: Recovering, Since: time.Now(), Moved: time.Now(), End: -1}
	return l
}

// end has the lane let go and waits for it. When ctx ends, what is not decided
// is dropped.
func (l *lane) end(ctx context.Context) {
	l.letGo()
	select {
	case <-l.done:
	case <-ctx.Done():
		l.cancel()
		<-l.done // bounded: every wait of a cancelled session is
	}
}

// run starts session after session: after any error the next one recovers by
// the same code as the first.
func (l *lane) run() {
	defer close(l.done)
	defer l.cancel()
	defer l.countIDs(0)

	for l.leave.Err() == nil {
		began := time.Now()
		err := l.session()
		l.countIDs(0)
		if l.leave.Err() != nil {
			if err != nil && !errors.Is(err, checkpoint.ErrSuperseded) && !errors.Is(err, checkpoint.ErrNotAssigned) {
				l.log.Warn("session ended while leaving: what it left is the next owner's", "incarnation", l.at.Incarnation, "seq", l.at.Seq, "err", err)
			}
			return
		}
		if time.Since(began) > time.Minute {
			l.failures = 0
		}
		l.failures++
		l.retry(err)
	}
}

// retry waits as the error asks for, or until the lane leaves.
func (l *lane) retry(err error) {
	wait := min(100*time.Millisecond<<min(l.failures-1, 6), 5*time.Second)
	wait = wait/2 + rand.N(wait/2+1)

	log := l.log.With("incarnation", l.at.Incarnation, "seq", l.at.Seq)
	refused := checkpoint.AsRefusal(err)
	var broken *checkpoint.InvariantError
	var brokenState *dedup.InvariantError
	if refused == nil && (errors.As(err, &broken) || errors.As(err, &brokenState)) {
		refused = &checkpoint.Refusal{Reason: checkpoint.ReasonInvariant, What: l.id.String(), Err: err,
			Wrong: "something is as it can't be, and nothing was guessed",
			Next:  "keep the log, the decision and the lane's rows, and report it; see the runbook"}
		err = refused
	}
	switch {
	case refused != nil && refused.Scope == checkpoint.EndsProcess:
		// Whoever ends the process says so: other lanes may refuse for the same reason.
		l.failed(refused, err)
		l.p.fail(refused)
		wait = l.p.cfg.StoppedRetry
	case refused != nil:
		wait = l.p.cfg.StoppedRetry
		log.Error("lane stopped", "reason", refused.Reason, "err", err, "looks_again_in", wait)
		l.failed(refused, err)
	case errors.Is(err, checkpoint.ErrNotAssigned) && l.at.Incarnation == 0:
		// No session began: the group has not said yet that the lane is gone.
		log.Debug("lane not assigned: waiting for the group", "err", err, "next_in", wait)
		l.failed(nil, err)
	case errors.Is(err, checkpoint.ErrNotAssigned), errors.Is(err, checkpoint.ErrSuperseded):
		// The group will tell; if it does not, the lane is still ours.
		log.Info("session ended", "err", err, "next_in", wait)
		l.failed(nil, err)
	default:
		log.Warn("session ended, a new one recovers", "err", err, "failures", l.failures, "next_in", wait)
		l.failed(nil, err)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.leave.Done():
	}
}

// session is one session: recover (S0 to S5), start the stream (S6), work until
// the first error or until the lane leaves.
func (l *lane) session() (err error) {
	defer func() {
		// The dedup state says by a panic that what it was told can't be.
		switch p := recover().(type) {
		case nil:
		case *dedup.InvariantError:
			err = p
		default:
			panic(p)
		}
	}()
	cfg := &l.p.cfg
	l.at = checkpoint.At{Lane: l.id}
	state := dedup.New()
	// A lane that is not at work yet leaves at once: nothing of it is in flight.
	s, err := checkpoint.Open(l.leave, cfg.Job, l.id, func() bool { return l.p.source.Assigned(l.id.Partition) }, restorer{state})
	var open *checkpoint.OpenError
	if errors.As(err, &open) {
		l.at = open.At
	}
	if err != nil && l.leave.Err() != nil {
		l.log.Info("lane let go before it was at work", "incarnation", l.at.Incarnation, "seq", l.at.Seq, "err", err)
		return nil
	}
	if err != nil {
		return err //nolint:wrapcheck // it says itself what it is
	}
	defer s.Close()
	l.at = checkpoint.At{Lane: l.id, Incarnation: s.Incarnation(), Seq: s.Decision().Seq}
	defer func() { l.at.Seq = s.Decision().Seq }()

	// S6. The number changes before the stream starts: what was fetched for an
	// older session is dropped.
	d := s.Decision()
	number := l.p.session.Add(1)
	l.inbox.open(number, d.Next)
	defer l.inbox.open(0, 0)
	l.p.source.Start(l.id.Partition, number, d.Next, d.LeaderEpoch)
	defer l.p.source.Stop(l.id.Partition)
	l.running(s.Incarnation(), &d)
	r := s.Recovery()
	l.log.Info("lane running", "incarnation", s.Incarnation(), "seq", d.Seq, "next_offset", d.Next,
		"ids", d.Count, "chunks", r.Chunks, "restored_in", r.Took[checkpoint.StepRestore].Round(time.Millisecond))

	return newWork(l, s, state).run() //nolint:contextcheck // it works in the lane's own context
}

// restorer gives the dedup state the protocol's error for unknown versions.
type restorer struct{ *dedup.State }

func (r restorer) Load(data []byte) (int64, error) {
	end, err := r.State.Load(data)
	if errors.Is(err, dedup.ErrVersion) {
		err = versionError{err}
	}
	return end, err
}

// versionError is checkpoint.ErrChunkVersion with the words of dedup's error.
type versionError struct{ error }

func (versionError) Is(target error) bool { return target == checkpoint.ErrChunkVersion } //nolint:errorlint // what errors.Is asks
func (e versionError) Unwrap() error      { return e.error }

// countIDs keeps the process's number of dedup entries.
func (l *lane) countIDs(n int64) {
	l.p.ids.Add(n - l.counted)
	l.counted = n
}
