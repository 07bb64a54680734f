package txsink_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"billing/internal/aggregate"
	"billing/internal/event"
)

func TestDecimalsAreExactAtTheirLimits(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	account := on(0, "big")
	most := strings.Repeat("9", 26) + "." + strings.Repeat("9", 12)
	e := l.epoch()
	for i := range 200 { // 200 of the largest: 41 digits, more than a DECIMAL(38,12)
		e.Apply(charge(fmt.Sprint("m", i), account, most), int64(i))
	}
	e.Apply(charge("tiny", account, "0.000000000001"), 200)
	e.Apply(credit("back", account, "-"+most), 201)
	e.Apply(charge("zero", account, "0"), 202)
	l.book(e, 203)
	e = l.epoch()
	e.Apply(charge("second", account, most), 203)
	e.Apply(charge("tiny2", account, "0.000000000001"), 204)
	l.book(e, 2)

	for statement, want := range map[string]string{
		// 201 × (10^26 − 10^−12) + 2 × 10^−12
		"SELECT charge_amount FROM %s.billing_totals WHERE sku = 'vm.large'":                                                              "20099999999999999999999999999.999999999801",
		"SELECT credit_amount FROM %s.billing_totals WHERE sku = ''":                                                                      "-" + most,
		"SELECT net_amount FROM %s.billing_totals WHERE sku = ''":                                                                         "-" + most,
		"SELECT quantity FROM %s.billing_totals WHERE sku = 'vm.large'":                                                                   "306.000000000000", // 204 charges of 1.5
		"SELECT entry_count FROM %s.billing_totals WHERE sku = 'vm.large'":                                                                "204",
		"SELECT amount FROM %s.billing_ledger WHERE event_id = 'm7'":                                                                      most,
		"SELECT amount FROM %s.billing_ledger WHERE event_id = 'back'":                                                                    "-" + most,
		"SELECT amount FROM %s.billing_ledger WHERE event_id = 'tiny'":                                                                    "0.000000000001",
		"SELECT amount FROM %s.billing_ledger WHERE event_id = 'zero'":                                                                    "0.000000000000",
		"SELECT quantity FROM %s.billing_ledger WHERE event_id = 'tiny'":                                                                  "1.500000000000",
		"SELECT COALESCE(quantity, 'none') FROM %s.billing_ledger WHERE event_id = 'back'":                                                "none",
		"SELECT charge_amount FROM %s.billing_epoch_sum WHERE seq = 1":                                                                    "19999999999999999999999999999.999999999801",
		"SELECT CAST(occurred_at AS CHAR) FROM %s.billing_ledger WHERE event_id = 'tiny'":                                                 "2026-03-01 12:00:00.123456",
		"SELECT CAST(window_start AS CHAR) FROM %s.billing_totals WHERE sku = ''":                                                         "2026-03-01 12:00:00",
		"SELECT booked_period FROM %s.billing_totals WHERE sku = ''":                                                                      "2026-03",
		"SELECT SUM(amount) FROM %s.billing_ledger":                                                                                       "19999999999999999999999999999.999999999802",
		"SELECT CONCAT(tenant_id, '/', entry_type) FROM %s.billing_ledger WHERE event_id = 'tiny'":                                        "default/charge",
		"SELECT CAST(updated_at AS CHAR) = (SELECT MAX(prepared_at) FROM %s.billing_epoch) FROM %s.billing_totals WHERE sku = 'vm.large'": "1",
	} {
		if got := query[string](t, 0, cfg, statement); got != want {
			t.Errorf("%s: %s, want %s", statement, got, want)
		}
	}
}

func TestSumsPastAnAmountsWidthAddUp(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	account := on(0, "wide")
	// What many epochs of large sums would come to: 51 digits before the point, and then one of its smallest parts.
	e := l.epoch()
	e.Apply(charge("a", account, "0.000000000001"), 0)
	l.book(e, 1)
	exec(t, 0, cfg, "UPDATE %s.billing_total SET charge_amount = "+strings.Repeat("9", 51)+".999999999998")
	e = l.epoch()
	e.Apply(charge("b", account, "0.000000000001"), 1)
	l.book(e, 1)
	if got, want := query[string](t, 0, cfg, "SELECT net_amount FROM %s.billing_totals"), strings.Repeat("9", 51)+".999999999999"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestIdentifiersAreBytes(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	names := []string{"acme", "Acme", "acme ", " acme", "acmé", "acme\u0301", "ac\u00adme", "Straße", "Strasse", "ACME", "’; DROP TABLE billing_ledger; --", "a\\'b", "Ａcme"}
	e := l.epoch()
	offset := int64(0)
	for _, account := range names {
		for _, id := range names {
			ev := charge(account+"|"+id, account, "1")
			ev.ID, ev.Source = []byte(id), []byte(account) // the same id from each source
			e.Apply(ev, offset)
			offset++
		}
	}
	// The same with sku and unit: no two of these are one row of totals.
	for i, name := range names {
		ev := charge(fmt.Sprint("unit", i), "one", "1")
		ev.Unit = []byte(name)
		e.Apply(ev, offset)
		ev = charge(fmt.Sprint("sku", i), "one", "1")
		ev.SKU = []byte(name)
		e.Apply(ev, offset+1)
		offset += 2
	}
	l.book(e, offset)
	accounts := make(map[string]int)
	ids := make(map[string]int)
	rows := 0
	for i := range shared {
		db := database(t, cfg.Shards[i].DSN)
		found, err := shared[i].Root().QueryContext(t.Context(), "SELECT account_id, entry_count FROM `"+db+"`.billing_totals")
		if err != nil {
			t.Fatal(err)
		}
		defer found.Close()
		for found.Next() {
			var account []byte
			var n int
			if err := found.Scan(&account, &n); err != nil {
				t.Fatal(err)
			}
			accounts[string(account)] += n
			rows++
		}
		if err := found.Err(); err != nil {
			t.Fatal(err)
		}
		events, err := shared[i].Root().QueryContext(t.Context(), "SELECT event_id FROM `"+db+"`.billing_ledger WHERE account_id <> 'one'")
		if err != nil {
			t.Fatal(err)
		}
		defer events.Close()
		for events.Next() {
			var id []byte
			if err := events.Scan(&id); err != nil {
				t.Fatal(err)
			}
			ids[string(id)]++
		}
		if err := events.Err(); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]int{"one": 2 * len(names)}
	wantIDs := make(map[string]int)
	for _, name := range names {
		want[name], wantIDs[name] = len(names), len(names)
	}
	if !maps.Equal(accounts, want) {
		t.Errorf("accounts: %v, want %v", accounts, want)
	}
	if !maps.Equal(ids, wantIDs) {
		t.Errorf("ids: %v, want %v", ids, wantIDs)
	}
	if want := 3 * len(names); rows != want {
		t.Errorf("%d rows of totals, want %d", rows, want)
	}
}

func TestReadersSumOverLanes(t *testing.T) {
	s, cfg := fresh(t)
	account := on(0, "acme")
	for p := range int32(3) {
		l := newLane(t, s, cfg, p)
		e := l.epoch()
		e.Apply(charge(fmt.Sprint("c", p), account, "10.1"), 0)
		late := charge(fmt.Sprint("l", p), account, "1")
		late.Time += time.Hour.Microseconds()
		e.Apply(late, 1)
		l.book(e, 2)
	}
	if n := query[int](t, 0, cfg, "SELECT COUNT(*) FROM %s.billing_total"); n != 6 {
		t.Errorf("%d rows under the view, want 6", n)
	}
	got := query[string](t, 0, cfg, "SELECT GROUP_CONCAT(CONCAT_WS(' ', window_start, net_amount, quantity, entry_count) ORDER BY window_start SEPARATOR '; ') FROM %s.billing_totals")
	if want := "2026-03-01 12:00:00 30.300000000000 4.500000000000 3; 2026-03-01 13:00:00 3.000000000000 4.500000000000 3"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The digest's rows, by tag, in the order of the encoding, written down here again.
var digestRows = []struct{ tag, columns, table, order string }{
	{"L", "kafka_topic, kafka_partition, kafka_offset, seq, tenant_id, source, event_id, entry_type, account_id, sku, unit, currency, amount, quantity, note, occurred_at, window_start, booked_period, dedup_key, content_hash", "billing_ledger", "kafka_offset"},
	{"R", "kafka_topic, kafka_partition, kafka_offset, seq, kind, reason, detail, raw_key, raw_value, raw_size, raw_headers, value_hash", "billing_rejects", "kafka_offset"},
	{"S", "kafka_topic, kafka_partition, seq, currency, charge_amount, credit_amount, entry_count", "billing_epoch_sum", "currency"},
	{"E", "kafka_topic, kafka_partition, seq, topic_id, incarnation, gtrid, offset_from, offset_next, records_in, applied, duplicates, conflicts, rejected, shard_applied, shard_rejects, ledger_on, prepared_at, row_marks", "billing_epoch", "seq"},
}

type querier interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}

// digest computes an epoch's digest from the tables alone.
func digest(t *testing.T, q querier, db string, l *lane, seq int64, previous []byte) []byte {
	t.Helper()
	h := sha256.New()
	h.Write(previous)
	for _, r := range digestRows {
		rows, err := q.QueryContext(t.Context(), fmt.Sprintf("SELECT %s FROM `%s`.%s WHERE kafka_topic = '%s' AND kafka_partition = %d AND seq = %d ORDER BY %s",
			r.columns, db, r.table, l.id.Topic, l.id.Partition, seq, r.order))
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		values := make([]sql.RawBytes, len(strings.Split(r.columns, ",")))
		into := make([]any, len(values))
		for i := range values {
			into[i] = &values[i]
		}
		for rows.Next() {
			if err := rows.Scan(into...); err != nil {
				t.Fatal(err)
			}
			h.Write([]byte(r.tag))
			for _, v := range values {
				var length [4]byte
				binary.BigEndian.PutUint32(length[:], uint32(len(v)))
				if v == nil {
					length = [4]byte{255, 255, 255, 255}
				}
				h.Write(length[:])
				h.Write(v)
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return h.Sum(nil)
}

// mixed is an epoch with everything in it, on both shards.
func mixed(l *lane, tag string) (e *aggregate.Epoch, records int64) {
	e = l.epoch()
	offset := l.next
	next := func() int64 { offset++; return offset - 1 }
	for i := range 6 {
		account := on(i%2, "acme")
		ev := charge(fmt.Sprint(tag, "c", i), account, fmt.Sprintf("%d.%d", i*1000, i+1))
		ev.Note = []byte("a note: \u00e9 \\ '")
		if i > 3 {
			ev.Currency = "JPY"
		}
		e.Apply(ev, next())
		e.Apply(credit(fmt.Sprint(tag, "r", i), account, "-0.000000000001"), next())
		e.Apply(charge(fmt.Sprint(tag, "z", i), account, "0"), next())
		e.Duplicate()
		next()
		e.Reject(&event.Record{Offset: next(), Key: []byte{0, 1, 255}, Value: []byte("\xffnot json\x00"), Headers: []event.Header{{Key: "a", Value: []byte("b")}}}, event.ReasonInvalidJSON, "detail é")
		e.Conflict(&event.Record{Offset: next()}, charge("x", account, "1"), 0)
	}
	next() // a control record
	return e, offset - l.next
}

func TestDigestIsThatOfTheStoredRows(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 11)
	var before [2][]byte
	for i := range before {
		before[i] = make([]byte, 32)
	}
	for seq := int64(1); seq <= 3; seq++ {
		if seq == 2 { // all of it on one shard: the other's epoch has only its own row
			e := l.epoch()
			e.Apply(charge("alone", on(1, "acme"), "5"), l.next)
			l.book(e, 1)
		} else {
			e, records := mixed(l, fmt.Sprint(seq))
			l.book(e, records)
		}
		for i := range shared {
			want := digest(t, shared[i].Root(), database(t, cfg.Shards[i].DSN), l, seq, before[i])
			if !slices.Equal(l.digests[i], want) {
				t.Errorf("epoch %d on shard %d: digest %x, computed from the tables %x", seq, i, l.digests[i], want)
			}
			before[i] = want
		}
	}
}

// TestDigestSeesAnyChangedColumn changes each column of each row's table by the smallest step, deletes a row and adds
// one: every digest that is then computed from the tables is another one.
func TestDigestSeesAnyChangedColumn(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 11)
	e, records := mixed(l, "a")
	l.book(e, records)
	first := make([]byte, 32)
	root, db := shared[0].Root(), database(t, cfg.Shards[0].DSN)

	// The tables' checks would stop many of these changes; here the digest has to.
	for _, r := range digestRows {
		for _, name := range list(t, root, "SELECT constraint_name FROM information_schema.table_constraints WHERE constraint_type = 'CHECK' AND table_schema = ? AND table_name = ?", db, r.table) {
			exec(t, 0, cfg, "ALTER TABLE %s."+r.table+" DROP CHECK "+name)
		}
	}
	tried := 0
	try := func(statement string) {
		t.Helper()
		tx, err := root.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		result, err := tx.ExecContext(t.Context(), statement)
		if err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
		if n, err := result.RowsAffected(); err != nil || n != 1 {
			t.Fatalf("%s: %d rows changed, %v", statement, n, err)
		}
		if slices.Equal(digest(t, tx, db, l, 1, first), l.digests[0]) {
			t.Errorf("not seen: %s", statement)
		}
		tried++
	}
	for _, r := range digestRows {
		table := "`" + db + "`." + r.table
		for _, column := range strings.Split(r.columns, ", ") {
			kind := list(t, root, "SELECT column_type FROM information_schema.columns WHERE table_schema = ? AND table_name = ? AND column_name = ?", db, r.table, column)[0]
			change := "IF(" + column + " = 'x', 'y', 'x')"
			switch {
			case strings.HasPrefix(kind, "decimal"):
				change = column + " + 0.000000000001"
			case strings.Contains(kind, "int"):
				change = column + " + 100"
			case kind == "datetime":
				change = column + " + INTERVAL 1 SECOND"
			case kind == "datetime(6)":
				change = column + " + INTERVAL 1 MICROSECOND"
			}
			try(fmt.Sprintf("UPDATE %s SET %s = %s WHERE %s IS NOT NULL ORDER BY %s LIMIT 1", table, column, change, column, r.order))
		}
		try(fmt.Sprintf("DELETE FROM %s ORDER BY %s DESC LIMIT 1", table, r.order))
	}
	for _, column := range []string{"quantity", "note"} {
		try(fmt.Sprintf("UPDATE `%s`.billing_ledger SET %s = NULL WHERE %s IS NOT NULL ORDER BY kafka_offset LIMIT 1", db, column, column))
	}
	try(fmt.Sprintf("INSERT INTO `%s`.billing_epoch_sum SELECT kafka_topic, kafka_partition, seq, 'XTS', charge_amount, credit_amount, entry_count FROM `%s`.billing_epoch_sum LIMIT 1", db, db))
	if tried != 20+12+7+18+4+2+1 {
		t.Errorf("%d changes were tried", tried)
	}
	if !slices.Equal(digest(t, root, db, l, 1, first), l.digests[0]) {
		t.Error("the digest is not that of the rows as they were")
	}
}

// list reads a column of texts.
func list(t *testing.T, q querier, statement string, args ...any) (values []string) {
	t.Helper()
	rows, err := q.QueryContext(t.Context(), statement, args...)
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	defer rows.Close()
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			t.Fatal(err)
		}
		values = append(values, v)
	}
	if err := rows.Err(); err != nil || len(values) == 0 {
		t.Fatalf("%s %v: nothing found (%v)", statement, args, err)
	}
	return values
}

// The two keys that are hashes of columns, computed again.
func TestKeysAreHashesOfTheirColumns(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 2)
	e, records := mixed(l, "a")
	l.book(e, records)
	column := func(name string) string {
		return "CONCAT(UNHEX(LPAD(HEX(LENGTH(" + name + ")), 8, '0')), " + name + ")"
	}
	var columns []string
	for _, name := range []string{"kafka_topic", "CAST(kafka_partition AS CHAR)", "tenant_id", "account_id", "sku", "unit", "currency", "CAST(window_start AS CHAR)", "booked_period"} {
		columns = append(columns, column(name))
	}
	key := "UNHEX(LEFT(SHA2(CONCAT(" + strings.Join(columns, ", ") + "), 256), 32))"
	if got := query[string](t, 0, cfg, "SELECT CONCAT(COUNT(*), ' ', COUNT(DISTINCT total_key), ' ', SUM(total_key = "+key+")) FROM %s.billing_total"); got != "3 3 3" {
		t.Errorf("rows, keys, keys that are the hash of the columns: %s, want 3 3 3", got)
	}
	columns = nil
	for _, name := range []string{"'1'", "job", "set_id", "CAST(shard_number AS CHAR)", "CAST(shard_count AS CHAR)", "server_uuid"} {
		columns = append(columns, column(name))
	}
	for i := range shared {
		if got := query[string](t, i, cfg, "SELECT CONCAT(COUNT(*), ' ', SUM(checksum = UNHEX(SHA2(CONCAT("+strings.Join(columns, ", ")+"), 256)))) FROM %s.billing_meta"); got != "1 1" {
			t.Errorf("shard %d: billing_meta has %s rows and right checksums, want 1 1", i, got)
		}
	}
}
