package money

import (
	"errors"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

// Mod is that of the number, and that of a sum the sum of those of its parts.
func TestSumMod(t *testing.T) {
	prime := new(big.Int).SetUint64(Prime)
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(Places), nil)
	sums := []string{"0", "1", "-1", "0.000000000001", "-0.000000000001", "2305843.009213693951", "-2305843.009213693951", "18446744.073709551616", "-99999999999999999999999999999999999999999999999999999.999999999999", "99999999999999999999999999999999999999999999999999999.999999999999"}
	for _, a := range sums {
		s, err := ParseSum([]byte(a))
		if err != nil {
			t.Fatal(err)
		}
		r, _ := new(big.Rat).SetString(a)
		n := new(big.Int).Div(new(big.Int).Mul(r.Num(), unit), r.Denom())
		if want := n.Mod(n, prime).Uint64(); s.Mod() != want {
			t.Errorf("%s: %d, want %d", a, s.Mod(), want)
		}
		for _, b := range sums {
			o, err := ParseSum([]byte(b))
			if err != nil {
				t.Fatal(err)
			}
			both := s
			both.AddSum(o)
			if both.Mod() != (s.Mod()+o.Mod())%Prime || both.Low() != s.Low()+o.Low() {
				t.Errorf("%s and %s: not the sum of both", a, b)
			}
		}
	}
}

func TestSumAgainstBig(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var s Sum
	want := new(big.Int)
	for i := range 50_000 {
		a := randomAmount(r)
		switch r.IntN(4) {
		case 0:
			s.Sub(a)
			want.Sub(want, units(a))
		case 1:
			var part Sum
			part.Add(a)
			part.Add(a)
			s.AddSum(part)
			want.Add(want, new(big.Int).Lsh(units(a), 1))
		case 2:
			var part Sum
			part.Add(a)
			s.SubSum(part)
			want.Sub(want, units(a))
		default:
			s.Add(a)
			want.Add(want, units(a))
		}
		if i%97 != 0 {
			continue
		}
		fixed := string(s.AppendFixed(nil))
		if unitsOf(fixed).Cmp(want) != 0 || s.Sign() != want.Sign() {
			t.Fatalf("after %d: %s, want %s units", i, fixed, want)
		}
		back, err := ParseSum([]byte(fixed))
		if err != nil || !back.Equal(s) {
			t.Fatalf("ParseSum(%s) = %s, %v", fixed, back, err)
		}
	}
}

// Two of the largest amounts don't fit an Amount: the total must.
func TestSumBeyondAmount(t *testing.T) {
	big := mustParse(t, strings.Repeat("9", 26)+".999999999999")
	var s Sum
	for range 1000 {
		s.Add(big)
	}
	if got, want := s.String(), strings.Repeat("9", 26)+"999.999999999"; got != want {
		t.Errorf("sum = %s, want %s", got, want)
	}
	for range 2000 {
		s.Sub(big)
	}
	if got, want := s.String(), "-"+strings.Repeat("9", 26)+"999.999999999"; got != want {
		t.Errorf("sum = %s, want %s", got, want)
	}
	for range 1000 {
		s.Add(big)
	}
	if !s.IsZero() || s.String() != "0" || s.Sign() != 0 {
		t.Errorf("sum = %s, want 0", s)
	}
}

func TestSumExact(t *testing.T) {
	tests := []struct {
		add   string
		times int
		want  string
	}{
		{"0.004", 1000, "4"},
		{"0.1", 3, "0.3"},
		{"0.000000000001", 1_000_000, "0.000001"},
		{"9007199254740993.000000000001", 2, "18014398509481986.000000000002"},
		{"-0.3", 10, "-3"},
	}
	for _, tt := range tests {
		a := mustParse(t, tt.add)
		var s Sum
		for range tt.times {
			s.Add(a)
		}
		if s.String() != tt.want {
			t.Errorf("%d x %s = %s, want %s", tt.times, tt.add, s, tt.want)
		}
	}
}

func TestParseSum(t *testing.T) {
	nines := strings.Repeat("9", 53) + ".999999999999"
	tests := []struct {
		in, want string
		err      error
	}{
		{"0.000000000000", "0", nil},
		{"-0.000000000000", "0", nil},
		{"12.340000000000", "12.34", nil},
		{"-12.340000000000", "-12.34", nil},
		{nines, nines, nil},
		{"-" + nines, "-" + nines, nil},
		{"1" + strings.Repeat("0", 53), "", ErrRange},
		{"0.0000000000000", "", ErrScale},
		{"", "", ErrForm},
		{"1e3", "", ErrForm},
		{"NULL", "", ErrForm},
		{"00", "", ErrForm},
	}
	for _, tt := range tests {
		got, err := ParseSum([]byte(tt.in))
		if !errors.Is(err, tt.err) {
			t.Errorf("ParseSum(%q) error = %v, want %v", tt.in, err, tt.err)
		} else if err == nil && got.String() != tt.want {
			t.Errorf("ParseSum(%q) = %s, want %s", tt.in, got, tt.want)
		}
	}
}

func FuzzSum(f *testing.F) {
	f.Add("1.5", "-1.5")
	f.Add(strings.Repeat("9", 53)+".999999999999", "0.000000000001")
	f.Add("-"+strings.Repeat("9", 53), "1")
	f.Fuzz(func(t *testing.T, x, y string) {
		a, err := ParseSum([]byte(x))
		if err != nil {
			return
		}
		b, err := ParseSum([]byte(y))
		if err != nil {
			return
		}
		p, q := unitsOf(string(a.AppendFixed(nil))), unitsOf(string(b.AppendFixed(nil)))
		sum, diff := a, a
		sum.AddSum(b)
		diff.SubSum(b)
		if got := unitsOf(string(sum.AppendFixed(nil))); got.Cmp(new(big.Int).Add(p, q)) != 0 {
			t.Fatalf("%s + %s = %s", x, y, got)
		}
		if got := unitsOf(string(diff.AppendFixed(nil))); got.Cmp(new(big.Int).Sub(p, q)) != 0 {
			t.Fatalf("%s - %s = %s", x, y, got)
		}
		rx, _ := new(big.Rat).SetString(x)
		ra, _ := new(big.Rat).SetString(a.String())
		if rx.Cmp(ra) != 0 {
			t.Fatalf("ParseSum(%q) = %s", x, a)
		}
	})
}

func BenchmarkSumAdd(b *testing.B) {
	a := mustParse(b, "12.345678")
	var s Sum
	for b.Loop() {
		s.Add(a)
	}
}
