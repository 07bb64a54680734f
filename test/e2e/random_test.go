package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"billing/test/proxy"
	"billing/test/servers"
)

const (
	clock    = "15:04:05.000" // as in the log of the service
	longRun  = 3 * time.Minute
	atOnce   = 2               // faults
	goesOnIn = 3 * time.Minute // at the latest, when all is healed
)

// many is one job with several instances. Each has a way of its own to the
// broker and to every shard.
type many struct {
	*world
	load        *randomLoad
	watcher     *watcher
	mysqls      int // servers, that the shards share
	slots       []*slot
	began       time.Time
	inForce     []running
	serversWell time.Time       // since then, if they are now
	hits        map[string]int  // of rules, by the fault's name
	took        []time.Duration // of recoveries
}

// slot is where an instance may run.
type slot struct {
	number int
	kafka  *proxy.Kafka
	shards []*proxy.MySQL
	env    []string
	p      *process   // nil: none
	all    []*process // that ever ran
	well   time.Time  // since then, if it is now
}

// running is a fault that has begun and not ended.
type running struct {
	*planned
	until time.Time
	heal  func() // may call inForceFor again
}

// TestManyOwnersAtRandom: one to four instances share the lanes, and what can
// happen to instances, servers and networks does, two things at once, as a seed
// says. No charge is lost or doubled, nobody ever sees half an epoch, and what
// is healed goes on by itself.
//
// BILLING_TEST_RANDOM says for how long, BILLING_TEST_SEED repeats a plan: its
// faults are the same ones in the same order, at about the same times.
func TestManyOwnersAtRandom(t *testing.T) {
	t.Parallel()
	duration, seed := 45*time.Second, uint64(time.Now().UnixNano())
	var err error
	if s := os.Getenv("BILLING_TEST_RANDOM"); s != "" {
		if duration, err = time.ParseDuration(s); err != nil {
			t.Fatal("BILLING_TEST_RANDOM: ", err)
		}
	}
	if s := os.Getenv("BILLING_TEST_SEED"); s != "" {
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal("BILLING_TEST_SEED: ", err)
		}
	}
	random := rand.New(rand.NewPCG(seed, 0))
	shards, partitions := 2+random.IntN(2), int32(4+random.IntN(3))
	t.Logf("BILLING_TEST_RANDOM=%s BILLING_TEST_SEED=%d: %d shards, %d partitions", duration, seed, shards, partitions)

	m := newMany(t, shards, partitions, seed)
	defer func() {
		if t.Failed() {
			m.evidence()
		}
	}()
	p := &plan{Rand: random, up: []bool{true, true, false, false}, shards: shards, longStops: duration >= longRun}
	for i, up := range p.up {
		if up {
			m.start(m.slots[i])
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var loads, watches sync.WaitGroup
	loads.Go(func() { m.load.run(ctx) })
	watching, unwatch := context.WithCancel(t.Context())
	watches.Go(func() { m.watcher.run(watching) })
	answers := map[int]int{} // answers of billing verify, by exit code
	watches.Go(func() { m.verifyAlways(watching, func(v *verified) { answers[v.code]++ }) })
	t.Cleanup(func() { stop(); unwatch(); loads.Wait(); watches.Wait() })
	servers.Eventually(t, goesOnIn, func() error {
		if sent := m.load.sentSoFar(); slices.Contains(sent, 0) {
			return fmt.Errorf("sent to each lane: %d", sent)
		}
		return nil
	})
	m.recover("the first start")
	m.watcher.expectEpochs(time.Now(), time.Now())

	for begun := m.began; time.Since(m.began) < duration && !t.Failed(); {
		f := p.next()
		m.until(begun.Add(f.after))
		for m.inTheWay(f) {
			m.healNext()
		}
		begun = time.Now()
		m.begin(f)
		if f.calm {
			m.calm(fmt.Sprint(f))
		}
	}
	m.calm("the last fault")
	m.watcher.expectEpochs(time.Time{}, time.Time{})
	stop()
	loads.Wait()
	m.recover("the last record")
	for _, s := range m.slots {
		if s.p != nil {
			m.alive(s)
			s.p.stop()
		}
	}
	unwatch()
	watches.Wait()
	m.say("billing verify has answered, by exit code: %v", answers)
	m.report()
	m.check()
}

// TestPlanIsRepeated: a seed has one plan.
func TestPlanIsRepeated(t *testing.T) {
	t.Parallel()
	list := func(seed uint64) (faults []string) {
		p := &plan{Rand: rand.New(rand.NewPCG(seed, 0)), up: []bool{true, false, false, false}, shards: 3}
		for range 200 {
			f := p.next()
			faults = append(faults, fmt.Sprint(f.after, f, f.calm))
		}
		return faults
	}
	if one, other := list(1), list(1); !slices.Equal(one, other) || slices.Equal(one, list(2)) {
		t.Errorf("seed 1 plans\n%v\nand\n%v", one, other)
	}
}

func newMany(t *testing.T, shards int, partitions int32, seed uint64) *many {
	t.Helper()
	servers.Require(t)
	// Of its own: others must not meet these faults.
	var kafka *servers.KafkaServer
	mysqls := make([]*servers.MySQLServer, 2)
	errs := make([]error, 1+len(mysqls))
	var wg sync.WaitGroup
	wg.Go(func() { kafka, errs[0] = servers.StartKafka(t.Context()) })
	for i := range mysqls {
		wg.Go(func() { mysqls[i], errs[1+i] = servers.StartMySQL(t.Context(), fmt.Sprintf("random%d", i)) })
	}
	wg.Wait()
	if kafka != nil {
		t.Cleanup(func() { _ = kafka.Close() })
		kafka.LogsOnFailure(t)
	}
	for _, s := range mysqls {
		if s != nil {
			t.Cleanup(func() { _ = s.Close() })
			s.LogsOnFailure(t)
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}

	w := newWorld(t, shards, withPartitions(partitions), onServers(kafka, mysqls...))
	m := &many{world: w, mysqls: len(mysqls), load: newLoad(w, seed), hits: map[string]int{}, began: time.Now()}
	m.watcher = newWatcher(m.load)
	m.load.newSource()
	for i := range 4 {
		s := &slot{number: i, kafka: proxy.KafkaFor(t, kafka.Addr())}
		type shard struct {
			Name string `json:"name"`
			DSN  string `json:"dsn"`
		}
		var list []shard
		for n, dsn := range w.dsns {
			p := proxy.MySQLFor(t, w.servers[n].Addr())
			s.shards = append(s.shards, p)
			list = append(list, shard{fmt.Sprint("s", n), at(t, dsn, p.Addr(), 0)})
		}
		b, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		s.env = []string{"BILLING_KAFKA_BROKERS=" + s.kafka.Addr(), "BILLING_SHARDS=" + string(b), "BILLING_LOG_LEVEL=debug"}
		m.slots = append(m.slots, s)
	}
	return m
}

func (m *many) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *many) start(s *slot) {
	m.t.Helper()
	s.p = m.commandEnv(s.env, "run")
	s.all = append(s.all, s.p)
}

// alive fails when the instance has ended by itself.
func (m *many) alive(s *slot) {
	m.t.Helper()
	select {
	case <-s.p.done:
		m.t.Fatalf("instance %d has ended by itself: %v\n%s", s.number, s.p.err, tail(s.p.output(), 20))
	default:
	}
}

// link is the way on which the fault is.
func (m *many) link(f *planned) *proxy.Proxy {
	if f.link == 0 {
		return m.slots[f.slot].kafka.Proxy
	}
	return m.slots[f.slot].shards[f.link-1].Proxy
}

// say logs what happens, with its time.
func (m *many) say(format string, args ...any) {
	m.t.Helper()
	m.t.Logf("%s %6.1fs %s", time.Now().Format(clock), time.Since(m.began).Seconds(), fmt.Sprintf(format, args...))
}

// ---- faults

func (m *many) begin(f *planned) {
	m.t.Helper()
	m.say("%s", f)
	if heal := f.kind.begin(m, f); heal != nil {
		m.inForceFor(f, f.lasts, heal)
	}
	m.changed(f)
}

func (m *many) inForceFor(f *planned, d time.Duration, heal func()) {
	m.inForce = append(m.inForce, running{f, time.Now().Add(d), heal})
	slices.SortFunc(m.inForce, func(a, b running) int { return a.until.Compare(b.until) })
}

// inTheWay: there are enough faults, or one at the same place.
func (m *many) inTheWay(f *planned) bool {
	return len(m.inForce) >= atOnce || slices.ContainsFunc(m.inForce, func(r running) bool { return r.place(m.mysqls) == f.place(m.mysqls) })
}

// healNext waits for the end of the fault that ends first.
func (m *many) healNext() {
	m.t.Helper()
	r := m.inForce[0]
	m.wait(time.Until(r.until))
	m.inForce = m.inForce[1:]
	r.heal()
	m.say("    ended: %s", r.planned)
	m.changed(r.planned)
}

// until heals what is to be healed before the moment, and waits for it.
func (m *many) until(moment time.Time) {
	m.t.Helper()
	for len(m.inForce) > 0 && m.inForce[0].until.Before(moment) {
		m.healNext()
	}
	m.wait(time.Until(moment))
}

func (m *many) wait(d time.Duration) {
	m.t.Helper()
	select {
	case <-time.After(d):
	case <-m.t.Context().Done():
		m.t.Fatal("the test is over")
	}
}

// calm heals everything and waits until all goes on.
func (m *many) calm(after string) {
	m.t.Helper()
	for len(m.inForce) > 0 {
		m.healNext()
	}
	m.recover(after)
}

// recover waits until all that was sent up to now has its outcome on every shard.
func (m *many) recover(after string) {
	m.t.Helper()
	target, began := m.load.sentSoFar(), time.Now()
	servers.Eventually(m.t, goesOnIn, func() error {
		if m.t.Failed() {
			return nil
		}
		if err := m.watcher.accounted(target); err != nil {
			return fmt.Errorf("after %s: %w", after, err)
		}
		return nil
	})
	took := time.Since(began)
	m.took = append(m.took, took)
	m.say("    recovered from %s after %s, with %d records", after, took.Round(10*time.Millisecond), target)
}

// changed notes since when the instances and the servers have been well. An
// instance is well that runs and has all its ways.
func (m *many) changed(f *planned) {
	now := time.Now()
	if f.kind.on == onMySQL || f.kind.on == onBroker {
		m.serversWell = now
	} else {
		m.slots[f.slot].well = now
	}
	ill := map[int]bool{}
	serversIll := false
	for _, r := range m.inForce {
		if r.kind.on == onMySQL || r.kind.on == onBroker {
			serversIll = true
		} else {
			ill[r.slot] = true
		}
	}
	var served, calm time.Time
	for _, s := range m.slots {
		if s.p != nil && !ill[s.number] && !serversIll && (served.IsZero() || s.well.Before(served)) {
			served = s.well
		}
	}
	if !served.IsZero() && m.serversWell.After(served) {
		served = m.serversWell
	}
	if len(m.inForce) == 0 {
		calm = now
	}
	m.watcher.expectEpochs(served, calm)
}

// ---- the end

// report says how long things took. The time that tells most is that of the
// recoveries: each begins when the last fault was healed.
func (m *many) report() {
	slices.Sort(m.took)
	at := func(percent int) time.Duration {
		return m.took[(len(m.took)-1)*percent/100].Round(10 * time.Millisecond)
	}
	starts := 0
	for _, s := range m.slots {
		starts += len(s.all)
	}
	m.say("%d starts of instances; %d recoveries: median %s, 90%% %s, longest %s", starts, len(m.took), at(50), at(90), at(100))
	m.say("longest without an epoch: of any lane with one instance and all servers well %v; of one lane with nothing wrong %v", &m.watcher.served, &m.watcher.calm)
	m.say("rules that acted: %v", m.hits)
}

// check compares what there is with what was sent.
func (m *many) check() {
	m.t.Helper()
	m.exact()
	if v := m.mustVerify(m.t, 0); len(v.InDoubt) > 0 || !v.DecisionsCompared {
		m.t.Errorf("billing verify at the end: %s", v)
	}
	for p := range m.partitions {
		m.compareCounts(m.t, p, m.load.counts[p])
		d := m.decided(p)
		for i, db := range m.shards {
			var seq, laneSeq, laneIncarnation, incarnation, laneNext, next int64
			var gtrid string
			err := db.QueryRow(`SELECT l.seq, l.incarnation, l.offset_next, e.seq, e.incarnation, e.offset_next, e.gtrid
				FROM billing_lane l JOIN billing_epoch e USING (kafka_topic, kafka_partition) WHERE kafka_partition = ? ORDER BY e.seq DESC LIMIT 1`, p).
				Scan(&laneSeq, &laneIncarnation, &laneNext, &seq, &incarnation, &next, &gtrid)
			if err != nil {
				m.t.Fatal(err)
			}
			if laneSeq != seq || laneIncarnation != incarnation || laneNext != next || d.Seq != seq || d.GTRID != gtrid || d.Next < next || d.Incarnation < incarnation {
				m.t.Errorf("shard %d, lane %d: the lane's row has epoch %d of incarnation %d up to %d, its last epoch is %d of %d up to %d (%s), D is %+v",
					i, p, laneSeq, laneIncarnation, laneNext, seq, incarnation, next, gtrid, d)
			}
		}
	}
	for i := range m.shards {
		m.must(m.watcher.look(m.t.Context(), i))
	}
	if sent, booked := len(m.load.events), len(m.watcher.booked); booked != sent {
		m.t.Errorf("%d ids are booked, %d were sent to be", booked, sent)
	}
	for i := range m.shards {
		if locks := m.locks(i); len(locks) > 0 {
			m.t.Errorf("shard %d: locks are left:\n%s", i, strings.Join(locks, "\n"))
		}
	}
	for _, s := range m.slots {
		for _, p := range s.all {
			m.checkLog(s, p)
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

func (m *many) checkLog(s *slot, p *process) {
	lines := strings.Split(p.output(), "\n")
	around := func(i int) string {
		return strings.Join(lines[max(0, i-15):min(len(lines), i+6)], "\n")
	}
	for i, line := range lines {
		if never.MatchString(line) {
			m.t.Errorf("instance %d:\n%s", s.number, around(i))
		}
		switch found := net.FindStringSubmatch(line); {
		case found == nil:
		case slices.Contains(explained, found[1]):
			m.say("instance %d: the net %s has decided:\n%s", s.number, found[1], around(i))
		default:
			m.t.Errorf("instance %d: the net %s has decided:\n%s", s.number, found[1], around(i))
		}
	}
}

// evidence shows where everything stands, before the servers are removed.
func (m *many) evidence() {
	for p := range m.partitions {
		m.say("lane %d: D %+v, its Kafka transaction is %s", p, m.decided(p), m.transaction(p).State)
	}
	for i := range m.shards {
		m.say("shard %d: %d prepared, last epochs %v, locks:\n%s", i, m.prepared()[i], m.watcher.seen[i].lanes, strings.Join(m.locks(i), "\n"))
	}
}
