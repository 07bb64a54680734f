package checkpointtest

import (
	"errors"
	"fmt"

	"billing/internal/checkpoint"
)

// Sound returns the protocol's rules that were broken since the world was
// made, nil if none was. The rules are the invariants of docs/protocol.md, as
// they can be seen from outside of a session. Those of the calls:
//
//   - a lane, incarnation and seq have one branch's name; a shard is told once
//     to prepare it, and not before the takeover of its incarnation is
//     committed;
//   - an epoch is decided only when it is prepared on every shard, and every
//     shard has the epoch before;
//   - XA COMMIT only of a branch that a committed decision names, XA ROLLBACK
//     only of one that none names;
//   - the decision's offset, seq and oldest live offset never decrease, seq
//     makes no gaps, and one seq has one branch;
//   - the two copies of a decision are equal;
//   - nothing is trimmed beyond the decision's oldest live offset;
//   - an epoch's counts are published only when every shard shows its row, with
//     these counts.
//
// Those of the stored state, behind every call that was applied, are State's.
// What a test changes by hand is no step of the protocol: from then on the state
// is watched again when it is whole.
func (w *World) Sound() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watch("the last call")
	var errs []error
	for _, v := range w.violations {
		errs = append(errs, errors.New(v))
	}
	return errors.Join(errs...)
}

func (w *World) rule(ok bool, format string, args ...any) {
	if !ok {
		w.violations = append(w.violations, fmt.Sprintf(format, args...))
	}
}

func (w *World) last() checkpoint.Decision {
	if n := len(w.Decisions); n > 0 {
		return w.Decisions[n-1]
	}
	return checkpoint.Decision{}
}

// named reports whether a committed decision names the branch.
func (w *World) named(g checkpoint.GTRID) bool {
	for i := range w.Decisions {
		if w.Decisions[i].GTRID == g {
			return true
		}
	}
	return false
}

// mayDecide is called before a decision is committed.
func (w *World) mayDecide(d checkpoint.Decision, t *transaction) {
	last := w.last()
	w.rule(t.metadata == t.decision, "the two copies of the decision differ: %q and %q", t.metadata, t.decision)
	w.rule(t.offset == d.Next, "the offset is %d, the decision says %d", t.offset, d.Next)
	if len(w.Decisions) == 0 {
		w.rule(d.Incarnation == 1 && d.Seq == 0 && d.GTRID == "", "the first decision is a takeover with incarnation 1: %+v", d)
		return
	}
	w.rule(d.Next >= last.Next, "the offset goes back from %d to %d", last.Next, d.Next)
	w.rule(d.OldestLive >= last.OldestLive, "the oldest live offset goes back from %d to %d", last.OldestLive, d.OldestLive)
	w.rule(d.Incarnation == last.Incarnation || d.Incarnation == last.Incarnation+1, "incarnation %d follows on %d", d.Incarnation, last.Incarnation)
	w.rule(d.Incarnation == last.Incarnation || d.Seq == last.Seq && d.Next == last.Next, "a takeover decides nothing else: %+v after %+v", d, last)
	switch d.Seq {
	case last.Seq:
		w.rule(d.GTRID == last.GTRID, "epoch %d is decided as %s and as %s", d.Seq, last.GTRID, d.GTRID)
	case last.Seq + 1:
		for _, s := range w.shards {
			w.rule(s.prepared[d.GTRID] != nil, "epoch %d is decided, and its branch is not prepared on %s", d.Seq, s.Name())
			w.rule(last.Seq == 0 && s.lane == nil || s.lane != nil && s.lane.Seq == last.Seq, "epoch %d is decided before epoch %d is committed on %s", d.Seq, last.Seq, s.Name())
		}
	default:
		w.rule(false, "epoch %d follows on %d", d.Seq, last.Seq)
	}
}

// name is what a branch's name must be the only one for.
type name struct{ incarnation, seq int64 }

// mayPrepare is called for every try, also for those that fail.
func (w *World) mayPrepare(s *Shard, b *checkpoint.Branch) {
	w.rule(!s.used[b.GTRID], "%s: branch %s is prepared a second time", s.Name(), b.GTRID)
	s.used[b.GTRID] = true
	w.rule(w.last().Incarnation >= b.Incarnation, "%s: branch %s is prepared before the takeover of incarnation %d is committed", s.Name(), b.GTRID, b.Incarnation)
	n := name{b.Incarnation, b.Seq}
	if w.names[n] == nil {
		w.names[n] = map[checkpoint.GTRID]int{}
	}
	w.names[n][b.GTRID]++
	w.rule(len(w.names[n]) == 1, "%s: branch %s is not the only one of incarnation %d and seq %d: %v", s.Name(), b.GTRID, b.Incarnation, b.Seq, w.names[n])
	parsed, err := b.GTRID.Parse()
	w.rule(err == nil && parsed.Incarnation == b.Incarnation && parsed.Seq == b.Seq, "%s: branch %s is of incarnation %d and seq %d: %v", s.Name(), b.GTRID, b.Incarnation, b.Seq, err)
}

func (w *World) mayCommit(s *Shard, g checkpoint.GTRID) {
	w.rule(w.named(g), "%s: XA COMMIT of %s, which no decision names", s.Name(), g)
}

func (w *World) mayRollBack(s *Shard, g checkpoint.GTRID) {
	w.rule(!w.named(g), "%s: XA ROLLBACK of the decided branch %s", s.Name(), g)
}

func (w *World) trimmed(before int64) {
	w.rule(before <= w.last().OldestLive, "the state topic is trimmed up to %d, the decision's oldest live offset is %d", before, w.last().OldestLive)
}

// Published is told what a session publishes of an epoch (Listener.Committed).
func (w *World) Published(d checkpoint.Decision, c checkpoint.Counts) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.shards {
		e, ok := s.epochs[d.Seq]
		w.rule(ok && e.row.GTRID == d.GTRID && e.row.Counts == c, "%s: %+v is published of epoch %d, the row says %+v (there: %t)", s.Name(), c, d.Seq, e.row, ok)
	}
}
