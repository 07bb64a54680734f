package checkpoint

import (
	"context"
	"fmt"
)

// laneRow reads the lane's row on a shard; one that is ahead of D is refused.
func (job *Job) laneRow(ctx context.Context, lane Lane, shard Shard, d *Decision) (row LaneRow, known bool, err error) {
	row, known, err = shard.LaneRow(ctx, lane)
	if err != nil {
		return row, false, fmt.Errorf("read the lane's row: %w", err)
	}
	if known && row.Seq > d.Seq {
		return row, known, &Refusal{Reason: ReasonShardAhead, What: lane.String(),
			Wrong: fmt.Sprintf("shard %s has the lane's epochs up to %d (next offset %d), the decision in Kafka is of epoch %d (offset %d): Kafka has lost decisions, or the shard has epochs that nobody decided", shard.Name(), row.Seq, row.Next, d.Seq, d.Next),
			Next:  "restore the group's offsets and topic " + job.Name + ".decision; see the runbook"}
	}
	return row, known, nil
}

// epochRow looks for the row of epoch D.Seq on a shard, and holds it against D
// and the lane's row there, which was read before it.
func (job *Job) epochRow(ctx context.Context, lane Lane, shard Shard, d *Decision, has LaneRow, known bool) (row EpochRow, found finding, err error) {
	if d.Seq == 0 {
		return row, settled, nil
	}
	row, ok, err := shard.EpochRow(ctx, lane, d.Seq)
	if err != nil {
		return row, missing, fmt.Errorf("read the epoch's row: %w", err)
	}
	if ok && row.GTRID != d.GTRID {
		return row, missing, otherEpoch(lane, shard, d, row)
	}
	if decided, _ := d.GTRID.Parse(); ok && (!known || has != LaneRow{Incarnation: decided.Incarnation, Seq: d.Seq, Next: row.Next}) {
		// The compare-and-set of the next epoch would fail for ever.
		return row, missing, &Refusal{Reason: ReasonInvariant, What: lane.String(),
			Wrong: fmt.Sprintf("shard %s has the row of epoch %d of incarnation %d with next offset %d in billing_epoch, but billing_lane says epoch %d of incarnation %d with %d: one of them was changed by hand", shard.Name(), d.Seq, decided.Incarnation, row.Next, has.Seq, has.Incarnation, has.Next),
			Next:  "restore the row of billing_lane from billing_epoch; see the runbook"}
	}
	if !ok {
		return row, missing, nil
	}
	return row, settled, nil
}

func oldBranch(lane Lane, shard Shard, g GTRID, n Name, d *Decision) error {
	return &Refusal{Reason: ReasonOldBranch, What: lane.String(),
		Wrong: fmt.Sprintf("shard %s has the prepared branch %s of epoch %d, but epoch %d is decided: the shard has come back older than it was", shard.Name(), g, n.Seq, d.Seq),
		Next:  "find out from which backup or replica it was restored, and do not end the branch by hand; if this server stays, billing repair shows what is missing, and books it again from Kafka; see the runbook"}
}

func lostDecisions(lane Lane, shard Shard, g GTRID, n Name, d *Decision) error {
	return &Refusal{Reason: ReasonShardAhead, What: lane.String(),
		Wrong: fmt.Sprintf("shard %s has the prepared branch %s of epoch %d, but the decision in Kafka is of epoch %d (offset %d): Kafka has lost decisions, perhaps this branch's own", shard.Name(), g, n.Seq, d.Seq, d.Next),
		Next:  "restore the group's offsets and topic " + d.Job + ".decision; see the runbook"}
}

func impossibleBranch(lane Lane, shard Shard, g GTRID) error {
	return &Refusal{Reason: ReasonInvariant, What: lane.String(),
		Wrong: fmt.Sprintf("shard %s has the prepared branch %s with this session's incarnation, before the session has prepared anything", shard.Name(), g),
		Next:  "report it with the log; nothing was changed"}
}

func lostEpoch(ctx context.Context, lane Lane, shard Shard, d *Decision) error {
	has := "no epoch of the lane"
	if row, ok, err := shard.LaneRow(ctx, lane); err == nil && ok {
		has = fmt.Sprintf("the lane's epochs up to %d (next offset %d)", row.Seq, row.Next)
	}
	return &Refusal{Reason: ReasonLostEpoch, What: lane.String(),
		Wrong: fmt.Sprintf("shard %s has lost the committed epoch %d (branch %s, offsets up to %d): it is neither prepared nor there; the shard has %s", shard.Name(), d.Seq, d.GTRID, d.Next, has),
		Next:  "was the shard failed over, restored from a backup, or the branch rolled back by hand? Restart mysqld once (a branch that was detached in the wrong instant comes back only then). Where the rest of its binary log can't be had back, billing repair shows what is missing, and books it again from Kafka; see the runbook"}
}

func otherEpoch(lane Lane, shard Shard, d *Decision, row EpochRow) error {
	return &Refusal{Reason: ReasonInvariant, What: lane.String(),
		Wrong: fmt.Sprintf("shard %s shows epoch %d with branch %s, the decision names %s", shard.Name(), d.Seq, row.GTRID, d.GTRID),
		Next:  "report it with the log; nothing was changed"}
}
