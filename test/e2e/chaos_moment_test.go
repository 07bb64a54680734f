package e2e

import (
	"fmt"
	"testing"
	"time"

	"billing/test/proxy"
	"billing/test/servers"
)

// TestKilledBetweenPrepareAndDecision: the instance is killed twenty times in a row
// while all is prepared and nothing decided: its EndTxn is held on its way. Every
// other time it arrives before the next owner comes, and decides; else it comes when
// the next owner is at work, and must decide nothing.
func TestKilledBetweenPrepareAndDecision(t *testing.T) {
	t.Parallel()
	const times = 20
	w := newWorld(t, 2, throughProxies())
	w.edit("session_timeout: 6s", "session_timeout: 2s")
	s := w.run("")
	old := w.charge(0, 50)
	w.waitAccounted()
	for n := range times {
		before := w.epochs(0)[0]
		held := w.kafkaProxy.Add(proxy.KafkaRule{Match: proxy.EndTxn(true, w.job), Times: 1, Do: proxy.HoldRequest{}})
		w.charge(0, 20)
		w.again(0, old[:10])
		held.Await(t, 1)
		all(t, fmt.Sprintf("prepared at kill %d", n), w.prepared(), 1)
		s.kill()
		if n%2 == 0 {
			held.Remove()
			decidedEventually(t, w, before+1)
		}
		s = w.run("")
		w.waitAccounted()
		if n%2 == 1 {
			held.Remove()
			w.charge(0, 20)
			w.waitAccounted()
		}
	}
	s.stop()
	w.exact()
	if v := w.mustVerify(t, 0); len(v.InDoubt) > 0 || !v.DecisionsCompared {
		t.Errorf("billing verify at the end: %s", v)
	}
	w.mustList()
	servers.Eventually(t, time.Minute, func() error {
		if state := w.transaction(0).State; state != "CompleteCommit" && state != "CompleteAbort" {
			return fmt.Errorf("the lane's Kafka transaction is %q", state)
		}
		return nil
	})
}
