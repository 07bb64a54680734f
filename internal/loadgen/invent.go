package loadgen

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"billing/internal/money"
)

// account is one of the accounts, and where its messages go.
type account struct {
	id        string
	partition int32
}

// newAccount makes the account with number i. Its id is one that a careless
// comparison takes for another's: eight in a row differ in case, in white
// space, in how an accent is written.
func newAccount(i int, partitions int32) account {
	n := strconv.Itoa(i / 8)
	forms := [...][2]string{{"acct-"}, {"ACCT-"}, {"acct-", " "}, {"caf\u00e9-"}, {"cafe\u0301-"}, {"租户-"}, {`a"b\c/`}, {"", "|"}}
	id := forms[i%8][0] + n + forms[i%8][1]
	if i%8 == 7 {
		id += strings.Repeat("x", 255-len(id)) // the longest there is
	}
	h := fnv.New32a()
	h.Write([]byte(id))
	return account{id: id, partition: int32(h.Sum32() % uint32(partitions))}
}

// happening is one event as its producer means it. It is not changed once a
// message was made of it.
type happening struct {
	account    account
	source, id string
	credit     bool
	time       time.Time    // UTC, on a microsecond
	amount     money.Amount // not negative for a charge, not positive for a credit
	currency   string
	sku, unit  string // "" where the message has none

	hasQuantity bool
	quantity    money.Amount // not negative

	style uint64 // how its first message is written
}

var sources = [...]string{"/meter/eu-1", "/meter/eu-2", "urn:shop:checkout", "https://batch.example/r\u00e9gion"}

// products are pairs of SKU and unit; some are sold in two units.
var products = [...][2]string{
	{"api.calls", "call"}, {"api.calls", "1k-calls"}, {"storage", "GB·h"}, {"Storage", "GB·h"},
	{"egress", "GiB"}, {"seats", "seat"}, {"minutes", "min"}, {"", "each"}, {"support", ""}, {"", ""},
}

// invent makes an event that nobody has seen before, to be sent now.
func (g *Generator) invent() *happening {
	h := &happening{
		account:  g.account(),
		source:   sources[g.rng.IntN(len(sources))],
		credit:   g.chance(5),
		currency: g.cfg.Currencies[g.rng.IntN(len(g.cfg.Currencies))],
		style:    g.rng.Uint64(),
	}
	h.id = g.newID()
	h.amount = g.size()
	if h.credit {
		h.amount = h.amount.Neg()
	}
	p := products[g.rng.IntN(len(products))]
	h.sku, h.unit = p[0], p[1]
	if h.unit != "" && !g.chance(6) {
		h.hasQuantity, h.quantity = true, g.size()
	}
	// Ids are unique per source only: now and then two events share one, or
	// share what source and id make when written one after the other.
	if t := g.twin; t != nil && g.chance(20) {
		h.account = t.account // or they would never meet
		if g.chance(2) {
			h.source, h.id = t.source+"/2", t.id
		} else {
			h.source, h.id = t.source+t.id[:1], t.id[1:]
		}
		g.twin = nil
	} else {
		g.twin = h
	}
	h.time = g.when(h.account.partition)
	return h
}

func (g *Generator) account() account {
	n := g.cfg.Accounts
	if g.rng.Float64() < g.cfg.Skew {
		n = g.hot
	}
	return g.numbered(g.rng.IntN(n))
}

// numbered is the account with number i.
func (g *Generator) numbered(i int) account {
	a, kept := g.accounts[i]
	if !kept {
		a = newAccount(i, g.cfg.Partitions)
		if len(g.accounts) < keptAccounts {
			g.accounts[i] = a
		}
	}
	return a
}

// newID gives an id that was not given before. All begin with an ASCII byte.
func (g *Generator) newID() string {
	g.ids++
	id := strconv.FormatUint(uint64(g.cfg.Seed), 16) + "-" + strconv.Itoa(g.ids)
	switch g.rng.IntN(12) {
	case 0:
		return "EVT-" + id
	case 1:
		return "evt-" + id
	case 2:
		return "\"quoted\" \\ " + id
	case 3:
		return "n\u00famero " + id + " \U0001f4b6"
	case 4:
		return id + "." + strings.Repeat("z", 254-len(id)) // the longest there is
	}
	return id
}

// when is a good time for an event of the partition: mostly within the last
// hours, sometimes days late, at the very edge of a window, or as old as may
// be.
func (g *Generator) when(partition int32) time.Time {
	late := func(most time.Duration) time.Time { return g.before(g.clock, min(most, g.cfg.Lateness)) }
	oldest := g.oldest(partition)
	switch n := g.rng.IntN(100); {
	case n < 70:
		return late(3 * time.Hour)
	case n < 85:
		return late(day)
	case n < 93, oldest.IsZero():
		return late(30 * day)
	case n < 95:
		return oldest
	}
	inside := late(2 * day)
	edge := inside.Truncate(g.cfg.Window)
	if g.chance(2) {
		edge = edge.Add(-time.Microsecond)
	}
	if edge.Before(oldest) {
		return inside
	}
	return edge
}

// everydayKinds is how many of a thousand amounts are such as everyday's invoices
// have: less than 10,000, with two places at the most.
const everydayKinds = 700

// size is an amount or a quantity, zero or more: mostly everyday, and unless
// all are to be so, sometimes as fine or as large as there is.
func (g *Generator) size() money.Amount {
	b := make([]byte, 0, 48)
	number := func(below int) { b = strconv.AppendInt(b, int64(g.rng.IntN(below)), 10) }
	digits := func(n int) {
		for range n {
			b = append(b, byte('0'+g.rng.IntN(10)))
		}
	}
	places := func() {
		b = append(b, '.')
		digits(1 + g.rng.IntN(money.Places))
	}
	leading := func() { b = append(b, byte('1'+g.rng.IntN(9))) }
	kinds := 1000
	if g.cfg.Everyday {
		kinds = everydayKinds
	}
	switch n := g.rng.IntN(kinds); {
	case n < 550:
		number(1000)
		b = append(b, '.')
		digits(2)
	case n < everydayKinds:
		number(10_000)
	case n < 900:
		number(10)
		places()
	case n < 930:
		b = append(b, '0')
	case n < 940:
		b = append(b, "0."+strings.Repeat("0", money.Places-1)+"1"...)
	case n < 995:
		leading()
		digits(g.rng.IntN(12))
		places()
	case n < 998:
		leading()
		digits(money.MaxIntegerDigits - 1)
		b = append(b, '.')
		digits(money.Places)
	default:
		b = append(b, strings.Repeat("9", money.MaxIntegerDigits)+"."+strings.Repeat("9", money.Places)...)
	}
	a, err := money.Parse(b)
	if err != nil {
		panic(fmt.Sprintf("load: amount %q: %v", b, err)) // all forms above are right
	}
	return a
}

// contradict gives h's id to an event that says something else, and is not too
// old either.
func (g *Generator) contradict(h *happening) *happening {
	c := *h
	switch n := g.rng.IntN(8); {
	case n == 0 && h.hasQuantity:
		for c.quantity == h.quantity {
			c.quantity = g.size()
		}
	case n == 1 && len(g.cfg.Currencies) > 1:
		for c.currency == h.currency {
			c.currency = g.cfg.Currencies[g.rng.IntN(len(g.cfg.Currencies))]
		}
	case n == 2:
		c.sku = "other." + h.sku
	case n == 3:
		c.unit = "other " + h.unit
	case n == 4:
		// Earlier, if that is not too old; later would be later than now otherwise.
		c.time = h.time.Add(time.Microsecond)
		if room := h.time.Sub(g.oldest(h.account.partition)); room > 0 {
			c.time = g.before(h.time.Add(-time.Microsecond), min(room, time.Hour))
		}
	case n == 5:
		c.credit, c.amount = !h.credit, h.amount.Neg()
	case n == 6 && g.cfg.Accounts > 1:
		for c.account.id == h.account.id {
			c.account = g.numbered(g.rng.IntN(g.cfg.Accounts))
		}
	default:
		for c.amount == h.amount {
			if c.amount = g.size(); h.credit {
				c.amount = c.amount.Neg()
			}
		}
	}
	return &c
}
