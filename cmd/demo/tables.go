package main

import (
	"context"
	"database/sql"
	"fmt"

	"billing/internal/loadgen"
	"billing/internal/money"
)

// The statements whose answers are compared. A reader of the tables would write
// them like this; nothing of the service's code is used.
const (
	totalsSQL = `SELECT tenant_id, account_id, sku, unit, currency, window_start, booked_period,
	charge_amount, credit_amount, net_amount, quantity, entry_count FROM billing_totals`

	// The same rows out of the ledger: if one of the two were wrong, they would
	// differ from each other and at least one of them from what is expected.
	ledgerSQL = `SELECT tenant_id, account_id, sku, unit, currency, window_start, booked_period,
	SUM(CASE entry_type WHEN 'charge' THEN amount ELSE 0 END),
	SUM(CASE entry_type WHEN 'credit' THEN amount ELSE 0 END),
	SUM(amount),
	SUM(CASE entry_type WHEN 'charge' THEN COALESCE(quantity, 0) ELSE -COALESCE(quantity, 0) END),
	COUNT(*) FROM billing_ledger
	GROUP BY tenant_id, account_id, sku, unit, currency, window_start, booked_period`

	currenciesSQL = `SELECT currency, SUM(charge_amount), SUM(credit_amount), SUM(net_amount)
	FROM billing_totals GROUP BY currency`

	epochsSQL = `SELECT kafka_topic, kafka_partition, seq, incarnation, gtrid, offset_from, offset_next,
	records_in, applied, duplicates, conflicts, rejected FROM billing_epoch
	ORDER BY kafka_topic, kafka_partition, seq`

	ledgerRowsSQL  = `SELECT COUNT(*) FROM billing_ledger`
	ledgerIDsSQL   = `SELECT COUNT(DISTINCT tenant_id, source, event_id) FROM billing_ledger`
	recordsSQL     = `SELECT COALESCE(SUM(records_in), 0) FROM billing_epoch`
	rejectKindsSQL = `SELECT kind, reason, COUNT(*) FROM billing_rejects GROUP BY kind, reason`
	preparedSQL    = `XA RECOVER`
)

// epoch is a row of billing_epoch.
type epoch struct {
	topic                                             string
	partition                                         int32
	seq, incarnation                                  int64
	gtrid                                             string
	from, next                                        int64
	records, applied, duplicates, conflicts, rejected int64
}

// currencySum is what one currency comes to.
type currencySum struct{ charge, credit, net money.Sum }

// answers is what the tables say, by shard.
type answers struct {
	totals, ledger [][]loadgen.Total
	epochs         [][]epoch
	ledgerRows     int64
	ledgerIDs      int64
	currencies     map[string]currencySum // over all shards
	kinds, reasons map[string]int64       // of the rejects, over all shards
	prepared       []string               // branches left on the server
}

// ask reads everything from the shards.
func ask(ctx context.Context, shards []*sql.DB) (a answers, err error) {
	a.currencies, a.kinds, a.reasons = map[string]currencySum{}, map[string]int64{}, map[string]int64{}
	for _, db := range shards {
		totals, err := readTotals(ctx, db, totalsSQL)
		if err != nil {
			return a, err
		}
		ledger, err := readTotals(ctx, db, ledgerSQL)
		if err != nil {
			return a, err
		}
		epochs, err := readEpochs(ctx, db)
		if err != nil {
			return a, err
		}
		a.totals, a.ledger, a.epochs = append(a.totals, totals), append(a.ledger, ledger), append(a.epochs, epochs)
		if err := readCurrencies(ctx, db, a.currencies); err != nil {
			return a, err
		}
		err = each(ctx, db, rejectKindsSQL, func(rows *sql.Rows) error {
			var kind, reason string
			var n int64
			err := rows.Scan(&kind, &reason, &n)
			a.kinds[kind] += n
			a.reasons[reason] += n
			return err
		})
		if err != nil {
			return a, err
		}
	}
	if a.ledgerRows, err = number(ctx, shards, ledgerRowsSQL); err != nil {
		return a, err
	}
	if a.ledgerIDs, err = number(ctx, shards, ledgerIDsSQL); err != nil {
		return a, err
	}
	a.prepared, err = listPrepared(ctx, shards[0])
	return a, err
}

// each calls scan for each row of the statement's answer.
func each(ctx context.Context, db *sql.DB, statement string, scan func(*sql.Rows) error) error {
	rows, err := db.QueryContext(ctx, statement)
	if err != nil {
		return fmt.Errorf("read the tables: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return fmt.Errorf("read the tables: %w", err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the tables: %w", err)
	}
	return nil
}

func readTotals(ctx context.Context, db *sql.DB, statement string) (all []loadgen.Total, err error) {
	err = each(ctx, db, statement, func(rows *sql.Rows) error {
		var t loadgen.Total
		err := rows.Scan(&t.TenantID, &t.AccountID, &t.SKU, &t.Unit, &t.Currency, &t.WindowStart, &t.BookedPeriod,
			&t.ChargeAmount, &t.CreditAmount, &t.NetAmount, &t.Quantity, &t.EntryCount)
		all = append(all, t)
		return err
	})
	return all, err
}

func readEpochs(ctx context.Context, db *sql.DB) (all []epoch, err error) {
	err = each(ctx, db, epochsSQL, func(rows *sql.Rows) error {
		var e epoch
		err := rows.Scan(&e.topic, &e.partition, &e.seq, &e.incarnation, &e.gtrid, &e.from, &e.next,
			&e.records, &e.applied, &e.duplicates, &e.conflicts, &e.rejected)
		all = append(all, e)
		return err
	})
	return all, err
}

func readCurrencies(ctx context.Context, db *sql.DB, into map[string]currencySum) error {
	return each(ctx, db, currenciesSQL, func(rows *sql.Rows) error {
		var currency string
		var texts [3]string
		if err := rows.Scan(&currency, &texts[0], &texts[1], &texts[2]); err != nil {
			return err
		}
		s := into[currency]
		for i, sum := range []*money.Sum{&s.charge, &s.credit, &s.net} {
			add, err := money.ParseSum([]byte(texts[i]))
			if err != nil {
				return fmt.Errorf("%s of %s: %w", texts[i], currency, err)
			}
			sum.AddSum(add)
		}
		into[currency] = s
		return nil
	})
}

// number adds up the one number that the statement gives on each shard.
func number(ctx context.Context, shards []*sql.DB, statement string) (sum int64, err error) {
	for _, db := range shards {
		var n int64
		if err := db.QueryRowContext(ctx, statement).Scan(&n); err != nil {
			return 0, fmt.Errorf("read the tables: %w", err)
		}
		sum += n
	}
	return sum, nil
}

// listPrepared gives the names (gtrids) of the branches that are prepared on the
// server: one for each shard that a branch is on.
func listPrepared(ctx context.Context, db *sql.DB) (names []string, err error) {
	err = each(ctx, db, preparedSQL, func(rows *sql.Rows) error {
		var format, gtrid, bqual int
		var data string
		if err := rows.Scan(&format, &gtrid, &bqual, &data); err != nil {
			return err
		}
		if gtrid > len(data) {
			return fmt.Errorf("XA RECOVER: a gtrid of %d bytes in %q", gtrid, data)
		}
		names = append(names, data[:gtrid])
		return nil
	})
	return names, err
}
