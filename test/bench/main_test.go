// Package bench measures the service. Each benchmark is a test named TestBench…:
// in a plain go test it runs at a small size and looks at counts only; make bench
// runs it at the size that docs/benchmarks.md shows, and looks at its targets.
package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"billing/test/bench/measure"
	"billing/test/servers"
)

// shared is what the benchmarks share that need servers. It is made when the
// first of them asks.
var shared struct {
	kafkaOnce sync.Once
	kafka     *servers.KafkaServer
	kafkaErr  error

	mysqlOnce sync.Once
	mysql     *servers.MySQLServer
	mysqlErr  error

	binaryOnce sync.Once
	dir        string
	binary     string
	binaryErr  error
}

// startWithin bounds the start of a server.
const startWithin = 5 * time.Minute

func TestMain(m *testing.M) {
	if topic := os.Getenv(brokerVariable); topic != "" {
		os.Exit(beBroker(topic))
	}
	code := m.Run()
	if shared.kafka != nil {
		_ = shared.kafka.Close()
	}
	if shared.mysql != nil {
		_ = shared.mysql.Close()
	}
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir)
	}
	os.Exit(code)
}

// kafkaServer is the real broker.
func kafkaServer(t testing.TB) *servers.KafkaServer {
	t.Helper()
	servers.Require(t)
	shared.kafkaOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startWithin)
		defer cancel()
		shared.kafka, shared.kafkaErr = servers.StartKafka(ctx)
	})
	if shared.kafkaErr != nil {
		t.Fatal(shared.kafkaErr)
	}
	return shared.kafka
}

// mysqlServer is the real database server: durable at each commit, at full size with
// memory for the tables of a benchmark, as a server for billing has.
func mysqlServer(t testing.TB) *servers.MySQLServer {
	t.Helper()
	servers.Require(t)
	shared.mysqlOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startWithin)
		defer cancel()
		var args []string
		if measure.Full() {
			args = []string{"--innodb-buffer-pool-size=2G", "--innodb-redo-log-capacity=2G"}
		}
		shared.mysql, shared.mysqlErr = servers.StartMySQL(ctx, "bench", servers.WithArgs(args...))
	})
	if shared.mysqlErr != nil {
		t.Fatal(shared.mysqlErr)
	}
	return shared.mysql
}

// kafkaVersion is what the broker's protocol tells of its version.
func kafkaVersion(t testing.TB) string {
	t.Helper()
	brokers, err := kafkaServer(t).Admin(t).ApiVersions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range brokers {
		return strings.TrimPrefix(b.VersionGuess(), "v")
	}
	t.Fatal("no broker tells its version")
	return ""
}

func mysqlVersion(t testing.TB) (version string) {
	t.Helper()
	if err := mysqlServer(t).Root().QueryRow("SELECT @@version").Scan(&version); err != nil {
		t.Fatal(err)
	}
	return version
}

// billing is the path of the real binary, built as it is deployed.
func billing(t testing.TB) string {
	t.Helper()
	shared.binaryOnce.Do(func() {
		if shared.dir, shared.binaryErr = os.MkdirTemp("", "billing-bench-"); shared.binaryErr != nil {
			return
		}
		shared.binary = filepath.Join(shared.dir, "billing")
		cmd := exec.Command("go", "build", "-trimpath", "-o", shared.binary, "billing/cmd/billing")
		if out, err := cmd.CombinedOutput(); err != nil {
			shared.binaryErr = fmt.Errorf("build the binary: %w\n%s", err, out)
		}
	})
	if shared.binaryErr != nil {
		t.Fatal(shared.binaryErr)
	}
	return shared.binary
}
