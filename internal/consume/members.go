package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// Member is one instance in the job's consumer group, as the group has it: a
// dead one stays until its session times out.
type Member struct {
	ID       string
	Instance string // kafka.instance_id; "" for a dynamic member
	ClientID string
	Host     string  // its address, as the broker sees it
	Lanes    []int32 // partitions of the input, in order; none in a rebalance
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
		return "", nil, fmt.Errorf("kafka: ask for the members of group %s: %w", c.cfg.Job, err)
	}
	return state, members, nil
}

func (c *Client) memberOf(d *kadm.DescribedGroupMember) Member {
	m := Member{ID: d.MemberID, ClientID: d.ClientID, Host: d.ClientHost}
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
