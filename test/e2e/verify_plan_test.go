package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Every single error that a row can have, made from what information_schema says:
// each column changed by its smallest steps, each row deleted, rows added.

// planting is one error and what takes it back.
type planting struct {
	shard               int
	table, column, step string // column "" for a row that is deleted
	place               string
	plant               string
	undo                []string // from the table as it was saved
	key                 string   // as verify has to name it
	now                 string   // likewise, where the step changed it
}

func (p *planting) String() string {
	return fmt.Sprintf("shard %d, %s, %s: %s %s (%s)", p.shard, p.table, p.place, p.column, p.step, p.key)
}

const (
	deleted = "deleted"
	added   = "added "
)

// steps are the ways in which a column's value can be another one.
func (c tableColumn) steps() (all []string) {
	switch c.kind {
	case "tinyint", "int", "bigint":
		all = []string{"+1", "-1"}
	case "decimal":
		all = []string{"+ 0.000000000001", "- 0.000000000001"}
	case "datetime":
		all = []string{"a moment later"}
	case "binary":
		all = []string{"one bit"}
	case "char":
		all = []string{"one byte", "case"}
	case "varchar", "varbinary", "mediumtext", "mediumblob":
		all = []string{"one byte", "case", "space behind"}
	default:
		panic("how does one change a " + c.kind + "?")
	}
	if c.nullable {
		all = append(all, "to NULL", "from NULL")
	}
	return all
}

// stepsCounted is how many pairs of column and step there are, counted a second
// time, by the server.
const stepsCounted = `SELECT SUM(CASE
	WHEN c.data_type IN ('tinyint', 'int', 'bigint', 'decimal', 'char') THEN 2
	WHEN c.data_type IN ('varchar', 'varbinary', 'mediumtext', 'mediumblob') THEN 3
	ELSE 1 END + IF(c.is_nullable = 'YES', 2, 0))` + fromTables + ` AND NOT ` + exemptColumn

// No value of these can have that: they are full, or have no letters.
var impossible = []string{"billing_epoch.gtrid space behind", "billing_total.booked_period case", "billing_ledger.booked_period case"}

// changed is the value after the step as SQL, and as the tables would give it back
// where the column may be in a key. far is for a number whose next one is taken.
func (c tableColumn) changed(v []byte, step string, far int64) (sql string, after []byte, ok bool) {
	if (v == nil) != (step == "from NULL") {
		return "", nil, false
	}
	switch step {
	case "+1", "-1":
		n, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil {
			panic(err)
		}
		if step == "-1" {
			far = -far
		}
		sql = strconv.FormatInt(n+far, 10)
		return sql, []byte(sql), true
	case "to NULL":
		return "NULL", nil, true
	case "from NULL": // the least that is not NULL
		return map[bool]string{true: "0", false: "''"}[c.kind == "decimal"], nil, true
	case "a moment later":
		return c.name + map[bool]string{true: " + INTERVAL 1 MICROSECOND", false: " + INTERVAL 1 SECOND"}[c.micros], nil, true
	case "one bit":
		after = slices.Clone(v)
		after[len(after)-1] ^= 1
	case "one byte":
		for i := range v {
			i = (i + len(v)/2) % len(v)
			if b := v[i]; b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' {
				after = slices.Clone(v)
				after[i] = map[bool]byte{true: 'y', false: 'x'}[b == 'x']
				break
			}
		}
	case "case":
		for i, b := range v {
			if b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' {
				after = slices.Clone(v)
				after[i] ^= ' '
				break
			}
		}
	case "space behind":
		if len(v) < c.length {
			after = append(slices.Clone(v), ' ')
		}
	default: // of a decimal
		return c.name + " " + step, nil, true
	}
	return fmt.Sprintf("X'%x'", after), after, after != nil
}

// where finds a row by its key.
func (t *table) where(row [][]byte) string {
	var parts []string
	for i, c := range t.columns {
		if !c.key {
			continue
		}
		v := fmt.Sprintf("X'%x'", row[i])
		if strings.HasSuffix(c.kind, "int") {
			v = string(row[i])
		}
		parts = append(parts, c.name+" = "+v)
	}
	return " WHERE " + strings.Join(parts, " AND ")
}

// taken says whether a row has this key.
func (t *table) taken(key [][]byte) bool {
	where := t.where(key)
	return slices.ContainsFunc(t.rows, func(row [][]byte) bool { return t.where(row) == where })
}

// putBack is how a row comes back from the saved table.
func (t *table) putBack(row [][]byte) string {
	return "INSERT INTO " + t.name + " SELECT * FROM saved_" + t.name + t.where(row)
}

// places are the rows at which to try something, of those where it can be tried:
// the first, one in the middle, the last, and the last of the first lane, which is
// one of its last epoch.
func (t *table) places(can []int) (names []string, rows []int) {
	add := func(name string, row int) {
		if !slices.Contains(rows, row) {
			names, rows = append(names, name), append(rows, row)
		}
	}
	if len(can) == 0 {
		return nil, nil
	}
	add("first row", can[0])
	add("row in the middle", can[len(can)/2])
	add("last row", can[len(can)-1])
	if t.has("kafka_partition") {
		lane := func(i int) string { return t.of(t.rows[i], "kafka_topic") + t.of(t.rows[i], "kafka_partition") }
		end := can[0]
		for _, i := range can {
			if lane(i) == lane(can[0]) && (!t.has("seq") || number(t.of(t.rows[i], "seq")) >= number(t.of(t.rows[end], "seq"))) {
				end = i
			}
		}
		add("end of the first lane", end)
	}
	return names, rows
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// changes are all changes of one column on one shard.
func (t *table) changes(shard, n int) (all []planting) {
	c := t.columns[n]
	for _, step := range c.steps() {
		type result struct {
			sql string
			key [][]byte
		}
		results := map[int]result{}
		var can []int
		for i, row := range t.rows {
			for far := int64(1); ; far++ {
				sql, after, ok := c.changed(row[n], step, far)
				if !ok {
					break
				}
				key := slices.Clone(row)
				if c.key {
					key[n] = after
					if t.taken(key) {
						continue // the step is a longer one
					}
				}
				can, results[i] = append(can, i), result{sql, key}
				break
			}
		}
		names, rows := t.places(can)
		for p, i := range rows {
			row, r := t.rows[i], results[i]
			all = append(all, planting{
				shard: shard, table: t.name, column: c.name, step: step, place: names[p], key: t.keyOf(row),
				now: t.keyOf(r.key), plant: fmt.Sprintf("UPDATE %s SET %s = %s%s", t.name, c.name, r.sql, t.where(row)),
				undo: []string{"DELETE FROM " + t.name + t.where(r.key), t.putBack(row)},
			})
		}
	}
	return all
}

// deletions are some rows deleted.
func (t *table) deletions(shard int) (all []planting) {
	can := make([]int, len(t.rows))
	for i := range can {
		can[i] = i
	}
	names, rows := t.places(can)
	for p, i := range rows {
		all = append(all, planting{
			shard: shard, table: t.name, step: deleted, place: names[p], key: t.keyOf(t.rows[i]),
			plant: "DELETE FROM " + t.name + t.where(t.rows[i]), undo: []string{t.putBack(t.rows[i])},
		})
	}
	return all
}

// additions are copies of a row under keys that differ in one column.
func (t *table) additions(shard, n int) (all []planting) {
	c := t.columns[n]
	names := make([]string, len(t.columns))
	for i := range t.columns {
		names[i] = t.columns[i].name
	}
	for _, i := range []int{len(t.rows) / 2, len(t.rows) - 1} {
		row := t.rows[i]
		add := func(way string, v []byte) {
			key := slices.Clone(row)
			key[n] = v
			if t.taken(key) {
				return
			}
			values := slices.Clone(names)
			values[n] = fmt.Sprintf("X'%x'", v)
			if strings.HasSuffix(c.kind, "int") {
				values[n] = string(v)
			}
			all = append(all, planting{
				shard: shard, table: t.name, column: c.name, step: added + way, place: fmt.Sprint("copy of row ", i+1), key: t.keyOf(key),
				plant: fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM saved_%s%s", t.name, strings.Join(names, ", "), strings.Join(values, ", "), t.name, t.where(row)),
				undo:  []string{"DELETE FROM " + t.name + t.where(key)},
			})
		}
		switch {
		case strings.HasSuffix(c.kind, "int"):
			least, most := number(string(row[n])), number(string(row[n]))
			for _, other := range t.rows {
				least, most = min(least, number(string(other[n]))), max(most, number(string(other[n])))
			}
			add("before the first", []byte(fmt.Sprint(least-1)))
			add("behind the last", []byte(fmt.Sprint(most+1)))
			for v := least + 1; v < most; v++ { // the first gap
				key := slices.Clone(row)
				if key[n] = []byte(fmt.Sprint(v)); !t.taken(key) {
					add("between", key[n])
					break
				}
			}
		case c.kind == "binary":
			add("before the first", make([]byte, len(row[n])))
			add("behind the last", []byte(strings.Repeat("\xff", len(row[n]))))
			beside := slices.Clone(row[n])
			beside[len(beside)-1] ^= 1
			add("between", beside)
		default:
			add("before the first", append([]byte("AA-"), row[n]...))
			add("behind the last", append([]byte("zz-"), row[n]...))
		}
	}
	return all
}

// plan is everything that can be wrong with one row of any table of any shard.
func (w *world) plan() (all []planting) {
	w.t.Helper()
	for shard := range w.shards {
		tables := w.everyTable(shard)
		pairs := map[string]bool{}
		for i := range tables {
			t := &tables[i]
			for n, c := range t.columns {
				if c.exempt {
					continue
				}
				changes := t.changes(shard, n)
				for _, p := range changes {
					pairs[fmt.Sprint(p.table, ".", p.column, " ", p.step)] = true
				}
				all = append(all, changes...)
				if c.key {
					all = append(all, t.additions(shard, n)...)
				}
			}
			all = append(all, t.deletions(shard)...)
		}
		for _, never := range impossible {
			if pairs[never] {
				w.t.Errorf("shard %d: %s can be planted", shard, never)
			}
		}
		want, err := strconv.Atoi(column(w.t, w.shards[shard], stepsCounted)[0])
		if err != nil {
			w.t.Fatal(err)
		}
		if len(pairs) != want-len(impossible) {
			w.t.Fatalf("shard %d: %d pairs of column and step, the server counts %d, without %v", shard, len(pairs), want, impossible)
		}
	}
	return all
}

// part takes from the plan, by a rule: on one shard each column with each step, at
// one of the places; of the others each table with each step, in one of the columns.
func part(plan []planting) (some []planting) {
	groups := map[string][]planting{}
	var names []string
	for _, p := range plan {
		name := fmt.Sprint(p.shard, p.table, p.step)
		if p.shard == 0 {
			name += p.column
		}
		if groups[name] == nil {
			names = append(names, name)
		}
		groups[name] = append(groups[name], p)
	}
	for i, name := range names {
		some = append(some, groups[name][i%len(groups[name])])
	}
	return some
}

// TestPlanCoversEverything: what is taken from the plan has what the rule says.
func TestPlanCoversEverything(t *testing.T) {
	t.Parallel()
	var plan []planting
	for _, shard := range []int{0, 1} {
		for _, c := range []string{"a", "b"} {
			for _, step := range []string{"+1", "-1"} {
				for _, place := range []string{"first", "last"} {
					plan = append(plan, planting{shard: shard, table: "t", column: c, step: step, place: place})
				}
			}
		}
	}
	got := map[string]int{}
	for _, p := range part(plan) {
		got[fmt.Sprint(p.shard, p.step)]++
	}
	if fmt.Sprint(got) != "map[0+1:2 0-1:2 1+1:1 1-1:1]" {
		t.Errorf("taken: %v", got)
	}
}
