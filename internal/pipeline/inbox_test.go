package pipeline

import (
	"context"
	"testing"

	"billing/internal/event"
)

// pausing notes what the inbox asks of the source.
type pausing struct{ paused, calls int }

func (p *pausing) Start(int32, uint64, int64, int32) {}
func (p *pausing) Stop(int32)                        {}
func (p *pausing) Pause(int32)                       { p.paused++; p.calls++ }
func (p *pausing) Resume(int32)                      { p.paused--; p.calls++ }
func (p *pausing) Assigned(int32) bool               { return true }
func (p *pausing) SkipTail(_ context.Context, _ int32, from int64) (int64, error) {
	return from, nil
}

func newTestInbox() (*inbox, *pausing) {
	s := &pausing{}
	return &inbox{source: s, ready: make(chan struct{}, 1)}, s
}

// TestBatchesOfOlderSessionsAreDropped: a batch that was fetched before a rewind
// may still be on its way.
func TestBatchesOfOlderSessionsAreDropped(t *testing.T) {
	b, _ := newTestInbox()
	records := []event.Record{{Offset: 1}}
	b.put(batch{session: 1, records: records})
	if _, ok := b.take(); ok {
		t.Error("a batch before any session was taken")
	}
	b.open(2)
	b.put(batch{session: 1, records: records})
	b.put(batch{session: 2, records: records})
	if x, ok := b.take(); !ok || x.session != 2 {
		t.Errorf("got session %d", x.session)
	}
	if _, ok := b.take(); ok {
		t.Error("the older session's batch is still there")
	}
	b.put(batch{session: 2, records: records})
	b.open(3)
	if _, ok := b.take(); ok {
		t.Error("a batch outlived its session")
	}
}

// TestInboxIsBounded: above the bound the partition is paused, once, and it is
// resumed when the lane has taken enough.
func TestInboxIsBounded(t *testing.T) {
	b, s := newTestInbox()
	b.open(1)
	for range 20 {
		b.put(batch{session: 1, bytes: 1 << 20})
	}
	if s.paused != 1 || s.calls != 1 {
		t.Errorf("paused %d times by %d calls", s.paused, s.calls)
	}
	for range 18 {
		if _, ok := b.take(); !ok {
			t.Fatal("a batch is missing")
		}
	}
	if s.paused != 0 || s.calls != 2 {
		t.Errorf("paused %d by %d calls with two batches left", s.paused, s.calls)
	}
	// A session that ends paused does not leave the partition paused.
	for range 20 {
		b.put(batch{session: 1, bytes: 1 << 20})
	}
	b.open(2)
	if s.paused != 0 {
		t.Error("the next session begins paused")
	}
}
