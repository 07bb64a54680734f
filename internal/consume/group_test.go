package consume_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/consume"
	"billing/internal/consume/consumetest"
)

// problem waits until the group's problem names the code and the next step.
func problem(t *testing.T, m *consumetest.Member, code *kerr.Error, next string) {
	t.Helper()
	consumetest.Eventually(t, func() error {
		if p := m.GroupProblem(); !strings.Contains(p, code.Message) || !strings.Contains(p, next) {
			return fmt.Errorf("the group's problem is %q", p)
		}
		return nil
	})
}

func TestSessionTimeoutThatTheBrokerRefuses(t *testing.T) {
	c := fake(t, kfake.GroupMinSessionTimeout(10*time.Second))
	m := consumetest.NewRig(t, c.ListenAddrs(), 1).Join(t, nil)
	problem(t, m, kerr.InvalidSessionTimeout, "kafka.session_timeout")
	if m.Joined() || m.Fresh() || m.Assigned(0) {
		t.Fatal("a member of a group that refuses it")
	}
}

func TestGroupProblemEndsWithTheNextJoin(t *testing.T) {
	c := fake(t)
	r := consumetest.NewRig(t, c.ListenAddrs(), 1)
	if idle := r.Open(t, nil); idle.Joined() || idle.GroupProblem() != "" {
		t.Fatal("a client that does not run says something of the group")
	}
	for _, key := range []kmsg.Key{kmsg.JoinGroup, kmsg.SyncGroup} {
		fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: kerr.GroupAuthorizationFailed, Count: -1})
		m := r.Join(t, nil)
		problem(t, m, kerr.GroupAuthorizationFailed, "READ on the group")
		if m.Joined() {
			t.Fatalf("joined without %s", key.Name())
		}
		fault.Remove()
		m.AwaitAssigned(t, 0)
		if p := m.GroupProblem(); p != "" || !m.Joined() {
			t.Fatalf("assigned, and still: %q", p)
		}
		m.Leave()
	}
}

// A refused request is answered too, and proves nothing.
func TestRefusedRequestsAreNotFresh(t *testing.T) {
	c := fake(t)
	m := consumetest.NewRig(t, c.ListenAddrs(), 1).JoinAll(t, 1, func(c *consume.Config) { c.SessionTimeout = time.Second })
	for _, key := range []kmsg.Key{kmsg.Heartbeat, kmsg.SyncGroup} {
		c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: kerr.UnknownMemberID, Count: -1})
	}
	consumetest.Eventually(t, func() error {
		if m.Fresh() {
			return errors.New("fresh by refusals")
		}
		return nil
	})
}
