package checkpoint

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// Job is what all lanes of a job share. It is read-only once lanes run.
type Job struct {
	Name        string
	Topic       string
	Set         UUID   // random id of the set of shards
	Fingerprint string // see Fingerprint
	Settings    string // see Settings
	TopicID     UUID   // of the input topic when the process started
	Partitions  int32  // likewise its partition count; 0 is not compared
	Build       string // goes into D
	FirstStart  bool   // a lane may start where Kafka and MySQL both know nothing of it

	Kafka  Kafka
	Shards []Shard // by shard number
	Limits Limits

	// Accept reports whether the operator accepted a refusal by name; nil
	// accepts nothing.
	Accept func(reason, what string) bool

	Listener Listener

	claims claims // on epochs to count
	sweeps beat   // when lanes sweep
}

// Limits bound every wait of the protocol: who waits for ever is a stuck
// pipeline. All are positive.
type Limits struct {
	Fence       time.Duration // S1: markers of the last transaction, a coordinator's move
	Read        time.Duration // S2: a foreign open transaction, an unstable offset
	Restore     time.Duration // S5, without progress
	Transaction time.Duration // the producer's transaction time-out; C4 and C5 get two thirds of it
	End         time.Duration // C7: beyond it the outcome is unknown
	Prepare     time.Duration // C3 on one shard
	Settle      time.Duration // S4: a shard that does not answer; then S0
	LookAgain   time.Duration // a branch that is neither listed nor a row
	PhaseTwo    time.Duration // C8: a shard that does not answer; then S0
	Sweep       time.Duration // between two sweeps
	Cleanup     time.Duration // C9: rolling back what was never decided
	Trim        time.Duration
}

// DefaultLimits are the bounds that the service runs with. Transaction is the
// configuration's.
func DefaultLimits(transaction time.Duration) Limits {
	return Limits{
		Fence:       30 * time.Second,
		Read:        30 * time.Second,
		Restore:     60 * time.Second,
		Transaction: transaction,
		End:         10 * time.Second,
		Prepare:     60 * time.Second,
		Settle:      30 * time.Second,
		LookAgain:   5 * time.Second,
		PhaseTwo:    60 * time.Second,
		Sweep:       2 * time.Second,
		Cleanup:     3 * time.Second,
		Trim:        5 * time.Second,
	}
}

// Listener receives the protocol's events; nil functions are not called. They
// must return at once and may be called from several goroutines.
type Listener struct {
	// TakenOver: S3 is known committed. found is the decision that it goes on
	// from, at the incarnation before or an older one.
	TakenOver func(at At, found Decision)
	// InDoubt: in S4 every shard has said for the first time what is prepared
	// of the lane. shards are by number and only to be read, as are Settled's.
	InDoubt func(at At, shards []ShardBranches)
	// Settled: S4 ended, well or not: what it has done on each shard.
	Settled func(at At, shards []ShardBranches, took time.Duration, err error)
	// Step: a session has come to the end of a step on its way to its first epoch,
	// once for each; of the fence and the read, when the read has gone well.
	// The steps behind the restore are told of lanes for which records were waiting
	// when the session began.
	Step func(lane Lane, step Step, took time.Duration)
	// Recovered: the session's first epoch is committed on every shard, and its
	// first record had been waiting when the session began. counts are the epoch's.
	Recovered func(lane Lane, d Decision, c Counts, r Recovery)
	// Phase: a phase of a checkpoint ended: "prepare", "decide", "commit".
	Phase func(at At, phase string, took time.Duration)
	// Committed: an epoch is committed on every shard and this process is the
	// one that counts it. recovered: a recovery finished it.
	Committed func(lane Lane, d Decision, c Counts, recovered bool)
	// Moved: an idle lane's offset followed a tail without records.
	Moved func(lane Lane, d Decision)
	// Waiting: a shard or a broker does not do what it is asked to, and is
	// asked again.
	Waiting func(at At, step, what string, err error)
	// Net: a net decided that should never decide (see docs/protocol.md).
	Net func(at At, net string, err error)
}

// At says which lane, session and epoch an event is about.
type At struct {
	Lane        Lane
	Incarnation int64 // of the session; 0 before its takeover is known committed
	Seq         int64 // of the epoch that is being made, else of D's; 0 before the first
}

// ShardBranches is what S4 found and did on one shard.
type ShardBranches struct {
	Shard      string
	Answered   bool    // false: the shard has not said what is prepared there
	InDoubt    []GTRID // branches of the lane that were prepared when it was first asked
	Committed  []GTRID // those and later ones
	RolledBack []GTRID // likewise
}

// ErrSuperseded says that another member has taken the lane over.
var ErrSuperseded = errors.New("superseded: another instance has taken the lane over")

// ErrNotAssigned says that the lane is not this member's, or that its
// heartbeats are not fresh (S0).
var ErrNotAssigned = errors.New("lane not assigned to this instance")

// eachShard runs fn for every shard side by side and waits for all. inTurn
// runs shard 0 first, alone: only for fail points between shards.
func (j *Job) eachShard(inTurn bool, fn func(i int, shard Shard) error) error {
	errs := make([]error, len(j.Shards))
	run := func(i int) {
		defer guard(&errs[i])
		errs[i] = fn(i, j.Shards[i])
	}
	var wg sync.WaitGroup
	for i := range j.Shards {
		if inTurn && i == 0 {
			run(i)
			continue
		}
		wg.Go(func() { run(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// beat is one clock for all lanes of a process: what each of them asks a shard,
// they ask at the same moments, and share the answers. 64 idle lanes that each ask
// at moments of their own cost a shard as much as one busy lane.
type beat struct {
	first sync.Once
	from  time.Time
}

// next is how long it is to the next moment.
func (b *beat) next(every time.Duration) time.Duration {
	b.first.Do(func() { b.from = time.Now() })
	return every - time.Since(b.from)%every
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// backoff is the wait before try n (from 0): 20 ms doubling to 1 s, with jitter,
// so that lanes that failed together do not come back together.
func backoff(n int) time.Duration {
	d := min(20*time.Millisecond<<min(n, 10), time.Second)
	return d/2 + rand.N(d/2+1)
}
