package consumetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/checkpoint"
	"billing/internal/consume"
)

// Group is the suite of membership.
func Group(t *testing.T, brokers []string) {
	t.Run("lanes move to a second member and back", func(t *testing.T) {
		r := NewRig(t, brokers, 4)
		first := r.Join(t, nil)
		first.Log.OnRevoked = func(ctx context.Context, ps []int32) {
			if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > 5*time.Second {
				t.Errorf("Revoked has time until %v", deadline)
			}
			for _, p := range ps {
				if !first.Assigned(p) {
					t.Errorf("partition %d was taken away before it was let go", p)
				}
			}
		}
		for p := range int32(4) {
			first.AwaitAssigned(t, p)
		}
		second := r.Join(t, nil)
		owned := func(m *Member) (ps []int32) {
			for p := range int32(4) {
				if m.Assigned(p) {
					ps = append(ps, p)
				}
			}
			return ps
		}
		Eventually(t, func() error {
			a, b := owned(first), owned(second)
			if len(a) != 2 || len(b) != 2 || slices.ContainsFunc(a, func(p int32) bool { return slices.Contains(b, p) }) {
				return fmt.Errorf("%v and %v", a, b)
			}
			return nil
		})
		moved := owned(second)
		if want := fmt.Sprint("revoked ", moved); !slices.Contains(first.Log.Calls(), want) {
			t.Fatalf("the first member's calls: %q, want %q among them", first.Log.Calls(), want)
		}
		second.Leave()
		if want := fmt.Sprint("revoked ", moved); !slices.Contains(second.Log.Calls(), want) {
			t.Fatalf("the second member's calls: %q, want %q among them", second.Log.Calls(), want)
		}
		for p := range int32(4) {
			first.AwaitAssigned(t, p)
		}
	})

	t.Run("a lane that stays decides while members come and go", func(t *testing.T) {
		r := NewRig(t, brokers, 2)
		m := r.JoinAll(t, 2, nil)
		var others []*Member
		kept := int32(-1)
		other := r.Join(t, nil)
		Eventually(t, func() error {
			for p := range int32(2) {
				if m.Assigned(p) && other.Assigned(1-p) {
					kept = p
					return nil
				}
			}
			return errors.New("not shared yet")
		})
		others = append(others, other)
		lane := r.Lane(kept)
		o := Fence(t, m.Client, lane)
		n := 0
		for range 4 { // four more rebalances, with decisions one after the other
			_, before := m.Generation()
			if len(others) == 1 {
				others = append(others, r.Join(t, nil))
			} else {
				go others[1].Leave()
				others = others[:1]
			}
			for moved := false; !moved; n++ {
				if _, err := Decide(t.Context(), o, int64(n), fmt.Sprint("D", n)); err != nil {
					t.Fatalf("decision %d: %v", n, err)
				}
				_, after := m.Generation()
				moved = after != before
			}
		}
		o.Close()
		MustBe(t, m.Client, lane, int64(n-1), fmt.Sprint("D", n-1))
	})

	t.Run("a static member gets its lanes back", func(t *testing.T) {
		r := NewRig(t, brokers, 2)
		static := func(id string) func(*consume.Config) {
			return func(c *consume.Config) {
				c.InstanceID = id
				c.SessionTimeout = 30 * time.Second
				c.RebalanceTimeout = 30 * time.Second
			}
		}
		a := r.Join(t, static("a"))
		b := r.Join(t, static("b"))
		Eventually(t, func() error {
			for p := range int32(2) {
				if a.Assigned(p) && b.Assigned(1-p) {
					return nil
				}
			}
			return errors.New("not shared yet")
		})
		mine := int32(0)
		if a.Assigned(1) {
			mine = 1
		}
		calls := len(b.Log.Calls())
		a.Leave()
		a = r.Join(t, static("a"))
		a.AwaitAssigned(t, mine)
		MustDecide(t, Fence(t, a.Client, r.Lane(mine)), 1, "D1")
		if got := b.Log.Calls(); len(got) != calls {
			t.Fatalf("the other member was called: %q", got[calls:])
		}
	})

	t.Run("a rebalance that waits for a dead member stops nobody else", func(t *testing.T) {
		r := NewRig(t, brokers, 2)
		session := func(d time.Duration, net *Network) func(*consume.Config) {
			return func(c *consume.Config) { c.SessionTimeout, c.Dial = d, net.Dial }
		}
		// The living member's session is shorter than the wait for the dead one.
		living := r.Join(t, session(1500*time.Millisecond, NewNetwork()))
		net := NewNetwork()
		dead := r.Join(t, session(6*time.Second, net))
		kept := int32(-1)
		Eventually(t, func() error {
			for p := range int32(2) {
				if living.Assigned(p) && dead.Assigned(1-p) {
					kept = p
					return nil
				}
			}
			return errors.New("not shared yet")
		})
		for _, key := range []kmsg.Key{kmsg.Heartbeat, kmsg.JoinGroup, kmsg.SyncGroup, kmsg.LeaveGroup} {
			defer net.Drop(key).Heal()
		}
		r.Join(t, nil) // begins the rebalance
		o := Fence(t, living.Client, r.Lane(kept))
		_, before := living.Generation()
		n := 0
		for after := before; after == before; _, after = living.Generation() {
			if !living.Fresh() || !living.Assigned(kept) {
				t.Fatal("not fresh during the rebalance")
			}
			n++
			MustDecide(t, o, int64(n), fmt.Sprint("D", n))
		}
		MustDecide(t, o, int64(n)+1, "last")
	})

	t.Run("silence makes the group's word stale, and then the lanes are lost", func(t *testing.T) {
		r := NewRig(t, brokers, 1)
		net := NewNetwork()
		m := r.JoinAll(t, 1, func(c *consume.Config) {
			c.Dial = net.Dial
			c.SessionTimeout = 2 * time.Second
			c.RequestTimeout = 500 * time.Millisecond
		})
		beats, joins := net.Drop(kmsg.Heartbeat), net.Drop(kmsg.JoinGroup)
		defer joins.Heal()
		defer beats.Heal()
		Eventually(t, func() error {
			if m.Fresh() {
				return errors.New("still fresh")
			}
			return nil
		})
		m.Log.Await(t, func(l *Log) error {
			if calls := l.Calls(); calls[len(calls)-1] != "lost [0]" {
				return fmt.Errorf("calls: %q", calls)
			}
			return nil
		})
		if m.Assigned(0) {
			t.Fatal("lost, and still assigned")
		}
		beats.Heal()
		joins.Heal()
		m.AwaitAssigned(t, 0) // and it comes back by itself
	})
}

// Topics is the suite of what is checked at the start.
func Topics(t *testing.T, brokers []string) {
	t.Run("the job's topics", func(t *testing.T) {
		r := NewRig(t, brokers, 2)
		c := r.Open(t, nil)
		in, err := c.Check(t.Context())
		if err != nil || in.Partitions != 2 || in.ID.IsZero() || in.Replication != 1 {
			t.Fatalf("%+v, %v", in, err)
		}
		if err := c.EnsureTopics(t.Context(), false); err != nil { // they are there
			t.Fatal(err)
		}
		refused := func(err error, reason, says string) {
			t.Helper()
			var r *checkpoint.Refusal
			if !errors.As(err, &r) || r.Reason != reason || r.Scope != checkpoint.EndsProcess || !strings.Contains(r.Error(), says) {
				t.Fatalf("got %v, want %s: %s", err, reason, says)
			}
		}
		missing := r.Open(t, func(c *consume.Config) { c.Job = "other-" + r.Job })
		refused(missing.EnsureTopics(t.Context(), false), checkpoint.ReasonTopicMissing, "first_start")
		nowhere := r.Open(t, func(c *consume.Config) { c.Topic = "nowhere" })
		_, err = nowhere.Check(t.Context())
		refused(err, checkpoint.ReasonTopicMissing, "nowhere")
		refused(nowhere.EnsureTopics(t.Context(), true), checkpoint.ReasonTopicMissing, "nowhere")
		patient := r.Open(t, func(c *consume.Config) { c.TransactionTimeout = time.Hour })
		_, err = patient.Check(t.Context())
		refused(err, checkpoint.ReasonTransactionTimeout, "transaction.max.timeout.ms")
		_, err = patient.Fence(t.Context(), r.Lane(0))
		refused(err, checkpoint.ReasonTransactionTimeout, "transaction.max.timeout.ms")

		for key, value := range map[string]string{"cleanup.policy": "compact", "retention.ms": "1000", "retention.bytes": "1000", "max.message.bytes": "1000"} {
			set := func(op kadm.IncrementalOp) {
				t.Helper()
				answers, err := r.Admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: op, Name: key, Value: kmsg.StringPtr(value)}}, c.StateTopic())
				if err != nil || answers[0].Err != nil {
					t.Fatal(err, answers)
				}
			}
			set(kadm.SetConfig)
			// A broker knows a change a moment after the answer.
			Eventually(t, func() error {
				err := c.EnsureTopics(t.Context(), true)
				var r *checkpoint.Refusal
				if errors.As(err, &r) && r.Reason == checkpoint.ReasonTopicConfig && strings.Contains(err.Error(), key) {
					return nil
				}
				return fmt.Errorf("%s: got %v", key, err) //nolint:errorlint // a wrapped refusal would end Eventually
			})
			value = map[string]string{"cleanup.policy": "delete", "max.message.bytes": "1048588"}[key]
			if value == "" {
				value = "-1"
			}
			set(kadm.SetConfig)
			Eventually(t, func() error { return errString(c.EnsureTopics(t.Context(), true)) })
		}

		if created, err := r.Admin.CreateTopic(t.Context(), 3, 1, nil, "o-"+r.Job+".decision"); errors.Join(err, created.Err) != nil {
			t.Fatal(err, created.Err)
		}
		other := r.Open(t, func(c *consume.Config) { c.Job = "o-" + r.Job })
		refused(other.EnsureTopics(t.Context(), true), checkpoint.ReasonTopicConfig, "3 partitions")
	})
}

// errString keeps a refusal from ending Eventually: here it may pass.
func errString(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(err.Error())
}
