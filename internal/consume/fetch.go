package consume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/internal/checkpoint"
	"billing/internal/event"
)

// fetcher consumes the partitions that lanes have started. All that changes
// what is consumed happens between two polls, in the polling goroutine: so
// each polled record belongs to the session that its partition has then.
type fetcher struct {
	client *Client
	cl     *kgo.Client
	topic  string
	room   *room

	mu       sync.Mutex
	orders   []order // not yet carried out, in order
	wakePoll context.CancelFunc

	// The polling goroutine's.
	sessions  map[int32]uint64 // partitions that are consumed
	mixed     bool             // the topic was seen to have Kafka transactions, see mixed
	refused   bool             // the last poll has told of a batch without room in memory
	roomPause time.Duration    // the last one of those that refusals have brought; 0 when something has come since
}

// order is a call of Start, Stop, Pause or Resume.
type order struct {
	do        func(f *fetcher, o order, h Handler)
	partition int32
	session   uint64
	from      kgo.Offset
}

func newFetcher(c *Client) (*fetcher, error) {
	inner, _ := c.reads.OptValue(kgo.WithDecompressor).(kgo.Decompressor)
	if inner == nil { // the client's own is bounded by MaxDecompressBatchBytes
		return nil, errors.New("the client has no decompressor")
	}
	r := newRoom(c.cfg.FetchBytes, c.cfg.MaxBatchBytes, inner)
	all, each := r.sizes(1)
	cl, err := kgo.NewClient(c.options(
		// Where a lane begins is always said, and nothing else ever sets a
		// position: out of range is an error.
		kgo.ConsumeStartOffset(kgo.NoResetOffset()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // they move a lane's position
		// A lane that starts or resumes waits for the fetch that is on its way
		// without it; the default would be 5 s.
		kgo.FetchMaxWait(250*time.Millisecond),
		kgo.FetchMaxBytes(all), // and as run says from then on
		kgo.FetchMaxPartitionBytes(each),
		kgo.WithDecompressor(r),
		kgo.WithHooks(r),
	)...)
	if err != nil {
		return nil, err
	}
	return &fetcher{client: c, cl: cl, topic: c.cfg.Topic, room: r, sessions: map[int32]uint64{}}, nil
}

// Start consumes the partition from offset on, for the session of this number
// (S6). leaderEpoch is that of what is before offset, control records too, and
// -1 where that is not known: with it the broker tells a log that was cut and
// written anew. Like Stop, Pause and Resume it returns at once and is carried
// out, in the order of the calls, between two deliveries.
func (c *Client) Start(partition int32, session uint64, offset int64, leaderEpoch int32) {
	c.fetch.order(order{do: (*fetcher).start, partition: partition, session: session,
		from: kgo.NewOffset().At(offset).WithEpoch(leaderEpoch)})
}

// Stop ends the consuming of the partition.
func (c *Client) Stop(partition int32) {
	c.fetch.order(order{do: (*fetcher).stop, partition: partition})
}

// Pause holds the partition's deliveries back. What was fetched and not
// delivered is fetched again after Resume.
func (c *Client) Pause(partition int32) {
	c.fetch.order(order{do: (*fetcher).pause, partition: partition})
}

// Resume ends Pause; so does Start.
func (c *Client) Resume(partition int32) {
	c.fetch.order(order{do: (*fetcher).resume, partition: partition})
}

func (f *fetcher) order(o order) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.orders = append(f.orders, o)
	if f.wakePoll != nil {
		f.wakePoll()
	}
}

// run polls until ctx ends.
func (f *fetcher) run(ctx context.Context, h Handler) {
	f.room.serve(h.Waiting)
	for ctx.Err() == nil {
		poll, cancel := context.WithCancel(ctx)
		f.mu.Lock()
		orders := f.orders
		f.orders, f.wakePoll = nil, cancel // an order from here on ends the poll at once
		f.mu.Unlock()
		for _, o := range orders {
			o.do(f, o, h)
		}
		f.cl.UpdateFetchMaxBytes(f.room.sizes(len(f.sessions)))
		f.makeRoom(poll)
		f.hand(f.cl.PollFetches(poll), h)
		cancel()
	}
	for p := range f.sessions {
		f.remove(p)
	}
}

// How long a refused batch is not asked for, or until a lane pauses or resumes its
// partition. It doubles while nothing else comes: while a shard is away, the same
// batches would be read from the brokers again and again.
const leastRoomPause, mostRoomPause = 20 * time.Millisecond, time.Second

// makeRoom waits a little where the last poll has told of a batch that there was no
// room for: the lanes have to take something first.
func (f *fetcher) makeRoom(ctx context.Context) {
	if !f.refused {
		f.roomPause = 0
		return
	}
	f.refused = false
	if f.cl.BufferedFetchRecords() == 0 {
		f.room.forget()
	}
	last := f.roomPause
	f.roomPause = min(max(2*last, leastRoomPause), mostRoomPause)
	if line := "kafka: fetching waits for memory: lanes hold what memory.max_bytes gives to what is fetched"; last < f.roomPause && f.roomPause == mostRoomPause && f.client.log.due(line) {
		f.client.cfg.Logger.Warn(line, "topic", f.topic)
	}
	_ = pause(ctx, f.roomPause)
}

func (f *fetcher) start(o order, h Handler) {
	f.stop(o, h)
	f.resume(o, h)
	f.sessions[o.partition] = o.session
	f.cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{f.topic: {o.partition: o.from}})
}

func (f *fetcher) stop(o order, h Handler) {
	if _, ok := f.sessions[o.partition]; !ok {
		return
	}
	f.remove(o.partition)
	// Records of it are gone, but errors of it may still wait in the client,
	// and would be taken for the next session's. The other partitions' records
	// that come with them are delivered.
	f.hand(f.cl.PollFetches(nil), h) //nolint:staticcheck // nil: don't wait
}

func (f *fetcher) remove(partition int32) {
	delete(f.sessions, partition)
	f.cl.RemoveConsumePartitions(map[string][]int32{f.topic: {partition}})
}

func (f *fetcher) pause(o order, _ Handler) {
	f.cl.PauseFetchPartitions(map[string][]int32{f.topic: {o.partition}})
}

func (f *fetcher) resume(o order, _ Handler) {
	f.cl.ResumeFetchPartitions(map[string][]int32{f.topic: {o.partition}})
}

// hand gives one poll's records to the handler.
func (f *fetcher) hand(fetches kgo.Fetches, h Handler) {
	// Errors first, over the whole poll: after ErrDataLoss the client goes on
	// by itself where the log was cut, and may have put those records into the
	// same poll, before the error.
	fetches.EachError(func(_ string, partition int32, err error) {
		switch {
		case f.ended(err):
		case errors.Is(err, errNoRoom):
			f.refused = true
		case partition < 0:
			// Of the topic's metadata, or of a whole answer: the client keeps what it
			// knows of the partitions, goes on with them and asks again. What stops a
			// partition comes with the partition's number.
			if line := "kafka: fetching goes on after an error that is of no partition"; f.client.log.due(line) {
				f.client.cfg.Logger.Error(line, "topic", f.topic, "error", err)
			}
		default:
			f.fail(partition, err, h)
		}
	})
	several := shared(fetches)
	f.mixed = f.mixed || mixed(fetches)
	fetches.EachPartition(func(t kgo.FetchTopicPartition) {
		session, ok := f.sessions[t.Partition]
		if !ok || len(t.Records) == 0 {
			return
		}
		if several || f.mixed {
			detach(t.Records)
		}
		f.roomPause = 0
		records, bytes := convert(t.Records)
		h.Deliver(t.Partition, session, records, bytes, t.HighWatermark)
	})
}

func (f *fetcher) fail(partition int32, err error, h Handler) {
	session, ok := f.sessions[partition]
	if !ok {
		return
	}
	f.remove(partition)
	h.Failed(partition, session, f.describe(partition, err))
}

// ended reports whether the error is only the end of a poll.
func (f *fetcher) ended(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, kgo.ErrClientClosed)
}

// describe says what stopped a partition's fetching. Only a position that is
// not in the log any more is refused: from all else a new session may recover.
func (f *fetcher) describe(partition int32, err error) error {
	lane := checkpoint.Lane{Topic: f.topic, Partition: partition}
	var loss *kgo.ErrDataLoss
	var large *kgo.ErrDecompressTooLarge
	switch {
	case errors.As(err, &loss):
		return &checkpoint.Refusal{Reason: checkpoint.ReasonOffsetOutOfRange, What: lane.String(),
			Wrong: fmt.Sprintf("the next message to bill is at offset %d, but the partition was cut at %d: Kafka has lost messages that were billed", loss.ConsumedTo, loss.ResetTo),
			Next:  "wait for the partition's leader to recover; if messages were lost by an unclean election, see the runbook", Err: err}
	case errors.Is(err, kerr.OffsetOutOfRange):
		return &checkpoint.Refusal{Reason: checkpoint.ReasonOffsetOutOfRange, What: lane.String(),
			Wrong: "the next message to bill is not in the partition any more",
			Next:  "find the deleted messages elsewhere and send them again, and raise the topic's retention; see the runbook", Err: err}
	case errors.As(err, &large):
		// The client's own words advise to skip the batch.
		return &checkpoint.Refusal{Reason: checkpoint.ReasonBatchTooLarge, What: lane.String(),
			Wrong: fmt.Sprintf("the batch at offset %d takes more than the %d bytes of memory allowed", large.Offset, f.client.cfg.MaxBatchBytes),
			Next:  "raise kafka.max_batch_bytes, as far as the memory allows it, and start again; see the runbook"}
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("kafka: lane %s: fetch: next step: grant this service READ and DESCRIBE on the topic: %w", lane, err)
	}
	return fmt.Errorf("kafka: lane %s: fetch: %w", lane, err)
}

// recordBytes and headerBytes are what a record and a header take in memory beside
// their texts: a flood of empty ones must be felt, too.
const (
	recordBytes = 256
	headerBytes = int(unsafe.Sizeof(event.Header{}))
)

// convert makes the records that lanes read, with two allocations a batch.
// Keys and values stay in the client's buffers, which it doesn't use again.
func convert(from []*kgo.Record) (records []event.Record, bytes int) {
	headers := 0
	for _, r := range from {
		headers += len(r.Headers)
	}
	bytes = len(from)*recordBytes + headers*headerBytes
	records = make([]event.Record, len(from))
	arena := make([]event.Header, 0, headers)
	for i, r := range from {
		if r.Attrs.IsControl() { // what it says is the client's matter, and would keep an answer in memory
			records[i] = event.Record{Offset: r.Offset, LeaderEpoch: r.LeaderEpoch, Control: true}
			continue
		}
		first := len(arena)
		for _, h := range r.Headers {
			arena = append(arena, event.Header{Key: h.Key, Value: h.Value})
			bytes += len(h.Key) + len(h.Value)
		}
		bytes += len(r.Key) + len(r.Value)
		records[i] = event.Record{
			Offset:      r.Offset,
			LeaderEpoch: r.LeaderEpoch,
			Headers:     arena[first:len(arena):len(arena)],
			Key:         r.Key,
			Value:       r.Value,
		}
	}
	return records, bytes
}
