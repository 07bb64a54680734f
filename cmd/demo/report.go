package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"billing/internal/loadgen"
	"billing/internal/money"
)

// line is one fact: what had to come out beside what the tables say.
type line struct{ what, expected, found string }

// section is a table of lines whose columns have one width.
type section struct {
	title string
	lines []line
}

// result is the comparison. Where differences is empty, everything is right.
type result struct {
	sections    []section
	differences []string
	reasons     []string // what was kept, by reason: has no expected value
}

func (r *result) section(title string) { r.sections = append(r.sections, section{title: title}) }

func (r *result) count(what string, expected, found int64) {
	r.add(what, strconv.FormatInt(expected, 10), strconv.FormatInt(found, 10))
}

// add adds a line to the last section.
func (r *result) add(what, expected, found string) {
	s := &r.sections[len(r.sections)-1]
	s.lines = append(s.lines, line{what, expected, found})
	if expected != found {
		r.differ("%s, %s: had to be %s, is %s", s.title, strings.TrimSpace(what), expected, found)
	}
}

func (r *result) differ(format string, args ...any) {
	r.differences = append(r.differences, fmt.Sprintf(format, args...))
}

// compare holds what the tables say against the load.
func compare(l *load, a answers) result {
	var r result
	var read, applied, duplicates, conflicts, rejected int64
	for _, e := range a.epochs[0] {
		read, applied, duplicates = read+e.records, applied+e.applied, duplicates+e.duplicates
		conflicts, rejected = conflicts+e.conflicts, rejected+e.rejected
	}
	o := l.expected.Outcomes
	r.section("messages")
	r.count("accounted for", l.expected.Messages, read)
	r.count("applied", o.Applied, applied)
	r.count("duplicates removed", o.Duplicate, duplicates)
	r.count("conflicts (same id, other content)", o.Conflict, conflicts)
	r.count("rejected", o.Rejected, rejected)
	r.section("money")
	r.compareCurrencies(l.expected.Totals, a.currencies)
	r.section("rows")
	r.compareTotals("totals, each as it had to be", "billing_totals", l.expected.Totals, a.totals)
	r.compareTotals("totals that the ledger confirms", "billing_ledger", l.expected.Totals, a.ledger)
	r.count("ledger rows", o.Applied, a.ledgerRows)
	r.count("ledger rows, different ids", o.Applied, a.ledgerIDs)
	r.count("conflicts kept", o.Conflict, a.kinds["conflict"])
	r.count("rejected messages kept", o.Rejected, a.kinds["rejected"])
	r.section("protocol")
	r.compareEpochs(l.perPartition[:], a.epochs)
	r.count("branches left prepared", 0, int64(len(a.prepared)))
	for _, reason := range slices.Sorted(maps.Keys(a.reasons)) {
		r.reasons = append(r.reasons, fmt.Sprintf("%s %d", reason, a.reasons[reason]))
	}
	return r
}

// compareTotals compares all rows, whole and as text.
func (r *result) compareTotals(what, where string, expected []loadgen.Total, shards [][]loadgen.Total) {
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
	right := int64(0)
	for shard, rows := range shards {
		for _, found := range rows {
			want, known := open[key(found)]
			switch {
			case !known:
				r.differ("%s: on shard %d, twice or for nothing: %s", name(found), shard, show(found))
			case want != found:
				r.differ("%s: had to be %s; is, on shard %d, %s", name(found), show(want), shard, show(found))
			default:
				right++
			}
			delete(open, key(found))
		}
	}
	for _, missing := range expected {
		if _, left := open[key(missing)]; left {
			r.differ("%s: missing, had to be %s", name(missing), show(missing))
		}
	}
	r.count(what, int64(len(expected)), right)
}

// compareCurrencies compares the sums over all rows of each currency.
func (r *result) compareCurrencies(expected []loadgen.Total, found map[string]currencySum) {
	want := map[string]currencySum{}
	for _, t := range expected {
		s := want[t.Currency]
		for text, sum := range map[string]*money.Sum{t.ChargeAmount: &s.charge, t.CreditAmount: &s.credit} {
			add, err := money.ParseSum([]byte(text))
			if err != nil {
				panic(err) // the load wrote it
			}
			sum.AddSum(add)
		}
		want[t.Currency] = s
	}
	all := slices.Collect(maps.Keys(want))
	for currency := range found {
		if _, known := want[currency]; !known {
			all = append(all, currency)
		}
	}
	slices.Sort(all)
	fixed := func(s money.Sum) string { return string(s.AppendFixed(nil)) }
	for _, currency := range all {
		w, f := want[currency], found[currency]
		w.net = w.charge
		w.net.AddSum(w.credit)
		r.add(currency+" charges", fixed(w.charge), fixed(f.charge))
		r.add(currency+" credits", fixed(w.credit), fixed(f.credit))
		r.add(currency+" net", fixed(w.net), fixed(f.net))
	}
}

// compareEpochs wants the same gapless chain of epochs on every shard, from the
// first message of each partition to the last.
func (r *result) compareEpochs(perPartition []int64, shards [][]epoch) {
	ends := make([]epoch, len(perPartition))
	for _, e := range shards[0] {
		if e.topic != topic || int(e.partition) >= len(ends) {
			r.differ("billing_epoch: %s/%d is no lane of this job", e.topic, e.partition)
			continue
		}
		last := ends[e.partition]
		if e.seq != last.seq+1 || e.from != last.next || e.incarnation < last.incarnation {
			r.differ("billing_epoch: partition %d: epoch %d (session %d, offsets %d to %d) does not follow epoch %d (session %d, up to %d)",
				e.partition, e.seq, e.incarnation, e.from, e.next, last.seq, last.incarnation, last.next)
		}
		ends[e.partition] = e
	}
	var epochs int64
	for partition, n := range perPartition {
		r.count(fmt.Sprintf("partition %d, offset reached", partition), n, ends[partition].next)
		epochs += ends[partition].seq
	}
	for shard, rows := range shards[1:] {
		same := int64(0)
		for i, e := range rows {
			if i < len(shards[0]) && e == shards[0][i] {
				same++
			}
		}
		if len(rows) != len(shards[0]) {
			r.differ("billing_epoch: shard %d has %d rows, shard 0 has %d", shard+1, len(rows), len(shards[0]))
		}
		r.count(fmt.Sprintf("epochs, on shard %d as on shard 0", shard+1), epochs, same)
	}
}

// print writes the result for a person, as plain text.
func (r result) print(w io.Writer) error {
	var b strings.Builder
	for _, s := range r.sections {
		s.print(&b)
	}
	wrap(&b, "kept, by reason: ", r.reasons)
	const most = 50
	if n := len(r.differences); n > 0 {
		fmt.Fprintf(&b, "\n%d differences:\n", n)
		for _, d := range r.differences[:min(n, most)] {
			b.WriteString("  " + d + "\n")
		}
		if n > most {
			fmt.Fprintf(&b, "  and %d more\n", n-most)
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

func (s section) print(b *strings.Builder) {
	all := append([]line{{s.title, "had to come out", "in the tables"}}, s.lines...)
	widths := [3]int{36, 18, 18} // so that narrow sections are alike
	for _, l := range all {
		widths = [3]int{max(widths[0], len(l.what)), max(widths[1], len(l.expected)), max(widths[2], len(l.found))}
	}
	for i, l := range all {
		verdict, indent := "", ""
		switch {
		case i == 0:
		case l.expected == l.found:
			verdict, indent = "  same", "  "
		default:
			verdict, indent = "  DIFFERENT", "  "
		}
		fmt.Fprintf(b, "%-*s%*s  %*s%s\n", widths[0], indent+l.what, widths[1], l.expected, widths[2], l.found, verdict)
	}
	b.WriteByte('\n')
}

// wrap writes the words behind the title, in lines for a terminal.
func wrap(b *strings.Builder, title string, words []string) {
	column := 0
	for i, word := range words {
		if i > 0 {
			word = ", " + word
		}
		switch {
		case i == 0:
			b.WriteString(title)
			column = len(title)
		case column+len(word) > 96:
			b.WriteString(",\n  ")
			word = strings.TrimPrefix(word, ", ")
			column = 2
		}
		b.WriteString(word)
		column += len(word)
	}
	if len(words) > 0 {
		b.WriteByte('\n')
	}
}
