package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/test/servers"
)

// TestZombieTakesOverAgain: an owner is frozen behind its fence, before it has
// read D. The one that took over from it dies with branches prepared. The
// zombie's fence is stale, so it touches nothing; its next session, with a fence
// of its own, settles them. That one can't begin before the group has given up
// the dead owner, a session timeout after it. What the group's word cuts short
// here, TestStaleFence sees to the end.
func TestZombieTakesOverAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		died    string
		decided int64 // epochs that D is beyond those before
	}{
		{"all-prepared:1", 0},
		{"decided:1", 1},
	} {
		t.Run(c.died, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			w.edit("session_timeout: 6s", "session_timeout: 20s")
			a, old, n := w.freeze(&zombie{failpoint: "fenced:1", before: "stop"})
			b := w.run(c.died + ":hold")
			w.again(0, old)
			w.charge(0, 100)
			b.mustHoldAtFailpoint()
			decidedEventually(t, w, n+c.decided)
			before, d := w.tables(), w.decided(0)
			all(t, "prepared", w.prepared(), 1)

			b.kill()
			a.signal(syscall.SIGCONT)
			a.mustSay(saysLost)
			all(t, "prepared, after the zombie has found out", w.prepared(), 1)
			w.unchanged(before)
			if got := w.decided(0); got != d {
				t.Errorf("D was %+v and is %+v", d, got)
			}
			if contains(a.output(), saysTakenOver) == nil {
				t.Error("the zombie took the lane over with a stale fence")
			}

			w.waitAccounted()
			if got := w.decided(0); got.Incarnation != d.Incarnation+1 {
				t.Errorf("D is %+v, want the incarnation behind that of %+v", got, d)
			}
			a.stop()
			w.exact()
		})
	}
}

// TestStaleFence: the fence of a session that has not taken over yet goes stale
// while the group still has it. The takeover fails, nothing on MySQL is touched
// before it, and the next session settles what a dead owner has left.
func TestStaleFence(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"fenced:1", "decision-read:1"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			p := w.run("decided:3")
			old := w.feed(p, ": killed")
			p.mustDieAtFailpoint()
			decidedEventually(t, w, 3)

			a := w.run(point + ":hold")
			a.mustHoldAtFailpoint()
			w.fence()
			all(t, "prepared", w.prepared(), 1)
			a.signal(syscall.SIGUSR1)

			w.again(0, old)
			w.charge(0, 100)
			w.waitAccounted()
			var at []int
			for _, says := range []string{saysEnded, saysTakenOver, saysSettled} {
				a.mustSay(says)
				at = append(at, strings.Index(a.output(), says))
			}
			if !slices.IsSorted(at) {
				t.Errorf("the log does not say in this order: a session ended, the next one took over and settled:\n%s", a.output())
			}
			if got := w.decided(0); got.Incarnation != 2 {
				t.Errorf("D is %+v, want incarnation 2: the stale takeover must not have decided", got)
			}
			a.stop()
			w.exact()
		})
	}
}

// fence is what another owner does first.
func (w *world) fence() {
	w.t.Helper()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID = kmsg.StringPtr(w.transactionalID(0))
	req.TransactionTimeoutMillis = 10_000
	servers.Eventually(w.t, time.Minute, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		resp, err := req.RequestWith(ctx, w.admin)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.ErrorCode)
	})
}

// TestZombieHeal: a zombie is thawed while the living owner's Kafka transaction
// is open, with D in it. It initialises no producer and ends no transaction
// before it has found out: the owner's decision stands.
func TestZombieHeal(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"all-prepared:3", "before-end-txn:3", "end-txn-sent:4"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			a, old, _ := w.freeze(&zombie{failpoint: point})
			b := w.run("before-end-txn:1:hold")
			w.again(0, old)
			w.charge(0, 100)
			b.mustHoldAtFailpoint()
			before, last := w.transaction(0), w.decided(0)
			if before.State != "Ongoing" {
				t.Fatalf("the owner's transaction is %s", before.State)
			}

			a.signal(syscall.SIGCONT)
			a.mustSay(saysLost)
			w.waitMembers(2)
			if got := w.transaction(0); got.State != before.State || got.ProducerID != before.ProducerID || got.ProducerEpoch != before.ProducerEpoch || got.StartTimestamp != before.StartTimestamp {
				t.Errorf("the owner's transaction was %+v and is %+v", before, got)
			}

			b.signal(syscall.SIGUSR1)
			w.waitAccounted()
			if got := w.lastDecision(); got.Incarnation != last.Incarnation || got.Seq <= last.Seq {
				t.Errorf("D was %+v and is %+v, want later epochs of the same incarnation", last, got)
			}
			b.undisturbed()
			b.stop()
			a.stop()
			w.exact()
		})
	}
}

// meeting is a zombie that acts on MySQL before its group can tell it that the
// lane is somebody else's.
type meeting struct {
	zombie
	owner string // where the living owner is held meanwhile
	owns  [2]int // the owner's prepared branches, by shard
	says  string // what the zombie says
	swept bool   // its prepare comes late, and the owner's sweep removes it
	kills bool   // it may end the connection in which the owner writes, and so a session of the owner, not more

	w    *world
	a, b *process
}

// TestZombieActsBeforeItKnows thaws zombies while the broker does not answer:
// otherwise the group's word mostly comes first, and little of what a zombie
// could do is done. The broker is every test's, so this one is not parallel.
func TestZombieActsBeforeItKnows(t *testing.T) {
	meetings := []*meeting{
		// It must not roll back the branch of a larger incarnation.
		{zombie: zombie{name: "in S4", failpoint: "settling:1", before: "stop"},
			owner: "all-prepared:1", owns: [2]int{1, 1}, says: saysSuperseded},
		// What holds the lane's lock is an older session's, for all that it knows.
		{zombie: zombie{name: "in S4, while the owner writes", failpoint: "settling:1", before: "stop"},
			owner: "in-branch:1", owns: [2]int{0, 1}, says: saysSuperseded, kills: true},
		// The names of its branches are still free, the lane's row is still at the epoch before: it prepares.
		{zombie: zombie{name: "before phase 1", failpoint: "frozen:3"}, owner: "frozen:1", swept: true},
		{zombie: zombie{name: "in phase 1", failpoint: "some-prepared:3"}, owner: "frozen:1", swept: true},
		// The owner has ended its connection.
		{zombie: zombie{name: "in a branch", failpoint: "in-branch:3"},
			owner: "all-prepared:1", owns: [2]int{1, 1}, says: saysEnded},
		// The last one to freeze: a sweep may take 30 s on a shard.
		{zombie: zombie{name: "in its sweep", failpoint: "sweeping:1", before: "stop"},
			owner: "all-prepared:1", owns: [2]int{1, 1}, says: saysSuperseded},
	}
	for _, m := range meetings {
		m.w = newWorld(t, 2)
		m.w.edit("session_timeout: 6s", "session_timeout: 10s") // the broker is away for some seconds
		var old []string
		m.a, old, _ = m.w.freeze(&m.zombie)
		m.w.again(0, old)
	}
	for _, m := range meetings {
		m.b = m.w.run(m.owner + ":hold")
		m.w.charge(0, 100)
	}
	for _, m := range meetings {
		m.b.mustHoldAtFailpoint()
		m.waitPrepared(t)
	}

	if err := shared.kafka.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	away, since := true, time.Now()
	defer func() {
		if away { // a failure, which must not be that of every test behind this one
			_ = shared.kafka.Unpause(context.Background())
		}
	}()
	for _, m := range meetings {
		m.a.signal(syscall.SIGCONT)
	}
	for _, m := range meetings {
		if m.swept {
			m.b.mustSay(saysSweep)
		} else {
			m.a.mustSay(m.says)
		}
	}
	for _, m := range meetings {
		m.waitPrepared(t)
		if contains(m.a.output(), saysLost) == nil {
			t.Errorf("%s: the group has told the zombie although the broker was paused", m.name)
		}
	}
	t.Logf("the broker was away for %s", time.Since(since))
	away = false
	if err := shared.kafka.Unpause(t.Context()); err != nil {
		t.Fatal(err)
	}

	for _, m := range meetings {
		m.a.mustSay(saysLost)
		m.b.signal(syscall.SIGUSR1)
	}
	for _, m := range meetings {
		m.w.waitAccounted()
		ended, nets := m.b.sessionsEnded(), strings.Count(m.b.output(), saysNet)
		if ended > 1 || ended > 0 && !m.kills || nets > 0 && !m.swept || contains(m.b.output(), saysLost) == nil {
			t.Errorf("%s: the owner was disturbed:\n%s", m.name, tail(m.b.output(), 40))
		}
		m.b.stop()
		m.w.charge(0, 50)
		m.w.waitAccounted() // by the zombie
		m.a.stop()
		m.w.exact()
	}
}

// waitPrepared waits until exactly the owner's branches are prepared.
func (m *meeting) waitPrepared(t *testing.T) {
	t.Helper()
	servers.Eventually(t, 20*time.Second, func() error {
		if got := m.w.prepared(); !slices.Equal(got, m.owns[:]) {
			return fmt.Errorf("%s: prepared: %v, want %v", m.name, got, m.owns)
		}
		return nil
	})
}
