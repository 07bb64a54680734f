package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"billing/test/servers"
)

// recovery is how TestRecovery works: short in make test. BILLING_TEST_RECOVERY is the
// ids of each of 16 lanes; BILLING_TEST_BESIDE another build of the service, which takes
// turns with this one.
type recovery struct {
	lanes        int32
	ids, backlog int // of each lane
	rounds       int
	builds       []string
}

func recoverySize(t *testing.T) recovery {
	r := recovery{lanes: 4, ids: 1500, backlog: 4500, rounds: 1, builds: []string{shared.binary}}
	text := os.Getenv("BILLING_TEST_RECOVERY")
	if text == "" {
		return r
	}
	ids, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("BILLING_TEST_RECOVERY: %v", err)
	}
	r = recovery{lanes: 16, ids: ids, backlog: 20_000, rounds: 3, builds: r.builds}
	if beside := os.Getenv("BILLING_TEST_BESIDE"); beside != "" {
		r.builds = append(r.builds, beside)
		r.rounds *= 2
	}
	return r
}

// TestRecovery kills an instance at full load, and has its lanes back: what each of
// them says of it in five lines is held against what Kafka and MySQL say. How long
// each step took is printed, for nobody to fail by.
func TestRecovery(t *testing.T) {
	t.Parallel()
	size := recoverySize(t)
	for _, c := range []struct {
		name   string
		wait   string // kafka.session_timeout
		ledger bool
		start  func(w *world) []*process // the first one is killed
		next   func(w *world, left []*process) *process
	}{
		{
			"a static member starts again", "30s", true, // which it does not wait for
			func(w *world) []*process { return []*process{w.runAs("a")} },
			func(w *world, _ []*process) *process { return w.runAs("a") },
		},
		{
			"the other instance takes over", "6s", true,
			func(w *world) []*process { return []*process{w.run(""), w.run("")} },
			func(_ *world, left []*process) *process { return left[0] },
		},
		{
			"a new member starts", "6s", false, // few rows: a backlog does not fill an epoch at once
			func(w *world) []*process { return []*process{w.run("")} },
			func(w *world, _ []*process) *process { return w.run("") },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, withPartitions(size.lanes), withInterval("1s"))
			w.edit("session_timeout: 6s", "session_timeout: "+c.wait)
			if !c.ledger {
				w.edit("first_start: true", "first_start: true\nledger:\n  enabled: false")
			}
			w.fill(size.ids)
			p := w.run("")
			w.waitAccounted()
			p.stop()
			took := map[string]steps{}
			for round := range size.rounds {
				build := size.builds[round%len(size.builds)]
				w.build = build
				w.fill(size.backlog) // more than is taken until they die
				load := w.flood()
				ps := c.start(w)
				k := &corpse{w: w}
				k.working(ps)
				k.kill(ps[0])
				next := c.next(w, ps[1:])
				k.look(next)
				k.recovered(next)
				took[build] = append(took[build], k.tell(next)...)
				k.told(next)
				load.end()
				next.stop()
			}
			for _, build := range size.builds {
				t.Logf("%s:\n%s", build, took[build])
			}
			exactTotals(w, c.ledger)
		})
	}
}

// corpse is an instance that was killed at work, and what it left.
type corpse struct {
	w     *world
	at    time.Time
	lanes []int32           // its own
	seq   map[int32]int64   // of the last epoch that a shard showed before
	left  []map[string]bool // by shard: the branches that were prepared behind its death
	heard int               // how much of the next owner's log was there before
}

// fill sends so many charges to each lane.
func (w *world) fill(each int) {
	w.t.Helper()
	const atOnce = 5000
	for n := range w.partitions {
		for left := each; left > 0; left -= atOnce {
			w.charge(n, min(left, atOnce))
		}
	}
}

// flood sends more to each lane all the time, so that none has nothing to do.
func (w *world) flood() *load {
	ctx, stop := context.WithCancel(w.t.Context())
	l := &load{w: w, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			for n := range w.partitions {
				if _, err := w.tryCharge(n, 20); err != nil {
					w.t.Errorf("the load: %v", err)
					return
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	w.t.Cleanup(func() {
		stop()
		<-l.done
	})
	return l
}

// working waits until each lane has decided a new epoch.
func (k *corpse) working(ps []*process) {
	k.w.t.Helper()
	before, err := k.w.seqs()
	if err != nil {
		k.w.t.Fatal(err)
	}
	servers.Eventually(k.w.t, 2*time.Minute, func() error {
		now, err := k.w.seqs()
		for n := range k.w.partitions {
			if err == nil && now[n] <= before[n] {
				err = fmt.Errorf("lane %d has decided nothing yet", n)
			}
		}
		return err
	})
	servers.Eventually(k.w.t, time.Minute, func() error {
		lanes, err := k.w.lanes(ps[0])
		k.lanes = slices.Sorted(maps.Keys(lanes))
		if err == nil && len(lanes) != int(k.w.partitions)/len(ps) {
			err = fmt.Errorf("it has the lanes %v", k.lanes)
		}
		return err
	})
}

// seqs are the last epochs that shard 0 shows.
func (w *world) seqs() (map[int32]int64, error) {
	rows, err := w.shards[0].Query("SELECT kafka_partition, seq FROM billing_lane")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	seqs := map[int32]int64{}
	for rows.Next() {
		var partition int32
		var seq int64
		if err := rows.Scan(&partition, &seq); err != nil {
			return nil, err
		}
		seqs[partition] = seq
	}
	return seqs, rows.Err()
}

func (k *corpse) kill(p *process) {
	k.w.t.Helper()
	var err error
	if k.seq, err = k.w.seqs(); err != nil {
		k.w.t.Fatal(err)
	}
	k.at = time.Now()
	p.kill()
}

// look notes what is prepared, before anybody ends it.
func (k *corpse) look(next *process) {
	k.w.t.Helper()
	for i := range k.w.shards {
		left := map[string]bool{}
		for _, b := range k.w.servers[i].XABranches(k.w.t) {
			if b.BQUAL == fmt.Sprintf("s%d", i) {
				left[b.GTRID] = true
			}
		}
		k.left = append(k.left, left)
	}
	if strings.Contains(next.output(), "lanes assigned") { // it is at work already
		k.heard = len(next.output())
	}
}

// recovered waits until the lanes are at work again.
func (k *corpse) recovered(next *process) {
	k.w.t.Helper()
	servers.Eventually(k.w.t, 2*time.Minute, func() error {
		said := k.said(next)
		var errs []error
		for _, n := range k.lanes {
			errs = append(errs, contains(said, fmt.Sprintf(`msg="lane recovered" lane=%s/%d `, k.w.topic, n)))
		}
		return errors.Join(errs...)
	})
}

// said is what the next owner has said since the death.
func (k *corpse) said(next *process) string { return next.output()[k.heard:] }

// exactTotals fails unless every total is right and nothing is left.
func exactTotals(w *world, ledger bool) {
	w.t.Helper()
	if ledger {
		w.exact()
		return
	}
	got := map[string]*big.Rat{}
	for _, db := range w.shards {
		sum(w.t, db, got, "SELECT account_id, CAST(SUM(net_amount) AS CHAR) FROM billing_totals GROUP BY account_id")
	}
	compare(w.t, "billing_totals", got, w.oracle)
	for p := range w.partitions {
		all(w.t, fmt.Sprintf("the last epoch of lane %d", p), w.epochs(p), w.decided(p).Seq)
	}
	all(w.t, "prepared branches", w.prepared(), 0)
}
