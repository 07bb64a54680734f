package consume

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"billing/internal/event"
)

// What is read again, for a repair: under no fence, by the client that lanes share.

// ReadState is an Owner's ReadState for who is none. Nothing writes to the lane's
// state meanwhile, or what is read is not of one decision: who reads compares its
// count and checksum.
func (c *Client) ReadState(ctx context.Context, partition int32, from int64, fn func(offset int64, data []byte) error) error {
	o := c.lookersLogs(partition)
	o.state.wait = 0
	return o.ReadState(ctx, from, func() {}, fn)
}

// ReadInput calls fn for the committed records of the input in [from, to), in
// order, with the time that each has in Kafka. The end must not be beyond the high watermark; where the log begins
// behind from, it fails.
func (c *Client) ReadInput(ctx context.Context, partition int32, from, to int64, fn func(r *event.Record, written time.Time) error) error {
	log := newPartitionLog(c.reads, c.cfg.Topic, partition)
	log.wait = 0
	var own error // comes back as it is
	err := log.readTo(ctx, from, to, func() {}, func(r *kgo.Record) error {
		records, _ := convert([]*kgo.Record{r})
		own = fn(&records[0], r.Timestamp)
		return own
	})
	if own != nil {
		return own
	}
	if err != nil {
		return c.failedLane(partition, err)
	}
	return nil
}

// PastDecisions calls fn for the lane's decisions that the decision topic still
// has, in order, with the time at which each was written by the service's clock.
// It goes back until enough says so of the oldest one, or to the beginning: all
// that compaction has left.
func (c *Client) PastDecisions(ctx context.Context, partition int32, enough func(decision string) bool, fn func(decision string, written time.Time) error) error {
	log := newPartitionLog(c.reads, c.DecisionTopic(), partition)
	log.wait = 0
	start, end, err := log.bounds(ctx)
	if err != nil {
		return c.failedLane(partition, err)
	}
	var found []*kgo.Record
	for span := int64(1024); end > start; span *= 2 {
		from := max(start, end-span)
		var earlier []*kgo.Record
		err := log.readTo(ctx, from, end, func() {}, func(r *kgo.Record) error {
			earlier = append(earlier, r)
			return nil
		})
		if err != nil {
			return c.failedLane(partition, err)
		}
		found = append(earlier, found...)
		end = from
		if len(found) > 0 && enough(string(found[0].Value)) {
			break
		}
	}
	for _, r := range found {
		if err := fn(string(r.Value), r.Timestamp); err != nil {
			return err
		}
	}
	return nil
}
