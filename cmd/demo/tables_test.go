package main

import (
	"database/sql"
	"strings"
	"testing"

	"billing/internal/loadgen"
	"billing/migrations"
	"billing/test/servers"

	"github.com/go-sql-driver/mysql"
)

// A load of six messages, and what a service that is right makes of it: the
// account a is on shard 0, the other one on shard 1.
func smallLoad() *load {
	l := &load{expected: loadgen.Expected{
		Messages: 6,
		Outcomes: loadgen.Outcomes{Applied: 3, Duplicate: 1, Conflict: 1, Rejected: 1},
		Totals: []loadgen.Total{
			{TenantID: "default", AccountID: "a", SKU: "s", Unit: "u", Currency: "USD", WindowStart: "2026-01-31 23:00:00", BookedPeriod: "2026-01",
				ChargeAmount: "1.500000000000", CreditAmount: "-0.500000000000", NetAmount: "1.000000000000", Quantity: "2.000000000000", EntryCount: 2},
			{TenantID: "default", AccountID: "caf\u00e9 ", Currency: "EUR", WindowStart: "2026-02-01 00:00:00", BookedPeriod: "2026-02",
				ChargeAmount: "99999999999999999999999999.999999999999", CreditAmount: "0.000000000000",
				NetAmount: "99999999999999999999999999.999999999999", Quantity: "0.000000000000", EntryCount: 1},
		},
	}}
	l.perPartition[0], l.perPartition[1] = 3, 3
	return l
}

const (
	totalColumns  = `billing_total (total_key, kafka_topic, kafka_partition, tenant_id, account_id, sku, unit, currency, window_start, booked_period, charge_amount, credit_amount, quantity, entry_count, updated_at)`
	ledgerColumns = `billing_ledger (kafka_topic, kafka_partition, kafka_offset, seq, tenant_id, source, event_id, entry_type, account_id, sku, unit, currency, amount, quantity, occurred_at, window_start, booked_period, dedup_key, content_hash)`
	rejectColumns = `billing_rejects (kafka_topic, kafka_partition, kafka_offset, seq, kind, reason, detail, raw_size, raw_headers, value_hash)`
	epochColumns  = `billing_epoch (kafka_topic, kafka_partition, seq, topic_id, incarnation, gtrid, offset_from, offset_next, records_in, applied, duplicates, conflicts, rejected, shard_applied, shard_rejects, ledger_on, prepared_at, row_marks, digest)`
)

func rightRows(shard int) []string {
	statements := []string{`INSERT INTO ` + epochColumns + ` VALUES
		('billing.events', 0, 1, 't', 1, 'g1', 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, NOW(6), '', 'd'),
		('billing.events', 0, 2, 't', 3, 'g2', 1, 3, 2, 1, 1, 0, 0, 0, 0, 1, NOW(6), '', 'd'),
		('billing.events', 1, 1, 't', 1, 'g3', 0, 3, 3, 1, 0, 1, 1, 0, 0, 1, NOW(6), '', 'd')`}
	if shard == 0 {
		return append(statements,
			`INSERT INTO `+totalColumns+` VALUES ('k', 'billing.events', 0, 'default', 'a', 's', 'u', 'USD', '2026-01-31 23:00:00', '2026-01', 1.5, -0.5, 2, 2, NOW(6))`,
			`INSERT INTO `+ledgerColumns+` VALUES
			('billing.events', 0, 0, 1, 'default', '/s', 'e1', 'charge', 'a', 's', 'u', 'USD', 1.5, 2, '2026-01-31 23:59:59.999999', '2026-01-31 23:00:00', '2026-01', 'k1', 'c'),
			('billing.events', 0, 1, 2, 'default', '/s', 'e2', 'credit', 'a', 's', 'u', 'USD', -0.5, NULL, '2026-01-31 23:00:00', '2026-01-31 23:00:00', '2026-01', 'k2', 'c')`,
			`INSERT INTO `+rejectColumns+` VALUES ('billing.events', 1, 1, 1, 'conflict', 'conflict', '', 0, '', 'h')`)
	}
	return append(statements,
		`INSERT INTO `+totalColumns+` VALUES ('k', 'billing.events', 1, 'default', 'caf`+"\u00e9"+` ', '', '', 'EUR', '2026-02-01 00:00:00', '2026-02', 99999999999999999999999999.999999999999, 0, 0, 1, NOW(6))`,
		`INSERT INTO `+ledgerColumns+` VALUES
			('billing.events', 1, 0, 1, 'default', '/s', 'e1', 'charge', 'caf`+"\u00e9"+` ', '', '', 'EUR', 99999999999999999999999999.999999999999, NULL, '2026-02-01 00:00:00', '2026-02-01 00:00:00', '2026-02', 'k1', 'c')`,
		`INSERT INTO `+rejectColumns+` VALUES ('billing.events', 1, 2, 1, 'rejected', 'invalid_json', '', 0, '', 'h')`)
}

// newShards makes the real tables in two databases and fills them rightly. Each
// pool has one connection, so that a test's change can be rolled back.
func newShards(t *testing.T, server *servers.MySQLServer) []*sql.DB {
	all, err := migrations.All()
	if err != nil {
		t.Fatal(err)
	}
	var shards []*sql.DB
	for shard := range 2 {
		cfg, err := mysql.ParseDSN(servers.AsRoot(server.NewDatabase(t)))
		if err != nil {
			t.Fatal(err)
		}
		cfg.MultiStatements = true
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			t.Fatal(err)
		}
		db := sql.OpenDB(connector)
		db.SetMaxOpenConns(1)
		t.Cleanup(func() { _ = db.Close() })
		for _, m := range all {
			must(t, db, m.SQL)
		}
		for _, statement := range rightRows(shard) {
			must(t, db, statement)
		}
		shards = append(shards, db)
	}
	return shards
}

func must(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// The comparison is silent about right tables and speaks up about every single
// change in them.
func TestComparisonAgainstRealTables(t *testing.T) {
	server := servers.MySQL(t)
	shards := newShards(t, server)
	differences := func(t *testing.T) []string {
		a, err := ask(t.Context(), shards)
		if err != nil {
			t.Fatal(err)
		}
		return compare(smallLoad(), a).differences
	}
	if d := differences(t); len(d) > 0 {
		t.Fatalf("right tables differ:\n%s", strings.Join(d, "\n"))
	}
	duplicateTotal := `INSERT INTO ` + totalColumns + ` VALUES ('x', 'billing.events', 2, 'default', 'caf` + "\u00e9" + ` ', '', '', 'EUR', '2026-02-01 00:00:00', '2026-02', 0, 0, 0, 1, NOW(6))`
	duplicateEntry := `INSERT INTO ` + ledgerColumns + ` SELECT kafka_topic, kafka_partition, 9, seq, tenant_id, source, event_id, entry_type, account_id, sku, unit, currency, amount, quantity, occurred_at, window_start, booked_period, 'other', content_hash FROM billing_ledger LIMIT 1`
	for _, change := range []struct {
		shard     int
		statement string
		about     string // what the differences must name
	}{
		{0, `UPDATE billing_total SET charge_amount = charge_amount + 0.000000000001`, "billing_totals: account \"a\""},
		{1, `UPDATE billing_total SET charge_amount = charge_amount - 0.000000000001`, "EUR charges"},
		{0, `UPDATE billing_total SET credit_amount = credit_amount - 1, charge_amount = charge_amount + 1`, "USD credits"},
		{0, `UPDATE billing_total SET quantity = 3`, "quantity 3.000000000000"},
		{0, `UPDATE billing_total SET entry_count = 3`, "entries 3"},
		{0, `UPDATE billing_total SET unit = 'U'`, "twice or for nothing"},
		{0, `UPDATE billing_total SET window_start = '2026-01-31 22:00:00'`, "22:00:00"},
		{0, `UPDATE billing_total SET booked_period = '2026-02'`, "2026-02"},
		{1, `UPDATE billing_total SET account_id = TRIM(account_id)`, "missing"},
		{1, `UPDATE billing_total SET currency = 'KWD'`, "KWD charges"},
		{1, `DELETE FROM billing_total`, "missing"},
		{1, duplicateTotal, "entries 2"},
		{0, duplicateTotal, "on shard 1"},
		{1, duplicateEntry, "ledger rows: had to be 3, is 4"},
		{0, `DELETE FROM billing_ledger WHERE kafka_offset = 1`, "ledger rows"},
		{0, `UPDATE billing_ledger SET amount = 1.6 WHERE kafka_offset = 0`, "billing_ledger: account \"a\""},
		{0, `UPDATE billing_ledger SET quantity = 1 WHERE kafka_offset = 1`, "quantity 1.000000000000"},
		{0, `UPDATE billing_ledger SET event_id = 'e1'`, "different ids"},
		{0, `DELETE FROM billing_rejects`, "conflicts kept"},
		{1, `DELETE FROM billing_rejects`, "rejected messages kept"},
		{0, `DELETE FROM billing_epoch WHERE kafka_partition = 0 AND seq = 2`, "accounted for"},
		{1, `DELETE FROM billing_epoch WHERE kafka_partition = 0 AND seq = 2`, "shard 1 has 2 rows"},
		{0, `UPDATE billing_epoch SET seq = 3 WHERE kafka_partition = 0 AND seq = 2`, "does not follow"},
		{0, `UPDATE billing_epoch SET offset_from = 0 WHERE seq = 2`, "does not follow"},
		{0, `UPDATE billing_epoch SET incarnation = 4 WHERE kafka_partition = 0 AND seq = 1`, "does not follow"},
		{0, `UPDATE billing_epoch SET offset_next = 4 WHERE kafka_partition = 1`, "partition 1, offset reached"},
		{1, `UPDATE billing_epoch SET gtrid = 'other' WHERE kafka_partition = 1`, "on shard 1 as on shard 0"},
		{0, `UPDATE billing_epoch SET applied = 0, duplicates = 1 WHERE seq = 1 AND kafka_partition = 0`, "duplicates removed"},
		{0, `UPDATE billing_epoch SET kafka_topic = 'another' WHERE kafka_partition = 1`, "no lane of this job"},
	} {
		must(t, shards[change.shard], `START TRANSACTION`)
		must(t, shards[change.shard], change.statement)
		if d := strings.Join(differences(t), "\n"); !strings.Contains(d, change.about) {
			t.Errorf("after %s on shard %d there is nothing about %q in:\n%s", change.statement, change.shard, change.about, d)
		}
		must(t, shards[change.shard], `ROLLBACK`)
	}

	t.Run("prepared", func(t *testing.T) {
		for _, statement := range []string{`XA START 'left', 'over'`, `INSERT INTO billing_schema VALUES (9, '', '')`, `XA END 'left', 'over'`, `XA PREPARE 'left', 'over'`} {
			must(t, shards[1], statement)
		}
		defer must(t, shards[1], `XA ROLLBACK 'left', 'over'`)
		names, err := listPrepared(t.Context(), shards[0])
		if err != nil || len(names) != 1 || names[0] != "left" {
			t.Errorf("prepared branches are %q, %v", names, err)
		}
		if d := differences(t); len(d) != 1 || !strings.Contains(d[0], "branches left prepared") {
			t.Errorf("differences %q", d)
		}
	})
	if d := differences(t); len(d) > 0 {
		t.Errorf("right tables differ at the end:\n%s", strings.Join(d, "\n"))
	}
}
