package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"billing/test/proxy"
	"billing/test/servers"
)

// TestSlowShard: a shard has a twentieth of the speed that the load needs. All
// gets slower, and nothing fails.
func TestSlowShard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, throughProxies(), withCheckpoint("max_records: 500"))
	s := w.run("")
	w.charge(0, 200)
	w.waitAccounted()

	const many = 3000
	load := func(what string) {
		t.Helper()
		start := time.Now()
		ids := w.charge(0, many)
		w.again(0, ids[:many/10])
		w.waitAccounted()
		t.Logf("%s: %s", what, time.Since(start).Round(10*time.Millisecond))
	}
	before := w.shardProxy[0].Stats().ToServer
	load("at full speed")
	bytes := w.shardProxy[0].Stats().ToServer - before

	was := w.latest()
	w.shardProxy[0].Throttle(int(bytes / 20))
	load("throttled")
	if n := w.latest().Seq - was.Seq; n < 3 {
		t.Errorf("throttled, it took %d epochs", n)
	}
	w.shardProxy[0].Throttle(0)
	load("at full speed again")
	w.follows(was, sameSession)
	nothingFailed(s)
	s.stop()
	w.exact()
}

// TestShardTooSlowForAnEpoch: one statement of the epoch takes longer than a
// statement may. The epochs become small enough, instead of failing for ever.
func TestShardTooSlowForAnEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, throughProxies(), withAnswerWithin(answerWithin))
	s := w.run("")
	w.charge(0, 100)
	w.waitAccounted()

	epochs := w.epochs(0)[0]
	w.shardProxy[0].Throttle(12_000) // bytes a second; a row of the ledger has about 400
	start := time.Now()
	w.charge(0, 2000)
	servers.Eventually(t, 2*time.Minute, func() error {
		if n := w.epochs(0)[0] - epochs; n < 2 {
			return fmt.Errorf("%d epochs are in", n)
		}
		return nil
	})
	since(t, start, "until two epochs were in", 90*time.Second)
	if err := contains(s.output(), "an epoch took too long"); err != nil {
		t.Error(err)
	}
	w.shardProxy[0].Throttle(0)
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestIdleConnectionDropped: the connections die while nothing is on them. No
// epoch notices: not lost, not doubled, no session ends.
func TestIdleConnectionDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, throughProxies(), withPartitions(6))
	s := w.run("")
	all := func(n int) {
		t.Helper()
		for p := range w.partitions {
			ids := w.charge(p, n)
			w.again(p, ids[:n/2])
		}
		w.waitAccounted()
	}
	all(100)
	was := make([]decision, w.partitions)
	for p := range w.partitions {
		was[p] = w.decided(p)
	}

	for range 3 {
		for i, m := range w.servers {
			if n := killConnections(t, m, w.job); n == 0 {
				t.Errorf("shard %d had no connection of the service", i)
			}
		}
		all(20)
	}

	// Longer than the server keeps a silent one: by then the pool has given up all
	// but those that the sweep uses.
	const most = 2
	servers.Eventually(t, 2*time.Minute, func() error {
		for i, p := range w.shardProxy {
			if open := p.Stats().Open; open > most {
				return fmt.Errorf("shard %d has %d connections", i, open)
			}
		}
		return nil
	})
	all(20)
	for p := range w.partitions {
		if d := w.decided(p); d.Incarnation != was[p].Incarnation {
			t.Errorf("partition %d: incarnation %d, then %d", p, was[p].Incarnation, d.Incarnation)
		}
	}
	s.stop()
	w.exact()
}

// TestConnectionsTimedOut: the service was frozen, idle, for longer than wait_timeout,
// and every server has closed every connection. The next epoch is not lost and not
// doubled.
func TestConnectionsTimedOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	s := w.run("")
	ids := w.charge(0, 100)
	w.waitAccounted()
	s.signal(syscall.SIGSTOP)
	servers.Eventually(t, 2*time.Minute, func() error {
		for i, m := range w.servers {
			if left := column(t, m.Root(), "SELECT processlist_id FROM performance_schema.session_connect_attrs WHERE attr_name = 'job' AND attr_value = ?", w.job); len(left) > 0 {
				return fmt.Errorf("shard %d still has the connections %v", i, left)
			}
		}
		return nil
	})
	s.signal(syscall.SIGCONT)
	w.again(0, ids)
	w.charge(0, 50)
	w.waitAccounted() // unaided: no restart of the service
	s.stop()
	w.exact()
}

// killConnections ends all connections that a job's service has.
func killConnections(t *testing.T, m *servers.MySQLServer, job string) (n int) {
	t.Helper()
	rows, err := m.Root().Query("SELECT processlist_id FROM performance_schema.session_connect_attrs WHERE attr_name = 'job' AND attr_value = ?", job)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if _, err := m.Root().Exec("KILL " + strconv.FormatInt(id, 10)); err == nil {
			n++
		} else if !strings.Contains(err.Error(), "Unknown thread") {
			t.Fatal(err)
		}
	}
	return n
}

// TestHalfOpenShard: the network forgets the connections that there are. New
// ones work, and nobody is told.
func TestHalfOpenShard(t *testing.T) {
	t.Parallel()
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 2, throughProxies(), withPartitions(16))
		s := w.run("")
		all := func() {
			t.Helper()
			for p := range w.partitions {
				w.charge(p, 50)
			}
			w.waitAccounted()
		}
		all()
		was := make([]decision, w.partitions)
		for p := range w.partitions {
			was[p] = w.decided(p)
		}
		all()
		for i, p := range w.shardProxy {
			t.Logf("shard %d: %d connections", i, p.Stats().Open)
			p.BlackHole()
		}
		start := time.Now()
		all()
		// The bound of the first look, not that of a statement for each connection.
		since(t, start, "all lanes stood still", 20*time.Second)
		for p := range w.partitions {
			if d := w.decided(p); d.Incarnation != was[p].Incarnation {
				t.Errorf("partition %d: incarnation %d, then %d", p, was[p].Incarnation, d.Incarnation)
			}
		}
		if n := s.refused(0, "unreachable"); n < 1 {
			t.Errorf("the metric counts %v connections without an answer", n)
		}
		s.stop()
		w.exact()
	})

	// The server's end of a burst's connection lives on, with the branch and the
	// locks of its rows. The next session ends it, where it comes before the
	// server does (30 s).
	t.Run("in a branch", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 2, throughProxies(), withAnswerWithin(answerWithin))
		s := w.run("")
		ids := w.charge(0, 100)
		w.waitAccounted()
		was := w.latest()
		inBranch := w.shardProxy[0].Add(proxy.MySQLRule{Match: proxy.Statement("XA END"), Times: 1, Do: proxy.HoldRequest{}})
		kills := w.shardProxy[0].Add(proxy.MySQLRule{Match: proxy.Statement("KILL"), Do: proxy.Watch{}})
		start := time.Now()
		w.again(0, ids)
		w.charge(0, 500)
		inBranch.Await(t, 1)
		for _, p := range w.shardProxy {
			p.BlackHole()
		}
		w.charge(0, 100)
		w.waitAccounted()
		since(t, start, "the lane stood still", standstill)
		if kills.Hits() == 0 {
			t.Error("nobody has ended the connection that had the branch")
		}
		w.follows(was, newSession)
		s.stop()
		w.exact()
	})
}
