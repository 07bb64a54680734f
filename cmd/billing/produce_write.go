package main

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"billing/internal/consume"
	"billing/internal/event"
	"billing/internal/loadgen"
)

// loadWriter is where a load goes. Nothing is known of what it has written after
// an error; without one, all that was handed over is in the topic after Flush,
// and all of a Kafka transaction, or nothing, after Transaction.
type loadWriter interface {
	Write(ctx context.Context, m *consume.Message) error
	Flush(ctx context.Context) error
	Acknowledged() int64
	Transaction(ctx context.Context, messages []consume.Message, commit bool) error
}

// loadWriting is a load that is being written.
type loadWriting struct {
	cfg   loadgen.Config
	load  *loadgen.Generator
	to    loadWriter
	size  int     // messages of a Kafka transaction; 0: none
	abort float64 // share of them that are aborted first
	draw  *rand.Rand

	started     time.Time
	took        time.Duration
	interrupted bool
	committed   atomic.Int64 // messages, where there are Kafka transactions

	transactions, aborted, abortedMessages int64
}

func newLoadWriting(cfg loadgen.Config, f *loadFlags, to loadWriter) *loadWriting {
	return &loadWriting{
		cfg: cfg, load: loadgen.New(cfg), to: to, size: f.transactions, abort: f.abortShare,
		draw: rand.New(rand.NewPCG(uint64(cfg.Seed), 0x61626f7274)),
	}
}

// run writes the load, until all is written or ctx ends. What is on its way then
// is written still.
func (w *loadWriting) run(ctx context.Context) error {
	w.started = time.Now()
	defer func() { w.took = time.Since(w.started) }()
	if w.size > 0 {
		return w.inTransactions(ctx)
	}
	going := context.WithoutCancel(ctx)
	for range w.cfg.Count {
		if !w.due(ctx) {
			break
		}
		m := w.next()
		if err := w.to.Write(going, &m); err != nil {
			return err
		}
	}
	return w.to.Flush(going)
}

// inTransactions writes a Kafka transaction when the last of its messages is
// due: one that is open longer would hold up who reads the topic.
func (w *loadWriting) inTransactions(ctx context.Context) error {
	going := context.WithoutCancel(ctx)
	var messages []consume.Message
	for left := w.cfg.Count; left > 0 && !w.interrupted; {
		messages = messages[:0]
		for len(messages) < min(w.size, left) && w.due(ctx) {
			messages = append(messages, w.next())
		}
		left -= len(messages)
		if len(messages) == 0 {
			break
		}
		if err := w.mayAbort(going, messages); err != nil {
			return err
		}
		if err := w.to.Transaction(going, messages, true); err != nil {
			return err
		}
		w.transactions++
		w.committed.Add(int64(len(messages)))
	}
	if w.transactions == 0 {
		return nil
	}
	return w.mayAbort(going, nil) // so that the topic may end with an aborted one
}

// mayAbort writes a Kafka transaction that is aborted, if the draw says so: with
// the messages that will be committed next, and with others that nobody sends
// again.
func (w *loadWriting) mayAbort(ctx context.Context, messages []consume.Message) error {
	if w.draw.Float64() >= w.abort {
		return nil
	}
	w.aborted++
	cfg := w.cfg
	cfg.Seed += w.aborted // ids of its own
	cfg.Count, cfg.Rate = max(1, len(messages)), 0
	phantoms := loadgen.New(cfg)
	var all []consume.Message
	phantom := func() {
		if m, more := phantoms.Next(); more {
			all = append(all, message(m))
		}
	}
	phantom()
	for _, m := range messages {
		all = append(all, m)
		if w.draw.IntN(2) == 0 {
			phantom()
		}
	}
	w.abortedMessages += int64(len(all))
	return w.to.Transaction(ctx, all, false)
}

// due waits until the next message is due. It is false when ctx ends before.
func (w *loadWriting) due(ctx context.Context) bool {
	if wait := time.Until(w.started.Add(w.load.Due())); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	w.interrupted = ctx.Err() != nil
	return !w.interrupted
}

func (w *loadWriting) next() consume.Message {
	m, _ := w.load.Next() // who calls it counts
	return message(m)
}

func message(m loadgen.Message) consume.Message {
	headers := make([]event.Header, len(m.Headers))
	for i, h := range m.Headers {
		headers[i] = event.Header(h)
	}
	return consume.Message{Partition: m.Partition, Key: m.Key, Value: m.Value, Headers: headers}
}

// written is how many messages are in the topic for good.
func (w *loadWriting) written() int64 {
	if w.size > 0 {
		return w.committed.Load()
	}
	return w.to.Acknowledged()
}
