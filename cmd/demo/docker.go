package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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
	// An interruption would leave it unknown whether there is a container.
	starting, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	out, err := docker(starting, set, command...)
	if err != nil {
		return nil, fmt.Errorf("%s: start a container of %s: %w. Next step: see that the Docker engine works and has this image (docker image ls)", what, image, err)
	}
	c.id = strings.TrimSpace(out)
	if ctx.Err() != nil {
		return nil, errors.Join(ctx.Err(), c.close()) //nolint:contextcheck // it is removed whatever has ended
	}
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
