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

// role is what one of the users of a shard may do, as deploy/mysql/grants.sql
// gives it.
type role struct {
	tables map[string][]string // rights by table or view
	whole  []string            // those of them that are given on the whole database
}

var (
	serviceRole = role{tables: map[string][]string{
		"billing_schema":    {"SELECT"},
		"billing_meta":      {"SELECT", "UPDATE"}, // UPDATE to accept another server
		"billing_lane":      {"SELECT", "INSERT", "UPDATE"},
		"billing_epoch":     {"SELECT", "INSERT"},
		"billing_epoch_sum": {"INSERT"},
		"billing_total":     {"SELECT", "INSERT", "UPDATE"},
		"billing_ledger":    {"SELECT", "INSERT"},
		"billing_rejects":   {"INSERT"},
	}}
	migrateRole = role{whole: []string{"CREATE"}, tables: map[string][]string{
		"billing_schema":    {"CREATE", "SELECT", "INSERT"},
		"billing_meta":      {"CREATE", "SELECT", "INSERT", "UPDATE"},
		"billing_lane":      {"CREATE", "SELECT"},
		"billing_epoch":     {"CREATE"},
		"billing_epoch_sum": {"CREATE"},
		"billing_total":     {"CREATE", "SELECT"}, // the view reads it
		"billing_ledger":    {"CREATE"},
		"billing_rejects":   {"CREATE"},
		"billing_totals":    {"CREATE VIEW", "DROP"},
	}}
	readerRole = role{whole: []string{"SELECT"}, tables: selectOn(slices.Concat(migrations.Tables, migrations.Views)...)}

	// lookRole is the part of the reader's and of the service's that a look needs.
	lookRole = role{tables: selectOn("billing_schema", "billing_meta", "billing_lane", "billing_epoch")}

	// Who repairs compares with what other shards show: lostRole before, repairRole
	// while it writes.
	lostRole   = role{tables: selectOn(migrations.Tables...)}
	repairRole = role{tables: alsoSelect(serviceRole.tables, "billing_epoch_sum", "billing_rejects")}
)

// alsoSelect is the rights, with SELECT on some tables more.
func alsoSelect(tables map[string][]string, on ...string) map[string][]string {
	more := maps.Clone(tables)
	for _, table := range on {
		more[table] = append(slices.Clone(more[table]), "SELECT")
	}
	return more
}

func selectOn(tables ...string) map[string][]string {
	rights := make(map[string][]string)
	for _, table := range tables {
		rights[table] = []string{"SELECT"}
	}
	return rights
}

// allRights are those that a role can have, in the order in which they are asked
// for and named.
var allRights = []string{"SELECT", "INSERT", "UPDATE", "CREATE", "CREATE VIEW", "DROP"}

// inserted and updated are the columns that are written, by table: a right on
// some of them only is not enough.
var (
	inserted = map[string]string{
		"billing_schema": intoSchema, "billing_meta": intoMeta, "billing_lane": intoLane, "billing_epoch": intoEpoch,
		"billing_epoch_sum": intoEpochSum, "billing_total": intoTotal, "billing_ledger": intoLedger, "billing_rejects": intoRejects,
	}
	updated = map[string]string{
		"billing_meta":  "server_uuid = '', checksum = ''",
		"billing_lane":  "incarnation = 1, seq = 1, offset_next = 1, updated_at = NOW(6)",
		"billing_total": "charge_amount = 0, credit_amount = 0, quantity = 0, entry_count = 1, updated_at = NOW(6)",
	}
)

// probe is a statement that needs exactly one right on a table and does nothing.
// It is refused to a user who lacks the right, also where there is no such table;
// to others the server says that there is none. DDL is only prepared: rights are
// looked at by then.
func probe(right, table string) (statement string, prepare bool) {
	switch right {
	case "SELECT":
		return "SELECT * FROM " + table + " LIMIT 0", false
	case "INSERT":
		into := inserted[table]
		return "EXPLAIN " + into + "(NULL" + strings.Repeat(", NULL", strings.Count(into, ",")) + ")", false
	case "UPDATE":
		return "EXPLAIN UPDATE " + table + " SET " + updated[table] + " WHERE FALSE", false
	case "CREATE":
		return "CREATE TABLE IF NOT EXISTS " + table + " (id INT)", true
	case "CREATE VIEW":
		return "CREATE VIEW " + table + " AS SELECT 1", true
	default: // DROP; it needs CREATE VIEW, too
		return "CREATE OR REPLACE VIEW " + table + " AS SELECT 1", true
	}
}

// rights are what a user lacks of a role, and what the questions have shown.
type rights struct {
	role     *role
	database string
	user     string              // as GRANT takes it
	idle     string              // the roles that were granted to the user and are not active
	lacks    map[string][]string // tables by right
	absent   map[string]bool     // tables and views that are certainly not there
	first    error               // the server's first no
}

func (r *rights) lack(right, table string) bool { return slices.Contains(r.lacks[right], table) }

// missingRights asks for each right of a role. It changes nothing, and waits for
// no row's lock.
func missingRights(ctx context.Context, c *sql.Conn, of *role) (*rights, error) {
	r := &rights{role: of, lacks: make(map[string][]string), absent: make(map[string]bool)}
	for _, table := range slices.Concat(migrations.Tables, migrations.Views) {
		for _, right := range allRights {
			needed := slices.Contains(of.tables[table], right)
			// Without a right on it, only whether it is there is asked for.
			if !needed && (right != "SELECT" || len(of.tables[table]) > 0) {
				continue
			}
			if right == "DROP" && r.lack("CREATE VIEW", table) {
				continue // it can't be asked for
			}
			err := ask(ctx, c, right, table)
			switch {
			case isDenied(err) && needed:
				r.lacks[right] = append(r.lacks[right], table)
				if r.first == nil {
					r.first = err
				}
			case isAnswer(err, errNoSuchTable):
				r.absent[table] = true
			case err != nil && answer(err) == nil:
				return nil, fmt.Errorf("ask for the user's rights: %w", err)
			}
			// Any other answer comes after the right was found.
		}
	}
	if len(r.lacks) == 0 {
		return r, nil
	}
	return r, r.introduce(ctx, c)
}

// ask sends a probe.
func ask(ctx context.Context, c *sql.Conn, right, table string) error {
	statement, prepare := probe(right, table)
	if !prepare {
		_, err := c.ExecContext(ctx, statement)
		return err
	}
	prepared, err := c.PrepareContext(ctx, statement)
	if err != nil {
		return err
	}
	return prepared.Close() //nolint:sqlclosecheck // nothing comes between
}

// introduce asks whose rights they are.
func (r *rights) introduce(ctx context.Context, c *sql.Conn) error {
	var user string
	var idle sql.NullString
	err := c.QueryRowContext(ctx, "SELECT DATABASE(), CURRENT_USER(), (SELECT GROUP_CONCAT(DISTINCT a.role_name ORDER BY a.role_name SEPARATOR ', ') FROM information_schema.applicable_roles a"+
		" WHERE NOT EXISTS (SELECT * FROM information_schema.enabled_roles e WHERE e.role_name = a.role_name AND e.role_host = a.role_host))").Scan(&r.database, &user, &idle)
	if err != nil {
		return fmt.Errorf("ask for the user: %w", err)
	}
	r.user, r.idle = grantee(user), idle.String
	return nil
}

// isDenied reports whether the server says that a right is missing.
func isDenied(err error) bool {
	return isAnswer(err, errCommandDenied) || isAnswer(err, errColumnDenied) || isAnswer(err, errAccessDenied)
}

// lacking is a refusal with every right that is missing and the statements that
// give them; nil where none is.
func (s *shard) lacking(r *rights) error {
	if len(r.lacks) == 0 {
		return nil
	}
	var lacks []string
	var whole []string                    // to be granted on the database
	onTables := make(map[string][]string) // the others, by table
	for _, right := range allRights {
		tables := r.lacks[right]
		if len(tables) == 0 {
			continue
		}
		lacks = append(lacks, right+" on "+strings.Join(tables, ", "))
		if r.everywhere(right) {
			whole = append(whole, right)
			continue
		}
		for _, table := range tables {
			onTables[table] = append(onTables[table], right)
		}
	}
	var steps []string
	if r.idle != "" {
		steps = append(steps, "SET DEFAULT ROLE ALL TO "+r.user+", if a granted role that is not active has the rights ("+r.idle+")")
	}
	if len(whole) > 0 {
		// In a right on a whole database _ is any character.
		steps = append(steps, "GRANT "+strings.Join(whole, ", ")+" ON "+quoteName(strings.ReplaceAll(r.database, "_", `\_`))+".* TO "+r.user)
	}
	for _, table := range slices.Sorted(maps.Keys(onTables)) {
		steps = append(steps, r.grants(onTables[table], table)...)
	}
	steps = append(steps, "or run this as the user that docs/grants.md has for it")
	refusal := refuse(checkpoint.ReasonShardUnfit, s.name, "the user "+r.user+" lacks rights: "+strings.Join(lacks, "; "), strings.Join(steps, "; "))
	refusal.Err = r.first
	return refusal
}

// grants are the statements that give rights on a table. MySQL takes a right on a
// table that is not there only together with CREATE.
func (r *rights) grants(missing []string, table string) []string {
	on := " ON " + quoteName(r.database) + "." + table
	if !r.mayCreate() && !r.absent[table] && !r.hides(table) {
		return []string{"GRANT " + strings.Join(missing, ", ") + on + " TO " + r.user}
	}
	steps := []string{"GRANT CREATE, " + strings.Join(missing, ", ") + on + " TO " + r.user}
	if !r.mayCreate() {
		steps = append(steps, "REVOKE CREATE"+on+" FROM "+r.user)
	}
	return steps
}

// mayCreate reports whether the role has CREATE.
func (r *rights) mayCreate() bool { return slices.Contains(r.role.whole, "CREATE") }

// everywhere reports whether a missing right is to be granted on the database: as
// the role has it, or because no table that needs it is known to be there.
func (r *rights) everywhere(right string) bool {
	if slices.Contains(r.role.whole, right) {
		return true
	}
	if r.mayCreate() {
		return false // a right on a table can be given before the table is there
	}
	for table, rights := range r.role.tables {
		if slices.Contains(rights, right) && (!r.lack(right, table) || !r.absent[table] && !r.hides(table)) {
			return false
		}
	}
	return true
}

// hides reports whether nobody can know if a table is there: the server tells a
// user without any right on it nothing.
func (r *rights) hides(table string) bool {
	for _, right := range r.role.tables[table] {
		if !r.lack(right, table) {
			return false
		}
	}
	return true
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
