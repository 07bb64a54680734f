package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// Two cores and several servers: a bound in minutes. It only matters when something is broken.
const startTimeout = 4 * time.Minute

type options struct {
	env        map[string]string
	args       []string
	advertised string
	interProxy [2]int
	extraHosts []string
	data       []byte // what is in /var/lib at the first start, as a tar
}

// Option changes how a server is started.
type Option func(*options)

// WithEnv sets a variable of the container. For Kafka: KAFKA_* becomes a broker's setting.
func WithEnv(name, value string) Option { return func(o *options) { o.env[name] = value } }

// WithArgs adds arguments for mysqld; the last one of a name counts.
func WithArgs(args ...string) Option { return func(o *options) { o.args = append(o.args, args...) } }

func apply(opts []Option) *options {
	o := &options{env: make(map[string]string)}
	for _, opt := range opts {
		opt(o)
	}
	return o
}

// server is a container that can be hurt and brought back at the same address.
type server struct {
	kind      string // for messages
	engine    *dockerEngine
	container testcontainers.Container
	ready     func(context.Context) error // one try to get a real answer
}

// run creates and starts the container. portsOf maps container ports to host ports.
func (s *server) run(ctx context.Context, image string, o *options, portsOf map[string]int) error {
	bindings := make(network.PortMap, len(portsOf))
	request := testcontainers.ContainerRequest{
		Image:  image,
		Env:    o.env,
		Cmd:    o.args,
		Labels: map[string]string{Label: runID(os.Getpid())},
		HostConfigModifier: func(c *container.HostConfig) {
			c.PortBindings = bindings
			c.ExtraHosts = o.extraHosts
		},
	}
	for inside, outside := range portsOf {
		port, err := network.ParsePort(inside + "/tcp")
		if err != nil {
			return err
		}
		bindings[port] = []network.PortBinding{{HostIP: bindAddress(s.engine.host), HostPort: strconv.Itoa(outside)}}
		request.ExposedPorts = append(request.ExposedPorts, port.String())
	}
	c, err := testcontainers.GenericContainer(ctx, testcontainers.GenericContainerRequest{ContainerRequest: request, Started: o.data == nil})
	if err != nil && c == nil {
		return fmt.Errorf("start %s: no container of image %s (`make test` prepares the images): %w", s.kind, image, err)
	}
	s.container = c
	if err == nil && o.data != nil {
		if err = s.Put(ctx, "/var/lib", o.data); err == nil {
			err = c.Start(ctx)
		}
	}
	if err == nil {
		err = s.waitReady(ctx)
	}
	if err != nil {
		err = fmt.Errorf("start %s (image %s): %w\n%s", s.kind, image, err, s.tail(40))
		return errors.Join(err, s.Close())
	}
	return nil
}

func bindAddress(host string) netip.Addr {
	if addr, err := netip.ParseAddr(host); err == nil && addr.IsLoopback() {
		return addr
	}
	return netip.IPv4Unspecified()
}

type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

func isFinal(err error) bool { return errors.As(err, new(finalError)) }

func (s *server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return poll(ctx, func(ctx context.Context) error {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		if state, stateErr := s.container.State(ctx); stateErr == nil && !state.Running {
			return finalError{fmt.Errorf("%s has ended with code %d", s.kind, state.ExitCode)}
		}
		return err
	})
}

// ID is the container's id.
func (s *server) ID() string { return s.container.GetContainerID() }

// Processor is how much processor time the server's main process has used so far. The
// engine must be on this machine.
func (s *server) Processor(ctx context.Context) (time.Duration, error) {
	is, err := s.container.Inspect(ctx)
	if err != nil {
		return 0, fmt.Errorf("inspect %s: %w", s.kind, err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", is.State.Pid))
	if err != nil {
		return 0, fmt.Errorf("%s is no process of this machine: %w", s.kind, err)
	}
	// Behind the name, which may hold anything: the state is field 3, and 14 and 15 are
	// user and system time in hundredths of a second.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var user, system int64
	if len(fields) < 13 {
		return 0, fmt.Errorf("%s: /proc/%d/stat has %d fields", s.kind, is.State.Pid, len(fields))
	}
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		return 0, fmt.Errorf("%s: /proc/%d/stat: %w", s.kind, is.State.Pid, err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond, nil
}

// Kill ends the server with SIGKILL, as a crash does, and returns when it is gone. Its data stay.
func (s *server) Kill(ctx context.Context) error {
	if _, err := s.engine.docker.ContainerKill(ctx, s.ID(), client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		return fmt.Errorf("kill %s: %w", s.kind, err)
	}
	return poll(ctx, func(ctx context.Context) error {
		state, err := s.container.State(ctx)
		if err == nil && state.Running {
			err = fmt.Errorf("%s still runs after SIGKILL", s.kind)
		}
		return err
	})
}

// Stop ends the server in good order (SIGTERM, and SIGKILL after a minute). Its data stay.
func (s *server) Stop(ctx context.Context) error {
	seconds := 60
	if _, err := s.engine.docker.ContainerStop(ctx, s.ID(), client.ContainerStopOptions{Timeout: &seconds}); err != nil {
		return fmt.Errorf("stop %s: %w", s.kind, err)
	}
	return nil
}

// Start starts the server again after Kill or Stop, at the same address, and returns when it serves.
func (s *server) Start(ctx context.Context) error {
	if err := s.StartNoWait(ctx); err != nil {
		return err
	}
	if err := s.waitReady(ctx); err != nil {
		return fmt.Errorf("start %s again: %w\n%s", s.kind, err, s.tail(40))
	}
	return nil
}

// StartNoWait is Start for tests that want to see the server come up.
func (s *server) StartNoWait(ctx context.Context) error {
	if _, err := s.engine.docker.ContainerStart(ctx, s.ID(), client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("start %s again: %w", s.kind, err)
	}
	return nil
}

// WaitReady returns when the server serves.
func (s *server) WaitReady(ctx context.Context) error { return s.waitReady(ctx) }

// Pause freezes the server: connections stay open and are not answered. The
// kernel does not always get all of a container's threads to stand still in the
// time that the engine gives it; then it is tried again.
func (s *server) Pause(ctx context.Context) error {
	for try := 1; ; try++ {
		_, err := s.engine.docker.ContainerPause(ctx, s.ID(), client.ContainerPauseOptions{})
		if err == nil {
			return nil
		}
		if try == 10 || !strings.Contains(err.Error(), "unable to freeze") {
			return fmt.Errorf("pause %s: %w", s.kind, err)
		}
	}
}

// Unpause lets a frozen server go on where it was.
func (s *server) Unpause(ctx context.Context) error {
	if _, err := s.engine.docker.ContainerUnpause(ctx, s.ID(), client.ContainerUnpauseOptions{}); err != nil {
		return fmt.Errorf("unpause %s: %w", s.kind, err)
	}
	return nil
}

// Take copies a file or a folder of the server, also of one that has ended, as a tar. Its names begin with the
// path's last part.
func (s *server) Take(ctx context.Context, path string) ([]byte, error) {
	answer, err := s.engine.docker.CopyFromContainer(ctx, s.ID(), client.CopyFromContainerOptions{SourcePath: path})
	if err != nil {
		return nil, fmt.Errorf("copy %s of %s: %w", path, s.kind, err)
	}
	defer answer.Content.Close()
	data, err := io.ReadAll(answer.Content)
	if err != nil {
		return nil, fmt.Errorf("copy %s of %s: %w", path, s.kind, err)
	}
	return data, nil
}

// Put unpacks what Take has copied, in a folder that is there. Owners and rights stay.
func (s *server) Put(ctx context.Context, folder string, data []byte) error {
	_, err := s.engine.docker.CopyToContainer(ctx, s.ID(), client.CopyToContainerOptions{DestinationPath: folder, Content: bytes.NewReader(data)})
	if err != nil {
		return fmt.Errorf("copy to %s of %s: %w", folder, s.kind, err)
	}
	return nil
}

// Close removes the server and its data.
func (s *server) Close() error {
	if s.container == nil {
		return nil
	}
	// Also after the test's own context has ended.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := s.engine.docker.ContainerRemove(ctx, s.ID(), client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !isGone(err) {
		return fmt.Errorf("remove %s: %w", s.kind, err)
	}
	return nil
}

// LogsOnFailure makes a failed test show the last lines that the server wrote.
func (s *server) LogsOnFailure(t testing.TB) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.tail(80))
		}
	})
}

func (s *server) tail(lines int) string {
	if s.container == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	logs, err := s.engine.docker.ContainerLogs(ctx, s.ID(), client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: fmt.Sprint(lines)})
	if err != nil {
		return fmt.Sprintf("(no log of %s: %v)", s.kind, err)
	}
	defer logs.Close()
	var text bytes.Buffer
	if _, err := stdcopy.StdCopy(&text, &text, logs); err != nil {
		fmt.Fprintf(&text, "(the log ends here: %v)", err)
	}
	return fmt.Sprintf("last lines of %s:\n%s", s.kind, strings.TrimSpace(text.String()))
}
