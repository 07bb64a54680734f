package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tcpServer calls serve for each connection, and closes all of them at the end of the test.
func tcpServer(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}

// echoing is a proxy before a server that sends back what it gets; ended tells of each connection that it has lost.
func echoing(t *testing.T) (p *Proxy, ended chan error) {
	t.Helper()
	ended = make(chan error, 100) // more than a test has connections
	addr := tcpServer(t, func(c net.Conn) {
		_, err := io.Copy(c, c)
		ended <- err
	})
	p, err := New("127.0.0.1:0", addr)
	closeAfter(t, p, err)
	return p, ended
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ask sends a text and waits for it to come back.
func ask(c net.Conn, text string, timeout time.Duration) error {
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	return hear(c, text, timeout)
}

func hear(c net.Conn, text string, timeout time.Duration) error {
	_ = c.SetReadDeadline(time.Now().Add(timeout))
	b := make([]byte, len(text))
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if string(b) != text {
		return fmt.Errorf("heard %q, want %q", b, text)
	}
	return nil
}

const (
	soon  = 200 * time.Millisecond // nothing comes, as far as we wait
	bound = time.Minute            // something comes
)

func mustAsk(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if err := ask(c, text, bound); err != nil {
		t.Fatal(err)
	}
}

func mustBeSilent(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%v, want silence", err)
	}
}

func mustBeBroken(t *testing.T, err error) {
	t.Helper()
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%v, want a broken connection", err)
	}
}

// mustNotServe: a reset may come before dial has returned.
func mustNotServe(t *testing.T, p *Proxy) {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err == nil {
		defer c.Close()
		err = hear(c, "x", bound)
	}
	mustBeBroken(t, err)
}

func TestCut(t *testing.T) {
	p, ended := echoing(t)
	c := dial(t, p)
	mustAsk(t, c, "a")
	p.Cut()
	mustBeBroken(t, hear(c, "b", bound))
	if err := <-ended; err == nil {
		t.Error("the server saw a good end, want a reset")
	}
	mustAsk(t, dial(t, p), "c")
}

func TestRefuse(t *testing.T) {
	p, _ := echoing(t)
	c := dial(t, p)
	mustAsk(t, c, "a")
	p.Refuse(true)
	mustBeBroken(t, hear(c, "b", bound))
	mustNotServe(t, p)
	p.Refuse(false)
	mustAsk(t, dial(t, p), "c")
}

func TestFreeze(t *testing.T) {
	p, _ := echoing(t)
	old := dial(t, p)
	mustAsk(t, old, "a")
	p.Freeze(true)
	p.Freeze(true) // twice is once
	mustBeSilent(t, ask(old, "b", soon))
	fresh := dial(t, p)
	mustBeSilent(t, ask(fresh, "c", soon))
	p.Freeze(false)
	if err := errors.Join(hear(old, "b", bound), hear(fresh, "c", bound)); err != nil {
		t.Fatal(err)
	}
	p.Freeze(true)
	p.Cut()
	mustBeBroken(t, hear(old, "d", bound))
}

func TestFrozenProxyDoesNotConnect(t *testing.T) {
	connected := make(chan struct{}, 1)
	p, err := New("127.0.0.1:0", tcpServer(t, func(net.Conn) { connected <- struct{}{} }))
	closeAfter(t, p, err)
	p.Freeze(true)
	dial(t, p)
	select {
	case <-connected:
		t.Fatal("the server has a connection")
	case <-time.After(soon):
	}
	p.Freeze(false)
	<-connected
}

func TestFreezeTellsNobodyOfAnEnd(t *testing.T) {
	p, ended := echoing(t)
	c := dial(t, p)
	mustAsk(t, c, "a")
	p.Freeze(true)
	_ = c.Close()
	select {
	case err := <-ended:
		t.Fatalf("the server was told: %v", err)
	case <-time.After(soon):
	}
	p.Freeze(false)
	if err := <-ended; err != nil {
		t.Errorf("the server saw %v, want a good end", err)
	}
}

func TestBlackHole(t *testing.T) {
	p, ended := echoing(t)
	c := dial(t, p)
	mustAsk(t, c, "a")
	p.BlackHole()
	mustBeSilent(t, ask(c, "b", soon))
	_ = c.Close()
	mustAsk(t, dial(t, p), "c")
	select {
	case err := <-ended:
		t.Fatalf("the server was told: %v", err)
	default:
	}
	if n := p.Stats().Open; n != 2 {
		t.Errorf("%d connections open, want the dead one and the new one", n)
	}
}

func TestDelay(t *testing.T) {
	p, _ := echoing(t)
	c := dial(t, p)
	mustAsk(t, c, "a")
	p.Delay(50 * time.Millisecond)
	start := time.Now()
	mustAsk(t, c, "b")
	if took := time.Since(start); took < 100*time.Millisecond {
		t.Errorf("there and back took %s, less than twice the delay", took)
	}
	p.Delay(time.Hour)
	mustBeSilent(t, ask(c, "c", soon))
}

func TestThrottle(t *testing.T) {
	p, _ := echoing(t)
	c := dial(t, p)
	p.Throttle(1000)
	start := time.Now()
	mustAsk(t, c, string(make([]byte, 300)))
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("300 bytes took %s at 1000 bytes a second", took)
	}
	p.Throttle(0)
	mustAsk(t, c, string(make([]byte, 1<<20)))
	if got := p.Stats(); got.ToServer != 1<<20+300 || got.ToClient != 1<<20+300 || got.Accepted != 1 || got.Open != 1 {
		t.Errorf("%+v", got)
	}
}

// What either side does to its connection, the other one sees.
func TestEndsPassThrough(t *testing.T) {
	p, ended := echoing(t)
	c := dial(t, p)
	mustAsk(t, c, "a")
	_ = c.Close()
	if err := <-ended; err != nil {
		t.Errorf("the server saw %v, want a good end", err)
	}

	addr := tcpServer(t, func(c net.Conn) { _, _ = io.WriteString(c, "bye") })
	p, err := New("127.0.0.1:0", addr)
	closeAfter(t, p, err)
	if b, err := io.ReadAll(dial(t, p)); string(b) != "bye" || err != nil {
		t.Errorf("%q, %v, want the server's last words and a good end", b, err)
	}

	p, err = New("127.0.0.1:0", "127.0.0.1:1")
	closeAfter(t, p, err)
	mustNotServe(t, p)
}
