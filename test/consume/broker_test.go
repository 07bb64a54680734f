package consume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/consume/consumetest"
)

// What a fake broker doesn't do.

func TestMetadataTooLarge(t *testing.T) {
	r := consumetest.NewRig(t, brokers(), 1)
	m := r.JoinAll(t, 1, nil)
	o := consumetest.Fence(t, m.Client, r.Lane(0))
	d := strings.Repeat("D", 4097)
	if err := errors.Join(o.Begin(), o.WriteDecision(t.Context(), d)); err != nil {
		t.Fatal(err)
	}
	if err := o.CommitOffset(t.Context(), 1, -1, d); !errors.Is(err, kerr.OffsetMetadataTooLarge) {
		t.Fatal(err)
	}
	if err := o.Commit(t.Context()); !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
		t.Fatal(err)
	}
	o.Close()
	consumetest.MustBe(t, m.Client, r.Lane(0), 0, "")
}

// The fence would be refused: better at the start, and with the limit.
func TestTransactionTimeoutBeyondTheBrokers(t *testing.T) {
	r := consumetest.NewRig(t, brokers(), 1)
	c := r.Open(t, func(c *consume.Config) { c.TransactionTimeout = 15*time.Minute + time.Millisecond })
	_, err := c.Check(t.Context())
	var refused *checkpoint.Refusal
	if !errors.As(err, &refused) || refused.Reason != checkpoint.ReasonTransactionTimeout || refused.Scope != checkpoint.EndsProcess {
		t.Fatal(err)
	}
	for _, want := range []string{"15m0.001s", "transaction.max.timeout.ms is 900000", "lower kafka.transaction_timeout"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	limit := r.Open(t, func(c *consume.Config) { c.TransactionTimeout = 15 * time.Minute })
	if _, err := limit.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// The offset becomes visible a moment after the answer to EndTxn: a read under
// a fence must never be too early.
func TestEveryReadUnderAFenceIsTheLastDecision(t *testing.T) {
	r := consumetest.NewRig(t, brokers(), 1)
	m := r.JoinAll(t, 1, nil)
	for i := range 60 {
		d := fmt.Sprint("D", i)
		o := consumetest.Fence(t, m.Client, r.Lane(0))
		consumetest.MustDecide(t, o, int64(i), d, "chunk")
		o.Close()
		consumetest.MustBe(t, m.Client, r.Lane(0), int64(i), d)
	}
}

func TestTransactionThatTookTooLong(t *testing.T) {
	r := consumetest.NewRig(t, brokers(), 1)
	m := r.JoinAll(t, 1, func(c *consume.Config) { c.TransactionTimeout = time.Second })
	o := consumetest.Fence(t, m.Client, r.Lane(0))
	consumetest.MustDecide(t, o, 1, "D1")
	if err := errors.Join(o.Begin(), o.WriteDecision(t.Context(), "D2"), o.CommitOffset(t.Context(), 2, -1, "D2")); err != nil {
		t.Fatal(err)
	}
	id := m.TransactionalID(r.Lane(0))
	consumetest.Eventually(t, func() error {
		txns, err := r.Admin.DescribeTransactions(t.Context(), id)
		if err == nil && txns[id].State != "CompleteAbort" {
			err = fmt.Errorf("the transaction is %s", txns[id].State)
		}
		return err
	})
	if err := o.Commit(t.Context()); !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
		t.Fatal(err)
	}
	o.Close()
	consumetest.MustBe(t, m.Client, r.Lane(0), 1, "D1")
}

func TestCompactedDecisions(t *testing.T) {
	r := consumetest.NewRig(t, brokers(), 1)
	m := r.JoinAll(t, 1, nil)
	var configs []kadm.AlterConfig
	for key, value := range map[string]string{"segment.ms": "200", "min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": "0"} {
		configs = append(configs, kadm.AlterConfig{Op: kadm.SetConfig, Name: key, Value: kmsg.StringPtr(value)})
	}
	if answers, err := r.Admin.AlterTopicConfigs(t.Context(), configs, m.DecisionTopic()); err != nil || answers[0].Err != nil {
		t.Fatal(err, answers)
	}
	o := consumetest.Fence(t, m.Client, r.Lane(0))
	n := 0
	decide := func() {
		n++
		consumetest.MustDecide(t, o, int64(n), fmt.Sprint("D", n))
	}
	for range 80 {
		decide()
	}
	// Compacted are only closed segments, which a later write closes.
	consumetest.Eventually(t, func() error {
		decide()
		records := 0
		cl := r.Raw(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{m.DecisionTopic(): {0: kgo.NewOffset().AtStart()}}))
		defer cl.Close()
		for last := ""; last != fmt.Sprint("D", n); {
			for _, rec := range cl.PollFetches(t.Context()).Records() {
				records++
				last = string(rec.Value)
			}
		}
		if records >= n/2 {
			return fmt.Errorf("%d records of %d are left", records, n)
		}
		return nil
	})
	o.Close()
	consumetest.MustBe(t, m.Client, r.Lane(0), int64(n), fmt.Sprint("D", n))
}

// One chain of decisions over everything that can happen to a broker.
func TestRaceWhileTheBrokerSuffers(t *testing.T) {
	kafka.LogsOnFailure(t)
	consumetest.Race(t, brokers(), func(failed func()) {
		steps := []func() error{
			func() error { return kafka.Pause(t.Context()) },
			func() error { failed(); return kafka.Unpause(t.Context()) },
			func() error { return kafka.Kill(t.Context()) },
			func() error { failed(); return kafka.Start(t.Context()) },
			func() error { return kafka.Stop(t.Context()) },
			func() error { return kafka.Start(t.Context()) },
		}
		for i, step := range steps {
			if err := step(); err != nil {
				t.Errorf("step %d: %v", i, err)
			}
		}
	})
}

// Nothing of a load is lost, doubled or out of order by what happens to a broker
// meanwhile.
func TestLoadWhileTheBrokerSuffers(t *testing.T) {
	kafka.LogsOnFailure(t)
	r := consumetest.NewRig(t, brokers(), 2)
	// A slow machine's broker takes its time to start.
	l, err := r.Open(t, func(c *consume.Config) { c.WriteTimeout = 5 * time.Minute }).OpenLoad(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	var want []string
	for i, step := range []func(context.Context) error{kafka.Pause, kafka.Unpause, kafka.Kill, kafka.Start, kafka.Stop, kafka.Start} {
		done := make(chan error, 1)
		go func() { done <- step(t.Context()) }()
		for n := range 6_000 { // those of a step and the next one may be unacknowledged
			m := consume.Message{Partition: int32(n % 2), Value: fmt.Appendf(nil, "step %d message %d", i, n)}
			want = append(want, consumetest.Line(&m))
			if err := l.Write(t.Context(), &m); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-done; err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	if err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	consumetest.SameInOrder(t, r.ReadInput(t, 2, kgo.ReadUncommitted()), want)
}
