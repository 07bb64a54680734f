package event

import (
	"maps"
	"strings"
	"testing"
)

const (
	ctStructured = "application/cloudevents+json"
	charge       = "com.example.billing.charge.v1"
)

// envelopeWith is a good structured value whose attributes are replaced by
// pairs of name and JSON text; an empty text removes one. Others are appended.
func envelopeWith(pairs ...string) string {
	attrs := []string{"specversion", `"1.0"`, "id", `"e1"`, "source", `"/svc/api"`, "type", `"` + charge + `"`,
		"subject", `"acct-1"`, "time", `"2026-11-29T11:30:00Z"`, "data", `{"amount":"1.5","currency":"USD"}`}
	return objectWith(attrs, pairs)
}

// dataWith is the same for data, inside a good envelope.
func dataWith(pairs ...string) string {
	return envelopeWith("data", objectWith([]string{"amount", `"1.5"`, "currency", `"USD"`}, pairs))
}

func objectWith(members, pairs []string) string {
	for i := 0; i < len(pairs); i += 2 {
		found := false
		for j := 0; j < len(members); j += 2 {
			if members[j] == pairs[i] {
				members[j+1], found = pairs[i+1], true
				break
			}
		}
		if !found {
			members = append(members, pairs[i], pairs[i+1])
		}
	}
	var parts []string
	for j := 0; j < len(members); j += 2 {
		if members[j+1] != "" {
			parts = append(parts, `"`+members[j]+`":`+members[j+1])
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func structuredRecord(value string) *Record {
	return &Record{Headers: []Header{{"content-type", []byte(ctStructured)}}, Value: []byte(value)}
}

const nul = "\x00null" // a null header, and one to leave out
const gone = "\x00gone"

// binaryWith is a good binary record whose headers are replaced by pairs.
func binaryWith(value string, pairs ...string) *Record {
	hs := []string{"ce_specversion", "1.0", "ce_id", "e1", "ce_source", "/svc/api", "ce_type", charge,
		"ce_subject", "acct-1", "ce_time", "2026-11-29T11:30:00Z", "content-type", "application/json"}
	for i := 0; i < len(pairs); i += 2 {
		found := false
		for j := 0; j < len(hs); j += 2 {
			if hs[j] == pairs[i] {
				hs[j+1], found = pairs[i+1], true
			}
		}
		if !found {
			hs = append(hs, pairs[i], pairs[i+1])
		}
	}
	return &Record{Headers: headerList(hs...), Value: []byte(value)}
}

func headerList(kv ...string) (hs []Header) {
	for i := 0; i < len(kv); i += 2 {
		switch kv[i+1] {
		case gone:
		case nul:
			hs = append(hs, Header{kv[i], nil})
		default:
			hs = append(hs, Header{kv[i], []byte(kv[i+1])})
		}
	}
	return hs
}

const goodData = `{"amount":"1.5","currency":"USD"}`

// TestFields: one fault each in a structured message. "" is a good message.
func TestFields(t *testing.T) {
	str := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	tests := []struct{ name, value, want string }{
		{"good", envelopeWith(), ""},
		{"white space", " \t\r\n" + strings.ReplaceAll(envelopeWith(), ":\"", " : \n\"") + "\n ", ""},

		{"id of 255 bytes", envelopeWith("id", str(255)), ""},
		{"id of 256 bytes", envelopeWith("id", str(256)), "invalid_field"},
		{"id of 128 two-byte letters", envelopeWith("id", `"`+strings.Repeat("é", 128)+`"`), "invalid_field"},
		{"id of 255 bytes in escapes", envelopeWith("id", `"`+strings.Repeat(`\u0078`, 255)+`"`), ""},
		{"id of 256 bytes in escapes", envelopeWith("id", `"`+strings.Repeat(`\u0078`, 256)+`"`), "invalid_field"},
		{"id of 63 pairs and three", envelopeWith("id", `"`+strings.Repeat(`\ud83d\ude00`, 63)+`abc"`), ""},
		{"id of 64 pairs", envelopeWith("id", `"`+strings.Repeat(`\ud83d\ude00`, 64)+`"`), "invalid_field"},
		{"id empty", envelopeWith("id", `""`), "invalid_field"},
		{"id blank is kept", envelopeWith("id", `" "`), ""},
		{"id null", envelopeWith("id", `null`), "missing_field"},
		{"id absent", envelopeWith("id", ``), "missing_field"},
		{"id number", envelopeWith("id", `7`), "invalid_field"},
		{"id object", envelopeWith("id", `{}`), "invalid_field"},
		{"id bool", envelopeWith("id", `true`), "invalid_field"},
		{"id with newline", envelopeWith("id", `"a\nb"`), "invalid_field"},
		{"id with raw newline", envelopeWith("id", "\"a\nb\""), "invalid_json"},
		{"id with nul", envelopeWith("id", `"a\u0000"`), "invalid_field"},
		{"id with DEL", envelopeWith("id", "\"a\x7f\""), "invalid_field"},
		{"id with escaped DEL", envelopeWith("id", `"a\u007f"`), "invalid_field"},
		{"id with C1", envelopeWith("id", "\"a\u0085\""), "invalid_field"},
		{"id with escaped C1", envelopeWith("id", `"a\u009F"`), "invalid_field"},
		{"id with no-break space", envelopeWith("id", "\"a\u00a0\""), ""},
		{"id with line separator", envelopeWith("id", "\"a\u2028\""), ""},
		{"id with zero-width joiner", envelopeWith("id", "\"a\u200d\""), ""},
		{"id with the replacement character", envelopeWith("id", "\"a\ufffd\""), ""},
		{"id with a noncharacter", envelopeWith("id", "\"a\uffff\""), ""},
		{"source of 512 bytes", envelopeWith("source", str(512)), ""},
		{"source of 513 bytes", envelopeWith("source", str(513)), "invalid_field"},
		{"source empty", envelopeWith("source", `""`), "invalid_field"},
		{"source absent", envelopeWith("source", ``), "missing_field"},
		{"source escaped slashes", envelopeWith("source", `"\/svc\/api"`), ""},
		{"subject of 255 bytes", envelopeWith("subject", str(255)), ""},
		{"subject of 256 bytes", envelopeWith("subject", str(256)), "invalid_field"},
		{"subject empty", envelopeWith("subject", `""`), "invalid_field"},
		{"subject null", envelopeWith("subject", `null`), "missing_field"},
		{"subject with tab", envelopeWith("subject", `"\t"`), "invalid_field"},

		{"credit", envelopeWith("type", `"com.example.billing.credit.v1"`, "data", `{"amount":"-1","currency":"USD"}`), ""},
		{"type without prefix", envelopeWith("type", `"charge.v1"`), "unknown_type"},
		{"type of other case", envelopeWith("type", `"com.example.billing.Charge.v1"`), "unknown_type"},
		{"type longer", envelopeWith("type", `"`+charge+`0"`), "unknown_type"},
		{"type with space", envelopeWith("type", `"`+charge+` "`), "unknown_type"},
		{"type v2", envelopeWith("type", `"com.example.billing.charge.v2"`), "unknown_type"},
		{"type prefix only", envelopeWith("type", `"com.example.billing."`), "unknown_type"},
		{"type escaped", envelopeWith("type", `"com.example.billing.\u0063harge.v1"`), ""},
		{"type correction", envelopeWith("type", `"com.example.billing.correction.v1"`), "unknown_type"},
		{"type reversal, which has no amount", envelopeWith("type", `"com.example.billing.reversal.v1"`, "data", `{"corrects":{"id":"x"}}`), "unknown_type"},
		{"type empty", envelopeWith("type", `""`), "invalid_field"},
		{"type of 256 bytes", envelopeWith("type", str(256)), "invalid_field"},
		{"type null", envelopeWith("type", `null`), "missing_field"},
		{"type number", envelopeWith("type", `1`), "invalid_field"},

		{"specversion 1", envelopeWith("specversion", `"1"`), "unsupported_format"},
		{"specversion 1.0.0", envelopeWith("specversion", `"1.0.0"`), "unsupported_format"},
		{"specversion 1.1", envelopeWith("specversion", `"1.1"`), "unsupported_format"},
		{"specversion number", envelopeWith("specversion", `1.0`), "unsupported_format"},
		{"specversion empty", envelopeWith("specversion", `""`), "unsupported_format"},
		{"specversion null", envelopeWith("specversion", `null`), "missing_field"},
		{"specversion absent", envelopeWith("specversion", ``), "missing_field"},
		{"specversion escaped", envelopeWith("specversion", `"\u0031.0"`), ""},

		{"data_base64", envelopeWith("data", "", "data_base64", `"e30="`), "unsupported_format"},
		{"data_base64 beside data", envelopeWith("data_base64", `"e30="`), "unsupported_format"},
		{"data_base64 null", envelopeWith("data_base64", `null`), ""},
		{"data absent", envelopeWith("data", ``), "missing_field"},
		{"data null", envelopeWith("data", `null`), "missing_field"},
		{"data string", envelopeWith("data", `"{\"amount\":\"1\"}"`), "invalid_field"},
		{"data array", envelopeWith("data", `[{"amount":"1","currency":"USD"}]`), "invalid_field"},
		{"data number", envelopeWith("data", `5`), "invalid_field"},
		{"data empty object", envelopeWith("data", `{}`), "missing_field"},
		{"amount beside data", envelopeWith("data", `{"currency":"USD"}`, "amount", `"1"`), "missing_field"},

		{"datacontenttype json", envelopeWith("datacontenttype", `"application/json"`), ""},
		{"datacontenttype vendor", envelopeWith("datacontenttype", `"application/vnd.acme.charge+json; v=1"`), ""},
		{"datacontenttype null", envelopeWith("datacontenttype", `null`), ""},
		{"datacontenttype xml", envelopeWith("datacontenttype", `"text/xml"`), "unsupported_format"},
		{"dataschema", envelopeWith("dataschema", `"https://example.com/s"`), ""},
		{"extensions", envelopeWith("traceparent", `"00-1-1-01"`, "n", `5`, "b", `true`, "z", `null`), ""},

		{"currency lower case", dataWith("currency", `"usd"`), "unknown_currency"},
		{"currency padded", dataWith("currency", `"USD "`), "unknown_currency"},
		{"currency not listed", dataWith("currency", `"CHF"`), "unknown_currency"},
		{"currency escaped", dataWith("currency", `"U\u0053D"`), ""},
		{"currency null", dataWith("currency", `null`), "missing_field"},
		{"currency absent", dataWith("currency", ``), "missing_field"},
		{"currency number", dataWith("currency", `840`), "invalid_field"},

		{"sku", dataWith("sku", `"vm"`), ""},
		{"sku null", dataWith("sku", `null`), ""},
		{"sku empty", dataWith("sku", `""`), "invalid_field"},
		{"sku number", dataWith("sku", `12`), "invalid_field"},
		{"sku of 256 bytes", dataWith("sku", str(256)), "invalid_field"},
		{"sku with control", dataWith("sku", `"a\u001fb"`), "invalid_field"},
		{"unit without quantity", dataWith("unit", `"hour"`), ""},
		{"unit empty", dataWith("unit", `""`), "invalid_field"},
		{"unit of 256 bytes", dataWith("unit", str(256)), "invalid_field"},
		{"quantity without unit", dataWith("quantity", `"1.5"`), ""},
		{"quantity zero", dataWith("quantity", `"0"`), ""},
		{"quantity minus zero", dataWith("quantity", `"-0"`), ""},
		{"quantity null", dataWith("quantity", `null`), ""},
		{"quantity negative", dataWith("quantity", `"-1"`), "invalid_field"},
		{"quantity number", dataWith("quantity", `1`), "invalid_field"},
		{"quantity empty", dataWith("quantity", `""`), "invalid_field"},
		{"quantity of 13 places", dataWith("quantity", `"0.0000000000001"`), "invalid_field"},
		{"quantity of 27 digits", dataWith("quantity", `"1`+strings.Repeat("0", 26)+`"`), "invalid_field"},
		{"quantity exponent", dataWith("quantity", `"1e3"`), "invalid_field"},
		{"reason of 1024 bytes", dataWith("reason", str(1024)), ""},
		{"reason of 1025 bytes", dataWith("reason", str(1025)), "invalid_field"},
		{"reason with newline", dataWith("reason", `"a\nb"`), "invalid_field"},
		{"reason number", dataWith("reason", `5`), "invalid_field"},
		{"labels", dataWith("labels", `{"a":"b","c":[1,{"d":null}]}`), ""},
		{"labels null", dataWith("labels", `null`), ""},
		{"labels array", dataWith("labels", `["a"]`), "invalid_field"},
		{"labels string", dataWith("labels", `"a"`), "invalid_field"},
		{"corrects", dataWith("corrects", `{"id":"e0"}`), "invalid_field"},
		{"corrects string", dataWith("corrects", `"e0"`), "invalid_field"},
		{"corrects null", dataWith("corrects", `null`), ""},

		{"amount null", dataWith("amount", `null`), "missing_field"},
		{"amount number", dataWith("amount", `1.5`), "amount_not_string"},
		{"amount zero number", dataWith("amount", `0`), "amount_not_string"},
		{"amount bool", dataWith("amount", `true`), "amount_not_string"},
		{"amount array", dataWith("amount", `["1"]`), "amount_not_string"},
		{"amount object", dataWith("amount", `{"value":"1"}`), "amount_not_string"},
		{"amount empty", dataWith("amount", `""`), "invalid_amount"},
		{"amount minus zero", dataWith("amount", `"-0"`), ""},
		{"amount minus zero places", dataWith("amount", `"-0.000000000000"`), ""},
		{"amount escaped", dataWith("amount", `"\u0031\u002e5"`), ""},
		{"amount with nul", dataWith("amount", `"1\u0000"`), "invalid_amount"},
		{"amount padded", dataWith("amount", `"1 "`), "invalid_amount"},
		{"amount arabic digit", dataWith("amount", `"٣"`), "invalid_amount"},
		{"amount full-width digit", dataWith("amount", `"１"`), "invalid_amount"},
		{"amount true minus", dataWith("amount", `"−1"`), "invalid_amount"},
		{"amount Infinity", dataWith("amount", `"Infinity"`), "invalid_amount"},
		{"amount leading zero", dataWith("amount", `"01"`), "invalid_amount"},
		{"amount point at the end", dataWith("amount", `"1."`), "invalid_amount"},
		{"amount of 26 digits and 12 places", dataWith("amount", `"`+strings.Repeat("9", 26)+".999999999999\""), ""},
		{"amount of 13 places, zeros", dataWith("amount", `"1.0000000000000"`), "scale_exceeded"},
		{"amount of 27 digits", dataWith("amount", `"`+strings.Repeat("9", 27)+`"`), "amount_out_of_range"},
		{"amount negative of 27 digits", dataWith("amount", `"-`+strings.Repeat("9", 27)+`"`), "amount_out_of_range"},
		{"charge barely negative", dataWith("amount", `"-0.000000000001"`), "wrong_sign"},
		{"credit barely positive", envelopeWith("type", `"com.example.billing.credit.v1"`, "data", `{"amount":"0.000000000001","currency":"USD"}`), "wrong_sign"},
		{"credit of zero", envelopeWith("type", `"com.example.billing.credit.v1"`, "data", `{"amount":"0","currency":"USD"}`), ""},
		{"amount NaN literal", dataWith("amount", `NaN`), "invalid_json"},

		{"time number", envelopeWith("time", `1764415800`), "invalid_time"},
		{"time null", envelopeWith("time", `null`), "missing_field"},
		{"time absent", envelopeWith("time", ``), "missing_field"},
		{"time empty", envelopeWith("time", `""`), "invalid_time"},
		{"time escaped", envelopeWith("time", `"2026-11-29T11:30:00\u005a"`), ""},

		{"key twice", envelopeWith()[:len(envelopeWith())-1] + `,"id":"e1"}`, "duplicate_key"},
		{"key twice, once escaped", envelopeWith(`\u0069d`, `"e2"`), "duplicate_key"},
		{"escaped key alone is the key", envelopeWith("id", "", `i\u0064`, `"e1"`), ""},
		{"key of other case", envelopeWith("ID", `"e2"`), "duplicate_key"},
		{"key of other case alone", envelopeWith("id", "", "Id", `"e2"`), "duplicate_key"},
		{"key of other case, escaped", envelopeWith(`\u0049d`, `"e2"`), "duplicate_key"},
		{"key of other case, null", envelopeWith(`SUBJECT`, `null`), "duplicate_key"},
		{"data twice", envelopeWith()[:len(envelopeWith())-1] + `,"data":{"amount":"2","currency":"USD"}}`, "duplicate_key"},
		{"Data", envelopeWith("Data", `{}`), "duplicate_key"},
		{"DATA_BASE64", envelopeWith("DATA_BASE64", `null`), "duplicate_key"},
		{"unknown key twice", envelopeWith("x", "1", `\u0078`, "1"), "duplicate_key"},
		{"unknown keys differ in case", envelopeWith("x", "1", "X", "1"), ""},
		{"amount twice, equal", envelopeWith("data", `{"amount":"1","amount":"1","currency":"USD"}`), "duplicate_key"},
		{"amount twice, null first", envelopeWith("data", `{"amount":null,"amount":"1","currency":"USD"}`), "duplicate_key"},
		{"Amount", dataWith("Amount", `"2"`), "duplicate_key"},
		{"long s in sku", dataWith("ſku", `"2"`), "duplicate_key"},
		{"escaped long s in sku", dataWith(`\u017fku`, `"2"`), "duplicate_key"},
		{"Kelvin sign in sku", dataWith("s\u212au", `"2"`), "duplicate_key"},
		{"dotless i in id", envelopeWith("ıd", `"2"`), "duplicate_key"},
		{"dotted I in unit", dataWith("unİt", `"2"`), "duplicate_key"},
		{"Corrects", dataWith("CORRECTS", `{"id":"x"}`), "duplicate_key"},
		{"envelope key in data", dataWith("ID", `1`, "id", `2`, "data", `3`), ""},
		{"data key in envelope", envelopeWith("amount", `1`, "Amount", `2`), ""},
		{"known keys in labels", dataWith("labels", `{"amount":1,"Amount":2,"id":3}`), ""},
		{"nested key twice", dataWith("labels", `{"a":1,"a":1}`), "duplicate_key"},
		{"nested key twice, once escaped", dataWith("labels", `{"a":1,"\u0061":1}`), "duplicate_key"},
		{"deep key twice", dataWith("x", `[[{"y":{"a":1,"b":{"a":1},"a":1}}]]`), "duplicate_key"},
		{"equal keys in brothers", dataWith("x", `[{"a":1},{"a":1},{"b":{"a":1},"a":1}]`), ""},
		{"empty key", envelopeWith("", "1"), ""},
		{"empty key twice", dataWith("x", `{"":1,"":2}`), "duplicate_key"},
		{"key with separator", envelopeWith(`a\u0000`, "1", "a", "1"), ""},

		{"invalid byte in id", envelopeWith("id", "\"a\xff\""), "invalid_utf8"},
		{"invalid byte in unknown field", dataWith("x", "\"a\xff\""), "invalid_utf8"},
		{"invalid byte in a key", dataWith("x\xff", `1`), "invalid_utf8"},
		{"overlong slash", envelopeWith("id", "\"\xc0\xaf\""), "invalid_utf8"},
		{"encoded surrogate", envelopeWith("id", "\"\xed\xa0\x80\""), "invalid_utf8"},
		{"beyond Unicode", envelopeWith("id", "\"\xf4\x90\x80\x80\""), "invalid_utf8"},
		{"cut short", envelopeWith("id", "\"\xe2\x82\""), "invalid_utf8"},
		{"lone high surrogate", envelopeWith("id", `"\ud800"`), "invalid_utf8"},
		{"lone low surrogate", envelopeWith("id", `"\udc00"`), "invalid_utf8"},
		{"surrogates swapped", envelopeWith("id", `"\udc00\ud800"`), "invalid_utf8"},
		{"high surrogate and letter", envelopeWith("id", `"\ud800a"`), "invalid_utf8"},
		{"high surrogate and escape", envelopeWith("id", `"\ud800\n"`), "invalid_utf8"},
		{"two high surrogates", envelopeWith("id", `"\ud800\ud800\udc00"`), "invalid_utf8"},
		{"lone surrogate in a key", dataWith(`\ud800`, `1`), "invalid_utf8"},
		{"surrogate pair", envelopeWith("id", `"\uD83D\uDE00"`), ""},

		{"trailing comma", strings.TrimSuffix(envelopeWith(), "}") + ",}", "invalid_json"},
		{"trailing letter", envelopeWith() + "x", "invalid_json"},
		{"trailing brace", envelopeWith() + "}", "invalid_json"},
		{"trailing nul", envelopeWith() + "\x00", "invalid_json"},
		{"second document", envelopeWith() + "\n" + envelopeWith(), "invalid_json"},
		{"byte order mark", "\ufeff" + envelopeWith(), "invalid_json"},
		{"UTF-16", "{\x00\"\x00", "invalid_json"},
		{"comment", "/* */" + envelopeWith(), "invalid_json"},
		{"single quotes", "{'id':1}", "invalid_json"},
		{"bare key", "{id:1}", "invalid_json"},
		{"cut off", envelopeWith()[:40], "invalid_json"},
		{"white space only", " \n", "invalid_json"},
		{"leading zero", dataWith("x", `01`), "invalid_json"},
		{"plus", dataWith("x", `+1`), "invalid_json"},
		{"point at the end", dataWith("x", `1.`), "invalid_json"},
		{"point first", dataWith("x", `.5`), "invalid_json"},
		{"exponent alone", dataWith("x", `1e`), "invalid_json"},
		{"minus alone", dataWith("x", `-`), "invalid_json"},
		{"hexadecimal", dataWith("x", `0x1`), "invalid_json"},
		{"numbers", dataWith("x", `[0,-0,1.5e+10,1E-5,0e0,-1.25]`), ""},
		{"word", dataWith("x", `nulL`), "invalid_json"},
		{"word joined", dataWith("x", `nulltrue`), "invalid_json"},
		{"bad escape", dataWith("x", `"\x41"`), "invalid_json"},
		{"bad hex", dataWith("x", `"\u00g0"`), "invalid_json"},
		{"short hex", dataWith("x", `"\u00"`), "invalid_json"},
		{"form feed between", "\f" + envelopeWith(), "invalid_json"},
		{"no-break space between", "\u00a0" + envelopeWith(), "invalid_json"},
		{"mismatched", dataWith("x", `[1}`), "invalid_json"},
		{"missing colon", dataWith("x", `{"a" 1}`), "invalid_json"},
		{"missing comma", dataWith("x", `[1 2]`), "invalid_json"},
		{"double comma", dataWith("x", `[1,,2]`), "invalid_json"},
		{"number as key", dataWith("x", `{1:2}`), "invalid_json"},

		{"depth 32", dataWith("x", strings.Repeat("[", 30)+strings.Repeat("]", 30)), ""},
		{"depth 33", dataWith("x", strings.Repeat("[", 31)+strings.Repeat("]", 31)), "too_large"},
		{"depth 33 of objects", dataWith("x", strings.Repeat(`{"a":`, 31)+"1"+strings.Repeat("}", 31)), "too_large"},
		{"wide but not deep", dataWith("x", "["+strings.Repeat("[],", 1000)+"{}]"), ""},
		{"depth in an attribute", envelopeWith("x", strings.Repeat("[", 32)+strings.Repeat("]", 32)), "too_large"},
		{"1 MiB", envelopeWith() + strings.Repeat(" ", 1<<20-len(envelopeWith())), ""},
		{"1 MiB and a byte", envelopeWith() + strings.Repeat(" ", 1<<20-len(envelopeWith())+1), "too_large"},

		{"array", `[` + envelopeWith() + `]`, "unsupported_format"},
		{"empty array", `[]`, "unsupported_format"},
		{"string", `"x"`, "not_cloudevent"},
		{"null", `null`, "not_cloudevent"},
		{"number", `1`, "not_cloudevent"},
		{"empty", ``, "empty_data"},
	}
	d := NewDecoder(testConfig())
	for _, tt := range tests {
		expect(t, d, tt.name, structuredRecord(tt.value), tt.want)
		// what the slow reference says, in the modes it knows
		for _, m := range []mode{structured, headerless} {
			agree(t, d, []byte(tt.value), m)
		}
	}
}

func expect(t *testing.T, d *Decoder, name string, r *Record, want string) *Event {
	t.Helper()
	var e Event
	rej := d.Decode(r, &e)
	got := ""
	if rej != nil {
		got = rej.Reason.String()
		if !validDetail(rej) {
			t.Errorf("%s: detail %q", name, rej.Detail)
		}
	}
	if got != want {
		t.Errorf("%s: got %v, want %q", name, rej, want)
	}
	return &e
}

// agree compares the decoder with the reference.
func agree(t *testing.T, d *Decoder, value []byte, m mode) {
	t.Helper()
	r := &Record{Value: value}
	attrs := map[string]string{}
	switch m {
	case structured:
		r.Headers = []Header{{"content-type", []byte(ctStructured)}}
	case binaryMode:
		r = binaryWith(string(value))
		for _, h := range r.Headers {
			attrs[strings.TrimPrefix(h.Key, "ce_")] = string(h.Value)
		}
	case headerless: // the value is all there is
	}
	var e Event
	rej := d.Decode(r, &e)
	reason, want := reference(value, m, attrs)
	if rej != nil {
		if rej.Reason != reason {
			t.Errorf("mode %d, %.300q\ngot %s, the reference %s", m, value, rej, reason)
		}
		if !validDetail(rej) {
			t.Errorf("detail %q", rej.Detail)
		}
		return
	}
	if got := texts(&e); reason != 0 || !maps.Equal(got, want) {
		t.Errorf("mode %d, %.300q\ngot %v\nthe reference %s %v", m, value, got, reason, want)
	}
}

func TestEnvelope(t *testing.T) {
	both := `{"specversion":"1.0","id":"e1","source":"/svc/api","type":"` + charge + `","subject":"acct-1","time":"2026-11-29T11:30:00Z","data":` + goodData
	rec := func(value string, kv ...string) *Record {
		return &Record{Headers: headerList(kv...), Value: []byte(value)}
	}
	good := envelopeWith()
	tests := []struct {
		name string
		r    *Record
		want string
	}{
		{"binary", binaryWith(goodData), ""},
		{"binary without content type", binaryWith(goodData, "content-type", gone), ""},
		{"binary with null content type", binaryWith(goodData, "content-type", nul), ""},
		{"binary text/json", binaryWith(goodData, "content-type", "text/json"), ""},
		{"binary vendor json", binaryWith(goodData, "content-type", "Application/vnd.acme+JSON ; charset=utf-8"), ""},
		{"binary text/plain", binaryWith(goodData, "content-type", "text/plain"), "unsupported_format"},
		{"binary xml", binaryWith(goodData, "content-type", "application/xml"), "unsupported_format"},
		{"binary empty content type", binaryWith(goodData, "content-type", ""), "unsupported_format"},
		{"binary jsonx", binaryWith(goodData, "content-type", "application/jsonx"), "unsupported_format"},
		{"binary json-seq", binaryWith(goodData, "content-type", "application/json-seq"), "unsupported_format"},
		{"binary +jsonx", binaryWith(goodData, "content-type", "application/a+jsonx"), "unsupported_format"},
		{"binary no slash", binaryWith(goodData, "content-type", "json"), "unsupported_format"},
		{"binary two types in one", binaryWith(goodData, "content-type", "application/json, text/plain"), "unsupported_format"},
		{"binary protobuf", binaryWith("\x08\x01", "content-type", "application/protobuf"), "unsupported_format"},
		{"binary ce_datacontenttype", binaryWith(goodData, "ce_datacontenttype", "application/json"), ""},
		{"binary ce_datacontenttype xml alone", binaryWith(goodData, "content-type", gone, "ce_datacontenttype", "text/xml"), "unsupported_format"},
		{"binary ce_datacontenttype xml beside json", binaryWith(goodData, "ce_datacontenttype", "text/xml"), "ambiguous_envelope"},
		{"binary specversion 0.3", binaryWith(goodData, "ce_specversion", "0.3"), "unsupported_format"},
		{"binary specversion null", binaryWith(goodData, "ce_specversion", nul), "missing_field"},
		{"binary specversion missing", binaryWith(goodData, "ce_specversion", gone), "not_cloudevent"},
		{"binary id missing", binaryWith(goodData, "ce_id", gone), "missing_field"},
		{"binary id null", binaryWith(goodData, "ce_id", nul), "missing_field"},
		{"binary id empty", binaryWith(goodData, "ce_id", ""), "invalid_field"},
		{"binary id too long", binaryWith(goodData, "ce_id", strings.Repeat("x", 256)), "invalid_field"},
		{"binary id of 255", binaryWith(goodData, "ce_id", strings.Repeat("x", 255)), ""},
		{"binary id control", binaryWith(goodData, "ce_id", "a\nb"), "invalid_field"},
		{"binary id C1", binaryWith(goodData, "ce_id", "abcdefgh\u0080"), "invalid_field"},
		{"binary id invalid UTF-8", binaryWith(goodData, "ce_id", "a\xff"), "invalid_utf8"},
		{"binary id encoded surrogate", binaryWith(goodData, "ce_id", "\xed\xa0\x80"), "invalid_utf8"},
		{"binary id percent stays", binaryWith(goodData, "ce_id", "a%20b"), ""},
		{"binary id quotes and backslash stay", binaryWith(goodData, "ce_id", `"\u0061"`), ""},
		{"binary subject missing", binaryWith(goodData, "ce_subject", gone), "missing_field"},
		{"binary time missing", binaryWith(goodData, "ce_time", gone), "missing_field"},
		{"binary time bad", binaryWith(goodData, "ce_time", "1764415800"), "invalid_time"},
		{"binary type unknown", binaryWith(goodData, "ce_type", "x"), "unknown_type"},
		{"binary extension", binaryWith(goodData, "ce_traceparent", "00-1"), ""},
		{"binary extension invalid UTF-8", binaryWith(goodData, "ce_traceparent", "\xff"), "invalid_utf8"},
		{"binary other header not text", binaryWith(goodData, "trace", "\xff\x00"), ""},
		{"binary ce_data", binaryWith(goodData, "ce_data", "x"), "ambiguous_envelope"},
		{"binary ce_data_base64", binaryWith(goodData, "ce_data_base64", "x"), "unsupported_format"},
		{"binary null value", &Record{Headers: binaryWith("").Headers}, "empty_data"},
		{"binary no bytes", binaryWith(""), "empty_data"},
		{"binary body null", binaryWith("null"), "missing_field"},
		{"binary body array", binaryWith("[" + goodData + "]"), "invalid_field"},
		{"binary body string", binaryWith(`"x"`), "invalid_field"},
		{"binary body not JSON", binaryWith("amount=1"), "invalid_json"},
		{"binary body twice", binaryWith(goodData + goodData), "invalid_json"},
		{"binary body wrapped in data", binaryWith(`{"data":` + goodData + `}`), "missing_field"},
		{"binary duplicate key", binaryWith(`{"amount":"1","amount":"1","currency":"USD"}`), "duplicate_key"},
		{"binary case", binaryWith(`{"amount":"1","currency":"USD","Sku":"x"}`), "duplicate_key"},
		{"binary envelope names in data", binaryWith(`{"amount":"1","currency":"USD","ID":"x","data":{}}`), ""},
		{"binary body deep", binaryWith(`{"amount":"1","currency":"USD","x":` + strings.Repeat("[", 31) + strings.Repeat("]", 31) + `}`), ""},
		{"binary body too deep", binaryWith(`{"amount":"1","currency":"USD","x":` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + `}`), "too_large"},
		{"binary corrects", binaryWith(`{"amount":"1","currency":"USD","corrects":{"id":"x"}}`), "invalid_field"},

		{"ce header twice, equal", rec(goodData, append(pairsOf(binaryWith(goodData)), "ce_id", "e1")...), "ambiguous_envelope"},
		{"ce header twice, other", rec(goodData, append(pairsOf(binaryWith(goodData)), "ce_id", "e2")...), "ambiguous_envelope"},
		{"ce header twice, null", rec(goodData, append(pairsOf(binaryWith(goodData)), "ce_id", nul)...), "ambiguous_envelope"},
		{"extension header twice", rec(goodData, append(pairsOf(binaryWith(goodData)), "ce_x", "1", "ce_x", "1")...), "ambiguous_envelope"},
		{"ce_specversion twice", rec(goodData, append(pairsOf(binaryWith(goodData)), "ce_specversion", "1.0")...), "ambiguous_envelope"},
		{"header twice beside structured", rec(good, "content-type", ctStructured, "ce_id", "e1", "ce_id", "e1"), "ambiguous_envelope"},
		{"header twice, headerless", rec(good, "ce_id", "e1", "ce_id", "e1"), "ambiguous_envelope"},
		{"extension twice, headerless", rec(good, "ce_x", "e1", "ce_x", "e1"), "ambiguous_envelope"},
		{"other header twice", binaryWith(goodData, "trace", "1", "Trace", "2"), ""},
		{"other headers repeat", rec(good, "content-type", ctStructured, "x", "1", "x", "2", "x", "1"), ""},
		{"content type twice, equal", rec(good, "content-type", ctStructured, "content-type", ctStructured), ""},
		{"content type twice, agreeing", rec(good, "content-type", ctStructured, "Content-Type", ctStructured+"; charset=utf-8"), ""},
		{"content type twice, differing", rec(good, "content-type", ctStructured, "content-type", "application/json"), "ambiguous_envelope"},
		{"header of other case", binaryWith(goodData, "CE_ID", "e1"), "ambiguous_envelope"},
		{"header of other case alone", binaryWith(goodData, "ce_subject", gone, "ce_Subject", "a"), "ambiguous_envelope"},
		{"extension header of other case", binaryWith(goodData, "ce_X", "1", "ce_x", "1"), ""},
		{"Content-Type", rec(good, "Content-Type", ctStructured), ""},
		{"http style headers are others", rec(good, "ce-id", "e9", "cloudEvents:id", "e9"), ""},

		{"structured with parameters", rec(good, "content-type", " application/CloudEvents+JSON ;charset=\"utf-8\""), ""},
		{"batch", rec("["+good+"]", "content-type", "application/cloudevents-batch+json"), "unsupported_format"},
		{"batch of one object", rec(good, "content-type", "application/cloudevents-batch+json; charset=utf-8"), "unsupported_format"},
		{"avro", rec(good, "content-type", "application/cloudevents+avro"), "unsupported_format"},
		{"xml", rec("<event/>", "content-type", "application/cloudevents+xml"), "unsupported_format"},
		{"no suffix", rec(good, "content-type", "application/cloudevents"), "unsupported_format"},
		{"json-seq", rec(good, "content-type", "application/cloudevents+json-seq"), "unsupported_format"},
		{"protobuf, upper case", rec(good, "content-type", "APPLICATION/CLOUDEVENTS+PROTOBUF"), "unsupported_format"},
		{"protobuf with ce headers", binaryWith(goodData, "content-type", "application/cloudevents+protobuf"), "unsupported_format"},
		{"structured, equal headers", rec(good, "content-type", ctStructured, "ce_specversion", "1.0", "ce_id", "e1", "ce_type", charge), ""},
		{"structured, other id", rec(good, "content-type", ctStructured, "ce_id", "e2"), "ambiguous_envelope"},
		{"structured, other specversion", rec(good, "content-type", ctStructured, "ce_specversion", "0.3"), "ambiguous_envelope"},
		{"structured, same time spelled otherwise", rec(good, "content-type", ctStructured, "ce_time", "2026-11-29T11:30:00.0Z"), "ambiguous_envelope"},
		{"structured, header the body lacks", rec(envelopeWith("subject", ""), "content-type", ctStructured, "ce_subject", "acct-1"), "ambiguous_envelope"},
		{"structured, null header the body lacks", rec(good, "content-type", ctStructured, "ce_dataschema", nul), ""},
		{"structured, null header of something", rec(good, "content-type", ctStructured, "ce_id", nul), "ambiguous_envelope"},
		{"structured, escaped in the body", rec(envelopeWith("id", `"\u00651"`), "content-type", ctStructured, "ce_id", "e1"), ""},
		{"structured, escape in the header is text", rec(envelopeWith("id", `"\u00651"`), "content-type", ctStructured, "ce_id", `\u00651`), "ambiguous_envelope"},
		{"structured, equal extension", rec(envelopeWith("x", `"1"`, `\u0079`, `5`, "z", `true`), "content-type", ctStructured, "ce_x", "1", "ce_y", "5", "ce_z", "true"), ""},
		{"structured, other extension", rec(envelopeWith("x", `"1"`), "content-type", ctStructured, "ce_x", "2"), "ambiguous_envelope"},
		{"structured, number spelled otherwise", rec(envelopeWith("x", `1e0`), "content-type", ctStructured, "ce_x", "1"), "ambiguous_envelope"},
		{"structured, extension that only data has", rec(dataWith("x", `"1"`), "content-type", ctStructured, "ce_x", "1"), "ambiguous_envelope"},
		{"structured, ce_data", rec(good, "content-type", ctStructured, "ce_data", goodData), "ambiguous_envelope"},
		{"structured, ce_id of other case", rec(good, "content-type", ctStructured, "Ce_Id", "e1"), "ambiguous_envelope"},
		{"structured, repeated key first", rec(envelopeWith("x", "1", `\u0078`, "1"), "content-type", ctStructured, "ce_id", "e2"), "duplicate_key"},

		{"headerless", rec(good), ""},
		{"headerless, other content type", rec(good, "content-type", "application/json"), ""},
		{"headerless, text", rec(good, "content-type", "text/plain"), ""},
		{"headerless, equal header", rec(good, "ce_id", "e1"), ""},
		{"headerless, other header", rec(good, "ce_id", "e2"), "ambiguous_envelope"},
		{"headerless, object without specversion", rec(`{"id":"e1"}`), "not_cloudevent"},
		{"headerless, specversion nested", rec(`{"x":` + good + `}`), "not_cloudevent"},
		{"headerless, null specversion", rec(envelopeWith("specversion", "null")), "missing_field"},
		{"headerless, SpecVersion", rec(envelopeWith("specversion", "", "SpecVersion", `"1.0"`)), "duplicate_key"},
		{"headerless, array of events", rec("[" + good + "]"), "unsupported_format"},
		{"headerless, array", rec(`[1,2]`), "not_cloudevent"},
		{"headerless, string", rec(`"specversion"`), "not_cloudevent"},
		{"headerless, foreign object with keys of other case", rec(`{"ID":1,"Type":2}`), "not_cloudevent"},
		{"headerless, not JSON", rec("hello"), "invalid_json"},
		{"null value", &Record{}, "empty_data"},
		{"null value with batch type", &Record{Headers: headerList("content-type", "application/cloudevents-batch+json")}, "empty_data"},

		// ce_ headers and a body that is an event itself, without the type that says so
		{"binary headers, equal structured body", binaryWith(both + "}"), ""},
		{"binary headers, other structured body", binaryWith(both+"}", "ce_id", "e2"), "ambiguous_envelope"},
		{"body that will do as both", binaryWith(both + `,"amount":"2","currency":"USD"}`), "ambiguous_envelope"},
		{"data that claims to be an event", binaryWith(`{"specversion":"1.0","amount":"2","currency":"USD"}`), "ambiguous_envelope"},
		{"binary headers, structured body with a key twice", binaryWith(both + `,"id":"e1"}`), "duplicate_key"},
		{"binary headers, structured body of another type", binaryWith(both+"}", "content-type", "text/plain"), "unsupported_format"},

		{"size before envelope", rec(strings.Repeat(" ", 1<<20+1), "content-type", "application/cloudevents+avro"), "too_large"},
	}
	d := NewDecoder(testConfig())
	for _, tt := range tests {
		expect(t, d, tt.name, tt.r, tt.want)
	}
	if e := expect(t, d, "percent", binaryWith(goodData, "ce_id", "a%20b"), ""); string(e.ID) != "a%20b" {
		t.Errorf("id %q", e.ID)
	}
	if e := expect(t, d, "unknown", binaryWith(`{"amount":"1","currency":"USD","x":{"y":1},"z":2}`, "ce_x", "1", "trace", "2"), ""); e.UnknownFields != 3 {
		t.Errorf("%d unknown fields", e.UnknownFields)
	}
}

func pairsOf(r *Record) (kv []string) {
	for _, h := range r.Headers {
		kv = append(kv, h.Key, string(h.Value))
	}
	return kv
}
