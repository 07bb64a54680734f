package checkpoint_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
)

// left is what a dead session may have left for the two.
type left struct {
	what  string
	done  int                  // parts of the work
	fault checkpointtest.Fault // of the next part's EndTxn
}

var everyLeft = []left{
	{"nothing, the lane is new", 0, checkpointtest.None},
	{"nothing", 1, checkpointtest.None},
	{"an undecided epoch", 1, checkpointtest.Failed},
	{"a decided epoch", 1, checkpointtest.Lost},
}

// two are the processes A and B, before either has begun.
type two struct {
	*stage
	work script
	c    setting
	l    left
	a, b *actor

	// An XA COMMIT's answer may be lost: an epoch may be counted twice then, by
	// who did it and by who does not know that it didn't (see claims).
	guess bool
}

// twoOwners makes a world in which a part of the work is done, or left in doubt.
func twoOwners(t *testing.T, c setting, work script, l left) *two {
	w := work.world(t, c.shards, l.done)
	s := newStage(t, w, c.order)
	if l.fault != checkpointtest.None {
		ends := 0
		s.fault = func(g *gate) checkpointtest.Fault {
			if g.call != "EndTxn" {
				return checkpointtest.None
			}
			if ends++; ends == 2 { // the first is the takeover
				return l.fault
			}
			return checkpointtest.None
		}
		s.start("Z", work[:l.done+1].work)
		if err := s.end("Z"); !errors.Is(err, checkpoint.ErrOutcomeUnknown) {
			t.Fatal(err)
		}
		s.fault, s.trail = nil, nil
	}
	return &two{stage: s, work: work, c: c, l: l}
}

func (p *two) note(format string, args ...any) {
	p.trail = append(p.trail, fmt.Sprintf(format, args...))
}

// over has both go to their ends, A first, and reports what is wrong.
func (p *two) over(t *testing.T) error {
	errA := p.end("A")
	errB := p.end("B")
	var wrong error
	switch {
	case final(errA):
		wrong = fmt.Errorf("A ended with %w: a superseded owner has nothing to refuse", errA)
	case errB != nil:
		wrong = fmt.Errorf("B: %w", errB)
	default:
		wrong = p.work.finished(t, p.w, p.c.shards)
	}
	if wrong == nil && !p.guess && p.l.fault != checkpointtest.Lost { // two recoveries of one epoch at once: likewise
		wrong = countedOnce(p.a, p.b)
	}
	if wrong != nil {
		return fmt.Errorf("left is %s; %s: %w", p.l.what, strings.Join(p.trail, ", "), wrong)
	}
	return nil
}

// allCounted fails unless every epoch but those of the world's making was
// counted by one of the two.
func (p *two) allCounted() error {
	if n := len(p.a.events.counted()) + len(p.b.events.counted()); p.l.fault != checkpointtest.Lost && n != len(p.work)-p.l.done {
		return fmt.Errorf("%s: counted %v and %v, want %d epochs", strings.Join(p.trail, ", "), p.a.events.counted(), p.b.events.counted(), len(p.work)-p.l.done)
	}
	return nil
}

// TestTwoOwners stops owner A at its i-th gate, before a call or behind it;
// owner B starts and is stopped before its j-th call; A goes on, not knowing, until its
// session is over; B goes on to the end. For every i and j, on one and two
// shards, from three states that a dead session may have left. Nothing is lost
// or doubled, and each epoch is counted once.
func TestTwoOwners(t *testing.T) {
	eachSetting(t, []setting{{1, firstShard}, {2, inTurn}}, func(t *testing.T, c setting) {
		for _, l := range everyLeft {
			for i, moreA := 1, true; moreA; i++ {
				moreB := true
				for j := 1; moreB; j += 2 { // before a call: B is in no hurry to know
					synctest.Test(t, func(t *testing.T) {
						p := twoOwners(t, c, twoEpochs, l)
						p.a = p.start("A", p.work.work)
						moreA = p.run("A", i)
						p.note("A passed %s", p.now)
						p.b = p.start("B", p.work.own)
						moreB = p.run("B", j)
						p.note("B passed %s", p.now)
						err := p.over(t)
						if err == nil {
							err = p.allCounted()
						}
						if err != nil {
							t.Fatal(err)
						}
					})
				}
			}
		}
	})
}

// TestTwoOwnersForLong is the same with both stopped for an hour: every bound
// has run out when they go on.
func TestTwoOwnersForLong(t *testing.T) {
	eachSetting(t, []setting{{1, firstShard}}, func(t *testing.T, c setting) {
		for _, l := range everyLeft {
			for i, moreA := 1, true; moreA; i++ {
				moreB := true
				for j := 1; moreB; j += 4 {
					synctest.Test(t, func(t *testing.T) {
						p := twoOwners(t, c, twoEpochs, l)
						p.a = p.start("A", p.work.work)
						moreA = p.run("A", i)
						p.note("A passed %s", p.now)
						p.b = p.start("B", p.work.own)
						moreB = p.run("B", j)
						p.note("B passed %s", p.now)
						p.guess = true
						<-time.After(time.Hour)
						if err := p.over(t); err != nil {
							t.Fatal(err)
						}
					})
				}
			}
		}
	})
}

// TestTwoOwnersFight: A takes the lane back: it is stopped before its i-th call,
// B works up to its j-th, A works k gates more, in as many sessions as it takes; B
// goes on to its end, then A.
func TestTwoOwnersFight(t *testing.T) {
	t.Parallel()
	c, l := setting{1, firstShard}, left{"nothing", 1, checkpointtest.None}
	for i, moreA := 1, true; moreA; i += 2 {
		moreB := true
		for j := 1; moreB; j += 2 {
			for k, more := 2, true; more; k += 4 {
				synctest.Test(t, func(t *testing.T) {
					p := twoOwners(t, c, twoEpochs, l)
					p.a = p.start("A", p.work.own)
					moreA = p.run("A", i)
					p.note("A passed %s", p.now)
					p.b = p.start("B", p.work.own)
					moreB = p.run("B", j)
					p.note("B passed %s", p.now)
					more = p.run("A", k)
					p.note("A passed %s", p.now)
					_ = p.end("B") // its error is told by over
					if err := p.over(t); err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	}
}

// TestTakeoverFailsBesideAnOwner: A is stopped before its i-th call, and the k-th call
// of B's takeover fails, in each way. A goes on right then, or when B is done; a
// late call lands when A is over.
func TestTakeoverFailsBesideAnOwner(t *testing.T) {
	faults := []checkpointtest.Fault{checkpointtest.Failed, checkpointtest.Lost, checkpointtest.Late}
	eachSetting(t, []setting{{1, firstShard}, {2, inTurn}}, func(t *testing.T, c setting) {
		states, ways := everyLeft, 2
		if c.shards > 1 { // what is left on the shards only, and A right then
			states, ways = everyLeft[2:], 1
		}
		for _, l := range states {
			for i, moreA := 1, true; moreA; i += 2 {
				for n := range ways * len(faults) {
					fault, then := faults[n/ways], n%ways == 0
					for k, takesOver := 1, true; takesOver; k++ {
						synctest.Test(t, func(t *testing.T) {
							p := twoOwners(t, c, twoEpochs, l)
							p.a = p.start("A", p.work.work)
							moreA = p.run("A", i)
							p.note("A passed %s", p.now)
							takesOver = false
							p.fault = func(g *gate) checkpointtest.Fault {
								if g.who != "B" || g.n != k {
									return checkpointtest.None
								}
								p.guess = strings.HasPrefix(g.call, "XA COMMIT")
								return fault
							}
							p.b = p.start("B", p.work.own)
							for more := true; more && p.b.calls < k; {
								more = p.next("B") != nil
								takesOver = more && !strings.HasPrefix(p.now.call, "XA START")
							}
							if !then {
								_ = p.end("B") // its error is told by over
							}
							_ = p.end("A") // likewise
							synctest.Wait()
							p.w.Land()
							if err := p.over(t); err != nil {
								t.Fatal(err)
							}
						})
					}
				}
			}
		}
	})
}

// TestOwnersAtRandom has three processes take turns at random, with faults, deaths
// and late calls, on two shards, until one has done it all.
func TestOwnersAtRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) {
			w := threeEpochs.world(t, 2, 0)
			s := newStage(t, w, inTurn)
			r := rand.New(rand.NewPCG(seed, 2))
			s.fault = func(*gate) checkpointtest.Fault {
				if r.IntN(12) > 0 {
					return checkpointtest.None
				}
				return checkpointtest.Fault(1 + r.IntN(3))
			}
			who := make([]string, 3)
			fresh := 0
			begin := func(i int) {
				who[i] = fmt.Sprintf("P%d", fresh)
				fresh++
				s.start(who[i], threeEpochs.own)
			}
			for i := range who {
				begin(i)
			}
			for range 60 {
				i := r.IntN(len(who))
				turn := 1 + r.IntN(60)
				s.trail = append(s.trail, fmt.Sprintf("%s for %d", who[i], turn))
				switch open := s.run(who[i], turn); {
				case !open && final(s.actors[who[i]].err):
					t.Fatalf("seed %d: %v\n%v", seed, s.actors[who[i]].err, s.trail)
				case !open:
					begin(i)
				case r.IntN(8) == 0:
					s.trail = append(s.trail, who[i]+" dies")
					s.kill(who[i])
					begin(i)
				case r.IntN(3) == 0:
					synctest.Wait()
					w.Land()
				}
			}
			s.fault = nil
			for i := range who {
				if err := s.end(who[i]); final(err) || i == len(who)-1 && err != nil {
					t.Fatalf("seed %d: %v\n%v", seed, err, s.trail)
				}
			}
			if err := threeEpochs.finished(t, w, 2); err != nil {
				t.Fatalf("seed %d: %v\n%v", seed, err, s.trail)
			}
		})
	}
}
