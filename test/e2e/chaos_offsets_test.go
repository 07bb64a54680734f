package e2e

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/test/servers"
)

// Each record's outcome, by its offset.
const (
	unread = iota // an offset without a record: a marker, or of a transaction that was aborted
	applied
	duplicate
	conflict
	rejected
)

var outcomeNames = []string{"nothing", "applied", "duplicate", "conflict", "rejected"}

// offsetsOf is what is in a partition.
type offsetsOf struct {
	outcome []byte  // what must become of each offset
	number  []int64 // of the event, where it is applied
	seen    []byte  // of what became of it: a row in the ledger 1, a row in the rejects aReject, on all shards together
}

// aReject counts a row in the rejects: there are fewer shards, which have a row each at the most.
const aReject = 16

// checkOffsets holds every offset's row against the record that is in Kafka: the
// first record of an event is booked where it lies, and no other one.
func (m *many) checkOffsets() (all []finding) {
	m.t.Helper()
	lanes := m.readTopic()
	add := func(partition int32, offset int64, format string, args ...any) {
		var when time.Time
		if len(all) < shownOf {
			when = m.preparedAt(partition, offset)
		}
		all = append(all, finding{fmt.Sprintf("%s/%d, offset %d: ", m.topic, partition, offset) + fmt.Sprintf(format, args...), when})
	}
	inside := func(partition int32, offset int64) bool {
		return partition >= 0 && int(partition) < len(lanes) && offset >= 0 && offset < int64(len(lanes[partition].outcome))
	}
	for i, db := range m.shards {
		rows, err := db.Query("SELECT kafka_partition, kafka_offset, event_id, entry_type, account_id, currency, CAST(amount AS CHAR) FROM billing_ledger")
		m.must(err)
		defer rows.Close()
		for rows.Next() {
			var row ledgerRow
			m.must(rows.Scan(&row.partition, &row.offset, &row.id, &row.kind, &row.account, &row.currency, &row.amount))
			if !inside(row.partition, row.offset) {
				add(row.partition, row.offset, "shard %d has booked %s, and there is no such offset", i, row)
				continue
			}
			lane := &lanes[row.partition]
			lane.seen[row.offset]++
			if lane.outcome[row.offset] != applied {
				add(row.partition, row.offset, "shard %d has booked %s, and the record there is %s", i, row, outcomeNames[lane.outcome[row.offset]])
				continue
			}
			c := m.load.numbered(row.partition, lane.number[row.offset])
			if err := row.is(c, row.partition); err != nil || row.id != c.id {
				add(row.partition, row.offset, "shard %d has booked %s, the record is %s", i, row, c)
			}
		}
		m.must(rows.Err())
		kept, err := db.Query("SELECT kafka_partition, kafka_offset, kind FROM billing_rejects")
		m.must(err)
		defer kept.Close()
		for kept.Next() {
			var partition int32
			var offset int64
			var kind string
			m.must(kept.Scan(&partition, &offset, &kind))
			if !inside(partition, offset) || outcomeNames[lanes[partition].outcome[offset]] != kind {
				add(partition, offset, "shard %d keeps a %s record, which is not there", i, kind)
				continue
			}
			lanes[partition].seen[offset] += aReject
		}
		m.must(kept.Err())
	}
	for p, lane := range lanes {
		for offset, outcome := range lane.outcome {
			want := map[byte]byte{applied: 1, conflict: aReject, rejected: aReject}[outcome]
			if lane.seen[offset] == want {
				continue
			}
			what := fmt.Sprintf("the record is %s", outcomeNames[outcome])
			if outcome == applied {
				what += fmt.Sprintf(" (%s)", m.load.numbered(int32(p), lane.number[offset]))
			}
			add(int32(p), int64(offset), "%s, and on all shards it has %d rows in the ledger and %d in the rejects", what, lane.seen[offset]%aReject, lane.seen[offset]/aReject)
		}
	}
	return all
}

// preparedAt is when the epoch of an offset was prepared, or zero.
func (m *many) preparedAt(partition int32, offset int64) time.Time {
	for _, db := range m.shards {
		var micros int64
		err := db.QueryRow("SELECT CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', prepared_at) AS SIGNED) FROM billing_epoch WHERE kafka_topic = ? AND kafka_partition = ? AND offset_from <= ? AND offset_next > ?",
			m.topic, partition, offset, offset).Scan(&micros)
		if err == nil {
			return time.UnixMicro(micros)
		}
	}
	return time.Time{}
}

// ends are those of the partitions of all topics of the job. A broker that has stood
// still has no leaders for a moment.
func (m *many) ends() (ends kadm.ListedOffsets) {
	m.t.Helper()
	admin := m.kafka.Admin(m.t)
	servers.Eventually(m.t, 2*time.Minute, func() (err error) {
		if ends, err = admin.ListEndOffsets(m.t.Context(), m.topic, m.job+".decision", m.job+".state"); err == nil {
			err = ends.Error()
		}
		return err
	})
	return ends
}

// readTopic reads all that is in the input topic, and judges it.
func (m *many) readTopic() []offsetsOf {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), 10*time.Minute)
	defer cancel()
	ends := m.ends()
	lanes := make([]offsetsOf, m.partitions)
	first := make([]bits, m.partitions)
	var open []int32
	from := map[int32]kgo.Offset{}
	for p := range m.partitions {
		end, ok := ends.Lookup(m.topic, p)
		if !ok {
			m.t.Fatalf("partition %d has no end", p)
		}
		lanes[p] = offsetsOf{outcome: make([]byte, end.Offset), number: make([]int64, end.Offset), seen: make([]byte, end.Offset)}
		if end.Offset > 0 {
			open = append(open, p)
			from[p] = kgo.NewOffset().AtStart()
		}
	}
	client := m.kafka.Client(m.t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{m.topic: from}), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	defer client.Close()
	for len(open) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			m.t.Fatal("read the input topic: ", err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			lane := &lanes[r.Partition]
			if r.Offset >= int64(len(lane.outcome)) {
				return
			}
			if !r.Attrs.IsControl() {
				lane.outcome[r.Offset], lane.number[r.Offset] = m.judge(r, &first[r.Partition])
			}
			if r.Offset == int64(len(lane.outcome))-1 {
				open = slices.DeleteFunc(open, func(p int32) bool { return p == r.Partition })
			}
		})
	}
	return lanes
}

// judge says what must become of a record, by what the load says with it.
func (m *many) judge(r *kgo.Record, first *bits) (outcome byte, number int64) {
	id, amount := said(r.Value)
	c, partition, number := m.load.event(id)
	switch {
	case c == nil || partition != r.Partition:
		return rejected, 0
	case !first.add(number):
		if amount == amountText(c.amount) {
			return duplicate, number
		}
		return conflict, number
	default:
		return applied, number
	}
}
