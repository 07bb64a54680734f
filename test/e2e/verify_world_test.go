package e2e

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/test/servers"
)

// Worlds for `billing verify`: with something in every table, and copies of their
// databases in which errors can be planted.

// rich sends rounds of everything that leaves rows, each its own epochs, until
// every table of every shard has all that it can have. The last epoch of the last
// lane has only a duplicate in it, and no rows of its own. Then the service ends.
func rich(t *testing.T, shards int, opts ...option) *world {
	t.Helper()
	w := newWorld(t, shards, append([]option{withPartitions(2)}, opts...)...)
	s := w.run("")
	const least, most = 4, 20
	for round := 1; ; round++ {
		again := w.sendRich()
		w.waitAccounted()
		if round < least {
			continue
		}
		missing := w.missing()
		if missing == "" {
			w.produce(again)
			w.waitAccounted()
			break
		}
		if round == most {
			t.Fatalf("after %d rounds there is still no %s", round, missing)
		}
	}
	s.stop()
	return w
}

// sendRich sends to every lane: charges and credits in two currencies, with and
// without notes and quantities, duplicates, conflicts, and what is no event.
func (w *world) sendRich() (again *kgo.Record) {
	w.t.Helper()
	for p := range w.partitions {
		var records []*kgo.Record
		add := func(key string, value []byte, headers ...kgo.RecordHeader) {
			r := &kgo.Record{Partition: p, Value: value, Headers: headers}
			if key != "" {
				r.Key = []byte(key)
			}
			records = append(records, r)
		}
		for i := range 16 {
			event := map[string]any{
				"specversion": "1.0", "id": uuid.NewString(), "source": "/meters/eu-1", "type": "com.example.billing.charge.v1",
				"subject": fmt.Sprintf("Account-%d", i), "time": time.Now().Add(-time.Duration(i) * 20 * time.Minute).UTC().Format(time.RFC3339Nano),
			}
			data := map[string]any{"amount": fmt.Sprintf("%d.%012d", i*100, i), "currency": []string{"EUR", "USD"}[i%2], "sku": "disk.Ssd", "unit": "GiB-h"}
			if i%5 == 4 {
				event["type"], data["amount"] = "com.example.billing.credit.v1", "-0.500000000001"
			}
			if i/2%2 == 0 {
				data["quantity"] = fmt.Sprintf("%d.25", i)
			}
			if i/3%2 == 0 {
				data["reason"] = "Late meter"
			}
			event["data"] = data
			add("", encode(event), structured...)
			switch i {
			case 0, 1: // again, the same
				add("", encode(event), structured...)
			case 2, 3, 4, 5: // with other content
				data["unit"] = "TiB-h"
				add(fmt.Sprint("Key-", i), encode(event), structured...)
			}
		}
		for range 4 {
			add("", nil)
			add("Key", nil, kgo.RecordHeader{Key: "Trace", Value: []byte("Abc")})
			add("", []byte("no JSON"), structured...)
			add("Key", []byte(`{"No": "event"}`))
		}
		w.produce(records...)
		again = &kgo.Record{Partition: p, Value: records[0].Value, Headers: structured}
	}
	return again
}

// missing names what some table of some shard has not got yet, "" for nothing.
func (w *world) missing() string {
	w.t.Helper()
	for i := range w.shards {
		for _, table := range w.everyTable(i) {
			if len(table.rows) == 0 || len(table.rows) < 4 && slices.Contains([]string{"billing_epoch", "billing_epoch_sum", "billing_total", "billing_ledger", "billing_rejects"}, table.name) {
				return fmt.Sprintf("shard %d: %d rows of %s", i, len(table.rows), table.name)
			}
			for n, c := range table.columns {
				nulls := 0
				for _, row := range table.rows {
					if row[n] == nil {
						nulls++
					}
				}
				if c.nullable && !c.exempt && (nulls < 3 || len(table.rows)-nulls < 3) {
					return fmt.Sprintf("shard %d: %d of %d rows of %s with %s NULL", i, nulls, len(table.rows), table.name, c.name)
				}
			}
		}
	}
	return ""
}

// copied is the same job with copies of its databases, for another test: as if the
// shards had never been elsewhere. Kafka is shared with the original.
func (w *world) copied(t *testing.T) *world {
	t.Helper()
	c := *w
	c.t, c.shards, c.dsns, c.config = t, nil, nil, filepath.Join(w.dir, uuid.NewString()+".yaml")
	yaml := string(w.configuration())
	for i, m := range w.servers {
		dsn := m.NewDatabase(t)
		db, err := sql.Open("mysql", servers.AsRoot(dsn))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		from, to := databaseOf(t, w.dsns[i]), databaseOf(t, dsn)
		root := m.Root()
		for _, table := range column(t, root, "SELECT table_name FROM information_schema.tables WHERE table_schema = ? AND table_type = 'BASE TABLE'", from) {
			copyTable(t, root, from, to, table)
		}
		views, err := root.Query("SELECT table_name, view_definition FROM information_schema.views WHERE table_schema = ?", from)
		if err != nil {
			t.Fatal(err)
		}
		defer views.Close()
		for views.Next() {
			var name, definition string
			if err := views.Scan(&name, &definition); err != nil {
				t.Fatal(err)
			}
			mustExec(t, root, "CREATE SQL SECURITY INVOKER VIEW `"+to+"`."+name+" AS "+strings.ReplaceAll(definition, "`"+from+"`.", "`"+to+"`."))
		}
		if err := views.Err(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(yaml, w.dsns[i]) {
			t.Fatalf("the configuration has no %s", w.dsns[i])
		}
		yaml = strings.ReplaceAll(yaml, w.dsns[i], dsn)
		c.shards, c.dsns = append(c.shards, db), append(c.dsns, dsn)
	}
	if err := os.WriteFile(c.config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return &c
}

func copyTable(t *testing.T, root *sql.DB, from, to, table string) {
	t.Helper()
	mustExec(t, root, fmt.Sprintf("CREATE TABLE `%s`.%s LIKE `%s`.%s", to, table, from, table))
	mustExec(t, root, fmt.Sprintf("INSERT INTO `%s`.%s SELECT * FROM `%s`.%s", to, table, from, table))
}

func mustExec(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.Exec(statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func databaseOf(t *testing.T, dsn string) string {
	t.Helper()
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return c.DBName
}

// withoutKafka points the configuration to a port where nothing listens.
func (w *world) withoutKafka() {
	w.t.Helper()
	w.edit(w.kafka.Addr(), "127.0.0.1:1")
}

// loosen removes what would stop an error from being planted: the tables' checks,
// and the unique keys beside the primary ones.
func (w *world) loosen() {
	w.t.Helper()
	for i, db := range w.shards {
		for _, c := range column(w.t, db, "SELECT CONCAT(table_name, ' DROP CHECK ', constraint_name) FROM information_schema.table_constraints WHERE table_schema = DATABASE() AND constraint_type = 'CHECK'") {
			w.exec(i, "ALTER TABLE "+c)
		}
		for _, c := range column(w.t, db, "SELECT CONCAT(table_name, ' DROP INDEX ', constraint_name) FROM information_schema.table_constraints WHERE table_schema = DATABASE() AND constraint_type = 'UNIQUE'") {
			w.exec(i, "ALTER TABLE "+c)
		}
	}
}

// ---- the tables as information_schema has them

type tableColumn struct {
	name, kind string // kind is its data type
	nullable   bool
	exempt     bool // verify says nothing about it
	length     int  // characters or bytes, of texts
	micros     bool // of a datetime
	key        bool // of the primary key
}

// table is one table of one shard with all its rows, in the order of the key.
type table struct {
	name    string
	columns []tableColumn
	rows    [][][]byte // as text; nil is NULL
}

// What verify says nothing about: what operators change, and what tells only when.
// With table and column as t and c.
const exemptColumn = `(c.column_name = 'updated_at' OR c.extra LIKE '%auto_increment%' OR
	c.table_name = 'billing_rejects' AND c.column_name IN ('state', 'state_changed_at', 'state_note'))`

// fromTables are all columns that there are.
const fromTables = ` FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
	WHERE c.table_schema = DATABASE() AND t.table_type = 'BASE TABLE' AND c.table_name LIKE 'billing\_%'`

// everyTable reads every base table of a shard.
func (w *world) everyTable(shard int) (all []table) {
	w.t.Helper()
	rows, err := w.shards[shard].Query(`SELECT c.table_name, c.column_name, c.data_type, c.is_nullable = 'YES', ` + exemptColumn + `,
		COALESCE(c.character_maximum_length, 0), c.datetime_precision <=> 6, c.column_key = 'PRI'` + fromTables + ` ORDER BY c.table_name, c.ordinal_position`)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var c tableColumn
		if err := rows.Scan(&name, &c.name, &c.kind, &c.nullable, &c.exempt, &c.length, &c.micros, &c.key); err != nil {
			w.t.Fatal(err)
		}
		if len(all) == 0 || all[len(all)-1].name != name {
			all = append(all, table{name: name})
		}
		last := &all[len(all)-1]
		last.columns = append(last.columns, c)
	}
	if err := rows.Err(); err != nil {
		w.t.Fatal(err)
	}
	if len(all) < 8 {
		w.t.Fatalf("found %d tables only", len(all))
	}
	for i := range all {
		all[i].read(w.t, w.shards[shard])
	}
	return all
}

func (t *table) read(test *testing.T, db *sql.DB) {
	test.Helper()
	var names, keys []string
	for _, c := range t.columns {
		names = append(names, c.name)
		if c.key {
			keys = append(keys, c.name)
		}
	}
	rows, err := db.Query("SELECT " + strings.Join(names, ", ") + " FROM " + t.name + " ORDER BY " + strings.Join(keys, ", "))
	if err != nil {
		test.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		row := make([][]byte, len(names))
		into := make([]any, len(names))
		for i := range row {
			into[i] = &row[i]
		}
		if err := rows.Scan(into...); err != nil {
			test.Fatal(err)
		}
		t.rows = append(t.rows, row)
	}
	if err := rows.Err(); err != nil {
		test.Fatal(err)
	}
}

// of is a row's value in a column.
func (t *table) of(row [][]byte, column string) string {
	for i, c := range t.columns {
		if c.name == column {
			return string(row[i])
		}
	}
	panic(t.name + " has no column " + column)
}

func (t *table) has(column string) bool {
	return slices.ContainsFunc(t.columns, func(c tableColumn) bool { return c.name == column })
}

// keyOf names a row as verify names it.
func (t *table) keyOf(row [][]byte) string {
	v := func(column string) string { return t.of(row, column) }
	lane := func() string { return v("kafka_topic") + "/" + v("kafka_partition") }
	switch t.name {
	case "billing_ledger", "billing_rejects":
		return lane() + " offset " + v("kafka_offset")
	case "billing_epoch":
		return lane() + " epoch " + v("seq")
	case "billing_epoch_sum":
		return lane() + " epoch " + v("seq") + " " + v("currency")
	case "billing_lane":
		return lane()
	case "billing_total":
		return fmt.Sprintf("%x", v("total_key"))
	case "billing_meta":
		return "id " + v("id")
	case "billing_schema":
		return "migration " + v("version")
	}
	panic("how does verify name a row of " + t.name + "?")
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
