package loadgen

import (
	"fmt"
	"hash/fnv"
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
	n := i / 8
	forms := [...]string{"acct-%d", "ACCT-%d", "acct-%d ", "caf\u00e9-%d", "cafe\u0301-%d", "租户-%d", `a"b\c/%d`, "%d|"}
	id := fmt.Sprintf(forms[i%8], n)
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

// invent makes an event that nobody has seen before.
func (g *Generator) invent() *happening {
	h := &happening{
		account:  g.account(),
		source:   sources[g.rng.IntN(len(sources))],
		credit:   g.chance(5),
		time:     g.when(),
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
	return h
}

func (g *Generator) account() account {
	if g.rng.Float64() < g.cfg.Skew {
		return g.accounts[g.rng.IntN(g.hot)]
	}
	return g.accounts[g.rng.IntN(len(g.accounts))]
}

// newID gives an id that was not given before. All begin with an ASCII byte.
func (g *Generator) newID() string {
	g.ids++
	id := fmt.Sprintf("%x-%d", uint64(g.cfg.Seed), g.ids)
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

// when is mostly within the last hours, sometimes days late, sometimes at the
// very edge of a window. Never older than 30 days.
func (g *Generator) when() time.Time {
	switch n := g.rng.IntN(100); {
	case n < 70:
		return g.before(g.cfg.Now, 3*time.Hour)
	case n < 85:
		return g.before(g.cfg.Now, day)
	case n < 95:
		return g.before(g.cfg.Now, 30*day)
	}
	edge := g.before(g.cfg.Now, 2*day).Truncate(g.cfg.Window)
	if g.chance(2) {
		return edge
	}
	return edge.Add(-time.Microsecond)
}

// size is an amount or a quantity, zero or more: mostly everyday, sometimes as
// fine or as large as there is.
func (g *Generator) size() money.Amount {
	digits := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte('0' + g.rng.IntN(10))
		}
		return string(b)
	}
	var text string
	switch n := g.rng.IntN(1000); {
	case n < 550:
		text = fmt.Sprintf("%d.%02d", g.rng.IntN(1000), g.rng.IntN(100))
	case n < 700:
		text = fmt.Sprint(g.rng.IntN(10_000))
	case n < 900:
		text = fmt.Sprint(g.rng.IntN(10)) + "." + digits(1+g.rng.IntN(money.Places))
	case n < 930:
		text = "0"
	case n < 940:
		text = "0." + strings.Repeat("0", money.Places-1) + "1"
	case n < 995:
		text = fmt.Sprint(1+g.rng.IntN(9)) + digits(g.rng.IntN(12)) + "." + digits(1+g.rng.IntN(money.Places))
	case n < 998:
		text = fmt.Sprint(1+g.rng.IntN(9)) + digits(money.MaxIntegerDigits-1) + "." + digits(money.Places)
	default:
		text = strings.Repeat("9", money.MaxIntegerDigits) + "." + strings.Repeat("9", money.Places)
	}
	a, err := money.Parse([]byte(text))
	if err != nil {
		panic(fmt.Sprintf("load: amount %q: %v", text, err)) // all forms above are right
	}
	return a
}

// contradict gives h's id to an event that says something else.
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
		c.time = g.before(h.time, time.Hour).Add(-time.Microsecond)
	case n == 5:
		c.credit, c.amount = !h.credit, h.amount.Neg()
	case n == 6 && len(g.accounts) > 1:
		for c.account.id == h.account.id {
			c.account = g.accounts[g.rng.IntN(len(g.accounts))]
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
