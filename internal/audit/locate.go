package audit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"slices"
)

// mark is what an epoch notes of a row that it writes: which, and its checksum.
type mark struct {
	tag      byte // as in the digest
	offset   int64
	currency string // of S, which has no offset
	crc      uint32
	seq      int64 // of a row that was read
}

// order is that of the digest.
func (m mark) order(n mark) int {
	return cmp.Or(cmp.Compare(rank[m.tag], rank[n.tag]), cmp.Compare(m.offset, n.offset), cmp.Compare(m.currency, n.currency))
}

var rank = map[byte]int{'L': 0, 'R': 1, 'S': 2}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errMarks = errors.New("row_marks can't be read")

// parseMarks reads row_marks. internal/txsink has the definition.
func parseMarks(b []byte, from int64) (marks []mark, err error) {
	before, tag := from, byte(0)
	for len(b) > 0 {
		m := mark{tag: b[0]}
		place, n := binary.Uvarint(b[1:])
		if n <= 0 {
			return nil, errMarks
		}
		b = b[1+n:]
		switch m.tag {
		case 'L', 'R':
			if m.tag != tag {
				before, tag = from, m.tag
			}
			m.offset = before + int64(place)
			before = m.offset
		case 'S':
			if place > uint64(len(b)) {
				return nil, errMarks
			}
			m.currency, b = string(b[:place]), b[place:]
		default:
			return nil, errMarks
		}
		if len(b) < 4 {
			return nil, errMarks
		}
		m.crc, b = binary.BigEndian.Uint32(b), b[4:]
		marks = append(marks, m)
	}
	return marks, nil
}

// appendMark is the other way, for the marks that an epoch should have.
func appendMark(dst []byte, m, before mark, from int64) []byte {
	dst = append(dst, m.tag)
	switch m.tag {
	case 'S':
		dst = binary.AppendUvarint(dst, uint64(len(m.currency)))
		dst = append(dst, m.currency...)
	case before.tag:
		dst = binary.AppendUvarint(dst, uint64(m.offset-before.offset))
	default:
		dst = binary.AppendUvarint(dst, uint64(m.offset-from))
	}
	return binary.BigEndian.AppendUint32(dst, m.crc)
}

// locate finds out what is wrong with an epoch whose digest is. It reads the
// epoch's rows once more, and holds them against the marks: each row that was
// changed, added or deleted is told by its key. Where there is none, it is the
// epoch's own row.
func (s *side) locate(ctx context.Context, e *epoch) error {
	rows, digests, err := s.again(ctx, e)
	if err != nil {
		return err
	}
	var should []byte // row_marks of these rows
	before := mark{}
	for _, m := range rows {
		if m.seq == e.seq {
			should = appendMark(should, m, before, e.from)
			before = m
		}
	}
	plain := e.enc
	other := append(bytes.Clone(e.enc[:len(e.enc)-len(e.marks)-4]), appendColumn(nil, should)...)
	for _, h := range digests {
		if with(h, plain, e.digest) {
			return nil // what was changed is the digest before
		}
	}
	for _, h := range digests {
		if with(h, other, e.digest) {
			s.tell(tableEpoch, epochKey(s.lane.id, e.seq), "row_marks was changed by hand", "the marks of the rows, which are as they were written")
			return nil
		}
	}
	marks, err := parseMarks(e.marks, e.from)
	if err != nil {
		e.hint("the digest is wrong and row_marks can't be read", fmt.Sprintf("digest %x, as computed from what is there", e.computed))
		return nil //nolint:nilerr // it is told
	}
	if far := shifted(marks, rows); far != 0 {
		e.hint(fmt.Sprintf("offset_from is %d", e.from), fmt.Sprintf("%d, from which row_marks count", e.from+far))
		for i := range marks {
			marks[i].offset += far
		}
	}
	if len(rows) == 0 && len(marks) > 1 { // one line is enough
		s.tell(tableEpoch, epochKey(s.lane.id, e.seq), fmt.Sprintf("it has marks of %d rows, and none of them is there: the first is %s of %s", len(marks), s.keyOf(marks[0], e), marks[0].table()),
			"the rows, or no such epoch")
		return nil
	}
	if !s.compareMarks(e, marks, rows) && len(e.follows) > 0 {
		e.suspect = true
	}
	return nil
}

// shifted is how far the rows lie from where the marks say, by the first row that
// is as it was written: its checksum has its offset in it, a mark's place counts
// from offset_from.
func shifted(marks, rows []mark) int64 {
	type row struct {
		tag byte
		crc uint32
	}
	at := map[row]int64{}
	for _, r := range rows {
		at[row{r.tag, r.crc}] = r.offset
	}
	for _, m := range marks {
		if offset, ok := at[row{m.tag, m.crc}]; ok && m.tag != 'S' {
			return offset - m.offset
		}
	}
	return 0
}

// with reports whether h and an epoch's row give the digest. h stays as it is.
func with(h hash.Hash, row, digest []byte) bool {
	cloner, ok := h.(hash.Cloner)
	if !ok {
		panic("SHA-256 can be cloned")
	}
	c, err := cloner.Clone()
	if err != nil {
		panic(err) // likewise
	}
	c.Write(row)
	return bytes.Equal(c.Sum(nil), digest)
}

// again reads the rows of an epoch, by their seq or by their place, once more. It
// gives their marks in the order of the digest, and the digests' beginnings, one
// for each that the epoch may follow on.
func (s *side) again(ctx context.Context, e *epoch) (rows []mark, digests []hash.Hash, err error) {
	for _, before := range e.follows {
		h := sha256.New()
		h.Write(before)
		digests = append(digests, h)
	}
	read := func(tag byte, query string, args ...any) error {
		return s.scan(ctx, func(r row) error {
			s.scratch = r.encode(s.scratch[:0], tag)
			m := mark{tag: tag, seq: e.seq, crc: crc32.Checksum(s.scratch, castagnoli)}
			if tag == 'S' {
				m.currency = r.text(3)
			} else {
				m.offset, m.seq = r.int(2), r.int(3)
			}
			rows = append(rows, m)
			if m.seq == e.seq {
				for _, h := range digests {
					h.Write(s.scratch)
				}
			}
			return nil
		}, query, args...)
	}
	id := s.lane.id
	const place = " FORCE INDEX (PRIMARY) WHERE kafka_topic = ? AND kafka_partition = ? AND kafka_offset >= ? AND kafka_offset <= ? AND (seq = ? OR kafka_offset >= ? AND kafka_offset < ?) ORDER BY kafka_offset"
	args := []any{id.Topic, id.Partition, min(s.from, e.from), max(s.until-1, e.next), e.seq, e.from, e.next}
	if err := read('L', "SELECT "+ledgerColumns+" FROM billing_ledger"+place, args...); err != nil {
		return nil, nil, err
	}
	if err := read('R', "SELECT "+rejectColumns+" FROM billing_rejects"+place, args...); err != nil {
		return nil, nil, err
	}
	err = read('S', "SELECT "+sumColumns+" FROM billing_epoch_sum FORCE INDEX (PRIMARY) WHERE kafka_topic = ? AND kafka_partition = ? AND seq = ? ORDER BY currency", id.Topic, id.Partition, e.seq)
	return rows, digests, err
}

// compareMarks tells which rows are not those that the epoch has written. It
// reports whether there are such rows.
func (s *side) compareMarks(e *epoch, marks, rows []mark) (any bool) {
	wrote := fmt.Sprintf("the row as epoch %d wrote it", e.seq)
	slices.SortStableFunc(marks, mark.order) // they are, unless they were changed
	for len(marks) > 0 || len(rows) > 0 {
		var c int
		switch {
		case len(marks) == 0:
			c = 1
		case len(rows) == 0:
			c = -1
		default:
			c = marks[0].order(rows[0])
		}
		switch {
		case c < 0:
			s.tell(marks[0].table(), s.keyOf(marks[0], e), "there is no row", wrote)
			any, marks = true, marks[1:]
		case c > 0:
			if rows[0].seq == e.seq {
				s.tell(rows[0].table(), s.keyOf(rows[0], e), fmt.Sprintf("a row that epoch %d has not written", e.seq), "no row")
				any = true
			}
			rows = rows[1:]
		default:
			if marks[0].crc != rows[0].crc {
				s.tell(rows[0].table(), s.keyOf(rows[0], e), "the row was changed", wrote)
				any = true
			}
			marks, rows = marks[1:], rows[1:]
		}
	}
	return any
}

func (m mark) table() string {
	return map[byte]string{'L': tableLedger, 'R': tableReject, 'S': tableSum}[m.tag]
}

func (s *side) keyOf(m mark, e *epoch) string {
	if m.tag == 'S' {
		return sumKey(s.lane.id, e.seq, m.currency)
	}
	return offsetKey(s.lane.id, m.offset)
}
