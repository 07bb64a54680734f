package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/event"
)

// Message is one to write to the input.
type Message struct {
	Partition  int32
	Key, Value []byte // nil is Kafka's null
	Headers    []event.Header
}

// Load writes messages to the input as producers do. It is for test loads, and
// no part of the service: the library's own producer does it, which repeats what
// was not answered and keeps the order within a partition.
//
// After an error what the topic holds of the load is not known, and the Load is
// only closed. It is used by one goroutine; Acknowledged by any.
type Load struct {
	client *Client
	cl     *kgo.Client
	txnID  string // "" for none

	room    chan struct{} // as many as may be unacknowledged: what they take of memory is bounded
	acked   atomic.Int64
	err     atomic.Pointer[error] // the first message's that was not written
	settled func(*kgo.Record, error)
	open    bool // a Kafka transaction may be
}

// unacknowledged is how many messages may be on their way. It is far more than
// a batch has.
const unacknowledged = 20_000

// OpenLoad connects a Load. With a transactional id, which is of this Load alone,
// it writes in Kafka transactions (Transaction), without one plainly (Write,
// Flush). It writes nothing yet. The caller closes it, before the Client.
func (c *Client) OpenLoad(ctx context.Context, transactionalID string) (*Load, error) {
	l := &Load{client: c, txnID: transactionalID, room: make(chan struct{}, unacknowledged)}
	l.settled = l.settle
	options := c.options(
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MaxBufferedRecords(2*unacknowledged), // never reached: the library's wait has no bound
		kgo.StopProducerOnDataLossDetected(),     // going on would write something twice
		kgo.AlwaysRetryEOF(),                     // a port of a broker that restarts may be open, with nobody behind it
	)
	if transactionalID != "" {
		options = append(options, kgo.TransactionalID(transactionalID), kgo.TransactionTimeout(c.cfg.TransactionTimeout))
	}
	var err error
	if l.cl, err = kgo.NewClient(options...); err != nil {
		return nil, fmt.Errorf("kafka: load: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ReadTimeout)
	defer cancel()
	if _, _, err := l.cl.ProducerID(ctx); err != nil {
		l.cl.Close()
		if errors.Is(err, kerr.InvalidTransactionTimeout) {
			return nil, c.refuseTimeout(c.cfg.Topic, "", err)
		}
		return nil, fmt.Errorf("kafka: load: initialise a producer: %w", err)
	}
	return l, nil
}

// Write hands one message over, and waits for room while too many are on their
// way. It keeps what m points to until the message is acknowledged. An error may
// be of a message before.
func (l *Load) Write(ctx context.Context, m *Message) error {
	select {
	case l.room <- struct{}{}:
	default:
		if err := l.patiently(ctx, func(ctx context.Context) error {
			select {
			case l.room <- struct{}{}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}); err != nil {
			return err
		}
	}
	if err := l.err.Load(); err != nil {
		return *err
	}
	r := &kgo.Record{Topic: l.client.cfg.Topic, Partition: m.Partition, Key: m.Key, Value: m.Value, Headers: make([]kgo.RecordHeader, len(m.Headers))}
	for i, h := range m.Headers {
		r.Headers[i] = kgo.RecordHeader(h)
	}
	// What ctx bounds is the waiting: a message that was handed over stays so.
	l.cl.Produce(context.WithoutCancel(ctx), r, l.settled)
	return nil
}

// settle notes what became of a message.
func (l *Load) settle(r *kgo.Record, err error) {
	if err == nil {
		l.acked.Add(1)
	} else {
		err = fmt.Errorf("kafka: load: write to %s/%d: %w", r.Topic, r.Partition, err)
		l.err.CompareAndSwap(nil, &err)
	}
	<-l.room
}

// Acknowledged is how many messages all in-sync replicas have, those of open and
// aborted Kafka transactions among them.
func (l *Load) Acknowledged() int64 { return l.acked.Load() }

// Flush returns when all messages that were handed over are acknowledged.
func (l *Load) Flush(ctx context.Context) error { return l.patiently(ctx, l.cl.Flush) }

// patiently waits as long as messages are acknowledged. One that was not written
// ends it, and so does Config.WriteTimeout without an acknowledgement.
func (l *Load) patiently(ctx context.Context, wait func(context.Context) error) error {
	for {
		before := l.acked.Load()
		try, cancel := context.WithTimeout(ctx, l.client.cfg.WriteTimeout)
		err := wait(try)
		cancel()
		if lost := l.err.Load(); lost != nil {
			return *lost
		}
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || l.acked.Load() == before {
			return fmt.Errorf("kafka: load: no message was acknowledged within %s: %w", l.client.cfg.WriteTimeout, err)
		}
	}
}

// Transaction writes messages, one at least, in one Kafka transaction, and
// commits or aborts it. When it returns without an error that is known, and not
// from the library alone, whose word is no knowledge (decision 0004).
func (l *Load) Transaction(ctx context.Context, messages []Message, commit bool) error {
	if err := l.cl.BeginTransaction(); err != nil {
		return fmt.Errorf("kafka: load: begin a transaction: %w", err)
	}
	l.open = true
	for i := range messages {
		if err := l.Write(ctx, &messages[i]); err != nil {
			return err
		}
	}
	if err := l.Flush(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, l.client.cfg.WriteTimeout)
	defer cancel()
	if err := l.published(ctx, messages); err != nil {
		return err
	}
	how, want := kgo.TryAbort, []string{"PrepareAbort", "CompleteAbort"}
	if commit {
		how, want = kgo.TryCommit, []string{"PrepareCommit", "CompleteCommit"}
	}
	if err := l.cl.EndTransaction(ctx, how); err != nil {
		return fmt.Errorf("kafka: load: end a transaction: what became of it is not known: %w", err)
	}
	l.open = false
	state, err := l.state(ctx)
	if err != nil {
		return fmt.Errorf("kafka: load: end a transaction: what became of it is not known: %w", err)
	}
	if !slices.Contains(want, state) {
		return fmt.Errorf("kafka: load: a transaction that was to end as %s is %s", want[1], state)
	}
	return nil
}

// published waits until the library's end of a transaction sees the partitions
// that were written. They may be acknowledged a moment before that; then it takes
// the transaction for an empty one, and aborts it.
func (l *Load) published(ctx context.Context, messages []Message) error {
	for i := range messages {
		for {
			leader, _, err := l.cl.PartitionLeader(l.client.cfg.Topic, messages[i].Partition)
			if err == nil && leader >= 0 {
				break
			}
			if cerr := pause(ctx, time.Millisecond); cerr != nil {
				return fmt.Errorf("kafka: load: partition %d has no leader: %w", messages[i].Partition, errors.Join(cerr, err))
			}
		}
	}
	return nil
}

// state asks the coordinator what became of the last transaction.
func (l *Load) state(ctx context.Context) (state string, err error) {
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{l.txnID}
	err = again(ctx, transient, func() error {
		resp, err := req.RequestWith(ctx, l.cl)
		if err != nil {
			return err
		}
		if len(resp.TransactionStates) != 1 {
			return errors.New("an answer without the transaction")
		}
		state = resp.TransactionStates[0].State
		return kerr.ErrorForCode(resp.TransactionStates[0].ErrorCode)
	})
	return state, err
}

// Close closes the Load. A Kafka transaction that an error has left open is
// aborted, if that can be had in a moment, also when ctx has ended: it would hold
// up the lanes until its time-out.
func (l *Load) Close(ctx context.Context) {
	if l.open {
		l.open = false
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.client.cfg.RequestTimeout)
		defer cancel()
		if err := l.cl.AbortBufferedRecords(ctx); err == nil {
			_ = l.cl.EndTransaction(ctx, kgo.TryAbort)
		}
	}
	l.cl.Close()
}
