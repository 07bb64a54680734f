package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ForeseeShards is S4's judgement on the shards under no fence, by the decision
// that was read of the lane: nil, or the *Refusal that a session would meet, of
// several shards joined. It changes nothing, and what a session would end is not
// refused. An error that is no *Refusal says that a shard did not answer, or, as
// ErrSuperseded, that d is not the last decision any more.
//
// An owner at work moves between two reads. Each finding here is looked at again,
// but that d is still the decision only a later reading of it tells: who gets a
// *Refusal reads D again, and believes it if D is the same (see ForeseeLane).
func (job *Job) ForeseeShards(ctx context.Context, lane Lane, d Decision) error {
	prefix := LanePrefix(OwnerPrefix(job.Name, job.Set), d.TopicID, lane.Partition)
	return job.eachShard(false, func(_ int, shard Shard) error {
		err := job.foreseeShard(ctx, lane, shard, prefix, &d)
		if err != nil && AsRefusal(err) == nil { // a refusal names the shard
			err = fmt.Errorf("shard %s: %w", shard.Name(), err)
		}
		return err
	})
}

func (job *Job) foreseeShard(ctx context.Context, lane Lane, shard Shard, prefix string, d *Decision) error {
	var absent time.Time // since when D's branch is neither listed nor a row
	var before error     // a refusal that the last look found
	for try := 0; ; try++ {
		found, err := job.foreseeOnce(ctx, lane, shard, prefix, d)
		switch {
		case err != nil && (AsRefusal(err) == nil || before != nil):
			return err
		case err == nil && found == settled:
			return nil
		case err != nil:
			// D's branch may have been committed between the readings of two rows.
			before = err
		case absent.IsZero():
			absent = time.Now()
		case time.Since(absent) > job.Limits.LookAgain:
			return lostEpoch(ctx, lane, shard, d)
		}
		if perr := pause(ctx, backoff(try)); perr != nil {
			return errors.Join(perr, before)
		}
	}
}

// foreseeOnce looks once: settled says that a session could settle the shard.
func (job *Job) foreseeOnce(ctx context.Context, lane Lane, shard Shard, prefix string, d *Decision) (finding, error) {
	branches, err := shard.Prepared(ctx, prefix)
	if err != nil {
		return missing, fmt.Errorf("list prepared branches: %w", err)
	}
	decided := false // D's branch waits for its commit
	for _, g := range branches {
		n, err := g.Parse()
		if err != nil {
			continue // not of this service
		}
		switch next := d.Incarnation + 1; judge(g, n, d, next, false) {
		case commitIt:
			decided = true
		case superseded:
			return missing, fmt.Errorf("%w: branch %s is of incarnation %d, the decision was of %d", ErrSuperseded, g, n.Incarnation, d.Incarnation)
		case older:
			return missing, oldBranch(lane, shard, g, n, d)
		case beyond:
			return missing, lostDecisions(lane, shard, g, n, d)
		case impossible:
			return missing, impossibleBranch(lane, shard, g)
		case rollBack, leave:
		}
	}
	row, known, err := job.laneRow(ctx, lane, shard, d)
	if err != nil || decided {
		return settled, err
	}
	_, found, err := job.epochRow(ctx, lane, shard, d, row, known)
	return found, err
}

// ForeseeLane is what a session of the lane would meet now, under no fence: nil,
// or the *Refusal of S2 or S4. look reads the lane stably; it gives what was
// read last, and the decision that a session would go on from, if there is one.
// What an owner at work only seems to be is not taken for a refusal: one counts
// when D is the same in a reading after it. It changes nothing, and is bounded by
// ctx.
func (job *Job) ForeseeLane(ctx context.Context, lane Lane, look func(context.Context) (Read, error)) (Read, Decision, error) {
	r, err := look(ctx)
	if err != nil {
		return r, Decision{}, err
	}
	for {
		d, refused := job.Foresee(ctx, lane, &r)
		byShard := refused == nil
		if byShard {
			refused = job.ForeseeShards(ctx, lane, d)
		}
		if AsRefusal(refused) == nil {
			return r, d, refused
		}
		again, err := look(ctx)
		if err != nil {
			return r, d, fmt.Errorf("look again: %w (before it: %s)", err, refused.Error())
		}
		same := again.Same(&r)
		r = again
		if same && !byShard {
			// The log's ends were read before D, which may have passed them.
			d, refused = job.Foresee(ctx, lane, &r)
		}
		if same && AsRefusal(refused) != nil {
			return r, d, refused
		}
	}
}
