package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// child is a process that the demo has started. Its output goes to a file.
type child struct {
	name string
	log  string // path
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how; read after done
}

// startChild starts cmd with its output appended to the file log, but for a
// standard output that cmd has already.
func startChild(name, log string, cmd *exec.Cmd) (*child, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%s: open its log: %w", name, err)
	}
	defer file.Close() //nolint:errcheck // the child has its own
	if cmd.Stderr = file; cmd.Stdout == nil {
		cmd.Stdout = file
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// A terminal's Ctrl-C is for the demo, which then ends its children in order.
	cmd.SysProcAttr.Setpgid = true
	// Even where the demo itself is killed with SIGKILL nothing is to be left
	// running. Only some systems have this field, hence by name.
	if f := reflect.ValueOf(cmd.SysProcAttr).Elem().FieldByName("Pdeathsig"); f.IsValid() {
		f.SetInt(int64(syscall.SIGKILL))
	}
	c := &child{name: name, log: log, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel takes the end of the thread that started a child for the
		// parent's end, so the thread waits for the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: start: %w", name, err)
	}
	return c, nil
}

// ended reports whether the process has ended.
func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (c *child) signal(s os.Signal) error {
	if err := c.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("%s: send %v: %w", c.name, s, err)
	}
	return nil
}

// stop asks the process to end, and ends it after the grace period. It reports
// whether the process ended by itself with exit code 0.
func (c *child) stop(grace time.Duration) error {
	if !c.ended() {
		if err := c.signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		select {
		case <-c.done:
		case <-time.After(grace):
			c.kill()
			return fmt.Errorf("%s: still running %s after SIGTERM%s", c.name, grace, c.lastWords())
		}
	}
	if c.err != nil {
		return fmt.Errorf("%s: ended: %w%s", c.name, c.err, c.lastWords())
	}
	return nil
}

// wait returns when the process has ended, by itself or because ctx did.
func (c *child) wait(ctx context.Context) error {
	select {
	case <-c.done:
	case <-ctx.Done():
		c.kill()
		return ctx.Err()
	}
	if c.err != nil {
		return fmt.Errorf("%s: %w%s", c.name, c.err, c.lastWords())
	}
	return nil
}

// kill ends the process at once and returns when it has ended.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // fails only when it has ended
	<-c.done
}

// lastWords is the end of the process's log, to put behind an error.
func (c *child) lastWords() string {
	b, err := os.ReadFile(c.log)
	if err != nil || len(bytes.TrimSpace(b)) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if n := len(lines) - 20; n > 0 {
		lines = lines[n:]
	}
	return "\n  the end of its log:\n  | " + strings.Join(lines, "\n  | ")
}

// freePort is a port on loopback that nobody has at the moment.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // there is nothing to wait for
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close() //nolint:errcheck // nothing was read or written
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("find a free port: %s is no TCP address", l.Addr())
	}
	return at.Port, nil
}
