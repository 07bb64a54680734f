package txsink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
)

func (w *writer) where(t *table) string {
	return fmt.Sprintf("%s, topic %s, partition %d, offsets %d to %d", t.name, w.branch.Lane.Topic, w.branch.Lane.Partition,
		w.branch.OffsetFrom, w.branch.OffsetNext-1)
}

// refused names the record when MySQL refuses a row that was accepted here. The
// same row would be refused again and again, so the operator must learn which.
func (w *writer) refused(ctx context.Context, t *table, err error) error {
	e := answer(err)
	if e == nil || t.of == nil {
		return fmt.Errorf("%s: %w", w.where(t), err)
	}
	row, ok := 0, false
	// "... for column 'amount' at row 17", counted from 1 in the statement
	if _, text, found := strings.Cut(e.Message, " at row "); found {
		n, nerr := strconv.Atoi(text)
		row, ok = n-1, nerr == nil && 1 <= n && n <= w.rows
	} else if slices.Contains(rowless, e.Number) {
		row, ok = w.culprit(ctx, t, e.Number)
	}
	if !ok {
		return fmt.Errorf("%s: %w", w.where(t), err)
	}
	return fmt.Errorf("%s, refused at %s: %w", w.where(t), t.of(t.first+row), err)
}

func offsetText(offset int64) string { return "offset " + strconv.FormatInt(offset, 10) }

// totalText names a total, and the first record that the epoch adds to it.
func totalText(k *aggregate.TotalKey, ledger *aggregate.Rows[aggregate.LedgerRow]) string {
	s := fmt.Sprintf("the total of account %q, SKU %q, unit %q, currency %s, window %s", k.Account, k.SKU, k.Unit, k.Currency,
		time.UnixMicro(k.WindowStart).UTC().Format(secondsFormat))
	for _, r := range ledger.All() {
		if string(r.Account()) == k.Account && string(r.SKU()) == k.SKU && string(r.Unit()) == k.Unit && r.Currency == k.Currency && r.WindowStart == k.WindowStart && r.Period == k.Period {
			return s + ", first added to at " + offsetText(r.Offset)
		}
	}
	return s
}

// rowless are the errors about a row that do not say which.
var rowless = []uint16{errDuplicate, errNotNull, errOutOfRange, errCheckViolated}

// culprit finds the row for which a statement is refused with this error, by
// sending ever smaller parts of it. What of them goes into the branch does not
// matter: the statement has failed, so the branch is rolled back.
func (w *writer) culprit(ctx context.Context, t *table, number uint16) (row int, ok bool) {
	from, to := 0, w.rows // it is in [from, to)
	for to-from > 1 {
		middle := (from + to) / 2
		part := string(w.sql[w.marks[from] : w.marks[middle]-1]) // without the comma
		switch _, err := w.exec(ctx, t.head+part+t.tail); {
		case err == nil:
			from = middle
		case isAnswer(err, number):
			to = middle
		default:
			return 0, false
		}
	}
	return from, true
}

// twice says what MySQL's 1062 means in a branch that is rolled back: a row is
// there already, committed, as nobody else writes the lane's rows while its row
// of billing_lane is locked.
func (s *shard) twice(ctx context.Context, b *checkpoint.Branch, part *aggregate.Part, err error) error {
	var net *checkpoint.NetError
	switch {
	case errors.As(err, &net):
		return notBegun(err)
	case !errors.Is(err, errLedgerRows):
		return notBegun(s.placeTaken(ctx, b, err))
	}
	found, ferr := s.existing(ctx, b, &part.Ledger)
	switch {
	case ferr != nil:
		return notBegun(errors.Join(err, ferr))
	case len(found) > 0:
		return &checkpoint.RowsExistError{Shard: s.name, Entries: found}
	}
	if again := s.repeated(b, &part.Ledger); again != nil {
		err = fmt.Errorf("%w: %w", again, err)
	}
	return notBegun(err)
}

// placeTaken is 1062 for a row that has no other key than its place in the lane:
// the whole epoch is there already, or a row that belongs to none.
func (s *shard) placeTaken(ctx context.Context, b *checkpoint.Branch, err error) error {
	row, booked, rerr := s.EpochRow(ctx, b.Lane, b.Seq)
	switch {
	case rerr != nil:
		return errors.Join(err, rerr)
	case booked:
		return &checkpoint.NetError{Net: netEpochKey, Err: fmt.Errorf("epoch %d is there already, by branch %s: %w", b.Seq, row.GTRID, err)}
	}
	return fmt.Errorf("%w: %w", s.bug("a row that epoch %d of %s adds is there already, without the epoch: it was added by hand, or the epoch's row was deleted", b.Seq, b.Lane), err)
}

// repeated finds what should never reach a shard: two rows of one epoch with the
// same key or the same offset; nil without such.
func (s *shard) repeated(b *checkpoint.Branch, rows *aggregate.Rows[aggregate.LedgerRow]) error {
	keys := make(map[[16]byte]int64, rows.Len()) // -> offset
	offsets := make(map[int64]bool, rows.Len())
	for _, r := range rows.All() {
		if offsets[r.Offset] {
			return s.bug("epoch %d of %s has two entries for offset %d", b.Seq, b.Lane, r.Offset)
		}
		offsets[r.Offset] = true
		if before, ok := keys[r.Key]; ok {
			return s.bug("epoch %d of %s has two entries with the same id, at offsets %d and %d", b.Seq, b.Lane, before, r.Offset)
		}
		keys[r.Key] = r.Offset
	}
	return nil
}

// lookupRows bounds the keys, and the offsets, of one look-up.
const lookupRows = 500

// existing finds the ledger rows that already have keys of this epoch. The
// branch is gone, so what is found is committed. A row that has an offset of
// this epoch under another key is an *checkpoint.InvariantError: at one offset
// is one message, for ever.
func (s *shard) existing(ctx context.Context, b *checkpoint.Branch, rows *aggregate.Rows[aggregate.LedgerRow]) (found []checkpoint.ExistingRow, err error) {
	err = s.with(ctx, func(ctx context.Context, c *conn) error {
		for from := 0; from < rows.Len(); from += lookupRows {
			byKey := make(map[[16]byte]*aggregate.LedgerRow, lookupRows)
			byOffset := make(map[int64]*aggregate.LedgerRow, lookupRows)
			var keys, offsets []string
			for i := from; i < min(from+lookupRows, rows.Len()); i++ {
				r := rows.At(i)
				byKey[r.Key], byOffset[r.Offset] = r, r
				keys = append(keys, hexLiteral(r.Key[:]))
				offsets = append(offsets, strconv.FormatInt(r.Offset, 10))
			}
			there, err := lookUp(ctx, c, b.Lane, "kafka_offset IN ("+strings.Join(offsets, ",")+")")
			if err != nil {
				return err
			}
			for _, row := range there {
				if met := byOffset[row.Offset]; met.Key != row.Key {
					return s.bug("billing_ledger has a row of %s, offset %d, booked in epoch %d, with key %x and content %x; the record that epoch %d reads at this offset has key %x and content %x: the row was changed by hand, or the topic is not the one that was booked",
						b.Lane, row.Offset, row.seq, row.Key, row.Content, b.Seq, met.Key, met.Content)
				}
			}
			there, err = lookUp(ctx, c, b.Lane, "dedup_key IN ("+strings.Join(keys, ",")+")")
			if err != nil {
				return err
			}
			for _, row := range there {
				// Remembered under the row's own time it may be forgotten already, and the
				// same record would fail again and again.
				row.Time = max(row.Time, byKey[row.Key].Time)
				found = append(found, row.ExistingRow)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find the ledger's rows: %w", err)
	}
	return found, nil
}

type bookedRow struct {
	checkpoint.ExistingRow
	seq int64
}

// lookUp reads the lane's ledger rows under a condition.
func lookUp(ctx context.Context, c *conn, lane checkpoint.Lane, condition string) (found []bookedRow, err error) {
	rows, err := c.QueryContext(ctx, "SELECT dedup_key, content_hash, kafka_offset, occurred_at, seq FROM billing_ledger"+laneWhere(lane)+" AND "+condition)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var row bookedRow
		var key, content []byte
		var occurred string
		if err := rows.Scan(&key, &content, &row.Offset, &occurred, &row.seq); err != nil {
			return nil, err
		}
		at, err := time.Parse(microsFormat, occurred)
		if err != nil {
			return nil, fmt.Errorf("row at offset %d: %w", row.Offset, err)
		}
		if copy(row.Key[:], key) != len(row.Key) || copy(row.Content[:], content) != len(row.Content) {
			return nil, fmt.Errorf("row at offset %d: key %x, content %x", row.Offset, key, content)
		}
		row.Time = at.UnixMicro()
		found = append(found, row)
	}
	return found, rows.Err()
}
