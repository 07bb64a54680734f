package consume

import (
	"context"
	"fmt"

	"billing/internal/event"

	"github.com/twmb/franz-go/pkg/kgo"
)

// MessageAt is what a partition has at an offset.
type MessageAt struct {
	Record *event.Record // nil where there is none: see below
	// Ahead: the offset is not readable yet. It is behind the end, or behind a Kafka
	// transaction that is open. Deleted: it was before the partition's start.
	// Neither: there is no message, but one that was aborted or compacted away, or a
	// control record.
	Ahead, Deleted bool
	End            int64 // of the partition, as far as it is written; not where Deleted
}

// Message reads the message at an offset of the input, if it is committed.
func (c *Client) Message(ctx context.Context, partition int32, offset int64) (MessageAt, error) {
	log := newPartitionLog(c.reads, c.cfg.Topic, partition)
	start, end, err := c.End(ctx, partition)
	switch {
	case err != nil:
		return MessageAt{}, err
	case offset < start:
		return MessageAt{Deleted: true}, nil
	case offset >= end:
		return MessageAt{Ahead: true, End: end}, nil
	}
	for at := offset; at <= offset; {
		got, err := log.fetch(ctx, at, 0, lookBytes)
		if err != nil {
			return MessageAt{}, c.failedLane(partition, err)
		}
		for _, r := range got.records {
			if r.Offset == offset && !r.Attrs.IsControl() {
				records, _ := convert([]*kgo.Record{r})
				return MessageAt{Record: &records[0]}, nil
			}
		}
		if got.next == at && got.stable <= at {
			return MessageAt{Ahead: true, End: end}, nil
		}
		if got.next == at { // an answer without anything, such as of a broker that throttles us
			if err := pause(ctx, readPause); err != nil {
				return MessageAt{}, c.failedLane(partition, fmt.Errorf("read %s: %w", log, err))
			}
		}
		at = got.next
	}
	return MessageAt{}, nil
}
