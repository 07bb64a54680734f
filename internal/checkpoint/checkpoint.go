package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"billing/internal/failpoint"
)

// Checkpoint makes the epoch e money: C2 to C9. It returns nil when the epoch
// is decided and committed on every shard. After any error the session is over:
// the caller closes it, and the next one recovers.
//
// Invariant: it is not called again before it returned, so the next epoch is
// neither prepared nor decided before phase 2 of this one is complete (C2).
func (s *Session) Checkpoint(ctx context.Context, e *Epoch) (err error) {
	defer func() { s.ended = s.ended || err != nil }() // behind guard: a broken invariant ends it too
	defer guard(&err)
	assert(!s.ended, "no checkpoint in a session that has ended")

	last := s.decision.Load()
	assert(e.Counts.In > 0, "an epoch has records")
	assert(e.Counts.In == e.Counts.Applied+e.Counts.Duplicates+e.Counts.Conflicts+e.Counts.Rejected,
		"every record of an epoch has one outcome: %+v", e.Counts)
	assert(e.Next > last.Next, "an epoch moves the offset: from %d to %d", last.Next, e.Next)

	// What becomes the decision if all goes well. The gtrid carries this
	// session's incarnation and is never tried again after a failure: the first
	// try's late rollback would hit the second.
	d := *last
	d.Seq++
	d.GTRID = newGTRID(s.prefix, s.incarnation, d.Seq)
	d.Build = s.job.Build
	d.Next, d.LeaderEpoch = e.Next, e.LeaderEpoch
	d.StreamTime, d.ForgottenBefore = e.StreamTime, e.ForgottenBefore
	d.Count, d.Checksum = e.StateCount, e.StateChecksum

	// C3: all shards can commit. Not after the lane has gone (invariant 9): what
	// a frozen session prepares late is the next owner's to sweep.
	if !s.assigned() {
		return ErrNotAssigned
	}
	failpoint.Hit(failpoint.Frozen, 0)
	s.passed(StepFill)
	start := time.Now()
	if err := s.prepareAll(ctx, &d, e); err != nil {
		s.rollbackAll(ctx, &d) // C9
		for net := range every[*NetError](err) {
			s.net(&d, net.Net, net)
		}
		return fmt.Errorf("phase 1 of epoch %d: %w", d.Seq, err)
	}
	s.phase(&d, "prepare", start)
	s.passed(StepPrepare)
	failpoint.Hit(failpoint.AllPrepared, 0)

	// C4 to C7: one Kafka transaction decides.
	start = time.Now()
	if err := s.decide(ctx, &d, e.Chunks); err != nil {
		if !errors.Is(err, ErrOutcomeUnknown) {
			// C7 was not sent, so the decision can't be commit.
			s.rollbackAll(ctx, &d) // C9
		}
		// Unknown: no branch is touched. The next session's fence makes the
		// outcome readable, and its S4 acts on it.
		return fmt.Errorf("decision of epoch %d: %w", d.Seq, err)
	}
	s.phase(&d, "decide", start)
	s.passed(StepDecide)

	// From here the epoch is money, whatever happens to this process.
	s.phase2.Store(true) // before D is visible to the sweep: C8 is the gtrid's only committer
	s.decision.Store(&d)
	failpoint.Hit(failpoint.Decided, 0)

	// C8: phase 2.
	start = time.Now()
	row, err := s.commitAll(ctx, &d)
	s.phase2.Store(false)
	if err != nil {
		return fmt.Errorf("phase 2 of epoch %d: %w", d.Seq, err)
	}
	assert(row.Counts == e.Counts, "epoch %d reads back as it was written: %+v, not %+v", d.Seq, row.Counts, e.Counts)
	s.phase(&d, "commit", start)
	failpoint.Hit(failpoint.AllCommitted, 0)
	s.count(&d, row.Counts, false)
	s.recovered(&d, row.Counts)
	s.trim(ctx, last.OldestLive)
	return nil
}

// Advance moves the offset of an idle lane over a tail without records (aborted,
// compacted, control): D again, with the same seq and gtrid and a larger
// offset. Otherwise retention passes D's offset, and the lane would refuse to
// start for nothing.
func (s *Session) Advance(ctx context.Context, next int64) (err error) {
	defer func() { s.ended = s.ended || err != nil }() // behind guard: a broken invariant ends it too
	defer guard(&err)
	assert(!s.ended, "no decision in a session that has ended")
	d := *s.decision.Load()
	assert(next > d.Next, "an advance moves the offset: from %d to %d", d.Next, next)
	d.Next, d.LeaderEpoch, d.Build = next, -1, s.job.Build
	if err := s.decide(ctx, &d, nil); err != nil {
		return fmt.Errorf("move the offset of the idle lane: %w", err)
	}
	s.decision.Store(&d)
	if f := s.job.Listener.Moved; f != nil {
		f(s.lane, d)
	}
	return nil
}

// decide is C4 to C7, the one path of every decision: a takeover, an epoch, an
// idle lane's. It completes d with the range of the state topic.
//
// nil: d is known committed. ErrOutcomeUnknown: C7 was sent and nothing is
// known. Any other error: C7 was not sent, the Kafka transaction is aborted or
// will be by the next fence.
func (s *Session) decide(ctx context.Context, d *Decision, chunks []Chunk) error {
	begun := time.Now()
	budget := s.job.Limits.Transaction * 2 / 3 // C4 and C5; the rest is for EndTxn to arrive
	wctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	defer s.slow(ctx, d, "C4 to C7", "the decision's Kafka transaction")()

	if err := s.owner.Begin(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	err := s.write(wctx, d, chunks)

	// C6: last look before the decision.
	switch {
	case err != nil:
	case !s.assigned():
		err = ErrNotAssigned
	case time.Since(begun) >= budget:
		err = fmt.Errorf("no time left before the transaction times out: %s of %s used", time.Since(begun), s.job.Limits.Transaction)
	}
	if err != nil {
		s.ended = true // the client is not used again after an error
		actx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.job.Limits.Cleanup)
		defer cancel()
		s.owner.Abort(actx)
		return err
	}
	if last := s.decision.Load(); last != nil && d.Seq > last.Seq {
		failpoint.Hit(failpoint.BeforeEndTxn, 0)
	}

	// C7: the decision. Neither a shutdown nor a rebalance cancels it.
	ectx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.job.Limits.End)
	defer cancel()
	if err := s.owner.Commit(ectx); err != nil {
		s.ended = true
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return nil
}

// write is C4 and C5: state chunks, then D twice, all acknowledged.
func (s *Session) write(ctx context.Context, d *Decision, chunks []Chunk) (err error) {
	defer guard(&err)         // here: what is prepared is to be rolled back
	last := s.decision.Load() // nil in a takeover
	if len(chunks) > 0 {
		data := make([][]byte, len(chunks))
		for i := range chunks {
			data[i] = chunks[i].Data
		}
		from, next, err := s.owner.WriteChunks(ctx, data)
		if err != nil {
			return fmt.Errorf("write the dedup state: %w", err)
		}
		assert(from >= d.StateNext, "the state topic only grows: %d after %d", from, d.StateNext)
		d.StateFrom, d.StateNext = from, next
		for i := range chunks {
			// from is a lower bound of every chunk's offset, and enough for trimming
			s.remember(chunks[i].BucketEnd, from)
		}
		failpoint.Hit(failpoint.ChunksWritten, 0)
	}
	if last != nil && d.Seq > last.Seq {
		d.OldestLive = s.oldestLive(d)
	}
	if last != nil {
		assert(d.Next >= last.Next, "D's offset never decreases: %d after %d", d.Next, last.Next)
		assert(d.OldestLive >= last.OldestLive, "D's oldest live offset never decreases: %d after %d", d.OldestLive, last.OldestLive)
	}
	text, err := d.Encode()
	if err != nil {
		return err
	}
	if err := s.owner.WriteDecision(ctx, text); err != nil {
		return fmt.Errorf("write the decision: %w", err)
	}
	if err := s.owner.CommitOffset(ctx, d.Next, d.LeaderEpoch, text); err != nil {
		return fmt.Errorf("store the offset: %w", err)
	}
	return nil
}

// oldestLive is the first offset of the state topic that a restore at d needs;
// it forgets the buckets that d forgets.
func (s *Session) oldestLive(d *Decision) int64 {
	oldest := d.StateNext
	for end, first := range s.index {
		if end <= d.ForgottenBefore {
			delete(s.index, end)
			continue
		}
		oldest = min(oldest, first)
	}
	return oldest
}

// prepareAll is C3: phase 1 on all shards.
func (s *Session) prepareAll(ctx context.Context, d *Decision, e *Epoch) error {
	// The chain of epochs has no hole: an epoch begins where the last one ended,
	// also when the idle lane's offset has moved since.
	from := s.epochNext
	if d.Seq == 1 {
		from = s.decision.Load().Next
	}
	return s.job.eachShard(failpoint.Armed(failpoint.SomePrepared), func(i int, shard Shard) error {
		b := &Branch{
			Lane: s.lane, TopicID: s.topicID, GTRID: d.GTRID,
			Incarnation: s.incarnation, Seq: d.Seq,
			OffsetFrom: from, OffsetNext: d.Next,
			Counts: e.Counts, PrevDigest: s.digests[i], Contents: e.Contents,
		}
		pctx, cancel := context.WithTimeout(ctx, s.job.Limits.Prepare)
		defer cancel()
		defer s.slow(pctx, d, "C3", "prepare on shard "+shard.Name())()
		if err := shard.Prepare(pctx, b); err != nil {
			return fmt.Errorf("shard %s: %w", shard.Name(), err)
		}
		failpoint.Hit(failpoint.SomePrepared, i)
		return nil
	})
}

// rollbackAll is C9 for MySQL: our own gtrid, never sent to C7. It is best
// effort: a prepare that is still on its way lands after it, and the next
// session's S4, or a sweep, judges it by its incarnation.
func (s *Session) rollbackAll(ctx context.Context, d *Decision) {
	s.ended = true
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.job.Limits.Cleanup)
	defer cancel()
	err := s.job.eachShard(false, func(_ int, shard Shard) error {
		err := shard.Rollback(rctx, d.GTRID)
		if errors.Is(err, ErrNotListed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("shard %s: %w", shard.Name(), err)
		}
		return nil
	})
	if err != nil {
		s.waiting(rctx, d, "C9", "roll back the epoch", err)
	}
}

// commitAll is C8 on all shards. It returns the epoch's row of shard 0.
func (s *Session) commitAll(ctx context.Context, d *Decision) (EpochRow, error) {
	rows := make([]EpochRow, len(s.job.Shards))
	err := s.job.eachShard(failpoint.Armed(failpoint.SomeCommitted), func(i int, shard Shard) error {
		cctx, cancel := context.WithTimeout(ctx, s.job.Limits.PhaseTwo)
		defer cancel()
		row, err := s.commit(cctx, i, shard, d)
		if err != nil {
			return fmt.Errorf("shard %s: %w", shard.Name(), err)
		}
		failpoint.Hit(failpoint.SomeCommitted, i)
		rows[i] = row
		return nil
	})
	if err == nil {
		s.arrived(rows)
	}
	return rows[0], err
}

// arrived notes that every shard shows the row of epoch D.Seq.
func (s *Session) arrived(rows []EpochRow) {
	d := s.decision.Load()
	assert(rows[0].Next <= d.Next, "epoch %d ends at %d, beyond D's offset %d", d.Seq, rows[0].Next, d.Next)
	s.epochNext = rows[0].Next
	for i := range rows {
		assert(rows[i].Next == rows[0].Next && rows[i].Counts == rows[0].Counts,
			"epoch %d is the same on every shard: %+v on %s, %+v on %s", d.Seq, rows[0], s.job.Shards[0].Name(), rows[i], s.job.Shards[i].Name())
		s.digests[i] = rows[i].Digest
	}
}

// commit commits the branch that d names on one shard and reads the epoch's row
// back: only the row proves the commit. The branch may be gone because a next
// owner was faster; that is no error.
func (s *Session) commit(ctx context.Context, i int, shard Shard, d *Decision) (EpochRow, error) {
	// XA COMMIT only for the gtrid that a known committed D names.
	assert(s.decision.Load().GTRID == d.GTRID, "only D's own branch is committed: %s", d.GTRID)
	var absent time.Time // since when it is neither listed nor a row
	for try := 0; ; try++ {
		err := s.xaCommit(ctx, i, shard, d.GTRID, false)
		if err != nil && !errors.Is(err, ErrNotListed) {
			s.waiting(ctx, d, "C8", "commit the decided epoch on shard "+shard.Name(), err)
		}
		row, ok, rerr := shard.EpochRow(ctx, s.lane, d.Seq)
		if r := AsRefusal(errors.Join(err, rerr)); r != nil {
			return row, r // such as another server behind the shard's address
		}
		switch {
		case rerr != nil:
			s.waiting(ctx, d, "C8", "read the epoch's row on shard "+shard.Name(), rerr)
			absent = time.Time{}
		case ok && row.GTRID == d.GTRID:
			return row, nil
		case ok:
			return row, otherEpoch(s.lane, shard, d, row)
		case errors.Is(err, ErrNotListed):
			// "Unknown XID" proves nothing: a commit that is executing is in
			// neither place. Look again for a while; then the session ends and
			// the next one's S4 stops the lane.
			if absent.IsZero() {
				absent = time.Now()
			} else if time.Since(absent) > s.job.Limits.LookAgain {
				return row, fmt.Errorf("branch %s of the decided epoch %d is neither prepared nor committed", d.GTRID, d.Seq)
			}
		default:
			if err == nil {
				// It was seen when an owner's connection ended in that instant.
				s.net(d, "row-read-back", fmt.Errorf("shard %s answered OK to the commit of %s and has no row of the epoch", shard.Name(), d.GTRID))
			}
			absent = time.Time{}
		}
		if perr := pause(ctx, backoff(try)); perr != nil {
			return row, fmt.Errorf("the decided epoch %d was not seen committed, the next session finishes it: %w", d.Seq, errors.Join(perr, err, rerr))
		}
	}
}

// xaCommit commits one branch and notes who did, for who counts the epoch.
// recovery: S4 or the sweep, not C8.
func (s *Session) xaCommit(ctx context.Context, i int, shard Shard, g GTRID, recovery bool) error {
	err := shard.Commit(ctx, g)
	if !errors.Is(err, ErrNotListed) && !errors.Is(err, ErrNotSent) {
		s.job.claims.committed(s.lane, g, i, recovery)
	}
	return err
}

// count publishes the counts of an epoch that every shard shows, if it is ours
// to count.
func (s *Session) count(d *Decision, c Counts, recovered bool) {
	if s.job.claims.take(s.lane, d.GTRID, len(s.job.Shards)) && s.job.Listener.Committed != nil {
		s.job.Listener.Committed(s.lane, *d, c, recovered)
	}
}

// trim deletes what no restore needs any more, up to D's oldest live offset
// and not beyond. Its failure costs disk space only.
func (s *Session) trim(ctx context.Context, last int64) {
	d := s.decision.Load()
	if d.OldestLive <= last {
		return
	}
	tctx, cancel := context.WithTimeout(ctx, s.job.Limits.Trim)
	defer cancel()
	if err := s.owner.Trim(tctx, d.OldestLive); err != nil {
		s.waiting(ctx, d, "C8", "trim the state topic", err)
	}
}

// at is where an event belongs that is about d: the epoch that is being made, or
// the last one that was.
func (s *Session) at(d *Decision) At {
	return At{Lane: s.lane, Incarnation: s.incarnation, Seq: d.Seq}
}

func (s *Session) phase(d *Decision, name string, start time.Time) {
	if f := s.job.Listener.Phase; f != nil {
		f(s.at(d), name, time.Since(start))
	}
}

func (s *Session) net(d *Decision, name string, err error) {
	if f := s.job.Listener.Net; f != nil {
		f(s.at(d), name, err)
	}
}

// waiting tells that a step asks again. A session that is told to end does not.
func (s *Session) waiting(ctx context.Context, d *Decision, step, what string, err error) {
	if f := s.job.Listener.Waiting; f != nil && !errors.Is(ctx.Err(), context.Canceled) {
		f(s.at(d), step, what, err)
	}
}

// slowAfter is when a call that has not returned is told of, and how often.
const slowAfter = 5 * time.Second

// slow tells that a call does not return, until the function that it gives is
// called: health has a reason long before the call's bound.
func (s *Session) slow(ctx context.Context, d *Decision, step, what string) (done func()) {
	tell := s.job.Listener.Waiting
	if tell == nil {
		return func() {}
	}
	at, begun := s.at(d), time.Now()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for pause(ctx, slowAfter) == nil {
			tell(at, step, what, fmt.Errorf("no answer for %s", time.Since(begun).Round(time.Second)))
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}
