package consume_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/consume/consumetest"
)

// What a real broker does only by accident, the fake one does when asked.

type bench struct {
	cluster *kfake.Cluster
	rig     *consumetest.Rig
	member  *consumetest.Member
	network *consumetest.Network
	lane    checkpoint.Lane
}

func newBench(t *testing.T, opts ...kfake.Opt) *bench {
	t.Helper()
	c := fake(t, opts...)
	b := &bench{cluster: c, rig: consumetest.NewRig(t, c.ListenAddrs(), 1), network: consumetest.NewNetwork()}
	b.member = b.rig.JoinAll(t, 1, func(cfg *consume.Config) {
		cfg.Dial = b.network.Dial
		cfg.ReadTimeout = 5 * time.Second
		cfg.MaxBatchBytes = 1 << 20
	})
	b.lane = b.rig.Lane(0)
	return b
}

func (b *bench) open(t *testing.T) checkpoint.Owner {
	t.Helper()
	o := consumetest.Fence(t, b.member.Client, b.lane)
	if err := errors.Join(o.Begin(), o.WriteDecision(t.Context(), "D1")); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestOffsetIsSentAgainWhileTheLaneIsOurs(t *testing.T) {
	for _, code := range []*kerr.Error{
		kerr.IllegalGeneration, kerr.RebalanceInProgress, kerr.StaleMemberEpoch, kerr.UnknownMemberID,
		kerr.CoordinatorLoadInProgress, kerr.NotCoordinator, kerr.ConcurrentTransactions,
	} {
		t.Run(code.Message, func(t *testing.T) {
			b := newBench(t)
			o := b.open(t)
			f := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Err: code, Count: 3})
			if err := errors.Join(o.CommitOffset(t.Context(), 5, -1, "D1"), o.Commit(t.Context())); err != nil {
				t.Fatal(err)
			}
			if f.Hits() != 3 {
				t.Fatalf("%d times", f.Hits())
			}
			consumetest.MustBe(t, b.member.Client, b.lane, 5, "D1")
		})
	}
	t.Run("but not for ever", func(t *testing.T) {
		b := newBench(t)
		o := b.open(t)
		b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Err: kerr.IllegalGeneration, Count: -1})
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		err := o.CommitOffset(ctx, 5, -1, "D1")
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, kerr.IllegalGeneration) {
			t.Fatal(err)
		}
	})
}

// A group takes the offset of a Kafka transaction also without a member. With one it refuses what a member sends that it
// has put out.
func TestOffsetIsSentWithTheMember(t *testing.T) {
	b := newBench(t)
	o := b.open(t)
	sent := make(chan string, 1)
	b.cluster.ControlKey(kmsg.TxnOffsetCommit.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		q := req.(*kmsg.TxnOffsetCommitRequest)
		sent <- fmt.Sprint(q.MemberID, " of generation ", q.Generation)
		return nil, nil, false
	})
	if err := errors.Join(o.CommitOffset(t.Context(), 5, -1, "D1"), o.Commit(t.Context())); err != nil {
		t.Fatal(err)
	}
	memberID, generation := b.member.Generation()
	if got, want := <-sent, fmt.Sprint(memberID, " of generation ", generation); got != want || memberID == "" || generation < 1 {
		t.Errorf("the offset was sent as member %q, want %q", got, want)
	}
}

func TestOffsetRefusedIsNoDecision(t *testing.T) {
	for _, code := range []*kerr.Error{
		kerr.OffsetMetadataTooLarge, kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.FencedInstanceID,
		kerr.InvalidTxnState, kerr.GroupAuthorizationFailed, kerr.UnknownServerError,
	} {
		t.Run(code.Message, func(t *testing.T) {
			b := newBench(t)
			o := b.open(t)
			b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Err: code})
			if err := o.CommitOffset(t.Context(), 5, -1, "D1"); !errors.Is(err, code) {
				t.Fatal(err)
			}
			if err := o.CommitOffset(t.Context(), 5, -1, "D1"); err == nil {
				t.Fatal("sent again after an error")
			}
			if err := o.Commit(t.Context()); !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
				t.Fatal(err)
			}
			if n := b.network.Sent(kmsg.EndTxn); n != 0 {
				t.Fatalf("EndTxn was sent %d times", n)
			}
			o.Close()
			consumetest.MustBe(t, b.member.Client, b.lane, 0, "")
		})
	}
}

func TestEndTxnErrorIsUnknown(t *testing.T) {
	for _, code := range []*kerr.Error{
		kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidTxnState, kerr.UnknownServerError,
		kerr.TransactionAbortable, kerr.InvalidProducerIDMapping, kerr.TransactionalIDAuthorizationFailed,
	} {
		t.Run(code.Message, func(t *testing.T) {
			b := newBench(t)
			o := b.open(t)
			if err := o.CommitOffset(t.Context(), 5, -1, "D1"); err != nil {
				t.Fatal(err)
			}
			b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: code, TopLevel: true})
			err := o.Commit(t.Context())
			if !errors.Is(err, checkpoint.ErrOutcomeUnknown) || !errors.Is(err, code) {
				t.Fatal(err)
			}
			o.Abort(t.Context())
			if n := b.network.Sent(kmsg.EndTxn); n != 1 {
				t.Fatalf("EndTxn was sent %d times: another word after an unknown outcome", n)
			}
		})
	}
}

// A good answer counts only if it has moved the producer one epoch on.
func TestEndTxnAnswerMustMoveTheEpoch(t *testing.T) {
	for name, change := range map[string]func(*kmsg.EndTxnResponse, *kmsg.EndTxnRequest){
		"no epoch": func(r *kmsg.EndTxnResponse, _ *kmsg.EndTxnRequest) { r.ProducerID, r.ProducerEpoch = -1, -1 },
		"the same epoch": func(r *kmsg.EndTxnResponse, q *kmsg.EndTxnRequest) {
			r.ProducerID, r.ProducerEpoch = q.ProducerID, q.ProducerEpoch
		},
		"two epochs": func(r *kmsg.EndTxnResponse, q *kmsg.EndTxnRequest) {
			r.ProducerID, r.ProducerEpoch = q.ProducerID, q.ProducerEpoch+2
		},
		"another producer":   func(r *kmsg.EndTxnResponse, q *kmsg.EndTxnRequest) { r.ProducerID, r.ProducerEpoch = q.ProducerID+1, 0 },
		"an abort's version": func(r *kmsg.EndTxnResponse, _ *kmsg.EndTxnRequest) { r.ProducerID, r.ProducerEpoch = 0, 0 },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			o := b.open(t)
			if err := o.CommitOffset(t.Context(), 5, -1, "D1"); err != nil {
				t.Fatal(err)
			}
			b.cluster.ControlKey(kmsg.EndTxn.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
				q := req.(*kmsg.EndTxnRequest)
				r := q.ResponseKind().(*kmsg.EndTxnResponse)
				change(r, q)
				return r, nil, true
			})
			if err := o.Commit(t.Context()); !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
				t.Fatalf("a producer that has not moved one epoch on has decided: %v", err)
			}
		})
	}
}

// Only a position that is not in the log any more is a refusal.
func TestFetchErrorsEndOnlyTheSession(t *testing.T) {
	b := newBench(t)
	b.rig.Write(t, 0, "a")
	session := uint64(0)
	for _, code := range []*kerr.Error{kerr.UnknownServerError, kerr.TopicAuthorizationFailed, kerr.UnknownTopicID, kerr.UnsupportedVersion} {
		fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: b.rig.Topic, Err: code, Count: -1})
		session++
		b.member.Start(0, session, 0, -1)
		if err := b.member.Log.AwaitFailed(t, 0, session); !errors.Is(err, code) || checkpoint.AsRefusal(err) != nil {
			t.Fatalf("%s: %v", code.Message, err)
		}
		fault.Remove()
		session++
		b.member.Start(0, session, 0, -1)
		b.member.Log.AwaitValues(t, 0, session, "a")
	}
}

// A dial that timed out says context.DeadlineExceeded, and is not the context's
// end.
func TestDialsThatTimeOutAreTriedAgain(t *testing.T) {
	var dead net.Dialer
	dead.Deadline = time.Unix(1, 0)
	var failed atomic.Int64
	var alive atomic.Bool
	alive.Store(true)
	r := consumetest.NewRig(t, fake(t).ListenAddrs(), 1)
	c := r.Open(t, func(cfg *consume.Config) {
		cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if alive.Load() {
				return new(net.Dialer).DialContext(ctx, network, address)
			}
			_, err := dead.DialContext(ctx, network, address)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a dial that timed out: %v", err)
			}
			failed.Add(1)
			return nil, err
		}
	})
	o := consumetest.Fence(t, c, r.Lane(0))
	alive.Store(false) // the partition's leader is not connected yet
	done := make(chan error, 1)
	go func() {
		_, err := o.Read(t.Context())
		done <- err
	}()
	consumetest.Eventually(t, func() error {
		select {
		case err := <-done:
			t.Fatalf("given up: %v", err)
		default:
		}
		if n := failed.Load(); n < 5 {
			return fmt.Errorf("%d dials", n)
		}
		return nil
	})
	alive.Store(true)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestReadWaitsForAStableOffset(t *testing.T) {
	b := newBench(t)
	consumetest.MustDecide(t, consumetest.Fence(t, b.member.Client, b.lane), 3, "D1")
	f := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Topic: b.rig.Topic, Err: kerr.UnstableOffsetCommit, Count: 4})
	consumetest.MustBe(t, b.member.Client, b.lane, 3, "D1")
	if f.Hits() != 4 {
		t.Fatalf("%d times", f.Hits())
	}
	b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Topic: b.rig.Topic, Err: kerr.UnstableOffsetCommit, Count: -1})
	_, err := consumetest.Fence(t, b.member.Client, b.lane).Read(t.Context())
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, kerr.UnstableOffsetCommit) {
		t.Fatal(err)
	}
}
