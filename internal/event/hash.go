package event

import (
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"hash"
)

// tenant is the only one so far. It is part of the dedup key, so that more of
// them need no new keys.
const tenant = "default"

// Hasher computes an event's two hashes. It keeps buffers between calls and is
// not for concurrent use.
type Hasher struct {
	digest       digest
	input, state []byte
}

type digest interface {
	hash.Hash
	encoding.BinaryAppender
}

// NewHasher makes a Hasher.
func NewHasher() *Hasher {
	h := &Hasher{digest: sha256.New().(digest)}
	// sum depends on how the library writes down a digest's state. It has not
	// changed since there is one; if it ever does, nothing may be hashed.
	known := sha256.Sum256([]byte(tenant))
	var got [len(known)]byte
	h.sum([]byte(tenant), got[:])
	if got != known {
		panic("event: this Go writes the state of a SHA-256 in another form than Hasher.sum reads")
	}
	return h
}

// Hash fills Key and Content from what e says, also where e was not decoded but
// read back from the ledger. Both are stored, so what goes in never changes:
// texts with their length in two bytes before them, so that no two lists of
// texts look alike, and fixed-size numbers, all big-endian.
func (h *Hasher) Hash(e *Event) {
	b := binary.BigEndian.AppendUint16(h.input[:0], uint16(len(tenant)))
	b = append(b, tenant...)
	b = appendText(b, e.Source)
	b = appendText(b, e.ID)
	b = h.sum(b, e.Key[:])

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
	h.input = h.sum(b, e.Content[:])
}

func appendText(dst, s []byte) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(s)))
	return append(dst, s...)
}

// sum fills dst with the start of the SHA-256 of b. It appends SHA-256's own
// padding to b, which it gives back, and hands over whole blocks: the digest
// then is its state. Sum256 copies that state and pads in pieces, which for the
// two blocks that most have costs a quarter more.
func (h *Hasher) sum(b, dst []byte) []byte {
	const block = sha256.BlockSize
	var zeros [block]byte
	length := 8 * uint64(len(b))
	b = append(b, 0x80)
	b = append(b, zeros[:uint(block-8-len(b))%block]...)
	b = binary.BigEndian.AppendUint64(b, length)
	h.digest.Reset()
	h.digest.Write(b)
	h.state, _ = h.digest.AppendBinary(h.state[:0])
	copy(dst, h.state[len("sha\x03"):]) // what kind of digest it is stands first
	return b
}
