package txsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
)

// epochsAtOnce is how many epochs one query of Epochs reads.
const epochsAtOnce = 1000

// Epochs calls fn for each epoch of the lane in [from, to] that the shard has, in
// order. They are what is committed, and no snapshot.
func (s *Sink) Epochs(ctx context.Context, shard int, lane checkpoint.Lane, from, to int64, fn func(*checkpoint.BookedEpoch) error) error {
	sh := s.shards[shard]
	for ; from <= to; from += epochsAtOnce {
		var found []*checkpoint.BookedEpoch
		err := sh.with(ctx, func(ctx context.Context, c *conn) (err error) {
			found, err = bookedEpochs(ctx, c, lane, from, min(to, from+epochsAtOnce-1))
			return err
		})
		if err != nil {
			return sh.failed(err)
		}
		for _, e := range found {
			if err := fn(e); err != nil {
				return err
			}
		}
	}
	return nil
}

func bookedEpochs(ctx context.Context, c *conn, lane checkpoint.Lane, from, to int64) (found []*checkpoint.BookedEpoch, err error) {
	where := laneWhere(lane) + " AND seq BETWEEN " + strconv.FormatInt(from, 10) + " AND " + strconv.FormatInt(to, 10) + " ORDER BY seq"
	bySeq := map[int64]*checkpoint.BookedEpoch{}
	err = each(ctx, c, "SELECT seq, gtrid, offset_from, offset_next, records_in, applied, duplicates, conflicts, rejected, ledger_on, prepared_at, shard_applied, shard_rejects FROM billing_epoch"+where,
		func(rows *sql.Rows) error {
			e := &checkpoint.BookedEpoch{Sums: map[string]checkpoint.BookedSum{}}
			var prepared string
			n := &e.Counts
			err := rows.Scan(&e.Seq, &e.GTRID, &e.OffsetFrom, &e.OffsetNext, &n.In, &n.Applied, &n.Duplicates, &n.Conflicts, &n.Rejected, &e.LedgerOn, &prepared, &e.Applied, &e.Rejects)
			if err != nil {
				return err
			}
			if e.PreparedAt, err = time.Parse(microsFormat, prepared); err != nil {
				return fmt.Errorf("prepared_at: %w", err)
			}
			found, bySeq[e.Seq] = append(found, e), e
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("read billing_epoch: %w", err)
	}
	err = each(ctx, c, "SELECT seq, currency, CAST(charge_amount AS CHAR), CAST(credit_amount AS CHAR), entry_count FROM billing_epoch_sum"+where,
		func(rows *sql.Rows) error {
			var seq int64
			var currency string
			var sum checkpoint.BookedSum
			if err := rows.Scan(&seq, &currency, &sum.Charge, &sum.Credit, &sum.Entries); err != nil {
				return err
			}
			if e := bySeq[seq]; e != nil {
				e.Sums[currency] = sum
			}
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("read billing_epoch_sum: %w", err)
	}
	return found, nil
}

// Beyond says what of a lane does not fit a shard that ends with an epoch, at an
// offset; "" where all does. Tables that were not copied at one moment don't fit
// each other: rows of later epochs, or totals that are not the sum of the epochs up
// to that one. It reads all totals, at one moment. Where the lane's row has moved
// it says nothing.
func (s *Sink) Beyond(ctx context.Context, shard int, lane checkpoint.Lane, seq, next int64) (wrong string, err error) {
	sh := s.shards[shard]
	err = sh.with(ctx, func(ctx context.Context, c *conn) error {
		if _, err := c.ExecContext(ctx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"); err != nil {
			return err
		}
		if _, err := c.ExecContext(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"); err != nil {
			return err
		}
		if wrong, err = beyond(ctx, c, lane, seq, next); err != nil {
			return err
		}
		_, err := c.ExecContext(ctx, "COMMIT")
		return err
	})
	if err != nil {
		return "", sh.failed(fmt.Errorf("look whether its tables are of one moment: %w", err))
	}
	return wrong, nil
}

func beyond(ctx context.Context, c *conn, lane checkpoint.Lane, seq, next int64) (string, error) {
	row, _, err := laneRow(ctx, c, lane)
	if err != nil || row.Seq != seq {
		return "", err
	}
	for table, later := range map[string]string{
		"billing_ledger": "kafka_offset >= " + strconv.FormatInt(next, 10), "billing_rejects": "kafka_offset >= " + strconv.FormatInt(next, 10),
		"billing_epoch_sum": "seq > " + strconv.FormatInt(seq, 10),
	} {
		var there bool
		if err := c.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM "+table+laneWhere(lane)+" AND "+later+")").Scan(&there); err != nil {
			return "", fmt.Errorf("read %s: %w", table, err)
		}
		if there {
			return "it ends with epoch " + strconv.FormatInt(seq, 10) + ", but " + table + " has rows of later ones", nil
		}
	}
	const sums = "SELECT currency, CAST(SUM(charge_amount) AS CHAR), CAST(SUM(credit_amount) AS CHAR), CAST(SUM(entry_count) AS SIGNED) FROM "
	read := func(table string) (map[string]checkpoint.BookedSum, error) {
		found := map[string]checkpoint.BookedSum{}
		err := each(ctx, c, sums+table+laneWhere(lane)+" GROUP BY currency", func(rows *sql.Rows) error {
			var currency string
			var sum checkpoint.BookedSum
			err := rows.Scan(&currency, &sum.Charge, &sum.Credit, &sum.Entries)
			found[currency] = sum
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", table, err)
		}
		return found, nil
	}
	epochs, err := read("billing_epoch_sum")
	if err != nil {
		return "", err
	}
	totals, err := read("billing_total")
	if err != nil {
		return "", err
	}
	if !maps.Equal(epochs, totals) {
		return fmt.Sprintf("its epochs up to %d have booked %v, but billing_total adds up to %v", seq, epochs, totals), nil
	}
	return "", nil
}

func each(ctx context.Context, c *conn, query string, row func(*sql.Rows) error) (err error) {
	rows, err := c.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Rebook writes a decided epoch that the shard has lost: what its branch wrote,
// in a local transaction. Nothing is in doubt about it any more, and its xid was
// used. The compare-and-set of the lane's row makes it safe beside whoever writes
// there: it fails, and changes nothing, where the shard does not end with the
// epoch before.
//
// It takes no lock by name, so that a session that looks for what older ones have
// left does not end its connection; the row's lock does what is needed.
//
// preparedAt is when the epoch was prepared, for its row; zero where that is not
// known. An error may come after the epoch is there: read its row.
func (s *Sink) Rebook(ctx context.Context, shard int, b *checkpoint.Branch, ledgerOn bool, preparedAt time.Time) error {
	sh := s.shards[shard]
	part, err := sh.part(b, ledgerOn)
	if err != nil {
		return err
	}
	c, err := sh.take(ctx)
	if err != nil {
		return sh.failed(err)
	}
	if err := sh.rebook(ctx, c, b, part, ledgerOn, preparedAt); err != nil {
		c.discard() // and with it what was not committed
		return sh.failed(fmt.Errorf("book epoch %d of %s again: %w", b.Seq, b.Lane, err))
	}
	c.giveBack()
	return nil
}

func (s *shard) rebook(ctx context.Context, c *conn, b *checkpoint.Branch, part *aggregate.Part, ledgerOn bool, preparedAt time.Time) error {
	w := writers.Get().(*writer) //nolint:errcheck // the pool holds nothing else
	defer w.free()
	now := time.Now()
	if preparedAt.IsZero() {
		preparedAt = now
	}
	w.exec, w.branch, w.preparedAt, w.changedAt = s.exec(c), b, preparedAt.UnixMicro(), now.UnixMicro()
	if err := chain(w.hash, b); err != nil {
		return err
	}
	if _, err := c.ExecContext(ctx, "START TRANSACTION"); err != nil {
		return fmt.Errorf("START TRANSACTION: %w", err)
	}
	if err := s.write(ctx, c, w, part, ledgerOn); err != nil {
		return err
	}
	if _, err := c.ExecContext(ctx, "COMMIT"); err != nil {
		return fmt.Errorf("COMMIT: %w", err)
	}
	return nil
}
