package audit

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"testing"

	"billing/internal/money"
)

func amount(t *testing.T, text string) money.Sum {
	t.Helper()
	s, err := money.ParseSum([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// keyIn is a key of a group; n tells keys of it apart.
func keyIn(group int, n byte) (k totalKey) {
	copy(k[:], groupEdge(group, 0))
	k[15] = n
	return k
}

// What the ledger adds in many rows, and the totals have in few, leaves nothing.
func TestSketchOfEqualSidesIsEmpty(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := newSketch(maphash.MakeSeed())
	lane := newSketch(s.seed)
	totals := map[totalKey]*entry{}
	for range 5000 {
		var e entry
		e.key = keyIn(rng.IntN(1<<groupBits), byte(rng.IntN(3)))
		e.entries = 1
		sum := amount(t, fmt.Sprintf("%d.%012d", rng.Uint64N(1e18), rng.Uint64N(1e12)))
		if rng.IntN(2) == 0 {
			e.charge = sum
			e.quantity.AddSum(sum)
		} else {
			e.credit = sum.Neg()
			e.quantity.SubSum(sum)
		}
		lane.add(&e)
		if totals[e.key] == nil {
			totals[e.key] = &entry{key: e.key}
		}
		totals[e.key].add(&e.amounts)
	}
	s.merge(lane)
	if len(s.left()) < 1000 {
		t.Fatal("the groups are not spread")
	}
	for _, e := range totals {
		s.sub(e)
	}
	if left := s.left(); len(left) > 0 {
		t.Errorf("groups %v are left", left)
	}
	lane.clear()
	if len(lane.left()) > 0 {
		t.Error("clear leaves something")
	}
}

// Errors that cancel each other out in the exact sums of a group show all the
// same, whatever they are about.
func TestSketchSeesErrorsThatCancelOut(t *testing.T) {
	for name, change := range map[string]func(a, b *entry){
		"charge moved": func(a, b *entry) {
			a.charge.AddSum(amount(t, "1"))
			b.charge.SubSum(amount(t, "1"))
		},
		"the least charge moved": func(a, b *entry) {
			a.charge.AddSum(amount(t, "0.000000000001"))
			b.charge.SubSum(amount(t, "0.000000000001"))
		},
		"the largest amount moved": func(a, b *entry) {
			a.charge.AddSum(amount(t, "99999999999999999999999999.999999999999"))
			b.charge.SubSum(amount(t, "99999999999999999999999999.999999999999"))
		},
		"a power of two moved": func(a, b *entry) {
			a.charge.AddSum(amount(t, "2251799813685248"))
			b.charge.SubSum(amount(t, "2251799813685248"))
		},
		"the prime moved": func(a, b *entry) {
			a.quantity.AddSum(amount(t, "2305843.009213693951"))
			b.quantity.SubSum(amount(t, "2305843.009213693951"))
		},
		"many entries moved": func(a, b *entry) { a.entries += 1 << 62; b.entries -= 1 << 62 },
		"credit moved": func(a, b *entry) {
			a.credit.AddSum(amount(t, "5"))
			b.credit.SubSum(amount(t, "5"))
		},
		"quantity moved": func(a, b *entry) {
			a.quantity.AddSum(amount(t, "1024"))
			b.quantity.SubSum(amount(t, "1024"))
		},
		"an entry moved":    func(a, b *entry) { a.entries++; b.entries-- },
		"rows changed keys": func(a, b *entry) { a.key, b.key = b.key, a.key },
	} {
		for try := range 50 { // the factors are drawn anew each time
			s := newSketch(maphash.MakeSeed())
			is := [2]entry{{key: keyIn(77, 1)}, {key: keyIn(77, 2)}}
			for i := range is {
				is[i].charge, is[i].credit, is[i].quantity, is[i].entries = amount(t, fmt.Sprint(100+i)), amount(t, fmt.Sprint(-10-i)), amount(t, "3"), 5
				s.add(&is[i])
			}
			change(&is[0], &is[1])
			s.sub(&is[0])
			s.sub(&is[1])
			if left := s.left(); len(left) != 1 || left[0] != 77 {
				t.Fatalf("%s, try %d: groups %v are left, want 77", name, try, left)
			}
		}
	}
}

// A group's edges are its first and last key.
func TestGroupEdges(t *testing.T) {
	for _, g := range []int{0, 1, 5, 1<<groupBits - 1} {
		var first, last totalKey
		copy(first[:], groupEdge(g, 0))
		copy(last[:], groupEdge(g, 0xff))
		if first.group() != g || last.group() != g {
			t.Errorf("edges of %d are in groups %d and %d", g, first.group(), last.group())
		}
		if g > 0 {
			var before totalKey
			copy(before[:], groupEdge(g-1, 0xff))
			if string(before[:]) >= string(first[:]) {
				t.Errorf("group %d begins before %d ends", g, g-1)
			}
		}
	}
}
