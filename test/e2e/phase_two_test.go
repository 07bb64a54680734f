package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"syscall"
	"testing"
	"time"

	"billing/test/proxy"
	"billing/test/servers"
)

// TestCommitKeepsFailing: for as long as a shard's XA COMMIT fails, or nothing of
// it can be heard, it is tried again on other connections; health and metrics say
// so, and nothing runs ahead: neither the offset nor a next epoch. The session goes
// on when it ends, and every row is there once.
func TestCommitKeepsFailing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		faults  map[string]proxy.MySQLAction
		applied int64 // by the shard
	}{
		{"it fails", map[string]proxy.MySQLAction{"XA COMMIT": failing(3100, "HY000")}, 0},
		{"its answers are lost", map[string]proxy.MySQLAction{"XA COMMIT": proxy.DropAnswer{}, "SELECT gtrid": proxy.DropAnswer{}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, throughProxies())
			s := w.run("")
			ids := w.charge(0, 100)
			w.waitAccounted()
			before := w.lastDecision()

			var faults []*proxy.Handle
			var commits *proxy.Handle
			for statement, do := range c.faults {
				h := w.shardProxy[1].Add(proxy.MySQLRule{Match: proxy.Statement(statement), Do: do})
				faults = append(faults, h)
				if statement == "XA COMMIT" {
					commits = h
				}
			}
			w.charge(0, 50)
			commits.Await(t, 1)
			accepted := w.shardProxy[1].Stats().Accepted
			w.charge(0, 50) // of the next epoch
			w.again(0, ids)
			commits.Await(t, 4)
			if n := w.shardProxy[1].Stats().Accepted - accepted; n < 2 {
				t.Errorf("%d new connections for 3 tries: the broken one was used again", n)
			}
			s.waitSays("/healthz", 200, "commit the decided epoch on shard s1")
			s.waitSays("/metrics", 200, "billing_in_doubt 1\n")
			decidedEventually(t, w, before.Seq+1)
			d := w.decided(0)
			commits.Await(t, 5)
			if now := w.decided(0); now != d || d.Next != before.Next+50 {
				t.Errorf("D was %+v, then %+v and %+v: the epoch of 50 records is not on both shards", before, d, now)
			}
			if e := w.epochs(0); e[0] != d.Seq || e[1] != before.Seq+c.applied {
				t.Errorf("epochs %v, want %d and %d", e, d.Seq, before.Seq+c.applied)
			}

			for _, h := range faults {
				h.Remove()
			}
			w.waitAccounted()
			if now := w.decided(0); now.Incarnation != before.Incarnation || s.sessionsEnded() != 0 {
				t.Errorf("D was %+v and is %+v, %d sessions have ended", before, now, s.sessionsEnded())
			}
			s.stop()
			w.exact()
		})
	}
}

// TestDecidedBranchRolledBackByHand: "unknown XID" is all that MySQL says of a branch
// that somebody has rolled back. It is not taken for committed: the lane stops,
// names what is lost, and goes on with nothing.
func TestDecidedBranchRolledBackByHand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		lives bool
	}{
		{"before the next owner comes", false},
		{"between the decision and phase 2", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			first := w.run("")
			w.charge(0, 60)
			w.waitAccounted()
			first.stop()
			n := w.epochs(0)[0]
			w.charge(0, 40)
			end := ":hold"
			if !c.lives {
				end = ""
			}
			s := w.run("decided:1" + end)
			if c.lives {
				s.mustHoldAtFailpoint()
			} else {
				s.mustDieAtFailpoint()
			}
			decidedEventually(t, w, n+1)
			d := w.decided(0)
			w.rollBack(1, d.GTRID)
			if c.lives {
				s.signal(syscall.SIGUSR1)
			} else {
				s = w.run("")
			}
			w.charge(0, 20) // of an epoch that is never begun

			lane := w.topic + "/0"
			s.mustSay("refused (lost-epoch) " + lane + ": shard s1")
			servers.Eventually(t, time.Minute, func() error {
				h, err := s.health()
				if err != nil {
					return err
				}
				for _, l := range h.Lanes {
					if l.Lane == lane && l.State == "stopped" && l.Stuck {
						return errors.Join(contains(l.Why, fmt.Sprintf("epoch %d", n+1)), contains(l.Why, fmt.Sprintf("offsets up to %d", d.Next)))
					}
				}
				return fmt.Errorf("the lane is not stopped: %+v", h)
			})
			if e := w.epochs(0); e[0] != n+1 || e[1] != n {
				t.Errorf("epochs %v, want %d on shard 0 and %d on shard 1", e, n+1, n)
			}
			now := w.decided(0)
			if now.Incarnation--; now != d {
				t.Errorf("D was %+v and is %+v, want the takeover of it only", d, now)
			}
			all(t, "prepared", w.prepared(), 0)
			s.stop()
			if v := w.mustVerify(t, 1); !v.has(1, "billing_epoch", fmt.Sprintf("%s epoch %d", lane, n+1)) {
				t.Errorf("verify says %s", v)
			}
		})
	}
}

// TestShardInTheMiddleOfACommit: what only a server itself can do to a decided
// branch. The test has a server of its own.
func TestShardInTheMiddleOfACommit(t *testing.T) {
	t.Parallel()
	m := servers.MySQL(t)
	w := newWorld(t, 2, throughProxies(), onServers(shared.kafka, shared.mysql[0], m))
	s := w.run("")
	ids := w.charge(0, 60)
	w.waitAccounted()
	s.stop()

	// The server waits for a replica that does not come: a commit is in the binary
	// log, and the engine has not done it.
	t.Run("an XA COMMIT is executing when the next owner comes", func(t *testing.T) {
		before := w.lastDecision()
		w.root(1, "INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
		a := w.run("decided:1:hold")
		w.charge(0, 40)
		a.mustHoldAtFailpoint()
		w.root(1, "SET GLOBAL rpl_semi_sync_source_timeout = 3600000")
		w.root(1, "SET GLOBAL rpl_semi_sync_source_enabled = ON")
		commits := w.shardProxy[1].Add(proxy.MySQLRule{Match: proxy.Statement("XA COMMIT"), Do: proxy.Watch{}})
		a.signal(syscall.SIGUSR1)
		servers.Eventually(t, time.Minute, func() error {
			var n int
			err := m.Root().QueryRow("SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'XA COMMIT%' AND state LIKE '%semi-sync%'").Scan(&n)
			if err == nil && n == 0 {
				err = errors.New("no XA COMMIT is executing")
			}
			return err
		})
		a.kill()
		if e := w.epochs(0); e[0] != before.Seq+1 || e[1] != before.Seq {
			t.Fatalf("epochs %v: the row is there already", e)
		}

		b := w.run("")
		w.again(0, ids)
		commits.Await(t, 2) // the next owner's own, behind the one that is executing
		b.mustSay(`step=S4 what="settle shard s1"`)
		w.root(1, "SET GLOBAL rpl_semi_sync_source_enabled = OFF")
		w.waitAccounted()
		w.became("executing", decision{Incarnation: before.Incarnation + 1, Seq: before.Seq}, true)
		if said := regexp.MustCompile(`refused|lost`).FindString(b.output()); said != "" {
			t.Errorf("the next owner says %q of an epoch that was being committed", said)
		}
		b.stop()
		w.exact()
	})

	// A replica that had received the prepare and not the commit is a copy of the
	// server from between the phases. Since then the lane was taken over, too.
	t.Run("a replica is promoted with the prepare only", func(t *testing.T) {
		before := w.lastDecision()
		a := w.run("all-prepared:1:hold")
		w.charge(0, 40)
		a.mustHoldAtFailpoint()
		shell(t, m, cloneServer)
		a.signal(syscall.SIGUSR1)
		w.waitAccounted()
		a.stop()
		b := w.run("")
		b.mustSay(saysSettled)
		b.stop()
		d := w.lastDecision()
		name := d.GTRID
		if d.Seq != before.Seq+1 || d.Incarnation != before.Incarnation+2 {
			t.Fatalf("D was %+v and is %+v", before, d)
		}

		clone := take(t, m, "/tmp/clone/mysql")
		if err := m.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		promoted := servers.MySQL(t, servers.WithData(clone))
		w.edit(at(t, w.dsns[1], w.shardProxy[1].Addr(), 0), w.dsns[1])
		w.move(1, promoted)
		if e := w.epochs(0); e[1] != before.Seq || !w.isPrepared(1, name) {
			t.Fatalf("the copy is at epoch %d, and D's branch is prepared: %t", e[1], w.isPrepared(1, name))
		}
		s := w.command("run", "--accept", "server-changed:s1")
		w.again(0, ids)
		w.waitAccounted()
		w.became("come back", decision{Incarnation: before.Incarnation + 1, Seq: before.Seq}, true)
		s.stop()
		w.exact()
	})
}
