package consumetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"billing/internal/checkpoint"
	"billing/internal/consume"
)

// Look is the suite of what is asked without being an owner or a member.
func Look(t *testing.T, brokers []string) {
	t.Run("the last decision, and of an open one what was before it", func(t *testing.T) {
		r := NewRig(t, brokers, 1)
		m := r.JoinAll(t, 1, nil)
		looker := r.Open(t, nil)
		r.Write(t, 0, "a", "b")
		look := func(what string, look func(context.Context, int32) (checkpoint.Read, error), next int64, d string) {
			t.Helper()
			got, err := look(t.Context(), 0)
			if err != nil || got.Metadata != d || got.Record != d || got.Offset != next || got.LogEnd != 2 || got.Partitions != 1 {
				t.Fatalf("%s: read %+v, %v; want %q and offset %d", what, got, err, d, next)
			}
		}
		look("nothing is decided", looker.Look, 0, "")
		look("nothing is decided", looker.LookNow, 0, "")

		o := Fence(t, m.Client, r.Lane(0))
		MustDecide(t, o, 1, "D1", "chunk")
		look("decided", looker.Look, 1, "D1")
		Eventually(t, func() error { // it waits for no marker
			got, err := looker.LookNow(t.Context(), 0)
			if err == nil && (got.Metadata != "D1" || got.Record != "D1") {
				err = fmt.Errorf("read %+v", got)
			}
			return err
		})

		if err := errors.Join(o.Begin(), o.WriteDecision(t.Context(), "D2"), o.CommitOffset(t.Context(), 2, -1, "D2")); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := looker.Look(short, 0); !consume.Unstable(err) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("an open decision: %v", err)
		}
		look("an open decision", looker.LookNow, 1, "D1")
		if err := o.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		look("decided", looker.Look, 2, "D2")

		// The decision topic alone holds a reading back too.
		f := r.Foreign(t, m.DecisionTopic(), 0, "foreign")
		short, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := looker.Look(short, 0); !consume.Unstable(err) {
			t.Fatalf("an open record: %v", err)
		}
		look("an open record", looker.LookNow, 2, "D2")
		f.End(kgo.TryAbort)

		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := looker.Look(gone, 0); err == nil || consume.Unstable(err) {
			t.Fatalf("no time at all: %v", err)
		}
	})

	t.Run("what waits in a partition", func(t *testing.T) {
		r := NewRig(t, brokers, 1)
		c := r.Open(t, nil)
		at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		write := func(seconds ...int) {
			t.Helper()
			for _, s := range seconds {
				rec := &kgo.Record{Topic: r.Topic, Value: []byte("v"), Timestamp: at.Add(time.Duration(s) * time.Second)}
				if err := r.Produce.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := func(what string, from int64, wantSince int, wantOpen bool) {
			t.Helper()
			_, end, err := c.End(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			u, err := c.Undecided(t.Context(), 0, from, end)
			if err != nil || u.Any != (wantSince >= 0) || u.Open != wantOpen || u.Any && !u.Since.Equal(at.Add(time.Duration(wantSince)*time.Second)) {
				t.Fatalf("%s: %+v, %v; want %d s, open %t", what, u, err, wantSince, wantOpen)
			}
		}
		want("an empty partition", 0, -1, false)
		write(5, 3, 9) // 0 to 2
		want("everything", 0, 3, false)
		want("the last record", 2, 9, false)
		want("nothing", 3, -1, false)
		if u, err := c.Undecided(t.Context(), 0, 1, 1); err != nil || u.Any {
			t.Fatalf("what came after the end was asked for: %+v, %v", u, err)
		}

		f := r.Foreign(t, r.Topic, 0, "aborted") // 3, its marker is 4
		f.End(kgo.TryAbort)
		Eventually(t, func() error {
			_, end, err := c.End(t.Context(), 0)
			if err == nil && end != 5 {
				err = fmt.Errorf("the end is %d: the marker is not written", end)
			}
			return err
		})
		want("an aborted record and its marker", 3, -1, false)
		write(20) // 5
		want("an aborted record before one that waits", 3, 20, false)

		// 6, open, with a timestamp of today; 7 behind it.
		f.Write(r.Topic, 0, "open")
		write(1)
		want("in front of an open transaction", 5, 20, false)
		u, err := c.Undecided(t.Context(), 0, 6, 8)
		if err != nil || !u.Any || !u.Open || !u.Since.Equal(at.Add(time.Second)) {
			t.Fatalf("behind an open transaction: %+v, %v", u, err)
		}
		u, err = c.Undecided(t.Context(), 0, 6, 7)
		if err != nil || !u.Open || time.Since(u.Since) > time.Hour {
			t.Fatalf("the open transaction's own record: %+v, %v", u, err)
		}
		f.End(kgo.TryAbort)
		// The broker answers before it has written the marker.
		Eventually(t, func() error {
			u, err := c.Undecided(t.Context(), 0, 6, 8)
			if err == nil && u.Open {
				err = fmt.Errorf("still open: %+v", u)
			}
			return err
		})
		want("the transaction was aborted", 6, 1, false)

		if _, err := c.Undecided(t.Context(), 0, 99, 100); err == nil {
			t.Fatal("an offset beyond the end")
		}
	})

	t.Run("where a member's admin port is", func(t *testing.T) {
		r := NewRig(t, brokers, 2)
		looker := r.Open(t, nil)
		if state, members, err := looker.Members(t.Context()); err != nil || state != "Dead" && state != "Empty" || len(members) > 0 {
			t.Fatalf("no group: %q %+v, %v", state, members, err)
		}
		m := r.JoinAll(t, 2, func(c *consume.Config) { c.AdminAddr, c.InstanceID = "[::]:8080", "one" })
		id, _ := m.Generation()
		Eventually(t, func() error {
			state, members, err := looker.Members(t.Context())
			if err != nil {
				return err
			}
			if state != "Stable" || len(members) != 1 {
				return fmt.Errorf("%s: %+v", state, members)
			}
			got := members[0]
			if got.ID != id || got.Instance != "one" || fmt.Sprint(got.Lanes) != "[0 1]" {
				t.Errorf("%+v, want member %s", got, id)
			}
			if got.Host == "" || strings.Contains(got.Host, "/") || got.AdminAddr != got.Host+":8080" {
				t.Errorf("host %q, admin port %q", got.Host, got.AdminAddr)
			}
			return nil
		})
	})
}
