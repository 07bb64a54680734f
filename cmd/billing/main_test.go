package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"billing/cmd/billing/config"
	"billing/internal/checkpoint"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
		{[]string{"migrat"}, "did you mean billing migrate?"},
		{[]string{"xa", "lst"}, `unknown command "lst" for "billing xa"; did you mean billing xa list?`},
		{[]string{"resolve"}, "did you mean billing xa resolve?"},
		{[]string{"check"}, "did you mean billing config check?"},
		{[]string{"status", "--wach"}, "unknown flag: --wach; did you mean --watch?"},
		{[]string{"status", "--watch", "--every", "5"}, `--every "5": want a time span with its unit, such as 5s or 1m30s`},
		{[]string{"status", "--watch=x"}, `--watch "x": want nothing behind it, or true or false`},
		{[]string{"produce", "--count", "1e3"}, `--count "1e3": want a whole number`},
		{[]string{"produce", "--skew", "half"}, `--skew "half": want a number such as 0.5`},
		{[]string{"run", "--config", ""}, "--config is empty: name a file, or leave it out"},
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
		{[]string{"migrate", "--accept", "offset-reset:events/0"}, "offset-reset can't come up here"},
		{[]string{"xa"}, `a command is missing after "billing xa"`},
		{[]string{"xa", "rollback"}, `unknown command "rollback" for "billing xa"`},
		{[]string{"xa", "list", "--accept", "server-changed:a"}, "unknown flag: --accept"},
		{[]string{"xa", "resolve", "usage/0"}, `takes no arguments, got ["usage/0"]`},
		{[]string{"xa", "resolve", "--accept", "group-has-members:billing"}, `"group-has-members" is no reason that can be accepted`},
		{[]string{"help", "bogus"}, `unknown command "bogus" for "billing"`},
		{[]string{"help", "xa", "lst"}, `did you mean billing xa list?`},
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

// Every command explains itself in the same form, on stdout, no wider than a
// terminal, with examples that are understood as they stand.
func TestHelp(t *testing.T) {
	root := newRootCommand()
	root.InitDefaultHelpCmd()
	listed := map[string]bool{}
	for _, p := range purposes {
		for _, name := range p.commands {
			listed[name] = true
			if _, rest, err := root.Find(strings.Fields(name)); err != nil || len(rest) > 0 {
				t.Errorf("the map of billing --help has %q, which is no command", name)
			}
		}
	}
	all := 0
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		all++
		words := strings.Fields(cmd.CommandPath())[1:]
		got := run(t, t.TempDir(), nil, append(words, "--help")...)
		if got.code != 0 || got.errOut != "" || cmd.Short == "" {
			t.Errorf("%q: exit %d, stderr %q", words, got.code, got.errOut)
		}
		for _, section := range []string{"\n\nUsage:\n  billing", "\n\nExamples:\n  ", "\n\nFlags:\n"} {
			if !strings.Contains(got.out, section) {
				t.Errorf("%q: no %q in\n%s", words, section, got.out)
			}
		}
		if !cmd.HasSubCommands() || !cmd.HasParent() {
			section := regexp.MustCompile(`\n\nExit codes:\n((?:  .+\n)+)`).FindStringSubmatch(got.out)
			if section == nil || !regexp.MustCompile(`(?m)^  0  .+\n(   .+\n)*(  1  .+\n)?  2  `).MatchString(section[1]) {
				t.Errorf("%q: exit codes: %q", words, section)
			}
		}
		if !cmd.HasSubCommands() && !listed[strings.Join(words, " ")] {
			t.Errorf("%q: is not in the map of billing --help", words)
		}
		for line := range strings.Lines(got.out) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%q: %d columns: %s", words, n, line)
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%q: --%s is not described", words, f.Name)
			}
		})
		understood(t, cmd.Example)
		for _, sub := range cmd.Commands() {
			each(sub)
		}
	}
	each(root)
	if all < 14 {
		t.Errorf("%d commands only", all)
	}
	for _, args := range [][]string{{"help", "config", "check"}, {"help", "xa", "list"}, {"help"}} {
		if got, want := run(t, t.TempDir(), nil, args...), run(t, t.TempDir(), nil, append(args[1:], "--help")...); got != want || got.code != 0 {
			t.Errorf("%q: exit %d, %s", args, got.code, got.out)
		}
	}
	if got := run(t, t.TempDir(), nil, "--version"); got.code != 0 || got.out != "billing version v1.2.3\n" {
		t.Errorf("--version: %+v", got)
	}
}

// understood tries whether the command lines of an example are understood.
func understood(t *testing.T, example string) {
	t.Helper()
	for line := range strings.Lines(strings.ReplaceAll(example, "\\\n", " ")) {
		line, _, _ = strings.Cut(line, "|")
		line, _, _ = strings.Cut(line, ">")
		words := strings.Fields(line)
		for len(words) > 0 && strings.HasPrefix(words[0], "BILLING_") {
			words = words[1:]
		}
		if len(words) == 0 || words[0] != "billing" {
			continue
		}
		cmd, rest, err := newRootCommand().Find(words[1:])
		if err == nil {
			cmd.InitDefaultHelpFlag()
			err = cmd.ParseFlags(rest)
		}
		if err != nil && !errors.Is(err, pflag.ErrHelp) || cmd.HasSubCommands() && cmd.Name() != "billing" {
			t.Errorf("%q: %v", line, err)
		}
	}
}
