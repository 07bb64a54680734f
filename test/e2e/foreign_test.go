package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/test/servers"
)

// foreign is a transactional producer that is not the service's.
type foreign struct {
	t  *testing.T
	cl *kgo.Client
}

func newForeign(t *testing.T) *foreign {
	return &foreign{t, shared.kafka.Client(t, kgo.TransactionalID("foreign-"+uuid.NewString()), kgo.TransactionTimeout(5*time.Minute),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))}
}

// begin opens a transaction with the records in it.
func (f *foreign) begin(records ...*kgo.Record) {
	f.t.Helper()
	if err := f.cl.BeginTransaction(); err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fresh := make([]*kgo.Record, len(records)) // a record that was produced carries its old context
	for i, r := range records {
		fresh[i] = &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: r.Headers}
	}
	if err := f.cl.ProduceSync(ctx, fresh...).FirstErr(); err != nil {
		f.t.Fatal(err)
	}
}

func (f *foreign) end(commit kgo.TransactionEndTry) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := f.cl.EndTransaction(ctx, commit); err != nil {
		f.t.Fatal(err)
	}
}

func (w *world) charges(topic string, n int) (records []*kgo.Record, ids []string) {
	for range n {
		id := uuid.NewString()
		account, amount := chargeOf(id)
		records = append(records, &kgo.Record{Topic: topic, Value: message(id, account, amount), Headers: structured})
		ids = append(ids, id)
	}
	return records, ids
}

// TestForeignTransactionsOnInput: what a source aborted is never billed, what is
// open is billed when it is committed, and the idle lane's offset follows the
// tail that has no records.
func TestForeignTransactionsOnInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	f := newForeign(t)

	aborted, _ := w.charges(w.topic, 20)
	f.begin(aborted...)
	f.end(kgo.TryAbort)
	w.charge(0, 30)

	open, ids := w.charges(w.topic, 20)
	f.begin(open...)
	s := w.run("")
	w.waitAccounted() // the 30 of the middle; what is open holds back only what follows

	f.end(kgo.TryCommit)
	w.sent += int64(len(ids))
	for _, id := range ids {
		w.expect(chargeOf(id))
	}
	w.waitAccounted()
	before := w.decided(0)

	f.begin(aborted...)
	f.end(kgo.TryAbort)
	servers.Eventually(t, 3*time.Minute, func() error {
		end := endOf(t, w) // the marker comes after the answer to EndTxn
		if d := w.decided(0); d.Next != end || d.Seq != before.Seq || d.GTRID != before.GTRID {
			return fmt.Errorf("D is %+v, want the same epoch as %+v with offset %d", d, before, end)
		}
		return nil
	})
	s.waitSays("/metrics", 200, "billing_lag_records{partition=\"0\"} 0\n")

	// Retention passes what is over, and nothing that is needed goes with it. The
	// chain of epochs has no hole although D's offset moved without one.
	s.stop()
	w.trim(w.topic, 0, -1)
	s = w.run("")
	w.charge(0, 10)
	w.waitAccounted()
	s.stop()
	w.exact()
}

func endOf(t *testing.T, w *world) int64 {
	t.Helper()
	ends, err := shared.kafka.Admin(t).ListEndOffsets(t.Context(), w.topic)
	if err != nil {
		t.Fatal(err)
	}
	o, ok := ends.Lookup(w.topic, 0)
	if !ok || o.Err != nil {
		t.Fatalf("end of the input: %v", o.Err)
	}
	return o.Offset
}

// TestForeignTransactionsOnOwnTopics: another producer's open transaction on the
// decision or state topic makes a start wait, with a clear word in the log, and
// never go on from older state; an aborted one is never read.
func TestForeignTransactionsOnOwnTopics(t *testing.T) {
	t.Parallel()
	for _, topic := range []string{"decision", "state"} {
		t.Run(topic, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			s := w.run("")
			ids := w.charge(0, 50)
			w.waitAccounted()
			s.stop()
			n := w.decided(0)

			f := newForeign(t)
			junk := &kgo.Record{Topic: w.job + "." + topic, Key: []byte(w.topic + "/0"), Value: []byte(`{"v":1,"seq":999}`)}
			f.begin(junk)
			f.end(kgo.TryAbort)
			f.begin(junk)

			s = w.run("")
			w.again(0, ids)
			servers.Eventually(t, 2*time.Minute, func() error {
				return errors.Join(contains(s.output(), saysEnded), contains(s.output(), "another producer's transaction is open"))
			})
			all(t, "epochs while the foreign transaction is open", w.epochs(0), n.Seq)
			f.end(kgo.TryAbort)
			w.charge(0, 10)
			w.waitAccounted()
			s.stop()
			w.exact()
		})
	}
}
