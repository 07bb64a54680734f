package txsink_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"billing/internal/txsink"
	"billing/test/proxy"
)

// proxied is a set of one shard behind a proxy.
func proxied(t *testing.T, change func(*txsink.Config)) (*txsink.Sink, txsink.Config, *proxy.MySQL) {
	t.Helper()
	cfg := config(t)
	p := proxy.MySQLFor(t, shared[0].Addr())
	dsn, err := mysql.ParseDSN(cfg.Shards[0].DSN)
	if err != nil {
		t.Fatal(err)
	}
	dsn.Addr = p.Addr()
	dsn.ReadTimeout = 3 * time.Second
	cfg.Shards = []txsink.ShardConfig{{Name: "east", DSN: dsn.FormatDSN()}}
	change(&cfg)
	migrate(t, cfg)
	return open(t, cfg), cfg, p
}

// TestStatementWithoutAnswerTookTooLong: the lane makes its epochs smaller only
// when it hears that the time was up, and not that a connection is gone.
func TestStatementWithoutAnswerTookTooLong(t *testing.T) {
	s, cfg, p := proxied(t, func(*txsink.Config) {})
	l := newLane(t, s, cfg, 0)
	shard := s.Shards()[0]
	for _, statement := range []string{"INSERT INTO billing_ledger", "XA PREPARE"} {
		for _, c := range []struct {
			do      proxy.MySQLAction
			tooLong bool
		}{{proxy.HoldRequest{}, true}, {proxy.DropRequest{}, false}} {
			h := p.Add(proxy.MySQLRule{Match: proxy.Statement(statement), Times: 1, Do: c.do})
			e := l.epoch()
			e.Apply(charge(statement, "acme", "1"), 0)
			err := shard.Prepare(t.Context(), l.branch(e, 0, 1))
			if err == nil || errors.Is(err, context.DeadlineExceeded) != c.tooLong {
				t.Errorf("%s, %T: %v, too long: want %t", statement, c.do, err, c.tooLong)
			}
			h.Await(t, 1)
			if err := shard.EndOlder(t.Context(), l.id); err != nil {
				t.Fatal(err)
			}
			h.Remove()
			l.incarnation++
		}
	}
	e := l.epoch()
	e.Apply(charge("x", "acme", "1"), 0)
	l.book(e, 1)
}

// TestRefusedConnectionsAreTold: and why they were refused.
func TestRefusedConnectionsAreTold(t *testing.T) {
	var mu sync.Mutex
	told := map[string]int{}
	s, cfg, p := proxied(t, func(c *txsink.Config) {
		c.Refused = func(shard, why string) {
			mu.Lock()
			defer mu.Unlock()
			told[shard+" "+why]++
		}
	})
	l := newLane(t, s, cfg, 0)
	read := func() error {
		_, _, err := s.Shards()[0].LaneRow(t.Context(), l.id)
		return err
	}
	var away *proxy.Handle
	for why, c := range map[string]struct{ hurt, repair func() }{
		txsink.RefusedUnreachable: {func() { p.Refuse(true) }, func() { p.Refuse(false) }},
		txsink.RefusedTurnedAway: {func() {
			away = p.Add(proxy.MySQLRule{Match: proxy.Statement("SELECT @@server_uuid"), Do: proxy.Fail{Number: 1040, State: "08004", Message: "Too many connections"}})
		}, func() { away.Remove() }},
		txsink.RefusedReadOnly: {func() { exec(t, 0, cfg, "SET GLOBAL read_only = ON") }, func() { exec(t, 0, cfg, "SET GLOBAL read_only = OFF") }},
	} {
		if err := read(); err != nil {
			t.Fatal(err)
		}
		clear(told)
		c.hurt()
		err := read()
		c.repair()
		if err == nil {
			t.Errorf("%s: the row was read", why)
		}
		if told["east "+why] == 0 || len(told) != 1 {
			t.Errorf("%s: told: %v", why, told)
		}
		clear(told)
		if err := read(); err != nil || len(told) != 0 {
			t.Errorf("%s, repaired: %v, told %v", why, err, told)
		}
	}
}
