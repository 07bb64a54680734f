package repair

import (
	"fmt"
	"time"

	"billing/internal/dedup"
	"billing/internal/event"
)

// horizon is what the lane's stream had come to when a record had its outcome, µs
// since 1970 UTC. It is exact where the decision before the lost epochs is still
// there, and behind each one that is; else it lies between two bounds, which hardly
// any record falls between.
type horizon struct {
	streamLow, streamHigh int64
	low, high             int64 // of forgotten_before
	lateness              int64
	end                   int64 // forgotten_before of the last decision: entries of buckets up to there are gone
}

func newHorizon(l *Loss, cfg *Config, state *dedup.State) horizon {
	first, d := l.epochs[0], &l.Decision
	h := horizon{lateness: cfg.Lateness.Microseconds(), end: d.ForgottenBefore}
	if was, ok := l.start.reached[first.seq-1]; ok {
		h.is(was)
	} else {
		h.streamLow, h.streamHigh = state.NewestBefore(first.from), d.StreamTime
		h.high = d.ForgottenBefore
	}
	h.move()
	return h
}

// is: a decision says it.
func (h *horizon) is(r reached) {
	h.streamLow, h.streamHigh, h.low, h.high = r.streamTime, r.streamTime, r.forgottenBefore, r.forgottenBefore
}

// move is the rule by which a lane forgets, for both bounds. Neither comes beyond
// what the last decision says.
func (h *horizon) move() {
	if h.streamLow != 0 {
		h.low = max(h.low, h.streamLow-h.lateness)
	}
	if h.streamHigh != 0 {
		h.high = max(h.high, h.streamHigh-h.lateness)
	}
}

func (h *horizon) applied(t int64) {
	if t > h.streamLow {
		h.streamLow = t
		h.streamHigh = max(h.streamHigh, t)
		h.move()
	}
}

// reaches reports whether the stream can have come to what a decision says.
func (h *horizon) reaches(r reached) bool {
	return h.streamLow <= r.streamTime && r.streamTime <= h.streamHigh && h.low <= r.forgottenBefore && r.forgottenBefore <= h.high
}

func (h horizon) String() string {
	if h.streamLow == h.streamHigh && h.low == h.high {
		return fmt.Sprintf("%d and %d µs", h.streamLow, h.low)
	}
	return fmt.Sprintf("%d to %d and %d to %d µs", h.streamLow, h.streamHigh, h.low, h.high)
}

// forgotten reports whether an id of an event of this time was forgotten until the
// last decision.
func (h *horizon) forgotten(t int64) bool {
	return t/dedup.BucketWidth < max(h.end, 0)/dedup.BucketWidth
}

// forgets reports whether any id was forgotten since.
func (h *horizon) forgets() bool {
	return max(h.low, 0)/dedup.BucketWidth < max(h.end, 0)/dedup.BucketWidth
}

// clock is when the records of an epoch had their outcomes; a zero time is not
// known.
type clock struct{ from, to time.Time }

// clockOf is by the clock of the service: an epoch's first record is taken when the
// epoch before it was frozen, which was when the one before that was on every
// shard; and its last one before it was prepared.
func (s *start) clockOf(seq int64) clock { return clock{from: s.written[seq-2], to: s.written[seq]} }

// take gives a record the outcome that it had. Each is told by a fact: the state
// says where an id was first applied.
func (r *replay) take(rec *event.Record, written time.Time) error {
	r.passed(rec.Offset)
	applied := len(r.applied) > 0 && r.applied[0] == rec.Offset
	if applied {
		r.applied = r.applied[1:]
	}
	var e event.Event
	if rejection := r.decoder.Decode(rec, &e); rejection != nil {
		if applied {
			return r.refuse(ReasonNotExact, sameConfiguration,
				"the message at offset %d was applied, but by this configuration it is rejected (%s)", rec.Offset, rejection.Reason)
		}
		r.filling.Reject(rec, rejection.Reason, rejection.Detail)
		return nil
	}
	h := &r.horizon
	first, known := r.state.Lookup(&e.Key, r.Decision.ForgottenBefore)
	switch {
	case applied:
		if !known || first.Offset != rec.Offset || first.Content != e.Content || e.Time < h.low {
			return r.refuse(ReasonNotExact, sameConfiguration,
				"the message at offset %d was applied, but what it says now is not what the dedup state remembers of it", rec.Offset)
		}
		r.filling.Apply(&e, rec.Offset)
		h.applied(e.Time)
	case e.Time < h.low:
		r.filling.TooOld(rec, h.low)
	case e.Time < h.high:
		r.cannotTell(rec) // too old, or not
	case h.forgotten(e.Time):
		r.cannotTell(rec) // applied and forgotten since, or not applied
	case known && first.Offset < rec.Offset && first.Content == e.Content:
		r.filling.Duplicate() // it was not in the future: the first one was not
	case known && first.Offset < rec.Offset:
		switch r.future(e.Time, written) {
		case no:
			r.filling.Conflict(rec, &e, first.Offset)
		case yes:
			r.filling.InFuture(rec, r.cfg.Skew)
		default:
			r.cannotTell(rec)
		}
	default:
		// Its id is not known, and it was not applied. Either its time was ahead, or
		// its id was known then: by an event so old that it is forgotten since.
		switch future := r.future(e.Time, written); {
		case future != yes && h.forgets():
			r.cannotTell(rec)
		case future == no:
			return r.refuse(ReasonNotExact, sameConfiguration,
				"the message at offset %d was not applied, but by this configuration it would have been", rec.Offset)
		default:
			r.filling.InFuture(rec, r.cfg.Skew)
		}
	}
	return nil
}

const sameConfiguration = "use the configuration that the epochs were written with (message, dedup, and whatever of it was changed since); if it is the same, see the runbook"

// passed notes what was applied before the offset and is not in Kafka.
func (r *replay) passed(offset int64) {
	for len(r.applied) > 0 && r.applied[0] < offset {
		if r.gone++; r.gone == 1 {
			r.firstGone = r.applied[0]
		}
		r.applied = r.applied[1:]
	}
}

// cannotTell notes a record whose outcome is not known any more.
func (r *replay) cannotTell(rec *event.Record) {
	const some = 5
	if r.unsureAll++; len(r.unsure) < some {
		r.unsure = append(r.unsure, rec.Offset)
	}
}

type answer int

const (
	unknown answer = iota
	no
	yes
)

// future answers whether an event of this time was in the future when it was
// looked at. What was applied before was not, so nothing up to its time is. And it
// was looked at when it was in Kafka: the clock of who wrote it is believed, where
// it is not behind what the service did with it.
func (r *replay) future(t int64, written time.Time) answer {
	skew := r.cfg.Skew
	from := r.clock.from
	if written.After(from) && !written.After(r.clock.to) {
		from = written
	}
	switch {
	case t <= r.horizon.streamLow, !from.IsZero() && t <= from.Add(skew).UnixMicro():
		return no
	case !r.clock.to.IsZero() && t > r.clock.to.Add(skew).UnixMicro():
		return yes
	}
	return unknown
}
