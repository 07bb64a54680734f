package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
)

// databases are the shards, all on one server here. Names and locks of XA branches are
// one space per server; the service keeps its shards apart in it.
var databases = []string{"shard0", "shard1"}

// privateMySQL is a server of the demo's own: own port, own data directory,
// nothing of a server that may run on this machine.
type privateMySQL struct {
	process *child
	port    int
	dir     string    // its files, as this process sees them
	dsns    []string  // the service's, by shard
	shards  []*sql.DB // the demo's own, for reading, by shard
}

// startMySQL makes a new server in a temporary directory and starts it. path is
// a mysqld, or the root directory of a tree that has one.
func startMySQL(ctx context.Context, path, logs string) (m *privateMySQL, err error) {
	m = &privateMySQL{}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	info, err := os.Stat(path)
	if err != nil {
		return m, fmt.Errorf("find mysqld: %w", err)
	}
	var binary, root string
	if !info.IsDir() {
		binary = path
	} else if root, binary = path, "/usr/sbin/mysqld"; os.Geteuid() != 0 {
		return m, fmt.Errorf("%s is a tree, and only root can run a mysqld inside it. Next step: run the demo as root, or install MySQL 8.0.30 or later (it need not run)", path)
	}
	if m.dir, err = os.MkdirTemp(tempIn(root), "billing-demo-mysql-"); err != nil {
		return m, fmt.Errorf("make mysqld's directory: %w", err)
	}
	if m.port, err = freePort(); err != nil {
		return m, err
	}
	inside := strings.TrimPrefix(m.dir, strings.TrimSuffix(root, "/")) // as the server sees it
	password := rand.Text()
	if err := os.WriteFile(filepath.Join(m.dir, "init.sql"), []byte(m.accounts(password)), 0o600); err != nil {
		return m, fmt.Errorf("write mysqld's first statements: %w", err)
	}
	mysqld := func(args ...string) *exec.Cmd {
		// --no-defaults first: no option file of this machine counts.
		args = append([]string{"--no-defaults", "--datadir=" + inside + "/data", "--secure-file-priv=", "--mysqlx=0"}, args...)
		if os.Geteuid() == 0 {
			args = append(args, "--user=root") // the directory is root's, and nobody else's
		}
		cmd := exec.Command(binary, args...)
		cmd.Dir = inside
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TZ=UTC"}
		if root != "" {
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		}
		return cmd
	}
	first, err := startChild("mysqld --initialize-insecure", filepath.Join(logs, "mysqld-initialize.log"), mysqld("--initialize-insecure"))
	if err != nil {
		return m, err
	}
	if err := first.wait(ctx); err != nil {
		return m, err
	}
	m.process, err = startChild("mysqld", filepath.Join(logs, "mysqld.log"), mysqld(
		"--port="+strconv.Itoa(m.port), "--bind-address=127.0.0.1", "--skip-name-resolve",
		"--socket="+inside+"/mysqld.sock", "--pid-file="+inside+"/mysqld.pid", "--init-file="+inside+"/init.sql",
		// What the service demands: an acknowledged prepare survives a crash.
		"--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1", "--log-bin=binlog", "--server-id=1",
		"--innodb-buffer-pool-size=128M",
	))
	if err != nil {
		return m, err
	}
	return m, m.ready(ctx)
}

// tempIn is the directory for temporary files, inside the tree where there is one.
func tempIn(root string) string {
	if root == "" {
		return ""
	}
	return filepath.Join(root, "tmp")
}

// accounts are the server's first statements, one a line: the databases, the
// service's user with the rights it needs and no more, and one for looking.
func (m *privateMySQL) accounts(password string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+";\n", args...) }
	line("ALTER USER 'root'@'localhost' IDENTIFIED BY '%s' ACCOUNT LOCK", rand.Text())
	for _, user := range []string{"billing", "demo"} {
		line("CREATE USER '%s'@'127.0.0.1' IDENTIFIED BY '%s'", user, password)
		line("GRANT XA_RECOVER_ADMIN ON *.* TO '%s'@'127.0.0.1'", user)
	}
	for _, database := range databases {
		line("CREATE DATABASE %s", database)
		line("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP, REFERENCES, CREATE VIEW, SHOW VIEW ON %s.* TO 'billing'@'127.0.0.1'", database)
		line("GRANT SELECT ON %s.* TO 'demo'@'127.0.0.1'", database)
		m.dsns = append(m.dsns, m.config("billing", password, database).FormatDSN())
		connector, err := mysql.NewConnector(m.config("demo", password, database))
		if err != nil {
			panic(err) // it is made here
		}
		m.shards = append(m.shards, sql.OpenDB(connector))
	}
	return b.String()
}

func (m *privateMySQL) config(user, password, database string) *mysql.Config {
	c := mysql.NewConfig()
	c.Net, c.Addr = "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(m.port))
	c.User, c.Passwd, c.DBName = user, password, database
	return c
}

// ready returns when the server answers.
func (m *privateMySQL) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()

	_ = mysql.SetLogger(&mysql.NopLogger{}) // refused connections are expected here; errors are returned all the same
	for {
		err := m.shards[len(m.shards)-1].PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-m.process.done:
			return fmt.Errorf("mysqld: ended while starting: %w%s", m.process.err, m.process.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("mysqld: does not answer: %w%s", err, m.process.lastWords())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// close stops the server and removes its files.
func (m *privateMySQL) close() error {
	var errs []error
	for _, db := range m.shards {
		errs = append(errs, db.Close())
	}
	if m.process != nil && !m.process.ended() {
		errs = append(errs, m.process.stop(30*time.Second))
	}
	if m.dir != "" {
		errs = append(errs, os.RemoveAll(m.dir))
	}
	return errors.Join(errs...)
}

// version is the server's own word.
func (m *privateMySQL) version(ctx context.Context) (v string, err error) {
	if err := m.shards[0].QueryRowContext(ctx, "SELECT VERSION()").Scan(&v); err != nil {
		return "", fmt.Errorf("mysqld: read its version: %w", err)
	}
	return v, nil
}
