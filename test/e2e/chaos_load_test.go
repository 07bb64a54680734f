package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// perUnit is how many of the smallest amounts, 12 decimals, are one unit of a
// currency. Amounts of the load are whole numbers of them.
const perUnit = 1_000_000_000_000

// charged is an event that may be booked, once.
type charged struct {
	id                string
	account, currency string
	amount            int64 // signed; below zero it is a credit
	time              time.Time
}

func (c *charged) kind() string {
	if c.amount < 0 {
		return "credit"
	}
	return "charge"
}

func (c *charged) String() string {
	return fmt.Sprintf("%s of %s %s to %s at %s, id %s", c.kind(), amountText(c.amount), c.currency, c.account, c.time.Format(time.RFC3339), c.id)
}

// amountText is an amount as it stands in a DECIMAL with 12 decimals.
func amountText(amount int64) string {
	sign := ""
	if amount < 0 {
		sign, amount = "-", -amount
	}
	return fmt.Sprintf("%s%d.%012d", sign, amount/perUnit, amount%perUnit)
}

func (c *charged) message() []byte {
	return fmt.Appendf(nil, `{"specversion":"1.0","id":"%s","source":"/chaos","type":"com.example.billing.%s.v1","subject":"%s","time":"%s","data":{"amount":"%s","currency":"%s"}}`,
		c.id, c.kind(), c.account, c.time.Format(time.RFC3339Nano), amountText(c.amount), c.currency)
}

// said reads what the load itself has written: an id and an amount, both empty for
// what is no message of it.
func said(message []byte) (id, amount string) {
	between := func(before string) string {
		_, rest, ok := bytes.Cut(message, []byte(before))
		value, _, closed := bytes.Cut(rest, []byte(`"`))
		if !ok || !closed {
			return ""
		}
		return string(value)
	}
	return between(`"id":"`), between(`"amount":"`)
}

// chaosLoad sends records while the faults happen, and knows what has to become of
// them: a producer sends an id to one partition, in the order in which this
// notes it. What an event says follows from its number, so nothing of it is kept.
type chaosLoad struct {
	*world
	seed     uint64
	rand     *rand.Rand
	began    time.Time
	target   func() int64 // how many records may be sent by now
	source   *kgo.Client  // aborts its Kafka transactions
	sourceID string
	aborted  int64

	sentAll atomic.Int64

	mu     sync.Mutex
	noted  []int64            // of each partition, how many events; noted before they are sent
	marked []int64            // of each partition, how many there were at the last fault
	counts []map[string]int64 // of each partition, by outcome
	acked  []int64            // records of each partition that Kafka has
	sums   sums               // what must be booked
}

// newLoad is a load of some 350 records a second; target changes that.
func newLoad(w *world, seed uint64) *chaosLoad {
	l := &chaosLoad{
		world: w, seed: seed, rand: rand.New(rand.NewPCG(seed, 1)), began: time.Now(), sourceID: "source-" + w.job,
		noted: make([]int64, w.partitions), marked: make([]int64, w.partitions), acked: make([]int64, w.partitions), sums: sums{},
	}
	l.target = func() int64 { return int64(350 * time.Since(l.began).Seconds()) }
	for range w.partitions {
		l.counts = append(l.counts, map[string]int64{})
	}
	return l
}

// numbered is a partition's event of a number. An account has one currency.
func (l *chaosLoad) numbered(partition int32, number int64) *charged {
	h := fnv.New64a()
	var b [20]byte
	binary.LittleEndian.PutUint64(b[:], l.seed)
	binary.LittleEndian.PutUint32(b[8:], uint32(partition))
	binary.LittleEndian.PutUint64(b[12:], uint64(number))
	_, _ = h.Write(b[:])
	r := rand.New(rand.NewPCG(h.Sum64(), uint64(number)))
	account := r.IntN(24)
	c := &charged{
		id: fmt.Sprintf("%d-%d-%08x", partition, number, uint32(h.Sum64())), account: fmt.Sprint("acct-", account), currency: []string{"USD", "EUR", "JPY"}[account%3],
		amount: r.Int64N(100*perUnit/100) * 100, time: l.began.Add(-time.Duration(r.IntN(7200)) * time.Second).UTC().Truncate(time.Microsecond),
	}
	if r.IntN(5) == 0 && c.amount > 0 {
		c.amount = -c.amount
	}
	return c
}

// other is the same event with another amount.
func (c *charged) other() *charged {
	o := *c
	if o.amount < 0 {
		o.amount--
	} else {
		o.amount++
	}
	return &o
}

// number is the place of an event in its partition, by its id; false for an id that
// this has not noted.
func (l *chaosLoad) number(id string) (partition int32, number int64, ok bool) {
	var check uint32
	if n, err := fmt.Sscanf(id, "%d-%d-%08x", &partition, &number, &check); n != 3 || err != nil || partition < 0 || partition >= l.partitions || number < 0 {
		return 0, 0, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return partition, number, number < l.noted[partition]
}

// event looks an event up that may be booked.
func (l *chaosLoad) event(id string) (c *charged, partition int32, number int64) {
	partition, number, ok := l.number(id)
	if !ok {
		return nil, 0, 0
	}
	if c = l.numbered(partition, number); c.id != id {
		return nil, 0, 0
	}
	return c, partition, number
}

// sentSoFar is how many records of each lane are in Kafka.
func (l *chaosLoad) sentSoFar() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.acked)
}

// mark notes that a fault begins: what was sent just before it comes again later.
func (l *chaosLoad) mark() {
	l.mu.Lock()
	defer l.mu.Unlock()
	copy(l.marked, l.noted)
}

// deliver sends records that must arrive.
func (l *chaosLoad) deliver(records ...*kgo.Record) error {
	if len(records) == 0 {
		return nil
	}
	if err := l.tryProduce(records...); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range records {
		l.acked[r.Partition]++
	}
	l.sentAll.Add(int64(len(records)))
	return nil
}

// What one round of the load sends at the most: a load that was held up, by a broker
// that was down, catches up in rounds like these.
const roundOf = 4000

// run sends until ctx ends. All that it noted is then in Kafka, or the test has
// failed.
func (l *chaosLoad) run(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	defer func() { l.source.Close() }() // the last one
	for round := 0; ; {
		select {
		case <-ctx.Done():
			l.tell()
			return
		case <-tick.C:
		}
		// A tenth of what is missing: a target that moves in leaps becomes a rate.
		missing := l.target() - l.sentAll.Load()
		n := min(missing, roundOf, 20+missing/10)
		if n <= 0 {
			continue
		}
		var records []*kgo.Record
		for n > 0 {
			size := min(n, 20+l.rand.Int64N(60))
			records = append(records, l.batch(l.rand.Int32N(l.partitions), int(size))...)
			n -= size
		}
		err := l.deliver(records...)
		if round++; err == nil && round%10 == 5 {
			err = l.abort()
		}
		if err != nil {
			l.t.Errorf("the load: %v", err)
			return
		}
	}
}

// tell gives the world what it compares with.
func (l *chaosLoad) tell() {
	for t, units := range l.sums {
		if l.oracle[t.account] == nil {
			l.oracle[t.account] = new(big.Rat)
		}
		l.oracle[t.account].Add(l.oracle[t.account], new(big.Rat).SetFrac(units, big.NewInt(perUnit)))
	}
}

// batch is so many records for one partition, and notes what has to become of them.
func (l *chaosLoad) batch(partition int32, size int) (records []*kgo.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	add := func(value []byte) {
		records = append(records, &kgo.Record{Partition: partition, Value: value, Headers: structured})
	}
	for range size {
		n := l.rand.IntN(100)
		if l.noted[partition] == 0 {
			n = 0
		}
		switch {
		case n < 70:
			add(l.note(partition).message())
		case n < 86:
			l.counts[partition]["duplicate"]++
			add(l.known(partition).message())
		case n < 93:
			l.counts[partition]["conflict"]++
			add(l.known(partition).other().message())
		default:
			l.counts[partition]["rejected"]++
			add(l.bad(partition))
		}
	}
	return records
}

// known is an event that was sent before: of late, just before the last fault, or at
// any time.
func (l *chaosLoad) known(partition int32) *charged {
	noted, marked := l.noted[partition], l.marked[partition]
	back := func(from, most int64) int64 { return from - 1 - l.rand.Int64N(min(from, most)) }
	switch n := l.rand.IntN(3); {
	case n == 0:
		return l.numbered(partition, back(noted, 50))
	case n == 1 && marked > 0:
		return l.numbered(partition, back(marked, 200))
	default:
		return l.numbered(partition, back(noted, noted))
	}
}

// bad is no event.
func (l *chaosLoad) bad(partition int32) []byte {
	c := l.numbered(partition, -1-l.rand.Int64N(1<<40))
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
// them. Half of their ids come again in earnest, with another amount.
func (l *chaosLoad) abort() error {
	partition := l.rand.Int32N(l.partitions)
	var aborted, again []*kgo.Record
	l.mu.Lock()
	for range 10 {
		l.aborted++
		c := l.numbered(partition, -l.aborted)
		if l.rand.IntN(2) == 0 {
			earnest := l.note(partition)
			again = append(again, &kgo.Record{Partition: partition, Value: earnest.message(), Headers: structured})
			c = earnest.other()
		}
		aborted = append(aborted, &kgo.Record{Topic: l.topic, Partition: partition, Value: c.message(), Headers: structured})
	}
	l.mu.Unlock()
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

// note takes a partition's next event, which will be booked.
func (l *chaosLoad) note(partition int32) *charged {
	c := l.numbered(partition, l.noted[partition])
	l.noted[partition]++
	l.counts[partition]["applied"]++
	l.sums.add(total{c.account, c.currency, c.kind()}, c.amount)
	return c
}

// newSource begins a producer whose first request aborts what the one before has
// left open.
func (l *chaosLoad) newSource() {
	if l.source != nil {
		l.source.Close()
	}
	l.source = l.kafka.Client(l.t, kgo.TransactionalID(l.sourceID), kgo.TransactionTimeout(time.Minute), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for {
		_, _, err := l.source.ProducerID(ctx)
		if err == nil {
			return
		}
		select {
		case <-time.After(200 * time.Millisecond): // the client gives up sooner than a broker comes back
		case <-ctx.Done():
			l.t.Errorf("the source: %v", err)
			return
		}
	}
}

// total names the sum of one account's bookings of a kind.
type total struct{ account, currency, kind string }

// sums adds amounts.
type sums map[total]*big.Int

func (s sums) add(t total, amount int64) {
	if s[t] == nil {
		s[t] = new(big.Int)
	}
	s[t].Add(s[t], big.NewInt(amount))
}
