package consumetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/consume"
)

// Owner is the conformance suite of checkpoint.Kafka and checkpoint.Owner.
func Owner(t *testing.T, brokers []string) {
	const partitions = 2
	r := NewRig(t, brokers, partitions)
	m := r.JoinAll(t, partitions, func(c *consume.Config) { c.ReadTimeout = 3 * time.Second })

	// Each test has a lane of its own, in a job of its own where it needs one.
	fresh := func(t *testing.T) (*Rig, *Member, checkpoint.Lane) { return freshLane(t, brokers) }
	reading(t, fresh)

	t.Run("a new lane is empty", func(t *testing.T) {
		r.Write(t, 1, "a", "b", "c")
		got := Truth(t, m.Client, r.Lane(1))
		if got.TopicID.IsZero() || got.HasOffset || got.Record != "" || got.Metadata != "" {
			t.Fatalf("read %+v", got)
		}
		if got.Partitions != partitions || got.LogStart != 0 || got.LogEnd != 3 || got.StateStart != 0 || got.StateEnd != 0 {
			t.Fatalf("read %+v", got)
		}
	})

	t.Run("a known commit is read twice by the next fence", func(t *testing.T) {
		o := Fence(t, m.Client, r.Lane(0))
		MustDecide(t, o, 7, "D1")
		from := MustDecide(t, o, 9, "D2", "x", "y")
		MustDecide(t, o, 11, "D3", "z") // one owner, one transaction after the other
		o.Close()
		MustBe(t, m.Client, r.Lane(0), 11, "D3")
		o = Fence(t, m.Client, r.Lane(0))
		equal(t, State(t, o, 0), "x", "y", "z")
		equal(t, State(t, o, from+1), "y", "z")
		equal(t, State(t, o, 1<<40))
		MustDecide(t, o, 11, "D4") // and the next owner goes on
		MustBe(t, m.Client, r.Lane(0), 11, "D4")
	})

	t.Run("an older owner decides nothing any more", func(t *testing.T) {
		for _, at := range []string{"before it begins", "before the offset", "before the commit"} {
			t.Run(at, func(t *testing.T) {
				_, m, lane := fresh(t)
				ctx := t.Context()
				MustDecide(t, Fence(t, m.Client, lane), 1, "D1")
				old := Fence(t, m.Client, lane)
				if at != "before it begins" {
					if err := errors.Join(old.Begin(), old.WriteDecision(ctx, "old")); err != nil {
						t.Fatal(err)
					}
				}
				if at == "before the commit" {
					if err := old.CommitOffset(ctx, 5, -1, "old"); err != nil {
						t.Fatal(err)
					}
				}
				living := Fence(t, m.Client, lane)
				got, err := living.Read(ctx)
				if err != nil || got.Metadata != "D1" || got.Record != "D1" {
					t.Fatalf("read %+v, %v", got, err)
				}
				switch at {
				case "before it begins":
					_, err = Decide(ctx, old, 5, "old")
				case "before the offset":
					if err = old.CommitOffset(ctx, 5, -1, "old"); err == nil {
						err = old.Commit(ctx)
					}
				default:
					err = old.Commit(ctx)
				}
				if err == nil {
					t.Fatal("the older owner has decided")
				}
				MustDecide(t, living, 2, "D2")
				MustBe(t, m.Client, lane, 2, "D2")
			})
		}
	})

	t.Run("an older owner's end leaves the living owner's transaction alone", func(t *testing.T) {
		_, m, lane := fresh(t)
		ctx := t.Context()
		old := Fence(t, m.Client, lane)
		if err := errors.Join(old.Begin(), old.WriteDecision(ctx, "old"), old.CommitOffset(ctx, 5, -1, "old")); err != nil {
			t.Fatal(err)
		}
		living := Fence(t, m.Client, lane)
		if err := errors.Join(living.Begin(), living.WriteDecision(ctx, "new")); err != nil {
			t.Fatal(err)
		}
		old.Abort(ctx)
		old.Close()
		if err := errors.Join(living.CommitOffset(ctx, 6, -1, "new"), living.Commit(ctx)); err != nil {
			t.Fatalf("the living owner: %v", err)
		}
		MustBe(t, m.Client, lane, 6, "new")
	})

	t.Run("an unknown outcome of an older owner leaves the living owner's transaction alone", func(t *testing.T) {
		_, m, lane := fresh(t)
		ctx := t.Context()
		old := Fence(t, m.Client, lane)
		if err := errors.Join(old.Begin(), old.WriteDecision(ctx, "old"), old.CommitOffset(ctx, 5, -1, "old")); err != nil {
			t.Fatal(err)
		}
		living := Fence(t, m.Client, lane)
		if err := errors.Join(living.Begin(), living.WriteDecision(ctx, "new")); err != nil {
			t.Fatal(err)
		}
		if err := old.Commit(ctx); !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
			t.Fatalf("the older owner's commit: %v", err)
		}
		old.Close()
		if err := errors.Join(living.CommitOffset(ctx, 6, -1, "new"), living.Commit(ctx)); err != nil {
			t.Fatalf("the living owner: %v", err)
		}
		MustBe(t, m.Client, lane, 6, "new")
	})

	t.Run("an abort leaves nothing, and a tail of them is passed", func(t *testing.T) {
		_, m, lane := fresh(t)
		ctx := t.Context()
		MustDecide(t, Fence(t, m.Client, lane), 1, "D1", "kept")
		for i := range 40 { // 80 offsets: further back than the first look reaches
			o := Fence(t, m.Client, lane)
			_, _, err := 0, 0, o.Begin()
			if err == nil {
				_, _, err = o.WriteChunks(ctx, [][]byte{[]byte("lost")})
			}
			if err := errors.Join(err, o.WriteDecision(ctx, "lost"), o.CommitOffset(ctx, 5, -1, "lost")); err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				o.Abort(ctx)
			}
			o.Close() // the other half is ended by the next fence
		}
		MustBe(t, m.Client, lane, 1, "D1")
		equal(t, State(t, Fence(t, m.Client, lane), 0), "kept")
	})

	t.Run("only a whole decision is committed", func(t *testing.T) {
		_, m, lane := fresh(t)
		ctx := t.Context()
		for name, do := range map[string]func(o checkpoint.Owner) error{
			"nothing":     func(checkpoint.Owner) error { return nil },
			"no offset":   func(o checkpoint.Owner) error { return o.WriteDecision(ctx, "half") },
			"no decision": func(o checkpoint.Owner) error { return o.CommitOffset(ctx, 5, -1, "half") },
		} {
			o := Fence(t, m.Client, lane)
			if err := errors.Join(o.Begin(), do(o)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := o.Commit(ctx); !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
				t.Fatalf("%s: %v", name, err)
			}
			if err := o.Begin(); err == nil {
				t.Fatalf("%s: another transaction on the same owner", name)
			}
			o.Close()
			MustBe(t, m.Client, lane, 0, "")
		}
	})

	t.Run("an end of the context is an unknown outcome", func(t *testing.T) {
		_, m, lane := fresh(t)
		ctx := t.Context()
		o := Fence(t, m.Client, lane)
		if err := errors.Join(o.Begin(), o.WriteDecision(ctx, "D1"), o.CommitOffset(ctx, 3, -1, "D1")); err != nil {
			t.Fatal(err)
		}
		over, cancel := context.WithCancel(ctx)
		cancel()
		if err := o.Commit(over); !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
			t.Fatal(err)
		}
		o.Abort(ctx) // says nothing: it may have been committed
		o.Close()
		got := Truth(t, m.Client, lane)
		if got.Metadata != got.Record {
			t.Fatalf("the two copies differ: %+v", got)
		}
	})

	t.Run("an offset needs the assignment", func(t *testing.T) {
		_, m, lane := fresh(t)
		o := Fence(t, m.Client, lane)
		if err := errors.Join(o.Begin(), o.WriteDecision(t.Context(), "D1")); err != nil {
			t.Fatal(err)
		}
		m.Leave()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := o.CommitOffset(ctx, 3, -1, "D1"); !errors.Is(err, checkpoint.ErrNotAssigned) {
			t.Fatal(err)
		}
		o.Abort(t.Context())
		MustBe(t, m.Client, lane, 0, "")
	})

	t.Run("trim", func(t *testing.T) {
		_, m, lane := fresh(t)
		ctx := t.Context()
		o := Fence(t, m.Client, lane)
		MustDecide(t, o, 1, "D1", "a", "b", "c")
		from := MustDecide(t, o, 2, "D2", "d", "e")
		for _, before := range []int64{1, from, from, 2} { // again and less: nothing happens
			if err := o.Trim(ctx, before); err != nil {
				t.Fatalf("trim before %d: %v", before, err)
			}
		}
		if err := o.Trim(ctx, -1); err == nil {
			t.Fatal("-1 would have deleted everything")
		}
		equal(t, State(t, o, 0), "d", "e")
		if got := Truth(t, m.Client, lane); got.StateStart != from {
			t.Fatalf("the state starts at %d, want %d", got.StateStart, from)
		}
		o = Fence(t, m.Client, lane)
		MustDecide(t, o, 3, "D3", "f")
		equal(t, State(t, o, from), "d", "e", "f")
	})
}

func freshLane(t *testing.T, brokers []string) (*Rig, *Member, checkpoint.Lane) {
	r := NewRig(t, brokers, 1)
	return r, r.JoinAll(t, 1, func(c *consume.Config) { c.ReadTimeout = 3 * time.Second }), r.Lane(0)
}
