package txsink

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"billing/internal/checkpoint"
)

// Supported names the servers that are known to keep what they acknowledge.
const Supported = "MySQL 8.0.30 or later"

// minPacket is the smallest max_allowed_packet that every statement fits in. The
// longest has the marks of a million rows, which is the most of an epoch (see
// checkpoint.max_records): 7 bytes each, written as hex.
const minPacket = 16 << 20

// server is what the fitness of a MySQL server is judged by.
type server struct {
	version, comment string            // @@version, @@version_comment
	connection       uint32            // CONNECTION_ID(), its last 32 bits
	greeted          uint32            // the same connection in the greeting that we were sent
	vars             map[string]string // global variables; what a server does not know is missing
}

// look reads the product and the settings. It connects without the session's
// variables, as another product may not know them.
func (s *shard) look(ctx context.Context) (v server, err error) {
	bare := s.driver.Clone()
	bare.Params = nil
	var first *greeting
	bare.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{Timeout: bare.Timeout}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		first = &greeting{Conn: c}
		return first, nil
	}
	connector, err := mysql.NewConnector(bare)
	if err != nil {
		return v, errDSN
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	c, err := db.Conn(ctx)
	if err != nil {
		return v, fmt.Errorf("connect: %w", err)
	}
	defer c.Close()
	var id uint64
	if err := c.QueryRowContext(ctx, "SELECT @@version, @@version_comment, CONNECTION_ID()").Scan(&v.version, &v.comment, &id); err != nil {
		return v, fmt.Errorf("look at the server: %w", err)
	}
	v.connection = uint32(id)
	if v.greeted, err = first.connection(); err != nil {
		return v, fmt.Errorf("look at the server: %w", err)
	}
	rows, err := c.QueryContext(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'super_read_only', 'xa_detach_on_prepare',"+
		" 'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'binlog_format', 'max_allowed_packet', 'server_uuid', 'wsrep_on')")
	if err != nil {
		return v, fmt.Errorf("read the server's settings: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	v.vars = make(map[string]string)
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return v, fmt.Errorf("read the server's settings: %w", err)
		}
		v.vars[strings.ToLower(name)] = value
	}
	if err := rows.Err(); err != nil {
		return v, fmt.Errorf("read the server's settings: %w", err)
	}
	return v, nil
}

// greeting is a connection that keeps the first packet that it is sent.
type greeting struct {
	net.Conn
	packet []byte
}

// maxGreeting is more than the part of a greeting that is read here.
const maxGreeting = 512

func (g *greeting) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if room := maxGreeting - len(g.packet); room > 0 {
		g.packet = append(g.packet, b[:min(n, room)]...)
	}
	return n, err
}

// connection is the number that the greeting gives the connection: behind the
// packet's header, the protocol's version, and the server's, which ends in 0.
func (g *greeting) connection() (uint32, error) {
	const head = 4 + 1
	if len(g.packet) > head {
		if end := bytes.IndexByte(g.packet[head:], 0); end >= 0 && len(g.packet) >= head+end+1+4 {
			return binary.LittleEndian.Uint32(g.packet[head+end+1:]), nil
		}
	}
	return 0, errors.New("a greeting that is not MySQL's")
}

func refuse(reason, shard, wrong, next string) *checkpoint.Refusal {
	return &checkpoint.Refusal{Scope: checkpoint.EndsProcess, Reason: reason, What: shard, Wrong: wrong, Next: next}
}

func serverChanged(shard, recorded, found string) *checkpoint.Refusal {
	return refuse(checkpoint.ReasonServerChanged, shard,
		fmt.Sprintf("the server is %s, the recorded one is %s", found, recorded),
		"after a planned failover to a server that has everything, accept it by name: --accept "+checkpoint.ReasonServerChanged+":"+shard+
			"; otherwise point the DSN at the recorded server")
}

// otherProducts speak MySQL's protocol but have no XA that survives a crash, or
// none at all.
var otherProducts = map[string]string{
	"mariadb":        "MariaDB",
	"tidb":           "TiDB",
	"vitess":         "Vitess",
	"galera":         "Galera",
	"wsrep":          "Galera",
	"xtradb cluster": "Galera",
	"oceanbase":      "OceanBase",
	"proxysql":       "ProxySQL, a multiplexing proxy,",
}

// productProblem is nil for a MySQL of a usable version. Nothing else can be
// asked of another product.
func (v *server) productProblem(shard string) error {
	is := strings.ToLower(v.version + " " + v.comment)
	for word, product := range otherProducts {
		if strings.Contains(is, word) {
			return v.otherProduct(shard, product)
		}
	}
	if on := v.vars["wsrep_on"]; strings.EqualFold(on, "ON") || on == "1" {
		return v.otherProduct(shard, "Galera")
	}
	number, _, _ := strings.Cut(v.version, "-")
	var parts [3]int
	for i, text := range strings.SplitN(number, ".", 3) {
		n, err := strconv.Atoi(text)
		if err != nil {
			return refuse(checkpoint.ReasonShardUnfit, shard, fmt.Sprintf("can't tell which product has version %q (%s)", v.version, v.comment), "use "+Supported)
		}
		parts[i] = n
	}
	if parts[0] < 8 || parts == [3]int{8, 0, parts[2]} && parts[2] < 30 {
		return refuse(checkpoint.ReasonShardUnfit, shard,
			fmt.Sprintf("MySQL %s: a branch can't leave its connection when it is prepared", v.version), "use "+Supported)
	}
	if v.connection != v.greeted {
		return refuse(checkpoint.ReasonShardUnfit, shard,
			fmt.Sprintf("the connection is number %d to the client and %d to the server: a proxy in between answers for the server, and one that multiplexes would tear branches apart", v.greeted, v.connection),
			"connect to the server itself, or through what only forwards bytes")
	}
	return nil
}

func (v *server) otherProduct(shard, product string) error {
	return refuse(checkpoint.ReasonShardUnfit, shard,
		fmt.Sprintf("%s (version %s, %s) has no usable XA: prepared branches would be lost or stuck", product, v.version, v.comment), "use "+Supported)
}

// readOnlyProblem is nil for a writable server.
func (v *server) readOnlyProblem(shard string) error {
	for _, name := range []string{"super_read_only", "read_only"} {
		if v.vars[name] != "OFF" {
			return refuse(checkpoint.ReasonShardReadOnly, shard,
				fmt.Sprintf("%s is %s: this is a replica, or a primary that is being replaced", name, v.vars[name]),
				"point the DSN at the primary, or SET PERSIST "+name+" = OFF if it is the primary")
		}
	}
	return nil
}

// settingsProblems are the settings with which an acknowledged prepare could be
// lost.
func (v *server) settingsProblems(shard string) (problems []error) {
	want := func(name, value, why string) {
		if got := v.vars[name]; got != value {
			problems = append(problems, refuse(checkpoint.ReasonShardUnfit, shard,
				fmt.Sprintf("%s is %s, want %s: %s", name, got, value, why), "SET PERSIST "+name+" = "+value))
		}
	}
	want("innodb_flush_log_at_trx_commit", "1", "a crash would lose what was acknowledged")
	if v.vars["log_bin"] != "OFF" {
		want("sync_binlog", "1", "a crash would lose what was acknowledged")
		if format := v.vars["binlog_format"]; strings.EqualFold(format, "STATEMENT") {
			want("binlog_format", "ROW", "READ COMMITTED can't be written to a binary log of statements")
		}
	}
	want("xa_detach_on_prepare", "ON", "a prepared branch would stay with its connection and die with it")
	if n, err := strconv.Atoi(v.vars["max_allowed_packet"]); err != nil || n < minPacket {
		problems = append(problems, refuse(checkpoint.ReasonShardUnfit, shard,
			fmt.Sprintf("max_allowed_packet is %s: an epoch's row may not fit", v.vars["max_allowed_packet"]),
			fmt.Sprintf("SET PERSIST max_allowed_packet = %d, or more", 64<<20)))
	}
	return problems
}
