package event

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// kind is what a field holds. The zero value is a field that isn't there.
type kind uint8

const (
	absent kind = iota
	null
	text
	number
	boolean
	object
	array
)

// field is one value of a message, as it stands in the record.
type field struct {
	// raw is, for a text, what is between the quotes (or the whole header
	// value), and else the value's literal. Escapes are as they were written.
	raw     []byte
	kind    kind
	escaped bool // raw has escapes
	control bool // the text has a Unicode control character (Cc)
}

// given reports whether there is a value: null counts as absent.
func (f *field) given() bool { return f.kind > null }

// text reads a string, whose opening quote is at p.
func (s *scanner) text(p int, f *field) int {
	b, start := s.b, p+1
	p = start
	// as plain does, in place: nearly every string ends within two words
	for len(b)-p >= 8 {
		if odd := oddBytes(binary.LittleEndian.Uint64(b[p:])); odd != 0 {
			p += bits.TrailingZeros64(odd) / 8
			if b[p] != '"' {
				break
			}
			f.raw, f.kind, f.escaped, f.control = b[start:p], text, false, false
			return p + 1
		}
		p += 8
	}
	return s.oddText(start, p, f)
}

// oddText reads the rest, from p on, of a string that starts at start and has
// more than plain text, or ends with the value.
func (s *scanner) oddText(start, p int, f *field) int {
	b := s.b
	f.kind, f.escaped, f.control = text, false, false
	for {
		p += plain(b[p:])
		if p >= len(b) {
			return s.stop(ReasonInvalidJSON, p)
		}
		switch c := b[p]; {
		case c == '"':
			f.raw = b[start:p]
			return p + 1
		case c == '\\':
			f.escaped = true
			r, n, ok := unescapeOne(b[p:])
			if n == 0 {
				return s.stop(ReasonInvalidJSON, p)
			}
			if !ok {
				s.noteUTF8(p)
			}
			f.control = f.control || isControl(r)
			p += n
		case c < ' ':
			return s.stop(ReasonInvalidJSON, p)
		case c < utf8.RuneSelf: // U+007F
			f.control = true
			p++
		default:
			r, n := utf8.DecodeRune(b[p:])
			if r == utf8.RuneError && n == 1 {
				s.noteUTF8(p)
			}
			f.control = f.control || isControl(r)
			p += n
		}
	}
}

// plain is the length of the start of b that is printable ASCII without quote
// and backslash: the part of a string with nothing to look at.
func plain(b []byte) int {
	n := 0
	for ; len(b)-n >= 8; n += 8 {
		if odd := oddBytes(binary.LittleEndian.Uint64(b[n:])); odd != 0 {
			return n + bits.TrailingZeros64(odd)/8
		}
	}
	for ; n < len(b); n++ {
		if c := b[n]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			break
		}
	}
	return n
}

// oddBytes has the high bit set in the first byte of x that is a quote, a
// backslash, below 0x20, or 0x7f and above. Later bytes may have it by mistake,
// because a subtraction borrows from them; there is none in it if there is none
// in x.
func oddBytes(x uint64) uint64 {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	// With bit 1 turned the quote is 0x20 and what is below 0x20 stays there.
	return ((x ^ 2*ones - 0x21*ones) | (x ^ '\\'*ones - ones) | (x + ones) | x) & highs
}

// unescapeOne reads the escape at the start of b: its rune, and its length,
// which is 0 where it is none. A lone surrogate is U+FFFD and not ok.
func unescapeOne(b []byte) (r rune, n int, ok bool) {
	if len(b) < 2 {
		return 0, 0, false
	}
	switch b[1] {
	case '"', '\\', '/':
		return rune(b[1]), 2, true
	case 'b':
		return '\b', 2, true
	case 'f':
		return '\f', 2, true
	case 'n':
		return '\n', 2, true
	case 'r':
		return '\r', 2, true
	case 't':
		return '\t', 2, true
	case 'u':
		r, ok := hex4(b[2:])
		switch {
		case !ok:
			return 0, 0, false
		case r < 0xd800 || r > 0xdfff:
			return r, 6, true
		case r < 0xdc00 && len(b) >= 8 && b[6] == '\\' && b[7] == 'u':
			if low, ok := hex4(b[8:]); ok && low >= 0xdc00 && low <= 0xdfff {
				return (r-0xd800)<<10 + (low - 0xdc00) + 0x10000, 12, true
			}
		}
		return utf8.RuneError, 6, false
	}
	return 0, 0, false
}

func hex4(b []byte) (r rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, c := range b[:4] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// unescape appends raw, which text has accepted, without its escapes.
func unescape(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		r, n, _ := unescapeOne(raw[i:])
		dst = utf8.AppendRune(dst, r)
		raw = raw[i+n:]
	}
}

// isControl reports whether r is in Unicode's category Cc.
func isControl(r rune) bool { return r < ' ' || r >= 0x7f && r <= 0x9f }
