package event

import (
	"bytes"
	"unicode/utf8"
)

// Config is what a Decoder needs to know of the service.
type Config struct {
	// TypePrefix is put before charge.v1 and credit.v1 in an event's type, and
	// ends in a dot: "com.example.billing.".
	TypePrefix string
	// Currencies are the codes that are accepted, upper case, byte for byte.
	Currencies []string
	// AmountAsNumber reads an amount that is a JSON number by its literal,
	// which must have the form of an amount string: no exponent. Off, such an
	// amount is rejected. Quantities are strings either way.
	AmountAsNumber bool
}

// Decoder decodes records. It keeps buffers between calls and is not for
// concurrent use: each goroutine has its own.
type Decoder struct {
	types      [2]string // full type names, in the order of typeOf
	currencies map[string]string
	asNumber   bool

	scan    scanner
	hasher  Hasher
	scratch []byte // texts that are looked at once
}

var typeOf = [2]Type{Charge, Credit}

// NewDecoder makes a Decoder. The configuration has been checked by then; it is
// copied.
func NewDecoder(c Config) *Decoder {
	d := &Decoder{
		types:      [2]string{c.TypePrefix + "charge.v1", c.TypePrefix + "credit.v1"},
		currencies: make(map[string]string, len(c.Currencies)),
		asNumber:   c.AmountAsNumber,
		scan:       newScanner(),
		scratch:    make([]byte, 0, 1024),
	}
	for _, code := range c.Currencies {
		d.currencies[code] = code
	}
	return d
}

// The attributes and the members of data that have a meaning, as indexes.
const (
	attrSpecVersion = iota
	attrID
	attrSource
	attrType
	attrSubject
	attrTime
	attrDataContentType
	attrDataSchema
	attrData
	attrDataBase64
	attrCount
)

const (
	dataAmount = iota
	dataCurrency
	dataSKU
	dataQuantity
	dataUnit
	dataReason
	dataLabels
	dataCorrects
	dataCount
)

func attrIndex[text []byte | string](key text) int {
	switch string(key) {
	case "specversion":
		return attrSpecVersion
	case "id":
		return attrID
	case "source":
		return attrSource
	case "type":
		return attrType
	case "subject":
		return attrSubject
	case "time":
		return attrTime
	case "datacontenttype":
		return attrDataContentType
	case "dataschema":
		return attrDataSchema
	case "data":
		return attrData
	case "data_base64":
		return attrDataBase64
	}
	return -1
}

func dataIndex(key []byte) int {
	switch string(key) {
	case "amount":
		return dataAmount
	case "currency":
		return dataCurrency
	case "sku":
		return dataSKU
	case "quantity":
		return dataQuantity
	case "unit":
		return dataUnit
	case "reason":
		return dataReason
	case "labels":
		return dataLabels
	case "corrects":
		return dataCorrects
	}
	return -1
}

// message is one record taken apart, before its fields are judged.
type message struct {
	mode    mode
	body    kind // of the whole value
	attr    [attrCount]field
	data    [dataCount]field
	unknown uint32

	// specVersion is set where the body has the key, folded where it has one
	// that differs from it in case.
	specVersion, folded bool
	// both is set where the body will do as an envelope and as data.
	both bool

	headers headers
}

// mode is where the attributes are.
type mode uint8

const (
	structured mode = iota // in the body, and the content type says so
	headerless             // in the body, if it is an event at all
	binaryMode             // in the headers; the body is data
)

// Decode decodes r into e. It returns nil, or why the record is rejected; then
// what e holds has no meaning. Control records are not for Decode.
//
// A record with several faults gets the reason that comes first here:
// empty_data; too_large by size; ambiguous_envelope and unsupported_format by
// the headers; invalid_json, or too_large by depth, whichever stands first;
// invalid_utf8; not_cloudevent; duplicate_key; ambiguous_envelope and
// unsupported_format by the body; missing_field for id, source and type;
// unknown_type; missing_field for the rest; invalid_field; invalid_time;
// unknown_currency; then what is wrong with the amount, wrong_sign last.
func (d *Decoder) Decode(r *Record, e *Event) *Rejection {
	if len(r.Value) == 0 {
		if r.Value == nil {
			return reject(ReasonEmptyData, "the record's value is null")
		}
		return reject(ReasonEmptyData, "the record's value has no bytes")
	}
	if len(r.Value) > maxValue {
		return reject(ReasonTooLarge, "the value has %d bytes, at most %d are allowed", len(r.Value), maxValue)
	}
	var m message
	d.scan.reset(r.Value)
	rej := d.read(r, &m)
	if rej == nil {
		rej = d.judge(&m, e)
	}
	d.scan.release()
	return rej
}

// read finds the mode and fills m.
func (d *Decoder) read(r *Record, m *message) *Rejection {
	if rej := d.readHeaders(r.Headers, m); rej != nil {
		return rej
	}
	s := &d.scan
	if !s.body(m) {
		return s.rejection()
	}
	if m.mode == binaryMode && m.specVersion {
		// The body claims to be a whole event as well, which makes it a
		// structured body with ce_ headers beside it.
		*m = message{mode: headerless, both: m.data[dataAmount].kind != absent, headers: m.headers}
		s.reset(r.Value)
		if !s.body(m) {
			return s.rejection()
		}
	}
	if m.mode == binaryMode {
		d.bindHeaders(r.Headers, m)
	}
	switch {
	case s.badUTF8:
		return s.rejection()
	case m.mode != binaryMode && m.body != object:
		// A batch in headerless form is recognised for the operator's sake.
		if m.body == array && (m.mode == structured || bytes.Contains(r.Value, []byte(`"specversion"`))) {
			return reject(ReasonUnsupportedFormat, "expected one event, got a JSON array: batches are not supported")
		}
		return reject(ReasonNotCloudEvent, "expected a JSON object with specversion, got JSON of another kind")
	case m.mode == headerless && !m.specVersion && !m.folded:
		return reject(ReasonNotCloudEvent, "no ce_specversion header, and the JSON object has no specversion")
	case s.dup:
		return s.rejection()
	case m.mode != binaryMode && m.headers.count > 0:
		return d.compareHeaders(r.Headers, m)
	}
	return nil
}

// body reads the whole value.
func (s *scanner) body(m *message) bool {
	p, c := s.next(0)
	if c == '{' {
		m.body = object
		p = s.members(p, m, m.mode != binaryMode)
	} else {
		var f field
		p = s.value(p, &f)
		m.body = f.kind
	}
	return p != stopped && s.end(p)
}

// members reads an object whose members have a meaning: the envelope, or the
// data in or without one.
func (s *scanner) members(p int, m *message, envelope bool) int {
	frame := s.newFrame()
	o, fields := &s.data, m.data[:]
	if envelope {
		o, fields = &s.envelope, m.attr[:]
	}
	var ignored field
	last := o.start()
	p, ok := s.enter(p, '}')
	for ok {
		i := o.after[last]
		key, colon := o.expect(s.b, p, i)
		if colon == stopped {
			if key, colon = s.key(p); colon == stopped {
				return stopped
			}
			if i = o.index(key); i >= 0 {
				o.after[last] = i
			}
		}
		f, isData := &ignored, false
		if i < 0 {
			s.unknown(m, frame, key, envelope)
		} else {
			last, f = i, &fields[i]
			if f.kind != absent {
				s.noteDup(key, false)
			} else if envelope {
				isData = i == attrData
				m.specVersion = m.specVersion || i == attrSpecVersion
			}
		}
		switch at, c := s.next(colon); {
		case c == '"':
			p = s.text(at, f)
		case c == '{' && isData:
			f.kind = object
			p = s.members(at, m, false)
		default:
			p = s.value(at, f)
		}
		if p == stopped {
			return stopped
		}
		p, ok = s.more(p, '}')
	}
	return p
}

func (s *scanner) unknown(m *message, frame uint32, key []byte, envelope bool) {
	m.unknown++
	if !s.once(frame, key) {
		s.noteDup(key, false)
	}
	var buf [maxFold]byte
	folded := fold(buf[:0], key)
	var i int
	if envelope {
		i = attrIndex(folded)
		m.folded = m.folded || i == attrSpecVersion
	} else {
		i = dataIndex(folded)
		m.specVersion = m.specVersion || m.mode == binaryMode && string(key) == "specversion"
	}
	if i >= 0 {
		s.noteDup(key, true)
	}
}

// rejection is why the scan stopped, or else what it noted.
func (s *scanner) rejection() *Rejection {
	switch {
	case s.fail == ReasonTooLarge:
		return reject(ReasonTooLarge, "nested deeper than %d at byte %d", maxDepth, s.failedAt)
	case s.fail != 0 && s.failedAt >= len(s.b):
		return reject(ReasonInvalidJSON, "the JSON text ends too early")
	case s.fail != 0:
		return reject(ReasonInvalidJSON, "not JSON at byte %d: %s", s.failedAt, quoted(s.b[s.failedAt:]))
	case s.badUTF8 && s.badUTF8At < 0:
		return reject(ReasonInvalidUTF8, "a ce_ header is not valid UTF-8")
	case s.badUTF8:
		return reject(ReasonInvalidUTF8, "invalid UTF-8 or a lone surrogate at byte %d", s.badUTF8At)
	case s.dupFold:
		return reject(ReasonDuplicateKey, "key %s differs only in case from one that has a meaning", quoted(s.dupKey))
	}
	return reject(ReasonDuplicateKey, "key %s is in one object twice", quoted(s.dupKey))
}

// maxFold is longer than any key with a meaning, however its letters are written.
const maxFold = 64

// fold lower-cases key as the most generous readers do: by Unicode's simple
// case folding, and with the dotted and the dotless i taken for an i. A key too
// long to matter is empty.
func fold(dst, key []byte) []byte {
	if len(key) > maxFold {
		return dst
	}
	for p := 0; p < len(key); {
		c := key[p]
		if c < utf8.RuneSelf {
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			dst = append(dst, c)
			p++
			continue
		}
		r, n := utf8.DecodeRune(key[p:])
		switch r {
		case 'ſ': // long s
			dst = append(dst, 's')
		case '\u212a': // Kelvin sign
			dst = append(dst, 'k')
		case 'ı', 'İ':
			dst = append(dst, 'i')
		default:
			dst = append(dst, key[p:p+n]...)
		}
		p += n
	}
	return dst
}
