package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/event"
	"billing/internal/money"
)

// The totals are compared with the ledger without holding either in memory. A
// sketch has the exact sums of some thousand groups of totals, by the first bits
// of their keys; and beside them, so that two errors in one group can't hide each
// other, a sum in which each total counts with factors of its own, drawn anew for
// each audit. What the ledger adds is added, what the totals have is subtracted:
// a group in which anything is left is read again, total by total.
const groupBits = 14

type sketch struct {
	seed   maphash.Seed // the same for all sketches of an audit
	groups [1 << groupBits]sketchGroup
}

type sketchGroup struct {
	amounts
	weighted weights
}

// weights are one weighted sum by two moduli: what is 0 by one of them alone does
// not hide.
type weights struct {
	low   uint64 // modulo 2^64
	prime uint64 // modulo money.Prime
}

func (w *weights) add(v weights) {
	w.low += v.low
	w.prime = (w.prime + v.prime) % money.Prime
}

func (w *weights) sub(v weights) {
	w.low -= v.low
	w.prime = (w.prime + money.Prime - v.prime) % money.Prime
}

// amounts are what a total is made of.
type amounts struct {
	booked
	quantity money.Sum
}

func (a *amounts) add(b *amounts) {
	a.booked.add(&b.booked)
	a.quantity.AddSum(b.quantity)
}

func (a *amounts) sub(b *amounts) {
	a.booked.sub(&b.booked)
	a.quantity.SubSum(b.quantity)
}

// entry is what one row adds to a total.
type entry struct {
	amounts
	key      totalKey
	currency string
}

type totalKey [16]byte

func (k totalKey) group() int { return (int(k[0])<<8 | int(k[1])) >> (16 - groupBits) }

func newSketch(seed maphash.Seed) *sketch { return &sketch{seed: seed} }

func (s *sketch) clear() { clear(s.groups[:]) }

func (s *sketch) add(e *entry) {
	g := &s.groups[e.key.group()]
	g.add(&e.amounts)
	g.weighted.add(s.weigh(e))
}

func (s *sketch) sub(e *entry) {
	g := &s.groups[e.key.group()]
	g.sub(&e.amounts)
	g.weighted.sub(s.weigh(e))
}

func (s *sketch) weigh(e *entry) (w weights) {
	h := maphash.Bytes(s.seed, e.key[:])
	add := func(low, prime uint64) {
		h += 0x9e3779b97f4a7c15 // SplitMix64
		z := h
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		hi, lo := bits.Mul64(z%money.Prime, prime)
		_, r := bits.Div64(hi, lo, money.Prime)
		w.add(weights{low: (z | 1) * low, prime: r})
	}
	add(e.charge.Low(), e.charge.Mod())
	add(e.credit.Low(), e.credit.Mod())
	add(e.quantity.Low(), e.quantity.Mod())
	add(uint64(e.entries), uint64((e.entries%money.Prime+money.Prime)%money.Prime))
	return w
}

func (s *sketch) merge(t *sketch) {
	for i := range s.groups {
		s.groups[i].add(&t.groups[i].amounts)
		s.groups[i].weighted.add(t.groups[i].weighted)
	}
}

// left are the groups in which the ledger and the totals differ.
func (s *sketch) left() (groups []int) {
	for i := range s.groups {
		if s.groups[i] != (sketchGroup{}) {
			groups = append(groups, i)
		}
	}
	return groups
}

// of is what a row of the ledger adds. ev is what it says.
func (e *entry) of(r row, ev *event.Event) {
	var sum money.Sum
	sum.Add(ev.Amount)
	e.entries = 1
	if ev.Type == event.Credit {
		e.credit = sum
		e.quantity.Sub(ev.Quantity)
	} else {
		e.charge = sum
		e.quantity.Add(ev.Quantity)
	}
	e.currency = ev.Currency
	e.key = keyOf(r[0], r[1], r[4], r[8], r[9], r[10], r[11], r[16], r[17])
}

// keyOf is billing_total.total_key of these columns.
func keyOf(columns ...[]byte) (key totalKey) {
	var room [512]byte
	enc := room[:0]
	for _, column := range columns {
		enc = appendColumn(enc, column)
	}
	sum := sha256.Sum256(enc)
	copy(key[:], sum[:])
	return key
}

const totalColumns = "total_key, kafka_topic, kafka_partition, tenant_id, account_id, sku, unit, currency, window_start, booked_period, charge_amount, credit_amount, quantity, entry_count"

// total is a row of billing_total.
type total struct {
	entry
	stored totalKey
	lane   checkpoint.Lane
	wrong  string // what can't be read
}

func newTotal(r row) (t total) {
	copy(t.stored[:], r[0])
	t.lane = checkpoint.Lane{Topic: r.text(1), Partition: int32(r.int(2))}
	t.key = keyOf(r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9])
	t.currency = r.text(7)
	sums, err := sumsOf(r[10], r[11], r.int(13))
	if err == nil {
		t.quantity, err = money.ParseSum(r[12])
	}
	t.booked = *sums
	if err != nil {
		t.wrong = err.Error()
	}
	return t
}

func describe(lane checkpoint.Lane, account, sku, unit, currency, window, period string) string {
	about := fmt.Sprintf("%s account %s", lane, Printable(account))
	if sku != "" {
		about += " sku " + Printable(sku)
	}
	if unit != "" {
		about += " unit " + Printable(unit)
	}
	return fmt.Sprintf("%s %s window %s period %s", about, Printable(currency), window, period)
}

func (k totalKey) line(about string) string { return hex.EncodeToString(k[:]) + " (" + about + ")" }

// totals compares billing_total with the ledger and with the epochs' sums.
func (v *verifier) totals(ctx context.Context) error {
	offLanes := map[checkpoint.Lane]bool{}
	for _, l := range v.lanes {
		if l.off() {
			offLanes[l.id] = true
		}
	}
	found := make([]map[laneCurrency]*booked, len(v.shards))
	counted := make([]int64, len(v.shards))
	err := v.each(func(s *snapshot) error {
		found[s.number] = map[laneCurrency]*booked{}
		strange, err := v.readTotals(ctx, s, offLanes, found[s.number], &counted[s.number])
		if err != nil {
			return err
		}
		if groups := s.sketch.left(); len(groups) > 0 {
			return v.explain(ctx, s, groups, offLanes, strange)
		}
		return nil
	})
	if err != nil {
		return err
	}
	byCurrency := map[string]*booked{}
	for i, s := range v.shards {
		v.sum.Totals += counted[i]
		for at, sum := range found[i] {
			if byCurrency[at.currency] == nil {
				byCurrency[at.currency] = new(booked)
			}
			byCurrency[at.currency].add(sum)
		}
		v.sumsOfLanes(s, offLanes, found[i])
	}
	for _, currency := range slices.Sorted(maps.Keys(byCurrency)) {
		b := byCurrency[currency]
		net := b.charge
		net.AddSum(b.credit)
		v.sum.Booked = append(v.sum.Booked, Booked{
			Currency: currency, Entries: b.entries,
			Charge: string(b.charge.AppendFixed(nil)), Credit: string(b.credit.AppendFixed(nil)), Net: string(net.AppendFixed(nil)),
		})
	}
	if len(offLanes) > 0 {
		v.told.note("%d epochs of %d lanes were written with the ledger off: the totals of these lanes were checked by their sums per currency only", v.sum.LedgerOff, len(offLanes))
	}
	return nil
}

// progressEvery is how many rows of the totals are read between two words.
const progressEvery = 1 << 14

// readTotals reads billing_total once. strange are the keys, computed from their
// columns, of rows that stand under another key.
func (v *verifier) readTotals(ctx context.Context, s *snapshot, offLanes map[checkpoint.Lane]bool, found map[laneCurrency]*booked, count *int64) (strange map[totalKey]bool, err error) {
	strange = map[totalKey]bool{}
	err = s.scan(ctx, func(r row) error {
		t := newTotal(r)
		if *count++; *count%progressEvery == 0 {
			v.told.progress("totals", 0, 0)
		}
		wrong := func(wrong, expected string, args ...any) {
			v.told.difference(Difference{s.name, tableTotal, t.stored.line(identityOf(r)), wrong, fmt.Sprintf(expected, args...)})
		}
		switch {
		case t.wrong != "":
			wrong(t.wrong, "amounts")
		case t.key != t.stored:
			strange[t.key] = true
			wrong("total_key is not the hash of the row's columns: one of them was changed", "%x for these", t.key)
		}
		if n := aggregate.ShardOf(r[4], len(v.shards)); n != s.number {
			wrong("the row is on this shard", "on shard %s, where the account is", v.shards[n].name)
		}
		at := laneCurrency{t.lane, t.currency}
		if found[at] == nil {
			found[at] = new(booked)
		}
		found[at].add(&t.booked)
		if t.charge.Sign() < 0 || t.credit.Sign() > 0 || t.entries < 1 {
			wrong("it has "+t.booked.String(), "no negative charges, no positive credits, one entry or more")
		}
		if !offLanes[t.lane] {
			s.sketch.sub(&t.entry)
		}
		return nil
	}, "SELECT "+totalColumns+" FROM billing_total FORCE INDEX (PRIMARY) ORDER BY total_key")
	return strange, err
}

func identityOf(r row) string {
	return describe(checkpoint.Lane{Topic: r.text(1), Partition: int32(r.int(2))}, r.text(4), r.text(5), r.text(6), r.text(7), r.text(8), r.text(9))
}

// sumsOfLanes compares, by lane and currency, the totals with billing_epoch_sum.
// Where the ledger is whole it stands between the two and names the row.
func (v *verifier) sumsOfLanes(s *snapshot, offLanes map[checkpoint.Lane]bool, found map[laneCurrency]*booked) {
	for at := range s.sums {
		if found[at] == nil {
			found[at] = new(booked)
		}
	}
	order := func(a, b laneCurrency) int {
		return cmp.Or(cmp.Compare(a.lane.Topic, b.lane.Topic), cmp.Compare(a.lane.Partition, b.lane.Partition), cmp.Compare(a.currency, b.currency))
	}
	for _, at := range slices.SortedFunc(maps.Keys(found), order) {
		want := s.sum(at.lane, at.currency)
		if offLanes[at.lane] && *found[at] != *want {
			v.told.difference(Difference{s.name, tableTotal, fmt.Sprintf("%s %s", at.lane, Printable(at.currency)),
				"the totals have " + found[at].String(), want.String() + ", which billing_epoch_sum adds up to"})
		}
	}
}

// explainGroups bounds how many groups of totals are looked at one by one, and
// with it the memory that this takes.
const explainGroups = 512

// explained is one total, as the ledger has it and as it stands.
type explained struct {
	ledger, total amounts
	there         bool // a row
	about         string
}

// explain reads the totals of some groups, and what the ledger adds to them, and
// tells of each total that is not what the ledger adds up to. strange totals have
// been told.
func (v *verifier) explain(ctx context.Context, s *snapshot, groups []int, offLanes map[checkpoint.Lane]bool, strange map[totalKey]bool) error {
	if len(groups) > explainGroups {
		v.told.difference(Difference{s.name, tableTotal, fmt.Sprintf("%d groups of totals", len(groups)-explainGroups),
			"they are not what the ledger adds up to", fmt.Sprintf("no difference; those of the first %d groups follow, run again when they are mended", explainGroups)})
		groups = groups[:explainGroups]
	}
	wanted := map[int]bool{}
	found := map[totalKey]*explained{}
	get := func(key totalKey) *explained {
		if found[key] == nil {
			found[key] = new(explained)
		}
		return found[key]
	}
	for _, g := range groups {
		wanted[g] = true
		err := s.scan(ctx, func(r row) error {
			t := newTotal(r)
			if t.key != t.stored || offLanes[t.lane] {
				return nil
			}
			x := get(t.key)
			x.total, x.there, x.about = t.amounts, true, identityOf(r)
			return nil
		}, "SELECT "+totalColumns+" FROM billing_total FORCE INDEX (PRIMARY) WHERE total_key >= ? AND total_key <= ?", groupEdge(g, 0), groupEdge(g, 0xff))
		if err != nil {
			return err
		}
	}
	read := 0
	err := s.scan(ctx, func(r row) error {
		if read++; read%progressEvery == 0 {
			v.told.progress("the ledger again, for totals that differ", 0, 0)
		}
		key := keyOf(r[0], r[1], r[4], r[8], r[9], r[10], r[11], r[16], r[17])
		lane := checkpoint.Lane{Topic: r.text(0), Partition: int32(r.int(1))}
		if !wanted[key.group()] || offLanes[lane] {
			return nil
		}
		x := get(key)
		e := entryOf(r)
		x.ledger.add(&e.amounts)
		if x.about == "" {
			x.about = describe(lane, r.text(8), r.text(9), r.text(10), r.text(11), r.text(16), r.text(17))
		}
		return nil
	}, "SELECT "+ledgerColumns+" FROM billing_ledger FORCE INDEX (PRIMARY)")
	if err != nil {
		return err
	}
	for _, key := range slices.SortedFunc(maps.Keys(found), func(a, b totalKey) int { return slices.Compare(a[:], b[:]) }) {
		x := found[key]
		if x.ledger == x.total || strange[key] && !x.there {
			continue
		}
		d := Difference{s.name, tableTotal, key.line(x.about), "", ""}
		mend := ""
		if s.ledgerWrong {
			mend = " now; rows of the ledger are wrong on this shard: mend those first"
		}
		switch {
		case !x.there:
			d.Wrong, d.Expected = "there is no row", x.ledger.String()+", which the ledger's rows add up to"
		case x.ledger.entries == 0:
			d.Wrong, d.Expected = "it has "+x.total.String(), "no row: the ledger has no entry of it"
		default:
			d.Wrong, d.Expected = x.compare()
		}
		d.Expected += mend
		v.told.difference(d)
	}
	return nil
}

// entryOf is what a row of the ledger adds to its total, without the checks.
func entryOf(r row) (e entry) {
	ev := event.Event{Type: event.Charge, Currency: r.text(11)}
	if string(r[7]) == event.Credit.String() {
		ev.Type = event.Credit
	}
	ev.Amount, _ = money.Parse(r[12]) // what is no amount was told, and counts as 0 there too
	ev.Quantity, _ = money.Parse(r[13])
	e.of(r, &ev)
	return e
}

// groupEdge is the first or last key of a group: fill is 0 or 0xff.
func groupEdge(group int, fill byte) []byte {
	var k totalKey
	for i := range k {
		k[i] = fill
	}
	first := group << (16 - groupBits)
	if fill != 0 {
		first |= 1<<(16-groupBits) - 1
	}
	k[0], k[1] = byte(first>>8), byte(first)
	return k[:]
}

func (a *amounts) String() string {
	return fmt.Sprintf("charges %s, credits %s, quantity %s in %d entries", a.charge, a.credit, a.quantity, a.entries)
}

// compare names the columns that differ.
func (x *explained) compare() (wrong, expected string) {
	var is, want []string
	column := func(name, a, b string) {
		if a != b {
			is, want = append(is, name+" is "+a), append(want, b)
		}
	}
	column("charge_amount", x.total.charge.String(), x.ledger.charge.String())
	column("credit_amount", x.total.credit.String(), x.ledger.credit.String())
	column("quantity", x.total.quantity.String(), x.ledger.quantity.String())
	column("entry_count", fmt.Sprint(x.total.entries), fmt.Sprint(x.ledger.entries))
	return strings.Join(is, ", "), strings.Join(want, ", ") + ", which the ledger's rows add up to"
}
