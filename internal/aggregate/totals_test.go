package aggregate

import (
	"fmt"
	"testing"
	"time"

	"billing/internal/event"
)

// TestTotalsAgainstAMap: every key has one row, whatever its texts look like put one
// after the other, and comes back as it was.
func TestTotalsAgainstAMap(t *testing.T) {
	e := New(Config{Shards: 1, Window: time.Hour})
	want := map[TotalKey]int64{}
	add := func(account, sku, unit, currency string, at time.Time) {
		e.Apply(&event.Event{Account: []byte(account), SKU: []byte(sku), Unit: []byte(unit), Currency: currency, Time: at.UnixMicro(), Type: event.Charge}, 0)
		k := TotalKey{Account: account, SKU: sku, Unit: unit, Currency: currency, WindowStart: at.Truncate(time.Hour).UnixMicro()}
		copy(k.Period[:], at.Format("2006-01"))
		want[k]++
	}
	first := time.Date(2026, 11, 30, 23, 30, 0, 0, time.UTC)
	for round := range 2 {
		for i, at := range []time.Time{first, first.Add(time.Hour)} { // of two months
			for _, texts := range [][4]string{{"ab", "c", "d", "EUR"}, {"a", "bc", "d", "EUR"}, {"a", "b", "cd", "EUR"}, {"a", "bcd", "", "EUR"}, {"a", "", "bcd", "EUR"}, {"abcd", "", "", "EUR"}, {"ab", "c", "d", "USD"}} {
				add(texts[0], texts[1], texts[2], texts[3], at)
			}
			for n := range 3000 * (round + i) {
				add(fmt.Sprint("acct-", n), fmt.Sprint("sku", n%7), "hour", "EUR", at)
			}
		}
	}
	// Of so many keys several pairs have one hash.
	for n := range 300_000 {
		add(fmt.Sprintf("%06d", n), "", "", "EUR", first)
	}
	got := map[TotalKey]int64{}
	for k, total := range e.Parts[0].Totals.All() {
		if got[k] != 0 {
			t.Errorf("%+v has two rows", k)
		}
		got[k] = total.Entries
	}
	if len(got) != len(want) || e.Parts[0].Totals.Len() != len(want) || e.Rows() != len(want)+2 {
		t.Errorf("%d rows, Len %d, Rows %d; want %d and two sums", len(got), e.Parts[0].Totals.Len(), e.Rows(), len(want))
	}
	for k, n := range want {
		if got[k] != n {
			t.Errorf("%+v: %d entries, want %d", k, got[k], n)
		}
	}
}
