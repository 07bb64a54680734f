package consume

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// partitionLog reads one partition by raw requests to its leader. A consumer
// would not do: it says nothing about a tail of aborted, compacted or control
// records, so a reader that waits for the last offset would wait for ever. It
// is used by one goroutine at a time.
type partitionLog struct {
	cl        *kgo.Client
	topic     string
	partition int32

	// How long a broker may keep an answer without records back. 0 where lanes share
	// a connection, on which a broker answers one request after the other.
	wait time.Duration

	known      bool // the rest is from the last metadata
	id         [16]byte
	partitions int32
	leader     int32
}

func newPartitionLog(cl *kgo.Client, topic string, partition int32) *partitionLog {
	return &partitionLog{cl: cl, topic: topic, partition: partition, wait: readWait}
}

func (p *partitionLog) String() string { return fmt.Sprintf("%s/%d", p.topic, p.partition) }

// retry runs try until it succeeds, fails for good, or ctx ends. Before a try
// the leader is known, and after a failure it is looked up again.
func (p *partitionLog) retry(ctx context.Context, what string, try func() error) error {
	err := again(ctx, transient, func() error {
		err := p.lookUp(ctx)
		if err == nil {
			err = try()
		}
		if err != nil && !errors.Is(err, kerr.ConcurrentTransactions) {
			p.known = false
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, p, err)
	}
	return nil
}

var errNoPartition = errors.New("an answer without the partition")

// missingError: the topic is there, the partition is not.
type missingError struct{ partitions int32 } // that the topic has

func (e *missingError) Error() string {
	return fmt.Sprintf("the topic has only %d partitions", e.partitions)
}

// count gives the topic's number of partitions, this one among them or not.
func (p *partitionLog) count(ctx context.Context) (int32, error) {
	err := p.retry(ctx, "look up", func() error { return nil })
	var missing *missingError
	if errors.As(err, &missing) {
		return missing.partitions, nil
	}
	return p.partitions, err
}

// lookUp asks for the topic's id, partition count and the partition's leader.
func (p *partitionLog) lookUp(ctx context.Context) error {
	if p.known {
		return nil
	}
	t, err := describeTopic(ctx, p.cl, p.topic)
	if err != nil {
		return err
	}
	if int(p.partition) >= len(t.Partitions) {
		return &finalError{&missingError{int32(len(t.Partitions))}}
	}
	for i := range t.Partitions {
		if q := &t.Partitions[i]; q.Partition == p.partition {
			if err := kerr.ErrorForCode(q.ErrorCode); err != nil {
				return err
			}
			p.id, p.partitions, p.leader, p.known = t.TopicID, int32(len(t.Partitions)), q.Leader, true
			return nil
		}
	}
	return kerr.UnknownTopicOrPartition
}

// describeTopic asks a broker for one topic. The client learns the brokers'
// addresses from it too.
func describeTopic(ctx context.Context, cl *kgo.Client, topic string) (*kmsg.MetadataResponseTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	rt := kmsg.NewMetadataRequestTopic()
	rt.Topic = kmsg.StringPtr(topic)
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 {
		return nil, fmt.Errorf("metadata: asked for one topic, got %d", len(resp.Topics))
	}
	t := &resp.Topics[0]
	if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
		return nil, err
	}
	if len(t.Partitions) == 0 || t.TopicID == ([16]byte{}) {
		return nil, kerr.UnknownTopicOrPartition // being created
	}
	return t, nil
}

// What ListOffsets is asked for.
const earliest, latest = -2, -1

// bounds gives the log's start and its high watermark. The watermark is asked
// for read_uncommitted: the last stable offset is too small while a crashed
// writer's transaction is open.
func (p *partitionLog) bounds(ctx context.Context) (start, end int64, err error) {
	if start, err = p.listOffset(ctx, earliest, uncommitted); err != nil {
		return 0, 0, err
	}
	end, err = p.listOffset(ctx, latest, uncommitted)
	return start, end, err
}

// stable gives the last stable offset: no open Kafka transaction has a record
// before it.
func (p *partitionLog) stable(ctx context.Context) (offset int64, err error) {
	return p.listOffset(ctx, latest, committed)
}

// Isolation levels of a request.
const uncommitted, committed = 0, 1

// newListOffsets makes a request that is answered as soon as any other one. By
// default it allows the broker 30 s for looking into remote storage, where
// neither end of a log is looked for; one lost answer would cost all the time
// that S2 has.
func newListOffsets() *kmsg.ListOffsetsRequest {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	req.TimeoutMillis = 0
	return req
}

func (p *partitionLog) listOffset(ctx context.Context, which int64, isolation int8) (offset int64, err error) {
	err = p.retry(ctx, "list offsets of", func() error {
		req := newListOffsets()
		req.IsolationLevel = isolation
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp, rp.CurrentLeaderEpoch = p.partition, which, -1
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = p.topic
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		resp, err := req.RequestWith(ctx, p.cl.Broker(int(p.leader)))
		if err != nil {
			return err
		}
		if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			return errNoPartition
		}
		answer := &resp.Topics[0].Partitions[0]
		offset = answer.Offset
		return kerr.ErrorForCode(answer.ErrorCode)
	})
	return offset, err
}

// piece is what one fetch found.
type piece struct {
	records []*kgo.Record // without control records
	next    int64         // behind everything that the fetch has passed, records or not
	stable  int64         // last stable offset
}

// fetch reads committed records from offset on, waiting at most wait for some.
func (p *partitionLog) fetch(ctx context.Context, offset int64, wait time.Duration, maxBytes int32) (piece, error) {
	return p.fetchAs(ctx, committed, offset, wait, maxBytes)
}

// fetchAs is fetch by an isolation level: uncommitted reads records of open and of
// aborted Kafka transactions too.
func (p *partitionLog) fetchAs(ctx context.Context, isolation int8, offset int64, wait time.Duration, maxBytes int32) (got piece, err error) {
	level := kgo.ReadCommitted()
	if isolation == uncommitted {
		level = kgo.ReadUncommitted()
	}
	err = p.retry(ctx, "read", func() error {
		req := kmsg.NewPtrFetchRequest()
		req.ReplicaID = -1
		req.MaxWaitMillis = int32(wait / time.Millisecond)
		req.MinBytes = 1
		// One partition is asked for, so its bound is the answer's. An answer that this
		// one cuts short comes from kfake without its list of aborted transactions:
		// what they wrote would be taken for committed. Real brokers send the list.
		req.MaxBytes = math.MaxInt32
		req.IsolationLevel = isolation
		req.SessionID, req.SessionEpoch = 0, -1
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = p.partition, offset, maxBytes
		rp.CurrentLeaderEpoch, rp.LastFetchedEpoch, rp.LogStartOffset = -1, -1, -1
		rt := kmsg.NewFetchRequestTopic()
		rt.Topic, rt.TopicID = p.topic, p.id
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		resp, err := req.RequestWith(ctx, p.cl.Broker(int(p.leader)))
		if err != nil {
			return err
		}
		if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
			return err
		}
		if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			return errNoPartition
		}
		answer := &resp.Topics[0].Partitions[0]
		if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
			return err
		}
		decompressor, _ := p.cl.OptValue(kgo.WithDecompressor).(kgo.Decompressor)
		if decompressor == nil { // the client's own is bounded by MaxDecompressBatchBytes
			return &finalError{errors.New("the client has no decompressor")}
		}
		found, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
			Offset:         offset,
			IsolationLevel: level,
			Topic:          p.topic,
			Partition:      p.partition,
		}, answer, decompressor, nil)
		if found.Err != nil {
			return &finalError{fmt.Errorf("at offset %d: %w", next, found.Err)}
		}
		got = piece{records: found.Records, next: next, stable: answer.LastStableOffset}
		return nil
	})
	return got, err
}

const (
	readWait  = 250 * time.Millisecond // a fetch behind an open transaction; asked again until the context ends
	readPause = 50 * time.Millisecond  // before it is asked again without such a wait
	readBytes = 1 << 20                // all lanes may read at the same time
)

// errOpenTransaction says what a reading has waited for.
var errOpenTransaction = errors.New("another producer's transaction is open")

// readTo calls fn for every committed record in [from, to), and passed after
// each answer of the broker that went on, records in it or not. It returns when
// the log is passed up to to, which must not be beyond the high watermark. An
// open transaction below to is waited for.
func (p *partitionLog) readTo(ctx context.Context, from, to int64, passed func(), fn func(*kgo.Record) error) error {
	stable := int64(math.MaxInt64) // not known yet
	for offset := from; offset < to; {
		got, err := p.fetch(ctx, offset, p.wait, readBytes)
		if err == nil && got.next == offset && p.wait == 0 {
			err = pause(ctx, readPause)
		}
		if err != nil {
			if ctx.Err() != nil && stable <= offset {
				return fmt.Errorf("read %s: %w at offset %d, below the end %d (the broker aborts it after that producer's transaction time-out): %w", p, errOpenTransaction, stable, to, err)
			}
			return err
		}
		if got.next > offset { // an open transaction gives empty answers, and is no progress
			passed()
		}
		for _, r := range got.records {
			if r.Offset >= to {
				break
			}
			if err := fn(r); err != nil {
				return err
			}
		}
		offset, stable = got.next, got.stable
	}
	return nil
}

// last gives the last committed record in [start, end), nil without one. It
// starts near the end and goes back in growing steps.
func (p *partitionLog) last(ctx context.Context, start, end int64) (*kgo.Record, error) {
	for span := int64(64); end > start; span = min(2*span, math.MaxInt64/4) {
		from := max(start, end-span)
		var found *kgo.Record
		err := p.readTo(ctx, from, end, func() {}, func(r *kgo.Record) error {
			found = r
			return nil
		})
		if err != nil || found != nil {
			return found, err
		}
		end = from
	}
	return nil, nil
}
