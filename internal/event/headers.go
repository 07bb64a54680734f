package event

import (
	"bytes"
	"unicode/utf8"
)

// headers is what a record's headers say of the message.
type headers struct {
	// at is the index of each ce_ header with a meaning, plus one. The
	// attribute data never has one.
	at    [attrCount]int32
	count int // all ce_ headers
	other int // those without a meaning: extension attributes
}

// media is what a content type says of the body.
type media uint8

const (
	mediaNone        media = iota // no content type
	mediaStructured               // application/cloudevents+json
	mediaUnsupported              // application/cloudevents in any other format, or a batch
	mediaJSON
	mediaOther
)

// readHeaders finds the mode.
//
// Header names are compared byte for byte, as Kafka does; but one that differs
// from a ce_ header with a meaning only in case is refused, because there are
// readers that lower-case all names. For that reason the content type is
// recognised in any case. It may be repeated as long as the copies agree on
// what the body is.
func (d *Decoder) readHeaders(hs []Header, m *message) *Rejection {
	h := &m.headers
	var content media
	for i := range hs {
		key := hs[i].Key
		switch {
		case key == "content-type" || len(key) == len("content-type") && equalASCIIFold(key, "content-type"):
			if hs[i].Value == nil {
				continue
			}
			c := mediaOf(hs[i].Value)
			if content != mediaNone && content != c {
				return reject(ReasonAmbiguousEnvelope, "two content-type headers that differ: the second is %s", quoted(hs[i].Value))
			}
			content = c
		case len(key) >= len("ce_") && key[2] == '_' && key[0]|0x20 == 'c' && key[1]|0x20 == 'e':
			if rej := d.readCEHeader(h, i, key); rej != nil {
				return rej
			}
		}
	}
	switch {
	case content == mediaUnsupported:
		return reject(ReasonUnsupportedFormat, "content-type: of the CloudEvents formats only application/cloudevents+json is supported")
	case content == mediaStructured:
		m.mode = structured
		return nil
	case h.at[attrSpecVersion] == 0:
		m.mode = headerless
		return nil
	}
	m.mode = binaryMode
	// ce_datacontenttype is not in the Kafka binding, but it is sent. Without
	// any content type the data is taken to be JSON, as CloudEvents does; it
	// has to parse as such anyway.
	if at := h.at[attrDataContentType]; at > 0 && hs[at-1].Value != nil {
		isJSON := isJSONMedia(hs[at-1].Value)
		if content != mediaNone && isJSON != (content == mediaJSON) {
			return reject(ReasonAmbiguousEnvelope, "content-type and ce_datacontenttype differ on whether the data is JSON")
		}
		if !isJSON {
			content = mediaOther
		}
	}
	switch {
	case content == mediaOther:
		return reject(ReasonUnsupportedFormat, "content-type: expected a JSON media type for the data of a binary event")
	case h.at[attrDataBase64] > 0:
		return reject(ReasonUnsupportedFormat, "data_base64 is not supported")
	case h.at[attrData] > 0:
		return reject(ReasonAmbiguousEnvelope, "ce_data: the data of a binary event is the record's value")
	}
	return nil
}

func (d *Decoder) readCEHeader(h *headers, i int, key string) *Rejection {
	s := &d.scan
	exact := key[0] == 'c' && key[1] == 'e'
	at := attrIndex(key[len("ce_"):])
	var name []byte
	if at < 0 || !exact {
		// copied to where the set of names wants it: a string's bytes
		n := len(s.arena)
		s.arena = append(s.arena, key...)
		name = s.arena[n+len("ce_"):]
		var buf [maxFold]byte
		if attrIndex(fold(buf[:0], name)) >= 0 {
			return reject(ReasonAmbiguousEnvelope, "header %s differs only in case from one that has a meaning", quoted([]byte(key)))
		}
		if !exact {
			return nil // another header, whatever it is for
		}
	}
	var twice bool
	if at < 0 {
		twice = !s.once(0, name)
		h.other++
	} else {
		twice = h.at[at] > 0
		h.at[at] = int32(i + 1)
	}
	h.count++
	if twice {
		return reject(ReasonAmbiguousEnvelope, "header %s is given twice", quoted([]byte(key)))
	}
	return nil
}

// bindHeaders makes a binary event's headers its attributes, as they are:
// without percent-decoding.
func (d *Decoder) bindHeaders(hs []Header, m *message) {
	m.attr[attrData].kind = m.body
	for i, at := range m.headers.at {
		if at == 0 {
			continue
		}
		f := &m.attr[i]
		f.raw, f.kind = hs[at-1].Value, text
		if f.raw == nil {
			f.kind = null
		}
		d.scan.checkHeader(f)
	}
	m.unknown += uint32(m.headers.other)
	if m.headers.other > 0 {
		// as for an unknown field in JSON, the text must be one all the same
		for i := range hs {
			if len(hs[i].Key) >= 3 && hs[i].Key[:3] == "ce_" {
				d.scan.checkHeader(&field{raw: hs[i].Value})
			}
		}
	}
}

// checkHeader looks at a header's text as text does at a string.
func (s *scanner) checkHeader(f *field) {
	for p := plain(f.raw); p < len(f.raw); p += plain(f.raw[p:]) {
		r, n := utf8.DecodeRune(f.raw[p:])
		if r == utf8.RuneError && n == 1 && !s.badUTF8 {
			s.badUTF8, s.badUTF8At = true, -1
		}
		f.control = f.control || isControl(r)
		p += n
	}
}

// compareHeaders looks for a ce_ header that doesn't say what the structured
// body beside it says. Texts are compared byte for byte, also times.
func (d *Decoder) compareHeaders(hs []Header, m *message) *Rejection {
	differs := func(key string) *Rejection {
		return reject(ReasonAmbiguousEnvelope, "header %s differs from the body, or the body has no such attribute", quoted([]byte(key)))
	}
	if m.both {
		return reject(ReasonAmbiguousEnvelope, "ce_ headers beside a body that can be read as an event and as an event's data")
	}
	for i, at := range m.headers.at {
		if at > 0 && !d.same(&m.attr[i], hs[at-1].Value) {
			return differs(hs[at-1].Key)
		}
	}
	if m.headers.other == 0 {
		return nil
	}
	// Extension attributes: walk over the body again, which is known to be good.
	extensions := make(map[string][]byte, m.headers.other)
	for i := range hs {
		if key := hs[i].Key; len(key) >= 3 && key[:3] == "ce_" && attrIndex(key[3:]) < 0 {
			extensions[key[3:]] = hs[i].Value
		}
	}
	s := &d.scan
	p, _ := s.next(0)
	for p, ok := s.enter(p, '}'); ok; p, ok = s.more(p, '}') {
		var f field
		key, colon := s.key(p)
		p = s.value(colon, &f)
		if value, ok := extensions[string(key)]; ok {
			if !d.same(&f, value) {
				return differs("ce_" + string(key))
			}
			delete(extensions, string(key))
		}
	}
	for i := range hs { // in the order of the headers
		if key := hs[i].Key; len(key) >= 3 && key[:3] == "ce_" {
			if value, left := extensions[key[3:]]; left && value != nil {
				return differs(key)
			}
		}
	}
	return nil
}

// same reports whether a header says what the body's field says. Null on either
// side is a value that isn't there.
func (d *Decoder) same(f *field, header []byte) bool {
	switch f.kind {
	case absent, null:
		return header == nil
	case text:
		return header != nil && bytes.Equal(d.look(f), header)
	case number, boolean:
		return bytes.Equal(f.raw, header)
	case object, array: // no header says one
	}
	return false
}

// look is a text without its escapes, valid until the scratch is used again.
func (d *Decoder) look(f *field) []byte {
	if !f.escaped {
		return f.raw
	}
	d.scratch = unescape(d.scratch[:0], f.raw)
	return d.scratch
}

// mediaOf classifies a content type. Its parameters don't matter: what is JSON
// is UTF-8 here whatever they claim, or it is refused as such.
func mediaOf(v []byte) media {
	switch string(v) { // the usual spellings need no taking apart
	case "application/cloudevents+json", "application/cloudevents+json; charset=UTF-8", "application/cloudevents+json; charset=utf-8":
		return mediaStructured
	case "application/json":
		return mediaJSON
	}
	t := mediaType(v)
	const events = "application/cloudevents"
	switch {
	case len(t) >= len(events) && equalASCIIFold(string(t[:len(events)]), events):
		if equalASCIIFold(string(t[len(events):]), "+json") {
			return mediaStructured
		}
		return mediaUnsupported
	case isJSONMedia(v):
		return mediaJSON
	}
	return mediaOther
}

// isJSONMedia reports whether v is */json or */*+json.
func isJSONMedia(v []byte) bool {
	if string(v) == "application/json" {
		return true
	}
	t := mediaType(v)
	slash := bytes.IndexByte(t, '/')
	if slash <= 0 {
		return false
	}
	sub := t[slash+1:]
	if len(sub) > len("+json") {
		sub = sub[len(sub)-len("+json"):]
		return equalASCIIFold(string(sub), "+json")
	}
	return equalASCIIFold(string(sub), "json")
}

// mediaType cuts off parameters and blanks.
func mediaType(v []byte) []byte {
	if i := bytes.IndexByte(v, ';'); i >= 0 {
		v = v[:i]
	}
	return bytes.Trim(v, " \t")
}

// equalASCIIFold compares s to a lower-case word.
func equalASCIIFold(s, lower string) bool {
	if len(s) != len(lower) {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}
