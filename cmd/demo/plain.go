package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"sync"
	"time"

	"billing/internal/event"

	"github.com/go-sql-driver/mysql"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The plain loop: what the service is compared with. It is written as well as
// such a loop can be: take a batch, decode and validate it strictly, remove the
// repeats in it, write it to every shard in one local transaction each, and only
// then commit the offset. So nothing is ever lost.
//
// What it lacks is what a loop lacks. Its writes to two databases and its offset
// are three commits, and it may die between any two of them; then the batch is
// read again. And it knows the ids of this batch only. A unique key on the ids
// would refuse the second ledger row, but the totals only add up: somebody would
// have to find out which rows were refused, and why. And it would not see an id
// that is on the other shard.

// plainConfig is all that the process is told.
type plainConfig struct {
	Brokers    []string
	Topic      string
	Group      string
	Instance   string   // of the group: a restarted loop gets its partitions back at once
	Shards     []string // DSNs
	Batch      int      // records, at most
	Window     time.Duration
	Lateness   time.Duration
	Skew       time.Duration
	TypePrefix string
	Currencies []string
}

// runPlainLoop works until ctx ends. Any error ends it: it is started again.
func runPlainLoop(ctx context.Context, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("plain loop: read its configuration: %w", err)
	}
	var cfg plainConfig
	if err := json.Unmarshal(text, &cfg); err != nil {
		return fmt.Errorf("plain loop: read its configuration: %w", err)
	}
	l, err := newPlainLoop(ctx, cfg)
	if err != nil {
		return err
	}
	defer l.close()
	for ctx.Err() == nil {
		if err := l.once(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

type plainLoop struct {
	cfg     plainConfig
	client  *kgo.Client
	shards  []*plainShard
	decoder *event.Decoder
	newest  map[int32]int64 // by partition: the time of the newest event booked, µs since 1970
}

func newPlainLoop(ctx context.Context, cfg plainConfig) (*plainLoop, error) {
	l := &plainLoop{cfg: cfg, newest: map[int32]int64{}, decoder: event.NewDecoder(event.Config{TypePrefix: cfg.TypePrefix, Currencies: cfg.Currencies})}
	_ = mysql.SetLogger(&mysql.NopLogger{}) // errors are returned all the same
	for _, dsn := range cfg.Shards {
		s, err := openPlainShard(dsn)
		if err != nil {
			l.close()
			return nil, err
		}
		l.shards = append(l.shards, s)
		// What is too old is known from the newest event booked, also after a restart.
		if err := s.readNewest(ctx, l.newest); err != nil {
			l.close()
			return nil, err
		}
	}
	var err error
	l.client, err = kgo.NewClient(
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ConsumerGroup(cfg.Group),
		kgo.InstanceID(cfg.Instance),
		kgo.ConsumeTopics(cfg.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), // a batch is finished before its partition goes to another member
		kgo.SessionTimeout(10*time.Second),
	)
	if err != nil {
		l.close()
		return nil, fmt.Errorf("plain loop: open Kafka: %w", err)
	}
	return l, nil
}

func (l *plainLoop) close() {
	if l.client != nil {
		l.client.CloseAllowingRebalance()
	}
	for _, s := range l.shards {
		_ = s.db.Close() // its transactions have ended
	}
}

// once is the loop's body.
func (l *plainLoop) once(ctx context.Context) error {
	l.client.AllowRebalance()
	fetches := l.client.PollRecords(ctx, l.cfg.Batch)
	if err := fetches.Err(); err != nil {
		return fmt.Errorf("plain loop: fetch: %w", err)
	}
	records := fetches.Records()
	if len(records) == 0 {
		return nil
	}
	if err := l.write(ctx, l.sort(records, time.Now())); err != nil {
		return err
	}
	if err := l.client.CommitRecords(ctx, records...); err != nil {
		return fmt.Errorf("plain loop: commit the offset: %w", err)
	}
	return nil
}

// sort gives each record its outcome and its shard. What it makes is one part of
// the batch for each shard.
func (l *plainLoop) sort(records []*kgo.Record, now time.Time) []*plainBatch {
	parts := make([]*plainBatch, len(l.shards))
	for i := range parts {
		parts[i] = newPlainBatch(len(records), l.cfg.Window)
	}
	// Ids are told apart within a partition, as the service does: an event that is
	// sent again goes to the same one.
	type id struct {
		partition int32
		key       [16]byte
	}
	booked := make(map[id][8]byte, len(records)) // the contents of what this batch books
	latest := now.Add(l.cfg.Skew).UnixMicro()
	for _, r := range records {
		raw := event.Record{Offset: r.Offset, Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			raw.Headers = append(raw.Headers, event.Header(h))
		}
		keep := parts[(int(r.Partition)+int(r.Offset))%len(parts)]
		var e event.Event
		if rejection := l.decoder.Decode(&raw, &e); rejection != nil {
			keep.reject(r, "rejected", rejection.Reason.String(), rejection.Detail)
			continue
		}
		if e.Time > latest {
			keep.reject(r, "rejected", event.ReasonInFuture.String(), "")
			continue
		}
		if newest, any := l.newest[r.Partition]; any && e.Time < newest-l.cfg.Lateness.Microseconds() {
			keep.reject(r, "rejected", event.ReasonTooOld.String(), "")
			continue
		}
		name := id{r.Partition, e.Key}
		if content, again := booked[name]; again {
			if content != e.Content {
				keep.reject(r, "conflict", "conflict", "")
			}
			continue
		}
		booked[name] = e.Content
		parts[shardOf(e.Account, len(parts))].book(r, &e)
		l.newest[r.Partition] = max(l.newest[r.Partition], e.Time)
	}
	return parts
}

func shardOf(account []byte, shards int) int {
	h := fnv.New32a()
	h.Write(account)
	return int(h.Sum32() % uint32(shards))
}

// write writes the parts, each to its shard in one local transaction, side by side.
func (l *plainLoop) write(ctx context.Context, parts []*plainBatch) error {
	errs := make([]error, len(parts))
	var all sync.WaitGroup
	for i, part := range parts {
		all.Go(func() { errs[i] = l.shards[i].write(ctx, part) })
	}
	all.Wait()
	return errors.Join(errs...)
}
