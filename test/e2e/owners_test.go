package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"billing/test/servers"
)

// These tests have several instances of one job, which come and go under load.

// manyOwners is a world that several instances share.
func manyOwners(t *testing.T, partitions int32) *world {
	t.Helper()
	return newWorld(t, 2, withPartitions(partitions), withInterval("500ms"))
}

// livingOwners is manyOwners where nobody dies: a busy machine's pause is not a
// dead instance.
func livingOwners(t *testing.T, partitions int32) *world {
	t.Helper()
	w := manyOwners(t, partitions)
	w.edit("session_timeout: 6s", "session_timeout: 30s")
	return w
}

// runAs starts `billing run` as a static member.
func (w *world) runAs(id string) *process {
	w.t.Helper()
	return w.commandEnv([]string{"BILLING_KAFKA_INSTANCE_ID=" + id}, "run")
}

func (p *process) String() string { return filepath.Base(p.log) }

// ---- what an instance says of itself

// ready says why the instance is not ready, nil when it is.
func (p *process) ready() error {
	code, body, err := p.get("/readyz")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s is not ready: %d %s", p, code, body)
	}
	return err
}

// lanes gives the instance's lanes and their states.
func (w *world) lanes(p *process) (map[int32]string, error) {
	health, err := p.health()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	states := map[int32]string{}
	for _, l := range health.Lanes {
		var n int32
		if _, err := fmt.Sscanf(l.Lane, w.topic+"/%d", &n); err != nil {
			return nil, fmt.Errorf("%s: lane %q: %w", p, l.Lane, err)
		}
		states[n] = l.State
	}
	return states, nil
}

// ---- who has which lane

// owners is who has which lane at a moment, and what each lane's D was then.
type owners struct {
	of map[int32]*process
	d  map[int32]decision
}

// spread waits until the instances have shared all lanes evenly, every one of
// them ready and every lane running at one of them only, and until each lane has
// decided an epoch since then: so D is of the session that is at work. It needs
// a load.
func (w *world) spread(ps ...*process) owners {
	w.t.Helper()
	o := owners{d: map[int32]decision{}}
	servers.Eventually(w.t, 2*time.Minute, func() (err error) {
		o.of, err = w.shared(ps)
		return err
	})
	for n := range w.partitions {
		o.d[n] = w.movedOn(n, 0)
	}
	for n, d := range o.d {
		o.d[n] = w.movedOn(n, d.Seq)
	}
	return o
}

// shared says who has which lane, if that is settled.
func (w *world) shared(ps []*process) (map[int32]*process, error) {
	of := map[int32]*process{}
	least, most := int(w.partitions), 0
	for _, p := range ps {
		if err := p.ready(); err != nil {
			return nil, err
		}
		lanes, err := w.lanes(p)
		if err != nil {
			return nil, err
		}
		for n, state := range lanes {
			if state != "running" {
				return nil, fmt.Errorf("lane %d is %s at %s", n, state, p)
			}
			if other := of[n]; other != nil {
				return nil, fmt.Errorf("lane %d is at %s and at %s", n, other, p)
			}
			of[n] = p
		}
		least, most = min(least, len(lanes)), max(most, len(lanes))
	}
	if len(of) != int(w.partitions) || most > least+1 {
		return nil, fmt.Errorf("%d of %d lanes at work, an instance has %d to %d", len(of), w.partitions, least, most)
	}
	return of, nil
}

// movedOn waits until the lane has decided an epoch after the given one.
func (w *world) movedOn(partition int32, seq int64) (d decision) {
	w.t.Helper()
	servers.Eventually(w.t, 2*time.Minute, func() (err error) {
		if d, err = w.readD(partition); err == nil && d.Seq <= seq {
			err = fmt.Errorf("lane %d has decided nothing after epoch %d", partition, seq)
		}
		return err
	})
	return d
}

// at gives the lanes of an instance.
func (o *owners) at(p *process) []int32 {
	var ns []int32
	for n, owner := range o.of {
		if owner == p {
			ns = append(ns, n)
		}
	}
	slices.Sort(ns)
	return ns
}

// stayed fails unless each lane that one instance had before and after went on
// in one session: the same incarnation in D and in the rows of every epoch
// between, and no word of its end in the log; and unless there are want of
// them. Every other lane must have been taken over.
func (w *world) stayed(before, after owners, want int) {
	w.t.Helper()
	stayed := 0
	for n := range w.partitions {
		from, to := before.d[n], after.d[n]
		if before.of[n] != after.of[n] {
			if to.Incarnation <= from.Incarnation {
				w.t.Errorf("lane %d went from %s to %s with incarnation %d and then %d", n, before.of[n], after.of[n], from.Incarnation, to.Incarnation)
			}
			continue
		}
		stayed++
		if to.Incarnation != from.Incarnation {
			w.t.Errorf("lane %d stayed at %s, and its incarnation went from %d to %d", n, before.of[n], from.Incarnation, to.Incarnation)
		}
		for i, db := range w.shards {
			var others int
			if err := db.QueryRow("SELECT COUNT(*) FROM billing_epoch WHERE kafka_topic = ? AND kafka_partition = ? AND seq BETWEEN ? AND ? AND incarnation <> ?",
				w.topic, n, from.Seq, to.Seq, from.Incarnation).Scan(&others); err != nil {
				w.t.Fatal(err)
			}
			if others != 0 {
				w.t.Errorf("lane %d stayed at %s, and shard %d has %d epochs between %d and %d that are not of incarnation %d", n, before.of[n], i, others, from.Seq, to.Seq, from.Incarnation)
			}
		}
		for line := range strings.Lines(before.of[n].output()) {
			if strings.Contains(line, saysEnded) && strings.Contains(line, fmt.Sprintf(" lane=%s/%d ", w.topic, n)) {
				w.t.Errorf("lane %d stayed at %s, which says: %s", n, before.of[n], line)
			}
		}
	}
	if stayed != want {
		w.t.Errorf("%d lanes stayed where they were, want %d: before %v, after %v", stayed, want, before.of, after.of)
	}
}

// nothingFailed fails if an instance says of any session that it failed: lanes
// that come and go are no failure. It is asked of instances that run: what one
// can't finish in the short time after SIGTERM is not judged here.
func nothingFailed(ps ...*process) {
	for _, p := range ps {
		p.t.Helper()
		for line := range strings.Lines(p.output()) {
			if strings.Contains(line, saysEnded) {
				p.t.Errorf("%s: a session failed though nothing else did: %s", p, line)
			}
		}
	}
}

// terminated waits for the end of instances that were sent SIGTERM.
func terminated(ps ...*process) {
	for _, p := range ps {
		p.t.Helper()
		p.mustExit(0)
	}
}

// ---- load

// load is charges for every lane, and old ones again, until it is stopped.
// Meanwhile the world's oracle is the load's alone.
type load struct {
	w    *world
	stop context.CancelFunc
	done chan struct{}
	ids  [][]string // by partition: all that was sent
}

func (w *world) load() *load {
	ctx, stop := context.WithCancel(w.t.Context())
	l := &load{w: w, stop: stop, done: make(chan struct{}), ids: make([][]string, w.partitions)}
	go func() {
		defer close(l.done)
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			for n := range w.partitions {
				if err := l.send(n); err != nil {
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

// send sends ten new charges and ten old ones.
func (l *load) send(partition int32) error {
	fresh, err := l.w.tryCharge(partition, 10)
	if err != nil {
		return err
	}
	ids := append(l.ids[partition], fresh...)
	l.ids[partition] = ids
	again := make([]string, 10)
	for i := range again {
		again[i] = ids[rand.IntN(len(ids))]
	}
	return l.w.trySend(partition, again...)
}

// end stops the load, sends all of it once more, and waits until every record
// has its outcome.
func (l *load) end() {
	l.w.t.Helper()
	l.stop()
	<-l.done
	for n, ids := range l.ids {
		l.w.again(int32(n), ids)
	}
	l.w.waitAccounted()
}

// ---- tests

// TestOwnersComeAndGo: 1 instance, 3, and 1 again, the first one gone. Nobody is
// killed: a lane that stays with its instance does not notice, and no session
// fails.
func TestOwnersComeAndGo(t *testing.T) {
	t.Parallel()
	w := livingOwners(t, 6)
	load := w.load()
	a := w.run("")
	one := w.spread(a)

	b, c := w.run(""), w.run("")
	three := w.spread(a, b, c)
	w.stayed(one, three, 2)

	nothingFailed(a, b, c)
	a.stop()
	two := w.spread(b, c)
	w.stayed(three, two, 4)

	nothingFailed(b, c)
	b.stop()
	last := w.spread(c)
	w.stayed(two, last, 3)

	load.end()
	nothingFailed(c)
	c.stop()
	w.exact()
}

// TestOwnersKilled: 4 instances, 2 and 4 again, one killed at each step.
func TestOwnersKilled(t *testing.T) {
	t.Parallel()
	w := manyOwners(t, 6)
	load := w.load()
	a, b, c, d := w.run(""), w.run(""), w.run(""), w.run("")
	four := w.spread(a, b, c, d)

	a.kill()
	b.signal(syscall.SIGTERM)
	two := w.spread(c, d)
	w.stayed(four, two, len(four.at(c))+len(four.at(d)))
	terminated(b)

	c.kill()
	e, f, g := w.run(""), w.run(""), w.run("")
	again := w.spread(d, e, f, g)
	w.stayed(two, again, len(again.at(d)))

	load.end()
	for _, p := range []*process{d, e, f, g} {
		p.signal(syscall.SIGTERM)
	}
	terminated(d, e, f, g)
	w.exact()
}

// TestRollingRestart: each instance is stopped and replaced, one after the
// other, as soon as the last replacement says that it is ready: then the group
// is mostly still at handing lanes over. Everyone leaves the group all the same,
// so that no lane waits for a session timeout.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	w := livingOwners(t, 6)
	load := w.load()
	ps := []*process{w.run(""), w.run(""), w.run("")}
	w.spread(ps...)
	for range 2 {
		for i, old := range ps {
			old.stop()
			if strings.Contains(old.output(), "the group was not left") {
				t.Errorf("%s has not left the group", old)
			}
			ps[i] = w.run("")
			servers.Eventually(t, time.Minute, ps[i].ready)
		}
	}
	w.spread(ps...)
	load.end()
	for _, p := range ps {
		p.stop()
	}
	w.exact()
}

// TestStoppedWhileJoining: a join waits for every member, here for a frozen one.
// An instance that is stopped meanwhile is out of the group all the same: nobody
// gives it a lane, which would then stand still for a session timeout.
func TestStoppedWhileJoining(t *testing.T) {
	t.Parallel()
	w := manyOwners(t, 3)
	w.edit("session_timeout: 6s", "session_timeout: 5m")
	load := w.load()
	a, frozen := w.run(""), w.run("")
	w.spread(a, frozen)

	frozen.signal(syscall.SIGSTOP)
	joining := w.run("")
	admin := shared.kafka.Admin(t)
	servers.Eventually(t, time.Minute, func() error {
		groups, err := admin.DescribeGroups(t.Context(), w.job)
		if g := groups[w.job]; err == nil && (g.State != "PreparingRebalance" || len(g.Members) != 3) {
			err = fmt.Errorf("the group is %s with %d members", g.State, len(g.Members))
		}
		return err
	})
	joining.stop()
	frozen.signal(syscall.SIGCONT)
	w.spread(a, frozen)
	if strings.Contains(joining.output(), "the group was not left") {
		t.Errorf("%s has not left the group", joining)
	}

	load.end()
	a.stop()
	frozen.stop()
	w.exact()
}

// TestOwnersStartTogether: two instances race for all lanes of a job that has
// never run, and again for those of one that has.
func TestOwnersStartTogether(t *testing.T) {
	t.Parallel()
	w := livingOwners(t, 6)
	load := w.load()
	for range 2 {
		a, b := w.run(""), w.run("")
		w.spread(a, b)
		nothingFailed(a, b)
		a.signal(syscall.SIGTERM)
		b.signal(syscall.SIGTERM)
		terminated(a, b)
	}
	last := w.run("")
	load.end()
	last.stop()
	w.exact()
}

// members counts what an instance's log says of lanes that came and went.
func members(p *process) int {
	out := p.output()
	return strings.Count(out, "lanes assigned") + strings.Count(out, "lanes given up") + strings.Count(out, "lanes lost")
}

// TestStaticMemberRestarts: an instance that ends, in whatever way, and starts
// again under its id gets its lanes back, and the other one hears nothing of it.
// Had the session timed out instead, the other one would have got them.
func TestStaticMemberRestarts(t *testing.T) {
	t.Parallel()
	w := manyOwners(t, 6)
	w.edit("session_timeout: 6s", "session_timeout: 60s")
	load := w.load()
	a, b := w.runAs("a"), w.runAs("b")
	before := w.spread(a, b)
	heard := members(b)
	if heard == 0 {
		t.Fatal("no word in the log of the lanes that were assigned")
	}
	for _, c := range []struct {
		name string
		end  func(p *process)
	}{
		{"killed", (*process).kill},
		{"terminated", (*process).stop},
	} {
		began := time.Now()
		c.end(a)
		next := w.runAs("a")
		after := w.spread(next, b)
		t.Logf("%s: all lanes at work again after %s, the session timeout is 60s", c.name, time.Since(began).Round(100*time.Millisecond))
		if got, want := after.at(next), before.at(a); !slices.Equal(got, want) {
			t.Errorf("%s: the lanes %v came back as %v", c.name, want, got)
		}
		w.stayed(before, after, len(before.at(b)))
		if n := members(b); n != heard {
			t.Errorf("%s: the other instance's lanes came and went: %d lines of it, before %d", c.name, n, heard)
		}
		a, before = next, after
	}
	load.end()
	a.stop()
	b.stop()
	w.exact()
}

// TestSameInstanceIDTwice: the group believes the newer one. The older one says
// what is wrong and does no harm, and is a good member again when the newer one
// has gone.
func TestSameInstanceIDTwice(t *testing.T) {
	t.Parallel()
	w := manyOwners(t, 4)
	load := w.load()
	older := w.runAs("same")
	w.spread(older)
	newer := w.runAs("same")
	const next = "give each instance a kafka.instance_id of its own"
	servers.Eventually(t, 2*time.Minute, func() error {
		_, health, err := older.get("/healthz")
		return errors.Join(err, contains(health, next), contains(older.output(), "FENCED_INSTANCE_ID"))
	})
	if err := older.ready(); err == nil || !strings.Contains(err.Error(), next) {
		t.Errorf("the fenced instance is ready: %v", err)
	}
	w.spread(newer)
	if lanes, err := w.lanes(older); err != nil || len(lanes) > 0 {
		t.Errorf("the fenced instance has lanes: %v (%v)", lanes, err)
	}

	newer.kill()
	w.spread(older)
	load.end()
	older.stop()
	w.exact()
}

// TestDeadOwnersLanesMove: kafka.session_timeout bounds for how long the lanes of
// an instance that has died stand still.
func TestDeadOwnersLanesMove(t *testing.T) {
	t.Parallel()
	w := manyOwners(t, 6)
	load := w.load()
	a, b := w.run(""), w.run("")
	before := w.spread(a, b)
	began := time.Now()
	a.kill()
	after := w.spread(b)
	t.Logf("all lanes at work again after %s, the session timeout is 6s", time.Since(began).Round(100*time.Millisecond))
	w.stayed(before, after, 3)
	load.end()
	b.stop()
	w.exact()
}

// TestFrozenOwnerComesBack: an instance that was frozen for longer than the
// session timeout has lost its lanes, and is a good member again after it.
func TestFrozenOwnerComesBack(t *testing.T) {
	t.Parallel()
	w := manyOwners(t, 6)
	load := w.load()
	a, b := w.run(""), w.run("")
	before := w.spread(a, b)

	a.signal(syscall.SIGSTOP)
	alone := w.spread(b)
	w.stayed(before, alone, 3)

	a.signal(syscall.SIGCONT)
	servers.Eventually(t, time.Minute, func() error {
		return errors.Join(contains(a.output(), "lanes lost"), contains(a.output(), "this process stood still"))
	})
	both := w.spread(a, b)
	w.stayed(alone, both, 3)

	load.end()
	a.stop()
	b.stop()
	w.exact()
}

// TestSpareOwners: an instance without a lane is ready, and takes over when one
// goes.
func TestSpareOwners(t *testing.T) {
	t.Parallel()
	w := livingOwners(t, 2)
	load := w.load()
	ps := []*process{w.run(""), w.run(""), w.run("")}
	before := w.spread(ps...) // all three are ready

	gone := before.of[0]
	gone.stop()
	ps = slices.DeleteFunc(ps, func(p *process) bool { return p == gone })
	after := w.spread(ps...)
	w.stayed(before, after, 1)

	load.end()
	for _, p := range ps {
		p.stop()
	}
	w.exact()
}
