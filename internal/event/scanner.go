package event

import (
	"bytes"
	"hash/maphash"
	"strings"
)

const (
	// maxValue is the largest record value that is looked at, in bytes.
	maxValue = 1 << 20
	// maxDepth is how many objects and arrays may be open at once in a value.
	maxDepth = 32
	// stopped is the position of a scan that can't go on.
	stopped = -1
)

// scanner reads one JSON value in a single pass and without allocation. It
// exists because a general tokenizer was measured to cost more than all that is
// done here with a message; tests hold it against that tokenizer.
//
// What makes the text no JSON stops it (fail). Invalid UTF-8 and duplicate keys
// are noted and the scan goes on, so that the verdict on a message with several
// faults depends on which faults there are and not on their order.
//
// Its methods are given the position to read from, and give back the one behind
// what they read, or stopped.
type scanner struct {
	b     []byte
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

	envelope, data order // of the keys with a meaning
}

type name struct {
	hash  uint64
	key   []byte
	frame uint32
}

type slot struct{ gen, index uint32 }

func newScanner() scanner {
	var members []string
	for _, name := range dataNames {
		members = append(members, strings.TrimPrefix(name, "data."))
	}
	return scanner{
		seed: maphash.MakeSeed(), table: make([]slot, 64), names: make([]name, 0, 32), arena: make([]byte, 0, 256),
		envelope: newOrder(attrNames[:], attrIndex[[]byte]), data: newOrder(members, dataIndex),
	}
}

// reset starts on another value.
func (s *scanner) reset(b []byte) {
	s.b, s.depth = b, 0
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

// stop ends the scan at p.
func (s *scanner) stop(r Reason, p int) int {
	s.fail, s.failedAt = r, p
	return stopped
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

// next skips white space from p on: where the next byte stands, and the byte, 0
// at the end.
func (s *scanner) next(p int) (int, byte) {
	for b := s.b; p < len(b); p++ {
		c := b[p]
		if c > ' ' || c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			return p, c
		}
	}
	return p, 0
}

// end checks that nothing but white space is left.
func (s *scanner) end(p int) bool {
	if p, _ = s.next(p); p < len(s.b) {
		s.stop(ReasonInvalidJSON, p)
	}
	return s.fail == 0
}

// enter and more walk through an object or array:
//
//	for p, ok := s.enter(p, '}'); ok; p, ok = s.more(p, '}') { ... }
//
// after which p is behind it or stopped.
func (s *scanner) enter(p int, closing byte) (int, bool) {
	s.depth++
	if s.depth > maxDepth {
		return s.stop(ReasonTooLarge, p), false
	}
	p, c := s.next(p + 1)
	if c == closing {
		s.depth--
		return p + 1, false
	}
	return p, true
}

func (s *scanner) more(p int, closing byte) (int, bool) {
	p, c := s.next(p)
	switch c {
	case ',':
		p, _ = s.next(p + 1)
		return p, true
	case closing:
		s.depth--
		return p + 1, false
	}
	return s.stop(ReasonInvalidJSON, p), false
}

// key reads a member's name, which starts at p, and the colon. The name is
// without escapes and valid until the next reset.
func (s *scanner) key(p int) (key []byte, colon int) {
	if s.at(p) != '"' {
		return nil, s.stop(ReasonInvalidJSON, p)
	}
	var f field
	if p = s.text(p, &f); p == stopped {
		return nil, stopped
	}
	key = f.raw
	if f.escaped {
		n := len(s.arena)
		s.arena = unescape(s.arena, f.raw)
		key = s.arena[n:]
	}
	p, c := s.next(p)
	if c != ':' {
		return nil, s.stop(ReasonInvalidJSON, p)
	}
	return key, p + 1
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
func (s *scanner) value(p int, f *field) int {
	start, c := s.next(p)
	p = start
	switch c {
	case '"':
		return s.text(p, f)
	case '{':
		f.kind, p = object, s.object(p)
	case '[':
		f.kind, p = array, s.array(p)
	case 't':
		f.kind, p = boolean, s.literal(p, "true")
	case 'f':
		f.kind, p = boolean, s.literal(p, "false")
	case 'n':
		f.kind, p = null, s.literal(p, "null")
	default:
		f.kind, p = number, s.number(p)
	}
	f.escaped, f.control = false, false
	if p != stopped {
		f.raw = s.b[start:p]
	}
	return p
}

// object and array read what has no meaning here, and find duplicate keys in it.
// The recursion is bounded by maxDepth.
func (s *scanner) object(p int) int {
	frame := s.newFrame()
	var f field
	p, ok := s.enter(p, '}')
	for ok {
		var key []byte
		if key, p = s.key(p); p == stopped {
			return stopped
		}
		if !s.once(frame, key) {
			s.noteDup(key, false)
		}
		if p = s.value(p, &f); p == stopped {
			return stopped
		}
		p, ok = s.more(p, '}')
	}
	return p
}

func (s *scanner) array(p int) int {
	var f field
	p, ok := s.enter(p, ']')
	for ok {
		if p = s.value(p, &f); p == stopped {
			return stopped
		}
		p, ok = s.more(p, ']')
	}
	return p
}

func (s *scanner) literal(p int, word string) int {
	if len(s.b)-p < len(word) || string(s.b[p:p+len(word)]) != word {
		return s.stop(ReasonInvalidJSON, p)
	}
	return p + len(word)
}

// number reads -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
func (s *scanner) number(p int) int {
	if s.at(p) == '-' {
		p++
	}
	whole := p
	if p = s.digits(p); p == whole {
		return s.stop(ReasonInvalidJSON, p)
	}
	if s.b[whole] == '0' {
		p = whole + 1 // a digit behind it is what fails then
	}
	if s.at(p) == '.' {
		places := p + 1
		if p = s.digits(places); p == places {
			return s.stop(ReasonInvalidJSON, p)
		}
	}
	if c := s.at(p); c == 'e' || c == 'E' {
		p++
		if c = s.at(p); c == '+' || c == '-' {
			p++
		}
		exponent := p
		if p = s.digits(exponent); p == exponent {
			return s.stop(ReasonInvalidJSON, p)
		}
	}
	return p
}

// at is the byte at p, 0 behind the end.
func (s *scanner) at(p int) byte {
	if p < len(s.b) {
		return s.b[p]
	}
	return 0
}

// digits is the end of the digits that start at p.
func (s *scanner) digits(p int) int {
	for p < len(s.b) && s.b[p]-'0' <= 9 {
		p++
	}
	return p
}
