// Package loadgen makes load with a known answer: messages as producers send
// them, good and bad, once and again, and the totals that must come out.
//
// It is the service's other half in tests and demonstrations, so it shares
// nothing with the service but exact amounts. What a message means is decided
// here, before it is written; the service finds it out by reading.
//
//	config.go     what to make, and for what configuration of the service
//	generator.go  which message comes next
//	invent.go     what an event says
//	encode.go     how it is written, in one of many equal ways
//	text.go       how a text, a time and an amount are written
//	spoil.go      how a message is made bad
//	expected.go   what must come out
package loadgen

import (
	"math"
	"math/rand/v2"
	"time"
)

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
	cfg   Config
	rng   *rand.Rand
	hot   int       // the accounts below this number are the hottest
	made  int       // messages so far
	ids   int       // ids so far
	clock time.Time // Now, moved on to when the message that is made is due

	recent []*happening // the last few events applied, the newest last
	past   []*happening // an even sample of all events applied
	all    int          // how many there were
	redo   []*happening // were sent bad and will be sent well
	top    []*happening // by partition: the event applied with the latest time
	twin   *happening   // the last event that no other shares its id with yet

	accounts map[int]account // by number, those that were met first: what has their ids shares them

	draft *draft // used again for each message
	tally tally
}

// Limits of what is remembered, so that any number of messages can be made.
const (
	recentEvents = 32
	pastEvents   = 1 << 16
	redoEvents   = 64
	keptAccounts = 1 << 17
)

// New makes a Generator. It panics where cfg.Check has something to say.
func New(cfg Config) *Generator {
	if err := cfg.Check(); err != nil {
		panic(err)
	}
	// Times are told on the microsecond.
	cfg.Now, cfg.Lateness = cfg.Now.UTC().Truncate(time.Microsecond), cfg.Lateness.Truncate(time.Microsecond)
	return &Generator{
		cfg:   cfg,
		rng:   rand.New(rand.NewPCG(uint64(cfg.Seed), 0x6c6f6164)),
		hot:   max(1, cfg.Accounts/100),
		top:   make([]*happening, cfg.Partitions),
		draft: newDraft(), accounts: map[int]account{},
		tally: newTally(cfg.Window),
	}
}

// Due is when the next message is to be written at Config.Rate, after the first
// one. Written earlier, its event would come from the future.
func (g *Generator) Due() time.Duration {
	return time.Duration(math.Round(g.cfg.seconds(g.made)*1e6)) * time.Microsecond
}

// Next gives the next message, or false after Config.Count of them.
func (g *Generator) Next() (Message, bool) {
	if g.made == g.cfg.Count {
		return Message{}, false
	}
	g.clock = g.cfg.Now.Add(g.Due())
	g.made++
	switch r := g.rng.Float64(); {
	case r < g.cfg.Bad:
		return g.bad(), true
	case r < g.cfg.Bad+g.cfg.Duplicates && g.all > 0:
		return g.again(), true
	}
	return g.fresh(), true
}

// fresh is a message whose id was not applied before.
func (g *Generator) fresh() Message {
	var h *happening
	if len(g.redo) > 0 && g.chance(4) {
		// A rejected message does not use up its id.
		h, g.redo = g.redo[0], g.redo[1:]
	}
	if h == nil || g.tooOld(h) {
		h = g.invent()
	}
	g.tally.apply(h)
	if top := &g.top[h.account.partition]; *top == nil || h.time.After((*top).time) {
		*top = h
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

// repeatable is applied, of what has not become too old since: then it would be
// rejected, and no repeat.
func (g *Generator) repeatable() *happening {
	h := g.applied()
	for tries := 1; g.tooOld(h); tries++ {
		if tries == 4 {
			return g.top[h.account.partition]
		}
		h = g.applied()
	}
	return h
}

// again is a message with an id that was applied before. It goes where the
// first one went, as the account is the key.
func (g *Generator) again() Message {
	h := g.repeatable()
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
	s := g.spoiler(h)
	way := &spoilings[g.rng.IntN(len(spoilings))]
	for way.needsNewer && s.oldest.IsZero() {
		way = &spoilings[g.rng.IntN(len(spoilings))]
	}
	g.tally.reject(way.reason)
	way.spoil(s, d)
	return g.message(h, d)
}

// message sends what d says where h belongs.
func (g *Generator) message(h *happening, d *draft) Message {
	m := Message{Partition: h.account.partition, Key: []byte(h.account.id)}
	m.Headers, m.Value = d.render()
	return m
}

// oldest is the earliest time of an event that is good in the partition now,
// zero before one was applied.
func (g *Generator) oldest(partition int32) time.Time {
	if top := g.top[partition]; top != nil {
		return top.time.Add(-g.cfg.Lateness)
	}
	return time.Time{}
}

// tooOld says whether h would be rejected as too old now.
func (g *Generator) tooOld(h *happening) bool {
	return h.time.Before(g.oldest(h.account.partition))
}

// chance is true once in n times.
func (g *Generator) chance(n int) bool { return g.rng.IntN(n) == 0 }

// before gives a time less than d before t, on a microsecond.
func (g *Generator) before(t time.Time, d time.Duration) time.Time {
	return t.Add(-time.Duration(g.rng.Int64N(int64(max(1, d/time.Microsecond)))) * time.Microsecond)
}
