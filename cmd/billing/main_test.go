package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"billing/cmd/billing/config"
	"billing/internal/checkpoint"

	"github.com/spf13/cobra"
)

// binary is the real program: what a script sees of it is tested from outside.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "billing-cli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "billing")
	build := exec.Command("go", "build", "-ldflags", "-X main.version=v1.2.3 -X main.commit=abcdef0", "-o", binary, ".")
	build.Stderr = os.Stderr
	code := 1
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the program:", err)
	} else {
		code = m.Run()
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

type answer struct {
	code        int
	out, errOut string
}

// run runs the program in dir with no BILLING_ variables but those given.
func run(t *testing.T, dir string, env []string, args ...string) answer {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Dir = dir
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "BILLING_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return answer{code: cmd.ProcessState.ExitCode(), out: out.String(), errOut: errOut.String()}
}

const goodConfig = `job: billing
kafka:
  brokers: [kafka-1:9092]
  topic: events
shards:
  - name: a
    dsn: app:s3cr3tPw@tcp(127.0.0.1:1)/billing
message:
  type_prefix: com.example.billing
  currencies: [EUR]
`

func inDir(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestWrongUsageIs2(t *testing.T) {
	dir := inDir(t, goodConfig)
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, `a command is missing after "billing"`},
		{[]string{"bogus"}, `unknown command "bogus" for "billing"`},
		{[]string{"migrat"}, "did you mean migrate?"},
		{[]string{"--bogus"}, "unknown flag: --bogus"},
		{[]string{"config"}, `a command is missing after "billing config"`},
		{[]string{"config", "bogus"}, `unknown command "bogus" for "billing config"`},
		{[]string{"config", "check", "extra"}, `billing config check takes no arguments, got ["extra"]`},
		{[]string{"config", "check", "--bogus"}, "unknown flag: --bogus"},
		{[]string{"config", "check", "--config"}, "flag needs an argument: --config"},
		{[]string{"migrate", "--bogus"}, "unknown flag: --bogus"},
		{[]string{"migrate", "extra"}, `takes no arguments, got ["extra"]`},
		{[]string{"version", "-x"}, "unknown shorthand flag: 'x' in -x"},
		{[]string{"healthcheck", "extra"}, `takes no arguments, got ["extra"]`},
		{[]string{"run", "--bogus"}, "unknown flag: --bogus"},
		{[]string{"run", "--accept", "lost-epoch:events/0"}, `"lost-epoch" is no reason that can be accepted; billing run --help lists them`},
		{[]string{"run", "--accept", "server-changed"}, "say for what: server-changed:SHARD or offset-reset:TOPIC/PARTITION"},
		{[]string{"run", "--accept", "server-changed:"}, "say for what"},
		{[]string{"run", "--accept", "server-changed:b"}, `there is no shard "b"`},
		{[]string{"run", "--accept", "offset-reset:other/0"}, "want a lane of topic events, such as events/0"},
		{[]string{"run", "--accept", "offset-reset:events/"}, "want a lane of topic events"},
		{[]string{"run", "--accept", "offset-reset:events/-1"}, "want a lane of topic events"},
		{[]string{"run", "--accept", "offset-reset:events/00"}, "want a lane of topic events"},
		{[]string{"migrate", "--accept", "fingerprint:a"}, `"fingerprint" is no reason that can be accepted`},
		{[]string{"xa"}, `a command is missing after "billing xa"`},
		{[]string{"xa", "rollback"}, `unknown command "rollback" for "billing xa"`},
		{[]string{"xa", "list", "--accept", "server-changed:a"}, "unknown flag: --accept"},
		{[]string{"xa", "resolve", "usage/0"}, `takes no arguments, got ["usage/0"]`},
		{[]string{"xa", "resolve", "--accept", "group-has-members:billing"}, `"group-has-members" is no reason that can be accepted`},
		{[]string{"help", "bogus"}, `no such command: ["bogus"]`},
	} {
		got := run(t, dir, nil, c.args...)
		if got.code != 2 || got.out != "" || !strings.HasPrefix(got.errOut, "billing: ") || !strings.Contains(got.errOut, c.says) || !strings.Contains(got.errOut, "--help' for what it takes.") {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", c.args, got.code, got.out, got.errOut)
		}
	}
}

func TestUnreachableServerIs4(t *testing.T) {
	for _, args := range [][]string{{"migrate"}, {"xa", "resolve"}} {
		got := run(t, inDir(t, goodConfig), nil, args...)
		if got.code != 4 || got.out != "" || !strings.Contains("\n"+got.errOut, "\nbilling: "+strings.Join(args, " ")+": ") || strings.Contains(got.errOut, "s3cr3t") {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", args, got.code, got.out, got.errOut)
		}
	}
}

func TestVersion(t *testing.T) {
	got := run(t, t.TempDir(), nil, "version", "--json")
	var b build
	if err := json.Unmarshal([]byte(got.out), &b); err != nil || got.code != 0 {
		t.Fatalf("exit %d, %v: %s", got.code, err, got.out)
	}
	want := build{Version: "v1.2.3", Commit: "abcdef0", Go: runtime.Version(), MySQL: supportedMySQL, Kafka: supportedKafka}
	if b != want {
		t.Errorf("got %+v, want %+v", b, want)
	}
	got = run(t, t.TempDir(), nil, "version")
	for _, w := range []string{"billing v1.2.3\n", "abcdef0", runtime.Version(), "8.0.30", "4.0"} {
		if !strings.Contains(got.out, w) {
			t.Errorf("%q is not in %q", w, got.out)
		}
	}
	// Without the linker's help there is still something to say.
	if b := thisBuild(); b.Version == "" || b.Commit == "" {
		t.Errorf("got %+v", b)
	}
}

func TestExitCodes(t *testing.T) {
	refusal := &checkpoint.Refusal{Scope: checkpoint.EndsProcess, Reason: checkpoint.ReasonShardUnfit, What: "a"}
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, exitDone},
		{&differenceError{count: 3}, exitDifference},
		{&usageError{errors.New("x")}, exitUsage},
		{&config.Error{}, exitUsage},
		{&reportedError{&config.Error{}}, exitUsage},
		{fmt.Errorf("migrate: %w", refusal), exitRefused},
		{errors.Join(errors.New("a server is away"), fmt.Errorf("b: %w", refusal)), exitRefused},
		{errors.New("a server is away"), exitFailed},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}

// Every command explains itself, with examples, on stdout.
func TestHelpHasExamples(t *testing.T) {
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		args := append(strings.Fields(cmd.CommandPath())[1:], "--help")
		got := run(t, t.TempDir(), nil, args...)
		if got.code != 0 || got.errOut != "" || !strings.Contains(got.out, "Usage:") || !strings.Contains(got.out, "Examples:\n  ") || cmd.Short == "" {
			t.Errorf("%q: exit %d, stderr %q, stdout %q", args, got.code, got.errOut, got.out)
		}
		for _, sub := range cmd.Commands() {
			each(sub)
		}
	}
	each(newRootCommand())
	if got := run(t, t.TempDir(), nil, "help", "config", "check"); got.code != 0 || !strings.Contains(got.out, "billing config check [flags]") {
		t.Errorf("help config check: %+v", got)
	}
}
