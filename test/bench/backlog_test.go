package bench

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/cmd/billing/config"
	"billing/internal/checkpoint"
	"billing/internal/consume"
)

// backlog is messages that wait in a broker of this process. It keeps them in
// memory, so that one job after the other drains the same ones.
type backlog struct {
	broker   *kfake.Cluster
	expected expected
	jobs     int // so far; a new one begins at the beginning
}

// benchTopic is the topic of a backlog.
const benchTopic = "events"

// newBacklog writes the load, compressed as `billing produce` does.
func newBacklog(t testing.TB, l load) *backlog {
	t.Helper()
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(l.Partitions, benchTopic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	cl, err := kgo.NewClient(kgo.SeedBrokers(broker.ListenAddrs()...), kgo.DefaultProduceTopic(benchTopic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var failed kgo.FirstErrPromise
	b := &backlog{broker: broker}
	b.expected = l.each(time.Now(), func(partition int32, value []byte) {
		cl.Produce(t.Context(), &kgo.Record{Partition: partition, Value: append([]byte(nil), value...), Headers: eventHeaders}, failed.Promise())
	})
	if err := failed.Err(); err != nil {
		t.Fatal(err)
	}
	return b
}

// open connects a new job, with what a configuration has by default.
func (b *backlog) open(t testing.TB) (kafka *consume.Client, job string) {
	t.Helper()
	b.jobs++
	job = fmt.Sprint("bench-", b.jobs)
	d := config.Default()
	kafka, err := consume.Open(consume.Config{
		Brokers: b.broker.ListenAddrs(), Job: job, Topic: benchTopic, Logger: slog.New(slog.DiscardHandler),
		SessionTimeout: d.Kafka.SessionTimeout, TransactionTimeout: d.Kafka.TransactionTimeout,
		FetchBytes: d.Memory.MaxBytes / 2, MaxBatchBytes: d.Kafka.MaxBatchBytes,
	})
	if err != nil {
		t.Fatal(err)
	}
	return kafka, job
}

// forgetful is a shard that keeps nothing: it remembers of each lane the last
// epoch and the one that is prepared, as the protocol reads them back.
type forgetful struct {
	name string

	mu       sync.Mutex
	prepared map[checkpoint.GTRID]*checkpoint.Branch
	last     map[checkpoint.Lane]*checkpoint.Branch
}

func newForgetful(name string) *forgetful {
	return &forgetful{name: name, prepared: map[checkpoint.GTRID]*checkpoint.Branch{}, last: map[checkpoint.Lane]*checkpoint.Branch{}}
}

func (s *forgetful) Name() string { return s.name }

func (s *forgetful) EndOlder(context.Context, checkpoint.Lane) error { return nil }

func (s *forgetful) Prepared(context.Context, string) (all []checkpoint.GTRID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for g := range s.prepared {
		all = append(all, g)
	}
	return all, nil
}

func (s *forgetful) LaneRow(_ context.Context, lane checkpoint.Lane) (checkpoint.LaneRow, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.last[lane]
	if b == nil {
		return checkpoint.LaneRow{}, false, nil
	}
	return checkpoint.LaneRow{Incarnation: b.Incarnation, Seq: b.Seq, Next: b.OffsetNext}, true, nil
}

func (s *forgetful) EpochRow(_ context.Context, lane checkpoint.Lane, seq int64) (checkpoint.EpochRow, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.last[lane]
	if b == nil || b.Seq != seq {
		return checkpoint.EpochRow{}, false, nil
	}
	return checkpoint.EpochRow{GTRID: b.GTRID, Next: b.OffsetNext, Counts: b.Counts}, true, nil
}

func (s *forgetful) Prepare(_ context.Context, b *checkpoint.Branch) error {
	kept := *b
	kept.Contents = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prepared[b.GTRID] = &kept
	return nil
}

func (s *forgetful) Commit(_ context.Context, g checkpoint.GTRID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.prepared[g]
	if b == nil {
		return checkpoint.ErrNotListed
	}
	delete(s.prepared, g)
	s.last[b.Lane] = b
	return nil
}

func (s *forgetful) Rollback(_ context.Context, g checkpoint.GTRID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.prepared[g] == nil {
		return checkpoint.ErrNotListed
	}
	delete(s.prepared, g)
	return nil
}
