package checkpointtest

import (
	"bytes"
	"fmt"

	"billing/internal/checkpoint"
)

// watch notes what is wrong with the stored state behind a step. The same
// finding is noted once.
func (w *World) watch(call string) {
	wrong := w.state()
	if w.byHand {
		w.byHand = len(wrong) > 0
		return
	}
	for _, v := range wrong {
		if !w.noted[v] {
			w.noted[v] = true
			w.violations = append(w.violations, "behind "+call+": "+v)
		}
	}
}

// State returns what is wrong with what is stored, nil if it is whole:
//
//   - the rows of the lane's epochs on a shard are 1 to n without a hole, each
//     begins where the last one ended, the digests are chained, the lane's row
//     is the last one's, and what was written is each epoch's contents, once and
//     in order;
//   - each row is of the branch that was decided for its seq, with the decided
//     offset: no epoch that nobody decided;
//   - no decided epoch is gone: all but the last one are rows on every shard, the
//     last one is a row, or prepared, or just being committed;
//   - the rows of an epoch are the same on every shard;
//   - at most one branch of the lane is prepared or being written, and it follows
//     on the lane's row, and belongs to an incarnation that has taken over;
//   - the two copies of the decision are equal, are the last one that was
//     committed, and are stored with its offset;
//   - the state topic has what the decision needs, up to what it says was written.
func (w *World) State() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state()
}

func (w *World) state() (wrong []string) {
	note := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	last := w.last()
	for _, s := range w.shards {
		if _, err := s.chain(); err != nil {
			note("%v", err)
		}
		w.decidedRows(s, note)
		w.underway(s, note)
	}
	if len(w.Decisions) == 0 {
		return wrong
	}
	switch text := w.text; {
	case w.decision != text:
		note("the decision topic says %q, decided is %q", w.decision, text)
	case !w.hasOffset || w.metadata != text || w.offset != last.Next:
		note("the group's offset is %d (%t) with %q, the decision topic says %q", w.offset, w.hasOffset, w.metadata, text)
	case w.stateStart > last.OldestLive || w.stateEnd < last.StateNext:
		note("the state topic has %d to %d, the decision needs %d to %d", w.stateStart, w.stateEnd, last.OldestLive, last.StateNext)
	}
	return wrong
}

// decidedRows holds a shard's rows against the decisions.
func (w *World) decidedRows(s *Shard, note func(string, ...any)) {
	last := w.last()
	if n := int64(len(s.epochs)); n > last.Seq {
		note("%s: has %d epochs, decided are %d: money before its decision", s.Name(), n, last.Seq)
	}
	for i, d := range w.epochs {
		seq := int64(i) + 1
		e, row := s.epochs[seq]
		if !row {
			_, prepared := s.prepared[d.gtrid]
			executing := s.hidden != nil && s.hidden.GTRID == d.gtrid
			if seq < last.Seq || !prepared && !executing {
				note("%s: the decided epoch %d (%s) is gone", s.Name(), seq, d.gtrid)
			}
			continue
		}
		if e.row.GTRID != d.gtrid || e.row.Next != d.next {
			note("%s: epoch %d is %s up to %d, decided is %s up to %d", s.Name(), seq, e.row.GTRID, e.row.Next, d.gtrid, d.next)
		}
		if first, ok := w.shards[0].epochs[seq]; ok && (first.from != e.from || first.row.Next != e.row.Next || first.row.Counts != e.row.Counts || first.row.GTRID != e.row.GTRID) {
			note("%s: epoch %d is %+v, on %s it is %+v", s.Name(), seq, e.row, w.shards[0].Name(), first.row)
		}
	}
}

// underway looks at what a shard has of the lane that is no row yet.
func (w *World) underway(s *Shard, note func(string, ...any)) {
	var all []*checkpoint.Branch
	for _, b := range s.prepared {
		all = append(all, b)
	}
	for _, b := range []*checkpoint.Branch{s.hidden, s.burst} {
		if b != nil {
			all = append(all, b)
		}
	}
	if len(all) > 1 {
		note("%s: %d branches of the lane at once", s.Name(), len(all))
	}
	for _, b := range all {
		if b.Seq != int64(len(s.epochs))+1 {
			note("%s: branch %s of epoch %d, the shard has %d epochs", s.Name(), b.GTRID, b.Seq, len(s.epochs))
		}
		if b.Incarnation > w.last().Incarnation {
			note("%s: branch %s of incarnation %d, which has not taken over", s.Name(), b.GTRID, b.Incarnation)
		}
	}
}

// Chain checks that the epochs 1 to n are there without a hole and in order, as
// State does, and returns n.
func (s *Shard) Chain() (int64, error) {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	return s.chain()
}

func (s *Shard) chain() (int64, error) {
	var before epoch
	for seq := int64(1); ; seq++ {
		e, ok := s.epochs[seq]
		if !ok {
			return seq - 1, s.ends(seq-1, before)
		}
		switch {
		case seq > 1 && e.from != before.row.Next:
			return 0, fmt.Errorf("%s: epoch %d begins at %d, the last one ended at %d", s.Name(), seq, e.from, before.row.Next)
		case !bytes.Equal(e.row.Digest, s.digest(before.row.Digest, seq)):
			return 0, fmt.Errorf("%s: epoch %d: digest %v is not chained to %v", s.Name(), seq, e.row.Digest, before.row.Digest)
		case len(s.Applied) < int(seq) || s.Applied[seq-1] != e.branch.Contents:
			return 0, fmt.Errorf("%s: epoch %d: %v is not what was written: %v", s.Name(), seq, e.branch.Contents, s.Applied)
		}
		before = e
	}
}

// ends checks that the n-th epoch is the last one.
func (s *Shard) ends(n int64, last epoch) error {
	switch {
	case len(s.epochs) != int(n):
		return fmt.Errorf("%s: no epoch %d, but %d rows", s.Name(), n+1, len(s.epochs))
	case len(s.Applied) != int(n):
		return fmt.Errorf("%s: %d epochs, but %d were written: %v", s.Name(), n, len(s.Applied), s.Applied)
	case n == 0 && s.lane != nil:
		return fmt.Errorf("%s: no epoch, but the lane's row is %+v", s.Name(), *s.lane)
	case n > 0 && (s.lane == nil || *s.lane != checkpoint.LaneRow{Incarnation: last.branch.Incarnation, Seq: n, Next: last.row.Next}):
		return fmt.Errorf("%s: the lane's row is %+v, the last epoch %+v", s.Name(), s.lane, last.row)
	}
	return nil
}
