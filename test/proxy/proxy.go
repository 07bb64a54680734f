package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy forwards each connection to one target. All its methods may be called at any time, by anybody.
type Proxy struct {
	listener net.Listener
	target   string
	carry    func(*conn) (toServer, toClient func() error) // the two directions of a connection
	ctx      context.Context                               //nolint:containedctx // ends with Close
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	accepted, toServer, toClient atomic.Int64

	mu      sync.Mutex
	conns   map[*conn]struct{}
	refuses bool
	thawed  chan struct{} // open while the proxy is frozen
	delay   time.Duration
	rate    int
	err     error
}

// Stats counts connections and the bytes that were passed on.
type Stats struct {
	Open               int
	Accepted           int64
	ToServer, ToClient int64
}

// New forwards bytes from listen (host:port; port 0 takes a free one) to target, and knows nothing of what they mean.
func New(listen, target string) (*Proxy, error) {
	return start(listen, target, func(c *conn) (toServer, toClient func() error) {
		return func() error { return c.copy(c.client, c.server) }, func() error { return c.copy(c.server, c.client) }
	})
}

func start(listen, target string, carry func(*conn) (toServer, toClient func() error)) (*Proxy, error) {
	l, err := net.Listen("tcp", listen) //nolint:noctx // there is nothing to wait for
	if err != nil {
		return nil, fmt.Errorf("proxy to %s: %w", target, err)
	}
	thawed := make(chan struct{})
	close(thawed)
	p := &Proxy{listener: l, target: target, carry: carry, conns: make(map[*conn]struct{}), thawed: thawed}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where clients connect, host:port.
func (p *Proxy) Addr() string {
	addr, ok := p.listener.Addr().(*net.TCPAddr)
	if !ok || !addr.IP.IsUnspecified() {
		return p.listener.Addr().String()
	}
	return fmt.Sprintf("127.0.0.1:%d", addr.Port)
}

// Close ends all connections and returns when nothing of the proxy is left. Its error is Err's.
func (p *Proxy) Close() error {
	p.cancel()
	_ = p.listener.Close()
	p.Cut()
	p.wg.Wait()
	return p.Err()
}

// Err is the first thing that the proxy did not understand; it has cut that connection. A test that goes on after
// such an error tests something else than it says.
func (p *Proxy) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Stats counts.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Open: len(p.conns), Accepted: p.accepted.Load(), ToServer: p.toServer.Load(), ToClient: p.toClient.Load()}
}

// Cut resets all connections, on both sides. New ones are accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.abort()
	}
}

// Refuse cuts all connections and resets each new one, until it is called with false.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	p.refuses = on
	p.mu.Unlock()
	if on {
		p.Cut()
	}
}

// Freeze stops all bytes in both directions. Connections stay open, new ones are accepted, nobody is told of one
// that ends. Freeze(false) lets everything go on, and what was held comes late.
func (p *Proxy) Freeze(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.thawed:
		if on {
			p.thawed = make(chan struct{})
		}
	default:
		if !on {
			close(p.thawed)
		}
	}
}

// BlackHole makes the connections that exist now dead for ever, as after a firewall that has forgotten them: what
// either side sends is swallowed, and neither is told, not even of the other's end. New connections work.
func (p *Proxy) BlackHole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.dead.Store(true)
	}
}

// Delay makes each frame (of Kafka and of MySQL's client) or piece of bytes wait for so long, in each direction. Those
// of one connection wait one after the other. 0 ends it.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Throttle lets only so many bytes a second pass in each direction of each connection. 0 ends it.
func (p *Proxy) Throttle(bytesPerSecond int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = bytesPerSecond
}

func (p *Proxy) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = fmt.Errorf("proxy to %s: %w", p.target, err)
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.accepted.Add(1)
		c := &conn{proxy: p, client: client}
		c.ctx, c.cancel = context.WithCancel(p.ctx)
		p.mu.Lock()
		refused := p.refuses || p.ctx.Err() != nil
		if !refused {
			p.conns[c] = struct{}{}
		}
		p.mu.Unlock()
		if refused {
			c.abort()
			continue
		}
		p.wg.Go(func() {
			c.serve()
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.conns, c)
		})
	}
}

// conn is one client's connection and the one to the server that belongs to it.
type conn struct {
	proxy  *Proxy
	client net.Conn
	server net.Conn
	ctx    context.Context //nolint:containedctx // ends with the connection
	cancel context.CancelFunc
	dead   atomic.Bool // swallows everything

	mu      sync.Mutex // guards aborted, and server while it is set
	aborted bool
}

// serve returns when both sides are closed.
func (c *conn) serve() {
	defer c.cancel()
	if c.gate() != nil || !c.dial() {
		c.abort()
		return
	}
	toServer, toClient := c.proxy.carry(c)
	var wg sync.WaitGroup
	wg.Go(func() { c.ended(toServer(), c.client) })
	wg.Go(func() { c.ended(toClient(), c.server) })
	wg.Wait()
}

func (c *conn) dial() bool {
	var d net.Dialer
	server, err := d.DialContext(c.ctx, "tcp", c.proxy.target)
	if err != nil {
		return false // the client sees a reset, as it would see the server's refusal
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = server
	return !c.aborted
}

// ended tells the other side that this one has ended, in the way in which it ended.
func (c *conn) ended(err error, from net.Conn) {
	var bad *protocolError
	if errors.As(err, &bad) {
		c.proxy.failed(bad)
	}
	if c.gate() == nil && c.dead.Load() {
		_ = from.Close()
		return
	}
	if !errors.Is(err, io.EOF) {
		c.abort()
		return
	}
	// Closed before the other direction is told, which would reset them.
	_ = c.client.Close()
	_ = c.server.Close()
	c.cancel()
}

// abort resets both sides.
func (c *conn) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted = true
	c.cancel()
	for _, side := range []net.Conn{c.client, c.server} {
		if tcp, ok := side.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
			_ = tcp.Close()
		}
	}
}

// gate returns when the proxy is not frozen.
func (c *conn) gate() error {
	c.proxy.mu.Lock()
	thawed := c.proxy.thawed
	c.proxy.mu.Unlock()
	select {
	case <-thawed:
		return c.ctx.Err()
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}

func (c *conn) pause(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}

// send passes b on to one side, as late and as slowly as the proxy is told.
func (c *conn) send(to net.Conn, b []byte) error {
	c.proxy.mu.Lock()
	delay := c.proxy.delay
	c.proxy.mu.Unlock()
	if delay > 0 {
		if err := c.pause(delay); err != nil {
			return err
		}
	}
	for len(b) > 0 {
		c.proxy.mu.Lock()
		rate := c.proxy.rate
		c.proxy.mu.Unlock()
		piece := b
		if rate > 0 {
			piece = b[:min(len(b), max(1, rate/10))]
			if err := c.pause(time.Duration(len(piece)) * time.Second / time.Duration(rate)); err != nil {
				return err
			}
		}
		if err := c.gate(); err != nil {
			return err
		}
		if !c.dead.Load() {
			if _, err := to.Write(piece); err != nil {
				return err
			}
			if to == c.client {
				c.proxy.toClient.Add(int64(len(piece)))
			} else {
				c.proxy.toServer.Add(int64(len(piece)))
			}
		}
		b = b[len(piece):]
	}
	return nil
}

func (c *conn) copy(from, to net.Conn) error {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			if err := c.send(to, b[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// lose makes the connection silent for ever (see BlackHole) or resets it.
func (c *conn) lose(hang bool) {
	if hang {
		c.dead.Store(true)
	} else {
		c.abort()
	}
}

// protocolError says what the proxy did not understand.
type protocolError struct{ error }

func (e *protocolError) Unwrap() error { return e.error }

func notUnderstood(format string, args ...any) error {
	return &protocolError{fmt.Errorf(format, args...)}
}

// reader has room for what most frames need.
func reader(from net.Conn) *bufio.Reader { return bufio.NewReaderSize(from, 32<<10) }
