package servers

import (
	"context"
	"fmt"
	"testing"
	"time"
)

const pollEvery = 50 * time.Millisecond

// Eventually calls f until it returns nil. When that takes longer than timeout, the test fails with f's last error.
func Eventually(t testing.TB, timeout time.Duration, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := poll(ctx, func(context.Context) error { return f() }); err != nil {
		t.Fatalf("not within %s: %v", timeout, err)
	}
}

// poll calls f until it returns nil or ctx ends; the error is then f's last one.
func poll(ctx context.Context, f func(context.Context) error) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if isFinal(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}
