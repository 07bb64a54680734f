package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// The deployment that is shown: the same for both contenders.
const (
	topic      = "billing.events"
	partitions = 4
	typePrefix = "com.example.billing."
	window     = time.Hour
	lateness   = 35 * 24 * time.Hour // the service's defaults
	skew       = 5 * time.Minute
	interval   = 200 * time.Millisecond // of checkpoints: many epochs in a short time
)

var currencies = []string{"USD", "EUR", "JPY"}

// contender is one of the two that book the messages.
type contender struct {
	name    string // for people
	about   string // what it does
	user    string // its own of MySQL, and its consumer group
	shards  []*sql.DB
	tables  tables
	dir     string           // its files
	command func() *exec.Cmd // a new process of it
	look    func(ctx context.Context) (facts, error)
}

// start starts a process of it.
func (c *contender) start() (*child, error) {
	return startChild(c.name, filepath.Join(c.dir, c.user+".log"), c.command())
}

// newPlain makes the tables and the configuration of the plain loop.
func newPlain(ctx context.Context, dir, demo string, batch int, b *broker, m *privateMySQL) (*contender, error) {
	look, err := m.look(plainUser)
	if err != nil {
		return nil, err
	}
	cfg := plainConfig{
		Brokers: b.addrs, Topic: topic, Group: plainUser, Instance: "demo", Shards: m.dsns(plainUser), Batch: batch,
		Window: window, Lateness: lateness, Skew: skew, TypePrefix: typePrefix, Currencies: currencies,
	}
	if err := makePlainTables(ctx, cfg.Shards); err != nil {
		return nil, err
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("plain loop: write its configuration: %w", err)
	}
	path := filepath.Join(dir, "plain.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return nil, fmt.Errorf("plain loop: write its configuration: %w", err)
	}
	c := &contender{name: "plain loop", about: "plain loop: take a batch, remove its repeats, write it, commit the offset", user: plainUser, shards: look, tables: plainLoopTables, dir: dir}
	c.command = func() *exec.Cmd { return exec.Command(demo, plainLoopCommand, path) }
	c.look = func(ctx context.Context) (facts, error) { return lookAtPlain(ctx, b, look) }
	return c, nil
}

// newOurs makes the tables and the configuration of the service.
func newOurs(ctx context.Context, dir, binary string, batch int, b *broker, m *privateMySQL) (*contender, *service, error) {
	look, err := m.look(oursUser)
	if err != nil {
		return nil, nil, err
	}
	s, err := configure(dir, binary, batch, b.addrs, m.dsns(oursUser))
	if err != nil {
		return nil, nil, err
	}
	c := &contender{name: "this service", about: "this service: billing run", user: oursUser, shards: look, tables: serviceTables, dir: dir}
	c.command = func() *exec.Cmd { return s.command("run") }
	c.look = func(ctx context.Context) (facts, error) { return lookAtOurs(ctx, b, look) }
	return c, s, s.run(ctx, "migrate")
}

// service is the billing service: the real binary, with a configuration of its own.
type service struct{ dir, binary, config string }

// configure writes the configuration into dir.
func configure(dir, binary string, batch int, brokers, dsns []string) (*service, error) {
	admin, err := freePort()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "job: %s\nkafka:\n  topic: %s\n  brokers:\n", oursUser, topic)
	for _, broker := range brokers {
		fmt.Fprintf(&b, "    - %q\n", broker)
	}
	// With an id of its own the restarted service gets its lanes back at once.
	fmt.Fprintf(&b, "  instance_id: demo\nshards:\n")
	for i, dsn := range dsns {
		fmt.Fprintf(&b, "  - name: shard%d\n    dsn: %q\n", i, dsn)
	}
	fmt.Fprintf(&b, "checkpoint:\n  interval: %s\n  max_records: %d\naggregate:\n  window: %s\n", interval, batch, window)
	fmt.Fprintf(&b, "message:\n  type_prefix: %s\n  currencies: [%s]\n", typePrefix, strings.Join(currencies, ", "))
	fmt.Fprintf(&b, "admin:\n  listen: 127.0.0.1:%d\nfirst_start: true\n", admin)
	s := &service{dir: dir, binary: binary, config: filepath.Join(dir, "config.yaml")}
	if err := os.WriteFile(s.config, b.Bytes(), 0o600); err != nil {
		return nil, fmt.Errorf("write the service's configuration: %w", err)
	}
	return s, nil
}

func (s *service) command(args ...string) *exec.Cmd {
	cmd := exec.Command(s.binary, append(args, "--config", s.config)...)
	cmd.Dir = s.dir
	// The configuration alone counts, whatever is set for another deployment.
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "BILLING_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	return cmd
}

// run runs a command of the service to its end.
func (s *service) run(ctx context.Context, args ...string) error {
	c, err := startChild("billing "+args[0], filepath.Join(s.dir, args[0]+".log"), s.command(args...))
	if err != nil {
		return err
	}
	return c.wait(ctx)
}

// answering starts a command of the service whose answer goes to the file.
func (s *service) answering(path string, args ...string) (*child, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("billing %s: open a file for its answer: %w", args[0], err)
	}
	defer file.Close() //nolint:errcheck // the child has its own
	cmd := s.command(args...)
	cmd.Stdout = file
	return startChild("billing "+args[0], filepath.Join(s.dir, args[0]+".log"), cmd)
}
