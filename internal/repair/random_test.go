package repair_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/repair"
)

// TestAsItWas: what the real pipeline has booked of a random stream is lost on
// some shards, and booked again. Each epoch is as it was, byte by byte, or the
// repair has said that it can't be told. Nothing else is ever booked.
func TestAsItWas(t *testing.T) {
	booked, refused := 0, map[string]int{}
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reason := asItWas(t, seed)
				if reason == "" {
					booked++
				} else {
					refused[reason]++
				}
			})
		})
	}
	t.Logf("booked %d, refused %v", booked, refused)
	// What is refused is rare where the lateness is days: most streams are booked.
	if booked < 25 || refused[repair.ReasonNotExact] < 6 || refused[repair.ReasonEpochsUnknown] < 3 {
		t.Errorf("booked %d, refused %v: the streams do not show enough", booked, refused)
	}
}

func asItWas(t *testing.T, seed uint64) (reason string) {
	rng := rand.New(rand.NewPCG(seed, 1))
	wait(100 * 24 * time.Hour) // the clock begins with the year 2000, and no event is older
	r := newRig(t, 1+rng.IntN(3))
	s := &stream{rng: rng, ids: 20 + rng.IntN(300), late: time.Hour}
	r.cfg.MaxRecords = 1 + rng.IntN(40)
	r.cfg.Ledger = rng.IntN(3) > 0
	pace := 10 * time.Second
	if rng.IntN(2) == 0 { // buckets die while the epochs are written
		r.cfg.Lateness = time.Duration(1+rng.IntN(4)) * time.Hour
		s.late = r.cfg.Lateness * 5 / 4
		pace = 5 * time.Minute
	}
	lateness := r.cfg.Lateness
	var mu sync.Mutex // shards are called side by side
	waits := rand.New(rand.NewPCG(seed, 2))
	r.world.Before(func(context.Context, string) {
		mu.Lock()
		d := time.Duration(waits.Int64N(int64(200 * time.Millisecond)))
		mu.Unlock()
		wait(d)
	})
	r.start()
	for range 20 + rng.IntN(60) {
		r.topic.append(rng.Int64N(3)/2*rng.Int64N(20), s.next())
		if rng.IntN(3) == 0 {
			wait(time.Duration(rng.Int64N(int64(pace))))
		}
		if rng.IntN(25) == 0 { // another instance, perhaps configured otherwise
			r.stop()
			switch rng.IntN(8) {
			case 0:
				r.cfg.Ledger = !r.cfg.Ledger
			case 1:
				r.cfg.Lateness = lateness / 2
			case 2:
				r.cfg.Lateness = lateness * 2
			}
			r.start()
		}
	}
	r.work()
	return r.lose(rng).repaired()
}

// loss is what shards had, and have no more.
type loss struct {
	*rig
	before [][]string // by shard and epoch
}

// lose has shards come back older, and perhaps compacts the decisions away.
func (r *rig) lose(rng *rand.Rand) *loss {
	l := &loss{rig: r}
	r.world.Before(nil)
	last := r.last().Seq
	lost := false
	for i, s := range r.shards {
		l.before = append(l.before, s.lines())
		n := int64(0)
		if rng.IntN(2) == 0 || i == len(r.shards)-1 && !lost {
			n = 1 + rng.Int64N(last)
		}
		for range n {
			s.LoseEpoch()
			lost = true
		}
	}
	if rng.IntN(2) == 0 {
		r.oldest = rng.IntN(len(r.world.Decisions))
	}
	r.onlyFew = rng.IntN(2) == 0
	return l
}

// repaired repairs, and says why it was refused, "" if it was not.
func (l *loss) repaired() (reason string) {
	t := l.t
	had := l.lines()
	loss, err := l.repair(l.repairer())
	var refused *checkpoint.Refusal
	switch {
	case errors.As(err, &refused):
		if !slices.Equal(l.lines(), had) {
			t.Errorf("something has changed, and it is refused: %v", err)
		}
		return refused.Reason
	case err != nil:
		t.Fatal(err)
	case loss == nil:
		t.Fatal("nothing is missing")
	}
	l.mustBeAgain()
	if again, err := l.repair(l.repairer()); again != nil || err != nil {
		t.Errorf("repaired, and again: %+v, %v", again, err)
	}
	return ""
}

// lines are all that the shards have.
func (l *loss) lines() (all []string) {
	for _, s := range l.shards {
		all = append(all, s.lines()...)
	}
	return all
}

// mustBeAgain fails unless the shards have again what they had, and no rule was
// broken.
func (l *loss) mustBeAgain() {
	l.t.Helper()
	for i, s := range l.shards {
		now := s.lines()
		for seq := range l.before[i] {
			if seq >= len(now) || now[seq] != l.before[i][seq] {
				l.t.Fatalf("%s has %d epochs of %d; epoch %d is\n%s\nwas\n%s", s.Name(), len(now), len(l.before[i]), seq+1, now[min(seq, len(now)-1)], l.before[i][seq])
			}
		}
		if n, err := s.Chain(); err != nil || n != int64(len(l.before[i])) {
			l.t.Errorf("%s: %d epochs (%v)", s.Name(), n, err)
		}
	}
	if err := l.world.Sound(); err != nil {
		l.t.Error(err)
	}
}
