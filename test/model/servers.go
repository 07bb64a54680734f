package model

// What the two servers do: Kafka's transaction and the shards' branches.

// fence is a successful InitProducerID: who had the fence has it no more, and
// what is open is aborted.
func fence(s *state, holder uint8) {
	s.holder = holder
	if s.txn != marking {
		s.txn, s.cand = none, decision{}
	}
}

// decide is an EndTxn(commit) that lands within its fence.
func (m *Model) decide(s *state, c decision) (b bad) {
	d := s.d
	s.d, s.txn, s.cand = c, none, decision{}
	if m.Unstable {
		s.txn, s.cand = marking, d
	}
	switch {
	case c.seq == d.seq && c.ginc == d.ginc:
		if c.inc != d.inc+1 {
			return ruleIncarnation
		}
		return fine
	case c.seq != d.seq+1:
		return harmForgotten
	}
	for i := range s.shard {
		h := &s.shard[i]
		if h.row != d.seq {
			if h.row+1 != d.seq {
				return harmHole // two decided epochs behind
			}
			s.past = d.ginc
			b = ruleNotCommitted
		}
		if h.at(c.gtrid(), prepared) < 0 && b == fine {
			b = ruleNotPrepared
		}
	}
	if c.inc != d.inc && b == fine {
		b = ruleIncarnation
	}
	return b
}

// at is the place of the branch on the shard if it is in that condition.
func (h *shard) at(g gtrid, is uint8) int {
	for j := range h.branch {
		if h.branch[j].is == is && h.branch[j].g == g {
			return j
		}
	}
	return -1
}

// decided: a committed decision names the branch.
func (s *state) decided(g gtrid) bool {
	return g.seq > 0 && (g == s.d.gtrid() || s.past != 0 && g == gtrid{s.past, s.d.seq - 1})
}

// prepare is a burst of C3, from the lane's lock to XA PREPARE. It is one step:
// its first statement takes the lock of the lane's row, and nobody sees the
// branch before it is prepared.
func (m *Model) prepare(s *state, i int, g gtrid) (ok bool, b bad) {
	h := &s.shard[i]
	free := -1
	for j := range h.branch {
		switch o := &h.branch[j]; {
		case o.is == absent:
			free = j
		case !m.NoLock, o.g == g, o.g.seq == g.seq && !m.NoEpochKey:
			return false, fine // lock wait time-out; a name or a key that is taken
		}
	}
	var inc uint8 // in the lane's row
	if h.row == s.d.seq {
		inc = s.d.ginc
	}
	switch {
	case free < 0,
		!m.NoCompareAndSet && (h.row+1 != g.seq || inc > g.inc),
		!m.NoEpochKey && g.seq <= h.row:
		return false, fine
	}
	h.branch[free] = branch{prepared, g}
	if s.d.inc < g.inc {
		b = ruleEarlyPrepare
	}
	return true, b
}

// commit is an XA COMMIT that arrives: the branch leaves the list, and its row
// is not there yet.
func (m *Model) commit(s *state, i int, g gtrid) (ok bool, b bad) {
	j := s.shard[i].at(g, prepared)
	if j < 0 {
		return false, fine // unknown XID
	}
	s.shard[i].branch[j].is = executing
	if !s.decided(g) {
		b = ruleCommit
	}
	return true, b
}

// executed ends an XA COMMIT: the rows are there.
func (m *Model) executed(s *state, i, j int) bad {
	h := &s.shard[i]
	g := h.branch[j].g
	row := h.row
	h.branch[j] = branch{}
	h.row = max(row, g.seq)
	switch {
	case g.seq <= row:
		return harmTwice
	case g.seq > s.d.seq:
		return harmEarly
	case !s.decided(g):
		return harmOther
	case g.seq != row+1:
		return harmHole
	}
	return fine
}

// rollBack is an XA ROLLBACK that arrives.
func (m *Model) rollBack(s *state, i int, g gtrid) (ok bool, b bad) {
	j := s.shard[i].at(g, prepared)
	if j < 0 {
		return false, fine // unknown XID
	}
	s.shard[i].branch[j] = branch{}
	switch {
	case s.decided(g):
		b = harmRolledBack
	case s.txn == endSent && s.cand.gtrid() == g && s.cand.seq == s.d.seq+1:
		b = ruleRollBack
	}
	return true, b
}

// land is a statement that arrives. ok: it changed something.
func (m *Model) land(s *state, i int, t statement) (ok bool, b bad) {
	switch t.kind {
	case xaPrepare:
		return m.prepare(s, i, t.g)
	case xaCommit:
		return m.commit(s, i, t.g)
	default:
		return m.rollBack(s, i, t.g)
	}
}

// put has a statement on its way to the shard. There are not more than Wire of
// them: one more takes the place of another, which is lost then. Each way that
// this can go is given.
func (m *Model) put(h shard, t statement, fn func(shard)) {
	free := -1
	for j := range m.Wire {
		switch h.wire[j] {
		case t:
			fn(h)
			return
		case statement{}:
			free = j
		}
	}
	for j := range m.Wire {
		if free < 0 || j == free {
			n := h
			n.wire[j] = t
			fn(n)
		}
	}
}

// servers gives all that the servers and the network do by themselves.
func (m *Model) servers(s *state, emit func(label, *state, bad)) {
	by := func(st step, i int, t statement) label { return label{who: -1, step: st, on: int8(i), with: t} }
	for i := range s.shard {
		h := &s.shard[i]
		for j, t := range h.wire {
			if t.kind == nothing {
				continue
			}
			n := *s
			n.shard[i].wire[j] = statement{}
			if ok, b := m.land(&n, i, t); ok {
				emit(by(stepLanded, i, t), &n, b)
			}
		}
		for j := range h.branch {
			if h.branch[j].is != executing {
				continue
			}
			n := *s
			b := m.executed(&n, i, j)
			emit(by(stepExecuted, i, statement{xaCommit, h.branch[j].g}), &n, b)
			n = *s
			n.shard[i].branch[j].is = prepared
			emit(by(stepUndone, i, statement{xaCommit, h.branch[j].g}), &n, fine)
		}
		// Not while the next epoch is prepared there: a replica that has lost an
		// acknowledged prepare has lost an epoch, and no protocol gives it back.
		if s.d.seq > 0 && h.row == s.d.seq && h.branch[0].is == absent && h.branch[1].is == absent {
			n := *s
			n.shard[i].row--
			n.shard[i].branch[0] = branch{prepared, s.d.gtrid()}
			emit(by(stepComeBack, i, statement{}), &n, fine)
		}
	}
	if s.txn == endSent {
		n := *s
		b := m.decide(&n, s.cand)
		emit(by(stepEndTxnLands, -1, statement{}), &n, b)
	}
	if s.txn == marking {
		n := *s
		n.txn, n.cand = none, decision{}
		emit(by(stepStable, -1, statement{}), &n, fine)
	}
	if s.holder != 0 || s.txn == open || s.txn == endSent {
		n := *s
		fence(&n, 0)
		emit(by(stepLateFence, -1, statement{}), &n, fine)
	}
}
