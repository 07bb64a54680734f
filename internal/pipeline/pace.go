package pipeline

import (
	"time"

	"billing/internal/dedup"
)

// Where an epoch ends. A lane that keeps up ends it after the interval: its epochs
// are small, and what was read shows soon. One that is behind keeps it open, so
// that more messages share a row and fewer decisions are made, up to bounds of
// rows, records and memory; and of rows only as many as the shards take in the time
// that an epoch may have.

// pace is how large epochs may become. It belongs to a session: the next one begins
// with few rows again.
type pace struct {
	open    time.Duration // so long a lane that is behind keeps an epoch open
	within  time.Duration // that a checkpoint should take
	rows    int           // bound of the next epoch
	maxRows int           // bound of rows
	begun   time.Time     // when the epoch that is being filled got its first record
	seen    int64         // position at the last look whether to keep it open
	back    bool          // see comeBack
}

const (
	// firstRows is the bound of a session's first epoch: many lanes may begin
	// together, on a shard that is slow.
	firstRows = 2000
	// leastRows is what a slow shard gets in any case, and the first epoch of a lane
	// that is back.
	leastRows = 500
	// openLook is how often an epoch that is kept open is looked at. A fetch waits
	// less long for more.
	openLook = 250 * time.Millisecond
)

func newPace(cfg *Config) pace {
	open := max(cfg.Interval, cfg.MaxInterval)
	// Far below phase 1's own bound: a shard may take the next epoch more slowly.
	return pace{open: open, within: min(open, cfg.Job.Limits.Prepare/4), rows: min(firstRows, cfg.MaxRows), maxRows: cfg.MaxRows}
}

// comeBack is for a lane that was somebody else's, and for which records were waiting.
// Until its first epoch is decided nobody knows that it is at work again, so that one
// ends with what has come first, and has few rows: all lanes of an instance that has died
// come back together, and the last one of them is waited for.
func (p *pace) comeBack() { p.back, p.rows = true, min(leastRows, p.maxRows) }

// follow sets the bound by what the last epoch's checkpoint took: at most double, and
// not beyond what would have taken too long. A small epoch says nothing of what a
// large one would take, unless it was slow.
func (p *pace) follow(rows int, took time.Duration) {
	fits := p.maxRows
	if f := float64(rows) * float64(p.within) / float64(max(took, 1)); f < float64(fits) {
		fits = int(f)
	}
	switch {
	case took > p.within:
		p.rows = min(p.rows, max(fits, min(leastRows, p.maxRows)))
	case rows >= p.rows/2:
		p.rows = max(p.rows, min(2*p.rows, fits))
	}
}

// full: the epoch has come to a bound.
func (w *work) full() bool {
	in := w.epoch.Counts.In
	return in > 0 && (in >= w.maxRecords() || w.epoch.Rows() >= w.pace.rows || w.held() >= w.maxBytes() || w.position == w.l.retried.upTo)
}

// held is what the epoch holds in memory.
func (w *work) held() int64 { return w.epoch.Bytes + int64(w.state.Added())*dedup.AdditionBytes }

func (w *work) maxRecords() int64 {
	if n := w.l.retried.maxRecords; n > 0 {
		return n
	}
	return int64(w.cfg.MaxRecords)
}

// keepOpen: the barrier's time has come, and the lane is behind: more is waiting than
// the epoch has, and it comes. Behind an open Kafka transaction there may be much that
// does not.
func (w *work) keepOpen() bool {
	comes := w.position > w.pace.seen
	w.pace.seen = w.position
	return comes && time.Since(w.pace.begun) < w.pace.open && w.l.inbox.reached()-w.position > w.epoch.Counts.In
}
