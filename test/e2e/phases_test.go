package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"billing/internal/failpoint"
	"billing/test/proxy"
	"billing/test/servers"
)

// A server dies while a lane is at one exact place. There is a world for each
// place, all are brought there, and one death meets all of them.

// placed is a world whose lane stands still at a place.
type placed struct {
	*world
	place string
	s     *process
	old   []string // charges before
	goOn  func()
}

// charged sends charges again and again until the lane has come to its place: which
// epoch that is does not matter.
func (p *placed) charged(there func() bool) {
	p.t.Helper()
	servers.Eventually(p.t, 2*time.Minute, func() error {
		if there() {
			return nil
		}
		p.charge(0, 20)
		return fmt.Errorf("%s: the lane has not come there", p.place)
	})
}

// settled: what the death has interrupted is done, once, and the lane goes on
// unaided.
func (p *placed) settled() {
	p.t.Helper()
	p.t.Log(p.place)
	p.again(0, p.old)
	p.charge(0, 10)
	p.waitAccounted()
	p.s.stop()
	p.exact()
}

// TestBrokerKilledInEveryPhase: the broker dies (-9) while a lane is in each phase of
// a session's start and of a checkpoint. The lane goes on while the broker is away, for
// longer than EndTxn is waited for, or when it is back.
func TestBrokerKilledInEveryPhase(t *testing.T) {
	t.Parallel()
	kafka := servers.Kafka(t)
	var all []*placed
	for _, point := range []failpoint.Point{
		failpoint.Fenced, failpoint.DecisionRead, failpoint.TakeoverDecided, failpoint.Settled,
		failpoint.SomePrepared, failpoint.AllPrepared, failpoint.ChunksWritten, failpoint.BeforeEndTxn, failpoint.EndTxnSent,
		failpoint.Decided, failpoint.SomeCommitted,
	} {
		p := &placed{world: newWorld(t, 2, onServers(kafka, shared.mysql[:]...)), place: string(point)}
		p.old = p.charge(0, 50)
		p.s = p.run("")
		all = append(all, p)
	}
	for _, away := range []bool{true, false} {
		for _, p := range all {
			p.waitAccounted()
			p.s.stop()
			p.s = p.run(p.place + ":1:hold")
		}
		for _, p := range all {
			p.charged(func() bool { return contains(p.s.output(), ": held") == nil })
		}
		if err := kafka.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		goOn := func() {
			for _, p := range all {
				p.s.signal(syscall.SIGUSR1)
			}
		}
		if away {
			goOn()
			for _, p := range all {
				// Where EndTxn was sent its answer may be here already.
				if p.place == string(failpoint.BeforeEndTxn) {
					servers.Eventually(t, 2*time.Minute, func() error { return contains(p.s.output(), "outcome of the decision unknown") })
				}
			}
		}
		if err := kafka.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !away {
			goOn()
		}
		for _, p := range all {
			p.again(0, p.old)
		}
	}
	for _, p := range all {
		p.settled()
	}
}

// xaState is where a branch on shard 0 is when its server dies.
type xaState struct {
	name  string
	match func(string) bool
	do    proxy.MySQLAction
	fails bool   // phase 1 fails on shard 1
	state string // as the server calls it; "" has no branch
}

// TestShardKilledInEveryXAState: mysqld dies (-9) when it has done a statement of a
// branch, or has not seen it yet, and nobody knows which.
func TestShardKilledInEveryXAState(t *testing.T) {
	t.Parallel()
	dies := servers.MySQL(t)
	var all []*placed
	for _, c := range []xaState{
		{"begun", proxy.Statement("XA START"), proxy.HoldAnswer{}, false, "ACTIVE"},
		{"written", proxy.Statement("XA END"), proxy.HoldRequest{}, false, "ACTIVE"},
		{"ended, not known", proxy.Statement("XA END"), proxy.HoldAnswer{}, false, "IDLE"},
		{"ended", proxy.Statement("XA PREPARE"), proxy.HoldRequest{}, false, "IDLE"},
		{"prepared, not known", proxy.Statement("XA PREPARE"), proxy.HoldAnswer{}, false, "PREPARED"},
		{"decided", proxy.Statement("XA COMMIT"), proxy.HoldRequest{}, false, "PREPARED"},
		{"committed, not known", proxy.Statement("XA COMMIT"), proxy.HoldAnswer{}, false, ""},
		{"to be rolled back", proxy.Statement("XA ROLLBACK"), proxy.HoldRequest{}, true, "PREPARED"},
		{"rolled back, not known", proxy.Statement("XA ROLLBACK"), proxy.HoldAnswer{}, true, ""},
	} {
		p := &placed{world: newWorld(t, 2, onServers(shared.kafka, dies, shared.mysql[1]), throughProxies()), place: c.name}
		p.s = p.run("")
		p.old = p.charge(0, 50)
		p.waitAccounted()
		if c.fails {
			p.shardProxy[1].Add(proxy.MySQLRule{Match: proxy.Statement("XA PREPARE"), Times: 1, Do: failing(1205, "HY000")})
		}
		held := p.shardProxy[0].Add(proxy.MySQLRule{Match: c.match, Times: 1, Do: c.do})
		p.charged(func() bool { return held.Hits() > 0 })
		if got := p.xaStates(); got != c.state {
			t.Errorf("%s: the branch is %q, want %q", c.name, got, c.state)
		}
		p.goOn = held.Remove
		all = append(all, p)
	}
	if err := dies.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		p.goOn()
	}
	if err := dies.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		p.settled()
	}
}

// xaStates are the states of the world's branches on shard 0.
func (w *world) xaStates() string {
	w.t.Helper()
	found := column(w.t, w.shards[0], `SELECT t.xa_state FROM performance_schema.events_transactions_current t
		JOIN performance_schema.threads USING (thread_id) WHERE t.state = 'ACTIVE' AND t.xa_state IN ('ACTIVE', 'IDLE') AND processlist_db = DATABASE()`)
	if w.prepared()[0] > 0 {
		found = append(found, "PREPARED")
	}
	return strings.Join(found, " ")
}
