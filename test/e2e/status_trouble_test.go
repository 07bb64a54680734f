package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/test/proxy"
	"billing/test/servers"
)

// TestStatusOfStoppedLanes: each row is a lane that stops for a reason of its own.
// What its owner says of it is what is foreseen before one starts, and after the
// owner was killed: the same reason, the same words, the same next step. What a
// session finds only in the dedup state is not foreseen.
func TestStatusOfStoppedLanes(t *testing.T) {
	t.Parallel()
	unseen := []string{"state-damaged, a chunk that can't be read"}
	var rows []*stoppedRow
	for _, row := range stoppedRows() {
		if slices.Contains(unseen, row.name) || row.live == nil && row.reason != "state-damaged" && row.reason != "batch-too-large" {
			rows = append(rows, row)
		}
	}
	w, lanes := spoiled(t, rows)
	w.edit("first_start: true", "first_start: false")
	look := func(state string) *statusSays {
		t.Helper()
		s := w.statusJSON(0)
		if len(s.Lanes) != len(rows)+1 || len(s.Problems) > 0 {
			t.Fatalf("%d lanes: %s", len(s.Lanes), text(s))
		}
		if l := s.lane(0); l.Reason != "" || l.CompleteUpTo == nil {
			t.Errorf("the good lane: %s", text(l))
		}
		for _, l := range lanes {
			says := s.lane(l.partition)
			if says.State != state || says.Foreseen == (state == "stopped") && !slices.Contains(unseen, l.row.name) {
				t.Errorf("%s: %s", l.row.name, text(says))
			}
			now := l.decided(l.partition)
			if state != "stopped" && now.Incarnation == l.before.Incarnation && now != l.before || l.world.booked(l.partition) != l.booked {
				t.Errorf("%s: looking has changed something: D was %+v, is %+v", l.row.name, l.before, now)
			}
		}
		return s
	}
	servers.Eventually(t, time.Minute, func() error {
		if s := w.statusJSON(0); s.Group.State != "Empty" {
			return fmt.Errorf("the group is %s", s.Group.State)
		}
		return nil
	})
	before := look("unowned")
	t.Log("\n" + w.status(0))

	p := w.run("")
	servers.Eventually(t, 2*time.Minute, func() error {
		if s := w.statusJSON(0); s.Summary.States["stopped"] != len(rows) || s.Summary.States["running"] != 1 {
			return fmt.Errorf("%v", s.Summary.States)
		}
		return nil
	})
	asked := look("stopped")
	t.Log("\n" + w.status(0))
	p.kill()
	after := look("not asked")

	for _, l := range lanes {
		says := asked.lane(l.partition)
		if says.Reason != l.row.reason || !says.Stuck || says.NextStep == "" || !strings.HasSuffix(says.Message, ". Next step: "+says.NextStep) {
			t.Errorf("%s, asked: %s", l.row.name, text(says))
		}
		for _, want := range l.row.says {
			if !strings.Contains(says.Message, want) {
				t.Errorf("%s, asked: %q does not say %q", l.row.name, says.Message, want)
			}
		}
		for when, s := range map[string]*statusSays{"before": before, "after": after} {
			foreseen := s.lane(l.partition)
			if slices.Contains(unseen, l.row.name) {
				if foreseen.Foreseen || foreseen.Reason != "" {
					t.Errorf("%s, %s: %s", l.row.name, when, text(foreseen))
				}
				continue
			}
			if foreseen.Reason != says.Reason || foreseen.NextStep != says.NextStep || !strings.Contains(says.Message, foreseen.Message) {
				t.Errorf("%s, foreseen %s: %s\nasked: %s", l.row.name, when, text(foreseen), text(says))
			}
		}
		// How far it is was decided before it was spoiled; what is gone can't be told.
		switch l.row.reason {
		case "unread-deleted", "offset-beyond-end", "decisions-unequal", "lane-known", "first-start",
			"lost-epoch", "shard-ahead", "old-branch", "invariant": // nor is what a shard does not show
			if says.CompleteUpTo != nil {
				t.Errorf("%s: %s", l.row.name, text(says))
			}
		default:
			if says.CompleteUpTo == nil || !is(says.Next, l.before.Next) && l.row.reason != "offset-reset" {
				t.Errorf("%s: %s, D is %+v", l.row.name, text(says), l.before)
			}
		}
	}
	if asked.Summary.CompleteUpTo != nil {
		t.Error("the job is complete up to a moment, and some lanes are not")
	}
}

// TestStatusOpenTransaction: a producer leaves a Kafka transaction open. What it
// holds back is not complete, also what is behind it.
func TestStatusOpenTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.run("")
	w.charge(0, 10)
	w.waitAccounted()
	f := newForeign(t)
	open, _ := w.charges(w.topic, 3)
	begins := time.Now().UTC().Truncate(time.Millisecond)
	f.begin(open...)
	began := time.Now()
	w.charge(0, 5)
	s := w.statusJSON(0)
	l := s.lane(0)
	if l.State != "running" || !l.HeldBack || !is(l.LagRecords, 8) || l.CompleteUpTo == nil || l.CompleteUpTo.Before(begins) || l.CompleteUpTo.After(began) {
		t.Errorf("behind an open transaction: %s", text(l))
	}
	if len(l.Notes) != 1 || !strings.Contains(l.Notes[0], "left open") || *l.EventLagSeconds < 60 {
		t.Errorf("behind an open transaction: %s", text(l))
	}
	t.Log("\n" + w.status(0))
	f.end(kgo.TryAbort)
	w.waitAccounted()
	if l := w.statusJSON(0).lane(0); l.HeldBack || len(l.Notes) > 0 || !l.CompleteUpTo.After(began) || !is(l.EventLagSeconds, 0) {
		t.Errorf("after it was aborted: %s", text(l))
	}
	p.stop()
	w.exact()
}

// TestStatusServersAway: what is known is shown, and it takes no longer than a
// person waits.
func TestStatusServersAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := w.run("")
	w.charge(0, 10)
	w.waitAccounted()
	p.waitSays("/readyz", 200)
	good := w.configuration()
	broker := shared.kafka.Addr()
	refuses, silent := "127.0.0.1:1", servers.Silent(t)
	shard := func(i int, addr string) (from, to string) { return w.dsns[i], at(t, w.dsns[i], addr, 0) }
	for _, c := range []struct {
		name   string
		change func()
		kafka  bool // away
		shards int  // away
		says   []string
	}{
		{"a broker that refuses", func() { w.edit(broker, refuses) }, true, 0, []string{"kafka: ", "connection refused"}},
		{"a broker that is silent", func() { w.edit(broker, silent) }, true, 0, []string{"kafka: "}},
		{"a shard that refuses", func() { w.edit(shard(1, refuses)) }, false, 1, []string{"shard s1: ", "connection refused"}},
		{"a shard that is silent", func() { w.edit(shard(1, silent)) }, false, 1, []string{"shard s1: "}},
		{"everything is silent", func() { w.edit(broker, silent); w.edit(shard(0, silent)); w.edit(shard(1, silent)) }, true, 2, []string{"kafka: ", "shard s0: ", "shard s1: "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer w.configure(good)
			c.change()
			began := time.Now()
			s := w.statusJSON(4)
			t.Logf("took %s", time.Since(began).Round(100*time.Millisecond))
			var all strings.Builder
			for _, p := range s.Problems {
				if p.Kind != "unreachable" {
					t.Errorf("%s", text(p))
				}
				all.WriteString(p.Message + "\n")
			}
			for _, want := range c.says {
				if !strings.Contains(all.String(), want) {
					t.Errorf("it does not say %q: %s", want, all.String())
				}
			}
			l := s.lane(0)
			switch {
			case !c.kafka: // the lane is as its owner and Kafka say
				d := w.decided(0)
				if l.State != "running" || !is(l.Seq, d.Seq) || !is(l.Next, d.Next) || l.CompleteUpTo == nil || l.InDoubt != nil || len(l.Shards) != 2-c.shards {
					t.Errorf("%s", text(l))
				}
			case c.shards < 2: // as the shards say
				if l.State != "unknown" || l.Seq != nil || l.CompleteUpTo != nil || len(l.Shards) != 2 || l.Shards[0].Next != w.decided(0).Next || !is(l.InDoubt, 0) {
					t.Errorf("%s", text(s))
				}
			default:
				if len(s.Lanes) != 0 || s.Group.State != "" {
					t.Errorf("%s", text(s))
				}
			}
			if s.Summary.CompleteUpTo != nil != !c.kafka {
				t.Errorf("%s", text(s.Summary))
			}
			t.Log("\n" + w.status(4))
		})
	}

	// Other databases than those recorded: the job is refused, and what they have shown.
	w.swapShards()
	s := w.statusJSON(3)
	if l := s.lane(0); l.State != "running" || l.CompleteUpTo == nil || len(s.Problems) != 2 || s.Problems[0].Reason != "shards-changed" || s.Problems[0].NextStep == "" {
		t.Errorf("%s", text(s))
	}
	w.configure(good)
	// Another deployment's settings: the lanes' decisions refuse them.
	p.stop()
	w.edit("message:", "aggregate:\n  window: 30m\nmessage:")
	s = w.statusJSON(3)
	if l := s.lane(0); !l.Foreseen || l.Reason != "fingerprint" || len(s.Problems) != 1 || s.Problems[0].Reason != "fingerprint" {
		t.Errorf("%s", text(s))
	}
}

// TestStatusWatched: looks again and again, follows what happens, and ends well
// with SIGINT.
func TestStatusWatched(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	for _, asJSON := range []bool{true, false} {
		args := []string{"status", "--config", w.configFor([]string{"status"}), "--watch", "--every", "200ms"}
		if asJSON {
			args = append(args, "--json")
		}
		cmd := exec.CommandContext(t.Context(), shared.binary, args...)
		cmd.Env, cmd.Stderr = environ(), os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		looks, running := 0, false
		var p *process
		for deadline := time.Now().Add(2 * time.Minute); lines.Scan() && time.Now().Before(deadline); {
			line := lines.Text()
			if asJSON {
				var s statusSays
				if err := json.Unmarshal([]byte(line), &s); err != nil {
					t.Fatalf("%v in %s", err, line)
				}
				running = s.Summary.States["running"] == 1
				looks++
			} else if strings.HasPrefix(line, w.job+": 1 lane, 1 ") {
				running = strings.Contains(line, "1 running")
				looks++
			}
			if strings.Contains(line, "\x1b") {
				t.Fatalf("this is no terminal: %q", line)
			}
			if looks == 2 && p == nil {
				p = w.run("")
			}
			if running {
				break
			}
		}
		if !running || looks < 2 {
			t.Errorf("%d looks, running %t", looks, running)
		}
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // to the end
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("after SIGINT: %v", err)
		}
		p.stop()
	}
}

// TestClientIDs: the group client names the admin port; clients that carry data
// are called as ever, for quotas by client id.
func TestClientIDs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, throughProxies())
	var mu sync.Mutex
	seen := map[kmsg.Key]map[string]bool{}
	w.kafkaProxy.Add(proxy.KafkaRule{Do: proxy.Watch{}, Match: func(r *proxy.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if seen[r.Key] == nil {
			seen[r.Key] = map[string]bool{}
		}
		seen[r.Key][r.ClientID] = true
		return false
	}})
	p := w.run("")
	w.charge(0, 10)
	w.waitAccounted()
	port := adminAddress.FindStringSubmatch(p.output())
	w.status(0)
	p.stop()
	mu.Lock()
	defer mu.Unlock()
	data, member := "billing-"+w.job, "billing-"+w.job+"@"+port[1]
	for key, want := range map[kmsg.Key]string{
		kmsg.JoinGroup: member, kmsg.SyncGroup: member,
		kmsg.Fetch: data, kmsg.Produce: data, kmsg.InitProducerID: data, kmsg.EndTxn: data, kmsg.TxnOffsetCommit: data, kmsg.DescribeGroups: data,
	} {
		if len(seen[key]) != 1 || !seen[key][want] {
			t.Errorf("%s comes from %v, want %q", key.Name(), seen[key], want)
		}
	}
}
