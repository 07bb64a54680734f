package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"billing/test/servers"
)

// answer is what a command has said.
type answer struct {
	code     int
	out, err string
}

// ask runs a command of the binary to its end.
func (w *world) ask(args ...string) (a answer) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, shared.binary, append(args, "--config", w.configFor(args))...)
	cmd.Env = environ()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		w.t.Fatalf("billing %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), errOut.String())
	}
	return answer{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// must fails unless the command has ended so and has said that, on either side.
func (a answer) must(t *testing.T, code int, says ...string) answer {
	t.Helper()
	if a.code != code {
		t.Fatalf("exit code %d, want %d:\n%s\n%s", a.code, code, a.out, a.err)
	}
	for _, s := range says {
		if !strings.Contains(a.out+a.err, s) {
			t.Errorf("it does not say %q:\n%s\n%s", s, a.out, a.err)
		}
	}
	return a
}

// xaBranch is a line of xa list.
type xaBranch struct {
	Owner       string
	Shard       string
	ListedOn    []string `json:"listed_on"`
	Lane        string
	Incarnation int64
	Seq         int64
	PreparedAt  string   `json:"prepared_at"`
	Age         *float64 `json:"age_seconds"`
	From        int64    `json:"offset_from"`
	Next        int64    `json:"offset_next"`
	Records     int64
	Decision    string
	Why         string
	GTRID       string
	XID         string
}

// xaList is xa list --json, which must end so.
func (w *world) xaList(code int) (branches []xaBranch) {
	w.t.Helper()
	a := w.ask("xa", "list", "--json").must(w.t, code)
	return a.branches(w.t)
}

func (a answer) branches(t *testing.T) []xaBranch {
	t.Helper()
	var list struct{ Branches []xaBranch }
	if err := json.Unmarshal([]byte(a.out), &list); err != nil {
		t.Fatalf("%v: %s\n%s", err, a.out, a.err)
	}
	return list.Branches
}

// xaWords are the job's branches of a list: "shard lane incarnation/seq decision".
func xaWords(branches []xaBranch) (words []string) {
	for _, b := range branches {
		if b.Owner == "job" {
			words = append(words, fmt.Sprintf("%s %s %d/%d %s", b.Shard, b.Lane[strings.LastIndex(b.Lane, "/"):], b.Incarnation, b.Seq, b.Decision))
		}
	}
	return words
}

func (w *world) mustList(want ...string) []xaBranch {
	w.t.Helper()
	branches := w.xaList(0)
	if got := xaWords(branches); !slices.Equal(got, want) {
		w.t.Errorf("xa list: %q, want %q", got, want)
	}
	return branches
}

// waitNoMembers waits until the group has none: a dead one is a member until its
// session is over.
func (w *world) waitNoMembers(within time.Duration) {
	w.t.Helper()
	admin := w.kafka.Admin(w.t)
	servers.Eventually(w.t, within, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		groups, err := admin.DescribeGroups(ctx, w.job)
		if err != nil {
			return err
		}
		if g := groups[w.job]; g.Err != nil || len(g.Members) > 0 {
			return fmt.Errorf("the group is %s with %d members (%w)", g.State, len(g.Members), g.Err)
		}
		return nil
	})
}

// died runs the service until both lanes have epochs, and then until it dies at
// the fail point in the next one of lane 0. It returns the epoch before.
func (w *world) died(failpoint string) (n int64) {
	w.t.Helper()
	s := w.run("")
	for p := range w.partitions {
		w.charge(p, 60)
	}
	w.waitAccounted()
	s.stop()
	n = w.epochs(0)[0]
	w.charge(0, 40)
	w.run(failpoint).mustDieAtFailpoint()
	return n
}

// TestXAResolve: what an instance has left when it died is listed with what the
// decision says of it, resolve refuses while the group still has the dead one,
// does what is to be done to that lane and to no other, and leaves nothing behind:
// the service goes on as if it had done it itself.
func TestXAResolve(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		failpoint string
		left      []string // on which shards
		word      string
		open      bool // its Kafka transaction
		decided   int64
		then      string // what is done on the first of them
	}{
		{"some-prepared:1", []string{"s0"}, "undecided", false, 0, "rolled back epoch %d of incarnation %d"},
		{"all-prepared:1", []string{"s0", "s1"}, "undecided", false, 0, "rolled back epoch %d of incarnation %d"},
		{"before-end-txn:1", []string{"s0", "s1"}, "undecided", true, 0, "rolled back epoch %d of incarnation %d"},
		{"decided:1", []string{"s0", "s1"}, "decided", false, 1, "committed epoch %d of incarnation %d"},
		{"some-committed:1", []string{"s1"}, "decided", false, 1, "committed epoch %d of incarnation %d"},
	} {
		t.Run(c.failpoint, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, withPartitions(2))
			w.edit("session_timeout: 6s", "session_timeout: 10s")
			n := w.died(c.failpoint)
			w.ask("xa", "resolve").must(t, 3, "group-has-members", "1 member", "billing-"+w.job, "lanes 0, 1", "kafka.session_timeout")
			all(t, "prepared on the first shard or the second", []int{w.prepared()[0] + w.prepared()[1]}, len(c.left))

			var want []string
			for _, s := range c.left {
				want = append(want, fmt.Sprintf("%s /0 2/%d %s", s, n+1, c.word))
			}
			if c.open {
				// Its outcome is open until the broker has ended the transaction. A resolve
				// does not wait for it.
				a := w.ask("xa", "list", "--json").must(t, 4, "UNSTABLE_OFFSET_COMMIT")
				if got := xaWords(a.branches(t)); !slices.Equal(got, []string{fmt.Sprintf("s0 /0 2/%d unknown", n+1), fmt.Sprintf("s1 /0 2/%d unknown", n+1)}) {
					t.Errorf("with an open Kafka transaction: %q", got)
				}
				w.waitNoMembers(time.Minute)
			} else {
				w.waitNoMembers(time.Minute)
				decidedEventually(t, w, n+c.decided)
				branches := w.mustList(want...)
				w.compareWritten(branches, len(c.left))
				w.ask("xa", "list").must(t, 0, fmt.Sprintf("prepared branches of job %s: %d (%d %s)", w.job, len(c.left), len(c.left), c.word))
			}

			d0, d1 := w.decided(0), w.decided(1)
			a := w.ask("xa", "resolve").must(t, 0, "1 settled, 0 refused, 0 failed", c.left[0]+"  ", fmt.Sprintf(c.then, n+1, 2))
			t.Log(a.out)
			w.waitNoMembers(3 * time.Second) // it has left
			all(t, "prepared", w.prepared(), 0)
			all(t, "epochs", w.epochs(0), n+c.decided)
			w.mustList()
			if got := w.decided(0); got.Incarnation != d0.Incarnation+1 || got.Seq != n+c.decided || got.Next < d0.Next {
				t.Errorf("D was %+v and is %+v", d0, got)
			}
			if got := w.decided(1); got != d1 {
				t.Errorf("D of the lane that was not in doubt was %+v and is %+v", d1, got)
			}

			again := w.run("")
			w.charge(0, 30)
			w.charge(1, 30)
			w.waitAccounted()
			again.stop()
			w.exact()
			w.ask("xa", "resolve").must(t, 0, "nothing is in doubt")
		})
	}
}

// compareWritten holds what a list says of branches against the rows, which are
// read here as they are written: of decided and of undecided ones.
func (w *world) compareWritten(branches []xaBranch, n int) {
	w.t.Helper()
	for _, b := range branches {
		if b.Owner != "job" {
			continue
		}
		n--
		i := slices.Index([]string{"s0", "s1"}, b.Shard)
		c, err := w.shards[i].Conn(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.ExecContext(w.t.Context(), "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"); err != nil {
			w.t.Fatal(err)
		}
		var at string
		var from, next, records int64
		if err := c.QueryRowContext(w.t.Context(), "SELECT DATE_FORMAT(prepared_at, '%Y-%m-%dT%H:%i:%s.%fZ'), offset_from, offset_next, records_in FROM billing_epoch WHERE gtrid = ?", b.GTRID).
			Scan(&at, &from, &next, &records); err != nil {
			w.t.Fatal(err)
		}
		listed, err := time.Parse(time.RFC3339Nano, b.PreparedAt)
		if err != nil || listed.Format("2006-01-02T15:04:05.000000Z") != at || b.From != from || b.Next != next || b.Records != records {
			w.t.Errorf("%+v (%v); the row says %s [%d,%d) %d", b, err, at, from, next, records)
		}
		if b.Age == nil || *b.Age < 0 || *b.Age > time.Hour.Seconds() {
			w.t.Errorf("%+v: age %v", b, b.Age)
		}
	}
	if n != 0 {
		w.t.Errorf("%d branches more were to be listed", n)
	}
}

// TestXAListBesideTheService: branches come and go, and what is listed is never
// called what it is not.
func TestXAListBesideTheService(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, withPartitions(2), withInterval("50ms"))
	s := w.run("")
	w.charge(0, 10)
	w.charge(1, 10)
	w.waitAccounted()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	load := make(chan error, 1) // cap 1: its end waits for nobody
	go func() {
		for n := int32(0); ctx.Err() == nil; n++ {
			if _, err := w.tryCharge(n%2, 20); err != nil {
				load <- err
				return
			}
		}
		load <- nil
	}()
	seen := map[string]int{}
	for range 20 {
		for _, b := range w.xaList(0) {
			if b.Owner != "job" {
				continue
			}
			seen[b.Decision]++
			if b.Decision != "decided" && b.Decision != "in-flight" {
				t.Errorf("while the service works: %+v", b)
			}
		}
	}
	a := w.ask("xa", "resolve").must(t, 3, "group-has-members", "billing-"+w.job, "lanes 0, 1")
	t.Logf("seen: %v; %s", seen, a.err)
	cancel()
	if err := <-load; err != nil {
		t.Error(err)
	}
	w.waitAccounted()
	s.undisturbed()
	s.stop()
	w.exact()
}

// TestXAAway: what can be reached is listed, what can't is named, and resolve
// changes nothing.
func TestXAAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, throughProxies(), withPartitions(2))
	n := w.died("decided:1")
	w.waitNoMembers(time.Minute)
	decidedEventually(t, w, n+1)
	before, d := w.tables(), w.decided(0)
	word := func(shard int, decision string) string { return fmt.Sprintf("s%d /0 2/%d %s", shard, n+1, decision) }
	mustShow := func(a answer, want ...string) {
		t.Helper()
		branches := a.branches(t)
		if got := xaWords(branches); !slices.Equal(got, want) {
			t.Errorf("listed: %q, want %q", got, want)
		}
		for _, b := range branches {
			if b.Owner == "job" && (b.Age == nil || b.Lane != w.topic+"/0") {
				t.Errorf("lane or age is not known: %+v", b)
			}
		}
	}

	w.kafkaProxy.Refuse(true)
	begun := time.Now()
	mustShow(w.ask("xa", "list", "--json").must(t, 4, "kafka: "), word(0, "unknown"), word(1, "unknown"))
	since(t, begun, "without Kafka", time.Minute)
	w.ask("xa", "list").must(t, 4, "2 unknown", "billing: xa list: decisions can't be read")
	w.ask("xa", "resolve").must(t, 4, "billing: xa resolve: kafka: ")
	w.kafkaProxy.Refuse(false)

	for name, hurt := range map[string]func(on bool){"refuses": w.shardProxy[1].Refuse, "hangs": w.shardProxy[1].Freeze} {
		hurt(true)
		begun := time.Now()
		mustShow(w.ask("xa", "list", "--json").must(t, 4, "shard s1: "), word(0, "decided"))
		since(t, begun, "with a shard that "+name, time.Minute)
		w.ask("xa", "resolve").must(t, 4, "billing: xa resolve: shard s1: ")
		hurt(false)
	}

	for _, user := range []string{w.user(1), w.reader(1)} {
		w.root(1, "REVOKE XA_RECOVER_ADMIN ON *.* FROM "+user)
	}
	mustShow(w.ask("xa", "list", "--json").must(t, 3, "GRANT XA_RECOVER_ADMIN ON *.* TO "+w.reader(1)), word(0, "decided"))
	w.ask("xa", "resolve").must(t, 3, "GRANT XA_RECOVER_ADMIN ON *.* TO "+w.user(1))
	for _, user := range []string{w.user(1), w.reader(1)} {
		w.root(1, "GRANT XA_RECOVER_ADMIN ON *.* TO "+user)
	}

	w.edit("topic: "+w.topic, "topic: no-such-topic")
	a := w.ask("xa", "list", "--json").must(t, 3, "topic-missing", "no-such-topic")
	mustShow(a, word(0, "other-topic"), word(1, "other-topic"))
	w.ask("xa", "resolve").must(t, 3, "topic-missing")
	w.edit("topic: no-such-topic", "topic: "+w.topic)

	w.unchanged(before)
	if got := w.decided(0); got != d {
		t.Errorf("D was %+v and is %+v", d, got)
	}
	mustShow(w.ask("xa", "list", "--json").must(t, 0), word(0, "decided"), word(1, "decided"))
	w.ask("xa", "resolve").must(t, 0, "1 settled")
	s := w.run("")
	w.waitAccounted()
	s.stop()
	w.exact()
}
