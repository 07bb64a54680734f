package consume

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// room bounds what fetching holds in memory, which the sizes of requests alone
// don't: what comes back is compressed, sometimes a thousand to one, and an
// answer holds many batches of many partitions.
//
// Two things are counted: what the fetch client has read and not handed over,
// broker by broker, and what was handed over and waits for its lane. When both
// together are more than the bound, the next batch is not decompressed: the
// client stops there, and asks for that batch again later. One that is alone in
// memory always goes through. So what is held is at most the bound and one
// batch, which is bounded by itself (Config.MaxBatchBytes).
//
// Requests follow what batches were seen to grow to, so that little is asked for
// that must be refused.
type room struct {
	most  int64 // bytes, see Config.FetchBytes
	batch int   // see Config.MaxBatchBytes
	inner kgo.Decompressor

	one sync.Mutex // one batch is decompressed at a time: else each broker's answer could bring one too many

	mu        sync.Mutex
	waiting   func() int64      // see Handler.Waiting
	answers   map[int32]*answer // the last one of each broker
	unclaimed []claim           // of batches that were decompressed and are being decoded, at most one of each broker

	growth     float64 // what a byte of a batch takes in memory
	grown, raw int64   // of the batches read since growth was last looked at
}

// answer is what a broker's last answer holds, as far as it is decoded. It counts
// until the next one, for the client does not say when it is handed over: the
// broker is asked again only when it was.
type answer struct {
	bytes int64
	last  time.Time // when a batch of it was decoded
}

// claim is a batch that was decompressed, until the client tells that it is decoded.
type claim struct {
	raw   int   // its bytes, by which the client's word on it is known
	bytes int64 // what it takes when it is decoded
	since time.Time
}

// errNoRoom is why a batch was not decompressed.
var errNoRoom = errors.New("no room in memory for a batch: it is fetched again")

// What decoding adds to the bytes of a batch.
const (
	recordRoom = int64(unsafe.Sizeof(kgo.Record{}) + unsafe.Sizeof((*kgo.Record)(nil)))
	headerRoom = 2 * int64(unsafe.Sizeof(kgo.RecordHeader{})) // the client's, and its copy for the lane
)

func newRoom(most int64, batch int, inner kgo.Decompressor) *room {
	return &room{most: most, batch: batch, inner: inner, answers: map[int32]*answer{}, growth: 2, waiting: func() int64 { return 0 }}
}

// serve sets who is asked for what waits.
func (r *room) serve(waiting func() int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = waiting
}

// Decompress implements kgo.Decompressor.
func (r *room) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	r.one.Lock()
	defer r.one.Unlock()
	if r.held() > r.most {
		return nil, errNoRoom
	}
	out, err := r.inner.Decompress(src, codec)
	if err != nil {
		return nil, err //nolint:wrapcheck // the client asks what it is
	}
	takes := decoded(out)
	if takes > int64(r.batch) {
		return nil, kgo.ErrMaxDecompress
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unclaimed = append(r.unclaimed, claim{len(out), takes, time.Now()})
	return out, nil
}

func (r *room) held() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.waiting()
	for _, c := range r.unclaimed {
		n += c.bytes
	}
	for _, a := range r.answers {
		n += a.bytes
	}
	return n
}

// OnBrokerRead implements kgo.HookBrokerRead: a new answer has come, so the last
// one of this broker was taken, or dropped.
func (r *room) OnBrokerRead(meta kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if kmsg.Key(key) != kmsg.Fetch {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers[meta.NodeID] = &answer{last: time.Now()}
}

// OnFetchBatchRead implements kgo.HookFetchBatchRead: a batch was decoded, or
// could not be.
func (r *room) OnFetchBatchRead(meta kgo.BrokerMetadata, _ string, _ int32, m kgo.FetchBatchMetrics) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Of a batch that is not compressed nobody has looked at the headers.
	n := int64(m.UncompressedBytes) + int64(m.NumRecords)*recordRoom
	// One without records was decompressed too. Of one that was not, for which there
	// was no room, the client tells the compressed size.
	if i := slices.IndexFunc(r.unclaimed, func(c claim) bool { return c.raw == m.UncompressedBytes }); m.CompressionType != 0 && i >= 0 {
		n = r.unclaimed[i].bytes
		r.unclaimed = slices.Delete(r.unclaimed, i, i+1)
	}
	if m.NumRecords == 0 {
		return
	}
	a := r.answers[meta.NodeID]
	if a == nil {
		a = &answer{}
		r.answers[meta.NodeID] = a
	}
	a.bytes, a.last = a.bytes+n, time.Now()
	r.grown, r.raw = r.grown+n, r.raw+int64(m.CompressedBytes)
}

// Bounds of one request. A batch that is larger than asked for still comes, the
// first of an answer.
const (
	leastAnswer, mostAnswer       = 64 << 10, 16 << 20
	leastPartition, mostPartition = 16 << 10, 2 << 20
)

// sizes are what to ask for: of one broker, and of one partition. An eighth of
// memory.max_bytes, which is a quarter of the bound, is meant for the answers of
// all brokers, and so much again for what one more answer brings the lanes.
func (r *room) sizes(partitions int) (all, each int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.raw > 0 {
		// At once up, slowly down.
		now := float64(r.grown) / float64(r.raw)
		r.growth = max(now, (7*r.growth+now)/8)
		r.grown, r.raw = 0, 0
	}
	maps.DeleteFunc(r.answers, func(_ int32, a *answer) bool { return time.Since(a.last) > gone })
	target := float64(r.most) / 4 / r.growth
	within := func(of float64, least, most int32) int32 { return int32(min(max(of, float64(least)), float64(most))) }
	all = within(target/float64(max(1, len(r.answers))), leastAnswer, mostAnswer)
	return all, min(all, within(target/float64(max(1, partitions)), leastPartition, mostPartition))
}

// silence is after how long an answer of which nothing is buffered any more does
// not count: its broker may have no partition that is asked for, and then no next
// answer comes.
const silence = time.Second

// gone is after how long a silent broker has no part in sizes any more. It is long,
// for those whose partitions are paused are silent too, and all are asked at once
// when their lanes go on.
const gone = time.Minute

// forget drops what does not count any more. It is called when a batch was
// refused, and nothing is buffered in the client.
func (r *room) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	// What no size was told of: the client does not for a batch that is damaged.
	r.unclaimed = slices.DeleteFunc(r.unclaimed, func(c claim) bool { return time.Since(c.since) > silence })
	for _, a := range r.answers {
		if time.Since(a.last) > silence {
			a.bytes = 0
		}
	}
}

// leastRecord and leastHeader are the fewest bytes that a record takes behind its
// length, and one of its headers.
const leastRecord, leastHeader = 6, 2

// decoded is what a decompressed batch takes in memory once it is decoded: a flood
// of empty records, or of empty headers, takes forty times the bytes.
func decoded(batch []byte) int64 {
	n := int64(len(batch))
	for rest := batch; len(rest) > 0; {
		length, used := binary.Varint(rest)
		if used <= 0 || length < leastRecord || length > int64(len(rest)-used) {
			break // the client says so itself
		}
		n += recordRoom + headers(rest[used:used+int(length)])*headerRoom
		rest = rest[used+int(length):]
	}
	return n
}

// headers is how many a record says that it has.
func headers(record []byte) int64 {
	if len(record) == 0 {
		return 0
	}
	rest := record[1:] // attributes
	for i := range 4 { // time and offset, as differences; key and value
		n, used := binary.Varint(rest)
		if used <= 0 {
			return 0
		}
		if rest = rest[used:]; i < 2 || n <= 0 {
			continue
		}
		if n > int64(len(rest)) {
			return 0
		}
		rest = rest[n:]
	}
	n, used := binary.Varint(rest)
	if used <= 0 {
		return 0
	}
	return min(max(n, 0), int64(len(rest))/leastHeader)
}
