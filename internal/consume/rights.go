package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/checkpoint"
)

// neededOperations are what the service does with its topics and its group.
func (c *Client) neededOperations(topic string) []kmsg.ACLOperation {
	switch topic {
	case c.DecisionTopic():
		return []kmsg.ACLOperation{kmsg.ACLOperationRead, kmsg.ACLOperationWrite}
	case c.StateTopic():
		return []kmsg.ACLOperation{kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDelete} // it is trimmed
	}
	return []kmsg.ACLOperation{kmsg.ACLOperationRead}
}

// notTold is what a broker answers that does not tell what we may do.
const notTold = -2147483648

// CheckRights asks what this service may do with the topics and with its group.
// What the cluster doesn't tell passes; so do topics that are not there. Whether
// it may write under the lanes' transactional ids, only the first fence is told.
func (c *Client) CheckRights(ctx context.Context) error {
	problems, err := c.topicRights(ctx)
	if err != nil {
		problems = append(problems, failed("topics", "ask for the rights on the topics", err))
	}
	if err := c.groupRights(ctx); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

func (c *Client) topicRights(ctx context.Context) (problems []error, err error) {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for _, name := range []string{c.cfg.Topic, c.DecisionTopic(), c.StateTopic()} {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, rt)
	}
	resp, err := req.RequestWith(ctx, c.fetch.cl)
	if err != nil {
		return nil, err
	}
	for i := range resp.Topics {
		t := &resp.Topics[i]
		if t.ErrorCode != 0 || t.Topic == nil {
			continue // who looks the topic up says so
		}
		if err := lacking("topic "+*t.Topic, t.AuthorizedOperations, c.neededOperations(*t.Topic)); err != nil {
			problems = append(problems, err)
		}
	}
	return problems, nil
}

func (c *Client) groupRights(ctx context.Context) error {
	name := "group " + c.cfg.Job
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{c.cfg.Job}
	req.IncludeAuthorizedOperations = true
	var g kmsg.DescribeGroupsResponseGroup
	err := again(ctx, transient, func() error {
		resp, err := req.RequestWith(ctx, c.fetch.cl)
		if err != nil {
			return err
		}
		if len(resp.Groups) != 1 {
			return errors.New("an answer without the group")
		}
		g = resp.Groups[0]
		return kerr.ErrorForCode(g.ErrorCode)
	})
	switch {
	case errors.Is(err, kerr.GroupIDNotFound):
		return nil // nothing is told of one that is not there
	case err != nil:
		return failed(name, "ask for "+name, err)
	}
	return lacking(name, g.AuthorizedOperations, []kmsg.ACLOperation{kmsg.ACLOperationRead})
}

// lacking is what is not among the operations that are allowed.
func lacking(on string, allowed int32, needed []kmsg.ACLOperation) error {
	if allowed == notTold {
		return nil
	}
	may := kadm.DecodeACLOperations(allowed)
	var not []string
	for _, op := range needed {
		if !slices.Contains(may, op) {
			not = append(not, strings.ToUpper(op.String()))
		}
	}
	if len(not) == 0 {
		return nil
	}
	return &checkpoint.ServerError{What: on, TurnedAway: true,
		Next: fmt.Sprintf("grant this service %s on %s: kafka-acls.sh --add", strings.Join(not, ", "), on),
		Err:  fmt.Errorf("kafka: this service may not %s on %s", strings.Join(not, ", "), on)}
}
