package main

import (
	"fmt"
	"io"
	"strings"
)

// print writes the report for people, in at most 79 columns.
func (r *report) print(w io.Writer, s style) error {
	p := printer{style: s}
	p.table(r)
	p.money(r)
	p.words(r)
	_, err := io.WriteString(w, p.String())
	return err
}

// printer gathers the text.
type printer struct {
	style
	strings.Builder
}

// Columns of the table: what, expected, plain loop, ours, and a sign.
const (
	whatWide   = 32
	figureWide = 14
)

func (p *printer) rule() {
	fmt.Fprintln(p, "  "+p.paint(dim, strings.Repeat(p.sign("\u2500", "-"), wide-4)))
}

// verdictOf is a figure's colour.
type verdictOf int

const (
	neutral verdictOf = iota
	right
	wrong
)

// cell is one figure.
type cell struct {
	text string
	is   verdictOf
}

func (p *printer) cell(c cell, width int) string {
	text := fmt.Sprintf("%*s", width, c.text)
	switch c.is {
	case right:
		return p.paint(green, text)
	case wrong:
		return p.paint(red, text)
	default:
		return text
	}
}

// row writes a line of the table. A sign behind ours says what colours say.
func (p *printer) row(what string, expected string, plain, ours cell) {
	if expected == "" {
		what = fmt.Sprintf("%-*s", whatWide+figureWide, what)
	} else {
		what = fmt.Sprintf("%-*s%*s", whatWide, what, figureWide, expected)
	}
	sign := map[verdictOf]string{right: p.sign(" \u2714", " ok"), wrong: p.sign(" \u2718", " NO")}[ours.is]
	fmt.Fprintf(p, "  %s%s%s%s\n", what, p.cell(plain, figureWide), p.cell(ours, figureWide),
		p.paint(map[verdictOf]string{right: green, wrong: red, neutral: dim}[ours.is], sign))
}

// count writes a line of counts that had to be.
func (p *printer) count(what string, want, plain, ours int64) {
	judged := func(n int64) cell {
		if n == want {
			return cell{grouped(n), right}
		}
		return cell{grouped(n), wrong}
	}
	c := judged(plain)
	if c.is == right {
		c.is = neutral // nothing to boast of
	}
	p.row(what, grouped(want), c, judged(ours))
}

func (p *printer) table(r *report) {
	x, a, b := &r.Expected, &r.Plain, &r.Ours
	fmt.Fprintf(p, "\n  %s%s\n", strings.Repeat(" ", whatWide), p.paint(bold, fmt.Sprintf("%*s%*s%*s", figureWide, "had to be", figureWide, "plain loop", figureWide, "this service")))
	p.rule()
	p.count("messages accounted for", x.Messages, a.Messages, b.Messages)
	p.count("entries booked", x.Entries, a.Entries, b.Entries)
	p.count("  doubled: batch written again", 0, a.WrittenAgain, b.WrittenAgain)
	p.count("  doubled: repeat in later batch", 0, a.Repeats, b.Repeats)
	p.count("  booked, though in conflict", 0, a.Conflicts, b.Conflicts)
	p.count("  booked, though to be rejected", 0, a.Rejected, b.Rejected)
	p.count("  lost", 0, a.Lost, b.Lost)
	p.count("conflicts kept", x.Conflicts, a.ConflictsKept, b.ConflictsKept)
	p.count("bad messages kept", x.Rejected, a.RejectedKept, b.RejectedKept)
	p.count("totals that are right", x.Totals, a.TotalsRight, b.TotalsRight)
	p.count("  and added up from the ledger", x.Totals, a.TotalsOfLedger, b.TotalsOfLedger)
	prepared := cell{grouped(b.Prepared), right}
	if b.Prepared > 0 {
		prepared.is = wrong
	}
	p.row("branches left prepared", "0", cell{text: "-"}, prepared)
	verdict := cell{"no difference", right}
	if !r.Verify.OK {
		verdict = cell{grouped(int64(r.Verify.Differences)) + " wrong", wrong}
	}
	p.row("billing verify", "", cell{}, verdict)
	p.rule()
	var notes []string
	for i := range min(len(a.Kills), len(b.Kills)) {
		figure := func(c caught, name string) cell {
			text := fmt.Sprintf("%.2f s", c.Recovery)
			if !c.asWanted() {
				text = "* " + text
				notes = append(notes, fmt.Sprintf("* Kill %d of %s was not caught in time. It came at the nearest moment: %s.", i+1, name, c.Moment))
			}
			return cell{text: text}
		}
		p.row(fmt.Sprintf("kill %d: %s; back after", i+1, a.Kills[i].Wanted), "", figure(a.Kills[i], "the plain loop"), figure(b.Kills[i], "this service"))
	}
	p.row("messages a second, kills included", "", cell{text: grouped(int64(a.Rate))}, cell{text: grouped(int64(b.Rate))})
	p.rule()
	p.text("Half written: one shard has the batch (the epoch), the other has not. Not acknowledged: both have it, its offset is not committed. " +
		"Acknowledged: the offset is committed, and the next batch begins; the service may have branches to commit still.")
	p.text("Back after: from SIGKILL to the first new booking that a SELECT sees. Messages a second: from the first start until all are accounted for, less the time for which it was frozen in order to look.")
	for _, n := range notes {
		p.text("%s", n)
	}
}

// money writes each currency with exact sums, which are too long for columns.
func (p *printer) money(r *report) {
	for i, x := range r.Expected.Money {
		fmt.Fprintln(p)
		line := func(who, amount string, is verdictOf) {
			fmt.Fprintf(p, "  %-5s%-14s%s\n", x.Currency, who, p.cell(cell{moneyText(amount), is}, wide-4-19))
			x.Currency = ""
		}
		line("had to be", x.Net, neutral)
		for _, c := range []struct {
			who  string
			from []funds
			good verdictOf
		}{{"plain loop", r.Plain.Money, neutral}, {"this service", r.Ours.Money, right}} {
			f := find(c.from, r.Expected.Money[i].Currency)
			if f.Net == x.Net {
				line(c.who, f.Net, c.good)
				continue
			}
			line(c.who, f.Net, wrong)
			line("  off by", signed(f.NetTooMuch), wrong)
		}
	}
}

func find(all []funds, currency string) funds {
	for _, f := range all {
		if f.Currency == currency {
			return f
		}
	}
	return funds{}
}

func signed(amount string) string {
	if strings.HasPrefix(amount, "-") {
		return amount
	}
	return "+" + amount
}

// text writes a paragraph.
func (p *printer) text(format string, args ...any) { p.painted("", format, args...) }

func (p *printer) painted(colour, format string, args ...any) {
	for _, line := range wrap(fmt.Sprintf(format, args...), wide-4) {
		if colour != "" {
			line = p.paint(colour, line)
		}
		fmt.Fprintln(p, "  "+line)
	}
}

// words says what was seen, and why.
func (p *printer) words(r *report) {
	fmt.Fprintln(p)
	a, b := &r.Plain, &r.Ours
	if a.Exact {
		p.text("The plain loop was right this time, so there was nothing to see: no kill and no repeat has hit it.")
	} else {
		p.text("The plain loop has booked")
		for _, line := range faultsOf(a) {
			for i, part := range wrap(line, wide-6) {
				fmt.Fprintln(p, "  "+[]string{"- ", "  "}[min(i, 1)]+part)
			}
		}
		p.text("A unique key on the ids would refuse the second ledger row. It would not take the second amount out of a total, " +
			"and it would not see an id that is on the other shard.")
		fmt.Fprintln(p)
		p.text("What the plain loop charges too much:")
		for _, f := range a.Money {
			if strings.Trim(f.ChargesTooMuch, "0.") == "" {
				continue
			}
			fmt.Fprintf(p, "  %-5s%s\n", f.Currency, p.cell(cell{moneyText(signed(f.ChargesTooMuch)), wrong}, wide-4-5))
		}
	}
	fmt.Fprintln(p)
	if r.oursExact() {
		p.painted(green, "This service booked each of %s entries once, after the same kills: offset, ids and decision are one Kafka transaction, "+
			"and what was prepared on the shards is committed or rolled back as it says.", grouped(b.Entries))
		return
	}
	p.painted(red, "THIS SERVICE WAS WRONG: %d differences, and billing verify has found %d.", b.Differences, r.Verify.Differences)
	for _, d := range b.FirstDifferences {
		p.text("- %s", d)
	}
}

// faultsOf says what the plain loop has done wrong, and why.
func faultsOf(a *result) (said []string) {
	say := func(n int64, why string) {
		if n > 0 {
			noun := "entries"
			if n == 1 {
				noun = "entry"
			}
			said = append(said, grouped(n)+" "+noun+" "+why)
		}
	}
	say(a.WrittenAgain, "once more, because a batch that was already written, on one shard or on both, was read and written again after a SIGKILL.")
	say(a.Repeats, "once more, because the repeat came in a later batch than the first, whose ids it does not know any more.")
	say(a.Conflicts, "of another content for an id that was booked before, for the same reason.")
	say(a.Rejected, "that had to be rejected.")
	say(a.Lost, "too few: lost.")
	return said
}
