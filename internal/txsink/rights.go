package txsink

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"

	"billing/internal/checkpoint"
	"billing/migrations"
)

// needed are the rights that the service uses, by table. The first epoch would
// be too late to find out that one is missing.
var needed = map[string][]string{
	"billing_schema":    {"SELECT"},
	"billing_meta":      {"SELECT"},
	"billing_lane":      {"SELECT", "INSERT", "UPDATE"},
	"billing_epoch":     {"SELECT", "INSERT"},
	"billing_epoch_sum": {"SELECT", "INSERT"},
	"billing_total":     {"SELECT", "INSERT", "UPDATE"},
	"billing_ledger":    {"SELECT", "INSERT"},
	"billing_rejects":   {"SELECT", "INSERT"},
}

// probes are statements that need exactly one right, and do nothing. They are
// refused to a user who lacks it, also where there is no such table.
var probes = map[string]string{
	"SELECT": "EXPLAIN SELECT 1 FROM %s WHERE FALSE",
	"INSERT": "EXPLAIN INSERT INTO %s () VALUES ()",
	"UPDATE": "EXPLAIN UPDATE %s SET kafka_partition = 0 WHERE FALSE",
}

// neededStatements are refused to a user who has a right on some columns only.
var neededStatements = []string{
	"EXPLAIN UPDATE billing_lane SET seq = seq WHERE FALSE",
	"EXPLAIN UPDATE billing_total SET entry_count = entry_count WHERE FALSE",
	"EXPLAIN INSERT INTO billing_lane SELECT * FROM billing_lane WHERE FALSE",
	"EXPLAIN INSERT INTO billing_epoch SELECT * FROM billing_epoch WHERE FALSE",
	"EXPLAIN INSERT INTO billing_epoch_sum SELECT * FROM billing_epoch_sum WHERE FALSE",
	"EXPLAIN INSERT INTO billing_total SELECT * FROM billing_total WHERE FALSE",
	"EXPLAIN INSERT INTO billing_ledger SELECT * FROM billing_ledger WHERE FALSE",
	"EXPLAIN INSERT INTO billing_rejects SELECT * FROM billing_rejects WHERE FALSE",
}

// rights are what a user lacks: tables by right.
type rights struct {
	lacks map[string][]string
	first error // the server's first answer
}

func (r *rights) lack(right, table string) bool { return slices.Contains(r.lacks[right], table) }

// hides reports whether a table that is not listed may be there all the same: the
// server lists no table to a user without any right on it.
func (r *rights) hides(table string) bool {
	for _, right := range neededOn(table, false) {
		if !r.lack(right, table) {
			return false
		}
	}
	return true
}

// neededOn are the rights that are needed on a table. On a view none is, but
// without any it is not listed.
func neededOn(table string, listed bool) []string {
	if rights, ok := needed[table]; ok || listed {
		return rights
	}
	return []string{"SELECT"}
}

// missingRights asks for each right on each table. there are those that are
// listed.
func missingRights(ctx context.Context, c *sql.Conn, there map[string]bool) (*rights, error) {
	r := &rights{lacks: make(map[string][]string)}
	for _, table := range slices.Concat(migrations.Tables, migrations.Views) {
		for _, right := range neededOn(table, there[table]) {
			_, err := c.ExecContext(ctx, fmt.Sprintf(probes[right], table))
			switch {
			case isDenied(err):
				r.lacks[right] = append(r.lacks[right], table)
				if r.first == nil {
					r.first = err
				}
			case err != nil && answer(err) == nil:
				return nil, fmt.Errorf("ask for the user's rights: %w", err)
			}
			// Any other answer comes after the right was found, or is about a table
			// that is not there.
		}
	}
	return r, nil
}

// isDenied reports whether the server says that a right is missing.
func isDenied(err error) bool {
	return isAnswer(err, errCommandDenied) || isAnswer(err, errColumnDenied) || isAnswer(err, errAccessDenied)
}

// problem names every right that is missing, and the statements that give them;
// nil where none is.
func (r *rights) problem(shard, database, user string) error {
	if len(r.lacks) == 0 {
		return nil
	}
	var lacks []string
	everywhere := []string(nil)           // rights that are missing wherever they are needed
	onTables := make(map[string][]string) // the others, by table
	for _, right := range []string{"SELECT", "INSERT", "UPDATE"} {
		tables := r.lacks[right]
		if len(tables) == 0 {
			continue
		}
		lacks = append(lacks, right+" on "+strings.Join(tables, ", "))
		wanted := 0
		for _, rights := range needed {
			if slices.Contains(rights, right) {
				wanted++
			}
		}
		if len(tables) >= wanted { // and perhaps on a view
			everywhere = append(everywhere, right)
			continue
		}
		for _, table := range tables {
			onTables[table] = append(onTables[table], right)
		}
	}
	grant := func(rights []string, on string) string {
		return "GRANT " + strings.Join(rights, ", ") + " ON " + quoteName(database) + "." + on + " TO " + user
	}
	var grants []string
	if len(everywhere) > 0 {
		grants = append(grants, grant(everywhere, "*"))
	}
	for _, table := range slices.Sorted(maps.Keys(onTables)) {
		grants = append(grants, grant(onTables[table], table))
	}
	refusal := refuse(checkpoint.ReasonShardUnfit, shard, "the user lacks rights: "+strings.Join(lacks, "; "), strings.Join(grants, "; "))
	refusal.Err = r.first
	return refusal
}

func quoteName(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// grantee is CURRENT_USER() as GRANT takes it.
func grantee(current string) string {
	at := strings.LastIndexByte(current, '@')
	if at < 0 {
		return "the service's user"
	}
	return "'" + current[:at] + "'@'" + current[at+1:] + "'"
}
