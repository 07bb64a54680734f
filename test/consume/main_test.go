// Package consume tests internal/consume against a real broker.
package consume

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"billing/internal/consume/consumetest"
	"billing/test/servers"
)

// kafka is shared by the tests, which have jobs of their own.
var kafka *servers.KafkaServer

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if kafka, err = servers.StartKafka(context.Background(),
		// The broker looks every second, not every 10 s and every 15 s.
		servers.WithEnv("KAFKA_TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS", "1000"),
		servers.WithEnv("KAFKA_LOG_CLEANER_BACKOFF_MS", "1000"),
	); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := kafka.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	before := goleak.IgnoreCurrent() // the engine's client has goroutines of its own
	code := m.Run()
	if err := goleak.Find(before); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func brokers() []string { return []string{kafka.Addr()} }

func TestOwner(t *testing.T) { consumetest.Owner(t, brokers()) }

func TestFetch(t *testing.T) { consumetest.Fetch(t, brokers()) }

func TestBound(t *testing.T) { consumetest.Bound(t, brokers(), nil) }

func TestGroup(t *testing.T) { consumetest.Group(t, brokers()) }

func TestTopics(t *testing.T) { consumetest.Topics(t, brokers()) }

func TestLook(t *testing.T) { consumetest.Look(t, brokers()) }

func TestFaults(t *testing.T) { consumetest.Faults(t, brokers()) }

func TestLoad(t *testing.T) { consumetest.Load(t, brokers()) }

func TestRace(t *testing.T) { consumetest.Race(t, brokers(), nil) }
