package event

import (
	"crypto/sha256"
	"encoding/binary"
)

// tenant is the only one so far. It is part of the dedup key, so that more of
// them need no new keys.
const tenant = "default"

// Hasher computes an event's two hashes. It keeps a buffer between calls and is
// not for concurrent use. The zero value is ready.
type Hasher struct{ input []byte }

// Hash fills Key and Content from what e says, also where e was not decoded but
// read back from the ledger. Both are stored, so what goes in never changes:
// texts with their length in two bytes before them, so that no two lists of
// texts look alike, and fixed-size numbers, all big-endian.
func (h *Hasher) Hash(e *Event) {
	b := binary.BigEndian.AppendUint16(h.input[:0], uint16(len(tenant)))
	b = append(b, tenant...)
	b = appendText(b, e.Source)
	b = appendText(b, e.ID)
	sum := sha256.Sum256(b)
	copy(e.Key[:], sum[:])

	amount, quantity := e.Amount.Bytes(), e.Quantity.Bytes()
	b = append(b[:0], byte(e.Type), 0, 0) // has a quantity, corrects something
	if e.HasQuantity {
		b[1] = 1
	}
	b = binary.BigEndian.AppendUint64(b, uint64(e.Time))
	b = append(b, amount[:]...)
	b = append(b, quantity[:]...)
	b = appendText(b, e.Account)
	b = binary.BigEndian.AppendUint16(b, uint16(len(e.Currency)))
	b = append(b, e.Currency...)
	b = appendText(b, e.SKU)
	b = appendText(b, e.Unit)
	sum = sha256.Sum256(b)
	copy(e.Content[:], sum[:])
	h.input = b
}

func appendText(dst, s []byte) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(s)))
	return append(dst, s...)
}
