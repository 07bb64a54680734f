package main

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"billing/internal/loadgen"
	"billing/internal/money"
)

// tables are the statements whose answers are compared. A reader of the tables
// would write them like this; nothing of the service's code is used.
type tables struct {
	databases               [shards]string // names
	ledger, totals, rejects string         // names in each
	records                 string         // how many records were accounted for
	highest                 string         // by partition, the offset behind the last ledger row
}

var (
	serviceTables = tables{
		databases: [shards]string{database(oursUser, 0), database(oursUser, 1)},
		ledger:    "billing_ledger", totals: "billing_totals", rejects: "billing_rejects",
		records: `SELECT COALESCE(SUM(records_in), 0) FROM billing_epoch`,
		highest: `SELECT kafka_partition, MAX(kafka_offset) + 1 FROM billing_ledger GROUP BY kafka_topic, kafka_partition`,
	}
	plainLoopTables = tables{
		databases: [shards]string{database(plainUser, 0), database(plainUser, 1)},
		ledger:    "plain_ledger", totals: "plain_totals", rejects: "plain_rejects",
		records: `SELECT COALESCE(SUM(records_in), 0) FROM plain_batches`,
		highest: `SELECT kafka_partition, MAX(kafka_offset) + 1 FROM plain_ledger GROUP BY kafka_partition`,
	}
)

const (
	totalsSQL = `SELECT tenant_id, account_id, sku, unit, currency, window_start, booked_period,
	charge_amount, credit_amount, net_amount, quantity, entry_count FROM TOTALS`

	// The same rows out of the ledger: if one of the two were wrong, they would
	// differ from each other and at least one of them from what is expected.
	ledgerSQL = `SELECT tenant_id, account_id, sku, unit, currency, window_start, booked_period,
	SUM(CASE entry_type WHEN 'charge' THEN amount ELSE 0 END),
	SUM(CASE entry_type WHEN 'credit' THEN amount ELSE 0 END),
	SUM(amount),
	SUM(CASE entry_type WHEN 'charge' THEN COALESCE(quantity, 0) ELSE -COALESCE(quantity, 0) END),
	COUNT(*) FROM LEDGER
	GROUP BY tenant_id, account_id, sku, unit, currency, window_start, booked_period`

	currenciesSQL = `SELECT currency, SUM(charge_amount), SUM(credit_amount) FROM TOTALS GROUP BY currency`

	countsSQL = `SELECT COUNT(*), COUNT(DISTINCT kafka_partition, kafka_offset),
	COUNT(DISTINCT kafka_partition, tenant_id, source, event_id, content_hash) FROM LEDGER`

	// Ids are told apart within a partition. Of all shards together, for another
	// content of an id may be for an account that is on another shard.
	idsSQL = `SELECT COUNT(DISTINCT kafka_partition, tenant_id, source, event_id) FROM
	(SELECT kafka_partition, tenant_id, source, event_id FROM SHARD0.LEDGER
	UNION ALL SELECT kafka_partition, tenant_id, source, event_id FROM SHARD1.LEDGER) AS ledgers`

	reasonsSQL  = `SELECT kind, reason, COUNT(*) FROM REJECTS GROUP BY kind, reason`
	preparedSQL = `XA RECOVER`
)

// of is the statement for these tables.
func (t tables) of(statement string) string {
	return strings.NewReplacer("TOTALS", t.totals, "LEDGER", t.ledger, "REJECTS", t.rejects, "SHARD0", t.databases[0], "SHARD1", t.databases[1]).Replace(statement)
}

// currencySum is what one currency comes to.
type currencySum struct{ charge, credit money.Sum }

func (s currencySum) net() money.Sum {
	n := s.charge
	n.AddSum(s.credit)
	return n
}

// answers is what a contender's databases say.
type answers struct {
	totals, ledger [][]loadgen.Total // by shard
	records        []int64           // accounted for, by shard
	rows           int64             // of the ledger, over all shards; and how many different
	positions      int64             // messages,
	contents       int64             // events by id and content,
	ids            int64             // and events by id are among them
	currencies     map[string]currencySum
	conflicts      int64            // kept
	reasons        map[string]int64 // of what was kept as rejected
	prepared       int64            // branches left on the server
}

// ask reads everything from the shards.
func ask(ctx context.Context, dbs []*sql.DB, t tables) (a answers, err error) {
	a.currencies, a.reasons = map[string]currencySum{}, map[string]int64{}
	for shard, db := range dbs {
		for _, q := range []struct {
			into      *[][]loadgen.Total
			statement string
		}{{&a.totals, totalsSQL}, {&a.ledger, ledgerSQL}} {
			rows, err := readTotals(ctx, db, t.of(q.statement))
			if err != nil {
				return a, err
			}
			*q.into = append(*q.into, rows)
		}
		n, err := number(ctx, dbs[shard:shard+1], t.records)
		if err != nil {
			return a, err
		}
		a.records = append(a.records, n)
		var rows, positions, contents int64
		if err := db.QueryRowContext(ctx, t.of(countsSQL)).Scan(&rows, &positions, &contents); err != nil {
			return a, fmt.Errorf("read the tables: %w", err)
		}
		a.rows, a.positions, a.contents = a.rows+rows, a.positions+positions, a.contents+contents
		if err := readCurrencies(ctx, db, t.of(currenciesSQL), a.currencies); err != nil {
			return a, err
		}
		err = each(ctx, db, t.of(reasonsSQL), func(rows *sql.Rows) error {
			var kind, reason string
			var n int64
			err := rows.Scan(&kind, &reason, &n)
			if kind == "conflict" {
				a.conflicts += n
			} else {
				a.reasons[reason] += n
			}
			return err
		})
		if err != nil {
			return a, err
		}
	}
	if a.ids, err = number(ctx, dbs[:1], t.of(idsSQL)); err != nil {
		return a, err
	}
	prepared, err := listPrepared(ctx, dbs[0])
	a.prepared = int64(len(prepared))
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

func readCurrencies(ctx context.Context, db *sql.DB, statement string, into map[string]currencySum) error {
	return each(ctx, db, statement, func(rows *sql.Rows) error {
		var currency, charge, credit string
		if err := rows.Scan(&currency, &charge, &credit); err != nil {
			return err
		}
		s := into[currency]
		err := s.add(charge, credit)
		into[currency] = s
		return err
	})
}

// add adds amounts as the tables and the load write them.
func (s *currencySum) add(charge, credit string) error {
	c, err := money.ParseSum([]byte(charge))
	if err != nil {
		return fmt.Errorf("amount %s: %w", charge, err)
	}
	s.charge.AddSum(c)
	if c, err = money.ParseSum([]byte(credit)); err != nil {
		return fmt.Errorf("amount %s: %w", credit, err)
	}
	s.credit.AddSum(c)
	return nil
}

// number adds up the one number that the statement gives on each shard.
func number(ctx context.Context, dbs []*sql.DB, statement string) (sum int64, err error) {
	for _, db := range dbs {
		var n int64
		if err := db.QueryRowContext(ctx, statement).Scan(&n); err != nil {
			return 0, fmt.Errorf("read the tables: %w", err)
		}
		sum += n
	}
	return sum, nil
}

// branch is an XA branch that is prepared on the server.
type branch struct{ gtrid, shard string }

// listPrepared gives those of all databases of the server.
func listPrepared(ctx context.Context, db *sql.DB) (all []branch, err error) {
	err = each(ctx, db, preparedSQL, func(rows *sql.Rows) error {
		var format, gtrid, bqual int
		var data string
		if err := rows.Scan(&format, &gtrid, &bqual, &data); err != nil {
			return err
		}
		if gtrid > len(data) {
			return fmt.Errorf("XA RECOVER: a gtrid of %d bytes in %q", gtrid, data)
		}
		all = append(all, branch{data[:gtrid], data[gtrid:]})
		return nil
	})
	return all, err
}
