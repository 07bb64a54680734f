package consume

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/checkpoint"
	"billing/internal/failpoint"
)

// Owner implements checkpoint.Owner: one session's fenced producer.
//
// It is made of plain requests, under the producer id and epoch that the fence
// gave it. The client library's own transactional producer would not do. It
// answers nil for a commit that it sent as an abort, among others when the
// acknowledgement of the first write to a topic overtakes the library's own
// notes of that topic; and after an error it may initialise the producer again,
// by which a superseded owner makes the broker abort the living one's
// transaction. Here nothing is sent that these lines don't send.
type Owner struct {
	laneLogs // their client is this Owner's own: one connection serves one request at a time
	client   *Client
	txnID    string

	id    int64 // of the producer, from the fence or the last known commit
	epoch int16

	txn      transaction
	err      error       // the first error of a transaction; from then on only Abort and Close
	deciding atomic.Bool // an EndTxn that is sent now is the decision
	closed   sync.Once
}

// transaction is what this Owner knows of its open transaction.
type transaction struct {
	open     bool                    // Begin was called
	sequence map[*partitionLog]int32 // of the next record written; each epoch begins at 0
	sent     bool                    // something may have reached a broker
	decided  bool                    // D is acknowledged
	offset   bool                    // the offset is stored
	ended    bool                    // EndTxn was sent, or given up: not another word
}

var _ checkpoint.Owner = (*Owner)(nil)

// TransactionalID is the lane's: stable, and the same on every instance.
func (c *Client) TransactionalID(lane checkpoint.Lane) string {
	return fmt.Sprintf("%s.%s.%d", c.cfg.Job, lane.Topic, lane.Partition)
}

// Fence is S1. It waits while the markers of the lane's last transaction are
// being written. InitProducerID may safely be repeated: each one only fences
// again. A transaction time-out that the broker does not allow is a *Refusal.
func (c *Client) Fence(ctx context.Context, lane checkpoint.Lane) (checkpoint.Owner, error) {
	o := &Owner{client: c, txnID: c.TransactionalID(lane)}
	cl, err := kgo.NewClient(c.options(kgo.WithHooks(o))...)
	if err != nil {
		return nil, fmt.Errorf("kafka: lane %s: %w", lane, err)
	}
	o.laneLogs = c.logsOf(cl, lane)

	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID = kmsg.StringPtr(o.txnID)
	req.TransactionTimeoutMillis = int32(c.cfg.TransactionTimeout.Milliseconds())
	err = again(ctx, transient, func() error {
		resp, err := req.RequestWith(ctx, o.cl)
		if err != nil {
			return err
		}
		o.id, o.epoch = resp.ProducerID, resp.ProducerEpoch
		return kerr.ErrorForCode(resp.ErrorCode)
	})
	if err == nil && (o.id < 0 || o.epoch < 0) {
		err = fmt.Errorf("the broker gave producer id %d, epoch %d", o.id, o.epoch)
	}
	if err != nil {
		o.Close()
		if errors.Is(err, kerr.InvalidTransactionTimeout) {
			return nil, c.refuseTimeout(lane.String(), "", err)
		}
		return nil, fmt.Errorf("kafka: lane %s: initialise producer %s: %w", lane, o.txnID, err)
	}
	return o, nil
}

// Close closes the Owner's client without a word about its transaction.
func (o *Owner) Close() { o.closed.Do(o.cl.Close) }

// fail notes a transaction's first error.
func (o *Owner) fail(doing string, err error) error {
	err = fmt.Errorf("kafka: lane %s: %s: %w", o.lane, doing, err)
	if o.err == nil {
		o.err = err
	}
	return err
}

// usable says why nothing may be sent in a transaction.
func (o *Owner) usable() error {
	switch {
	case o.err != nil:
		return fmt.Errorf("after an error an owner is only closed: %w", o.err)
	case !o.txn.open || o.txn.ended:
		return errors.New("no transaction is open")
	}
	return nil
}

// Begin begins a transaction. Nothing is sent: the first write tells the broker.
func (o *Owner) Begin() error {
	if o.err != nil || o.txn.open {
		return o.fail("begin", errors.Join(errors.New("the last transaction has not ended well"), o.err))
	}
	o.txn = transaction{open: true, sequence: map[*partitionLog]int32{}}
	return nil
}

// WriteChunks writes chunks of the dedup state.
func (o *Owner) WriteChunks(ctx context.Context, chunks [][]byte) (from, next int64, err error) {
	if err := o.usable(); err != nil {
		return 0, 0, o.fail("write state chunks", err)
	}
	if len(chunks) == 0 {
		return 0, 0, o.fail("write state chunks", errors.New("there are none"))
	}
	for i, batch := range batches(chunks) {
		offset, err := o.appendBatch(ctx, o.state, nil, batch)
		if err != nil {
			return 0, 0, o.fail("write state chunks", err)
		}
		if i == 0 {
			from, next = offset, offset
		}
		if offset != next {
			return 0, 0, o.fail("write state chunks", fmt.Errorf("got offset %d after %d: somebody else writes to %s", offset, next-1, o.state))
		}
		next = offset + int64(len(batch))
	}
	return from, next, nil
}

// WriteDecision writes D.
func (o *Owner) WriteDecision(ctx context.Context, d string) error {
	if err := o.usable(); err != nil {
		return o.fail("write the decision", err)
	}
	if _, err := o.appendBatch(ctx, o.decisions, []byte(o.lane.String()), [][]byte{[]byte(d)}); err != nil {
		return o.fail("write the decision", err)
	}
	o.txn.decided = true
	return nil
}

// Commit is EndTxn(commit), the decision. It is known committed when the
// broker has said so, D was acknowledged and the offset stored in it, and the
// answer has moved the producer by exactly one epoch, or to a new producer id
// once the epochs are used up. With one epoch for each transaction the answer,
// also to a repeated request, can be about this transaction only.
func (o *Owner) Commit(ctx context.Context) error {
	err := o.usable()
	if err == nil && (!o.txn.decided || !o.txn.offset) {
		err = errors.New("no decision and offset in this transaction")
	}
	var id int64
	var epoch int16
	if err == nil {
		o.deciding.Store(true)
		id, epoch, err = o.end(ctx, true)
		o.deciding.Store(false)
	}
	o.txn.ended = true
	if err == nil && !movedOn(o.id, o.epoch, id, epoch) {
		err = fmt.Errorf("the producer went from id %d epoch %d to id %d epoch %d, not one epoch on", o.id, o.epoch, id, epoch)
	}
	if err != nil {
		return o.fail("commit", fmt.Errorf("%w: %w", checkpoint.ErrOutcomeUnknown, err))
	}
	o.id, o.epoch, o.txn = id, epoch, transaction{}
	return nil
}

// movedOn reports whether a producer went one epoch on. The last epoch is kept
// for the broker's own fencing; instead of taking it, the producer gets a new id.
func movedOn(id int64, epoch int16, nextID int64, nextEpoch int16) bool {
	if nextID == id {
		return epoch < math.MaxInt16 && nextEpoch == epoch+1
	}
	return nextID >= 0 && nextEpoch == 0 && epoch >= math.MaxInt16-1
}

// end is EndTxn under our own id and epoch.
func (o *Owner) end(ctx context.Context, commit bool) (id int64, epoch int16, err error) {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID = o.txnID
	req.ProducerID, req.ProducerEpoch = o.id, o.epoch
	req.Commit = commit
	err = again(ctx, transient, func() error {
		resp, err := req.RequestWith(ctx, o.cl)
		if err != nil {
			return err
		}
		if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
			return err
		}
		if resp.Version < endVersion {
			return &finalError{fmt.Errorf("the coordinator speaks version %d of EndTxn, %d is needed", resp.Version, endVersion)}
		}
		id, epoch = resp.ProducerID, resp.ProducerEpoch
		return nil
	})
	return id, epoch, err
}

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (o *Owner) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if kmsg.Key(key) == kmsg.EndTxn && err == nil && o.deciding.Load() {
		failpoint.Hit(failpoint.EndTxnSent, 0)
	}
}

// Abort aborts the open transaction. A superseded owner's is refused by the
// broker, which goes by the epoch. After Commit it does nothing.
func (o *Owner) Abort(ctx context.Context) {
	if !o.txn.open || !o.txn.sent || o.txn.ended {
		return
	}
	o.txn.ended = true
	_, _, err := o.end(ctx, false)
	if err == nil {
		err = errors.New("aborted")
	}
	_ = o.fail("abort", err) // only Close from here on
}

// Trim deletes what is before the offset, and nothing else: -1 would mean
// everything to the broker.
func (o *Owner) Trim(ctx context.Context, before int64) error {
	if before < 0 {
		return fmt.Errorf("kafka: lane %s: trim the state topic before offset %d", o.lane, before)
	}
	err := o.state.retry(ctx, "trim", func() error {
		rp := kmsg.NewDeleteRecordsRequestTopicPartition()
		rp.Partition, rp.Offset = o.lane.Partition, before
		rt := kmsg.NewDeleteRecordsRequestTopic()
		rt.Topic = o.state.topic
		rt.Partitions = append(rt.Partitions, rp)
		req := kmsg.NewPtrDeleteRecordsRequest()
		req.TimeoutMillis = int32(o.client.cfg.RequestTimeout.Milliseconds())
		req.Topics = append(req.Topics, rt)
		resp, err := req.RequestWith(ctx, o.cl.Broker(int(o.state.leader)))
		if err != nil {
			return err
		}
		if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			return errNoPartition
		}
		return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	})
	if errors.Is(err, kerr.OffsetOutOfRange) {
		if start, _, berr := o.state.bounds(ctx); berr == nil && start >= before {
			return nil // trimmed further already
		}
	}
	if err != nil {
		return fmt.Errorf("kafka: lane %s: %w", o.lane, err)
	}
	return nil
}
