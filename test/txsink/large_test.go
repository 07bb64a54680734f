package txsink_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"billing/internal/event"
	"billing/internal/txsink"
	"billing/test/servers"
)

// showsEvery is the time between two words on stderr, where that is no terminal.
const showsEvery = 10 * time.Second

// mostMemory is what `billing verify` may take, however large the tables are: half
// of it is usual for ten million rows, and the rows that a test writes by itself are
// more.
const mostMemory = 80 << 20

// TestVerifyOfLargeTables: BILLING_TEST_ROWS rows of the ledger, and a fifth of
// that of totals. `billing verify` reads them in bounded memory, shows where it is,
// and finds what is wrong in the last row. Kafka is not there.
func TestVerifyOfLargeTables(t *testing.T) {
	rows := 200_000
	if s := os.Getenv("BILLING_TEST_ROWS"); s != "" {
		var err error
		if rows, err = strconv.Atoi(s); err != nil || rows < 1 {
			t.Fatalf("BILLING_TEST_ROWS is %q: give a number of rows", s)
		}
	}
	s, cfg := fresh(t)
	fill(t, s, cfg, rows)
	binary := filepath.Join(t.TempDir(), "billing")
	if out, err := osexec.Command("go", "build", "-o", binary, "billing/cmd/billing").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	config := filepath.Join(t.TempDir(), "config.yaml")
	yaml := fmt.Sprintf("job: %s\nkafka:\n  brokers: [\"127.0.0.1:1\"]\n  topic: usage.events\nshards:\n  - name: east\n    dsn: %q\n  - name: west\n    dsn: %q\n"+
		"message:\n  type_prefix: com.example.billing.\n  currencies: [EUR]\n", cfg.Job, servers.AsReader(cfg.Shards[0].DSN), servers.AsReader(cfg.Shards[1].DSN))
	if err := os.WriteFile(config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	verify := func(code int) (stdout string) {
		t.Helper()
		began := time.Now()
		got, stdout, stderr, peak := measured(t, binary, "verify", "--config", config)
		took := time.Since(began)
		t.Logf("%d rows of the ledger: exit code %d after %s, %.0f rows a second, at most %d MiB\n%.2000s", rows, got, took.Round(time.Millisecond), float64(rows)/took.Seconds(), peak>>20, stdout)
		if got != code || peak > mostMemory || peak == 0 {
			t.Fatalf("exit code %d and %d MiB, want %d and at most %d MiB\n%s", got, peak>>20, code, mostMemory>>20, stderr)
		}
		if took > showsEvery+5*time.Second && !strings.Contains(stderr, "rows/s") {
			t.Errorf("it does not show where it is:\n%s", stderr)
		}
		return stdout
	}
	verify(0)
	last := query[string](t, 1, cfg, "SELECT CONCAT(kafka_topic, '/', kafka_partition, ' offset ', kafka_offset) FROM %s.billing_ledger ORDER BY kafka_topic DESC, kafka_partition DESC, kafka_offset DESC LIMIT 1")
	exec(t, 1, cfg, "UPDATE %s.billing_ledger SET note = 'x' ORDER BY kafka_topic DESC, kafka_partition DESC, kafka_offset DESC LIMIT 1")
	if out := verify(1); !strings.Contains(out, "difference: shard west, billing_ledger, "+last+": ") {
		t.Errorf("it should name %s:\n%s", last, out)
	}
}

// fill books so many rows, in epochs of three lanes.
func fill(t *testing.T, s *txsink.Sink, cfg txsink.Config, rows int) {
	t.Helper()
	const most = 20_000 // rows of an epoch
	lanes := []*lane{newLane(t, s, cfg, 0), newLane(t, s, cfg, 1), newLane(t, s, cfg, 2)}
	var hasher event.Hasher
	began := time.Now()
	for n := 0; n < rows; {
		l := lanes[n/most%len(lanes)]
		e := l.epoch()
		records := int64(min(most, rows-n))
		for i := range records - 1 {
			ev := charge(fmt.Sprint("event-", n), fmt.Sprint("customer-", n/5), "12.3456")
			hasher.Hash(ev)
			e.Apply(ev, l.next+i)
			n++
		}
		e.Reject(&event.Record{Offset: l.next + records - 1, Value: bytes.Repeat([]byte("x"), 32<<10)}, event.ReasonInvalidJSON, "no JSON")
		n++
		l.book(e, records)
	}
	t.Logf("%d rows written in %s", rows, time.Since(began).Round(time.Millisecond))
}

// measured runs a program and says how much memory it had at most.
func measured(t *testing.T, name string, args ...string) (code int, stdout, stderr string, peak int64) {
	t.Helper()
	cmd := osexec.Command(name, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "BILLING_") }) // the testbed's own
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if exit := new(osexec.ExitError); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			return cmd.ProcessState.ExitCode(), out.String(), errs.String(), peak
		case <-tick.C:
			peak = max(peak, highWater(cmd.Process.Pid))
		}
	}
}

// highWater is the most memory that a process has had, 0 where it is gone.
func highWater(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for in := bufio.NewScanner(bytes.NewReader(status)); in.Scan(); {
		if text, ok := strings.CutPrefix(in.Text(), "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 10, 64)
			if err == nil {
				return n << 10
			}
		}
	}
	return 0
}
