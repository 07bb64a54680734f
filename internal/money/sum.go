package money

import "math/bits"

// Sum is an exact signed total of Amounts, in the same unit of 1e-12. The zero
// value is 0, and as with Amount, == is equality of numbers.
//
// It does not overflow for any count that can occur. It holds 255 bits and a
// sign, 5.7e76 units, and one Amount is less than 1e38 units: 5.7e38 of the
// largest amounts fit, while a million additions a second for a century are
// 3.2e15. The column that keeps a sum, DECIMAL(65,12), ends sooner, after 1e27
// of them; adding up values read from such columns takes 5.7e11 full ones.
type Sum struct {
	w [4]uint64 // two's complement, least significant word first
}

// Add adds a.
func (s *Sum) Add(a Amount) { s.AddSum(a.sum()) }

// Sub subtracts a.
func (s *Sum) Sub(a Amount) { s.AddSum(a.Neg().sum()) }

// AddSum adds t.
func (s *Sum) AddSum(t Sum) {
	var c uint64
	s.w[0], c = bits.Add64(s.w[0], t.w[0], 0)
	s.w[1], c = bits.Add64(s.w[1], t.w[1], c)
	s.w[2], c = bits.Add64(s.w[2], t.w[2], c)
	s.w[3], _ = bits.Add64(s.w[3], t.w[3], c)
}

// SubSum subtracts t.
func (s *Sum) SubSum(t Sum) { s.AddSum(t.Neg()) }

// Neg is -s.
func (s Sum) Neg() Sum {
	var r Sum
	var c uint64
	r.w[0], c = bits.Sub64(0, s.w[0], 0)
	r.w[1], c = bits.Sub64(0, s.w[1], c)
	r.w[2], c = bits.Sub64(0, s.w[2], c)
	r.w[3], _ = bits.Sub64(0, s.w[3], c)
	return r
}

// Sign is -1, 0 or +1.
func (s Sum) Sign() int {
	switch {
	case int64(s.w[3]) < 0:
		return -1
	case s == Sum{}:
		return 0
	}
	return 1
}

// Low is s modulo 2^64. The Low of a sum is the sum of the Lows, for checks that
// add up without the room for whole sums.
func (s Sum) Low() uint64 { return s.w[0] }

// Prime is the modulus of Mod.
const Prime = 1<<61 - 1

// Mod is s modulo Prime, from 0 on. As with Low, that of a sum is the sum of
// those of its parts.
func (s Sum) Mod() uint64 {
	const wrap = 8 // 2^64 modulo Prime
	r := uint64(0)
	for i := len(s.w) - 1; i >= 0; i-- {
		r = (wrap*r%Prime + s.w[i]%Prime) % Prime
	}
	if s.Sign() < 0 {
		r = (r + Prime - wrap*wrap*wrap*wrap) % Prime // 2^256 less
	}
	return r
}

// IsZero reports whether s is 0.
func (s Sum) IsZero() bool { return s == Sum{} }

// Equal reports whether s and t are the same number.
func (s Sum) Equal(t Sum) bool { return s == t }

// ParseSum reads a DECIMAL(65,12) as MySQL prints it, that is the form of Parse
// with up to 53 integer digits. Errors are those of Parse. It does not keep b.
func ParseSum(b []byte) (Sum, error) {
	d, err := split(b, MaxSumIntegerDigits)
	if err != nil {
		return Sum{}, err
	}
	var s Sum
	for rest := d.integer; len(rest) > 0; {
		n := min(len(rest), 19)
		s.mulAdd(pow10[n], digits(rest[:n]))
		rest = rest[n:]
	}
	s.mulAdd(pow10[Places], digits(d.places)*pow10[Places-len(d.places)])
	if d.negative {
		s = s.Neg()
	}
	return s, nil
}

// mulAdd makes s = s*m + a for a non-negative s.
func (s *Sum) mulAdd(m, a uint64) {
	for i := range s.w {
		hi, lo := bits.Mul64(s.w[i], m)
		var c uint64
		s.w[i], c = bits.Add64(lo, a, 0)
		a = hi + c
	}
}

// AppendText appends the shortest form: "1.5", "0", "-5".
func (s Sum) AppendText(dst []byte) []byte { return s.append(dst, false) }

// AppendFixed appends the form with all 12 places, as SQL prints a
// DECIMAL(65,12): "1.500000000000".
func (s Sum) AppendFixed(dst []byte) []byte { return s.append(dst, true) }

// String is the shortest form, as AppendText.
func (s Sum) String() string { return string(s.append(nil, false)) }

func (s Sum) append(dst []byte, fixed bool) []byte {
	if int64(s.w[3]) < 0 {
		dst = append(dst, '-')
		s = s.Neg() // read as unsigned from here, so the smallest value is fine too
	}
	var buf [80]byte // 2^255 has 77 digits
	i := len(buf)
	place := 0
	for s != (Sum{}) || place <= Places {
		chunk := s.divMod(1e19)
		for n := 0; n < 19; n++ {
			if chunk == 0 && place > Places && s == (Sum{}) {
				break
			}
			if place == Places {
				i--
				buf[i] = '.'
			}
			i--
			buf[i] = byte('0' + chunk%10)
			chunk /= 10
			place++
		}
	}
	out := buf[i:]
	if !fixed {
		for out[len(out)-1] == '0' {
			out = out[:len(out)-1]
		}
		if out[len(out)-1] == '.' {
			out = out[:len(out)-1]
		}
	}
	return append(dst, out...)
}

// divMod divides s, read as unsigned, by m and returns the remainder.
func (s *Sum) divMod(m uint64) (rem uint64) {
	for i := 3; i >= 0; i-- {
		s.w[i], rem = bits.Div64(rem, s.w[i], m)
	}
	return rem
}
