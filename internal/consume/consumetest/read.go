package consumetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/internal/checkpoint"
)

// reading is the part of the owner's suite that is about waiting readers.
func reading(t *testing.T, fresh func(*testing.T) (*Rig, *Member, checkpoint.Lane)) {
	t.Run("another producer's open transaction holds a read back, not for ever", func(t *testing.T) {
		r, m, lane := fresh(t)
		ctx := t.Context()
		MustDecide(t, Fence(t, m.Client, lane), 1, "D1", "kept")
		decision := r.Foreign(t, m.DecisionTopic(), 0, "foreign")
		o := Fence(t, m.Client, lane)
		_, err := o.Read(ctx)
		if err == nil || !strings.Contains(err.Error(), "another producer's transaction is open") {
			t.Fatalf("read: %v", err)
		}
		decision.End(kgo.TryAbort)
		MustBe(t, m.Client, lane, 1, "D1")

		state := r.Foreign(t, m.StateTopic(), 0, "foreign")
		o = Fence(t, m.Client, lane)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		late := 0 // once the chunk and its marker are passed, waiting is no progress
		err = o.ReadState(short, 0, func() { late++ }, func(int64, []byte) error { return nil })
		if late > 2 {
			t.Errorf("progress %d times behind an open transaction", late)
		}
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "another producer's transaction is open") {
			t.Fatalf("read the state: %v", err)
		}
		state.End(kgo.TryAbort)
		equal(t, State(t, o, 0), "kept")

		// Committed, it is what was last written: the reader doesn't choose.
		decision.Write(m.DecisionTopic(), 0, "foreign")
		decision.End(kgo.TryCommit)
		if got := Truth(t, m.Client, lane); got.Metadata != "D1" || got.Record != "foreign" {
			t.Fatalf("read %+v", got)
		}
	})

	t.Run("an offset that may still be committed holds a read back, not for ever", func(t *testing.T) {
		r, m, lane := fresh(t)
		MustDecide(t, Fence(t, m.Client, lane), 1, "D1")
		f := r.Foreign(t, r.Topic, 0, "foreign")
		f.Offset(r, 0, 99)
		_, err := Fence(t, m.Client, lane).Read(t.Context())
		if !errors.Is(err, kerr.UnstableOffsetCommit) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("read: %v", err)
		}
		f.End(kgo.TryAbort)
		MustBe(t, m.Client, lane, 1, "D1")
	})

	t.Run("passing what is no chunk is progress", func(t *testing.T) {
		_, m, lane := fresh(t)
		ctx := t.Context()
		o := Fence(t, m.Client, lane)
		if err := o.Begin(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := o.WriteChunks(ctx, [][]byte{[]byte("lost")}); err != nil {
			t.Fatal(err)
		}
		o.Abort(ctx)
		passed := 0
		err := Fence(t, m.Client, lane).ReadState(ctx, 0, func() { passed++ }, func(offset int64, _ []byte) error {
			return fmt.Errorf("an aborted chunk at offset %d", offset)
		})
		if err != nil || passed == 0 {
			t.Fatalf("passed %d times, %v", passed, err)
		}
	})

	t.Run("what was aborted may fill answers", func(t *testing.T) {
		_, m, lane := fresh(t)
		ctx := t.Context()
		o := Fence(t, m.Client, lane)
		MustDecide(t, o, 1, "D1", "before")
		if err := o.Begin(); err != nil {
			t.Fatal(err)
		}
		large := []byte(strings.Repeat("x", 512<<10))
		if _, _, err := o.WriteChunks(ctx, [][]byte{large, large, large, large, large}); err != nil {
			t.Fatal(err)
		}
		o.Abort(ctx)
		o = Fence(t, m.Client, lane)
		from := MustDecide(t, o, 2, "D2", "behind")
		equal(t, State(t, o, 0), "before", "behind")
		equal(t, State(t, o, 1), "behind") // the first answers have what was aborted only
		equal(t, State(t, o, from), "behind")
	})

	t.Run("an error of the reader comes back as it is", func(t *testing.T) {
		_, m, lane := fresh(t)
		o := Fence(t, m.Client, lane)
		MustDecide(t, o, 1, "D1", "a")
		mine := errors.New("mine")
		if err := o.ReadState(t.Context(), 0, func() {}, func(int64, []byte) error { return mine }); err != mine { //nolint:errorlint // as it is
			t.Fatal(err)
		}
	})

	t.Run("a large state", func(t *testing.T) {
		_, m, lane := fresh(t)
		o := Fence(t, m.Client, lane)
		chunk := strings.Repeat("x", 512<<10)
		want := 0
		for i := range 4 {
			MustDecide(t, o, int64(i), fmt.Sprint("D", i), chunk, chunk, chunk, chunk, chunk)
			want += 5 * len(chunk)
		}
		got := 0
		for _, c := range State(t, o, 0) {
			got += len(c)
		}
		if got != want {
			t.Fatalf("read %d bytes, want %d", got, want)
		}
	})
}
