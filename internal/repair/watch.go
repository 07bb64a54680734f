package repair

import (
	"context"
	"errors"
	"fmt"
	"time"

	"billing/internal/checkpoint"
)

// watch ends a reading of Kafka that does not move.
type watch struct {
	stuck  *time.Timer
	within time.Duration
}

// hold stops the watch while what was read is worked on; the function that it gives
// starts it anew.
func (w *watch) hold() (goOn func()) {
	w.stuck.Stop()
	return func() { w.stuck.Reset(w.within) }
}

var errNoProgress = errors.New("no answer in time")

// whileItMoves runs a reading of Kafka. The bound is on progress, not on the whole, as
// that of a restore.
func (cfg *Config) whileItMoves(ctx context.Context, read func(ctx context.Context, w *watch) error) error {
	rctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	within := cfg.Job.Limits.Restore
	w := &watch{stuck: time.AfterFunc(within, func() { cancel(errNoProgress) }), within: within}
	defer w.stuck.Stop()
	err := read(rctx, w)
	if err != nil && errors.Is(context.Cause(rctx), errNoProgress) {
		return &checkpoint.ServerError{What: "Kafka", Err: fmt.Errorf("kafka: %w for %s (%s)", errNoProgress, within, err.Error()),
			Next: "run it again when the brokers answer: what is booked stays booked"}
	}
	return err
}
