package dedup

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
)

// A chunk is how additions are stored: entries of one bucket. All numbers are
// little-endian.
//
//	offset size
//	     0    4  magic "bdup"
//	     4    2  version, 1
//	     6    2  size of one entry, 32
//	     8    8  end of the bucket, µs since 1970 UTC
//	    16    4  number of entries, at least 1
//	    20    4  CRC-32C of all bytes before and after these four
//	    24  32n  entries: key 16, offset 8, content 8
//
// Magic, version and CRC stay where they are in every later version, so that
// damage is never taken for a newer build's chunk.
const (
	chunkMagic   = "bdup"
	chunkVersion = 1
	chunkHeader  = 24
	chunkEntry   = 32
	crcAt        = 20
)

// MinChunk is the smallest bound, in bytes, that Frozen.Chunks takes: a chunk
// of one entry.
const MinChunk = chunkHeader + chunkEntry

// ErrVersion says of a sound chunk that a newer build wrote it.
var ErrVersion = errors.New("state chunk of an unknown version")

// ErrDamaged says that a chunk is not what any build wrote.
var ErrDamaged = errors.New("state chunk is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Chunk is a piece of an epoch's additions: entries of one time bucket.
type Chunk struct {
	BucketEnd int64 // µs since 1970 UTC
	Data      []byte
}

// Frozen is what one epoch adds, with the measure of the whole state at its
// barrier. It never changes, and may be read by any goroutine.
type Frozen struct {
	Count    uint64 // entries alive at the barrier's horizon, the additions included
	Checksum uint64 // of the same entries

	adds list
	dead uint32
}

// Chunks encodes the additions, each chunk at most maxBytes long, which must be
// at least MinChunk. Chunks come in the order of their buckets, entries in the
// order of addition. Additions that were already forgotten at the barrier are
// left out: nothing may ever find them. The chunks are the caller's.
func (f Frozen) Chunks(maxBytes int) []Chunk {
	if maxBytes < MinChunk {
		broken("a chunk of %d bytes has no room for an entry", maxBytes)
	}
	perChunk := (maxBytes - chunkHeader) / chunkEntry

	left := make(map[uint32]int) // entries still to be written, by bucket
	for e := range f.adds.all() {
		if b := e.bucket(); b > f.dead {
			left[b]++
		}
	}
	open := make(map[uint32][]byte, len(left)) // chunk being filled, by bucket
	var chunks []Chunk
	for e := range f.adds.all() {
		b := e.bucket()
		if b <= f.dead {
			continue
		}
		data := open[b]
		if data == nil {
			data = newChunk(b, min(left[b], perChunk))
		}
		data = append(data, e[:chunkEntry]...)
		left[b]--
		if len(data) == cap(data) {
			chunks = append(chunks, Chunk{BucketEnd: int64(b) * BucketWidth, Data: seal(data)})
			data = nil
		}
		open[b] = data
	}
	slices.SortStableFunc(chunks, func(a, b Chunk) int { return cmp.Compare(a.BucketEnd, b.BucketEnd) })
	return chunks
}

// newChunk is a header with room for exactly n entries behind it: the chunk is
// complete when its capacity is used up.
func newChunk(bucket uint32, n int) []byte {
	data := make([]byte, chunkHeader, chunkHeader+n*chunkEntry)
	copy(data, chunkMagic)
	binary.LittleEndian.PutUint16(data[4:], chunkVersion)
	binary.LittleEndian.PutUint16(data[6:], chunkEntry)
	binary.LittleEndian.PutUint64(data[8:], uint64(bucket)*BucketWidth)
	binary.LittleEndian.PutUint32(data[16:], uint32(n))
	return data
}

func seal(data []byte) []byte {
	binary.LittleEndian.PutUint32(data[crcAt:], chunkCRC(data))
	return data
}

func chunkCRC(data []byte) uint32 {
	sum := crc32.Update(0, castagnoli, data[:crcAt])
	return crc32.Update(sum, castagnoli, data[crcAt+4:])
}

// Load adds the entries of one chunk and returns the end of its bucket, in µs
// since 1970 UTC. It fails with ErrVersion or ErrDamaged; the State is then of
// no use. It does not keep data. Chunks must come in the order in which they
// were decided; chunks of forgotten buckets may be there or be missing.
func (s *State) Load(data []byte) (bucketEnd int64, err error) {
	if len(data) < chunkHeader || string(data[:4]) != chunkMagic {
		return 0, fmt.Errorf("%w: %d bytes that do not begin as a chunk", ErrDamaged, len(data))
	}
	if got, want := chunkCRC(data), binary.LittleEndian.Uint32(data[crcAt:]); got != want {
		return 0, fmt.Errorf("%w: CRC %08x, expected %08x", ErrDamaged, got, want)
	}
	if v := binary.LittleEndian.Uint16(data[4:]); v != chunkVersion {
		return 0, fmt.Errorf("%w: %d, this build knows %d", ErrVersion, v, chunkVersion)
	}
	end := binary.LittleEndian.Uint64(data[8:])
	n := int(binary.LittleEndian.Uint32(data[16:]))
	switch {
	case binary.LittleEndian.Uint16(data[6:]) != chunkEntry,
		n == 0 || len(data) != chunkHeader+n*chunkEntry:
		return 0, fmt.Errorf("%w: %d bytes for %d entries", ErrDamaged, len(data), n)
	case end == 0 || end%BucketWidth != 0 || end/BucketWidth > maxBucket:
		return 0, fmt.Errorf("%w: no bucket ends at %d µs", ErrDamaged, end)
	}
	if n := s.running.n; n > 0 {
		broken("a chunk is loaded before the first addition, not after %d", n)
	}

	bucket := uint32(end / BucketWidth)
	var e slot
	binary.LittleEndian.PutUint32(e[chunkEntry:], bucket)
	for entries := data[chunkHeader:]; len(entries) > 0; entries = entries[chunkEntry:] {
		copy(e[:chunkEntry], entries)
		// An id comes again only when its older entry was forgotten. Then the
		// older one lies in an earlier bucket, and gives way although the
		// horizon of the restore is not known yet.
		if old := s.index.put(&e, bucket-1, s.dead); old != nil {
			return 0, fmt.Errorf("%w: id %x of the bucket that ends at %d µs was loaded before, in the bucket that ends at %d µs",
				ErrDamaged, *e.key(), end, int64(old.bucket())*BucketWidth)
		}
	}
	return int64(end), nil
}
