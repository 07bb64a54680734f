package event

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf16"
)

func hexOf(b []byte) string { return hex.EncodeToString(b) }

// spell writes s as a JSON string in one of the many ways there are.
func spell(r *rand.Rand, s string) string {
	var b strings.Builder
	b.WriteByte('"')
	escapeAll := r.IntN(4) == 0
	for _, c := range s {
		switch {
		case escapeAll || c == '"' || c == '\\' || r.IntN(20) == 0:
			for _, u := range utf16.Encode([]rune{c}) {
				if r.IntN(2) == 0 {
					fmt.Fprintf(&b, `\u%04x`, u)
				} else {
					fmt.Fprintf(&b, `\u%04X`, u)
				}
			}
		case c == '/' && r.IntN(2) == 0:
			b.WriteString(`\/`)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

type member struct{ name, json string }

// write makes an object of members in any order, with any white space.
func write(r *rand.Rand, members []member) string {
	ws := func() string { return []string{"", "", "", " ", "\n", "\t", "\r\n  "}[r.IntN(7)] }
	members = append([]member(nil), members...)
	r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	var b strings.Builder
	b.WriteString("{" + ws())
	for i, m := range members {
		if i > 0 {
			b.WriteString("," + ws())
		}
		b.WriteString(spell(r, m.name) + ws() + ":" + ws() + m.json + ws())
	}
	b.WriteString("}")
	return b.String()
}

func pick(r *rand.Rand, from ...string) string { return from[r.IntN(len(from))] }

// One event has one key and one content hash in every mode and spelling.
func TestModesAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	d := NewDecoder(testConfig())
	for range 5000 {
		id := pick(r, "e1", "é-1", "日本", "😀", " x ", `q"q`, `b\b`, "a%20b", strings.Repeat("x", 255))
		source := pick(r, "/svc/api", "urn:x:y", "https://example.com/é?a=b")
		account := pick(r, "acct-1", "Ab", "ab", "a\u0301b", "áb")
		at := pick(r, "2026-11-29T11:30:00Z", "2026-11-29T13:30:00.0000009+02:00", "2026-11-29T11:30:00.000000-00:00")
		typ, amount := charge, pick(r, "1.5", "1.50", "1.500000000000")
		if r.IntN(2) == 0 {
			typ, amount = "com.example.billing.credit.v1", "-"+amount
		}
		data := []member{{"amount", spell(r, amount)}, {"currency", spell(r, "USD")}}
		sku := r.IntN(2) == 0
		if sku {
			data = append(data, member{"sku", spell(r, "vm.标准")}, member{"quantity", spell(r, pick(r, "2", "2.0"))}, member{"unit", spell(r, "hour")})
		} else if r.IntN(2) == 0 {
			data = append(data, member{"sku", "null"}, member{"quantity", "null"}, member{"unit", "null"}, member{"corrects", "null"})
		}
		if r.IntN(2) == 0 {
			data = append(data, member{"reason", spell(r, "because")}, member{"labels", `{"a":{"b":[1]}}`})
		}
		attrs := []member{{"specversion", spell(r, "1.0")}, {"id", spell(r, id)}, {"source", spell(r, source)},
			{"type", spell(r, typ)}, {"subject", spell(r, account)}, {"time", spell(r, at)}, {"data", write(r, data)}}
		if r.IntN(2) == 0 {
			attrs = append(attrs, member{"traceparent", `"00-1"`}, member{"datacontenttype", spell(r, "application/json")})
		}
		headers := headerList("ce_specversion", "1.0", "ce_id", id, "ce_source", source, "ce_type", typ, "ce_subject", account, "ce_time", at, "content-type", "application/json", "ce_traceparent", "00-2")
		r.Shuffle(len(headers), func(i, j int) { headers[i], headers[j] = headers[j], headers[i] })

		var first *Event
		for i, rec := range []*Record{
			structuredRecord(write(r, attrs)),
			{Value: []byte(write(r, attrs))},
			{Headers: headers, Value: []byte(write(r, data))},
		} {
			e := expect(t, d, fmt.Sprintf("mode %d: %s", i, rec.Value), rec, "")
			if first == nil {
				first = e
				continue
			}
			if e.Key != first.Key || e.Content != first.Content || string(e.ID) != id || string(e.Source) != source ||
				string(e.Account) != account || e.Time != first.Time || e.Amount != first.Amount || e.Quantity != first.Quantity || e.HasQuantity != sku {
				t.Fatalf("mode %d: %+v\nfirst  : %+v", i, e, first)
			}
		}
	}
}

// Each part of the content changes the content hash and not the key; id and
// source change the key; nothing else changes either.
func TestWhatIsHashed(t *testing.T) {
	d := NewDecoder(testConfig())
	full := func(data, attrs []string) *Event {
		members := []string{"amount", `"0"`, "currency", `"USD"`, "sku", `"s"`, "quantity", `"1"`, "unit", `"u"`}
		return expect(t, d, "variant", structuredRecord(envelopeWith(append([]string{"data", objectWith(members, data)}, attrs...)...)), "")
	}
	base := full(nil, nil)
	contents := map[[8]byte]string{base.Content: "base"}
	for _, v := range []struct {
		name        string
		data, attrs []string
	}{
		{"amount", []string{"amount", `"0.000000000001"`}, nil},
		{"currency", []string{"currency", `"EUR"`}, nil},
		{"sku", []string{"sku", `"S"`}, nil},
		{"no sku", []string{"sku", ``}, nil},
		{"quantity", []string{"quantity", `"1.1"`}, nil},
		{"no quantity", []string{"quantity", ``}, nil},
		{"quantity zero", []string{"quantity", `"0"`}, nil},
		{"unit", []string{"unit", `"v"`}, nil},
		{"no unit", []string{"unit", ``}, nil},
		{"sku and unit moved", []string{"sku", `"su"`, "unit", ``}, nil},
		{"unit and sku moved", []string{"sku", ``, "unit", `"su"`}, nil},
		{"subject", nil, []string{"subject", `"acct-2"`}},
		{"time", nil, []string{"time", `"2026-11-29T11:30:00.000001Z"`}},
		{"type", nil, []string{"type", `"com.example.billing.credit.v1"`}},
	} {
		e := full(v.data, v.attrs)
		if other, ok := contents[e.Content]; ok {
			t.Errorf("%s has the content of %s", v.name, other)
		}
		contents[e.Content] = v.name
		if e.Key != base.Key {
			t.Errorf("%s changes the key", v.name)
		}
	}
	for _, v := range []struct{ data, attrs []string }{
		{[]string{"reason", `"r"`}, nil},
		{[]string{"labels", `{"a":1}`}, nil},
		{[]string{"amount", `"-0.00"`}, nil},
		{[]string{"quantity", `"1.000"`}, nil},
		{[]string{"other", `1`}, []string{"other", `1`}},
		{nil, []string{"dataschema", `"x"`, "datacontenttype", `"text/json"`}},
		{nil, []string{"time", `"2026-11-29T11:30:00.0000009Z"`}},
		{nil, []string{"time", `"2026-11-29T12:30:00+01:00"`}},
	} {
		if e := full(v.data, v.attrs); e.Content != base.Content || e.Key != base.Key {
			t.Errorf("%v changes a hash", v)
		}
	}
	keys := map[[16]byte]bool{base.Key: true}
	for _, v := range [][2]string{{"a", "b-c"}, {"a-b", "c"}, {"a-", "b-c"}, {"ab", "c"}, {"a", "bc"}, {"A", "bc"}, {"a ", "bc"}, {"e1", "/svc/api"}} {
		e := full(nil, []string{"source", `"` + v[0] + `"`, "id", `"` + v[1] + `"`})
		if keys[e.Key] {
			t.Errorf("%v has a key that was there", v)
		}
		keys[e.Key] = true
		if e.Content != base.Content {
			t.Errorf("%v changes the content", v)
		}
	}
}

// A message with several faults gets one reason, in whichever order they stand.
func TestReasonIsIndependentOfOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	d := NewDecoder(testConfig())
	envelopeFaults := [][]member{
		{{"id", `""`}}, {{"id", `null`}}, {{"source", `5`}}, {{"type", `"x"`}}, {{"time", `"x"`}}, {{"subject", "\"\xff\""}},
		{{"specversion", `"0.3"`}}, {{"data_base64", `"x"`}}, {{"x", `{"a":1,"a":2}`}}, {{"Id", `1`}}, {{"datacontenttype", `"a/b"`}},
		{{"x", `"\ud800"`}}, {{"y", `1`}, {"y", `1`}},
	}
	dataFaults := [][]member{
		{{"amount", `1`}}, {{"amount", `"x"`}}, {{"amount", `"-1"`}}, {{"amount", `null`}}, {{"currency", `"x"`}}, {{"currency", `1`}},
		{{"sku", `""`}}, {{"quantity", `"-1"`}}, {{"labels", `1`}}, {{"corrects", `1`}}, {{"Amount", `"1"`}}, {{"unit", `"\u0000"`}},
	}
	n := 3000
	if testing.Short() {
		n = 500
	}
	for range n {
		build := func(good []member, faults [][]member) []member {
			have := map[string]bool{}
			var out []member
			for range r.IntN(4) {
				for _, m := range faults[r.IntN(len(faults))] {
					out = append(out, m)
					have[m.name] = true
				}
			}
			for _, m := range good {
				if !have[m.name] {
					out = append(out, m)
				}
			}
			return out
		}
		data := build([]member{{"amount", `"1"`}, {"currency", `"USD"`}}, dataFaults)
		attrs := build([]member{{"specversion", `"1.0"`}, {"id", `"1"`}, {"source", `"s"`}, {"type", `"` + charge + `"`}, {"subject", `"a"`}, {"time", `"2026-11-29T11:30:00Z"`}}, envelopeFaults)
		want := ""
		for i := range 6 {
			value := write(r, append(attrs, member{"data", write(r, data)}))
			var e Event
			got := "good"
			if rej := d.Decode(structuredRecord(value), &e); rej != nil {
				got = rej.Reason.String()
			}
			if i == 0 {
				want = got
			} else if got != want {
				t.Fatalf("%s, but %s before, for %s", got, want, value)
			}
			agree(t, d, []byte(value), structured)
		}
	}
}
