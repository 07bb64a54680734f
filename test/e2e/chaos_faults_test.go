package e2e

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/test/proxy"
)

// faultKind begins a fault, and returns what ends it: nil for one that is over.
type faultKind struct {
	name   string
	weight int
	on     faultPlace
	lasts  [2]time.Duration // between these; none is over at once
	rule   bool             // is about requests of one kind
	begin  func(m *many, f *planned) (heal func())
}

// Kinds that the plan treats in a way of their own, and requests.
const (
	killed     = "SIGKILL"
	sigterm    = "SIGTERM"
	stopped    = "SIGSTOP"
	comeOrGo   = "coming or going"
	scaled     = "scaling"
	cut        = "cut"
	lostAnswer = "lost answer"
	late       = "late request"
	unanswered = "no answer"

	endTxn          = "EndTxn"
	initProducerID  = "InitProducerID"
	txnOffsetCommit = "TxnOffsetCommit"
	produce         = "Produce"
	xaPrepare       = "XA PREPARE"
	xaCommit        = "XA COMMIT"
)

const (
	ms  = time.Millisecond
	sec = time.Second
)

// A kind without a weight comes by the plan alone.
var faultKinds = []*faultKind{
	{killed, 5, onProcess, [2]time.Duration{0, 4 * sec}, false, func(m *many, f *planned) func() {
		s := m.slots[f.slot]
		m.alive(s)
		m.killed = append(m.killed, kill{time.Now(), s.p, f})
		s.p.kill()
		return func() { m.start(s) }
	}},
	{sigterm, 3, onProcess, [2]time.Duration{0, 2 * sec}, false, func(m *many, f *planned) func() {
		s := m.slots[f.slot]
		m.alive(s)
		m.end(s)
		return func() { m.start(s) }
	}},
	{stopped, 5, onProcess, [2]time.Duration{1 * sec, 12 * sec}, false, func(m *many, f *planned) func() {
		s := m.slots[f.slot]
		m.alive(s)
		s.p.signal(syscall.SIGSTOP)
		return func() { s.p.signal(syscall.SIGCONT) }
	}},
	{comeOrGo, 5, onProcess, [2]time.Duration{}, false, func(m *many, f *planned) func() {
		m.comeOrGo(m.slots[f.slot])
		return nil
	}},
	{scaled, 0, onAll, [2]time.Duration{}, false, func(m *many, f *planned) func() {
		for i, up := range f.up {
			if s := m.slots[i]; up != (s.p != nil) {
				m.comeOrGo(s)
			}
		}
		return nil
	}},
	{"kill -9", 3, onMySQL, [2]time.Duration{0, 5 * sec}, false, func(m *many, f *planned) func() {
		return m.restart(f, m.servers[f.link-1])
	}},
	{"kill -9", 3, onBroker, [2]time.Duration{0, 5 * sec}, false, func(m *many, f *planned) func() {
		return m.restart(f, m.kafka)
	}},
	{"freeze", 2, onMySQL, [2]time.Duration{500 * ms, 12 * sec}, false, func(m *many, f *planned) func() {
		return m.pause(m.servers[f.link-1])
	}},
	{"freeze", 2, onBroker, [2]time.Duration{500 * ms, 12 * sec}, false, func(m *many, f *planned) func() {
		return m.pause(m.kafka)
	}},
	{cut, 4, onLink, [2]time.Duration{}, false, func(m *many, f *planned) func() {
		m.link(f).Cut()
		return nil
	}},
	{"black hole", 3, onLink, [2]time.Duration{}, false, func(m *many, f *planned) func() {
		m.link(f).BlackHole()
		return nil
	}},
	{"freeze", 5, onLink, [2]time.Duration{500 * ms, 12 * sec}, false, func(m *many, f *planned) func() {
		m.link(f).Freeze(true)
		return func() { m.link(f).Freeze(false) }
	}},
	{"refused connections", 2, onLink, [2]time.Duration{500 * ms, 6 * sec}, false, func(m *many, f *planned) func() {
		m.link(f).Refuse(true)
		return func() { m.link(f).Refuse(false) }
	}},
	{"delay", 2, onLink, [2]time.Duration{2 * sec, 8 * sec}, false, func(m *many, f *planned) func() {
		m.link(f).Delay(150 * ms)
		return func() { m.link(f).Delay(0) }
	}},
	{"throttle", 2, onLink, [2]time.Duration{2 * sec, 8 * sec}, false, func(m *many, f *planned) func() {
		m.link(f).Throttle(4096)
		return func() { m.link(f).Throttle(0) }
	}},
	// The next request of the kind is done, and its answer is lost.
	{lostAnswer, 10, onLink, [2]time.Duration{1 * sec, 5 * sec}, true, func(m *many, f *planned) func() {
		return m.rule(f, 1, proxy.DropAnswer{Hang: f.hang}, proxy.DropAnswer{Hang: f.hang})
	}},
	// All of them, for longer than a decision waits (10 s): what is decided, the
	// instance can't know.
	{unanswered, 4, onLink, [2]time.Duration{8 * sec, 15 * sec}, true, func(m *many, f *planned) func() {
		return m.rule(f, 0, proxy.DropAnswer{Hang: f.hang}, proxy.DropAnswer{Hang: f.hang})
	}},
	// The next request of the kind comes late, when nobody may wait for it any more.
	{late, 6, onLink, [2]time.Duration{1 * sec, 15 * sec}, true, func(m *many, f *planned) func() {
		return m.rule(f, 1, proxy.HoldRequest{}, proxy.HoldRequest{})
	}},
}

func kindNamed(name string) *faultKind {
	for _, k := range faultKinds {
		if k.name == name {
			return k
		}
	}
	panic("no kind of fault is named " + name)
}

// comeOrGo starts an instance, or ends it in good order.
func (m *many) comeOrGo(s *slot) {
	if s.p == nil {
		m.start(s)
		return
	}
	m.alive(s)
	m.end(s)
	s.p = nil
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

// pause makes a server stand still, as SIGSTOP does.
func (m *many) pause(server interface {
	Pause(ctx context.Context) error
	Unpause(ctx context.Context) error
}) func() {
	m.must(server.Pause(m.t.Context()))
	return func() { m.must(server.Unpause(m.t.Context())) }
}

// rule does something to the next requests of a kind: to so many of them, or to all
// for 0.
func (m *many) rule(f *planned, times int, kafka proxy.KafkaAction, mysql proxy.MySQLAction) func() {
	h := m.addRule(f.slot, f.link, f.what, times, kafka, mysql)
	return func() {
		m.hits[f.kind.name+" of "+f.what] += h.Hits()
		h.Remove()
	}
}

func (m *many) addRule(slot, link int, what string, times int, kafka proxy.KafkaAction, mysql proxy.MySQLAction) *proxy.Handle {
	s := m.slots[slot]
	if link > 0 {
		return s.shards[link-1].Add(proxy.MySQLRule{Match: proxy.Statement(what), Times: times, Do: mysql})
	}
	match := map[string]func(*proxy.Request) bool{
		endTxn:          proxy.EndTxn(true, m.job),
		initProducerID:  proxy.Containing(m.job+".", kmsg.InitProducerID),
		txnOffsetCommit: proxy.Containing(m.job+".", kmsg.TxnOffsetCommit),
		produce:         proxy.Containing(m.job+".", kmsg.Produce),
	}[what]
	return s.kafka.Add(proxy.KafkaRule{Match: match, Times: times, Do: kafka})
}

// comesWithin is how long a moment is waited for. An instance that has just come
// needs its lanes first; one that has lost its servers makes no decision.
const comesWithin = 20 * time.Second

// reach waits for a moment, which then stays.
func (m *many) reach(f *planned) {
	var kafka proxy.KafkaAction = proxy.HoldRequest{}
	var mysql proxy.MySQLAction = proxy.HoldRequest{}
	if f.moment.answer {
		kafka, mysql = proxy.HoldAnswer{}, proxy.HoldAnswer{}
	}
	h := m.addRule(f.moment.slot, f.moment.link, f.moment.what, 1, kafka, mysql)
	ctx, cancel := context.WithTimeout(m.t.Context(), comesWithin)
	defer cancel()
	if err := h.WaitHits(ctx, 1); err != nil {
		m.say("    the moment has not come: %v", err)
		m.hits["moments that did not come"]++
		h.Remove()
		return
	}
	m.hits["moments: "+f.moment.name]++
	held := &planned{kind: &faultKind{name: fmt.Sprintf("held %s", f.moment.what), on: onLink}, slot: f.moment.slot, link: f.moment.link}
	m.inForceFor(held, f.moment.lasts, h.Remove)
}
