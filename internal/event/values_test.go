package event

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestTime(t *testing.T) {
	tests := []struct{ in, want string }{ // want in UTC, "" for invalid
		{"2026-11-29T11:30:00Z", "2026-11-29T11:30:00Z"},
		{"2026-11-29T11:30:00.5Z", "2026-11-29T11:30:00.5Z"},
		{"2026-11-29T11:30:00.123456Z", "2026-11-29T11:30:00.123456Z"},
		{"2026-11-29T11:30:00.1234569Z", "2026-11-29T11:30:00.123456Z"},
		{"2026-12-31T23:59:59.999999999Z", "2026-12-31T23:59:59.999999Z"},
		{"2026-12-31T23:59:59.99999999999999999999999999999999Z", "2026-12-31T23:59:59.999999Z"},
		{"2026-11-29T10:30:00+05:45", "2026-11-29T04:45:00Z"},
		{"2026-11-29T23:30:00-00:00", "2026-11-29T23:30:00Z"},
		{"2026-11-29T23:30:00-08:00", "2026-11-30T07:30:00Z"},
		{"2026-11-29T00:00:00+23:59", "2026-11-28T00:01:00Z"},
		{"2028-02-29T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"2000-02-29T00:00:00Z", "2000-02-29T00:00:00Z"},
		{"2000-01-01T00:00:00Z", "2000-01-01T00:00:00Z"},
		{"2100-12-31T23:59:59.999999Z", "2100-12-31T23:59:59.999999Z"},
		{"2101-01-01T00:00:00+01:00", "2100-12-31T23:00:00Z"},
		{"1999-12-31T23:00:00-01:00", "2000-01-01T00:00:00Z"},
		{"2101-01-01T00:00:00Z", ""},
		{"2100-12-31T23:00:00-01:00", ""},
		{"1999-12-31T23:59:59Z", ""},
		{"2000-01-01T00:00:00+00:01", ""},
		{"2100-02-29T00:00:00Z", ""},
		{"2026-02-29T00:00:00Z", ""},
		{"2026-04-31T00:00:00Z", ""},
		{"2026-00-10T00:00:00Z", ""},
		{"2026-13-10T00:00:00Z", ""},
		{"2026-01-00T00:00:00Z", ""},
		{"2026-01-32T00:00:00Z", ""},
		{"2026-11-29T24:00:00Z", ""},
		{"2026-11-29T23:60:00Z", ""},
		{"2026-06-30T23:59:60Z", ""},
		{"2016-12-31T23:59:60Z", ""},
		{"2026-11-29T11:30:00", ""},
		{"2026-11-29T11:30Z", ""},
		{"2026-11-29T1:30:00Z", ""},
		{"2026-11-29T 1:30:00Z", ""},
		{"2026-11-29T+1:30:00Z", ""},
		{"2026-11-29T11:30:00,5Z", ""},
		{"2026-11-29T11:30:00.Z", ""},
		{"2026-11-29T11:30:00.5", ""},
		{"2026-11-29t11:30:00Z", ""},
		{"2026-11-29T11:30:00z", ""},
		{"2026-11-29 11:30:00Z", ""},
		{"2026-11-29_11:30:00Z", ""},
		{"2026-11-29T11:30:00+0545", ""},
		{"2026-11-29T11:30:00+05", ""},
		{"2026-11-29T11:30:00+5:45", ""},
		{"2026-11-29T11:30:00+24:00", ""},
		{"2026-11-29T11:30:00+05:60", ""},
		{"2026-11-29T11:30:00+05:45Z", ""},
		{"2026-11-29T11:30:00Z+05:45", ""},
		{"2026-11-29T11:30:00 +05:45", ""},
		{"2026-11-29T11:30:00\u221205:45", ""},
		{"2026-11-29T11:30:00ZZ", ""},
		{"2026-11-29T11:30:00Z ", ""},
		{" 2026-11-29T11:30:00Z", ""},
		{"2026-11-29T11:30:00Z[Europe/Berlin]", ""},
		{"2026-11-29T11:30:00UTC", ""},
		{"26-11-29T11:30:00Z", ""},
		{"02026-11-29T11:30:00Z", ""},
		{"+2026-11-29T11:30:00Z", ""},
		{"-2026-11-29T11:30:00Z", ""},
		{"2026-333T11:30:00Z", ""},
		{"2026-W48-7T11:30:00Z", ""},
		{"20261129T113000Z", ""},
		{"2026-11-29", ""},
		{"2026-11-29T", ""},
		{"1970-01-01T00:00:00Z", ""},
		{"1764415800", ""},
		{"Sun, 29 Nov 2026 11:30:00 GMT", ""},
		{"٢٠٢٦-11-29T11:30:00Z", ""},
		{"", ""},
	}
	for _, tt := range tests {
		got, ok := parseTime([]byte(tt.in))
		if !ok {
			if tt.want != "" {
				t.Errorf("%s: invalid, want %s", tt.in, tt.want)
			}
			continue
		}
		if s := time.UnixMicro(got).UTC().Format(time.RFC3339Nano); s != tt.want {
			t.Errorf("%s = %s, want %q", tt.in, s, tt.want)
		}
	}
	// every day there is
	day := time.Date(2000, 1, 1, 12, 0, 0, 0, time.UTC)
	for ; day.Year() <= 2100; day = day.AddDate(0, 0, 1) {
		if got, ok := parseTime(day.AppendFormat(nil, time.RFC3339)); !ok || got != day.UnixMicro() {
			t.Fatalf("%s = %d, %v", day, got, ok)
		}
	}
}

func TestAmountAsNumber(t *testing.T) {
	c := testConfig()
	c.AmountAsNumber = true
	d := NewDecoder(c)
	for literal, want := range map[string]string{
		`1.5`: "", `0`: "", `-0`: "", `9007199254740993.000000000001`: "", `"1.5"`: "",
		`1e5`: "invalid_amount", `1E0`: "invalid_amount", `-1`: "wrong_sign", `1.0000000000000`: "scale_exceeded",
		`1` + strings.Repeat("0", 26): "amount_out_of_range", `true`: "amount_not_string", `[1]`: "amount_not_string",
		`01`: "invalid_json", `null`: "missing_field",
	} {
		expect(t, d, literal, structuredRecord(dataWith("amount", literal)), want)
	}
	expect(t, d, "quantity", structuredRecord(dataWith("quantity", "1")), "invalid_field")
	a := expect(t, d, "number", structuredRecord(dataWith("amount", "9007199254740993.000000000001")), "")
	b := expect(t, d, "string", structuredRecord(dataWith("amount", `"9007199254740993.000000000001"`)), "")
	if a.Key != b.Key || a.Content != b.Content || a.Amount.String() != "9007199254740993.000000000001" {
		t.Errorf("%v and %v", a, b)
	}
}

// Fields that alias the record, and those that don't, survive later messages.
func TestOwnership(t *testing.T) {
	d := NewDecoder(testConfig())
	r := structuredRecord(envelopeWith("id", `"\u0061-1"`, "source", `"\/svc"`, "subject", `"plain"`))
	var e Event
	if rej := d.Decode(r, &e); rej != nil {
		t.Fatal(rej)
	}
	kept := e
	for range 10 {
		if rej := d.Decode(structuredRecord(envelopeWith("id", `"\u0062-2"`, "source", `"\/other"`, "subject", `"other"`)), &e); rej != nil {
			t.Fatal(rej)
		}
	}
	if string(kept.ID) != "a-1" || string(kept.Source) != "/svc" || string(kept.Account) != "plain" {
		t.Errorf("%s %s %s", kept.ID, kept.Source, kept.Account)
	}
	if e.SKU != nil || e.Unit != nil || e.Note != nil {
		t.Error("absent fields are not nil")
	}
	if i := bytes.Index(r.Value, []byte("plain")); &kept.Account[0] != &r.Value[i] {
		t.Error("a plain text was copied")
	}
}

// Many keys in one object take time in proportion to their number: comparing
// each with each would keep this test busy for minutes.
func TestManyKeys(t *testing.T) {
	var b strings.Builder
	for i := 0; b.Len() < 900_000; i++ {
		b.WriteString(`"k`)
		b.WriteString(strings.Repeat("x", i%3))
		b.WriteString(time.Duration(i).String())
		b.WriteString(`":[{}],`)
	}
	d := NewDecoder(testConfig())
	value := strings.TrimSuffix(envelopeWith(), "}") + "," + b.String()
	e := expect(t, d, "all different", structuredRecord(value+`"last":1}`), "")
	expect(t, d, "last is the first again", structuredRecord(value+`"k0s":1}`), "duplicate_key")
	if e.UnknownFields < 40_000 {
		t.Errorf("%d unknown fields", e.UnknownFields)
	}
	var headers []Header
	for i := range 50_000 {
		headers = append(headers, Header{"ce_x" + time.Duration(i).String(), nil})
	}
	expect(t, d, "many headers", &Record{Headers: headers, Value: []byte(envelopeWith())}, "")
	expect(t, d, "ordinary again", structuredRecord(envelopeWith()), "")
}

func TestNoAllocation(t *testing.T) {
	records := benchRecords()
	records["extensions"] = binaryWith(goodData, "ce_traceparent", "00-1-1-01", "ce_tracestate", "x", "trace", "y")
	records["unknown"] = structuredRecord(dataWith("labels", `{"a":"ü","b":{"c":[1,2.5e3,true,null]}}`, "x", `"日本"`))
	for name, r := range records {
		d := NewDecoder(testConfig())
		var e Event
		if rej := d.Decode(r, &e); rej != nil {
			t.Fatalf("%s: %s", name, rej)
		}
		if n := testing.AllocsPerRun(200, func() { d.Decode(r, &e) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// What was stored before must be found again: the hashes are a format. The
// values were computed by other means from its description.
func TestHashesStayTheSame(t *testing.T) {
	d := NewDecoder(testConfig())
	e := expect(t, d, "fixed", benchRecords()["structured"], "")
	const key, content = "ec2caaef2010481961e9064c938037cc", "3d158671258f3485"
	if got := hexOf(e.Key[:]); got != key {
		t.Errorf("key %s, want %s", got, key)
	}
	if got := hexOf(e.Content[:]); got != content {
		t.Errorf("content %s, want %s", got, content)
	}
}

// What the decoder has learned of the order of keys makes no difference: the
// keys come in any order, with and without blanks, some twice, some unknown.
func TestLearnedOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	members := func(text string, more ...string) string {
		list := append(strings.Split(strings.Trim(text, "{}"), ","), more...)
		r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		return "{" + strings.Join(list, []string{",", ", ", "\n,\t"}[r.IntN(3)]) + "}"
	}
	extra := []string{`"id":"again"`, `"Unit":"x"`, `"unit":null`, `"x":{"id":1}`, `"amount":"1"`, `"idx":1`, `"i":2`, `"data" :7`}
	learned := NewDecoder(testConfig())
	events := 0
	for range 20_000 {
		var more []string
		for range r.IntN(3) {
			more = append(more, extra[r.IntN(len(extra))])
		}
		data := members(`{"amount":"1.5","currency":"EUR","sku":"s","unit":"u","quantity":"2"}`, more...)
		for len(more) > 0 && r.IntN(2) == 0 {
			more = more[1:]
		}
		value := members(`{"specversion":"1.0","id":"e","source":"/s","type":"com.example.billing.charge.v1","subject":"a","time":"2026-11-29T11:30:00Z"}`, append(more, `"data":`+data)...)
		var got, want Event
		a, b := learned.Decode(&Record{Value: []byte(value)}, &got), NewDecoder(testConfig()).Decode(&Record{Value: []byte(value)}, &want)
		if !reflect.DeepEqual(a, b) || a == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("%s\n%v %+v, a new decoder says\n%v %+v", value, a, got, b, want)
		}
		if a == nil {
			events++
		}
	}
	if events < 3_000 || events > 19_000 {
		t.Errorf("%d of 20000 are events", events)
	}
}
