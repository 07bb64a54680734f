package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// container is a throw-away container of the demo's own, at a port on loopback.
type container struct {
	what string // for messages
	id   string
	port int
}

// ownerLabel is on every container of the demo. Its value names the run that
// owns it, so that the next run can remove what a killed one has left.
const ownerLabel = "billing.demo"

// runContainer starts a container whose port inside is published on loopback.
// The environment is handed over by this process's own, so that no list of
// processes shows it.
func runContainer(ctx context.Context, what, image string, port, inside int, env map[string]string, args ...string) (*container, error) {
	c := &container{what: what, port: port}
	command := []string{"run", "--detach", "--rm", "--label", ownerLabel + "=" + runID(os.Getpid()),
		"--publish", fmt.Sprintf("127.0.0.1:%d:%d", c.port, inside)}
	var set []string
	for name, value := range env {
		command = append(command, "--env", name)
		set = append(set, name+"="+value)
	}
	command = append(append(command, image), args...)
	out, err := docker(ctx, set, command...)
	if err != nil {
		return nil, fmt.Errorf("%s: start a container of %s: %w. Next step: see that the Docker engine works and has this image (docker image ls)", what, image, err)
	}
	c.id = strings.TrimSpace(out)
	return c, nil
}

// running says an error when the container has ended.
func (c *container) running(ctx context.Context) error {
	out, err := docker(ctx, nil, "inspect", "--format", "{{.State.Running}}", c.id)
	if err != nil || strings.TrimSpace(out) != "true" {
		return errors.Join(fmt.Errorf("%s: its container has ended%s", c.what, c.lastWords(ctx)), err)
	}
	return nil
}

func (c *container) lastWords(ctx context.Context) string {
	out, err := docker(ctx, nil, "logs", "--tail", "20", c.id)
	if err != nil {
		return ""
	}
	return "\n  the end of its log:\n  | " + strings.ReplaceAll(strings.TrimSpace(out), "\n", "\n  | ")
}

// close removes the container and its data, also after an interruption.
func (c *container) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := docker(ctx, nil, "rm", "--force", "--volumes", c.id)
	if err != nil && !strings.Contains(err.Error(), "No such container") {
		return fmt.Errorf("%s: remove its container: %w. Next step: docker rm --force %s", c.what, err, c.id)
	}
	return nil
}

// removeLeftovers removes the containers of runs that were killed.
func removeLeftovers(ctx context.Context) error {
	out, err := docker(ctx, nil, "ps", "--all", "--no-trunc", "--filter", "label="+ownerLabel, "--format", `{{.ID}} {{.Label "`+ownerLabel+`"}}`)
	if err != nil {
		return fmt.Errorf("look for containers that an earlier run has left: %w", err)
	}
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		id, owner, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || !ownerIsDead(owner) {
			continue
		}
		left := container{what: "a container that an earlier run has left", id: id}
		if err := left.close(); err != nil { //nolint:contextcheck // it is removed whatever has ended
			return err
		}
	}
	return nil
}

// docker runs the engine's command line. The command is in a process group of its
// own: a terminal's Ctrl-C is for the demo.
func docker(ctx context.Context, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		if words := strings.TrimSpace(errOut.String()); words != "" {
			return "", fmt.Errorf("docker %s: %w: %s", args[0], err, words)
		}
		return "", fmt.Errorf("docker %s: %w", args[0], err)
	}
	if args[0] == "logs" { // servers write theirs on both
		return out.String() + errOut.String(), nil
	}
	return out.String(), nil
}

// A run is a process on a host: <host>/<pid>/<start time of the process>, the
// last to tell a process id that was given again.
func runID(pid int) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host, pid, processStart(pid))
}

// processStart is empty where the system doesn't tell.
func processStart(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The command in parentheses may hold anything; the start time is the 20th field after it.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return ""
	}
	return fields[19]
}

// ownerIsDead is true only for runs of this host whose process is known to be gone.
func ownerIsDead(run string) bool {
	parts := strings.Split(run, "/")
	if len(parts) != 3 {
		return false
	}
	pid, err := strconv.Atoi(parts[1])
	if err != nil || pid <= 0 || parts[0] != strings.Split(runID(pid), "/")[0] {
		return false
	}
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	return parts[2] != "" && processStart(pid) != "" && parts[2] != processStart(pid)
}
