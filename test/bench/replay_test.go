package bench

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"billing/internal/checkpoint"
)

// recording is what a run of the service has said to MySQL: the statements of each
// lane in their order, which is the order of its epochs, and what each connection
// was set to. The sweep's questions are no part of it: they belong to no epoch.
type recording struct {
	setup []string
	lanes [][]string // by partition
	rows  int        // of the ledger, the totals and the rejects
}

// record has run's statements written to the server's general log, and reads them.
func record(t testing.TB, partitions int32, run func()) *recording {
	t.Helper()
	m := mysqlServer(t)
	const file = "/var/lib/mysql/billing-bench.log"
	for _, statement := range []string{"SET GLOBAL general_log = OFF", "SET GLOBAL log_output = 'FILE'", "SET GLOBAL general_log_file = '" + file + "'", "SET GLOBAL general_log = ON"} {
		if _, err := m.Root().Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	run()
	if _, err := m.Root().Exec("SET GLOBAL general_log = OFF"); err != nil {
		t.Fatal(err)
	}
	copied, err := m.Take(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	log := tar.NewReader(bytes.NewReader(copied))
	if _, err := log.Next(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Shell(t.Context(), "rm "+file); err != nil {
		t.Fatal(err)
	}
	r, err := parseLog(log, partitions)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var (
	branchOf = regexp.MustCompile(`^XA (?:START|COMMIT) X'([0-9a-f]{128})'`)
	rowsOf   = regexp.MustCompile(`^INSERT INTO billing_(?:ledger|total|rejects) `)
	epochOf  = regexp.MustCompile(`^SELECT gtrid, .* FROM billing_epoch .*kafka_partition = (\d+) AND`)
)

// said takes a line of a general log apart: time, connection and command, statement,
// with tabs between them.
func said(line string) (connection, statement string, ok bool) {
	_, rest, _ := strings.Cut(line, "\t")
	who, statement, _ := strings.Cut(rest, "\t")
	connection, ok = strings.CutSuffix(strings.TrimLeft(who, " "), " Query")
	return connection, statement, ok
}

// parseLog finds each lane's statements in a general log. A burst is known by its
// XA START, and what was said on a connection before one is known belongs to the next
// that is: its lock, and the look at the server.
func parseLog(log io.Reader, partitions int32) (*recording, error) {
	r := &recording{lanes: make([][]string, partitions)}
	type connection struct {
		setup   []string
		waiting []string
		lane    int32 // of the burst that is being written; -1 outside of one
	}
	connections := map[string]*connection{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 256<<20)
	for lines.Scan() {
		id, statement, ok := said(lines.Text())
		if !ok {
			continue // a head line, a connect, a quit
		}
		c := connections[id]
		if c == nil {
			c = &connection{lane: -1}
			connections[id] = c
		}
		lane := c.lane
		switch {
		case strings.HasPrefix(statement, "SET "):
			c.setup = append(c.setup, statement)
			continue
		case branchOf.MatchString(statement):
			g, err := hex.DecodeString(branchOf.FindStringSubmatch(statement)[1])
			if err != nil {
				return nil, err
			}
			name, err := checkpoint.GTRID(g).Parse()
			if err != nil {
				return nil, err
			}
			lane = name.Partition
			if strings.HasPrefix(statement, "XA START") {
				c.lane, r.setup = lane, c.setup
			}
		case epochOf.MatchString(statement):
			if _, err := fmt.Sscan(epochOf.FindStringSubmatch(statement)[1], &lane); err != nil {
				return nil, err
			}
		case strings.HasPrefix(statement, "DO RELEASE_LOCK"):
			c.lane = -1
		case lane >= 0:
		case strings.HasPrefix(statement, "SELECT @@server_uuid"):
			c.waiting = []string{statement}
			continue
		case strings.HasPrefix(statement, "SELECT GET_LOCK"):
			c.waiting = append(c.waiting, statement)
			continue
		default:
			continue // a look, a sweep, another client's
		}
		if lane < 0 || lane >= partitions {
			return nil, fmt.Errorf("a statement of lane %d of %d: %.80s", lane, partitions, statement)
		}
		for _, s := range append(c.waiting, statement) {
			r.lanes[lane] = append(r.lanes[lane], s)
			if rowsOf.MatchString(s) {
				r.rows += 1 + strings.Count(s, "),(")
			}
		}
		c.waiting = nil
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	for lane, statements := range r.lanes {
		if len(statements) == 0 {
			return nil, fmt.Errorf("lane %d has said nothing", lane)
		}
	}
	return r, nil
}

// replay says it all again to the tables behind dsn, on one connection a lane, as
// fast as MySQL takes it.
func (r *recording) replay(t testing.TB, dsn string) time.Duration {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx := t.Context()
	conns := make([]*sql.Conn, len(r.lanes))
	for i := range conns {
		if conns[i], err = db.Conn(ctx); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close()
		for _, s := range r.setup {
			if _, err := conns[i].ExecContext(ctx, s); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
		}
	}
	errs := make([]error, len(conns))
	var wg sync.WaitGroup
	begun := time.Now()
	for i, c := range conns {
		wg.Go(func() { errs[i] = say(ctx, c, r.lanes[i]) })
	}
	wg.Wait()
	took := time.Since(begun)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return took
}

func say(ctx context.Context, c *sql.Conn, statements []string) error {
	for _, s := range statements {
		if _, err := c.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%.100s: %w", s, err)
		}
	}
	return nil
}
