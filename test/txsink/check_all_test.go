package txsink_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"billing/internal/checkpoint"
	"billing/internal/txsink"
	"billing/test/servers"
)

// unchecked opens a set without checking it.
func unchecked(t *testing.T, cfg txsink.Config) *txsink.Sink {
	t.Helper()
	s, err := txsink.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// problems are what Check says, a line each: reason or what kind of no, shard, and the text.
func problems(t *testing.T, err error) (all []string) {
	t.Helper()
	for _, p := range checkpoint.Problems(err) {
		var away *checkpoint.ServerError
		switch r := checkpoint.AsRefusal(p); {
		case r != nil:
			all = append(all, fmt.Sprintf("%s %s: %s | %s", r.Reason, r.What, r.Wrong, r.Next))
		case errors.As(p, &away):
			all = append(all, fmt.Sprintf("turned away %t %s: %s | %s", away.TurnedAway, away.What, away.Err, away.Next))
		default:
			t.Errorf("neither a refusal nor a server's: %v", p)
		}
	}
	return all
}

// mustSay holds problems against a list of words for each, in their order.
func mustSay(t *testing.T, err error, want ...[]string) {
	t.Helper()
	got := problems(t, err)
	if len(got) != len(want) {
		t.Fatalf("got %d problems, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i, words := range want {
		for _, word := range words {
			if !strings.Contains(got[i], word) {
				t.Errorf("problem %d does not say %q:\n%s", i, word, got[i])
			}
		}
	}
}

// TestCheckSaysEverythingOfEachShard: one that says nothing hides nothing of the others, and one problem not the next.
func TestCheckSaysEverythingOfEachShard(t *testing.T) {
	_, cfg := fresh(t)
	good := cfg.Shards[1].DSN
	exec(t, 0, cfg, "ALTER TABLE %s.billing_ledger DROP INDEX billing_ledger_dedup")
	exec(t, 0, cfg, "ALTER TABLE %s.billing_rejects ENGINE = MyISAM")
	exec(t, 0, cfg, "RENAME TABLE %s.billing_epoch_sum TO %s.elsewhere")
	exec(t, 0, cfg, "DELETE FROM %s.billing_schema WHERE version = 3")
	exec(t, 0, cfg, "INSERT INTO %s.billing_schema VALUES (9998, '9998_future.sql', REPEAT('x', 32)), (9999, '9999_future.sql', REPEAT('x', 32))")
	east := [][]string{
		{"shard-unfit east: table billing_rejects is MyISAM"},
		{"shard-unfit east: table billing_ledger has no unique key on (kafka_topic, kafka_partition, dedup_key)"},
		{"migrations-pending east: migration 9998_future.sql was done"},
		{"migrations-pending east: migration 9999_future.sql was done"},
		{"migrations-pending east: missing: billing_epoch_sum; not done yet: 0003_rejects.sql"},
	}
	dsn := func(change func(*mysql.Config)) string {
		t.Helper()
		c, err := mysql.ParseDSN(good)
		if err != nil {
			t.Fatal(err)
		}
		change(c)
		return c.FormatDSN()
	}
	for name, c := range map[string]struct {
		dsn  string
		says []string
	}{
		"wrong password": {dsn(func(c *mysql.Config) { c.Passwd = "hunter2" }), []string{"turned away true west: shard west: connect: Error 1045", "correct the user or the password in the DSN"}},
		"wrong user":     {dsn(func(c *mysql.Config) { c.User = "nobody" }), []string{"turned away true west: shard west: connect: Error 1045", "make the user: docs/grants.md"}},
		"no database":    {dsn(func(c *mysql.Config) { c.DBName = "nowhere" }), []string{"turned away true west: shard west: connect: Error 1044", "CREATE DATABASE"}},
		"no server":      {dsn(func(c *mysql.Config) { c.Addr = "127.0.0.1:1" }), []string{"turned away false west: shard west: connect: dial tcp 127.0.0.1:1", "start the server"}},
		"certificate":    {dsn(func(c *mysql.Config) { c.TLSConfig = "true" }), []string{"turned away false west: shard west: connect: ", "certificate", "tls in the DSN"}},
		"variable":       {dsn(func(c *mysql.Config) { c.Params = map[string]string{"no_such_variable": "1"} }), []string{"turned away true west: shard west: connect: Error 1193", "remove the parameter"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Shards[1].DSN = c.dsn
			err := unchecked(t, cfg).Check(t.Context())
			mustSay(t, err, append(slices.Clone(east), c.says)...)
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("shows the password: %v", err)
			}
		})
	}
	t.Run("silence", func(t *testing.T) {
		cfg.Shards[1].DSN = dsn(func(c *mysql.Config) { c.Addr = servers.Silent(t) })
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begun := time.Now()
		mustSay(t, unchecked(t, cfg).Check(ctx), append(slices.Clone(east), []string{"turned away false west: shard west: connect: ", "whether the server is up"})...)
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("took %s", took)
		}
	})
	t.Run("not known", func(t *testing.T) {
		cfg.Shards[1] = txsink.ShardConfig{Name: "west", Unknown: true}
		s := unchecked(t, cfg)
		mustSay(t, s.Check(t.Context()), east...)
		if facts := s.Facts(); len(facts) != 1 || facts[0].Shard != "east" {
			t.Errorf("facts: %+v", facts)
		}
	})
}

// TestCheckOfAPartialConfiguration: what is known is held against what is recorded, and nothing becomes usable.
func TestCheckOfAPartialConfiguration(t *testing.T) {
	whole, cfg := fresh(t)
	usable := func(s *txsink.Sink) {
		t.Helper()
		for _, sh := range s.Shards() {
			if _, _, err := sh.LaneRow(t.Context(), checkpoint.Lane{Topic: "t"}); !errors.Is(err, txsink.ErrNotChecked) {
				t.Errorf("shard %s can be used: %v", sh.Name(), err)
			}
			if _, err := sh.Prepared(t.Context(), "x"); !errors.Is(err, txsink.ErrNotChecked) {
				t.Errorf("shard %s can be used: %v", sh.Name(), err)
			}
		}
	}
	partial := cfg
	partial.Shards = []txsink.ShardConfig{{Name: "east", Unknown: true}, cfg.Shards[1]}
	s := unchecked(t, partial)
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("the second shard alone: %v", err)
	}
	if s.SetID() != whole.SetID() || s.SetID().IsZero() {
		t.Errorf("set %s, want %s", s.SetID(), whole.SetID())
	}
	usable(s)
	partial.Shards = []txsink.ShardConfig{cfg.Shards[1], {Name: "east", Unknown: true}}
	mustSay(t, unchecked(t, partial).Check(t.Context()), []string{"shards-changed west: it is shard 0 of 2", "recorded as shard 1 of 2"})

	nameless := cfg
	nameless.Job, nameless.JobUnknown = "", true
	s = unchecked(t, nameless)
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("without the job's name: %v", err)
	}
	usable(s)
	other := cfg
	other.Job = "other"
	s = unchecked(t, other)
	mustSay(t, s.Check(t.Context()), []string{"shards-changed east: its tables belong to job " + cfg.Job}, []string{"shards-changed west: its tables belong to job"})
	if !s.SetID().IsZero() {
		t.Error("the set of another job")
	}
}

// TestCheckFindsOneDatabaseTwice: by the server's id, whatever the DSN calls it.
func TestCheckFindsOneDatabaseTwice(t *testing.T) {
	cfg := config(t)
	c, err := mysql.ParseDSN(cfg.Shards[0].DSN)
	if err != nil {
		t.Fatal(err)
	}
	c.Addr = forward(t, c.Addr).Addr().String()
	cfg.Shards[1].DSN = c.FormatDSN()
	mustSay(t, unchecked(t, cfg).Check(t.Context()), []string{"migrations-pending east"}, []string{"migrations-pending west"},
		[]string{"shards-changed west: it is the same database as shard east", "a database of its own"})
}

// TestFacts: the server's clock and connections, as it has them.
func TestFacts(t *testing.T) {
	_, cfg := fresh(t)
	s := open(t, cfg)
	facts := s.Facts()
	if len(facts) != 2 || facts[0].Shard != "east" || facts[1].Shard != "west" {
		t.Fatalf("%+v", facts)
	}
	for i, f := range facts {
		server := query[string](t, i, cfg, "SELECT @@server_uuid")
		if f.Server != server || f.MaxConnections != 500 || f.Connections != 16+8 || f.ClockAhead.Abs() > 100*time.Millisecond {
			t.Errorf("%+v", f)
		}
	}
	// A clock that is wrong: the session's own.
	for _, wrong := range []time.Duration{-time.Hour, time.Hour} {
		c, err := mysql.ParseDSN(cfg.Shards[0].DSN)
		if err != nil {
			t.Fatal(err)
		}
		c.Params = map[string]string{"timestamp": fmt.Sprint(time.Now().Add(wrong).Unix())}
		cfg.Shards[0].DSN = c.FormatDSN()
		if f := open(t, cfg).Facts()[0]; (f.ClockAhead - wrong).Abs() > time.Minute {
			t.Errorf("a clock that is %s ahead: %s", wrong, f.ClockAhead)
		}
	}
}
