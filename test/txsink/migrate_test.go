package txsink_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"billing/internal/checkpoint"
	"billing/internal/txsink"
	"billing/migrations"
)

// refusals are the reasons in an error, in order, each with its shard.
func refusals(err error) (found []string) {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		for _, e := range joined.Unwrap() {
			found = append(found, refusals(e)...)
		}
		return found
	}
	var r *checkpoint.Refusal
	if errors.As(err, &r) {
		found = append(found, r.Reason+":"+r.What)
	}
	return found
}

// wantRefusal holds an error against what it must say.
func wantRefusal(t *testing.T, err error, reason, shard string, words ...string) {
	t.Helper()
	found := refusals(err)
	if len(found) == 0 {
		t.Fatalf("got %v, want a refusal %s:%s", err, reason, shard)
	}
	for _, f := range found {
		if f != reason+":"+shard {
			t.Errorf("got %v, want only %s:%s", err, reason, shard)
		}
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func TestMigrateTwiceChangesNothing(t *testing.T) {
	cfg := config(t)
	var first, second bytes.Buffer
	if err := txsink.Migrate(t.Context(), asMigrate(cfg), &first); err != nil {
		t.Fatal(err)
	}
	all, err := migrations.All()
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, cfg)
	l := newLane(t, s, cfg, 0)
	l.book(small(l, "a", 0), 2)
	meta := query[string](t, 1, cfg, "SELECT HEX(CONCAT_WS(',', job, set_id, shard_number, shard_count, server_uuid, checksum)) FROM %s.billing_meta")
	if err := txsink.Migrate(t.Context(), asMigrate(cfg), &second); err != nil {
		t.Fatal(err)
	}
	if got := query[string](t, 1, cfg, "SELECT HEX(CONCAT_WS(',', job, set_id, shard_number, shard_count, server_uuid, checksum)) FROM %s.billing_meta"); got != meta {
		t.Error("the second migrate has changed billing_meta")
	}
	for _, m := range all {
		if !strings.Contains(first.String(), "shard west: "+m.Name+" done") || strings.Contains(second.String(), m.Name) {
			t.Errorf("%s: progress of the first: %q, of the second: %q", m.Name, first.String(), second.String())
		}
	}
	if !strings.Contains(second.String(), "shard west: up to date, shard 1 of 2") {
		t.Errorf("progress: %q", second.String())
	}
	if again := open(t, cfg); again.SetID() != s.SetID() || s.SetID().IsZero() {
		t.Errorf("set %s, then %s", s.SetID(), again.SetID())
	}
	l.book(small(l, "b", 2), 2)
}

func TestMigratesSideBySide(t *testing.T) {
	cfg := config(t)
	var group errgroup.Group
	for range 4 {
		group.Go(func() error { return txsink.Migrate(t.Context(), asMigrate(cfg), io.Discard) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	open(t, cfg)
}

func TestMigrateGoesOnWhereItWasBrokenOff(t *testing.T) {
	cfg := config(t)
	// Something has the name of the second shard's view: the first is done by then, the second half.
	exec(t, 1, cfg, "CREATE TABLE %s.billing_totals (id INT)")
	err := txsink.Migrate(t.Context(), asMigrate(cfg), io.Discard)
	if err == nil || len(refusals(err)) > 0 || !strings.Contains(err.Error(), "0002_money.sql") || !strings.Contains(err.Error(), "run migrate again") {
		t.Fatalf("got %v", err)
	}
	s, err := txsink.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	wantRefusal(t, s.Check(t.Context()), checkpoint.ReasonMigrationsPending, "west", "billing_ledger", "billing migrate")
	set := query[[]byte](t, 0, cfg, "SELECT set_id FROM %s.billing_meta")

	exec(t, 1, cfg, "DROP TABLE %s.billing_totals")
	migrate(t, cfg)
	s = open(t, cfg)
	if id := s.SetID(); string(id[:]) != string(set) {
		t.Errorf("the set is %x, was %x", id, set)
	}
	l := newLane(t, s, cfg, 0)
	l.book(small(l, "a", 0), 2)

	// The last step is missing.
	exec(t, 1, cfg, "DELETE FROM %s.billing_schema WHERE version = 3")
	wantRefusal(t, s.Check(t.Context()), checkpoint.ReasonMigrationsPending, "west", "0003_rejects.sql")
	migrate(t, cfg)
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestMigrateRefusesWhileBranchesOfTheJobArePrepared(t *testing.T) {
	s, cfg := fresh(t)
	other, otherCfg := fresh2(t, cfg)
	foreign := newLane(t, other, otherCfg, 0)
	if err := foreign.prepare(small(foreign, "a", 0), 2); err != nil {
		t.Fatal(err)
	}
	migrate(t, cfg) // the other job's branches don't matter
	l := newLane(t, s, cfg, 0)
	if err := s.Shards()[1].Prepare(t.Context(), l.branch(small(l, "a", 0), 1, 2)); err != nil {
		t.Fatal(err)
	}
	err := txsink.Migrate(t.Context(), asMigrate(cfg), io.Discard)
	wantRefusal(t, err, txsink.ReasonBranchesPrepared, "west", string(l.gtrid(1, 1)), "start the service")
	if err := s.Shards()[1].Rollback(t.Context(), l.gtrid(1, 1)); err != nil {
		t.Fatal(err)
	}
	migrate(t, cfg)
	foreign.commit(2)
}

// A deployment runs migrate each time, beside instances at work, of which there is always a branch.
func TestMigrateIfNeeded(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	if err := s.Shards()[0].Prepare(t.Context(), l.branch(small(l, "a", 0), 0, 2)); err != nil {
		t.Fatal(err)
	}
	ifNeeded := asMigrate(cfg)
	ifNeeded.IfNeeded = true
	if err := txsink.Migrate(t.Context(), ifNeeded, io.Discard); err != nil {
		t.Errorf("with nothing to do: %v", err)
	}
	wantRefusal(t, txsink.Migrate(t.Context(), asMigrate(cfg), io.Discard), txsink.ReasonBranchesPrepared, "east", string(l.gtrid(1, 1)))
	// One shard is to be migrated, and the branch is on the other one.
	exec(t, 1, cfg, "DELETE FROM %s.billing_schema WHERE version = 3")
	wantRefusal(t, txsink.Migrate(t.Context(), ifNeeded, io.Discard), txsink.ReasonBranchesPrepared, "east", string(l.gtrid(1, 1)))
	if n := query[int](t, 1, cfg, "SELECT COUNT(*) FROM %s.billing_schema WHERE version = 3"); n != 0 {
		t.Error("it was migrated all the same")
	}
	if err := s.Shards()[0].Rollback(t.Context(), l.gtrid(1, 1)); err != nil {
		t.Fatal(err)
	}
	if err := txsink.Migrate(t.Context(), ifNeeded, io.Discard); err != nil {
		t.Error(err)
	}
	if n := query[int](t, 1, cfg, "SELECT COUNT(*) FROM %s.billing_schema WHERE version = 3"); n != 1 {
		t.Error("it was not migrated")
	}
}

// calling is told of progress, and does something at the first of it.
type calling struct{ once func() }

func (c *calling) Write(p []byte) (int, error) {
	if c.once != nil {
		once := c.once
		c.once = nil
		once()
	}
	return len(p), nil
}

// A branch is prepared when migrate has looked for them already: neither waits for the other's locks. The branch is
// prepared before migrate goes on, and migrate is done before the branch ends.
func TestMigrateMeetsABranchThatIsPreparedMeanwhile(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	exec(t, 1, cfg, "DELETE FROM %s.billing_schema WHERE version > 0")
	migrated := func() bool { return query[int](t, 1, cfg, "SELECT COUNT(*) FROM %s.billing_schema") > 1 }
	prepared := false
	if err := txsink.Migrate(t.Context(), asMigrate(cfg), &calling{func() { // the first shard is done
		if err := l.prepare(small(l, "a", 0), 2); err != nil {
			t.Error(err)
		}
		prepared = !migrated()
	}}); err != nil {
		t.Error(err)
	}
	if !prepared || !migrated() {
		t.Errorf("prepared before migrate went on: %t; migrate is done: %t", prepared, migrated())
	}
	for i, sh := range s.Shards() {
		if got, err := sh.Prepared(t.Context(), l.prefix()); err != nil || !slices.Equal(got, []checkpoint.GTRID{l.gtrid(1, 1)}) {
			t.Errorf("prepared on shard %d when migrate is done: %v, %v", i, got, err)
		}
	}
	l.commit(2)
	if n := query[int](t, 1, cfg, "SELECT COUNT(*) FROM %s.billing_ledger"); n != 1 {
		t.Errorf("%d rows in the ledger, want 1", n)
	}
	migrate(t, cfg)
}

// fresh2 is another job on the same servers.
func fresh2(t *testing.T, like txsink.Config) (*txsink.Sink, txsink.Config) {
	t.Helper()
	cfg := config(t)
	cfg.Job = like.Job + "-2"
	migrate(t, cfg)
	return open(t, cfg), cfg
}

func TestMigrateRefusesAnotherSetsDatabases(t *testing.T) {
	_, cfg := fresh(t)
	_, otherCfg := fresh2(t, cfg)

	job := cfg
	job.Job = "another"
	wantMixed(t, job, checkpoint.ReasonShardsChanged+":east", checkpoint.ReasonShardsChanged+":west")

	swapped := cfg
	swapped.Shards = []txsink.ShardConfig{cfg.Shards[1], cfg.Shards[0]}
	wantMixed(t, swapped, checkpoint.ReasonShardsChanged+":west", checkpoint.ReasonShardsChanged+":east")

	fewer := cfg
	fewer.Shards = cfg.Shards[:1]
	wantMixed(t, fewer, checkpoint.ReasonShardsChanged+":east")

	more := cfg
	more.Shards = append(append([]txsink.ShardConfig(nil), cfg.Shards...), txsink.ShardConfig{Name: "north", DSN: shared[0].NewDatabase(t)})
	wantMixed(t, more, checkpoint.ReasonShardsChanged+":east", checkpoint.ReasonShardsChanged+":west")

	otherCfg.Job = cfg.Job
	mixed := cfg
	mixed.Shards = []txsink.ShardConfig{cfg.Shards[0], otherCfg.Shards[1]}
	exec(t, 1, otherCfg, "UPDATE %s.billing_meta SET job = '"+cfg.Job+"'")
	wantMixed(t, mixed, checkpoint.ReasonShardsChanged+":west", checkpoint.ReasonShardsChanged+":west") // checksum and set

	same := config(t)
	same.Shards[1].DSN = same.Shards[0].DSN
	wantRefusal(t, txsink.Migrate(t.Context(), asMigrate(same), io.Discard), checkpoint.ReasonShardsChanged, "west", "same database")
}

// wantMixed wants the same refusals of Migrate and of Check.
func wantMixed(t *testing.T, cfg txsink.Config, want ...string) {
	t.Helper()
	s, err := txsink.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, err := range map[string]error{"migrate": txsink.Migrate(t.Context(), asMigrate(cfg), io.Discard), "check": s.Check(t.Context())} {
		got := refusals(err)
		for _, w := range want {
			if !strings.Contains(strings.Join(got, " "), w) {
				t.Errorf("%s: %v, want %s", name, err, want)
			}
		}
	}
}

func TestMigrateMakesNoEmptyShardInASetThatHasWorked(t *testing.T) {
	s, cfg := fresh(t)
	lost := cfg
	lost.Shards = []txsink.ShardConfig{cfg.Shards[0], {Name: "west", DSN: shared[1].NewDatabase(t)}}
	l := newLane(t, s, cfg, 0)
	l.book(small(l, "a", 0), 2)
	wantRefusal(t, txsink.Migrate(t.Context(), asMigrate(lost), io.Discard), checkpoint.ReasonShardsChanged, "west", "no tables", "1 lanes")
	if n := query[int](t, 1, lost, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = TRIM('`' FROM '%s')"); n != 0 {
		t.Errorf("%d tables were made", n)
	}
}

func TestMigrateRefusesTablesOfANewerBuild(t *testing.T) {
	s, cfg := fresh(t)
	exec(t, 0, cfg, "INSERT INTO %s.billing_schema VALUES (9999, '9999_future.sql', REPEAT('x', 32))")
	for name, err := range map[string]error{"migrate": txsink.Migrate(t.Context(), asMigrate(cfg), io.Discard), "check": s.Check(t.Context())} {
		t.Run(name, func(t *testing.T) {
			wantRefusal(t, err, checkpoint.ReasonMigrationsPending, "east", "9999_future.sql", "newer build")
		})
	}
	exec(t, 0, cfg, "DELETE FROM %s.billing_schema WHERE version = 9999")
	exec(t, 0, cfg, "UPDATE %s.billing_schema SET checksum = REPEAT('x', 32) WHERE version = 2")
	for name, err := range map[string]error{"migrate": txsink.Migrate(t.Context(), asMigrate(cfg), io.Discard), "check": s.Check(t.Context())} {
		t.Run(name, func(t *testing.T) {
			wantRefusal(t, err, checkpoint.ReasonMigrationsPending, "east", "0002_money.sql", "checksum")
		})
	}
}

func TestUnreachableServerIsNoRefusal(t *testing.T) {
	cfg := config(t)
	cfg.Shards[1].DSN = "billing:pass-never-shown@tcp(127.0.0.1:1)/billing"
	err := txsink.Migrate(t.Context(), asMigrate(cfg), io.Discard)
	if err == nil || len(refusals(err)) != 0 {
		t.Errorf("migrate: %v, want an error that is no refusal", err)
	}
	s, oerr := txsink.Open(cfg)
	if oerr != nil {
		t.Fatal(oerr)
	}
	defer s.Close()
	for name, err := range map[string]error{"migrate": err, "shard": s.Shards()[0].Commit(t.Context(), "x")} {
		if err == nil || strings.Contains(err.Error(), "pass-never-shown") {
			t.Errorf("%s: %v", name, err)
		}
	}
	cfg.Shards = cfg.Shards[1:]
	alone, oerr := txsink.Open(cfg)
	if oerr != nil {
		t.Fatal(oerr)
	}
	defer alone.Close()
	if err := alone.Check(t.Context()); err == nil || len(refusals(err)) != 0 || !strings.Contains(fmt.Sprint(err), "shard west") {
		t.Errorf("check: %v, want an error that is no refusal and names the shard", err)
	}
}
