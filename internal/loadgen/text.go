package loadgen

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"billing/internal/money"
)

// quote appends a text as a JSON string, with escapes also where there need be
// none. Bytes that are not UTF-8 stay as they are.
func quote(b []byte, rng *rand.Rand, s string) []byte {
	b = append(b, '"')
	needless := rng.IntN(6) == 0
	if !needless && !needsEscape(s) {
		b = append(b, s...)
		return append(b, '"')
	}
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			b = append(b, s[0])
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '/' && needless:
			b = append(b, `\/`...)
		case r > 0xffff && needless:
			r -= 0x10000
			b = escape(b, 0xd800+uint16(r>>10), "0123456789abcdef")
			b = escape(b, 0xdc00+uint16(r&0x3ff), "0123456789ABCDEF")
		case r < ' ' || (r <= 0xffff && needless && rng.IntN(3) == 0):
			b = escape(b, uint16(r), "0123456789abcdef")
		default:
			b = utf8.AppendRune(b, r)
		}
		s = s[n:]
	}
	return append(b, '"')
}

func needsEscape(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' {
			return true
		}
	}
	return false
}

func escape(b []byte, unit uint16, digits string) []byte {
	return append(b, '\\', 'u', digits[unit>>12], digits[unit>>8&15], digits[unit>>4&15], digits[unit&15])
}

// hex16 is n in 16 digits.
func hex16(n uint64) string {
	s := strconv.FormatUint(n, 16)
	return "0000000000000000"[len(s):] + s
}

// timeText writes t in RFC 3339, in some zone, with as many places as it needs
// or more: what is less than a microsecond is to be cut off.
func timeText(rng *rand.Rand, t time.Time) string {
	minutes, zone := 0, "Z"
	switch rng.IntN(4) {
	case 0:
		minutes, zone = 15*(rng.IntN(2*14*4+1)-14*4), ""
	case 1:
		zone = "-00:00"
	}
	b := make([]byte, 0, 40)
	b = t.UTC().Add(time.Duration(minutes)*time.Minute).AppendFormat(b, "2006-01-02T15:04:05")
	point := len(b)
	b = appendDigits(append(b, '.'), t.Nanosecond()/1000, 6)
	switch rng.IntN(3) {
	case 0:
		for b[len(b)-1] == '0' {
			b = b[:len(b)-1]
		}
		if len(b) == point+1 {
			b = b[:point]
		}
	case 1:
		b = appendDigits(b, rng.IntN(1000), 3)
	}
	if zone == "" {
		sign := byte('+')
		if minutes < 0 {
			sign, minutes = '-', -minutes
		}
		b = appendDigits(append(b, sign), minutes/60, 2)
		b = appendDigits(append(b, ':'), minutes%60, 2)
	}
	return string(append(b, zone...))
}

// appendDigits appends n with leading zeros, in up to six digits.
func appendDigits(b []byte, n, digits int) []byte {
	s := strconv.Itoa(n)
	b = append(b, "000000"[:digits-len(s)]...)
	return append(b, s...)
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
		text += "000000000000"[:least+rng.IntN(money.Places-len(places)-least+1)]
	}
	return text
}
