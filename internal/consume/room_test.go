package consume_test

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/consume/consumetest"
)

// TestFetchesAreBoundedWhateverTheyDecompressTo: on three brokers, and with what the
// client itself has buffered.
func TestFetchesAreBoundedWhateverTheyDecompressTo(t *testing.T) {
	consumetest.Bound(t, fake(t).ListenAddrs(), (*consume.Client).Buffered)
}

// TestFloodOfEmptyRecordsIsTooLarge: a record takes more than its bytes, so that
// many empty ones are a batch that is too large.
func TestFloodOfEmptyRecordsIsTooLarge(t *testing.T) {
	for name, record := range map[string]kgo.Record{
		"records": {},
		"headers": {Headers: make([]kgo.RecordHeader, 40)},
	} {
		rig := consumetest.NewRig(t, fake(t, kfake.BrokerConfigs(map[string]string{"message.max.bytes": "8388608"})).ListenAddrs(), 1)
		cl := rig.Raw(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(8<<20), kgo.ManualFlushing(), kgo.MaxBufferedRecords(1<<20))
		n := 20_000
		for range n {
			r := record
			r.Topic = rig.Topic
			cl.Produce(t.Context(), &r, nil)
		}
		if err := cl.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		m := rig.JoinAll(t, 1, func(c *consume.Config) { c.MaxBatchBytes = 3 << 20 })
		m.Start(0, 1, 0, -1)
		if r := checkpoint.AsRefusal(m.Log.AwaitFailed(t, 0, 1)); r == nil || r.Reason != checkpoint.ReasonBatchTooLarge {
			t.Errorf("%s: got %v", name, r)
		}
	}
}
