package audit

import (
	"database/sql"
	"slices"
	"testing"
	"time"
)

func TestMicros(t *testing.T) {
	for text, want := range map[string]time.Time{
		"2026-03-01 12:00:00.000001": time.Date(2026, 3, 1, 12, 0, 0, 1000, time.UTC),
		"1970-01-01 00:00:00.000000": time.UnixMicro(0),
		"2099-12-31 23:59:59.999999": time.Date(2099, 12, 31, 23, 59, 59, 999999000, time.UTC),
	} {
		if us, ok := micros([]byte(text)); !ok || us != want.UnixMicro() {
			t.Errorf("%s: %d, %t, want %d", text, us, ok, want.UnixMicro())
		}
	}
	for _, text := range []string{"", "2026-03-01 12:00:00", "2026-03-01T12:00:00.000001", "2026-03-01 12:00:00.00000x", "2026-03-01 12:00:00.0000011"} {
		if us, ok := micros([]byte(text)); ok {
			t.Errorf("%q is taken for %d", text, us)
		}
	}
}

func TestRowInt(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "17": 17, "-5": -5, "9223372036854775807": 1<<63 - 1, "-9223372036854775808": -1 << 63} {
		if got := (row{sql.RawBytes(text)}).int(0); got != want {
			t.Errorf("%s: %d", text, got)
		}
	}
}

func TestRowEncode(t *testing.T) {
	got := row{sql.RawBytes("ab"), nil, sql.RawBytes{}}.encode(nil, 'L')
	if want := "L\x00\x00\x00\x02ab\xff\xff\xff\xff\x00\x00\x00\x00"; string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestMarksAreReadAsWritten(t *testing.T) {
	const from = 1000
	marks := []mark{
		{tag: 'L', offset: 1000, crc: 1}, {tag: 'L', offset: 1001, crc: 0xffffffff}, {tag: 'L', offset: 5_000_000_000, crc: 3},
		{tag: 'R', offset: 1002, crc: 4}, {tag: 'R', offset: 1500, crc: 0},
		{tag: 'S', currency: "EUR", crc: 6}, {tag: 'S', currency: "USD", crc: 7},
	}
	var enc []byte
	before := mark{}
	for _, m := range marks {
		enc = appendMark(enc, m, before, from)
		before = m
	}
	got, err := parseMarks(enc, from)
	if err != nil || !slices.Equal(got, marks) {
		t.Errorf("%v, %v", got, err)
	}
	for n := range len(enc) {
		if got, err := parseMarks(enc[:n], from); err == nil && !slices.Equal(got, marks[:len(got)]) {
			t.Errorf("cut at %d: %v", n, got)
		}
	}
	for _, bad := range []string{"X\x00\x00\x00\x00\x00", "L", "L\x80", "L\x00abc", "S\x05EU", "S\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01E"} {
		if got, err := parseMarks([]byte(bad), 0); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}

// Where offset_from was changed, the marks are as far from the rows.
func TestMarksThatAreShifted(t *testing.T) {
	marks := []mark{{tag: 'L', offset: 7, crc: 1}, {tag: 'L', offset: 9, crc: 2}, {tag: 'R', offset: 8, crc: 3}, {tag: 'S', currency: "EUR", crc: 4}}
	for name, c := range map[string]struct {
		rows []mark
		want int64
	}{
		"not at all":           {marks, 0},
		"no rows":              {nil, 0},
		"only sums":            {marks[3:], 0},
		"forth":                {[]mark{{tag: 'L', offset: 17, crc: 1}}, 10},
		"back":                 {[]mark{{tag: 'R', offset: 6, crc: 3}}, -2},
		"by a row unchanged":   {[]mark{{tag: 'L', offset: 8, crc: 5}, {tag: 'L', offset: 10, crc: 2}}, 1},
		"by a row of its kind": {[]mark{{tag: 'R', offset: 8, crc: 1}}, 0},
	} {
		if got := shifted(marks, c.rows); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{"acme": "acme", "": `""`, "a b": "a b", "a ": `"a "`, " a": `" a"`, "a\nb": `"a\nb"`, "é": `"\u00e9"`, `q"`: `"q\""`} {
		if got := Printable(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
