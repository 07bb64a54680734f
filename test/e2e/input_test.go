package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/test/servers"
)

// What comes in, and what MySQL then says of it.

// TestCompactedInput: the source compacts its topic, and a Kafka transaction ends in
// control records. What is left is billed, the holes between it are no alarm, and
// nothing seems to wait behind them.
func TestCompactedInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	for key, value := range map[string]string{"segment.ms": "200", "min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": "0", "cleanup.policy": "compact"} {
		w.alter(w.topic, key, value)
	}
	sent, ids := 0, map[int64]string{} // by offset
	send := func(n int) {
		t.Helper()
		for range n {
			id := uuid.NewString()
			account, amount := chargeOf(id)
			r := &kgo.Record{Key: fmt.Append(nil, sent%20), Value: message(id, account, amount), Headers: structured}
			w.produce(r)
			sent++
			ids[r.Offset] = id
		}
	}
	left := func() (offsets []int64) {
		t.Helper()
		cl := shared.kafka.Client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{w.topic: {0: kgo.NewOffset().AtStart()}}))
		defer cl.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for next := int64(0); next < endOf(t, w); {
			fetches := cl.PollFetches(ctx)
			if err := fetches.Err0(); err != nil {
				t.Fatal(err)
			}
			for _, r := range fetches.Records() {
				offsets, next = append(offsets, r.Offset), r.Offset+1
			}
		}
		return offsets
	}
	send(200)
	servers.Eventually(t, 3*time.Minute, func() error {
		send(1) // compacted are only closed segments, which a later write closes
		if n := len(left()); n >= sent/2 {
			return fmt.Errorf("%d of %d records are left", n, sent)
		}
		return nil
	})
	w.alter(w.topic, "cleanup.policy", "delete") // what is left now stays
	offsets := left()
	f := newForeign(t)
	aborted, _ := w.charges(w.topic, 5)
	f.begin(aborted...)
	f.end(kgo.TryAbort)

	t.Logf("%d of %d records are left", len(offsets), sent)
	w.sent = int64(len(offsets))
	for _, o := range offsets {
		w.expect(chargeOf(ids[o]))
	}
	s := w.run("")
	w.waitAccounted()
	s.waitSays("/metrics", 200, "billing_lag_records{partition=\"0\"} 0\n")
	s.waitSays("/readyz", 200)
	nothingFailed(s)
	w.charge(0, 10)
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestEveryTenthRecordIsBad: the partitions move on, also over a kill, and every bad
// record is kept as it was, with its position.
func TestEveryTenthRecordIsBad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(2), withCheckpoint("max_records: 100"))
	bad := []func(good []byte) []byte{
		func([]byte) []byte { return []byte("no event") },
		func([]byte) []byte { return nil },
		func(good []byte) []byte { return good[:len(good)-1] },
		func(good []byte) []byte { return []byte(strings.Replace(string(good), `"USD"`, `"XXX"`, 1)) },
		func(good []byte) []byte {
			return regexp.MustCompile(`"amount":"[^"]*"`).ReplaceAll(good, []byte(`"amount":"1e9"`))
		},
	}
	var want []string
	batch := func() {
		t.Helper()
		var records []*kgo.Record
		for p := range w.partitions {
			for i := range 500 {
				id := uuid.NewString()
				account, amount := chargeOf(id)
				r := &kgo.Record{Partition: p, Value: message(id, account, amount), Headers: structured}
				if i%10 == 9 {
					r.Value = bad[i/10%len(bad)](r.Value)
				} else {
					w.expect(account, amount)
				}
				records = append(records, r)
			}
		}
		w.produce(records...)
		for i, r := range records {
			if i%10 == 9 {
				want = append(want, fmt.Sprintf("%d/%d %s", r.Partition, r.Offset, r.Value))
			}
		}
	}
	batch()
	w.run("some-committed:5").mustDieAtFailpoint()
	s := w.run("")
	batch()
	w.waitAccounted()
	nothingFailed(s)
	s.stop()
	var kept []string
	for _, db := range w.shards {
		kept = append(kept, column(t, db, "SELECT CONCAT(kafka_partition, '/', kafka_offset, ' ', COALESCE(raw_value, '')) FROM billing_rejects WHERE kind = 'rejected' AND reason <> ''")...)
	}
	slices.Sort(kept)
	slices.Sort(want)
	if !slices.Equal(kept, want) {
		t.Errorf("%d records are kept, %d were bad: kept\n%s\nbad\n%s", len(kept), len(want), strings.Join(kept, "\n"), strings.Join(want, "\n"))
	}
	w.exact()
}

// TestOneIDIsBilledOnce: the same event twice in an epoch, in a later one, after a
// stop and after kills; and its id with a time in another window, which is another
// event that is not billed, and is kept.
func TestOneIDIsBilledOnce(t *testing.T) {
	t.Parallel()
	for _, ledger := range []bool{true, false} {
		t.Run(fmt.Sprintf("ledger %t", ledger), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			if !ledger {
				w.edit("checkpoint:\n", ledgerOff+"checkpoint:\n")
			}
			const n = 40
			var events, others []*kgo.Record
			hour := time.Now().Add(-2 * time.Hour).Truncate(time.Hour)
			for range n {
				id := uuid.NewString()
				account, amount := chargeOf(id)
				events = append(events, &kgo.Record{Value: messageAt(hour.Add(-time.Microsecond), id, account, amount), Headers: structured})
				others = append(others, &kgo.Record{Value: messageAt(hour, id, account, amount), Headers: structured})
				w.expect(account, amount)
			}
			conflicts := int64(0)
			again := func(records []*kgo.Record) {
				t.Helper()
				for _, r := range records {
					w.produce(&kgo.Record{Value: r.Value, Headers: r.Headers})
				}
			}
			all := func() {
				again(events[:n/2])
				again(others)
				again(events[n/2:])
				conflicts += n
			}
			s := w.run("")
			again(events)
			all() // partly in the same epoch
			w.waitAccounted()
			all() // in another one
			w.waitAccounted()
			s.stop()
			all() // read by another process
			for _, point := range []string{"polled:1", "before-end-txn:1", "decided:1", "some-committed:1"} {
				w.run(point).mustDieAtFailpoint()
				all()
			}
			s = w.run("")
			w.waitAccounted()
			s.stop()

			for i, db := range w.shards {
				if got := column(t, db, "SELECT CONCAT_WS(' ', SUM(applied), SUM(duplicates), SUM(conflicts)) FROM billing_epoch")[0]; got != fmt.Sprintf("%d %d %d", n, conflicts, conflicts) {
					t.Errorf("shard %d: applied, duplicates and conflicts are %s, want %d, %d and %d", i, got, n, conflicts, conflicts)
				}
			}
			w.exact()
		})
	}
}
