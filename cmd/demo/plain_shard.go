package main

import (
	"cmp"
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"billing/internal/event"
	"billing/internal/money"

	"github.com/go-sql-driver/mysql"
	"github.com/twmb/franz-go/pkg/kgo"
)

//go:embed plain.sql
var plainTables string

// plainShard is one of the plain loop's databases.
type plainShard struct{ db *sql.DB }

func openPlainShard(dsn string) (*plainShard, error) {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("plain loop: read its DSN: %w", err)
	}
	c.InterpolateParams = true // a statement is one round trip, whatever its number of rows
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, fmt.Errorf("plain loop: open a shard: %w", err)
	}
	return &plainShard{sql.OpenDB(connector)}, nil
}

// makePlainTables makes the tables on every shard.
func makePlainTables(ctx context.Context, dsns []string) error {
	for _, dsn := range dsns {
		s, err := openPlainShard(dsn)
		if err != nil {
			return err
		}
		for statement := range strings.SplitSeq(strings.TrimSpace(plainTables), ";\n") {
			if _, err = s.db.ExecContext(ctx, strings.TrimSuffix(statement, ";")); err != nil {
				err = fmt.Errorf("plain loop: make its tables: %w", err)
				break
			}
		}
		_ = s.db.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *plainShard) readNewest(ctx context.Context, newest map[int32]int64) error {
	return each(ctx, s.db, `SELECT kafka_partition, CAST(MAX(occurred_at) AS CHAR) FROM plain_ledger GROUP BY kafka_partition`, func(rows *sql.Rows) error {
		var partition int32
		var text string
		if err := rows.Scan(&partition, &text); err != nil {
			return err
		}
		at, err := time.Parse(time.DateTime, text)
		newest[partition] = max(newest[partition], at.UnixMicro())
		return err
	})
}

// Values of one row.
const (
	plainLedgerColumns = 15
	plainTotalColumns  = 9
	plainRejectColumns = 7
)

// plainBatch is a batch's part for one shard.
type plainBatch struct {
	records int // of the whole batch
	window  time.Duration
	ledger  []any // values of the rows
	rejects []any
	totals  map[plainKey]*plainTotal
}

type plainKey struct{ account, sku, unit, currency, window string }

type plainTotal struct {
	charge, credit, quantity money.Sum
	entries                  int64
}

func newPlainBatch(records int, window time.Duration) *plainBatch {
	return &plainBatch{records: records, window: window, totals: map[plainKey]*plainTotal{}}
}

// book adds an event to the ledger and to its total.
func (b *plainBatch) book(r *kgo.Record, e *event.Event) {
	at := time.UnixMicro(e.Time).UTC()
	window := at.Truncate(b.window).Format(time.DateTime)
	var quantity any
	if e.HasQuantity {
		quantity = e.Quantity.String()
	}
	b.ledger = append(b.ledger, r.Partition, r.Offset, e.Source, e.ID, e.Type.String(), e.Account, bytesOf(e.SKU), bytesOf(e.Unit), e.Currency,
		e.Amount.String(), quantity, e.Note, at.Format("2006-01-02 15:04:05.000000"), window, e.Content[:])
	key := plainKey{string(e.Account), string(e.SKU), string(e.Unit), e.Currency, window}
	t := b.totals[key]
	if t == nil {
		t = new(plainTotal)
		b.totals[key] = t
	}
	t.entries++
	if e.Type == event.Credit {
		t.credit.Add(e.Amount)
		t.quantity.Sub(e.Quantity)
	} else {
		t.charge.Add(e.Amount)
		t.quantity.Add(e.Quantity)
	}
}

// bytesOf is b, and no bytes instead of NULL.
func bytesOf(b []byte) []byte { return append([]byte{}, b...) }

// reject keeps a record that is not booked.
func (b *plainBatch) reject(r *kgo.Record, kind, reason, detail string) {
	const most = 64 << 10 // as much of a value as the service keeps
	b.rejects = append(b.rejects, r.Partition, r.Offset, kind, reason, detail, r.Key, r.Value[:min(len(r.Value), most)])
}

// write writes the part in one local transaction.
func (s *plainShard) write(ctx context.Context, b *plainBatch) (err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("plain loop: begin: %w", err)
	}
	defer func() {
		if err != nil {
			_ = tx.Rollback() // or the connection's end does it
		}
	}()
	var totals []any
	// In one order, so that neighbours are written together.
	keys := make([]plainKey, 0, len(b.totals))
	for k := range b.totals {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(x, y plainKey) int {
		return cmp.Or(cmp.Compare(x.account, y.account), cmp.Compare(x.sku, y.sku), cmp.Compare(x.unit, y.unit), cmp.Compare(x.currency, y.currency), cmp.Compare(x.window, y.window))
	})
	for _, k := range keys {
		t := b.totals[k]
		totals = append(totals, []byte(k.account), []byte(k.sku), []byte(k.unit), k.currency, k.window, text(t.charge), text(t.credit), text(t.quantity), t.entries)
	}
	for _, w := range []struct {
		into, after string
		columns     int
		values      []any
	}{
		{into: "plain_ledger (kafka_partition, kafka_offset, source, event_id, entry_type, account_id, sku, unit, currency, amount, quantity, note, occurred_at, window_start, content_hash)",
			columns: plainLedgerColumns, values: b.ledger},
		{into: "plain_totals (account_id, sku, unit, currency, window_start, charge_amount, credit_amount, quantity, entry_count)",
			columns: plainTotalColumns, values: totals,
			after: ` AS new ON DUPLICATE KEY UPDATE charge_amount = plain_totals.charge_amount + new.charge_amount, credit_amount = plain_totals.credit_amount + new.credit_amount,
				quantity = plain_totals.quantity + new.quantity, entry_count = plain_totals.entry_count + new.entry_count`},
		{into: "plain_rejects (kafka_partition, kafka_offset, kind, reason, detail, raw_key, raw_value)",
			columns: plainRejectColumns, values: b.rejects},
		{into: "plain_batches (records_in)", columns: 1, values: []any{b.records}},
	} {
		rows := len(w.values) / w.columns
		if rows == 0 {
			continue
		}
		row := "(" + strings.Repeat(",?", w.columns)[1:] + ")"
		statement := "INSERT INTO " + w.into + " VALUES " + strings.Repeat(","+row, rows)[1:] + w.after //nolint:gosec // placeholders only
		if _, err := tx.ExecContext(ctx, statement, w.values...); err != nil {
			return fmt.Errorf("plain loop: write: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("plain loop: commit a shard: %w", err)
	}
	return nil
}

func text(s money.Sum) string { return string(s.AppendText(nil)) }
