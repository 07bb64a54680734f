package e2e

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"billing/test/servers"
)

// process is the real binary at work.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error

	admin atomic.Pointer[string] // its admin port's address, once it was asked for
}

// command starts `billing NAME` with the world's configuration.
func (w *world) command(args ...string) *process { return w.commandEnv(nil, args...) }

func (w *world) commandEnv(env []string, args ...string) *process {
	w.t.Helper()
	f, err := os.CreateTemp(w.dir, strings.ReplaceAll(args[0], " ", "-")+"-*.log")
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	p := &process{t: w.t, log: f.Name(), done: make(chan struct{})}
	p.cmd = exec.Command(cmp.Or(w.build, shared.binary), append(args, "--config", w.configFor(args))...)
	p.cmd.Env = append(environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = f, f
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	w.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if w.t.Failed() {
			b, _ := os.ReadFile(p.log)
			w.t.Logf("log of billing %s (%s):\n%s", strings.Join(args, " "), filepath.Base(p.log), tail(string(b), 150))
		}
	})
	return p
}

// configFor is the world's configuration with the MySQL users of a command's own:
// the service's, those who make the tables, or those who only look.
func (w *world) configFor(args []string) string {
	w.t.Helper()
	as := servers.AsReader
	switch {
	case args[0] == "migrate":
		as = servers.AsMigrate
	case !slices.Contains([]string{"verify", "lookup", "status"}, args[0]) && !slices.Equal(args[:min(2, len(args))], []string{"xa", "list"}):
		return w.config
	}
	f, err := os.CreateTemp(w.dir, args[0]+"-*.yaml")
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(as(string(w.configuration()))); err != nil {
		w.t.Fatal(err)
	}
	return f.Name()
}

// environ is ours without the testbed's own variables.
func environ() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "BILLING_") })
}

// run starts `billing run`; failpoint is POINT:N, POINT:N:stop, POINT:N:hold, or "".
func (w *world) run(failpoint string) *process {
	w.t.Helper()
	var env []string
	if failpoint != "" {
		env = []string{"FAILPOINT=" + failpoint}
	}
	return w.commandEnv(env, "run")
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func (p *process) output() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

// wait waits for the end of the process.
func (p *process) wait(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("still running after %s", timeout)
	}
}

func (p *process) mustExit(code int) {
	p.t.Helper()
	if err := p.wait(2 * time.Minute); err != nil {
		p.t.Fatal(err)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Fatalf("exit code %d, want %d:\n%s", got, code, tail(p.output(), 60))
	}
}

// mustDieAtFailpoint waits until the process has killed itself.
func (p *process) mustDieAtFailpoint() {
	p.t.Helper()
	if err := p.wait(2 * time.Minute); err != nil {
		p.t.Fatal("fail point not reached: ", err)
	}
	var exit *exec.ExitError
	if !errors.As(p.err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL || !strings.Contains(p.output(), "failpoint ") {
		p.t.Fatalf("process ended with %v, not at its fail point", p.err)
	}
}

// mustStopAtFailpoint waits until the process has frozen itself.
func (p *process) mustStopAtFailpoint() {
	p.t.Helper()
	servers.Eventually(p.t, 2*time.Minute, func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			return err
		}
		// pid (name) state ...; the name has no parenthesis in it.
		if _, rest, ok := strings.Cut(string(stat), ") "); !ok || rest[0] != 'T' {
			return fmt.Errorf("the process is not stopped: %s", stat)
		}
		return contains(p.output(), ": stopped")
	})
}

// mustHoldAtFailpoint waits until the lane has come to its fail point.
func (p *process) mustHoldAtFailpoint() {
	p.t.Helper()
	servers.Eventually(p.t, 2*time.Minute, func() error { return contains(p.output(), ": held") })
}

// signal sends a signal: SIGSTOP freezes the process, SIGCONT thaws it, SIGUSR1
// lets a lane go on that is held at a fail point.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) kill() {
	p.t.Helper()
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop sends SIGTERM: exit 0 within 20 s is the contract.
func (p *process) stop() {
	p.t.Helper()
	// A process that has not come to its main function yet knows no signals.
	servers.Eventually(p.t, 30*time.Second, func() error { return contains(p.output(), "msg=starting") })
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if err := p.wait(20 * time.Second); err != nil {
		p.t.Fatal("SIGTERM: ", err)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != 0 {
		p.t.Fatalf("SIGTERM: exit code %d, want 0", got)
	}
}

// ownerPrefix is written down here a second time, on purpose: names of branches
// are a contract with the operator's tools.
func ownerPrefix(job string, set []byte) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d:%s", len(job), job)
	h.Write(set)
	return "exb1" + hex.EncodeToString(h.Sum(nil))[:16]
}

func contains(s, want string) error {
	if !strings.Contains(s, want) {
		return fmt.Errorf("no %q in the output", want)
	}
	return nil
}
