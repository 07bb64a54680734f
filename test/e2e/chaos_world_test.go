package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"billing/test/proxy"
	"billing/test/servers"
)

// many is one job with several instances. Each has a way of its own to the
// broker and to every shard.
type many struct {
	*world
	load        *chaosLoad
	watcher     *watcher
	mysqls      int // servers, that the shards share
	slots       []*slot
	began       time.Time
	begun       atomic.Int64   // faults
	kinds       map[string]int // of them
	inForce     []running
	serversWell time.Time       // since then, if they are now
	hits        map[string]int  // of rules, by the fault's name
	took        []time.Duration // of recoveries
	killed      []kill
	trail       []string // all that was said
}

// slot is where an instance may run.
type slot struct {
	number int
	kafka  *proxy.Kafka
	shards []*proxy.MySQL
	env    []string
	p      *process    // nil: none
	all    []*instance // that ever ran
	well   time.Time   // since then, if it is now
}

// instance is one that runs or ran.
type instance struct {
	*process
	slot     int
	counters map[string]int64 // as it said last, before its end: records by outcome
}

// running is a fault that has begun and not ended.
type running struct {
	*planned
	until time.Time
	heal  func() // may call inForceFor again
}

// newMany has servers of its own: others must not meet these faults.
func newMany(t *testing.T, shards int, partitions int32, seed uint64) *many {
	t.Helper()
	servers.Require(t)
	var kafka *servers.KafkaServer
	mysqls := make([]*servers.MySQLServer, 2)
	errs := make([]error, 1+len(mysqls))
	var wg sync.WaitGroup
	wg.Go(func() { kafka, errs[0] = servers.StartKafka(t.Context()) })
	for i := range mysqls {
		wg.Go(func() { mysqls[i], errs[1+i] = servers.StartMySQL(t.Context(), fmt.Sprintf("chaos%d", i)) })
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
	return manyOf(newWorld(t, shards, withPartitions(partitions), onServers(kafka, mysqls...)), len(mysqls), seed)
}

// manyOf makes slots for four instances of a world.
func manyOf(w *world, mysqls int, seed uint64) *many {
	m := &many{world: w, mysqls: mysqls, load: newLoad(w, seed), hits: map[string]int{}, kinds: map[string]int{}, began: time.Now()}
	w.t.Cleanup(func() {
		if !w.t.Failed() {
			_ = os.RemoveAll(w.dir) // with -artifacts it would stay
		}
	})
	m.watcher = newWatcher(m.load)
	m.load.newSource()
	for i := range 4 {
		s := &slot{number: i, kafka: proxy.KafkaFor(w.t, w.kafka.Addr())}
		type shard struct {
			Name string `json:"name"`
			DSN  string `json:"dsn"`
		}
		var list []shard
		for n, dsn := range w.dsns {
			p := proxy.MySQLFor(w.t, w.servers[n].Addr())
			s.shards = append(s.shards, p)
			list = append(list, shard{fmt.Sprint("s", n), at(w.t, dsn, p.Addr(), 0)})
		}
		b, err := json.Marshal(list)
		m.must(err)
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

// instances are all that ever ran.
func (m *many) instances() (all []*instance) {
	for _, s := range m.slots {
		all = append(all, s.all...)
	}
	return all
}

func (m *many) start(s *slot) {
	m.t.Helper()
	s.p = m.commandEnv(s.env, "run")
	s.all = append(s.all, &instance{process: s.p, slot: s.number})
}

// end sends SIGTERM, and notes what the instance's counters say at the end.
func (m *many) end(s *slot) {
	m.t.Helper()
	i := s.all[len(s.all)-1]
	read := make(chan map[string]int64)
	go func() { read <- i.readToTheEnd() }()
	s.p.stop()
	i.counters = <-read
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
	line := fmt.Sprintf("%s %6.1fs %s", time.Now().Format(clock), time.Since(m.began).Seconds(), fmt.Sprintf(format, args...))
	m.trail = append(m.trail, line)
	m.t.Log(line)
}

// ---- faults

// begin begins what is planned for one instant.
func (m *many) begin(f *planned) {
	m.t.Helper()
	m.load.mark()
	m.say("%s", f)
	if f.moment != nil {
		m.reach(f)
	}
	// What takes its time comes last, so that all begin in one instant.
	slow := func(f *planned) int {
		switch {
		case f.kind.name == sigterm || f.kind.name == comeOrGo || f.kind.on == onAll:
			return 2
		case f.kind.on == onMySQL || f.kind.on == onBroker:
			return 1
		}
		return 0
	}
	all := f.all()
	slices.SortStableFunc(all, func(a, b *planned) int { return slow(a) - slow(b) })
	for _, one := range all {
		if heal := one.kind.begin(m, one); heal != nil {
			m.inForceFor(one, one.lasts, heal)
		}
		m.changed(one)
		m.begun.Add(1)
		name := one.kind.name
		if one.kind.on == onMySQL || one.kind.on == onBroker {
			name += map[faultPlace]string{onMySQL: " of mysqld", onBroker: " of the broker"}[one.kind.on]
		}
		m.kinds[name]++
	}
}

func (m *many) inForceFor(f *planned, d time.Duration, heal func()) {
	m.inForce = append(m.inForce, running{f, time.Now().Add(d), heal})
	slices.SortFunc(m.inForce, func(a, b running) int { return a.until.Compare(b.until) })
}

// makeWay heals what is in a fault's way: enough others, or one at the same place.
// What begins together, or in a moment that is waited for, begins alone. An instance
// that stands still for very long is in nobody's way but at its place.
func (m *many) makeWay(f *planned) {
	m.t.Helper()
	most := atOnce - 1
	if len(f.all()) > 1 || f.moment != nil {
		most = 0
	}
	inTheWay := func(r running) bool {
		if f.moment != nil && r.kind.on == onProcess && r.slot == f.moment.slot {
			return true
		}
		for _, one := range f.all() {
			if r.place(m.mysqls) == one.place(m.mysqls) || one.kind.on == onAll && r.kind.on == onProcess && one.up[r.slot] == (m.slots[r.slot].p == nil) {
				return true
			}
		}
		return false
	}
	short := func() (n int) {
		for _, r := range m.inForce {
			if r.kind.name != stopped || r.lasts <= r.kind.lasts[1] {
				n++
			}
		}
		return n
	}
	for short() > most || slices.ContainsFunc(m.inForce, inTheWay) {
		m.healNext()
	}
}

// healNext waits for the end of the fault that ends first.
func (m *many) healNext() {
	m.t.Helper()
	r := m.inForce[0]
	m.wait(time.Until(r.until))
	m.inForce = m.inForce[1:]
	r.heal()
	m.say("    ended: %s", r.alone())
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
	switch f.kind.on {
	case onMySQL, onBroker:
		m.serversWell = now
	case onAll:
		for _, s := range m.slots {
			s.well = now
		}
	default:
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

// ---- what is said at the end

// report says how long things took. The time that tells most is that of the
// recoveries: each begins when the last fault was healed.
func (m *many) report() {
	m.say("%d starts of instances; %s", len(m.instances()), m.summary())
	m.say("longest without an epoch: of any lane with one instance and all servers well %v; of one lane with nothing wrong %v", &m.watcher.served, &m.watcher.calm)
	m.say("faults by kind: %s", listed(m.kinds))
	m.say("rules that acted: %s", listed(m.hits))
	for _, line := range m.afterKills() {
		m.say("%s", line)
	}
}

// summary is the recoveries, and the longest time without a decision.
func (m *many) summary() string {
	took := slices.Sorted(slices.Values(m.took))
	at := func(percent int) time.Duration {
		return took[(len(took)-1)*percent/100].Round(10 * time.Millisecond)
	}
	return fmt.Sprintf("%d recoveries: median %s, p90 %s, longest %s; longest without a decision %s", len(took), at(50), at(90), at(100), m.watcher.served.longest.Round(10*time.Millisecond))
}

func listed(counts map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(parts, ", ")
}
