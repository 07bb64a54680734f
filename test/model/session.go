package model

// What a session does: S0 to S4, the sweep, C3 to C9. A statement that waits for
// its answer is part of its session's place: it lands in one step with its
// answer, and a session that ends may leave it on its way. A session that is
// frozen is one that takes no step.

// over ends the owner's session: only its client's fence is left, which nobody
// uses any more.
func over(s *state, o int) {
	s.owner[o] = owner{}
	if s.holder == uint8(1+o) {
		s.holder = 0
	}
}

// works is where the session goes when nothing is left to do in S4 or C8.
func (m *Model) works(o *owner) {
	o.done = [shards]uint8{}
	o.pc = ready
	if int(o.seq) < m.Epochs {
		o.pc = preparing
	}
}

// done notes a shard of S4, C3 or C8.
func (m *Model) done(o *owner, i int) {
	o.done[i] = 1
	if o.done != [shards]uint8{1, 1} {
		return
	}
	switch {
	case o.pc == settling && m.SettleFirst:
		o.pc, o.done = read, [shards]uint8{} // S3, at last
	case o.pc != preparing:
		m.works(o)
	}
}

type emitFn = func(label, *state, bad)

// session gives all that owner o may do next.
func (m *Model) session(s *state, o int, emit emitFn) {
	me := &s.owner[o]
	holds := s.holder == uint8(1+o)
	take := func(st step, i int, t statement, b bad, change func(n *state, me *owner)) {
		n := *s
		change(&n, &n.owner[o])
		emit(label{who: int8(o), step: st, on: int8(i), with: t}, &n, b)
	}
	end := func(st step) { take(st, -1, statement{}, fine, func(n *state, _ *owner) { over(n, o) }) }

	switch me.pc {
	case idle:
		if m.ReadFirst {
			m.read(s, func(d decision) {
				take(stepRead, -1, statement{}, fine, func(_ *state, me *owner) { m.found(me, d, readFirst) })
			})
			return
		}
		take(stepFence, -1, statement{}, fine, func(n *state, me *owner) { fence(n, uint8(1+o)); me.pc = fenced })

	case readFirst:
		take(stepFence, -1, statement{}, fine, func(n *state, me *owner) { fence(n, uint8(1+o)); me.pc = read })
		end(stepEnd)

	case fenced:
		m.read(s, func(d decision) {
			take(stepRead, -1, statement{}, fine, func(_ *state, me *owner) { m.found(me, d, read) })
		})
		end(stepEnd)

	case read:
		if holds && s.txn != marking {
			take(stepWriteTakeover, -1, statement{}, fine, func(n *state, me *owner) { n.txn, me.pc = open, taking })
		}
		end(stepEnd)

	case taking:
		if holds || m.NoFence {
			n := *s
			b := m.decide(&n, decision{me.inc, me.seq, me.ginc})
			m.tookOver(&n.owner[o])
			emit(label{who: int8(o), step: stepTakeover, on: -1}, &n, b)
		}
		if m.TakeoverUnknown {
			take(stepTakeoverGuess, -1, statement{}, fine, func(n *state, me *owner) {
				if holds {
					n.txn, n.cand = endSent, decision{me.inc, me.seq, me.ginc}
				}
				m.tookOver(me)
			})
		}
		end(stepEnd)
		if holds {
			m.endSent(s, o, decision{me.inc, me.seq, me.ginc}, emit)
		}

	case settling:
		for i := range s.shard {
			if me.done[i] == 0 {
				m.settleOnce(s, o, i, emit)
			}
		}
		end(stepEnd)

	case preparing:
		m.prepareAll(s, o, emit)

	case deciding:
		d := decision{me.inc, me.seq + 1, me.inc}
		if holds || m.NoFence {
			n := *s
			b := m.decide(&n, d)
			n.owner[o] = owner{phase2, me.inc, d.seq, d.ginc, [shards]uint8{}}
			emit(label{who: int8(o), step: stepDecide, on: -1}, &n, b)
		}
		for i := range s.shard {
			n := *s
			if me.done[i] == 0 { // only with SomePrepared
				if ok, b := m.prepare(&n, i, me.own()); ok {
					n.owner[o].done[i] = 1
					emit(label{who: int8(o), step: stepPrepare, on: int8(i), with: statement{xaPrepare, me.own()}}, &n, b)
				}
			}
		}
		end(stepEnd) // the outcome is unknown: no branch is touched
		if holds {
			m.endSent(s, o, d, emit)
		}
		m.rollbackAll(s, o, emit) // C6: not assigned, no time left
		m.sweep(s, o, emit)

	case phase2:
		m.commitAll(s, o, emit)
		end(stepEnd)
		m.sweep(s, o, emit)

	case ready:
		end(stepEnd)
		m.sweep(s, o, emit)
	}
}

// read is S2: a stable read waits for an open transaction.
func (m *Model) read(s *state, fn func(decision)) {
	if s.txn == none || m.Unstable {
		fn(s.d)
	}
	if s.txn == marking {
		fn(s.cand)
	}
}

// found is what S2 makes of D.
func (m *Model) found(o *owner, d decision, next uint8) {
	*o = owner{pc: next, inc: d.inc + 1, seq: d.seq, ginc: d.ginc}
	if m.SameIncarnation && d.inc > 0 {
		o.inc = d.inc
	}
	if m.SettleFirst || m.NoTakeover {
		o.pc = settling
	}
}

// tookOver is the end of S3.
func (m *Model) tookOver(o *owner) {
	o.pc, o.done = settling, [shards]uint8{}
	if m.SettleFirst {
		m.works(o)
	}
}

// endSent ends a session whose EndTxn is on its way, or has landed and the
// answer is lost, which is landing a step later.
func (m *Model) endSent(s *state, o int, d decision, emit emitFn) {
	n := *s
	n.txn, n.cand = endSent, d
	over(&n, o)
	emit(label{who: int8(o), step: stepEnd, on: -1, sent: true}, &n, fine)
}

// settleOnce is S4 on one shard: it looks, and ends what it finds. What it sends
// lands whenever it does, and S4 looks again.
func (m *Model) settleOnce(s *state, o, i int, emit emitFn) {
	me, h := &s.owner[o], &s.shard[i]
	found := false
	for j := range h.branch {
		if h.branch[j].is == prepared {
			found = true
			m.act(s, o, i, h.branch[j].g, false, emit)
		}
	}
	if found {
		return
	}
	n := *s
	l := label{who: int8(o), step: stepSettled, on: int8(i)}
	switch {
	case h.row == me.seq && (me.seq == 0 || s.d.seq != me.seq || s.d.ginc == me.ginc), m.SettleNoRow:
		m.done(&n.owner[o], i)
		emit(l, &n, fine)
	case h.row < me.seq && h.at(me.gtrid(), executing) >= 0 && !m.LostAtOnce:
		// neither listed nor a row: look again
	default: // lost, ahead, or another branch's row
		m.refuse(s, o, i, statement{}, emit)
	}
}

// act judges one prepared branch and does what the judgement says.
func (m *Model) act(s *state, o, i int, g gtrid, running bool, emit emitFn) {
	me := &s.owner[o]
	switch v := m.judge(g, me, running); {
	case v == leave, v == superseded: // superseded: the session ends, as it may at any time
	case v == commitIt && running && me.pc == phase2: // C8 is its only committer
	case v == commitIt:
		m.send(s, o, i, statement{xaCommit, g}, emit)
	case v == rollBack:
		m.send(s, o, i, statement{xaRollback, g}, emit)
	default:
		m.refuse(s, o, i, statement{xaPrepare, g}, emit)
	}
}

// send has a session's statement arrive, or be on its way, which nobody waits
// for then.
func (m *Model) send(s *state, o, i int, t statement, emit emitFn) {
	l := label{who: int8(o), step: stepSend, on: int8(i), with: t}
	n := *s
	if ok, b := m.land(&n, i, t); ok {
		emit(l, &n, b)
	}
	m.put(s.shard[i], t, func(h shard) {
		if h != s.shard[i] {
			n := *s
			n.shard[i] = h
			l := l
			l.late = true
			emit(l, &n, fine)
		}
	})
}

// refuse stops the lane, if the session is not superseded: then what it finds
// means nothing (Session.unlessSuperseded), and it only ends.
func (m *Model) refuse(s *state, o, i int, t statement, emit emitFn) {
	if s.d.inc > s.owner[o].inc {
		return
	}
	b := harmRefused
	h := &s.shard[i]
	if g := s.d.gtrid(); h.row < s.d.seq && h.at(g, prepared) < 0 && h.at(g, executing) < 0 {
		b = harmLost
	}
	n := *s
	over(&n, o)
	emit(label{who: int8(o), step: stepRefuse, on: int8(i), with: t}, &n, b)
}

// sweep repeats S4's judgement on each shard.
func (m *Model) sweep(s *state, o int, emit emitFn) {
	if m.NoSweep {
		return
	}
	for i := range s.shard {
		for j := range s.shard[i].branch {
			if b := s.shard[i].branch[j]; b.is == prepared {
				m.act(s, o, i, b.g, true, emit)
			}
		}
	}
}

// prepareAll is C3, and then C4 and C5.
func (m *Model) prepareAll(s *state, o int, emit emitFn) {
	me := &s.owner[o]
	all := true
	for i := range s.shard {
		if me.done[i] == 1 {
			continue
		}
		all = false
		n := *s
		if ok, b := m.prepare(&n, i, me.own()); ok {
			m.done(&n.owner[o], i)
			emit(label{who: int8(o), step: stepPrepare, on: int8(i), with: statement{xaPrepare, me.own()}}, &n, b)
		}
	}
	if (all || m.SomePrepared) && s.txn != marking && (s.holder == uint8(1+o) || m.NoFence) {
		n := *s
		n.txn, n.owner[o].pc = open, deciding
		emit(label{who: int8(o), step: stepWriteEpoch, on: -1}, &n, fine)
	}
	m.rollbackAll(s, o, emit)
	m.sweep(s, o, emit)
}

// rollbackAll ends a session in C3 to C6: C9, of which everything may be left
// out, as by a crash. What it has sent may be on its way.
func (m *Model) rollbackAll(s *state, o int, emit emitFn) {
	me := &s.owner[o]
	g := me.own()
	m.each(s.shard[0], me.done[0] == 1, g, func(h0 shard, l0 [wires]statement) {
		m.each(s.shard[1], me.done[1] == 1, g, func(h1 shard, l1 [wires]statement) {
			n := *s
			n.shard[0], n.shard[1] = h0, h1
			st := stepEnd
			if l0[1].kind+l1[1].kind != nothing {
				st = stepRollBackOwn
			}
			if me.pc == deciding && s.holder != uint8(1+o) && !m.NoFence {
				if st == stepEnd {
					return // the session's end is there already
				}
			}
			l := label{who: int8(o), step: st, on: -1, left: [shards][wires]statement{l0, l1}}
			if st == stepRollBackOwn && m.UndecidedUnsent && me.pc == deciding && s.holder == uint8(1+o) {
				e := n
				e.txn, e.cand = endSent, decision{me.inc, me.seq + 1, me.inc}
				over(&e, o)
				l := l
				l.sent = true
				emit(l, &e, fine)
			}
			if m.RetryInSession {
				e := n
				if e.holder == uint8(1+o) {
					e.txn = none
				}
				e.owner[o].pc, e.owner[o].done = preparing, [shards]uint8{}
				l := l
				l.step = stepRetry
				emit(l, &e, fine)
			}
			over(&n, o)
			emit(l, &n, fine)
			if me.pc == deciding && s.holder == uint8(1+o) {
				n.txn = none // EndTxn(abort)
				emit(l, &n, fine)
			}
		})
	})
}

// each gives what C9 may leave of its epoch g on a shard: its XA PREPARE on its
// way, if it was not answered, and XA ROLLBACK.
func (m *Model) each(h shard, acked bool, g gtrid, fn func(shard, [wires]statement)) {
	p, r := statement{xaPrepare, g}, statement{xaRollback, g}
	fn(h, [wires]statement{})
	if acked {
		m.put(h, r, func(h shard) { fn(h, [wires]statement{1: r}) })
		return
	}
	if m.RetryInSession || m.SameIncarnation { // else it can't matter
		m.put(h, r, func(h shard) { fn(h, [wires]statement{1: r}) })
	}
	m.put(h, p, func(h shard) {
		fn(h, [wires]statement{p})
		if m.Wire > 1 {
			m.put(h, r, func(h shard) { fn(h, [wires]statement{p, r}) })
		}
	})
}

// commitAll is C8.
func (m *Model) commitAll(s *state, o int, emit emitFn) {
	me := &s.owner[o]
	g := me.gtrid()
	left := func(st step, i int, change func(*state)) {
		n := *s
		change(&n)
		m.done(&n.owner[o], i)
		emit(label{who: int8(o), step: st, on: int8(i)}, &n, fine)
	}
	for i := range s.shard {
		h := &s.shard[i]
		j := h.at(g, prepared)
		switch {
		case me.done[i] == 1:
			continue
		case h.row >= me.seq: // of another branch: executed tells
			left(stepRowThere, i, func(*state) {})
			continue
		case j >= 0 && m.NoReadBack:
			left(stepNotListed, i, func(*state) {}) // answered OK, and undone
		case j < 0 && m.UnknownXIDIsOK:
			left(stepNotListed, i, func(*state) {})
		}
		m.send(s, o, i, statement{xaCommit, g}, emit)
	}
	if m.NextTooEarly {
		n := *s
		m.works(&n.owner[o])
		emit(label{who: int8(o), step: stepPhase2Skipped, on: -1}, &n, fine)
	}
}

// next gives every transition.
func (m *Model) next(s *state, emit emitFn) {
	m.servers(s, emit)
	for o := range s.owner {
		m.session(s, o, emit)
	}
}
