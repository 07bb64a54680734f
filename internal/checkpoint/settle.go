package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"billing/internal/failpoint"
)

// verdict is what S4 and the sweep do with a prepared branch of the lane.
type verdict int

const (
	leave      verdict = iota // our epoch in flight
	commitIt                  // D names it
	rollBack                  // of a session that is dead for ever
	superseded                // of a later session: we are not the owner
	older                     // of an epoch before D's: the shard has come back older
	beyond                    // of an epoch behind the one that follows D's: Kafka has lost decisions
	impossible                // carries our incarnation, and we have not prepared it
)

// judge is the one rule for prepared branches. D's gtrid first, whatever its
// incarnation: when D's own branch comes back prepared (a replica promoted with
// the prepare only), it must be committed. Then never roll back an incarnation
// that is not strictly smaller than ours.
//
// It is sound only after this session's own takeover is known committed: from
// then on d is the last decision of every smaller incarnation.
func judge(g GTRID, n Name, d *Decision, ours int64, running bool) verdict {
	switch {
	case g == d.GTRID:
		return commitIt
	case n.Incarnation > ours:
		return superseded
	case n.Seq < d.Seq:
		return older // the lock of the lane's row allows one undecided epoch: touch nothing
	case n.Incarnation < ours && n.Seq > d.Seq+1:
		return beyond // it was prepared on top of an epoch that was decided: so may this one have been
	case n.Incarnation < ours:
		return rollBack
	case running:
		return leave
	default:
		return impossible
	}
}

// settleAll is S4 on all shards: what older sessions left is ended, what D
// decided is committed, everything else of theirs is rolled back, and every
// shard shows the row of epoch D.Seq.
func (s *Session) settleAll(ctx context.Context) error {
	d := s.decision.Load()
	rows := make([]EpochRow, len(s.job.Shards))
	story := newSettling(s, d)
	err := s.job.eachShard(false, func(i int, shard Shard) error {
		sctx, cancel := context.WithTimeout(ctx, s.job.Limits.Settle)
		defer cancel()
		row, err := s.settle(sctx, i, shard, d, story)
		rows[i] = row
		return err
	})
	story.ended(err)
	if err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	if d.Seq > 0 {
		s.arrived(rows)
		s.count(d, rows[0].Counts, true)
	}
	return nil
}

// settle is S4 on one shard. A shard that does not answer is asked again until
// ctx ends.
func (s *Session) settle(ctx context.Context, i int, shard Shard, d *Decision, story *settling) (row EpochRow, err error) {
	var absent time.Time // since when D's branch is neither listed nor a row
	for try := 0; ; try++ {
		row, found, err := s.settleOnce(ctx, i, shard, d, story)
		var refused *Refusal
		var broken *InvariantError
		switch {
		case err == nil && found == settled:
			return row, nil
		case errors.As(err, &refused), errors.As(err, &broken), errors.Is(err, ErrSuperseded), errors.Is(err, ErrNotAssigned):
			return row, err
		case err != nil:
			absent = time.Time{}
			s.waiting(ctx, d, "S4", "settle shard "+shard.Name(), err)
		case found == busy:
			absent = time.Time{}
		case absent.IsZero():
			absent = time.Now()
		case time.Since(absent) > s.job.Limits.LookAgain:
			return row, lostEpoch(ctx, s.lane, shard, d)
		}
		if perr := pause(ctx, backoff(try)); perr != nil {
			return row, fmt.Errorf("shard %s: %w", shard.Name(), errors.Join(perr, err))
		}
	}
}

// settling is what S4 tells the listener: what was in doubt, once every shard
// has said so, and at the end what was done.
type settling struct {
	s     *Session
	d     *Decision
	begun time.Time

	mu      sync.Mutex
	shards  []ShardBranches
	unheard int // shards that have not answered
}

func newSettling(s *Session, d *Decision) *settling {
	y := &settling{s: s, d: d, begun: time.Now(), shards: make([]ShardBranches, len(s.job.Shards)), unheard: len(s.job.Shards)}
	for i, shard := range s.job.Shards {
		y.shards[i].Shard = shard.Name()
	}
	return y
}

// listed notes a shard's prepared branches, the first time.
func (y *settling) listed(i int, branches []GTRID) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.shards[i].Answered {
		return
	}
	y.shards[i].Answered, y.shards[i].InDoubt = true, branches
	if y.unheard--; y.unheard == 0 && y.s.job.Listener.InDoubt != nil {
		y.s.job.Listener.InDoubt(y.s.at(y.d), slices.Clone(y.shards))
	}
}

// did notes what was done with a branch.
func (y *settling) did(i int, g GTRID, v verdict) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if v == commitIt {
		y.shards[i].Committed = append(y.shards[i].Committed, g)
	}
	if v == rollBack {
		y.shards[i].RolledBack = append(y.shards[i].RolledBack, g)
	}
}

// ended tells what was done, also when the shards are not settled.
func (y *settling) ended(err error) {
	if f := y.s.job.Listener.Settled; f != nil {
		f(y.s.at(y.d), y.shards, time.Since(y.begun), err)
	}
}

// What settleOnce finds on a shard.
type finding int

const (
	settled finding = iota // exactly the epochs up to D, nothing in doubt
	missing                // neither D's branch nor its row
	busy                   // a branch went away while it was being ended: look again
)

// settleOnce looks once and ends what it finds.
func (s *Session) settleOnce(ctx context.Context, i int, shard Shard, d *Decision, story *settling) (row EpochRow, found finding, err error) {
	// Invariant 9, and more than tidiness: a session that was frozen since its
	// takeover would end the connection in which the next owner writes.
	if !s.assigned() {
		return row, missing, ErrNotAssigned
	}
	failpoint.Hit(failpoint.Settling, i)
	if err := shard.EndOlder(ctx, s.lane); err != nil {
		return row, missing, fmt.Errorf("end older sessions: %w", err)
	}
	branches, err := shard.Prepared(ctx, s.prefix)
	if err != nil {
		return row, missing, fmt.Errorf("list prepared branches: %w", err)
	}
	story.listed(i, branches)
	left := 0 // listed, and gone when it was ended
	for _, g := range branches {
		switch did, err := s.act(ctx, i, shard, g, d, false); {
		case err != nil && !errors.Is(err, ErrNotListed):
			return row, missing, err
		case err != nil:
			left++
		default:
			story.did(i, g, did)
		}
	}

	lane, known, err := s.job.laneRow(ctx, s.lane, shard, d)
	if err != nil {
		return row, missing, err
	}
	if left > 0 {
		return row, busy, nil
	}
	return s.job.epochRow(ctx, s.lane, shard, d, lane, known)
}

// act judges one prepared branch and does what the judgement says. It returns
// ErrNotListed when the branch went away meanwhile.
func (s *Session) act(ctx context.Context, i int, shard Shard, g GTRID, d *Decision, running bool) (verdict, error) {
	assert(d.Incarnation == s.incarnation && s.incarnation > 0, "branches are judged only after this session's takeover: %d, %d", d.Incarnation, s.incarnation)
	n, err := g.Parse()
	if err != nil {
		return leave, nil //nolint:nilerr // not of this service: never touched
	}
	v := judge(g, n, d, s.incarnation, running)
	switch v {
	case leave:
	case commitIt:
		if running && s.phase2.Load() {
			return leave, nil // C8 is its only committer
		}
		if err := s.xaCommit(ctx, i, shard, g, true); err != nil {
			return v, fmt.Errorf("commit the decided branch %s: %w", g, err)
		}
	case rollBack:
		assert(g != d.GTRID && n.Incarnation < s.incarnation, "only a dead session's branch is rolled back: %s", g)
		if err := s.noneAhead(ctx, d); err != nil {
			return v, err
		}
		if err := shard.Rollback(ctx, g); err != nil {
			return v, fmt.Errorf("roll back %s: %w", g, err)
		}
	case superseded:
		return v, fmt.Errorf("%w: shard %s has branch %s of incarnation %d, ours is %d", ErrSuperseded, shard.Name(), g, n.Incarnation, s.incarnation)
	case older:
		return v, oldBranch(s.lane, shard, g, n, d)
	case beyond:
		return v, lostDecisions(s.lane, shard, g, n, d)
	case impossible:
		return v, impossibleBranch(s.lane, shard, g)
	}
	return v, nil
}

// noneAhead looks, before the first branch of a dead session is rolled back,
// whether a shard has more of the lane than D. Under the protocol none has. But if
// Kafka has lost its last decision, a shard may show the epoch that it decided
// while the branch on another one is still prepared: rolled back, it could not be
// had again when Kafka is restored.
func (s *Session) noneAhead(ctx context.Context, d *Decision) error {
	if s.seenAll.Load() {
		return nil
	}
	err := s.job.eachShard(false, func(_ int, shard Shard) error {
		_, _, err := s.job.laneRow(ctx, s.lane, shard, d)
		return err
	})
	if err != nil {
		return fmt.Errorf("before a branch is rolled back: %w", err)
	}
	s.seenAll.Store(true)
	return nil
}

// Sweep repeats S4's rule while the lane runs, until ctx ends or the session
// must: a frozen predecessor may prepare late and would hold row locks; and D's
// own branch may come back. It returns nil when ctx ended, ErrSuperseded, or a
// *Refusal.
func (s *Session) Sweep(ctx context.Context) (err error) {
	defer guard(&err)
	for pause(ctx, s.job.sweeps.next(s.job.Limits.Sweep)) == nil {
		err := s.job.eachShard(false, func(i int, shard Shard) error {
			sctx, cancel := context.WithTimeout(ctx, s.job.Limits.Settle)
			defer cancel()
			return s.sweepOnce(sctx, i, shard)
		})
		if err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
	}
	return nil
}

func (s *Session) sweepOnce(ctx context.Context, i int, shard Shard) error {
	if !s.assigned() {
		return nil // invariant 9; the group will tell, or the next checkpoint finds out
	}
	// The order of these two reads matters. D is read before the list: if D
	// moves on in between, our branch of the new epoch is judged by the old D,
	// has our own incarnation and is left alone.
	d := s.decision.Load()
	failpoint.Hit(failpoint.Sweeping, i)
	branches, err := shard.Prepared(ctx, s.prefix)
	switch {
	case ctx.Err() != nil:
		return nil //nolint:nilerr // the session ends: nothing is wrong with the shard
	case AsRefusal(err) != nil:
		return err // such as another server behind the shard's address
	case err != nil:
		s.waiting(ctx, d, "sweep", "list prepared branches on shard "+shard.Name(), err)
		return nil // the shard is away: the lane's own statements say so too
	}
	for _, g := range branches {
		v, err := s.act(ctx, i, shard, g, d, true)
		var refused *Refusal
		var broken *InvariantError
		switch {
		case errors.Is(err, ErrSuperseded), errors.As(err, &refused), errors.As(err, &broken):
			return err
		case errors.Is(err, ErrNotListed):
		case err != nil:
			s.waiting(ctx, d, "sweep", "end a branch on shard "+shard.Name(), err)
		case v == commitIt || v == rollBack:
			s.net(d, "sweep", fmt.Errorf("shard %s: branch %s: committed %t, rolled back %t", shard.Name(), g, v == commitIt, v == rollBack))
		}
	}
	return nil
}
