package pipeline

import (
	"context"
	"errors"
	"fmt"
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

	leave     chan struct{} // closed by end: finish what is in flight, then return
	leaveOnce sync.Once
	ctx       context.Context // ends when the time for that is up
	cancel    context.CancelFunc
	done      chan struct{} // closed by run

	statusMu sync.Mutex
	status   Status

	counted int64 // entries of this lane in Pipeline.ids; owned by run
}

func newLane(p *Pipeline, partition int32) *lane {
	id := checkpoint.Lane{Topic: p.cfg.Job.Topic, Partition: partition}
	l := &lane{
		p: p, id: id,
		log:   p.cfg.Logger.With("lane", id.String()),
		inbox: inbox{source: p.source, partition: partition, ready: make(chan struct{}, 1)},
		leave: make(chan struct{}), done: make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.status = Status{Lane: id, State: Recovering, Since: time.Now()}
	return l
}

// end has the lane let go and waits for it. When ctx ends, what is not decided
// is dropped.
func (l *lane) end(ctx context.Context) {
	l.leaveOnce.Do(func() { close(l.leave) })
	select {
	case <-l.done:
	case <-ctx.Done():
		l.cancel()
		<-l.done // bounded: every wait of a cancelled session is
	}
}

func (l *lane) leaving() bool {
	select {
	case <-l.leave:
		return true
	default:
		return false
	}
}

// run starts session after session: after any error the next one recovers by
// the same code as the first.
func (l *lane) run() {
	defer close(l.done)
	defer l.cancel()
	defer l.countIDs(0)

	// A lane that is not at work yet leaves at once: nothing of it is in flight.
	opening, stopOpening := context.WithCancel(l.ctx)
	defer stopOpening()
	go func() {
		select {
		case <-l.leave:
			stopOpening()
		case <-l.done:
		}
	}()

	var carry []checkpoint.ExistingRow // rows that the ledger had and the dedup state did not
	for failures := 0; !l.leaving() && l.ctx.Err() == nil; {
		began := time.Now()
		err := l.session(opening, &carry)
		l.countIDs(0)
		if l.leaving() || l.ctx.Err() != nil {
			if err != nil {
				l.log.Info("session ended while leaving", "err", err)
			}
			return
		}
		if time.Since(began) > time.Minute {
			failures = 0
		}
		failures++
		l.retry(err, failures)
	}
}

// retry waits as the error asks for, or until the lane leaves.
func (l *lane) retry(err error, failures int) {
	wait := min(100*time.Millisecond<<min(failures-1, 6), 5*time.Second)
	wait = wait/2 + rand.N(wait/2+1)

	var refused *checkpoint.Refusal
	var broken *checkpoint.InvariantError
	var brokenState *dedup.InvariantError
	switch {
	case errors.As(err, &refused) && refused.Scope == checkpoint.EndsProcess:
		l.log.Error("refused: the process ends", "reason", refused.Reason, "err", err)
		l.setStopped(refused.Reason, err)
		l.p.fail(refused)
		wait = l.p.cfg.StoppedRetry
	case errors.As(err, &refused):
		l.log.Error("lane stopped", "reason", refused.Reason, "err", err, "looks_again_in", l.p.cfg.StoppedRetry)
		l.setStopped(refused.Reason, err)
		wait = l.p.cfg.StoppedRetry
	case errors.As(err, &broken), errors.As(err, &brokenState):
		l.log.Error("lane stopped: an invariant is broken; nothing was guessed", "err", err, "looks_again_in", l.p.cfg.StoppedRetry)
		l.setStopped(checkpoint.ReasonInvariant, err)
		wait = l.p.cfg.StoppedRetry
	case errors.Is(err, checkpoint.ErrNotAssigned), errors.Is(err, checkpoint.ErrSuperseded):
		// The group will tell; if it does not, the lane is still ours.
		l.log.Info("session ended", "err", err, "next_in", wait)
		l.setState(Recovering)
	default:
		l.log.Warn("session ended, a new one recovers", "err", err, "next_in", wait)
		l.setState(Recovering)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.leave:
	case <-l.ctx.Done():
	}
}

// session is one session: recover (S0 to S5), start the stream (S6), work until
// the first error or until the lane leaves.
func (l *lane) session(opening context.Context, carry *[]checkpoint.ExistingRow) (err error) {
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
	state := dedup.New()
	s, err := checkpoint.Open(opening, cfg.Job, l.id, func() bool { return l.p.source.Assigned(l.id.Partition) }, restorer{state})
	if err != nil {
		return fmt.Errorf("start a session: %w", err)
	}
	defer s.Close()

	// S6. The number changes before the stream starts: what was fetched for an
	// older session is dropped.
	d := s.Decision()
	number := l.p.session.Add(1)
	l.inbox.open(number)
	defer l.inbox.open(0)
	l.p.source.Start(l.id.Partition, number, d.Next, d.LeaderEpoch)
	defer l.p.source.Stop(l.id.Partition)
	l.running(s.Incarnation(), &d)

	return newWork(l, s, state, carry).run() //nolint:contextcheck // it works in the lane's own context
}

// restorer gives the dedup state the protocol's error for unknown versions.
type restorer struct{ *dedup.State }

func (r restorer) Load(data []byte) (int64, error) {
	end, err := r.State.Load(data)
	if errors.Is(err, dedup.ErrVersion) {
		err = fmt.Errorf("%w: %w", checkpoint.ErrChunkVersion, err)
	}
	return end, err
}

// countIDs keeps the process's number of dedup entries.
func (l *lane) countIDs(n int64) {
	l.p.ids.Add(n - l.counted)
	l.counted = n
}
