package loadgen

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"billing/internal/money"
)

// spoiler is what a spoiling may look at.
type spoiler struct {
	rng      *rand.Rand
	now      time.Time
	oldest   time.Time // before it an event of the partition is too old; zero: none is yet
	prefix   string
	credit   bool   // the event that is spoiled
	absent   string // a currency that the service does not accept
	asNumber bool   // an amount may be a JSON number
}

// spoiler is for a message of h.
func (g *Generator) spoiler(h *happening) *spoiler {
	return &spoiler{
		rng: g.rng, now: g.clock, oldest: g.oldest(h.account.partition), prefix: g.cfg.TypePrefix,
		credit: h.credit, absent: absentCurrency(g.cfg.Currencies), asNumber: g.cfg.AmountAsNumber,
	}
}

// spoiling is one way to make a good message bad.
type spoiling struct {
	reason     string // why it must be rejected
	needsNewer bool   // only bad after another event was applied in the partition
	spoil      func(s *spoiler, d *draft)
}

// spoilings are all of them. Each must break every form of a message.
var spoilings = []spoiling{
	{reason: "not_cloudevent", spoil: func(s *spoiler, d *draft) {
		d.intoValue(s)
		d.form, d.contentType = headerless, ""
		d.attributes = without(d.attributes, "specversion")
	}},
	{reason: "unsupported_format", spoil: func(s *spoiler, d *draft) {
		d.attributes = set(d.attributes, field{name: "specversion", text: "0.3"})
	}},
	{reason: "unsupported_format", spoil: func(s *spoiler, d *draft) { // a batch of one
		d.intoValue(s)
		d.form, d.contentType = structured, "application/cloudevents-batch+json"
		d.finish = func(v []byte) []byte { return []byte("[" + string(v) + "]") }
	}},
	{reason: "unsupported_format", spoil: func(s *spoiler, d *draft) {
		d.intoHeaders()
		d.contentType = pick(s.rng, "text/plain", "application/xml", "application/avro")
	}},
	{reason: "unsupported_format", spoil: func(s *spoiler, d *draft) {
		d.intoValue(s)
		d.attributes = append(d.attributes, field{name: "data_base64", text: "eyJhbW91bnQiOiIxIn0="})
	}},
	{reason: "ambiguous_envelope", spoil: func(s *spoiler, d *draft) {
		d.intoHeaders()
		again := d.attributes[s.rng.IntN(len(d.attributes))]
		d.headers = append(d.headers, Header{"ce_" + again.name, []byte(again.text)})
	}},
	{reason: "ambiguous_envelope", spoil: func(s *spoiler, d *draft) {
		d.intoValue(s)
		d.form, d.contentType = structured, "application/cloudevents+json"
		d.headers = append(d.headers, Header{"ce_id", []byte("another")})
	}},
	{reason: "empty_data", spoil: func(s *spoiler, d *draft) {
		d.finish = func([]byte) []byte { return nil }
	}},
	{reason: "empty_data", spoil: func(s *spoiler, d *draft) {
		d.finish = func([]byte) []byte { return []byte{} }
	}},
	{reason: "invalid_json", spoil: func(s *spoiler, d *draft) {
		d.finish = func(v []byte) []byte {
			return []byte(strings.TrimSpace(string(v))[:len(strings.TrimSpace(string(v)))-1])
		}
	}},
	{reason: "invalid_json", spoil: func(s *spoiler, d *draft) { // two documents
		d.finish = func(v []byte) []byte { return append(v, "{}"...) }
	}},
	{reason: "duplicate_key", spoil: func(s *spoiler, d *draft) {
		d.data = append(d.data, field{name: "amount", text: "1"})
	}},
	{reason: "duplicate_key", spoil: func(s *spoiler, d *draft) {
		d.data = append(d.data, field{name: pick(s.rng, "Amount", "CURRENCY", "amounT"), text: "1"})
	}},
	{reason: "duplicate_key", spoil: func(s *spoiler, d *draft) {
		d.intoValue(s)
		d.attributes = append(d.attributes, field{name: "id", text: "another"})
	}},
	{reason: "invalid_utf8", spoil: func(s *spoiler, d *draft) {
		d.attributes = set(d.attributes, field{name: "subject", text: "acct-\xff"})
	}},
	{reason: "invalid_utf8", spoil: func(s *spoiler, d *draft) { // half of a surrogate pair
		d.data = set(d.data, field{name: "sku", raw: `"a\ud83d"`})
	}},
	{reason: "missing_field", spoil: func(s *spoiler, d *draft) {
		d.attributes = without(d.attributes, pick(s.rng, "id", "source", "type", "subject", "time"))
	}},
	{reason: "missing_field", spoil: func(s *spoiler, d *draft) {
		d.data = without(d.data, pick(s.rng, "amount", "currency"))
	}},
	{reason: "missing_field", spoil: func(s *spoiler, d *draft) {
		d.data = set(d.data, field{name: pick(s.rng, "amount", "currency"), raw: "null"})
	}},
	{reason: "missing_field", spoil: func(s *spoiler, d *draft) {
		d.intoValue(s)
		d.rawData = "null"
	}},
	{reason: "invalid_field", spoil: func(s *spoiler, d *draft) {
		d.rawData = pick(s.rng, "[]", `"1.50"`, "17", "true")
	}},
	{reason: "invalid_field", spoil: func(s *spoiler, d *draft) {
		d.attributes = set(d.attributes, field{name: pick(s.rng, "id", "subject"), text: strings.Repeat("x", 256)})
	}},
	{reason: "invalid_field", spoil: func(s *spoiler, d *draft) {
		d.attributes = set(d.attributes, field{name: pick(s.rng, "id", "source", "subject"), text: pick(s.rng, "a\x00b", "a\nb", "a\u0085b")})
	}},
	{reason: "invalid_field", spoil: func(s *spoiler, d *draft) {
		d.intoValue(s)
		d.attributes = set(d.attributes, field{name: pick(s.rng, "id", "source", "subject"), raw: `""`})
	}},
	{reason: "invalid_field", spoil: func(s *spoiler, d *draft) {
		d.data = set(d.data, field{name: "quantity", text: pick(s.rng, "-1", "1e3", "many", "1.0000000000000")})
	}},
	{reason: "invalid_field", spoil: func(s *spoiler, d *draft) {
		d.attributes = set(d.attributes, field{name: "type", text: s.prefix + "charge.v1"})
		d.data = set(d.data, field{name: "amount", text: "1"})
		d.data = append(d.data, field{name: "corrects", raw: `{"id":"a"}`})
	}},
	{reason: "unknown_type", spoil: func(s *spoiler, d *draft) {
		d.attributes = set(d.attributes, field{name: "type",
			text: pick(s.rng, s.prefix+"refund.v1", s.prefix+"charge.v2", s.prefix+"Charge.v1", s.prefix+"charge.v1 ", "charge.v1", s.prefix)})
	}},
	{reason: "invalid_time", spoil: func(s *spoiler, d *draft) {
		t := s.now.Add(-time.Hour)
		d.attributes = set(d.attributes, field{name: "time", text: pick(s.rng,
			fmt.Sprint(t.Unix()),
			t.Format("2006-01-02T15:04:05"),
			t.Format("2006-01-02 15:04:05Z"),
			t.Format("2006-01-02"),
			t.Format("2006-01-02t15:04:05z"),
			t.Format("2006-01-02T15:04:05")+",5Z",
			t.Format("2006-01-02")+"T3:04:05Z",
			t.Format("2006-01-02")+"T24:00:00Z",
			t.Format("2006")+"-02-30T12:00:00Z",
			t.Format("2006-01-02")+"T23:59:60Z",
			"1999-12-31T23:59:59Z", "2101-01-01T00:00:00Z")})
	}},
	{reason: "too_old", needsNewer: true, spoil: func(s *spoiler, d *draft) {
		t := s.oldest.Add(-time.Microsecond)
		switch s.rng.IntN(4) {
		case 0:
			t = t.Add(-time.Duration(s.rng.Int64N(int64(day))))
		case 1:
			t = t.Add(-300 * day)
		}
		d.attributes = set(d.attributes, field{name: "time", text: timeText(s.rng, t)})
	}},
	{reason: "in_future", spoil: func(s *spoiler, d *draft) {
		d.attributes = set(d.attributes, field{name: "time", text: s.now.AddDate(10, 0, 0).Format(time.RFC3339)})
	}},
	{reason: "amount_not_string", spoil: func(s *spoiler, d *draft) {
		if s.asNumber {
			d.data = set(d.data, field{name: "amount", raw: pick(s.rng, "true", `["1"]`, `{"value":"1"}`)})
		} else {
			d.data = set(d.data, field{name: "amount", raw: pick(s.rng, "0", "0.1", "1e3", "true", `["1"]`)})
		}
	}},
	{reason: "invalid_amount", spoil: func(s *spoiler, d *draft) {
		if s.asNumber && s.rng.IntN(2) == 0 {
			d.data = set(d.data, field{name: "amount", raw: pick(s.rng, "1e5", "0E0", "1.5e-3", "-1E+2")})
			return
		}
		d.data = set(d.data, field{name: "amount", text: pick(s.rng,
			"1e5", "+1", "01", "1.", ".5", " 1", "1 ", "1,5", "1_000", "0x10", "--1", "NaN", "Infinity", "-", "\u0661", "1.5 USD")})
	}},
	{reason: "scale_exceeded", spoil: func(s *spoiler, d *draft) {
		d.data = set(d.data, s.amount(s.signed("1."+strings.Repeat(pick(s.rng, "0", "3"), money.Places+1))))
	}},
	{reason: "amount_out_of_range", spoil: func(s *spoiler, d *draft) {
		d.data = set(d.data, s.amount(s.signed("1"+strings.Repeat("0", money.MaxIntegerDigits))))
	}},
	{reason: "wrong_sign", spoil: func(s *spoiler, d *draft) {
		amount := "-0.000000000001"
		if s.credit {
			amount = "1"
		}
		d.data = set(d.data, s.amount(amount))
	}},
	{reason: "unknown_currency", spoil: func(s *spoiler, d *draft) {
		d.data = set(d.data, field{name: "currency", text: pick(s.rng, s.absent, strings.ToLower(s.absent), "us", "US D", "\u20ac")})
	}},
	{reason: "too_large", spoil: func(s *spoiler, d *draft) { // deeper than 32
		d.data = append(d.data, field{name: "tree", raw: strings.Repeat("[", 40) + strings.Repeat("]", 40)})
	}},
}

// intoValue makes d a message with the whole event in its value.
func (d *draft) intoValue(s *spoiler) {
	if d.form == binary {
		d.form, d.contentType = headerless, ""
		if s.rng.IntN(2) == 0 {
			d.form, d.contentType = structured, "application/cloudevents+json"
		}
	}
}

// intoHeaders makes d a message with the attributes in headers.
func (d *draft) intoHeaders() {
	if d.form != binary {
		d.form, d.contentType = binary, "application/json"
		d.attributes = without(d.attributes, "datacontenttype")
	}
}

// absentCurrency is a code that is in no list of accepted ones.
func absentCurrency(accepted []string) string {
	for n := 0; ; n++ {
		if code := "QX" + strconv.Itoa(n); !slices.Contains(accepted, code) {
			return code
		}
	}
}

// amount is a number as an amount, in any way that such a number may be written.
func (s *spoiler) amount(number string) field {
	if s.asNumber && s.rng.IntN(2) == 0 {
		return field{name: "amount", raw: number}
	}
	return field{name: "amount", text: number}
}

// signed gives a positive number the sign that the event needs, so that it is
// bad for one reason only.
func (s *spoiler) signed(number string) string {
	if s.credit {
		return "-" + number
	}
	return number
}
