package txsink

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"unicode/utf8"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/event"
	"billing/internal/money"
)

func newStatement() *statement { return &statement{hash: sha256.New()} }

func amount(t *testing.T, s string) money.Amount {
	t.Helper()
	a, err := money.Parse([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Every kind of value, as SQL and as the digest sees it.
func TestValuesAreWrittenTwice(t *testing.T) {
	var sum money.Sum
	sum.Sub(amount(t, "12.5"))
	for name, c := range map[string]struct {
		write    func(*statement)
		sql, enc string // enc without the length
	}{
		"bytes":       {func(s *statement) { s.bytes([]byte("a'\\\x00\xff")) }, "X'61275c00ff'", "a'\\\x00\xff"},
		"empty bytes": {func(s *statement) { s.bytes(nil) }, "X''", ""},
		"text":        {func(s *statement) { s.text("é; --") }, "X'c3a93b202d2d'", "é; --"},
		"optional":    {func(s *statement) { s.optional([]byte{}) }, "X''", ""},
		"int":         {func(s *statement) { s.int(-9223372036854775808) }, "-9223372036854775808", "-9223372036854775808"},
		"amount":      {func(s *statement) { s.amount(amount(t, "-0.5")) }, "-0.500000000000", "-0.500000000000"},
		"zero":        {func(s *statement) { s.amount(amount(t, "-0")) }, "0.000000000000", "0.000000000000"},
		"sum":         {func(s *statement) { s.sum(sum) }, "-12.500000000000", "-12.500000000000"},
		"micros":      {func(s *statement) { s.micros(1_772_366_400_000_001) }, "'2026-03-01 12:00:00.000001'", "2026-03-01 12:00:00.000001"},
		"seconds":     {func(s *statement) { s.seconds(1_772_366_400_000_000) }, "'2026-03-01 12:00:00'", "2026-03-01 12:00:00"},
		"epoch":       {func(s *statement) { s.seconds(0) }, "'1970-01-01 00:00:00'", "1970-01-01 00:00:00"},
	} {
		s := newStatement()
		s.start("VALUES ")
		s.row('T')
		c.write(s)
		s.end()
		if got, want := string(s.sql), "VALUES ("+c.sql+")"; got != want {
			t.Errorf("%s: SQL %s, want %s", name, got, want)
		}
		want := append([]byte{'T', 0, 0, 0, byte(len(c.enc))}, c.enc...)
		if !bytes.Equal(s.enc, want) {
			t.Errorf("%s: encoded %q, want %q", name, s.enc, want)
		}
		if sum := sha256.Sum256(want); !bytes.Equal(s.hash.Sum(nil), sum[:]) {
			t.Errorf("%s: the digest has another encoding", name)
		}
	}
	s := newStatement()
	s.row('T')
	s.optional(nil)
	if want := "T\xff\xff\xff\xff"; string(s.sql) != "(NULL," || string(s.enc) != want {
		t.Errorf("NULL: %s, %q, want %q", s.sql, s.enc, want)
	}
}

func TestWindowsAreFormattedOnceAndRight(t *testing.T) {
	s := newStatement()
	s.start("")
	for _, us := range []int64{0, 0, 3_600_000_000, 3_600_000_000, 0} {
		s.seconds(us)
	}
	if want := strings.Repeat("'1970-01-01 00:00:00',", 2) + strings.Repeat("'1970-01-01 01:00:00',", 2) + "'1970-01-01 00:00:00',"; string(s.sql) != want {
		t.Errorf("got %s", s.sql)
	}
}

func TestNames(t *testing.T) {
	set := checkpoint.UUID{1}
	lane := checkpoint.Lane{Topic: "orders", Partition: 7}
	seen := map[string]bool{}
	for _, name := range []string{
		lockName(set, 0, lane), lockName(checkpoint.UUID{2}, 0, lane), lockName(set, 1, lane),
		lockName(set, 0, checkpoint.Lane{Topic: "orders", Partition: 8}), lockName(set, 0, checkpoint.Lane{Topic: "orders7"}),
	} {
		if len(name) > 64 || !strings.HasPrefix(name, "billing:") || seen[name] {
			t.Errorf("lock %q: too long, not ours, or given twice", name)
		}
		seen[name] = true
	}
	if once, again := lockName(set, 0, lane), lockName(set, 0, lane); once != again {
		t.Error("a lane's lock has two names")
	}
	if got, want := xid("exb1", 12), "X'"+hex.EncodeToString([]byte("exb1"))+"',X'"+hex.EncodeToString([]byte("s12"))+"'"; got != want {
		t.Errorf("xid %s, want %s", got, want)
	}
	if len(bqual(maxShards-1)) > 64 {
		t.Errorf("bqual %q", bqual(maxShards-1))
	}
}

func TestHeadersThatDoNotFitAreCounted(t *testing.T) {
	r := &aggregate.RejectRow{}
	if got := headersText(nil, r); len(got) != 0 {
		t.Errorf("no headers: %q", got)
	}
	for range 4 {
		r.Headers = append(r.Headers, event.Header{Key: "k", Value: []byte(strings.Repeat("v", maxHeaders/3))})
	}
	got := headersText(nil, r)
	if !bytes.HasSuffix(got, []byte("\"\n+2\n")) || len(got) > maxHeaders+16 {
		t.Errorf("%d bytes, ending in %q", len(got), got[len(got)-8:])
	}
	// A header that looks like the last line is quoted.
	if got := string(headersText(nil, &aggregate.RejectRow{Headers: []event.Header{{Key: "+2\n", Value: []byte("null")}}})); got != "\"+2\\n\"=\"null\"\n" {
		t.Errorf("got %q", got)
	}
}

func TestDetailIsText(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "",
		"plain":                            "plain",
		"a\xffb":                           "a\uFFFDb",
		strings.Repeat("ü", maxDetail):     strings.Repeat("ü", maxDetail),
		strings.Repeat("ü", maxDetail+1):   strings.Repeat("ü", maxDetail-1) + "…",
		strings.Repeat("x\xff", maxDetail): strings.Repeat("x\uFFFD", maxDetail/2-1) + "x…",
	} {
		got := detailText(in)
		if got != want || !utf8.ValidString(got) || utf8.RuneCountInString(got) > maxDetail {
			t.Errorf("%.20q: %.20q of %d characters", in, got, utf8.RuneCountInString(got))
		}
	}
}

func TestDigestNeedsTheOneBefore(t *testing.T) {
	before := make([]byte, 32)
	for name, c := range map[string]struct {
		b  checkpoint.Branch
		ok bool
	}{
		"first":                {checkpoint.Branch{Seq: 1}, true},
		"first with a digest":  {checkpoint.Branch{Seq: 1, PrevDigest: before}, false},
		"second":               {checkpoint.Branch{Seq: 2, PrevDigest: before}, true},
		"second without":       {checkpoint.Branch{Seq: 2}, false},
		"second with half one": {checkpoint.Branch{Seq: 2, PrevDigest: before[:16]}, false},
	} {
		if err := chain(sha256.New(), &c.b); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
