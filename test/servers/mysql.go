package servers

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	tcexec "github.com/testcontainers/testcontainers-go/exec"

	"billing/deploy"
)

const (
	rootPassword    = "root-of-the-testbed"
	defaultDatabase = "billing"
)

// MySQLServer is one server, so one shard or, with several databases, several.
type MySQLServer struct {
	server
	name string
	port int
	root *sql.DB

	mu   sync.Mutex
	dsns map[string]string // the service's, by database
}

// MySQL starts a server for one test and removes it at the end.
func MySQL(t testing.TB, opts ...Option) *MySQLServer {
	t.Helper()
	Require(t)
	m, err := StartMySQL(t.Context(), "mysql", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	m.LogsOnFailure(t)
	return m
}

// StartMySQL starts a server; name is for messages only. The caller closes it. It has the durable settings that the
// service demands; an empty database `billing` with its users is there (see DSN).
func StartMySQL(ctx context.Context, name string, opts ...Option) (*MySQLServer, error) {
	e, err := engine()
	if err != nil {
		return nil, err
	}
	o := apply(opts)
	m := &MySQLServer{server: server{kind: "MySQL " + name, engine: e}, name: name, dsns: make(map[string]string)}
	m.ready = m.serves
	if m.port, err = FreePort(); err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(m.config("root", rootPassword, ""))
	if err != nil {
		return nil, err
	}
	m.root = sql.OpenDB(connector)

	o.env = withDefaults(o.env, map[string]string{"MYSQL_ROOT_PASSWORD": rootPassword})
	o.args = append([]string{
		"--innodb-flush-log-at-trx-commit=1",
		"--sync-binlog=1",
		"--log-bin=binlog",
		"--innodb-buffer-pool-size=128M",
		"--performance-schema=ON",
		"--max-connections=500",
		"--mysqlx=0",
	}, o.args...)
	if err := m.run(ctx, imageName("BILLING_TEST_MYSQL_IMAGE", "OFFICIAL_MYSQL_IMAGE"), o, map[string]int{"3306": m.port}); err != nil {
		_ = m.root.Close()
		return nil, err
	}
	if o.data != nil {
		return m, nil // databases and users came with it
	}
	if _, err := m.CreateDatabase(ctx, defaultDatabase); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func withDefaults(set, defaults map[string]string) map[string]string {
	for name, value := range defaults {
		if _, ok := set[name]; !ok {
			set[name] = value
		}
	}
	return set
}

func (m *MySQLServer) config(user, password, database string) *mysql.Config {
	c := mysql.NewConfig()
	c.Net, c.Addr = "tcp", m.Addr()
	c.User, c.Passwd, c.DBName = user, password, database
	c.Logger = &mysql.NopLogger{} // broken connections are what these tests are made of
	return c
}

func (m *MySQLServer) serves(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var one int
	return m.root.QueryRowContext(ctx, "SELECT 1").Scan(&one)
}

// WithData starts a MySQL server on the data of another one: a tar of /var/lib/mysql, as Take gives it.
func WithData(data []byte) Option { return func(o *options) { o.data = data } }

// Shell runs a script of an administrator on the server's own machine: mysql and its tools log in as root. It returns
// what the script has said; the error is of one that has ended badly.
func (m *MySQLServer) Shell(ctx context.Context, script string) (string, error) {
	code, out, err := m.container.Exec(ctx, []string{"sh", "-euc", script}, tcexec.WithEnv([]string{"MYSQL_PWD=" + rootPassword}), tcexec.Multiplexed())
	if err != nil {
		return "", fmt.Errorf("%s: run a script: %w", m.kind, err)
	}
	said, err := io.ReadAll(out)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s: a script has ended with %d: %s", m.kind, code, said)
	}
	return string(said), err
}

// Close removes the server and its data.
func (m *MySQLServer) Close() error {
	return errors.Join(m.root.Close(), m.server.Close())
}

// Name is the name given to StartMySQL.
func (m *MySQLServer) Name() string { return m.name }

// Reidentify restarts the server with another @@server_uuid: as if its address led to another server with the same
// data.
func (m *MySQLServer) Reidentify(ctx context.Context) error {
	var dir string
	if err := m.root.QueryRowContext(ctx, "SELECT @@datadir").Scan(&dir); err != nil {
		return fmt.Errorf("%s: find the data: %w", m.kind, err)
	}
	code, _, err := m.container.Exec(ctx, []string{"rm", dir + "auto.cnf"})
	if err == nil && code != 0 {
		err = fmt.Errorf("rm has ended with code %d", code)
	}
	if err != nil {
		return fmt.Errorf("%s: remove auto.cnf: %w", m.kind, err)
	}
	if err := m.Stop(ctx); err != nil {
		return err
	}
	return m.Start(ctx)
}

// Addr is host:port. It stays the same over Kill, Stop and Start.
func (m *MySQLServer) Addr() string {
	return net.JoinHostPort(m.engine.host, strconv.Itoa(m.port))
}

// Root has all rights. Tests look and break things with it; the service never gets it.
func (m *MySQLServer) Root() *sql.DB { return m.root }

// DSN is for the service: its user has the rights of deploy/mysql/grants.sql and no other. The database is `billing`, or
// one that CreateDatabase or NewDatabase has made. AsReader, AsMigrate and AsRoot give the other users'.
func (m *MySQLServer) DSN(database string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	dsn, ok := m.dsns[database]
	if !ok {
		panic(fmt.Sprintf("servers: %s has no database %q: make it with CreateDatabase or NewDatabase", m.kind, database))
	}
	return dsn
}

// Each database has users of its own, with one password, whose names differ in this.
const (
	serviceUser = "service_"
	readerUser  = "reader_"
	migrateUser = "migrate_"
)

var serviceLogin = regexp.MustCompile(serviceUser + `[0-9a-f]{16}:[0-9a-f-]{36}@`)

// AsReader is a service's DSN, or a text with such in it, with the user who only looks.
func AsReader(dsn string) string { return asUser(dsn, readerUser) }

// AsMigrate is the same with the user who makes the tables.
func AsMigrate(dsn string) string { return asUser(dsn, migrateUser) }

// AsRoot is the same with all rights.
func AsRoot(dsn string) string {
	return serviceLogin.ReplaceAllLiteralString(dsn, "root:"+rootPassword+"@")
}

func asUser(text, user string) string {
	return serviceLogin.ReplaceAllStringFunc(text, func(login string) string { return user + strings.TrimPrefix(login, serviceUser) })
}

// CreateDatabase makes an empty database and its users, and returns the service's DSN.
func (m *MySQLServer) CreateDatabase(ctx context.Context, database string) (dsn string, err error) {
	id, password := short(), uuid.NewString()
	for _, statement := range (deploy.MySQL{
		Database: database, Host: "%",
		Reader:  deploy.Login{User: readerUser + id, Password: password},
		Service: deploy.Login{User: serviceUser + id, Password: password},
		Migrate: deploy.Login{User: migrateUser + id, Password: password},
	}).Grants() {
		if _, err := m.root.ExecContext(ctx, statement); err != nil {
			return "", fmt.Errorf("%s: %s: %w", m.kind, statement, err)
		}
	}
	dsn = m.config(serviceUser+id, password, database).FormatDSN()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dsns[database] = dsn
	return dsn, nil
}

// NewDatabase makes an empty database for one test, with its users, and returns the service's DSN.
func (m *MySQLServer) NewDatabase(t testing.TB) (dsn string) {
	t.Helper()
	database := "t" + short()
	dsn, err := m.CreateDatabase(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		m.drop(ctx, database)
	})
	return dsn
}

// drop does what it can: a branch that a test has left prepared, or a server that is down, keeps the database.
func (m *MySQLServer) drop(ctx context.Context, database string) {
	conn, err := m.root.Conn(ctx)
	if err != nil {
		return
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "SET SESSION lock_wait_timeout = 1"); err == nil {
		_, _ = conn.ExecContext(ctx, "DROP DATABASE `"+database+"`")
	}
	_, _ = conn.ExecContext(ctx, "SET SESSION lock_wait_timeout = DEFAULT")
}

func short() string { return strings.ReplaceAll(uuid.NewString(), "-", "")[:16] }

// XABranch is a prepared XA transaction.
type XABranch struct {
	FormatID     int64
	GTRID, BQUAL string // the bytes
}

// XARecover lists what XA RECOVER lists, each as the hex of gtrid and bqual together.
func (m *MySQLServer) XARecover(t testing.TB) []string {
	t.Helper()
	var ids []string
	for _, b := range m.XABranches(t) {
		ids = append(ids, hex.EncodeToString([]byte(b.GTRID+b.BQUAL)))
	}
	return ids
}

// XABranches lists what XA RECOVER lists. The list is one per server, over all its databases.
func (m *MySQLServer) XABranches(t testing.TB) []XABranch {
	t.Helper()
	rows, err := m.root.QueryContext(t.Context(), "XA RECOVER CONVERT XID")
	if err != nil {
		t.Fatalf("%s: XA RECOVER: %v", m.kind, err)
	}
	defer rows.Close()
	var branches []XABranch
	for rows.Next() {
		var b XABranch
		var gtridLength, bqualLength int
		var data string
		if err := rows.Scan(&b.FormatID, &gtridLength, &bqualLength, &data); err != nil {
			t.Fatalf("%s: XA RECOVER: %v", m.kind, err)
		}
		raw, err := hex.DecodeString(strings.TrimPrefix(data, "0x"))
		if err != nil || len(raw) != gtridLength+bqualLength {
			t.Fatalf("%s: XA RECOVER: unexpected xid %q (%v)", m.kind, data, err)
		}
		b.GTRID, b.BQUAL = string(raw[:gtridLength]), string(raw[gtridLength:])
		branches = append(branches, b)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: XA RECOVER: %v", m.kind, err)
	}
	return branches
}
