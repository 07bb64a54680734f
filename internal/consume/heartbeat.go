package consume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Fresh reports whether the group's word still counts: the last heartbeat
// that the group accepted was sent less than a session timeout ago, so that it
// can't have given our lanes away since.
func (c *Client) Fresh() bool {
	m := c.member.Load()
	if m == nil {
		return false
	}
	beat := m.beat.Load()
	return beat != 0 && time.Since(m.born)-time.Duration(beat) < c.cfg.SessionTimeout
}

// Joined reports whether the group has taken us in since Run began, with or
// without lanes for us.
func (c *Client) Joined() bool {
	m := c.member.Load()
	return m != nil && m.joined.Load()
}

// GroupProblem says why we are not in the group, since when, and what to do;
// "" while we are in it, and before the group has said anything.
func (c *Client) GroupProblem() string {
	m := c.member.Load()
	if m == nil {
		return ""
	}
	p := m.problem.Load()
	if p == nil {
		return ""
	}
	s := fmt.Sprintf("not in the consumer group %s for %s: %v", c.cfg.Job, time.Since(p.since).Round(time.Second), p.err)
	if next := groupNext(p.err); next != "" {
		s += ". Next step: " + next
	}
	return s
}

// groupNext is what an operator can do where waiting does not help.
func groupNext(err error) string {
	for _, known := range []struct {
		err  error
		next string
	}{
		{kerr.InvalidSessionTimeout, "set kafka.session_timeout to what the brokers allow (group.min.session.timeout.ms to group.max.session.timeout.ms), or change those"},
		{kerr.GroupAuthorizationFailed, "grant this service READ on the group"},
		{kerr.TopicAuthorizationFailed, "grant this service READ and DESCRIBE on the topic"},
		{kerr.FencedInstanceID, "give each instance a kafka.instance_id of its own: another one uses ours"},
		{kerr.UnreleasedInstanceID, "give each instance a kafka.instance_id of its own: another one uses ours"},
		{kerr.InconsistentGroupProtocol, "find what else joins this group: its name is the job's, and nobody else's"},
		{kerr.GroupMaxSizeReached, "run fewer instances, or raise the brokers' group.max.size"},
	} {
		if errors.Is(err, known.err) {
			return known.next
		}
	}
	return ""
}

// groupProblem is why the group is not joined.
type groupProblem struct {
	err   error // the last
	since time.Time
}

// OnGroupManageError implements kgo.HookGroupManageError: the library has given
// up what we had in the group, and joins again after a while.
func (m *membership) OnGroupManageError(err error) {
	p := &groupProblem{err: err, since: time.Now()}
	if before := m.problem.Load(); before != nil {
		p.since = before.since
	}
	m.problem.Store(p)
	const line = "kafka: out of the group, joining again"
	if next := groupNext(err); m.log.due(line + next) {
		attrs := []any{"err", err}
		if next != "" {
			attrs = append(attrs, "next_step", next)
		}
		m.log.log.Warn(line, attrs...)
	}
}

// in notes that the group has taken us in. That is known when the library says
// what is assigned, which it does after each join, lanes or none; as fresh as
// the request is by which it came.
func (m *membership) in() {
	m.joined.Store(true)
	m.problem.Store(nil)
	if sent := m.synced.Load(); sent != 0 {
		m.heard(sent)
	}
}

// OnBrokerE2E implements kgo.HookBrokerE2E. It sees that a request was
// answered, not how: so it only notes when the sync was sent that may have taken
// us in.
func (m *membership) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	if kmsg.Key(key) == kmsg.SyncGroup && e2e.Err() == nil {
		m.synced.Store(m.before(e2e.DurationE2E()))
	}
}

// before is the time so long ago, in ns after born, and never 0.
func (m *membership) before(ago time.Duration) int64 {
	return max(int64(time.Since(m.born)-ago), 1)
}

// heard notes that the group has accepted a request of ours that was sent then.
// The broker counts from when it saw it, which is not before it was sent; when
// the answer is read says nothing: we may have been frozen.
func (m *membership) heard(sent int64) {
	for {
		last := m.beat.Load()
		if last >= sent || m.beat.CompareAndSwap(last, sent) {
			return
		}
	}
}

// keepFresh asks the group, four times in a session timeout, whether it still
// has us. The library's own heartbeats can't tell: its hooks don't see a
// refusal, and it sends none while it waits in a rebalance, which can take
// longer than the session timeout (a killed member that comes back is waited
// for under its old id). The lanes that stay go on deciding meanwhile.
func (c *Client) keepFresh(ctx context.Context, m *membership) {
	every := c.cfg.SessionTimeout / 4
	for wait := every; pause(ctx, wait) == nil; {
		wait = every
		req := kmsg.NewPtrHeartbeatRequest()
		req.Group = c.cfg.Job
		req.MemberID, req.Generation = m.cl.GroupMetadata()
		if req.MemberID == "" || req.Generation < 0 {
			continue
		}
		if id := c.cfg.InstanceID; id != "" {
			req.InstanceID = kmsg.StringPtr(id)
		}
		sent := m.before(0)
		try, cancel := context.WithTimeout(ctx, every)
		resp, err := req.RequestWith(try, c.fetch.cl)
		cancel()
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err == nil || errors.Is(err, kerr.RebalanceInProgress) {
			m.heard(sent)
			continue
		}
		wait = every / 4 // a rebalance has just changed the generation, or an answer was lost
	}
}
