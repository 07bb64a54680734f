package consume

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/event"
)

// TestSilentBrokersMakeRoom: what a broker's last answer held counts until the
// next one, which never comes where all partitions of that broker are paused. The
// others must not wait for it for ever.
func TestSilentBrokersMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(1<<20, 8<<20, kgo.DefaultDecompressor())
		full := kgo.FetchBatchMetrics{NumRecords: 1, UncompressedBytes: 2 << 20, CompressedBytes: 1 << 10, CompressionType: 4}
		read := func(broker int32) {
			r.OnBrokerRead(kgo.BrokerMetadata{NodeID: broker}, kmsg.Fetch.Int16(), 0, 0, 0, nil)
		}
		goes := func(what string, want bool) {
			t.Helper()
			if _, err := r.Decompress(nil, kgo.CodecNone); errors.Is(err, errNoRoom) == want {
				t.Errorf("%s: %v", what, err)
			}
		}
		goes("nothing is held", true)
		read(1)
		r.OnFetchBatchRead(kgo.BrokerMetadata{NodeID: 1}, "", 0, full)
		goes("an answer is held", false)
		r.forget()
		goes("it is fresh", false)
		<-time.After(silence + time.Millisecond)
		goes("nobody has asked", false)
		r.forget()
		goes("it is handed over, and no next one comes", true)
		r.OnFetchBatchRead(kgo.BrokerMetadata{NodeID: 1}, "", 0, full)
		goes("another answer", false)
		read(1)
		goes("and the next one", true)
		r.serve(func() int64 { return 1<<20 + 1 })
		goes("lanes hold it", false)

		// Requests follow what batches grow to: two thousand to one. A quarter of
		// the bound is more than the least of one answer only without that.
		if all, each := r.sizes(4); all != leastAnswer || each != leastPartition {
			t.Errorf("ask for %d and %d bytes", all, each)
		}
		for range 200 {
			r.OnFetchBatchRead(kgo.BrokerMetadata{NodeID: 1}, "", 0, kgo.FetchBatchMetrics{NumRecords: 1, UncompressedBytes: 1000, CompressedBytes: 1000})
			r.sizes(4)
		}
		if all, each := r.sizes(4); all < 1<<17 || all > 1<<18 || each < 1<<15 || each > 1<<16 {
			t.Errorf("ask for %d and %d bytes", all, each)
		}
	})
}

// TestBatchesWithoutRecordsAreDone: a batch that was decompressed counts until the
// client tells of it, records in it or not, and no longer.
func TestBatchesWithoutRecordsAreDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(1<<20, 8<<20, kgo.DefaultDecompressor())
		decompress := func(n int) {
			t.Helper()
			if _, err := r.Decompress(make([]byte, n), kgo.CodecNone); err != nil {
				t.Fatal(err)
			}
		}
		told := func(records, size int) {
			r.OnFetchBatchRead(kgo.BrokerMetadata{NodeID: 1}, "", 0, kgo.FetchBatchMetrics{NumRecords: records, UncompressedBytes: size, CompressionType: 4})
		}
		held := func(what string, want int64) {
			t.Helper()
			if got := r.held(); got != want {
				t.Errorf("%s: %d bytes are held, want %d", what, got, want)
			}
		}
		decompress(1000)
		decompress(2000) // of another broker
		held("two are being decoded", 3000)
		told(0, 1000)
		held("one had no records", 2000)
		told(0, 300)
		held("one was refused", 2000)
		r.forget()
		held("one is still being decoded", 2000)
		told(1, 2000)
		held("it is decoded", 2000)
		r.OnBrokerRead(kgo.BrokerMetadata{NodeID: 1}, kmsg.Fetch.Int16(), 0, 0, 0, nil)
		held("the next answer", 0)
		decompress(1000) // and damaged: no size is told
		told(0, 0)
		<-time.After(silence + time.Millisecond)
		r.forget()
		held("nothing is told of it", 0)
	})
}

// TestHeadersCount: a batch counts with what its headers take, from the moment when it
// is decompressed until the next answer.
func TestHeadersCount(t *testing.T) {
	const headers = 10_000
	body := []byte{0, 0, 0, 1, 0} // no key, an empty value
	body = binary.AppendVarint(body, headers)
	body = append(body, bytes.Repeat([]byte{0, 1}, headers)...) // an empty name, a null
	batch := append(binary.AppendVarint(nil, int64(len(body))), body...)
	want := int64(len(batch)) + recordRoom + headers*headerRoom

	r := newRoom(want-1, 8<<20, kgo.DefaultDecompressor())
	if _, err := r.Decompress(batch, kgo.CodecNone); err != nil || r.held() != want {
		t.Fatalf("%d bytes are held, want %d (%v)", r.held(), want, err)
	}
	r.OnFetchBatchRead(kgo.BrokerMetadata{NodeID: 1}, "", 0, kgo.FetchBatchMetrics{NumRecords: 1, UncompressedBytes: len(batch), CompressedBytes: 50, CompressionType: 4})
	if r.held() != want || len(r.unclaimed) != 0 {
		t.Errorf("%d bytes are held when it is decoded, want %d; unclaimed: %v", r.held(), want, r.unclaimed)
	}
	if _, err := r.Decompress(batch, kgo.CodecNone); !errors.Is(err, errNoRoom) {
		t.Errorf("the next one: %v", err)
	}
}

// TestGoneBrokersHaveNoPart: a broker that has left does not make requests smaller
// for ever.
func TestGoneBrokersHaveNoPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(8<<20, 8<<20, kgo.DefaultDecompressor())
		read := func(broker int32) {
			r.OnBrokerRead(kgo.BrokerMetadata{NodeID: broker}, kmsg.Fetch.Int16(), 0, 0, 0, nil)
		}
		ask := func(what string, want int32) {
			t.Helper()
			if all, _ := r.sizes(1); all != want {
				t.Errorf("%s: ask for %d bytes, want %d", what, all, want)
			}
		}
		read(1)
		ask("one broker", 1<<20)
		read(2)
		<-time.After(gone / 2)
		read(1)
		ask("the other one is paused", 1<<19)
		<-time.After(gone/2 + time.Millisecond)
		ask("it has left", 1<<20)
	})
}

// TestRefusedBatchesAreAskedForLessAndLess: up to once a second, until something
// else comes, or a lane's order.
func TestRefusedBatchesAreAskedForLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c, err := Open(Config{Brokers: []string{"127.0.0.1:1"}, Job: "j", Topic: "in", Logger: slog.New(slog.NewTextHandler(&out, nil))})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		f, d := c.fetch, delivered{values: map[int32][]byte{}}
		f.sessions[0], f.sessions[1] = 1, 1
		of := func(parts ...kgo.FetchPartition) kgo.Fetches {
			return kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "in", Partitions: parts}}}}
		}
		refused := kgo.FetchPartition{Partition: 0, Err: errNoRoom}
		waits := func(ctx context.Context, what string, want time.Duration, polled kgo.Fetches) {
			t.Helper()
			f.hand(polled, d)
			begun := time.Now()
			f.makeRoom(ctx)
			if got := time.Since(begun); got != want {
				t.Errorf("%s: waits for %s, want %s", what, got, want)
			}
		}
		for _, ms := range []int{20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 1000, 1000, 1000, 1000} { // for longer than a line is held back
			waits(t.Context(), "refused", time.Duration(ms)*time.Millisecond, of(refused))
		}
		if n := strings.Count(out.String(), "waits for memory"); n != 1 {
			t.Errorf("told %d times:\n%s", n, out.String())
		}
		waits(t.Context(), "and another one came", leastRoomPause, of(refused, kgo.FetchPartition{Partition: 1, Records: []*kgo.Record{{}}}))
		waits(t.Context(), "refused again", 2*leastRoomPause, of(refused))
		waits(t.Context(), "nothing was refused", 0, nil)
		waits(t.Context(), "refused after that", leastRoomPause, of(refused))
		ordered, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel) // as order does
		waits(ordered, "a lane's order", time.Millisecond, of(refused))
	})
}

// TestDecoded: what a batch takes is told from its bytes, whatever they are.
func TestDecoded(t *testing.T) {
	var batch []byte
	want := int64(0)
	for i := range 100 {
		body := []byte{0}
		body = binary.AppendVarint(body, int64(i))
		body = binary.AppendVarint(body, int64(i))
		body = binary.AppendVarint(body, -1) // no key
		value := bytes.Repeat([]byte("v"), i%3)
		body = append(binary.AppendVarint(body, int64(len(value))), value...)
		body = binary.AppendVarint(body, int64(i%4))
		for range i % 4 {
			body = append(body, 0, 1) // an empty name, a null
		}
		batch = append(binary.AppendVarint(batch, int64(len(body))), body...)
		want += recordRoom + int64(i%4)*headerRoom
	}
	want += int64(len(batch))
	if got := decoded(batch); got != want {
		t.Errorf("got %d, want %d", got, want)
	}
	for n := range batch { // cut, and damaged
		if got := decoded(batch[:n]); got > want {
			t.Fatalf("%d bytes take %d", n, got)
		}
		damaged := bytes.Clone(batch)
		damaged[n] ^= 0xff
		decoded(damaged)
	}
}

// TestDetach: records that are not compressed leave the answer that they came in,
// with the same contents.
func TestDetach(t *testing.T) {
	answer := []byte("keyvalueheader")
	plain := &kgo.Record{Key: answer[:3], Value: answer[3:8], Headers: []kgo.RecordHeader{{Key: "h", Value: answer[8:]}, {Key: "none"}}}
	empty := &kgo.Record{Value: answer[:0]}
	records := []*kgo.Record{plain, empty}
	detach(records)
	clear(answer)
	if string(plain.Key) != "key" || string(plain.Value) != "value" || string(plain.Headers[0].Value) != "header" || plain.Headers[1].Value != nil {
		t.Errorf("%+v", plain)
	}
	if empty.Key != nil || empty.Value == nil {
		t.Errorf("%#v and %#v", empty.Key, empty.Value)
	}
	_ = append(plain.Key, "x"...)
	if string(plain.Value) != "value" {
		t.Error("records share bytes")
	}
}

// TestShared: several partitions of one answer, whatever else the poll brought.
func TestShared(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers [][]int // records of each partition
		want    bool
	}{
		{"no answer", nil, false},
		{"nothing in it", [][]int{{0, 0}}, false},
		{"one partition", [][]int{{0, 3}}, false},
		{"one of each", [][]int{{1}, {1}}, false},
		{"two partitions", [][]int{{1, 1}}, true},
		{"beside one without records", [][]int{{1, 1}, {0}}, true},
		{"behind one without records", [][]int{{0}, {0}, {2, 0, 1}}, true},
	} {
		var fetches kgo.Fetches
		for _, parts := range c.answers {
			var topic kgo.FetchTopic
			for p, n := range parts {
				topic.Partitions = append(topic.Partitions, kgo.FetchPartition{Partition: int32(p), Records: make([]*kgo.Record, n)})
			}
			fetches = append(fetches, kgo.Fetch{Topics: []kgo.FetchTopic{topic}})
		}
		if got := shared(fetches); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

// TestAnswersWithAbortedRecordsAreLetGo: what a Kafka transaction has aborted comes in
// the same answer, and is kept by no lane; a control record keeps nothing.
func TestAnswersWithAbortedRecordsAreLetGo(t *testing.T) {
	c, err := Open(Config{Brokers: []string{"127.0.0.1:1"}, Job: "j", Topic: "in"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.fetch.sessions[0] = 1
	copied := func(what string, want bool, offsets ...int64) {
		t.Helper()
		answer := []byte("v")
		var records []*kgo.Record
		for _, o := range offsets {
			records = append(records, &kgo.Record{Offset: o, Value: answer})
		}
		d := delivered{values: map[int32][]byte{}}
		c.fetch.hand(kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "in", Partitions: []kgo.FetchPartition{{Records: records}}}}}}, d)
		clear(answer)
		if got := string(d.values[0]) == "v"; got != want {
			t.Errorf("%s: its records were copied: %t", what, got)
		}
	}
	copied("an answer without a gap", false, 3, 4, 5)
	copied("one whose records come behind a gap", true, 6, 8)
	copied("and from then on each", true, 9, 10)

	of := func(records ...*kgo.Record) kgo.Fetches {
		return kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "in", Partitions: []kgo.FetchPartition{{Records: records}}}}}}
	}
	marker := &kgo.Record{Offset: 7, LeaderEpoch: 2, Key: []byte{0, 0}, Value: []byte("aborted"), Attrs: control()}
	if !mixed(of(marker)) || mixed(of(&kgo.Record{Offset: 7})) {
		t.Error("a control record says that there are Kafka transactions, and nothing else does")
	}
	records, _ := convert([]*kgo.Record{marker})
	if r := records[0]; !r.Control || r.Offset != 7 || r.LeaderEpoch != 2 || r.Key != nil || r.Value != nil {
		t.Errorf("a control record becomes %+v", r)
	}
}

// control are the attributes of a control record, which the library alone can make.
func control() kgo.RecordAttrs {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	if err != nil {
		panic(err)
	}
	defer broker.Close()
	cl, err := kgo.NewClient(kgo.SeedBrokers(broker.ListenAddrs()...), kgo.TransactionalID("x"), kgo.DefaultProduceTopic("t"), kgo.ConsumeTopics("t"), kgo.KeepControlRecords())
	if err != nil {
		panic(err)
	}
	defer cl.Close()
	ctx := context.Background()
	err = errors.Join(cl.BeginTransaction(), cl.ProduceSync(ctx, &kgo.Record{}).FirstErr(), cl.EndTransaction(ctx, kgo.TryAbort))
	for err == nil {
		fetches := cl.PollFetches(ctx)
		err = fetches.Err()
		for _, r := range fetches.Records() {
			if r.Attrs.IsControl() {
				return r.Attrs
			}
		}
	}
	panic(err)
}

// delivered notes the values that come.
type delivered struct {
	failures
	values map[int32][]byte
}

func (d delivered) Deliver(partition int32, _ uint64, records []event.Record, _ int, _ int64) {
	d.values[partition] = records[0].Value
}

// TestAnswersOfSeveralPartitionsAreLetGo: what one lane keeps of an answer does not
// keep the other lanes' part; an answer that is one lane's alone is not copied.
func TestAnswersOfSeveralPartitionsAreLetGo(t *testing.T) {
	c, err := Open(Config{Brokers: []string{"127.0.0.1:1"}, Job: "j", Topic: "in"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.fetch.sessions[0], c.fetch.sessions[1] = 1, 2
	for partitions := range 3 {
		answer := bytes.Repeat([]byte("v"), 10)
		var parts []kgo.FetchPartition
		for p := range partitions {
			parts = append(parts, kgo.FetchPartition{Partition: int32(p), Records: []*kgo.Record{{Value: answer[5*p : 5*p+5]}}})
		}
		d := delivered{values: map[int32][]byte{}}
		c.fetch.hand(kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "in", Partitions: parts}}}}, d)
		clear(answer)
		for p, value := range d.values {
			if own := string(value) == "vvvvv"; own != (partitions > 1) {
				t.Errorf("answer of %d partitions: the value of partition %d has bytes of its own: %t", partitions, p, own)
			}
		}
		if len(d.values) != partitions {
			t.Errorf("%d of %d partitions came", len(d.values), partitions)
		}
	}
}
