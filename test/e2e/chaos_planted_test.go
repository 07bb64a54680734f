package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"billing/test/servers"
)

// TestChaosFindsWhatIsPlanted: the check at a run's end reports each thing that is
// wrong, with its place, and nothing when nothing is.
func TestChaosFindsWhatIsPlanted(t *testing.T) {
	t.Parallel()
	const shard = 1
	m := manyOf(newWorld(t, 2, withPartitions(2)), 2, 1)
	var target atomic.Int64
	m.load.target = target.Load
	m.start(m.slots[0])
	ctx, stop := context.WithCancel(t.Context())
	watching, unwatch := context.WithCancel(t.Context())
	var loads, watches sync.WaitGroup
	loads.Go(func() { m.load.run(ctx) })
	watches.Go(func() { m.watcher.run(watching) })
	t.Cleanup(func() { stop(); unwatch(); loads.Wait(); watches.Wait() })
	for _, sent := range []int64{500, 1000, 1500} { // an epoch each at the least
		target.Store(sent)
		servers.Eventually(t, goesOnIn, func() error {
			if all := m.load.sentAll.Load(); all < sent {
				return fmt.Errorf("%d are sent", all)
			}
			return nil
		})
		m.recover(fmt.Sprint(sent))
	}
	stop()
	loads.Wait()
	m.comeOrGo(m.slots[0])
	unwatch()
	watches.Wait()
	if found := m.check(false); len(found) > 0 {
		t.Fatalf("nothing is planted, and found is %v", found)
	}
	m.prepareToPlant()

	var set []byte
	if err := m.shards[shard].QueryRow("SELECT set_id FROM billing_meta").Scan(&set); err != nil {
		t.Fatal(err)
	}
	gtrid := ownerPrefix(m.job, set) + strings.Repeat("0", 44)
	d := m.decided(0)
	next := d.GTRID[:len(d.GTRID)-12] + fmt.Sprintf("%012d", d.Seq+1) // as its owner would prepare it
	leave := func(gtrid string) func() (undo func()) {
		return func() func() {
			m.prepare(shard, gtrid, "UPDATE billing_lane SET updated_at = updated_at + INTERVAL 1 SECOND WHERE kafka_partition = 0")
			return func() { m.rollBack(shard, gtrid) }
		}
	}
	first := func(table, condition string) (partition, offset int64) {
		t.Helper()
		m.must(m.shards[shard].QueryRow("SELECT kafka_partition, kafka_offset FROM "+table+" WHERE "+condition+" LIMIT 1").Scan(&partition, &offset))
		return partition, offset
	}
	at := func(partition, offset int64) (where, place string) {
		return fmt.Sprintf("kafka_partition = %d AND kafka_offset = %d", partition, offset), fmt.Sprintf("%s/%d, offset %d: ", m.topic, partition, offset)
	}
	bookedIn, bookedAt := first("billing_ledger", "TRUE")
	where, place := at(bookedIn, bookedAt)
	whereReject, placeReject := at(first("billing_rejects", "kind = 'rejected'"))
	lastDuplicate := func() (offset int64) {
		lane := m.readTopic()[0]
		for o, outcome := range lane.outcome {
			if outcome == duplicate {
				offset = int64(o)
			}
		}
		return offset
	}()
	columns := strings.Join(column(t, m.shards[shard], "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'billing_ledger' AND column_name <> 'kafka_offset' AND column_name <> 'kafka_partition'"), ", ")
	on := func(shard int, table, statement string) func() (undo func()) {
		return func() func() {
			t.Helper()
			m.exec(shard, statement)
			return func() {
				m.exec(shard, "DELETE FROM "+table)
				m.exec(shard, "INSERT INTO "+table+" SELECT * FROM saved_"+table)
			}
		}
	}
	sql := func(table, statement string) func() (undo func()) { return on(shard, table, statement) }
	// The row of an event that shard 1 has booked, for shard 0 to have it, too.
	var event struct{ source, id, kind, account, currency, amount string }
	m.must(m.shards[shard].QueryRow("SELECT HEX(source), HEX(event_id), entry_type, HEX(account_id), currency, CAST(amount AS CHAR) FROM billing_ledger WHERE "+where).
		Scan(&event.source, &event.id, &event.kind, &event.account, &event.currency, &event.amount))
	others := column(t, m.shards[shard], "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'billing_ledger' AND column_name NOT IN ('kafka_offset', 'kafka_partition', 'source', 'event_id', 'entry_type', 'account_id', 'currency', 'amount')")
	twice := fmt.Sprintf("INSERT INTO billing_ledger (kafka_partition, kafka_offset, source, event_id, entry_type, account_id, currency, amount, %[1]s) SELECT %[2]d, %[3]d, X'%[4]s', X'%[5]s', '%[6]s', X'%[7]s', '%[8]s', %[9]s, %[1]s FROM billing_ledger LIMIT 1",
		strings.Join(others, ", "), bookedIn, bookedAt, event.source, event.id, event.kind, event.account, event.currency, event.amount)
	log := func(line string) func() func() {
		return func() func() {
			i := m.instances()[0]
			before, err := os.ReadFile(i.log)
			m.must(err)
			m.must(os.WriteFile(i.log, append(before, line+"\n"...), 0o600))
			return func() { m.must(os.WriteFile(i.log, before, 0o600)) }
		}
	}

	for _, c := range []struct {
		name  string
		seen  bool // by the watcher
		plant func() (undo func())
		says  []string
	}{
		{"a ledger row doubled, where a duplicate lies", true, sql("billing_ledger", fmt.Sprintf("INSERT INTO billing_ledger (kafka_partition, kafka_offset, %s) SELECT 0, %d, %s FROM billing_ledger WHERE %s", columns, lastDuplicate, columns, where)),
			[]string{fmt.Sprintf("%s/0, offset %d: shard 1 has booked", m.topic, lastDuplicate), "the record there is duplicate", "billing verify: exit code 1"}},
		{"a ledger row beyond the end", true, sql("billing_ledger", fmt.Sprintf("INSERT INTO billing_ledger (kafka_partition, kafka_offset, %s) SELECT 0, 1000000, %s FROM billing_ledger WHERE %s", columns, columns, where)),
			[]string{fmt.Sprintf("%s/0, offset 1000000: shard 1 has booked", m.topic), "there is no such offset"}},
		{"an id booked twice, once on each shard", true, on(0, "billing_ledger", twice),
			[]string{place + "the record is applied", "on all shards it has 2 rows in the ledger and 0 in the rejects", "billing verify: exit code 1"}},
		{"a ledger row gone", true, sql("billing_ledger", "DELETE FROM billing_ledger WHERE "+where),
			[]string{place + "the record is applied", "0 rows in the ledger and 0 in the rejects", "billing verify: exit code 1"}},
		{"an amount changed", true, sql("billing_ledger", "UPDATE billing_ledger SET amount = amount + 0.000000000001 WHERE "+where),
			[]string{place + "shard 1 has booked", "billing verify: exit code 1"}},
		{"a reject gone", false, sql("billing_rejects", "DELETE FROM billing_rejects WHERE "+whereReject),
			[]string{placeReject + "the record is rejected"}},
		{"a total changed", true, sql("billing_total", "UPDATE billing_total SET charge_amount = charge_amount + 0.000000000001 WHERE charge_amount > 0 LIMIT 1"),
			[]string{"total of {acct-", "billing verify: exit code 1"}},
		{"a total of nobody", true, sql("billing_total", "UPDATE billing_total SET account_id = 'nobody' LIMIT 1"),
			[]string{"total of {nobody", "nothing was sent"}},
		{"an epoch gone", true, sql("billing_epoch", "DELETE FROM billing_epoch WHERE kafka_partition = 0 AND seq = 1"),
			[]string{fmt.Sprintf("shard 1, %s/0: a hole in the chain", m.topic), "records applied, sent were"}},
		{"an epoch that begins elsewhere", true, sql("billing_epoch", "UPDATE billing_epoch SET offset_from = offset_from + 1 WHERE kafka_partition = 0 AND seq = 2"),
			[]string{fmt.Sprintf("shard 1, %s/0: a gap in the chain's offsets: epoch {partition:0 seq:2 ", m.topic)}},
		{"an epoch of an incarnation before", true, sql("billing_epoch", "UPDATE billing_epoch SET incarnation = incarnation - 1 WHERE kafka_partition = 0 AND seq = 2"),
			[]string{fmt.Sprintf("shard 1, %s/0: the chain's incarnation goes back: epoch {partition:0 seq:2 ", m.topic)}},
		{"a lane's row of another incarnation", true, sql("billing_lane", "UPDATE billing_lane SET incarnation = incarnation + 1 WHERE kafka_partition = 0"),
			[]string{fmt.Sprintf("shard 1, %s/0: the lane's row is of incarnation ", m.topic)}},
		{"a lane's row up to another offset", true, sql("billing_lane", "UPDATE billing_lane SET offset_next = offset_next + 1 WHERE kafka_partition = 0"),
			[]string{fmt.Sprintf("shard 1, %s/0: the lane's row is up to offset ", m.topic)}},
		{"a lane's row behind", true, sql("billing_lane", "UPDATE billing_lane SET seq = seq - 1 WHERE kafka_partition = 0"),
			[]string{fmt.Sprintf("shard 1, %s/0: the lane's row is of seq ", m.topic)}},
		{"a branch left prepared", false, leave(gtrid), []string{"shard 1: 1 branches are left prepared", "locks are left: row billing_lane"}},
		{"a branch of the next epoch", false, leave(next), []string{"shard 1: 1 branches are left prepared", `billing xa list: ["s1 /0 `, "billing verify: branches in doubt: [{Shard:s1"}},
		{"a row locked", false, func() func() {
			tx, err := m.shards[shard].BeginTx(context.Background(), nil)
			m.must(err)
			_, err = tx.Exec("UPDATE billing_total SET updated_at = updated_at + INTERVAL 1 SECOND LIMIT 1")
			m.must(err)
			return func() { m.must(tx.Rollback()) }
		}, []string{"shard 1: locks are left: row billing_total"}},
		{"a name locked", false, func() func() {
			conn, err := m.shards[shard].Conn(context.Background())
			m.must(err)
			_, err = conn.ExecContext(context.Background(), "DO GET_LOCK('somebody', 1)")
			m.must(err)
			return func() {
				_, err := conn.ExecContext(context.Background(), "DO RELEASE_ALL_LOCKS()")
				m.must(err)
				m.must(conn.Close())
			}
		}, []string{"shard 1: locks are left: name somebody"}},
		{"an epoch counted twice", false, log(`time=2026-01-02T03:04:05.678Z level=DEBUG msg="epoch committed" lane=x/0 incarnation=1 seq=2 next_offset=3 in=1 applied=1 duplicates=0 conflicts=0 rejected=0 recovered=true`),
			[]string{"epoch 2 of lane 0 is counted 2 times", "billing_records_total, over all instances: map[applied:"}},
		{"an epoch not counted", false, func() func() {
			i := m.instances()[0]
			before, err := os.ReadFile(i.log)
			m.must(err)
			line := regexp.MustCompile(`(?m)^.*msg="epoch committed" lane=\S+/0 incarnation=1 seq=2 .*\n`)
			m.must(os.WriteFile(i.log, line.ReplaceAll(before, nil), 0o600))
			return func() { m.must(os.WriteFile(i.log, before, 0o600)) }
		}, []string{"epoch 2 of lane 0 is counted 0 times", "billing_records_total, over all instances: map[applied:"}},
		{"a counter that went ahead", false, func() func() {
			m.instances()[0].counters["conflict"]++
			return func() { m.instances()[0].counters["conflict"]-- }
		}, []string{"instance 0 counts"}},
		{"a lane that stopped", false, log(`time=2026-01-02T03:04:05.678Z level=ERROR msg="lane stopped" lane=x/0 reason=lost-epoch`),
			[]string{"instance 0:", "lane stopped"}},
		{"a net that no fault explains", false, log(`time=2026-01-02T03:04:05.678Z level=WARN msg="a net decided" lane=x/0 net=ledger`),
			[]string{"the net ledger has decided"}},
	} {
		undo := c.plant()
		// Whoever looks while a run goes on sees what is wrong in the tables, too; the
		// rejects only the last check reads.
		w := newWatcher(m.load)
		if err := errors.Join(w.look(t.Context(), shard), w.look(t.Context(), 0)); errors.As(err, new(wrong)) != c.seen {
			t.Errorf("%s: the watcher says %v", c.name, err)
		}
		found := m.check(false)
		var all strings.Builder
		for _, d := range found {
			all.WriteString(d.what + "\n")
		}
		for _, says := range c.says {
			if !strings.Contains(all.String(), says) {
				t.Errorf("%s: it is not said that %q:\n%s", c.name, says, all.String())
			}
		}
		if c.name == "a ledger row gone" {
			if lines := m.around(found[0].when); found[0].when.IsZero() || !strings.Contains(strings.Join(lines, "\n"), "epoch committed") {
				t.Errorf("%s: nothing is said of what happened then, %s: %v", c.name, found[0].when, lines)
			}
		}
		undo()
	}
	if found := m.check(false); len(found) > 0 {
		t.Errorf("all is taken back, and found is %v", found)
	}
}

// TestAfterAKill: what is said of a SIGKILL, by the lines of the next owner's log.
func TestAfterAKill(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	type said struct {
		slot  int
		after time.Duration
		line  string
	}
	const dead, next = 0, 1
	const (
		takenOver = `msg="lane taken over" lane=usage/2 incarnation=7 seq=17 decided="epoch 17 of incarnation 6" next_offset=25280 found_incarnation=6 found_build=v1.2.0`
		finished  = `msg="epoch committed" lane=usage/2 incarnation=6 seq=17 next_offset=25280 in=3 applied=3 duplicates=0 conflicts=0 rejected=0 recovered=true`
		settled   = `msg=settled lane=usage/2 incarnation=7 seq=17 branches="s0: committed epoch 17 of incarnation 6" took=158ms`
		running   = `msg="lane running" lane=usage/2 incarnation=7 seq=17 next_offset=25280 ids=25280 chunks=17 restored_in=150ms`
		first     = `msg="epoch committed" lane=usage/2 incarnation=7 seq=18 next_offset=25460 in=180 applied=180 duplicates=0 conflicts=0 rejected=0 recovered=false`
		givenUp   = `msg="lanes given up" partitions=[2]`
	)
	begin := []said{{next, -3 * time.Second, takenOver}, {next, -2 * time.Second, givenUp}, {dead, -time.Second, takenOver}}
	end := []said{
		{next, 6 * time.Second, `msg="lanes assigned" partitions="[1 2]"`}, {next, 8 * time.Second, takenOver}, {next, 8200 * time.Millisecond, finished},
		{next, 8250 * time.Millisecond, settled}, {next, 8400 * time.Millisecond, running}, {next, 9 * time.Second, first},
	}
	for _, c := range []struct {
		name  string
		lines []said
		want  string
	}{
		{"taken over", append(begin[:3:3], end...), "first new decision after 9s: until it was assigned 6s, takeover (S1 to S3) 2s, S4 250ms, S5 150ms, first epoch 600ms; 1 sessions began"},
		{"of another instance", append(begin[:1:1], end...), ""},
		{"given up before", append(begin[:3:3], append([]said{{dead, -500 * time.Millisecond, givenUp}}, end...)...), ""},
		{"idle", begin, "no new decision, for there was nothing to decide"},
	} {
		m := &many{world: &world{t: t}}
		for n := range 2 {
			var log strings.Builder
			for _, s := range c.lines {
				if s.slot == n {
					fmt.Fprintf(&log, "time=%s level=INFO %s\n", at.Add(s.after).Format(time.RFC3339Nano), s.line)
				}
			}
			p := &process{t: t, log: filepath.Join(t.TempDir(), "log")}
			if err := os.WriteFile(p.log, []byte(log.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			m.slots = append(m.slots, &slot{number: n, all: []*instance{{process: p, slot: n}}})
		}
		if got := afterKill(m.stories()[2], kill{at: at, p: m.slots[dead].all[0].process}); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
