package proxy

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Rule does something to the requests R that Match picks. Rules are asked in the order in which they were added; the
// first one that acts on a request is the only one.
type Rule[R, A any] struct {
	Match func(R) bool // must neither block nor call the proxy
	Skip  int          // lets so many matches pass first
	Times int          // then acts on so many, and lets the rest pass; 0: on all
	Do    A
}

// The actions that all protocols have. A connection that hangs is as dead as after Proxy.BlackHole: the server is not
// told either, not even when the client gives up. One that does not hang is reset, on both sides.
type (
	// DropRequest keeps the request from the server, for ever.
	DropRequest struct{ Hang bool }
	// DropAnswer keeps the answer from the client: what was asked is done, and the client does not know.
	DropAnswer struct{ Hang bool }
	// HoldRequest keeps the request, and all that the client sends behind it on the connection, until Handle.Release.
	// It reaches the server even when the client has given up by then.
	HoldRequest struct{}
	// HoldAnswer keeps the answer, and all that follows it on the connection, until Handle.Release.
	HoldAnswer struct{}
	// Watch only counts requests.
	Watch struct{}
)

// Handle is a rule at work.
type Handle struct {
	mu      sync.Mutex
	hits    int
	hit     chan struct{} // closed at the next hit
	release chan struct{} // closed when what is held may go on
	removed bool
}

// Hits counts how often the rule has acted. A request is hit when it has reached the proxy, an answer when the server
// has given it.
func (h *Handle) Hits() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hits
}

// WaitHits returns when the rule has acted n times.
func (h *Handle) WaitHits(ctx context.Context, n int) error {
	for {
		h.mu.Lock()
		hits, hit := h.hits, h.hit
		h.mu.Unlock()
		if hits >= n {
			return nil
		}
		select {
		case <-hit:
		case <-ctx.Done():
			return fmt.Errorf("the rule has acted %d times of %d: %w", hits, n, context.Cause(ctx))
		}
	}
}

// Release lets everything that is held now go on. The rule stays, and holds the next match.
func (h *Handle) Release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.removed {
		close(h.release)
		h.release = make(chan struct{})
	}
}

// Remove ends the rule. What it holds goes on.
func (h *Handle) Remove() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.removed {
		h.removed = true
		close(h.release)
	}
}

// act is the moment at which the rule acts: it does the fault, and then tells. It reports false, and does nothing, when
// the rule was removed after it had picked the request.
func (h *Handle) act(fault func()) (acted bool, release <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.removed {
		return false, nil
	}
	fault()
	h.hits++
	close(h.hit)
	h.hit = make(chan struct{})
	return true, h.release
}

func (h *Handle) gone() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.removed
}

// rules are those of one proxy.
type rules[R, A any] struct {
	mu   sync.Mutex
	list []*working[R, A]
}

type working[R, A any] struct {
	Rule[R, A]
	handle      *Handle
	seen, acted int
}

// Add puts a rule to work.
func (s *rules[R, A]) Add(r Rule[R, A]) *Handle {
	h := &Handle{hit: make(chan struct{}), release: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, &working[R, A]{Rule: r, handle: h})
	return h
}

// pick finds the rule that acts on a request; h is nil when none does.
func (s *rules[R, A]) pick(request R) (do A, h *Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(w *working[R, A]) bool { return w.handle.gone() })
	for _, w := range s.list {
		if w.Times > 0 && w.acted == w.Times || !w.Match(request) {
			continue
		}
		if w.seen++; w.seen <= w.Skip {
			continue
		}
		w.acted++
		return w.Do, w.handle
	}
	return do, nil
}

// onRequest does what a rule says before the server sees the request, and reports whether it shall see it.
func (c *conn) onRequest(do any, h *Handle) (forward bool, err error) {
	switch do := do.(type) {
	case DropRequest:
		acted, _ := h.act(func() { c.lose(do.Hang) })
		return !acted, nil
	case HoldRequest:
		return true, c.hold(h)
	case Watch:
		h.act(func() {})
		return true, nil
	default:
		return true, nil
	}
}

// onAnswer does what a rule says before the client sees the answer, and reports whether it shall see it.
func (c *conn) onAnswer(do any, h *Handle) (forward bool, err error) {
	switch do := do.(type) {
	case DropAnswer:
		acted, _ := h.act(func() { c.lose(do.Hang) })
		return !acted, nil
	case HoldAnswer:
		return true, c.hold(h)
	default:
		return true, nil
	}
}

func (c *conn) hold(h *Handle) error {
	acted, release := h.act(func() {})
	if !acted {
		return nil
	}
	select {
	case <-release:
		return nil
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}
