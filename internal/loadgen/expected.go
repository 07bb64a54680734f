package loadgen

import (
	"cmp"
	"slices"
	"time"

	"billing/internal/money"
)

// Expected is the known answer.
type Expected struct {
	Messages int64    `json:"messages"` // the sum of the outcomes
	Outcomes Outcomes `json:"outcomes"`
	Totals   []Total  `json:"totals"` // in the order of their first six columns, byte by byte
}

// Outcomes counts messages by what must become of them.
type Outcomes struct {
	Applied   int64 `json:"applied"`
	Duplicate int64 `json:"duplicate"`
	Conflict  int64 `json:"conflict"`
	Rejected  int64 `json:"rejected"`
}

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

// tally adds up what the messages mean.
type tally struct {
	window   time.Duration
	outcomes Outcomes
	totals   map[totalKey]*totalSum
}

type totalKey struct {
	account, sku, unit, currency string
	window, period               string // as in Total
}

type totalSum struct {
	charge, credit, quantity money.Sum
	entries                  int64
}

func newTally(window time.Duration) tally {
	return tally{window: window, totals: map[totalKey]*totalSum{}}
}

func (t *tally) apply(h *happening) {
	t.outcomes.Applied++
	key := totalKey{
		account: h.account.id, sku: h.sku, unit: h.unit, currency: h.currency,
		// Truncate counts from year 1, at midnight like 1970: as a window divides
		// a day, it makes no difference.
		window: h.time.Truncate(t.window).Format(time.DateTime),
		period: h.time.Format("2006-01"),
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

func (t *tally) expected() Expected {
	o := t.outcomes
	e := Expected{
		Messages: o.Applied + o.Duplicate + o.Conflict + o.Rejected,
		Outcomes: o,
		Totals:   make([]Total, 0, len(t.totals)),
	}
	fixed := func(s money.Sum) string { return string(s.AppendFixed(nil)) }
	for k, s := range t.totals {
		net := s.charge
		net.AddSum(s.credit)
		e.Totals = append(e.Totals, Total{
			TenantID: "default", AccountID: k.account, SKU: k.sku, Unit: k.unit, Currency: k.currency,
			WindowStart: k.window, BookedPeriod: k.period,
			ChargeAmount: fixed(s.charge), CreditAmount: fixed(s.credit), NetAmount: fixed(net),
			Quantity: fixed(s.quantity), EntryCount: s.entries,
		})
	}
	slices.SortFunc(e.Totals, func(a, b Total) int {
		return cmp.Or(cmp.Compare(a.AccountID, b.AccountID), cmp.Compare(a.SKU, b.SKU), cmp.Compare(a.Unit, b.Unit),
			cmp.Compare(a.Currency, b.Currency), cmp.Compare(a.WindowStart, b.WindowStart), cmp.Compare(a.BookedPeriod, b.BookedPeriod))
	})
	return e
}
