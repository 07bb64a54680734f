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

// The answer of a load of six messages, and below what a service that is right
// makes of it: the account a is on shard 0, the other one on shard 1.
func smallLoad() *answer {
	return &answer{
		Messages: 6,
		Outcomes: loadgen.Outcomes{Applied: 3, Duplicate: 1, Conflict: 1, Rejected: 1},
		Reasons:  map[string]int64{"invalid_json": 1},
		Totals: []loadgen.Total{
			{TenantID: "default", AccountID: "a", SKU: "s", Unit: "u", Currency: "USD", WindowStart: "2026-01-31 23:00:00", BookedPeriod: "2026-01",
				ChargeAmount: "1.500000000000", CreditAmount: "-0.500000000000", NetAmount: "1.000000000000", Quantity: "2.000000000000", EntryCount: 2},
			{TenantID: "default", AccountID: "caf\u00e9 ", Currency: "EUR", WindowStart: "2026-02-01 00:00:00", BookedPeriod: "2026-02",
				ChargeAmount: "99999999999999999999999999.999999999999", CreditAmount: "0.000000000000",
				NetAmount: "99999999999999999999999999.999999999999", Quantity: "0.000000000000", EntryCount: 1},
		},
	}
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
func newShards(t *testing.T, server *servers.MySQLServer) ([]*sql.DB, tables) {
	all, err := migrations.All()
	if err != nil {
		t.Fatal(err)
	}
	var dbs []*sql.DB
	var users []string
	named := serviceTables
	for shard := range shards {
		cfg, err := mysql.ParseDSN(servers.AsRoot(server.NewDatabase(t)))
		if err != nil {
			t.Fatal(err)
		}
		cfg.MultiStatements = true
		named.databases[shard], users = cfg.DBName, append(users, cfg.User)
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
		dbs = append(dbs, db)
	}
	must(t, server.Root(), "GRANT SELECT ON `"+named.databases[1]+"`.* TO '"+users[0]+"'@'%'")
	return dbs, named
}

func must(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func TestOnMySQL(t *testing.T) {
	t.Parallel()
	server := servers.MySQL(t)
	t.Run("comparison", func(t *testing.T) { comparisonAgainstRealTables(t, server) })
	t.Run("plain loop", func(t *testing.T) { plainLoopIsExact(t, server) })
}

// The comparison is silent about right tables and speaks up about every single
// change in them.
func comparisonAgainstRealTables(t *testing.T, server *servers.MySQLServer) {
	dbs, named := newShards(t, server)
	differences := func(t *testing.T) []string {
		a, err := ask(t.Context(), dbs, named)
		if err != nil {
			t.Fatal(err)
		}
		b, err := compare(smallLoad(), a)
		if err != nil || b.Exact != (b.Differences == 0) || int(b.Differences) != len(b.FirstDifferences) {
			t.Fatalf("%v, exact %v with %d differences, %d of them named", err, b.Exact, b.Differences, len(b.FirstDifferences))
		}
		return b.FirstDifferences
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
		{0, `UPDATE billing_total SET charge_amount = charge_amount + 0.000000000001`, "totals: account \"a\""},
		{1, `UPDATE billing_total SET charge_amount = charge_amount - 0.000000000001`, "EUR: had to be"},
		{0, `UPDATE billing_total SET credit_amount = credit_amount - 1, charge_amount = charge_amount + 1`, "USD: had to be"},
		{0, `UPDATE billing_total SET quantity = 3`, "quantity 3.000000000000"},
		{0, `UPDATE billing_total SET entry_count = 3`, "entries 3"},
		{0, `UPDATE billing_total SET unit = 'U'`, "twice or for nothing"},
		{0, `UPDATE billing_total SET window_start = '2026-01-31 22:00:00'`, "22:00:00"},
		{0, `UPDATE billing_total SET booked_period = '2026-02'`, "2026-02"},
		{1, `UPDATE billing_total SET account_id = TRIM(account_id)`, "missing"},
		{1, `UPDATE billing_total SET currency = 'KWD'`, "KWD: had to be"},
		{1, `DELETE FROM billing_total`, "missing"},
		{1, duplicateTotal, "entries 2"},
		{0, duplicateTotal, "on shard 1"},
		{1, duplicateEntry, "ledger rows: had to be 3, is 4"},
		{0, `DELETE FROM billing_ledger WHERE kafka_offset = 1`, "ledger rows"},
		{0, `UPDATE billing_ledger SET amount = 1.6 WHERE kafka_offset = 0`, "ledger: account \"a\""},
		{0, `UPDATE billing_ledger SET quantity = 1 WHERE kafka_offset = 1`, "quantity 1.000000000000"},
		{0, `UPDATE billing_ledger SET event_id = 'e1'`, "with different ids"},
		{0, `DELETE FROM billing_rejects`, "conflicts kept"},
		{1, `DELETE FROM billing_rejects`, "kept as rejected for invalid_json"},
		{0, `DELETE FROM billing_epoch WHERE kafka_partition = 0 AND seq = 2`, "on shard 0: had to be 6, is 4"},
		{1, `DELETE FROM billing_epoch WHERE kafka_partition = 0 AND seq = 2`, "on shard 1: had to be 6, is 4"},
	} {
		must(t, dbs[change.shard], `START TRANSACTION`)
		must(t, dbs[change.shard], change.statement)
		if d := strings.Join(differences(t), "\n"); !strings.Contains(d, change.about) {
			t.Errorf("after %s on shard %d there is nothing about %q in:\n%s", change.statement, change.shard, change.about, d)
		}
		must(t, dbs[change.shard], `ROLLBACK`)
	}

	t.Run("prepared", func(t *testing.T) {
		for _, statement := range []string{`XA START 'left', 'over'`, `INSERT INTO billing_schema VALUES (9, '', '')`, `XA END 'left', 'over'`, `XA PREPARE 'left', 'over'`} {
			must(t, dbs[1], statement)
		}
		defer must(t, dbs[1], `XA ROLLBACK 'left', 'over'`)
		branches, err := listPrepared(t.Context(), dbs[0])
		if err != nil || len(branches) != 1 || branches[0] != (branch{"left", "over"}) {
			t.Errorf("prepared branches are %q, %v", branches, err)
		}
		if d := differences(t); len(d) != 1 || !strings.Contains(d[0], "branches left prepared") {
			t.Errorf("differences %q", d)
		}
	})
	if d := differences(t); len(d) > 0 {
		t.Errorf("right tables differ at the end:\n%s", strings.Join(d, "\n"))
	}
}
