package servers

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
)

// Label is on every container of this package. Its value names the run that owns the container.
const Label = "billing.testbed"

//go:embed images.env
var imagesEnv string

// imageName reads an image's name from the environment, or takes the official one.
func imageName(variable, official string) string {
	if name := os.Getenv(variable); name != "" {
		return name
	}
	return fromImagesEnv(official)
}

func fromImagesEnv(key string) string {
	for line := range strings.Lines(imagesEnv) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			return value
		}
	}
	panic("images.env has no " + key)
}

// Require fails the test when no Docker engine answers. It never skips: a test that needs an engine has not passed
// without one.
func Require(t testing.TB) {
	t.Helper()
	if err := Available(); err != nil {
		t.Fatal(err)
	}
}

// Available says why tests that need a Docker engine can't run here, or nil.
func Available() error {
	_, err := engine()
	return err
}

type dockerEngine struct {
	docker *testcontainers.DockerClient
	host   string // where mapped ports are found
}

// engine connects once per process; the first call removes what killed runs have left.
var engine = sync.OnceValues(func() (*dockerEngine, error) {
	tclog.SetDefault(tclog.NewNoopLogger())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, err := connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("no Docker engine answers, and this test needs one: run `make test`, which starts one "+
			"where it can, or `eval \"$(scripts/testbed --env)\"` before `go test` (%w)", err)
	}
	if err := e.removeLeftovers(ctx); err != nil {
		return nil, fmt.Errorf("containers of an earlier run could not be removed: %w", err)
	}
	return e, nil
})

func connect(ctx context.Context) (e *dockerEngine, err error) {
	// testcontainers panics where it finds no socket at all.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return nil, err
	}
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := docker.Ping(ctx, client.PingOptions{}); err != nil {
		return nil, err
	}
	host, err := provider.DaemonHost(ctx)
	if err != nil {
		return nil, err
	}
	if host == "localhost" {
		host = "127.0.0.1" // one address family: the ports are mapped on this one
	}
	return &dockerEngine{docker: docker, host: host}, nil
}

// A run is a process on a host: <host>/<pid>/<start time of the process>, the last to tell a reused pid.
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

func (e *dockerEngine) removeLeftovers(ctx context.Context) error {
	list, err := e.docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", Label)})
	if err != nil {
		return err
	}
	for _, c := range list.Items {
		if !ownerIsDead(c.Labels[Label]) {
			continue
		}
		_, err := e.docker.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err != nil && !isGone(err) {
			return err
		}
	}
	return nil
}

// isGone is also true while another process removes the same container.
func isGone(err error) bool {
	return strings.Contains(err.Error(), "No such container") || strings.Contains(err.Error(), "already in progress")
}

var ports struct {
	sync.Mutex
	given map[int]bool
}

// FreePort finds a TCP port that nobody listens on and that this process has not been given before. It lies outside
// the range from which the system takes ports for outgoing connections: otherwise a connection could take the port
// of a server that is down, or a client that dials that port could even be connected to itself.
func FreePort() (int, error) {
	const low, high = 15000, 32000
	ports.Lock()
	defer ports.Unlock()
	if ports.given == nil {
		ports.given = make(map[int]bool)
	}
	first, last := ephemeralRange()
	for range 1000 {
		port := low + rand.IntN(high-low)
		if ports.given[port] || port >= first && port <= last {
			continue
		}
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port)) //nolint:noctx // there is nothing to wait for
		if err != nil {
			continue
		}
		_ = l.Close()
		ports.given[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("no free port between %d and %d", low, high)
}

func ephemeralRange() (first, last int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		if _, err := fmt.Sscan(string(text), &first, &last); err == nil {
			return first, last
		}
	}
	return 32768, 65535
}
