package model

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// alone is the next step of owner o when nobody else takes one and nothing that
// is on its way lands: not always a step of next, but a few of them in a row.
// The servers end what they execute, and what the session sends arrives. stuck:
// it stops the lane.
func (m *Model) alone(s state, o int) (n state, stuck bool) {
	for i := range s.shard {
		for j := range s.shard[i].branch {
			if s.shard[i].branch[j].is == executing {
				m.executed(&s, i, j)
				return s, false
			}
		}
	}
	me := &s.owner[o]
	if me.pc >= preparing && !m.NoSweep && m.sweepAlone(&s, o) {
		return s, false
	}
	holds := s.holder == uint8(1+o)
	switch me.pc {
	case idle:
		if m.ReadFirst {
			m.found(me, s.d, readFirst)
			break
		}
		fence(&s, uint8(1+o))
		me.pc = fenced
	case readFirst:
		fence(&s, uint8(1+o))
		me.pc = read
	case fenced:
		switch s.txn {
		case none, marking:
			m.found(me, s.d, read)
		default:
			over(&s, o) // S2's bound
		}
	case read:
		if !holds {
			over(&s, o)
			break
		}
		s.txn, me.pc = open, taking
	case taking:
		if !holds {
			over(&s, o)
			break
		}
		m.decide(&s, decision{me.inc, me.seq, me.ginc})
		m.tookOver(me)
	case settling:
		return m.settleAlone(s, o)
	case preparing:
		m.prepareAlone(&s, o)
	case deciding:
		if !holds {
			over(&s, o)
			break
		}
		d := decision{me.inc, me.seq + 1, me.inc}
		m.decide(&s, d)
		*me = owner{phase2, me.inc, d.seq, d.ginc, [shards]uint8{}}
	case phase2:
		for i := range s.shard {
			if me.done[i] == 1 {
				continue
			}
			h := &s.shard[i]
			switch {
			case h.row >= me.seq:
				m.done(me, i)
			case h.at(me.gtrid(), prepared) >= 0:
				m.commit(&s, i, me.gtrid())
			default:
				over(&s, o)
			}
			return s, false
		}
	}
	return s, false
}

func (m *Model) settleAlone(s state, o int) (n state, stuck bool) {
	me := &s.owner[o]
	for i := range s.shard {
		if me.done[i] == 1 {
			continue
		}
		h := &s.shard[i]
		for j := range h.branch {
			g := h.branch[j].g
			if h.branch[j].is != prepared {
				continue
			}
			switch m.judge(g, me, false) {
			case commitIt:
				m.commit(&s, i, g)
			case rollBack:
				m.rollBack(&s, i, g)
			default: // superseded, or seemingly: unlessSuperseded
				stuck = s.d.inc <= me.inc
				over(&s, o)
			}
			return s, stuck
		}
		if h.row == me.seq || m.SettleNoRow {
			m.done(me, i)
			return s, false
		}
		stuck = s.d.inc <= me.inc
		over(&s, o)
		return s, stuck
	}
	return s, true
}

// sweepAlone does what the sweep finds to do, if it does.
func (m *Model) sweepAlone(s *state, o int) bool {
	me := &s.owner[o]
	for i := range s.shard {
		for j := range s.shard[i].branch {
			b := s.shard[i].branch[j]
			if b.is != prepared {
				continue
			}
			switch v := m.judge(b.g, me, true); {
			case v == commitIt && me.pc != phase2:
				m.commit(s, i, b.g)
			case v == rollBack:
				m.rollBack(s, i, b.g)
			case v == superseded:
				over(s, o)
			default:
				continue
			}
			return true
		}
	}
	return false
}

func (m *Model) prepareAlone(s *state, o int) {
	me := &s.owner[o]
	for i := range s.shard {
		if me.done[i] == 1 {
			continue
		}
		if ok, _ := m.prepare(s, i, me.own()); !ok {
			over(s, o) // C9, of which nothing arrives
			return
		}
		m.done(me, i)
		return
	}
	if s.holder != uint8(1+o) {
		over(s, o)
		return
	}
	s.txn, me.pc = open, deciding
}

// rightEnd: all epochs are on all shards, and nothing is in doubt.
func (m *Model) rightEnd(s *state) bool {
	ok := int(s.d.seq) == m.Epochs
	for i := range s.shard {
		ok = ok && int(s.shard[i].row) == m.Epochs
		for j := range s.shard[i].branch {
			ok = ok && s.shard[i].branch[j].is == absent
		}
	}
	return ok
}

// follow lets each owner work alone from every state, and sees that it comes to
// the right end. Each state is left once: where a way joins one that was seen to
// lead there, it does too.
func (s *search) follow() {
	var good [parts][]uint32 // two bits a state, by owner
	for p := range s.part {
		good[p] = make([]uint32, len(s.part[p].keys)/16+1)
	}
	bit := func(number uint32, o int) (*uint32, uint32) {
		i := number & (1<<partBits - 1)
		return &good[number>>partBits][i/16], 1 << (i%16*2 + uint32(o))
	}
	type lost struct {
		number uint32
		o      int
	}
	bads := make([]*lost, s.workers)
	var wg sync.WaitGroup
	for w := range s.workers {
		wg.Go(func() {
			type place struct {
				number uint32
				o      int
			}
			var way []place
			for p := w; p < parts; p += s.workers {
				for i := range s.part[p].keys {
					for o := range owners {
						at := place{uint32(p)<<partBits | uint32(i), o}
						for way = way[:0]; ; {
							if word, b := bit(at.number, at.o); atomic.LoadUint32(word)&b != 0 {
								break
							}
							way = append(way, at)
							st := unpack(s.key(at.number))
							if s.m.rightEnd(&st) {
								break
							}
							next, stuck := s.m.alone(st, at.o)
							k, swapped := s.m.canonical(next)
							h := hash(k)
							to, _ := s.part[h%parts].find(k, h)
							if to < 0 {
								panic(fmt.Sprintf("model: alone does what next does not: from %+v to %+v", st, next))
							}
							if stuck || len(way) > 1000 {
								if bads[w] == nil {
									bads[w] = &lost{way[0].number, way[0].o}
								}
								return
							}
							at.number = uint32(h%parts)<<partBits | uint32(to)
							if swapped {
								at.o = 1 - at.o
							}
						}
						for _, a := range way {
							word, b := bit(a.number, a.o)
							atomic.OrUint32(word, b)
						}
					}
				}
			}
		})
	}
	wg.Wait()
	for _, b := range bads {
		if b != nil {
			s.result.Bad = harmStuck
			s.result.Trace = append(s.trace(b.number, fine), fmt.Sprintf("from here a healthy owner alone does not come to the right end: %+v", unpack(s.key(b.number))))
			return
		}
	}
}
