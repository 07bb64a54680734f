package aggregate

import (
	"encoding/binary"
	"hash/maphash"
	"iter"
	"strings"

	"billing/internal/event"
)

// Totals is what an epoch adds to billing_totals on one shard, by key. A record's
// key is made once, in bytes, hashed once and compared once; and neither a new
// row nor a larger table moves or scans what is there. (Go's map hashes and
// compares a struct of strings field by field, at the look-up and again for the
// new row.)
//
// It is an open-addressing hash table of row numbers. The hash has a secret seed,
// so nobody can pick accounts that fall onto one slot.
type Totals struct {
	slots []uint64 // 0 for an empty one, else the hash's upper half, and below it a row's number plus one
	rows  Rows[totalRow]
	texts strings.Builder // the keys of the last rows; full ones are held by the rows alone
}

type totalRow struct {
	key string // as keyOf makes it
	Total
}

var totalsSeed = maphash.MakeSeed()

// A key's bytes: window start 8, period 7, lengths of account, SKU and unit 2
// each, and these three and the currency.
const (
	keyPeriod  = 8
	keyLengths = keyPeriod + len(Period{})
	keyTexts   = keyLengths + 3*2
)

// appendKey makes the key of the row that ev belongs to.
func appendKey(b []byte, ev *event.Event, window int64, period *Period) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(window))
	b = append(b, period[:]...)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(ev.Account)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(ev.SKU)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(ev.Unit)))
	b = append(b, ev.Account...)
	b = append(b, ev.SKU...)
	b = append(b, ev.Unit...)
	return append(b, ev.Currency...)
}

// keyOf takes a key apart. The texts are parts of it.
func keyOf(key string) (k TotalKey) {
	number := func(at, size int) (n uint64) {
		for i := range size {
			n |= uint64(key[at+i]) << (8 * i)
		}
		return n
	}
	k.WindowStart = int64(number(0, 8))
	copy(k.Period[:], key[keyPeriod:])
	texts := key[keyTexts:]
	for i, field := range []*string{&k.Account, &k.SKU, &k.Unit} {
		n := number(keyLengths+2*i, 2)
		*field, texts = texts[:n], texts[n:]
	}
	k.Currency = texts
	return k
}

// Len is the number of rows.
func (t *Totals) Len() int { return t.rows.Len() }

// All are the rows, in no order that means anything.
func (t *Totals) All() iter.Seq2[TotalKey, *Total] {
	return func(yield func(TotalKey, *Total) bool) {
		for _, row := range t.rows.All() {
			if !yield(keyOf(row.key), &row.Total) {
				return
			}
		}
	}
}

// of is the row of the key, made where it is not there. The pointer is good until
// the next row is made.
func (t *Totals) of(key []byte) (row *Total, made bool) {
	if 4*t.rows.Len() >= 3*len(t.slots) {
		t.grow()
	}
	hash := maphash.Bytes(totalsSeed, key) >> 32
	i := t.home(hash)
	for ; t.slots[i] != 0; i = t.next(i) {
		if t.slots[i]>>32 == hash {
			if row := t.rows.At(int(uint32(t.slots[i])) - 1); row.key == string(key) {
				return &row.Total, false
			}
		}
	}
	added := t.rows.Add()
	added.key = t.text(key)
	t.slots[i] = hash<<32 | uint64(t.rows.Len())
	return &added.Total, true
}

// home is where the search for a hash of 32 bits begins.
func (t *Totals) home(hash uint64) int { return int(hash * uint64(len(t.slots)) >> 32) }

func (t *Totals) next(i int) int {
	if i++; i == len(t.slots) {
		return 0
	}
	return i
}

// grow makes room. Rows stay where they are: the slots alone say their hashes.
func (t *Totals) grow() {
	old := t.slots
	t.slots = make([]uint64, max(8, 2*len(old)))
	for _, s := range old {
		if s == 0 {
			continue
		}
		i := t.home(s >> 32)
		for t.slots[i] != 0 {
			i = t.next(i)
		}
		t.slots[i] = s
	}
}

// text is b as a string, many of them in one allocation.
func (t *Totals) text(b []byte) string {
	if t.texts.Cap()-t.texts.Len() < len(b) {
		size := min(max(firstSlab, 2*t.texts.Cap()), lastSlab)
		t.texts.Reset()
		t.texts.Grow(max(size, len(b)))
	}
	from := t.texts.Len()
	t.texts.Write(b)
	return t.texts.String()[from:]
}
