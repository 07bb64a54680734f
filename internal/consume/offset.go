package consume

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/checkpoint"
)

// offsetVersion is TxnOffsetCommit's with which the group joins the transaction
// by the request itself.
const offsetVersion = 5

// CommitOffset is C5: TxnOffsetCommit as a plain request, with the group's
// member id and generation of this moment. A rebalance that leaves the lane
// with us makes them old; then it is sent again with new ones.
func (o *Owner) CommitOffset(ctx context.Context, next int64, leaderEpoch int32, metadata string) error {
	if err := o.usable(); err != nil {
		return o.fail("commit the offset", err)
	}
	may := func(err error) bool { return transient(err) || staleMember(err) }
	err := again(ctx, may, func() error { return o.commitOffset(ctx, next, leaderEpoch, metadata) })
	if err != nil {
		return o.fail("commit the offset", err)
	}
	o.txn.offset = true
	return nil
}

// staleMember reports whether the group went on without this request: normal
// while a rebalance is going on.
func staleMember(err error) bool {
	for _, stale := range []error{
		errNoMember, kerr.IllegalGeneration, kerr.RebalanceInProgress, kerr.StaleMemberEpoch, kerr.UnknownMemberID,
	} {
		if errors.Is(err, stale) {
			return true
		}
	}
	return false
}

var errNoMember = errors.New("not a member of the group at the moment")

func (o *Owner) commitOffset(ctx context.Context, next int64, leaderEpoch int32, metadata string) error {
	// A group takes an offset also without a member: never send one so.
	if !o.client.Assigned(o.lane.Partition) {
		return &finalError{checkpoint.ErrNotAssigned}
	}
	memberID, generation := o.client.Generation()
	if memberID == "" || generation < 0 {
		return errNoMember
	}
	if err := o.input.lookUp(ctx); err != nil { // newer versions name the topic by its id
		return err
	}

	rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = o.lane.Partition, next, leaderEpoch, kmsg.StringPtr(metadata)
	rt := kmsg.NewTxnOffsetCommitRequestTopic()
	rt.Topic, rt.TopicID = o.lane.Topic, o.input.id
	rt.Partitions = append(rt.Partitions, rp)
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID = o.txnID
	req.Group = o.client.cfg.Job
	req.ProducerID, req.ProducerEpoch = o.id, o.epoch
	req.MemberID, req.Generation = memberID, generation
	if id := o.client.cfg.InstanceID; id != "" {
		req.InstanceID = kmsg.StringPtr(id)
	}
	req.Topics = append(req.Topics, rt)

	o.txn.sent = true
	resp, err := req.RequestWith(ctx, o.cl)
	if err != nil {
		return err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return errNoPartition
	}
	// After OFFSET_METADATA_TOO_LARGE and others the transaction could still be
	// committed, without the offset: every code counts.
	if err := kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode); err != nil {
		return err
	}
	if resp.Version < offsetVersion {
		return &finalError{fmt.Errorf("the group's coordinator speaks version %d of TxnOffsetCommit, %d is needed", resp.Version, offsetVersion)}
	}
	return nil
}
