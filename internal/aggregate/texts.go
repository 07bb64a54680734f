package aggregate

import "billing/internal/event"

// texts keeps copies of many short byte strings in few allocations. Copies live
// as long as the epoch. Slabs grow with it, so that a single record costs
// little and many cost an allocation each few hundred.
type texts struct {
	slab []byte // its length is taken
}

const (
	firstSlab = 1 << 10
	lastSlab  = 64 << 10
)

// copy returns b's bytes in memory of its own; nil stays nil, and empty empty.
func (t *texts) copy(b []byte) []byte {
	if b == nil {
		return nil
	}
	if len(b) == 0 {
		return []byte{}
	}
	return append(t.room(len(b)), b...)
}

// own replaces ev's byte slices by copies and returns how many bytes they take.
func (t *texts) own(ev *event.Event) int64 {
	fields := [...]*[]byte{&ev.ID, &ev.Source, &ev.Account, &ev.SKU, &ev.Unit, &ev.Note}
	n := 0
	for _, f := range fields {
		n += len(*f)
	}
	b := t.room(n)
	for _, f := range fields {
		from := len(b)
		b = append(b, *f...)
		*f = b[from:len(b):len(b)]
	}
	return int64(n)
}

// room is an empty slice with a capacity of exactly n. What is much larger than
// its share of a slab gets an allocation of its own.
func (t *texts) room(n int) []byte {
	if n > lastSlab/8 {
		return make([]byte, 0, n)
	}
	from := len(t.slab)
	if n > cap(t.slab)-from {
		size := min(max(firstSlab, 2*cap(t.slab)), lastSlab)
		t.slab, from = make([]byte, 0, max(size, n)), 0
	}
	t.slab = t.slab[:from+n]
	return t.slab[from : from : from+n]
}
