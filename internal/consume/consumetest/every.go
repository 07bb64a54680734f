package consumetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/consume"
)

// EveryRequest loses the i-th request of a session on Kafka's side, or its
// answer, for every i until a session is through before it: only that one, as a
// broken connection does, or all from there on, until the session is over. What
// the next fence reads is what the session was told, or one of two where it was
// told that the outcome is unknown; and the lane goes on from there. Each of the
// runs side by side has brokers of its own.
func EveryRequest(t *testing.T, brokers func(t *testing.T) []string) {
	for _, c := range []struct {
		how    kind
		behind bool
	}{{drop, false}, {lose, false}, {hold, false}, {cut, true}, {lose, true}} {
		const workers = 8 // they wait, mostly
		for first := 1; first <= workers; first++ {
			t.Run(fmt.Sprintf("%s, those behind it %t, %d of %d", c.how, c.behind, first, workers), func(t *testing.T) {
				t.Parallel()
				l := newLife(t, brokers(t))
				for i := first; ; i += workers {
					heal := l.net.LoseNth(i, c.how, c.behind)
					err := l.session(t)
					hits := heal()
					l.goesOn(t, fmt.Sprintf("request %d: %v", i, err))
					switch {
					case hits > 0:
						continue
					case errors.Is(err, context.DeadlineExceeded):
						i -= workers // a slow machine: once more
						continue
					case err != nil || i < 20:
						t.Fatalf("a session without a fault ended before request %d: %v", i, err)
					}
					return
				}
			})
		}
	}
}

// life is a lane over many sessions, and what it must be.
type life struct {
	*Member
	net   *Network
	lane  checkpoint.Lane
	know  moment
	maybe *moment // if the decision of unknown outcome was made
	n     int64
}

// moment is what is decided.
type moment struct {
	next   int64
	d      string
	chunks []string // the last of the dedup state; older ones may be trimmed
}

func newLife(t *testing.T, brokers []string) *life {
	r, net := NewRig(t, brokers, 1), NewNetwork()
	m := r.JoinAll(t, 1, func(c *consume.Config) {
		c.Dial = net.Dial
		c.RequestTimeout = 500 * time.Millisecond
		c.ReadTimeout = 3 * time.Second
		c.SessionTimeout, c.RebalanceTimeout = time.Minute, time.Minute
	})
	l := &life{Member: m, net: net, lane: r.Lane(0)}
	l.goesOn(t, "the start")
	return l
}

// session is what a session asks of Kafka: S1, S2, a takeover, S5, two epochs,
// a trim. Each step has a bound.
func (l *life) session(t *testing.T) error {
	bound := func(of time.Duration, do func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), of)
		defer cancel()
		return do(ctx)
	}
	const step = 1200 * time.Millisecond
	var o checkpoint.Owner
	if err := bound(step, func(ctx context.Context) (err error) { o, err = l.Fence(ctx, l.lane); return err }); err != nil {
		return err
	}
	defer o.Close()
	var r checkpoint.Read
	if err := bound(step, func(ctx context.Context) (err error) { r, err = o.Read(ctx); return err }); err != nil {
		return err
	}
	l.is(t, &r)
	var from int64
	for epoch := range 3 {
		next := l.know
		l.n++
		next.d = fmt.Sprint("D", l.n)
		var chunks []string
		if epoch > 0 { // not of a takeover
			next.next++
			chunks = []string{fmt.Sprint("c", l.n, "a"), fmt.Sprint("c", l.n, "b")}
			next.chunks = chunks
		} else if err := bound(step, func(ctx context.Context) error { return l.restore(ctx, t, o, r.StateStart) }); err != nil {
			return err
		}
		err := bound(step, func(ctx context.Context) (err error) {
			from, err = Decide(ctx, o, next.next, next.d, chunks...)
			return err
		})
		switch {
		case err == nil:
			l.know = next
		case errors.Is(err, checkpoint.ErrOutcomeUnknown):
			l.maybe = &next
			return err
		default:
			_ = bound(step/3, func(ctx context.Context) error { o.Abort(ctx); return nil })
			return err
		}
	}
	return bound(step, func(ctx context.Context) error { return o.Trim(ctx, from) })
}

// restore fails the test unless the state topic ends with the last chunks that
// are decided, each once.
func (l *life) restore(ctx context.Context, t *testing.T, o checkpoint.Owner, from int64) error {
	t.Helper()
	var got []string
	err := o.ReadState(ctx, from, func() {}, func(_ int64, data []byte) error {
		got = append(got, string(data))
		return nil
	})
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, c := range got {
		if seen[c] {
			t.Fatalf("chunk %s is there twice: %q", c, got)
		}
		seen[c] = true
	}
	if !strings.HasSuffix(","+strings.Join(got, ","), ","+strings.Join(l.know.chunks, ",")) {
		t.Fatalf("the state is %q, decided is %q", got, l.know.chunks)
	}
	return nil
}

// is fails the test unless what was read is what is known, or what was of
// unknown outcome: then it is known.
func (l *life) is(t *testing.T, r *checkpoint.Read) {
	t.Helper()
	if l.maybe != nil && r.Record == l.maybe.d {
		l.know = *l.maybe
	}
	l.maybe = nil
	if r.HasOffset != (l.know.d != "") || r.Metadata != l.know.d || r.Record != l.know.d || r.Offset != l.know.next {
		t.Fatalf("read %+v, decided is %+v", r, l.know)
	}
}

// goesOn has a next owner find what is decided, and decide: however long it
// takes on a slow machine.
func (l *life) goesOn(t *testing.T, after string) {
	t.Helper()
	began := time.Now()
	for {
		err := l.next(t)
		if err == nil {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("after %s: %v", after, err)
		}
	}
}

func (l *life) next(t *testing.T) error {
	t.Helper()
	o, err := l.Fence(t.Context(), l.lane)
	if err != nil {
		return err
	}
	defer o.Close()
	r, err := o.Read(t.Context())
	if err != nil {
		return err
	}
	l.is(t, &r)
	if err := l.restore(t.Context(), t, o, r.StateStart); err != nil {
		return err
	}
	l.n++
	then := l.know
	then.next++
	then.d = fmt.Sprint("D", l.n)
	switch _, err := Decide(t.Context(), o, then.next, then.d); {
	case err == nil:
		l.know = then
		return nil
	case errors.Is(err, checkpoint.ErrOutcomeUnknown):
		l.maybe = &then
		return err
	default:
		return err
	}
}
