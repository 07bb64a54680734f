package consumetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

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

	t.Run("who leaves is silent, also when its leave is lost", func(t *testing.T) {
		r := NewRig(t, brokers, 1)
		net := NewNetwork()
		m := r.JoinAll(t, 1, func(c *consume.Config) { c.SessionTimeout, c.Dial = time.Second, net.Dial })
		lost := net.Drop(kmsg.LeaveGroup)
		defer lost.Heal()
		left := make(chan struct{})
		go func() {
			m.Leave()
			close(left)
		}()
		lost.Await(t)
		before := net.Sent(kmsg.Heartbeat)
		<-left // many heartbeats later
		if n := net.Sent(kmsg.Heartbeat) - before; n > 0 {
			t.Errorf("%d heartbeats after the leave: the group goes on waiting for this member", n)
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

	t.Run("a member that leaves while a join waits for a dead one is out at once", func(t *testing.T) {
		r := NewRig(t, brokers, 1)
		net := NewNetwork()
		dead := r.JoinAll(t, 1, func(c *consume.Config) {
			c.Dial = net.Dial
			c.SessionTimeout, c.RebalanceTimeout = 5*time.Minute, 10*time.Minute
		})
		for _, key := range []kmsg.Key{kmsg.Heartbeat, kmsg.JoinGroup} {
			defer net.Drop(key).Heal()
		}
		members := func(want int) {
			t.Helper()
			Eventually(t, func() error {
				groups, err := r.Admin.DescribeGroups(t.Context(), r.Job)
				if n := len(groups[r.Job].Members); err == nil && n != want {
					err = fmt.Errorf("%d members in the group, want %d", n, want)
				}
				return err
			})
		}
		joining := r.Join(t, nil)
		members(2)
		joining.Leave()
		members(1)
		dead.Leave()
		members(0)
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

	t.Run("lanes that were lost may take their time to end", func(t *testing.T) {
		r := NewRig(t, brokers, 2)
		net := NewNetwork()
		m := r.Join(t, func(c *consume.Config) {
			c.Dial = net.Dial
			c.SessionTimeout = 2 * time.Second
			c.RequestTimeout = 500 * time.Millisecond
		})
		ended := make(chan struct{})
		losing := make(chan struct{}, 1) // a second loss would wait here, and not be noted
		m.Log.OnLost = func([]int32) {
			if m.Assigned(0) {
				t.Error("being lost, and still assigned")
			}
			losing <- struct{}{}
			select {
			case <-ended:
			case <-t.Context().Done():
			}
		}
		both := func(m *Member) {
			m.AwaitAssigned(t, 0)
			m.AwaitAssigned(t, 1)
		}
		both(m)
		beats := net.Drop(kmsg.Heartbeat)
		defer beats.Heal()
		<-losing
		beats.Heal()
		// Everybody else goes on, and so does our fetching.
		joins, others := net.Sent(kmsg.JoinGroup), NewNetwork()
		other := r.Join(t, func(c *consume.Config) { c.Dial, c.SessionTimeout = others.Dial, 2*time.Second })
		both(other)
		r.Write(t, 0, "a")
		m.Start(0, 1, 0, -1)
		m.Log.AwaitValues(t, 0, 1, "a")
		m.Stop(0)
		Eventually(t, func() error {
			if n := others.Sent(kmsg.Heartbeat); n < 4 { // so long a time that we would have joined again
				return fmt.Errorf("the other member's heartbeats: %d", n)
			}
			return nil
		})
		if got := m.Log.Calls(); len(got) != 1 || net.Sent(kmsg.JoinGroup) != joins {
			t.Fatalf("joined again while the lanes were ending; calls: %q", got)
		}
		other.Leave()
		close(ended)
		both(m)
		equal(t, m.Log.Calls(), "assigned [0 1]", "lost [0 1]", "assigned [0 1]")
	})

	t.Run("how far the partitions go", func(t *testing.T) {
		r := NewRig(t, brokers, 2)
		if ends, err := r.Open(t, nil).Ends(t.Context()); len(ends) > 0 || err != nil {
			t.Fatalf("a member of nothing: %v, %v", ends, err)
		}
		m := r.JoinAll(t, 2, nil)
		r.Write(t, 0, "a", "b", "c")
		f := r.Foreign(t, r.Topic, 1, "open")
		ends, err := m.Ends(t.Context())
		if want := map[int32]int64{0: 3, 1: 1}; err != nil || !maps.Equal(ends, want) {
			t.Fatalf("got %v, %v, want %v", ends, err, want)
		}
		f.End(kgo.TryAbort)
	})
}
