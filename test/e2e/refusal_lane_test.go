package e2e

import (
	"bytes"
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

// stoppedRow is a condition under which one lane stops while the others go on.
// All rows are lanes of one job.
type stoppedRow struct {
	name   string // with the condition, where a reason has several
	reason string
	says   []string // what was found, as an operator reads it
	// rejects gives the lane records that are rejected only, so that nothing is
	// remembered; empty gives it none at all.
	rejects, empty bool
	// taken: it is found after the takeover, so that D's incarnation grows with
	// each look. What is found before leaves D as it is.
	taken bool
	spoil func(l *laneOf) // while the service is stopped
	live  func(l *laneOf) // while it runs
	// repair undoes the condition while the service runs; nil: nobody can.
	repair func(l *laneOf)
	// then is the reason after the lane has looked again, where it is another.
	then string
}

// laneOf is a row's lane.
type laneOf struct {
	*world
	t         *testing.T
	row       *stoppedRow
	partition int32
	d         string // D as it was when nothing was wrong

	before decision // D when it was spoiled
	booked string
}

func (l *laneOf) String() string { return fmt.Sprintf("%s/%d", l.topic, l.partition) }

// accountedFor is how many records of the lane each shard has accounted for.
func (w *world) accountedFor(partition int32) string {
	w.t.Helper()
	return w.column("SELECT CAST(COALESCE(SUM(records_in), 0) AS CHAR) FROM billing_epoch WHERE kafka_topic = ? AND kafka_partition = ?", w.topic, partition)
}

// waitMore waits until n more records of the lane are accounted for on both shards.
func (l *laneOf) waitMore(before string, n int, within time.Duration) {
	l.t.Helper()
	want := ""
	for i, line := range strings.Split(strings.TrimSpace(before), "\n") {
		var had int
		if _, err := fmt.Sscanf(line, fmt.Sprintf("shard %d: %%d", i), &had); err != nil {
			l.t.Fatal(err)
		}
		want += fmt.Sprintf("shard %d: %d\n", i, had+n)
	}
	servers.Eventually(l.t, within, func() error {
		if got := l.accountedFor(l.partition); got != want {
			return fmt.Errorf("records accounted for: %q, want %q", got, want)
		}
		return nil
	})
}

// unbilled sends records that are deleted before they are read.
func (l *laneOf) unbilled(n int) {
	l.t.Helper()
	ids := make([]string, n)
	for i := range ids {
		ids[i] = uuid.NewString()
	}
	l.send(l.partition, ids...)
	l.sent -= int64(n)
}

// forget deletes what Kafka knows of the lane but for its state.
func (l *laneOf) forget() {
	l.deleteOffset(l.partition)
	l.record(l.partition, "")
}

func (l *laneOf) restoreD() { l.setD(l.partition, l.d) }

// restoreRecord is enough where the offset is gone: it is stored again.
func (l *laneOf) restoreRecord() { l.record(l.partition, l.d) }

// gtrid is the name of the lane's branch of an epoch, from D's: incarnation and
// seq are its last 24 digits.
func (l *laneOf) gtrid(incarnation, seq int64) string {
	return l.before.GTRID[:40] + fmt.Sprintf("%012x%012x", incarnation, seq)
}

// chunk is the first state chunk of a partition.
func (w *world) chunk(partition int32) []byte {
	w.t.Helper()
	topic := w.job + ".state"
	cl := shared.kafka.Client(w.t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fetches := cl.PollFetches(ctx)
	if err := fetches.Err(); err != nil {
		w.t.Fatal(err)
	}
	return fetches.Records()[0].Value
}

func stoppedRows() []*stoppedRow {
	return []*stoppedRow{
		// An open transaction of a producer holds the lane back, and what it has not
		// read is deleted: for good. The next session says so by its own
		// name, a minute later: so this row is the first to be looked at.
		{name: "offset-out-of-range", reason: "offset-out-of-range", says: []string{"the next message to bill is not in the partition any more", "send them again"}, taken: true, then: "unread-deleted",
			live: func(l *laneOf) {
				f := newForeign(l.t)
				records, _ := l.charges(l.topic, 5)
				for _, r := range records {
					r.Partition = l.partition
				}
				f.begin(records...)
				l.unbilled(5)
				l.trim(l.topic, l.partition, -1)
				f.end(kgo.TryAbort)
			}},
		{name: "first-start", reason: "first-start", says: []string{"neither Kafka nor MySQL knows the lane, and first_start is off", "set first_start: true"},
			empty: true, spoil: (*laneOf).forget, repair: (*laneOf).restoreRecord},
		{name: "lane-known, by a shard", reason: "lane-known", says: []string{"Kafka knows nothing of the lane, but shard s", "epochs up to", "starting again would bill every message twice"},
			rejects: true, spoil: (*laneOf).forget, repair: (*laneOf).restoreRecord},
		{name: "lane-known, by its state", reason: "lane-known", says: []string{".decision knows the lane, but", ".state has offsets 0 to", "restore topic"},
			spoil: (*laneOf).forget, repair: (*laneOf).restoreRecord},
		{name: "offset-reset", reason: "offset-reset", says: []string{"the group's offset 0 was not stored by this service", "start once with --accept offset-reset:"},
			spoil: func(l *laneOf) { l.setOffset(l.partition, 0, "") }, repair: (*laneOf).restoreD},
		{name: "decisions-unequal", reason: "decisions-unequal", says: []string{"the two copies of the decision differ", "the group's offset says epoch 2 of incarnation 1 up to offset 20", ".decision says epoch 1 of incarnation 1 up to offset 20"},
			spoil:  func(l *laneOf) { l.record(l.partition, withNumber(l.t, l.d, "seq", 1)) },
			repair: (*laneOf).restoreRecord},
		{name: "decisions-unequal, one is lost", reason: "decisions-unequal", says: []string{".decision says nothing"},
			spoil:  func(l *laneOf) { l.record(l.partition, "") },
			repair: (*laneOf).restoreRecord},
		// Deleted offsets do not come back.
		{name: "unread-deleted", reason: "unread-deleted", says: []string{"the next message to bill is at offset", "10 offsets were deleted unread", "send them again"},
			spoil: func(l *laneOf) {
				l.unbilled(10)
				l.trim(l.topic, l.partition, -1)
			}},
		{name: "offset-beyond-end", reason: "offset-beyond-end", says: []string{"the partition ends at", "Kafka has lost messages that were billed", "leader"},
			spoil:  func(l *laneOf) { l.setD(l.partition, withNumber(l.t, l.d, "next", l.before.Next+1000)) },
			repair: (*laneOf).restoreD},
		// Deleted offsets do not come back, and D names them.
		{name: "state-deleted", reason: "state-deleted", says: []string{"the dedup state is needed from offset 0 of", "the partition begins at 1", "restore partition"},
			spoil: func(l *laneOf) { l.trim(l.job+".state", l.partition, 1) }},
		// What was added to a topic can't be taken away.
		{name: "state-damaged, a chunk that can't be read", reason: "state-damaged", says: []string{"the chunk at offset", "can't be read", "restore partition"}, taken: true,
			spoil: func(l *laneOf) {
				b := l.chunk(l.partition)
				b[len(b)-1] ^= 1
				l.write(&kgo.Record{Topic: l.job + ".state", Partition: l.partition, Value: b})
			}},
		{name: "state-damaged, a chunk of another lane", reason: "state-damaged", says: []string{"entries with checksum", "a chunk is missing or was added"}, taken: true,
			spoil: func(l *laneOf) {
				l.write(&kgo.Record{Topic: l.job + ".state", Partition: l.partition, Value: l.chunk(0)})
			}},
		{name: "state-damaged, a chunk is not read", reason: "state-damaged", says: []string{"from offset 1 gave", "a chunk is missing or was added"}, taken: true,
			spoil: func(l *laneOf) { l.setD(l.partition, withNumber(l.t, l.d, "oldest_live", 1)) },
			repair: func(l *laneOf) {
				_, now := l.offset(l.partition)
				l.setD(l.partition, withNumber(l.t, now, "oldest_live", 0))
			}},
		{name: "lost-epoch", reason: "lost-epoch", says: []string{"shard s1 has lost the committed epoch", "neither prepared nor there", "the lane's epochs up to", "Restart mysqld once"}, taken: true,
			spoil: func(l *laneOf) {
				// A backup that is one epoch older, and a copy of the shard that was lost.
				where := fmt.Sprintf(" WHERE kafka_topic = '%s' AND kafka_partition = %d", l.topic, l.partition)
				l.exec(1, "CREATE TABLE saved_epoch AS SELECT * FROM billing_epoch"+where+fmt.Sprintf(" AND seq = %d", l.before.Seq))
				l.exec(1, "CREATE TABLE saved_lane AS SELECT * FROM billing_lane"+where)
				l.exec(1, "DELETE FROM billing_epoch"+where+fmt.Sprintf(" AND seq = %d", l.before.Seq))
				l.exec(1, "UPDATE billing_lane SET seq = seq - 1"+where)
			},
			repair: func(l *laneOf) {
				l.exec(1, "INSERT INTO billing_epoch SELECT * FROM saved_epoch")
				l.exec(1, "REPLACE INTO billing_lane SELECT * FROM saved_lane")
			}},
		{name: "shard-ahead", reason: "shard-ahead", says: []string{"shard s0 has the lane's epochs up to", "the decision in Kafka is of epoch", "Kafka has lost decisions"}, taken: true,
			spoil: func(l *laneOf) {
				l.exec(0, "UPDATE billing_lane SET seq = seq + 1 WHERE kafka_partition = ?", l.partition)
			},
			repair: func(l *laneOf) {
				l.exec(0, "UPDATE billing_lane SET seq = seq - 1 WHERE kafka_partition = ?", l.partition)
			}},
		{name: "old-branch", reason: "old-branch", says: []string{"shard s1 has the prepared branch exb1", "of epoch 1, but epoch", "has come back older"}, taken: true,
			spoil: func(l *laneOf) {
				l.exec(1, "CREATE TABLE foreign_work (id INT PRIMARY KEY)")
				l.prepare(1, l.gtrid(1, 1), "INSERT INTO foreign_work VALUES (1)")
			},
			repair: func(l *laneOf) { l.rollBack(1, l.gtrid(1, 1)) }},
		{name: "invariant", reason: "invariant", says: []string{"shard s0 has the row of epoch", "but billing_lane says", "one of them was changed by hand", "restore the row of billing_lane"}, taken: true,
			spoil: func(l *laneOf) {
				l.exec(0, "UPDATE billing_lane SET offset_next = offset_next + 7 WHERE kafka_partition = ?", l.partition)
			},
			repair: func(l *laneOf) {
				l.exec(0, "UPDATE billing_lane SET offset_next = offset_next - 7 WHERE kafka_partition = ?", l.partition)
			}},
		// The setting is read at the start: TestRefusalsThatStopALane raises it and starts again.
		{name: "batch-too-large", reason: "batch-too-large", says: []string{"takes more than the 1048576 bytes of memory allowed", "raise kafka.max_batch_bytes"}, taken: true,
			spoil: func(l *laneOf) {
				cl := shared.kafka.Client(l.t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(4<<20), kgo.ProducerBatchCompression(kgo.GzipCompression()))
				r := &kgo.Record{Topic: l.topic, Partition: l.partition, Value: bytes.Repeat([]byte("x"), 2<<20), Headers: structured}
				if err := cl.ProduceSync(l.t.Context(), r).FirstErr(); err != nil {
					l.t.Fatal(err)
				}
				l.sent++
			}},
	}
}

// spoiled is a job that has worked, with a lane for each row that is spoiled as
// the row says. Lane 0 is a good one. The service is stopped.
func spoiled(t *testing.T, rows []*stoppedRow) (*world, []*laneOf) {
	t.Helper()
	w := newWorld(t, 2, withPartitions(int32(len(rows))+1))
	w.edit("  topic: ", "  max_batch_bytes: 1048576\n  topic: ")
	lanes := make([]*laneOf, len(rows))
	for i, row := range rows {
		lanes[i] = &laneOf{world: w, t: t, row: row, partition: int32(i) + 1}
	}

	s := w.run("")
	for range 2 {
		w.charge(0, 10)
		for _, l := range lanes {
			switch {
			case l.row.empty:
			case l.row.rejects:
				w.produce(&kgo.Record{Partition: l.partition, Value: []byte("no event")})
			default:
				w.charge(l.partition, 10)
			}
		}
		w.waitAccounted()
	}
	s.stop()
	for _, l := range lanes {
		_, l.d = w.offset(l.partition)
		l.before = w.decided(l.partition)
		if !l.row.empty && l.before.Seq < 2 {
			t.Fatalf("%s has too few epochs: %+v", l, l.before)
		}
		if l.row.spoil != nil {
			l.row.spoil(l)
		}
		l.before, l.booked = w.decided(l.partition), w.booked(l.partition)
	}
	return w, lanes
}

// TestRefusalsThatStopALane: each row is a lane that stops for a reason of its
// own, while the lane without a row works on; and comes back without a restart
// when the condition is gone.
func TestRefusalsThatStopALane(t *testing.T) {
	t.Parallel()
	rows := stoppedRows()
	w, lanes := spoiled(t, rows)
	good := &laneOf{world: w, t: t, partition: 0}

	w.edit("first_start: true", "first_start: false")
	s := w.run("")
	for _, l := range lanes {
		if l.row.live != nil {
			servers.Eventually(t, time.Minute, func() error {
				return contains(s.output(), fmt.Sprintf(`msg="lane running" lane=%s `, l))
			})
			l.row.live(l)
		}
	}
	for _, l := range lanes {
		t.Run(l.row.name+" stops", func(t *testing.T) {
			l.mustBeStopped(t, s, l.row.reason, l.row.says)
			if l.row.reason != "offset-reset" { // accepted: TestOffsetsResetByHand
				w.mustNotAccept(t, l.row.reason, l.String())
			}
		})
	}

	had := w.accountedFor(0)
	w.charge(0, 10)
	good.waitMore(had, 10, time.Minute)
	s.waitSays("/readyz", 503)
	h, err := s.health()
	if err != nil {
		t.Fatal(err)
	}
	want := make([]string, len(lanes))
	for i, l := range lanes {
		want[i] = l.String()
	}
	slices.Sort(h.Stuck)
	slices.Sort(want)
	if !slices.Equal(h.Stuck, want) || h.Status != "degraded" {
		t.Errorf("/healthz says %s, stuck %v, want %v", h.Status, h.Stuck, want)
	}

	// Repaired while it runs.
	for _, l := range lanes {
		if l.row.repair != nil {
			l.row.repair(l)
		}
	}
	hads := make([]string, len(lanes))
	for i, l := range lanes {
		if l.row.repair != nil {
			hads[i] = w.accountedFor(l.partition)
			w.charge(l.partition, 10)
		}
	}
	for i, l := range lanes {
		t.Run(l.row.name+" afterwards", func(t *testing.T) {
			if l.row.repair != nil {
				l.waitMore(hads[i], 10, 2*time.Minute)
				return
			}
			reason := l.row.reason
			if l.row.then != "" {
				reason = l.row.then
			}
			servers.Eventually(t, 2*time.Minute, func() error { // it has looked again
				if n := strings.Count(s.output(), fmt.Sprintf(`msg="lane stopped" lane=%s `, l)); n < 2 {
					return fmt.Errorf("the lane has stopped %d times", n)
				}
				return nil
			})
			l.mustBeStopped(t, s, reason, nil)
		})
	}
	s.stop()

	// A start repairs what a setting repairs, and nothing else.
	w.edit("max_batch_bytes: 1048576", "max_batch_bytes: 16777216")
	s = w.run("")
	w.waitAccounted()
	s.stop()
	w.exact()
}

// mustBeStopped: log, metric and health name the lane and the reason, and what was
// found and the next step; nothing that the lane has booked or decided has changed.
func (l *laneOf) mustBeStopped(t *testing.T, s *process, reason string, says []string) {
	t.Helper()
	says = append(slices.Clone(says), "refused ("+reason+") "+l.String()+": ", ". Next step: ")
	servers.Eventually(t, time.Minute, func() error {
		h, err := s.health()
		if err != nil {
			return err
		}
		for _, lane := range h.Lanes {
			if lane.Lane != l.String() {
				continue
			}
			if lane.State != "stopped" || !lane.Stuck {
				return fmt.Errorf("%+v", lane)
			}
			for _, want := range says {
				if err := contains(lane.Why, want); err != nil {
					return fmt.Errorf("%w: %s", err, lane.Why)
				}
			}
			t.Log(lane.Why)
			return s.says("/metrics", 200, fmt.Sprintf("billing_lane_stopped{partition=\"%d\",reason=%q} 1\n", l.partition, reason))
		}
		return fmt.Errorf("/healthz does not name %s", l)
	})
	line := fmt.Sprintf(`msg="lane stopped" lane=%s incarnation=\d+ seq=\d+ reason=%s err=`, l, reason)
	if !regexp.MustCompile(line).MatchString(s.output()) {
		t.Errorf("no line like %s", line)
	}
	now := l.decided(l.partition)
	if grown := now.Incarnation > l.before.Incarnation; grown != l.row.taken {
		t.Errorf("D's incarnation was %d, is %d; found after the takeover: %t", l.before.Incarnation, now.Incarnation, l.row.taken)
	}
	now.Incarnation = l.before.Incarnation
	if now != l.before {
		t.Errorf("D was %+v, is %+v", l.before, now)
	}
	if booked := l.world.booked(l.partition); booked != l.booked {
		t.Errorf("the shards had\n%s\nand have\n%s", l.booked, booked)
	}
}
