package txsink

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/money"
)

// statement is the text of one multi-row statement while it is built, and the
// digest of the rows that went into it. Values are hex, digits or a date, so
// nothing of a message can be read as SQL, and nothing is boxed on the way.
//
// Each value is written twice: as SQL, and in the digest's encoding, which is
// what MySQL will give back for it (see the digest, below).
type statement struct {
	sql   []byte
	enc   []byte    // encoding of the current row
	hash  hash.Hash // of the epoch
	rows  int       // in sql
	marks []int     // where each of them begins in sql

	second     int64 // whose text is in secondText: windows repeat
	secondText [19]byte
}

// start begins a statement; head ends in VALUES.
func (s *statement) start(head string) {
	s.sql = append(s.sql[:0], head...)
	s.rows = 0
	s.marks = s.marks[:0]
}

// row begins a row of the table with this tag.
func (s *statement) row(tag byte) {
	if s.rows > 0 {
		s.sql = append(s.sql, ',')
	}
	s.marks = append(s.marks, len(s.sql))
	s.sql = append(s.sql, '(')
	s.enc = append(s.enc[:0], tag)
}

// end ends a row and takes it into the digest.
func (s *statement) end() {
	s.sql[len(s.sql)-1] = ')' // was the comma behind the last value
	s.rows++
	s.hash.Write(s.enc)
}

// endUnhashed ends a row that is in no digest.
func (s *statement) endUnhashed() {
	s.sql[len(s.sql)-1] = ')'
	s.rows++
}

func (s *statement) bytes(v []byte) {
	s.sql = append(appendHex(s.sql, v), ',')
	s.enc = appendColumn(s.enc, v)
}

func (s *statement) text(v string) {
	s.sql = append(appendHex(s.sql, v), ',')
	s.enc = appendColumn(s.enc, v)
}

// optional is bytes, or NULL for nil.
func (s *statement) optional(v []byte) {
	if v == nil {
		s.null()
		return
	}
	s.bytes(v)
}

func (s *statement) null() {
	s.sql = append(s.sql, "NULL,"...)
	s.enc = appendNull(s.enc)
}

// plain closes a value whose SQL, from mark on, is what MySQL gives back.
func (s *statement) plain(mark int) {
	s.enc = appendColumn(s.enc, s.sql[mark:])
	s.sql = append(s.sql, ',')
}

func (s *statement) int(v int64) {
	mark := len(s.sql)
	s.sql = strconv.AppendInt(s.sql, v, 10)
	s.plain(mark)
}

func (s *statement) amount(v money.Amount) {
	mark := len(s.sql)
	s.sql = v.AppendFixed(s.sql)
	s.plain(mark)
}

func (s *statement) sum(v money.Sum) {
	mark := len(s.sql)
	s.sql = v.AppendFixed(s.sql)
	s.plain(mark)
}

// micros is a DATETIME(6) from µs since 1970 UTC.
func (s *statement) micros(us int64) {
	s.sql = append(s.sql, '\'')
	mark := len(s.sql)
	s.sql = time.UnixMicro(us).UTC().AppendFormat(s.sql, microsFormat)
	s.enc = appendColumn(s.enc, s.sql[mark:])
	s.sql = append(s.sql, "',"...)
}

// seconds is a DATETIME from µs since 1970 UTC, which are whole seconds.
func (s *statement) seconds(us int64) {
	if us != s.second || s.secondText[0] == 0 {
		time.UnixMicro(us).UTC().AppendFormat(s.secondText[:0], secondsFormat)
		s.second = us
	}
	s.sql = append(s.sql, '\'')
	s.sql = append(s.sql, s.secondText[:]...)
	s.sql = append(s.sql, "',"...)
	s.enc = appendColumn(s.enc, s.secondText[:])
}

const (
	microsFormat  = "2006-01-02 15:04:05.000000" // a DATETIME(6) as MySQL prints it
	secondsFormat = "2006-01-02 15:04:05"        // a DATETIME
)

// appendHex appends X'...', a literal that can hold any bytes.
func appendHex[T string | []byte](dst []byte, v T) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, "X'"...)
	for i := range len(v) {
		dst = append(dst, digits[v[i]>>4], digits[v[i]&15])
	}
	return append(dst, '\'')
}

// hexLiteral is appendHex for statements that are no hot path.
func hexLiteral[T string | []byte](v T) string { return string(appendHex(nil, v)) }

// maxShards is how many numbers bqual has room for.
const maxShards = 1 << 16

// bqual is a shard's number in a branch's name.
func bqual(shard int) string {
	return string(strconv.AppendInt([]byte("s"), int64(shard), 10))
}

// xid names the branch of g on one shard, for XA statements. formatID is left
// out: different ones in one binary log make MySQL lose an acknowledged prepare
// at a crash.
func xid(g checkpoint.GTRID, shard int) string {
	return hexLiteral(string(g)) + "," + hexLiteral(bqual(shard))
}

// lockName names the lock that a lane's burst holds: at most 64 characters, the
// same in every process, and of this set of shards alone, as such locks are one
// space per server. Shards that share a server have locks of their own.
func lockName(set checkpoint.UUID, shard int, lane checkpoint.Lane) string {
	enc := appendColumn(nil, set[:])
	enc = appendColumn(enc, strconv.Itoa(shard))
	enc = appendColumn(enc, lane.Topic)
	enc = appendColumn(enc, strconv.Itoa(int(lane.Partition)))
	sum := sha256.Sum256(enc)
	return "billing:" + hex.EncodeToString(sum[:24])
}

const (
	maxHeaders = 256 << 10 // bytes of raw_headers
	maxDetail  = 1024      // characters of detail
)

// headersText is raw_headers: ASCII, one header a line, in order, and never
// ambiguous: key and value are quoted as in Go. Headers that do not fit are
// counted in a last line.
func headersText(dst []byte, r *aggregate.RejectRow) []byte {
	for i := range r.Headers {
		mark := len(dst)
		dst = strconv.AppendQuoteToASCII(dst, r.Headers[i].Key)
		dst = append(dst, '=')
		if r.Headers[i].Value == nil {
			dst = append(dst, "null"...)
		} else {
			dst = strconv.AppendQuoteToASCII(dst, string(r.Headers[i].Value))
		}
		dst = append(dst, '\n')
		if len(dst) > maxHeaders {
			dst = append(dst[:mark], '+')
			dst = strconv.AppendInt(dst, int64(len(r.Headers)-i), 10)
			return append(dst, '\n')
		}
	}
	return dst
}

// detailText is detail: valid UTF-8 of a bounded length.
func detailText(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if utf8.RuneCountInString(s) > maxDetail {
		s = string([]rune(s)[:maxDetail-1]) + "…"
	}
	return s
}

// The digest of an epoch on a shard covers everything that the epoch wrote
// there but the totals, which are sums of what it covers. It can be computed
// again from the tables alone, and then finds any row of billing_ledger,
// billing_rejects, billing_epoch_sum and billing_epoch that was changed, deleted
// or added:
//
//	digest = SHA-256(previous, ledger rows, reject rows, sums, epoch row)
//
// previous is the digest of the lane's epoch seq-1 on this shard, 32 bytes; for
// seq 1 it is 32 zero bytes. Then come the rows of the lane with this seq on
// this shard, and last the row of billing_epoch itself. A row is its tag, one
// byte, and its columns in the order below. A column is its length, four bytes
// big-endian, and its value exactly as MySQL gives it back as text in a session
// with utf8mb4 and UTC: digits for a number, all twelve places for a DECIMAL,
// "2006-01-02 15:04:05.000000" for a DATETIME(6), "2006-01-02 15:04:05" for a
// DATETIME, the bytes themselves for strings and binary columns. NULL is the
// length 0xFFFFFFFF and nothing.
//
//	L  billing_ledger, by kafka_offset: kafka_topic, kafka_partition,
//	   kafka_offset, seq, tenant_id, source, event_id, entry_type, account_id,
//	   sku, unit, currency, amount, quantity, note, occurred_at, window_start,
//	   booked_period, dedup_key, content_hash
//	R  billing_rejects, by kafka_offset: kafka_topic, kafka_partition,
//	   kafka_offset, seq, kind, reason, detail, raw_key, raw_value, raw_size,
//	   raw_headers, value_hash (the state's columns are the operator's)
//	S  billing_epoch_sum, by currency: kafka_topic, kafka_partition, seq,
//	   currency, charge_amount, credit_amount, entry_count
//	E  billing_epoch: kafka_topic, kafka_partition, seq, topic_id, incarnation,
//	   gtrid, offset_from, offset_next, records_in, applied, duplicates,
//	   conflicts, rejected, shard_applied, shard_rejects, ledger_on, prepared_at,
//	   row_marks
//
// billing_epoch.row_marks has a mark for each of the rows L, R and S, in that
// order, so that the one that was changed can be named. A mark is the row's tag,
// its place, and the CRC-32C (Castagnoli, four bytes big-endian) of the row as
// above, its tag included. The place of L and R is an unsigned varint: the
// row's kafka_offset less that of the row before it with the same tag, for the
// first one less offset_from. The place of S is the currency, its length as an
// unsigned varint before it.
//
// The same encoding of columns, without a tag, makes two more hashes:
// billing_total.total_key is the first 16 bytes of SHA-256 over kafka_topic,
// kafka_partition, tenant_id, account_id, sku, unit, currency, window_start and
// booked_period; billing_meta.checksum is SHA-256 over the columns before it.
const (
	tagLedger = 'L'
	tagReject = 'R'
	tagSum    = 'S'
	tagEpoch  = 'E'
)

// rowMarks is row_marks while it is built.
type rowMarks struct {
	enc    []byte
	offset int64 // of the last row with this tag; before the first, offset_from
}

// begin begins the marks of another tag.
func (m *rowMarks) begin(offsetFrom int64) { m.offset = offsetFrom }

// at marks a row by its offset. row is its encoding.
func (m *rowMarks) at(offset int64, row []byte) {
	m.enc = append(m.enc, row[0])
	m.enc = binary.AppendUvarint(m.enc, uint64(offset-m.offset))
	m.offset = offset
	m.enc = binary.BigEndian.AppendUint32(m.enc, crc32.Checksum(row, castagnoli))
}

// of marks a row by its currency.
func (m *rowMarks) of(currency string, row []byte) {
	m.enc = append(m.enc, row[0])
	m.enc = binary.AppendUvarint(m.enc, uint64(len(currency)))
	m.enc = append(m.enc, currency...)
	m.enc = binary.BigEndian.AppendUint32(m.enc, crc32.Checksum(row, castagnoli))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendColumn appends one column's value.
func appendColumn[T string | []byte](dst []byte, v T) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(v)))
	return append(dst, v...)
}

// appendNull appends a column that is NULL.
func appendNull(dst []byte) []byte {
	return binary.BigEndian.AppendUint32(dst, 0xFFFFFFFF)
}

// chain starts the digest of an epoch with the one before it.
func chain(h hash.Hash, b *checkpoint.Branch) error {
	h.Reset()
	previous := b.PrevDigest
	if b.Seq == 1 {
		if len(previous) != 0 {
			return broken("a first epoch has no digest before it, got %x", previous)
		}
		previous = make([]byte, sha256.Size)
	}
	if len(previous) != sha256.Size {
		return broken("the digest before epoch %d has %d bytes, want %d", b.Seq, len(previous), sha256.Size)
	}
	h.Write(previous)
	return nil
}

// broken is for what only a bug of the service, or of the server, brings about.
func broken(format string, args ...any) error {
	return &checkpoint.InvariantError{What: fmt.Sprintf(format, args...)}
}

// metaChecksum is billing_meta.checksum.
func metaChecksum(m *meta) [32]byte {
	enc := appendColumn(nil, "1") // id
	enc = appendColumn(enc, m.job)
	enc = appendColumn(enc, m.set[:])
	enc = appendColumn(enc, strconv.Itoa(m.number))
	enc = appendColumn(enc, strconv.Itoa(m.count))
	enc = appendColumn(enc, m.server)
	return sha256.Sum256(enc)
}
