package consume

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"
	"time"

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
	if got := decoded(batch, 0); got != want {
		t.Errorf("got %d, want %d", got, want)
	}
	if got := decoded(batch, 1<<20); got != int64(len(batch)) {
		t.Errorf("a small batch is looked at: %d", got)
	}
	for n := range batch { // cut, and damaged
		if got := decoded(batch[:n], 0); got > want {
			t.Fatalf("%d bytes take %d", n, got)
		}
		damaged := bytes.Clone(batch)
		damaged[n] ^= 0xff
		decoded(damaged, 0)
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
