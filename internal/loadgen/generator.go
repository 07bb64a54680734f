// Package loadgen makes load with a known answer: messages as producers send
// them, good and bad, once and again, and the totals that must come out.
//
// It is the service's other half in tests and demonstrations, so it shares
// nothing with the service but exact amounts. What a message means is decided
// here, before it is written; the service finds it out by reading.
//
//	generator.go  which message comes next
//	invent.go     what an event says
//	encode.go     how it is written, in one of many equal ways
//	spoil.go      how a message is made bad
//	expected.go   what must come out
package loadgen

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Config says what to make. All of it is the same again for the same Config.
type Config struct {
	Count    int // messages, repeats and bad ones included; 0 or more
	Accounts int // different accounts; 1 or more

	// Skew is the share (0 to 1) of the messages that goes to the hottest
	// accounts: one of a hundred, at least one. The rest goes to all alike.
	Skew float64

	// Duplicates is the share (0 to 1) of the messages that have the id of an
	// earlier one. One in ten of them says something else: a conflict.
	Duplicates float64

	// Bad is the share (0 to 1) of the messages that are no valid event. With
	// Duplicates at most 1.
	Bad float64

	Seed       int64
	Partitions int32 // of the topic; 1 or more

	// Now is the latest time of a good event, to be at or before the service's
	// clock. The oldest is 30 days before it.
	Now time.Time

	Window     time.Duration // of the totals; divides a day
	TypePrefix string        // of the event types; ends in a dot
	Currencies []string      // that the service accepts; one or more
}

// Check says what of c makes no sense, all of it at once.
func (c Config) Check() error {
	var problems []error
	wrong := func(bad bool, format string, args ...any) {
		if bad {
			problems = append(problems, fmt.Errorf("load: "+format, args...))
		}
	}
	share := func(name string, s float64) {
		wrong(!(s >= 0 && s <= 1), "%s is %v: give a share from 0 to 1", name, s)
	}
	wrong(c.Count < 0, "count is %d: give 0 or more messages", c.Count)
	wrong(c.Accounts < 1, "accounts is %d: give 1 or more", c.Accounts)
	share("skew", c.Skew)
	share("duplicates", c.Duplicates)
	share("bad", c.Bad)
	wrong(c.Duplicates+c.Bad > 1, "duplicates and bad are %v together: give at most 1", c.Duplicates+c.Bad)
	wrong(c.Partitions < 1, "partitions is %d: give 1 or more", c.Partitions)
	wrong(c.Now.Year() < 2001 || c.Now.Year() > 2089, "now is %s: give a time in the years 2001 to 2089", c.Now.Format(time.RFC3339))
	wrong(c.Window < time.Second || day%c.Window != 0 || c.Window%time.Second != 0,
		"window is %s: give whole seconds that divide a day", c.Window)
	wrong(c.TypePrefix == "" || c.TypePrefix[len(c.TypePrefix)-1] != '.', "type prefix is %q: give one that ends in a dot", c.TypePrefix)
	wrong(len(c.Currencies) == 0, "there are no currencies: give one or more")
	return errors.Join(problems...)
}

const day = 24 * time.Hour

// Header is one header of a message.
type Header struct {
	Key   string
	Value []byte
}

// Message is what to write to the topic. Within a partition the order is part
// of the answer. It belongs to the caller; nothing else refers to its bytes.
type Message struct {
	Partition int32
	Key       []byte // the account's id
	Value     []byte // nil is Kafka's null
	Headers   []Header
}

// Generator makes the messages one after the other. It is used by one
// goroutine.
type Generator struct {
	cfg      Config
	rng      *rand.Rand
	accounts []account
	hot      int // accounts[:hot] are the hottest
	made     int // messages so far
	ids      int // ids so far

	recent []*happening // the last few events applied, the newest last
	past   []*happening // an even sample of all events applied
	all    int          // how many there were
	redo   []*happening // were sent bad and will be sent well
	newest []time.Time  // by partition: latest time of an event applied
	twin   *happening   // the last event that no other shares its id with yet

	tally tally
}

// Limits of what is remembered, so that any number of messages can be made.
const (
	recentEvents = 32
	pastEvents   = 1 << 16
	redoEvents   = 64
)

// New makes a Generator. It panics where cfg.Check has something to say.
func New(cfg Config) *Generator {
	if err := cfg.Check(); err != nil {
		panic(err)
	}
	cfg.Now = cfg.Now.UTC().Truncate(time.Microsecond)
	g := &Generator{
		cfg:    cfg,
		rng:    rand.New(rand.NewPCG(uint64(cfg.Seed), 0x6c6f6164)),
		hot:    max(1, cfg.Accounts/100),
		newest: make([]time.Time, cfg.Partitions),
		tally:  newTally(cfg.Window),
	}
	for i := range cfg.Accounts {
		g.accounts = append(g.accounts, newAccount(i, cfg.Partitions))
	}
	return g
}

// Next gives the next message, or false after Config.Count of them.
func (g *Generator) Next() (Message, bool) {
	if g.made == g.cfg.Count {
		return Message{}, false
	}
	g.made++
	switch r := g.rng.Float64(); {
	case r < g.cfg.Bad:
		return g.bad(), true
	case r < g.cfg.Bad+g.cfg.Duplicates && g.all > 0:
		return g.again(), true
	}
	return g.fresh(), true
}

// Expected is what must be in the tables when all messages that Next gave so
// far, and no others, were written to a fresh topic.
func (g *Generator) Expected() Expected { return g.tally.expected() }

// fresh is a message whose id was not applied before.
func (g *Generator) fresh() Message {
	var h *happening
	if len(g.redo) > 0 && g.chance(4) {
		// A rejected message does not use up its id.
		h, g.redo = g.redo[0], g.redo[1:]
	} else {
		h = g.invent()
	}
	g.tally.apply(h)
	if h.time.After(g.newest[h.account.partition]) {
		g.newest[h.account.partition] = h.time
	}
	g.remember(h)
	return g.message(h, g.write(h, h.style))
}

// remember keeps h for repeats: among the recent ones, and as one of the past
// with the same chance as any other.
func (g *Generator) remember(h *happening) {
	if len(g.recent) == recentEvents {
		g.recent = append(g.recent[:0], g.recent[1:]...)
	}
	g.recent = append(g.recent, h)
	g.all++
	if len(g.past) < pastEvents {
		g.past = append(g.past, h)
	} else if i := g.rng.IntN(g.all); i < pastEvents {
		g.past[i] = h
	}
}

// applied picks an event that was applied: one of the last few, which is most
// likely in the same batch, or any, which is most likely epochs away.
func (g *Generator) applied() *happening {
	if g.chance(2) {
		return g.recent[g.rng.IntN(len(g.recent))]
	}
	return g.past[g.rng.IntN(len(g.past))]
}

// again is a message with an id that was applied before. It goes where the
// first one went, as the account is the key.
func (g *Generator) again() Message {
	h := g.applied()
	if g.chance(10) {
		g.tally.outcomes.Conflict++
		return g.message(h, g.write(g.contradict(h), g.rng.Uint64()))
	}
	g.tally.outcomes.Duplicate++
	if g.chance(2) {
		return g.message(h, g.write(h, h.style)) // byte by byte the same
	}
	return g.message(h, g.write(h, g.rng.Uint64()))
}

// bad is a message that is no valid event.
func (g *Generator) bad() Message {
	g.tally.outcomes.Rejected++
	var h *happening
	switch {
	case g.all > 0 && g.chance(8):
		h = g.applied() // known or not, a bad message is rejected
	case len(g.redo) > 0 && g.chance(8):
		h = g.redo[0] // bad again
	default:
		h = g.invent()
		if len(g.redo) < redoEvents && g.chance(4) {
			g.redo = append(g.redo, h)
		}
	}
	d := g.write(h, g.rng.Uint64())
	s := &spoiler{
		rng: g.rng, now: g.cfg.Now, newest: g.newest[h.account.partition],
		prefix: g.cfg.TypePrefix, credit: h.credit, absent: absentCurrency(g.cfg.Currencies),
	}
	for {
		if way := spoilings[g.rng.IntN(len(spoilings))]; !way.needsNewer || !s.newest.IsZero() {
			way.spoil(s, d)
			return g.message(h, d)
		}
	}
}

// message sends what d says where h belongs.
func (g *Generator) message(h *happening, d *draft) Message {
	m := Message{Partition: h.account.partition, Key: []byte(h.account.id)}
	m.Headers, m.Value = d.render()
	return m
}

// chance is true once in n times.
func (g *Generator) chance(n int) bool { return g.rng.IntN(n) == 0 }

// before gives a time at most d before t, on a microsecond.
func (g *Generator) before(t time.Time, d time.Duration) time.Time {
	return t.Add(-time.Duration(g.rng.Int64N(int64(math.Max(1, float64(d/time.Microsecond)))) * 1000))
}
