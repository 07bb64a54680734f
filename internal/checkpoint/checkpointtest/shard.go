package checkpointtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"billing/internal/checkpoint"
)

// Shard is a fake MySQL shard for one lane. The lock of the lane's row allows
// one prepared branch at a time.
type Shard struct {
	world    *World
	number   int
	lane     *checkpoint.LaneRow
	epochs   map[int64]epoch
	prepared map[checkpoint.GTRID]*checkpoint.Branch
	burst    *checkpoint.Branch        // a connection writes it: in no list, and it has the lock of the lane's row
	used     map[checkpoint.GTRID]bool // every name that the shard was told to prepare
	hidden   *checkpoint.Branch        // a commit that is executing: neither listed nor a row

	// Applied collects the Contents of every committed branch, in order.
	Applied []any
	// SwallowCommit has the next XA COMMIT answer OK and do nothing: what MySQL
	// may do in the instant in which the branch's old connection ends.
	SwallowCommit bool
	// Attached is how many XA COMMIT and XA ROLLBACK of listed branches still
	// answer "unknown XID", as while another connection has the branch.
	Attached int
	// Exists, if set, makes Prepare answer what it returns (MySQL's 1062).
	Exists func(b *checkpoint.Branch) []checkpoint.ExistingRow
}

type epoch struct {
	row    checkpoint.EpochRow
	from   int64
	branch *checkpoint.Branch
}

// Shard returns shard i, to look at and to damage.
func (w *World) Shard(i int) *Shard { return w.shards[i] }

// Name implements checkpoint.Shard.
func (s *Shard) Name() string { return fmt.Sprintf("s%d", s.number) }

func (s *Shard) call(name string) string { return name + " on " + s.Name() }

// EndOlder implements checkpoint.Shard.
func (s *Shard) EndOlder(ctx context.Context, _ checkpoint.Lane) error {
	return s.world.do(ctx, s.call("IS_USED_LOCK"), func() error {
		s.burst = nil // whoever writes there: the lock does not say whose it is
		return nil
	})
}

// Prepared implements checkpoint.Shard.
func (s *Shard) Prepared(ctx context.Context, prefix string) (out []checkpoint.GTRID, err error) {
	err = s.world.do(ctx, s.call("XA RECOVER"), func() error {
		for g := range s.prepared {
			if strings.HasPrefix(string(g), prefix) {
				out = append(out, g)
			}
		}
		sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
		return nil
	})
	return out, err
}

// LaneRow implements checkpoint.Shard.
func (s *Shard) LaneRow(ctx context.Context, _ checkpoint.Lane) (row checkpoint.LaneRow, ok bool, err error) {
	err = s.world.do(ctx, s.call("SELECT lane"), func() error {
		if s.lane != nil {
			row, ok = *s.lane, true
		}
		return nil
	})
	return row, ok && err == nil, err
}

// EpochRow implements checkpoint.Shard.
func (s *Shard) EpochRow(ctx context.Context, _ checkpoint.Lane, seq int64) (row checkpoint.EpochRow, ok bool, err error) {
	err = s.world.do(ctx, s.call("SELECT epoch"), func() error {
		var e epoch
		e, ok = s.epochs[seq]
		row = e.row
		return nil
	})
	return row, ok && err == nil, err
}

// Prepare implements checkpoint.Shard: a burst in two calls. Between them the
// branch is in no list, and has the lane's row. A call that fails leaves the
// burst where it is, as a connection does of which one side knows nothing any
// more, until EndOlder; one whose time is up closes its connection.
func (s *Shard) Prepare(ctx context.Context, b *checkpoint.Branch) error {
	w, c := s.world, *b
	w.mu.Lock()
	w.mayPrepare(s, b)
	w.mu.Unlock()
	err := w.do(ctx, s.call("XA START"), func() error {
		if len(s.prepared) > 0 || s.hidden != nil || s.burst != nil {
			return fmt.Errorf("lock wait timeout: %w", checkpoint.ErrRolledBack)
		}
		seq, incarnation := int64(0), int64(0)
		if s.lane != nil {
			seq, incarnation = s.lane.Seq, s.lane.Incarnation
		}
		if seq != b.Seq-1 || incarnation > b.Incarnation {
			return fmt.Errorf("lane row is at seq %d, incarnation %d: %w", seq, incarnation, checkpoint.ErrRolledBack)
		}
		if s.Exists != nil {
			if rows := s.Exists(b); len(rows) > 0 {
				return &checkpoint.RowsExistError{Shard: s.Name(), Entries: rows}
			}
		}
		s.burst = &c
		return nil
	})
	if err == nil {
		err = w.do(ctx, s.call("XA PREPARE"), func() error {
			if s.burst != &c {
				return errors.New("the connection was ended")
			}
			s.burst, s.prepared[b.GTRID] = nil, &c
			return nil
		})
	}
	if err != nil && ctx.Err() != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		if s.burst == &c {
			s.burst = nil
		}
	}
	return err
}

// Commit implements checkpoint.Shard.
func (s *Shard) Commit(ctx context.Context, g checkpoint.GTRID) error {
	return s.world.do(ctx, s.call("XA COMMIT"), func() error {
		b, ok := s.prepared[g]
		if !ok || s.attached() {
			return checkpoint.ErrNotListed
		}
		s.world.mayCommit(s, g)
		delete(s.prepared, g)
		if s.SwallowCommit {
			s.SwallowCommit, s.world.byHand = false, true
			return nil
		}
		s.apply(b)
		return nil
	})
}

func (s *Shard) attached() bool {
	if s.Attached == 0 {
		return false
	}
	s.Attached--
	return true
}

func (s *Shard) apply(b *checkpoint.Branch) {
	s.lane = &checkpoint.LaneRow{Incarnation: b.Incarnation, Seq: b.Seq, Next: b.OffsetNext}
	s.epochs[b.Seq] = epoch{
		row:    checkpoint.EpochRow{GTRID: b.GTRID, Next: b.OffsetNext, Counts: b.Counts, Digest: s.digest(b.PrevDigest, b.Seq)},
		from:   b.OffsetFrom,
		branch: b,
	}
	s.Applied = append(s.Applied, b.Contents)
}

// digest is of an epoch's row: each shard has a chain of its own.
func (s *Shard) digest(before []byte, seq int64) []byte {
	return append(slices.Clone(before), byte(s.number), byte(seq))
}

// Rollback implements checkpoint.Shard.
func (s *Shard) Rollback(ctx context.Context, g checkpoint.GTRID) error {
	return s.world.do(ctx, s.call("XA ROLLBACK"), func() error {
		if _, ok := s.prepared[g]; !ok || s.attached() {
			return checkpoint.ErrNotListed
		}
		s.world.mayRollBack(s, g)
		delete(s.prepared, g)
		return nil
	})
}

// Put makes a branch appear prepared, as a late XA PREPARE does.
func (s *Shard) Put(b *checkpoint.Branch) {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	s.world.byHand = true
	s.prepared[b.GTRID] = b
}

// LoseEpoch undoes the last epoch, as a restored backup does.
func (s *Shard) LoseEpoch() {
	s.world.byHand = true
	last := s.lane.Seq
	delete(s.epochs, last)
	s.Applied = s.Applied[:len(s.Applied)-1]
	if e, ok := s.epochs[last-1]; ok {
		s.lane = &checkpoint.LaneRow{Incarnation: e.branch.Incarnation, Seq: last - 1, Next: e.row.Next}
	} else {
		s.lane = nil
	}
}

// ComeBack undoes the last epoch and makes its branch prepared again, as the
// promotion of a replica does that had received the prepare only.
func (s *Shard) ComeBack() {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	b := s.epochs[s.lane.Seq].branch
	s.LoseEpoch()
	s.prepared[b.GTRID] = b
}

// Execute has the commit of a prepared branch begin and not end: it is neither
// listed nor a row until Finish.
func (s *Shard) Execute(g checkpoint.GTRID) {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	s.hidden = s.prepared[g]
	delete(s.prepared, g)
}

// Finish ends what Execute began.
func (s *Shard) Finish() {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	s.apply(s.hidden)
	s.hidden = nil
}

// From is where the epoch begins.
func (s *Shard) From(seq int64) int64 { return s.epochs[seq].from }

// SetLaneRow changes the lane's row by hand; nil removes it.
func (s *Shard) SetLaneRow(row *checkpoint.LaneRow) { s.world.byHand, s.lane = true, row }

// SetEpochGTRID changes the branch's name in an epoch's row by hand.
func (s *Shard) SetEpochGTRID(seq int64, g checkpoint.GTRID) {
	s.world.byHand = true
	e := s.epochs[seq]
	e.row.GTRID = g
	s.epochs[seq] = e
}

// PreparedNow lists the prepared branches without a call.
func (s *Shard) PreparedNow() []checkpoint.GTRID {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	var out []checkpoint.GTRID
	for g := range s.prepared {
		out = append(out, g)
	}
	return out
}
