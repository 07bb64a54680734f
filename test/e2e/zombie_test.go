package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/test/proxy"
	"billing/test/servers"
)

// The words of the log that these tests go by.
const (
	saysLost       = "lanes lost"            // this instance and the group did not hear of each other, and its lanes have ended
	saysEnded      = `msg="session ended`    // by an error, whichever
	saysSuperseded = "superseded"            // the error says that there is a later owner
	saysTakenOver  = `msg="lane taken over"` // S3
	saysSettled    = "msg=settled"           // S4 on every shard
	saysNet        = "a net decided"
	saysSweep      = "net=sweep"
)

// zombie is a place at which an owner is frozen, and what Kafka and MySQL must
// then say. n is the last epoch before.
type zombie struct {
	name      string
	failpoint string // where it freezes
	before    string // where the owner before it died, "stop" for a SIGTERM; "" for none: the zombie has made the epochs before

	prepared    [2]int   // branches, by shard; -1 for either
	ahead       [2]int64 // epochs that a shard shows beyond n
	decided     int64    // epochs that D is beyond n; -1 for either
	incarnation int64    // D's
	transaction string   // the broker's state of the lane's transaction, "" for any

	long bool // frozen until MySQL has ended its connections, which is longer than every other time-out
	asks bool // EndTxn is the next thing that it does: it is sent, whatever the group says
}

var zombies = []zombie{
	{name: "fenced, an undecided epoch before", failpoint: "fenced:1", before: "all-prepared:3",
		prepared: [2]int{1, 1}, incarnation: 1},
	{name: "decision read, a decided epoch before", failpoint: "decision-read:1", before: "decided:3",
		prepared: [2]int{1, 1}, decided: 1, incarnation: 1, long: true},
	{name: "taken over, some of the decided epoch committed", failpoint: "takeover-decided:1", before: "some-committed:3",
		prepared: [2]int{0, 1}, ahead: [2]int64{1, 0}, decided: 1, incarnation: 2},
	{name: "settled", failpoint: "settled:1", before: "decided:3",
		ahead: [2]int64{1, 1}, decided: 1, incarnation: 2},

	{name: "polled", failpoint: "polled:3", incarnation: 1},
	{name: "epoch frozen, phase 1 not begun", failpoint: "frozen:3", incarnation: 1},
	{name: "inside a branch", failpoint: "in-branch:3", prepared: [2]int{0, -1}, incarnation: 1},
	{name: "some prepared", failpoint: "some-prepared:3", prepared: [2]int{1, 0}, incarnation: 1},
	{name: "all prepared", failpoint: "all-prepared:3", prepared: [2]int{1, 1}, incarnation: 1, long: true},
	{name: "chunks written", failpoint: "chunks-written:3", prepared: [2]int{1, 1}, incarnation: 1, transaction: "Ongoing"},
	{name: "before EndTxn", failpoint: "before-end-txn:3", prepared: [2]int{1, 1}, incarnation: 1, transaction: "Ongoing", long: true, asks: true},
	{name: "EndTxn sent", failpoint: "end-txn-sent:4", // the takeover's is the first
		prepared: [2]int{1, 1}, decided: -1, incarnation: 1},
	{name: "decided", failpoint: "decided:3", prepared: [2]int{1, 1}, decided: 1, incarnation: 1},
	{name: "some committed", failpoint: "some-committed:3",
		prepared: [2]int{0, 1}, ahead: [2]int64{1, 0}, decided: 1, incarnation: 1, long: true},
	{name: "all committed", failpoint: "all-committed:3", ahead: [2]int64{1, 1}, decided: 1, incarnation: 1},

	{name: "sweeping", failpoint: "sweeping:1", before: "stop", incarnation: 2, long: true},
}

// TestZombie freezes an owner at each place. Another instance takes the lane
// over unaided and goes on. Thawed, the zombie finds out and changes nothing,
// the owner is not disturbed, and the zombie becomes a good member again.
func TestZombie(t *testing.T) {
	t.Parallel()
	for i := range zombies {
		z := &zombies[i]
		t.Run(z.name, func(t *testing.T) {
			t.Parallel()
			var opts []option
			if z.asks {
				opts = append(opts, throughProxies())
			}
			w := newWorld(t, 2, opts...)
			a, old, n := w.freeze(z)
			z.check(t, w, n)

			// Another owner: what was in flight, duplicates and new records.
			b := w.run("")
			w.again(0, old)
			w.charge(0, 100)
			w.waitAccounted()
			z.fate(t, w, n)
			if z.long {
				w.waitDisconnected(a)
			}

			// The thaw, while the owner has nothing to do: nothing may change.
			before, d := w.tables(), w.lastDecision()
			var told func() error
			if z.asks {
				told = w.toldOfEndTxn()
			}
			thawed := time.Now()
			a.signal(syscall.SIGCONT)
			if z.asks {
				if err := told(); !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
					t.Errorf("the broker has answered the zombie's decision with %v", err)
				}
			}
			a.mustSay(saysLost)
			lost := time.Since(thawed)
			w.waitMembers(2)
			t.Logf("the zombie's lane had ended after %s, it was a member again after %s", lost, time.Since(thawed))
			w.unchanged(before)
			all(t, "prepared", w.prepared(), 0)
			if got := w.decided(0); got != d {
				t.Errorf("D was %+v and is %+v", d, got)
			}

			// The owner goes on, with the zombie beside it.
			w.again(0, old[:10])
			w.charge(0, 100)
			w.waitAccounted()
			if got := w.lastDecision(); got.Incarnation != d.Incarnation || got.Seq <= d.Seq {
				t.Errorf("D was %+v and is %+v, want later epochs of the same incarnation", d, got)
			}
			b.undisturbed()

			// And the zombie is a good member: the lane comes back to it.
			if z.long {
				b.kill()
			} else {
				b.stop()
			}
			w.charge(0, 50)
			w.waitAccounted()
			if got := w.decided(0); got.Incarnation <= d.Incarnation {
				t.Errorf("D is of incarnation %d, want more than %d", got.Incarnation, d.Incarnation)
			}
			a.stop()
			w.exact()
		})
	}
}

// toldOfEndTxn waits for a decision that is sent from now on, and gives the
// broker's own answer to it.
func (w *world) toldOfEndTxn() func() error {
	code := make(chan int16, 1) // of the first answer
	heard := w.kafkaProxy.Add(proxy.KafkaRule{Match: proxy.EndTxn(true, w.job), Times: 1, Do: proxy.Patch(func(r *proxy.Request, answer []byte) []byte {
		resp := kmsg.NewPtrEndTxnResponse()
		resp.SetVersion(r.Version)
		if err := resp.ReadFrom(answer); err != nil {
			return nil
		}
		code <- resp.ErrorCode
		return answer
	})})
	return func() error {
		heard.Await(w.t, 1)
		return kerr.ErrorForCode(<-code)
	}
}

// freeze runs the owners until one has frozen itself at z's place. It returns
// the ids that were sent, and the last epoch before the one that the place is in.
func (w *world) freeze(z *zombie) (a *process, sent []string, n int64) {
	w.t.Helper()
	n = 2 // the third epoch is in flight
	switch z.before {
	case "":
		a = w.run(z.failpoint + ":stop")
		sent = w.feed(a, ": stopped")
	case "stop":
		p := w.run("")
		sent = w.charge(0, 100)
		w.waitAccounted()
		p.stop()
		n = w.epochs(0)[0]
		a = w.run(z.failpoint + ":stop")
	default:
		p := w.run(z.before)
		sent = w.feed(p, ": killed")
		p.mustDieAtFailpoint()
		a = w.run(z.failpoint + ":stop")
	}
	a.mustStopAtFailpoint()
	if strings.HasPrefix(z.failpoint, "polled:") { // an epoch may have several polls
		n = w.epochs(0)[0]
	}
	return a, sent, n
}

// feed sends records, epoch by epoch, until p says that it has come to its fail
// point.
func (w *world) feed(p *process, says string) (ids []string) {
	w.t.Helper()
	for contains(p.output(), says) != nil {
		ids = append(ids, w.charge(0, 30)...)
		servers.Eventually(w.t, 2*time.Minute, func() error {
			if contains(p.output(), says) == nil {
				return nil
			}
			return w.allAccounted()
		})
	}
	return ids
}

// check holds the world against what the place means.
func (z *zombie) check(t *testing.T, w *world, n int64) {
	t.Helper()
	servers.Eventually(t, 30*time.Second, func() error { // markers are written a little later
		var wrong []error
		for i, got := range w.prepared() {
			if z.prepared[i] >= 0 && got != z.prepared[i] {
				wrong = append(wrong, fmt.Errorf("shard %d: %d branches prepared, want %d", i, got, z.prepared[i]))
			}
		}
		for i, got := range w.epochs(0) {
			if got != n+z.ahead[i] {
				wrong = append(wrong, fmt.Errorf("shard %d: at epoch %d, want %d", i, got, n+z.ahead[i]))
			}
		}
		d := w.decided(0)
		if beyond := d.Seq - n; d.Incarnation != z.incarnation || beyond != z.decided && (z.decided >= 0 || beyond < 0 || beyond > 1) {
			wrong = append(wrong, fmt.Errorf("D is %+v, want incarnation %d and %d beyond epoch %d", d, z.incarnation, z.decided, n))
		}
		if z.transaction != "" {
			if state := w.transaction(0).State; state != z.transaction {
				wrong = append(wrong, fmt.Errorf("transaction is %q, want %q", state, z.transaction))
			}
		}
		return errors.Join(wrong...)
	})
}

// fate fails unless the epoch behind n is the one that was decided before the
// freeze, or is the new owner's: read again.
func (z *zombie) fate(t *testing.T, w *world, n int64) {
	t.Helper()
	var of [2]int64
	for i, db := range w.shards {
		if err := db.QueryRow("SELECT incarnation FROM billing_epoch WHERE seq = ?", n+1).Scan(&of[i]); err != nil {
			t.Fatal(err)
		}
	}
	owner := w.decided(0).Incarnation
	want := owner
	if z.decided == 1 || z.decided < 0 && of[0] == 1 {
		want = 1
	}
	all(t, "incarnation of the epoch in flight", of[:], want)
	if owner <= z.incarnation {
		t.Errorf("the owner's incarnation is %d, the zombie left D with %d", owner, z.incarnation)
	}
}

// lastDecision is D once it is that of the last epoch that the shards have: it
// becomes visible a little after it is known committed.
func (w *world) lastDecision() decision {
	w.t.Helper()
	decidedEventually(w.t, w, w.epochs(0)[0])
	return w.decided(0)
}

// mustSay waits until the process has logged it.
func (p *process) mustSay(what string) {
	p.t.Helper()
	servers.Eventually(p.t, 2*time.Minute, func() error { return contains(p.output(), what) })
}

// undisturbed fails if the process had to begin again, or a net had to help.
func (p *process) undisturbed() {
	p.t.Helper()
	for _, harm := range []string{saysLost, saysEnded, saysNet} {
		if log := p.output(); strings.Contains(log, harm) {
			p.t.Errorf("the owner was disturbed, its log says %q:\n%s", harm, tail(log, 40))
		}
	}
}

// waitMembers waits until the group is stable with so many members.
func (w *world) waitMembers(n int) {
	w.t.Helper()
	admin := shared.kafka.Admin(w.t)
	servers.Eventually(w.t, 2*time.Minute, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		groups, err := admin.DescribeGroups(ctx, w.job)
		if err != nil {
			return err
		}
		if g := groups[w.job]; g.Err != nil || g.State != "Stable" || len(g.Members) != n {
			return fmt.Errorf("the group is %s with %d members, want it stable with %d (%w)", g.State, len(g.Members), n, g.Err)
		}
		return nil
	})
}

// waitDisconnected waits until no shard's server has a connection of the process.
func (w *world) waitDisconnected(p *process) {
	w.t.Helper()
	pid := strconv.Itoa(p.cmd.Process.Pid)
	for i, m := range w.servers {
		servers.Eventually(w.t, 2*time.Minute, func() error {
			var n int
			err := m.Root().QueryRow("SELECT COUNT(*) FROM performance_schema.session_connect_attrs WHERE ATTR_NAME = '_pid' AND ATTR_VALUE = ?", pid).Scan(&n)
			if err == nil && n > 0 {
				err = fmt.Errorf("shard %d still has %d connections of the frozen process", i, n)
			}
			return err
		})
	}
}

// unchanged fails if any row is another one now.
func (w *world) unchanged(before [][]string) {
	w.t.Helper()
	for i, now := range w.tables() {
		if diff := difference(before[i], now); len(diff) > 0 {
			w.t.Errorf("shard %d: rows have changed:\n%s", i, strings.Join(diff, "\n"))
		}
	}
}
