package consume_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/consume"
	"billing/internal/consume/consumetest"
)

// What a Load says of a transaction is true, or it says that it does not know.
func TestLoadKnowsHowATransactionEnded(t *testing.T) {
	messages := []consume.Message{{Key: []byte("k"), Value: []byte("v")}}
	for _, commit := range []bool{true, false} {
		for name, c := range map[string]struct {
			fault func(*kfake.Cluster)
			says  string
		}{
			"the other end": {func(c *kfake.Cluster) {
				c.ControlKey(kmsg.EndTxn.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
					req.(*kmsg.EndTxnRequest).Commit = !commit
					return nil, nil, false
				})
			}, map[bool]string{true: "that was to end as CompleteCommit is CompleteAbort", false: "that was to end as CompleteAbort is CompleteCommit"}[commit]},
			"no end": {func(c *kfake.Cluster) {
				c.ControlKey(kmsg.EndTxn.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
					q := req.(*kmsg.EndTxnRequest)
					r := q.ResponseKind().(*kmsg.EndTxnResponse)
					r.ProducerID, r.ProducerEpoch = q.ProducerID, q.ProducerEpoch+1
					return r, nil, true
				})
			}, "is Ongoing"},
			"an error": {func(c *kfake.Cluster) {
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.InvalidProducerEpoch, TopLevel: true})
			}, "what became of it is not known: INVALID_PRODUCER_EPOCH"},
			"no word of it": {func(c *kfake.Cluster) {
				c.ControlKey(kmsg.DescribeTransactions.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
					r := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
					state := kmsg.NewDescribeTransactionsResponseTransactionState()
					state.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
					r.TransactionStates = append(r.TransactionStates, state)
					return r, nil, true
				})
			}, "what became of it is not known: TRANSACTIONAL_ID_AUTHORIZATION_FAILED"},
		} {
			t.Run(fmt.Sprintf("%s, commit %v", name, commit), func(t *testing.T) {
				cluster := fake(t)
				r := consumetest.NewRig(t, cluster.ListenAddrs(), 1)
				l, err := r.Open(t, nil).OpenLoad(t.Context(), r.Job+"-load")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close(t.Context())
				c.fault(cluster)
				consumetest.RememberEnds(cluster)
				if err := l.Transaction(t.Context(), messages, commit); err == nil || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("got %v", err)
				}
			})
		}
	}
}

// One message that is not written is an error of the whole load, also where those
// behind it are.
func TestLoadLosesNothingSilently(t *testing.T) {
	for _, transactionalID := range []string{"", "load"} {
		cluster := fake(t)
		consumetest.RememberEnds(cluster)
		r := consumetest.NewRig(t, cluster.ListenAddrs(), 2)
		l, err := r.Open(t, nil).OpenLoad(t.Context(), transactionalID)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close(t.Context())
		cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: r.Topic, Partitions: []int32{1}, Err: kerr.TopicAuthorizationFailed, Count: -1})
		messages := []consume.Message{{Partition: 0, Value: []byte("0")}, {Partition: 1, Value: []byte("1")}, {Partition: 0, Value: []byte("0")}}
		if transactionalID != "" {
			err = l.Transaction(t.Context(), messages, true)
		} else {
			for i := range messages {
				err = errors.Join(err, l.Write(t.Context(), &messages[i]))
			}
			err = errors.Join(err, l.Flush(t.Context()))
		}
		if !errors.Is(err, kerr.TopicAuthorizationFailed) || !strings.Contains(err.Error(), r.Topic+"/1") {
			t.Fatalf("got %v", err)
		}
		l.Close(t.Context())
		if n := len(r.ReadInput(t, 2, kgo.ReadCommitted())); transactionalID != "" && n > 0 {
			t.Errorf("%d messages are committed", n)
		}
	}
}

// Before a broker that restarts there may be somebody who takes connections and
// closes them.
func TestLoadWaitsBehindAnOpenPort(t *testing.T) {
	var closed atomic.Bool
	var dials atomic.Int64
	network := consumetest.NewNetwork()
	r := consumetest.NewRig(t, fake(t).ListenAddrs(), 1)
	c := r.Open(t, func(cfg *consume.Config) {
		cfg.Dial = func(ctx context.Context, n, address string) (net.Conn, error) {
			conn, err := network.Dial(ctx, n, address)
			if err == nil && closed.Load() {
				dials.Add(1)
				return eof{conn}, nil
			}
			return conn, err
		}
	})
	l, err := c.OpenLoad(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	closed.Store(true)
	fault := network.Cut(kmsg.Produce)
	if err := l.Write(t.Context(), &consume.Message{Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	consumetest.Eventually(t, func() error {
		if n := dials.Load(); n < 5 {
			return fmt.Errorf("%d dials", n)
		}
		return nil
	})
	fault.Heal()
	closed.Store(false)
	if err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// eof is a connection that was closed from the other end when it was opened.
type eof struct{ net.Conn }

func (eof) Read([]byte) (int, error)    { return 0, io.EOF }
func (eof) Write(b []byte) (int, error) { return len(b), nil }
