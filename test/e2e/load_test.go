package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/test/servers"
)

// TestHotAccount: half of all messages, on every partition, are for one account.
// Lanes add to rows of their own, so that none waits for another one's locks, and it
// takes about as long as without one.
func TestHotAccount(t *testing.T) {
	t.Parallel()
	m := servers.MySQL(t) // which counts lock waits for this test only
	w := newWorld(t, 2, withServer(m), withPartitions(4), withInterval("50ms"), withCheckpoint("max_records: 200"))
	s := w.run("")
	waits := func() string {
		return column(t, m.Root(), "SELECT variable_value FROM performance_schema.global_status WHERE variable_name = 'Innodb_row_lock_waits'")[0]
	}
	load := func(hot bool) time.Duration {
		t.Helper()
		start := time.Now()
		for p := range w.partitions {
			records := make([]*kgo.Record, 1000)
			for i := range records {
				id := uuid.NewString()
				account, amount := chargeOf(id)
				account += id[1:3] // some thousand of them
				if hot && i%2 == 0 {
					account = "hot"
				}
				w.expect(account, amount)
				records[i] = &kgo.Record{Partition: p, Value: message(id, account, amount), Headers: structured}
			}
			w.produce(records...)
		}
		w.waitAccounted()
		return time.Since(start)
	}
	load(false)
	was := waits()
	var spread, hot time.Duration
	for range 2 {
		spread += load(false)
		hot += load(true)
	}
	t.Logf("spread over the accounts %s, half of it for one %s", spread.Round(time.Millisecond), hot.Round(time.Millisecond))
	if now := waits(); now != was {
		t.Errorf("InnoDB has counted %s waits for a lock of a row, and before %s", now, was)
	}
	if hot > 2*spread+5*time.Second { // it has half as many rows to write; the machine may be slow
		t.Errorf("the hot account takes %s, without it it was %s", hot, spread)
	}
	nothingFailed(s)
	s.stop()
	w.exact()
}

// TestStateIsSplitIntoChunks: one epoch adds more to the dedup state than a message of
// its topic may hold, whose limit is the smallest that a start accepts.
func TestStateIsSplitIntoChunks(t *testing.T) {
	t.Parallel()
	const (
		limit = 768 << 10 // docs/protocol.md has chunks of at most 512 KiB
		entry = 32
		many  = 2 * limit / entry
	)
	w := newWorld(t, 2, withInterval("5s"), withCheckpoint("max_bytes: 67108864"))
	w.edit("checkpoint:\n", ledgerOff+"checkpoint:\n") // fewer rows, so that many messages go into one epoch
	s := w.run("")
	w.charge(0, 10)
	w.waitAccounted()
	s.stop()
	topic := w.job + ".state"
	w.alter(topic, "max.message.bytes", fmt.Sprint(limit-1))
	w.mustRefuse(t, "topic-config", topic, fmt.Sprintf("max.message.bytes is %d, want at least %d", limit-1, limit))
	w.alter(topic, "max.message.bytes", fmt.Sprint(limit))

	ids := w.charge(0, many)
	s = w.run("")
	w.waitAccounted()
	nothingFailed(s)
	s.stop()
	var added int
	if err := w.shards[0].QueryRow("SELECT MAX(applied) FROM billing_epoch").Scan(&added); err != nil {
		t.Fatal(err)
	}
	if added*entry <= limit {
		t.Fatalf("the largest epoch has added %d ids: less than the limit", added)
	}
	cl := shared.kafka.Client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	total, largest := 0, 0
	for total < many*entry {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatal(err)
		}
		for _, r := range fetches.Records() {
			total, largest = total+len(r.Value), max(largest, len(r.Value))
		}
	}
	if largest > 512<<10 || largest < 400<<10 {
		t.Errorf("the largest chunk has %d bytes", largest)
	}
	t.Logf("%d ids in one epoch, %d bytes of chunks, the largest has %d", added, total, largest)

	s = w.run("") // reads them all
	w.again(0, ids)
	w.waitAccounted()
	s.stop()
	w.exact()
}
