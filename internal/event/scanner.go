package event

import (
	"bytes"
	"hash/maphash"
)

const (
	// maxValue is the largest record value that is looked at, in bytes.
	maxValue = 1 << 20
	// maxDepth is how many objects and arrays may be open at once in a value.
	maxDepth = 32
)

// scanner reads one JSON value in a single pass and without allocation. It
// exists because a general tokenizer was measured (BenchmarkJSONText) to cost as
// much as all that is done here with a message; tests hold it against that
// tokenizer.
//
// What makes the text no JSON stops it (fail). Invalid UTF-8 and duplicate keys
// are noted and the scan goes on, so that the verdict on a message with several
// faults depends on which faults there are and not on their order.
type scanner struct {
	b     []byte
	p     int
	depth int

	fail     Reason // why the scan stopped
	failedAt int    // byte position in b

	badUTF8   bool
	badUTF8At int
	dup       bool
	dupKey    []byte // the first repeated key, without escapes
	dupFold   bool   // it differs in case only

	// Keys without a meaning of their own, to find the repeated ones in time
	// linear in their number. The table is open addressing over names; a slot
	// is empty unless it has this value's generation. The hash is seeded, so a
	// producer can't choose keys that collide.
	seed  maphash.Seed
	names []name
	table []slot
	gen   uint32
	frame uint32 // the last object's number; 0 is the record's headers

	arena []byte // escaped keys without their escapes
}

type name struct {
	hash  uint64
	key   []byte
	frame uint32
}

type slot struct{ gen, index uint32 }

func newScanner() scanner {
	return scanner{seed: maphash.MakeSeed(), table: make([]slot, 64), names: make([]name, 0, 32), arena: make([]byte, 0, 256)}
}

// reset starts on another value.
func (s *scanner) reset(b []byte) {
	s.b, s.p, s.depth = b, 0, 0
	s.fail, s.failedAt = 0, 0
	s.badUTF8, s.dup, s.dupKey, s.dupFold = false, false, nil, false
	s.frame = 0
	s.names, s.arena = s.names[:0], s.arena[:0]
	s.gen++
	if s.gen == 0 { // wrapped: slots of 2^32 values ago would look full
		clear(s.table)
		s.gen = 1
	}
}

// release lets go of the record and of what an unusual one made grow.
func (s *scanner) release() {
	s.b, s.dupKey = nil, nil
	clear(s.names)
	if cap(s.names) > 1<<12 || cap(s.arena) > 1<<16 {
		fresh := newScanner()
		s.names, s.table, s.arena = fresh.names, fresh.table, fresh.arena
	}
}

func (s *scanner) stop(r Reason) bool {
	s.fail, s.failedAt = r, s.p
	return false
}

func (s *scanner) noteUTF8(at int) {
	if !s.badUTF8 {
		s.badUTF8, s.badUTF8At = true, at
	}
}

func (s *scanner) noteDup(key []byte, fold bool) {
	if !s.dup {
		s.dup, s.dupKey, s.dupFold = true, key, fold
	}
}

// next skips white space and returns the byte it stands on, 0 at the end.
func (s *scanner) next() byte {
	for s.p < len(s.b) {
		c := s.b[s.p]
		if c > ' ' {
			return c
		}
		if c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			return c
		}
		s.p++
	}
	return 0
}

// end checks that nothing but white space is left.
func (s *scanner) end() bool {
	if s.next(); s.p < len(s.b) {
		return s.stop(ReasonInvalidJSON)
	}
	return true
}

// enter and more walk through an object or array:
//
//	for ok := s.enter('}'); ok; ok = s.more('}') { ... }
//
// after which s.fail tells whether it ended well.
func (s *scanner) enter(closing byte) bool {
	s.depth++
	if s.depth > maxDepth {
		return s.stop(ReasonTooLarge)
	}
	s.p++
	if s.next() == closing {
		s.p++
		s.depth--
		return false
	}
	return true
}

func (s *scanner) more(closing byte) bool {
	switch {
	case s.fail != 0:
	case s.next() == ',':
		s.p++
		return true
	case s.next() == closing:
		s.p++
		s.depth--
	default:
		s.stop(ReasonInvalidJSON)
	}
	return false
}

// key reads a member's name and the colon. The result is without escapes and
// valid until the next reset.
func (s *scanner) key() (key []byte, ok bool) {
	if s.next() != '"' {
		return nil, s.stop(ReasonInvalidJSON)
	}
	var f field
	if !s.text(&f) {
		return nil, false
	}
	key = f.raw
	if f.escaped {
		n := len(s.arena)
		s.arena = unescape(s.arena, f.raw)
		key = s.arena[n:]
	}
	if s.next() != ':' {
		return nil, s.stop(ReasonInvalidJSON)
	}
	s.p++
	return key, true
}

// newFrame numbers an object, for once.
func (s *scanner) newFrame() uint32 {
	s.frame++
	return s.frame
}

// once reports whether key is new in its object, and remembers it. The key must
// stay as it is until the next reset.
func (s *scanner) once(frame uint32, key []byte) bool {
	if 2*len(s.names) >= len(s.table) {
		s.grow()
	}
	h := maphash.Bytes(s.seed, key) + uint64(frame)*0x9e3779b97f4a7c15
	mask := uint64(len(s.table) - 1)
	i := h & mask
	for ; s.table[i].gen == s.gen; i = (i + 1) & mask {
		n := &s.names[s.table[i].index]
		if n.hash == h && n.frame == frame && bytes.Equal(n.key, key) {
			return false
		}
	}
	s.table[i] = slot{s.gen, uint32(len(s.names))}
	s.names = append(s.names, name{h, key, frame})
	return true
}

func (s *scanner) grow() {
	s.table = make([]slot, 2*len(s.table))
	mask := uint64(len(s.table) - 1)
	for n := range s.names {
		i := s.names[n].hash & mask
		for s.table[i].gen == s.gen {
			i = (i + 1) & mask
		}
		s.table[i] = slot{s.gen, uint32(n)}
	}
}

// value reads any value into f.
func (s *scanner) value(f *field) bool {
	c := s.next()
	if c == '"' {
		return s.text(f)
	}
	start := s.p
	var ok bool
	switch c {
	case '{':
		f.kind, ok = object, s.object()
	case '[':
		f.kind, ok = array, s.array()
	case 't':
		f.kind, ok = boolean, s.literal("true")
	case 'f':
		f.kind, ok = boolean, s.literal("false")
	case 'n':
		f.kind, ok = null, s.literal("null")
	default:
		f.kind, ok = number, s.number()
	}
	f.escaped, f.control = false, false
	f.raw = s.b[start:s.p]
	return ok
}

// object and array read what has no meaning here, and find duplicate keys in it.
// The recursion is bounded by maxDepth.
func (s *scanner) object() bool {
	frame := s.newFrame()
	var f field
	for ok := s.enter('}'); ok; ok = s.more('}') {
		key, ok := s.key()
		if !ok {
			return false
		}
		if !s.once(frame, key) {
			s.noteDup(key, false)
		}
		if !s.value(&f) {
			return false
		}
	}
	return s.fail == 0
}

func (s *scanner) array() bool {
	var f field
	for ok := s.enter(']'); ok; ok = s.more(']') {
		if !s.value(&f) {
			return false
		}
	}
	return s.fail == 0
}

func (s *scanner) literal(word string) bool {
	if len(s.b)-s.p < len(word) || string(s.b[s.p:s.p+len(word)]) != word {
		return s.stop(ReasonInvalidJSON)
	}
	s.p += len(word)
	return true
}

// number reads -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
func (s *scanner) number() bool {
	if s.at('-') {
		s.p++
	}
	switch {
	case s.at('0'):
		s.p++
	case !s.digits():
		return s.stop(ReasonInvalidJSON)
	}
	if s.at('.') {
		s.p++
		if !s.digits() {
			return s.stop(ReasonInvalidJSON)
		}
	}
	if s.at('e') || s.at('E') {
		s.p++
		if s.at('+') || s.at('-') {
			s.p++
		}
		if !s.digits() {
			return s.stop(ReasonInvalidJSON)
		}
	}
	return true
}

func (s *scanner) at(c byte) bool { return s.p < len(s.b) && s.b[s.p] == c }

func (s *scanner) digits() bool {
	start := s.p
	for s.p < len(s.b) && s.b[s.p]-'0' <= 9 {
		s.p++
	}
	return s.p > start
}
