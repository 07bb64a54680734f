package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"billing/test/servers"
)

func TestWrongUsage(t *testing.T) {
	for _, args := range [][]string{
		{}, {"--billing", "x"}, {"--mysqld", "x"}, {"--billing", "x", "--mysqld", "y", "--count", "4999"}, {"--unknown"}, {"--billing", "x", "--mysqld", "y", "more"}, {"--count", "many"},
	} {
		var out, errOut bytes.Buffer
		if code := execute(t.Context(), args, &out, &errOut); code != exitUsage || out.Len() > 0 || errOut.Len() == 0 {
			t.Errorf("%q: code %d, stdout %q, stderr %q", args, code, out.String(), errOut.String())
		}
	}
}

func TestMissingServerIsNamed(t *testing.T) {
	var out, errOut bytes.Buffer
	missing := filepath.Join(t.TempDir(), "no-mysqld")
	if code := execute(t.Context(), []string{"--billing", missing, "--mysqld", missing}, &out, &errOut); code != exitFailed || !strings.Contains(errOut.String(), missing) {
		t.Errorf("code %d, %s", code, errOut.String())
	}
}

// Every name that --json has is explained by --help.
func TestHelpExplainsTheJSON(t *testing.T) {
	var out, errOut bytes.Buffer
	if code := execute(t.Context(), []string{"--help"}, &out, &errOut); code != 0 || errOut.Len() > 0 {
		t.Fatalf("code %d, %s", code, errOut.String())
	}
	text, err := json.Marshal(theReport(t))
	if err != nil {
		t.Fatal(err)
	}
	var all any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	collect(all, names)
	if len(names) < 30 {
		t.Fatalf("names %v", names)
	}
	for name := range names {
		if !strings.Contains(out.String(), name) {
			t.Errorf("--help does not explain %s", name)
		}
	}
}

// collect gathers the names of all members but those of reasons.
func collect(v any, names map[string]bool) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			collect(e, names)
		}
	case map[string]any:
		for name, e := range v {
			names[name] = true
			if name != "reasons" {
				collect(e, names)
			}
		}
	}
}

func TestServiceKnowsItsConfigurationOnly(t *testing.T) {
	t.Setenv("BILLING_JOB", "another")
	t.Setenv("DEMO_TEST", "stays")
	s, err := configure(t.TempDir(), "/bin/billing", 500, []string{"127.0.0.1:1", "127.0.0.1:2"}, []string{"u:p@tcp(h:1)/a", "u:p@tcp(h:1)/b"})
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
	for _, text := range []string{"- \"127.0.0.1:2\"\n", "name: shard1\n    dsn: \"u:p@tcp(h:1)/b\"\n", "interval: 200ms\n  max_records: 500\n", "type_prefix: com.example.billing."} {
		if !strings.Contains(string(b), text) {
			t.Errorf("no %q in\n%s", text, b)
		}
	}
	if info, err := os.Stat(s.config); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the passwords: %v, %v", info.Mode(), err)
	}
}

// The whole demo, as a person runs it in a pipe: with the real binaries, which are
// killed, the embedded broker, and a MySQL in a container. It ends with 0, which
// says that the service was exact and the plain loop was not.
func TestDemo(t *testing.T) {
	t.Parallel()
	servers.Require(t)
	image := os.Getenv("BILLING_TEST_MYSQL_IMAGE")
	if image == "" {
		t.Fatal("BILLING_TEST_MYSQL_IMAGE is not set: run it by make test, or after eval \"$(scripts/testbed --env)\"")
	}
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin+"/", "billing/cmd/billing", "billing/cmd/demo")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const count = 20_000
	demo := exec.CommandContext(t.Context(), filepath.Join(bin, "demo"), "--json", "--count", "20000", "--billing", filepath.Join(bin, "billing"), "--mysqld", "image:"+image)
	demo.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	demo.WaitDelay = time.Minute
	var out, errOut bytes.Buffer
	demo.Stdout, demo.Stderr = &out, &errOut
	if err := demo.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, errOut.String(), out.String())
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	x := r.Expected
	if !r.Exact || !r.Ours.Exact || r.Plain.Exact || !r.Verify.OK || x.Messages != count || r.Ours.Messages != count || r.Ours.Entries != x.Entries || r.Ours.TotalsRight != x.Totals {
		t.Errorf("the report is\n%s", out.String())
	}
	// A machine that is slow may catch no moment at which the plain loop writes again.
	again := slices.ContainsFunc(r.Plain.Kills, func(k caught) bool { return k.Moment == halfWritten.String() || k.Moment == written.String() })
	if r.Plain.Lost > 0 || again && r.Plain.WrittenAgain == 0 || r.Plain.Repeats == 0 || r.Plain.Entries != x.Entries+r.Plain.doubled()+r.Plain.Conflicts || r.Plain.TotalsRight >= x.Totals {
		t.Errorf("the plain loop's part is\n%s", out.String())
	}
	for _, part := range []result{r.Plain, r.Ours} {
		if len(part.Kills) != len(moments) || part.Rate <= 0 {
			t.Errorf("kills %+v, %f messages a second", part.Kills, part.Rate)
		}
		for i, k := range part.Kills {
			if k.Wanted != moments[i].String() || k.Facts == "" || k.Recovery <= 0 || k.Messages < count/5 || k.Messages >= count {
				t.Errorf("kill %+v", k)
			}
		}
	}
	if strings.Contains(errOut.String(), "\x1b") || !strings.Contains(errOut.String(), "SIGKILL at ") {
		t.Errorf("progress in a pipe is\n%s", errOut.String())
	}
	if left, err := os.ReadDir(strings.TrimPrefix(demo.Env[len(demo.Env)-1], "TMPDIR=")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	containers, err := docker(t.Context(), nil, "ps", "--all", "--quiet", "--filter", "label="+ownerLabel)
	if err != nil {
		t.Error(err)
	}
	for id := range strings.FieldsSeq(containers) {
		owner, err := docker(t.Context(), nil, "inspect", "--format", "{{index .Config.Labels \""+ownerLabel+"\"}}", id)
		if err == nil && ownerIsDead(strings.TrimSpace(owner)) {
			t.Errorf("container %s of %s is left behind", id, owner)
		}
	}
}
