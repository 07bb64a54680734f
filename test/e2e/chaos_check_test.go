package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// finding is one thing that is not as it has to be.
type finding struct {
	what string
	when time.Time // when it came to be; zero: not known
}

// check compares what there is with what was sent, when all is over. kills: instances
// were killed, and their counters with them.
func (m *many) check(kills bool) (all []finding) {
	m.t.Helper()
	add := func(format string, args ...any) { all = append(all, finding{what: fmt.Sprintf(format, args...)}) }
	all = append(all, m.checkOffsets()...)
	m.checkTotals(add)
	m.checkLanes(add)
	m.checkLeft(add)
	for _, wrong := range wrongInVerify(m.verify(m.t.Context())) {
		add("billing verify: %s", wrong)
	}
	m.checkCounters(kills, add)
	for _, i := range m.instances() {
		all = append(all, m.checkLog(i)...)
	}
	return all
}

// wrongInVerify is what an answer of billing verify has that it must not have when all
// is over.
func wrongInVerify(v *verified, err error) (all []string) {
	switch {
	case err != nil:
		return []string{fmt.Sprintf("%v: %s", err, v)}
	case v.code != 0:
		all = append(all, v.String())
	}
	if len(v.InDoubt) > 0 {
		all = append(all, fmt.Sprintf("branches in doubt: %+v", v.InDoubt))
	}
	if !v.DecisionsCompared {
		all = append(all, fmt.Sprintf("it has not compared the decisions: %s", v))
	}
	return all
}

// checkTotals: what every account owes, over all shards, is what was sent.
func (m *many) checkTotals(add func(string, ...any)) {
	m.t.Helper()
	got := sums{}
	for i, db := range m.shards {
		s := &snapshot{ctx: m.t.Context(), totals: got}
		tx, err := db.BeginTx(s.ctx, nil)
		m.must(err)
		s.tx = tx
		if err := s.readTotals(); err != nil {
			add("shard %d: totals: %v", i, err)
		}
		m.must(tx.Rollback())
	}
	for t, units := range m.load.sums {
		if units.Sign() != 0 && (got[t] == nil || got[t].Cmp(units) != 0) {
			add("total of %v: %v of the smallest amounts, sent were %s", t, got[t], units)
		}
	}
	for t, units := range got {
		if m.load.sums[t] == nil {
			add("total of %v: %s of the smallest amounts, nothing was sent", t, units)
		}
	}
}

// checkLanes: each lane's chain of epochs has no hole, accounts for each record once,
// is the same on every shard, and ends where the lane's row and D say.
func (m *many) checkLanes(add func(string, ...any)) {
	m.t.Helper()
	for p := range m.partitions {
		d := m.decided(p)
		for i := range m.shards {
			var epochs []epochSeen
			rows, err := m.shards[i].Query(`SELECT kafka_partition, seq, offset_from, offset_next, gtrid, incarnation, records_in, applied, duplicates, conflicts, rejected
				FROM billing_epoch WHERE kafka_topic = ? AND kafka_partition = ? ORDER BY seq`, m.topic, p)
			m.must(err)
			defer rows.Close()
			for rows.Next() {
				var e epochSeen
				m.must(rows.Scan(&e.partition, &e.seq, &e.from, &e.next, &e.gtrid, &e.incarnation, &e.in, &e.applied, &e.duplicates, &e.conflicts, &e.rejected))
				epochs = append(epochs, e)
			}
			m.must(rows.Err())
			var lane epochSeen
			err = m.shards[i].QueryRow("SELECT seq, incarnation, offset_next FROM billing_lane WHERE kafka_topic = ? AND kafka_partition = ?", m.topic, p).
				Scan(&lane.seq, &lane.incarnation, &lane.next)
			if !errors.Is(err, sql.ErrNoRows) { // of a lane without an epoch
				m.must(err)
			}
			for _, wrong := range wrongInLane(epochs, lane, d, m.load.counts[p]) {
				add("shard %d, %s/%d: %s", i, m.topic, p, wrong)
			}
		}
	}
}

// wrongInLane is what is wrong with a lane on one shard: its epochs, its row, and D.
// sent are the records by outcome.
func wrongInLane(epochs []epochSeen, lane epochSeen, d decision, sent map[string]int64) (all []string) {
	unless := func(ok bool, format string, args ...any) {
		if !ok {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	var last epochSeen
	counts := map[string]int64{}
	for _, e := range epochs {
		unless(e.seq == last.seq+1, "a hole in the chain: epoch %+v follows %+v", e, last)
		unless(last.seq == 0 || e.from == last.next, "a gap in the chain's offsets: epoch %+v follows %+v", e, last)
		unless(e.incarnation >= last.incarnation, "the chain's incarnation goes back: epoch %+v follows %+v", e, last)
		counts["applied"] += e.applied
		counts["duplicate"] += e.duplicates
		counts["conflict"] += e.conflicts
		counts["rejected"] += e.rejected
		last = e
	}
	for _, outcome := range outcomesOfRecords {
		unless(counts[outcome] == sent[outcome], "the epochs have %d records %s, sent were %d", counts[outcome], outcome, sent[outcome])
	}
	unless(lane.seq == last.seq, "the lane's row is of seq %d, its last epoch is %+v", lane.seq, last)
	unless(lane.incarnation == last.incarnation, "the lane's row is of incarnation %d, its last epoch is %+v", lane.incarnation, last)
	unless(lane.next == last.next, "the lane's row is up to offset %d, its last epoch is %+v", lane.next, last)
	unless(d.Seq == last.seq, "D's seq is %d, the last epoch is %+v", d.Seq, last)
	unless(d.GTRID == last.gtrid, "D's gtrid is %q, the last epoch is %+v", d.GTRID, last)
	unless(d.Next >= last.next, "D's next offset is %d, the last epoch is %+v", d.Next, last)
	unless(d.Incarnation >= last.incarnation, "D's incarnation is %d, the last epoch is %+v", d.Incarnation, last)
	return all
}

var outcomesOfRecords = []string{"applied", "duplicate", "conflict", "rejected"}

// checkLeft: nothing is prepared, and nothing is locked.
func (m *many) checkLeft(add func(string, ...any)) {
	m.t.Helper()
	for i, n := range m.prepared() {
		if n != 0 {
			add("shard %d: %d branches are left prepared", i, n)
		}
	}
	if branches := xaWords(m.xaList(0)); len(branches) > 0 {
		add("billing xa list: %q", branches)
	}
	for i := range m.shards {
		if locks := m.locks(i); len(locks) > 0 {
			add("shard %d: locks are left: %s", i, strings.Join(locks, "; "))
		}
	}
}

// locks lists what the service holds on a shard: rows, tables, and its own names.
func (m *many) locks(shard int) []string {
	c, err := mysql.ParseDSN(m.dsns[shard])
	m.must(err)
	var out []string
	for _, q := range []string{
		"SELECT CONCAT_WS(' ', 'row', OBJECT_NAME, INDEX_NAME, LOCK_TYPE, LOCK_MODE, LOCK_DATA) FROM performance_schema.data_locks WHERE OBJECT_SCHEMA = ?",
		"SELECT CONCAT_WS(' ', 'metadata', OBJECT_TYPE, OBJECT_NAME, LOCK_TYPE, LOCK_STATUS) FROM performance_schema.metadata_locks WHERE OBJECT_SCHEMA = ?",
		"SELECT CONCAT_WS(' ', 'name', OBJECT_NAME, LOCK_STATUS) FROM performance_schema.metadata_locks JOIN performance_schema.threads ON THREAD_ID = OWNER_THREAD_ID WHERE OBJECT_TYPE = 'USER LEVEL LOCK' AND PROCESSLIST_DB = ?",
	} {
		rows, err := m.servers[shard].Root().QueryContext(context.Background(), q, c.DBName)
		m.must(err)
		defer rows.Close()
		for rows.Next() {
			var s string
			m.must(rows.Scan(&s))
			out = append(out, s)
		}
		m.must(rows.Err())
	}
	return out
}

// Lines that no fault explains, and nets that a fault explains: a frozen
// instance, or what it left, meets the next owner; and a connection is killed
// while its XA COMMIT is at work.
var (
	never     = regexp.MustCompile(`lane stopped|reason=invariant|refused: the process ends|^panic|^fatal error|DATA RACE`)
	net       = regexp.MustCompile(`msg="a net decided".* net=([a-z-]+)`)
	explained = []string{"sweep", "compare-and-set", "row-read-back"}
)

func (m *many) checkLog(i *instance) (all []finding) {
	lines := strings.Split(i.output(), "\n")
	around := func(n int) string {
		return strings.Join(lines[max(0, n-15):min(len(lines), n+6)], "\n")
	}
	for n, line := range lines {
		if never.MatchString(line) {
			all = append(all, finding{fmt.Sprintf("instance %d:\n%s", i.slot, around(n)), timeOf(line)})
		}
		switch found := net.FindStringSubmatch(line); {
		case found == nil:
		case slices.Contains(explained, found[1]):
			m.say("instance %d: the net %s has decided:\n%s", i.slot, found[1], around(n))
		default:
			all = append(all, finding{fmt.Sprintf("instance %d: the net %s has decided:\n%s", i.slot, found[1], around(n)), timeOf(line)})
		}
	}
	return all
}

// ---- what is left behind of a run that failed

// shownOf is how many differences are shown in full, and linesAround how many lines
// of all the instances' logs around one.
const (
	shownOf     = 12
	linesAround = 120
	timeAround  = 3 * time.Second
)

// show fails the test with the differences, and with what the instances said when the
// first of them came to be.
func (m *many) show(differences []finding) {
	m.t.Helper()
	for _, d := range differences[:min(len(differences), shownOf)] {
		m.t.Errorf("difference: %s", d.what)
	}
	if more := len(differences) - shownOf; more > 0 {
		m.t.Errorf("and %d differences more", more)
	}
	for _, d := range differences {
		if !d.when.IsZero() {
			m.t.Logf("what the instances said around %s, when this came to be: %s\n%s", d.when.Format(clock), d.what, strings.Join(m.around(d.when), "\n"))
			return
		}
	}
}

// around are the lines of all instances at a time, in their order.
func (m *many) around(when time.Time) (lines []string) {
	type said struct {
		at   time.Time
		line string
	}
	var all []said
	for n, i := range m.instances() {
		for line := range strings.Lines(i.output()) {
			if at := timeOf(line); at.Sub(when).Abs() < timeAround {
				all = append(all, said{at, fmt.Sprintf("instance %d, process %d: %s", i.slot, n, strings.TrimSpace(line))})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b said) int { return a.at.Compare(b.at) })
	// The nearest ones, when there are too many.
	for len(all) > linesAround {
		if when.Sub(all[0].at) > all[len(all)-1].at.Sub(when) {
			all = all[1:]
		} else {
			all = all[:len(all)-1]
		}
	}
	for _, s := range all {
		lines = append(lines, s.line)
	}
	return lines
}

// evidence shows where everything stands, before the servers are removed, and leaves
// the trail beside the instances' logs.
func (m *many) evidence() {
	m.watcher.mu.Lock()
	wrong, seen := m.watcher.wrong, slices.Clone(m.watcher.seen)
	m.watcher.mu.Unlock()
	if !wrong.IsZero() {
		m.t.Logf("what the instances said around %s, when a difference was seen:\n%s", wrong.Format(clock), strings.Join(m.around(wrong), "\n"))
	}
	if err := os.WriteFile(filepath.Join(m.dir, "trail.log"), []byte(strings.Join(m.trail, "\n")+"\n"), 0o600); err != nil {
		m.t.Log(err)
	}
	m.say("the trail of faults and the logs of all instances are in %s; they stay when go test has -artifacts, as make chaos does", m.dir)
	for p := range m.partitions {
		m.say("lane %d: D %+v, its Kafka transaction is %s", p, m.decided(p), m.transaction(p).State)
	}
	for i := range m.shards {
		m.say("shard %d: %d prepared, last epochs %v, locks:\n%s", i, m.prepared()[i], seen[i].lanes, strings.Join(m.locks(i), "\n"))
	}
}
