package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"billing/test/servers"
)

// load is what a benchmark has billed: events of 374 bytes, as a metering
// service sends them.
type load struct {
	Messages   int
	Partitions int32
	Accounts   int     // each has SKUs of its own share
	SKUs       int     // of an account
	Hours      int     // over which the events' times are spread, in order
	Duplicates float64 // share of the messages that repeat an earlier one
	Seed       uint64
}

// standardLoad is the one that most benchmarks use. Its totals have
// Accounts*SKUs*Hours rows at the most.
func standardLoad(messages int, partitions int32) load {
	return load{Messages: messages, Partitions: partitions, Accounts: 2_000, SKUs: 5, Hours: 2, Duplicates: 0.02, Seed: 1}
}

// expected is what must come out of a load.
type expected struct {
	Records, Applied, Duplicates int64
	Micros                       int64 // sum of the amounts, in millionths
}

// eventSize is the length of each message's value.
const eventSize = 374

// each calls fn for each message, in the order in which they are written. value
// is fn's only until it returns.
func (l load) each(now time.Time, fn func(partition int32, value []byte)) (e expected) {
	rng := rand.New(rand.NewPCG(l.Seed, 0x62656e6368))
	first := now.UTC().Add(-time.Duration(l.Hours) * time.Hour).Truncate(time.Second)
	step := time.Duration(l.Hours) * time.Hour / time.Duration(max(l.Messages, 1))
	type past struct {
		n, account, sku int
		micros          int64
	}
	var seen []past // a sample of those that may be repeated
	var buf []byte
	for i := range l.Messages {
		p := past{n: i, account: rng.IntN(l.Accounts), sku: rng.IntN(l.SKUs), micros: 1 + rng.Int64N(99_999_999)}
		if len(seen) > 0 && rng.Float64() < l.Duplicates {
			p = seen[rng.IntN(len(seen))]
			e.Duplicates++
		} else {
			e.Applied++
			e.Micros += p.micros
			if len(seen) < 100_000 {
				seen = append(seen, p)
			} else {
				seen[rng.IntN(len(seen))] = p
			}
		}
		e.Records++
		buf = appendEvent(buf[:0], l.Seed, p.n, p.account, p.sku, p.micros, first.Add(time.Duration(p.n)*step))
		fn(int32(p.account)%l.Partitions, buf)
	}
	return e
}

// appendEvent writes one charge. The note takes what is missing to eventSize.
func appendEvent(b []byte, seed uint64, n, account, sku int, micros int64, at time.Time) []byte {
	begin := len(b)
	var id [16]byte
	binary.BigEndian.PutUint64(id[:8], seed)
	binary.BigEndian.PutUint64(id[8:], uint64(n)*0x9e3779b97f4a7c15) // one for each n
	b = fmt.Appendf(b, `{"specversion":"1.0","id":"%x-%x-%x-%x-%x","source":"/svc/metering/eu-1","type":"com.example.billing.charge.v1","subject":"acct-%07d","time":"`,
		id[:4], id[4:6], id[6:8], id[8:10], id[10:], account)
	b = at.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	b = fmt.Appendf(b, `","datacontenttype":"application/json","data":{"amount":"%d.%06d","currency":"USD","sku":"vm.standard-%d","quantity":"1.5","unit":"hour","labels":{"region":"eu-1"},"reason":"`,
		micros/1_000_000, micros%1_000_000, sku)
	const end = `"}}`
	for len(b)-begin < eventSize-len(end) {
		b = append(b, 'u')
	}
	return append(b, end...)
}

var eventHeaders = []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/cloudevents+json; charset=UTF-8")}}

// produce writes the load to a topic of the broker, and returns what must come
// of it.
func (l load) produce(t testing.TB, kafka *servers.KafkaServer, topic string) expected {
	t.Helper()
	cl := kafka.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(topic),
		kgo.ProducerBatchMaxBytes(1<<20), kgo.ProducerLinger(20*time.Millisecond), kgo.MaxBufferedRecords(50_000),
		kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	failed := make(chan error, 1)
	e := l.each(time.Now(), func(partition int32, value []byte) {
		cl.Produce(ctx, &kgo.Record{Partition: partition, Value: append([]byte(nil), value...), Headers: eventHeaders}, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	})
	if err := cl.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-failed:
		t.Fatal("produce: ", err)
	default:
	}
	return e
}

// TestLoadIsWhatItSays: the size of the events, and that all of them are valid,
// which the benchmarks themselves would not notice at once.
func TestLoadIsWhatItSays(t *testing.T) {
	n := 0
	l := standardLoad(1000, 3)
	ids := map[string]bool{}
	e := l.each(time.Now(), func(partition int32, value []byte) {
		n++
		if len(value) != eventSize || partition < 0 || partition >= l.Partitions {
			t.Fatalf("partition %d, %d bytes: %s", partition, len(value), value)
		}
		ids[string(value[:80])] = true
	})
	if e.Records != int64(n) || e.Applied+e.Duplicates != e.Records || int64(len(ids)) != e.Applied || e.Duplicates == 0 {
		t.Errorf("%d messages, %d ids, expected %+v", n, len(ids), e)
	}
}
