package main

import (
	"bytes"
	"context"
	bigendian "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
	"billing/internal/consume"
	"billing/internal/event"
	"billing/internal/pipeline"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The service's own code, all of it but MySQL's side, in this process: over an
// in-memory broker and fake shards, with answers of both lost at will.

const (
	inprocessJob   = "inprocess"
	inprocessTopic = "in"
)

// lossyConn loses requests and answers. A lost answer is one to a request that
// the broker has carried out.
type lossyConn struct {
	net.Conn
	plan func(key kmsg.Key) checkpointtest.Fault
}

var errLost = errors.New("connection cut by the test")

func (c *lossyConn) Write(b []byte) (int, error) {
	if len(b) < 8 {
		return c.Conn.Write(b)
	}
	switch c.plan(kmsg.Key(bigendian.BigEndian.Uint16(b[4:]))) {
	case checkpointtest.Failed:
		_ = c.Close()
		return 0, errLost
	case checkpointtest.Lost:
		n, err := c.Conn.Write(b)
		if err == nil {
			// The answer is there, so the request was carried out; nobody sees it.
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
			var size [4]byte
			if _, err := io.ReadFull(c.Conn, size[:]); err == nil {
				_, _ = io.CopyN(io.Discard, c.Conn, int64(bigendian.BigEndian.Uint32(size[:])))
			}
		}
		_ = c.Close()
		return n, errLost
	default:
		return c.Conn.Write(b)
	}
}

type inprocess struct {
	t      *testing.T
	world  *checkpointtest.World
	broker *kfake.Cluster
	load   *kgo.Client
	oracle *big.Rat
	sent   int64
	kafka  consume.Config
	limits checkpoint.Limits
	log    bytes.Buffer // of the lanes; read it when they have stopped

	mu      sync.Mutex
	counted checkpoint.Counts
	commits int
}

func newInprocess(t *testing.T, brokers int) *inprocess {
	t.Helper()
	broker, err := kfake.NewCluster(kfake.NumBrokers(brokers), kfake.SeedTopics(1, inprocessTopic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	load, err := kgo.NewClient(kgo.SeedBrokers(broker.ListenAddrs()...), kgo.DefaultProduceTopic(inprocessTopic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(load.Close)
	limits := checkpoint.DefaultLimits(3 * time.Second)
	limits.Fence, limits.Read, limits.End, limits.LookAgain = 3*time.Second, 3*time.Second, 700*time.Millisecond, 2*time.Second
	limits.Settle, limits.PhaseTwo, limits.Cleanup, limits.Sweep = 5*time.Second, 5*time.Second, time.Second, 50*time.Millisecond
	return &inprocess{
		t: t, broker: broker, load: load, oracle: new(big.Rat),
		world: checkpointtest.NewWorld(checkpoint.Lane{Topic: inprocessTopic}, 2),
		kafka: consume.Config{
			Brokers: broker.ListenAddrs(), Job: inprocessJob, Topic: inprocessTopic, SessionTimeout: 6 * time.Second,
			TransactionTimeout: 3 * time.Second, RequestTimeout: time.Second, ReadTimeout: 3 * time.Second, Logger: slog.New(slog.DiscardHandler),
		},
		limits: limits,
	}
}

// start runs the service until the returned function is called.
func (p *inprocess) start(dial func(context.Context, string, string) (net.Conn, error)) (stop func()) {
	p.t.Helper()
	cfg := p.kafka
	cfg.Dial = dial
	kafka, err := consume.Open(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := await(ctx, cfg.Logger, &view{}, "Kafka", func(ctx context.Context) error {
		if _, err := kafka.Check(ctx); err != nil {
			return err
		}
		return kafka.EnsureTopics(ctx, true)
	}); err != nil {
		p.t.Fatal(err)
	}
	job := &checkpoint.Job{
		Name: inprocessJob, Topic: inprocessTopic, Set: checkpoint.UUID{1}, Fingerprint: "f", Build: "test", FirstStart: true,
		Kafka: kafka, Shards: p.world.Shards(), Limits: p.limits,
		Listener: checkpoint.Listener{Committed: func(_ checkpoint.Lane, _ checkpoint.Decision, c checkpoint.Counts, _ bool) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.commits++
			p.counted.In += c.In
			p.counted.Applied += c.Applied
			p.counted.Duplicates += c.Duplicates
			p.counted.Conflicts += c.Conflicts
			p.counted.Rejected += c.Rejected
		}},
	}
	lanes := pipeline.New(pipeline.Config{
		Job: job, Interval: 20 * time.Millisecond, MaxInterval: 100 * time.Millisecond, MaxRows: 1 << 20, MaxRecords: 60, MaxBytes: 1 << 20, MemoryBytes: 1 << 30,
		Lateness: 35 * 24 * time.Hour, Skew: 5 * time.Minute, MaxIDs: 1 << 30, Window: time.Hour, Ledger: true,
		Decoder:      event.Config{TypePrefix: "com.example.billing.", Currencies: []string{"USD"}},
		StoppedRetry: 200 * time.Millisecond, IdleMove: time.Minute, Now: time.Now, Logger: slog.New(slog.NewTextHandler(&p.log, nil)),
	})
	lanes.Bind(source{kafka})
	done := make(chan error, 1)
	go func() { done <- kafka.Run(ctx, lanes) }()
	return func() {
		grace, end := context.WithTimeout(context.Background(), 10*time.Second)
		defer end()
		lanes.Drain(grace)
		cancel()
		if err := <-done; err != nil {
			p.t.Errorf("group: %v", err)
		}
		kafka.Close()
	}
}

// produce sends n charges, each twice, the second ones behind all first ones.
func (p *inprocess) produce(round, n int) {
	p.t.Helper()
	var records []*kgo.Record
	for again := range 2 {
		for i := range n {
			amount := fmt.Sprintf("%d.%012d", i, round+1)
			value, err := json.Marshal(map[string]any{
				"specversion": "1.0", "id": fmt.Sprintf("%d-%d", round, i), "source": "/test", "subject": fmt.Sprintf("a%d", i%7),
				"type": "com.example.billing.charge.v1", "time": time.Now().Add(-time.Minute).UTC().Truncate(time.Hour).Format(time.RFC3339),
				"data": map[string]any{"amount": amount, "currency": "USD"},
			})
			if err != nil {
				p.t.Fatal(err)
			}
			records = append(records, &kgo.Record{Value: value})
			if again == 0 {
				r, _ := new(big.Rat).SetString(amount)
				p.oracle.Add(p.oracle, r)
			}
		}
	}
	if err := p.load.ProduceSync(p.t.Context(), records...).FirstErr(); err != nil {
		p.t.Fatal(err)
	}
	p.sent += int64(len(records))
}

// waitExact waits until every record is accounted for on both shards, and
// compares.
func (p *inprocess) waitExact() {
	p.t.Helper()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		in := [2]int64{}
		sum := new(big.Rat)
		for i := range in {
			for _, c := range p.world.AppliedOn(i) {
				e := c.(*aggregate.Epoch)
				in[i] += e.Counts.In
				for _, row := range e.Parts[i].Ledger.All() {
					r, _ := new(big.Rat).SetString(row.Amount.String())
					sum.Add(sum, r)
				}
			}
		}
		if in[0] == p.sent && in[1] == p.sent && len(p.world.Shard(0).PreparedNow()) == 0 && len(p.world.Shard(1).PreparedNow()) == 0 {
			if sum.Cmp(p.oracle) != 0 {
				p.t.Fatalf("billed %s, sent %s", sum.FloatString(12), p.oracle.FloatString(12))
			}
			return
		}
		if in[0] > p.sent || in[1] > p.sent {
			p.t.Fatalf("%v records accounted for, %d sent", in, p.sent)
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			p.t.Fatalf("%v of %d records accounted for, prepared: %v %v", in, p.sent, p.world.Shard(0).PreparedNow(), p.world.Shard(1).PreparedNow())
		}
	}
}

// TestAnswersLost loses requests and answers of the lanes' clients and of the
// shards at random, while the stream goes on.
func TestAnswersLost(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			p := newInprocess(t, 1)
			var mu sync.Mutex
			r := rand.New(rand.NewPCG(seed, 0))
			quiet := false
			lost := map[kmsg.Key]int{}
			draw := func(one int) checkpointtest.Fault {
				mu.Lock()
				defer mu.Unlock()
				if quiet || r.IntN(one) != 0 {
					return checkpointtest.None
				}
				return checkpointtest.Fault(1 + r.IntN(2))
			}
			p.world.Plan(func(int, string) checkpointtest.Fault { return draw(25) })
			stop := p.start(func(ctx context.Context, network, address string) (net.Conn, error) {
				c, err := (&net.Dialer{}).DialContext(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return &lossyConn{Conn: c, plan: func(key kmsg.Key) checkpointtest.Fault {
					var one int
					switch key {
					case kmsg.InitProducerID:
						one = 3
					case kmsg.EndTxn, kmsg.TxnOffsetCommit:
						one = 5
					case kmsg.Produce, kmsg.OffsetFetch:
						one = 10
					default:
						return checkpointtest.None
					}
					f := draw(one)
					if f != checkpointtest.None {
						mu.Lock()
						lost[key]++
						mu.Unlock()
					}
					return f
				}}, nil
			})
			for round := range 12 {
				p.produce(round, 150)
			}
			p.waitExact()
			mu.Lock()
			quiet = true
			mu.Unlock()
			p.produce(100, 50)
			p.waitExact()
			stop()

			mu.Lock()
			defer mu.Unlock()
			if lost[kmsg.EndTxn] < 3 || lost[kmsg.TxnOffsetCommit] < 3 {
				t.Errorf("too little was lost to prove anything: %v", lost)
			}
			p.compareCounted()
		})
	}
}

// compareCounted: what was published is what the tables say, each epoch once.
func (p *inprocess) compareCounted() {
	p.t.Helper()
	var want checkpoint.Counts
	epochs := p.world.AppliedOn(0)
	for _, c := range epochs {
		k := c.(*aggregate.Epoch).Counts
		want.In += k.In
		want.Applied += k.Applied
		want.Duplicates += k.Duplicates
		want.Conflicts += k.Conflicts
		want.Rejected += k.Rejected
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counted != want || p.commits != len(epochs) {
		p.t.Errorf("counted %+v in %d epochs, the tables say %+v in %d", p.counted, p.commits, want, len(epochs))
	}
}
