package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What `billing verify` answers, read as strictly as the contract is written.

// wrongRow is one row that is not what it must be.
type wrongRow struct {
	Shard, Table, Key, Wrong, Expected string
}

// inDoubt is a branch that is prepared while verify looks.
type inDoubt struct {
	Shard, Lane, GTRID, Decision string
	Incarnation, Seq             int64
}

// verified is one answer.
type verified struct {
	OK                bool       `json:"ok"`
	Differences       []wrongRow `json:"differences"`
	InDoubt           []inDoubt  `json:"in_doubt"`
	Notes             []string   `json:"notes"`
	DecisionsCompared bool       `json:"decisions_compared"`
	AnswerCompared    bool       `json:"answer_compared"`

	code           int
	stdout, stderr string
	took           time.Duration
}

func (v *verified) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "exit code %d after %s", v.code, v.took.Round(time.Millisecond))
	if v.code > 1 {
		return b.String() + "\n" + tail(v.stdout, 20) + "\n" + tail(v.stderr, 20)
	}
	fmt.Fprintf(&b, ", %d differences", len(v.Differences))
	for _, d := range v.Differences[:min(12, len(v.Differences))] {
		fmt.Fprintf(&b, "\n%+v", d)
	}
	for _, d := range v.InDoubt {
		fmt.Fprintf(&b, "\nin doubt: %+v", d)
	}
	for _, n := range v.Notes {
		fmt.Fprintf(&b, "\nnote: %s", n)
	}
	return b.String()
}

// verify runs the command with --json. A contradiction within its answer is an error.
func (w *world) verify(ctx context.Context, args ...string) (*verified, error) {
	v, err := w.verifyText(ctx, append([]string{"--json"}, args...)...)
	if err != nil || v.code > 1 {
		return v, err
	}
	if err := json.Unmarshal([]byte(v.stdout), v); err != nil {
		return v, fmt.Errorf("not one JSON object: %w\n%s", err, v)
	}
	if v.OK != (v.code == 0) || v.OK != (len(v.Differences) == 0) {
		return v, fmt.Errorf("ok is %t with %d differences and\n%s", v.OK, len(v.Differences), v)
	}
	for _, d := range v.Differences {
		if d.Shard == "" || d.Table == "" || d.Key == "" || d.Wrong == "" || d.Expected == "" {
			return v, fmt.Errorf("a difference that leaves something out: %+v", d)
		}
	}
	return v, nil
}

// verifyText is verify in the form for people.
func (w *world) verifyText(ctx context.Context, args ...string) (*verified, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, shared.binary, append([]string{"verify", "--config", w.configFor([]string{"verify"})}, args...)...)
	cmd.Env = environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || exit.ExitCode() < 0) {
		return nil, fmt.Errorf("billing verify: %w after %s\n%s", err, time.Since(began), stderr.String())
	}
	return &verified{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String(), took: time.Since(began)}, nil
}

// mustVerify is verify where nothing hinders it.
func (w *world) mustVerify(t *testing.T, code int) *verified {
	t.Helper()
	v, err := w.verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v.code != code {
		t.Fatalf("want exit code %d, got %s", code, v)
	}
	return v
}

// has says whether the answer names this row.
func (v *verified) has(shard int, table, key string) bool {
	return slices.ContainsFunc(v.Differences, func(d wrongRow) bool {
		return d.Shard == fmt.Sprint("s", shard) && d.Table == table && d.names(key)
	})
}

var severalEpochs = regexp.MustCompile(`^(.*) epochs (\d+) to (\d+)$`)

// names says whether the key is, or has in it, this one. Epochs in a row are named
// together, and a total has its columns behind its key.
func (d *wrongRow) names(key string) bool {
	if m := severalEpochs.FindStringSubmatch(d.Key); m != nil {
		lane, seq, ok := strings.Cut(key, " epoch ")
		return ok && lane == m[1] && number(m[2]) <= number(seq) && number(seq) <= number(m[3])
	}
	return d.Key == key || d.Table == "billing_total" && strings.HasPrefix(d.Key, key+" (")
}

// noted says whether a note has all of these words.
func (v *verified) noted(words ...string) bool {
	return slices.ContainsFunc(v.Notes, func(note string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(note, word) })
	})
}

// compareText holds the form for people against the other one.
func (v *verified) compareText(text *verified) error {
	if text.code != v.code {
		return fmt.Errorf("with --json the exit code is %d, without it\n%s", v.code, text)
	}
	var want, got []string
	for _, d := range v.Differences {
		want = append(want, fmt.Sprintf("difference: shard %s, %s, %s: %s; expected %s", d.Shard, d.Table, d.Key, d.Wrong, d.Expected))
	}
	lines := strings.Split(strings.TrimSuffix(text.stdout, "\n"), "\n")
	last := lines[len(lines)-1]
	if verdict := map[bool]string{true: "ok: ", false: "FAILED: "}[v.OK]; !strings.HasPrefix(last, verdict) {
		return fmt.Errorf("the last line is not %s...: %q", verdict, last)
	}
	counts := map[string]int{}
	for _, line := range lines[:len(lines)-1] {
		word, _, _ := strings.Cut(line, ": ")
		counts[word]++
		switch word {
		case "difference":
			got = append(got, line)
		case "in doubt", "note", "read", "records", "booked":
		default:
			return fmt.Errorf("a line that is of no kind: %q", line)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		return fmt.Errorf("it says\n%s\nand with --json\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if counts["in doubt"] != len(v.InDoubt) || counts["note"] != len(v.Notes) {
		return fmt.Errorf("%d lines in doubt and %d notes, with --json %d and %d", counts["in doubt"], counts["note"], len(v.InDoubt), len(v.Notes))
	}
	return nil
}
