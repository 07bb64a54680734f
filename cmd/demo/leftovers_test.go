package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestLeftoversAreOfDeadRunsOnly(t *testing.T) {
	host := strings.Split(runID(os.Getpid()), "/")[0]
	for run, dead := range map[string]bool{
		runID(os.Getpid()):        false,
		host + "/4194999/1":       true, // no such process
		host + "/1/not-its-start": true, // its id was given again
		"elsewhere/4194999/1":     false,
		"nobody":                  false,
		host + "/0/1":             false,
	} {
		if ownerIsDead(run) != dead {
			t.Errorf("%s: dead is %v", run, !dead)
		}
	}
}

func TestDirectoriesOfKilledRunsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"billing-demo-4194999-1-a", "billing-demo-1-not-its-start", "another-4194999-1-a", "billing-demo-"} {
		if err := os.MkdirAll(filepath.Join(dir, name, "data"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	first, err := makeDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	second, err := makeDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(dir + "/*")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(dir, "another-4194999-1-a"), filepath.Join(dir, "billing-demo-"), first, second}
	if slices.Sort(want); !slices.Equal(left, want) {
		t.Errorf("there are %q, want %q", left, want)
	}
}
