package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

const judgePrefix = "exb1aaaaaaaaaaaaaaaabbbbbbbbbbbb00000002"

// TestJudge is the one rule for prepared branches, for every combination: D's
// gtrid first, whatever its incarnation; then what is never rolled back.
func TestJudge(t *testing.T) {
	const ours, seq = 5, 9
	d := &Decision{Incarnation: ours, Seq: seq}
	for _, dIncarnation := range []int64{1, ours - 1, ours, ours + 1} {
		d.GTRID = newGTRID(judgePrefix, dIncarnation, seq)
		for _, incarnation := range []int64{1, ours - 1, ours, ours + 1, maxNum} {
			for _, s := range []int64{1, seq - 1, seq, seq + 1, seq + 2} {
				for _, running := range []bool{false, true} {
					g := newGTRID(judgePrefix, incarnation, s)
					var want verdict
					switch {
					case incarnation == dIncarnation && s == seq:
						want = commitIt
					case incarnation > ours:
						want = superseded
					case s < seq:
						want = older
					case incarnation < ours && s > seq+1:
						want = beyond
					case incarnation < ours:
						want = rollBack
					case running:
						want = leave
					default:
						want = impossible
					}
					n, err := g.Parse()
					if err != nil {
						t.Fatal(err)
					}
					got := judge(g, n, d, ours, running)
					if got != want {
						t.Errorf("branch incarnation %d seq %d, D names incarnation %d, running %t: %d, want %d", incarnation, s, dIncarnation, running, got, want)
					}
					if got == rollBack && (incarnation >= ours || g == d.GTRID) {
						t.Errorf("incarnation %d is rolled back by incarnation %d, D is %s", incarnation, ours, d.GTRID)
					}
				}
			}
		}
	}
}

// TestJudgeFirstEpoch: with D.seq 0 there is no D's branch, and what a dead
// session prepared goes.
func TestJudgeFirstEpoch(t *testing.T) {
	d := &Decision{Incarnation: 3}
	for incarnation, want := range map[int64]verdict{1: rollBack, 2: rollBack, 3: impossible, 4: superseded} {
		g := newGTRID(judgePrefix, incarnation, 1)
		n, err := g.Parse()
		if err != nil {
			t.Fatal(err)
		}
		if got := judge(g, n, d, 3, false); got != want {
			t.Errorf("incarnation %d: %d, want %d", incarnation, got, want)
		}
	}
}

// untouched is a shard on which nothing may be done.
type untouched struct {
	Shard
	t *testing.T
}

func (u untouched) Name() string { return "s0" }

func (u untouched) Commit(_ context.Context, g GTRID) error {
	u.t.Errorf("XA COMMIT %s", g)
	return nil
}

func (u untouched) Rollback(_ context.Context, g GTRID) error {
	u.t.Errorf("XA ROLLBACK %s", g)
	return nil
}

// TestBranchesAreJudgedOnlyAfterTheTakeover: before this session's own takeover
// is known committed, nothing is judged, let alone changed.
func TestBranchesAreJudgedOnlyAfterTheTakeover(t *testing.T) {
	job := &Job{Shards: []Shard{untouched{t: t}}}
	for _, running := range []bool{false, true} {
		for _, c := range []struct{ ours, d int64 }{{0, 0}, {0, 4}, {5, 4}, {4, 5}} {
			s := &Session{job: job, incarnation: c.ours}
			d := &Decision{Incarnation: c.d, Seq: 1, GTRID: newGTRID(judgePrefix, 3, 1)}
			err := job.eachShard(false, func(i int, shard Shard) error {
				_, err := s.act(t.Context(), i, shard, d.GTRID, d, running)
				return err
			})
			var broken *InvariantError
			if !errors.As(err, &broken) {
				t.Errorf("ours %d, D %d: %v, want a broken invariant", c.ours, c.d, err)
			}
		}
	}
}

// TestOnlyDecidedBranchIsCommitted: phase 2 commits nothing but what the last
// known decision names.
func TestOnlyDecidedBranchIsCommitted(t *testing.T) {
	s := &Session{job: &Job{Limits: DefaultLimits(1)}, incarnation: 2}
	s.decision.Store(&Decision{Seq: 1, GTRID: newGTRID(judgePrefix, 2, 1)})
	err := func() (err error) {
		defer guard(&err)
		_, err = s.commit(t.Context(), 0, untouched{t: t}, &Decision{Seq: 2, GTRID: newGTRID(judgePrefix, 2, 2)})
		return err
	}()
	var broken *InvariantError
	if !errors.As(err, &broken) {
		t.Errorf("%v, want a broken invariant", err)
	}
}

// TestForeignBranchIsLeftAlone: a name that this service did not make is never
// touched, even where the listing lets it through.
func TestForeignBranchIsLeftAlone(t *testing.T) {
	s := &Session{job: &Job{}, incarnation: 2}
	d := &Decision{Incarnation: 2, Seq: 1, GTRID: newGTRID(judgePrefix, 1, 1)}
	for _, g := range []GTRID{"", "other", GTRID(fmt.Sprintf("exb0%s", d.GTRID[4:])), d.GTRID + "0", d.GTRID[:63]} {
		for _, running := range []bool{false, true} {
			if v, err := s.act(t.Context(), 0, untouched{t: t}, g, d, running); err != nil || v != leave {
				t.Errorf("%q: %d, %v; want it left alone", g, v, err)
			}
		}
	}
}
