package txsink_test

import (
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"

	"billing/internal/aggregate"
	"billing/internal/txsink"
)

// BenchmarkEpochs measures prepare and commit of whole epochs on one shard: lanes side by side, each epoch with 10 000
// applied messages of 2 000 accounts.
//
//	go test -run '^$' -bench Epochs -benchtime 10x ./test/txsink
func BenchmarkEpochs(b *testing.B) {
	for _, lanes := range []int32{1, 4} {
		b.Run(fmt.Sprintf("lanes=%d", lanes), func(b *testing.B) { benchmarkEpochs(b, lanes) })
	}
}

func benchmarkEpochs(b *testing.B, lanes int32) {
	const messages, accounts = 10_000, 2_000
	cfg := config(b)
	cfg.Shards = cfg.Shards[:1]
	migrate(b, cfg)
	s := open(b, cfg)
	fill := func(l *lane, from int64, tag string) *aggregate.Epoch {
		e := aggregate.New(aggregate.Config{Topic: l.id.Topic, Partition: l.id.Partition, Shards: 1, Window: l.window, Ledger: true})
		for i := range messages {
			e.Apply(charge(fmt.Sprint(l.id.Partition, tag, i), fmt.Sprintf("customer-%06d", i%accounts), "12.3456"), from+int64(i))
		}
		return e
	}
	ls := make([]*lane, lanes)
	for i := range ls {
		ls[i] = newLane(b, s, txsink.Config{Job: cfg.Job, LedgerEnabled: true}, int32(i))
	}
	epochs := make([]*aggregate.Epoch, lanes)
	b.ResetTimer()
	for n := range b.N {
		b.StopTimer()
		for i, l := range ls {
			epochs[i] = fill(l, l.next, fmt.Sprint("-", n, "-"))
		}
		b.StartTimer()
		var group errgroup.Group
		for i, l := range ls {
			group.Go(func() error {
				if err := s.Shards()[0].Prepare(b.Context(), l.branch(epochs[i], 0, messages)); err != nil {
					return err
				}
				if err := s.Shards()[0].Commit(b.Context(), l.gtrid(1, l.seq+1)); err != nil {
					return err
				}
				row, ok, err := s.Shards()[0].EpochRow(b.Context(), l.id, l.seq+1)
				if err != nil || !ok {
					return fmt.Errorf("row: %t, %w", ok, err)
				}
				l.seq, l.next, l.digests[0] = l.seq+1, row.Next, row.Digest
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(messages)*float64(lanes)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(0, "ns/op")
}
