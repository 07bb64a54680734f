package loadgen

import (
	"math/rand/v2"
	"strconv"
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
	isData     bool   // the event's data
}

// draft is a message before it is written down.
type draft struct {
	form        form
	contentType string // "" for none
	attributes  []field
	data        []field
	rawData     string   // instead of data where not ""
	headers     []Header // beside those of the form
	finish      func(value []byte) []byte

	rng *rand.Rand // of the writing only
	pcg *rand.PCG  // rng's
	all []field    // room for the attributes with the data among them
	out []byte     // room for the value
}

func newDraft() *draft {
	pcg := rand.NewPCG(0, 0)
	return &draft{pcg: pcg, rng: rand.New(pcg)}
}

// write says what h says, in a style of many. All styles of one happening are
// the same event: same key, same content. The draft is good until the next one.
func (g *Generator) write(h *happening, style uint64) *draft {
	d := g.draft
	d.pcg.Seed(style, 0x7374796c)
	rng := d.rng
	chance := func(n int) bool { return rng.IntN(n) == 0 }
	d.form, d.contentType, d.rawData, d.finish = form(rng.IntN(3)), "", "", nil
	kind := "charge.v1"
	if h.credit {
		kind = "credit.v1"
	}
	d.attributes = append(d.attributes[:0],
		field{name: "specversion", text: "1.0"},
		field{name: "id", text: h.id},
		field{name: "source", text: h.source},
		field{name: "type", text: g.cfg.TypePrefix + kind},
		field{name: "subject", text: h.account.id},
		field{name: "time", text: timeText(rng, h.time)},
	)
	amount := field{name: "amount", text: amountText(rng, h.amount)}
	if g.cfg.AmountAsNumber && chance(3) {
		amount.text, amount.raw = "", amount.text
	}
	d.data = append(d.data[:0], amount, field{name: "currency", text: h.currency})
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
		d.data = append(d.data, field{name: "reason", text: "best \u201cguess\u201d of " + strconv.Itoa(rng.IntN(9))})
	}
	if chance(4) {
		d.data = append(d.data, field{name: "labels", raw: `{"region":"eu","shard":[` + strconv.Itoa(rng.IntN(9)) + `,null,1.5e3,{"a":{}}]}`})
	}
	if chance(5) {
		d.attributes = append(d.attributes, field{name: "traceparent", text: "00-0000000000000000" + hex16(rng.Uint64()) + "-" + hex16(rng.Uint64()) + "-01"})
	}
	d.headers = d.headers[:0]
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
	headers := make([]Header, 0, len(d.headers)+1+len(d.attributes))
	headers = append(headers, d.headers...)
	if d.contentType != "" {
		headers = append(headers, Header{"content-type", []byte(d.contentType)})
	}
	d.out = d.out[:0]
	if d.form == binary {
		size := 0
		for _, f := range d.attributes {
			size += len(f.text)
		}
		texts := make([]byte, 0, size) // one piece of memory for all
		for _, f := range d.attributes {
			n := len(texts)
			texts = append(texts, f.text...)
			headers = append(headers, Header{headerName(f.name), texts[n:len(texts):len(texts)]})
		}
		d.dataObject()
	} else {
		d.all = append(append(d.all[:0], d.attributes...), field{name: "data", isData: true})
		if d.rng.IntN(3) == 0 {
			shuffle(d.rng, d.all)
		}
		d.object(d.all)
	}
	shuffle(d.rng, headers)
	value := make([]byte, len(d.out))
	copy(value, d.out)
	if d.finish != nil {
		value = d.finish(value)
	}
	return headers, value
}

// headerName is the header of an attribute.
func headerName(attribute string) string {
	switch attribute { // most of them need no new text
	case "specversion":
		return "ce_specversion"
	case "id":
		return "ce_id"
	case "source":
		return "ce_source"
	case "type":
		return "ce_type"
	case "subject":
		return "ce_subject"
	case "time":
		return "ce_time"
	}
	return "ce_" + attribute
}

func (d *draft) dataObject() {
	if d.rawData != "" {
		d.out = append(d.out, d.rawData...)
		return
	}
	d.object(d.data)
}

// object writes fields as a JSON object.
func (d *draft) object(fields []field) {
	open, comma, colon, end := "{", ",", ":", "}"
	switch d.rng.IntN(4) {
	case 0:
		comma, colon = ", ", ": "
	case 1:
		open, comma, colon, end = "{\n\t", ",\r\n\t", " : ", "\n}\n"
	}
	d.out = append(d.out, open...)
	for i, f := range fields {
		if i > 0 {
			d.out = append(d.out, comma...)
		}
		d.out = quote(d.out, d.rng, f.name)
		d.out = append(d.out, colon...)
		switch {
		case f.isData:
			d.dataObject()
		case f.raw != "":
			d.out = append(d.out, f.raw...)
		default:
			d.out = quote(d.out, d.rng, f.text)
		}
	}
	d.out = append(d.out, end...)
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
	left := fields[:0]
	for _, f := range fields {
		if f.name != name {
			left = append(left, f)
		}
	}
	return left
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

func shuffle[T any](rng *rand.Rand, s []T) {
	rng.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
}
