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

// shards is how many databases each contender has. All are on one server here:
// names and locks of XA branches are one space per server, and the service keeps
// its shards apart in it.
const shards = 2

// privateMySQL is a server of the demo's own: own port, own data directory,
// nothing of a server that may run on this machine.
type privateMySQL struct {
	process   *child     // a mysqld, or
	container *container // one in a container
	port      int
	dir       string    // the mysqld's files, as this process sees them
	password  string    // of all its users
	pools     []*sql.DB // what was opened for looking
	server    *sql.DB   // the demo's own, for looking at the server
	asked     time.Time // whether the container lives
}

// users of the databases, which are called like them and numbered.
const (
	oursUser  = "ours"
	plainUser = "plain"
	lookUser  = "look"
)

func database(user string, shard int) string { return user + strconv.Itoa(shard) }

// imagePrefix begins the name of an image in place of a path.
const imagePrefix = "image:"

// startMySQL makes a new server and starts it. where is a mysqld, the root
// directory of a tree that has one, or image:NAME.
func startMySQL(ctx context.Context, where, logs string) (m *privateMySQL, err error) {
	m = &privateMySQL{password: rand.Text()}
	defer func() { //nolint:contextcheck // it is removed whatever has ended
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	if m.port, err = freePort(); err != nil {
		return m, err
	}
	if image, ok := strings.CutPrefix(where, imagePrefix); ok {
		err = m.inContainer(ctx, image)
	} else {
		err = m.asProcess(ctx, where, logs)
	}
	if err != nil {
		return m, err
	}
	m.server, err = m.open(lookUser, "")
	if err != nil {
		return m, err
	}
	return m, m.ready(ctx, m.server)
}

// settings are what the service demands: an acknowledged prepare survives a crash.
var settings = []string{"--mysqlx=0", "--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1", "--log-bin=binlog", "--server-id=1", "--innodb-buffer-pool-size=256M"}

// asProcess starts a mysqld of this machine in a temporary directory.
func (m *privateMySQL) asProcess(ctx context.Context, path, logs string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("find mysqld: %w", err)
	}
	var binary, root string
	if !info.IsDir() {
		binary = path
	} else if root, binary = path, "/usr/sbin/mysqld"; os.Geteuid() != 0 {
		return fmt.Errorf("%s is a tree, and only root can run a mysqld inside it. Next step: run the demo as root, or install MySQL 8.0.30 or later (it need not run)", path)
	}
	if m.dir, err = makeDir(tempIn(root)); err != nil {
		return err
	}
	inside := strings.TrimPrefix(m.dir, strings.TrimSuffix(root, "/")) // as the server sees it
	first := strings.Join(m.accounts("127.0.0.1"), ";\n") + ";\n" +
		fmt.Sprintf("ALTER USER 'root'@'localhost' IDENTIFIED BY '%s' ACCOUNT LOCK;\n", rand.Text())
	if err := os.WriteFile(filepath.Join(m.dir, "init.sql"), []byte(first), 0o600); err != nil {
		return fmt.Errorf("write mysqld's first statements: %w", err)
	}
	mysqld := func(args ...string) *exec.Cmd {
		// --no-defaults first: no option file of this machine counts.
		args = append([]string{"--no-defaults", "--datadir=" + inside + "/data", "--secure-file-priv="}, args...)
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
	initialize, err := startChild("mysqld --initialize-insecure", filepath.Join(logs, "mysqld-initialize.log"), mysqld("--initialize-insecure"))
	if err != nil {
		return err
	}
	if err := initialize.wait(ctx); err != nil {
		return err
	}
	m.process, err = startChild("mysqld", filepath.Join(logs, "mysqld.log"), mysqld(append([]string{
		"--port=" + strconv.Itoa(m.port), "--bind-address=127.0.0.1", "--skip-name-resolve",
		"--socket=" + inside + "/mysqld.sock", "--pid-file=" + inside + "/mysqld.pid", "--init-file=" + inside + "/init.sql",
	}, settings...)...))
	return err
}

// tempIn is the directory for temporary files, inside the tree where there is one.
func tempIn(root string) string {
	if root == "" {
		return ""
	}
	return filepath.Join(root, "tmp")
}

// inContainer starts a throw-away container.
func (m *privateMySQL) inContainer(ctx context.Context, image string) (err error) {
	m.container, err = runContainer(ctx, "MySQL", image, m.port, 3306, map[string]string{"MYSQL_ROOT_PASSWORD": m.password}, settings...)
	if err != nil {
		return err
	}
	root, err := m.open("root", "")
	if err != nil {
		return err
	}
	if err := m.ready(ctx, root); err != nil {
		return err
	}
	for _, statement := range m.accounts("%") {
		if _, err := root.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("MySQL: make users and databases: %w", err)
		}
	}
	return nil
}

// accounts are the server's first statements: the databases, and for each
// contender a user with the rights it needs and no more, and one for looking.
func (m *privateMySQL) accounts(host string) (all []string) {
	line := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	rights := map[string]string{
		oursUser:  "SELECT, INSERT, UPDATE, CREATE, CREATE VIEW, DROP",
		plainUser: "SELECT, INSERT, UPDATE, CREATE",
	}
	for _, user := range []string{oursUser, plainUser, lookUser} {
		line("CREATE USER '%s'@'%s' IDENTIFIED BY '%s'", user, host, m.password)
	}
	line("GRANT XA_RECOVER_ADMIN ON *.* TO '%s'@'%s'", oursUser, host)
	line("GRANT XA_RECOVER_ADMIN, PROCESS ON *.* TO '%s'@'%s'", lookUser, host)
	for _, user := range []string{oursUser, plainUser} {
		for shard := range shards {
			line("CREATE DATABASE %s", database(user, shard))
			line("GRANT %s ON %s.* TO '%s'@'%s'", rights[user], database(user, shard), user, host)
			line("GRANT SELECT, SHOW VIEW ON %s.* TO '%s'@'%s'", database(user, shard), lookUser, host)
		}
	}
	return all
}

// dsns are for a contender: one of its user for each shard.
func (m *privateMySQL) dsns(user string) (all []string) {
	for shard := range shards {
		all = append(all, m.config(user, database(user, shard)).FormatDSN())
	}
	return all
}

// look opens a contender's databases for reading.
func (m *privateMySQL) look(user string) (all []*sql.DB, err error) {
	for shard := range shards {
		db, err := m.open(lookUser, database(user, shard))
		if err != nil {
			return nil, err
		}
		all = append(all, db)
	}
	return all, nil
}

func (m *privateMySQL) open(user, database string) (*sql.DB, error) {
	connector, err := mysql.NewConnector(m.config(user, database))
	if err != nil {
		return nil, fmt.Errorf("MySQL: open: %w", err)
	}
	db := sql.OpenDB(connector)
	m.pools = append(m.pools, db)
	return db, nil
}

func (m *privateMySQL) config(user, database string) *mysql.Config {
	c := mysql.NewConfig()
	c.Net, c.Addr = "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(m.port))
	c.User, c.Passwd, c.DBName = user, m.password, database
	c.Logger = &mysql.NopLogger{} // refused connections are expected here; errors are returned all the same
	return c
}

// ready returns when the server answers.
func (m *privateMySQL) ready(ctx context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := db.PingContext(ctx)
		if err == nil {
			return nil
		}
		if dead := m.lives(ctx); dead != nil {
			return dead
		}
		if pause(ctx, 100*time.Millisecond) != nil {
			where := ""
			if m.container != nil {
				where = ". Next step: see that the Docker engine runs on this machine, where its ports are looked for"
			}
			return fmt.Errorf("MySQL: does not answer at port %d: %w%s", m.port, err, where)
		}
	}
}

// lives says an error when the server has ended.
func (m *privateMySQL) lives(ctx context.Context) error {
	if m.container != nil {
		if time.Since(m.asked) < time.Second {
			return nil
		}
		m.asked = time.Now()
		return m.container.running(ctx)
	}
	if m.process.ended() {
		return fmt.Errorf("mysqld: ended: %w%s", errors.Join(m.process.err, errors.New("by itself")), m.process.lastWords())
	}
	return nil
}

// close stops the server and removes its files.
func (m *privateMySQL) close() error {
	var errs []error
	for _, db := range m.pools {
		errs = append(errs, db.Close())
	}
	if m.process != nil && !m.process.ended() {
		m.process.kill() // nobody needs the data any more
	}
	if m.container != nil {
		errs = append(errs, m.container.close())
	}
	if m.dir != "" {
		errs = append(errs, os.RemoveAll(m.dir))
	}
	return errors.Join(errs...)
}

// version is the server's own word.
func (m *privateMySQL) version(ctx context.Context) (v string, err error) {
	if err := m.server.QueryRowContext(ctx, "SELECT VERSION()").Scan(&v); err != nil {
		return "", fmt.Errorf("MySQL: read its version: %w", err)
	}
	return v, nil
}

// busy is how many statements of a user are being executed.
func (m *privateMySQL) busy(ctx context.Context, user string) (n int64, err error) {
	return number(ctx, []*sql.DB{m.server}, "SELECT COUNT(*) FROM performance_schema.processlist WHERE user = '"+user+"' AND command NOT IN ('Sleep')")
}

// connections is how many a user has.
func (m *privateMySQL) connections(ctx context.Context, user string) (n int64, err error) {
	return number(ctx, []*sql.DB{m.server}, "SELECT COUNT(*) FROM performance_schema.processlist WHERE user = '"+user+"'")
}
