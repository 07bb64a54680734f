package model

import (
	"testing"
)

// variant is the protocol without one of its guards, or without some, and what
// comes of it: the shortest way to it in steps. fine is a guard that others stand
// in for: a net.
type variant struct {
	name   string
	broken Broken
	epochs int
	bad    bad
	steps  int
	large  bool // a search of minutes
}

var variants = []variant{
	// What carries: without it money is lost, doubled or too early.
	{"S4 before S3", Broken{SettleFirst: true}, 1, harmRolledBack, 13, false},
	{"S2 before S1", Broken{ReadFirst: true}, 1, harmForgotten, 14, false},
	{"S2 without require-stable", Broken{Unstable: true}, 1, harmForgotten, 16, false},
	{"EndTxn of a fenced producer accepted", Broken{NoFence: true}, 1, harmForgotten, 14, false},
	{"the same gtrid again, in the same session", Broken{RetryInSession: true}, 1, harmRolledBack, 12, false},
	{"the same gtrid again, in the same incarnation", Broken{SameIncarnation: true}, 1, harmRolledBack, 15, false},
	{"rollback after an EndTxn without an answer", Broken{UndecidedUnsent: true}, 1, harmRolledBack, 12, false},
	{"decision before every shard is prepared", Broken{SomePrepared: true}, 1, harmLost, 13, false},
	{"S4 rolls back any incarnation", Broken{SettleAny: true}, 1, harmRolledBack, 15, false},
	{"the sweep rolls back any incarnation", Broken{SweepAny: true}, 1, harmRolledBack, 17, false},
	{"the sweep rolls back the own epoch in flight", Broken{SweepOwn: true}, 1, harmRolledBack, 12, false},
	{"S4 judges D's gtrid by its incarnation", Broken{SettleByNumber: true}, 1, harmRolledBack, 15, false},
	{"the sweep judges D's gtrid by its incarnation", Broken{SweepByNumber: true}, 1, harmRolledBack, 22, false},

	// What stands in for each other: without both money is lost, doubled or too early.
	{"no lock, no compare-and-set", Broken{NoLock: true, NoCompareAndSet: true}, 2, harmHole, 23, false},
	{"next epoch before phase 2 is complete, no lock, no compare-and-set", Broken{NextTooEarly: true, NoLock: true, NoCompareAndSet: true}, 2, harmHole, 17, false},
	{"no row read back, no lock, no compare-and-set", Broken{NoReadBack: true, NoLock: true, NoCompareAndSet: true}, 2, harmHole, 18, false},
	{"unknown XID taken as committed, no lock, no compare-and-set", Broken{UnknownXIDIsOK: true, NoLock: true, NoCompareAndSet: true}, 2, harmHole, 20, false},
	{"D's branch known by its seq, no lock, no key", Broken{SeqOnly: true, NoLock: true, NoEpochKey: true}, 1, harmOther, 24, false},

	// Without it no money is lost, but the lane stops for nothing, or for ever.
	{"no S3", Broken{NoTakeover: true}, 1, harmRefused, 8, false},
	{"S3 of unknown outcome taken as done", Broken{TakeoverUnknown: true}, 1, harmRefused, 12, false},
	{"no look again before a lost epoch is said", Broken{LostAtOnce: true}, 1, harmRefused, 16, false},
	{"no sweep", Broken{NoSweep: true}, 1, harmStuck, 17, false},

	// The nets: without one of them nothing happens. make model looks at two epochs.
	{"next epoch before phase 2 is complete", Broken{NextTooEarly: true}, 2, fine, 0, true},
	{"D's branch known by its seq", Broken{SeqOnly: true}, 1, fine, 0, false},
	{"S4 asks for no row", Broken{SettleNoRow: true}, 1, fine, 0, false},
	{"unknown XID taken as committed", Broken{UnknownXIDIsOK: true}, 1, fine, 0, false},
	{"no row read back", Broken{NoReadBack: true}, 1, fine, 0, false},
	{"no lock of the lane's row", Broken{NoLock: true}, 1, fine, 0, false},
	{"no compare-and-set", Broken{NoCompareAndSet: true}, 1, fine, 0, false},
	{"no key of billing_epoch", Broken{NoEpochKey: true}, 1, fine, 0, false},
}

// TestGuards takes the guards away: each that carries is missed, by the shortest
// way to harm, and each net is not.
func TestGuards(t *testing.T) {
	for _, v := range variants {
		if v.large && !large {
			continue
		}
		m := &Model{Epochs: v.epochs, Wire: 1, Broken: v.broken}
		if large && v.bad == fine {
			m.Epochs = 2
		}
		limit := harm
		if v.bad != fine && v.bad <= money {
			limit = money
		}
		r := m.Search(limit)
		t.Logf("%-70s epochs %d, %d states: %s, %d steps, stops %d", v.name, m.Epochs, r.States, r.Bad, len(r.Trace), r.Stops)
		if steps := len(r.Trace); r.Bad != v.bad || r.Bad != harmStuck && steps != v.steps {
			t.Errorf("%s: %s after %d steps, want %s after %d\n%s", v.name, r.Bad, steps, v.bad, v.steps, r)
		}
		if v.bad != fine && v.bad > money {
			if r := m.Search(money); r.Bad != fine {
				t.Errorf("%s: is said to lose no money\n%s", v.name, r)
			}
		}
	}
}

// TestRules breaks each rule that does no harm yet by the guard that keeps it: the
// break is found, as the first thing that is wrong.
func TestRules(t *testing.T) {
	broken := map[bad]bool{}
	for _, v := range []variant{
		{"no S3", Broken{NoTakeover: true}, 1, ruleEarlyPrepare, 5, false},
		{"decision before every shard is prepared", Broken{SomePrepared: true}, 1, ruleNotPrepared, 8, false},
		{"next epoch before phase 2 is complete, no lock, no compare-and-set", Broken{NextTooEarly: true, NoLock: true, NoCompareAndSet: true}, 2, ruleNotCommitted, 15, false},
		{"D's branch known by its seq, no lock, no key", Broken{SeqOnly: true, NoLock: true, NoEpochKey: true}, 1, ruleCommit, 23, false},
		{"the same gtrid again, in the same incarnation", Broken{SameIncarnation: true}, 1, ruleIncarnation, 8, false},
		{"rollback after an EndTxn without an answer", Broken{UndecidedUnsent: true}, 1, ruleRollBack, 11, false},
	} {
		r := (&Model{Epochs: v.epochs, Wire: 1, Broken: v.broken}).Search(everything)
		if r.Bad != v.bad || len(r.Trace) != v.steps {
			t.Errorf("%s: want %s after %d steps: %s", v.name, v.bad, v.steps, r)
		}
		broken[v.bad] = true
	}
	for rule := bad(ruleEarlyPrepare); rule <= everything; rule++ {
		if !broken[rule] {
			t.Errorf("no variant breaks the rule %q", rule)
		}
	}
}
