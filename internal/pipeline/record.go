package pipeline

import (
	"fmt"

	"billing/internal/checkpoint"
	"billing/internal/dedup"
	"billing/internal/event"
)

// decoded is what a record says.
type decoded struct {
	event     event.Event
	rejection *event.Rejection // nil for an event
}

// ahead is how many records are decoded before the first of them is taken. What
// their look-ups wait for, memory, is then waited for together.
const ahead = 16

// decode reads records ahead, at most so many. That depends on each of them alone.
func (w *work) decode(records []event.Record) {
	for i := range records {
		if !records[i].Control {
			d := &w.ahead[i]
			d.rejection = w.decoder.Decode(&records[i], &d.event)
		}
	}
	for i := range records {
		if !records[i].Control && w.ahead[i].rejection == nil {
			w.state.Warm(&w.ahead[i].event.Key)
		}
	}
}

// take gives one record its outcome: applied, duplicate, conflict or rejected.
// latest is the largest event time that is not in the future, µs since 1970.
func (w *work) take(r *event.Record, d *decoded, latest int64) error {
	if r.Control {
		// It moves the position only; an idle lane may have looked past it.
		if r.Offset >= w.position {
			w.position, w.leaderEpoch = r.Offset+1, r.LeaderEpoch
		}
		return nil
	}
	if r.Offset < w.position {
		return &checkpoint.InvariantError{What: fmt.Sprintf("offset %d delivered after %d", r.Offset, w.position-1)}
	}
	w.position, w.leaderEpoch = r.Offset+1, r.LeaderEpoch

	if d.rejection != nil {
		w.epoch.Reject(r, d.rejection.Reason, d.rejection.Detail)
		return nil
	}
	e := &d.event
	if n := int64(e.UnknownFields); n > 0 && w.cfg.UnknownFields != nil {
		w.cfg.UnknownFields(n)
	}

	// Time before dedup: an id may be forgotten exactly when its event can no
	// longer be accepted.
	if e.Time > latest {
		w.epoch.InFuture(r, w.cfg.Skew)
		return nil
	}
	if e.Time < w.forgottenBefore {
		w.epoch.TooOld(r, w.forgottenBefore)
		return nil
	}

	first, known := w.state.Lookup(&e.Key, w.forgottenBefore)
	if !known && len(w.booked) > 0 {
		first, known = w.fromLedger(e)
	}
	if known {
		switch {
		case first.Offset >= r.Offset:
			// Neither applied nor duplicate: the state is ahead of the stream.
			return &checkpoint.InvariantError{What: fmt.Sprintf("the dedup state has the id of offset %d already, from offset %d: the offset was set back with the state kept", r.Offset, first.Offset)}
		case first.Content == e.Content:
			w.epoch.Duplicate()
		default:
			w.epoch.Conflict(r, e, first.Offset)
		}
		return nil
	}

	w.state.Add(&e.Key, e.Content, r.Offset, e.Time)
	w.epoch.Apply(e, r.Offset)
	if e.Time > w.streamTime {
		w.streamTime = e.Time
		w.moveHorizon()
	}
	return nil
}

// fromLedger is the ledger's word on an id that the dedup state does not know, and has
// the state remember it. It is asked for each such record, not once: the state may know
// the id when the session begins, and forget it by the epoch's own events before the id
// comes again. Applied then, it would fail the same epoch for ever.
func (w *work) fromLedger(e *event.Event) (first dedup.Entry, known bool) {
	row, known := w.booked[e.Key]
	if !known {
		return dedup.Entry{}, false
	}
	w.state.Add(&e.Key, row.Content, row.Offset, max(row.Time, e.Time)) // the row's bucket may be forgotten by now
	return dedup.Entry{Offset: row.Offset, Content: row.Content}, true
}

// moveHorizon keeps the rule: an event older than the lane's stream time less
// the lateness is too old, and what was forgotten stays forgotten when the
// lateness is raised later.
func (w *work) moveHorizon() {
	if w.streamTime != 0 {
		w.forgottenBefore = max(w.forgottenBefore, w.streamTime-w.cfg.Lateness.Microseconds())
	}
}
