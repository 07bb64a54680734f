package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"billing/test/bench/measure"
)

// TestBenchDelay measures how long it takes from a message's acknowledgement by the
// broker to its row in the tables, in lanes that keep up: what small epochs are for.
func TestBenchDelay(t *testing.T) {
	r := measure.New(t, "delay")
	r.Uses("Kafka", kafkaVersion(t))
	r.Uses("MySQL", mysqlVersion(t))
	var second, tenth measure.Histogram
	b := delayBench{t: t, rate: measure.Pick(500, 100), messages: measure.Pick(10_000, 300)}
	rounds := r.Alternate(
		measure.Thing{Name: "1s", Run: func() measure.Values { return b.run("1s", &second) }},
		measure.Thing{Name: "100ms", Run: func() measure.Values { return b.run("100ms", &tenth) }},
	)
	for _, c := range []struct {
		interval string
		most     float64
	}{{"1s", 1.5}, {"100ms", 0.6}} {
		for _, v := range []string{"p50", "p99"} {
			f := measure.Figure{Name: "interval " + c.interval + ": delay, " + v, Unit: "s", Values: rounds.Of(c.interval, v)}
			if v == "p99" {
				f.Target, f.From = measure.AtMost(c.most), "the interval, and half a second for the decision and both phases"
			}
			r.Figure(f)
		}
		r.Figure(measure.Figure{Name: "interval " + c.interval + ": epoch", Unit: "messages", Values: rounds.Of(c.interval, "epoch")})
	}
	r.Histograms(measure.HistoPlot{Name: "delay", Title: "From the broker's acknowledgement to the row, in all runs",
		Panels: []measure.Panel{second.Panel("interval 1s"), tenth.Panel("interval 100ms")}})
}

type delayBench struct {
	t              *testing.T
	rate, messages int // a second, and in all
}

// run sends the messages evenly to four lanes at work, and looks again and again at
// how far the tables have come.
func (b *delayBench) run(interval string, into *measure.Histogram) measure.Values {
	const partitions = 4
	topic := newTopic(b.t, partitions)
	j := newJob(b.t, topic, jobConfig{Shards: 1, Ledger: true, More: "checkpoint: {interval: " + interval + "}\n"})
	defer j.drop()
	p := j.start()
	p.awaitLanes(partitions)

	var mu sync.Mutex
	acknowledged := make([][]time.Time, partitions) // by offset
	failed := make(chan error, 1)
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Minute)
	var wg sync.WaitGroup
	wg.Go(func() { b.send(ctx, topic, &mu, acknowledged, failed) })
	defer func() {
		cancel()
		wg.Wait()
	}()

	var took measure.Histogram
	shown := make([]int, partitions)
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for took.Count() < int64(b.messages) {
		next := j.offsets(partitions)
		now := time.Now()
		mu.Lock()
		for partition := range shown {
			// The row may be seen before the producer has heard of its own message.
			for ; shown[partition] < min(next[partition], len(acknowledged[partition])); shown[partition]++ {
				took.Add(max(0, now.Sub(acknowledged[partition][shown[partition]])))
			}
		}
		mu.Unlock()
		select {
		case <-look.C:
		case err := <-failed:
			b.t.Fatal(err)
		case <-p.done:
			b.t.Fatalf("billing run ended: %v\n%s", p.err, p.said())
		case <-ctx.Done():
			b.t.Fatalf("%d of %d messages are in the tables: %v", took.Count(), b.messages, ctx.Err())
		}
	}
	var epochs float64
	if err := j.db[0].QueryRow("SELECT COUNT(*) FROM billing_epoch").Scan(&epochs); err != nil {
		b.t.Fatal(err)
	}
	p.stop()
	into.Merge(&took)
	return measure.Values{"p50": took.Quantile(0.5).Seconds(), "p99": took.Quantile(0.99).Seconds(), "epoch": float64(b.messages) / epochs}
}

// send writes the messages at the rate, and notes when each was acknowledged. Nothing
// else writes to the topic, and a producer without Kafka transactions has no markers: a
// lane's offsets are its messages.
func (b *delayBench) send(ctx context.Context, topic string, mu *sync.Mutex, acknowledged [][]time.Time, failed chan<- error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkaServer(b.t).Addr()), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(0))
	if err != nil {
		failed <- err
		return
	}
	defer cl.Close()
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	pace := time.NewTicker(time.Second / time.Duration(b.rate))
	defer pace.Stop()
	l := standardLoad(b.messages, int32(len(acknowledged)))
	l.each(time.Now(), func(partition int32, value []byte) {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return
		}
		cl.Produce(ctx, &kgo.Record{Partition: partition, Value: append([]byte(nil), value...), Headers: eventHeaders}, func(r *kgo.Record, err error) {
			if err != nil {
				fail(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if int(r.Offset) != len(acknowledged[r.Partition]) {
				fail(fmt.Errorf("partition %d: offset %d acknowledged after %d", r.Partition, r.Offset, len(acknowledged[r.Partition])-1))
				return
			}
			acknowledged[r.Partition] = append(acknowledged[r.Partition], time.Now())
		})
	})
	if err := cl.Flush(ctx); err != nil && ctx.Err() == nil {
		fail(err)
	}
}
