// Package consumetest tests what internal/consume promises, over a fake broker
// and over a real one.
package consumetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/checkpoint"
	"billing/internal/consume"
)

// Rig is a job of its own on a cluster: its topics, and clients of it.
type Rig struct {
	Brokers []string
	Job     string
	Topic   string
	Admin   *kadm.Client
	Produce *kgo.Client // not transactional, manual partitions
}

var jobs atomic.Int64

// NewRig makes a job with an input topic of so many partitions; the job's own
// topics are there too.
func NewRig(t testing.TB, brokers []string, partitions int32) *Rig {
	t.Helper()
	name := fmt.Sprintf("j%d-%d", time.Now().UnixNano(), jobs.Add(1))
	r := &Rig{Brokers: brokers, Job: name, Topic: name + ".input"}
	r.Produce = r.Raw(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	r.Admin = kadm.NewClient(r.Produce)
	created, err := r.Admin.CreateTopic(t.Context(), partitions, 1, nil, r.Topic)
	if err := errors.Join(err, created.Err); err != nil {
		t.Fatalf("create %s: %v", r.Topic, err)
	}
	c := r.Open(t, nil)
	Eventually(t, func() error { return c.EnsureTopics(t.Context(), true) })
	return r
}

// Raw opens a client of the library, without the code under test.
func (r *Rig) Raw(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(r.Brokers...), kgo.MetadataMinAge(50 * time.Millisecond), kgo.DisableClientMetrics()}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// Open opens a Client of the job that does not run. set may change its
// configuration.
func (r *Rig) Open(t testing.TB, set func(*consume.Config)) *consume.Client {
	t.Helper()
	cfg := consume.Config{
		Brokers: r.Brokers, Job: r.Job, Topic: r.Topic,
		SessionTimeout: 6 * time.Second, RebalanceTimeout: 10 * time.Second,
		RequestTimeout: 2 * time.Second,
		Logger:         slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if set != nil {
		set(&cfg)
	}
	c, err := consume.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Member is a Client that runs.
type Member struct {
	*consume.Client
	Log  *Log
	stop func()
}

// Join runs a member of the job until the test ends or Leave.
func (r *Rig) Join(t testing.TB, set func(*consume.Config)) *Member {
	t.Helper()
	m := &Member{Client: r.Open(t, set), Log: newLog()}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx, m.Log) }()
	m.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(m.stop)
	return m
}

// JoinAll runs the only member, and returns when it has all partitions.
func (r *Rig) JoinAll(t testing.TB, partitions int32, set func(*consume.Config)) *Member {
	t.Helper()
	m := r.Join(t, set)
	for p := range partitions {
		m.AwaitAssigned(t, p)
	}
	return m
}

// Leave ends the member's Run and returns when it has.
func (m *Member) Leave() { m.stop() }

// AwaitAssigned returns when the partition is the member's.
func (m *Member) AwaitAssigned(t testing.TB, partition int32) {
	t.Helper()
	Eventually(t, func() error {
		if !m.Assigned(partition) || !m.Fresh() {
			return fmt.Errorf("partition %d is not assigned", partition)
		}
		return nil
	})
}

// Lane is a lane of the job.
func (r *Rig) Lane(partition int32) checkpoint.Lane {
	return checkpoint.Lane{Topic: r.Topic, Partition: partition}
}

// Write puts values into the input.
func (r *Rig) Write(t testing.TB, partition int32, values ...string) {
	t.Helper()
	for _, v := range values {
		rec := &kgo.Record{Topic: r.Topic, Partition: partition, Value: []byte(v)}
		if err := r.Produce.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatalf("produce: %v", err)
		}
	}
}

// Foreign is somebody else's transaction, open, with a record in the topic.
type Foreign struct {
	t  testing.TB
	cl *kgo.Client
}

// Foreign opens one.
func (r *Rig) Foreign(t testing.TB, topic string, partition int32, value string) *Foreign {
	t.Helper()
	f := &Foreign{t: t, cl: r.Raw(t, kgo.TransactionalID(fmt.Sprintf("foreign-%s-%d", r.Job, jobs.Add(1))),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0), kgo.TransactionTimeout(time.Minute))}
	f.Write(topic, partition, value)
	return f
}

// Write writes one more record; it begins a transaction where none is open.
func (f *Foreign) Write(topic string, partition int32, value string) {
	f.t.Helper()
	_ = f.cl.BeginTransaction() // an error says that one is open
	rec := &kgo.Record{Topic: topic, Partition: partition, Key: []byte("foreign"), Value: []byte(value)}
	if err := f.cl.ProduceSync(f.t.Context(), rec).FirstErr(); err != nil {
		f.t.Fatalf("foreign produce: %v", err)
	}
}

// Offset puts an offset of the job's group into the transaction, as nobody but
// the service should.
func (f *Foreign) Offset(r *Rig, partition int32, offset int64) {
	f.t.Helper()
	id, epoch, err := f.cl.ProducerID(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	topics, err := r.Admin.Metadata(f.t.Context(), r.Topic)
	if err != nil {
		f.t.Fatal(err)
	}
	rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	rp.Partition, rp.Offset = partition, offset
	rt := kmsg.NewTxnOffsetCommitRequestTopic()
	rt.Topic, rt.TopicID = r.Topic, topics.Topics[r.Topic].ID
	rt.Partitions = append(rt.Partitions, rp)
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, _ = f.cl.OptValue(kgo.TransactionalID).(string)
	req.Group, req.ProducerID, req.ProducerEpoch = r.Job, id, epoch
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(f.t.Context(), f.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	}
	if err != nil {
		f.t.Fatalf("foreign offset: %v", err)
	}
}

// End ends the transaction.
func (f *Foreign) End(how kgo.TransactionEndTry) {
	f.t.Helper()
	if err := f.cl.EndTransaction(f.t.Context(), how); err != nil {
		f.t.Fatalf("foreign end: %v", err)
	}
}

const patience = 90 * time.Second

// Eventually asks f again and again until it is content.
func Eventually(t testing.TB, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		var refused *checkpoint.Refusal
		if err == nil {
			return
		}
		if errors.As(err, &refused) && !errors.Is(err, kerr.UnknownTopicOrPartition) && refused.Reason != checkpoint.ReasonTopicMissing {
			t.Fatal(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within %s: %v", patience, err)
		}
	}
}

// Fence takes the lane over; the Owner is closed at the end of the test.
func Fence(t testing.TB, c *consume.Client, lane checkpoint.Lane) checkpoint.Owner {
	t.Helper()
	o, err := c.Fence(t.Context(), lane)
	if err != nil {
		t.Fatalf("fence: %v", err)
	}
	t.Cleanup(o.Close)
	return o
}

// Decide runs a whole transaction up to its commit; the error is the first.
func Decide(ctx context.Context, o checkpoint.Owner, next int64, d string, chunks ...string) (from int64, err error) {
	if err := o.Begin(); err != nil {
		return 0, err
	}
	if len(chunks) > 0 {
		data := make([][]byte, len(chunks))
		for i, c := range chunks {
			data[i] = []byte(c)
		}
		var to int64
		if from, to, err = o.WriteChunks(ctx, data); err != nil {
			return 0, err
		}
		if to-from != int64(len(chunks)) {
			return 0, fmt.Errorf("%d chunks took the offsets %d to %d", len(chunks), from, to)
		}
	}
	if err := o.WriteDecision(ctx, d); err != nil {
		return 0, err
	}
	if err := o.CommitOffset(ctx, next, -1, d); err != nil {
		return 0, err
	}
	return from, o.Commit(ctx)
}

// MustDecide is Decide that must be known committed.
func MustDecide(t testing.TB, o checkpoint.Owner, next int64, d string, chunks ...string) (from int64) {
	t.Helper()
	from, err := Decide(t.Context(), o, next, d, chunks...)
	if err != nil {
		t.Fatalf("decide %q: %v", d, err)
	}
	return from
}

// Truth is what a new fence reads.
func Truth(t testing.TB, c *consume.Client, lane checkpoint.Lane) checkpoint.Read {
	t.Helper()
	o := Fence(t, c, lane)
	defer o.Close()
	r, err := o.Read(t.Context())
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return r
}

// MustBe fails unless the lane's last decision, read under a new fence, is d
// in both places. No d: there is none.
func MustBe(t testing.TB, c *consume.Client, lane checkpoint.Lane, next int64, d string) {
	t.Helper()
	r := Truth(t, c, lane)
	if r.HasOffset != (d != "") || r.Offset != next || r.Metadata != d || r.Record != d {
		t.Fatalf("read %+v, want offset %d and %q twice", r, next, d)
	}
}

// State is the state topic's committed chunks from an offset on.
func State(t testing.TB, o checkpoint.Owner, from int64) (got []string) {
	t.Helper()
	last := int64(-1)
	err := o.ReadState(t.Context(), from, func() {}, func(offset int64, data []byte) error {
		if offset < from || offset <= last {
			return fmt.Errorf("offset %d came after %d, from %d", offset, last, from)
		}
		last = offset
		got = append(got, string(data))
		return nil
	})
	if err != nil {
		t.Fatalf("read the state: %v", err)
	}
	return got
}

func equal(t testing.TB, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, ",") != strings.Join(want, ",") {
		t.Fatalf("got %q, want %q", got, want)
	}
}
