package e2e

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/test/proxy"
	"billing/test/servers"
)

// incarnations are, by shard, of which session the row of an epoch is; 0 without one.
func (w *world) incarnations(seq int64) (of []int64) {
	w.t.Helper()
	for _, db := range w.shards {
		var incarnation int64
		if err := db.QueryRow("SELECT COALESCE(MAX(incarnation), 0) FROM billing_epoch WHERE kafka_topic = ? AND seq = ?", w.topic, seq).Scan(&incarnation); err != nil {
			w.t.Fatal(err)
		}
		of = append(of, incarnation)
	}
	return of
}

// became fails unless the epoch behind before is what the broker has made of it:
// when decided, the branches that were prepared then; otherwise a later session's.
func (w *world) became(what string, before decision, decided bool) {
	w.t.Helper()
	for i, got := range w.incarnations(before.Seq + 1) {
		if (got == before.Incarnation) != decided || got < before.Incarnation {
			w.t.Errorf("%s: the row of epoch %d on shard %d is of incarnation %d, the owner was %d; decided: %t", what, before.Seq+1, i, got, before.Incarnation, decided)
		}
	}
}

// TestFencedThoughCommitted: the broker commits the Kafka transaction, its answer
// is lost, and before the owner can ask again another one fences the lane: now the
// broker itself calls the owner fenced, for a transaction that it has committed.
// The owner touches no branch; the next session commits those very branches.
func TestFencedThoughCommitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, throughProxies())
	s := w.run("")
	ids := w.charge(0, 100)
	w.waitAccounted()
	before := w.lastDecision()

	fence := w.fault(proxy.Containing(w.job, kmsg.InitProducerID), 0, proxy.HoldRequest{})
	lost := w.fault(proxy.EndTxn(true, w.job), 1, proxy.DropAnswer{})
	again := w.fault(proxy.EndTxn(true, w.job), 0, proxy.DropRequest{})
	w.charge(0, 50)
	w.again(0, ids[:20])
	lost.Await(t, 1)
	again.Await(t, 1)
	w.fence() // the other owner's: it waits for the markers, so the transaction is committed
	told := w.toldOfEndTxn()
	again.over.Store(true)
	if err := told(); !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
		t.Errorf("the broker says %v of the repeated request", err)
	}
	s.mustEndSessions(1)
	fence.Await(t, 1)
	decidedEventually(t, w, before.Seq+1)
	all(t, "epochs before the next fence", w.epochs(0), before.Seq)
	all(t, "prepared before the next fence", w.prepared(), 1)

	fence.Remove()
	w.waitAccounted()
	w.became("fenced", before, true)
	s.stop()
	w.exact()
}

// TestBrokerGoneAfterEndTxn: the decision was sent, and then there is no broker to
// ask or to abort anything with, for longer than the group waits. What a client may
// say of an abort then is no outcome: no branch is touched, no abort is ever sent,
// and when the broker is back its own word decides.
func TestBrokerGoneAfterEndTxn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		do      proxy.KafkaAction
		decided bool
	}{
		{"it had arrived", proxy.DropAnswer{Hang: true}, true},
		{"it had not arrived", proxy.DropRequest{Hang: true}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, throughProxies())
			s := w.run("")
			ids := w.charge(0, 100)
			w.waitAccounted()
			before := w.lastDecision()

			aborts := w.kafkaProxy.Add(proxy.KafkaRule{Match: proxy.EndTxn(false, w.job), Do: proxy.Watch{}})
			end := w.fault(proxy.EndTxn(true, w.job), 1, c.do)
			w.charge(0, 50)
			w.again(0, ids[:20])
			end.Await(t, 1)
			w.kafkaProxy.Refuse(true)
			s.mustEndSessions(1)
			s.mustSay(saysLost) // nobody else may be the owner of what is prepared, and this one is not any more
			untouched := func() {
				t.Helper()
				all(t, "epochs", w.epochs(0), before.Seq)
				all(t, "prepared", w.prepared(), 1)
			}
			untouched()
			if d := w.decided(0); c.decided != (d.Seq == before.Seq+1) || d.Incarnation != before.Incarnation {
				t.Errorf("D was %+v and is %+v", before, d)
			}

			w.kafkaProxy.Refuse(false)
			w.waitAccounted()
			w.became(c.name, before, c.decided)
			if n := aborts.Hits(); n != 0 {
				t.Errorf("%d aborts were sent behind a decision", n)
			}
			s.stop()
			w.exact()
		})
	}
}

// TestOneSeqPreparedTwice: the owner has prepared an epoch on one shard when a dead
// session's branch of the same epoch is prepared on the other, and holds the lane's
// row there. The sweep removes that one within its interval and leaves the owner's
// alone, and what is committed is what D names, on both shards.
func TestOneSeqPreparedTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	first := w.run("")
	w.charge(0, 100)
	w.waitAccounted()
	first.stop()
	before := w.lastDecision()

	p := w.run("some-prepared:1:hold")
	w.charge(0, 50)
	p.mustHoldAtFailpoint()
	d := w.lastDecision() // the owner's takeover
	if d.Incarnation != before.Incarnation+1 || d.Seq != before.Seq {
		t.Fatalf("D was %+v and is %+v", before, d)
	}
	name := func(incarnation int64) string {
		return d.GTRID[:40] + fmt.Sprintf("%012x%012x", incarnation, d.Seq+1)
	}
	dead, ours := name(before.Incarnation), name(d.Incarnation)
	w.prepare(1, dead, "UPDATE billing_lane SET updated_at = NOW(6)")
	began := time.Now()
	if !w.isPrepared(0, ours) {
		t.Fatal("the owner's branch is not prepared")
	}
	servers.Eventually(t, 30*time.Second, func() error {
		if w.isPrepared(1, dead) {
			return errors.New("the dead session's branch is still prepared")
		}
		return nil
	})
	t.Logf("swept after %s", time.Since(began).Round(100*time.Millisecond))
	all(t, "prepared", w.prepared()[:1], 1)
	all(t, "epochs", w.epochs(0), d.Seq)
	if err := errors.Join(contains(p.output(), saysNet), contains(p.output(), saysSweep)); err != nil {
		t.Error(err)
	}

	p.signal(syscall.SIGUSR1)
	w.waitAccounted()
	if got := w.decided(0); contains(p.output(), saysEnded) == nil || got.Incarnation != d.Incarnation {
		t.Errorf("the owner's session has ended, D is %+v", got)
	}
	for i, got := range w.incarnations(d.Seq + 1) {
		if got != d.Incarnation {
			t.Errorf("shard %d has epoch %d of incarnation %d, D named that of %d", i, d.Seq+1, got, d.Incarnation)
		}
	}
	p.stop()
	w.exact()
}
