package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// planned is one thing that happens in TestChaos.
type planned struct {
	kind  *faultKind
	after time.Duration // since the one before
	lasts time.Duration
	slot  int    // of the instance
	link  int    // of the instance's: 0 to Kafka, from 1 on to the shards
	what  string // of the requests there, whose is lost or late
	hang  bool
	up    []bool // which instances shall run from now on
	calm  bool   // then everything is healed, and the test waits until all goes on

	moment *moment  // not before this
	with   *planned // begins in the same instant
}

// all are the faults that begin together.
func (f *planned) all() (all []*planned) {
	for ; f != nil; f = f.with {
		all = append(all, f)
	}
	return all
}

// alone is the fault without those beside it.
func (f *planned) alone() *planned {
	alone := *f
	alone.with, alone.moment = nil, nil
	return &alone
}

// moment is when an instance has come to a place in the protocol: there a request of
// its is kept from the server, or the answer from the instance, and it stays so for
// some time, whatever becomes of the instance.
type moment struct {
	*place
	slot, link int
	lasts      time.Duration
}

// place is a place in the protocol that is seen on the way to a server.
type place struct {
	name   string
	kafka  bool
	what   string
	answer bool // is held, not the request
}

var places = []*place{
	{"all is prepared and nothing decided", true, endTxn, false},
	{"it is decided and not known", true, endTxn, true},
	{"some is prepared", false, xaPrepare, true},
	{"it is decided and not committed", false, xaCommit, false},
}

func (m *moment) String() string {
	side := "request"
	if m.answer {
		side = "answer"
	}
	return fmt.Sprintf("when %s in instance %d (the %s %s between it and %s is held for %s)", m.name, m.slot, m.what, side, linkName(m.link), m.lasts.Round(10*time.Millisecond))
}

func (f *planned) String() string {
	if len(f.all()) > 1 || f.moment != nil {
		var parts []string
		for _, one := range f.all() {
			parts = append(parts, one.alone().String())
		}
		s := strings.Join(parts, " AND ")
		if f.moment != nil {
			s = fmt.Sprint(f.moment, ": ", s)
		}
		return s
	}
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
	case onAll:
		s += fmt.Sprintf(" to %d", count(f.up))
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

func count(up []bool) (n int) {
	for _, is := range up {
		if is {
			n++
		}
	}
	return n
}

// What a fault is done to. One thing has one fault at a time.
type faultPlace int

const (
	onProcess faultPlace = iota
	onLink
	onMySQL
	onBroker
	onAll // instances
)

func (f *planned) place(servers int) string {
	switch f.kind.on {
	case onProcess:
		return fmt.Sprint("instance ", f.slot)
	case onLink:
		return fmt.Sprint("link ", f.slot, " ", f.link)
	case onMySQL:
		return fmt.Sprint("mysqld ", (f.link-1)%servers)
	case onBroker:
		return "broker"
	default:
		return "instances"
	}
}

// plan is a sequence of faults that a seed gives. It knows which instances run.
type plan struct {
	*rand.Rand
	up        []bool
	shards    int
	mysqls    int
	longStops bool // of processes: longer than every time-out
	kills     bool // of instances; without them SIGTERM comes instead
	made      int
}

// scales is when the number of instances is set, by the fault's place in each
// scaleEvery of them: to 1, to 4, to 2.
var scales = map[int]int{1: 1, 4: 4, 7: 2}

const scaleEvery = 30

func (p *plan) between(from, to time.Duration) time.Duration {
	if to <= from {
		return from
	}
	return from + time.Duration(p.Int64N(int64(to-from)))
}

// next is what happens next: one fault, two at once, or some in a moment of the
// protocol.
func (p *plan) next() *planned {
	p.made++
	after, calm := p.between(100*ms, 3*sec), p.IntN(6) == 0
	var f *planned
	if n := scales[p.made%scaleEvery]; n > 0 {
		f = p.scale(n)
	} else {
		switch p.IntN(8) {
		case 0:
			f = p.inAMoment()
		case 1, 2:
			f = p.draw(nil)
			f.with = p.beside(f)
		default:
			f = p.draw(nil)
			if f.what == initProducerID { // which no lane at work sends
				f.with = &planned{kind: kindNamed(killed), slot: f.slot, lasts: p.between(0, 2*sec)}
			}
		}
	}
	f.after, f.calm = after, calm
	for _, one := range f.all() {
		if !p.kills && one.kind.name == killed {
			one.kind = kindNamed(sigterm)
		}
	}
	return f
}

// scale sets how many instances run.
func (p *plan) scale(to int) *planned {
	for count(p.up) != to {
		if i := p.IntN(len(p.up)); p.up[i] == (count(p.up) > to) {
			p.up[i] = !p.up[i]
		}
	}
	return &planned{kind: kindNamed(scaled), up: slices.Clone(p.up)}
}

// inAMoment does something to an instance at a place in the protocol, and perhaps to
// another thing as well.
func (p *plan) inAMoment() *planned {
	m := &moment{place: places[p.IntN(len(places))], slot: p.slot(false), lasts: p.between(0, 15*sec)}
	if !m.kafka {
		m.link = 1 + p.IntN(p.shards)
	}
	f := &planned{moment: m, slot: m.slot}
	switch p.IntN(5) {
	case 0, 1:
		f.kind = kindNamed(killed)
	case 2, 3:
		f.kind = kindNamed(stopped)
	case 4:
		f.kind, f.link = kindNamed(cut), p.IntN(1+p.shards)
	}
	f.lasts = p.lasts(f.kind)
	if p.IntN(2) == 0 {
		f.with = p.beside(f)
	}
	return f
}

// beside is a fault at another place, of a kind that stays for a while or is a shock.
func (p *plan) beside(other *planned) *planned {
	for {
		f := p.draw(func(k *faultKind) bool { return k.name != comeOrGo })
		if f.place(p.mysqls) != other.place(p.mysqls) {
			return f
		}
	}
}

// draw picks one of the kinds that may be picked; nil: all of them.
func (p *plan) draw(may func(*faultKind) bool) *planned {
	total := 0
	for _, k := range faultKinds {
		if may == nil || may(k) {
			total += k.weight
		}
	}
	f := &planned{hang: p.IntN(2) == 0}
	n := p.IntN(total)
	for _, k := range faultKinds {
		if may != nil && !may(k) {
			continue
		}
		if n -= k.weight; n < 0 {
			f.kind = k
			break
		}
	}
	f.lasts = p.lasts(f.kind)
	f.link = p.IntN(1 + p.shards)
	if f.kind.on == onMySQL {
		f.link = 1 + p.IntN(p.shards)
	}
	if f.kind.rule && p.IntN(2) == 0 {
		f.link = 0
	}
	if f.kind.rule {
		f.what = []string{xaPrepare, xaCommit}[p.IntN(2)]
		if f.link == 0 {
			f.what = []string{endTxn, endTxn, endTxn, initProducerID, txnOffsetCommit, produce}[p.IntN(6)]
		}
	}
	if f.what == initProducerID {
		f.lasts = p.between(12*sec, 15*sec)
	}
	f.hang = f.hang && (f.kind.name == lostAnswer || f.kind.name == unanswered)
	f.slot = p.slot(f.kind.name == comeOrGo)
	return f
}

// lasts is how long a fault of a kind stays. Drawn for every fault, so that the plan
// of a long run begins as that of a short one.
func (p *plan) lasts(k *faultKind) time.Duration {
	lasts := p.between(k.lasts[0], k.lasts[1])
	if long, now := p.between(12*sec, 70*sec), p.IntN(4) == 0; now && k.name == stopped && p.longStops {
		return long
	}
	return lasts
}

// slot picks an instance that runs, or one that comes or goes. The last one
// stays.
func (p *plan) slot(toggle bool) int {
	for {
		i := p.IntN(len(p.up))
		switch {
		case toggle && (!p.up[i] || count(p.up) > 1):
			p.up[i] = !p.up[i]
			return i
		case !toggle && p.up[i]:
			return i
		}
	}
}

// TestPlanIsRepeated: a seed has one plan, with or without kills; and in it is what a
// run must have: it goes to one instance, to four and to two, some faults begin
// together, and some at each place of the protocol.
func TestPlanIsRepeated(t *testing.T) {
	t.Parallel()
	list := func(seed uint64, kills bool) (faults []string, has map[string]int) {
		p := &plan{Rand: rand.New(rand.NewPCG(seed, 0)), up: []bool{true, false, false, false}, shards: 3, mysqls: 2, kills: kills}
		has = map[string]int{}
		for range 200 {
			f := p.next()
			faults = append(faults, strings.ReplaceAll(fmt.Sprint(f.after, f, f.calm), killed, sigterm))
			if f.kind.on == onAll {
				has[fmt.Sprint("scale to ", count(f.up))]++
			}
			if f.moment != nil {
				has[f.moment.name]++
			}
			all := f.all()
			if len(all) > 1 {
				has["together"]++
			}
			for _, one := range all {
				has[one.kind.name]++
				if one.what != "" {
					has[one.kind.name+" of "+one.what]++
				}
			}
			if len(all) == 2 && all[0].place(p.mysqls) == all[1].place(p.mysqls) {
				t.Errorf("two faults at one place: %s", f)
			}
		}
		return faults, has
	}
	one, has := list(1, true)
	again, without := list(1, false)
	if !slices.Equal(one, again) {
		t.Errorf("seed 1 plans\n%v\nand\n%v", one, again)
	}
	if other, _ := list(2, true); slices.Equal(one, other) {
		t.Error("seeds 1 and 2 have the same plan")
	}
	want := []string{"scale to 1", "scale to 4", "scale to 2", "together"}
	for _, k := range faultKinds {
		want = append(want, k.name)
	}
	for _, place := range places {
		want = append(want, place.name)
	}
	for _, what := range []string{endTxn, initProducerID, txnOffsetCommit, produce, xaPrepare, xaCommit} {
		want = append(want, lostAnswer+" of "+what)
	}
	for _, w := range want {
		if has[w] == 0 {
			t.Errorf("in 200 faults there is no %q", w)
		}
	}
	if without[killed] > 0 {
		t.Errorf("%d SIGKILLs in a plan without", without[killed])
	}
}
