package aggregate

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"billing/internal/event"
	"billing/internal/money"
)

// model is what an epoch should hold, by other means: strings, big.Int and the
// calendar.
type model struct {
	totals map[string]*row // by shard and readable key
	sums   map[string]*row // by shard and currency
	ledger []string        // by shard, a line for each row
	kept   []string
	counts Counts
}

type row struct {
	charge, credit, quantity big.Int // in 1e-12 units
	entries                  int64
}

func (m *model) add(of map[string]*row, key string, ev *event.Event) {
	r := of[key]
	if r == nil {
		r = new(row)
		of[key] = r
	}
	r.entries++
	quantity := units(ev.Quantity.String())
	if ev.Type == event.Charge {
		r.charge.Add(&r.charge, units(ev.Amount.String()))
		r.quantity.Add(&r.quantity, quantity)
	} else {
		r.credit.Add(&r.credit, units(ev.Amount.String()))
		r.quantity.Sub(&r.quantity, quantity)
	}
}

// units reads a decimal as a number of 1e-12.
func units(s string) *big.Int {
	integer, places, _ := strings.Cut(s, ".")
	n, ok := new(big.Int).SetString(integer+places+strings.Repeat("0", 12-len(places)), 10)
	if !ok {
		panic(s)
	}
	return n
}

func totalKey(shard int, account, sku, unit, currency string, window time.Time, period string) string {
	return fmt.Sprintf("%d %q %q %q %s %s %s", shard, account, sku, unit, currency, window.Format(time.RFC3339Nano), period)
}

func ledgerLine(shard int, ev *event.Event, offset int64, window time.Time, period string) string {
	return fmt.Sprintf("%d %q %q %q %q %q %q %s %d %s %s %t %x %x %s %d %s %s", shard, ev.ID, ev.Source, ev.Account, ev.SKU, ev.Unit, ev.Note,
		ev.Currency, ev.Time, ev.Amount, ev.Quantity, ev.HasQuantity, ev.Key, ev.Content, ev.Type, offset, window.Format(time.RFC3339Nano), period)
}

func (m *model) apply(ev *event.Event, offset int64, shards int, window time.Duration) {
	m.counts.In++
	m.counts.Applied++
	shard := ShardOf(ev.Account, shards)
	at := time.UnixMicro(ev.Time).UTC()
	midnight := time.Date(at.Year(), at.Month(), at.Day(), 0, 0, 0, 0, time.UTC)
	start := midnight // windows of the test divide a day
	for !at.Before(start.Add(window)) {
		start = start.Add(window)
	}
	period := fmt.Sprintf("%04d-%02d", at.Year(), int(at.Month()))
	m.add(m.totals, totalKey(shard, string(ev.Account), string(ev.SKU), string(ev.Unit), ev.Currency, start, period), ev)
	m.add(m.sums, fmt.Sprint(shard, ev.Currency), ev)
	m.ledger = append(m.ledger, ledgerLine(shard, ev, offset, start, period))
}

func amount(s string) money.Amount {
	a, err := money.Parse([]byte(s))
	if err != nil {
		panic(err)
	}
	return a
}

// invent is a random event in memory that the caller may overwrite.
func invent(rng *rand.Rand, offset int64) event.Event {
	word := func(n int) []byte { return fmt.Appendf(nil, "w%d", rng.IntN(n)) }
	ev := event.Event{
		ID: fmt.Appendf(nil, "id-%d", offset), Source: word(3), Account: word(7), Note: word(2),
		Currency: []string{"EUR", "USD", "JPY"}[rng.IntN(3)],
		Type:     event.Charge,
	}
	from, to := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), time.Date(2101, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	switch ev.Time = from + rng.Int64N(to-from); rng.IntN(4) {
	case 0: // the last microsecond of a month and the first of the next
		first := time.Date(2000+rng.IntN(100), time.Month(1+rng.IntN(12)), 1, 0, 0, 0, 0, time.UTC)
		ev.Time = first.UnixMicro() - rng.Int64N(2)
		ev.Time = max(ev.Time, from)
	case 1: // many of one window
		ev.Time = 1_795_951_800_000_000 + rng.Int64N(3_600_000_000)
	}
	digits := strings.Repeat("9", 1+rng.IntN(26))
	places := strings.Repeat("9", 1+rng.IntN(12))
	ev.Amount = amount(digits + "." + places)
	if rng.IntN(3) == 0 {
		ev.Type, ev.Amount = event.Credit, ev.Amount.Neg()
	}
	if rng.IntN(2) == 0 {
		ev.SKU, ev.Unit = word(3), word(2)
		ev.HasQuantity, ev.Quantity = true, amount(fmt.Sprintf("%d.%03d", rng.IntN(1e6), rng.IntN(1000)))
	}
	for i := range ev.Key {
		ev.Key[i] = byte(rng.Uint32())
	}
	ev.Content[0] = byte(rng.Uint32())
	return ev
}

// spoil overwrites the event's memory, as the owner of the records may.
func spoil(ev *event.Event) {
	for _, b := range [][]byte{ev.ID, ev.Source, ev.Account, ev.SKU, ev.Unit, ev.Note} {
		for i := range b {
			b[i] = '!'
		}
	}
}

func TestEpochAgainstModel(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 0))
		window := []time.Duration{time.Minute, 15 * time.Minute, time.Hour, 24 * time.Hour}[rng.IntN(4)]
		cfg := Config{Topic: "usage", Partition: 3, Shards: 1 + rng.IntN(4), Window: window, Ledger: rng.IntN(4) > 0}
		e := New(cfg)
		m := &model{totals: map[string]*row{}, sums: map[string]*row{}}
		if !e.Empty() || e.Rows() != 0 || e.Bytes != 0 {
			t.Fatalf("a new epoch is not empty: %+v", e)
		}
		offset := int64(1e6)
		for range rng.IntN(400) {
			offset += 1 + rng.Int64N(3)
			ev := invent(rng, offset)
			value := bytes.Repeat([]byte{byte('a' + rng.IntN(3))}, rng.IntN(2)*rng.IntN(1000))
			if rng.IntN(50) == 0 {
				value = bytes.Repeat([]byte{'c'}, MaxRaw-1+rng.IntN(3))
			}
			r := &event.Record{Offset: offset, Key: []byte("key"), Value: value,
				Headers: []event.Header{{Key: "h", Value: []byte("v")}, {Key: "null"}}}
			switch rng.IntN(6) {
			case 0:
				m.counts.In++
				m.counts.Duplicates++
				e.Duplicate()
			case 1:
				m.counts.In++
				m.counts.Conflicts++
				m.kept = append(m.kept, fmt.Sprintf("%d %d conflict conflict %d %x", RejectShardOf("usage", 3, offset, cfg.Shards), offset, len(value), sha256.Sum256(value)))
				e.Conflict(r, &ev, 17)
			case 2:
				m.counts.In++
				m.counts.Rejected++
				m.kept = append(m.kept, fmt.Sprintf("%d %d rejected wrong_sign %d %x", RejectShardOf("usage", 3, offset, cfg.Shards), offset, len(value), sha256.Sum256(value)))
				e.Reject(r, event.ReasonWrongSign, "detail")
			default:
				m.apply(&ev, offset, cfg.Shards, window)
				e.Apply(&ev, offset)
			}
			spoil(&ev)
			clear(r.Key)
			clear(r.Value)
			clear(r.Headers[0].Value)
			clear(r.Headers)
		}
		if err := m.compare(e); err != nil {
			t.Fatalf("seed %d, %+v: %v", seed, cfg, err)
		}
	}
}

func (m *model) compare(e *Epoch) error {
	if e.Counts != m.counts || e.Empty() != (m.counts.In == 0) {
		return fmt.Errorf("counts %+v, want %+v", e.Counts, m.counts)
	}
	var ledger, kept []string
	rows, totals, sums, applied := 0, 0, 0, int64(0)
	for shard := range e.Parts {
		p := &e.Parts[shard]
		for k, got := range p.Totals.All() {
			name := totalKey(shard, k.Account, k.SKU, k.Unit, k.Currency, time.UnixMicro(k.WindowStart).UTC(), string(k.Period[:]))
			want := m.totals[name]
			if want == nil {
				return fmt.Errorf("total %s should not be", name)
			}
			if got.Entries != want.entries || units(got.Charge.String()).Cmp(&want.charge) != 0 ||
				units(got.Credit.String()).Cmp(&want.credit) != 0 || units(got.Quantity.String()).Cmp(&want.quantity) != 0 {
				return fmt.Errorf("total %s: %+v, want %+v", name, got, want)
			}
		}
		for currency, got := range p.Sums {
			want := m.sums[fmt.Sprint(shard, currency)]
			if want == nil || got.Entries != want.entries || units(got.Charge.String()).Cmp(&want.charge) != 0 || units(got.Credit.String()).Cmp(&want.credit) != 0 {
				return fmt.Errorf("sum of %s on shard %d: %+v, want %+v", currency, shard, got, want)
			}
		}
		last := int64(-1)
		for i, l := range p.Ledger.All() {
			if l.Offset <= last {
				return fmt.Errorf("ledger of shard %d is not in offset order", shard)
			}
			if last = l.Offset; l != p.Ledger.At(i) {
				return fmt.Errorf("ledger of shard %d: row %d is not the one that is found by its number", shard, i)
			}
			ev := event.Event{ID: l.ID(), Source: l.Source(), Account: l.Account(), SKU: l.SKU(), Unit: l.Unit(), Note: l.Note(), Currency: l.Currency,
				Time: l.Time, Amount: l.Amount, Quantity: l.Quantity, Key: l.Key, Content: l.Content, Type: l.Type, HasQuantity: l.HasQuantity}
			ledger = append(ledger, ledgerLine(shard, &ev, l.Offset, time.UnixMicro(l.WindowStart).UTC(), string(l.Period[:])))
		}
		for _, r := range p.Rejects {
			kept = append(kept, fmt.Sprintf("%d %d %s %s %d %x", shard, r.Offset, r.Kind, r.Reason, r.Size, r.Hash))
			if string(r.Key) != "key" || len(r.Headers) != 2 || r.Headers[0].Key != "h" || string(r.Headers[0].Value) != "v" || r.Headers[1].Value != nil ||
				len(r.Value) != min(int(r.Size), MaxRaw) || len(r.Value) > 0 && !strings.Contains("abc", string(r.Value[:1])) {
				return fmt.Errorf("record at %d is kept as %q, %q, %d bytes", r.Offset, r.Key, r.Headers, len(r.Value))
			}
		}
		rows += p.Totals.Len() + p.Ledger.Len() + len(p.Rejects) + len(p.Sums)
		totals, sums, applied = totals+p.Totals.Len(), sums+len(p.Sums), applied+p.Applied
	}
	want := m.ledger
	if !e.cfg.Ledger {
		want = nil
	}
	for _, lines := range [][]string{ledger, kept, want, m.kept} {
		slices.Sort(lines)
	}
	switch {
	case !slices.Equal(ledger, want):
		return fmt.Errorf("ledger\n%s\nwant\n%s", strings.Join(ledger, "\n"), strings.Join(want, "\n"))
	case !slices.Equal(kept, m.kept):
		return fmt.Errorf("kept\n%s\nwant\n%s", strings.Join(kept, "\n"), strings.Join(m.kept, "\n"))
	case totals != len(m.totals) || sums != len(m.sums) || applied != m.counts.Applied || rows != e.Rows():
		return fmt.Errorf("%d totals, %d sums, %d applied, %d rows; want %d, %d, %d, %d", totals, sums, applied, e.Rows(), len(m.totals), len(m.sums), m.counts.Applied, rows)
	}
	return nil
}
