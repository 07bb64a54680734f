package servers

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
	"golang.org/x/sync/errgroup"
)

func TestRyukImageIsTheOneThatTestcontainersAsksFor(t *testing.T) {
	want := testcontainers.ReaperDefaultImage //nolint:staticcheck // deprecated, and the only place that says it
	if got := fromImagesEnv("RYUK_IMAGE"); got != want {
		t.Errorf("images.env has RYUK_IMAGE=%s, testcontainers-go asks for %s", got, want)
	}
}

func TestFreePortLiesOutsideTheEphemeralRange(t *testing.T) {
	first, last := ephemeralRange()
	seen := make(map[int]bool)
	for range 50 {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if port >= first && port <= last || seen[port] {
			t.Errorf("port %d: in %d-%d or given twice", port, first, last)
		}
		seen[port] = true
	}
}

// deadPID is the id of a process that has ended.
func deadPID(t *testing.T) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func TestOwner(t *testing.T) {
	own := runID(os.Getpid())
	host, _, _ := strings.Cut(own, "/")
	for run, dead := range map[string]bool{
		own:                                      false,
		fmt.Sprintf("%s/%d/1", host, deadPID(t)): true,
		fmt.Sprintf("elsewhere.%s/%d/1", host, 1<<22+1): false, // not ours to judge
		"":  false,
		"x": false,
	} {
		if got := ownerIsDead(run); got != dead {
			t.Errorf("owner of %q is dead: %t, want %t", run, got, dead)
		}
	}
}

func TestLeftoversOfKilledRunsAreRemoved(t *testing.T) {
	Require(t)
	e, err := engine()
	if err != nil {
		t.Fatal(err)
	}
	host, _, _ := strings.Cut(runID(os.Getpid()), "/")
	create := func(run string) string {
		c, err := testcontainers.GenericContainer(t.Context(), testcontainers.GenericContainerRequest{
			ContainerRequest: testcontainers.ContainerRequest{
				Image:  imageName("BILLING_TEST_MYSQL_IMAGE", "OFFICIAL_MYSQL_IMAGE"),
				Cmd:    []string{"true"},
				Labels: map[string]string{Label: run},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		id := c.GetContainerID()
		t.Cleanup(func() {
			_, err := e.docker.ContainerRemove(context.Background(), id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			if err != nil && !isGone(err) {
				t.Error(err)
			}
		})
		return id
	}
	dead := create(fmt.Sprintf("%s/%d/1", host, deadPID(t)))
	alive := create(runID(os.Getpid()))

	if err := e.removeLeftovers(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := e.docker.ContainerInspect(t.Context(), dead, client.ContainerInspectOptions{}); err == nil || !isGone(err) {
		t.Errorf("the dead run's container is still there (%v)", err)
	}
	if _, err := e.docker.ContainerInspect(t.Context(), alive, client.ContainerInspectOptions{}); err != nil {
		t.Errorf("a living run's container: %v", err)
	}
}

func TestServersKeepDataAndAddressOverKill(t *testing.T) {
	Require(t)
	var k *KafkaServer
	var m *MySQLServer
	began := time.Now()
	var group errgroup.Group
	group.Go(func() (err error) { k, err = StartKafka(t.Context()); return err })
	group.Go(func() (err error) { m, err = StartMySQL(t.Context(), "a"); return err })
	err := group.Wait()
	t.Cleanup(func() {
		if k != nil {
			err = errors.Join(err, k.Close())
		}
		if m != nil {
			err = errors.Join(err, m.Close())
		}
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.FailNow()
	}
	t.Logf("both up after %s", time.Since(began).Round(time.Millisecond))
	k.LogsOnFailure(t)
	m.LogsOnFailure(t)
	t.Run("kafka", func(t *testing.T) { testKafka(t, k) })
	t.Run("mysql", func(t *testing.T) { testMySQL(t, m) })
}

func testKafka(t *testing.T, k *KafkaServer) {
	versions, err := k.Admin(t).ApiVersions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range versions {
		level := int16(-1)
		kversion.FromApiVersionsResponse(v.Raw()).EachFinalizedFeature(func(name string, finalized int16) {
			if name == "transaction.version" {
				level = finalized
			}
		})
		if level < 2 {
			t.Errorf("broker %d: transaction.version is finalized at %d, want 2 or more", v.NodeID, level)
		}
	}
	k.CreateTopic(t, "kept", 3, map[string]string{"cleanup.policy": "compact"})
	producer := k.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err := producer.ProduceSync(t.Context(), &kgo.Record{Topic: "kept", Partition: 2, Key: []byte("k"), Value: []byte("before")}).FirstErr(); err != nil {
		t.Fatal(err)
	}

	for _, end := range []struct {
		name string
		f    func(context.Context) error
	}{{"kill", k.Kill}, {"stop", k.Stop}} {
		began := time.Now()
		if err := end.f(t.Context()); err != nil {
			t.Fatal(err)
		}
		ended := time.Now()
		if err := k.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s took %s, serving again after another %s", end.name, ended.Sub(began).Round(time.Millisecond), time.Since(ended).Round(time.Millisecond))
		consumer := k.Client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"kept": {2: kgo.NewOffset().AtStart()}}))
		fetches := consumer.PollRecords(t.Context(), 1)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		if got := string(fetches.Records()[0].Value); got != "before" {
			t.Errorf("after %s and start the topic has %q", end.name, got)
		}
	}

	if err := k.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := k.serves(ctx); err == nil {
		t.Error("a frozen broker has answered")
	}
	if err := k.Unpause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := k.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func testMySQL(t *testing.T, m *MySQLServer) {
	dsn := m.NewDatabase(t)
	db, err := sql.Open("mysql", AsRoot(dsn))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	service, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	ctx := t.Context()
	exec := func(on interface {
		ExecContext(context.Context, string, ...any) (sql.Result, error)
	}, statement string) {
		t.Helper()
		if _, err := on.ExecContext(ctx, statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	for variable, want := range map[string]string{
		"xa_detach_on_prepare": "1", "innodb_flush_log_at_trx_commit": "1", "sync_binlog": "1", "log_bin": "1",
	} {
		var got string
		if err := db.QueryRowContext(ctx, "SELECT @@GLOBAL."+variable).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q (%v), want %s", variable, got, err, want)
		}
	}

	exec(db, "CREATE TABLE kept (id INT PRIMARY KEY)")
	exec(db, "CREATE VIEW seen AS SELECT id FROM kept")
	exec(db, "INSERT INTO kept VALUES (1)")
	gtrid, bqual := []byte("\x00branch\xff"), []byte("0")
	xid := fmt.Sprintf("X'%x',X'%x'", gtrid, bqual)
	conn, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	exec(conn, "XA START "+xid)
	exec(conn, "INSERT INTO kept VALUES (2)")
	exec(conn, "XA END "+xid)
	exec(conn, "XA PREPARE "+xid)
	_ = conn.Close()

	began := time.Now()
	if err := m.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	if err := m.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("kill took %s, serving again after another %s", killed.Sub(began).Round(time.Millisecond), time.Since(killed).Round(time.Millisecond))

	want := hex.EncodeToString(append(gtrid, bqual...))
	if got := m.XARecover(t); !slices.Equal(got, []string{want}) {
		t.Errorf("XA RECOVER after the kill lists %v, want %s", got, want)
	}
	rows, err := service.QueryContext(ctx, "XA RECOVER")
	if err != nil {
		t.Fatalf("XA RECOVER by the service's user: %v", err)
	}
	defer rows.Close()
	listed := 0
	for rows.Next() {
		listed++
	}
	if err := rows.Err(); err != nil || listed == 0 {
		t.Errorf("XA RECOVER by the service's user lists %d branches (%v)", listed, err)
	}
	exec(service, "XA COMMIT "+xid)
	var sum int
	if err := db.QueryRowContext(ctx, "SELECT SUM(id) FROM seen").Scan(&sum); err != nil || sum != 3 {
		t.Errorf("the rows of before the kill: sum %d (%v), want 3", sum, err)
	}

	other, err := sql.Open("mysql", m.DSN(defaultDatabase))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var names []string
	databases, err := other.QueryContext(ctx, "SHOW DATABASES LIKE 't%'")
	if err != nil {
		t.Fatal(err)
	}
	defer databases.Close()
	for databases.Next() {
		var name string
		if err := databases.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	if err := databases.Err(); err != nil {
		t.Fatal(err)
	}
	if len(names) != 0 {
		t.Errorf("the user of one database sees others: %v", names)
	}

	if err := m.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := m.serves(short); err == nil {
		t.Error("a frozen server has answered")
	}
	if err := m.Unpause(ctx); err != nil {
		t.Fatal(err)
	}
	if err := m.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if err := m.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestKafkaThroughProxies(t *testing.T) {
	Require(t)
	interListen, interTarget := mustFreePort(t), mustFreePort(t)
	brokers := forward(t, "0.0.0.0:"+strconv.Itoa(interListen))
	brokers.to("127.0.0.1:" + strconv.Itoa(interTarget))
	clients := forward(t, "127.0.0.1:"+strconv.Itoa(mustFreePort(t)))

	// Kafka is ready only after a transaction's markers have been written, which go through one proxy.
	k := Kafka(t, WithAdvertised(clients.addr()), WithInterBrokerProxy(interListen, interTarget))
	if brokers.connections() == 0 {
		t.Error("the broker does not reach itself through the proxy")
	}
	clients.to(k.ProxyTarget())
	k.CreateTopic(t, "proxied", 1, nil)
	direct := clients.connections()

	client, err := kgo.NewClient(kgo.SeedBrokers(clients.addr()), kgo.DefaultProduceTopic("proxied"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(t.Context(), kgo.StringRecord("x")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	// One connection to the seed, and at least one to the broker that the metadata name.
	if got := clients.connections() - direct; got < 2 {
		t.Errorf("%d connections through the clients' proxy, want 2 or more", got)
	}
}

func mustFreePort(t *testing.T) int {
	t.Helper()
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

type forwarder struct {
	listener net.Listener
	target   chan string // holds the target, once known
	accepted chan int
}

func forward(t *testing.T, listen string) *forwarder {
	t.Helper()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	f := &forwarder{listener: l, target: make(chan string, 1), accepted: make(chan int, 1)}
	f.accepted <- 0
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			f.accepted <- <-f.accepted + 1
			go func() {
				defer in.Close()
				target := <-f.target
				f.target <- target
				out, err := net.Dial("tcp", target)
				if err != nil {
					return
				}
				defer out.Close()
				go func() {
					_, _ = io.Copy(out, in)
					_ = out.Close()
				}()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
	return f
}

func (f *forwarder) to(target string) { f.target <- target }
func (f *forwarder) addr() string     { return f.listener.Addr().String() }
func (f *forwarder) connections() int {
	n := <-f.accepted
	f.accepted <- n
	return n
}
