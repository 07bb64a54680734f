package audit

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"billing/internal/checkpoint"
)

// lane is one lane on all shards. Its chain of epochs is read in runs, the same
// epochs on every shard: each shard's part is checked by itself, side by side,
// and then they are held against each other. Only one run is in memory.
type lane struct {
	v     *verifier
	id    checkpoint.Lane
	sides []*side // by shard
	done  int64   // epochs up to here were compared
}

// side is a lane on one shard.
type side struct {
	*snapshot
	lane *lane
	row  *laneRow // of billing_lane; nil without one

	// The chain so far.
	last  *epoch // the last row of billing_epoch that was read; nil before the first
	next  []byte // digest that the next epoch follows on
	from  int64  // offsets before it were read; the least there is before the first run
	until int64  // the run's end

	// The run.
	ahead  []planned // epochs that may be in it
	more   bool      // and there are more behind them
	epochs []*epoch  // in order
	bySeq  map[int64]*epoch
	strays map[stray]*group // rows of epochs that are not in the run
	found  []Difference
	lines  map[Difference]bool // rows that a line was found for: shard, table and key

	off     bool // an epoch was written with the ledger off
	proven  bool // an epoch's digest was right
	scratch []byte
}

// laneRow is a row of billing_lane.
type laneRow struct {
	topic, topicID   string
	incarnation, seq int64
	next             int64
}

// stray names rows that are of an epoch that is not where they are.
type stray struct {
	table string
	seq   int64
}

// group is how many there are, and the first and last of them.
type group struct {
	count       int64
	first, last string // keys
}

func newLane(v *verifier, id checkpoint.Lane) *lane {
	l := &lane{v: v, id: id, done: math.MinInt64}
	for _, s := range v.shards {
		l.sides = append(l.sides, &side{snapshot: s, lane: l, next: make([]byte, 32), from: math.MinInt64, lines: map[Difference]bool{}})
	}
	return l
}

// tell notes a difference in a row of this side. One line for a row is enough,
// and the first is the one that says most.
func (s *side) tell(table, key, wrong, expected string) {
	id := Difference{Shard: s.name, Table: table, Key: key}
	if s.lines[id] {
		return
	}
	s.lines[id] = true
	s.ledgerWrong = s.ledgerWrong || table == tableLedger
	s.found = append(s.found, Difference{s.name, table, key, wrong, expected})
}

// latest is the last epoch that the shard claims to have, by either table.
func (s *side) latest() int64 {
	var seq int64
	if s.row != nil {
		seq = s.row.seq
	}
	if s.last != nil {
		seq = max(seq, s.last.seq)
	}
	return seq
}

// chains is every epoch of every lane.
func (v *verifier) chains(ctx context.Context) error {
	var all, before int64
	for _, l := range v.lanes {
		all += l.reach()
	}
	for _, l := range v.lanes {
		for ended := false; !ended; {
			var err error
			if ended, err = l.run(ctx); err != nil {
				return err
			}
			v.told.progress("epochs", min(before+l.passed(), all), all)
		}
		before += l.reach()
		l.close()
	}
	return nil
}

// reach is the offset that the lane has come to, and passed how far it was read.
func (l *lane) reach() (to int64) {
	for _, s := range l.sides {
		if s.row != nil {
			to = max(to, s.row.next)
		}
	}
	return to
}

func (l *lane) passed() (to int64) {
	for _, s := range l.sides {
		to = max(to, s.from)
	}
	return max(0, min(to, l.reach()))
}

// What a run may have at most: enough that the round trips do not count, few
// enough for the memory. An epoch is read as a whole, however many rows it has.
const (
	rowsOfRun   = 30_000
	epochsOfRun = 1000
)

// all is the end of the last run: whatever is left.
const all = math.MaxInt64

// planned is an epoch that is not read yet.
type planned struct {
	seq, rows  int64
	from, next int64 // offsets
}

// run reads and compares the next epochs. It reports whether they were the last.
func (l *lane) run(ctx context.Context) (ended bool, err error) {
	if err := l.each(func(s *side) error { return s.plan(ctx) }); err != nil {
		return false, err
	}
	to, ended := l.span()
	end := int64(all)
	if !ended {
		end = l.endOf(to)
	}
	if err := l.each(func(s *side) error {
		if err := s.load(ctx, to); err != nil {
			return err
		}
		return s.check(ctx, to, end)
	}); err != nil {
		return false, err
	}
	l.compare(ended)
	for _, s := range l.sides {
		for _, e := range s.epochs {
			l.v.sum.LedgerRows += e.ledger
			l.v.sum.Rejects += e.rejects
		}
		for _, d := range s.found {
			l.v.told.difference(d)
		}
		s.found = nil
		if n := len(s.epochs); n > 0 {
			s.last = s.epochs[n-1]
			s.last.sums, s.last.booked = nil, nil
		}
		s.from = max(s.from, end)
		clear(s.lines)
	}
	l.done = to
	return ended, nil
}

func (l *lane) each(fn func(s *side) error) error {
	return l.v.each(func(s *snapshot) error { return fn(l.sides[s.number]) })
}

// span is the last epoch of the run: where the first shard has enough, or all
// have no more.
func (l *lane) span() (to int64, ended bool) {
	to, ended = l.done, true
	for _, s := range l.sides {
		if last, limited := s.enough(); !limited {
			if ended {
				to = max(to, last)
			}
		} else if ended || last < to {
			to, ended = last, false
		}
	}
	return to, ended
}

// enough is the last epoch that a run of this shard alone would have. limited
// says that there are more behind it.
func (s *side) enough() (last int64, limited bool) {
	last = s.lane.done
	var rows int64
	for i, p := range s.ahead {
		if rows += max(0, p.rows); i > 0 && rows > rowsOfRun {
			return last, true
		}
		last = p.seq
	}
	return last, s.more
}

// endOf is the offset where epoch seq ends: what most shards say of it.
func (l *lane) endOf(seq int64) (end int64) {
	votes := map[int64]int{}
	for _, s := range l.sides {
		for _, p := range s.ahead {
			switch p.seq {
			case seq:
				votes[p.next]++
			case seq + 1:
				votes[p.from]++
			}
		}
	}
	for offset, n := range votes {
		if n > votes[end] || n == votes[end] && offset < end {
			end = offset
		}
	}
	return end
}

// compare holds the shards against each other, after each was checked by itself.
func (l *lane) compare(ended bool) {
	for _, s := range l.sides {
		s.gaps()
	}
	for _, seq := range l.seqs() {
		l.together(seq)
	}
	for _, s := range l.sides {
		if ended {
			s.end()
		}
		s.unsound()
		s.tellStrays()
	}
}

// seqs are the epochs of the run, on any shard.
func (l *lane) seqs() []int64 {
	seqs := map[int64]bool{}
	for _, s := range l.sides {
		for _, e := range s.epochs {
			seqs[e.seq] = true
		}
	}
	return slices.Sorted(maps.Keys(seqs))
}

// together compares one epoch on all shards.
func (l *lane) together(seq int64) {
	var first *side
	var applied, rejects, conflicts int64
	everywhere, sound := true, true
	for _, s := range l.sides {
		e := s.bySeq[seq]
		if e == nil {
			everywhere = false
			continue
		}
		applied += e.shardApplied
		rejects += e.shardRejects
		conflicts += e.conflicts
		sound = sound && e.sound
		if first == nil {
			first = s
			l.v.count(e)
			continue
		}
		l.same(first, s, seq)
	}
	if !everywhere || !sound {
		return // the sums of less than all, or of what was changed, say nothing
	}
	e := first.bySeq[seq]
	if applied != e.counts.Applied {
		first.tell(tableEpoch, epochKey(l.id, seq), fmt.Sprintf("applied is %d", e.counts.Applied), fmt.Sprintf("%d, which the shards have of it together", applied))
	}
	if rejects != e.counts.Conflicts+e.counts.Rejected {
		first.tell(tableEpoch, epochKey(l.id, seq), fmt.Sprintf("conflicts and rejected are %d", e.counts.Conflicts+e.counts.Rejected), fmt.Sprintf("%d, which the shards keep of them together", rejects))
	}
	if conflicts != e.counts.Conflicts {
		first.tell(tableEpoch, epochKey(l.id, seq), fmt.Sprintf("conflicts is %d", e.counts.Conflicts), fmt.Sprintf("%d, which the shards keep of them together", conflicts))
	}
}

// count adds an epoch to the summary.
func (v *verifier) count(e *epoch) {
	v.sum.Epochs++
	if !e.ledgerOn {
		v.sum.LedgerOff++
	}
	o := &v.sum.Outcomes
	o.RecordsIn += e.counts.In
	o.Applied += e.counts.Applied
	o.Duplicates += e.counts.Duplicates
	o.Conflicts += e.counts.Conflicts
	o.Rejected += e.counts.Rejected
}

// same compares what an epoch's row says on two shards. Where the digest of one
// of them is wrong, that is the row that was changed; where both are right, it is
// told of the second.
func (l *lane) same(a, b *side, seq int64) {
	of, is := a.bySeq[seq].whole(), b.bySeq[seq].whole()
	for i := range is {
		if is[i].value == of[i].value {
			continue
		}
		s, wrong, right, other := b, is[i], of[i], a
		if b.bySeq[seq].sound && !a.bySeq[seq].sound {
			s, wrong, right, other = a, of[i], is[i], b
		}
		e := s.bySeq[seq]
		hint := fmt.Sprintf("%s is %s", wrong.name, Printable(wrong.value))
		expected := fmt.Sprintf("%s, as on shard %s", Printable(right.value), other.name)
		if e.sound {
			s.tell(tableEpoch, epochKey(l.id, seq), hint, expected)
			continue
		}
		e.hint(hint, expected)
	}
}

// gaps tells of epochs in the chain that are not there. What is missing at its
// end shows elsewhere: see end, and behind.
func (s *side) gaps() {
	before := int64(0)
	if s.last != nil {
		before = s.last.seq
	}
	for _, e := range s.epochs {
		if from, to := before+1, e.seq-1; from <= to {
			s.tell(tableEpoch, epochsKey(s.lane.id, from, to), "there is no row"+s.strayRows(from, to), "one for each epoch: the chain has no gaps")
		}
		before = e.seq
	}
}

// end looks at the end of the chain: billing_lane's row is that of the last
// epoch. What the other shards have beyond it is looked at later, see behind.
func (s *side) end() {
	id := s.lane.id
	last := s.last
	if n := len(s.epochs); n > 0 {
		last = s.epochs[n-1]
	}
	key := laneKey(id)
	if s.row != nil && s.row.topic != id.Topic {
		s.tell(tableLane, key, fmt.Sprintf("kafka_topic is %q", s.row.topic), fmt.Sprintf("%q", id.Topic))
	}
	switch {
	case last == nil && s.row == nil:
	case last == nil:
		s.tell(tableLane, key, fmt.Sprintf("seq is %d", s.row.seq), "no row: billing_epoch has no epoch of the lane")
		s.tell(tableEpoch, epochsKey(id, 1, s.row.seq), "there is no row"+s.strayRows(1, s.row.seq), "one for each epoch that billing_lane tells of")
	case s.row == nil && !s.proven:
		s.tell(tableEpoch, epochKey(id, last.seq), "a row that no epoch has written", "none: billing_lane has no row of the lane, and no digest is right")
	case s.row == nil:
		s.tell(tableLane, key, "there is no row", fmt.Sprintf("one with seq %d, the last of billing_epoch", last.seq))
	case s.row.seq > last.seq:
		rows := s.strayRows(last.seq+1, s.row.seq)
		if rows == "" {
			s.tell(tableLane, key, fmt.Sprintf("seq is %d", s.row.seq), fmt.Sprintf("%d, the last of billing_epoch", last.seq))
		}
		s.tell(tableEpoch, epochsKey(id, last.seq+1, s.row.seq), "there is no row"+rows, fmt.Sprintf("one for each epoch up to %d, where billing_lane is", s.row.seq))
	case s.row.seq < last.seq && last.sound:
		s.tell(tableLane, key, fmt.Sprintf("seq is %d", s.row.seq), fmt.Sprintf("%d, the last of billing_epoch", last.seq))
	case s.row.seq < last.seq:
		s.tell(tableEpoch, epochKey(id, last.seq), "a row that no epoch has written", fmt.Sprintf("none behind epoch %d, where billing_lane is", s.row.seq))
	default:
		for _, c := range []struct{ column, is, want string }{
			{"topic_id", fmt.Sprintf("%x", s.row.topicID), fmt.Sprintf("%x", last.topicID)},
			{"incarnation", fmt.Sprint(s.row.incarnation), fmt.Sprint(last.incarnation)},
			{"offset_next", fmt.Sprint(s.row.next), fmt.Sprint(last.next)},
		} {
			if c.is == c.want {
				continue
			}
			if last.sound {
				s.tell(tableLane, key, c.column+" is "+c.is, c.want+", as in the last row of billing_epoch")
			} else {
				last.hint(c.column+" is "+c.want, c.is+", as in billing_lane")
			}
		}
	}
}

// strayRows says which rows there are of epochs that have no row of their own,
// and takes them from what is told otherwise.
func (s *side) strayRows(from, to int64) (text string) {
	for _, table := range []string{tableLedger, tableReject, tableSum} {
		var rows int64
		for at, g := range s.strays {
			if at.table == table && from <= at.seq && at.seq <= to {
				rows += g.count
				delete(s.strays, at)
			}
		}
		if rows > 0 {
			text += fmt.Sprintf(", though %s has %d rows of it", table, rows)
		}
	}
	return text
}

// stray notes a row of an epoch that is not in the run.
func (s *side) stray(table string, seq int64, key string) {
	if s.strays == nil {
		s.strays = map[stray]*group{}
	}
	at := stray{table, seq}
	if s.strays[at] == nil {
		s.strays[at] = &group{first: key}
	}
	s.strays[at].count++
	s.strays[at].last = key
}

// tellStrays tells of rows whose epoch has no row, or is elsewhere.
func (s *side) tellStrays() {
	for at, g := range s.strays {
		more := ""
		if g.count > 1 {
			more = fmt.Sprintf(", as have %d more up to %s", g.count-1, g.last)
		}
		s.tell(at.table, g.first, fmt.Sprintf("it has seq %d%s", at.seq, more), "no row there of an epoch of which billing_epoch has none at this place")
	}
	clear(s.strays)
}

// close hands the lane's part of the totals on.
func (l *lane) close() {
	for _, s := range l.sides {
		if !l.off() {
			s.sketch.merge(s.part)
		}
		s.part.clear()
		s.last, s.epochs, s.bySeq = s.tail(), nil, nil
	}
}

// off reports whether an epoch of the lane was written with the ledger off.
func (l *lane) off() bool {
	return slices.ContainsFunc(l.sides, func(s *side) bool { return s.off })
}

// tail is the last epoch, without what it took to check it.
func (s *side) tail() *epoch {
	if s.last == nil {
		return nil
	}
	e := *s.last
	e.enc, e.marks, e.hash = nil, nil, nil
	return &e
}
