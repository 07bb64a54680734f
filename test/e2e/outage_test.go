package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"billing/test/servers"
)

// inFlight freezes shard 1, so that the next epoch stays in phase 1, and
// returns when its branch is prepared on shard 0 only.
func inFlight(t *testing.T, w *world) {
	t.Helper()
	if err := w.servers[1].Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.charge(0, 50)
	servers.Eventually(t, time.Minute, func() error {
		if n := len(w.servers[0].XABranches(t)); n == 0 {
			return fmt.Errorf("nothing prepared on shard 0")
		}
		return nil
	})
}

// These tests take servers down that others share, so they are not parallel.

// TestShardKilledInsideEpoch: mysqld dies (-9) while an epoch is in phase 1.
func TestShardKilledInsideEpoch(t *testing.T) {
	w := newWorld(t, 2)
	s := w.run("")
	ids := w.charge(0, 100)
	w.waitAccounted()

	inFlight(t, w)
	if err := w.servers[1].Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.servers[1].Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.again(0, ids)
	w.charge(0, 10)
	w.waitAccounted() // unaided: no restart of the service
	s.stop()
	w.exact()
}

// TestBrokerKilledInsideEpoch: the broker dies (-9) while an epoch is in phase
// 1; when the shard goes on, the decision has no broker.
func TestBrokerKilledInsideEpoch(t *testing.T) {
	w := newWorld(t, 2)
	s := w.run("")
	ids := w.charge(0, 100)
	w.waitAccounted()

	inFlight(t, w)
	if err := shared.kafka.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.servers[1].Unpause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := shared.kafka.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.again(0, ids)
	w.charge(0, 10)
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestStopWhileShardIsDown: SIGTERM ends the process with 0 within 20 s also
// when an epoch can't be finished, and nothing is lost.
func TestStopWhileShardIsDown(t *testing.T) {
	w := newWorld(t, 2)
	s := w.run("")
	w.charge(0, 100)
	w.waitAccounted()
	inFlight(t, w)
	s.stop()
	if err := w.servers[1].Unpause(t.Context()); err != nil {
		t.Fatal(err)
	}
	s = w.run("")
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestStopUnderLoad: SIGTERM in the middle of the stream.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(3))
	for round := range 3 {
		before := w.sent
		s := w.run("")
		var ids []string
		for p := range w.partitions {
			ids = w.charge(p, 3000)
			w.again(p, ids[:500])
		}
		servers.Eventually(t, time.Minute, func() error {
			n, err := w.accounted()
			if err != nil {
				return err
			}
			if n <= before {
				return fmt.Errorf("nothing of round %d is in", round)
			}
			return nil
		})
		s.stop()
		for i, n := range w.prepared() {
			if n != 0 {
				t.Errorf("round %d, shard %d: SIGTERM left %d branches prepared", round, i, n)
			}
		}
	}
	s := w.run("")
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestKilledAtRandom: SIGKILL at random moments under load, duplicates of
// everything across the kills.
func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, 2, withPartitions(3), withInterval("50ms"))

	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	kills := 0
	wg.Go(func() {
		for ctx.Err() == nil {
			s := w.run("")
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(1500+r.IntN(2500)) * time.Millisecond):
				kills++
			}
			s.kill()
		}
	})
	var old []string
	load := time.NewTicker(400 * time.Millisecond)
	defer load.Stop()
	for i := range 75 {
		<-load.C
		p := int32(i) % w.partitions
		ids := w.charge(p, 100+i)
		w.again(p, ids[:50])
		if p == 0 {
			old = append(old, ids...)
			w.again(p, old[:min(len(old), 300)])
		}
	}
	stop()
	wg.Wait()
	if kills < 5 {
		t.Errorf("only %d kills", kills)
	}
	s := w.run("")
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestOffsetsResetByHand: an administrator rewinds the group to 0 with the state
// kept. The lane stops, no total changes, and with the flag D's offset is taken
// again.
func TestOffsetsResetByHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	s := w.run("")
	w.charge(0, 100)
	w.waitAccounted()
	s.stop()

	var offsets kadm.Offsets
	offsets.AddOffset(w.topic, 0, 0, -1)
	admin := shared.kafka.Admin(t)
	servers.Eventually(t, 30*time.Second, func() error {
		return admin.CommitAllOffsets(t.Context(), w.job, offsets)
	})

	s = w.run("")
	hint := "--accept offset-reset:" + w.topic + "/0"
	servers.Eventually(t, time.Minute, func() error { return contains(s.output(), hint) })
	w.exact()
	s.stop()

	s = w.commandEnv(nil, "run", "--accept", "offset-reset:"+w.topic+"/0")
	w.charge(0, 20)
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestOffsetsExpired: the group's offsets are gone while D exists: D's offset is
// taken, with a word in the log.
func TestOffsetsExpired(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	s := w.run("")
	w.charge(0, 100)
	w.waitAccounted()
	s.stop()
	admin := shared.kafka.Admin(t)
	servers.Eventually(t, 30*time.Second, func() error {
		_, err := admin.DeleteGroup(t.Context(), w.job)
		return err
	})
	s = w.run("")
	w.charge(0, 20)
	w.waitAccounted()
	s.stop()
	w.exact()
	if err := contains(s.output(), "offset-expired"); err != nil {
		t.Error(err)
	}
}
