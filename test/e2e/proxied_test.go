package e2e

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/test/proxy"
)

// TestProxied: answers get lost on the way, once each: that of a prepare, that
// of the decision and that of an XA COMMIT. The server has done what was asked
// each time, and the service has to find that out.
func TestProxied(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, throughProxies())
	s := w.run("")
	ids := w.charge(0, 100)
	w.waitAccounted()

	lost := func(add func() *proxy.Handle) {
		t.Helper()
		h := add()
		w.again(0, ids[:10])
		w.charge(0, 50)
		h.Await(t, 1)
		w.waitAccounted() // unaided: no restart of the service
	}
	statement := func(shard int, prefix string) func() *proxy.Handle {
		return func() *proxy.Handle {
			return w.shardProxy[shard].Add(proxy.MySQLRule{Match: proxy.Statement(prefix), Times: 1, Do: proxy.DropAnswer{}})
		}
	}
	lost(statement(1, "XA PREPARE"))
	lost(func() *proxy.Handle {
		return w.kafkaProxy.Add(proxy.KafkaRule{Match: proxy.EndTxn(true, w.job), Times: 1, Do: proxy.DropAnswer{}})
	})
	lost(statement(0, "XA COMMIT"))
	s.stop()
	w.exact()
}

// TestMarkersLate: the decision is made, nobody knows it, its markers are not
// written, and the process dies. The next one can neither fence the lane nor
// read D before they are, and touches no branch. The test holds up the markers
// of all others, so it is not parallel.
func TestMarkersLate(t *testing.T) {
	w := newWorld(t, 2, throughProxies())
	s := w.run("")
	w.charge(0, 100)
	w.waitAccounted()

	late := shared.markers.Add(proxy.KafkaRule{Match: proxy.Markers(w.job), Do: proxy.HoldRequest{}})
	t.Cleanup(late.Remove)
	answer := w.kafkaProxy.Add(proxy.KafkaRule{Match: proxy.EndTxn(true, w.job), Times: 1, Do: proxy.HoldAnswer{}})
	w.charge(0, 50)
	late.Await(t, 1)
	answer.Await(t, 1)
	s.kill()
	untouched := func() {
		t.Helper()
		if state := w.transaction(0).State; state != "PrepareCommit" {
			t.Errorf("the lane's Kafka transaction is %q", state)
		}
		if n := fmt.Sprint(w.prepared()); n != "[1 1]" {
			t.Errorf("prepared branches: %s, want one on each shard", n)
		}
	}
	untouched()

	fences := w.kafkaProxy.Add(proxy.KafkaRule{Match: proxy.Containing(w.job, kmsg.InitProducerID), Do: proxy.Watch{}})
	s = w.run("")
	fences.Await(t, 3) // it asks again and again
	untouched()
	late.Remove()
	w.waitAccounted()
	s.stop()
	w.exact()
}
