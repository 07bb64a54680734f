package measure

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is what the numbers depend on.
type Machine struct {
	CPU       string `json:"cpu"`
	Cores     int    `json:"cores"`
	MemoryMiB int64  `json:"memory_mib"`
	Kernel    string `json:"kernel"`
	Go        string `json:"go"`
}

// Run is when and of what a benchmark ran.
type Run struct {
	Date       string   `json:"date"`
	Commit     string   `json:"commit"`      // "-dirty" behind it where the tree is not the commit's
	LoadBefore float64  `json:"load_before"` // processes that wanted a core, the average of the minute before
	Rounds     int      `json:"rounds"`
	Servers    []string `json:"servers,omitempty"`
}

const unknown = "unknown"

func thisMachine() Machine {
	m := Machine{CPU: unknown, Cores: runtime.NumCPU(), Kernel: unknown, Go: runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH}
	if model := field("/proc/cpuinfo", "model name"); model != "" {
		m.CPU = model
	}
	if kib, err := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 10, 64); err == nil {
		m.MemoryMiB = kib / 1024
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = kernelNumber(string(release))
	}
	return m
}

// kernelNumber is the number of a release. What stands behind a dash is of whoever
// built it, and tells of nothing that a number depends on.
func kernelNumber(release string) string {
	number, _, _ := strings.Cut(strings.TrimSpace(release), "-")
	return number
}

func thisRun(t testing.TB) Run {
	run := Run{Date: time.Now().UTC().Format("2006-01-02 15:04 UTC"), Commit: commit(t), Rounds: Runs()}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		first, _, _ := strings.Cut(string(load), " ")
		if v, err := strconv.ParseFloat(first, 64); err == nil {
			run.LoadBefore = v
		}
	}
	return run
}

// field is the first value of a name in a file of "name : value" lines.
func field(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// commit is the tree's. What the benchmarks before this one have written does
// not make it another one.
func commit(t testing.TB) string {
	git := func(args ...string) (string, bool) {
		root, err := moduleFolder()
		if err != nil {
			return "", false
		}
		cmd := exec.CommandContext(t.Context(), "git", args...) //nolint:gosec // the two below
		cmd.Dir = root
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err == nil
	}
	hash, ok := git("rev-parse", "--short=12", "HEAD")
	if !ok {
		return unknown
	}
	if changed, ok := git("status", "--porcelain", "--", ".", ":!docs/benchmarks", ":!docs/benchmarks.md"); !ok || changed != "" {
		hash += "-dirty"
	}
	return hash
}

// CPU is the processor time that this process has used so far, in all its
// threads, also in the kernel. On a machine that is shared it says more than a
// clock.
func CPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // only a wrong argument fails
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ThreadCPU is the same of the calling thread alone, which the caller holds by
// runtime.LockOSThread. getrusage would tell it as of the last tick of the
// scheduler, milliseconds ago.
func ThreadCPU() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		panic(err) // only a wrong argument fails
	}
	return time.Duration(now.Nano())
}
