package consume

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// wires are a Client's open connections, those of all its clients together. A
// network that has forgotten one connection to a broker has forgotten the
// others too, and each would be found out by a time-out of its own: several in
// a row on the way of one decision, and a join's, which is longer than a
// session. So when an answer does not come in time, the other connections to
// this broker are closed that have said nothing since it was waited for. What
// was on its way there is sent again, as after any broken connection.
type wires struct {
	dialer func(ctx context.Context, network, address string) (net.Conn, error)
	born   time.Time

	mu   sync.Mutex
	open map[*wire]struct{}
}

func newWires(dialer func(ctx context.Context, network, address string) (net.Conn, error)) *wires {
	return &wires{dialer: dialer, born: time.Now(), open: map[*wire]struct{}{}}
}

func (ws *wires) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := ws.dialer(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w := &wire{Conn: c, all: ws, address: address}
	w.heard.Store(int64(time.Since(ws.born)))
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.open[w] = struct{}{}
	return w, nil
}

// silent: w has said nothing since then, and was waited for long enough.
func (ws *wires) silent(w *wire, since int64) {
	ws.mu.Lock()
	var others []*wire
	for o := range ws.open {
		if o != w && o.address == w.address && o.heard.Load() < since {
			others = append(others, o)
		}
	}
	ws.mu.Unlock()
	for _, o := range others {
		_ = o.Close()
	}
}

// wire is one connection.
type wire struct {
	net.Conn
	all     *wires
	address string

	heard atomic.Int64 // when something last came, ns after born; at first, when it was opened
	since atomic.Int64 // since when an answer is waited for; 0 while none is, and when the call was given up
}

// Read notes what a wire says, and whether it says nothing.
func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 {
		w.heard.Store(int64(time.Since(w.all.born)))
	}
	if since := w.since.Load(); since > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		w.all.silent(w, since)
	}
	return n, err //nolint:wrapcheck // it is a net.Conn's
}

// SetReadDeadline is called when an answer begins to be waited for. The client
// library ends a wait early by a deadline of now: that says nothing of the wire.
func (w *wire) SetReadDeadline(t time.Time) error {
	w.since.Store(0)
	if t.After(time.Now()) {
		w.since.Store(int64(time.Since(w.all.born)))
	}
	return w.Conn.SetReadDeadline(t) //nolint:wrapcheck // it is a net.Conn's
}

// SetDeadline is called when the client is closed.
func (w *wire) SetDeadline(t time.Time) error {
	w.since.Store(0)
	return w.Conn.SetDeadline(t) //nolint:wrapcheck // it is a net.Conn's
}

// Close may be called more than once.
func (w *wire) Close() error {
	w.all.mu.Lock()
	delete(w.all.open, w)
	w.all.mu.Unlock()
	return w.Conn.Close() //nolint:wrapcheck // it is a net.Conn's
}
