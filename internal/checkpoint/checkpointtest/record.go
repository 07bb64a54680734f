package checkpointtest

import (
	"context"

	"billing/internal/checkpoint"
)

// Event is one call, and what there is after it.
type Event struct {
	Ctx   context.Context // the caller's
	Call  string
	Fault Fault
	// Applied: the server did what it does. A late call makes two events: one
	// when it is made, and one when it is applied.
	Applied bool
	Err     error // of the server, if applied; the caller got another one if Fault is not None

	Decision checkpoint.Decision  // the last committed one
	Rows     []int64              // seq in the lane's row, by shard; 0 without one
	Prepared [][]checkpoint.GTRID // by shard
}

// Record has fn called after each call, with the world locked. Set it before the
// first call.
func (w *World) Record(fn func(e Event)) { w.record = fn }

func (w *World) recorded(ctx context.Context, call string, fault Fault, applied bool, err error) {
	if w.record == nil {
		return
	}
	e := Event{Ctx: ctx, Call: call, Fault: fault, Applied: applied, Err: err, Decision: w.last()}
	for _, s := range w.shards {
		var row int64
		if s.lane != nil {
			row = s.lane.Seq
		}
		var prepared []checkpoint.GTRID
		for g := range s.prepared {
			prepared = append(prepared, g)
		}
		e.Rows, e.Prepared = append(e.Rows, row), append(e.Prepared, prepared)
	}
	w.record(e)
}
