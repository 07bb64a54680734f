package main

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/consume"
	"billing/internal/loadgen"
)

// notedLoad is a writer that notes when it was given what.
type notedLoad struct {
	wrote   []time.Time // of each message of good
	ends    []time.Time // of Kafka transactions that were committed
	sizes   []int
	aborted int
	flushed int // messages before the last Flush
	fail    error
	acked   atomic.Int64
}

func (n *notedLoad) Write(context.Context, *consume.Message) error {
	n.wrote = append(n.wrote, time.Now())
	n.acked.Add(1)
	return n.fail
}

func (n *notedLoad) Flush(context.Context) error {
	n.flushed = len(n.wrote)
	return nil
}

func (n *notedLoad) Acknowledged() int64 { return n.acked.Load() }

func (n *notedLoad) Transaction(ctx context.Context, messages []consume.Message, commit bool) error {
	if ctx.Err() != nil {
		return errors.New("a signal ends what is on its way")
	}
	if !commit {
		n.aborted++
		return nil
	}
	for range messages {
		n.wrote = append(n.wrote, time.Now())
	}
	n.sizes, n.ends = append(n.sizes, len(messages)), append(n.ends, time.Now())
	return n.fail
}

func writing(f *loadFlags, to loadWriter) *loadWriting {
	f.accounts = 10
	return newLoadWriting(loadgen.Config{
		Count: f.count, Accounts: f.accounts, Duplicates: 0.2, Bad: 0.1, Partitions: 2, Now: time.Unix(1_800_000_000, 0), Rate: f.rate,
		Lateness: time.Hour, Window: time.Hour, TypePrefix: "a.", Currencies: []string{"EUR"},
	}, f, to)
}

// Messages are written when they are due, for hours: never earlier, for then they
// would come from the future.
func TestLoadIsWrittenEvenly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &notedLoad{}
		w := writing(&loadFlags{count: 5_000, rate: 0.25}, n)
		start := time.Now()
		if err := w.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, at := range n.wrote {
			if want := start.Add(time.Duration(i) * 4 * time.Second); !at.Equal(want) {
				t.Fatalf("message %d is written after %s", i, at.Sub(start))
			}
		}
		a := w.answer("t", 2)
		if n.flushed != 5_000 || a.Messages != 5_000 || a.Seconds != 4_999*4 || a.MessagesPerSecond != 5_000.0/(4_999*4) || a.Interrupted {
			t.Errorf("%d flushed, %+v", n.flushed, a)
		}
	})
}

// A Kafka transaction is begun when it is full, and not held open for hours.
func TestLoadInTransactionsIsWrittenEvenly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &notedLoad{}
		w := writing(&loadFlags{count: 2_050, rate: 0.5, transactions: 100, abortShare: 1}, n)
		start := time.Now()
		if err := w.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, at := range n.ends {
			if last := min(100*(i+1), 2_050) - 1; !at.Equal(start.Add(time.Duration(last) * 2 * time.Second)) {
				t.Fatalf("transaction %d of %d is committed after %s", i, n.sizes[i], at.Sub(start))
			}
		}
		if len(n.ends) != 21 || n.sizes[20] != 50 || n.aborted != 22 || w.written() != 2_050 {
			t.Errorf("committed %v, aborted %d, written %d", n.sizes, n.aborted, w.written())
		}
	})
}

// A signal while the next message is waited for ends the wait, and what was made
// is written.
func TestLoadIsInterrupted(t *testing.T) {
	for _, size := range []int{0, 100, 7} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 999*time.Second)
			defer cancel()
			n := &notedLoad{}
			w := writing(&loadFlags{count: 5_000, rate: 0.1, transactions: size}, n)
			start := time.Now()
			if err := w.run(ctx); err != nil {
				t.Fatal(err)
			}
			a := w.answer("t", 2)
			if !a.Interrupted || a.Messages != 100 || len(n.wrote) != 100 || time.Since(start) != 999*time.Second || size == 0 && n.flushed != 100 {
				t.Errorf("%d written, %d flushed after %s, %+v", len(n.wrote), n.flushed, time.Since(start), a)
			}
		})
	}
}

func TestLoadEndsAtTheFirstError(t *testing.T) {
	for _, size := range []int{0, 100} {
		n := &notedLoad{fail: errors.New("lost")}
		if err := writing(&loadFlags{count: 500, transactions: size}, n).run(t.Context()); !errors.Is(err, n.fail) || len(n.wrote) > 100 {
			t.Errorf("%v after %d messages", err, len(n.wrote))
		}
	}
}

// Whoever reads a log gets a line now and then, and none for a short run; whoever
// sits before a terminal one line that is written again and again.
// An answer that can't be written is none.
func TestAnswerThatIsNotTaken(t *testing.T) {
	w := writing(&loadFlags{count: 500}, &notedLoad{})
	if err := w.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := writeLoadAnswer(&full{room: 2_000}, w.answer("t", 2), w.load.Totals()); err == nil || !strings.Contains(err.Error(), "answer: write: no room") {
		t.Errorf("got %v", err)
	}
}

// full is a writer that takes a part.
type full struct{ room int }

func (f *full) Write(b []byte) (int, error) {
	if f.room -= len(b); f.room < 0 {
		return 0, errors.New("no room")
	}
	return len(b), nil
}
