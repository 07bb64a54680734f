package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// A run that is killed by SIGKILL takes its processes along, but not its files
// and containers. The next run removes them.

// makeDir makes a directory of this run in dir, which is "" for the usual place of
// temporary files, and removes those that killed runs have left there.
func makeDir(dir string) (string, error) {
	if dir == "" {
		dir = os.TempDir()
	}
	const prefix = "billing-demo-"
	left, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
	if err != nil {
		return "", err
	}
	for _, path := range left {
		pid, rest, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), prefix), "-")
		start, _, _ := strings.Cut(rest, "-")
		if isDead(pid, start) {
			_ = os.RemoveAll(path) // another user's can't be removed, and is his
		}
	}
	made, err := os.MkdirTemp(dir, fmt.Sprintf("%s%d-%s-", prefix, os.Getpid(), processStart(os.Getpid())))
	if err != nil {
		return "", fmt.Errorf("make a temporary directory: %w", err)
	}
	return made, nil
}

// ownerLabel is on every container of the demo. Its value names the run that owns
// it: <host>/<pid>/<start time of the process>.
const ownerLabel = "billing.demo"

func runID(pid int) string {
	return fmt.Sprintf("%s/%d/%s", hostName(), pid, processStart(pid))
}

func hostName() string {
	host, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return host
}

// removeContainers removes the containers of runs that were killed.
func removeContainers(ctx context.Context) error {
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

// ownerIsDead is true only for runs of this host whose process is known to be gone.
func ownerIsDead(run string) bool {
	parts := strings.Split(run, "/")
	return len(parts) == 3 && parts[0] == hostName() && isDead(parts[1], parts[2])
}

// isDead is true for a process that is known to be gone. Its start time tells it
// from one that was given the same id again.
func isDead(id, start string) bool {
	pid, err := strconv.Atoi(id)
	if err != nil || pid <= 0 {
		return false
	}
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	return start != "" && processStart(pid) != "" && start != processStart(pid)
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
