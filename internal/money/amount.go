// Package money holds exact decimal amounts and their sums.
//
// One unit is 1e-12 of a currency or of a quantity's measure, for amounts and
// for sums alike. Nothing here rounds, and nothing here is a float: a text that
// can't be held exactly is an error.
package money

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math/bits"
)

const (
	// Places is the number of decimal places of every Amount and Sum.
	Places = 12
	// MaxIntegerDigits is the largest number of digits an Amount has before
	// its decimal point. With Places it makes a DECIMAL(38,12).
	MaxIntegerDigits = 26
	// MaxSumIntegerDigits is the same for ParseSum: a DECIMAL(65,12).
	MaxSumIntegerDigits = 53
)

// Errors of Parse and ParseSum. They are returned as they are, never wrapped.
var (
	// ErrForm says that the text is not of the form -?(0|[1-9][0-9]*)(\.[0-9]+)?
	// at all: a plus sign, an exponent, a leading zero, white space, nothing.
	ErrForm = errors.New("not a plain decimal number")
	// ErrScale says that a well-formed number has more than 12 decimal places,
	// also where the excess is zeros.
	ErrScale = errors.New("more than 12 decimal places")
	// ErrRange says that a well-formed number has more integer digits than
	// fit, whatever its places.
	ErrRange = errors.New("too many integer digits")
)

// Amount is an exact signed decimal with 12 places and an absolute value below
// 10^26. The zero value is 0. Every number has exactly one representation, so
// == is equality of numbers and an Amount can be a map key.
type Amount struct {
	// Two's complement 128-bit count of 1e-12 units. 10^38 < 2^127, so the
	// whole range fits, and so does the negative of each value in it.
	hi int64
	lo uint64
}

// Parse reads the exact form -?(0|[1-9][0-9]{0,25})(\.[0-9]{1,12})? and nothing
// else. "-0" is 0. The error is ErrForm, ErrScale or ErrRange; a well-formed
// number with both too many integer digits and too many places is ErrRange,
// as no choice of places would make it fit. Parse does not keep b.
func Parse(b []byte) (Amount, error) {
	if a, ok := parseShort(b); ok {
		return a, nil
	}
	d, err := split(b, MaxIntegerDigits)
	if err != nil {
		return Amount{}, err
	}
	// At most 26 digits: the first 19 fit one word, the rest shift them.
	head, tail := d.integer, []byte(nil)
	if len(head) > 19 {
		head, tail = d.integer[:19], d.integer[19:]
	}
	hi, lo := bits.Mul64(digits(head), pow10[len(tail)])
	lo, c := bits.Add64(lo, digits(tail), 0)
	hi += c
	// times 10^12, plus the places
	top, low := bits.Mul64(lo, pow10[Places])
	hi = hi*pow10[Places] + top
	low, c = bits.Add64(low, digits(d.places)*pow10[Places-len(d.places)], 0)
	hi += c
	a := Amount{hi: int64(hi), lo: low}
	if d.negative {
		a = a.Neg()
	}
	return a, nil
}

// parseShort is Parse for a number that is good and has at most 19 digits and
// point, as nearly all have: one pass, one word.
func parseShort(b []byte) (a Amount, ok bool) {
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		b = b[1:]
	}
	if len(b) == 0 || len(b) > 19 {
		return Amount{}, false
	}
	var n uint64
	point := len(b)
	for i, c := range b {
		switch {
		case c-'0' <= 9:
			n = n*10 + uint64(c-'0')
		case c == '.' && point == len(b):
			point = i
		default:
			return Amount{}, false
		}
	}
	places := max(len(b)-point-1, 0)
	if point == 0 || point == len(b)-1 || point > 1 && b[0] == '0' || places > Places {
		return Amount{}, false
	}
	hi, lo := bits.Mul64(n, pow10[Places-places])
	a = Amount{hi: int64(hi), lo: lo}
	if negative {
		a = a.Neg()
	}
	return a, true
}

// Sign is -1, 0 or +1.
func (a Amount) Sign() int {
	switch {
	case a.hi < 0:
		return -1
	case a.hi == 0 && a.lo == 0:
		return 0
	}
	return 1
}

// IsZero reports whether a is 0.
func (a Amount) IsZero() bool { return a == Amount{} }

// Neg is -a. It can't overflow.
func (a Amount) Neg() Amount {
	lo, borrow := bits.Sub64(0, a.lo, 0)
	return Amount{hi: int64(-uint64(a.hi) - borrow), lo: lo}
}

// Cmp is -1, 0 or +1 as a is less than, equal to or greater than b.
func (a Amount) Cmp(b Amount) int {
	if c := cmp.Compare(a.hi, b.hi); c != 0 {
		return c
	}
	return cmp.Compare(a.lo, b.lo)
}

// Bytes is the number of 1e-12 units as 16 bytes, big-endian two's complement:
// the form to hash or store.
func (a Amount) Bytes() [16]byte {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(a.hi))
	binary.BigEndian.PutUint64(b[8:], a.lo)
	return b
}

// AppendText appends the shortest form: "1.5", "0", "-5".
func (a Amount) AppendText(dst []byte) []byte { return a.sum().AppendText(dst) }

// AppendFixed appends the form with all 12 places, as SQL prints a
// DECIMAL(38,12): "1.500000000000".
func (a Amount) AppendFixed(dst []byte) []byte { return a.sum().AppendFixed(dst) }

// String is the shortest form, as AppendText.
func (a Amount) String() string { return string(a.AppendText(nil)) }

func (a Amount) sum() Sum {
	sign := uint64(a.hi >> 63)
	return Sum{w: [4]uint64{a.lo, uint64(a.hi), sign, sign}}
}

// decimal is a well-formed number taken apart; the slices are digits only.
type decimal struct {
	negative        bool
	integer, places []byte
}

// split checks the form of b and its limits.
func split(b []byte, maxInteger int) (d decimal, err error) {
	if len(b) > 0 && b[0] == '-' {
		d.negative, b = true, b[1:]
	}
	n := run(b)
	d.integer = b[:n]
	if n == 0 || (n > 1 && b[0] == '0') {
		return d, ErrForm
	}
	if n < len(b) {
		d.places = b[n+1:]
		if b[n] != '.' || len(d.places) == 0 || run(d.places) != len(d.places) {
			return d, ErrForm
		}
	}
	switch {
	case n > maxInteger:
		return d, ErrRange
	case len(d.places) > Places:
		return d, ErrScale
	}
	return d, nil
}

// run counts the ASCII digits at the start of b.
func run(b []byte) int {
	for i, c := range b {
		if c-'0' > 9 {
			return i
		}
	}
	return len(b)
}

// digits is the value of at most 19 digits, which fits: 10^19 < 2^64.
func digits(b []byte) (n uint64) {
	for _, c := range b {
		n = n*10 + uint64(c-'0')
	}
	return n
}

// pow10 holds the powers of ten that fit one word.
var pow10 = [20]uint64{
	1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9,
	1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19,
}
