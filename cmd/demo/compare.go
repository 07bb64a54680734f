package main

import (
	"fmt"
	"maps"
	"slices"

	"billing/internal/loadgen"
	"billing/internal/money"
)

// answer is what `billing produce` says must come of its load.
type answer struct {
	Messages int64            `json:"messages"`
	Outcomes loadgen.Outcomes `json:"outcomes"`
	Reasons  map[string]int64 `json:"reasons"`
	Seed     int64            `json:"seed"`
	Seconds  float64          `json:"seconds"`
	Totals   []loadgen.Total  `json:"totals"`
}

// sums are what the totals come to, by currency.
func (a *answer) sums() (map[string]currencySum, error) {
	all := map[string]currencySum{}
	for _, t := range a.Totals {
		s := all[t.Currency]
		if err := s.add(t.ChargeAmount, t.CreditAmount); err != nil {
			return nil, fmt.Errorf("the load's answer: %w", err)
		}
		all[t.Currency] = s
	}
	return all, nil
}

// books is what a contender's databases say, beside what had to be there.
type books struct {
	Exact            bool     `json:"exact"`
	Messages         int64    `json:"messages_accounted_for"` // on the shard that has most
	Entries          int64    `json:"entries_booked"`
	WrittenAgain     int64    `json:"doubled_written_again"`
	Repeats          int64    `json:"doubled_repeats"`
	Conflicts        int64    `json:"booked_conflicts"`
	Rejected         int64    `json:"booked_rejected"`
	Lost             int64    `json:"lost"`
	ConflictsKept    int64    `json:"conflicts_kept"`
	RejectedKept     int64    `json:"rejected_kept"`
	TotalsRight      int64    `json:"totals_right"`
	TotalsOfLedger   int64    `json:"totals_right_in_ledger"`
	Prepared         int64    `json:"branches_left_prepared"`
	Money            []funds  `json:"money"`
	Differences      int64    `json:"differences"`
	FirstDifferences []string `json:"first_differences"`
}

// doubled is how many entries are there once more than they had to be.
func (b *books) doubled() int64 { return b.WrittenAgain + b.Repeats }

// funds is one currency; the sums are exact decimals.
type funds struct {
	Currency       string `json:"currency"`
	Charges        string `json:"charges"`
	Credits        string `json:"credits"` // zero or negative
	Net            string `json:"net"`
	ChargesTooMuch string `json:"charges_too_much,omitempty"` // negative: too little
	CreditsTooMuch string `json:"credits_too_much,omitempty"`
	NetTooMuch     string `json:"net_too_much,omitempty"`
}

const firstDifferences = 20

func (b *books) differ(format string, args ...any) {
	b.Differences++
	if len(b.FirstDifferences) < firstDifferences {
		b.FirstDifferences = append(b.FirstDifferences, fmt.Sprintf(format, args...))
	}
}

func (b *books) same(what string, want, found int64) {
	if want != found {
		b.differ("%s: had to be %d, is %d", what, want, found)
	}
}

// compare holds a contender's tables against the load's answer.
func compare(want *answer, a answers) (books, error) {
	o := want.Outcomes
	b := books{
		Messages: slices.Max(a.records), Entries: a.rows, ConflictsKept: a.conflicts, Prepared: a.prepared, FirstDifferences: []string{},
		WrittenAgain: a.rows - a.positions, Repeats: a.positions - a.contents, Conflicts: a.contents - a.ids,
		Rejected: max(0, a.ids-o.Applied), Lost: max(0, o.Applied-a.ids),
	}
	for _, n := range a.reasons {
		b.RejectedKept += n
	}
	for shard, n := range a.records {
		b.same(fmt.Sprintf("messages accounted for, on shard %d", shard), want.Messages, n)
	}
	b.same("ledger rows", o.Applied, a.rows)
	b.same("ledger rows of different messages", o.Applied, a.positions)
	b.same("ledger rows with different ids", o.Applied, a.ids)
	b.same("conflicts kept", o.Conflict, a.conflicts)
	reasons := maps.Clone(a.reasons)
	for reason := range want.Reasons {
		reasons[reason] += 0
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		b.same("messages kept as rejected for "+reason, want.Reasons[reason], reasons[reason])
	}
	b.same("branches left prepared", 0, a.prepared)
	b.TotalsRight = b.compareTotals("totals", want.Totals, a.totals)
	b.TotalsOfLedger = b.compareTotals("ledger", want.Totals, a.ledger)
	sums, err := want.sums()
	if err != nil {
		return b, err
	}
	b.compareMoney(sums, a.currencies)
	b.Exact = b.Differences == 0
	return b, nil
}

// compareTotals compares all rows, whole and as text, and gives how many are right.
func (b *books) compareTotals(where string, expected []loadgen.Total, rows [][]loadgen.Total) (right int64) {
	key := func(t loadgen.Total) loadgen.Total {
		return loadgen.Total{TenantID: t.TenantID, AccountID: t.AccountID, SKU: t.SKU, Unit: t.Unit,
			Currency: t.Currency, WindowStart: t.WindowStart, BookedPeriod: t.BookedPeriod}
	}
	show := func(t loadgen.Total) string {
		return fmt.Sprintf("charge %s credit %s net %s quantity %s entries %d", t.ChargeAmount, t.CreditAmount, t.NetAmount, t.Quantity, t.EntryCount)
	}
	name := func(t loadgen.Total) string {
		return fmt.Sprintf("%s: account %q sku %q unit %q %s window %s period %s", where, t.AccountID, t.SKU, t.Unit, t.Currency, t.WindowStart, t.BookedPeriod)
	}
	open := make(map[loadgen.Total]loadgen.Total, len(expected))
	for _, t := range expected {
		open[key(t)] = t
	}
	for shard, found := range rows {
		for _, t := range found {
			want, known := open[key(t)]
			switch {
			case !known:
				b.differ("%s: on shard %d, twice or for nothing: %s", name(t), shard, show(t))
			case want != t:
				b.differ("%s: had to be %s; is, on shard %d, %s", name(t), show(want), shard, show(t))
			default:
				right++
			}
			delete(open, key(t))
		}
	}
	for _, t := range expected {
		if _, left := open[key(t)]; left {
			b.differ("%s: missing, had to be %s", name(t), show(t))
		}
	}
	return right
}

// compareMoney compares the sums over all rows of each currency.
func (b *books) compareMoney(want, found map[string]currencySum) {
	all := maps.Clone(want)
	maps.Copy(all, found)
	for _, currency := range slices.Sorted(maps.Keys(all)) {
		w, f := want[currency], found[currency]
		b.Money = append(b.Money, funds{
			Currency: currency, Charges: fixed(f.charge), Credits: fixed(f.credit), Net: fixed(f.net()),
			ChargesTooMuch: less(f.charge, w.charge), CreditsTooMuch: less(w.credit, f.credit), NetTooMuch: less(f.net(), w.net()),
		})
		if w != f {
			b.differ("%s: had to be charges %s and credits %s, is %s and %s", currency, fixed(w.charge), fixed(w.credit), fixed(f.charge), fixed(f.credit))
		}
	}
}

func fixed(s money.Sum) string { return string(s.AppendFixed(nil)) }

// less is a - b.
func less(a, b money.Sum) string {
	a.SubSum(b)
	return fixed(a)
}
