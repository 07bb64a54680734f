// Package repair books again what a shard has lost: epochs that Kafka has decided
// and that a restored backup, a failover or a hand has taken from it. What they
// were follows from Kafka alone. The dedup state says of each id where it was
// first applied, and so of each message whether it was applied there; the rest
// follows by the same rules as it did then. What the other shards still show is
// compared with what comes out: nothing is booked that is not equal.
//
//   - repair.go: what is asked for and what is answered; Find, which lanes lack what
//   - epochs.go: where each lost epoch begins and ends, and which branch it was
//   - replay.go: the lost epochs again, from Kafka
//   - outcome.go: one record's outcome, as it was
//   - compare.go: what comes out against what other shards show
//   - book.go: what comes out, into the tables
//   - watch.go: no wait for Kafka is without a bound
//
// It needs no fence. It writes only what a stable reading of D has decided, in
// order, and only where the shard ends with the epoch before: whoever else writes
// the lane's row meanwhile, one of the two finds it changed and writes nothing. No
// session decides anything for a lane that lacks an epoch anywhere (S4).
package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/event"
	"billing/internal/money"
)

// Kafka is what a repair needs of Kafka, under no fence.
type Kafka interface {
	// Look reads what Kafka knows of a lane, stably.
	Look(ctx context.Context, partition int32) (checkpoint.Read, error)
	// ReadState reads the lane's dedup state, as an Owner does.
	ReadState(ctx context.Context, partition int32, from int64, fn func(offset int64, data []byte) error) error
	// ReadInput reads the committed records of [from, to), in order, with the time
	// that each of them has in Kafka.
	ReadInput(ctx context.Context, partition int32, from, to int64, fn func(r *event.Record, written time.Time) error) error
	// Compacted reports whether the input may lack messages in the middle.
	Compacted(ctx context.Context) (bool, error)
	// PastDecisions reads the lane's decisions in order, from one on of which enough
	// says so, or from the oldest that there is.
	PastDecisions(ctx context.Context, partition int32, enough func(decision string) bool, fn func(decision string, written time.Time) error) error
}

// MySQL is what a repair needs of the shards beside checkpoint.Shard, by number.
type MySQL interface {
	// Epochs calls fn for the epochs in [from, to] that the shard has, in order.
	Epochs(ctx context.Context, shard int, lane checkpoint.Lane, from, to int64, fn func(*checkpoint.BookedEpoch) error) error
	// Beyond says what the shard has of the lane that does not fit its last epoch; ""
	// where all does, or where that is not its last one any more.
	Beyond(ctx context.Context, shard int, lane checkpoint.Lane, seq, next int64) (string, error)
	// Rebook writes a decided epoch, if the shard ends with the one before. preparedAt
	// is zero where it is not known. After an error the epoch may be there.
	Rebook(ctx context.Context, shard int, b *checkpoint.Branch, ledgerOn bool, preparedAt time.Time) error
}

// Config says what is repaired, and by which rules messages had their outcomes:
// they must be those of then.
type Config struct {
	Job   *checkpoint.Job
	Kafka Kafka
	MySQL MySQL

	Decoder  event.Config
	Window   time.Duration
	Lateness time.Duration
	Skew     time.Duration
	Ledger   bool // of epochs of which no shard tells whether the ledger was on

	// Patience is for how long one lane's decision is waited for. 0 means 10 s.
	Patience time.Duration

	// Progress, if set, is told how many records of a lane were read so far.
	Progress func(lane checkpoint.Lane, step string, done, total int64)
}

// Why a loss is not repaired, beside the reasons of package checkpoint: the words
// of answers and of the runbook.
const (
	// ReasonMessagesDeleted: Kafka does not have all messages of the epochs any more.
	ReasonMessagesDeleted = "messages-deleted"
	// ReasonEpochsUnknown: neither a shard nor Kafka says where each epoch ended.
	ReasonEpochsUnknown = "epochs-unknown"
	// ReasonNotExact: what comes out is not what the other shards show, or an outcome
	// can't be told any more.
	ReasonNotExact = "not-exact"
	// ReasonShardHole: what the shard has of the lane is not of one moment.
	ReasonShardHole = "shard-hole"
)

// Loss is what shards lack of one lane.
type Loss struct {
	Lane     checkpoint.Lane
	Decision checkpoint.Decision // the last
	Missing  []*Missing          // by shard

	epochs []*epoch // from the first that is missing anywhere to the decision's
	start  start
}

// Missing is what one shard lacks of a lane.
type Missing struct {
	Shard    string
	Has      int64  // its last epoch; 0 for none
	From     int64  // offset where what is missing begins
	Next     int64  // and ends
	Branches []Left // that are prepared there, of what is missing

	// By Compute.
	Epochs  []MissingEpoch
	Records int64 // of the epochs, on whichever shard
	Applied int64 // here
	Rejects int64 // here
	Sums    map[string]*Sum

	number int
	row    *checkpoint.BookedEpoch // of epoch Has; nil for none
}

// Left is a branch that a shard has come back with.
type Left struct {
	GTRID   checkpoint.GTRID
	Seq     int64
	Decided bool // it is the decided one of its epoch: it is committed, another is rolled back
}

// MissingEpoch is a decided epoch that a shard lacks.
type MissingEpoch struct {
	Seq     int64
	From    int64
	Next    int64
	GTRID   checkpoint.GTRID
	Records int64
	Applied int64 // on this shard
	Rejects int64 // likewise
}

// Sum is what is to be booked in a currency.
type Sum struct {
	Charge, Credit money.Sum
	Entries        int64
}

// Finding is what there is to say of one lane.
type Finding struct {
	Lane checkpoint.Lane
	Loss *Loss // nil where no shard lacks anything
	Err  error // a *checkpoint.Refusal, or that it could not be looked at
}

// lanesAtOnce is how many lanes are looked at side by side.
const lanesAtOnce = 16

// Find looks at lanes, whether shards lack epochs of them. It changes nothing.
// The job's shards and topics are checked.
func Find(ctx context.Context, cfg *Config, lanes []checkpoint.Lane) []Finding {
	found := make([]Finding, len(lanes))
	turns := make(chan struct{}, lanesAtOnce) // a token for each lane that is looked at
	var wg sync.WaitGroup
	for i, lane := range lanes {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			loss, err := find(ctx, cfg, lane)
			found[i] = Finding{Lane: lane, Loss: loss, Err: err}
		})
	}
	wg.Wait()
	return found
}

// find looks until what it finds is of one moment: another repair may be at work.
func find(ctx context.Context, cfg *Config, lane checkpoint.Lane) (*Loss, error) {
	for {
		before, err := laneRows(ctx, cfg, lane)
		if err != nil {
			return nil, err
		}
		l, found := findOnce(ctx, cfg, lane)
		if checkpoint.AsRefusal(found) == nil {
			return l, found
		}
		after, err := laneRows(ctx, cfg, lane)
		if err != nil {
			return nil, err
		}
		if slices.Equal(after, before) {
			return l, found
		}
	}
}

// laneRows are the lane's rows on all shards.
func laneRows(ctx context.Context, cfg *Config, lane checkpoint.Lane) (rows []checkpoint.LaneRow, err error) {
	for _, shard := range cfg.Job.Shards {
		row, _, err := shard.LaneRow(ctx, lane)
		if err != nil {
			return nil, fmt.Errorf("shard %s: lane %s: %w", shard.Name(), lane, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// findOnce is S2's and S4's judgement on the lane, and what is missing where a
// shard has come back older.
func findOnce(ctx context.Context, cfg *Config, lane checkpoint.Lane) (*Loss, error) {
	lctx, cancel := context.WithTimeout(ctx, cmp.Or(cfg.Patience, 10*time.Second)+cfg.Job.Limits.LookAgain)
	defer cancel()
	_, d, err := cfg.Job.ForeseeLane(lctx, lane, func(ctx context.Context) (checkpoint.Read, error) {
		return cfg.Kafka.Look(ctx, lane.Partition)
	})
	if err == nil {
		return nil, nil
	}
	lost := false
	var others []error // what another shard says: it could not be asked, or worse
	for _, p := range checkpoint.Problems(err) {
		var r *checkpoint.Refusal
		if !errors.As(p, &r) || r.Reason != checkpoint.ReasonLostEpoch && r.Reason != checkpoint.ReasonOldBranch {
			others = append(others, p)
			continue
		}
		lost = lost || r.Reason == checkpoint.ReasonLostEpoch
	}
	if len(others) > 0 {
		return nil, errors.Join(others...) // each says itself what it is
	}
	l := &Loss{Lane: lane, Decision: d}
	for i, shard := range cfg.Job.Shards {
		m, err := l.missing(ctx, cfg, i, shard)
		if err != nil {
			return nil, err
		}
		if m != nil {
			l.Missing = append(l.Missing, m)
		}
	}
	switch {
	case len(l.Missing) == 0 && lost:
		return nil, nil // it has come meanwhile
	case len(l.Missing) == 0:
		return nil, err //nolint:wrapcheck // an old branch on a shard that lacks nothing: who left it, a person has to find out
	}
	if err := l.findEpochs(ctx, cfg); err != nil {
		return nil, err
	}
	for _, m := range l.Missing {
		if err := l.findBranches(ctx, cfg, m); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// missing is what a shard lacks; nil where it has the decision's epoch.
func (l *Loss) missing(ctx context.Context, cfg *Config, number int, shard checkpoint.Shard) (*Missing, error) {
	failed := func(err error) error { return fmt.Errorf("shard %s: lane %s: %w", shard.Name(), l.Lane, err) }
	row, _, err := shard.LaneRow(ctx, l.Lane)
	if err != nil {
		return nil, failed(err)
	}
	if row.Seq >= l.Decision.Seq {
		return nil, nil
	}
	m := &Missing{Shard: shard.Name(), Has: row.Seq, From: row.Next, number: number, Sums: map[string]*Sum{}}
	err = cfg.MySQL.Epochs(ctx, number, l.Lane, max(row.Seq, 1), l.Decision.Seq, func(e *checkpoint.BookedEpoch) error {
		if e.Seq == row.Seq && e.OffsetNext == row.Next {
			m.row = e
			return nil
		}
		return l.hole(m, fmt.Sprintf("its lane row ends with epoch %d at offset %d, but it has a row of epoch %d up to %d", row.Seq, row.Next, e.Seq, e.OffsetNext))
	})
	if err != nil {
		return nil, err //nolint:wrapcheck // a refusal, or one that names the shard
	}
	if row.Seq > 0 && m.row == nil {
		return nil, l.hole(m, fmt.Sprintf("its lane row ends with epoch %d, and there is no row of that epoch", row.Seq))
	}
	wrong, err := cfg.MySQL.Beyond(ctx, number, l.Lane, row.Seq, row.Next)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the shard
	}
	if wrong != "" {
		return nil, l.hole(m, wrong)
	}
	return m, nil
}

// findBranches are those that the shard has come back with: of an epoch that is
// missing here, and therefore decided. By its name each is the decided one, or
// one that never will be.
func (l *Loss) findBranches(ctx context.Context, cfg *Config, m *Missing) error {
	owner := checkpoint.OwnerPrefix(cfg.Job.Name, cfg.Job.Set)
	gtrids, err := cfg.Job.Shards[m.number].Prepared(ctx, checkpoint.LanePrefix(owner, l.Decision.TopicID, l.Lane.Partition))
	if err != nil {
		return fmt.Errorf("shard %s: lane %s: list prepared branches: %w", m.Shard, l.Lane, err)
	}
	for _, g := range gtrids {
		n, err := g.Parse()
		if err != nil {
			continue // not of this service
		}
		if n.Seq != m.Has+1 {
			return l.hole(m, fmt.Sprintf("branch %s of epoch %d is prepared on top of epoch %d", g, n.Seq, m.Has))
		}
		e := l.epoch(n.Seq)
		m.Branches = append(m.Branches, Left{GTRID: g, Seq: n.Seq, Decided: e.gtrid == g})
	}
	return nil
}

func (l *Loss) epoch(seq int64) *epoch { return l.epochs[seq-l.epochs[0].seq] }

// decidedHere is the epoch that the shard gets by a prepared branch, 0 for none.
func (m *Missing) decidedHere() int64 {
	if i := slices.IndexFunc(m.Branches, func(b Left) bool { return b.Decided }); i >= 0 {
		return m.Branches[i].Seq
	}
	return 0
}

func (l *Loss) refuse(reason, next, wrong string, args ...any) *checkpoint.Refusal {
	return &checkpoint.Refusal{Reason: reason, What: l.Lane.String(), Wrong: fmt.Sprintf(wrong, args...), Next: next}
}

func (l *Loss) hole(m *Missing, wrong string) *checkpoint.Refusal {
	return l.refuse(ReasonShardHole, "restore the shard to one consistent moment, then repair it; billing verify names what is wrong there. See the runbook",
		"what shard %s has is not of one moment: %s", m.Shard, wrong)
}
