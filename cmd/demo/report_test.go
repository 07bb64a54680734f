package main

import (
	"bytes"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// rightAnswers is what the tables say when everything is right.
func rightAnswers(t *testing.T) answers {
	t.Helper()
	l := smallLoad()
	sums, err := l.sums()
	if err != nil {
		t.Fatal(err)
	}
	a := answers{
		records: []int64{6, 6}, rows: 3, positions: 3, contents: 3, ids: 3,
		conflicts: 1, reasons: maps.Clone(l.Reasons), currencies: sums,
	}
	for _, total := range l.Totals {
		a.totals, a.ledger = append(a.totals, nil), append(a.ledger, nil)
		i := len(a.totals) - 1
		a.totals[i], a.ledger[i] = append(a.totals[i], total), append(a.ledger[i], total)
	}
	return a
}

func compared(t *testing.T, a answers) books {
	t.Helper()
	b, err := compare(smallLoad(), a)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// theReport is of a service that is right, beside a plain loop that has booked one
// entry of the account a three times: as a repeat, and written again.
func theReport(t *testing.T) *report {
	t.Helper()
	x, err := expect(smallLoad())
	if err != nil {
		t.Fatal(err)
	}
	a := rightAnswers(t)
	a.records, a.rows, a.positions = []int64{8, 6}, 5, 4
	a.totals[0][0].ChargeAmount = "4.500000000000"
	s := a.currencies["USD"]
	if err := s.add("3", "0"); err != nil {
		t.Fatal(err)
	}
	a.currencies["USD"] = s
	kill := func(m, is moment, after float64) caught {
		return caught{Wanted: m.String(), Moment: is.String(), Facts: "so", Messages: 2, Recovery: after}
	}
	r := &report{
		MySQL: "9.9", Broker: "embedded broker", Expected: x, Verify: &verdict{OK: true},
		Plain: result{books: compared(t, a), Seconds: 2, Rate: 3000, Kills: []caught{kill(halfWritten, halfWritten, 0.25), kill(written, acknowledged, 1)}},
		Ours:  result{books: compared(t, rightAnswers(t)), Seconds: 1, Rate: 6000, Kills: []caught{kill(halfWritten, halfWritten, 0.5), kill(written, written, 12.34)}},
	}
	r.judge()
	return r
}

// squeezed has one space in place of many: whether columns stand in line is seen
// by eye, and that none is too wide below.
func squeezed(text string) string { return regexp.MustCompile(" +").ReplaceAllString(text, " ") }

func TestReportForPeople(t *testing.T) {
	r := theReport(t)
	if !r.Exact {
		t.Fatalf("differences %q", r.Ours.FirstDifferences)
	}
	var pipe, terminal, ascii bytes.Buffer
	for w, s := range map[*bytes.Buffer]style{
		&pipe: {}, &terminal: {terminal: true, colours: true, unicode: true}, &ascii: {terminal: true},
	} {
		if err := r.print(w, s); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range []string{
		"messages accounted for 6 8 6 ok",
		"entries booked 3 5 3 ok",
		"doubled: batch written again 0 1 0 ok",
		"doubled: repeat in later batch 0 1 0 ok",
		"lost 0 0 0 ok",
		"totals that are right 2 1 2 ok",
		"branches left prepared 0 - 0 ok",
		"billing verify no difference ok",
		"kill 1: half written; back after 0.25 s 0.50 s",
		"kill 2: written, not acknowledged; back after * 1.00 s 12.34 s",
		"* Kill 2 of the plain loop was not caught in time. It came at the nearest\n moment: acknowledged, going on.",
		"EUR had to be 99,999,999,999,999,999,999,999,999.999999999999",
		"USD had to be 1.000000000000",
		"plain loop 4.000000000000",
		"off by +3.000000000000",
		"this service 1.000000000000",
		"USD +3.000000000000",
		"- 1 entry once more, because a batch", "- 1 entry once more, because the repeat",
		"This service booked each of 3 entries once",
	} {
		if !strings.Contains(squeezed(pipe.String()), squeezed(line)) {
			t.Errorf("no line %q in\n%s", line, pipe.String())
		}
	}
	if strings.ContainsFunc(pipe.String(), func(r rune) bool { return r >= utf8.RuneSelf || r == 0x1b }) || ascii.String() != pipe.String() {
		t.Errorf("not plain in a pipe:\n%q", pipe.String())
	}
	for _, text := range []string{"\x1b[32m             3\x1b[0m\x1b[32m \u2714\x1b[0m\n", "\x1b[31m             5\x1b[0m", "\u2500\u2500\u2500"} {
		if !strings.Contains(terminal.String(), text) {
			t.Errorf("no %q on a terminal:\n%q", text, terminal.String())
		}
	}
	for line := range strings.Lines(pipe.String()) {
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > wide {
			t.Errorf("too long for a terminal: %q", line)
		}
	}
}

func TestReportOfAServiceThatIsWrong(t *testing.T) {
	r := theReport(t)
	a := rightAnswers(t)
	a.totals[1][0].NetAmount = "1.000000000000"
	a.rows, a.prepared = 4, 2
	r.Ours.books, r.Verify = compared(t, a), &verdict{Differences: 1}
	r.judge()
	var out bytes.Buffer
	if err := r.print(&out, style{}); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{" 4 NO\n", " 2 NO\n", "1 wrong NO\n", "THIS SERVICE WAS WRONG: 3 differences", "ledger rows: had to be 3, is 4", "caf\u00e9", "credit 0.000000000000 net\n  1.000000000000"} {
		if !strings.Contains(out.String(), text) {
			t.Errorf("no %q in\n%s", text, out.String())
		}
	}
	if strings.Contains(out.String(), "once, after the same kills") {
		t.Errorf("a wrong service is praised:\n%s", out.String())
	}
}

// Exit code 0 is for one case only.
func TestVerdict(t *testing.T) {
	exact := books{Exact: true}
	for _, c := range []struct {
		ours, plain books
		verify      bool
		want        bool
	}{
		{exact, books{}, true, true},
		{exact, books{}, false, false},
		{exact, exact, true, false},
		{exact, exact, false, false},
		{books{}, books{}, true, false},
		{books{}, books{}, false, false},
		{books{}, exact, true, false},
		{books{}, exact, false, false},
	} {
		r := report{Ours: result{books: c.ours}, Plain: result{books: c.plain}, Verify: &verdict{OK: c.verify}}
		if r.judge(); r.Exact != c.want {
			t.Errorf("%+v: %v", c, r.Exact)
		}
	}
}

// Each kind of error is counted as what it is.
func TestBooks(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(a *answers)
		want   books
	}{
		{"nothing", func(*answers) {}, books{Exact: true, Entries: 3, Messages: 6}},
		{"a batch again", func(a *answers) { a.rows += 2; a.records[1] = 9 }, books{Entries: 5, Messages: 9, WrittenAgain: 2}},
		{"a repeat", func(a *answers) { a.rows++; a.positions++ }, books{Entries: 4, Messages: 6, Repeats: 1}},
		{"a conflict", func(a *answers) { a.rows++; a.positions++; a.contents++ }, books{Entries: 4, Messages: 6, Conflicts: 1}},
		{"a bad one", func(a *answers) { a.rows++; a.positions++; a.contents++; a.ids++ }, books{Entries: 4, Messages: 6, Rejected: 1}},
		{"a loss", func(a *answers) { a.rows--; a.positions--; a.contents--; a.ids-- }, books{Entries: 2, Messages: 6, Lost: 1}},
		{"another reason", func(a *answers) { a.reasons["too_old"], a.reasons["invalid_json"] = 1, 0 }, books{Entries: 3, Messages: 6}},
		{"a reason too few", func(a *answers) { delete(a.reasons, "invalid_json") }, books{Entries: 3, Messages: 6}},
		{"a reason too many", func(a *answers) { a.reasons["too_old"] = 1 }, books{Entries: 3, Messages: 6}},
		{"a total", func(a *answers) { a.totals[0] = nil }, books{Entries: 3, Messages: 6}},
		{"a total of the ledger", func(a *answers) { a.ledger[0] = nil }, books{Entries: 3, Messages: 6}},
		{"a branch", func(a *answers) { a.prepared = 1 }, books{Entries: 3, Messages: 6}},
		{"a currency", func(a *answers) { delete(a.currencies, "USD") }, books{Entries: 3, Messages: 6}},
	} {
		a := rightAnswers(t)
		c.change(&a)
		b := compared(t, a)
		got := books{Exact: b.Exact, Entries: b.Entries, Messages: b.Messages, WrittenAgain: b.WrittenAgain, Repeats: b.Repeats, Conflicts: b.Conflicts, Rejected: b.Rejected, Lost: b.Lost}
		if !slices.Equal([]any{got.Exact, got.Entries, got.Messages, got.WrittenAgain, got.Repeats, got.Conflicts, got.Rejected, got.Lost},
			[]any{c.want.Exact, c.want.Entries, c.want.Messages, c.want.WrittenAgain, c.want.Repeats, c.want.Conflicts, c.want.Rejected, c.want.Lost}) {
			t.Errorf("%s: %+v", c.what, got)
		}
	}
}

func TestMoneyTooMuch(t *testing.T) {
	a := rightAnswers(t)
	s := a.currencies["USD"]
	if err := s.add("1", "-3"); err != nil {
		t.Fatal(err)
	}
	a.currencies["USD"] = s
	want := funds{Currency: "USD", Charges: "2.500000000000", Credits: "-3.500000000000", Net: "-1.000000000000",
		ChargesTooMuch: "1.000000000000", CreditsTooMuch: "3.000000000000", NetTooMuch: "-2.000000000000"}
	if b := compared(t, a); b.Exact || len(b.Money) != 2 || b.Money[1] != want {
		t.Errorf("%+v", b.Money)
	}
}
