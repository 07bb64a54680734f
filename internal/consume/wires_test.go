package consume

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// TestSilentWiresAreClosedTogether: an answer that does not come in time closes
// the other connections to the broker, but for those that speak.
func TestSilentWiresAreClosedTogether(t *testing.T) {
	for _, c := range []struct {
		name   string
		giveUp bool // before the answer's time is over
		closed bool
	}{
		{"no answer in time", false, true},
		{"the call was given up", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var brokers []net.Conn
				ws := newWires(func(context.Context, string, string) (net.Conn, error) {
					ours, theirs := net.Pipe()
					brokers = append(brokers, theirs)
					return ours, nil
				})
				dial := func(address string) net.Conn {
					w, err := ws.dial(t.Context(), "tcp", address)
					if err != nil {
						t.Fatal(err)
					}
					return w
				}
				asked, idle, speaks, elsewhere := dial("a:1"), dial("a:1"), dial("a:1"), dial("b:1")
				defer func() {
					for _, w := range append(brokers, asked, idle, speaks, elsewhere) {
						_ = w.Close()
					}
				}()
				alive := func(w net.Conn) bool {
					_ = w.SetReadDeadline(time.Now())
					_, err := w.Read(make([]byte, 1))
					return errors.Is(err, os.ErrDeadlineExceeded)
				}

				time.AfterFunc(time.Second, func() { _, _ = brokers[2].Write([]byte("x")) })
				go func() { _, _ = speaks.Read(make([]byte, 1)) }()
				if c.giveUp {
					time.AfterFunc(2*time.Second, func() { _ = asked.SetReadDeadline(time.Now()) })
				}
				<-time.After(time.Millisecond)
				_ = asked.SetReadDeadline(time.Now().Add(5 * time.Second))
				if _, err := asked.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatal(err)
				}
				if got := !alive(idle); got != c.closed {
					t.Errorf("the idle one is closed: %t, want %t", got, c.closed)
				}
				if !alive(speaks) {
					t.Error("the one that speaks was closed")
				}
				if !alive(elsewhere) {
					t.Error("the one to another broker was closed")
				}
			})
		})
	}
}
