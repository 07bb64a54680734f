package e2e

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/test/servers"
)

var adminPort = regexp.MustCompile(`msg="admin port open" address=(\S+)`)

// ask asks the process's admin port.
func (p *process) ask(path string) (code int, body string, err error) {
	m := adminPort.FindStringSubmatch(p.output())
	if m == nil {
		return 0, "", fmt.Errorf("the admin port is not open")
	}
	resp, err := http.Get("http://" + m[1] + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func (p *process) mustBeReady(want int, within time.Duration) (body string) {
	p.t.Helper()
	servers.Eventually(p.t, within, func() error {
		code, b, err := p.ask("/readyz")
		if err != nil {
			return err
		}
		if body = b; code != want {
			return fmt.Errorf("/readyz answers %d, want %d: %s", code, want, b)
		}
		return nil
	})
	return body
}

var resident = regexp.MustCompile(`VmRSS:\s+(\d+) kB`)

// memory is what the process holds, in bytes.
func (p *process) memory() int64 {
	p.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	m := resident.FindSubmatch(b)
	if m == nil {
		p.t.Fatalf("no VmRSS in %s", b)
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return n << 10
}

// outage is how long servers are away: BILLING_TEST_OUTAGE, or 20 s.
func outage(t *testing.T) time.Duration {
	t.Helper()
	v := os.Getenv("BILLING_TEST_OUTAGE")
	if v == "" {
		return 20 * time.Second
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatal("BILLING_TEST_OUTAGE: ", err)
	}
	return d
}

// bulky sends n charges of 64 KiB each, of what no compression makes less.
func (w *world) bulky(n int) {
	w.t.Helper()
	for range n / 32 {
		var records []*kgo.Record
		for range 32 {
			id := uuid.NewString()
			account, amount := chargeOf(id)
			noise := make([]byte, 48<<10)
			_, _ = rand.Read(noise)
			var m map[string]any
			if err := json.Unmarshal(message(id, account, amount), &m); err != nil {
				w.t.Fatal(err)
			}
			m["noise"] = base64.StdEncoding.EncodeToString(noise)
			b, err := json.Marshal(m)
			if err != nil {
				w.t.Fatal(err)
			}
			records = append(records, &kgo.Record{Value: b, Headers: structured})
			w.expect(account, amount)
		}
		w.produce(records...)
	}
}

// away takes the broker away from a service and gives it back, with a backlog
// that is far larger than what the service may hold. The service pauses, says
// so, and goes on unaided, within its memory.
func away(t *testing.T, w *world, take, give func()) {
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
	s.mustBeReady(200, time.Minute)
	calm := s.memory()

	took := time.Now()
	take()
	why := s.mustBeReady(503, time.Minute)
	t.Logf("/readyz after %s: %s", time.Since(took).Round(100*time.Millisecond), why)
	highest := s.memory()
	watch := time.NewTicker(100 * time.Millisecond)
	defer watch.Stop()
	for end := took.Add(outage(t)); time.Now().Before(end); <-watch.C {
		highest = max(highest, s.memory())
		if code, body, err := s.ask("/readyz"); err != nil || code != http.StatusServiceUnavailable {
			t.Fatalf("/readyz while the broker is away: %d %s, %v", code, body, err)
		}
	}
	t.Logf("memory: %d MiB before, at most %d while the broker is away", calm>>20, highest>>20)

	give()
	gave := time.Now()
	w.again(0, ids[:50])
	servers.Eventually(t, 3*time.Minute, func() error {
		highest = max(highest, s.memory())
		if n, err := w.accounted(); err != nil || n != w.sent {
			return fmt.Errorf("%d of %d records accounted for (%v)", n, w.sent, err)
		}
		return nil
	})
	t.Logf("memory: at most %d MiB; all accounted for %s after the broker", highest>>20, time.Since(gave).Round(100*time.Millisecond))
	if highest > calm+most {
		t.Errorf("the process has held %d MiB, and %d before: more than %d more", highest>>20, calm>>20, most>>20)
	}
	s.mustBeReady(200, time.Minute)
	w.waitAccounted()
	s.stop()
	w.exact()
}

const backlog = 2048 // bulky charges: 128 MiB

// TestBrokerAway: the broker is killed, and started later. Others share it, so
// the test is not parallel.
func TestBrokerAway(t *testing.T) {
	w := newWorld(t, 2)
	away(t, w, func() {
		if err := shared.kafka.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
	}, func() {
		if err := shared.kafka.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.bulky(backlog)
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
			away(t, w, func() {
				c.away(w, true)
				w.bulky(backlog)
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
			if n, err := w.accounted(); err != nil || n == before {
				return fmt.Errorf("nothing is in (%v)", err)
			}
			return nil
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
