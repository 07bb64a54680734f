package consumetest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"billing/internal/consume"
	"billing/internal/event"
)

// keeper holds all that it is delivered, until it lets go.
type keeper struct {
	t        testing.TB
	buffered func() int64

	mu   sync.Mutex
	held int64
	peak int64 // of what was held, and buffered in the client
	next map[int32]int64
	all  int
}

func (k *keeper) Assigned([]int32)                 {}
func (k *keeper) Revoked(context.Context, []int32) {}
func (k *keeper) Lost([]int32)                     {}

func (k *keeper) Deliver(p int32, _ uint64, records []event.Record, bytes int, _ int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range records {
		if records[i].Offset != k.next[p] {
			k.t.Errorf("partition %d: offset %d is delivered, want %d", p, records[i].Offset, k.next[p])
		}
		k.next[p] = records[i].Offset + 1
	}
	k.all += len(records)
	k.held += int64(bytes)
	k.peak = max(k.peak, k.held+k.buffered())
}

func (k *keeper) Failed(p int32, _ uint64, err error) { k.t.Errorf("partition %d: %v", p, err) }

func (k *keeper) Waiting() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held
}

// Bound is that what is fetched is bounded whatever it decompresses to: batches of 4 MiB that have a few
// hundred bytes each in the topic, so that one answer could bring all of them. What is held never exceeds the bound and one batch, and when the
// lanes take something, all of it comes, in order.
//
// buffered is what the client has read and not handed over, as the library counts
// it; nil is not looked at.
func Bound(t *testing.T, brokers []string, buffered func(*consume.Client) int64) {
	const partitions, each, size, bound = 9, 6, 4 << 20, 12 << 20
	for _, codec := range []kgo.CompressionCodec{kgo.ZstdCompression(), kgo.GzipCompression()} {
		rig := NewRig(t, brokers, partitions)
		cl := rig.Raw(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(8<<20), kgo.ProducerBatchCompression(codec))
		for p := range int32(partitions) {
			for range each {
				if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: rig.Topic, Partition: p, Value: make([]byte, size)}).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
		}
		client := rig.Open(t, func(c *consume.Config) { c.FetchBytes, c.MaxBatchBytes = bound, 5<<20 })
		k := &keeper{t: t, next: map[int32]int64{}, buffered: func() int64 { return 0 }}
		if buffered != nil {
			k.buffered = func() int64 { return buffered(client) }
		}
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() {
			if err := client.Run(ctx, k); err != nil {
				t.Error(err)
			}
		})
		for p := range int32(partitions) {
			client.Start(p, 1, 0, -1)
		}
		rounds := 0
		for done := false; !done; rounds++ {
			Eventually(t, func() error {
				k.mu.Lock()
				defer k.mu.Unlock()
				if done = k.all == partitions*each; !done && k.held <= bound/2 {
					return fmt.Errorf("%d of %d records have come, %d bytes wait", k.all, partitions*each, k.held)
				}
				return nil
			})
			k.mu.Lock()
			k.held = 0
			k.mu.Unlock()
		}
		cancel()
		run.Wait()
		if most := int64(bound + size + 1<<20); k.peak > most {
			t.Errorf("%d bytes were held, want at most %d", k.peak, most)
		}
		if least := partitions * each * size / (bound + size); rounds < least {
			t.Errorf("all came in %d rounds: nothing was held back", rounds)
		}
	}
}
