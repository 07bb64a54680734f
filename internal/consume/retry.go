package consume

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// again runs try until it succeeds, fails with what may not be tried again, or
// ctx ends. That it has ended is asked of ctx itself: a dial that timed out is
// a context.DeadlineExceeded too, and says nothing of ours.
func again(ctx context.Context, may func(error) bool, try func() error) error {
	var last error // of the tries before this one: it says more than the end of ctx
	for n := 1; ; n++ {
		err := try()
		if err == nil {
			return nil
		}
		if cerr := ctx.Err(); cerr != nil {
			if last != nil {
				err = fmt.Errorf("%w, last: %w", err, last)
			}
			if !errors.Is(err, cerr) {
				err = fmt.Errorf("%w: %w", cerr, err)
			}
			return err
		}
		if !may(err) {
			return err
		}
		last = err
		wait := retryBackoff(n)
		if errors.Is(err, kerr.ConcurrentTransactions) {
			// The markers of the lane's own last transaction, mostly, a few ms long.
			wait = min(time.Duration(n)*2*time.Millisecond, 50*time.Millisecond)
		}
		if cerr := pause(ctx, wait); cerr != nil {
			return fmt.Errorf("%w, last: %w", cerr, err)
		}
	}
}

// transient reports whether the same request may succeed later: everything
// but a broker's final answer and the end of the client.
func transient(err error) bool {
	if errors.Is(err, kgo.ErrClientClosed) {
		return false
	}
	if errors.Is(err, kerr.ConcurrentTransactions) {
		return true
	}
	var ke *kerr.Error
	if errors.As(err, &ke) {
		return ke.Retriable
	}
	var final *finalError
	return !errors.As(err, &final)
}

// finalError is one that another try does not heal.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

// retryBackoff is the wait before try n (from 1): 20 ms doubling to 1 s, with
// jitter, so that lanes that failed together do not come back together.
func retryBackoff(n int) time.Duration {
	d := min(20*time.Millisecond<<min(max(n-1, 0), 10), time.Second)
	return d/2 + rand.N(d/2+1)
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
