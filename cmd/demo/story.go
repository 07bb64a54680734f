package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// Bounds of the waits. All of them are far longer than what is waited for.
const (
	writingTakes   = 10 * time.Second // long enough that the kill falls into it
	bookingStalls  = time.Minute      // without progress
	catchingStalls = 20 * time.Second // until the service is caught at work
	stoppingTakes  = 20 * time.Second // after SIGTERM: what the service promises
)

// tell runs the demo. It returns errDifferent when all went its way and the
// tables are wrong.
func tell(ctx context.Context, o options, out io.Writer, p progress) (err error) {
	dir, err := os.MkdirTemp("", "billing-demo-")
	if err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	p.say("starting a private MySQL")
	db, err := startMySQL(ctx, o.mysqld, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	version, err := db.version(ctx)
	if err != nil {
		return err
	}
	broker, err := startBroker()
	if err != nil {
		return err
	}
	defer broker.Close()
	p.say("MySQL %s on port %d with %d shards, embedded broker on %s", version, db.port, len(db.shards), broker.ListenAddrs()[0])

	service, err := configure(o.billing, dir, broker.ListenAddrs(), db.dsns)
	if err != nil {
		return err
	}
	if err := service.migrate(ctx); err != nil {
		return err
	}
	p.say("billing migrate: the tables are there")

	l := makeLoad(o.count, o.seed, time.Now())
	x := l.expected.Outcomes
	p.say("%d messages made; %d are to be applied, %d are duplicates, %d conflicts, %d bad",
		o.count, x.Applied, x.Duplicate, x.Conflict, x.Rejected)
	if err := service.run(); err != nil {
		return err
	}
	defer func() { service.running.kill() }()

	writing, stopWriting := context.WithCancel(ctx)
	written := make(chan error, 1) // one writer, one result
	go func() { written <- l.write(writing, broker.ListenAddrs(), writingTakes) }()
	writerDone := false
	defer func() {
		stopWriting()
		if !writerDone {
			<-written //nolint:errcheck // another error is on its way already
		}
	}()
	p.say("billing run: started; the messages are being written, within %s", writingTakes)

	w := &watch{db: db, load: l, p: p}
	if err := w.untilHalf(ctx, service.running); err != nil {
		return err
	}
	caught, err := w.killAtWork(ctx, service.running)
	if err != nil {
		return err
	}
	p.say("SIGKILL: %s", caught.scene)
	if err := service.run(); err != nil {
		return err
	}
	p.say("billing run: started again")
	if err := w.untilAll(ctx, service.running); err != nil {
		return err
	}
	writerDone = true
	if err := <-written; err != nil {
		return err
	}
	if err := service.running.stop(stoppingTakes); err != nil {
		return err
	}
	p.say("SIGTERM: the service ended with exit code 0")

	a, err := ask(ctx, db.shards)
	if err != nil {
		return err
	}
	r := compare(l, a)
	if err := r.print(out); err != nil {
		return err
	}
	verdict := "\nEvery message is accounted for, and every row is what it had to be."
	if len(r.differences) > 0 {
		verdict, err = "\nNOT what had to come out.", errDifferent
	}
	if _, werr := fmt.Fprintf(out, "\n%d epochs in %d partitions, on %d shards. The service was killed once, between the phases of a commit:\n%s;\n%s.\n%s\n",
		len(a.epochs[0]), partitions, len(db.shards), caught.scene, caught.outcome(a), verdict); werr != nil {
		return fmt.Errorf("write the report: %w", werr)
	}
	return err
}

// watch looks at the tables while the service works.
type watch struct {
	db   *privateMySQL
	load *load
	p    progress

	rows, records int64 // ledger rows over all shards, records accounted for
	moved         time.Time
	said          time.Time
}

// look reads how far the service is. It fails when nothing moves any more or
// the service has ended.
func (w *watch) look(ctx context.Context, running *child) (err error) {
	rows, err := number(ctx, w.db.shards, ledgerRowsSQL)
	if err != nil {
		return err
	}
	// Every shard has every epoch; the last one to commit it counts.
	records := int64(-1)
	for i := range w.db.shards {
		n, err := number(ctx, w.db.shards[i:i+1], recordsSQL)
		if err != nil {
			return err
		}
		if records < 0 || n < records {
			records = n
		}
	}
	now := time.Now()
	if w.moved.IsZero() || rows != w.rows || records != w.records {
		w.moved = now
	}
	w.rows, w.records = rows, records
	if now.Sub(w.said) >= time.Second {
		w.said = now
		w.p.say("%6d written, %6d accounted for, %6d rows in the ledger", w.load.written.Load(), records, rows)
	}
	switch {
	case running.ended():
		return fmt.Errorf("billing run: ended by itself: %w%s", errors.Join(running.err, errors.New("at an unexpected moment")), running.lastWords())
	case now.Sub(w.moved) > bookingStalls:
		return fmt.Errorf("billing run: has booked nothing for %s, with %d of %d messages accounted for%s", bookingStalls, records, w.load.expected.Messages, running.lastWords())
	}
	return ctx.Err()
}

// untilHalf returns when half of the ledger's rows can be seen.
func (w *watch) untilHalf(ctx context.Context, running *child) error {
	for {
		if err := w.look(ctx, running); err != nil || w.rows >= w.load.expected.Outcomes.Applied/2 {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// untilAll returns when all messages are accounted for, or more.
func (w *watch) untilAll(ctx context.Context, running *child) error {
	w.moved = time.Time{}
	for {
		if err := w.look(ctx, running); err != nil || w.records >= w.load.expected.Messages {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// caught is the moment of the kill.
type caught struct {
	scene    string
	branches []string // names of those that were prepared
}

// outcome says what became of the prepared branches.
func (c caught) outcome(a answers) string {
	epochs := map[string]bool{}
	for _, e := range a.epochs[0] {
		epochs[e.gtrid] = true
	}
	committed := 0
	for _, name := range c.branches {
		if epochs[name] {
			committed++
		}
	}
	return fmt.Sprintf("of the branches in doubt %d were committed (their epoch was decided) and %d rolled back (it was not)",
		committed, len(c.branches)-committed)
}

// killAtWork kills the service when it has branches prepared, that is between
// the two phases of a commit. To be sure of it the process is frozen, looked
// at, and let go on until it is caught so.
func (w *watch) killAtWork(ctx context.Context, running *child) (c caught, err error) {
	for begin := time.Now(); ; {
		if err := running.signal(syscall.SIGSTOP); err != nil {
			return c, err
		}
		c.branches, err = listPrepared(ctx, w.db.shards[0])
		if err == nil {
			err = w.look(ctx, running)
		}
		if err == nil && len(c.branches) > 0 {
			running.kill()
			c.scene = fmt.Sprintf("%d of %d ledger rows were visible, %d messages were written, %d of them accounted for, branches prepared: %d",
				w.rows, w.load.expected.Outcomes.Applied, w.load.written.Load(), w.records, len(c.branches))
			return c, nil
		}
		if err = errors.Join(err, running.signal(syscall.SIGCONT)); err != nil {
			return c, err
		}
		if time.Since(begin) > catchingStalls {
			return c, fmt.Errorf("billing run: never had a branch prepared in %s%s", catchingStalls, running.lastWords())
		}
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return c, err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
