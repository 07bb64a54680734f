package e2e

import (
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"billing/test/servers"
)

// TestRepairOneShard: nobody else shows what the only shard has lost, and there is
// no ledger. The last branch was rolled back by hand; then Kafka has lost messages of
// one lane, and the memory of the other.
func TestRepairOneShard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, withPartitions(2))
	w.edit("message:", "ledger:\n  enabled: false\nmessage:")
	n := w.died("decided:1")
	d := w.decided(0)
	decidedEventually(t, w, n+1)
	w.rollBack(0, w.decided(0).GTRID)
	w.waitNoMembers(time.Minute)
	w.ask("repair").must(t, 1, fmt.Sprintf("epoch %d", n+1), "40")
	w.ask("repair", "--apply").must(t, 0, "booked again")
	w.mustVerify(t, 0)
	w.sameTotals()
	if e := w.epochs(0)[0]; e != n+1 {
		t.Errorf("epoch %d, decided is %d (%+v)", e, n+1, d)
	}

	s := w.run("")
	old := w.backUp(0)
	from, _ := w.offset(0)
	for range 2 {
		w.charge(0, 30)
		w.charge(1, 30)
		w.waitAccounted()
	}
	s.stop()
	before := w.rows()
	for range 2 {
		w.restore(old)
		w.ask("repair", "--apply").must(t, 0, "booked again: 2 lanes")
		w.mustBeAgain(t, before)
	}

	w.restore(old)
	w.trim(w.topic, 0, from+10)
	w.ask("repair").must(t, 3, w.topic+"/0", "(messages-deleted)", fmt.Sprintf("the partition begins at %d: 10 of them were deleted", from+10), "end this job with a new one", "1 lane can be repaired")
	w.ask("repair", "--apply").must(t, 3, "(messages-deleted)", "booked again: 1 lane")
	if e, last := w.epochsOn(0, 1), w.decided(1).Seq; e != last {
		t.Errorf("lane 1 is at epoch %d of %d", e, last)
	}
	w.restore(old)
	b := w.chunk(1)
	b[len(b)-1] ^= 1
	w.write(&kgo.Record{Topic: w.job + ".state", Partition: 1, Value: b})
	w.mustNotChange(t, 3, []string{"repair", "--apply"}, "(messages-deleted)", "(state-damaged)", "not repaired: 2 lanes")
}

// sameTotals compares the totals with what was sent.
func (w *world) sameTotals() {
	w.t.Helper()
	got := map[string]*big.Rat{}
	for _, db := range w.shards {
		sum(w.t, db, got, "SELECT account_id, CAST(SUM(net_amount) AS CHAR) FROM billing_totals GROUP BY account_id")
	}
	compare(w.t, "billing_totals", got, w.oracle)
}

// TestRepairBesideInstances: the shard comes back while an instance works. The lane
// stops, the others go on; and when it is booked again the lane goes on by itself.
func TestRepairBesideInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(2))
	s := w.run("")
	w.charge(0, 30)
	w.charge(1, 30)
	w.waitAccounted()
	w.forgetLane(1, 0)
	w.charge(0, 10)
	servers.Eventually(t, 2*time.Minute, func() error { return contains(s.output(), "reason=lost-epoch") })
	w.ask("status").must(t, 0, "lost-epoch", "billing repair")
	w.charge(1, 20)
	w.movedOn(1, w.decided(1).Seq)
	w.ask("repair", "--apply").must(t, 0, "booked again: 1 lane")
	w.mustVerify(t, 0)
	w.charge(0, 10)
	w.waitAccounted()
	s.stop()
	w.exact()
	w.mustVerify(t, 0)
}

// TestRepairBranches: the shard comes back with a prepared branch of the first
// epoch that it lacks: the decided one, or another that was never decided.
func TestRepairBranches(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	for range 2 { // the second session has an incarnation before it
		s := w.run("")
		w.charge(0, 20)
		w.waitAccounted()
		s.stop()
	}
	s := w.run("")
	none := w.backUp(1)
	w.charge(0, 1)
	w.waitAccounted()
	one := w.backUp(1)
	seq := w.epochsOn(1, 0)
	for range 2 {
		w.charge(0, 20)
		w.waitAccounted()
	}
	s.stop()
	before := w.rows()
	var decided string
	if err := w.shards[0].QueryRow("SELECT gtrid FROM billing_epoch WHERE seq = ?", seq).Scan(&decided); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct{ gtrid, action string }{
		{decided, "commit"},
		{decided[:40] + fmt.Sprintf("%012x%012x", 1, seq), "roll-back"},
	} {
		w.restore(none)
		conn, err := w.servers[1].Root().Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		xid := branchName(1, c.gtrid)
		for _, s := range append(append([]string{"XA START " + xid}, one.statements(databaseOf(t, w.dsns[1]))...), "XA END "+xid, "XA PREPARE "+xid) {
			if _, err := conn.ExecContext(t.Context(), s); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		r := w.repairJSON(t, 1)
		if b := r.Lanes[0].Shards[0].Branches; len(b) != 1 || b[0].GTRID != c.gtrid || b[0].Seq != seq || b[0].Action != c.action {
			t.Errorf("%s: %+v", c.action, r)
		}
		if !w.isPrepared(1, c.gtrid) {
			t.Error("a dry run has ended the branch")
		}
		w.ask("repair", "--apply").must(t, 0, "booked again")
		w.mustBeAgain(t, before)
	}
	w.exact()
}
