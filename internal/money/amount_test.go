package money

import (
	"errors"
	"math/big"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	nines26 := strings.Repeat("9", 26)
	tests := []struct {
		in   string
		want string // shortest form, or "" where err is expected
		err  error
	}{
		{"0", "0", nil},
		{"-0", "0", nil},
		{"-0.000000000000", "0", nil},
		{"1.5", "1.5", nil},
		{"1.50", "1.5", nil},
		{"1.500000000000", "1.5", nil},
		{"-5", "-5", nil},
		{"10", "10", nil},
		{"0.1", "0.1", nil},
		{"0.000000000001", "0.000000000001", nil},
		{"-0.000000000001", "-0.000000000001", nil},
		{"9007199254740993.000000000001", "9007199254740993.000000000001", nil},
		{"18446744073709551616", "18446744073709551616", nil},
		{nines26, nines26, nil},
		{nines26 + ".999999999999", nines26 + ".999999999999", nil},
		{"-" + nines26 + ".999999999999", "-" + nines26 + ".999999999999", nil},
		{"1" + strings.Repeat("0", 25), "1" + strings.Repeat("0", 25), nil},

		{"0.0000000000001", "", ErrScale},
		{"1.5000000000000", "", ErrScale},
		{"0.0000000000000", "", ErrScale},
		{"-0." + strings.Repeat("0", 1000), "", ErrScale},
		{"1" + strings.Repeat("0", 26), "", ErrRange},
		{"-1" + strings.Repeat("0", 26), "", ErrRange},
		{"1" + strings.Repeat("0", 26) + ".0000000000000", "", ErrRange},
		{strings.Repeat("9", 1_000_000), "", ErrRange},

		{"", "", ErrForm}, {"-", "", ErrForm}, {"+1", "", ErrForm}, {"--1", "", ErrForm},
		{"1.", "", ErrForm}, {".5", "", ErrForm}, {"-.5", "", ErrForm}, {".", "", ErrForm},
		{"00", "", ErrForm}, {"01", "", ErrForm}, {"-01", "", ErrForm}, {"00.5", "", ErrForm},
		{"1e5", "", ErrForm}, {"1E5", "", ErrForm}, {"1e10000", "", ErrForm}, {"1.5e1", "", ErrForm},
		{"0x10", "", ErrForm}, {"1_000", "", ErrForm}, {"1,5", "", ErrForm}, {"1,000", "", ErrForm},
		{" 5", "", ErrForm}, {"5 ", "", ErrForm}, {"5\n", "", ErrForm}, {"5\x00", "", ErrForm},
		{"1.2.3", "", ErrForm}, {"1.-2", "", ErrForm}, {"1-", "", ErrForm}, {"-+1", "", ErrForm},
		{"NaN", "", ErrForm}, {"Infinity", "", ErrForm}, {"-inf", "", ErrForm}, {"null", "", ErrForm},
		{"٣", "", ErrForm}, {"１", "", ErrForm}, {"−1", "", ErrForm}, {"1\u00a0", "", ErrForm},
		{"$1", "", ErrForm}, {"1 USD", "", ErrForm}, {"1/2", "", ErrForm}, {"1'000", "", ErrForm},
		// not well formed at all, so neither range nor scale is what is wrong
		{strings.Repeat("9", 30) + "x", "", ErrForm}, {"1.00000000000000x", "", ErrForm},
		{"0" + strings.Repeat("9", 30), "", ErrForm}, {strings.Repeat("9", 30) + ".", "", ErrForm},
	}
	for _, tt := range tests {
		got, err := Parse([]byte(tt.in))
		if !errors.Is(err, tt.err) {
			t.Errorf("Parse(%.60q) error = %v, want %v", tt.in, err, tt.err)
			continue
		}
		if err == nil && got.String() != tt.want {
			t.Errorf("Parse(%.60q) = %s, want %s", tt.in, got, tt.want)
		}
	}
}

func TestAmountText(t *testing.T) {
	for in, fixed := range map[string]string{
		"0":               "0.000000000000",
		"1.5":             "1.500000000000",
		"-5":              "-5.000000000000",
		"-0.000000000001": "-0.000000000001",
		"100":             "100.000000000000",
		"12345678901234567890123456.123456789012": "12345678901234567890123456.123456789012",
	} {
		a := mustParse(t, in)
		if got := string(a.AppendFixed([]byte("x"))); got != "x"+fixed {
			t.Errorf("AppendFixed(%s) = %s", in, got)
		}
		if got := string(a.AppendText([]byte("x"))); got != "x"+in {
			t.Errorf("AppendText(%s) = %s", in, got)
		}
	}
}

func TestAmountOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		a, b := randomAmount(r), randomAmount(r)
		x, y := units(a), units(b)
		if got, want := a.Cmp(b), x.Cmp(y); got != want {
			t.Fatalf("%s.Cmp(%s) = %d, want %d", a, b, got, want)
		}
		if a.Cmp(a) != 0 || (a == b) != (x.Cmp(y) == 0) {
			t.Fatalf("equality of %s and %s", a, b)
		}
		if a.Sign() != x.Sign() || a.IsZero() != (x.Sign() == 0) {
			t.Fatalf("sign of %s", a)
		}
		if units(a.Neg()).Cmp(new(big.Int).Neg(x)) != 0 || a.Neg().Neg() != a {
			t.Fatalf("Neg of %s = %s", a, a.Neg())
		}
		if back := mustParse(t, string(a.AppendFixed(nil))); back != a {
			t.Fatalf("%s read back as %s", a, back)
		}
		bytes := a.Bytes()
		if want := new(big.Int).And(x, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 128), big.NewInt(1))); new(big.Int).SetBytes(bytes[:]).Cmp(want) != 0 {
			t.Fatalf("Bytes of %s", a)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	in, bad := []byte("-12345678901234567890123456.123456789012"), []byte("1e5")
	buf := make([]byte, 0, 128)
	var s Sum
	allocs := testing.AllocsPerRun(100, func() {
		a, _ := Parse(in)
		_, _ = Parse(bad)
		s.Add(a)
		buf = a.AppendText(buf[:0])
		buf = s.AppendFixed(buf[:0])
		_, _ = ParseSum(buf)
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

var exact = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,12})?$`)

func FuzzParse(f *testing.F) {
	for _, s := range []string{"0", "-0", "1.50", "-5", "1e5", "", "01", ".5", "0.0000000000001", strings.Repeat("9", 27), "99999999999999999999999999.999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := Parse([]byte(s))
		// $ of regexp without flags is the end of the text, not of a line.
		if want := exact.MatchString(s); want != (err == nil) {
			t.Fatalf("Parse(%q) error %v, but the form matches: %v", s, err, want)
		}
		if err != nil {
			if !errors.Is(err, ErrForm) && !errors.Is(err, ErrScale) && !errors.Is(err, ErrRange) {
				t.Fatalf("Parse(%q): %v is none of the three", s, err)
			}
			return
		}
		want, _ := new(big.Rat).SetString(s)
		got, _ := new(big.Rat).SetString(a.String())
		if got.Cmp(want) != 0 {
			t.Fatalf("Parse(%q) = %s", s, a)
		}
		if again, err := Parse([]byte(a.String())); err != nil || again != a {
			t.Fatalf("%s does not read back: %s, %v", a, again, err)
		}
		sum, err := ParseSum([]byte(s))
		if err != nil || sum.String() != a.String() {
			t.Fatalf("ParseSum(%q) = %s, %v", s, sum, err)
		}
	})
}

func mustParse(t testing.TB, s string) Amount {
	t.Helper()
	a, err := Parse([]byte(s))
	if err != nil {
		t.Fatalf("Parse(%q): %v", s, err)
	}
	return a
}

// units reads the fixed form as a whole number of 1e-12 units.
func units(a Amount) *big.Int { return unitsOf(string(a.AppendFixed(nil))) }

func unitsOf(fixed string) *big.Int {
	n, ok := new(big.Int).SetString(strings.Replace(fixed, ".", "", 1), 10)
	if !ok {
		panic("not a number: " + fixed)
	}
	return n
}

// randomAmount favours the edges: few digits, all nines, zero.
func randomAmount(r *rand.Rand) Amount {
	digit := func() byte { return byte('0' + r.IntN(10)) }
	if r.IntN(4) == 0 {
		digit = func() byte { return '9' }
	}
	var b []byte
	if r.IntN(2) == 0 {
		b = append(b, '-')
	}
	if n := r.IntN(27); n == 0 {
		b = append(b, '0')
	} else {
		b = append(b, byte('1'+r.IntN(9)))
		for range n - 1 {
			b = append(b, digit())
		}
	}
	if n := r.IntN(13); n > 0 {
		b = append(b, '.')
		for range n {
			b = append(b, digit())
		}
	}
	a, err := Parse(b)
	if err != nil {
		panic(err)
	}
	return a
}

func BenchmarkParse(b *testing.B) {
	for _, s := range []string{"1.5", "12.345678", "12345678901234567890123456.123456789012"} {
		in := []byte(s)
		b.Run(s, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppendFixed(b *testing.B) {
	a := mustParse(b, "12.345678")
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		buf = a.AppendFixed(buf[:0])
	}
}
