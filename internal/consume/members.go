package consume

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// Member is one instance in the job's consumer group, as the group has it: a
// dead one stays until its session times out.
type Member struct {
	ID       string
	Instance string // kafka.instance_id; "" for a dynamic member
	Host     string // its address, as the broker sees it
	// AdminAddr is where its admin port can be asked, host:port; "" where the
	// member doesn't say. Somebody else may listen there by now: the answer has to
	// be this member's.
	AdminAddr string
	Lanes     []int32 // partitions of the input, in order; none in a rebalance
}

// Members asks for the job's group. state is the group's word for itself:
// "Stable", "Empty", "PreparingRebalance", "CompletingRebalance", or "Dead" for a
// group that there is not.
func (c *Client) Members(ctx context.Context) (state string, members []Member, err error) {
	err = again(ctx, transient, func() error {
		groups, err := kadm.NewClient(c.fetch.cl).DescribeGroups(ctx, c.cfg.Job)
		if err != nil {
			return err
		}
		g, ok := groups[c.cfg.Job]
		if !ok {
			return errors.New("an answer without the group")
		}
		if errors.Is(g.Err, kerr.GroupIDNotFound) {
			state, members = "Dead", nil
			return nil
		}
		if g.Err != nil {
			return g.Err
		}
		state, members = g.State, nil
		for i := range g.Members {
			members = append(members, c.memberOf(&g.Members[i]))
		}
		return nil
	})
	if err != nil {
		return "", nil, failed("group "+c.cfg.Job, "ask for the members of group "+c.cfg.Job, err)
	}
	return state, members, nil
}

func (c *Client) memberOf(d *kadm.DescribedGroupMember) Member {
	m := Member{ID: d.MemberID, Host: plainHost(d.ClientHost)}
	m.AdminAddr = adminAddr(d.ClientID, c.cfg.clientID(), m.Host)
	if d.InstanceID != nil {
		m.Instance = *d.InstanceID
	}
	if assigned, ok := d.Assigned.AsConsumer(); ok {
		for _, t := range assigned.Topics {
			if t.Topic == c.cfg.Topic {
				m.Lanes = append(m.Lanes, t.Partitions...)
			}
		}
	}
	slices.Sort(m.Lanes)
	return m
}

// plainHost is the address alone of what a broker calls a host: it may have a
// name, or nothing, before a slash, and the one in memory adds a port.
func plainHost(s string) string {
	s = s[strings.LastIndexByte(s, '/')+1:]
	if host, _, err := net.SplitHostPort(s); err == nil {
		return host
	}
	return s
}

// adminAddr is where the admin port of a member is reached whose client id and
// host these are. A port that listens on every address is reached by the one
// that the broker sees.
func adminAddr(clientID, ours, memberHost string) string {
	listen, ok := strings.CutPrefix(clientID, ours+"@")
	if !ok {
		return ""
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = memberHost
	}
	return net.JoinHostPort(host, port)
}
