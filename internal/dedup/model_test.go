package dedup

import (
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/cespare/xxhash/v2"
)

const hour = int64(3_600_000_000)

// known is what the model remembers of an id.
type known struct {
	offset  int64
	content [8]byte
	end     int64 // of the bucket
}

// lane is a model of a lane over a plain map, with the records, barriers and
// failures that a State lives through.
type lane struct {
	t        *testing.T
	rng      *rand.Rand
	lateness int64
	step     int64 // stream time moves on by less than this in a record

	state  *State
	ids    map[[16]byte]known
	next   int64 // offset
	stream int64 // stream time
	fb     int64 // forgotten before

	log       []Chunk // <job>.state
	decided   map[[16]byte]known
	atStream  int64
	atNext    int64
	atFB      int64
	count     uint64
	checksum  uint64
	lateAgain int // ids applied again after they were forgotten
}

func newLane(t *testing.T, seed uint64, lateness int64) *lane {
	start := int64(1_700_000_000_000_000)
	l := &lane{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), lateness: lateness, step: hour / 50, state: New(),
		ids: map[[16]byte]known{}, decided: map[[16]byte]known{},
		stream: start, atStream: start,
	}
	l.state.Restored(0)
	return l
}

// key is the id's key: not hashed by this package, so any bytes may come.
func key(id uint64) (k [16]byte) {
	binary.LittleEndian.PutUint64(k[:8], id*0x9e3779b97f4a7c15)
	binary.LittleEndian.PutUint64(k[8:], id)
	return k
}

func (l *lane) lookup(k [16]byte) {
	l.t.Helper()
	want, ok := l.ids[k]
	ok = ok && want.end > l.fb
	got, found := l.state.Lookup(&k, l.fb)
	if found != ok || found && (got.Offset != want.offset || got.Content != want.content) {
		l.t.Fatalf("id %x at horizon %d: got %v %v, model has %v %v", k, l.fb, got, found, want, ok)
	}
}

// record is one record of an id out of universe, with a time up to twice the
// lateness old.
func (l *lane) record(universe int) {
	k := key(uint64(l.rng.IntN(universe)))
	at := l.stream + l.rng.Int64N(l.step)
	if l.rng.IntN(4) == 0 {
		at = l.stream - l.rng.Int64N(2*l.lateness)
	}
	if l.rng.IntN(200) == 0 {
		at = at / hour * hour // the first instant of a bucket
	}
	offset := l.next
	l.next += 1 + int64(l.rng.IntN(2))
	if at < l.fb {
		return // too old
	}
	l.lookup(k)
	old, seen := l.ids[k]
	if seen && old.end > l.fb {
		return // duplicate
	}
	if seen {
		l.lateAgain++
	}
	var content [8]byte
	binary.LittleEndian.PutUint64(content[:], l.rng.Uint64())
	l.state.Add(&k, content, offset, at)
	l.ids[k] = known{offset, content, at/hour*hour + hour}
	l.stream = max(l.stream, at)
	l.fb = max(l.fb, l.stream-l.lateness)
}

// measure is count and checksum as the stored form defines them.
func (l *lane) measure() (count, checksum uint64) {
	var buf [36]byte
	for k, e := range l.ids {
		if e.end > l.fb {
			b := append(buf[:0], k[:]...)
			b = binary.LittleEndian.AppendUint64(b, uint64(e.offset))
			b = append(b, e.content[:]...)
			b = binary.LittleEndian.AppendUint32(b, uint32(e.end/hour))
			checksum += xxhash.Sum64(b)
			count++
		}
	}
	return count, checksum
}

// barrier freezes, and decides the epoch.
func (l *lane) barrier() {
	l.t.Helper()
	f := l.state.Freeze(l.fb)
	count, checksum := l.measure()
	if f.Count != count || f.Checksum != checksum {
		l.t.Fatalf("frozen %d entries, checksum %x; model has %d, %x", f.Count, f.Checksum, count, checksum)
	}
	if l.state.Len() != int(count) {
		l.t.Fatalf("Len %d, model has %d", l.state.Len(), count)
	}
	bound := MinChunk + l.rng.IntN(40*chunkEntry)
	for _, c := range f.Chunks(bound) {
		if len(c.Data) > bound {
			l.t.Fatalf("chunk of %d bytes, bound %d", len(c.Data), bound)
		}
		l.log = append(l.log, c)
	}
	l.decided, l.atStream, l.atNext, l.atFB = maps.Clone(l.ids), l.stream, l.next, l.fb
	l.count, l.checksum = count, checksum
}

// restart loses everything that was not decided and restores the rest from the
// log, trimmed as far as it may be, with any other dead chunk missing or not.
func (l *lane) restart(universe int) {
	l.t.Helper()
	oldest := 0
	for oldest < len(l.log) && l.log[oldest].BucketEnd <= l.atFB {
		oldest++
	}
	if oldest > 0 {
		l.log = l.log[l.rng.IntN(oldest+1):]
	}
	l.state = New()
	for _, c := range l.log {
		if c.BucketEnd <= l.atFB && l.rng.IntN(2) == 0 {
			continue
		}
		end, err := l.state.Load(c.Data)
		if err != nil || end != c.BucketEnd {
			l.t.Fatalf("load: bucket %d, %v; want %d", end, err, c.BucketEnd)
		}
	}
	count, checksum := l.state.Restored(l.atFB)
	if count != l.count || checksum != l.checksum {
		l.t.Fatalf("restored %d entries, checksum %x; decided were %d, %x", count, checksum, l.count, l.checksum)
	}
	if l.state.Len() != int(count) {
		l.t.Fatalf("Len %d after restoring %d", l.state.Len(), count)
	}
	l.ids, l.stream, l.next, l.fb = maps.Clone(l.decided), l.atStream, l.atNext, l.atFB
	for id := range universe {
		l.lookup(key(uint64(id)))
	}
}

func TestStateAgainstModel(t *testing.T) {
	again := 0
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 2))
		universe := 50 + rng.IntN(3000)
		l := newLane(t, seed, (3+rng.Int64N(40))*hour)
		for range 60 {
			for range rng.IntN(2 * 200) {
				l.record(universe)
			}
			if rng.IntN(3) > 0 {
				l.barrier()
			}
			if rng.IntN(5) == 0 {
				l.restart(universe)
			}
		}
		again += l.lateAgain
	}
	if again == 0 {
		t.Fatal("no id was ever forgotten and applied again: the test is blind to horizons")
	}
}

// A lane with more entries than a table takes: splits, growth, reclaiming.
func TestLargeStateAgainstModel(t *testing.T) {
	const universe = 200_000
	l := newLane(t, 99, 30*hour)
	l.step = hour / 2000
	for range 20 {
		for range 6_000 {
			l.record(universe)
		}
		l.barrier()
	}
	if n := l.state.index.tables; n < 8 || l.state.index.depth < 3 {
		t.Fatalf("%d tables: the test is blind to splits", n)
	}
	l.restart(universe)
	for range 6_000 {
		l.record(universe)
	}
	l.barrier()
	l.restart(universe)
}

// An id that the ledger knows and the state has forgotten is added with a time
// that lies behind the horizon: it must not be forgotten from its beginning.
func TestAddBehindTheHorizonIsRemembered(t *testing.T) {
	s := New()
	s.Restored(100 * hour)
	k := key(1)
	s.Add(&k, [8]byte{7}, 5, 3*hour)
	if e, ok := s.Lookup(&k, 100*hour); !ok || e.Offset != 5 || e.Content != [8]byte{7} {
		t.Fatalf("got %v %v", e, ok)
	}
	f := s.Freeze(100 * hour)
	chunks := f.Chunks(MinChunk)
	if f.Count != 1 || len(chunks) != 1 || chunks[0].BucketEnd != 101*hour {
		t.Fatalf("frozen %+v, chunks %+v", f, chunks)
	}
}

// Early in a lane's life the horizon lies before 1970.
func TestNegativeHorizonForgetsNothing(t *testing.T) {
	s := New()
	s.Restored(-300 * hour)
	k := key(1)
	s.Add(&k, [8]byte{}, 5, 0)
	if _, ok := s.Lookup(&k, -200*hour); !ok {
		t.Error("an id of the first hour is not found")
	}
	if f := s.Freeze(-100 * hour); f.Count != 1 || len(f.Chunks(MinChunk)) != 1 {
		t.Errorf("frozen %+v", f)
	}
}

func TestRestoredCountsAgain(t *testing.T) {
	s := New()
	if _, err := s.Load(sound()); err != nil { // three entries of the bucket that ends at 8 h
		t.Fatal(err)
	}
	for _, c := range []struct {
		horizon int64
		count   uint64
	}{{0, 3}, {8*hour - 1, 3}, {8 * hour, 0}} {
		if count, sum := s.Restored(c.horizon); count != c.count || (sum == 0) != (count == 0) || s.Len() != int(count) {
			t.Errorf("at horizon %d: %d entries, checksum %x, Len %d; want %d", c.horizon, count, sum, s.Len(), c.count)
		}
	}
}

func TestBrokenInvariantsPanic(t *testing.T) {
	k := key(1)
	with := func() *State {
		s := New()
		s.Restored(0)
		s.Add(&k, [8]byte{}, 10, 5*hour)
		return s
	}
	for name, fn := range map[string]func(){
		"id applied twice":     func() { with().Add(&k, [8]byte{}, 11, 9*hour) },
		"horizon back, lookup": func() { s := with(); s.Lookup(&k, 2*hour); s.Lookup(&k, hour) },
		"horizon back, freeze": func() { s := with(); s.Lookup(&k, 2*hour); s.Freeze(hour) },
		"restored with adds":   func() { with().Restored(0) },
		"load with adds":       func() { load(with(), &k) },
		"time before 1970":     func() { New().Add(&k, [8]byte{}, 1, -1) },
		"time beyond buckets":  func() { New().Add(&k, [8]byte{}, 1, maxBucket*hour) },
		"chunk without room":   func() { with().Freeze(0).Chunks(MinChunk - 1) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				err, _ := recover().(error)
				var broken *InvariantError
				if !errors.As(err, &broken) || broken.What == "" {
					t.Fatalf("want a panic with an *InvariantError, got %v", err)
				}
			}()
			fn()
		})
	}
}

// load loads a sound chunk of another id than k.
func load(s *State, k *[16]byte) {
	other := *k
	other[0]++
	from := New()
	from.Add(&other, [8]byte{}, 1, hour)
	_, _ = s.Load(from.Freeze(0).Chunks(MinChunk)[0].Data)
}
