package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"billing/test/proxy"
	"billing/test/servers"
)

// TestXAForeign: what is not this job's is shown as foreign, once for each
// server, and is never touched. The test has a server of its own: with branches
// of different formatIDs in one binary log none may be killed.
func TestXAForeign(t *testing.T) {
	t.Parallel()
	m := servers.MySQL(t)
	w, other := newWorld(t, 2, withServer(m)), newWorld(t, 1, withServer(m))
	n := w.died("decided:1")
	other.died("all-prepared:1")
	var set []byte
	if err := w.shards[0].QueryRow("SELECT set_id FROM billing_meta").Scan(&set); err != nil {
		t.Fatal(err)
	}
	elsewhere := ownerPrefix(w.job, set) + "00112233445500000007" + "000000000003" + "000000000009"
	names := []string{
		"'an application','with text'",
		"X'00ff27','',4711",
		"'no bqual',''",
		fmt.Sprintf("'%s','s0'", elsewhere),
		fmt.Sprintf("'%s','s7'", elsewhere),
	}
	db, _, _ := strings.Cut(w.dsns[0][strings.LastIndex(w.dsns[0], "/")+1:], "?")
	w.exec(0, "CREATE TABLE others (n INT PRIMARY KEY)")
	for i, x := range names {
		c, err := m.Root().Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"XA START " + x, fmt.Sprintf("INSERT INTO `%s`.others VALUES (%d)", db, i), "XA END " + x, "XA PREPARE " + x} {
			if _, err := c.ExecContext(t.Context(), s); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	w.waitNoMembers(time.Minute)
	other.waitNoMembers(time.Minute)
	decidedEventually(t, w, n+1)

	show := func() (ours, others []string) {
		t.Helper()
		for _, b := range w.xaList(0) {
			if b.Owner == "job" && b.Decision == "decided" {
				ours = append(ours, b.XID)
				continue
			}
			others = append(others, fmt.Sprintf("%s %q %s %s %s", b.Owner, b.Shard, b.Lane, b.Decision, b.XID))
			if !slices.Equal(b.ListedOn, []string{"s0", "s1"}) {
				t.Errorf("listed on %v: %+v", b.ListedOn, b)
			}
		}
		return ours, others
	}
	ours, others := show()
	theirs := other.mustList(fmt.Sprintf("s0 /0 2/%d undecided", other.epochs(0)[0]+1))
	want := []string{
		fmt.Sprintf("job %q ?/7 other-topic %s", "s0", names[3]),
		fmt.Sprintf("job %q ?/7 other-topic %s", "", names[4]),
	}
	for _, b := range theirs {
		if b.Owner == "job" {
			want = append(want, fmt.Sprintf("another-job %q ?/0  %s", "", b.XID))
		}
	}
	for _, i := range []int{1, 0, 2} { // by their bytes
		want = append(want, fmt.Sprintf("foreign %q   %s", "", names[i]))
	}
	if !slices.Equal(others, want) {
		t.Errorf("others:\n%s\nwant\n%s", strings.Join(others, "\n"), strings.Join(want, "\n"))
	}
	if len(ours) != 2 {
		t.Errorf("ours: %q", ours)
	}
	t.Log(w.ask("xa", "list").must(t, 0, "2 decided, 2 other-topic", "of other jobs: 1; foreign: 3").out)

	w.ask("xa", "resolve").must(t, 0, "1 settled", "left alone, of other topics: 1 prepared branches")
	ours, left := show()
	if len(ours) != 0 || !slices.Equal(left, others) {
		t.Errorf("after the resolve: ours %q, others\n%s", ours, strings.Join(left, "\n"))
	}
	other.ask("xa", "resolve").must(t, 0, "1 settled", "rolled back")

	// What is shown as a name is one.
	for _, x := range names {
		w.root(0, "XA ROLLBACK "+x)
	}
	for _, w := range []*world{w, other} {
		s := w.run("")
		w.waitAccounted()
		s.stop()
		w.exact()
	}
}

// TestXAResolveOneLaneRefuses: an administrator has rolled a decided branch back.
// Its lane is refused by name, the other one is settled.
func TestXAResolveOneLaneRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, throughProxies(), withPartitions(2))
	s := w.run("")
	w.charge(0, 50)
	w.charge(1, 50)
	w.waitAccounted()
	n := []int64{w.epochs(0)[0], w.epochs(1)[0]}
	var lost []*proxy.Handle
	for _, p := range w.shardProxy {
		lost = append(lost, p.Add(proxy.MySQLRule{Match: proxy.Statement("XA COMMIT"), Do: proxy.DropRequest{}}))
	}
	w.charge(0, 50)
	w.charge(1, 50)
	decidedEventually(t, w, n[0]+1)
	servers.Eventually(t, time.Minute, func() error {
		if p := w.prepared(); p[0] != 2 || p[1] != 2 {
			return fmt.Errorf("prepared: %v", p)
		}
		if d := w.decided(1); d.Seq != n[1]+1 {
			return fmt.Errorf("D is %+v", d)
		}
		return nil
	})
	s.kill()
	for _, h := range lost {
		h.Remove()
	}
	w.waitNoMembers(time.Minute)

	for _, b := range w.xaList(0) {
		if b.Owner == "job" && b.Shard == "s1" && strings.HasSuffix(b.Lane, "/1") {
			w.root(1, "XA ROLLBACK "+b.XID)
		}
	}
	a := w.ask("xa", "resolve", "--json").must(t, 3, "lost-epoch", "lane "+w.topic+"/1: ", "Next step: ")
	var r struct {
		Lanes []struct {
			Lane, Result, Reason string
			Seq                  *int64
			Shards               []struct{ Committed []string }
		}
	}
	if err := json.Unmarshal([]byte(a.out), &r); err != nil || len(r.Lanes) != 2 {
		t.Fatalf("%v: %s", err, a.out)
	}
	if l := r.Lanes[0]; l.Lane != w.topic+"/0" || l.Result != "settled" || l.Reason != "" || l.Seq == nil || *l.Seq != n[0]+1 || len(l.Shards[0].Committed) != 1 || len(l.Shards[1].Committed) != 1 {
		t.Errorf("lane 0: %+v", l)
	}
	if l := r.Lanes[1]; l.Lane != w.topic+"/1" || l.Result != "refused" || l.Reason != "lost-epoch" || l.Seq != nil || len(l.Shards[0].Committed) != 1 || len(l.Shards[1].Committed) != 0 {
		t.Errorf("lane 1: %+v", l)
	}
	all(t, "epochs of lane 0", w.epochs(0), n[0]+1)
	if e := w.epochs(1); e[0] != n[1]+1 || e[1] != n[1] {
		t.Errorf("epochs of lane 1: %v", e)
	}
	// Nothing is prepared any more, and still it does not call this settled.
	w.ask("xa", "resolve").must(t, 3, "lost-epoch", "0 settled, 1 refused")
}

// TestXAResolveStaticMember: an instance with an id of its own that was stopped in
// good order is still a member, and may come back at any moment.
func TestXAResolveStaticMember(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.edit("session_timeout: 6s", "session_timeout: 20s\n  instance_id: billing-7")
	s := w.run("")
	w.charge(0, 50)
	w.waitAccounted()
	s.stop()
	w.ask("xa", "resolve").must(t, 3, "group-has-members", "kafka.instance_id billing-7")

	// Resolve itself leaves no member behind, whatever the configuration says.
	w.charge(0, 50)
	w.run("decided:1").mustDieAtFailpoint()
	w.waitNoMembers(2 * time.Minute)
	w.ask("xa", "resolve").must(t, 0, "1 settled")
	w.waitNoMembers(5 * time.Second)
	s = w.run("")
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestXAResolveKilled: resolve is killed at each of its places, and begun again.
func TestXAResolveKilled(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		died    string
		decided int64
	}{{"decided:1", 1}, {"all-prepared:1", 0}} {
		t.Run(c.died, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			n := w.died(c.died)
			left := 1
			for _, point := range []string{"fenced:1", "decision-read:1", "takeover-decided:1", "settling:1", "settled:1"} {
				w.waitNoMembers(time.Minute)
				w.commandEnv([]string{"FAILPOINT=" + point}, "xa", "resolve").mustDieAtFailpoint()
				switch point {
				case "settling:1": // the other shard may be done, or not
					left = -1
				case "settled:1":
					left = 0
				}
				if p := w.prepared(); left >= 0 && (p[0] != left || p[1] != left) {
					t.Errorf("killed at %s: prepared: %v, want %d on each", point, p, left)
				}
			}
			w.ask("xa", "resolve").must(t, 3, "group-has-members")
			w.waitNoMembers(time.Minute)
			w.ask("xa", "resolve").must(t, 0, "nothing is in doubt")
			all(t, "epochs", w.epochs(0), n+c.decided)
			if d := w.decided(0); d.Incarnation != 5 || d.Seq != n+c.decided {
				t.Errorf("D is %+v", d)
			}
			s := w.run("")
			w.waitAccounted()
			s.stop()
			w.exact()
		})
	}
}

// TestXAResolveInterrupted: after SIGTERM it leaves the group at once, and says
// that it has not done everything.
func TestXAResolveInterrupted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	n := w.died("decided:1")
	w.waitNoMembers(time.Minute)
	w.edit("session_timeout: 6s", "session_timeout: 30s")
	p := w.commandEnv([]string{"FAILPOINT=settling:1:hold"}, "xa", "resolve")
	p.mustHoldAtFailpoint()
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGUSR1)
	p.mustExit(4)
	for _, says := range []string{"0 settled, 0 refused, 1 failed", "interrupted before the lane was settled"} {
		if err := contains(p.output(), says); err != nil {
			t.Errorf("%v: %s", err, p.output())
		}
	}
	w.waitNoMembers(10 * time.Second) // it has left: its session would last three times as long
	w.ask("xa", "resolve").must(t, 0, "1 settled")
	all(t, "epochs", w.epochs(0), n+1)
	s := w.run("")
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestXAResolveAndAnInstanceThatStarts: it gets its lanes when resolve is done
// with them.
func TestXAResolveAndAnInstanceThatStarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	n := w.died("decided:1")
	w.waitNoMembers(time.Minute)
	p := w.commandEnv([]string{"FAILPOINT=settling:1:hold"}, "xa", "resolve")
	p.mustHoldAtFailpoint()
	s := w.run("")
	w.waitMembers(2)
	if d := w.decided(0); d.Incarnation != 3 {
		t.Errorf("D is %+v, want resolve's takeover", d)
	}
	p.signal(syscall.SIGUSR1)
	p.mustExit(0)
	w.charge(0, 20)
	w.waitAccounted()
	s.undisturbed()
	s.stop()
	if d := w.decided(0); d.Incarnation != 4 || d.Seq <= n+1 {
		t.Errorf("D is %+v", d)
	}
	w.exact()
}

// TestXAResolveBesideAFrozenInstance: an instance is frozen for longer than its
// session, so the group is empty. It thaws when its lane is settled.
func TestXAResolveBesideAFrozenInstance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		zombie zombie
		says   string
	}{
		{zombie{failpoint: "in-branch:3"}, ""}, // what is not prepared is in no list; the other shard's branch may be
		{zombie{failpoint: "some-prepared:3"}, "1 settled"},
		{zombie{failpoint: "all-prepared:3"}, "1 settled"},
		{zombie{failpoint: "before-end-txn:3"}, "1 settled"},
		{zombie{failpoint: "decided:3"}, "1 settled"},
		{zombie{failpoint: "some-committed:3"}, "1 settled"},
		{zombie{failpoint: "fenced:1", before: "decided:3"}, "1 settled"},
		{zombie{failpoint: "takeover-decided:1", before: "all-prepared:3"}, "1 settled"},
	} {
		t.Run(c.zombie.failpoint, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			a, old, _ := w.freeze(&c.zombie)
			w.waitNoMembers(time.Minute)
			w.ask("xa", "resolve").must(t, 0, c.says)
			all(t, "prepared", w.prepared(), 0)
			d := w.decided(0)
			a.signal(syscall.SIGCONT)
			a.mustSay(saysLost)
			w.again(0, old)
			w.charge(0, 50)
			w.waitAccounted()
			if got := w.decided(0); got.Incarnation <= d.Incarnation {
				t.Errorf("D was %+v and is %+v", d, got)
			}
			a.stop()
			w.exact()
		})
	}
}

// TestXAResolveAgainstKafka: what Kafka says can't be right for the branches. They
// are called by what is wrong, and nobody touches them.
func TestXAResolveAgainstKafka(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		word, reason string
		says         string
		change       func(t *testing.T, d string) string // the lane's decision; "" for none
	}{
		{"older", "old-branch", "epoch 9 is decided", func(t *testing.T, d string) string {
			return withNumber(t, withNumber(t, d, "seq", 9), "incarnation", 5)
		}},
		{"ahead", "shard-ahead", "perhaps this branch's own", func(t *testing.T, d string) string {
			return withNumber(t, withNumber(t, d, "seq", 1), "incarnation", 5)
		}},
		{"ahead", "invariant", "this session's incarnation", func(t *testing.T, d string) string { return withNumber(t, d, "incarnation", 1) }},
		{"no-decision", "lane-known", "knows the lane", func(*testing.T, string) string { return "" }},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			s := w.run("")
			for range 2 {
				w.charge(0, 30)
				w.waitAccounted()
			}
			s.stop()
			n := w.epochs(0)[0]
			w.charge(0, 30)
			w.run("all-prepared:1").mustDieAtFailpoint()
			w.waitNoMembers(time.Minute)
			_, right := w.offset(0)
			if wrong := c.change(t, right); wrong == "" {
				w.deleteOffset(0)
				w.record(0, "")
			} else {
				w.setD(0, wrong)
			}
			before := w.tables()
			want := []string{fmt.Sprintf("s0 /0 2/%d %s", n+1, c.word), fmt.Sprintf("s1 /0 2/%d %s", n+1, c.word)}
			for _, b := range w.mustList(want...) {
				if b.Owner == "job" && b.Why == "" {
					t.Errorf("it does not say why: %+v", b)
				}
			}
			w.ask("xa", "resolve").must(t, 3, "("+c.reason+")", c.says, "0 settled, 1 refused")
			all(t, "prepared", w.prepared(), 1)
			w.unchanged(before)

			// Repaired, it is resolved.
			if _, now := w.offset(0); now != "" {
				right = withNumber(t, right, "incarnation", 7) // the takeovers above
			}
			w.setD(0, right)
			w.ask("xa", "resolve").must(t, 0, "1 settled", "2 rolled back")
			s = w.run("")
			w.waitAccounted()
			s.stop()
			w.exact()
		})
	}
}

// TestXAResolveStartsNoLane: a lane's first epoch is prepared, and Kafka knows
// nothing of the lane any more. first_start, which is on, is not for resolve.
func TestXAResolveStartsNoLane(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.charge(0, 30)
	w.run("all-prepared:1").mustDieAtFailpoint()
	w.waitNoMembers(time.Minute)
	_, right := w.offset(0)
	w.deleteOffset(0)
	w.record(0, "")
	w.mustList("s0 /0 1/1 no-decision", "s1 /0 1/1 no-decision")
	w.ask("xa", "resolve").must(t, 3, "(first-start)", "0 settled, 1 refused")
	if next, text := w.offset(0); next >= 0 || text != "" {
		t.Errorf("a decision was made: offset %d, %s", next, text)
	}
	all(t, "prepared", w.prepared(), 1)

	w.setD(0, right)
	w.ask("xa", "resolve").must(t, 0, "1 settled", "2 rolled back")
	s := w.run("")
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestXAServerChanged: behind a shard's address is another server, with the same
// data. It is looked at all the same; before it is accepted nothing is done there.
func TestXAServerChanged(t *testing.T) {
	t.Parallel()
	m := servers.MySQL(t)
	w := newWorld(t, 1, withServer(m))
	n := w.died("decided:1")
	if err := m.Reidentify(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.waitNoMembers(time.Minute)
	decidedEventually(t, w, n+1)
	a := w.ask("xa", "list", "--json").must(t, 3, "(server-changed) s0")
	if got := xaWords(a.branches(t)); !slices.Equal(got, []string{fmt.Sprintf("s0 /0 2/%d decided", n+1)}) {
		t.Errorf("listed: %q", got)
	}
	w.ask("xa", "resolve").must(t, 3, "(server-changed) s0", "--accept server-changed:s0")
	all(t, "prepared", w.prepared(), 1)

	// Who is refused because of a member has recorded nothing, whatever was accepted.
	member := w.kafka.Client(t, kgo.ConsumerGroup(w.job), kgo.ConsumeTopics(w.topic), kgo.DisableAutoCommit())
	w.waitMembers(1)
	w.ask("xa", "resolve", "--accept", "server-changed:s0").must(t, 3, "group-has-members", "1 member", "nothing was changed")
	member.Close()
	w.waitNoMembers(time.Minute)
	w.ask("xa", "resolve").must(t, 3, "(server-changed) s0")
	w.ask("xa", "resolve", "--accept", "server-changed:s0").must(t, 0, "1 settled", "1 committed")
	s := w.run("")
	w.waitAccounted()
	s.stop()
	w.exact()
}
