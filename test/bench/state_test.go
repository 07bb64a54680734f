package bench

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"billing/internal/dedup"
	"billing/test/bench/measure"
)

const (
	stateEpoch = 20_000    // ids of one epoch
	stateChunk = 512 << 10 // bytes of one chunk, as a lane stores them
	stateSpan  = 35 * 24 * int64(time.Hour/time.Microsecond)
)

// ids is an endless row of random ids, the same for the same seed.
type ids struct{ src *rand.PCG }

func newIDs(seed uint64) ids { return ids{rand.NewPCG(seed, seed)} }

func (k ids) next(to *[16]byte) {
	binary.LittleEndian.PutUint64(to[:8], k.src.Uint64())
	binary.LittleEndian.PutUint64(to[8:], k.src.Uint64())
}

// Seeds: the ids that are there, and others.
const (
	there = 1
	other = 2
)

// remembered is what a map of Go keeps in the place of a dedup.Entry.
type remembered struct {
	offset  int64
	content [8]byte
}

// TestBenchState measures the memory of ids at two sizes, against a map of Go.
func TestBenchState(t *testing.T) {
	r := measure.New(t, "state")
	bytesPlot := measure.Bars{Name: "bytes", Title: "Bytes of heap an id", Unit: "bytes", Target: 60}
	timePlot := measure.Bars{Name: "time", Title: "Processor time of a new id and of one look-up", Unit: "nanoseconds"}
	pauses := measure.HistoPlot{Name: "pauses", Title: "How long one addition takes, by the clock, in all runs"}

	for i, n := range []int{measure.Pick(1_000_000, 30_000), measure.Pick(10_000_000, 60_000)} {
		size := fmt.Sprintf("%d M", n/1_000_000)
		if !measure.Full() {
			size = fmt.Sprintf("%d k", n/1_000)
		}
		var took measure.Histogram
		rounds := r.Alternate(
			measure.Thing{Name: "state", Run: func() measure.Values { return stateCosts(t, n) }},
			measure.Thing{Name: "map", Run: func() measure.Values { return mapCosts(t, n) }},
			measure.Thing{Name: "restore", Run: func() measure.Values { return restoreCosts(t, n) }},
			measure.Thing{Name: "pause", Run: func() measure.Values { return pauseCosts(n, &took) }},
		)
		figure := func(name, unit string, values []float64, target measure.Target, from, note string) {
			t.Helper()
			r.Figure(measure.Figure{Name: name + ", " + size, Unit: unit, Values: values, Target: target, From: from, Note: note})
		}
		none := measure.Target{}
		figure("heap of an id", "bytes", rounds.Of("state", "heap"), measure.AtMost(60), "what config.yaml says of dedup.max_ids", "")
		figure("State.Bytes of an id", "bytes", rounds.Of("state", "told"), none, "", "what the service itself says that it holds")
		figure("heap of an id in Go's map", "bytes", rounds.Of("map", "heap"), none, "", "")
		figure("heap, of the map's", "times", rounds.Ratio("state", "map", "heap"), none, "", "")
		// Of a size that stays in the caches, so that it is the code that is judged; beyond
		// it the machine's memory decides, for any table.
		own, ownFrom := measure.AtMost(670), "our choice: a tenth of what a message may cost in all, with 300,000 of them a second on two cores"
		if i > 0 {
			own, ownFrom = none, ""
		}
		figure("new id", "ns CPU", rounds.Of("state", "new"), own, ownFrom, "a look-up that finds nothing, then the addition, as a lane does; with the growth of tables")
		figure("new id in Go's map", "ns CPU", rounds.Of("map", "new"), none, "", "")
		figure("new id, of the map's", "times", rounds.Ratio("state", "map", "new"), measure.AtMost(1.5),
			"our choice: count, checksum, and the epoch's list may cost as much as half a map", "")
		figure("addition alone", "ns CPU", rounds.Of("restore", "add"), none, "", "it finds nothing in the caches, where the look-up before it has brought it")
		figure("look-up, hit", "ns CPU", rounds.Of("state", "hit"), none, "", "a duplicate's")
		figure("look-up in Go's map, hit", "ns CPU", rounds.Of("map", "hit"), none, "", "")
		figure("look-up, miss", "ns CPU", rounds.Of("state", "miss"), none, "", "")
		figure("look-up in Go's map, miss", "ns CPU", rounds.Of("map", "miss"), none, "", "")
		figure("miss, of the map's", "times", rounds.Ratio("state", "map", "miss"), measure.AtMost(1), "our choice: a table of our own must not be slower than the language's", "")
		figure("restore", "ids/CPU-s", rounds.Of("restore", "rate"), measure.AtLeast(1_000_000),
			"our choice: a lane of 10 million ids is back in 10 s, as long as the group waits for a silent instance", "with count and checksum compared")
		figure("encoding for the restore", "ids/CPU-s", rounds.Of("restore", "encode"), none, "", "")
		figure("growing addition, p99 CPU", "ms", rounds.Of("pause", "grow"), measure.AtMost(1), "the bound of the stream's pause at a barrier",
			"of the additions that write a table anew or a list; the time of its own thread")
		figure("longest addition, CPU", "ms", rounds.Of("pause", "add"), none, "", "one of all: with what the collector made it do, and what a virtual machine's host took")
		figure("longest freezing, CPU", "ms", rounds.Of("pause", "freeze"), measure.AtMost(1), "the same", "")
		figure("longest addition, clock", "ms", rounds.Of("pause", "wall"), none, "", "with the time that others had the core")

		bytesPlot.Groups = append(bytesPlot.Groups, measure.Group{Label: size + " ids", Bars: []measure.Bar{
			{Label: "state", Values: rounds.Of("state", "heap")}, {Label: "Go's map", Values: rounds.Of("map", "heap")},
		}})
		for _, c := range []struct{ what, name string }{{"new id", "new"}, {"hit", "hit"}, {"miss", "miss"}} {
			timePlot.Groups = append(timePlot.Groups, measure.Group{Label: c.what + ", " + size + " ids", Bars: []measure.Bar{
				{Label: "state", Values: rounds.Of("state", c.name)}, {Label: "Go's map", Values: rounds.Of("map", c.name)},
			}})
		}
		pauses.Panels = append(pauses.Panels, took.Panel(size+" ids"))
	}
	r.Bars(bytesPlot)
	r.Bars(timePlot)
	r.Histograms(pauses)
}

// liveHeap is what the heap holds when everything that is dead has left it.
func liveHeap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse)
}

// each is the processor time of n things, in nanoseconds for one.
func each(n int, do func()) float64 {
	start := measure.CPU()
	do()
	return float64((measure.CPU() - start).Nanoseconds()) / float64(n)
}

// fill adds n ids over 35 days, in epochs, and hands each frozen one over. An
// id may be looked up first.
func fill(s *dedup.State, n int, lookUp bool, frozen func(dedup.Frozen)) {
	var k [16]byte
	row, step := newIDs(there), stateSpan/int64(n)
	for i := range n {
		row.next(&k)
		if lookUp {
			if _, ok := s.Lookup(&k, 0); ok {
				panic("two random ids are the same")
			}
		}
		s.Add(&k, [8]byte{1}, int64(i), int64(i)*step)
		if (i+1)%stateEpoch == 0 || i+1 == n {
			frozen(s.Freeze(0))
		}
	}
}

func stateCosts(t testing.TB, n int) measure.Values {
	before := liveHeap()
	s := dedup.New()
	v := measure.Values{"new": each(n, func() { fill(s, n, true, func(dedup.Frozen) {}) })}
	v["heap"] = (liveHeap() - before) / float64(n)
	v["told"] = float64(s.Bytes()) / float64(n)
	if s.Len() != n {
		t.Fatalf("%d ids are there, not %d", s.Len(), n)
	}
	for _, c := range []struct {
		name string
		seed uint64
		want int
	}{{"hit", there, n}, {"miss", other, 0}} {
		found, row := 0, newIDs(c.seed)
		var k [16]byte
		v[c.name] = each(n, func() {
			for range n {
				row.next(&k)
				if _, ok := s.Lookup(&k, 0); ok {
					found++
				}
			}
		})
		if found != c.want {
			t.Fatalf("%s: %d of %d ids were found, not %d", c.name, found, n, c.want)
		}
	}
	runtime.KeepAlive(s)
	return v
}

func mapCosts(t testing.TB, n int) measure.Values {
	before := liveHeap()
	m := make(map[[16]byte]remembered)
	row := newIDs(there)
	var k [16]byte
	v := measure.Values{"new": each(n, func() {
		for i := range n {
			row.next(&k)
			if _, ok := m[k]; ok {
				panic("two random ids are the same")
			}
			m[k] = remembered{offset: int64(i), content: [8]byte{1}}
		}
	})}
	v["heap"] = (liveHeap() - before) / float64(n)
	for _, c := range []struct {
		name string
		seed uint64
		want int
	}{{"hit", there, n}, {"miss", other, 0}} {
		found := 0
		row := newIDs(c.seed)
		v[c.name] = each(n, func() {
			for range n {
				row.next(&k)
				if _, ok := m[k]; ok {
					found++
				}
			}
		})
		if found != c.want {
			t.Fatalf("%s: %d of %d ids were found, not %d", c.name, found, n, c.want)
		}
	}
	runtime.KeepAlive(m)
	return v
}

// restoreCosts encodes a state as the barriers of its lane do, loads it into a
// new one, and holds both against each other as the next session does.
func restoreCosts(t testing.TB, n int) measure.Values {
	var epochs []dedup.Frozen
	v := measure.Values{"add": each(n, func() {
		fill(dedup.New(), n, false, func(f dedup.Frozen) { epochs = append(epochs, f) })
	})}
	last := epochs[len(epochs)-1]
	var chunks []dedup.Chunk
	v["encode"] = 1e9 / each(n, func() {
		for i, f := range epochs {
			chunks = append(chunks, f.Chunks(stateChunk)...)
			epochs[i] = dedup.Frozen{}
		}
	})
	runtime.GC()
	s := dedup.New()
	var count, checksum uint64
	v["rate"] = 1e9 / each(n, func() {
		for _, c := range chunks {
			if _, err := s.Load(c.Data); err != nil {
				t.Fatal(err)
			}
		}
		count, checksum = s.Restored(0)
	})
	if count != uint64(n) || count != last.Count || checksum != last.Checksum {
		t.Fatalf("restored %d ids with checksum %x, not %d with %x", count, checksum, last.Count, last.Checksum)
	}
	return v
}

// pauseCosts times each single addition on the way from nothing to n ids, and
// each freezing: what a lane can be made to wait for. Most additions touch one
// slot; a few thousand of a million write a table anew.
func pauseCosts(n int, took *measure.Histogram) measure.Values {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := dedup.New()
	row, step := newIDs(there), stateSpan/int64(n)
	var k [16]byte
	var add, freeze, wall time.Duration
	var grow measure.Histogram
	for i := range n {
		row.next(&k)
		held, begin, start := s.Bytes(), measure.ThreadCPU(), time.Now()
		s.Add(&k, [8]byte{1}, int64(i), int64(i)*step)
		passed := time.Since(start)
		used := measure.ThreadCPU() - begin
		add = max(add, used)
		if s.Bytes() != held {
			grow.Add(used)
		}
		took.Add(passed)
		wall = max(wall, passed)
		if (i+1)%stateEpoch == 0 {
			begin := measure.ThreadCPU()
			s.Freeze(0)
			freeze = max(freeze, measure.ThreadCPU()-begin)
		}
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return measure.Values{"add": ms(add), "grow": ms(grow.Quantile(0.99)), "freeze": ms(freeze), "wall": ms(wall)}
}
