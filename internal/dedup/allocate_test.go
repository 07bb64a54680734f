package dedup

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// keys is an endless row of random keys, the same for the same seed.
type keys struct{ src *rand.PCG }

func newKeys(seed uint64) keys { return keys{rand.NewPCG(seed, seed)} }

func (k keys) next(to *[16]byte) {
	binary.LittleEndian.PutUint64(to[:8], k.src.Uint64())
	binary.LittleEndian.PutUint64(to[8:], k.src.Uint64())
}

// filled is a state of n entries over 35 days, in epochs of 20000.
func filled(n int) *State {
	s := New()
	var k [16]byte
	row := newKeys(1)
	for i := range n {
		row.next(&k)
		s.Add(&k, [8]byte{1}, int64(i), int64(i)*(35*24*hour/int64(n)))
		if i%20_000 == 0 {
			s.Freeze(0)
		}
	}
	s.Freeze(0)
	return s
}

// A record costs no allocation but the growth of tables and lists.
func TestRecordsDoNotAllocate(t *testing.T) {
	s := filled(100_000)
	var k [16]byte
	row, i := newKeys(7), int64(0)
	if n := testing.AllocsPerRun(20_000, func() {
		row.next(&k)
		if _, ok := s.Lookup(&k, 0); !ok {
			s.Add(&k, [8]byte{}, 100_000+i, 36*24*hour)
			i++
		}
	}); n >= 1 {
		t.Fatalf("%v allocations per record", n)
	}
	if i == 0 {
		t.Fatal("nothing was added")
	}
}
