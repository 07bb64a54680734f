package dedup

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"
)

// The index is an open-addressing hash table in many small tables, so that it
// grows one small table at a time: a lane never waits for millions of entries
// to move. The first bits of a key's hash choose the table through a directory
// (extendible hashing); a table that becomes too large is split in two.
//
// A table is a row of groups of eight slots. A group begins with one tag byte
// for each slot, 0 for an empty one, so that a look-up compares eight tags at a
// time and a miss seldom reads a slot. Nothing is ever removed from a table but
// by writing it anew, so a group with an empty slot ends every search.
//
// There are no pointers in a table: the garbage collector does not look into
// it.
const (
	groupSlots = 8
	groupBytes = 8 + groupSlots*slotBytes

	// A table is full when 7 of 8 slots are taken, and is written anew with
	// 7 of 10 taken: by a quarter larger, unless enough entries were dead.
	// Doubling would leave half the memory empty half of the time.
	fullSlots = 7
	freshNum  = 56 // slots taken in ten groups of a fresh table
	freshDen  = 10

	// maxGroups bounds a table, and with it the longest pause: the time that
	// writing 1792 entries takes.
	maxGroups = 256

	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

type group struct {
	tags  uint64 // byte i is slot i's tag: 0x80 and 7 bits of the hash, or 0
	slots [groupSlots]slot
}

type table struct {
	groups []group
	used   int
	depth  uint // how many first bits of the hash its entries share
}

type index struct {
	seed [2]uint64
	// directory has 1<<depth elements; a table is in all of those whose number
	// begins with its own bits.
	directory []*table
	depth     uint
	held      int   // slots taken in all tables, also by dead entries
	groups    int64 // in all tables
	tables    int64
	cursor    int // next element of the directory to sweep
}

func newIndex() index {
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // never fails: it would end the process
	return index{
		seed:      [2]uint64{binary.LittleEndian.Uint64(secret[:8]), binary.LittleEndian.Uint64(secret[8:])},
		directory: []*table{{groups: make([]group, 1)}},
		groups:    1,
		tables:    1,
	}
}

// hash mixes the key with a secret of this State. Keys are cut from a SHA-256
// and would do by themselves, but a producer can try ids until their keys fall
// into one group.
func (x *index) hash(key *[16]byte) uint64 {
	hi, lo := bits.Mul64(binary.LittleEndian.Uint64(key[0:8])^x.seed[0], binary.LittleEndian.Uint64(key[8:16])^x.seed[1])
	return hi ^ lo
}

// Bits of a hash: from the top those of the directory, then the tag's seven,
// and the lower half says which group. They do not overlap below 2^25 tables.
func (x *index) tableOf(h uint64) *table { return x.directory[h>>(64-x.depth)] }
func (t *table) home(h uint64) int       { return int(uint64(uint32(h)) * uint64(len(t.groups)) >> 32) }
func tagOf(h uint64) uint64              { return h>>32&0x7f | 0x80 }

// find returns the slot of key, or nil. The slot is valid until the next put.
func (x *index) find(h uint64, key *[16]byte) *slot {
	t := x.tableOf(h)
	k0, k1 := binary.LittleEndian.Uint64(key[0:8]), binary.LittleEndian.Uint64(key[8:16])
	tags := tagOf(h) * ones
	for i := t.home(h); ; {
		g := &t.groups[i]
		// Bytes of d are 0 where tags are equal. The classic test for zero
		// bytes may add false hits, never miss one; the keys decide.
		d := g.tags ^ tags
		for m := (d - ones) &^ d & highs; m != 0; m &= m - 1 {
			e := &g.slots[bits.TrailingZeros64(m)/8]
			if binary.LittleEndian.Uint64(e[0:8]) == k0 && binary.LittleEndian.Uint64(e[8:16]) == k1 {
				return e
			}
		}
		if g.tags&highs != highs {
			return nil
		}
		if i++; i == len(t.groups) {
			i = 0
		}
	}
}

// put stores e, over an older entry with its key that lies in a bucket up to
// weak. One in a later bucket stays as it is and is returned, valid until the
// next put. If a table has to be written anew, entries in buckets up to dead
// are dropped.
func (x *index) put(e *slot, weak, dead uint32) *slot {
	h := x.hash(e.key())
	if old := x.find(h, e.key()); old != nil {
		if old.bucket() > weak {
			return old
		}
		*old = *e
		return nil
	}
	t := x.tableOf(h)
	if t.used == fullSlots*len(t.groups) {
		x.rewrite(h, dead)
		t = x.tableOf(h)
	}
	t.insert(h, e)
	x.held++
	return nil
}

// insert stores e in a table that has room and no entry with its key.
func (t *table) insert(h uint64, e *slot) {
	for i := t.home(h); ; {
		g := &t.groups[i]
		if m := ^g.tags & highs; m != 0 {
			n := bits.TrailingZeros64(m) / 8
			g.tags |= tagOf(h) << (8 * n)
			g.slots[n] = *e
			t.used++
			return
		}
		if i++; i == len(t.groups) {
			i = 0
		}
	}
}

// rewrite writes the table of h anew, in a size that fits its live entries and
// one more; as two tables if it would become too large.
func (x *index) rewrite(h uint64, dead uint32) {
	old := x.tableOf(h)
	bit := 63 - old.depth // of the hash: which half an entry would go to
	var n [2]int
	old.each(func(e *slot) {
		if e.bucket() > dead {
			n[x.hash(e.key())>>bit&1]++
		}
	})
	var halves [2]*table
	if all := n[0] + n[1] + 1; groupsFor(all) <= maxGroups {
		t := &table{groups: make([]group, groupsFor(all)), depth: old.depth}
		halves = [2]*table{t, t}
		x.groups += int64(len(t.groups))
	} else {
		for i := range halves {
			halves[i] = &table{groups: make([]group, groupsFor(n[i]+1)), depth: old.depth + 1}
			x.groups += int64(len(halves[i].groups))
		}
		x.tables++
	}
	old.each(func(e *slot) {
		if e.bucket() > dead {
			eh := x.hash(e.key())
			halves[eh>>bit&1].insert(eh, e)
		}
	})
	x.groups -= int64(len(old.groups))
	x.held -= old.used - n[0] - n[1]
	x.replace(h, old, halves)
}

// replace puts the two halves of old, which may be one table, in its place.
func (x *index) replace(h uint64, old *table, halves [2]*table) {
	if halves[0].depth > x.depth {
		twice := make([]*table, 0, 2*len(x.directory))
		for _, t := range x.directory {
			twice = append(twice, t, t)
		}
		x.directory = twice
		x.depth++
	}
	span := 1 << (x.depth - old.depth)
	first := int(h>>(64-x.depth)) &^ (span - 1)
	for i := range span {
		half := 0
		if span > 1 {
			half = i / (span / 2)
		}
		x.directory[first+i] = halves[half]
	}
}

// groupsFor is the size of a fresh table for n entries. It has room for n.
func groupsFor(n int) int { return max(1, (n*freshDen+freshNum-1)/freshNum) }

// sweepTables is how many tables one sweep writes anew at most: well under a
// millisecond.
const sweepTables = 4

// sweep gives back memory that dead entries hold in tables which no longer grow,
// a few tables at a time. Without it a lane whose traffic has fallen would keep
// the memory of its best days. While traffic is steady it does nothing: tables
// are written anew before a fifth of them is dead.
func (x *index) sweep(live int, dead uint32) {
	for range sweepTables {
		if x.held <= live+live/4+fullSlots*maxGroups {
			return
		}
		if x.cursor >= len(x.directory) {
			x.cursor = 0
		}
		h := uint64(x.cursor) << (64 - x.depth)
		x.rewrite(h, dead)
		x.cursor += 1 << (x.depth - x.tableOf(h).depth)
	}
}

func (t *table) each(fn func(e *slot)) {
	for i := range t.groups {
		g := &t.groups[i]
		for m := g.tags & highs; m != 0; m &= m - 1 {
			fn(&g.slots[bits.TrailingZeros64(m)/8])
		}
	}
}

// each calls fn for every entry, dead ones included.
func (x *index) each(fn func(e *slot)) {
	for i := 0; i < len(x.directory); {
		t := x.directory[i]
		t.each(fn)
		i += 1 << (x.depth - t.depth)
	}
}

func (x *index) bytes() int64 {
	const perTable = 48 // a table's own words
	return x.groups*groupBytes + x.tables*perTable + int64(len(x.directory))*8
}
