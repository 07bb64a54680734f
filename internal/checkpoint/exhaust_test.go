package checkpoint_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"billing/internal/checkpoint/checkpointtest"
)

// What can be tried in full is tried in full: each call of a run fails in each
// way, by itself and together with each other one, is late by every number of
// calls, and is the last one of a process that dies. The runs are the same each
// time (see stage), and behind every step the stored state is looked at (see
// checkpointtest.World.Sound).

// setting is what a run is made on.
type setting struct {
	shards int
	order  order
}

var settings = []setting{{1, firstShard}, {2, firstShard}, {2, lastShard}, {2, inTurn}}

func (c setting) String() string {
	if c.shards == 1 {
		return "one shard"
	}
	return "two shards, " + c.order.String()
}

// script is what is worked through there, and how much of it is done before: on
// two shards less, for their calls are many.
func (c setting) script() (s script, done int) {
	if c.shards == 1 {
		return threeEpochs, 0
	}
	return twoEpochs, 1
}

// eachSetting runs the test for each of the settings, side by side.
func eachSetting(t *testing.T, settings []setting, test func(t *testing.T, c setting)) {
	for _, c := range settings {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

// alone has one process work through the script on a new world, of which so many
// parts are done, with a fault for each call, and reports what is wrong then.
// before is called ahead of each gate; nil is nothing.
func (s script) alone(t *testing.T, c setting, done int, before func(*stage), fault func(g *gate) checkpointtest.Fault) (wrong error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := s.world(t, c.shards, done)
		play := newStage(t, w, c.order)
		play.fault = fault
		a := play.start("A", s.own)
		for open := true; open; {
			if before != nil {
				before(play)
			}
			open = play.next("A") != nil
		}
		wrong = a.err
		if wrong == nil {
			wrong = s.finished(t, w, c.shards)
		}
		if wrong == nil {
			wrong = countedOnce(a)
		}
		if wrong != nil {
			wrong = fmt.Errorf("%s: %w", strings.Join(play.trail, ", "), wrong)
		}
	})
	return wrong
}

// countedOnce fails when an epoch was published twice, by one process or by
// several.
func countedOnce(all ...*actor) error {
	seen := map[string]bool{}
	for _, a := range all {
		for _, c := range a.events.counted() {
			seq, _, _ := strings.Cut(c, "/")
			if seen[seq] {
				return fmt.Errorf("epoch %s is counted twice", seq)
			}
			seen[seq] = true
		}
	}
	return nil
}

// TestEveryCallFails fails the i-th external call, not applied and applied with
// its answer lost, for every i until a run is clean.
func TestEveryCallFails(t *testing.T) {
	eachSetting(t, settings, func(t *testing.T, c setting) {
		for _, fault := range []checkpointtest.Fault{checkpointtest.Failed, checkpointtest.Lost} {
			for i, hit := 1, true; hit; i++ {
				hit = false
				err := threeEpochs.alone(t, c, 0, nil, func(g *gate) checkpointtest.Fault {
					if g.n != i {
						return checkpointtest.None
					}
					hit = true
					return fault
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestLateCalls has the i-th call answered with an error and applied before
// the k-th call after it, for every i and every k, until a run ends before it:
// requests that a network held back, a prepare of a session that is over, a
// decision that arrives before the next fence or behind it.
func TestLateCalls(t *testing.T) {
	eachSetting(t, settings, func(t *testing.T, c setting) {
		work, done := c.script()
		for i, hit := 1, true; hit; i++ {
			hit = false
			for k, landed := 1, true; landed; k++ {
				landed = false
				after := -1
				err := work.alone(t, c, done, func(s *stage) {
					if after >= 0 && s.now.behind { // the next gate is before a call
						if after++; after == k {
							landed = s.w.Waiting() > 0
							s.w.Land()
						}
					}
				}, func(g *gate) checkpointtest.Fault {
					if g.n != i {
						return checkpointtest.None
					}
					hit, after = true, 0
					return checkpointtest.Late
				})
				if err != nil {
					t.Fatalf("late by %d calls: %v", k, err)
				}
			}
		}
	})
}

// TestTwoCallsFail fails the i-th and the j-th call, each in each way that is
// seen at once, for all i and j: a fault in the recovery from a fault, and on
// both shards at once.
func TestTwoCallsFail(t *testing.T) {
	both := []checkpointtest.Fault{checkpointtest.Failed, checkpointtest.Lost}
	eachSetting(t, []setting{{1, firstShard}, {2, inTurn}}, func(t *testing.T, c setting) {
		for _, first := range both {
			for _, second := range both {
				for i, hitFirst := 1, true; hitFirst; i++ {
					hitFirst = false
					for j, hit := i+1, true; hit; j++ {
						hit = false
						err := twoEpochs.alone(t, c, 1, nil, func(g *gate) checkpointtest.Fault {
							switch g.n {
							case i:
								hitFirst = true
								return first
							case j:
								hit = true
								return second
							}
							return checkpointtest.None
						})
						if err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		}
	})
}

// TestServersAway has a server answer nothing for the i-th to the (i+m)-th call:
// Kafka, one shard, both, or all of them.
func TestServersAway(t *testing.T) {
	for what, away := range map[string]func(call string) bool{
		"Kafka":       func(call string) bool { return !strings.Contains(call, " on s") },
		"s0":          func(call string) bool { return strings.HasSuffix(call, " on s0") },
		"s1":          func(call string) bool { return strings.HasSuffix(call, " on s1") },
		"both shards": func(call string) bool { return strings.Contains(call, " on s") },
		"all of them": func(string) bool { return true },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for _, fault := range []checkpointtest.Fault{checkpointtest.Failed, checkpointtest.Lost} {
				for _, m := range []int{2, 3, 5, 8, 20} {
					for i, begun := 1, true; begun; i++ {
						begun = false
						err := twoEpochs.alone(t, setting{2, inTurn}, 1, nil, func(g *gate) checkpointtest.Fault {
							begun = begun || g.n >= i
							if g.n < i || g.n >= i+m || !away(g.call) {
								return checkpointtest.None
							}
							return fault
						})
						if err != nil {
							t.Fatalf("away for %d calls: %v", m, err)
						}
					}
				}
			}
		})
	}
}

// TestDiesAtEveryCall has twenty processes one after the other die at their i-th
// gate, before a call or behind it, with nothing said to anybody; for every i,
// all at the same one, and each one gate further than the one before.
func TestDiesAtEveryCall(t *testing.T) {
	const deaths = 20
	eachSetting(t, settings, func(t *testing.T, c setting) {
		work, done := c.script()
		for _, further := range []int{0, 1} {
			for i, died := 1, true; died; i++ {
				died = false
				synctest.Test(t, func(t *testing.T) {
					w := work.world(t, c.shards, done)
					s := newStage(t, w, c.order)
					var all []*actor
					for n := range deaths {
						who := fmt.Sprint("A", n)
						all = append(all, s.start(who, work.own))
						if !s.run(who, i+n*further) {
							break
						}
						died = true
						s.kill(who)
					}
					all = append(all, s.start("B", work.own))
					err := s.end("B")
					if err == nil {
						err = work.finished(t, w, c.shards)
					}
					if err == nil {
						err = countedOnce(all...)
					}
					if err != nil {
						t.Fatalf("%d owners died at gate %d, each %d further: %v", len(all)-1, i, further, err)
					}
				})
			}
		}
	})
}
