package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"billing/test/proxy"
)

// planned is one thing that happens in TestManyOwnersAtRandom.
type planned struct {
	kind  *faultKind
	after time.Duration // since the one before
	lasts time.Duration
	slot  int    // of the instance
	link  int    // of the instance's: 0 to Kafka, from 1 on to the shards
	what  string // of the requests there, whose is lost or late
	hang  bool
	calm  bool // then everything is healed, and the test waits until all goes on
}

func (f *planned) String() string {
	s := f.kind.name
	if f.what != "" {
		s += " of " + f.what
	}
	switch f.kind.on {
	case onProcess:
		s += fmt.Sprintf(" of instance %d", f.slot)
	case onLink:
		s += fmt.Sprintf(" between instance %d and %s", f.slot, linkName(f.link))
	case onMySQL:
		s += fmt.Sprintf(" of the server of shard %d", f.link-1)
	case onBroker:
		s += " of the broker"
	}
	if f.hang {
		s += ", silently"
	}
	if f.lasts > 0 {
		s += fmt.Sprintf(" for %s", f.lasts.Round(10*time.Millisecond))
	}
	return s
}

func linkName(link int) string {
	if link == 0 {
		return "Kafka"
	}
	return fmt.Sprintf("shard %d", link-1)
}

// What a fault is done to. One thing has one fault at a time.
type faultPlace int

const (
	onProcess faultPlace = iota
	onLink
	onMySQL
	onBroker
)

func (f *planned) place(servers int) string {
	switch f.kind.on {
	case onProcess:
		return fmt.Sprint("instance ", f.slot)
	case onLink:
		return fmt.Sprint("link ", f.slot, " ", f.link)
	case onMySQL:
		return fmt.Sprint("mysqld ", (f.link-1)%servers)
	default:
		return "broker"
	}
}

// faultKind begins a fault, and returns what ends it: nil for one that is over.
type faultKind struct {
	name   string
	weight int
	on     faultPlace
	lasts  [2]time.Duration // between these; none is over at once
	begin  func(m *many, f *planned) (heal func())
}

// Kinds that the plan treats in a way of their own.
const (
	comeOrGo   = "coming or going"
	stopped    = "SIGSTOP"
	lostAnswer = "lost answer"
	late       = "late request"
	unanswered = "no answer"
)

const (
	ms  = time.Millisecond
	sec = time.Second
)

var faultKinds = []*faultKind{
	{"SIGKILL", 5, onProcess, [2]time.Duration{0, 4 * sec}, func(m *many, f *planned) func() {
		s := m.slots[f.slot]
		m.alive(s)
		s.p.kill()
		return func() { m.start(s) }
	}},
	{"SIGTERM", 3, onProcess, [2]time.Duration{0, 2 * sec}, func(m *many, f *planned) func() {
		s := m.slots[f.slot]
		m.alive(s)
		s.p.stop()
		return func() { m.start(s) }
	}},
	{stopped, 5, onProcess, [2]time.Duration{1 * sec, 12 * sec}, func(m *many, f *planned) func() {
		s := m.slots[f.slot]
		m.alive(s)
		s.p.signal(syscall.SIGSTOP)
		return func() { s.p.signal(syscall.SIGCONT) }
	}},
	{comeOrGo, 5, onProcess, [2]time.Duration{}, func(m *many, f *planned) func() {
		s := m.slots[f.slot]
		if s.p == nil {
			m.start(s)
			return nil
		}
		m.alive(s)
		s.p.stop()
		s.p = nil
		return nil
	}},
	{"kill -9", 3, onMySQL, [2]time.Duration{0, 5 * sec}, func(m *many, f *planned) func() {
		return m.restart(f, m.servers[f.link-1])
	}},
	{"kill -9", 3, onBroker, [2]time.Duration{0, 5 * sec}, func(m *many, f *planned) func() {
		return m.restart(f, m.kafka)
	}},
	{"cut", 4, onLink, [2]time.Duration{}, func(m *many, f *planned) func() {
		m.link(f).Cut()
		return nil
	}},
	{"black hole", 3, onLink, [2]time.Duration{}, func(m *many, f *planned) func() {
		m.link(f).BlackHole()
		return nil
	}},
	{"freeze", 5, onLink, [2]time.Duration{500 * ms, 12 * sec}, func(m *many, f *planned) func() {
		m.link(f).Freeze(true)
		return func() { m.link(f).Freeze(false) }
	}},
	{"refused connections", 2, onLink, [2]time.Duration{500 * ms, 6 * sec}, func(m *many, f *planned) func() {
		m.link(f).Refuse(true)
		return func() { m.link(f).Refuse(false) }
	}},
	{"delay", 2, onLink, [2]time.Duration{2 * sec, 8 * sec}, func(m *many, f *planned) func() {
		m.link(f).Delay(150 * ms)
		return func() { m.link(f).Delay(0) }
	}},
	{"throttle", 2, onLink, [2]time.Duration{2 * sec, 8 * sec}, func(m *many, f *planned) func() {
		m.link(f).Throttle(4096)
		return func() { m.link(f).Throttle(0) }
	}},
	// The next request of the kind is done, and its answer is lost.
	{lostAnswer, 8, onLink, [2]time.Duration{1 * sec, 5 * sec}, func(m *many, f *planned) func() {
		return m.rule(f, 1, proxy.DropAnswer{Hang: f.hang}, proxy.DropAnswer{Hang: f.hang})
	}},
	// All of them, for longer than a decision waits (10 s): what is decided, the
	// instance can't know.
	{unanswered, 4, onLink, [2]time.Duration{8 * sec, 15 * sec}, func(m *many, f *planned) func() {
		return m.rule(f, 0, proxy.DropAnswer{Hang: f.hang}, proxy.DropAnswer{Hang: f.hang})
	}},
	// The next request of the kind comes late, when nobody may wait for it any more.
	{late, 6, onLink, [2]time.Duration{1 * sec, 15 * sec}, func(m *many, f *planned) func() {
		return m.rule(f, 1, proxy.HoldRequest{}, proxy.HoldRequest{})
	}},
}

// restart kills a server. It is started when the fault's time is over, and may
// meet the next fault while it comes up.
func (m *many) restart(f *planned, server interface {
	Kill(ctx context.Context) error
	StartNoWait(ctx context.Context) error
	WaitReady(ctx context.Context) error
}) func() {
	ctx := m.t.Context()
	m.must(server.Kill(ctx))
	return func() {
		m.must(server.StartNoWait(ctx))
		m.inForceFor(f, 5*time.Second, func() { m.must(server.WaitReady(ctx)) })
	}
}

// rule does something to the next decisions, or to the next ends of a phase on a
// shard: to so many of them, or to all for 0.
func (m *many) rule(f *planned, times int, kafka proxy.KafkaAction, mysql proxy.MySQLAction) func() {
	s := m.slots[f.slot]
	var h *proxy.Handle
	if f.link == 0 {
		h = s.kafka.Add(proxy.KafkaRule{Match: proxy.EndTxn(true, m.job), Times: times, Do: kafka})
	} else {
		h = s.shards[f.link-1].Add(proxy.MySQLRule{Match: proxy.Statement(f.what), Times: times, Do: mysql})
	}
	return func() {
		m.hits[f.kind.name] += h.Hits()
		h.Remove()
	}
}

// plan is a sequence of faults that a seed gives. It knows which instances run.
type plan struct {
	*rand.Rand
	up        []bool
	shards    int
	longStops bool
}

func (p *plan) between(from, to time.Duration) time.Duration {
	if to <= from {
		return from
	}
	return from + time.Duration(p.Int64N(int64(to-from)))
}

func (p *plan) next() *planned {
	total := 0
	for _, k := range faultKinds {
		total += k.weight
	}
	f := &planned{after: p.between(100*ms, 3*sec), calm: p.IntN(6) == 0, hang: p.IntN(2) == 0}
	n := p.IntN(total)
	for _, f.kind = range faultKinds {
		if n -= f.kind.weight; n < 0 {
			break
		}
	}
	f.lasts = p.between(f.kind.lasts[0], f.kind.lasts[1])
	// Drawn for every fault, so that the plan of a long run begins as that of a short one.
	if long, now := p.between(12*sec, 70*sec), p.IntN(3) == 0; now && f.kind.name == stopped && p.longStops {
		f.lasts = long
	}
	f.link = p.IntN(1 + p.shards)
	if f.kind.on == onMySQL {
		f.link = 1 + p.IntN(p.shards)
	}
	if f.kind.name == unanswered && p.IntN(2) == 0 {
		f.link = 0
	}
	if f.kind.name == lostAnswer || f.kind.name == late || f.kind.name == unanswered {
		f.what = []string{"XA PREPARE", "XA COMMIT"}[p.IntN(2)]
		if f.link == 0 {
			f.what = "EndTxn"
		}
	}
	f.hang = f.hang && (f.kind.name == lostAnswer || f.kind.name == unanswered)
	f.slot = p.slot(f.kind.name == comeOrGo)
	return f
}

// slot picks an instance that runs, or one that comes or goes. The last one
// stays.
func (p *plan) slot(toggle bool) int {
	running := 0
	for _, up := range p.up {
		if up {
			running++
		}
	}
	for {
		i := p.IntN(len(p.up))
		switch {
		case toggle && (!p.up[i] || running > 1):
			p.up[i] = !p.up[i]
			return i
		case !toggle && p.up[i]:
			return i
		}
	}
}
