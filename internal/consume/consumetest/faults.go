package consumetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/checkpoint"
	"billing/internal/consume"
)

// Faults is the suite of lost requests and answers.
func Faults(t *testing.T, brokers []string) {
	fresh := func(t *testing.T) (*Rig, *Member, *Network, checkpoint.Lane) {
		r, net := NewRig(t, brokers, 1), NewNetwork()
		m := r.JoinAll(t, 1, func(c *consume.Config) {
			c.Dial = net.Dial
			c.RequestTimeout = 500 * time.Millisecond
		})
		return r, m, net, r.Lane(0)
	}
	soon := func(t *testing.T) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	open := func(t *testing.T, o checkpoint.Owner, next int64, d string) {
		t.Helper()
		if err := errors.Join(o.Begin(), o.WriteDecision(t.Context(), d), o.CommitOffset(t.Context(), next, -1, d)); err != nil {
			t.Fatal(err)
		}
	}

	for _, lost := range []string{"every request dropped", "every request cut", "every answer lost", "every answer late"} {
		t.Run("the decision, "+lost, func(t *testing.T) {
			_, m, net, lane := fresh(t)
			o := Fence(t, m.Client, lane)
			MustDecide(t, o, 1, "D1")
			open(t, o, 2, "D2")
			fault := map[string]func(kmsg.Key) *Fault{
				"every request dropped": net.Drop, "every request cut": net.Cut, "every answer lost": net.Lose, "every answer late": net.Hold,
			}[lost](kmsg.EndTxn)
			if err := o.Commit(soon(t)); !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
				t.Fatalf("commit: %v", err)
			}
			fault.Await(t)
			o.Abort(t.Context()) // not another word
			o.Close()
			fault.Heal()
			if strings.HasPrefix(lost, "every request") {
				MustBe(t, m.Client, lane, 1, "D1")
			} else {
				MustBe(t, m.Client, lane, 2, "D2")
			}
			MustDecide(t, Fence(t, m.Client, lane), 3, "D3")
			MustBe(t, m.Client, lane, 3, "D3")
		})
	}

	t.Run("the decision, one answer lost", func(t *testing.T) {
		_, m, net, lane := fresh(t)
		o := Fence(t, m.Client, lane)
		open(t, o, 2, "D1")
		fault := net.Lose(kmsg.EndTxn)
		done := make(chan error, 1)
		go func() { done <- o.Commit(t.Context()) }()
		fault.Await(t)
		fault.Heal()
		// The request is repeated. Known or not: it was committed.
		if err := <-done; err != nil && !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
			t.Fatal(err)
		}
		o.Close()
		MustBe(t, m.Client, lane, 2, "D1")
	})

	t.Run("a late answer to a superseded owner", func(t *testing.T) {
		_, m, net, lane := fresh(t)
		old := Fence(t, m.Client, lane)
		open(t, old, 1, "D1")
		fault := net.Hold(kmsg.EndTxn)
		done := make(chan error, 1)
		go func() { done <- old.Commit(t.Context()) }()
		fault.Await(t) // committed, and nobody here knows
		living := Fence(t, m.Client, lane)
		if r, err := living.Read(t.Context()); err != nil || r.Metadata != "D1" || r.Record != "D1" {
			t.Fatalf("read %+v, %v", r, err)
		}
		fault.Heal()
		MustDecide(t, living, 2, "D2")
		if err := <-done; err != nil && !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
			t.Fatal(err)
		}
		MustBe(t, m.Client, lane, 2, "D2")
	})

	t.Run("a superseded owner never asks for a new epoch", func(t *testing.T) {
		_, m, net, lane := fresh(t)
		old := Fence(t, m.Client, lane)
		open(t, old, 1, "old")
		living := Fence(t, m.Client, lane)
		open(t, living, 2, "D1")
		fences := net.Sent(kmsg.InitProducerID)
		if _, _, err := old.WriteChunks(t.Context(), [][]byte{{1}}); err == nil {
			t.Fatal("a superseded owner has written")
		}
		old.Abort(t.Context())
		if err := old.Begin(); err == nil {
			t.Fatal("begun after an error")
		}
		if err := old.Commit(t.Context()); !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
			t.Fatal(err)
		}
		old.Close()
		if got := net.Sent(kmsg.InitProducerID); got != fences {
			t.Fatalf("%d more InitProducerID", got-fences)
		}
		if err := living.Commit(t.Context()); err != nil {
			t.Fatalf("the living owner: %v", err)
		}
		MustBe(t, m.Client, lane, 2, "D1")
	})

	t.Run("a fence whose answers are lost fences all the same", func(t *testing.T) {
		_, m, net, lane := fresh(t)
		old := Fence(t, m.Client, lane)
		open(t, old, 1, "old")
		fault := net.Lose(kmsg.InitProducerID)
		if _, err := m.Fence(soon(t), lane); err == nil {
			t.Fatal("fenced without an answer")
		}
		fault.Heal()
		if err := old.Commit(t.Context()); err == nil {
			t.Fatal("the older owner has decided")
		}
		MustBe(t, m.Client, lane, 0, "")
	})

	t.Run("lost answers to writes double nothing", func(t *testing.T) {
		_, m, net, lane := fresh(t)
		ctx := t.Context()
		o := Fence(t, m.Client, lane)
		if err := o.Begin(); err != nil {
			t.Fatal(err)
		}
		steps := []struct {
			key kmsg.Key
			do  func() error
		}{
			{kmsg.Produce, func() error {
				from, next, err := o.WriteChunks(ctx, [][]byte{[]byte("a"), []byte("b")})
				if err == nil && (from != 0 || next != 2) {
					err = fmt.Errorf("the chunks took %d to %d", from, next)
				}
				return err
			}},
			{kmsg.Produce, func() error { return o.WriteDecision(ctx, "D1") }},
			{kmsg.TxnOffsetCommit, func() error { return o.CommitOffset(ctx, 7, -1, "D1") }},
		}
		for i, s := range steps {
			fault := net.Lose(s.key)
			done := make(chan error, 1)
			go func() { done <- s.do() }()
			fault.Await(t)
			fault.Await(t) // the repeated one too
			fault.Heal()
			if err := <-done; err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
		}
		if err := o.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		MustBe(t, m.Client, lane, 7, "D1")
		equal(t, State(t, Fence(t, m.Client, lane), 0), "a", "b")
	})

	t.Run("a write without an answer ends with its context, and with Close", func(t *testing.T) {
		_, m, net, lane := fresh(t)
		o := Fence(t, m.Client, lane)
		if err := o.Begin(); err != nil {
			t.Fatal(err)
		}
		fault := net.Drop(kmsg.Produce)
		if err := o.WriteDecision(soon(t), "D1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		o.Close()
		o = Fence(t, m.Client, lane)
		if err := o.Begin(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- o.WriteDecision(context.WithoutCancel(t.Context()), "D1") }()
		fault.Await(t)
		o.Close()
		if err := <-done; !errors.Is(err, kgo.ErrClientClosed) {
			t.Fatal(err)
		}
		fault.Heal()
		MustBe(t, m.Client, lane, 0, "")
	})

	t.Run("a fetch without an answer holds up no later session", func(t *testing.T) {
		r, net := NewRig(t, brokers, 2), NewNetwork()
		m := r.JoinAll(t, 2, func(c *consume.Config) {
			c.Dial = net.Dial
			c.RequestTimeout = 2 * patience // it would be waited for beyond the test
		})
		r.Write(t, 0, "a")
		r.Write(t, 1, "b")
		fault := net.Drop(kmsg.Fetch)
		m.Start(0, 1, 0, -1)
		fault.Await(t)
		m.Start(1, 2, 0, -1)
		fault.Heal() // for new requests; the old ones stay without an answer
		m.Stop(0)
		m.Start(0, 3, 0, -1)
		m.Log.AwaitValues(t, 0, 3, "a")
		m.Log.AwaitValues(t, 1, 2, "b")
	})

	t.Run("reading goes on after lost answers", func(t *testing.T) {
		_, m, net, lane := fresh(t)
		MustDecide(t, Fence(t, m.Client, lane), 1, "D1", "a", "b")
		for _, key := range []kmsg.Key{kmsg.Metadata, kmsg.ListOffsets, kmsg.OffsetFetch, kmsg.Fetch} {
			o := Fence(t, m.Client, lane)
			fault := net.Lose(key)
			type answer struct {
				r   checkpoint.Read
				err error
			}
			done := make(chan answer, 1)
			go func() {
				r, err := o.Read(t.Context())
				done <- answer{r, err}
			}()
			fault.Await(t)
			fault.Heal()
			if a := <-done; a.err != nil || a.r.Record != "D1" || a.r.Metadata != "D1" {
				t.Fatalf("%s: %+v", key.Name(), a)
			}
			o.Close()
		}
	})
}
