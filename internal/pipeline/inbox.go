package pipeline

import (
	"sync"
	"time"

	"billing/internal/event"
)

// batch is what one delivery brings: records, or the error that ends them.
type batch struct {
	session       uint64
	records       []event.Record
	bytes         int
	highWatermark int64
	err           error
}

// inboxMost bounds an inbox whose share is larger: more of what is fetched early
// makes nothing faster.
const inboxMost = 8 << 20

// inbox holds deliveries between the polling goroutine and the lane. Above its
// bound the partition is paused, at a quarter of it resumed. A delivery is never
// refused, so the bound is exceeded by one at most. What the lane has taken counts
// until it asks for the next one.
type inbox struct {
	source    Source
	shares    *shares
	partition int32
	ready     chan struct{} // cap 1: a put since the last take; a lost wake-up is impossible, a spurious one harmless

	mu      sync.Mutex
	session uint64 // batches of any other session are dropped
	end     int64  // of the partition, as last heard of; -1 before
	read    int64  // offset behind the last record delivered
	batches []batch
	bytes   int64 // of them and of taken
	taken   int64 // by the lane: its batch in hand
	paused  bool
	unread  time.Time // since when nothing is delivered though there is more; zero otherwise
}

// open drops everything and accepts batches of the session from now on, which
// begin at the offset. Session 0 accepts none.
func (b *inbox) open(session uint64, from int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.session = session
	b.batches, b.taken = nil, 0
	b.count(-b.bytes)
	b.read, b.unread = from, time.Time{}
	if b.paused {
		b.paused = false
		b.source.Resume(b.partition)
	}
}

func (b *inbox) put(x batch) {
	b.mu.Lock()
	if x.session != b.session || b.session == 0 {
		b.mu.Unlock()
		return // fetched before a rewind: another session's
	}
	b.batches = append(b.batches, x)
	b.end = max(b.end, x.highWatermark)
	if n := len(x.records); n > 0 {
		b.read = x.records[n-1].Offset + 1
	}
	b.count(int64(x.bytes))
	b.unread = time.Time{}
	if b.bytes > b.shares.inbox() && !b.paused {
		b.paused = true
		b.source.Pause(b.partition) // under the lock, so that it can't overtake a Resume
	}
	b.mu.Unlock()
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// reach notes how far the partition goes, whether or not anything is delivered.
func (b *inbox) reach(end int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end = max(b.end, end)
	switch {
	case b.session == 0 || len(b.batches) > 0 || b.end <= b.read:
		b.unread = time.Time{}
	case b.unread.IsZero():
		b.unread = time.Now()
	}
}

// unreadSince is since when nothing is delivered though there is more, as far as
// it was looked at (see reach); zero when it is not so.
func (b *inbox) unreadSince() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unread
}

// reached is the largest end that was heard of; -1 before the first.
func (b *inbox) reached() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end
}

// take returns the oldest batch; false when there is none. The one before it is
// done with.
func (b *inbox) take() (batch, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count(-b.taken)
	b.taken = 0
	if b.paused && b.bytes <= b.shares.inbox()/4 {
		b.paused = false
		b.source.Resume(b.partition)
	}
	if len(b.batches) == 0 {
		return batch{}, false
	}
	x := b.batches[0]
	b.batches[0] = batch{}
	b.batches = b.batches[1:]
	b.taken = int64(x.bytes)
	if len(b.batches) > 0 {
		select {
		case b.ready <- struct{}{}:
		default:
		}
	}
	return x, true
}

// count keeps what the inbox holds, and with it what all of them hold.
func (b *inbox) count(n int64) {
	b.bytes += n
	b.shares.waiting.Add(n)
}
