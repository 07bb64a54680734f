package proxy

import (
	"bufio"
	"encoding/binary"
	"io"
	"slices"
	"sync/atomic"
)

// MySQL is a proxy before one mysqld. Rules act on statements, which are the texts of COM_QUERY; what a client prepares
// is passed on unseen. TLS, compression and query attributes are taken out of what the server offers.
type MySQL struct {
	*Proxy
	rules[string, MySQLAction]
}

// MySQLRule acts on statements.
type MySQLRule = Rule[string, MySQLAction]

// MySQLAction is DropRequest, DropAnswer, HoldRequest, HoldAnswer, Watch or Fail.
type MySQLAction interface{ onMySQL() }

// Fail answers with an error in the server's place, which never sees the statement.
type Fail struct {
	Number  uint16
	State   string // five characters
	Message string
}

func (DropRequest) onMySQL() {}
func (DropAnswer) onMySQL()  {}
func (HoldRequest) onMySQL() {}
func (HoldAnswer) onMySQL()  {}
func (Watch) onMySQL()       {}
func (Fail) onMySQL()        {}

// NewMySQL stands before the server at target.
func NewMySQL(listen, target string) (*MySQL, error) {
	m := &MySQL{}
	var err error
	m.Proxy, err = start(listen, target, func(c *conn) (toServer, toClient func() error) {
		mc := &mysqlConn{conn: c, mysql: m}
		return mc.commands, mc.answers
	})
	return m, err
}

// mysqlConn: a client sends one command and waits for its answer.
type mysqlConn struct {
	*conn
	mysql   *MySQL
	pending atomic.Pointer[statement] // whose answer is the next thing that the server says
}

type statement struct {
	do     MySQLAction
	handle *Handle
}

const (
	comQuery    = 3
	biggest     = 1<<24 - 1 // a packet of this length goes on in the next one
	errorPacket = 0xff

	clientCompress        = 1 << 5
	clientSSL             = 1 << 11
	clientZstd            = 1 << 26
	clientQueryAttributes = 1 << 27
	notHere               = clientCompress | clientSSL | clientZstd | clientQueryAttributes
)

func (m *mysqlConn) commands() error {
	from := reader(m.client)
	for first := true; ; first = false {
		packets, payload, err := readPackets(from)
		if err != nil {
			return err
		}
		if err := m.gate(); err != nil {
			return err
		}
		if m.dead.Load() {
			continue
		}
		if first && len(payload) >= 4 && binary.LittleEndian.Uint32(payload)&notHere != 0 {
			return notUnderstood("the client asks for TLS, compression or query attributes, which were not offered")
		}
		// Commands begin with sequence 0; what belongs to the handshake never does.
		if packets[3] == 0 && len(payload) > 0 && payload[0] == comQuery {
			err = m.statement(string(payload[1:]), packets)
		} else {
			err = m.send(m.server, packets)
		}
		if err != nil {
			return err
		}
	}
}

func (m *mysqlConn) statement(text string, packets []byte) error {
	do, h := m.mysql.pick(text)
	if h == nil {
		return m.send(m.server, packets)
	}
	if fail, ok := do.(Fail); ok {
		if acted, _ := h.act(func() {}); acted {
			return m.send(m.client, fail.packet(packets))
		}
	}
	if forward, err := m.onRequest(do, h); !forward || err != nil {
		return err
	}
	m.pending.Store(&statement{do: do, handle: h})
	return m.send(m.server, packets)
}

// packet is the answer to a command.
func (f Fail) packet(command []byte) []byte {
	sequence := byte(1 + (len(command)-1)/(4+biggest)) // behind the command's last packet
	b := []byte{0, 0, 0, sequence, errorPacket}
	b = binary.LittleEndian.AppendUint16(b, f.Number)
	b = append(append(append(b, '#'), f.State...), f.Message...)
	n := len(b) - 4
	b[0], b[1], b[2] = byte(n), byte(n>>8), byte(n>>16)
	return b
}

func (m *mysqlConn) answers() error {
	from := reader(m.server)
	greeting, payload, err := readPackets(from)
	if err != nil {
		return err
	}
	if err := offerLess(payload); err != nil {
		return err
	}
	if err := m.send(m.client, append(greeting[:4:4], payload...)); err != nil {
		return err
	}
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return err
		}
		if err := m.gate(); err != nil {
			return err
		}
		if s := m.pending.Swap(nil); s != nil && !m.dead.Load() {
			forward, err := m.onAnswer(s.do, s.handle)
			if err != nil {
				return err
			}
			if !forward {
				continue
			}
		}
		if err := m.send(m.client, b[:n]); err != nil {
			return err
		}
	}
}

// offerLess takes out of the server's greeting what the proxy can't read.
func offerLess(greeting []byte) error {
	if len(greeting) > 0 && greeting[0] == errorPacket {
		return nil // too many connections, for one
	}
	version := slices.Index(greeting, 0) // behind the protocol's number, a text that ends with 0
	// Then the connection's id (4), the first part of the scramble (8), 0, the lower capabilities (2), the character set,
	// the status (2), the higher capabilities (2).
	low := version + 1 + 4 + 8 + 1
	high := low + 2 + 1 + 2
	if version < 0 || greeting[0] != 10 || high+2 > len(greeting) {
		return notUnderstood("a greeting of %d bytes", len(greeting))
	}
	offer := uint32(binary.LittleEndian.Uint16(greeting[low:])) | uint32(binary.LittleEndian.Uint16(greeting[high:]))<<16
	offer &^= notHere
	binary.LittleEndian.PutUint16(greeting[low:], uint16(offer&0xffff))
	binary.LittleEndian.PutUint16(greeting[high:], uint16(offer>>16))
	return nil
}

// readPackets returns one command: its packets as they are, and what is in them. A long one has several packets.
func readPackets(from *bufio.Reader) (packets, payload []byte, err error) {
	for {
		head, err := from.Peek(4)
		if err != nil {
			return nil, nil, err
		}
		n := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
		start := len(packets)
		packets = append(packets, make([]byte, 4+n)...)
		if _, err := io.ReadFull(from, packets[start:]); err != nil {
			return nil, nil, err
		}
		payload = append(payload, packets[start+4:]...)
		if n < biggest {
			return packets, payload, nil
		}
	}
}
