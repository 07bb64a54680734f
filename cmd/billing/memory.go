package main

import (
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"billing/cmd/billing/config"
)

// memoryLine says what the configuration may need of memory, and what of.
func memoryLine(c *config.Config) string {
	return fmt.Sprintf("memory: up to %s for one instance: %d ids of %d bytes (dedup.max_ids), %s of messages (memory.max_bytes), %s twice for a batch (kafka.max_batch_bytes), %s besides",
		size(c.MemoryNeed()), c.Dedup.MaxIDs, config.BytesPerID, size(c.Memory.MaxBytes), size(int64(c.Kafka.MaxBatchBytes)), size(config.OtherMemory))
}

// size is a number of bytes for people; math.MaxInt64 is no limit.
func size(bytes int64) string {
	if bytes == math.MaxInt64 {
		return "none"
	}
	if bytes < 1<<30 {
		return fmt.Sprintf("%.0f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}

// notGos is the part of OtherMemory that the Go runtime does not count: the
// binary, and what the system keeps for the process.
const notGos = 32 << 20

// boundMemory has the collector keep the heap below what the configuration may
// need. By itself it lets the heap grow to twice what lives, and the ids live. Whoever
// sets GOMEMLIMIT knows better.
func boundMemory(c *config.Config, log *slog.Logger) {
	need, given := c.MemoryNeed(), containerLimit(os.DirFS("/"))
	if given < need {
		log.Warn("this process may need more memory than its container has: the system would kill it",
			"may_need", size(need), "container", size(given),
			"next_step", "raise the container's limit, or lower dedup.max_ids or memory.max_bytes; see billing config check")
	}
	if limit, set := memoryLimit(need, given, os.Getenv("GOMEMLIMIT")); set {
		debug.SetMemoryLimit(limit)
	}
	log.Info("memory", "may_need", size(need), "go_limit", size(debug.SetMemoryLimit(-1)))
}

// memoryLimit is the limit for Go's runtime. It must not be below what may live,
// or the collector would run without end; only where the container has less, where
// the alternative is being killed, it is.
func memoryLimit(need, container int64, environment string) (limit int64, set bool) {
	if environment != "" {
		return 0, false
	}
	return max(min(need, container)-notGos, notGos), true
}

// containerLimit is the smallest limit of memory that the control groups of this
// process have, of either version; math.MaxInt64 where none has, and where it
// can't be read.
func containerLimit(root fs.FS) int64 {
	least := int64(math.MaxInt64)
	groups, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(groups)) {
		// NUMBER:CONTROLLERS:PATH; version 2 has no controllers.
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		dir, file := "sys/fs/cgroup", "memory.max"
		if parts[1] != "" {
			if !slices.Contains(strings.Split(parts[1], ","), "memory") {
				continue
			}
			dir, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		// The limits of the groups around ours hold too. Inside a container the
		// path may be that of the host, which is not there; the root then is ours.
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			text, err := fs.ReadFile(root, path.Join(dir, at, file))
			if n, perr := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && perr == nil {
				least = min(least, n) // "max" is no number; version 1 says a very large one
			}
			if at == "/" {
				break
			}
		}
	}
	return least
}
