package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"billing/test/servers"
)

// `billing verify` beside the service, and where servers are away: what is in
// doubt is no difference, and what can't be read is said.

// What Kafka has decided of a branch, as verify says it.
const (
	isDecided   = "decided"
	isUndecided = "undecided"
	isUnknown   = "unknown"
)

// TestVerifyShowsWhatIsInDoubt: branches that a dead instance has left are named,
// with what Kafka has decided, and nothing is wrong with them.
func TestVerifyShowsWhatIsInDoubt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		failpoint string
		prepared  string   // on each shard
		decision  []string // one of these
	}{
		{"some-prepared:1", "[1 0]", []string{isUndecided}},
		{"all-prepared:1", "[1 1]", []string{isUndecided}},
		{"before-end-txn:1", "[1 1]", []string{isUnknown, isUndecided}}, // until the Kafka transaction times out
		{"end-txn-sent:2", "[1 1]", []string{isUnknown, isUndecided, isDecided}},
		{"decided:1", "[1 1]", []string{isDecided}},
		{"some-committed:1", "[0 1]", []string{isDecided}},
	} {
		t.Run(c.failpoint, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			w.rounds(2)
			n := w.epochs(0)
			w.charge(0, 50)
			w.run(c.failpoint).mustDieAtFailpoint()
			if got := fmt.Sprint(w.prepared()); got != c.prepared {
				t.Fatalf("prepared: %s, want %s", got, c.prepared)
			}
			known := len(c.decision) == 1
			if c.decision[0] == isDecided {
				decidedEventually(t, w, n[0]+1)
			}

			v := w.mustVerify(t, 0)
			w.mustDoubt(t, v, n[0]+1, c.decision...)
			if known && !v.DecisionsCompared || !v.DecisionsCompared && len(v.Notes) == 0 {
				t.Errorf("not compared with Kafka: %s", v)
			}
			if known { // else it may be another one by now
				text, err := w.verifyText(t.Context())
				if err == nil {
					err = v.compareText(text)
				}
				if err != nil {
					t.Error(err)
				}
			}

			saved := w.configuration()
			w.withoutKafka()
			w.mustDoubt(t, w.mustVerify(t, 0), n[0]+1, isUnknown)
			w.configure(saved)

			s := w.run("")
			w.waitAccounted()
			s.stop()
			if v := w.mustVerify(t, 0); len(v.InDoubt) > 0 {
				t.Errorf("something is still in doubt: %s", v)
			}
		})
	}
}

// mustDoubt holds what is in doubt against what the servers list.
func (w *world) mustDoubt(t *testing.T, v *verified, seq int64, decision ...string) {
	t.Helper()
	doubts := slices.Clone(v.InDoubt)
	for i, n := range w.prepared() {
		if n == 0 {
			continue
		}
		at := slices.IndexFunc(doubts, func(d inDoubt) bool {
			return d.Shard == fmt.Sprint("s", i) && d.Lane == w.topic+"/0" && d.Seq == seq && slices.Contains(decision, d.Decision)
		})
		if at < 0 || !slices.ContainsFunc(w.servers[i].XABranches(t), func(b servers.XABranch) bool {
			return b.GTRID == doubts[at].GTRID && strings.HasSuffix(b.GTRID, fmt.Sprintf("%012x%012x", doubts[at].Incarnation, seq))
		}) {
			t.Errorf("shard %d has a branch of epoch %d, which Kafka has %s, and it says %s", i, seq, decision, v)
			continue
		}
		doubts = slices.Delete(doubts, at, at+1)
	}
	if len(doubts) > 0 {
		t.Errorf("in doubt, and not prepared: %+v", doubts)
	}
}

// TestVerifyWithServersAway: without a shard there is no answer; without Kafka
// there is, of what can be known.
func TestVerifyWithServersAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, throughProxies(), withAnswerWithin(7*time.Second))
	w.rounds(1)
	w.mustVerify(t, 0)
	for name, on := range map[string]func(bool){"refuses": w.shardProxy[1].Refuse, "is silent": w.shardProxy[1].Freeze} {
		on(true)
		v := w.mustVerify(t, 4)
		if !strings.Contains(v.stderr, "shard s1") || strings.Contains(v.stderr, "shard s0") {
			t.Errorf("shard s1 %s, and it says %s", name, v)
		}
		on(false)
	}
	for name, on := range map[string]func(bool){"refuses": w.kafkaProxy.Refuse, "is silent": w.kafkaProxy.Freeze} {
		on(true)
		if v := w.mustVerify(t, 0); v.DecisionsCompared || !v.noted("decisions were not compared") {
			t.Errorf("Kafka %s, and it says %s", name, v)
		}
		on(false)
	}
	if v := w.mustVerify(t, 0); !v.DecisionsCompared {
		t.Errorf("all are back, and it says %s", v)
	}
}

// verifyAlways verifies again and again until ctx ends: a difference is never
// right. A server may be down, then there is no answer. It rests for so many times as
// long as the last one took.
func (w *world) verifyAlways(ctx context.Context, rest int, done func(*verified)) {
	next := time.NewTimer(500 * time.Millisecond)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		v, err := w.verify(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil && v.code != 0 && v.code != 4 {
			err = fmt.Errorf("billing verify: %s", v)
		}
		if err != nil {
			w.t.Errorf("%s: %v", time.Now().Format(clock), err)
			return
		}
		done(v)
		next.Reset(max(500*time.Millisecond, time.Duration(rest)*v.took))
	}
}

// TestVerifyBesideTheService: two instances share the lanes, come, go, die and
// freeze under load, and verify never sees anything wrong.
func TestVerifyBesideTheService(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(3))
	l := newLoad(w, 1)
	l.newSource()
	ctx, stop := context.WithCancel(t.Context())
	watching, unwatch := context.WithCancel(t.Context())
	var loads, watches sync.WaitGroup
	t.Cleanup(func() { stop(); unwatch(); loads.Wait(); watches.Wait() })
	var mu sync.Mutex
	answers, doubts, compared := 0, 0, 0
	loads.Go(func() { l.run(ctx) })
	watches.Go(func() {
		w.verifyAlways(watching, 0, func(v *verified) {
			if v.code != 0 {
				t.Errorf("no server is down: %s", v)
			}
			mu.Lock()
			defer mu.Unlock()
			answers++
			if doubts += len(v.InDoubt); v.DecisionsCompared {
				compared++
			}
		})
	})
	// goesOn waits until what was sent is booked, and verify has looked twice.
	goesOn := func() {
		t.Helper()
		sent := l.sentSoFar()
		mu.Lock()
		looked := answers + 2
		mu.Unlock()
		servers.Eventually(t, goesOnIn, func() error {
			if t.Failed() {
				return nil
			}
			for p, n := range sent {
				var in int64
				if err := w.shards[1].QueryRow("SELECT COALESCE(SUM(records_in), 0) FROM billing_epoch WHERE kafka_partition = ?", p).Scan(&in); err != nil {
					return err
				}
				if in < n {
					return fmt.Errorf("lane %d: %d of %d records", p, in, n)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if answers < looked {
				return fmt.Errorf("verify has answered %d times", answers)
			}
			return nil
		})
	}
	one := w.run("")
	goesOn()
	other := w.run("")
	goesOn()
	for range 2 {
		one.kill()
		goesOn()
		one = w.run("some-committed:3:stop")
		one.mustStopAtFailpoint()
		goesOn() // the other one has all lanes
		one.signal(syscall.SIGCONT)
		goesOn()
		other.stop()
		other = w.run("all-prepared:5")
		other.mustDieAtFailpoint()
		goesOn()
		other = w.run("")
		goesOn()
	}
	stop()
	loads.Wait()
	goesOn()
	one.stop()
	other.stop()
	unwatch()
	watches.Wait()
	w.exact()
	if v := w.mustVerify(t, 0); len(v.InDoubt) > 0 || !v.DecisionsCompared {
		t.Errorf("at the end: %s", v)
	}
	t.Logf("%d answers, %d of them compared with Kafka, %d branches in doubt", answers, compared, doubts)
	if doubts == 0 || compared == 0 {
		t.Error("nothing was ever in doubt, or ever compared with Kafka")
	}
}

// TestVerifyNamesLostEpochs: a shard's database comes from an older copy.
func TestVerifyNamesLostEpochs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(2))
	w.rounds(2)
	const shard = 1
	tables := column(t, w.shards[shard], "SELECT DISTINCT c.table_name"+fromTables)
	for _, name := range tables {
		w.exec(shard, "CREATE TABLE saved_"+name+" LIKE "+name)
		w.exec(shard, "INSERT INTO saved_"+name+" SELECT * FROM "+name)
	}
	before := []int64{w.epochsOn(shard, 0), w.epochsOn(shard, 1)}
	w.rounds(3)
	for _, name := range tables {
		w.exec(shard, "DELETE FROM "+name)
		w.exec(shard, "INSERT INTO "+name+" SELECT * FROM saved_"+name)
	}
	for _, kafka := range []bool{true, false} {
		if !kafka {
			w.withoutKafka()
		}
		v := w.mustVerify(t, 1)
		for p, kept := range before {
			lost := w.epochsOn(0, int32(p))
			if lost < kept+3 {
				t.Fatalf("lane %d: %d epochs of %d are lost, want 3 at least", p, lost-kept, lost)
			}
			for seq := int64(1); seq <= lost; seq++ {
				if key := fmt.Sprintf("%s/%d epoch %d", w.topic, p, seq); v.has(shard, "billing_epoch", key) != (seq > kept) {
					t.Errorf("%s: lost is what is behind %d, and it says %s", key, kept, v)
				}
			}
		}
		for _, d := range v.Differences {
			if d.Shard != fmt.Sprint("s", shard) {
				t.Errorf("the other shard is right: %+v", d)
			}
		}
	}
}
