package aggregate

import (
	"encoding/binary"
	"time"

	"github.com/cespare/xxhash/v2"
)

// ShardOf is the number of the shard that holds an account: XXH64 (seed 0) of
// the account's bytes, modulo the number of shards. Money lies where it says,
// so it never changes. It needs no secret: who picks accounts for one shard
// slows down accounts of their own.
func ShardOf(account []byte, shards int) int {
	return int(xxhash.Sum64(account) % uint64(shards))
}

// RejectShardOf is the number of the shard that keeps the record of a position:
// XXH64 (seed 0) of the topic's name, the partition (4 bytes) and the offset (8
// bytes, both little-endian), modulo the number of shards. It never changes.
func RejectShardOf(topic string, partition int32, offset int64, shards int) int {
	var buf [256 + 12]byte // a topic's name has at most 249 characters
	b := append(buf[:0], topic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(partition))
	b = binary.LittleEndian.AppendUint64(b, uint64(offset))
	return int(xxhash.Sum64(b) % uint64(shards))
}

// windowStart is the start of the half-open window of a time: windows follow
// each other from 1970-01-01T00:00Z on. All numbers are microseconds.
func windowStart(at, window int64) int64 {
	into := at % window
	if into < 0 { // before 1970, where % rounds up
		into += window
	}
	return at - into
}

// month remembers the month of the last event, as the next is likely of the
// same.
type month struct {
	from, to int64 // half-open, µs since 1970 UTC; both 0 before the first event
	period   Period
}

// of is the UTC month of a time in µs since 1970, of the years 0 to 9999.
func (m *month) of(at int64) Period {
	if at < m.from || at >= m.to {
		t := time.UnixMicro(at).UTC()
		first := time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
		m.from, m.to = first.UnixMicro(), first.AddDate(0, 1, 0).UnixMicro()
		copy(m.period[:], first.Format("2006-01"))
	}
	return m.period
}
