package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"billing/internal/money"
)

// rightAnswers is what the tables say when everything is right.
func rightAnswers(t *testing.T) answers {
	l := smallLoad()
	e := []epoch{
		{topic: topic, partition: 0, seq: 1, incarnation: 1, gtrid: "g1", from: 0, next: 3, records: 3, applied: 2, duplicates: 1},
		{topic: topic, partition: 1, seq: 1, incarnation: 1, gtrid: "g2", from: 0, next: 3, records: 3, applied: 1, conflicts: 1, rejected: 1},
	}
	sum := func(text string) money.Sum {
		s, err := money.ParseSum([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a := answers{
		epochs: [][]epoch{e, slices.Clone(e)}, ledgerRows: 3, ledgerIDs: 3,
		kinds:   map[string]int64{"conflict": 1, "rejected": 1},
		reasons: map[string]int64{"conflict": 1, "invalid_json": 1},
		currencies: map[string]currencySum{
			"USD": {sum("1.5"), sum("-0.5"), sum("1")},
			"EUR": {sum("99999999999999999999999999.999999999999"), money.Sum{}, sum("99999999999999999999999999.999999999999")},
		},
	}
	for _, total := range l.expected.Totals {
		a.totals, a.ledger = append(a.totals, nil), append(a.ledger, nil)
		i := len(a.totals) - 1
		a.totals[i], a.ledger[i] = append(a.totals[i], total), append(a.ledger[i], total)
	}
	return a
}

func TestReportSaysWhatIsRightAndWrong(t *testing.T) {
	var right, wrong bytes.Buffer
	a := rightAnswers(t)
	r := compare(smallLoad(), a)
	if err := r.print(&right); err != nil || len(r.differences) > 0 {
		t.Fatalf("%v, %q", err, r.differences)
	}
	for _, text := range []string{"had to come out", "in the tables", "duplicates removed", "EUR net", "kept, by reason: conflict 1, invalid_json 1", "same\n"} {
		if !strings.Contains(right.String(), text) {
			t.Errorf("no %q in\n%s", text, right.String())
		}
	}
	if strings.Contains(right.String(), "DIFFERENT") || strings.Contains(right.String(), "differences") {
		t.Errorf("a right result reads\n%s", right.String())
	}
	a.totals[1][0].NetAmount = "1.000000000000"
	r = compare(smallLoad(), a)
	if err := r.print(&wrong); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"DIFFERENT", "2 differences", "caf\u00e9", "net 99999999999999999999999999.999999999999", "net 1.000000000000"} {
		if !strings.Contains(wrong.String(), text) {
			t.Errorf("no %q in\n%s", text, wrong.String())
		}
	}
}

func TestOutcomeOfCaughtBranches(t *testing.T) {
	c := caught{branches: []string{"g1", "g1", "gone"}}
	if got := c.outcome(rightAnswers(t)); !strings.Contains(got, "2 were committed") || !strings.Contains(got, "1 rolled back") {
		t.Error(got)
	}
}

func TestWrongUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"--billing", "x"}, {"--mysqld", "x"}, {"--billing", "x", "--mysqld", "y", "--count", "3"}, {"--unknown"}, {"--billing", "x", "--mysqld", "y", "more"}} {
		var out, errOut bytes.Buffer
		if code := execute(t.Context(), args, &out, &errOut); code != 2 || out.Len() > 0 || errOut.Len() == 0 {
			t.Errorf("%q: code %d, stdout %q, stderr %q", args, code, out.String(), errOut.String())
		}
	}
}

func TestMissingServerIsNamed(t *testing.T) {
	var out, errOut bytes.Buffer
	missing := filepath.Join(t.TempDir(), "no-mysqld")
	if code := execute(t.Context(), []string{"--billing", missing, "--mysqld", missing}, &out, &errOut); code != 1 || !strings.Contains(errOut.String(), missing) {
		t.Errorf("code %d, %s", code, errOut.String())
	}
}

func start(t *testing.T, script string) *child {
	t.Helper()
	c, err := startChild("shell", filepath.Join(t.TempDir(), "log"), exec.Command("sh", "-c", script))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	return c
}

func TestChildren(t *testing.T) {
	if err := start(t, "exit 0").wait(t.Context()); err != nil {
		t.Error(err)
	}
	err := start(t, "echo last words; exit 3").wait(t.Context())
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "last words") {
		t.Errorf("%v", err)
	}
	// read waits for a line that never comes: the pipe's other end stays open.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	waiting := func(trap string) *child {
		ready := filepath.Join(t.TempDir(), "ready")
		if err := syscall.Mkfifo(ready, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", trap+"; echo >"+ready+"; while :; do read line; done")
		cmd.Stdin = r
		c, err := startChild("shell", filepath.Join(t.TempDir(), "log"), cmd)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.kill)
		if _, err := os.ReadFile(ready); err != nil { // the trap is set when this ends
			t.Fatal(err)
		}
		return c
	}
	if err := waiting("trap 'exit 0' TERM").stop(time.Minute); err != nil {
		t.Errorf("a process that ends by itself: %v", err)
	}
	if err := waiting("trap 'exit 4' TERM").stop(time.Minute); err == nil || !strings.Contains(err.Error(), "exit status 4") {
		t.Errorf("a process that fails: %v", err)
	}
	stubborn := waiting("trap '' TERM")
	if err := stubborn.stop(0); err == nil || !stubborn.ended() {
		t.Errorf("a process that does not listen: %v, ended %v", err, stubborn.ended())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	given := waiting("true")
	if err := given.wait(ctx); err == nil || !given.ended() {
		t.Errorf("a process that is given up: %v, ended %v", err, given.ended())
	}
}

func TestServiceKnowsItsConfigurationOnly(t *testing.T) {
	t.Setenv("BILLING_JOB", "another")
	t.Setenv("DEMO_TEST", "stays")
	s, err := configure("/bin/billing", t.TempDir(), []string{"127.0.0.1:1", "127.0.0.1:2"}, []string{"u:p@tcp(h:1)/a", "u:p@tcp(h:1)/b"})
	if err != nil {
		t.Fatal(err)
	}
	environment := s.command("run").Env
	if slices.Contains(environment, "BILLING_JOB=another") || !slices.Contains(environment, "DEMO_TEST=stays") {
		t.Errorf("environment %q", environment)
	}
	b, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"- \"127.0.0.1:2\"\n", "name: shard1\n    dsn: \"u:p@tcp(h:1)/b\"\n", "interval: 200ms", "type_prefix: com.example.billing."} {
		if !strings.Contains(string(b), text) {
			t.Errorf("no %q in\n%s", text, b)
		}
	}
	if info, err := os.Stat(s.config); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the passwords: %v, %v", info.Mode(), err)
	}
}
