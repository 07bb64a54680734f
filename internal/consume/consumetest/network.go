package consumetest

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Network is the way from one Client to the brokers. It loses what it is told
// to lose, so that a lost answer comes when the test wants it, on a fake
// broker and on a real one alike.
type Network struct {
	mu     sync.Mutex
	sent   map[kmsg.Key]int
	faults map[kmsg.Key]*Fault
	nth    *nth
}

// NewNetwork makes one without faults.
func NewNetwork() *Network {
	return &Network{sent: map[kmsg.Key]int{}, faults: map[kmsg.Key]*Fault{}}
}

// Fault is what happens to all requests of one key until Heal.
type Fault struct {
	network *Network
	key     kmsg.Key
	kind    kind
	hit     chan struct{} // one element for each request or answer that was lost or held
	healed  chan struct{}
}

type kind int

const (
	drop kind = iota // the request never leaves; its connection stays silent
	cut              // the request never leaves; its connection breaks
	lose             // the broker has answered; the connection breaks before the answer
	hold             // the broker has answered; the answer comes at Heal
)

func (k kind) String() string {
	return [...]string{"request dropped", "request cut", "answer lost", "answer late"}[k]
}

// Drop keeps requests from leaving; nobody is told.
func (n *Network) Drop(key kmsg.Key) *Fault { return n.fault(key, drop) }

// Cut keeps requests from leaving, and breaks their connections.
func (n *Network) Cut(key kmsg.Key) *Fault { return n.fault(key, cut) }

// Lose lets requests reach the broker and breaks the connection when it has
// answered: applied, answer lost.
func (n *Network) Lose(key kmsg.Key) *Fault { return n.fault(key, lose) }

// Hold lets requests reach the broker and keeps the answers until Heal.
func (n *Network) Hold(key kmsg.Key) *Fault { return n.fault(key, hold) }

func (n *Network) fault(key kmsg.Key, k kind) *Fault {
	// The capacity is more than a client sends in a test; beyond it hits are
	// not counted.
	f := &Fault{network: n, key: key, kind: k, hit: make(chan struct{}, 1024), healed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults[key] = f
	return f
}

// Await returns when the fault has hit another request.
func (f *Fault) Await(t testing.TB) {
	t.Helper()
	select {
	case <-f.hit:
	case <-t.Context().Done():
		t.Fatal("the fault hit nothing")
	}
}

// Heal ends the fault.
func (f *Fault) Heal() {
	f.network.mu.Lock()
	defer f.network.mu.Unlock()
	if f.network.faults[f.key] == f {
		delete(f.network.faults, f.key)
	}
	select {
	case <-f.healed:
	default:
		close(f.healed)
	}
}

// nth is a fault of one request, whatever it asks, and maybe of those behind it.
type nth struct {
	*Fault
	left   int // requests before it
	behind bool
	hits   int
}

// LoseNth has the n-th request from now on lost, whatever it asks, and with
// behind all those after it too, until heal, which says how many it were. What
// keeps the member in its group is not counted and not lost.
func (n *Network) LoseNth(of int, how kind, behind bool) (heal func() int) {
	f := &nth{Fault: &Fault{network: n, kind: how, hit: make(chan struct{}, 1024), healed: make(chan struct{})}, left: of - 1, behind: behind}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nth = f
	return func() int {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.nth = nil
		close(f.healed)
		return f.hits
	}
}

// lost is the fault of a request, nil for none. mu is held.
func (n *Network) lost(key kmsg.Key) *Fault {
	if f := n.faults[key]; f != nil {
		return f
	}
	switch f := n.nth; {
	case f == nil, key == kmsg.JoinGroup, key == kmsg.SyncGroup, key == kmsg.Heartbeat, key == kmsg.LeaveGroup, key == kmsg.ConsumerGroupHeartbeat:
		return nil
	case f.left > 0:
		f.left--
		return nil
	case f.hits > 0 && !f.behind:
		return nil
	default:
		f.hits++
		return f.Fault
	}
}

func (f *Fault) note() {
	select {
	case f.hit <- struct{}{}:
	default:
	}
}

// Sent counts the requests of a key that have left.
func (n *Network) Sent(key kmsg.Key) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sent[key]
}

// Dial is for consume.Config.
func (n *Network) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, network: n, closed: make(chan struct{})}, nil
}

type conn struct {
	net.Conn
	network *Network

	mu      sync.Mutex
	next    *Fault // what happens to the next answer
	until   time.Time
	closing sync.Once
	closed  chan struct{}
}

var errCut = errors.New("the network was cut")

// Write gets one whole request.
func (c *conn) Write(b []byte) (int, error) {
	key := kmsg.Key(int16(binary.BigEndian.Uint16(b[4:])))
	c.network.mu.Lock()
	f := c.network.lost(key)
	if f == nil || f.kind == lose || f.kind == hold {
		c.network.sent[key]++
	}
	c.network.mu.Unlock()
	if f != nil {
		switch f.kind {
		case drop:
			f.note()
			return len(b), nil
		case cut:
			_ = c.Close()
			f.note()
			return 0, errCut
		default:
			c.mu.Lock()
			c.next = f
			c.mu.Unlock()
		}
	}
	return c.Conn.Write(b)
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	f := c.next
	if err == nil {
		c.next = nil
	}
	c.mu.Unlock()
	if err != nil || f == nil {
		return n, err
	}
	// The broker has answered: what was asked is done.
	f.note()
	if f.kind == lose {
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	c.mu.Lock()
	wait := time.Until(c.until)
	if c.until.IsZero() {
		wait = 2 * patience
	}
	c.mu.Unlock()
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case <-f.healed:
		return n, nil
	case <-c.closed:
		return 0, net.ErrClosed
	case <-late.C:
		return 0, os.ErrDeadlineExceeded
	}
}

// SetReadDeadline holds for answers that are held back, too.
func (c *conn) SetReadDeadline(at time.Time) error {
	c.mu.Lock()
	c.until = at
	c.mu.Unlock()
	return c.Conn.SetReadDeadline(at)
}

func (c *conn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
