package txsink

import (
	"maps"
	"strings"
	"testing"
	"time"

	"billing/internal/checkpoint"
)

func TestConnectionIsTheUsersAndTheSessionIsOurs(t *testing.T) {
	cfg := Config{Job: "j"}.withDefaults()
	c, err := connection("u:p%40/ss@tcp(db.example:3307)/money?tls=skip-verify&loc=Local&parseTime=true&multiStatements=true&clientFoundRows=true"+
		"&time_zone=%27%2B02%3A00%27&UNIQUE_CHECKS=0&@@session.autocommit=0&net_write_timeout=11&rejectReadOnly=true&readTimeout=7s&interpolateParams=false", &cfg)
	if err != nil {
		t.Fatal(err)
	}
	if c.User != "u" || c.Passwd != "p%40/ss" || c.Addr != "db.example:3307" || c.DBName != "money" || c.TLSConfig != "skip-verify" || c.ReadTimeout != 7*time.Second {
		t.Errorf("the user's own: %s@%s/%s, tls %s, read timeout %s", c.User, c.Addr, c.DBName, c.TLSConfig, c.ReadTimeout)
	}
	if c.Loc != time.UTC || c.ParseTime || c.MultiStatements || c.ClientFoundRows || c.RejectReadOnly || !c.InterpolateParams || c.Timeout != 5*time.Second || c.WriteTimeout != cfg.StatementTimeout {
		t.Errorf("the service's: %+v", c)
	}
	want := map[string]string{
		"time_zone": "'+00:00'", "transaction_isolation": "'READ-COMMITTED'", "autocommit": "1", "unique_checks": "1", "foreign_key_checks": "1",
		"innodb_lock_wait_timeout": "5", "lock_wait_timeout": "5", "wait_timeout": "30", "net_write_timeout": "11",
	}
	got := maps.Clone(c.Params)
	if !strings.Contains(got["sql_mode"], "STRICT_ALL_TABLES") {
		t.Errorf("sql_mode %s is not strict", got["sql_mode"])
	}
	delete(got, "sql_mode")
	if !maps.Equal(got, want) {
		t.Errorf("session %v, want %v", got, want)
	}
}

func TestDSNErrorsDoNotQuoteThePassword(t *testing.T) {
	for dsn, want := range map[string]string{
		"user:hunter2@tcp(db:3306)":                            "no slash",
		"user:hunter2@tcp(db:3306)/":                           "no database",
		"user:hunter2@tcp(db:3306/money":                       "can't read",
		"user:hunter2/%zz@tcp(db:3306)":                        "can't read",
		"user:hunter2@tcp(db)/money?a=%zz":                     "can't read",
		"user:hunter2@tcp(db)/money?a=b&parseTime=hunter2":     "its parameter parseTime can't be used: want true or false",
		"user:hunter2@tcp(db)/money?strict=true":               "its parameter strict can't be used: it is not taken any more: remove it",
		"user:hunter2@tcp(db)/money?tls=hunter2":               "its parameter tls can't be used: want true, skip-verify or preferred",
		"user:hunter2@tcp(db)/money?timeout=5&tls=true":        "its parameter timeout can't be used: want a time span such as 5s",
		"user:hunter2@tcp(db)/money?readTimeout=5s":            "readTimeout is 5s, want more than the lock wait's 5s",
		"user:hunter2@tcp(db)/money?sql_log_bin=0":             "sql_log_bin",
		"user:hunter2@tcp(db)/money?xa_detach_on_prepare=0":    "xa_detach_on_prepare",
		"user:hunter2@tcp(db)/money?@@global.time_zone=SYSTEM": "global",
	} {
		_, err := Open(Config{Job: "j", Shards: []ShardConfig{{Name: "east", DSN: dsn}}})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "shard east") {
			t.Errorf("%s: %v, want %q and the shard", dsn, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the password is in %q", err)
		}
	}
}

func TestConfigIsCheckedAtOnce(t *testing.T) {
	good := Config{Job: "j", Shards: []ShardConfig{{Name: "a", DSN: "u:p@tcp(db)/x"}, {Name: "b", DSN: "u:p@tcp(db)/y"}}}
	s, err := Open(good)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if shards := s.Shards(); len(shards) != 2 || shards[1].Name() != "b" || !s.SetID().IsZero() {
		t.Errorf("shards %v, set %s", shards, s.SetID())
	}
	if err := s.Shards()[0].EndOlder(t.Context(), checkpoint.Lane{}); err == nil || !strings.Contains(err.Error(), "before the start-up check") {
		t.Errorf("a shard that was not checked: %v", err)
	}
	_, err = Open(Config{
		Shards: []ShardConfig{{Name: "a", DSN: "u:p@tcp(db)/x"}, {Name: "a", DSN: "u:p@tcp(db)/y"}},
		Bursts: -1, LockWait: 1500 * time.Millisecond, IdleTimeout: time.Millisecond, StatementTimeout: time.Second,
	})
	for _, want := range []string{"no job", `"a" is empty or used twice`, "bursts: -1", "lock wait: 1.5s", "idle timeout: 1ms", "statement timeout: 1s"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

func TestFitServers(t *testing.T) {
	good := map[string]string{"read_only": "OFF", "super_read_only": "OFF", "xa_detach_on_prepare": "ON", "innodb_flush_log_at_trx_commit": "1",
		"log_bin": "ON", "sync_binlog": "1", "binlog_format": "ROW", "max_allowed_packet": "67108864"}
	for _, c := range []struct {
		version, comment string
		change           map[string]string
		product          string // part of the refusal, "" for none
		settings         int    // problems
	}{
		{"8.0.30", "MySQL Community Server - GPL", nil, "", 0},
		{"8.4.6-log", "Source distribution", nil, "", 0},
		{"9.7.4-2", "(Debian)", nil, "", 0},
		{"8.0.41-32", "Percona Server (GPL), Release 32", nil, "", 0},
		{"8.0.29", "MySQL Community Server - GPL", nil, "MySQL 8.0.29", 0},
		{"5.7.44-log", "MySQL Community Server (GPL)", nil, "MySQL 5.7.44", 0},
		{"10.11.6-MariaDB-0+deb12u1", "Debian 12", nil, "MariaDB", 0},
		{"8.0.11-TiDB-v7.5.0", "TiDB Server (Apache License 2.0)", nil, "TiDB", 0},
		{"8.0.30-Vitess", "Vitess", nil, "Vitess", 0},
		{"8.0.35-27.1", "Percona XtraDB Cluster (GPL), Release rel27", nil, "Galera", 0},
		{"8.0.35", "MySQL", map[string]string{"wsrep_on": "ON"}, "Galera", 0},
		{"8.0.30", "(ProxySQL)", nil, "ProxySQL", 0},
		{"weird", "", nil, "can't tell", 0},
		{"8.4.0", "MySQL", map[string]string{"sync_binlog": "0"}, "", 1},
		{"8.4.0", "MySQL", map[string]string{"sync_binlog": "0", "log_bin": "OFF"}, "", 0},
		{"8.4.0", "MySQL", map[string]string{"binlog_format": "STATEMENT"}, "", 1},
		{"8.4.0", "MySQL", map[string]string{"innodb_flush_log_at_trx_commit": "2", "xa_detach_on_prepare": "OFF", "max_allowed_packet": "1024"}, "", 3},
	} {
		v := server{version: c.version, comment: c.comment, vars: maps.Clone(good)}
		maps.Copy(v.vars, c.change)
		err := v.productProblem("east")
		if (err == nil) != (c.product == "") || err != nil && (!strings.Contains(err.Error(), c.product) || !strings.Contains(err.Error(), Supported)) {
			t.Errorf("%s (%s): %v, want %q", c.version, c.comment, err, c.product)
		}
		if got := v.settingsProblems("east"); len(got) != c.settings {
			t.Errorf("%s with %v: %v, want %d problems", c.version, c.change, got, c.settings)
		}
	}
	proxied := server{version: "8.4.0", comment: "MySQL", connection: 12, greeted: 34, vars: good}
	if err := proxied.productProblem("east"); err == nil || !strings.Contains(err.Error(), "a proxy in between") {
		t.Errorf("a proxy: %v", err)
	}
	v := server{vars: map[string]string{"super_read_only": "OFF", "read_only": "ON"}}
	if err := v.readOnlyProblem("east"); err == nil || !strings.Contains(err.Error(), checkpoint.ReasonShardReadOnly) {
		t.Errorf("read_only: %v", err)
	}
}
