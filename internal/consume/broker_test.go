package consume_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/consume/consumetest"
)

func TestLeadersMove(t *testing.T) {
	b := newBench(t)
	o := consumetest.Fence(t, b.member.Client, b.lane)
	b.rig.Write(t, 0, "a")
	b.member.Start(0, 1, 0, -1)
	want := []string{"a"}
	for i := range 6 {
		for _, topic := range []string{b.rig.Topic, b.member.DecisionTopic(), b.member.StateTopic()} {
			if err := b.cluster.MoveTopicPartition(topic, 0, int32(i%3)); err != nil {
				t.Fatal(err)
			}
		}
		d := fmt.Sprint("D", i)
		consumetest.MustDecide(t, o, int64(i), d, d)
		b.rig.Write(t, 0, d)
		want = append(want, d)
	}
	o.Close()
	consumetest.MustBe(t, b.member.Client, b.lane, 5, "D5")
	if got := consumetest.State(t, consumetest.Fence(t, b.member.Client, b.lane), 0); strings.Join(got, ",") != strings.Join(want[1:], ",") {
		t.Fatalf("got %q", got)
	}
	b.member.Log.AwaitValues(t, 0, 1, want...)
}

func TestCompactedDecisions(t *testing.T) {
	b := newBench(t, kfake.BrokerConfigs(map[string]string{"log.segment.bytes": "1000"}))
	o := consumetest.Fence(t, b.member.Client, b.lane)
	for i := range 100 {
		consumetest.MustDecide(t, o, int64(i), fmt.Sprint("D", i))
	}
	o.Close()
	b.cluster.Compact()
	consumetest.MustBe(t, b.member.Client, b.lane, 99, "D99")
}

// A producer's epochs are used up at the fence, at a decision, or while its
// transaction is open: the next one is another producer, and no decision is lost,
// doubled or unknown.
func TestProducerEpochsRunOut(t *testing.T) {
	for left := range int16(5) {
		t.Run(fmt.Sprint(left, " left"), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			consumetest.MustDecide(t, consumetest.Fence(t, b.member.Client, b.lane), 1, "D1")
			cl := b.rig.Raw(t)
			req := kmsg.NewPtrInitProducerIDRequest()
			id := b.member.TransactionalID(b.lane)
			req.TransactionalID, req.TransactionTimeoutMillis = &id, 60_000
			was := int64(-1)
			for epoch := int16(0); epoch < math.MaxInt16-1-left; {
				resp, err := req.RequestWith(t.Context(), cl)
				if err == nil {
					err = kerr.ErrorForCode(resp.ErrorCode)
				}
				if err != nil {
					t.Fatal(err)
				}
				was, epoch = resp.ProducerID, resp.ProducerEpoch
			}
			o := consumetest.Fence(t, b.member.Client, b.lane)
			consumetest.MustDecide(t, o, 2, "D2", "a")
			consumetest.MustDecide(t, o, 3, "D3", "b")
			if err := errors.Join(o.Begin(), o.WriteDecision(t.Context(), "lost"), o.CommitOffset(t.Context(), 9, -1, "lost")); err != nil {
				t.Fatal(err)
			}
			next := consumetest.Fence(t, b.member.Client, b.lane)
			if err := o.Commit(t.Context()); !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
				t.Fatalf("the older owner's decision: %v", err)
			}
			consumetest.MustDecide(t, next, 4, "D4", "c")
			consumetest.MustDecide(t, next, 5, "D5", "d")
			next.Close()
			consumetest.MustBe(t, b.member.Client, b.lane, 5, "D5")
			if got := strings.Join(consumetest.State(t, consumetest.Fence(t, b.member.Client, b.lane), 0), ""); got != "abcd" {
				t.Errorf("the state is %q", got)
			}
			resp, err := req.RequestWith(t.Context(), cl)
			if err != nil || resp.ProducerID == was {
				t.Errorf("the producer is still %d (%v)", was, err)
			}
		})
	}
}

// The library goes on by itself where a log was cut: not here.
func TestTruncationStopsTheLane(t *testing.T) {
	b := newBench(t)
	b.rig.Write(t, 0, "a", "b", "c", "d")
	b.cluster.ControlKey(kmsg.OffsetForLeaderEpoch.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		q := req.(*kmsg.OffsetForLeaderEpochRequest)
		r := q.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		for _, qt := range q.Topics {
			rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
			rt.Topic = qt.Topic
			for _, qp := range qt.Partitions {
				rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				rp.Partition, rp.LeaderEpoch, rp.EndOffset = qp.Partition, qp.LeaderEpoch, 2
				rt.Partitions = append(rt.Partitions, rp)
			}
			r.Topics = append(r.Topics, rt)
		}
		return r, nil, true
	})
	b.member.Start(0, 1, 3, 0)
	var refused *checkpoint.Refusal
	if err := b.member.Log.AwaitFailed(t, 0, 1); !errors.As(err, &refused) || refused.Reason != checkpoint.ReasonOffsetOutOfRange {
		t.Fatal(err)
	}
	b.member.Start(0, 2, 1, 0) // below the cut
	b.member.Log.AwaitValues(t, 0, 2, "b", "c", "d")
	if got := b.member.Log.Values(t, 0, 1); len(got) > 0 {
		t.Fatalf("delivered %q", got)
	}
}

func TestBombStopsTheLane(t *testing.T) {
	b := newBench(t)
	b.rig.Write(t, 0, "a")
	cl := b.rig.Raw(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(8<<20), kgo.ProducerBatchCompression(kgo.GzipCompression()))
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: b.rig.Topic, Value: make([]byte, 4<<20)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	var bomb *kgo.ErrDecompressTooLarge
	for session := range uint64(2) { // it comes again to each session that meets it
		b.member.Start(0, session+1, int64(session), -1)
		err := b.member.Log.AwaitFailed(t, 0, session+1)
		r := checkpoint.AsRefusal(err)
		if r == nil || r.Reason != checkpoint.ReasonBatchTooLarge || !strings.Contains(err.Error(), "the batch at offset 1 ") || !strings.Contains(err.Error(), "kafka.max_batch_bytes") {
			t.Fatal(err)
		}
	}
	b.rig.Write(t, 0, "b")
	b.member.Start(0, 3, 2, -1)
	b.member.Log.AwaitValues(t, 0, 3, "b")
	if _, err := b.member.SkipTail(t.Context(), 0, 1); !errors.As(err, &bomb) {
		t.Fatal(err)
	}
}

func TestOldBrokersAreRefused(t *testing.T) {
	c := fake(t, kfake.MaxVersions(kversion.V3_9_0()), kfake.SeedTopics(1, "in"))
	client, err := consume.Open(consume.Config{Brokers: c.ListenAddrs(), Job: "j", Topic: "in"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = client.Check(t.Context())
	var refused *checkpoint.Refusal
	if !errors.As(err, &refused) || refused.Reason != checkpoint.ReasonBrokerFeature || refused.Scope != checkpoint.EndsProcess || !strings.Contains(err.Error(), "transaction.version") {
		t.Fatal(err)
	}
	if problems := checkpoint.Problems(err); len(problems) != 1 || refused.What != "brokers 0, 1, 2" {
		t.Fatalf("want one refusal of all three brokers: %v", problems)
	}
}

// A broker that doesn't answer is named with the address that the cluster gives.
func TestABrokerBehindItsAddressIsAway(t *testing.T) {
	c := fake(t, kfake.SeedTopics(1, "in"))
	c.ControlKey(kmsg.Metadata.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := req.ResponseKind().(*kmsg.MetadataResponse)
		for id, address := range []string{c.ListenAddrs()[0], "127.0.0.1:1"} {
			b := kmsg.NewMetadataResponseBroker()
			host, port, _ := strings.Cut(address, ":")
			b.NodeID, b.Host = int32(id), host
			_, _ = fmt.Sscan(port, &b.Port)
			r.Brokers = append(r.Brokers, b)
		}
		return r, nil, true
	})
	client, err := consume.Open(consume.Config{Brokers: c.ListenAddrs()[:1], Job: "j", Topic: "in"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	brokers, err := client.Brokers(t.Context())
	if err != nil || len(brokers) != 2 {
		t.Fatal(brokers, err)
	}
	var away *checkpoint.ServerError
	err = client.CheckFeatures(t.Context(), brokers)
	if problems := checkpoint.Problems(err); len(problems) != 1 || !errors.As(err, &away) || away.What != "broker 1 (127.0.0.1:1)" || !strings.Contains(away.Next, "advertised.listeners") {
		t.Fatal(err)
	}
}

// What the cluster forbids is told with what to do.
func TestForbiddenByTheCluster(t *testing.T) {
	for _, key := range []kmsg.Key{kmsg.Metadata, kmsg.DescribeGroups} {
		code := kerr.TopicAuthorizationFailed
		c := fake(t, kfake.SeedTopics(1, "in"))
		client, err := consume.Open(consume.Config{Brokers: c.ListenAddrs(), Job: "j", Topic: "in"})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		check := func() error { _, err := client.LookUp(t.Context()); return err }
		if key == kmsg.DescribeGroups {
			code, check = kerr.GroupAuthorizationFailed, func() error { return client.CheckRights(t.Context()) }
		}
		c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: code, Count: -1})
		var away *checkpoint.ServerError
		if err := check(); !errors.As(err, &away) || !away.TurnedAway || !errors.Is(err, code) || !strings.Contains(away.Next, "grant this service") {
			t.Errorf("%s: %v", key.Name(), err)
		}
	}
}

func TestUnreachableIsNoRefusal(t *testing.T) {
	client, err := consume.Open(consume.Config{Brokers: []string{"127.0.0.1:1"}, Job: "j", Topic: "in"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var refused *checkpoint.Refusal
	if _, err := client.Check(ctx); err == nil || errors.As(err, &refused) {
		t.Fatal(err)
	}
	// Run waits for it, and ends when it is told to.
	if err := client.Run(ctx, &consumetest.Log{}); err != nil {
		t.Fatal(err)
	}
	if client.Assigned(0) || client.Fresh() {
		t.Fatal("a member of nothing")
	}
}

func TestConfig(t *testing.T) {
	for what, cfg := range map[string]consume.Config{
		"no brokers":          {Job: "j", Topic: "t"},
		"job \"a.b\"":         {Brokers: []string{"b"}, Job: "a.b", Topic: "t"},
		"no topic":            {Brokers: []string{"b"}, Job: "j"},
		"session timeout":     {Brokers: []string{"b"}, Job: "j", Topic: "t", SessionTimeout: time.Millisecond},
		"rebalance timeout":   {Brokers: []string{"b"}, Job: "j", Topic: "t", SessionTimeout: time.Minute, RebalanceTimeout: 30 * time.Second},
		"transaction timeout": {Brokers: []string{"b"}, Job: "j", Topic: "t", TransactionTimeout: time.Millisecond},
		"fetch":               {Brokers: []string{"b"}, Job: "j", Topic: "t", FetchBytes: -1},
	} {
		if _, err := consume.Open(cfg); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Each value alone is in order: so is its default beside it.
	c, err := consume.Open(consume.Config{Brokers: []string{"b"}, Job: "j", Topic: "t", SessionTimeout: 30 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// The batches that the owner writes are read by the library like any other.
func TestBatchesOfAllSizes(t *testing.T) {
	b := newBench(t)
	o := consumetest.Fence(t, b.member.Client, b.lane)
	var want []string
	for _, size := range []int{0, 1, 62, 63, 64, 65, 127, 128, 8190, 8191, 8192, 8193, 512 << 10} {
		v := make([]byte, size)
		for i := range v {
			v[i] = byte('a' + i%26)
		}
		if size >= 8 {
			binary.BigEndian.PutUint64(v, uint64(size))
		}
		want = append(want, string(v))
	}
	from := consumetest.MustDecide(t, o, 1, strings.Repeat("D", 4000), want...)
	got := consumetest.State(t, o, from)
	if len(got) != len(want) {
		t.Fatalf("got %d chunks, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("chunk %d of %d bytes differs", i, len(want[i]))
		}
	}
	consumetest.MustBe(t, b.member.Client, b.lane, 1, strings.Repeat("D", 4000))
}

// A look shares its connection with others: behind an open transaction it asks
// now and then, and has the broker keep no answer back.
func TestLookNeitherFloodsNorBlocks(t *testing.T) {
	b := newBench(t)
	b.rig.Foreign(t, b.member.DecisionTopic(), 0, "open")
	var fetches, waits atomic.Int64
	b.cluster.ControlKey(kmsg.Fetch.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		fetches.Add(1)
		waits.Add(int64(req.(*kmsg.FetchRequest).MaxWaitMillis))
		return nil, nil, false
	})
	const within = time.Second
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if _, err := b.member.Look(ctx, 0); !consume.Unstable(err) {
		t.Fatal(err)
	}
	if n, most := fetches.Load(), int64(within/(50*time.Millisecond))+1; n < 2 || n > most || waits.Load() > 0 {
		t.Errorf("%d fetches in %s, want 2 to %d; the broker was to wait %d ms", n, within, most, waits.Load())
	}
}
