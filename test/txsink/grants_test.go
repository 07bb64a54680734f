package txsink_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"billing/internal/checkpoint"
	"billing/internal/txsink"
	"billing/migrations"
	"billing/test/servers"
)

// user is one of a database's users: with what it does, and with what it is granted.
type user struct {
	name string // as in a GRANT
	cfg  txsink.Config
	try  func(ctx context.Context, cfg txsink.Config) error
}

// loner is a job with one shard, whose users the test may spoil.
func loner(t *testing.T) txsink.Config {
	t.Helper()
	cfg := config(t)
	cfg.Shards = cfg.Shards[:1]
	return cfg
}

// usersOf are the three users of deploy/mysql/grants.sql and what each of them is for.
func usersOf(t *testing.T, cfg txsink.Config) (reader, service, migrate user) {
	t.Helper()
	named := func(as func(string) string, try func(context.Context, txsink.Config) error) user {
		u := user{cfg: asUser(cfg, as), try: try}
		c, err := mysql.ParseDSN(u.cfg.Shards[0].DSN)
		if err != nil {
			t.Fatal(err)
		}
		u.name = "'" + c.User + "'@'%'"
		return u
	}
	check := func(ctx context.Context, cfg txsink.Config) error {
		err := opened(cfg, func(s *txsink.Sink) error { return s.Check(ctx) })
		if cfg.Repairs = true; err == nil || !strings.Contains(err.Error(), " lacks ") { // it has all that run needs
			err = opened(cfg, func(s *txsink.Sink) error { return s.Check(ctx) })
		}
		return err
	}
	return named(servers.AsReader, lookAtAll), named(func(dsn string) string { return dsn }, check),
		named(servers.AsMigrate, func(ctx context.Context, cfg txsink.Config) error { return txsink.Migrate(ctx, cfg, io.Discard) })
}

// opened runs fn with a new pool.
func opened(cfg txsink.Config, fn func(*txsink.Sink) error) error {
	s, err := txsink.Open(cfg)
	if err != nil {
		return err
	}
	return errors.Join(fn(s), s.Close())
}

// lookAtAll is what verify, status, xa list and a repair's dry run ask for.
func lookAtAll(ctx context.Context, cfg txsink.Config) error {
	cfg.LooksOnly, cfg.Repairs = true, true
	if err := opened(cfg, func(s *txsink.Sink) error { return s.Check(ctx) }); err != nil {
		return err
	}
	cfg.Repairs = false
	return opened(cfg, func(s *txsink.Sink) error {
		if err := s.Check(ctx); err != nil {
			return err
		}
		if look, err := s.Look(ctx, 0); err != nil || len(look.Problems) > 0 {
			return errors.Join(append(look.Problems, err)...)
		}
		if _, err := s.Prepared(ctx, 0); err != nil {
			return err
		}
		c, err := s.Reader(ctx, 0)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

func (u *user) now(t *testing.T) error {
	t.Helper()
	return u.try(t.Context(), u.cfg)
}

// granted is what the server says, sorted.
func (u *user) granted(t *testing.T) []string {
	t.Helper()
	grants := list(t, shared[0].Root(), "SHOW GRANTS FOR "+u.name)
	slices.Sort(grants)
	return grants
}

var (
	grantLine = regexp.MustCompile("^GRANT (.*) ON (.*) TO ")
	nextStep  = regexp.MustCompile("(?:GRANT|REVOKE) [^;]*")
)

// rightsOf are single rights, each with what it is on.
func (u *user) rightsOf(t *testing.T) (rights [][2]string) {
	t.Helper()
	for _, line := range u.granted(t) {
		found := grantLine.FindStringSubmatch(line)
		if found == nil {
			t.Fatalf("what is this: %s", line)
		}
		for right := range strings.SplitSeq(found[1], ", ") {
			if right != "USAGE" {
				rights = append(rights, [2]string{right, found[2]})
			}
		}
	}
	return rights
}

// TestGrantsAreTheLeast: without any single one of the rights in deploy/mysql/grants.sql its user is refused, before the
// tables are there as well as after; the refusal names the right, the table and the user; and its next step gives back
// what was taken, and no more.
func TestGrantsAreTheLeast(t *testing.T) {
	t.Parallel()
	cfg := loner(t)
	db := database(t, cfg.Shards[0].DSN)
	reader, service, migrate := usersOf(t, cfg)
	each := func(t *testing.T, u *user, migrated bool) {
		t.Helper()
		all := u.rightsOf(t)
		if len(all) < 2 {
			t.Fatalf("rights: %v", all)
		}
		before := u.granted(t)
		for _, r := range all {
			right, on := r[0], r[1]
			if right == "CREATE" && strings.Contains(on, "`.`") {
				continue // it has it on the database
			}
			exec(t, 0, cfg, "REVOKE "+right+" ON "+on+" FROM "+u.name)
			err := u.now(t)
			_, table, _ := strings.Cut(on, ".")
			table = strings.Trim(table, "`*")
			if on == "`"+db+"`.*" && right == "SELECT" {
				// It has nothing on the database any more, and can't choose it.
				var away *checkpoint.ServerError
				if !errors.As(err, &away) || !strings.Contains(err.Error(), "1044") || !strings.Contains(err.Error(), u.name) || !strings.Contains(away.Next, "docs/grants.md") {
					t.Errorf("without %s on %s: %v", right, on, err)
				}
				exec(t, 0, cfg, "GRANT "+right+" ON "+on+" TO "+u.name)
				continue
			}
			var refusal *checkpoint.Refusal
			for _, p := range checkpoint.Problems(err) {
				r := checkpoint.AsRefusal(p)
				if r != nil && r.Reason == checkpoint.ReasonShardUnfit {
					refusal = r
				} else if migrated {
					t.Errorf("without %s on %s, which is all that is wrong: %v", right, on, p)
				}
			}
			if refusal == nil || !strings.Contains(refusal.Wrong, "the user "+u.name+" lacks ") || !strings.Contains(refusal.Wrong, right) || !strings.Contains(refusal.Wrong, table) {
				t.Fatalf("without %s on %s: %v", right, on, err)
			}
			for _, step := range nextStep.FindAllString(refusal.Next, -1) {
				exec(t, 0, cfg, step)
			}
			if got := u.granted(t); !slices.Equal(got, before) {
				t.Fatalf("without %s on %s: the next step was %q\ngranted were %q\nare         %q", right, on, refusal.Next, before, got)
			}
		}
	}
	each(t, &migrate, false)
	each(t, &service, false)
	if err := migrate.now(t); err != nil {
		t.Fatal(err)
	}
	for _, u := range []*user{&migrate, &service, &reader} {
		each(t, u, true)
		if err := u.now(t); err != nil {
			t.Errorf("%s with all rights: %v", u.name, err)
		}
	}
	if err := lookAtAll(t.Context(), service.cfg); err == nil || !strings.Contains(err.Error(), "SELECT on billing_rejects, billing_totals") {
		t.Errorf("the service's user reads everything: %v", err)
	}
}

// TestRightsOfARepair: it compares with what the other shards show, and the service itself does without that right.
func TestRightsOfARepair(t *testing.T) {
	t.Parallel()
	cfg := loner(t)
	migrate(t, cfg)
	_, service, _ := usersOf(t, cfg)
	exec(t, 0, cfg, "REVOKE SELECT ON %s.billing_epoch_sum FROM "+service.name)
	exec(t, 0, cfg, "REVOKE SELECT ON %s.billing_rejects FROM "+service.name)
	check := func(change func(*txsink.Config)) error {
		cfg := service.cfg
		change(&cfg)
		return opened(cfg, func(s *txsink.Sink) error { return s.Check(t.Context()) })
	}
	for name, change := range map[string]func(*txsink.Config){
		"the service": func(*txsink.Config) {}, "status": func(c *txsink.Config) { c.LooksOnly = true },
	} {
		if err := check(change); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*txsink.Config){
		"a dry run": func(c *txsink.Config) { c.Repairs, c.LooksOnly = true, true }, "a repair": func(c *txsink.Config) { c.Repairs = true },
	} {
		t.Run(name, func(t *testing.T) {
			wantRefusal(t, check(change), checkpoint.ReasonShardUnfit, "east", "lacks rights: SELECT on billing_epoch_sum, billing_rejects", "SELECT ON `"+database(t, cfg.Shards[0].DSN)+"`.billing_epoch_sum TO "+service.name)
		})
	}
}

// TestReaderWritesNothing, whatever it is asked to.
func TestReaderWritesNothing(t *testing.T) {
	t.Parallel()
	cfg := loner(t)
	migrate(t, cfg)
	reader, service, _ := usersOf(t, cfg)
	db, err := sql.Open("mysql", reader.cfg.Shards[0].DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	denied := func(statement string) {
		t.Helper()
		_, err := db.ExecContext(t.Context(), statement)
		var answer *mysql.MySQLError
		if !errors.As(err, &answer) || !slices.Contains([]uint16{1044, 1142, 1227, 1370, 1419}, answer.Number) {
			t.Errorf("%s: %v", statement, err)
		}
	}
	for _, table := range slices.Concat(migrations.Tables, migrations.Views) {
		for _, statement := range []string{"INSERT INTO %s SELECT * FROM %s", "REPLACE INTO %s SELECT * FROM %s", "DELETE FROM %s", "TRUNCATE TABLE %s", "DROP TABLE %s", "DROP VIEW %s", "ALTER TABLE %s ADD COLUMN x INT",
			"CREATE INDEX x ON %s (x)", "RENAME TABLE %s TO elsewhere", "LOCK TABLES %s WRITE", "SELECT * FROM %s FOR UPDATE", "CREATE TRIGGER x BEFORE INSERT ON %s FOR EACH ROW SET @x = 1"} {
			denied(strings.ReplaceAll(statement, "%s", table))
		}
		column := list(t, shared[0].Root(), "SELECT column_name FROM information_schema.columns WHERE table_schema = ? AND table_name = ?", database(t, cfg.Shards[0].DSN), table)[0]
		denied("UPDATE " + table + " SET " + column + " = NULL")
	}
	for _, statement := range []string{"CREATE TABLE x (id INT)", "CREATE TEMPORARY TABLE x (id INT)", "CREATE VIEW x AS SELECT 1", "CREATE PROCEDURE x() SELECT 1", "CREATE EVENT x ON SCHEDULE EVERY 1 DAY DO SELECT 1",
		"DROP DATABASE " + database(t, cfg.Shards[0].DSN), "SET GLOBAL sync_binlog = 0", "CREATE USER x IDENTIFIED BY 'x'", "GRANT SELECT ON billing_lane TO " + service.name} {
		denied(statement)
	}
	if err := txsink.Migrate(t.Context(), reader.cfg, io.Discard); len(refusals(err)) == 0 || !strings.Contains(err.Error(), "INSERT on billing_schema, billing_meta") {
		t.Errorf("migrate as the reader: %v", err)
	}
}

// TestGrantsByRole: what a user has by a role counts while the role is active, and else the refusal says so.
func TestGrantsByRole(t *testing.T) {
	t.Parallel()
	cfg := loner(t)
	migrate(t, cfg)
	_, service, _ := usersOf(t, cfg)
	role := "'role_" + strings.Trim(database(t, cfg.Shards[0].DSN), "`") + "'@'%'"
	grants := service.granted(t)
	exec(t, 0, cfg, "CREATE ROLE "+role)
	for _, g := range grants {
		found := grantLine.FindStringSubmatch(g)
		if found[1] == "USAGE" {
			continue
		}
		exec(t, 0, cfg, "GRANT "+found[1]+" ON "+found[2]+" TO "+role)
		if found[1] != "XA_RECOVER_ADMIN" && !strings.Contains(found[2], "billing_meta") {
			exec(t, 0, cfg, "REVOKE "+found[1]+" ON "+found[2]+" FROM "+service.name)
		}
	}
	exec(t, 0, cfg, "GRANT "+role+" TO "+service.name)
	err := service.now(t)
	wantRefusal(t, err, checkpoint.ReasonShardUnfit, "east", "the user "+service.name+" lacks rights: SELECT on billing_schema, ", "SET DEFAULT ROLE ALL TO "+service.name)
	exec(t, 0, cfg, "SET DEFAULT ROLE ALL TO "+service.name)
	if err := service.now(t); err != nil {
		t.Error(err)
	}
}

// TestRightsOnSomeColumns are not enough for the statements that need others.
func TestRightsOnSomeColumns(t *testing.T) {
	t.Parallel()
	cfg := loner(t)
	migrate(t, cfg)
	_, service, _ := usersOf(t, cfg)
	for _, c := range []struct{ right, table, column string }{
		{"UPDATE", "billing_lane", "seq"}, {"INSERT", "billing_rejects", "reason"}, {"SELECT", "billing_epoch", "gtrid"}, {"INSERT", "billing_total", "unit"},
	} {
		exec(t, 0, cfg, "REVOKE "+c.right+" ON %s."+c.table+" FROM "+service.name)
		exec(t, 0, cfg, "GRANT "+c.right+" ("+c.column+") ON %s."+c.table+" TO "+service.name)
		wantRefusal(t, service.now(t), checkpoint.ReasonShardUnfit, "east", "lacks rights: "+c.right+" on "+c.table, c.right+" ON `"+database(t, cfg.Shards[0].DSN)+"`."+c.table+" TO "+service.name)
		exec(t, 0, cfg, "GRANT "+c.right+" ON %s."+c.table+" TO "+service.name)
	}
	if err := service.now(t); err != nil {
		t.Error(err)
	}
}

// TestOneUserForEverything: the last SQL of docs/grants.md is enough for all that is done.
func TestOneUserForEverything(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/grants.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	cfg := loner(t)
	db := database(t, cfg.Shards[0].DSN)
	name := "one_" + db
	script := strings.NewReplacer("DATABASE billing;", "DATABASE IF NOT EXISTS "+db+";", "billing.*", db+".*", "'billing'@", "'"+name+"'@", "change-me", "x").Replace(blocks[len(blocks)-1][1])
	for statement := range strings.SplitSeq(strings.TrimSpace(script), ";\n") {
		exec(t, 0, cfg, strings.TrimSuffix(statement, ";"))
	}
	c, err := mysql.ParseDSN(cfg.Shards[0].DSN)
	if err != nil {
		t.Fatal(err)
	}
	c.User, c.Passwd = name, "x"
	cfg.Shards[0].DSN = c.FormatDSN()
	one := &user{name: "'" + name + "'@'%'", cfg: cfg}
	if err := txsink.Migrate(t.Context(), cfg, io.Discard); err != nil {
		t.Fatal(err)
	}
	l := &lane{t: t, sink: open(t, cfg), job: cfg.Job, id: checkpoint.Lane{Topic: "t"}, incarnation: 1, window: 3600e9, ledger: true}
	for i := range 2 {
		e := l.epoch()
		e.Apply(charge(fmt.Sprint("id", i), "acme", "1"), int64(i))
		l.book(e, 1)
	}
	if err := lookAtAll(t.Context(), cfg); err != nil {
		t.Error(err)
	}
	if got := one.rightsOf(t); len(got) != 7 {
		t.Errorf("rights: %v", got)
	}
}

// TestWhoKnowsABranchCanEndIt is what docs/grants.md warns of, as long as MySQL does it: ending a branch needs no right,
// and only its name is kept from those without XA_RECOVER_ADMIN.
func TestWhoKnowsABranchCanEndIt(t *testing.T) {
	t.Parallel()
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	if err := l.prepare(small(l, "a", 0), 2); err != nil {
		t.Fatal(err)
	}
	for i := range cfg.Shards {
		db, err := sql.Open("mysql", servers.AsReader(cfg.Shards[i].DSN))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.ExecContext(t.Context(), fmt.Sprintf("XA ROLLBACK '%s','s%d'", l.gtrid(1, 1), i)); err != nil {
			t.Errorf("MySQL has become stricter, which docs/grants.md should say: %v", err)
		}
	}
}
