package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/test/proxy"
	"billing/test/servers"
)

// chargeAccount sends n charges of one account.
func (w *world) chargeAccount(account string, n int) {
	w.t.Helper()
	records := make([]*kgo.Record, n)
	for i := range records {
		id := uuid.NewString()
		_, amount := chargeOf(id)
		records[i] = &kgo.Record{Value: message(id, account, amount), Headers: structured}
		w.expect(account, amount)
	}
	w.produce(records...)
}

// runAsOne starts an instance with a fail point as a static member: who starts it
// again does not wait for the dead one's session to end.
func (w *world) runAsOne(failpoint string) *process {
	w.t.Helper()
	return w.commandEnv([]string{"BILLING_KAFKA_INSTANCE_ID=one", "FAILPOINT=" + failpoint}, "run")
}

// TestKilledTwentyTimesBeforeTheDecision: the service dies behind phase 1, again and
// again. Each start rolls back what the one before has left, prepares the same epoch
// under a name of its own, and is never told that the name is taken.
func TestKilledTwentyTimesBeforeTheDecision(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	first := w.runAs("one")
	ids := w.charge(0, 100)
	w.waitAccounted()
	first.stop()
	before := w.lastDecision()

	w.charge(0, 100)
	w.again(0, ids)
	names := map[string]int{}
	const kills = 20
	began := time.Now()
	for kill := range kills {
		p := w.runAsOne("all-prepared:1")
		p.mustDieAtFailpoint()
		all(t, fmt.Sprint("epochs, kill ", kill), w.epochs(0), before.Seq)
		all(t, fmt.Sprint("prepared, kill ", kill), w.prepared(), 1)
		for i, m := range w.servers {
			for _, b := range m.XABranches(t) {
				if strings.HasPrefix(b.GTRID, before.GTRID[:40]) && b.BQUAL == fmt.Sprintf("s%d", i) {
					names[b.GTRID]++
				}
			}
		}
		if n := strings.Count(p.output(), saysEnded); n != 0 {
			t.Errorf("kill %d: %d sessions have ended before it:\n%s", kill, n, tail(p.output(), 30))
		}
	}
	t.Logf("%d kills in %s", kills, time.Since(began).Round(time.Second))
	if len(names) != kills {
		t.Errorf("%d names of branches in %d kills", len(names), kills)
	}
	for name, shards := range names {
		if shards != 2 {
			t.Errorf("%s was seen on a shard %d times, want once on each of 2", name, shards)
		}
	}

	last := w.runAs("one")
	w.waitAccounted()
	d := w.lastDecision()
	if d.Incarnation != before.Incarnation+kills+1 {
		t.Errorf("D was %+v and is %+v, want one session for each of %d starts", before, d, kills+1)
	}
	last.undisturbed()
	last.stop()
	w.exact()
}

// TestOrphanHoldsAHotRow: what a dead owner has prepared holds the row of the
// account that every message is for. It is gone before the next owner's first write
// comes to that row: nothing is ever waited for.
func TestOrphanHoldsAHotRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, throughProxies())
	s := w.run("")
	const account = "hot"
	w.chargeAccount(account, 50)
	w.waitAccounted()
	s.stop()
	n := w.epochs(0)[0]
	w.chargeAccount(account, 50)
	w.runAsOne("all-prepared:1").mustDieAtFailpoint()
	all(t, "prepared", w.prepared(), 1)
	locked := func() bool {
		t.Helper()
		tx, err := w.shards[0].BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }() // it has only read
		_, err = tx.ExecContext(t.Context(), "SELECT entry_count FROM billing_total WHERE account_id = ? FOR UPDATE NOWAIT", account)
		if err != nil && !strings.Contains(err.Error(), "3572") {
			t.Fatal(err)
		}
		return err != nil
	}
	if !locked() {
		t.Fatal("the dead owner's branch does not hold the account's row")
	}

	p := w.shardProxy[0]
	rollback := w.holds(0, "XA ROLLBACK")
	begun := p.Add(proxy.MySQLRule{Match: proxy.Statement("XA START"), Do: proxy.Watch{}})
	s = w.runAs("one")
	w.chargeAccount(account, 50)
	rollback.Await(t, 1)
	if !locked() || begun.Hits() != 0 {
		t.Errorf("the account's row is held: %t, and %d branches were begun", locked(), begun.Hits())
	}
	rollback.Remove()
	w.waitAccounted()
	s.undisturbed()
	if strings.Contains(s.output(), "1205") {
		t.Errorf("a write has waited for the row:\n%s", tail(s.output(), 30))
	}
	if got := w.epochs(0)[0]; got <= n {
		t.Errorf("the lane is at epoch %d, and was at %d", got, n)
	}
	s.stop()
	w.exact()
}

// TestKilledWhileStopping: SIGTERM under load, and the process is killed in the
// middle of what it does then with the epoch in flight.
func TestKilledWhileStopping(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		left []int                        // prepared branches, by shard
		hold func(w *world) *proxy.Handle // at what it is killed
	}{
		{"preparing", []int{1, 0}, func(w *world) *proxy.Handle { return w.holds(1, "XA PREPARE") }},
		{"dropping the epoch", []int{1, 0}, func(w *world) *proxy.Handle {
			w.shardProxy[1].Add(proxy.MySQLRule{Match: proxy.Statement("XA PREPARE"), Times: 1, Do: failing(1205, "HY000")})
			return w.shardProxy[0].Add(proxy.MySQLRule{Match: proxy.Statement("XA ROLLBACK"), Times: 1, Do: proxy.DropRequest{Hang: true}})
		}},
		{"deciding", []int{1, 1}, func(w *world) *proxy.Handle {
			return w.fault(proxy.EndTxn(true, w.job), 1, proxy.HoldRequest{}).Handle
		}},
		{"decided", []int{1, 1}, func(w *world) *proxy.Handle {
			return w.fault(proxy.EndTxn(true, w.job), 1, proxy.HoldAnswer{}).Handle
		}},
		{"committing", []int{0, 1}, func(w *world) *proxy.Handle { return w.holds(1, "XA COMMIT") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, throughProxies())
			load := w.load()
			s := w.runAsOne("frozen:2:hold")
			s.mustHoldAtFailpoint()
			held := c.hold(w)
			s.signal(syscall.SIGTERM)
			s.mustSay(`msg="stopping: finishing what is in flight"`)
			s.signal(syscall.SIGUSR1)
			held.Await(t, 1)
			servers.Eventually(t, time.Minute, func() error {
				if got := w.prepared(); !slices.Equal(got, c.left) {
					return fmt.Errorf("prepared: %v, want %v", got, c.left)
				}
				return nil
			})
			s.kill()

			s = w.runAs("one")
			s.mustSay(saysSettled)
			held.Remove() // what the dead one had sent comes now
			load.end()
			s.stop()
			w.exact()
		})
	}
}

// holds holds a statement's next request to a shard.
func (w *world) holds(shard int, statement string) *proxy.Handle {
	return w.shardProxy[shard].Add(proxy.MySQLRule{Match: proxy.Statement(statement), Times: 1, Do: proxy.HoldRequest{}})
}
