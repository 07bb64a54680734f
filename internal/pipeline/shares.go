package pipeline

import "sync/atomic"

// shares divide Config.MemoryBytes, which is what this process may hold of
// messages, among its lanes: a half is for what is fetched, the other for epochs.
//
//	1/8  the client's answers, as they come    consume.Config.FetchBytes bounds
//	1/8  what one more answer brings           these three together, whatever
//	1/4  inboxes, half of it to their bounds   batches decompress to
//	1/4  epochs being filled
//	1/4  epochs being committed, one a lane
//
// A lane's share changes with the number of lanes. It is looked at where a bound is
// looked at, so that one that became smaller is exceeded until its epochs are
// committed and its inbox is taken. At least one record always goes through, however
// small a share is: bounds are looked at behind a record.
type shares struct {
	all     int64
	each    atomic.Int64 // a quarter of all, by lane
	waiting atomic.Int64 // bytes in all inboxes
}

func newShares(all int64) *shares {
	s := &shares{all: all}
	s.divide(1)
	return s
}

// divide sets the number of lanes.
func (s *shares) divide(lanes int) { s.each.Store(max(1, s.all/4/int64(max(1, lanes)))) }

// epoch is what an epoch may hold.
func (s *shares) epoch() int64 { return s.each.Load() }

// inbox is above what a partition is paused: half of a share, as one more delivery
// may still come.
func (s *shares) inbox() int64 { return min(inboxMost, max(1, s.each.Load()/2)) }

// maxBytes is what the lane's epoch may hold.
func (w *work) maxBytes() int64 { return min(w.cfg.MaxBytes, w.l.p.shares.epoch()) }

// Waiting is how many bytes of what was delivered the lanes hold as it came.
func (p *Pipeline) Waiting() int64 { return p.shares.waiting.Load() }
