package e2e

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/test/servers"
)

// What a broker knows of a lane's producer goes, and comes anew. Nothing orders
// owners by it: incarnations do.

// fenced takes the lane's transactional id as an owner would, and returns what the
// producer is then.
func (w *world) fenced(partition int32) (id int64, epoch int16, err error) {
	req := kmsg.NewPtrInitProducerIDRequest()
	name := w.transactionalID(partition)
	req.TransactionalID, req.TransactionTimeoutMillis = &name, 60_000
	resp, err := req.RequestWith(w.t.Context(), w.admin)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return 0, 0, err
	}
	return resp.ProducerID, resp.ProducerEpoch, nil
}

// lastEpoch is the last one of a producer that anybody gets.
const lastEpoch = math.MaxInt16 - 1

// wornOut takes the lane's transactional id until so many epochs are left.
func (w *world) wornOut(partition int32, left int16) error {
	for {
		_, epoch, err := w.fenced(partition)
		if errors.Is(err, kerr.ConcurrentTransactions) {
			continue
		}
		if err != nil || epoch >= lastEpoch-left {
			return err
		}
	}
}

// TestProducerEpochsRunOut: a producer has 32767 epochs, then it is another one. One
// lane's are used up where it takes over, the other one's while its Kafka transaction
// is open and the owner dies, so that a fence ends it.
func TestProducerEpochsRunOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(2))
	old := make([][]string, w.partitions)
	s := w.run("")
	for p := range w.partitions {
		old[p] = w.charge(p, 50)
	}
	w.waitAccounted()
	s.stop()

	start := time.Now()
	errs := make([]error, w.partitions)
	var wg sync.WaitGroup
	for p := range w.partitions {
		wg.Go(func() { errs[p] = w.wornOut(p, 2-int16(p)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Logf("worn out after %s", time.Since(start).Round(100*time.Millisecond))
	was := []int64{w.transaction(0).ProducerID, w.transaction(1).ProducerID}
	w.again(0, old[0])
	w.charge(0, 20)
	w.run("before-end-txn:1").mustDieAtFailpoint()
	if open := w.transaction(0); open.State != "Ongoing" || open.ProducerID != was[0] || open.ProducerEpoch != lastEpoch {
		t.Errorf("what the dead owner has left is %+v, want epoch %d of producer %d", open, lastEpoch, was[0])
	}

	s = w.run("")
	for range 2 {
		for p := range w.partitions {
			w.charge(p, 20)
			w.again(p, old[p])
		}
		w.waitAccounted()
	}
	s.stop()
	for p := range w.partitions {
		if now := w.transaction(p); now.ProducerID == was[p] || now.ProducerEpoch > 100 {
			t.Errorf("partition %d: the producer was %d, and is %d at epoch %d", p, was[p], now.ProducerID, now.ProducerEpoch)
		}
	}
	w.exact()
}

// TestTransactionalIDExpires: the broker has forgotten the lane's transactional id,
// which was not used for long, while the service was idle, and while it was away.
func TestTransactionalIDExpires(t *testing.T) {
	t.Parallel()
	kafka := servers.Kafka(t, servers.WithEnv("KAFKA_TRANSACTIONAL_ID_EXPIRATION_MS", "3000"), servers.WithEnv("KAFKA_PRODUCER_ID_EXPIRATION_MS", "3000"),
		servers.WithEnv("KAFKA_TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS", "500"), servers.WithEnv("KAFKA_PRODUCER_ID_EXPIRATION_CHECK_INTERVAL_MS", "500"))
	w := newWorld(t, 2, onServers(kafka, shared.mysql[:]...))
	gone := func() {
		t.Helper()
		servers.Eventually(t, time.Minute, func() error {
			req := kmsg.NewPtrDescribeTransactionsRequest()
			req.TransactionalIDs = []string{w.transactionalID(0)}
			resp, err := req.RequestWith(t.Context(), w.admin)
			if err != nil {
				return err
			}
			if err := kerr.ErrorForCode(resp.TransactionStates[0].ErrorCode); !errors.Is(err, kerr.TransactionalIDNotFound) {
				return fmt.Errorf("the broker still knows the id: %+v (%w)", resp.TransactionStates[0], err)
			}
			return nil
		})
	}
	s := w.run("")
	ids := w.charge(0, 50)
	w.waitAccounted()
	for range 2 {
		before := w.decided(0)
		gone()
		w.again(0, ids)
		w.charge(0, 20)
		w.waitAccounted() // unaided: no restart of the service
		if d := w.decided(0); d.Incarnation <= before.Incarnation {
			t.Errorf("incarnation %d, then %d", before.Incarnation, d.Incarnation)
		}
	}
	s.stop()
	before := w.decided(0)
	gone()
	s = w.run("")
	w.again(0, ids)
	w.charge(0, 20)
	w.waitAccounted()
	if d := w.decided(0); d.Incarnation <= before.Incarnation || d.Seq <= before.Seq {
		t.Errorf("D was %+v, is %+v", before, d)
	}
	s.stop()
	w.exact()
}
