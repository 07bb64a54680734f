package model

import "math/bits"

// How much there is of everything. The search is exhaustive within it; see
// docs/model.md for why this is enough and what it leaves out.
const (
	owners   = 2
	shards   = 2
	branches = 2 // on a shard; the second one only where the lane row's lock is missing
	wires    = 2 // statements of a shard that are on their way without a caller
)

// gtrid names an epoch's branches: the incarnation that prepared it and the
// epoch's seq. The zero gtrid is none.
type gtrid struct{ inc, seq uint8 }

// decision is D: who took the lane over last, and the last decided epoch with
// the incarnation in its gtrid.
type decision struct{ inc, seq, ginc uint8 }

func (d decision) gtrid() gtrid { return gtrid{d.ginc, d.seq} }

// Of the lane's Kafka transaction.
const (
	none    uint8 = iota
	open          // D and the offset are written: a stable read waits for its end
	endSent       // as open, and an EndTxn(commit) is on its way that nobody waits for
	marking       // decided, and the offset not yet stable; only where S2 does not ask for a stable one
)

// Of a branch on a shard.
const (
	absent    uint8 = iota
	prepared        // in XA RECOVER's list; holds the lock of the lane's row
	executing       // its XA COMMIT is executing: neither listed nor a row, and the lock is held
)

type branch struct {
	is uint8
	g  gtrid
}

// Of a statement on its way.
const (
	nothing uint8 = iota
	xaPrepare
	xaCommit
	xaRollback
)

type statement struct {
	kind uint8
	g    gtrid
}

type shard struct {
	row    uint8 // seq in billing_lane, and of the last row of billing_epoch
	branch [branches]branch
	wire   [wires]statement
}

// Where a session stands: what it does next.
const (
	idle      uint8 = iota // no session: S0, or the process is dead
	readFirst              // S2 before S1: only in a broken variant
	fenced                 // S1 is done: S2
	read                   // S2 is done: S3's C4 and C5
	taking                 // S3: its EndTxn
	settling               // S4
	preparing              // C3
	deciding               // C4 to C6 are done: C7, EndTxn
	phase2                 // C8
	ready                  // all epochs are money: only the sweep works
)

type owner struct {
	pc   uint8
	inc  uint8         // its incarnation; until S3 is done the one that it takes
	seq  uint8         // of D, as the session knows it
	ginc uint8         // likewise
	done [shards]uint8 // of S4, C3, C8: 1 is done on this shard
}

func (o *owner) gtrid() gtrid { return gtrid{o.ginc, o.seq} }

// own is the gtrid of the epoch that the session makes.
func (o *owner) own() gtrid { return gtrid{o.inc, o.seq + 1} }

// state is everything: one Kafka, two shards, two owners, and what is on its
// way between them.
type state struct {
	d      decision // the last committed one
	holder uint8    // whose fence is the last: 1 + owner, 0 nobody's that lives
	txn    uint8
	cand   decision // what an EndTxn on its way decides; while marking, the D before
	past   uint8    // the incarnation in the gtrid of epoch D.seq-1, while a shard lacks that epoch
	shard  [shards]shard
	owner  [owners]owner
}

// key is a state packed: exact, so that no two states are taken for one.
type key [2]uint64

// canonical packs a state so that states which differ in names only become one:
// incarnations are renumbered (their order and D's + 1 are all that counts),
// owners and shards are sorted. swapped tells that the owners changed places.
func (m *Model) canonical(s state) (k key, swapped bool) {
	m.clean(&s)
	renumber(&s)
	var shardWord [shards]uint64
	for i := range s.shard {
		shardWord[i] = packShard(&s.shard[i])
	}
	head := uint64(s.d.inc)<<60 | uint64(s.d.seq)<<58 | uint64(s.d.ginc)<<54 | uint64(s.txn)<<50 |
		uint64(s.cand.inc)<<46 | uint64(s.cand.seq)<<44 | uint64(s.cand.ginc)<<40 | uint64(s.past)<<36
	for so := range 2 { // shards as they are, or changed
		a, b := shardWord[so], shardWord[1-so]
		w1 := a&(1<<32-1)<<32 | b&(1<<32-1)
		rows := (a>>32)<<34 | (b>>32)<<32
		o0, o1 := packOwner(&s.owner[0], so), packOwner(&s.owner[1], so)
		for oo := range 2 {
			holder := uint64(s.holder)
			if oo == 1 {
				o0, o1 = o1, o0
				if holder != 0 {
					holder = 3 - holder
				}
			}
			w0 := head | holder<<52 | rows | o0<<16 | o1
			if so+oo == 0 || w0 < k[0] || w0 == k[0] && w1 < k[1] {
				k, swapped = key{w0, w1}, oo == 1
			}
		}
	}
	return k, swapped
}

func packOwner(o *owner, swap int) uint64 {
	return uint64(o.pc)<<12 | uint64(o.inc)<<8 | uint64(o.seq)<<6 | uint64(o.ginc)<<2 |
		uint64(o.done[swap])<<1 | uint64(o.done[1-swap])
}

func packShard(h *shard) uint64 {
	w := uint64(h.row) << 32
	b := [branches]uint64{packThing(h.branch[0].is, h.branch[0].g), packThing(h.branch[1].is, h.branch[1].g)}
	t := [wires]uint64{packThing(h.wire[0].kind, h.wire[0].g), packThing(h.wire[1].kind, h.wire[1].g)}
	return w | max(b[0], b[1])<<24 | min(b[0], b[1])<<16 | max(t[0], t[1])<<8 | min(t[0], t[1])
}

func packThing(is uint8, g gtrid) uint64 {
	return uint64(is)<<6 | uint64(g.inc)<<2 | uint64(g.seq)
}

// unpack gives the state back, canonical as it was packed.
func unpack(k key) (s state) {
	w := k[0]
	s.d = decision{uint8(w >> 60 & 15), uint8(w >> 58 & 3), uint8(w >> 54 & 15)}
	s.holder, s.txn = uint8(w>>52&3), uint8(w>>50&3)
	s.cand = decision{uint8(w >> 46 & 15), uint8(w >> 44 & 3), uint8(w >> 40 & 15)}
	s.past = uint8(w >> 36 & 15)
	for i := range s.owner {
		o := w >> (16 * (1 - i))
		s.owner[i] = owner{uint8(o >> 12 & 15), uint8(o >> 8 & 15), uint8(o >> 6 & 3), uint8(o >> 2 & 15), [shards]uint8{uint8(o >> 1 & 1), uint8(o & 1)}}
	}
	for i := range s.shard {
		h := &s.shard[i]
		h.row = uint8(w >> (34 - 2*i) & 3)
		t := k[1] >> (32 * (1 - i))
		for j := range h.branch {
			is, g := unpackThing(t >> (24 - 8*j))
			h.branch[j] = branch{is, g}
		}
		for j := range h.wire {
			is, g := unpackThing(t >> (8 - 8*j))
			h.wire[j] = statement{is, g}
		}
	}
	return s
}

func unpackThing(w uint64) (is uint8, g gtrid) {
	return uint8(w >> 6 & 3), gtrid{uint8(w >> 2 & 15), uint8(w & 3)}
}

// renumber gives the incarnations that are in use the numbers from 1 on. Nobody
// has a larger one than D's + 1, and only of D's is one more ever made.
func renumber(s *state) {
	used := uint64(1)<<s.d.inc | 1<<s.d.ginc | 1<<s.cand.inc | 1<<s.cand.ginc | 1<<s.past
	for i := range s.owner {
		used |= 1<<s.owner[i].inc | 1<<s.owner[i].ginc
	}
	for i := range s.shard {
		h := &s.shard[i]
		used |= 1<<h.branch[0].g.inc | 1<<h.branch[1].g.inc | 1<<h.wire[0].g.inc | 1<<h.wire[1].g.inc
	}
	used &^= 1
	if used&(used+2) == 0 {
		return // 1, 2, 3 and so on: as it should be
	}
	if bits.OnesCount64(used) > 15 {
		panic("model: more than 15 incarnations in one state")
	}
	fix := func(n *uint8) { *n = uint8(bits.OnesCount64(used & (2<<*n - 1))) }
	fix(&s.d.inc)
	fix(&s.d.ginc)
	fix(&s.cand.inc)
	fix(&s.cand.ginc)
	fix(&s.past)
	for i := range s.owner {
		fix(&s.owner[i].inc)
		fix(&s.owner[i].ginc)
	}
	for i := range s.shard {
		for j := range s.shard[i].branch {
			fix(&s.shard[i].branch[j].g.inc)
		}
		for j := range s.shard[i].wire {
			fix(&s.shard[i].wire[j].g.inc)
		}
	}
}

// clean forgets what can never matter again: it keeps the states few.
func (m *Model) clean(s *state) {
	if s.txn != endSent && s.txn != marking {
		s.cand = decision{}
	}
	if s.past != 0 && s.shard[0].row+1 >= s.d.seq && s.shard[1].row+1 >= s.d.seq {
		s.past = 0
	}
	for i := range s.shard {
		h := &s.shard[i]
		for j := range h.wire {
			if m.useless(s, i, h.wire[j]) {
				h.wire[j] = statement{}
			}
		}
		if h.wire[0] == h.wire[1] {
			h.wire[1] = statement{}
		}
	}
}

// useless: whenever it lands, the statement changes nothing, or nothing that a
// living session would not do as well.
func (m *Model) useless(s *state, i int, t statement) bool {
	h := &s.shard[i]
	switch {
	case t.kind == nothing:
		return false
	case t.kind == xaPrepare:
		// The compare-and-set: the epoch is there. The branch of an epoch that
		// comes back prepared holds the lock until it is there again.
		return t.g.seq <= h.row && !m.NoLock && !m.NoCompareAndSet
	case m.RetryInSession || m.SameIncarnation:
		return false // the name may be prepared again
	case t.g == s.d.gtrid():
		return t.kind == xaCommit && h.row >= s.d.seq // when it comes back, the sweep commits it
	}
	for j := range h.branch {
		if h.branch[j].is != absent && h.branch[j].g == t.g {
			return false
		}
	}
	for j := range h.wire {
		if h.wire[j].kind == xaPrepare && h.wire[j].g == t.g {
			return false
		}
	}
	for j := range s.owner {
		o := &s.owner[j]
		if o.pc == preparing && o.done[i] == 0 && o.own() == t.g {
			return false
		}
	}
	return true
}
