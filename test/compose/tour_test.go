// Package compose runs compose.yaml, the Dockerfile's image and the tour of README.md, line by line, as a person would.
package compose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"billing/test/servers"
)

// tourTakes bounds the whole: two cores, an image to build, and others at work.
const tourTakes = 15 * time.Minute

// TestTour types what README.md's tour says, compares what is printed with what stands there, and looks at the
// containers. With BILLING_TOUR=update it writes what is printed to README.md instead of comparing.
func TestTour(t *testing.T) {
	servers.Require(t)
	p := newProject(t)
	readme := filepath.Join(p.root, "README.md")
	doc, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	commands, err := readTour(string(doc))
	if err != nil {
		t.Fatal(err)
	}
	last := len(commands) - 1
	if !strings.Contains(commands[last].text, "down -v") {
		t.Fatalf("the tour ends with %q, and everything stays", commands[last].text)
	}
	printed := p.typeAll(t, commands[:last])
	p.checkTakeover(t)
	p.checkImage(t)
	p.checkSecrets(t)
	p.checkHealthAndStop(t)
	printed = append(printed, p.typeAll(t, commands[last:])...)
	p.checkNothingIsLeft(t)
	if os.Getenv("BILLING_TOUR") == "update" && !t.Failed() {
		text, err := writeTour(string(doc), printed)
		if err == nil {
			err = os.WriteFile(readme, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	for i, c := range commands {
		if got, want := comparable(printed[i]), comparable(c.says); got != want {
			t.Errorf("$ %s\nprints\n%s\nREADME.md has\n%s\n(make tour writes it anew)", c.text, printed[i], c.says)
		}
	}
}

// project is one run of compose.yaml beside all others.
type project struct {
	name, root, image string
	typed             string // where the tour's commands are typed: what they write stays there
	env               []string
	ports             [2]int
}

// A project's name says whose it is: the process's.
var ourProject = regexp.MustCompile(`^billingtour(\d+)$`)

func newProject(t *testing.T) *project {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	p := &project{name: "billingtour" + strconv.Itoa(os.Getpid()), root: root}
	p.image = "billing-tour:" + p.name
	for i := range p.ports {
		if p.ports[i], err = servers.FreePort(); err != nil {
			t.Fatal(err)
		}
	}
	p.env = append(os.Environ(), "COMPOSE_PROJECT_NAME="+p.name, "BILLING_IMAGE="+p.image, "VERSION=", "COMMIT=",
		fmt.Sprintf("BILLING_1_PORT=%d", p.ports[0]), fmt.Sprintf("BILLING_2_PORT=%d", p.ports[1]))
	p.typed = t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nexec '%s/scripts/compose' \"$@\"\n", root)
	err = os.Mkdir(filepath.Join(p.typed, "scripts"), 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(p.typed, "scripts", "compose"), []byte(script), 0o700) //nolint:gosec // it is run
	}
	if err != nil {
		t.Fatal(err)
	}
	p.removeLeftovers(t)
	t.Cleanup(func() {
		if t.Failed() {
			logs, err := p.command(context.Background(), "scripts/compose", "logs", "--no-color", "--tail=60").CombinedOutput()
			t.Logf("the containers' logs (%v):\n%s", err, logs)
		}
		p.remove(t, p.name)
		_ = p.command(context.Background(), "docker", "image", "rm", p.image).Run()
	})
	return p
}

// command is one that runs in the repository's root for this project. When ctx ends, it does with all its children.
func (p *project) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, args...) //nolint:gosec // the test's own commands
	c.Dir, c.Env = p.root, p.env
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 10 * time.Second
	return c
}

// output is what a command prints; it has to end well.
func (p *project) output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := p.command(t.Context(), name, args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		t.Fatalf("%s %q: %v", name, args, err)
	}
	return string(out)
}

// removeLeftovers removes what killed runs have left.
func (p *project) removeLeftovers(t *testing.T) {
	t.Helper()
	for _, name := range strings.Fields(p.output(t, "docker", "ps", "--all", "--format", `{{.Label "com.docker.compose.project"}}`)) {
		if m := ourProject.FindStringSubmatch(name); m != nil {
			if pid, err := strconv.Atoi(m[1]); err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				p.remove(t, name)
			}
		}
	}
}

// of lists a project's things of one kind.
func (p *project) of(ctx context.Context, name, kind string, more ...string) ([]string, error) {
	args := append([]string{kind, "ls", "--quiet", "--filter", "label=com.docker.compose.project=" + name}, more...)
	out, err := p.command(ctx, "docker", args...).Output()
	return strings.Fields(string(out)), err
}

// remove removes all of a project, whatever state it is in.
func (p *project) remove(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // also after the test's own has ended
	defer cancel()
	for _, kind := range []struct{ name, list, force string }{{"container", "--all", "--force"}, {"network", "", ""}, {"volume", "", "--force"}} {
		things, err := p.of(ctx, name, kind.name, strings.Fields(kind.list)...)
		if err == nil && len(things) > 0 {
			err = p.command(ctx, "docker", append(append([]string{kind.name, "rm"}, strings.Fields(kind.force)...), things...)...).Run()
		}
		if err != nil {
			t.Errorf("remove the %ss of %s: %v", kind.name, name, err)
		}
	}
}

// typeAll types the commands into one shell and gives what each printed. All have to end well.
func (p *project) typeAll(t *testing.T, commands []command) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tourTakes)
	defer cancel()
	mark := fmt.Sprintf("=== %s ", p.name)
	var script strings.Builder
	for _, c := range commands {
		fmt.Fprintf(&script, "%s\nprintf '%s%%s\\n' $?\n", c.text, mark)
	}
	path := filepath.Join(t.TempDir(), "tour.sh")
	if err := os.WriteFile(path, []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	shell := p.command(ctx, "bash", path)
	shell.Dir = p.typed
	var errOut bytes.Buffer
	out := &marked{mark: mark, begun: time.Now(), t: t, commands: commands, stop: cancel}
	shell.Stdout, shell.Stderr = out, &errOut
	err := shell.Run()
	out.mu.Lock()
	defer out.mu.Unlock()
	if out.failed {
		t.Fatalf("what was said:\n%s", tail(errOut.String()))
	}
	if err != nil || len(out.printed) != len(commands) {
		next := "-"
		if n := len(out.printed); n < len(commands) {
			next = commands[n].text
		}
		t.Fatalf("the shell ended (%v; the context: %v) after %d of %d commands, at: %s\nit printed %s\nand said %s", err, ctx.Err(), len(out.printed), len(commands), next, out.rest, tail(errOut.String()))
	}
	return out.printed
}

// marked takes what a shell prints and cuts it at the marks. It stops the shell at a command that fails: those that wait
// for what it should have done would wait for ever.
type marked struct {
	mark     string
	begun    time.Time
	t        *testing.T
	commands []command
	stop     func()

	mu      sync.Mutex
	rest    string
	printed []string
	failed  bool
}

func (m *marked) Write(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rest += string(b)
	for len(m.printed) < len(m.commands) {
		says, after, found := strings.Cut(m.rest, m.mark)
		code, after, whole := strings.Cut(after, "\n")
		if !found || !whole {
			break
		}
		c := m.commands[len(m.printed)]
		m.t.Logf("%5.1f s $ %s", time.Since(m.begun).Seconds(), c.text)
		if code != "0" {
			m.t.Errorf("$ %s\nends with %s and prints\n%s", c.text, code, says)
			m.failed = true
			m.stop()
		}
		m.printed, m.rest = append(m.printed, says), after
	}
	return len(b), nil
}

func tail(s string) string { return s[max(0, len(s)-6000):] }
