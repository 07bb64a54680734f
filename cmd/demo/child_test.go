package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func start(t *testing.T, script string) *child {
	t.Helper()
	c, err := startChild("shell", filepath.Join(t.TempDir(), "log"), exec.Command("sh", "-c", script))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	return c
}

func TestChildren(t *testing.T) {
	if err := start(t, "exit 0").wait(t.Context()); err != nil {
		t.Error(err)
	}
	err := start(t, "echo last words; exit 3").wait(t.Context())
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "last words") {
		t.Errorf("%v", err)
	}
	// read waits for a line that never comes: the pipe's other end stays open.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	waiting := func(trap string) *child {
		ready := filepath.Join(t.TempDir(), "ready")
		if err := syscall.Mkfifo(ready, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", trap+"; echo >"+ready+"; while :; do read line; done")
		cmd.Stdin = r
		c, err := startChild("shell", filepath.Join(t.TempDir(), "log"), cmd)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.kill)
		if _, err := os.ReadFile(ready); err != nil { // the trap is set when this ends
			t.Fatal(err)
		}
		return c
	}
	if err := waiting("trap 'exit 0' TERM").stop(time.Minute); err != nil {
		t.Errorf("a process that ends by itself: %v", err)
	}
	if err := waiting("trap 'exit 4' TERM").stop(time.Minute); err == nil || !strings.Contains(err.Error(), "exit status 4") {
		t.Errorf("a process that fails: %v", err)
	}
	stubborn := waiting("trap '' TERM")
	if err := stubborn.stop(0); err == nil || !stubborn.ended() {
		t.Errorf("a process that does not listen: %v, ended %v", err, stubborn.ended())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	given := waiting("true")
	if err := given.wait(ctx); err == nil || !given.ended() {
		t.Errorf("a process that is given up: %v, ended %v", err, given.ended())
	}
}
