package consumetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/event"
)

// Load is the suite of writing a test load.
func Load(t *testing.T, brokers []string) {
	const partitions = 3
	message := func(n int) consume.Message {
		m := consume.Message{Partition: int32(n % partitions), Key: fmt.Appendf(nil, "key %d", n), Value: fmt.Appendf(nil, "value %d", n)}
		if n%2 == 0 {
			m.Headers = []event.Header{{Key: "a", Value: []byte("1")}, {Key: "a", Value: nil}, {Key: "b", Value: []byte{}}}
		}
		switch n % 10 {
		case 3:
			m.Value = nil
		case 4:
			m.Value = []byte{}
		}
		return m
	}
	open := func(t *testing.T, transactionalID string, set func(*consume.Config)) (*Rig, *consume.Load) {
		t.Helper()
		r := NewRig(t, brokers, partitions)
		if transactionalID != "" {
			transactionalID = r.Job + "-" + transactionalID
		}
		l, err := r.Open(t, set).OpenLoad(t.Context(), transactionalID)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close(context.Background()) })
		return r, l
	}

	t.Run("plain, lost answers", func(t *testing.T) {
		net := NewNetwork()
		r, l := open(t, "", func(c *consume.Config) { c.Dial = net.Dial })
		const n = 30_000 // more than may be unacknowledged
		var want []string
		for i := range n {
			m := message(i)
			want = append(want, Line(&m))
			if i == n/3 || i == n/2 {
				fault := net.Lose(kmsg.Produce)
				if err := l.Write(t.Context(), &m); err != nil {
					t.Fatal(err)
				}
				fault.Await(t)
				fault.Heal()
				continue
			}
			if err := l.Write(t.Context(), &m); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := l.Acknowledged(); got != n {
			t.Errorf("%d acknowledged", got)
		}
		SameInOrder(t, r.ReadInput(t, partitions, kgo.ReadUncommitted()), want)
	})

	t.Run("transactions", func(t *testing.T) {
		r, l := open(t, "load", nil)
		var all, committed []string
		next := 0
		for i, commit := range []bool{true, false, true, true, false} {
			var messages []consume.Message
			for range 1 + 400*i {
				m := message(next)
				next++
				messages = append(messages, m)
				line := Line(&m)
				all = append(all, line)
				if commit {
					committed = append(committed, line)
				}
			}
			if err := l.Transaction(t.Context(), messages, commit); err != nil {
				t.Fatal(err)
			}
		}
		if got := l.Acknowledged(); got != int64(next) {
			t.Errorf("%d acknowledged, not %d", got, next)
		}
		SameInOrder(t, r.ReadInput(t, partitions, kgo.ReadCommitted()), committed)
		SameInOrder(t, r.ReadInput(t, partitions, kgo.ReadUncommitted()), all)
	})

	// The first transaction of a producer is the one that the library may take for
	// an empty one.
	t.Run("first transactions", func(t *testing.T) {
		r := NewRig(t, brokers, partitions)
		c := r.Open(t, nil)
		var want []string
		for i := range 30 {
			l, err := c.OpenLoad(t.Context(), fmt.Sprint(r.Job, "-", i))
			if err != nil {
				t.Fatal(err)
			}
			m := message(i)
			err = l.Transaction(t.Context(), []consume.Message{m}, true)
			l.Close(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, Line(&m))
		}
		SameInOrder(t, r.ReadInput(t, partitions, kgo.ReadCommitted()), want)
	})

	t.Run("no answer", func(t *testing.T) {
		net := NewNetwork()
		r, l := open(t, "load", func(c *consume.Config) { c.Dial, c.WriteTimeout = net.Dial, 400*time.Millisecond })
		first, second := message(0), message(1)
		if err := l.Transaction(t.Context(), []consume.Message{first}, true); err != nil {
			t.Fatal(err)
		}
		fault := net.Hold(kmsg.Produce)
		err := l.Transaction(t.Context(), []consume.Message{second}, true)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no message was acknowledged within 400ms") {
			t.Fatalf("got %v", err)
		}
		fault.Heal()
		l.Close(t.Context())
		SameInOrder(t, r.ReadInput(t, partitions, kgo.ReadCommitted()), []string{Line(&first)})
	})

	t.Run("a Load that fails aborts", func(t *testing.T) {
		net := NewNetwork()
		r, l := open(t, "load", func(c *consume.Config) {
			c.Dial, c.WriteTimeout, c.TransactionTimeout = net.Dial, 400*time.Millisecond, 15*time.Minute
		})
		fault := net.Drop(kmsg.EndTxn)
		m := message(0)
		if err := l.Transaction(t.Context(), []consume.Message{m}, true); err == nil || !strings.Contains(err.Error(), "is not known") {
			t.Fatalf("got %v", err)
		}
		fault.Heal()
		l.Close(t.Context())
		// Read to the end, which an open transaction would be before.
		SameInOrder(t, r.ReadInput(t, partitions, kgo.ReadCommitted()), nil)
	})

	t.Run("what the broker does not take", func(t *testing.T) {
		r, l := open(t, "", nil)
		if err := l.Write(t.Context(), &consume.Message{Value: make([]byte, 2<<20)}); err != nil {
			t.Fatal(err)
		}
		if err := l.Flush(t.Context()); !errors.Is(err, kerr.MessageTooLarge) || !strings.Contains(err.Error(), r.Topic+"/0") {
			t.Fatalf("got %v", err)
		}
		if err := l.Write(t.Context(), &consume.Message{}); !errors.Is(err, kerr.MessageTooLarge) {
			t.Fatalf("after an error: %v", err)
		}
		_, err := r.Open(t, func(c *consume.Config) { c.TransactionTimeout = time.Hour }).OpenLoad(t.Context(), r.Job+"-patient")
		if refused := checkpoint.AsRefusal(err); refused == nil || refused.Reason != checkpoint.ReasonTransactionTimeout {
			t.Fatalf("got %v", err)
		}
	})
}

// RememberEnds makes a fake broker say how a transaction has ended, as real ones
// do: by itself it says "Empty" of those that are not open.
func RememberEnds(c *kfake.Cluster) {
	var mu sync.Mutex
	ends := map[string]string{}
	c.ControlKey(kmsg.EndTxn.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		q, ok := req.(*kmsg.EndTxnRequest)
		mu.Lock()
		defer mu.Unlock()
		if ok && q.Commit {
			ends[q.TransactionalID] = "CompleteCommit"
		} else if ok {
			ends[q.TransactionalID] = "CompleteAbort"
		}
		return nil, nil, false
	})
	c.ControlKey(kmsg.DescribeTransactions.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		q, ok := req.(*kmsg.DescribeTransactionsRequest)
		if !ok || len(q.TransactionalIDs) != 1 {
			return nil, nil, false
		}
		mu.Lock()
		defer mu.Unlock()
		end, ended := ends[q.TransactionalIDs[0]]
		if !ended {
			return nil, nil, false
		}
		c.KeepControl()
		state := kmsg.NewDescribeTransactionsResponseTransactionState()
		state.TransactionalID, state.State = q.TransactionalIDs[0], end
		resp := kmsg.NewPtrDescribeTransactionsResponse()
		resp.Version = q.Version
		resp.TransactionStates = append(resp.TransactionStates, state)
		return resp, nil, true
	})
}

// Line is what is looked at of a message.
func Line(m *consume.Message) string {
	value := "null"
	if m.Value != nil {
		value = fmt.Sprintf("%q", m.Value)
	}
	return fmt.Sprintf("%d: %q %s %d", m.Partition, m.Key, value, len(m.Headers))
}

// ReadInput reads the input up to its end as it is now, a Line for each record.
func (r *Rig) ReadInput(t testing.TB, partitions int32, level kgo.IsolationLevel) (lines []string) {
	t.Helper()
	ends, err := r.Admin.ListEndOffsets(t.Context(), r.Topic)
	if err != nil {
		t.Fatal(err)
	}
	for p := range partitions {
		end, _ := ends.Lookup(r.Topic, p)
		if end.Offset == 0 {
			continue
		}
		cl := r.Raw(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.Topic: {p: kgo.NewOffset().AtStart()}}),
			kgo.FetchIsolationLevel(level), kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond))
		for next := int64(0); next < end.Offset; {
			try, cancel := context.WithTimeout(t.Context(), time.Minute)
			fetches := cl.PollFetches(try)
			cancel()
			if err := fetches.Err(); err != nil {
				t.Fatalf("read partition %d from offset %d to %d: %v", p, next, end.Offset, err)
			}
			fetches.EachRecord(func(rec *kgo.Record) {
				next = rec.Offset + 1
				if !rec.Attrs.IsControl() {
					lines = append(lines, Line(&consume.Message{Partition: rec.Partition, Key: rec.Key, Value: rec.Value, Headers: make([]event.Header, len(rec.Headers))}))
				}
			})
		}
		cl.Close()
	}
	return lines
}

// SameInOrder fails unless each partition has the same lines in the same order.
func SameInOrder(t testing.TB, got, want []string) {
	t.Helper()
	byPartition := func(a, b string) int { return strings.Compare(a[:1], b[:1]) }
	want = slices.Clone(want)
	slices.SortStableFunc(want, byPartition)
	slices.SortStableFunc(got, byPartition)
	if len(got) != len(want) {
		t.Fatalf("%d records, not %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("record %d is %s, not %s", i, got[i], want[i])
		}
	}
}
