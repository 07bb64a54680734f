package txsink_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"billing/internal/checkpoint"
	"billing/internal/txsink"
	"billing/test/servers"
)

// alone is a job with one shard, on a server that the test may spoil.
func alone(t *testing.T, args ...string) (*servers.MySQLServer, txsink.Config) {
	t.Helper()
	m := servers.MySQL(t, servers.WithArgs(args...))
	cfg := config(t)
	cfg.Shards = []txsink.ShardConfig{{Name: "only", DSN: m.NewDatabase(t)}}
	return m, cfg
}

func TestCheckRefusesSettingsThatLoseMoney(t *testing.T) {
	m, cfg := alone(t)
	migrate(t, cfg)
	s := open(t, cfg)
	for _, c := range []struct {
		variable, bad, good string
		reason              string
		words               []string
	}{
		{"sync_binlog", "0", "1", checkpoint.ReasonShardUnfit, []string{"sync_binlog is 0", "SET PERSIST sync_binlog = 1"}},
		{"innodb_flush_log_at_trx_commit", "2", "1", checkpoint.ReasonShardUnfit, []string{"SET PERSIST innodb_flush_log_at_trx_commit = 1"}},
		{"xa_detach_on_prepare", "OFF", "ON", checkpoint.ReasonShardUnfit, []string{"SET PERSIST xa_detach_on_prepare = ON"}},
		{"max_allowed_packet", "1024", "67108864", checkpoint.ReasonShardUnfit, []string{"max_allowed_packet is 1024"}},
		{"read_only", "ON", "OFF", checkpoint.ReasonShardReadOnly, []string{"read_only is ON", "primary"}},
	} {
		set := func(value string) {
			t.Helper()
			if _, err := m.Root().ExecContext(t.Context(), "SET GLOBAL "+c.variable+" = "+value); err != nil {
				t.Fatal(err)
			}
		}
		set(c.bad)
		err := s.Check(t.Context())
		wantRefusal(t, err, c.reason, "only", c.words...)
		if n := len(checkpoint.Problems(err)); n != 1 {
			t.Errorf("%s = %s: %d problems of one cause: %v", c.variable, c.bad, n, err)
		}
		set(c.good)
		if err := s.Check(t.Context()); err != nil {
			t.Errorf("%s = %s: %v", c.variable, c.good, err)
		}
	}

	// All problems at once, and what happens while the service runs.
	for _, statement := range []string{"SET GLOBAL sync_binlog = 0", "SET GLOBAL super_read_only = ON"} {
		if _, err := m.Root().ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	err := s.Check(t.Context())
	if got := strings.Join(refusals(err), " "); got != "shard-unfit:only shard-read-only:only" {
		t.Errorf("refusals: %s", got)
	}
	sh := s.Shards()[0]
	if err := sh.Commit(t.Context(), "x"); err == nil || len(refusals(err)) != 0 || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("commit on a server that has become read-only: %v", err)
	}
	for _, statement := range []string{"SET GLOBAL sync_binlog = 1", "SET GLOBAL super_read_only = OFF", "SET GLOBAL read_only = OFF"} {
		if _, err := m.Root().ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := sh.LaneRow(t.Context(), checkpoint.Lane{Topic: "t"}); err != nil {
		t.Errorf("writable again: %v", err)
	}
}

func TestCheckRefusesAServerWithoutBinlogOnlyForItsSettings(t *testing.T) {
	m, cfg := alone(t, "--skip-log-bin", "--sync-binlog=0")
	migrate(t, cfg)
	s := open(t, cfg) // no binary log: nothing to sync
	l := &lane{t: t, sink: s, job: cfg.Job, id: checkpoint.Lane{Topic: "t"}, incarnation: 1, window: 3600e9, ledger: true}
	e := l.epoch()
	e.Apply(charge("a", "acme", "1"), 0)
	l.book(e, 1)
	if _, err := m.Root().ExecContext(t.Context(), "SET GLOBAL innodb_flush_log_at_trx_commit = 0"); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, s.Check(t.Context()), checkpoint.ReasonShardUnfit, "only", "innodb_flush_log_at_trx_commit is 0")
}

func TestCheckRefusesTablesThatAreNotWhatTheyWere(t *testing.T) {
	s, cfg := fresh(t)
	exec(t, 0, cfg, "ALTER TABLE %s.billing_rejects ENGINE = MyISAM")
	wantRefusal(t, s.Check(t.Context()), checkpoint.ReasonShardUnfit, "east", "billing_rejects is MyISAM", "ENGINE = InnoDB")
	exec(t, 0, cfg, "ALTER TABLE %s.billing_rejects ENGINE = InnoDB")
	exec(t, 0, cfg, "RENAME TABLE %s.billing_epoch_sum TO %s.elsewhere")
	wantRefusal(t, s.Check(t.Context()), checkpoint.ReasonMigrationsPending, "east", "billing_epoch_sum")
	exec(t, 0, cfg, "RENAME TABLE %s.elsewhere TO %s.billing_epoch_sum")
	exec(t, 0, cfg, "ALTER TABLE %s.billing_ledger DROP INDEX billing_ledger_dedup")
	wantRefusal(t, s.Check(t.Context()), checkpoint.ReasonShardUnfit, "east", "billing_ledger", "kafka_topic, kafka_partition, dedup_key")
	exec(t, 0, cfg, "ALTER TABLE %s.billing_ledger ADD UNIQUE KEY billing_ledger_dedup (kafka_topic, kafka_partition, dedup_key)")
	exec(t, 0, cfg, "UPDATE %s.billing_meta SET shard_count = 3")
	wantRefusal(t, s.Check(t.Context()), checkpoint.ReasonShardsChanged, "east", "checksum")
	exec(t, 0, cfg, "DELETE FROM %s.billing_meta")
	wantRefusal(t, s.Check(t.Context()), checkpoint.ReasonMigrationsPending, "east", "billing_meta")
}

// address forwards connections to a server that can be exchanged, as a DNS name or a virtual IP does.
type address struct {
	net.Listener
	target atomic.Pointer[string]
	open   sync.Map                     // connections to cut at an exchange
	greet  atomic.Pointer[func([]byte)] // changes a server's first packet; nil leaves it
}

func (a *address) point(to string) {
	a.target.Store(&to)
	a.open.Range(func(c, _ any) bool {
		_ = c.(net.Conn).Close()
		return true
	})
}

func forward(t *testing.T, to string) *address {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &address{Listener: listener}
	a.point(to)
	var copies sync.WaitGroup
	copies.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", *a.target.Load())
			if err != nil {
				_ = in.Close()
				continue
			}
			a.open.Store(in, true)
			a.open.Store(out, true)
			for from, to := range map[net.Conn]net.Conn{in: out, out: in} {
				copies.Go(func() {
					if change := a.greet.Load(); change != nil && from == out {
						var packet [4096]byte
						n, _ := from.Read(packet[:])
						(*change)(packet[:n])
						_, _ = to.Write(packet[:n])
					}
					_, _ = io.Copy(to, from)
					_, _ = in.Close(), out.Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		a.point("")
		copies.Wait()
	})
	return a
}

// A proxy that answers for the server gives connections numbers of its own; what only forwards bytes does not.
func TestAProxyThatAnswersForTheServerIsRefused(t *testing.T) {
	_, cfg := fresh(t)
	dsn, err := mysql.ParseDSN(cfg.Shards[1].DSN)
	if err != nil {
		t.Fatal(err)
	}
	a := forward(t, dsn.Addr)
	dsn.Addr = a.Addr().String()
	cfg.Shards[1].DSN = dsn.FormatDSN()
	if err := checkOnce(t, cfg); err != nil {
		t.Errorf("forwarded: %v", err)
	}
	change := func(packet []byte) {
		if end := bytes.IndexByte(packet[5:], 0); end >= 0 {
			packet[5+end+1] ^= 1 // of the connection's number
		}
	}
	a.greet.Store(&change)
	wantRefusal(t, checkOnce(t, cfg), checkpoint.ReasonShardUnfit, "west", "a proxy in between", "only forwards bytes")
}

func TestAnotherServerBehindTheAddressIsRefusedAtOnce(t *testing.T) {
	cfg := config(t)
	dsn, err := mysql.ParseDSN(cfg.Shards[0].DSN)
	if err != nil {
		t.Fatal(err)
	}
	// The other server lets the same user in, and has the same database, as a replica would.
	exec(t, 1, cfg, fmt.Sprintf("CREATE DATABASE `%s`", dsn.DBName))
	exec(t, 1, cfg, fmt.Sprintf("CREATE USER '%s'@'%%' IDENTIFIED BY '%s'", dsn.User, dsn.Passwd))
	exec(t, 1, cfg, fmt.Sprintf("GRANT ALL ON *.* TO '%s'@'%%'", dsn.User))
	t.Cleanup(func() {
		for _, statement := range []string{"DROP DATABASE `" + dsn.DBName + "`", "DROP USER '" + dsn.User + "'@'%'"} {
			if _, err := shared[1].Root().ExecContext(context.Background(), statement); err != nil {
				t.Error(err)
			}
		}
	})
	a := forward(t, shared[0].Addr())
	dsn.Addr = a.Addr().String()
	cfg.Shards = []txsink.ShardConfig{{Name: "moving", DSN: dsn.FormatDSN()}}
	var told []string
	cfg.Refused = func(shard, why string) { told = append(told, shard+" "+why) }
	migrate(t, cfg)
	s := open(t, cfg)
	l := newLane(t, s, cfg, 0)
	e := l.epoch()
	e.Apply(charge("a", "acme", "1"), 0)
	if err := s.Shards()[0].Prepare(t.Context(), l.branch(e, 0, 1)); err != nil {
		t.Fatal(err)
	}
	a.point(shared[1].Addr())
	err = s.Shards()[0].Commit(t.Context(), l.gtrid(1, 1))
	wantRefusal(t, err, checkpoint.ReasonServerChanged, "moving")
	if !slices.Contains(told, "moving "+txsink.RefusedServerChanged) {
		t.Errorf("told: %q", told)
	}
	a.point(shared[0].Addr())
	l.commit(1)
}
