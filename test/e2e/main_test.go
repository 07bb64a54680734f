// Package e2e runs the real binary, as a process, on a real broker and real
// MySQL shards. The binary is built with fail points, so that a test can kill
// it at an exact place in the protocol.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"billing/test/proxy"
	"billing/test/servers"
)

// What all tests of the package share: one broker, two MySQL servers, one
// binary. Topics, jobs and databases are each test's own. The broker reaches
// itself through markers, so that a test can hold the markers of its job (see
// proxy.Markers; such a test holds up all others and is not parallel).
var shared struct {
	kafka   *servers.KafkaServer
	markers *proxy.Kafka
	mysql   [2]*servers.MySQLServer
	binary  string
}

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(&mysql.NopLogger{}) // broken connections are what these tests are made of
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "billing-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)

	var wg sync.WaitGroup
	errs := make([]error, 4)
	if _, alone := os.LookupEnv(chaosVariable); !alone { // chaos has servers of its own
		wg.Go(func() { shared.kafka, shared.markers, errs[0] = startKafka(ctx) })
		for i := range shared.mysql {
			wg.Go(func() { shared.mysql[i], errs[1+i] = servers.StartMySQL(ctx, fmt.Sprintf("shard%d", i)) })
		}
	}
	wg.Go(func() {
		shared.binary = filepath.Join(dir, "billing")
		cmd := exec.Command("go", "build", "-tags", "failpoints", "-o", shared.binary, "billing/cmd/billing")
		out, err := cmd.CombinedOutput()
		if err != nil {
			errs[3] = fmt.Errorf("build the binary: %w\n%s", err, out)
		}
	})
	wg.Wait()
	defer func() {
		if shared.kafka != nil {
			_ = shared.kafka.Close()
		}
		if shared.markers != nil {
			_ = shared.markers.Close()
		}
		for _, s := range shared.mysql {
			if s != nil {
				_ = s.Close()
			}
		}
	}()
	for _, err := range errs {
		if err != nil {
			fmt.Fprintln(os.Stderr, "e2e: no servers, so nothing was tested:", err)
			return 1
		}
	}
	return m.Run()
}

// startKafka starts a broker that reaches itself through a proxy.
func startKafka(ctx context.Context) (*servers.KafkaServer, *proxy.Kafka, error) {
	listen, err := servers.FreePort()
	if err != nil {
		return nil, nil, err
	}
	target, err := servers.FreePort()
	if err != nil {
		return nil, nil, err
	}
	markers, err := proxy.NewInterBroker(fmt.Sprintf(":%d", listen), fmt.Sprintf("127.0.0.1:%d", target))
	if err != nil {
		return nil, nil, err
	}
	kafka, err := servers.StartKafka(ctx, servers.WithInterBrokerProxy(listen, target))
	return kafka, markers, err
}
