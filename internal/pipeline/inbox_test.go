package pipeline

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

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
	return &inbox{source: s, shares: newShares(64 << 20), ready: make(chan struct{}, 1)}, s
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
	b.open(2, 0)
	b.put(batch{session: 1, records: records})
	b.put(batch{session: 2, records: records})
	if x, ok := b.take(); !ok || x.session != 2 {
		t.Errorf("got session %d", x.session)
	}
	if _, ok := b.take(); ok {
		t.Error("the older session's batch is still there")
	}
	b.put(batch{session: 2, records: records})
	b.open(3, 0)
	if _, ok := b.take(); ok {
		t.Error("a batch outlived its session")
	}
}

// TestInboxIsBounded: above the bound the partition is paused, once, and it is
// resumed when the lane has taken enough.
func TestInboxIsBounded(t *testing.T) {
	b, s := newTestInbox()
	b.open(1, 0)
	for range 20 {
		b.put(batch{session: 1, bytes: 1 << 20})
	}
	if s.paused != 1 || s.calls != 1 {
		t.Errorf("paused %d times by %d calls", s.paused, s.calls)
	}
	if got := b.shares.waiting.Load(); got != 20<<20 {
		t.Errorf("%d bytes wait", got)
	}
	for i := range 19 {
		if s.paused != 1 {
			t.Errorf("resumed with %d batches left, one of them in hand", 20-i)
		}
		if _, ok := b.take(); !ok {
			t.Fatal("a batch is missing")
		}
	}
	if s.paused != 0 || s.calls != 2 {
		t.Errorf("paused %d by %d calls with two batches left, one of them in hand", s.paused, s.calls)
	}
	b.take()
	if _, ok := b.take(); ok || b.shares.waiting.Load() != 0 {
		t.Errorf("%d bytes wait in an empty inbox", b.shares.waiting.Load())
	}
	// A session that ends paused does not leave the partition paused.
	for range 20 {
		b.put(batch{session: 1, bytes: 1 << 20})
	}
	b.open(2, 0)
	if s.paused != 0 || b.shares.waiting.Load() != 0 {
		t.Errorf("the next session begins paused %d times, with %d bytes waiting", s.paused, b.shares.waiting.Load())
	}
}

// TestInboxShares: the bound of an inbox is its lane's share, and one that is
// smaller than any delivery stops nothing.
func TestInboxShares(t *testing.T) {
	b, s := newTestInbox()
	b.open(1, 0)
	for range 7 {
		b.put(batch{session: 1, bytes: 1 << 20})
	}
	b.shares.divide(64) // 256 KiB each
	b.put(batch{session: 1, bytes: 1})
	if s.paused != 1 {
		t.Error("a smaller share is not felt")
	}
	for range 8 {
		if _, ok := b.take(); !ok {
			t.Fatal("a batch is missing")
		}
	}
	b.shares.all = 0
	b.shares.divide(64)
	for i := range 3 {
		b.take()
		if s.paused != 0 {
			t.Fatal("nothing is left, and the partition is paused")
		}
		b.put(batch{session: 1, bytes: 1 << 20})
		if _, ok := b.take(); !ok || s.paused != 1 {
			t.Fatalf("delivery %d: taken %t, paused %d", i, ok, s.paused)
		}
	}
}

// TestUnread: an inbox knows since when nothing comes though there is more.
func TestUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newTestInbox()
		unread := func(what string, want bool) {
			t.Helper()
			if got := b.unreadSince(); got.IsZero() == want {
				t.Errorf("%s: unread since %v, want %t", what, got, want)
			}
		}
		b.reach(7)
		unread("no session", false)
		b.open(1, 5)
		unread("not looked yet", false)
		b.reach(7)
		unread("two are there", true)
		since := b.unreadSince()
		<-time.After(time.Minute)
		b.reach(9)
		if b.unreadSince() != since {
			t.Errorf("more of it begins the time anew")
		}
		b.put(batch{session: 1, records: []event.Record{{Offset: 5}, {Offset: 6}}, highWatermark: 9})
		unread("something has come", false)
		b.reach(9)
		unread("it is not taken yet", false)
		b.take()
		b.reach(9)
		unread("and two more are there", true)
		b.put(batch{session: 1, records: []event.Record{{Offset: 8, Control: true}}, highWatermark: 9})
		b.take()
		b.reach(9)
		unread("all was delivered", false)
		b.reach(10)
		b.open(2, 10)
		unread("another session", false)
	})
}
