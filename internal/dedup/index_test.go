package dedup

import (
	"math/rand/v2"
	"testing"
)

// Whatever the size, all directory elements must lead to the right table and
// the books must agree with the tables.
func TestIndexBooks(t *testing.T) {
	x := newIndex()
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range uint64(50_000) {
		k := key(i)
		var e slot
		e.set(&k, int64(i), [8]byte{}, uint32(i/5_000)+1)
		if old := x.put(&e, 0, 0); old != nil {
			t.Fatalf("id %d found before it was put", i)
		}
		if rng.IntN(5_000) == 0 {
			checkBooks(t, &x)
		}
	}
	x.sweep(0, 5) // all entries up to bucket 5 are dead
	checkBooks(t, &x)
	for i := range uint64(50_000) {
		k := key(i)
		if e := x.find(x.hash(&k), &k); e == nil && i >= 25_000 {
			t.Fatalf("id %d was lost", i)
		}
	}
}

func checkBooks(t *testing.T, x *index) {
	t.Helper()
	tables, groups, used := map[*table]int{}, 0, 0
	for i, tab := range x.directory {
		if tables[tab]++; tables[tab] == 1 {
			groups += len(tab.groups)
			used += tab.used
			n := 0
			tab.each(func(e *slot) {
				h := x.hash(e.key())
				if x.tableOf(h) != tab {
					t.Fatalf("an entry of table %d is looked up in another", i)
				}
				n++
			})
			if n != tab.used || n > fullSlots*len(tab.groups) {
				t.Fatalf("table %d: %d entries, used is %d of %d groups", i, n, tab.used, len(tab.groups))
			}
		}
	}
	for tab, n := range tables {
		if n != 1<<(x.depth-tab.depth) {
			t.Fatalf("a table of depth %d is in %d elements of a directory of depth %d", tab.depth, n, x.depth)
		}
	}
	if len(x.directory) != 1<<x.depth || int(x.tables) != len(tables) || int(x.groups) != groups || x.held != used {
		t.Fatalf("books say %d tables, %d groups, %d held; there are %d, %d, %d", x.tables, x.groups, x.held, len(tables), groups, used)
	}
}

// When the horizon has passed and traffic has fallen, memory comes back.
func TestMemoryOfForgottenEntriesComesBack(t *testing.T) {
	s := New()
	empty := s.Bytes()
	for i := range uint64(100_000) {
		k := key(i)
		s.Add(&k, [8]byte{}, int64(i), int64(i)*1_000)
	}
	s.Freeze(0)
	full := s.Bytes()
	if full < 100_000*slotBytes {
		t.Fatalf("Bytes %d for 100000 entries of %d", full, slotBytes)
	}
	for range 100 {
		s.Freeze(2 * hour)
	}
	if s.Len() != 0 {
		t.Fatalf("Len %d, all entries are forgotten", s.Len())
	}
	if got := s.Bytes(); got > full/5 || got < empty {
		t.Fatalf("Bytes %d, were %d full and %d empty", got, full, empty)
	}
}
