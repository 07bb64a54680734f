package consumetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"billing/internal/event"
)

// Delivery is one call of Deliver or Failed.
type Delivery struct {
	Partition int32
	Session   uint64
	Records   []event.Record
	Bytes     int
	End       int64
	Err       error // of Failed
}

// Log is a Handler that notes everything. Revoked and Lost wait for OnRevoked
// and OnLost.
type Log struct {
	OnRevoked func(ctx context.Context, partitions []int32) // may be set before the first
	OnLost    func(partitions []int32)                      // likewise
	Held      atomic.Int64                                  // what Waiting says

	mu         sync.Mutex
	calls      []string
	deliveries []Delivery
	changed    chan struct{} // closed and made anew at each change
}

func newLog() *Log { return &Log{changed: make(chan struct{})} }

func (l *Log) note(call string, d *Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if call != "" {
		l.calls = append(l.calls, call)
	}
	if d != nil {
		l.deliveries = append(l.deliveries, *d)
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// Assigned implements consume.Handler.
func (l *Log) Assigned(ps []int32) { l.note(fmt.Sprint("assigned ", ps), nil) }

// Revoked implements consume.Handler.
func (l *Log) Revoked(ctx context.Context, ps []int32) {
	if l.OnRevoked != nil {
		l.OnRevoked(ctx, ps)
	}
	l.note(fmt.Sprint("revoked ", ps), nil)
}

// Lost implements consume.Handler.
func (l *Log) Lost(ps []int32) {
	if l.OnLost != nil {
		l.OnLost(ps)
	}
	l.note(fmt.Sprint("lost ", ps), nil)
}

// Deliver implements consume.Handler.
func (l *Log) Deliver(p int32, session uint64, rs []event.Record, bytes int, end int64) {
	l.note("", &Delivery{Partition: p, Session: session, Records: rs, Bytes: bytes, End: end})
}

// Waiting implements consume.Handler.
func (l *Log) Waiting() int64 { return l.Held.Load() }

// Failed implements consume.Handler.
func (l *Log) Failed(p int32, session uint64, err error) {
	l.note("", &Delivery{Partition: p, Session: session, Err: err})
}

// Calls are the calls of Assigned, Revoked and Lost.
func (l *Log) Calls() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.calls...)
}

// Deliveries are the calls of Deliver and Failed.
func (l *Log) Deliveries() []Delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Delivery(nil), l.deliveries...)
}

// Await calls f at each change until it is content.
func (l *Log) Await(t testing.TB, f func(l *Log) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		l.mu.Lock()
		changed := l.changed
		l.mu.Unlock()
		err := f(l)
		if err == nil {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("not within %s: %v", patience, err)
		}
	}
}

// Values are the delivered values of one partition and session, and whether
// its offsets grow.
func (l *Log) Values(t testing.TB, partition int32, session uint64) []string {
	t.Helper()
	var values []string
	last := int64(-1)
	for _, d := range l.Deliveries() {
		if d.Partition != partition || d.Session != session {
			continue
		}
		for _, r := range d.Records {
			if r.Offset <= last {
				t.Fatalf("partition %d session %d: offset %d came after %d", partition, session, r.Offset, last)
			}
			last = r.Offset
			if !r.Control {
				values = append(values, string(r.Value))
			}
		}
	}
	return values
}

// AwaitValues returns when exactly these were delivered.
func (l *Log) AwaitValues(t testing.TB, partition int32, session uint64, want ...string) {
	t.Helper()
	l.Await(t, func(l *Log) error {
		got := l.Values(t, partition, session)
		if slices.Equal(got, want) {
			return nil
		}
		err := fmt.Errorf("partition %d session %d: got %q, want %q", partition, session, got, want)
		if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
			t.Fatal(err) // nothing that comes makes it right
		}
		return err
	})
}

// AwaitFailed returns the error that a partition's session failed with.
func (l *Log) AwaitFailed(t testing.TB, partition int32, session uint64) (failed error) {
	t.Helper()
	l.Await(t, func(l *Log) error {
		for _, d := range l.Deliveries() {
			if d.Partition == partition && d.Session == session && d.Err != nil {
				failed = d.Err
				return nil //nolint:nilerr // that it has failed is what is awaited
			}
		}
		return errors.New("nothing has failed")
	})
	return failed
}
