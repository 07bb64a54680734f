package txsink_test

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"billing/internal/checkpoint"
	"billing/internal/txsink"
)

const otherServer = "00000000-1111-2222-3333-444444444444"

// failOver leaves a shard as after a failover: the tables are there, on a server with another uuid.
func failOver(t *testing.T, shard int, cfg txsink.Config) {
	t.Helper()
	exec(t, shard, cfg, "UPDATE %s.billing_meta SET server_uuid = '"+otherServer+"', checksum = "+
		"UNHEX(SHA2(CONCAT("+framed("'1'", "job", "set_id", "CAST(shard_number AS CHAR)", "CAST(shard_count AS CHAR)", "server_uuid")+"), 256))")
}

// recorded is the server that a shard's tables name.
func recorded(t *testing.T, shard int, cfg txsink.Config) string {
	t.Helper()
	return query[string](t, shard, cfg, "SELECT server_uuid FROM %s.billing_meta")
}

// accepting is the operator's list for --accept.
func accepting(list ...string) func(reason, what string) bool {
	return func(reason, what string) bool { return slices.Contains(list, reason+":"+what) }
}

// checkOnce is Check of a sink of its own.
func checkOnce(t *testing.T, cfg txsink.Config) error {
	t.Helper()
	s, err := txsink.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return s.Check(t.Context())
}

func TestAnotherServerIsAcceptedByNameOnly(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	l.book(small(l, "a", 0), 2)
	failOver(t, 1, cfg)
	err := s.Check(t.Context())
	wantRefusal(t, err, checkpoint.ReasonServerChanged, "west", otherServer, "--accept server-changed:west")

	var asked []string
	cfg.Accept = func(reason, what string) bool {
		asked = append(asked, reason+":"+what)
		return reason == "server-changed" && what == "west"
	}
	accepting, oerr := txsink.Open(cfg)
	if oerr != nil {
		t.Fatal(oerr)
	}
	defer accepting.Close()
	if err := accepting.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(asked) != "[server-changed:west]" {
		t.Errorf("asked for %v", asked)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("the accepted server is not the recorded one: %v", err)
	}
	l.book(small(l, "b", 2), 2)
}

func TestNoServerIsRecordedWhileAShardRefuses(t *testing.T) {
	_, cfg := fresh(t)
	failOver(t, 0, cfg)
	failOver(t, 1, cfg)
	cfg.Accept = accepting("server-changed:east")
	for name, err := range map[string]error{"check": checkOnce(t, cfg), "migrate": txsink.Migrate(t.Context(), asMigrate(cfg), io.Discard)} {
		t.Run(name, func(t *testing.T) { wantRefusal(t, err, checkpoint.ReasonServerChanged, "west") })
	}
	for i := range shared {
		if got := recorded(t, i, cfg); got != otherServer {
			t.Errorf("shard %d: server %s was recorded though a shard refuses", i, got)
		}
	}
	// Nor where a shard does not answer.
	away := cfg
	away.Shards = []txsink.ShardConfig{cfg.Shards[0], {Name: "west", DSN: "billing:x@tcp(127.0.0.1:1)/billing"}}
	if err := checkOnce(t, away); err == nil || len(refusals(err)) != 0 {
		t.Errorf("a shard that does not answer: %v", err)
	}
	if got := recorded(t, 0, cfg); got != otherServer {
		t.Errorf("server %s was recorded though a shard does not answer", got)
	}
	cfg.Accept = accepting("server-changed:east", "server-changed:west")
	if err := checkOnce(t, cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Accept = nil
	if err := checkOnce(t, cfg); err != nil {
		t.Errorf("the accepted servers are not the recorded ones: %v", err)
	}
}

// An update of the service and a failover come together: migrate accepts the server, then run finds all in order.
func TestMigrateAcceptsAnotherServer(t *testing.T) {
	s, cfg := fresh(t)
	failOver(t, 1, cfg)
	exec(t, 1, cfg, "DELETE FROM %s.billing_schema WHERE version = 3")
	// Everything that stands in the way is said at once, and with what is accepted the rest.
	if got := strings.Join(refusals(s.Check(t.Context())), " "); got != "migrations-pending:west server-changed:west" {
		t.Errorf("check refuses %s", got)
	}
	accept := cfg
	accept.Accept = accepting("server-changed:west")
	wantRefusal(t, checkOnce(t, accept), checkpoint.ReasonMigrationsPending, "west", "billing migrate")
	wantRefusal(t, txsink.Migrate(t.Context(), asMigrate(cfg), io.Discard), checkpoint.ReasonServerChanged, "west", "--accept server-changed:west")

	// What migrate itself refuses comes before it records anything.
	l := newLane(t, s, cfg, 0)
	if err := s.Shards()[0].Prepare(t.Context(), l.branch(small(l, "a", 0), 0, 2)); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, txsink.Migrate(t.Context(), asMigrate(accept), io.Discard), txsink.ReasonBranchesPrepared, "east")
	if err := s.Shards()[0].Rollback(t.Context(), l.gtrid(1, 1)); err != nil {
		t.Fatal(err)
	}
	exec(t, 0, cfg, "INSERT INTO %s.billing_schema VALUES (9999, '9999_future.sql', REPEAT('x', 32))")
	wantRefusal(t, txsink.Migrate(t.Context(), asMigrate(accept), io.Discard), checkpoint.ReasonMigrationsPending, "east", "newer build")
	exec(t, 0, cfg, "DELETE FROM %s.billing_schema WHERE version = 9999")
	if got := recorded(t, 1, cfg); got != otherServer {
		t.Errorf("server %s was recorded by a migrate that refused", got)
	}

	migrate(t, accept)
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("after the migration, without --accept: %v", err)
	}
	l.incarnation++
	l.book(small(l, "b", 0), 2)
}

// framed is the SQL for columns in the digest's encoding.
func framed(columns ...string) string {
	for i, c := range columns {
		columns[i] = "CONCAT(UNHEX(LPAD(HEX(LENGTH(" + c + ")), 8, '0')), " + c + ")"
	}
	return strings.Join(columns, ", ")
}
