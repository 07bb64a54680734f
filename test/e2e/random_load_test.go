package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// charged is an event that may be booked, once.
type charged struct {
	id, account, currency string
	amount                string // signed; below zero it is a credit
	time                  time.Time
	partition             int32
}

func (c *charged) kind() string {
	if c.amount[0] == '-' {
		return "credit"
	}
	return "charge"
}

func (c *charged) message() []byte {
	return encode(map[string]any{
		"specversion": "1.0", "id": c.id, "source": "/random", "type": "com.example.billing." + c.kind() + ".v1", "subject": c.account,
		"time": c.time.Format(time.RFC3339Nano), "data": map[string]any{"amount": c.amount, "currency": c.currency},
	})
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// randomLoad sends records while the faults happen, and knows what has to become of
// them: a producer sends an id to one partition, in the order in which this
// notes it.
type randomLoad struct {
	*world
	rand     *rand.Rand
	source   *kgo.Client // aborts its Kafka transactions
	sourceID string

	mu     sync.Mutex
	events map[string]*charged // noted before they are sent
	ids    [][]string          // of each partition
	counts []map[string]int64  // of each partition, by outcome
	acked  []int64             // records of each partition that Kafka has
}

func newLoad(w *world, seed uint64) *randomLoad {
	l := &randomLoad{world: w, rand: rand.New(rand.NewPCG(seed, 1)), events: map[string]*charged{}, ids: make([][]string, w.partitions), acked: make([]int64, w.partitions), sourceID: "source-" + w.job}
	for range w.partitions {
		l.counts = append(l.counts, map[string]int64{})
	}
	return l
}

// event looks an event up that may be booked.
func (l *randomLoad) event(id string) *charged {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events[id]
}

// sentSoFar is how many records of each lane are in Kafka.
func (l *randomLoad) sentSoFar() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.acked)
}

// deliver sends records that must arrive.
func (l *randomLoad) deliver(records ...*kgo.Record) error {
	if err := l.tryProduce(records...); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range records {
		l.acked[r.Partition]++
	}
	return nil
}

// run sends until ctx ends. All that it noted is then in Kafka, or the test has
// failed.
func (l *randomLoad) run(ctx context.Context) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	defer func() { l.source.Close() }() // the last one
	for round := 0; ; round++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var records []*kgo.Record
		for range 1 + l.rand.IntN(2) {
			records = append(records, l.batch(l.rand.Int32N(l.partitions))...)
		}
		err := l.deliver(records...)
		if err == nil && round%10 == 5 {
			err = l.abort()
		}
		if err != nil {
			l.t.Errorf("the load: %v", err)
			return
		}
	}
}

// batch is some records for one partition, and notes what has to become of them.
func (l *randomLoad) batch(partition int32) (records []*kgo.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	add := func(value []byte) {
		records = append(records, &kgo.Record{Partition: partition, Value: value, Headers: structured})
	}
	known := func() *charged {
		ids := l.ids[partition]
		return l.events[ids[l.rand.IntN(len(ids))]]
	}
	for range 20 + l.rand.IntN(60) {
		n := l.rand.IntN(100)
		if len(l.ids[partition]) == 0 {
			n = 0
		}
		switch {
		case n < 70:
			c := l.fresh(partition)
			l.note(c)
			add(c.message())
		case n < 86:
			l.counts[partition]["duplicate"]++
			add(known().message())
		case n < 93:
			l.counts[partition]["conflict"]++
			other := *known()
			other.amount += "1"
			add(other.message())
		default:
			l.counts[partition]["rejected"]++
			add(l.bad(partition))
		}
	}
	return records
}

// fresh is an event with a new id. An account has one currency.
func (l *randomLoad) fresh(partition int32) *charged {
	account := l.rand.IntN(16)
	c := &charged{
		id: uuid.NewString(), account: fmt.Sprint("acct-", account), currency: []string{"USD", "EUR", "JPY"}[account%3],
		amount: fmt.Sprintf("%d.%010d", l.rand.IntN(100), l.rand.IntN(1e10)), partition: partition,
		time: time.Now().Add(-time.Duration(l.rand.IntN(7200)) * time.Second).UTC().Truncate(time.Microsecond),
	}
	if l.rand.IntN(5) == 0 {
		c.amount = "-" + c.amount
	}
	return c
}

// bad is no event.
func (l *randomLoad) bad(partition int32) []byte {
	c := l.fresh(partition)
	switch l.rand.IntN(4) {
	case 0:
		return nil
	case 1:
		return c.message()[1:]
	case 2:
		c.currency = "XYZ"
	case 3:
		c.time = c.time.Add(100 * time.Hour)
	}
	return c.message()
}

// abort sends records in a Kafka transaction that is aborted: nothing becomes of
// them. Some of their ids come again in earnest, with another amount.
func (l *randomLoad) abort() error {
	partition := l.rand.Int32N(l.partitions)
	var aborted, again []*kgo.Record
	for range 10 {
		c := l.fresh(partition)
		aborted = append(aborted, &kgo.Record{Topic: l.topic, Partition: partition, Value: c.message(), Headers: structured})
		if l.rand.IntN(2) == 0 {
			continue
		}
		c.amount += "7"
		l.mu.Lock()
		l.note(c)
		l.mu.Unlock()
		again = append(again, &kgo.Record{Partition: partition, Value: c.message(), Headers: structured})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	err := l.source.BeginTransaction()
	if err == nil {
		err = l.source.ProduceSync(ctx, aborted...).FirstErr()
	}
	if err == nil {
		err = l.source.EndTransaction(ctx, kgo.TryAbort)
	}
	if err != nil {
		l.newSource() // the broker was killed
	}
	return l.deliver(again...)
}

// note says that c will be booked.
func (l *randomLoad) note(c *charged) {
	l.events[c.id] = c
	l.ids[c.partition] = append(l.ids[c.partition], c.id)
	l.counts[c.partition]["applied"]++
	l.expect(c.account, c.amount)
}

// newSource begins a producer whose first request aborts what the one before has
// left open.
func (l *randomLoad) newSource() {
	if l.source != nil {
		l.source.Close()
	}
	l.source = l.kafka.Client(l.t, kgo.TransactionalID(l.sourceID), kgo.TransactionTimeout(time.Minute), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if _, _, err := l.source.ProducerID(ctx); err != nil {
		l.t.Errorf("the source: %v", err)
	}
}

// total is the sum of one account's bookings of a kind.
type total struct{ account, currency, kind string }

// sums adds amounts.
type sums map[total]*big.Rat

func (s sums) add(t total, amount string) error {
	r, ok := new(big.Rat).SetString(amount)
	if !ok {
		return fmt.Errorf("amount %q", amount)
	}
	if s[t] == nil {
		s[t] = new(big.Rat)
	}
	s[t].Add(s[t], r)
	return nil
}
