package loadgen

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
	"unicode/utf8"

	"billing/internal/money"
)

// form is how a CloudEvent is put into a Kafka message.
type form int

const (
	structured form = iota // the whole event in the value, a content-type header
	binary                 // attributes in headers, the data in the value
	headerless             // the whole event in the value, nothing that says so
)

// field is a member of an object: a text, or a raw piece of JSON.
type field struct {
	name, text string
	raw        string // where not ""
}

// draft is a message before it is written down.
type draft struct {
	rng         *rand.Rand // of the writing only
	form        form
	contentType string // "" for none
	attributes  []field
	data        []field
	rawData     string   // instead of data where not ""
	headers     []Header // beside those of the form
	finish      func(value []byte) []byte
}

// write says what h says, in a style of many. All styles of one happening are
// the same event: same key, same content.
func (g *Generator) write(h *happening, style uint64) *draft {
	rng := rand.New(rand.NewPCG(style, 0x7374796c))
	chance := func(n int) bool { return rng.IntN(n) == 0 }
	d := &draft{rng: rng, form: form(rng.IntN(3))}
	kind := "charge.v1"
	if h.credit {
		kind = "credit.v1"
	}
	d.attributes = []field{
		{name: "specversion", text: "1.0"},
		{name: "id", text: h.id},
		{name: "source", text: h.source},
		{name: "type", text: g.cfg.TypePrefix + kind},
		{name: "subject", text: h.account.id},
		{name: "time", text: timeText(rng, h.time)},
	}
	d.data = []field{
		{name: "amount", text: amountText(rng, h.amount)},
		{name: "currency", text: h.currency},
	}
	if h.sku != "" {
		d.data = append(d.data, field{name: "sku", text: h.sku})
	}
	if h.unit != "" {
		d.data = append(d.data, field{name: "unit", text: h.unit})
	}
	if h.hasQuantity {
		d.data = append(d.data, field{name: "quantity", text: amountText(rng, h.quantity)})
	}
	// What is not part of the content may be there or not.
	if chance(4) {
		d.data = append(d.data, field{name: "reason", text: "best \u201cguess\u201d of " + fmt.Sprint(rng.IntN(9))})
	}
	if chance(4) {
		d.data = append(d.data, field{name: "labels", raw: fmt.Sprintf(`{"region":"eu","shard":[%d,null,1.5e3,{"a":{}}]}`, rng.IntN(9))})
	}
	if chance(5) {
		d.attributes = append(d.attributes, field{name: "traceparent", text: fmt.Sprintf("00-%032x-%016x-01", rng.Uint64(), rng.Uint64())})
	}
	if chance(5) {
		d.headers = append(d.headers, Header{"retry", []byte("1")}, Header{"retry", []byte("2")}, Header{"nothing", nil})
	}
	switch d.form {
	case structured:
		d.contentType = pick(rng, "application/cloudevents+json", "application/cloudevents+json; charset=UTF-8", "Application/CloudEvents+JSON")
		if chance(2) {
			d.attributes = append(d.attributes, field{name: "datacontenttype", text: "application/json"})
		}
	case binary:
		d.contentType = pick(rng, "application/json", "application/json; charset=utf-8")
	case headerless: // no content type either
	}
	shuffle(rng, d.attributes)
	shuffle(rng, d.data)
	return d
}

// render gives the headers and the value.
func (d *draft) render() ([]Header, []byte) {
	headers := append([]Header(nil), d.headers...)
	if d.contentType != "" {
		headers = append(headers, Header{"content-type", []byte(d.contentType)})
	}
	data := d.rawData
	if data == "" {
		data = d.object(d.data)
	}
	value := data
	if d.form == binary {
		for _, f := range d.attributes {
			headers = append(headers, Header{"ce_" + f.name, []byte(f.text)})
		}
	} else {
		all := append(append([]field(nil), d.attributes...), field{name: "data", raw: data})
		if d.rng.IntN(3) == 0 {
			shuffle(d.rng, all)
		}
		value = d.object(all)
	}
	shuffle(d.rng, headers)
	if d.finish != nil {
		return headers, d.finish([]byte(value))
	}
	return headers, []byte(value)
}

// object writes fields as a JSON object.
func (d *draft) object(fields []field) string {
	open, comma, colon, end := "{", ",", ":", "}"
	switch d.rng.IntN(4) {
	case 0:
		comma, colon = ", ", ": "
	case 1:
		open, comma, colon, end = "{\n\t", ",\r\n\t", " : ", "\n}\n"
	}
	var b strings.Builder
	for i, f := range fields {
		if i == 0 {
			b.WriteString(open)
		} else {
			b.WriteString(comma)
		}
		b.WriteString(d.quote(f.name))
		b.WriteString(colon)
		if f.raw != "" {
			b.WriteString(f.raw)
		} else {
			b.WriteString(d.quote(f.text))
		}
	}
	if len(fields) == 0 {
		b.WriteString(open)
	}
	b.WriteString(end)
	return b.String()
}

// quote writes a text as a JSON string, with escapes also where there need be
// none. Bytes that are not UTF-8 stay as they are.
func (d *draft) quote(s string) string {
	needless := d.rng.IntN(6) == 0
	if !needless && strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' }) < 0 {
		return `"` + s + `"`
	}
	var b strings.Builder
	b.WriteByte('"')
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteByte(s[0])
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '/' && needless:
			b.WriteString(`\/`)
		case r > 0xffff && needless:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04X`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		case r < ' ' || (r <= 0xffff && needless && d.rng.IntN(3) == 0):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
		s = s[n:]
	}
	b.WriteByte('"')
	return b.String()
}

// set replaces the member with f's name, or adds f.
func set(fields []field, f field) []field {
	for i := range fields {
		if fields[i].name == f.name {
			fields[i] = f
			return fields
		}
	}
	return append(fields, f)
}

// without leaves out the member with that name.
func without(fields []field, name string) []field {
	var left []field
	for _, f := range fields {
		if f.name != name {
			left = append(left, f)
		}
	}
	return left
}

// timeText writes t in RFC 3339, in some zone, with as many places as it needs
// or more: what is less than a microsecond is to be cut off.
func timeText(rng *rand.Rand, t time.Time) string {
	zone, name := 0, "Z"
	switch rng.IntN(4) {
	case 0:
		minutes := 15 * (rng.IntN(2*14*4+1) - 14*4)
		zone, name = minutes*60, fmt.Sprintf("+%02d:%02d", minutes/60, minutes%60)
		if minutes < 0 {
			name = fmt.Sprintf("-%02d:%02d", -minutes/60, -minutes%60)
		}
	case 1:
		name = "-00:00"
	}
	text := t.In(time.FixedZone("", zone)).Format("2006-01-02T15:04:05")
	places := fmt.Sprintf("%06d", t.Nanosecond()/1000)
	switch rng.IntN(3) {
	case 0:
		places = strings.TrimRight(places, "0")
	case 1:
		places += fmt.Sprintf("%03d", rng.IntN(1000))
	}
	if places != "" {
		text += "." + places
	}
	return text + name
}

// amountText writes a with as many places as it needs or more.
func amountText(rng *rand.Rand, a money.Amount) string {
	text := a.String()
	if a.IsZero() && rng.IntN(4) == 0 {
		text = "-0"
	}
	if rng.IntN(3) == 0 {
		_, places, found := strings.Cut(text, ".")
		if !found {
			text += "."
		}
		least := 1
		if found {
			least = 0
		}
		text += strings.Repeat("0", least+rng.IntN(money.Places-len(places)-least+1))
	}
	return text
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

func shuffle[T any](rng *rand.Rand, s []T) {
	rng.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
}
