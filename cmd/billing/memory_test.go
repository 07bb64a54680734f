package main

import (
	"math"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"billing/cmd/billing/config"
)

func TestContainerLimit(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"nothing is known":  {nil, math.MaxInt64},
		"version 2, inside": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1000\n"}, 1000},
		"without a limit":   {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, math.MaxInt64},
		"the host's path":   {map[string]string{"proc/self/cgroup": "0::/kubepods/pod1\n", "sys/fs/cgroup/memory.max": "1000\n"}, 1000},
		"a group around ours has less": {map[string]string{"proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "3000\n", "sys/fs/cgroup/a/memory.max": "2000\n"}, 2000},
		"version 1": {map[string]string{"proc/self/cgroup": "9:cpu,cpuacct:/c\n4:memory:/docker/1\n0::/\n",
			"sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "5000\n"}, 5000},
		"version 1, of several controllers": {map[string]string{"proc/self/cgroup": "4:hugetlb,memory:/docker/1\n3:cpu,memory_other:/x\n",
			"sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "5000\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "10\n"}, 5000},
		"version 1, without a limit": {map[string]string{"proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 9223372036854771712},
		"garbage": {map[string]string{"proc/self/cgroup": "x\n0::\n::\n", "sys/fs/cgroup/memory.max": "much\n"}, math.MaxInt64},
	} {
		fsys := fstest.MapFS{}
		for path, text := range c.files {
			fsys[path] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := containerLimit(fsys); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

func TestMemoryLimit(t *testing.T) {
	for name, c := range map[string]struct {
		need, container int64
		environment     string
		limit           int64
		set             bool
	}{
		"no container":          {1 << 30, math.MaxInt64, "", 1<<30 - notGos, true},
		"a container with more": {1 << 30, 2 << 30, "", 1<<30 - notGos, true},
		"one with less":         {1 << 30, 512 << 20, "", 512<<20 - notGos, true},
		"one that is tiny":      {1 << 30, 1 << 20, "", notGos, true},
		"said already":          {1 << 30, math.MaxInt64, "2GiB", 0, false},
		"said to be none":       {1 << 30, math.MaxInt64, "off", 0, false},
	} {
		if limit, set := memoryLimit(c.need, c.container, c.environment); limit != c.limit || set != c.set {
			t.Errorf("%s: got %d, %t", name, limit, set)
		}
	}
}

// The line has all parts of the sum, and docs/operating.md the same ones.
func TestMemoryLine(t *testing.T) {
	c := config.Default()
	want := "memory: up to 3.6 GiB for one instance: 50000000 ids of 60 bytes (dedup.max_ids), 512 MiB of messages (memory.max_bytes), " +
		"64 MiB twice for a batch (kafka.max_batch_bytes), 192 MiB besides"
	if got := memoryLine(&c); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	operating, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"60 bytes × `dedup.max_ids` + `memory.max_bytes` + 2 × `kafka.max_batch_bytes` + 192 MiB", "`GOMEMLIMIT`"} {
		if !strings.Contains(string(operating), part) {
			t.Errorf("docs/operating.md does not say %s", part)
		}
	}
}

// TestStartBoundsMemory: a start tells the collector, but for what somebody has
// told it already.
func TestStartBoundsMemory(t *testing.T) {
	dir := inDir(t, goodConfig)
	for name, c := range map[string]struct {
		env  []string
		says string
	}{
		"by the configuration": {[]string{"GOMEMLIMIT=", "BILLING_DEDUP_MAX_IDS=1", "BILLING_MEMORY_MAX_BYTES=67108864"}, `msg=memory may_need="384 MiB" go_limit="352 MiB"`},
		"by GOMEMLIMIT":        {[]string{"GOMEMLIMIT=200MiB"}, `msg=memory may_need="3.6 GiB" go_limit="200 MiB"`},
		"by no limit":          {[]string{"GOMEMLIMIT=off"}, `msg=memory may_need="3.6 GiB" go_limit=none`},
	} {
		// The port can't be had, so that the process ends at once.
		got := run(t, dir, append(c.env, "BILLING_ADMIN_LISTEN=192.0.2.1:8080"), "run")
		if got.code != 2 || !strings.Contains(got.errOut, c.says) {
			t.Errorf("%s: exit %d, want %s in\n%s", name, got.code, c.says, got.errOut)
		}
	}
}
