package mutants

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// What becomes of a mutant. Only killed is good.
const (
	killed       = "killed"
	survived     = "SURVIVED"
	notApplied   = "DOES NOT APPLY"
	notCompiled  = "DOES NOT COMPILE"
	noTest       = "NO SUCH TEST"
	otherwise    = "FAILS FOR ANOTHER REASON"
	notRun       = "NOT RUN"
	brokenBefore = "TEST FAILS WITHOUT IT"
)

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
	FailedBuild                   string
}

// report is what a go test -json has said.
type report struct {
	built  bool
	ran    map[string]bool // tests that were begun
	ended  map[string]string
	output string
}

func readReport(r io.Reader) (report, error) {
	rep := report{built: true, ran: map[string]bool{}, ended: map[string]string{}}
	var out strings.Builder
	for dec := json.NewDecoder(r); ; {
		var e event
		err := dec.Decode(&e)
		if errors.Is(err, io.EOF) {
			rep.output = out.String()
			return rep, nil
		}
		if err != nil {
			return rep, fmt.Errorf("read the answer of go test -json: %w", err)
		}
		out.WriteString(e.Output)
		switch e.Action {
		case "build-fail":
			rep.built = false
		case "run":
			rep.ran[e.Test] = true
		case "pass", "fail", "skip":
			if e.Test != "" {
				rep.ended[e.Test] = e.Action
			}
			rep.built = rep.built && e.FailedBuild == ""
		}
	}
}

// asEvent is a test's name as go test writes it.
func asEvent(test string) string { return strings.ReplaceAll(test, " ", "_") }

var (
	timedOut = regexp.MustCompile(`(?m)^panic: test timed out after `)
	panicked = regexp.MustCompile(`(?m)^(panic: |fatal error: )`)
)

// judge says what a run of a mutant's killing test means. Only a failed test kills: a build that fails, or a test that
// is not there, shows nothing; and a test that dies shows something only where the mutant says that it does.
func (m *mutant) judge(rep report) string {
	test := asEvent(m.test)
	switch {
	case !rep.built:
		return notCompiled
	case !rep.ran[test]:
		return noTest
	case rep.ended[test] == "pass":
		return survived
	case rep.ended[test] == "skip":
		return notRun
	}
	ends := "" // a test that has died may have no end of its own
	switch {
	case timedOut.MatchString(rep.output):
		ends = "timeout"
	case panicked.MatchString(rep.output):
		ends = "panic"
	}
	if ends != m.ends || ends == "" && rep.ended[test] != "fail" || !strings.Contains(rep.output, m.says) {
		return otherwise
	}
	return killed
}

// overlay writes the patched files to a folder of the test's and gives the file that go's -overlay takes.
func (m *mutant) overlay(dir string) (string, error) {
	files, err := m.apply(readFile)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for path, text := range files {
		to := filepath.Join(dir, strings.ReplaceAll(path, "/", "+"))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root(), filepath.FromSlash(path))] = to
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}

// goTool runs the go command at the root. What it says on stdout is given, with what it says on stderr behind an error.
func goTool(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root()
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err = cmd.Run()
	return out.String(), problems.String(), err
}

// runTests runs tests of a package by a pattern, each under its own time-out.
func runTests(ctx context.Context, pkg, run string, servers bool, more ...string) (report, error) {
	timeout := "2m"
	if servers {
		timeout = "10m"
	}
	args := append([]string{"test", "-json", "-count=1", "-timeout", timeout, "-run", run}, more...)
	stdout, stderr, err := goTool(ctx, append(args, "./"+pkg)...)
	rep, rerr := readReport(strings.NewReader(stdout))
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return rep, err
	}
	rep.output += stderr
	return rep, rerr
}

// result is what became of a mutant, and how long that took.
type result struct {
	*mutant
	verdict string
	why     string // of anything but a kill
	took    time.Duration
}

// kill runs a mutant's killing test on the broken code.
func (m *mutant) kill(t *testing.T) result {
	r := result{mutant: m}
	begun := time.Now()
	file, err := m.overlay(t.TempDir())
	if err != nil {
		r.verdict, r.why = notApplied, err.Error()
		return r
	}
	rep, err := runTests(t.Context(), m.pkg, pattern(asEvent(m.test)), m.servers, "-overlay", file)
	r.took = time.Since(begun)
	if err != nil {
		r.verdict, r.why = notRun, err.Error()
		return r
	}
	if r.verdict = m.judge(rep); r.verdict != killed {
		r.why = tail(rep.output)
	}
	return r
}

// tail is the end of a long output.
func tail(s string) string {
	const most = 4000
	if len(s) > most {
		s = "..." + s[len(s)-most:]
	}
	return s
}
