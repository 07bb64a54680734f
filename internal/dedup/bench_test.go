package dedup

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
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

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

var sizes = []int{1_000_000, 10_000_000}

func BenchmarkLookup(b *testing.B) {
	for _, n := range sizes {
		before := heap()
		s := filled(n)
		perEntry := float64(heap()-before) / float64(n)
		for _, c := range []struct {
			name string
			seed uint64
		}{{"Hit", 1}, {"Miss", 2}} {
			b.Run(fmt.Sprintf("%s/%dM", c.name, n/1_000_000), func(b *testing.B) {
				row, i := newKeys(c.seed), 0
				var k [16]byte
				b.ReportAllocs()
				for b.Loop() {
					if i == n {
						row, i = newKeys(c.seed), 0
					}
					i++
					row.next(&k)
					if _, ok := s.Lookup(&k, 0); ok != (c.name == "Hit") {
						b.Fatal("wrong answer")
					}
				}
				b.ReportMetric(perEntry, "heap-B/entry")
				b.ReportMetric(float64(s.Bytes())/float64(s.Len()), "B/entry")
			})
		}
	}
}

// One addition to a lane that has n entries already, in epochs of 20000.
func BenchmarkAdd(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("%dM", n/1_000_000), func(b *testing.B) {
			s := filled(n)
			row, i := newKeys(3), 0
			var k [16]byte
			b.ReportAllocs()
			for b.Loop() {
				row.next(&k)
				s.Add(&k, [8]byte{}, int64(n+i), 36*24*hour)
				if i++; i%20_000 == 0 {
					s.Freeze(0)
				}
			}
		})
	}
}

// The longest single Add and the longest Freeze on the way from nothing to n
// entries: what a lane can be made to wait for.
func BenchmarkPause(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("%dM", n/1_000_000), func(b *testing.B) {
			var adds, freezes []time.Duration
			for b.Loop() {
				s := New()
				row := newKeys(5)
				var k [16]byte
				for i := range n {
					row.next(&k)
					tables := s.index.groups
					start := time.Now()
					s.Add(&k, [8]byte{}, int64(i), int64(i)*(35*24*hour/int64(n)))
					if took := time.Since(start); tables != s.index.groups {
						adds = append(adds, took)
					}
					if i%20_000 == 0 {
						start := time.Now()
						s.Freeze(0)
						freezes = append(freezes, time.Since(start))
					}
				}
			}
			slices.Sort(adds)
			slices.Sort(freezes)
			micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
			b.ReportMetric(micros(adds[len(adds)/2]), "grow-p50-µs")
			b.ReportMetric(micros(adds[len(adds)*99/100]), "grow-p99-µs")
			b.ReportMetric(micros(adds[len(adds)-1]), "grow-max-µs")
			b.ReportMetric(micros(freezes[len(freezes)*99/100]), "freeze-p99-µs")
		})
	}
}

func BenchmarkRestore(b *testing.B) {
	const n = 1_000_000
	s := New()
	row := newKeys(1)
	var k [16]byte
	for i := range n {
		row.next(&k)
		s.Add(&k, [8]byte{}, int64(i), int64(i)*(24*hour/n))
	}
	chunks := s.Freeze(0).Chunks(512 << 10)
	b.ReportAllocs()
	for b.Loop() {
		s := New()
		for _, c := range chunks {
			if _, err := s.Load(c.Data); err != nil {
				b.Fatal(err)
			}
		}
		if count, _ := s.Restored(0); count != n {
			b.Fatalf("restored %d", count)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/entry")
}

func BenchmarkChunks(b *testing.B) {
	s := New()
	row := newKeys(1)
	var k [16]byte
	for i := range 20_000 {
		row.next(&k)
		s.Add(&k, [8]byte{}, int64(i), int64(i%40)*hour)
	}
	f := s.Freeze(0)
	b.ReportAllocs()
	for b.Loop() {
		if len(f.Chunks(512<<10)) != 40 {
			b.Fatal("chunks")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/20_000, "ns/entry")
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
