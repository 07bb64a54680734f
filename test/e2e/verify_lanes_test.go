package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// Errors of several rows, which agree with each other as far as they can.

// everywhere are the plantings of one kind, at the same place of every shard.
func everywhere(plan []planting, shards int) (all [][]planting) {
	groups := map[string][]planting{}
	var names []string
	for _, p := range plan {
		if p.place != "row in the middle" && p.place != "first row" || p.step == "-1" {
			continue
		}
		name := fmt.Sprint(p.table, p.column, p.step)
		if groups[name] == nil {
			names = append(names, name)
		}
		if group := groups[name]; len(group) == p.shard { // the first one of the shard
			groups[name] = append(group, p)
		}
	}
	for _, name := range names {
		if len(groups[name]) == shards {
			all = append(all, groups[name])
		}
	}
	return all
}

// TestVerifyFindsTheSameErrorOnAllShards: a shard is not right because the others
// say the same.
func TestVerifyFindsTheSameErrorOnAllShards(t *testing.T) {
	t.Parallel()
	w := rich(t, 2)
	plan := w.plan()
	all := everywhere(plan, 2)
	pairs := map[string]bool{}
	for _, p := range plan {
		if !strings.HasPrefix(p.step, added) && p.step != "-1" {
			pairs[p.table+p.column+p.step] = true
		}
	}
	if len(all) != len(pairs) {
		t.Errorf("%d errors for all shards, of %d", len(all), len(pairs))
	}
	w.prepareToPlant()
	for n, group := range all {
		if !everything() && n%4 != 0 {
			continue
		}
		for i := range group {
			if err := group[i].must(w, group[i].plant); err != nil {
				t.Fatal(err)
			}
		}
		v := w.mustVerify(t, 1)
		for i := range group {
			if !group[i].named(v) {
				t.Errorf("%s, and the same on the other shards: the row is not named: %s", &group[i], v)
			}
			if err := group[i].restore(w); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.mustVerify(t, 0)
}

// ---- what Kafka alone knows

// laneIs is the condition of a lane's rows.
func (w *world) laneIs(partition int32) string {
	return fmt.Sprintf("kafka_topic = '%s' AND kafka_partition = %d", w.topic, partition)
}

// forgetEpoch takes the lane's last epoch back on a shard, as if it had never been.
func (w *world) forgetEpoch(shard int, partition int32, seq int64) {
	w.t.Helper()
	lane := w.laneIs(partition)
	w.exec(shard, fmt.Sprintf(`UPDATE billing_total t JOIN (
		SELECT account_id, sku, unit, currency, window_start, booked_period, COUNT(*) AS n, SUM(IF(amount > 0, amount, 0)) AS charge, SUM(IF(amount < 0, amount, 0)) AS credit,
			SUM(IF(entry_type = 'charge', COALESCE(quantity, 0), -COALESCE(quantity, 0))) AS quantity
		FROM billing_ledger WHERE %s AND seq = %d GROUP BY account_id, sku, unit, currency, window_start, booked_period
		) l USING (account_id, sku, unit, currency, window_start, booked_period)
		SET t.charge_amount = t.charge_amount - l.charge, t.credit_amount = t.credit_amount - l.credit, t.quantity = t.quantity - l.quantity, t.entry_count = t.entry_count - l.n
		WHERE %s`, lane, seq, lane))
	w.exec(shard, "DELETE FROM billing_total WHERE entry_count = 0")
	for _, table := range []string{"billing_ledger", "billing_rejects", "billing_epoch_sum", "billing_epoch"} {
		w.exec(shard, fmt.Sprintf("DELETE FROM %s WHERE %s AND seq = %d", table, lane, seq))
	}
	w.exec(shard, fmt.Sprintf("UPDATE billing_lane l JOIN billing_epoch e USING (kafka_topic, kafka_partition) SET l.incarnation = e.incarnation, l.seq = e.seq, l.offset_next = e.offset_next WHERE %s AND e.seq = %d", lane, seq-1))
}

// forgetLane takes all of a lane away on a shard.
func (w *world) forgetLane(shard int, partition int32) {
	w.t.Helper()
	for _, table := range []string{"billing_ledger", "billing_rejects", "billing_epoch_sum", "billing_epoch", "billing_total", "billing_lane"} {
		w.exec(shard, "DELETE FROM "+table+" WHERE "+w.laneIs(partition))
	}
}

// names fails unless the answer names the lane on these shards and on no other.
func (v *verified) names(t *testing.T, lane string, shards ...int) {
	t.Helper()
	found := map[string]bool{}
	for _, d := range v.Differences {
		if d.Key != lane && !strings.HasPrefix(d.Key, lane+" ") {
			t.Errorf("another row is named: %+v", d)
		}
		found[d.Shard] = true
	}
	for _, i := range shards {
		if !found[fmt.Sprint("s", i)] {
			t.Errorf("shard %d is not named: %s", i, v)
		}
		delete(found, fmt.Sprint("s", i))
	}
	if len(found) > 0 {
		t.Errorf("other shards are named: %s", v)
	}
}

// TestVerifyAsksKafka: what is gone everywhere, and leaves no gap, only D shows.
func TestVerifyAsksKafka(t *testing.T) {
	t.Parallel()
	original := rich(t, 2)
	const partition = 0
	last := original.epochs(partition)[0]
	lane := fmt.Sprint(original.topic, "/", partition)
	if v := original.mustVerify(t, 0); !v.DecisionsCompared {
		t.Errorf("nothing was compared with Kafka: %s", v)
	}
	t.Run("nothing is gone", func(t *testing.T) {
		t.Parallel()
		w := original.copied(t)
		w.withoutKafka()
		if v := w.mustVerify(t, 0); v.DecisionsCompared || !v.noted("decisions were not compared") {
			t.Errorf("without Kafka: %s", v)
		}
	})
	for name, forget := range map[string]func(w *world, shard int){
		"the last epoch": func(w *world, shard int) { w.forgetEpoch(shard, partition, last) },
		"a lane":         func(w *world, shard int) { w.forgetLane(shard, partition) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := original.copied(t)
			w.loosen()
			forget(w, 1)
			w.mustVerify(t, 1).names(t, lane, 1)
			forget(w, 0)
			w.mustVerify(t, 1).names(t, lane, 0, 1)
			w.withoutKafka()
			if v := w.mustVerify(t, 0); v.DecisionsCompared || !v.noted("decisions were not compared") {
				t.Errorf("without Kafka: %s", v)
			}
		})
	}
}

// ---- rows that agree with each other

// pair is two rows of a table that have the same in some columns.
func (w *world) pair(shard int, name string, same ...string) (t *table, a, b [][]byte) {
	w.t.Helper()
	tables := w.everyTable(shard)
	for i := range tables {
		if tables[i].name == name {
			t = &tables[i]
		}
	}
	seen := map[string][][]byte{}
	for _, row := range t.rows {
		var key []string
		for _, c := range same {
			key = append(key, t.of(row, c))
		}
		if other := seen[strings.Join(key, "\x00")]; other != nil {
			return t, other, row
		}
		seen[strings.Join(key, "\x00")] = row
	}
	w.t.Fatalf("shard %d: no two rows of %s have the same %v", shard, name, same)
	return nil, nil, nil
}

// TestVerifyFindsMovedMoney: the sums are what they were, and the rows are not.
func TestVerifyFindsMovedMoney(t *testing.T) {
	t.Parallel()
	original := rich(t, 2)
	for _, c := range []struct {
		name, table string
		same        []string
		from, to    string
	}{
		{"from one account to another", "billing_total", []string{"kafka_partition", "currency"}, "charge_amount = charge_amount + 1", "charge_amount = charge_amount - 1"},
		{"from one lane to the other", "billing_total", []string{"account_id", "currency", "window_start"}, "charge_amount = charge_amount + 1", "charge_amount = charge_amount - 1"},
		{"to another unit", "billing_total", []string{"kafka_partition", "currency"}, "quantity = quantity + 1", "quantity = quantity - 1"},
		{"entries", "billing_total", []string{"kafka_partition", "currency"}, "entry_count = entry_count + 1", "entry_count = entry_count - 1"},
		{"within an epoch", "billing_ledger", []string{"kafka_partition", "seq", "currency"}, "amount = amount + 1", "amount = amount - 1"},
		{"within an account", "billing_ledger", []string{"kafka_partition", "account_id", "window_start"}, "amount = amount + 1", "amount = amount - 1"},
		{"between epochs", "billing_epoch_sum", []string{"kafka_partition", "currency"}, "charge_amount = charge_amount + 1", "charge_amount = charge_amount - 1"},
		{"records of an epoch", "billing_epoch", []string{"kafka_partition"}, "applied = applied - 1, duplicates = duplicates + 1", "applied = applied + 1, duplicates = duplicates - 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := original.copied(t)
			w.loosen()
			table, a, b := w.pair(1, c.table, c.same...)
			w.exec(1, "UPDATE "+c.table+" SET "+c.from+table.where(a))
			w.exec(1, "UPDATE "+c.table+" SET "+c.to+table.where(b))
			v := w.mustVerify(t, 1)
			for _, row := range [][][]byte{a, b} {
				if !v.has(1, c.table, table.keyOf(row)) {
					t.Errorf("%s is not named: %s", table.keyOf(row), v)
				}
			}
			if len(v.Differences) > 4 {
				t.Errorf("two rows are wrong, and it says %s", v)
			}
		})
	}
}
