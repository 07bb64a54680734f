package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"billing/internal/loadgen"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The deployment that is shown.
const (
	job        = "demo"
	topic      = "billing.events"
	partitions = 4
	typePrefix = "com.example.billing."
	window     = time.Hour
	lateness   = 35 * 24 * time.Hour    // the service's default
	interval   = 200 * time.Millisecond // of checkpoints: many epochs in a short time
)

var currencies = []string{"USD", "EUR", "JPY"}

// startBroker starts a Kafka in this process, on loopback, with the input topic.
// It keeps everything in memory.
func startBroker() (*kfake.Cluster, error) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, topic))
	if err != nil {
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	return c, nil
}

// load is all messages and what must come of them.
type load struct {
	messages     []loadgen.Message
	expected     loadgen.Expected
	perPartition [partitions]int64
	written      atomic.Int64
}

// makeLoad makes the messages before the first is written.
func makeLoad(count int, seed int64, now time.Time) *load {
	g := loadgen.New(loadgen.Config{
		Count: count, Accounts: 400, Skew: 0.3, Duplicates: 0.2, Bad: 0.1, Seed: seed, Partitions: partitions,
		Now: now, Lateness: lateness, Window: window, TypePrefix: typePrefix, Currencies: currencies,
	})
	l := &load{}
	for m, more := g.Next(); more; m, more = g.Next() {
		l.messages = append(l.messages, m)
		l.perPartition[m.Partition]++
	}
	l.expected = g.Expected()
	return l
}

// write writes the messages within about the given time, in order.
func (l *load) write(ctx context.Context, brokers []string, within time.Duration) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), // where a message goes is part of the load
	)
	if err != nil {
		return fmt.Errorf("write the load: %w", err)
	}
	defer client.Close()
	const slice = 50 * time.Millisecond
	most := max(1, len(l.messages)/int(within/slice))
	tick := time.NewTicker(slice)
	defer tick.Stop()
	for rest := l.messages; len(rest) > 0; {
		n := min(most, len(rest))
		records := make([]*kgo.Record, n)
		for i, m := range rest[:n] {
			records[i] = &kgo.Record{Topic: topic, Partition: m.Partition, Key: m.Key, Value: m.Value}
			for _, h := range m.Headers {
				records[i].Headers = append(records[i].Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
			}
		}
		if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return fmt.Errorf("write the load: %w", err)
		}
		l.written.Add(int64(n))
		rest = rest[n:]
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
