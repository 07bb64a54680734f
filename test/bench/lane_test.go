package bench

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"billing/cmd/billing/config"
	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/event"
	"billing/internal/pipeline"
	"billing/test/bench/measure"
)

// TestBenchLane drains a backlog through the whole service but MySQL: all in this
// process, over an embedded broker, with shards that keep nothing. Beside it the
// same backlog is only consumed, through the same client: what broker, client
// library and the making of records cost.
func TestBenchLane(t *testing.T) {
	r := measure.New(t, "lane")
	b := newBacklog(t, standardLoad(measure.Pick(3_000_000, 60_000), 4))
	var ledger, totals measure.Histogram
	rounds := r.Alternate(
		measure.Thing{Name: "ledger", Run: func() measure.Values { return b.serve(t, true, &ledger) }},
		measure.Thing{Name: "totals", Run: func() measure.Values { return b.serve(t, false, &totals) }},
		measure.Thing{Name: "consume", Run: func() measure.Values { return b.consume(t) }},
	)
	none := measure.Target{}
	for _, thing := range []struct {
		of, name string
		target   measure.Target
	}{
		{"ledger", "service, ledger", measure.AtLeast(300_000)},
		{"totals", "service, totals only", measure.AtLeast(300_000)},
		{"consume", "consuming alone", none},
	} {
		from := ""
		if thing.target != none {
			from = "the service on two cores that the broker shares"
		}
		figure := func(name, unit, value string, target measure.Target, from string) {
			r.Figure(measure.Figure{Name: thing.name + name, Unit: unit, Values: rounds.Of(thing.of, value), Target: target, From: from})
		}
		figure("", "messages/s", "rate", thing.target, from)
		figure(": CPU", "ns/message", "cpu", none, "")
		figure(": collector", "% of CPU", "gc", none, "")
		figure(": allocations", "a message", "allocs", none, "")
		figure(": allocated", "bytes/msg", "bytes", none, "")
		if thing.of != "consume" {
			figure(": epoch", "messages", "epoch", none, "")
		}
	}
	const pause = "freezing is a pointer swap: the stream goes on within a millisecond"
	for _, h := range []struct {
		name string
		*measure.Histogram
	}{{"ledger", &ledger}, {"totals", &totals}} {
		ms := func(d time.Duration) []float64 { return []float64{float64(d) / 1e6} }
		r.Figure(measure.Figure{Name: "pause at a barrier, p99, " + h.name, Unit: "ms", Values: ms(h.Quantile(0.99)), Target: measure.AtMost(1), From: pause, Note: "of all rounds' barriers"})
		r.Figure(measure.Figure{Name: "pause at a barrier, max, " + h.name, Unit: "ms", Values: ms(h.Max()), Note: "likewise"})
	}
	r.Bars(measure.Bars{Name: "rate", Title: "Messages a second over the embedded broker", Unit: "messages/s", Target: 300_000, Groups: []measure.Group{{Bars: []measure.Bar{
		{Label: "consuming alone", Values: rounds.Of("consume", "rate")},
		{Label: "totals only", Values: rounds.Of("totals", "rate")},
		{Label: "ledger", Values: rounds.Of("ledger", "rate")},
	}}}})
	r.Histograms(measure.HistoPlot{Name: "pause", Title: "The stream's pause at a barrier", Target: time.Millisecond,
		Panels: []measure.Panel{ledger.Panel("ledger"), totals.Panel("totals only")}})
}

// used is what this process has used of the machine so far.
type used struct {
	at            time.Time
	cpu           time.Duration
	gc            float64 // seconds
	allocs, bytes float64
}

func usedSoFar() used {
	s := []metrics.Sample{
		{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/cpu/classes/gc/mark/idle:cpu-seconds"}, // what nobody else wanted
		{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/allocs:bytes"},
	}
	metrics.Read(s)
	return used{
		at: time.Now(), cpu: measure.CPU(), gc: s[0].Value.Float64() - s[1].Value.Float64(),
		allocs: float64(s[2].Value.Uint64()), bytes: float64(s[3].Value.Uint64()),
	}
}

// values are what n messages took from one moment to another.
func (from used) values(to used, n int64) measure.Values {
	cpu := (to.cpu - from.cpu).Seconds()
	return measure.Values{
		"rate": float64(n) / to.at.Sub(from.at).Seconds(), "cpu": cpu * 1e9 / float64(n), "gc": 100 * (to.gc - from.gc) / cpu,
		"allocs": (to.allocs - from.allocs) / float64(n), "bytes": (to.bytes - from.bytes) / float64(n),
	}
}

// span is the part of a drain that counts: from the first decided epoch, so that
// joining the group is not in it, until nearly all is decided, as the last epochs
// wait for their barrier's time.
type span struct {
	all int64

	mu          sync.Mutex
	first, last used
	from, to    int64 // messages done at these moments
	done        int64
	over        chan struct{} // closed when all are done
}

func newSpan(all int64) *span { return &span{all: all, over: make(chan struct{})} }

func (s *span) add(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done += n
	switch {
	case s.from == 0:
		s.first, s.from = usedSoFar(), s.done
	case s.to == 0 || s.done <= s.all*9/10:
		s.last, s.to = usedSoFar(), s.done
	}
	if s.done == s.all {
		close(s.over)
	}
}

func (s *span) await(t testing.TB, failed <-chan error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	select {
	case <-s.over:
	case err := <-failed:
		t.Fatal(err)
	case <-ctx.Done():
		s.mu.Lock()
		done := s.done
		s.mu.Unlock()
		t.Fatalf("%d of %d messages", done, s.all)
	}
}

func (s *span) values() measure.Values { return s.first.values(s.last, s.to-s.from) }

// serve runs the service until the backlog is decided.
func (b *backlog) serve(t testing.TB, ledger bool, pauses *measure.Histogram) measure.Values {
	t.Helper()
	kafka, name := b.open(t)
	defer kafka.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	input, err := kafka.Check(ctx)
	if err == nil {
		err = kafka.EnsureTopics(ctx, true)
	}
	if err != nil {
		t.Fatal(err)
	}

	s := newSpan(b.expected.Records)
	var mu sync.Mutex // of what follows
	var counts checkpoint.Counts
	var epochs int64
	quiet := slog.New(slog.DiscardHandler)
	d := config.Default()
	lanes := pipeline.New(pipeline.Config{
		Job: &checkpoint.Job{
			Name: name, Topic: benchTopic, TopicID: input.ID, Partitions: input.Partitions, Set: checkpoint.UUID{1}, Fingerprint: "bench", Build: "bench", FirstStart: true,
			Kafka: kafka, Shards: []checkpoint.Shard{newForgetful("a"), newForgetful("b")}, Limits: checkpoint.DefaultLimits(d.Kafka.TransactionTimeout),
			Listener: checkpoint.Listener{Committed: func(_ checkpoint.Lane, _ checkpoint.Decision, c checkpoint.Counts, _ bool) {
				mu.Lock()
				epochs++
				counts.Applied += c.Applied
				counts.Duplicates += c.Duplicates
				mu.Unlock()
				s.add(c.In)
			}},
		},
		Interval: d.Checkpoint.Interval, MaxInterval: d.Checkpoint.MaxInterval,
		MaxRows: d.Checkpoint.MaxRows, MaxRecords: d.Checkpoint.MaxRecords, MaxBytes: d.Checkpoint.MaxBytes,
		MemoryBytes: d.Memory.MaxBytes,
		Lateness:    d.Dedup.Lateness, Skew: d.Dedup.Skew, MaxIDs: d.Dedup.MaxIDs, Window: d.Aggregate.Window, Ledger: ledger,
		Decoder:      event.Config{TypePrefix: "com.example.billing.", Currencies: []string{"EUR", "USD"}},
		StoppedRetry: time.Minute, IdleMove: time.Minute, Now: time.Now, Logger: quiet,
		Paused: func(d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			pauses.Add(d)
		},
	})
	lanes.Bind(source{kafka})
	left := make(chan error, 1)
	go func() { left <- kafka.Run(ctx, lanes) }()
	s.await(t, lanes.Fatal())
	grace, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	lanes.Drain(grace)
	cancel()
	if err := <-left; err != nil {
		t.Fatal(err)
	}
	if counts.Applied != b.expected.Applied || counts.Duplicates != b.expected.Duplicates {
		t.Fatalf("%+v, want %+v", counts, b.expected)
	}
	v := s.values()
	v["epoch"] = float64(s.all) / float64(epochs)
	return v
}

// source is the consumer as the lanes see it; cmd/billing has the same.
type source struct{ *consume.Client }

func (s source) Assigned(partition int32) bool { return s.Client.Assigned(partition) && s.Fresh() }

// consume reads the backlog as the service does, and drops it.
func (b *backlog) consume(t testing.TB) measure.Values {
	t.Helper()
	kafka, _ := b.open(t)
	defer kafka.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := &dropping{kafka: kafka, span: newSpan(b.expected.Records)}
	left := make(chan error, 1)
	go func() { left <- kafka.Run(ctx, h) }()
	h.await(t, nil)
	cancel()
	if err := <-left; err != nil {
		t.Fatal(err)
	}
	return h.values()
}

// dropping has each partition delivered from its beginning on.
type dropping struct {
	kafka *consume.Client
	*span
}

func (h *dropping) Assigned(partitions []int32) {
	for _, p := range partitions {
		h.kafka.Start(p, 1, 0, -1)
	}
}

func (h *dropping) Deliver(_ int32, _ uint64, records []event.Record, _ int, _ int64) {
	h.add(int64(len(records)))
}

func (h *dropping) Waiting() int64                   { return 0 }
func (h *dropping) Revoked(context.Context, []int32) {}
func (h *dropping) Lost([]int32)                     {}
func (h *dropping) Failed(p int32, _ uint64, err error) {
	panic(fmt.Sprintf("partition %d can't be read: %v", p, err)) // an embedded broker loses nothing
}
