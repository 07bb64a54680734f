package bench

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"billing/test/servers"
)

// job is one job of the service on real servers: a group, databases and a
// configuration of its own, over a topic that other jobs may read, too.
type job struct {
	t      testing.TB
	name   string
	topic  string
	config string
	dsns   []string
	db     []*sql.DB // of each shard, with all rights
}

// jobConfig is what a benchmark sets; the rest are the defaults.
type jobConfig struct {
	Shards int
	Ledger bool
	Broker string // where it is not the server's own address
	More   string // YAML at the top level
}

// newTopic makes a topic.
func newTopic(t testing.TB, partitions int32) string {
	t.Helper()
	topic := "bench-" + uuid.NewString()[:8]
	kafkaServer(t).CreateTopic(t, topic, partitions, nil)
	return topic
}

// newJob makes a job's databases and tables.
func newJob(t testing.TB, topic string, c jobConfig) *job {
	t.Helper()
	j := &job{t: t, name: "bench-" + uuid.NewString()[:8], topic: topic}
	var list strings.Builder
	for i := range c.Shards {
		dsn := mysqlServer(t).NewDatabase(t)
		j.dsns = append(j.dsns, dsn)
		fmt.Fprintf(&list, "  - name: s%d\n    dsn: %q\n", i, dsn)
		db, err := sql.Open("mysql", servers.AsRoot(dsn))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		j.db = append(j.db, db)
	}
	if c.Broker == "" {
		c.Broker = kafkaServer(t).Addr()
	}
	dir := filepath.Join(t.ArtifactDir(), j.name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	j.config = filepath.Join(dir, "config.yaml")
	yaml := fmt.Sprintf(`job: %s
kafka:
  brokers: [%q]
  topic: %s
shards:
%smessage:
  type_prefix: com.example.billing.
  currencies: [EUR, USD]
ledger:
  enabled: %t
admin:
  listen: "127.0.0.1:0"
first_start: true
%s`, j.name, c.Broker, topic, list.String(), c.Ledger, c.More)
	if err := os.WriteFile(j.config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	asMigrate := filepath.Join(dir, "migrate.yaml")
	if err := os.WriteFile(asMigrate, []byte(servers.AsMigrate(yaml)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := command(t, "migrate", "--config", asMigrate).CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v\n%s", err, out)
	}
	return j
}

// command is one of the service's. No BILLING_ variable of whoever runs the
// benchmark changes its configuration.
func command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(billing(t), args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "BILLING_") })
	return cmd
}

// instance is one process of the service.
type instance struct {
	j    *job
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error
}

// start starts `billing run`. It is killed at the end of the test at the latest.
func (j *job) start(env ...string) *instance {
	j.t.Helper()
	f, err := os.CreateTemp(filepath.Dir(j.config), "run-*.log")
	if err != nil {
		j.t.Fatal(err)
	}
	defer f.Close()
	p := &instance{j: j, log: f.Name(), done: make(chan struct{})}
	p.cmd = command(j.t, "run", "--config", j.config)
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = f, f
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		j.t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	j.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if j.t.Failed() {
			j.t.Logf("the log's end:\n%s", p.said())
		}
	})
	return p
}

// stop ends it as an orchestrator does, and returns what it has used of the
// processor.
func (p *instance) stop() (cpu time.Duration) {
	p.j.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.j.t.Fatal(err)
	}
	<-p.done
	if p.err != nil {
		p.j.t.Fatal("billing run: ", p.err)
	}
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

// records is how many records the committed epochs of shard 0 account for.
func (j *job) records() (n int64, err error) {
	err = j.db[0].QueryRow("SELECT COALESCE(SUM(records_in), 0) FROM billing_epoch").Scan(&n)
	return n, err
}

// offsets are those behind each lane's last epoch in the tables.
func (j *job) offsets(partitions int) []int {
	j.t.Helper()
	next := make([]int, partitions)
	rows, err := j.db[0].Query("SELECT kafka_partition, offset_next FROM billing_lane")
	if err != nil {
		j.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var partition, offset int
		if err := rows.Scan(&partition, &offset); err != nil {
			j.t.Fatal(err)
		}
		next[partition] = offset
	}
	if err := rows.Err(); err != nil {
		j.t.Fatal(err)
	}
	return next
}

// drained waits until the committed epochs account for n records, and returns how
// long it took from the moment when the first lane was at work: the start of the
// process and joining the group are not in it, the first epoch is.
func (j *job) drained(p *instance, n int64) time.Duration {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var begun time.Time
	var have int64
	for {
		if begun.IsZero() {
			if p.atWork() > 0 {
				begun = time.Now()
			}
		} else {
			var err error
			if have, err = j.records(); err != nil {
				j.t.Fatal(err)
			}
			if have >= n {
				return time.Since(begun)
			}
		}
		select {
		case <-tick.C:
		case <-p.done:
			j.t.Fatalf("billing run ended with %d of %d records accounted for: %v\n%s", have, n, p.err, p.said())
		case <-ctx.Done():
			j.t.Fatalf("%d of %d records are accounted for after an hour", have, n)
		}
	}
}

// awaitLanes waits until so many lanes are at work.
func (p *instance) awaitLanes(n int) {
	p.j.t.Helper()
	servers.Eventually(p.j.t, 2*time.Minute, func() error {
		select {
		case <-p.done:
			p.j.t.Fatalf("billing run ended: %v\n%s", p.err, p.said())
		default:
		}
		if have := p.atWork(); have < n {
			return fmt.Errorf("%d of %d lanes are at work", have, n)
		}
		return nil
	})
}

// atWork is how many lanes have begun, by the whole log: behind many lanes' starts
// its end does not show the first.
func (p *instance) atWork() int {
	p.j.t.Helper()
	return strings.Count(p.text(), "lane running")
}

// said is the end of the instance's log.
func (p *instance) said() string {
	p.j.t.Helper()
	text := p.text()
	return text[max(0, len(text)-8000):]
}

// text is the instance's log.
func (p *instance) text() string {
	p.j.t.Helper()
	b, err := os.ReadFile(p.log)
	if err != nil {
		p.j.t.Fatal(err)
	}
	return string(b)
}

// drop gives the disk back to the next round. After a failure none comes, and a
// process that still runs would have locks on the tables.
func (j *job) drop() {
	j.t.Helper()
	if j.t.Failed() {
		return
	}
	for _, db := range j.db {
		var name string
		if err := db.QueryRow("SELECT DATABASE()").Scan(&name); err != nil {
			j.t.Fatal(err)
		}
		if _, err := db.Exec("DROP DATABASE " + name); err != nil {
			j.t.Fatal(err)
		}
	}
}

// booked compares the tables with what must come out.
func (j *job) booked(e expected) {
	j.t.Helper()
	var got expected
	var net int64
	for i, db := range j.db {
		var entries, micros int64
		if err := db.QueryRow("SELECT COALESCE(SUM(entry_count), 0), CAST(COALESCE(SUM(net_amount), 0) * 1000000 AS SIGNED) FROM billing_totals").Scan(&entries, &micros); err != nil {
			j.t.Fatal(err)
		}
		net += micros
		got.Applied += entries
		if i == 0 {
			if err := db.QueryRow("SELECT SUM(records_in), SUM(duplicates) FROM billing_epoch").Scan(&got.Records, &got.Duplicates); err != nil {
				j.t.Fatal(err)
			}
		}
	}
	got.Micros = net
	if got != e {
		j.t.Fatalf("the tables say %+v, want %+v", got, e)
	}
}

// exact is booked, and has billing verify look at every row.
func (j *job) exact(e expected) {
	j.t.Helper()
	j.booked(e)
	asReader := filepath.Join(filepath.Dir(j.config), "verify.yaml")
	b, err := os.ReadFile(j.config)
	if err != nil {
		j.t.Fatal(err)
	}
	if err := os.WriteFile(asReader, []byte(servers.AsReader(string(b))), 0o600); err != nil {
		j.t.Fatal(err)
	}
	if out, err := command(j.t, "verify", "--config", asReader).CombinedOutput(); err != nil {
		j.t.Fatalf("billing verify: %v\n%s", err, bytes.TrimSpace(out))
	}
}
