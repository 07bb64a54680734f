package proxy

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Kafka is a proxy before one broker.
//
// In the answers that name brokers it puts itself in the place of its target, so that clients that start at it stay on
// it. The target must be the address, host:port, that the broker advertises. Other brokers stay as they are: clients
// go to them directly, unless each of them is reached by a proxy too and the client knows no other way.
//
// Connections without TLS and SASL only. A Produce request without acks has no answer, and is not for rules on answers.
type Kafka struct {
	*Proxy
	rules[*Request, KafkaAction]
	rewrites bool
}

// KafkaRule acts on requests.
type KafkaRule = Rule[*Request, KafkaAction]

// KafkaAction is DropRequest, DropAnswer, HoldRequest, HoldAnswer, Watch, Patch or Answer.
type KafkaAction interface{ onKafka() }

// Patch changes an answer: the broker has done what was asked, and the client hears something else. It gets and
// returns what is behind the answer's header; nil says that it can't, which is an error of the proxy's.
type Patch func(r *Request, answer []byte) []byte

// Answer answers in the broker's place, which never sees the request. It returns what is behind the answer's header;
// nil says that it can't, which is an error of the proxy's.
type Answer func(r *Request) []byte

func (DropRequest) onKafka() {}
func (DropAnswer) onKafka()  {}
func (HoldRequest) onKafka() {}
func (HoldAnswer) onKafka()  {}
func (Watch) onKafka()       {}
func (Patch) onKafka()       {}
func (Answer) onKafka()      {}

// Request is what a client asks.
type Request struct {
	Key      kmsg.Key
	Version  int16
	ClientID string
	Body     []byte // behind the header; not to be changed

	correlation int32
}

// NewKafka stands before the broker that advertises target.
func NewKafka(listen, target string) (*Kafka, error) { return newKafka(listen, target, true) }

// NewInterBroker stands before the listener at which a broker reaches itself and others, and leaves the addresses in
// answers alone. See servers.WithInterBrokerProxy.
func NewInterBroker(listen, target string) (*Kafka, error) { return newKafka(listen, target, false) }

func newKafka(listen, target string, rewrites bool) (*Kafka, error) {
	k := &Kafka{rewrites: rewrites}
	var err error
	k.Proxy, err = start(listen, target, func(c *conn) (toServer, toClient func() error) {
		kc := &kafkaConn{conn: c, kafka: k}
		return kc.requests, kc.answers
	})
	return k, err
}

// kafkaConn matches answers with requests: a broker answers those of one connection in their order.
type kafkaConn struct {
	*conn
	kafka *Kafka

	mu   sync.Mutex
	open []*exchange // requests that were not answered yet
}

type exchange struct {
	request *Request
	do      KafkaAction
	handle  *Handle
	own     []byte // the whole answer, where it does not come from the broker
}

func (k *kafkaConn) requests() error {
	from := reader(k.client)
	for {
		frame, err := readFrame(from)
		if err != nil {
			return err
		}
		if err := k.gate(); err != nil {
			return err
		}
		if k.dead.Load() {
			continue
		}
		r, err := parseRequest(frame[4:])
		if err != nil {
			return err
		}
		if err := k.request(r, frame); err != nil {
			return err
		}
	}
}

func (k *kafkaConn) request(r *Request, frame []byte) error {
	x := &exchange{request: r}
	x.do, x.handle = k.kafka.pick(r)
	if answer, ok := x.do.(Answer); ok {
		var body []byte
		if acted, _ := x.handle.act(func() { body = answer(r) }); acted {
			if body == nil {
				return notUnderstood("a rule has no answer to %s of version %d", r.Key.Name(), r.Version)
			}
			x.own = r.answerFrame(body)
			k.mu.Lock()
			defer k.mu.Unlock()
			k.open = append(k.open, x)
			return k.flush()
		}
	}
	if forward, err := k.onRequest(x.do, x.handle); !forward || err != nil {
		return err
	}
	k.mu.Lock()
	k.open = append(k.open, x)
	k.mu.Unlock()
	return k.send(k.server, frame)
}

// flush sends the proxy's own answers whose turn it is. The caller has the lock; the other direction writes only while
// an answer of the broker's is the next, so the two never write at once.
func (k *kafkaConn) flush() error {
	for len(k.open) > 0 && k.open[0].own != nil {
		if err := k.send(k.client, k.open[0].own); err != nil {
			return err
		}
		k.open = k.open[1:]
	}
	return nil
}

func (k *kafkaConn) answers() error {
	from := reader(k.server)
	for {
		frame, err := readFrame(from)
		if err != nil {
			return err
		}
		if err := k.gate(); err != nil {
			return err
		}
		if k.dead.Load() {
			continue
		}
		x, err := k.answered(frame)
		if err != nil {
			return err
		}
		forward, err := k.onAnswer(x.do, x.handle)
		if err != nil {
			return err
		}
		if !forward {
			continue
		}
		if frame, err = k.rewrite(x, frame); err != nil {
			return err
		}
		if err := k.send(k.client, frame); err != nil {
			return err
		}
		k.mu.Lock()
		k.open = k.open[1:]
		err = k.flush()
		k.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// answered finds the request, and leaves it the first of the open ones. Those before it had no answer to wait for.
func (k *kafkaConn) answered(frame []byte) (*exchange, error) {
	correlation := int32(binary.BigEndian.Uint32(frame[4:])) //nolint:gosec // the same bits
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, x := range k.open {
		if x.request.correlation == correlation && x.own == nil {
			k.open = k.open[i:]
			return x, nil
		}
	}
	return nil, notUnderstood("an answer to request %d, which was not asked", correlation)
}

// rewrite makes of the broker's answer what the client gets.
func (k *kafkaConn) rewrite(x *exchange, frame []byte) ([]byte, error) {
	r := x.request
	body := frame[len(r.answerFrame(nil)):]
	if k.kafka.rewrites && namesBrokers(r, body, k.kafka.target) {
		var err error
		if body, err = readdress(r, body, k.kafka.target, k.kafka.Addr()); err != nil {
			return nil, err
		}
		frame = r.answerFrame(body)
	}
	if patch, ok := x.do.(Patch); ok {
		if acted, _ := x.handle.act(func() { body = patch(r, body) }); acted {
			if body == nil {
				return nil, notUnderstood("a rule can't patch the answer to %s of version %d", r.Key.Name(), r.Version)
			}
			frame = r.answerFrame(body)
		}
	}
	return frame, nil
}

// Decode reads the body.
func (r *Request) Decode() (kmsg.Request, error) {
	req := kmsg.RequestForKey(int16(r.Key))
	if req == nil || r.Version > req.MaxVersion() {
		return nil, fmt.Errorf("%s of version %d is not known", r.Key.Name(), r.Version)
	}
	req.SetVersion(r.Version)
	if err := req.ReadFrom(r.Body); err != nil {
		return nil, fmt.Errorf("%s of version %d: %w", r.Key.Name(), r.Version, err)
	}
	return req, nil
}

// answerFrame puts size and header before an answer's body.
func (r *Request) answerFrame(body []byte) []byte {
	frame := binary.BigEndian.AppendUint32(nil, 0)
	frame = binary.BigEndian.AppendUint32(frame, uint32(r.correlation)) //nolint:gosec // the same bits
	// ApiVersions is asked before the versions are known: its answer's header is the oldest one.
	if req := kmsg.RequestForKey(int16(r.Key)); req != nil && r.Key != kmsg.ApiVersions {
		if req.SetVersion(r.Version); req.IsFlexible() {
			frame = append(frame, 0) // no tags
		}
	}
	frame = append(frame, body...)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4)) //nolint:gosec // a frame's size
	return frame
}

const maxFrame = 512 << 20

// readFrame returns a frame with its size before it.
func readFrame(from *bufio.Reader) ([]byte, error) {
	size, err := from.Peek(4)
	if err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size)
	if n < 4 || n > maxFrame {
		return nil, notUnderstood("a frame of %d bytes", n)
	}
	frame := make([]byte, 4+int(n))
	_, err = io.ReadFull(from, frame)
	return frame, err
}

func parseRequest(b []byte) (*Request, error) {
	if len(b) < 10 {
		return nil, notUnderstood("a request of %d bytes", len(b))
	}
	r := &Request{
		Key:         kmsg.Key(int16(binary.BigEndian.Uint16(b))), //nolint:gosec // the same bits
		Version:     int16(binary.BigEndian.Uint16(b[2:])),       //nolint:gosec // the same bits
		correlation: int32(binary.BigEndian.Uint32(b[4:])),       //nolint:gosec // the same bits
		Body:        b[10:],
	}
	if n := int(int16(binary.BigEndian.Uint16(b[8:]))); n > 0 { //nolint:gosec // -1 is none
		if n > len(r.Body) {
			return nil, notUnderstood("a client id of %d bytes in %s", n, r.Key.Name())
		}
		r.ClientID, r.Body = string(r.Body[:n]), r.Body[n:]
	}
	req := kmsg.RequestForKey(int16(r.Key))
	if req == nil {
		return r, nil
	}
	if req.SetVersion(r.Version); !req.IsFlexible() {
		return r, nil
	}
	number := func() uint64 {
		v, n := binary.Uvarint(r.Body)
		r.Body = r.Body[max(0, n):]
		return v
	}
	for range number() { // tags: number, size, bytes
		number()
		n := number()
		if n > uint64(len(r.Body)) {
			return nil, notUnderstood("the header of %s", r.Key.Name())
		}
		r.Body = r.Body[n:]
	}
	return r, nil
}
