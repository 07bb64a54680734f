// Package dedup is the memory of one lane: which ids it has applied.
//
// # One index, three ages
//
// A look-up must see the entries of the running epoch, those of the frozen
// epoch whose outcome is not known yet, and those that earlier decisions made
// durable. They share one index. An addition goes into it at once and also
// onto the running epoch's list; Freeze hands that list out, never to be
// changed again, and starts an empty one, so a barrier costs the same however
// much the lane remembers. There is no undo, because none is needed: when an
// epoch fails, its session ends, the whole State is dropped, and the next
// session restores a new one from the chunks that were decided. Nothing that
// was not decided can survive in it.
//
// # Time buckets
//
// An entry belongs to the hour of its event time, the bucket, which is named by
// its end. The rule decides what is remembered, not when memory was freed: an
// entry whose bucket ends at or before the horizon ("forgotten before") does
// not exist, wherever its bytes still are. The horizon only ever moves forward.
// A look-up finds an id in whatever bucket it lies, as the index is one for all
// of them. Count and checksum are kept for each bucket, so that those of all
// live entries at a horizon are a short sum, and they depend on the live
// entries alone: not on the order of additions, on the growth of tables, or on
// dead entries that are still in memory.
//
// # Files
//
// state.go is what a lane calls, index.go the hash table, chunk.go the form in
// which additions are stored and restored.
package dedup

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// BucketWidth is the length of a time bucket in microseconds: an event belongs
// to the bucket that begins at or before its time. It is part of the stored form
// and never changes.
const BucketWidth = 3_600_000_000

// maxBucket is the largest number of a bucket. Its end still fits an int64.
const maxBucket = 1 << 31

// Entry is what is remembered of an applied id.
type Entry struct {
	Offset  int64   // where it was first applied
	Content [8]byte // the first bytes of its content hash
}

// InvariantError is a use of a State that would make it remember something
// false: a bug of the caller. State panics with it, as there is no answer that
// would be safe to give; the lane must stop.
type InvariantError struct{ What string }

func (e *InvariantError) Error() string { return "invariant broken: dedup: " + e.What }

// broken panics. Callers test before the call and not in it, so that the hot
// path does not pack arguments for a message.
func broken(format string, args ...any) {
	panic(&InvariantError{What: fmt.Sprintf(format, args...)})
}

// State is the dedup state of one lane in one session. It is used by one
// goroutine. A new one is restored by Load and Restored, in this order and
// before anything else; the other methods serve the running lane.
type State struct {
	index   index
	running list // additions since the last Freeze
	warmed  uint64

	forgottenBefore int64             // the largest horizon seen, µs since 1970 UTC
	dead            uint32            // number of the last bucket that is forgotten there
	tallies         map[uint32]*tally // by bucket number; dead ones leave at Freeze
	live            int               // sum of the tallies' counts
	last            *tally            // of lastBucket: most events come in order of time
	lastBucket      uint32
}

// tally is the count and checksum of one bucket's entries.
type tally struct{ count, sum uint64 }

// New is the state of a lane that has applied nothing. It costs a few hundred
// bytes.
func New() *State {
	return &State{index: newIndex(), tallies: make(map[uint32]*tally)}
}

// Warm begins what Lookup will do with the key. In a large index each look-up waits
// for memory; those of several keys that are warmed one after the other wait
// together.
func (s *State) Warm(key *[16]byte) {
	h := s.index.hash(key)
	t := s.index.tableOf(h)
	s.warmed ^= t.groups[t.home(h)].tags // kept, so that it is read
}

// Lookup finds the entry of key, unless its bucket ends at or before
// forgottenBefore (µs since 1970 UTC). Horizons must not decrease from call to
// call, Freeze's and Restored's included.
func (s *State) Lookup(key *[16]byte, forgottenBefore int64) (Entry, bool) {
	if forgottenBefore != s.forgottenBefore {
		s.forget(forgottenBefore)
	}
	e := s.index.find(s.index.hash(key), key)
	if e == nil || e.bucket() <= s.dead {
		return Entry{}, false
	}
	return Entry{Offset: e.offset(), Content: e.content()}, true
}

// Add remembers an id that is applied at offset, for an event of eventTime (µs
// since 1970 UTC). The id must not be there: it panics with an
// *InvariantError where Lookup would find it. An event that is older than
// the last horizon is remembered in the oldest live bucket, so that an addition
// is never forgotten from its beginning.
func (s *State) Add(key *[16]byte, content [8]byte, offset, eventTime int64) {
	if eventTime < 0 || eventTime/BucketWidth >= maxBucket {
		broken("event time %d µs at offset %d has no bucket", eventTime, offset)
	}
	bucket := max(uint32(eventTime/BucketWidth)+1, s.dead+1)
	var e slot
	e.set(key, offset, content, bucket)
	if old := s.index.put(&e, s.dead, s.dead); old != nil {
		broken("id %x at offset %d was already applied at offset %d", *key, offset, old.offset())
	}
	s.count(&e)
	s.running.add(&e)
}

// Freeze ends the running epoch (C1): it hands out the additions since the last
// Freeze, with count and checksum of all entries that are alive at
// forgottenBefore (µs since 1970 UTC), and starts the next epoch with none.
// forgottenBefore is the value that the epoch's decision will carry.
func (s *State) Freeze(forgottenBefore int64) Frozen {
	s.forget(forgottenBefore)
	f := Frozen{adds: s.running, dead: s.dead}
	s.running = list{}
	s.dropDead()
	for _, t := range s.tallies {
		f.Count += t.count
		f.Checksum += t.sum
	}
	s.index.sweep(s.live, s.dead)
	return f
}

// Restored ends a restore (S5): entries whose bucket ends at or before
// forgottenBefore (µs since 1970 UTC) are forgotten. It returns the number of
// entries that are left and their checksum, both taken from the index as it
// is, to be compared with the decision's.
func (s *State) Restored(forgottenBefore int64) (count, checksum uint64) {
	if n := s.running.n; n > 0 {
		broken("a restore ends before the first addition, not after %d", n)
	}
	s.forget(forgottenBefore)
	s.live, s.last = 0, nil
	clear(s.tallies)
	s.index.each(func(e *slot) {
		if e.bucket() > s.dead {
			s.count(e)
		}
	})
	for _, t := range s.tallies {
		count += t.count
		checksum += t.sum
	}
	return count, checksum
}

// AppliedIn are the offsets in [from, to) at which ids of the state were first
// applied, in order. It looks at all entries.
func (s *State) AppliedIn(from, to int64) (offsets []int64) {
	s.index.each(func(e *slot) {
		if o := e.offset(); e.bucket() > s.dead && from <= o && o < to {
			offsets = append(offsets, o)
		}
	})
	slices.Sort(offsets)
	return offsets
}

// NewestBefore is a time, µs since 1970 UTC, that no event is later than by more than
// BucketWidth of those whose ids were first applied before the offset; 0 where
// there are none. It looks at all entries.
func (s *State) NewestBefore(offset int64) (begin int64) {
	s.index.each(func(e *slot) {
		if e.bucket() > s.dead && e.offset() < offset {
			begin = max(begin, int64(e.bucket()-1)*BucketWidth)
		}
	})
	return begin
}

// Added is how many ids the running epoch has added.
func (s *State) Added() int { return s.running.n }

// AdditionBytes is what an addition holds in memory until its epoch is decided: on
// the epoch's list, and encoded in a chunk. Its place in the index is not in it.
const AdditionBytes = slotBytes + chunkEntry

// Len is the number of entries, at the horizon of the last Freeze or Restored:
// what dedup.max_ids bounds.
func (s *State) Len() int { return s.live }

// Bytes is the memory that the state holds: the index with the entries that are
// forgotten but not yet overwritten, and the running epoch's list. What Freeze
// handed out is the caller's.
func (s *State) Bytes() int64 {
	const perTally = 48 // a map slot and what it points to
	return s.index.bytes() + s.running.bytes() + int64(len(s.tallies))*perTally
}

// forget moves the horizon. A negative one, of a lane that has seen little more
// than its first events, forgets nothing, as 0 does.
func (s *State) forget(forgottenBefore int64) {
	forgottenBefore = max(forgottenBefore, 0)
	if forgottenBefore < s.forgottenBefore || forgottenBefore/BucketWidth >= maxBucket {
		broken("the horizon moves from %d to %d µs", s.forgottenBefore, forgottenBefore)
	}
	s.forgottenBefore = forgottenBefore
	s.dead = uint32(forgottenBefore / BucketWidth)
}

// count adds e to its bucket's tally.
func (s *State) count(e *slot) {
	if b := e.bucket(); s.last == nil || b != s.lastBucket {
		t := s.tallies[b]
		if t == nil {
			t = new(tally)
			s.tallies[b] = t
		}
		s.last, s.lastBucket = t, b
	}
	s.last.count++
	s.last.sum += e.sum()
	s.live++
}

// dropDead forgets the tallies of dead buckets; nothing is added to one again.
func (s *State) dropDead() {
	for b, t := range s.tallies {
		if b <= s.dead {
			s.live -= int(t.count)
			delete(s.tallies, b)
		}
	}
}

// list is slots in order, in pieces: it grows without a copy, and the first
// addition behind a barrier asks for no large piece of memory.
type list struct {
	pieces [][]slot // all but the last one are full
	n      int
}

// pieceSlots is a piece's length, 18 KB.
const pieceSlots = 512

func (l *list) add(e *slot) {
	last := len(l.pieces) - 1
	switch {
	case last < 0:
		l.pieces = append(l.pieces, nil) // grows as append has it: an epoch may be small
		last = 0
	case len(l.pieces[last]) == pieceSlots:
		l.pieces = append(l.pieces, make([]slot, 0, pieceSlots))
		last++
	}
	l.pieces[last] = append(l.pieces[last], *e)
	l.n++
}

func (l *list) all() iter.Seq[*slot] {
	return func(yield func(*slot) bool) {
		for _, piece := range l.pieces {
			for i := range piece {
				if !yield(&piece[i]) {
					return
				}
			}
		}
	}
}

func (l *list) bytes() (n int64) {
	for _, piece := range l.pieces {
		n += int64(cap(piece)) * slotBytes
	}
	return n
}

// slotBytes is the size of a slot: 16 bytes of key, 8 of offset, 8 of content,
// 4 of bucket number. A bucket's number is its end divided by its length, so
// it is never 0.
const slotBytes = 36

// slot is one entry as it lies in memory, little-endian. It is bytes and not a
// struct of numbers because alignment would make it a tenth larger.
type slot [slotBytes]byte

func (e *slot) set(key *[16]byte, offset int64, content [8]byte, bucket uint32) {
	copy(e[0:16], key[:])
	binary.LittleEndian.PutUint64(e[16:24], uint64(offset))
	copy(e[24:32], content[:])
	binary.LittleEndian.PutUint32(e[32:36], bucket)
}

func (e *slot) key() *[16]byte   { return (*[16]byte)(e[0:16]) }
func (e *slot) offset() int64    { return int64(binary.LittleEndian.Uint64(e[16:24])) }
func (e *slot) content() [8]byte { return [8]byte(e[24:32]) }
func (e *slot) bucket() uint32   { return binary.LittleEndian.Uint32(e[32:36]) }

// sum is the entry's part of the checksum: XXH64 of the slot's bytes. Parts are
// added modulo 2^64, so their order does not matter. Decisions carry it, so it
// never changes.
func (e *slot) sum() uint64 { return xxhash.Sum64(e[:]) }
