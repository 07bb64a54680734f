package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"billing/test/servers"
)

// away takes shards away and gives them back.
type away struct {
	t     *testing.T
	w     *world
	epoch int64  // the last one that is committed on every shard
	state string // of the next one
	flood int    // so many large records wait
	gone  []int  // shards
	mute  bool   // those do not answer the test either
	hurt  func(shard int, on bool)
}

// The states of an epoch in which shards go away.
const (
	notBegun = ""               // phase 1 is not begun
	prepared = "before-end-txn" // the Kafka transaction is open
	decided  = "decided"        // phase 2 is not begun
)

// run is one outage: the service is at work, its next epoch comes to the state,
// the shards go away with much to do, and come back.
func (a *away) run() {
	t, w := a.t, a.w
	t.Helper()
	s := w.run("")
	w.charge(0, 100)
	w.waitAccounted()
	if a.state != notBegun {
		s.stop()
		a.epoch = w.epochs(0)[0]
		w.charge(0, 50)
		s = w.run(a.state + ":1:hold")
		s.mustHoldAtFailpoint()
	}
	a.epoch = w.epochs(0)[0]
	before := s.peak()

	start := time.Now()
	for _, i := range a.gone {
		a.hurt(i, true)
	}
	if a.state != notBegun {
		s.signal(syscall.SIGUSR1)
	}
	ids := w.charge(0, 500)
	w.again(0, ids[:100])
	const size = 16 << 10
	w.chargeLarge(0, a.flood, size)

	// It says so, it holds no more than it may, and nothing is seen of an epoch
	// of which a part is missing: for as long as it lasts.
	said := false
	servers.Eventually(t, outage(t)+2*time.Minute, func() error {
		if err := errors.Join(a.consistent(), a.named(s), a.inDoubt(s)); err != nil {
			return err
		}
		if !said {
			said = true
			since(t, start, "until it named the shard", 90*time.Second) // the lane may stand still for 30 s
		}
		if left := outage(t) - time.Since(start); left > 0 {
			return fmt.Errorf("the outage goes on for %s", left)
		}
		if lag := s.metric(`billing_lag_records{partition="0"}`); lag < float64(a.flood) {
			return fmt.Errorf("the lag is %v records, and more than %d wait", lag, a.flood)
		}
		return nil
	})
	t.Logf("away for %s", time.Since(start).Round(time.Second))
	// Two epochs of 1 MiB, an inbox of 8 MiB, an answer of the broker, and what
	// the collector has not come to yet: far less than what waits.
	const most = 96
	grown := (s.peak() - before) >> 20
	t.Logf("memory: %d MiB more than before, while %d MiB waited", grown, a.flood*size>>20)
	if grown > most {
		t.Errorf("the process took %d MiB more than before, want %d at the most", grown, most)
	}

	start = time.Now()
	for _, i := range a.gone {
		a.hurt(i, false)
	}
	servers.Eventually(t, 2*time.Minute, func() error {
		if e := w.epochs(0); slices.Min(e) <= a.begun() {
			return fmt.Errorf("epochs %v, want more than %d", e, a.begun())
		}
		return nil
	})
	since(t, start, "back, until a new epoch was in", time.Minute)
	w.waitAccounted() // unaided: no restart of the service
	s.waitSays("/readyz", 200)
	s.waitSays("/metrics", 200, "billing_in_doubt 0\n")
	s.stop()
	w.exact()
}

// consistent: what was decided is on the shards that are there, and nothing
// else is anywhere; nothing is decided beyond what a missing shard has. Its error
// says that a server had no answer.
func (a *away) consistent() error {
	a.t.Helper()
	next := a.begun()
	for i := range a.w.shards {
		gone := slices.Contains(a.gone, i)
		if gone && a.mute {
			continue
		}
		e := a.w.epochsOn(i, 0)
		if gone && e != a.epoch || e > next {
			a.t.Fatalf("shard %d (away: %t) is at epoch %d, the last one before was %d", i, gone, e, a.epoch)
		}
	}
	d, err := a.w.readD(0)
	if d.Seq > next {
		a.t.Fatalf("epoch %d is decided, and epoch %d is not on every shard", d.Seq, next)
	}
	return err
}

// begun is the last epoch that was begun before the outage.
func (a *away) begun() int64 {
	if a.state == notBegun {
		return a.epoch
	}
	return a.epoch + 1
}

// named: readiness and health name a shard that is away. After 30 s at the
// latest, for which the test that others wait for does not wait.
func (a *away) named(s *process) error {
	if a.mute {
		return nil
	}
	name := "shard s" + fmt.Sprint(a.gone[0])
	if len(a.gone) > 1 {
		name = "shard s" // one of them
	}
	if err := s.says("/readyz", 503, name, a.w.topic+"/0"); err != nil {
		return err
	}
	if a.state == notBegun {
		return s.says("/healthz", 200, name, a.w.topic+"/0")
	}
	return nil
}

// inDoubt: the metrics say that an epoch is begun and not ended, and that what
// comes in waits.
func (a *away) inDoubt(s *process) error {
	if a.state == notBegun {
		return nil
	}
	if lag := s.metric(`billing_lag_seconds{partition="0"}`); lag <= 0 {
		return fmt.Errorf("the lag is %v seconds", lag)
	}
	return s.says("/metrics", 200, "billing_in_doubt 1\n")
}

// TestShardAway: a shard can't be reached, or all: connections are refused, or
// hang. Nothing is lost, nothing runs ahead, and it goes on by itself.
func TestShardAway(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, state string
		gone        []int
		frozen      bool
		flood       int
	}{
		{"one refuses, idle", notBegun, []int{0}, false, 500},
		{"all hang, idle", notBegun, []int{0, 1}, true, 500},
		{"one refuses, prepared", prepared, []int{1}, false, 500},
		{"all hang, prepared", prepared, []int{0, 1}, true, 500},
		{"one hangs, decided", decided, []int{0}, true, 12_000},
		{"all refuse, decided", decided, []int{0, 1}, false, 500},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, throughProxies(), withCheckpoint("max_bytes: 1048576"))
			a := &away{t: t, w: w, state: c.state, gone: c.gone, flood: c.flood, hurt: func(i int, on bool) {
				if c.frozen {
					w.shardProxy[i].Freeze(on)
				} else {
					w.shardProxy[i].Refuse(on)
				}
			}}
			a.run()
		})
	}
}

// TestShardAwayPaused: a server is frozen. Others share it, so the test is not
// parallel.
func TestShardAwayPaused(t *testing.T) {
	w := newWorld(t, 2)
	a := &away{t: t, w: w, state: notBegun, gone: []int{1}, mute: true, flood: 500}
	a.hurt = func(i int, on bool) {
		do := w.servers[i].Unpause
		if on {
			do = w.servers[i].Pause
		}
		if err := do(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = w.servers[1].Unpause(context.Background()) }) // where the test has failed
	a.run()
}
