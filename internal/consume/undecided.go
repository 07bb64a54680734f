package consume

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Undecided is what a partition has from an offset on that no decision covers.
type Undecided struct {
	Any bool // a record waits; aborted and control records don't
	// Since is a time before which nothing that waits was written: the smallest of
	// Kafka's timestamps of the first records that wait. Where the topic takes the
	// producers' timestamps it is as good as their clocks and their order.
	Since time.Time
	// Open: the first of them is of a Kafka transaction that a producer has left
	// open, behind which nothing is readable, and which may yet be aborted.
	Open bool
}

const lookBytes = 128 << 10 // a few records tell; the first batch comes whole

// Undecided looks at what waits in the partition from an offset on, up to its end
// as it was asked for before.
func (c *Client) Undecided(ctx context.Context, partition int32, from, end int64) (Undecided, error) {
	log := newPartitionLog(c.reads, c.cfg.Topic, partition)
	for offset := from; offset < end; {
		got, err := log.fetch(ctx, offset, 0, lookBytes)
		open := err == nil && got.next == offset && got.stable <= offset
		if open {
			// What holds the rest back has a timestamp too. It may end meanwhile, and
			// then it waits no longer, or is readable: the next look says so.
			got, err = log.fetchAs(ctx, uncommitted, offset, 0, lookBytes)
		}
		if err != nil {
			return Undecided{}, c.failedLane(partition, err)
		}
		if u := undecided(got.records, end); u.Any {
			u.Open = open
			return u, nil
		}
		if got.next > offset {
			offset = got.next
			continue
		}
		// An answer without anything, such as of a broker that throttles us.
		if err := pause(ctx, readPause); err != nil {
			return Undecided{}, c.failedLane(partition, fmt.Errorf("read %s: %w", log, err))
		}
	}
	return Undecided{}, nil
}

// undecided takes the records before end.
func undecided(records []*kgo.Record, end int64) (u Undecided) {
	for _, r := range records {
		if r.Offset < end && (!u.Any || r.Timestamp.Before(u.Since)) {
			u.Any, u.Since = true, r.Timestamp
		}
	}
	return u
}
