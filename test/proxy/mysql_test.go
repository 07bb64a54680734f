package proxy

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// fakeMySQL lets everybody in and says OK to everything. It remembers the statements.
type fakeMySQL struct {
	mu         sync.Mutex
	statements []string
}

func (f *fakeMySQL) saw(statement string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.statements, statement)
}

func packet(sequence byte, payload ...byte) []byte {
	n := len(payload)
	return append([]byte{byte(n), byte(n >> 8), byte(n >> 16), sequence}, payload...)
}

const offered = 0x00ff_ffff | notHere // all that a server of our times has, and what the proxy can't read

func (f *fakeMySQL) serve(c net.Conn) {
	greeting := append([]byte{10}, "8.4.0\x00"...)
	greeting = append(greeting, 1, 0, 0, 0)
	greeting = append(greeting, "12345678\x00"...)
	greeting = binary.LittleEndian.AppendUint16(greeting, uint16(offered&0xffff))
	greeting = append(greeting, 45, 2, 0)
	greeting = binary.LittleEndian.AppendUint16(greeting, uint16(offered>>16))
	greeting = append(greeting, 21)
	greeting = append(greeting, make([]byte, 10)...)
	greeting = append(greeting, "123456789012\x00mysql_native_password\x00"...)
	ok := []byte{0, 1, 0, 2, 0, 0, 0} // one row changed
	if _, err := c.Write(packet(0, greeting...)); err != nil {
		return
	}
	from := reader(c)
	if _, _, err := readPackets(from); err != nil {
		return
	}
	for sequence := byte(2); ; {
		if _, err := c.Write(packet(sequence, ok...)); err != nil {
			return
		}
		packets, payload, err := readPackets(from)
		if err != nil {
			return
		}
		sequence = 1 + byte((len(packets)-1)/(4+biggest))
		if payload[0] == comQuery {
			f.mu.Lock()
			f.statements = append(f.statements, string(payload[1:]))
			f.mu.Unlock()
		}
	}
}

func mysqlRig(t *testing.T, params string) (*MySQL, *fakeMySQL, *sql.DB) {
	t.Helper()
	f := &fakeMySQL{}
	m := MySQLFor(t, tcpServer(t, f.serve))
	cfg, err := mysql.ParseDSN("user:secret@tcp(" + m.Addr() + ")/" + params)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Logger = &mysql.NopLogger{} // broken connections are what this is about
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	return m, f, db
}

func exec(db *sql.DB, statement string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	// On a connection of its own the pool repeats nothing.
	c, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.ExecContext(ctx, statement)
	return err
}

func TestMySQLActions(t *testing.T) {
	broken := func(err error) bool { return errors.Is(err, mysql.ErrInvalidConn) }
	silent := func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }
	for _, c := range []struct {
		name    string
		do      MySQLAction
		want    func(error) bool
		applied bool
	}{
		{"drop the request, cut", DropRequest{}, broken, false},
		{"drop the request, hang", DropRequest{Hang: true}, silent, false},
		{"drop the answer, cut", DropAnswer{}, broken, true},
		{"drop the answer, hang", DropAnswer{Hang: true}, silent, true},
		{"fail", Fail{Number: 1205, State: "HY000", Message: "Lock wait timeout exceeded"}, func(err error) bool {
			var answer *mysql.MySQLError
			return errors.As(err, &answer) && answer.Number == 1205 && string(answer.SQLState[:]) == "HY000" && strings.HasPrefix(answer.Message, "Lock wait")
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, f, db := mysqlRig(t, "")
			h := m.Add(MySQLRule{Match: Statement("XA COMMIT", "'b'"), Times: 1, Do: c.do})
			for _, pass := range []string{"XA PREPARE 'b'", "XA COMMIT 'a'"} {
				if err := exec(db, pass, bound); err != nil || !f.saw(pass) {
					t.Fatal(pass, err)
				}
			}
			timeout := bound
			if strings.Contains(c.name, "hang") {
				timeout = time.Second
			}
			if err := exec(db, "XA COMMIT 'b'", timeout); !c.want(err) {
				t.Errorf("%v", err)
			}
			h.Await(t, 1)
			if f.saw("XA COMMIT 'b'") != c.applied {
				t.Errorf("the server saw the statement: %t", !c.applied)
			}
			if err := exec(db, "XA COMMIT 'b'", bound); err != nil || !f.saw("XA COMMIT 'b'") {
				t.Errorf("the second time: %v", err)
			}
		})
	}
}

func TestMySQLHolds(t *testing.T) {
	for _, c := range []struct {
		name    string
		do      MySQLAction
		applied bool
	}{{"request", HoldRequest{}, false}, {"answer", HoldAnswer{}, true}} {
		t.Run(c.name, func(t *testing.T) {
			m, f, db := mysqlRig(t, "")
			h := m.Add(MySQLRule{Match: Statement("XA COMMIT"), Do: c.do})
			answered := make(chan error, 1)
			go func() { answered <- exec(db, "XA COMMIT 'b'", bound) }()
			h.Await(t, 1)
			if f.saw("XA COMMIT 'b'") != c.applied {
				t.Errorf("the server saw the statement: %t", !c.applied)
			}
			select {
			case err := <-answered:
				t.Fatalf("answered while it was held: %v", err)
			default:
			}
			h.Release()
			if err := <-answered; err != nil || !f.saw("XA COMMIT 'b'") {
				t.Fatal(err)
			}
		})
	}
}

// A statement of more than one packet is one statement.
func TestMySQLLongStatement(t *testing.T) {
	for _, n := range []int{biggest - 2, biggest - 1} { // with the command's byte: one packet, and one with an empty one behind it
		m, f, db := mysqlRig(t, "?maxAllowedPacket=40000000")
		long := "INSERT " + strings.Repeat("x", n-len("INSERT "))
		h := m.Add(MySQLRule{Match: Statement("INSERT"), Skip: 1, Times: 1, Do: Fail{Number: 1205, State: "HY000"}})
		if err := exec(db, long, bound); err != nil || !f.saw(long) {
			t.Fatalf("%d bytes: %v", n, err)
		}
		var answer *mysql.MySQLError
		if err := exec(db, long, bound); !errors.As(err, &answer) || h.Hits() != 1 {
			t.Fatalf("%d bytes: %v, %d hits", n, err, h.Hits())
		}
		if err := exec(db, "SELECT", bound); err != nil {
			t.Fatalf("behind %d bytes: %v", n, err)
		}
	}
}

// The driver does not look at an error's sequence; others do.
func TestMySQLFailHasTheNextSequence(t *testing.T) {
	for _, c := range []struct {
		command int // with its packets' heads
		want    byte
	}{{4 + 1, 1}, {4 + biggest - 1, 1}, {4 + biggest + 4, 2}, {4 + biggest + 4 + 1, 2}} {
		if got := (Fail{State: "HY000"}).packet(make([]byte, c.command))[3]; got != c.want {
			t.Errorf("behind %d bytes: %d, want %d", c.command, got, c.want)
		}
	}
}

// What the proxy can't read is not offered; a client that wants it without an offer is an error of the test.
func TestMySQLOffersLess(t *testing.T) {
	_, _, db := mysqlRig(t, "?tls=true")
	if err := db.Ping(); !errors.Is(err, mysql.ErrNoTLS) {
		t.Errorf("%v", err)
	}
	m, err := NewMySQL("127.0.0.1:0", tcpServer(t, (&fakeMySQL{}).serve))
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, m.Proxy)
	if _, _, err := readPackets(reader(c)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(packet(1, binary.LittleEndian.AppendUint32(nil, clientSSL)...)); err != nil {
		t.Fatal(err)
	}
	mustBeBroken(t, hear(c, "x", bound))
	if err := m.Close(); err == nil || !strings.Contains(err.Error(), "TLS") {
		t.Errorf("%v", err)
	}
}
