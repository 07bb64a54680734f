package checkpointtest

import (
	"context"
	"errors"
	"fmt"

	"billing/internal/checkpoint"
)

// Fence implements checkpoint.Kafka.
func (w *World) Fence(ctx context.Context, lane checkpoint.Lane) (checkpoint.Owner, error) {
	o := &Owner{world: w}
	err := w.do(ctx, "InitProducerID", func() error {
		w.fences++
		o.number = w.fences
		w.open = nil // what an older owner left open is aborted
		return nil
	})
	if err != nil {
		return nil, err
	}
	return o, nil
}

// Owner is a fenced producer of the world's lane.
type Owner struct {
	world  *World
	number int
	epoch  int // of the producer: one more with each transaction that ended; owned by world.mu
	begun  bool
	acked  bool
	closed bool
}

var (
	errFenced = errors.New("producer fenced")
	errNoTxn  = errors.New("no transaction is open")
)

// request is one request of the owner's transaction. The producer's epoch goes
// with it: one that arrives when its transaction has ended is refused.
func (o *Owner) request(ctx context.Context, call string, apply func(t *transaction) error) error {
	if o.closed {
		panic("checkpointtest: " + call + " on a closed owner")
	}
	w := o.world
	w.mu.Lock()
	epoch := o.epoch
	w.mu.Unlock()
	return w.do(ctx, call, func() error {
		if o.number != w.fences || o.epoch != epoch {
			return fmt.Errorf("%s: %w", call, errFenced)
		}
		if w.open == nil {
			w.open = &transaction{offset: -1}
		}
		return apply(w.open)
	})
}

// Read implements checkpoint.Owner.
func (o *Owner) Read(ctx context.Context) (checkpoint.Read, error) { return o.world.Look(ctx) }

// Look reads the lane stably under no fence: in four calls, between which an
// owner may move.
func (w *World) Look(ctx context.Context) (r checkpoint.Read, err error) {
	for _, part := range []struct {
		of   string
		read func() error
	}{
		{"input", func() error {
			r.TopicID, r.Partitions, r.LogStart, r.LogEnd = w.TopicID, w.Partitions, w.LogStart, w.LogEnd
			return nil
		}},
		{"offset", func() error {
			if w.open != nil && w.open.offset >= 0 {
				return errUnstable
			}
			r.HasOffset, r.Offset, r.Metadata = w.hasOffset, w.offset, w.metadata
			return nil
		}},
		{"decision", func() error {
			if w.open != nil && w.open.decision != "" {
				return errUnstable
			}
			r.Record = w.decision
			return nil
		}},
		{"state", func() error {
			r.StateStart, r.StateEnd = w.stateStart, w.stateEnd
			return nil
		}},
	} {
		if err := w.do(ctx, "Read "+part.of, part.read); err != nil {
			return r, err
		}
	}
	return r, nil
}

var errUnstable = errors.New("another owner's transaction is open")

// ReadState implements checkpoint.Owner.
func (o *Owner) ReadState(ctx context.Context, from int64, passed func(), fn func(int64, []byte) error) error {
	w := o.world
	var got []chunk
	err := w.do(ctx, "ReadState", func() error {
		for _, c := range w.chunks {
			if c.offset >= from {
				got = append(got, c)
			}
		}
		return nil
	})
	for _, c := range got {
		if err != nil {
			break
		}
		passed()
		err = fn(c.offset, c.data)
	}
	return err
}

// Begin implements checkpoint.Owner.
func (o *Owner) Begin() error {
	if o.begun {
		panic("checkpointtest: transaction begun twice")
	}
	o.begun, o.acked = true, false
	return nil
}

// WriteChunks implements checkpoint.Owner.
func (o *Owner) WriteChunks(ctx context.Context, chunks [][]byte) (from, next int64, err error) {
	w := o.world
	var first int64 // not from: a late call must not write to what was returned
	err = o.request(ctx, "Produce chunks", func(t *transaction) error {
		first = w.stateEnd
		for _, data := range chunks {
			t.chunks = append(t.chunks, chunk{w.stateEnd, data})
			w.stateEnd++
		}
		w.stateEnd++ // the marker
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	return first, first + int64(len(chunks)), nil
}

// WriteDecision implements checkpoint.Owner.
func (o *Owner) WriteDecision(ctx context.Context, d string) error {
	err := o.request(ctx, "Produce decision", func(t *transaction) error {
		t.decision = d
		return nil
	})
	o.acked = err == nil
	return err
}

// CommitOffset implements checkpoint.Owner.
func (o *Owner) CommitOffset(ctx context.Context, next int64, _ int32, metadata string) error {
	return o.request(ctx, "TxnOffsetCommit", func(t *transaction) error {
		t.offset, t.metadata = next, metadata
		return nil
	})
}

// Commit implements checkpoint.Owner. A failed one leaves the transaction open
// until the next fence.
func (o *Owner) Commit(ctx context.Context) error {
	if !o.begun || !o.acked {
		panic("checkpointtest: EndTxn(commit) without an acknowledged decision")
	}
	o.begun = false
	w := o.world
	err := o.request(ctx, "EndTxn", func(t *transaction) error {
		w.open = nil
		o.epoch++
		if t.decision == "" || t.offset < 0 {
			return errNoTxn
		}
		d, err := checkpoint.ParseDecision(t.decision)
		if err != nil {
			panic(err)
		}
		w.mayDecide(d, t)
		if d.Seq > int64(len(w.epochs)) {
			w.epochs = append(w.epochs, decided{d.GTRID, d.Next})
		}
		w.hasOffset, w.offset, w.metadata = true, t.offset, t.metadata
		w.decision, w.text = t.decision, t.decision
		w.chunks = append(w.chunks, t.chunks...)
		w.Decisions = append(w.Decisions, d)
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", checkpoint.ErrOutcomeUnknown, err)
	}
	return nil
}

// Abort implements checkpoint.Owner.
func (o *Owner) Abort(ctx context.Context) {
	if !o.begun {
		panic("checkpointtest: abort after EndTxn(commit), or without a transaction")
	}
	o.begun = false
	_ = o.request(ctx, "EndTxn abort", func(*transaction) error {
		o.world.open = nil
		o.epoch++
		return nil
	})
}

// Trim implements checkpoint.Owner.
func (o *Owner) Trim(ctx context.Context, before int64) error {
	w := o.world
	return w.do(ctx, "DeleteRecords", func() error {
		w.trimmed(before)
		w.stateStart = max(w.stateStart, before)
		var kept []chunk
		for _, c := range w.chunks {
			if c.offset >= w.stateStart {
				kept = append(kept, c)
			}
		}
		w.chunks = kept
		return nil
	})
}

// Close implements checkpoint.Owner.
func (o *Owner) Close() { o.closed = true }
