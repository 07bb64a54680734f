package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/test/proxy"
	"billing/test/servers"
)

// brokerAway takes the broker away from a service and gives it back, with a backlog
// that is far larger than what the service may hold. The service pauses, says
// so, and goes on unaided, within its memory.
func brokerAway(t *testing.T, w *world, take, give func()) {
	t.Helper()
	const (
		epoch = 1 << 20 // checkpoint.max_bytes

		// The inbox (8 MiB, and a fetch of 2), the client's next fetch (2), and the
		// epochs in flight and being filled; twice, for the garbage collector; and
		// as much again for what an epoch is encoded in, and buffers.
		most = 2 * 2 * (8<<20 + 2<<20 + 2<<20 + 2*epoch)
	)
	s := w.commandEnv([]string{fmt.Sprintf("BILLING_CHECKPOINT_MAX_BYTES=%d", epoch)}, "run")
	ids := w.charge(0, 200)
	w.waitAccounted()
	s.waitSays("/readyz", 200)
	calm := s.peak()

	took := time.Now()
	take()
	s.waitSays("/readyz", 503)
	t.Logf("/readyz after %s", time.Since(took).Round(100*time.Millisecond))
	watch := time.NewTicker(100 * time.Millisecond)
	defer watch.Stop()
	for end := took.Add(outage(t)); time.Now().Before(end); <-watch.C {
		if err := s.says("/readyz", 503); err != nil {
			t.Fatal("while the broker is away: ", err)
		}
	}

	give()
	gave := time.Now()
	w.again(0, ids[:50])
	servers.Eventually(t, 3*time.Minute, w.allAccounted)
	highest := s.peak()
	t.Logf("memory: at most %d MiB, %d before; all accounted for %s after the broker", highest>>20, calm>>20, time.Since(gave).Round(100*time.Millisecond))
	if highest > calm+most {
		t.Errorf("the process has held %d MiB, and %d before: more than %d more", highest>>20, calm>>20, most>>20)
	}
	s.waitSays("/readyz", 200)
	s.stop()
	w.exact()
}

// What comes in while the broker is away: 128 MiB.
const (
	backlog     = 2048 // charges
	backlogSize = 64 << 10
)

// TestBrokerAway: the broker is killed, and started later. Others share it, so
// the test is not parallel.
func TestBrokerAway(t *testing.T) {
	w := newWorld(t, 2)
	brokerAway(t, w, func() {
		if err := shared.kafka.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
	}, func() {
		if err := shared.kafka.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.chargeLarge(0, backlog, backlogSize)
	})
}

// TestBrokerSilentlyAway: the network to the broker says nothing any more, or
// refuses. Records come in meanwhile.
func TestBrokerSilentlyAway(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		away func(w *world, on bool)
	}{
		{"frozen", func(w *world, on bool) { w.kafkaProxy.Freeze(on) }},
		{"refused", func(w *world, on bool) { w.kafkaProxy.Refuse(on) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, throughProxies())
			brokerAway(t, w, func() {
				c.away(w, true)
				w.chargeLarge(0, backlog, backlogSize)
			}, func() { c.away(w, false) })
		})
	}
}

// TestHalfOpenKafka: all connections go dead under load, again and again, and
// nobody is told. New ones work.
func TestHalfOpenKafka(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, throughProxies(), withPartitions(2))
	s := w.run("")
	old := w.charge(0, 500)
	w.charge(1, 500)
	w.waitAccounted()
	for range 3 {
		before := w.sent
		w.charge(0, 2000)
		w.charge(1, 2000)
		servers.Eventually(t, time.Minute, func() error {
			n, err := w.accounted()
			if err == nil && n == before {
				err = errors.New("nothing is in")
			}
			return err
		})
		w.kafkaProxy.BlackHole()
		began := time.Now()
		w.again(0, old)
		w.charge(1, 500)
		w.waitAccounted()
		t.Logf("all accounted for after %s, %d sessions have ended", time.Since(began).Round(100*time.Millisecond), s.sessionsEnded())
	}
	if contains(s.output(), "an epoch took too long") == nil {
		t.Error("the time-outs of dead connections have used up the time of a decision")
	}
	s.stop()
	w.exact()
}

// TestServersAwayAtTheStart: what can't be reached is waited for, and said.
func TestServersAwayAtTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, throughProxies())
	w.charge(0, 100)
	w.shardProxy[1].Refuse(true)
	w.kafkaProxy.Freeze(true)
	s := w.run("")
	s.waitSays("/readyz", 503, "waiting for the shards", "s1")
	w.shardProxy[1].Refuse(false)
	s.waitSays("/readyz", 503, "waiting for Kafka")
	s.waitSays("/healthz", 200, "waiting for Kafka")
	w.kafkaProxy.Freeze(false)
	w.waitAccounted()
	s.waitSays("/readyz", 200)
	s.stop()
	w.exact()
}

// TestBrokerAwayWhileIdle: a service with nothing to do says within a session
// timeout that it could do nothing.
func TestBrokerAwayWhileIdle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, throughProxies())
	s := w.run("")
	w.charge(0, 10)
	w.waitAccounted()
	s.waitSays("/readyz", 200)
	frozen := time.Now()
	w.kafkaProxy.Freeze(true)
	s.waitSays("/readyz", 503, "kafka.session_timeout")
	t.Logf("/readyz says so after %s", time.Since(frozen).Round(100*time.Millisecond))
	s.waitSays("/healthz", 200, "kafka.session_timeout")
	w.kafkaProxy.Freeze(false)
	s.waitSays("/readyz", 200)
	w.charge(0, 10)
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestFetchingIsDead: everything works but the fetching of the input. A lane
// that is delivered nothing says so, and the instance is not ready.
func TestFetchingIsDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, throughProxies())
	s := w.run("")
	w.charge(0, 10)
	w.waitAccounted()
	s.waitSays("/readyz", 200)
	lost := w.kafkaProxy.Add(proxy.KafkaRule{Match: proxy.Key(kmsg.Fetch), Do: proxy.DropAnswer{Hang: true}})
	lost.Await(t, 1)
	w.charge(0, 50)
	s.waitSays("/readyz", 503, "nothing was delivered for", "answer no fetch")
	s.waitSays("/healthz", 200, "nothing was delivered for")
	lost.Remove()
	w.waitAccounted()
	s.waitSays("/readyz", 200)
	s.stop()
	w.exact()
}
