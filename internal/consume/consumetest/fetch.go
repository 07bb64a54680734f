package consumetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/internal/checkpoint"
)

// Fetch is the suite of fetching.
func Fetch(t *testing.T, brokers []string) {
	one := func(t *testing.T) (*Rig, *Member) {
		r := NewRig(t, brokers, 1)
		return r, r.JoinAll(t, 1, nil)
	}

	t.Run("records come from where the lane starts", func(t *testing.T) {
		r, m := one(t)
		rec := &kgo.Record{Topic: r.Topic, Key: []byte("k"), Value: []byte("a"), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}, {Key: "null"}}}
		if err := r.Produce.ProduceSync(t.Context(), rec, &kgo.Record{Topic: r.Topic}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		r.Write(t, 0, "c", "d")
		m.Start(0, 1, 0, -1)
		m.Log.AwaitValues(t, 0, 1, "a", "", "c", "d")
		first := m.Log.Deliveries()[0].Records[0]
		if first.Offset != 0 || string(first.Key) != "k" || len(first.Headers) != 2 || first.Headers[0].Key != "h" || string(first.Headers[0].Value) != "v" || first.Headers[1].Value != nil || first.Control {
			t.Fatalf("got %+v", first)
		}
		if d := m.Log.Deliveries(); d[0].Bytes < 4 || d[len(d)-1].End != 4 {
			t.Fatalf("got %+v", d)
		}
		m.Start(0, 2, 2, -1) // a new session of the running partition
		m.Log.AwaitValues(t, 0, 2, "c", "d")
		r.Write(t, 0, "e")
		m.Log.AwaitValues(t, 0, 2, "c", "d", "e")
		m.Log.AwaitValues(t, 0, 1, "a", "", "c", "d")
		m.Stop(0)
		m.Start(0, 3, 5, first.LeaderEpoch) // at the end, with a leader epoch to check
		r.Write(t, 0, "f")
		m.Log.AwaitValues(t, 0, 3, "f")
		m.Log.AwaitValues(t, 0, 2, "c", "d", "e")
	})

	t.Run("a paused lane gets nothing and misses nothing", func(t *testing.T) {
		r := NewRig(t, brokers, 2)
		m := r.JoinAll(t, 2, nil)
		m.Start(0, 1, 0, -1)
		m.Start(1, 1, 0, -1)
		m.Pause(0)
		r.Write(t, 0, "a", "b")
		r.Write(t, 1, "x")
		m.Log.AwaitValues(t, 1, 1, "x")
		if got := m.Log.Values(t, 0, 1); len(got) > 0 {
			t.Fatalf("delivered while paused: %q", got)
		}
		m.Resume(0)
		m.Log.AwaitValues(t, 0, 1, "a", "b")
		m.Pause(0)
		m.Start(0, 2, 1, -1) // a start ends a pause
		m.Log.AwaitValues(t, 0, 2, "b")
	})

	t.Run("only committed records come, and control records say so", func(t *testing.T) {
		r, m := one(t)
		m.Start(0, 1, 0, -1)
		f := r.Foreign(t, r.Topic, 0, "one") // offset 0
		r.Write(t, 0, "plain")               // 1, held back by the open transaction
		f.End(kgo.TryCommit)                 // marker 2
		m.Log.AwaitValues(t, 0, 1, "one", "plain")
		f.Write(r.Topic, 0, "lost") // 3
		f.End(kgo.TryAbort)         // marker 4, written a moment after the answer
		Eventually(t, func() error {
			_, end, err := m.End(t.Context(), 0)
			if err == nil && end != 5 {
				return fmt.Errorf("the log ends at %d", end)
			}
			return err
		})
		r.Write(t, 0, "last") // 5
		m.Log.AwaitValues(t, 0, 1, "one", "plain", "last")
		var control, all []int64
		for _, d := range m.Log.Deliveries() {
			for _, rec := range d.Records {
				all = append(all, rec.Offset)
				if rec.Control {
					control = append(control, rec.Offset)
				}
			}
		}
		if !slices.Equal(control, []int64{2, 4}) || !slices.Equal(all, []int64{0, 1, 2, 4, 5}) {
			t.Fatalf("control records %v of %v", control, all)
		}
	})

	t.Run("a tail without records is passed, and nothing else", func(t *testing.T) {
		r, m := one(t)
		skip := func(from, want int64) {
			t.Helper()
			// A marker is written a moment after the answer to EndTxn.
			Eventually(t, func() error {
				got, err := m.SkipTail(t.Context(), 0, from)
				if err == nil && got != want {
					err = fmt.Errorf("from %d to %d, want %d", from, got, want)
				}
				return err
			})
		}
		skip(0, 0)
		r.Write(t, 0, "a") // 0
		skip(0, 0)         // a record is there
		skip(1, 1)
		f := r.Foreign(t, r.Topic, 0, "lost") // 1
		skip(1, 1)                            // open: it may be committed
		f.End(kgo.TryAbort)                   // 2
		skip(1, 3)
		f.Write(r.Topic, 0, "kept") // 3
		f.End(kgo.TryCommit)        // 4
		skip(1, 1)                  // passed only to a record, which the lane will get
		skip(4, 5)
		if start, end, err := m.End(t.Context(), 0); start != 0 || end != 5 || err != nil {
			t.Fatalf("the log is %d to %d, %v", start, end, err)
		}
		if _, err := m.SkipTail(t.Context(), 0, 99); err == nil {
			t.Fatal("beyond the end")
		}
	})

	t.Run("out of range stops the lane, and nothing is skipped", func(t *testing.T) {
		r := NewRig(t, brokers, 2)
		m := r.JoinAll(t, 2, nil)
		r.Write(t, 0, "a", "b", "c", "d")
		r.Write(t, 1, "x")
		failed := func(partition int32, session uint64) {
			t.Helper()
			var refused *checkpoint.Refusal
			if err := m.Log.AwaitFailed(t, partition, session); !errors.As(err, &refused) ||
				refused.Reason != checkpoint.ReasonOffsetOutOfRange || refused.Scope != checkpoint.StopsLane || refused.What != r.Lane(partition).String() {
				t.Fatalf("failed with %v", err)
			}
			if got := m.Log.Values(t, partition, session); len(got) > 0 {
				t.Fatalf("delivered %q", got)
			}
		}
		del := make(kadm.Offsets)
		del.AddOffset(r.Topic, 0, 2, -1)
		if _, err := r.Admin.DeleteRecords(t.Context(), del); err != nil {
			t.Fatal(err)
		}
		m.Start(0, 1, 1, -1) // before the log's start
		failed(0, 1)
		m.Start(1, 1, 50, -1) // beyond the end
		failed(1, 1)
		// Each can start again, where there is something.
		m.Start(0, 2, 2, -1)
		m.Start(1, 2, 0, -1)
		m.Log.AwaitValues(t, 0, 2, "c", "d")
		m.Log.AwaitValues(t, 1, 2, "x")
	})

	t.Run("no session gets another one's records", func(t *testing.T) {
		r := NewRig(t, brokers, 3)
		m := r.JoinAll(t, 3, nil)
		const n = 400
		want := make([]string, n)
		for i := range want {
			want[i] = fmt.Sprint(i)
		}
		// Batches of many sizes, while sessions come and go.
		write := make(chan struct{})
		go func() {
			defer close(write)
			for p := range int32(3) {
				for i := 0; i < n; {
					k := min(1+rand.IntN(20), n-i)
					rs := make([]*kgo.Record, k)
					for j := range rs {
						rs[j] = &kgo.Record{Topic: r.Topic, Partition: p, Value: []byte(want[i+j])}
					}
					if err := r.Produce.ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
						t.Errorf("produce: %v", err)
						return
					}
					i += k
				}
			}
		}()
		from := map[uint64]int{} // by session: where it started
		session := uint64(0)
		for range 60 {
			for p := range int32(3) {
				session++
				from[session] = 0
				if got := m.Log.Values(t, p, session-3); len(got) > 0 {
					from[session] = rand.IntN(from[session-3] + len(got) + 1)
				}
				m.Start(p, session, int64(from[session]), -1)
				switch rand.IntN(4) {
				case 0:
					m.Pause(p)
					m.Resume(p)
				case 1:
					m.Stop(p)
					m.Start(p, session, int64(from[session]), -1)
				}
			}
			seen := len(m.Log.Deliveries())
			m.Log.Await(t, func(l *Log) error {
				if len(l.Deliveries()) == seen {
					return errors.New("nothing more is delivered")
				}
				return nil
			})
		}
		<-write
		for p := range int32(3) {
			last := session - 2 + uint64(p)
			m.Log.AwaitValues(t, p, last, want[from[last]:]...)
		}
		for s, start := range from {
			got := m.Log.Values(t, int32((s-1)%3), s)
			if start+len(got) > n || !slices.Equal(got, want[start:start+len(got)]) {
				t.Fatalf("session %d from %d got %q", s, start, got)
			}
		}
	})
}
