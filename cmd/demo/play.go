package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Bounds of the waits. All of them are far longer than what is waited for.
const (
	bookingStalls = time.Minute      // without progress
	stoppingTakes = 20 * time.Second // after SIGTERM: what the service promises
)

// play is one contender at work: started, killed at each bad moment and started
// again, until it has accounted for all messages.
type play struct {
	contender *contender
	mysql     *privateMySQL
	broker    *broker
	screen    *screen
	ends      offsets
	begun     time.Time

	process *child
	killed  time.Time
	frozen  time.Duration // by looks for the moments of kills, none of the contender's doing
	marks   []float64     // where in the progress it was killed
	done    int64
	moved   time.Time // when done last grew
}

// run gives the kills, and how long all of it took, less the time for which it was
// frozen in order to look.
func (p *play) run(ctx context.Context) (kills []caught, took time.Duration, err error) {
	p.begun = time.Now()
	if err := p.start(); err != nil {
		return nil, 0, err
	}
	defer func() { p.process.kill() }()
	total := p.ends.sum()
	for i, wanted := range moments {
		place := total * int64(i+1) / int64(len(moments)+1)
		if err := p.until(ctx, func(f facts) bool { return f.committed.sum() >= place }); err != nil {
			return nil, 0, err
		}
		f, err := p.kill(ctx, wanted, place)
		if err != nil {
			return nil, 0, err
		}
		c := describe(wanted, f)
		p.marks = append(p.marks, float64(c.Messages)/float64(total))
		before := f.farthest()
		if err := p.start(); err != nil {
			return nil, 0, err
		}
		// Where everything was booked before the kill, nothing new can come.
		if err := p.until(ctx, func(f facts) bool { return f.beyond(before) || before == p.ends && f.committed == p.ends && f.finished }); err != nil {
			return nil, 0, err
		}
		c.Recovery = time.Since(p.killed).Seconds()
		kills = append(kills, c)
		p.screen.say(bad, "SIGKILL at %s: %s; books again after %.2f s", grouped(c.Messages), c.Facts, c.Recovery)
	}
	if err := p.until(ctx, func(f facts) bool { return f.committed == p.ends && f.finished }); err != nil {
		return nil, 0, err
	}
	took = time.Since(p.begun) - p.frozen
	return kills, took, p.process.stop(stoppingTakes)
}

// start starts the contender. The process of before stays where there is no other.
func (p *play) start() error {
	process, err := p.contender.start()
	if err == nil {
		p.process = process
	}
	return err
}

// describe says which of the moments that are true the kill is shown as: the
// wanted one, or another.
func describe(wanted moment, f facts) caught {
	is := moment(0)
	for _, m := range moments {
		if f.at&m != 0 && (is == 0 || m == wanted) {
			is = m
		}
	}
	c := caught{Wanted: wanted.String(), Moment: is.String(), Facts: f.words[is], Messages: f.committed.sum()}
	if is == 0 {
		c.Facts = "nothing was on its way"
	}
	return c
}

// until looks until the facts are so. It fails when nothing moves any more or the
// process has ended.
func (p *play) until(ctx context.Context, so func(facts) bool) error {
	p.moved = time.Now()
	for {
		f, err := p.contender.look(ctx)
		if err != nil || so(f) {
			return err
		}
		p.show(f)
		switch {
		case p.process.ended():
			return fmt.Errorf("%s: ended: %w%s", p.contender.name, errors.Join(p.process.err, errors.New("by itself, at an unexpected moment")), p.process.lastWords())
		case time.Since(p.moved) > bookingStalls:
			return fmt.Errorf("%s: stands still for %s, with %d of %d messages accounted for%s", p.contender.name, bookingStalls, p.done, p.ends.sum(), p.process.lastWords())
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// show shows how far the contender is.
func (p *play) show(f facts) {
	if n := f.committed.sum(); n != p.done {
		p.done, p.moved = n, time.Now()
	}
	p.screen.bar(p.contender.name, p.done, p.ends.sum(), time.Since(p.begun)-p.frozen, p.marks)
}

func (p *play) freeze() error { return p.send(syscall.SIGSTOP) }
func (p *play) thaw() error   { return p.send(syscall.SIGCONT) }

func (p *play) send(s syscall.Signal) error {
	if err := p.process.signal(s); err != nil {
		return fmt.Errorf("%w%s", err, p.process.lastWords())
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
