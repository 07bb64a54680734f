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

// own gives row a copy of ev's texts.
func (t *texts) own(row *LedgerRow, ev *event.Event) {
	b := t.room(len(ev.ID) + len(ev.Source) + len(ev.Account) + len(ev.SKU) + len(ev.Unit) + len(ev.Note))
	for i, text := range [...][]byte{textID: ev.ID, textSource: ev.Source, textAccount: ev.Account, textSKU: ev.SKU, textUnit: ev.Unit, textNote: ev.Note} {
		b = append(b, text...)
		row.ends[i] = uint32(len(b))
	}
	row.text = b
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
