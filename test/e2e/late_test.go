package e2e

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"billing/internal/checkpoint"
	"billing/test/servers"
)

// prepare leaves a prepared branch on a shard, as somebody's who is gone: the
// statement is in it.
func (w *world) prepare(shard int, gtrid, statement string) {
	w.t.Helper()
	conn, err := w.shards[shard].Conn(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	xid := branchName(shard, gtrid)
	for _, s := range []string{"XA START " + xid, statement, "XA END " + xid, "XA PREPARE " + xid} {
		if _, err := conn.ExecContext(w.t.Context(), s); err != nil {
			w.t.Fatalf("%s: %v", s, err)
		}
	}
}

// rollBack ends a prepared branch by hand.
func (w *world) rollBack(shard int, gtrid string) {
	w.t.Helper()
	if _, err := w.servers[shard].Root().ExecContext(w.t.Context(), "XA ROLLBACK "+branchName(shard, gtrid)); err != nil {
		w.t.Fatal(err)
	}
}

func branchName(shard int, gtrid string) string {
	return fmt.Sprintf("0x%s,'s%d'", hex.EncodeToString([]byte(gtrid)), shard)
}

// isPrepared reports whether the shard's server lists the branch.
func (w *world) isPrepared(shard int, gtrid string) bool {
	w.t.Helper()
	for _, b := range w.servers[shard].XABranches(w.t) {
		if b.GTRID == gtrid {
			return true
		}
	}
	return false
}

// TestLatePrepareIsSwept: a branch of a dead session that is prepared after the
// recovery holds the lane's row. The sweep removes it, and the epoch that waited
// for the row goes through. A branch of a later session is never touched: the
// lane calls itself superseded until somebody looks. Foreign names are left
// alone all the time.
func TestLatePrepareIsSwept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	first := w.run("")
	w.charge(0, 100)
	w.waitAccounted()
	first.stop()
	p := w.run("")
	w.charge(0, 100)
	w.waitAccounted()
	d := w.lastDecision()
	name, err := checkpoint.GTRID(d.GTRID).Parse()
	if err != nil || d.Incarnation != 2 || name.Incarnation != 2 {
		t.Fatalf("D is %+v (%v), want an epoch of incarnation 2", d, err)
	}
	gtrid := func(incarnation, seq int64) string { return fmt.Sprintf("%s%012x%012x", name.Lane, incarnation, seq) }
	const lanesRow = "UPDATE billing_lane SET updated_at = NOW(6)"

	// Foreign: another application's, another job's, and no whole name of ours.
	if _, err := w.servers[0].Root().ExecContext(t.Context(), "CREATE TABLE `"+database(t, w)+"`.scratch (n INT PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	foreign := []string{
		"other-" + uuid.NewString(),
		ownerPrefix(w.job+"x", make([]byte, 16)) + strings.TrimPrefix(gtrid(1, d.Seq+1), name.Owner),
		name.Lane,
	}
	for i, g := range foreign {
		w.prepare(0, g, fmt.Sprintf("INSERT INTO scratch VALUES (%d)", i))
	}

	// A smaller incarnation.
	late := gtrid(1, d.Seq+1)
	for i := range w.shards {
		w.prepare(i, late, lanesRow)
	}
	w.charge(0, 50)
	w.waitAccounted()
	for i := range w.shards {
		if w.isPrepared(i, late) {
			t.Errorf("shard %d: the late branch %s is still prepared", i, late)
		}
	}
	if err := errors.Join(contains(p.output(), saysNet), contains(p.output(), saysSweep)); err != nil {
		t.Error(err)
	}
	if got := w.decided(0); got.Incarnation != 2 || contains(p.output(), saysEnded) == nil {
		t.Errorf("the sweep has ended the session: D is %+v", got)
	}

	// A larger one, on the shard that is not the first.
	larger := gtrid(1000, w.lastDecision().Seq+1)
	w.prepare(1, larger, lanesRow)
	p.mustSay(saysSuperseded)
	before := w.sent
	w.charge(0, 50)
	servers.Eventually(t, time.Minute, func() error { // the sweep's word, and that of sessions behind it
		if n := strings.Count(p.output(), saysSuperseded); n < 3 {
			return fmt.Errorf("said it %d times", n)
		}
		return nil
	})
	if !w.isPrepared(1, larger) {
		t.Error("the branch of a larger incarnation was ended")
	}
	if n, err := w.accounted(); err != nil || n != before {
		t.Errorf("%d records accounted for, want %d (%v)", n, before, err)
	}
	w.rollBack(1, larger)
	w.waitAccounted()

	for _, g := range foreign {
		if !w.isPrepared(0, g) {
			t.Errorf("the foreign branch %q was ended", g)
			continue
		}
		w.rollBack(0, g)
	}
	p.stop()
	w.exact()
}

// database is the name of the first shard's.
func database(t *testing.T, w *world) string {
	t.Helper()
	return column(t, w.shards[0], "SELECT DATABASE()")[0]
}
