package e2e

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
)

// Errors under right digests: somebody has computed them again, or the service
// itself has written it so.

// wrongAsWritten is an error that the digests of the epoch and of all behind it
// cover, as if the service had written it.
type wrongAsWritten struct {
	name   string
	shards []int    // where it is
	write  []string // {lane}, {seq}, {row} and {reject} are those of the epoch
	table  string   // which verify names, on the first of the shards
	says   string   // something of what it says
}

var onOne, onBoth = []int{1}, []int{0, 1}

var asWritten = []wrongAsWritten{
	{"another id", onOne, []string{"UPDATE billing_ledger SET event_id = 'another' WHERE {row}"}, "billing_ledger", "dedup_key"},
	{"another dedup key", onOne, []string{"UPDATE billing_ledger SET dedup_key = REPEAT('x', 16) WHERE {row}"}, "billing_ledger", "dedup_key"},
	{"another amount, wherever it is added up", onOne, []string{
		"UPDATE billing_ledger SET amount = amount + 1 WHERE {row}",
		"UPDATE billing_epoch_sum s JOIN billing_ledger l USING (kafka_topic, kafka_partition, seq, currency) SET s.charge_amount = s.charge_amount + 1 WHERE {row}",
		"UPDATE billing_total t JOIN billing_ledger l USING (kafka_topic, kafka_partition, account_id, sku, unit, currency, window_start, booked_period) SET t.charge_amount = t.charge_amount + 1 WHERE {row}",
	}, "billing_ledger", "content_hash"},
	{"another tenant", onOne, []string{"UPDATE billing_ledger SET tenant_id = 'another' WHERE {row}"}, "billing_ledger", "tenant_id"},
	{"another window", onOne, []string{"UPDATE billing_ledger SET window_start = window_start + INTERVAL 1 HOUR WHERE {row}"}, "billing_ledger", "window_start"},
	{"another period", onOne, []string{"UPDATE billing_ledger SET booked_period = '2001-01' WHERE {row}"}, "billing_ledger", "booked_period"},
	{"another type", onOne, []string{"UPDATE billing_ledger SET entry_type = 'refund' WHERE {row}"}, "billing_ledger", "entry_type"},
	{"an offset of another epoch", onOne, []string{"UPDATE billing_ledger SET kafka_offset = kafka_offset + 1000000 WHERE {row}"}, "billing_epoch", "offset"},
	{"a kept record of another epoch", onOne, []string{"UPDATE billing_rejects SET kafka_offset = -1 - kafka_offset WHERE {reject}"}, "billing_epoch", "offset"},
	{"another size", onOne, []string{"UPDATE billing_rejects SET raw_size = raw_size + 1 WHERE {reject}"}, "billing_rejects", "raw_size"},
	{"another hash", onOne, []string{"UPDATE billing_rejects SET value_hash = REPEAT('x', 32) WHERE {reject}"}, "billing_rejects", "value_hash"},
	{"another kind", onOne, []string{"UPDATE billing_rejects SET kind = 'conflict' WHERE {reject}"}, "billing_rejects", "kind"},
	{"another sum", onOne, []string{"UPDATE billing_epoch_sum SET charge_amount = charge_amount + 1 WHERE {lane} AND seq = {seq} AND currency = 'EUR'"}, "billing_epoch_sum", "add up to"},
	{"no sum", onOne, []string{"DELETE FROM billing_epoch_sum WHERE {lane} AND seq = {seq} AND currency = 'EUR'"}, "billing_epoch_sum", "there is no row"},
	{"more applied here", onOne, []string{"UPDATE billing_epoch SET shard_applied = shard_applied + 1 WHERE {lane} AND seq = {seq}"}, "billing_epoch", "shard_applied"},
	{"more kept here", onOne, []string{"UPDATE billing_epoch SET shard_rejects = shard_rejects + 1 WHERE {lane} AND seq = {seq}"}, "billing_epoch", "shard_rejects"},
	{"no ledger", onBoth, []string{"UPDATE billing_epoch SET ledger_on = 0 WHERE {lane} AND seq = {seq}"}, "billing_epoch", "ledger_on"},
	{"records without an outcome", onBoth, []string{"UPDATE billing_epoch SET records_in = records_in + 1 WHERE {lane} AND seq = {seq}"}, "billing_epoch", "records_in"},
	{"more applied", onBoth, []string{"UPDATE billing_epoch SET applied = applied + 1, duplicates = duplicates - 1 WHERE {lane} AND seq = {seq}"}, "billing_epoch", "applied"},
	{"more rejected", onBoth, []string{"UPDATE billing_epoch SET rejected = rejected + 1, duplicates = duplicates - 1 WHERE {lane} AND seq = {seq}"}, "billing_epoch", "rejected"},
	{"more conflicts", onBoth, []string{"UPDATE billing_epoch SET conflicts = conflicts + 1, rejected = rejected - 1 WHERE {lane} AND seq = {seq}"}, "billing_epoch", "conflicts"},
	{"another count than elsewhere", onOne, []string{"UPDATE billing_epoch SET records_in = records_in + 1, duplicates = duplicates + 1 WHERE {lane} AND seq = {seq}"}, "billing_epoch", "as on shard"},
	{"a gap before it", onBoth, []string{"UPDATE billing_epoch SET offset_from = offset_from + 1 WHERE {lane} AND seq = {seq}"}, "billing_epoch", "offset_from"},
	{"a smaller incarnation", onBoth, []string{"UPDATE billing_epoch SET incarnation = 0 WHERE {lane} AND seq = {seq}"}, "billing_epoch", "incarnation"},
	{"another topic", onBoth, []string{"UPDATE billing_epoch SET topic_id = REPEAT('x', 16) WHERE {lane} AND seq = {seq}"}, "billing_epoch", "topic_id"},
	{"no branch", onBoth, []string{"UPDATE billing_epoch SET gtrid = 'another' WHERE {lane} AND seq = {seq}"}, "billing_epoch", "gtrid"},
	{"the branch of another epoch", onBoth, []string{"UPDATE billing_epoch SET gtrid = CONCAT(LEFT(gtrid, 63), 'f') WHERE {lane} AND seq = {seq}"}, "billing_epoch", "gtrid is that of epoch"},
	{"the branch of another lane", onBoth, []string{"UPDATE billing_epoch SET gtrid = CONCAT(LEFT(gtrid, 39), 'f', RIGHT(gtrid, 24)) WHERE {lane} AND seq = {seq}"}, "billing_epoch", "gtrid is that of another lane"},
	{"the branch of another job", onBoth, []string{"UPDATE billing_epoch SET gtrid = CONCAT(LEFT(gtrid, 4), REPEAT('0', 16), RIGHT(gtrid, 44)) WHERE {lane} AND seq = {seq}"}, "billing_epoch", "gtrid is that of another job"},
}

// TestVerifyBelievesNoDigest: under right digests everything else that the rows say
// of each other is compared all the same.
func TestVerifyBelievesNoDigest(t *testing.T) {
	t.Parallel()
	original := rich(t, 2)
	for _, c := range asWritten {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := original.copied(t)
			w.loosen()
			const seq = 2
			lane := w.laneIs(0)
			offset := func(query string) string {
				return lane + " AND kafka_offset = " + column(t, w.shards[1], query+" AND "+lane+" AND seq = ? LIMIT 1", seq)[0]
			}
			words := strings.NewReplacer("{lane}", lane, "{seq}", fmt.Sprint(seq),
				"{row}", offset("SELECT kafka_offset FROM billing_ledger WHERE entry_type = 'charge'"),
				"{reject}", offset("SELECT kafka_offset FROM billing_rejects WHERE kind = 'rejected' AND raw_value IS NOT NULL"))
			key := map[string]string{
				"billing_ledger":    keyIn(words, "{row}"),
				"billing_rejects":   keyIn(words, "{reject}"),
				"billing_epoch":     fmt.Sprintf("%s/0 epoch %d", w.topic, seq),
				"billing_epoch_sum": fmt.Sprintf("%s/0 epoch %d EUR", w.topic, seq),
			}[c.table]
			for _, shard := range c.shards {
				for _, statement := range c.write {
					result, err := w.shards[shard].Exec(words.Replace(statement))
					if err != nil {
						t.Fatalf("%s: %v", statement, err)
					}
					if n, err := result.RowsAffected(); err != nil || n != 1 {
						t.Fatalf("%s: %d rows changed (%v)", statement, n, err)
					}
				}
				w.signFrom(shard, seq)
			}
			v := w.mustVerify(t, 1)
			for _, d := range v.Differences {
				if d.Shard == fmt.Sprint("s", c.shards[0]) && d.Table == c.table && d.names(key) && strings.Contains(d.Wrong+" "+d.Expected, c.says) {
					return
				}
			}
			t.Errorf("it should say something about %s of %s, %s: %s", c.says, c.table, key, v)
		})
	}
}

// signFrom signs an epoch of the first lane and all behind it.
func (w *world) signFrom(shard int, seq int64) {
	w.t.Helper()
	for last := number(column(w.t, w.shards[shard], "SELECT MAX(seq) FROM billing_epoch WHERE "+w.laneIs(0))[0]); seq <= last; seq++ {
		w.sign(shard, 0, seq)
	}
}

// keyIn is the key of a row by its offset, from the condition that finds it.
func keyIn(words *strings.Replacer, name string) string {
	var topic, offset string
	var partition int
	if _, err := fmt.Sscanf(words.Replace(name), "kafka_topic = '%s AND kafka_partition = %d AND kafka_offset = %s", &topic, &partition, &offset); err != nil {
		panic(err)
	}
	return fmt.Sprintf("%s/%d offset %s", strings.TrimSuffix(topic, "'"), partition, offset)
}

// TestVerifyKnowsWhereRowsBelong: a charge that is booked on a second shard, with
// everything that belongs to it, and a record that is kept on a second one.
func TestVerifyKnowsWhereRowsBelong(t *testing.T) {
	t.Parallel()
	w := rich(t, 2)
	const seq = 2
	copied := map[string]string{} // the keys
	for _, table := range w.everyTable(0) {
		var which func(row [][]byte) bool
		switch in := func(row [][]byte) bool {
			return table.of(row, "kafka_partition") == "0" && table.of(row, "seq") == fmt.Sprint(seq)
		}; table.name {
		case "billing_ledger":
			which = func(row [][]byte) bool { return in(row) && table.of(row, "entry_type") == "charge" }
		case "billing_rejects":
			which = in
		default:
			continue
		}
		for _, row := range table.rows {
			if !which(row) {
				continue
			}
			copied[table.name] = table.keyOf(row)
			values := make([]string, len(row))
			for i, v := range row {
				if values[i] = "NULL"; v != nil {
					values[i] = fmt.Sprintf("'%s'", strings.ReplaceAll(string(v), "'", "''"))
					if table.columns[i].length > 0 {
						values[i] = fmt.Sprintf("X'%x'", v)
					}
				}
			}
			w.exec(1, "INSERT INTO "+table.name+" VALUES ("+strings.Join(values, ", ")+")")
			break
		}
	}
	if len(copied) != 2 {
		t.Fatalf("copied: %v", copied)
	}
	lane := w.laneIs(0)
	row := lane + strings.Replace(copied["billing_ledger"], w.topic+"/0 offset", " AND kafka_offset =", 1)
	w.exec(1, "UPDATE billing_epoch_sum s JOIN billing_ledger l USING (kafka_topic, kafka_partition, seq, currency) SET s.charge_amount = s.charge_amount + l.amount, s.entry_count = s.entry_count + 1 WHERE "+row)
	w.exec(1, fmt.Sprintf("UPDATE billing_epoch SET shard_applied = shard_applied + 1, shard_rejects = shard_rejects + 1 WHERE %s AND seq = %d", lane, seq))
	key := fmt.Sprintf("SHA2(CONCAT(%s), 256)", strings.Join([]string{encoded("kafka_topic"), encoded("kafka_partition"), encoded("tenant_id"), encoded("account_id"), encoded("sku"), encoded("unit"), encoded("currency"), encoded("window_start"), encoded("booked_period")}, ", "))
	w.exec(1, "INSERT INTO billing_total SELECT UNHEX(LEFT("+key+", 32)), kafka_topic, kafka_partition, tenant_id, account_id, sku, unit, currency, window_start, booked_period, amount, 0, COALESCE(quantity, 0), 1, NOW(6) FROM billing_ledger WHERE "+row)
	copied["billing_total"] = column(t, w.shards[1], "SELECT LEFT("+key+", 32) FROM billing_ledger WHERE "+row)[0]
	w.signFrom(1, seq)
	v := w.mustVerify(t, 1)
	for table, key := range copied {
		if !v.has(1, table, key) {
			t.Errorf("%s of %s is not named: %s", key, table, v)
		}
	}
	if epoch := fmt.Sprintf("%s/0 epoch %d", w.topic, seq); !v.has(0, "billing_epoch", epoch) {
		t.Errorf("the shards have more than %s says, and it says %s", epoch, v)
	}
}

// encoded is a column in a hash, as SQL.
func encoded(column string) string {
	column = "CAST(" + column + " AS CHAR CHARACTER SET binary)"
	return "UNHEX(LPAD(HEX(LENGTH(" + column + ")), 8, '0')), " + column
}

// TestVerifyFollowsTheChain: a row is changed, and the epoch's marks and digest are
// computed again, as somebody would do who knows how. The epoch behind it knows the
// digest that was there.
func TestVerifyFollowsTheChain(t *testing.T) {
	t.Parallel()
	w := rich(t, 2)
	const shard, seq = 1, 2
	const digests = "SELECT HEX(CONCAT(row_marks, digest)) FROM billing_epoch ORDER BY kafka_partition, seq"
	before := w.column(digests)
	if w.sign(shard, 0, seq); w.column(digests) != before {
		t.Fatalf("marks and digests were\n%s\nand are computed as\n%s", before, w.column(digests))
	}
	row := column(t, w.shards[shard], "SELECT kafka_offset FROM billing_ledger WHERE "+w.laneIs(0)+" AND seq = ? LIMIT 1", seq)[0]
	w.exec(shard, "UPDATE billing_ledger SET note = 'another' WHERE "+w.laneIs(0)+" AND kafka_offset = ?", row)
	ledger := fmt.Sprintf("%s/0 offset %s", w.topic, row)
	if v := w.mustVerify(t, 1); len(v.Differences) != 1 || !v.has(shard, "billing_ledger", ledger) {
		t.Errorf("it should name %s only: %s", ledger, v)
	}
	w.sign(shard, 0, seq)
	v := w.mustVerify(t, 1)
	if want := fmt.Sprintf("%s/0 epoch %d", w.topic, seq+1); len(v.Differences) != 1 || !v.has(shard, "billing_epoch", want) {
		t.Errorf("it should name %s only: %s", want, v)
	}
}

// digested are the rows of an epoch that its digest covers, in order.
var digested = []struct{ tag, table, columns, order string }{
	{"L", "billing_ledger", "kafka_topic, kafka_partition, kafka_offset, seq, tenant_id, source, event_id, entry_type, account_id, sku, unit, currency, amount, quantity, note, occurred_at, window_start, booked_period, dedup_key, content_hash", "kafka_offset"},
	{"R", "billing_rejects", "kafka_topic, kafka_partition, kafka_offset, seq, kind, reason, detail, raw_key, raw_value, raw_size, raw_headers, value_hash", "kafka_offset"},
	{"S", "billing_epoch_sum", "kafka_topic, kafka_partition, seq, currency, charge_amount, credit_amount, entry_count", "currency"},
	{"E", "billing_epoch", "kafka_topic, kafka_partition, seq, topic_id, incarnation, gtrid, offset_from, offset_next, records_in, applied, duplicates, conflicts, rejected, shard_applied, shard_rejects, ledger_on, prepared_at, row_marks", "seq"},
}

// sign computes an epoch's marks and digest from its rows as they are now.
func (w *world) sign(shard int, partition int32, seq int64) {
	w.t.Helper()
	db := w.shards[shard]
	epoch := fmt.Sprintf(" WHERE %s AND seq = %d", w.laneIs(partition), seq)
	h := sha256.New()
	if seq == 1 {
		h.Write(make([]byte, sha256.Size))
	} else {
		h.Write([]byte(column(w.t, db, fmt.Sprintf("SELECT digest FROM billing_epoch WHERE %s AND seq = %d", w.laneIs(partition), seq-1))[0]))
	}
	var marks []byte
	for _, d := range digested {
		if d.tag == "E" {
			w.exec(shard, fmt.Sprintf("UPDATE billing_epoch SET row_marks = X'%x'%s", marks, epoch))
		}
		before := number(column(w.t, db, "SELECT offset_from FROM billing_epoch"+epoch)[0])
		t := table{name: d.table}
		for _, name := range strings.Split(d.columns, ", ") {
			t.columns = append(t.columns, tableColumn{name: name, key: name == d.order})
		}
		t.read(w.t, db)
		for _, row := range t.rows {
			if t.of(row, "seq") != fmt.Sprint(seq) || t.of(row, "kafka_partition") != fmt.Sprint(partition) {
				continue
			}
			enc := []byte(d.tag)
			for _, v := range row {
				length := uint32(len(v))
				if v == nil {
					length = 1<<32 - 1
				}
				enc = append(binary.BigEndian.AppendUint32(enc, length), v...)
			}
			h.Write(enc)
			marks = append(marks, d.tag...)
			if d.tag == "S" {
				currency := t.of(row, "currency")
				marks = append(binary.AppendUvarint(marks, uint64(len(currency))), currency...)
			} else if d.tag != "E" {
				offset := number(t.of(row, "kafka_offset"))
				marks = binary.AppendUvarint(marks, uint64(offset-before))
				before = offset
			}
			marks = binary.BigEndian.AppendUint32(marks, crc32.Checksum(enc, crc32.MakeTable(crc32.Castagnoli)))
		}
	}
	w.exec(shard, fmt.Sprintf("UPDATE billing_epoch SET digest = X'%x'%s", h.Sum(nil), epoch))
}
