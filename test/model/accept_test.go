package model

// How a recorded run of the code is held against the model: for each call that
// was seen, the states that the model may be in then. Where none is left, the
// code did what the model does not.

// call is one external call of a session and what came of it, or the landing of
// one that was late.
type call struct {
	who     int // owner
	op      string
	on      int // shard
	g       gtrid
	applied bool // the server got it, and did not refuse it
	refused bool // the server got it and refused it
	answer  bool // the caller got the server's answer
	landed  bool // it was late, and is applied only now
	late    bool // it is held back: answered with an error, and applied later or never

	after view
}

// view is what can be seen of the servers after a call.
type view struct {
	d        decision
	row      [shards]uint8
	prepared [shards]gtrid // the zero gtrid: none
}

func (s *state) view() (v view) {
	v.d = s.d
	for i := range s.shard {
		v.row[i] = s.shard[i].row
		for _, b := range s.shard[i].branch {
			if b.is == prepared {
				v.prepared[i] = b.g
			}
		}
	}
	return v
}

type states map[state]bool

// replay is a run that is being held against the model.
type replay struct {
	m    *Model
	at   states
	late map[statement][shards]bool // prepares that were held back
	// What an owner's S4 has listed on a shard, and not yet looked at the row.
	// The model looks at both in one step, which may be at any time between.
	looks [owners][shards]bool
}

func (m *Model) start() *replay {
	return &replay{m: m, at: states{state{}: true}, late: map[statement][shards]bool{}}
}

// see takes the next call. It reports whether it is a step of the model.
func (r *replay) see(c *call) bool {
	switch {
	case c.op == "XA PREPARE" && c.late:
		t := statement{xaPrepare, c.g}
		on := r.late[t]
		on[c.on] = true
		r.late[t] = on
	case c.op == "IS_USED_LOCK":
		r.looks[c.who][c.on] = false
	case c.op == "XA RECOVER" && c.applied && c.answer:
		r.looks[c.who][c.on] = true
	}
	r.at = r.m.accept(r.at, c, r.late)
	r.at = or(r.m.may(r.at, func(_ *state, l label) bool {
		return l.who >= 0 && l.step == stepSettled && r.looks[l.who][l.on]
	}), r.at)
	r.at = or(r.m.may(r.at, func(_ *state, l label) bool { // and the other shard
		return l.who >= 0 && l.step == stepSettled && r.looks[l.who][l.on]
	}), r.at)
	return len(r.at) > 0
}

// may gives the states after the transitions that want allows, from any of s.
func (m *Model) may(from states, want func(s *state, l label) bool) states {
	to := states{}
	for s := range from {
		m.next(&s, func(l label, n *state, b bad) {
			if b == fine && want(&s, l) {
				m.clean(n)
				to[*n] = true
			}
		})
	}
	return to
}

// or is both.
func or(a, b states) states {
	for s := range b {
		a[s] = true
	}
	return a
}

// where keeps the states for which ok holds.
func (from states) where(ok func(*state) bool) states {
	to := states{}
	for s := range from {
		if ok(&s) {
			to[s] = true
		}
	}
	return to
}

// ended ends the owner's session where one is left, without a word to anybody;
// a prepare that is held back stays on its way.
func (m *Model) ended(from states, o int, late map[statement][shards]bool) states {
	none := from.where(func(s *state) bool { return s.owner[o].pc == idle })
	return or(none, m.may(from, func(_ *state, l label) bool {
		if int(l.who) != o || l.sent || l.step != stepEnd {
			return false
		}
		for i := range l.left {
			if t := l.left[i][0]; t.kind == xaPrepare && !late[t][i] {
				return false
			}
		}
		return true
	}))
}

// sent lets a statement of the owner arrive, and the server execute it.
func (m *Model) sent(from states, c *call, kind uint8) states {
	t := statement{kind, c.g}
	arrives := func(from states, step step) states {
		return m.may(from, func(s *state, l label) bool {
			return l.step == step && int(l.on) == c.on && l.with == t && !l.late && (step == stepLanded || int(l.who) == c.who)
		})
	}
	to := states{}
	if !c.landed {
		to = arrives(from, stepSend)
		if kind == xaRollback { // C9: it is on its way, and its session has ended
			from = or(m.may(from, func(_ *state, l label) bool {
				return int(l.who) == c.who && l.step == stepRollBackOwn && l.left[c.on][1] == t
			}), from)
		}
	}
	to = or(to, arrives(from, stepLanded))
	if kind == xaCommit {
		to = m.may(to, func(_ *state, l label) bool { return l.step == stepExecuted && int(l.on) == c.on })
	}
	return to
}

// accept gives the states after a call.
func (m *Model) accept(from states, c *call, late map[statement][shards]bool) states {
	mine := func(steps ...step) states {
		return m.may(from, func(_ *state, l label) bool {
			for _, st := range steps {
				if int(l.who) == c.who && l.step == st && !l.sent && (l.on < 0 || int(l.on) == c.on) {
					return true
				}
			}
			return false
		})
	}
	to := from
	switch c.op {
	case "InitProducerID":
		switch {
		case c.landed:
			to = or(m.may(from, func(_ *state, l label) bool { return l.step == stepLateFence }), from)
		default:
			from = m.ended(from, c.who, late)
			to = from
			if c.applied {
				to = mine(stepFence)
			}
			if c.applied && !c.answer {
				to = m.ended(to, c.who, late)
			}
		}
	case "Read offset":
		if c.refused {
			to = from.where(func(s *state) bool { return s.txn == open || s.txn == endSent })
		}
	case "Read decision":
		// The model reads D in one step, the code its two copies in two: the second
		// one is the step, if it is the same. If not, the code reads again; and a
		// session may look whether it is superseded.
		if c.applied && c.answer {
			to = or(mine(stepRead), from)
		}
	case "TxnOffsetCommit":
		if c.applied {
			to = mine(stepWriteTakeover, stepWriteEpoch)
			if c.landed {
				to = or(to, from)
			}
		}
	case "EndTxn":
		switch {
		case c.landed && c.applied:
			to = m.may(from, func(_ *state, l label) bool { return l.step == stepEndTxnLands })
		case c.late:
			to = m.may(from, func(_ *state, l label) bool { return int(l.who) == c.who && l.step == stepEnd && l.sent })
			to = or(to, from)
		case c.applied:
			to = mine(stepTakeover, stepDecide)
		case c.refused && !c.landed:
			to = from.where(func(s *state) bool { return s.holder != uint8(1+c.who) })
		}
	case "EndTxn abort": // or the session's fence is over already
		to = or(m.may(from, func(_ *state, l label) bool { return l.step == stepLateFence }), from)
	case "XA PREPARE":
		t := statement{xaPrepare, c.g}
		switch {
		case c.landed && c.applied:
			to = or(mine(stepPrepare), m.may(from, func(_ *state, l label) bool {
				return l.step == stepLanded && int(l.on) == c.on && l.with == t
			}))
		case c.applied:
			to = mine(stepPrepare)
		}
		// What refuses it is the burst before it, which the model does not have.
	case "XA COMMIT", "XA ROLLBACK":
		kind := xaCommit
		if c.op == "XA ROLLBACK" {
			kind = xaRollback
		}
		if c.late { // it lands later, if it does
			to = or(m.may(from, func(_ *state, l label) bool {
				return int(l.who) == c.who && int(l.on) == c.on && l.with == statement{kind, c.g} && l.step == stepSend && l.late ||
					int(l.who) == c.who && l.step == stepRollBackOwn && l.left[c.on][1] == statement{kind, c.g}
			}), from)
		}
		if c.applied {
			to = m.sent(from, c, kind)
		}
		if c.refused {
			to = from.where(func(s *state) bool { return s.shard[c.on].at(c.g, prepared) < 0 })
		}
	case "SELECT epoch":
		if c.applied && c.answer {
			to = or(mine(stepRowThere), from)
		}
	}
	return to.where(func(s *state) bool { return s.view() == c.after })
}
