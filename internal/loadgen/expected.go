package loadgen

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"billing/internal/money"
)

// Expected is the known answer.
type Expected struct {
	Messages int64            `json:"messages"` // the sum of the outcomes
	Outcomes Outcomes         `json:"outcomes"`
	Reasons  map[string]int64 `json:"reasons"` // the rejected ones, by the reason in billing_rejects
	Totals   []Total          `json:"totals"`  // in the order of Generator.Totals
}

// Outcomes counts messages by what must become of them.
type Outcomes struct {
	Applied   int64 `json:"applied"`
	Duplicate int64 `json:"duplicate"`
	Conflict  int64 `json:"conflict"`
	Rejected  int64 `json:"rejected"`
}

// Messages is how many there are.
func (o Outcomes) Messages() int64 { return o.Applied + o.Duplicate + o.Conflict + o.Rejected }

// Total is one row of the view billing_totals, of the tenant "default".
// Decimals are written with all 12 places, as SQL prints them.
type Total struct {
	TenantID     string `json:"tenant_id"`
	AccountID    string `json:"account_id"`
	SKU          string `json:"sku"`  // "" where the messages have none
	Unit         string `json:"unit"` // "" where the messages have none
	Currency     string `json:"currency"`
	WindowStart  string `json:"window_start"`  // YYYY-MM-DD hh:mm:ss, UTC
	BookedPeriod string `json:"booked_period"` // YYYY-MM
	ChargeAmount string `json:"charge_amount"`
	CreditAmount string `json:"credit_amount"` // zero or negative
	NetAmount    string `json:"net_amount"`
	Quantity     string `json:"quantity"` // charges less credits
	EntryCount   int64  `json:"entry_count"`
}

// CurrencySum is what the totals of one currency add up to.
type CurrencySum struct {
	ChargeAmount string `json:"charge_amount"`
	CreditAmount string `json:"credit_amount"`
	NetAmount    string `json:"net_amount"`
	EntryCount   int64  `json:"entry_count"`
}

// Expected is what must be in the tables when all messages that Next gave so
// far, and no others, were written to a fresh topic.
func (g *Generator) Expected() Expected {
	return Expected{
		Messages: g.Outcomes().Messages(), Outcomes: g.Outcomes(), Reasons: g.Reasons(),
		Totals: slices.AppendSeq(make([]Total, 0, len(g.tally.totals)), g.Totals()),
	}
}

// Outcomes is Expected's part of this name.
func (g *Generator) Outcomes() Outcomes { return g.tally.outcomes }

// Reasons is Expected's part of this name.
func (g *Generator) Reasons() map[string]int64 { return maps.Clone(g.tally.reasons) }

// Totals is Expected's part of this name, a row at a time: there may be
// millions. They come in the order of their first six columns, byte by byte.
func (g *Generator) Totals() iter.Seq[Total] { return g.tally.rows }

// Currencies adds the totals up, by currency.
func (g *Generator) Currencies() map[string]CurrencySum {
	sums := map[string]*totalSum{}
	for key, t := range g.tally.totals {
		s := sums[key.currency]
		if s == nil {
			s = new(totalSum)
			sums[key.currency] = s
		}
		s.charge.AddSum(t.charge)
		s.credit.AddSum(t.credit)
		s.entries += t.entries
	}
	out := make(map[string]CurrencySum, len(sums))
	for currency, s := range sums {
		out[currency] = CurrencySum{ChargeAmount: fixed(s.charge), CreditAmount: fixed(s.credit), NetAmount: fixed(s.net()), EntryCount: s.entries}
	}
	return out
}

// tally adds up what the messages mean.
type tally struct {
	window   time.Duration
	outcomes Outcomes
	reasons  map[string]int64
	totals   map[totalKey]*totalSum
}

// totalKey names a row. As no window goes over midnight, the window says the
// period too.
type totalKey struct {
	account, sku, unit, currency string
	window                       int64 // its start, in seconds since 1970
}

type totalSum struct {
	charge, credit, quantity money.Sum
	entries                  int64
}

func (s *totalSum) net() money.Sum {
	net := s.charge
	net.AddSum(s.credit)
	return net
}

// fixed is a sum as SQL prints it.
func fixed(s money.Sum) string { return string(s.AppendFixed(nil)) }

func newTally(window time.Duration) tally {
	return tally{window: window, reasons: map[string]int64{}, totals: map[totalKey]*totalSum{}}
}

func (t *tally) reject(reason string) {
	t.outcomes.Rejected++
	t.reasons[reason]++
}

func (t *tally) apply(h *happening) {
	t.outcomes.Applied++
	key := totalKey{
		account: h.account.id, sku: h.sku, unit: h.unit, currency: h.currency,
		// Truncate counts from year 1, at midnight like 1970: as a window divides
		// a day, it makes no difference.
		window: h.time.Truncate(t.window).Unix(),
	}
	s := t.totals[key]
	if s == nil {
		s = new(totalSum)
		t.totals[key] = s
	}
	s.entries++
	if h.credit {
		s.credit.Add(h.amount)
		s.quantity.Sub(h.quantity)
	} else {
		s.charge.Add(h.amount)
		s.quantity.Add(h.quantity)
	}
}

// rows calls yield with each total until it says false.
func (t *tally) rows(yield func(Total) bool) {
	keys := slices.AppendSeq(make([]totalKey, 0, len(t.totals)), maps.Keys(t.totals))
	slices.SortFunc(keys, func(a, b totalKey) int {
		return cmp.Or(cmp.Compare(a.account, b.account), cmp.Compare(a.sku, b.sku), cmp.Compare(a.unit, b.unit),
			cmp.Compare(a.currency, b.currency), cmp.Compare(a.window, b.window))
	})
	for _, k := range keys {
		s := t.totals[k]
		window := time.Unix(k.window, 0).UTC()
		if !yield(Total{
			TenantID: "default", AccountID: k.account, SKU: k.sku, Unit: k.unit, Currency: k.currency,
			WindowStart: window.Format(time.DateTime), BookedPeriod: window.Format("2006-01"),
			ChargeAmount: fixed(s.charge), CreditAmount: fixed(s.credit), NetAmount: fixed(s.net()),
			Quantity: fixed(s.quantity), EntryCount: s.entries,
		}) {
			return
		}
	}
}
