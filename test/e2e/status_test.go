package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"billing/test/servers"
)

// What `billing status` says of a job: against Kafka and MySQL, asked directly.

// statusSays is the documented form of its JSON.
type statusSays struct {
	At      time.Time
	Job     string
	Topic   string
	Summary struct {
		Lanes           int
		States          map[string]int
		Stuck           int
		Refused         int
		LagRecords      *int64     `json:"lag_records"`
		EventLagSeconds *float64   `json:"event_lag_seconds"`
		CompleteUpTo    *time.Time `json:"complete_up_to"`
		InDoubt         *int       `json:"in_doubt"`
	}
	Lanes []laneSays
	Group struct {
		State   string
		Members []struct {
			Member, Host, Admin, Build string
			Lanes                      []int32
			Asked                      bool
			Notes                      []string
		}
	}
	Shards []struct {
		Shard    string
		Asked    bool
		Branches []struct {
			GTRID, Lane      string
			Incarnation, Seq int64
			Decided          *bool
		}
	}
	Notes    []string
	Problems []struct {
		Kind, Reason, What, Message string
		NextStep                    string `json:"next_step"`
	}
}

type laneSays struct {
	Lane      string
	Partition int32
	State     string
	Stuck     bool
	Owner     *struct {
		Member, Host string
	}
	Reason, Message  string
	NextStep         string `json:"next_step"`
	Foreseen         bool
	Incarnation, Seq *int64
	Next             *int64
	Unstable         bool
	LogEnd           *int64     `json:"log_end"`
	LagRecords       *int64     `json:"lag_records"`
	EventLagSeconds  *float64   `json:"event_lag_seconds"`
	CompleteUpTo     *time.Time `json:"complete_up_to"`
	HeldBack         bool       `json:"held_back"`
	InDoubt          *int       `json:"in_doubt"`
	Shards           []struct {
		Shard                  string
		Incarnation, Seq, Next int64
	}
	Notes []string
}

func (s *statusSays) lane(partition int32) *laneSays {
	for i := range s.Lanes {
		if s.Lanes[i].Partition == partition {
			return &s.Lanes[i]
		}
	}
	return &laneSays{State: "missing"}
}

// statusWithin bounds every look, whatever is away.
const statusWithin = 25 * time.Second

// status runs `billing status` and returns what it writes. Its errors are part of
// the answer, so nothing comes on stderr.
func (w *world) status(code int, args ...string) string {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), shared.binary, append([]string{"status", "--config", w.configFor([]string{"status"})}, args...)...)
	cmd.Env = environ()
	// A proxy of the environment is not asked (nor would it be for 127.0.0.1).
	cmd.Env = append(cmd.Env, "HTTP_PROXY=http://127.0.0.1:1", "http_proxy=http://127.0.0.1:1")
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code || errOut.Len() > 0 {
		w.t.Fatalf("billing status %v: exit code %d, want %d; stderr %q\n%s", args, got, code, errOut.String(), out.String())
	}
	if took > statusWithin {
		w.t.Errorf("billing status %v took %s", args, took)
	}
	return out.String()
}

// statusJSON is status for programs.
func (w *world) statusJSON(code int) *statusSays {
	w.t.Helper()
	return w.parseStatus(w.status(code, "--json"))
}

func (w *world) parseStatus(text string) *statusSays {
	w.t.Helper()
	s := new(statusSays)
	if err := json.Unmarshal([]byte(text), s); err != nil {
		w.t.Fatalf("%v in %s", err, text)
	}
	return s
}

// mustShowTruth: incarnation, seq and next are D's, and the rows are those of
// billing_lane.
func (l *laneSays) mustShowTruth(w *world) {
	w.t.Helper()
	d := w.decided(l.Partition)
	if l.Incarnation == nil || *l.Incarnation != d.Incarnation || *l.Seq != d.Seq || *l.Next != d.Next {
		w.t.Errorf("%s shows %s, D is %+v", l.Lane, text(l), d)
	}
	var rows strings.Builder
	for i, r := range l.Shards {
		fmt.Fprintf(&rows, "shard %d: %d %d %d\n", i, r.Incarnation, r.Seq, r.Next)
	}
	if want := w.column("SELECT CONCAT_WS(' ', incarnation, seq, offset_next) FROM billing_lane WHERE kafka_topic = ? AND kafka_partition = ?", w.topic, l.Partition); rows.String() != want {
		w.t.Errorf("%s shows the rows\n%sbilling_lane has\n%s", l.Lane, rows.String(), want)
	}
}

func text(v any) string {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// is reports whether a value is known and this one.
func is[T comparable](v *T, want T) bool { return v != nil && *v == want }

// TestStatusOfInstances: two instances at work, whose ports nobody has chosen.
func TestStatusOfInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(3))
	// Every address: each is asked at the one that the broker sees.
	w.edit(`listen: "127.0.0.1:0"`, `listen: ":0"`)
	a := w.run("")
	a.waitSays("/readyz", 200)
	b := w.run("")
	b.waitSays("/readyz", 200)
	for p := range w.partitions {
		w.charge(p, 50)
	}
	w.waitAccounted()
	var s *statusSays
	before := time.Now()
	servers.Eventually(t, time.Minute, func() error { // the rebalance is over, and the tails are followed
		before = time.Now()
		s = w.statusJSON(0)
		if s.Summary.States["running"] != 3 || !is(s.Summary.InDoubt, 0) || !is(s.Summary.EventLagSeconds, 0) {
			return fmt.Errorf("%s", text(s.Summary))
		}
		return nil
	})
	owners := map[string]int{}
	for i := range s.Lanes {
		l := &s.Lanes[i]
		l.mustShowTruth(w)
		if l.Owner == nil || l.Reason != "" || l.Stuck || l.Foreseen || !is(l.LagRecords, *l.LogEnd-*l.Next) || !is(l.InDoubt, 0) || !is(l.EventLagSeconds, 0) {
			t.Errorf("%s", text(l))
			continue
		}
		if l.CompleteUpTo.Before(before) || l.CompleteUpTo.After(time.Now()) {
			t.Errorf("%s is complete up to %s, looked at after %s", l.Lane, l.CompleteUpTo, before)
		}
		owners[l.Owner.Member]++
	}
	if len(owners) != 2 || s.Group.State != "Stable" || len(s.Group.Members) != 2 || len(s.Problems)+len(s.Notes) > 0 {
		t.Errorf("%s", text(s))
	}
	for _, m := range s.Group.Members {
		if owners[m.Member] != len(m.Lanes) || !m.Asked || !strings.HasPrefix(m.Admin, m.Host+":") || len(m.Notes) > 0 {
			t.Errorf("%s, has %d lanes", text(m), owners[m.Member])
		}
	}

	// For people; under load, whatever it meets.
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for p := int32(0); ; p = (p + 1) % w.partitions {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if _, err := w.tryCharge(p, 20); err != nil {
				ended <- err
				return
			}
		}
	}()
	for range 5 {
		before := time.Now()
		s := w.statusJSON(0)
		if s.Summary.States["running"] != 3 || s.Summary.Refused > 0 || s.Summary.CompleteUpTo == nil || s.Summary.CompleteUpTo.After(time.Now()) {
			t.Errorf("under load: %s", text(s))
		}
		for i := range s.Lanes {
			// What was decided before stays decided, and nothing is promised that came later.
			l := &s.Lanes[i]
			if l.Next == nil || l.CompleteUpTo == nil {
				t.Fatalf("under load: %s", text(l))
			}
			if d := w.decided(l.Partition); *l.Next > d.Next || *l.Seq > d.Seq {
				t.Errorf("under load: %s, but D is %+v", text(l), d)
			}
			if lag := time.Since(*l.CompleteUpTo); lag > time.Since(before)+time.Minute {
				t.Errorf("%s is complete only up to %s ago", l.Lane, lag)
			}
		}
	}
	out := w.status(0)
	t.Log("\n" + out)
	for _, want := range []string{w.job + ": 3 lanes, 3 running; complete up to ", "\nLANE ", w.topic + "/2", "\ngroup " + w.job + ": Stable\n", "ADMIN-PORT"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	// One is frozen: it is a member until its session times out, and can't be asked.
	w.waitAccounted()
	a.signal(syscall.SIGSTOP)
	s = w.statusJSON(0)
	a.signal(syscall.SIGCONT)
	if s.Summary.States["not asked"] != 1 && s.Summary.States["not asked"] != 2 {
		t.Errorf("one instance is frozen: %s", text(s.Summary))
	}
	for i := range s.Lanes {
		if l := &s.Lanes[i]; l.State == "not asked" && (l.Owner == nil || l.Foreseen || l.Seq == nil || len(l.Notes) > 0) {
			t.Errorf("%s", text(l))
		}
	}
	unasked := 0
	for _, m := range s.Group.Members {
		if !m.Asked {
			unasked++
			if len(m.Notes) != 1 || !strings.Contains(m.Notes[0], m.Admin) {
				t.Errorf("%s", text(m))
			}
		}
	}
	if unasked != 1 {
		t.Errorf("%d members could not be asked", unasked)
	}
	b.stop()
	a.stop()
	w.exact()
}

// TestStatusOfALaneBehind: a lane that is held between prepare and decision, and
// one between decision and the second shard's commit; then with the owner killed.
func TestStatusOfALaneBehind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		point   string
		decided bool // the epoch that is held
		open    bool // its Kafka transaction, once the owner is dead
		left    int  // branches
	}{
		{"all-prepared", false, false, 2},
		{"before-end-txn", false, true, 2},
		{"some-committed", true, false, 1},
	} {
		t.Run(c.point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			p := w.run("")
			w.charge(0, 10)
			w.waitAccounted()
			p.stop()
			base := w.decided(0)

			p = w.run(c.point + ":1:hold")
			p.waitSays("/readyz", 200)
			begins := time.Now().UTC().Truncate(time.Millisecond)
			w.charge(0, 10)
			p.mustHoldAtFailpoint()
			arrived := time.Now()
			w.charge(0, 5)
			look := func(state string) *statusSays {
				t.Helper()
				s := w.statusJSON(0)
				l := s.lane(0)
				if l.State != state || !is(l.InDoubt, c.left) || l.Foreseen {
					t.Errorf("%s", text(s))
				}
				if len(s.Lanes) != 1 || len(s.Shards) != 2 || len(s.Problems) > 0 {
					t.Errorf("%s", text(s))
				}
				// Events are a minute old.
				if l.EventLagSeconds == nil || *l.EventLagSeconds < 60 || *l.EventLagSeconds > 600 {
					t.Errorf("event lag: %s", text(l))
				}
				want := []time.Time{begins, arrived} // of the first record that is not decided
				lag, seq := int64(15), base.Seq
				if c.decided {
					want = []time.Time{arrived.UTC().Truncate(time.Millisecond), time.Now()}
					lag, seq = 5, base.Seq+1
				}
				if !is(l.LagRecords, lag) || !is(l.Seq, seq) || l.CompleteUpTo == nil || l.CompleteUpTo.Before(want[0]) || l.CompleteUpTo.After(want[1]) {
					t.Errorf("want lag %d, seq %d, complete between %s: %s", lag, seq, want, text(l))
				}
				for i, shard := range s.Shards {
					for _, b := range shard.Branches {
						if b.Lane != l.Lane || b.Seq != base.Seq+1 || b.Incarnation != base.Incarnation+1 {
							t.Errorf("shard %d: %s", i, text(b))
						}
						if known := b.Decided != nil; known == l.Unstable && !c.decided || known && *b.Decided != c.decided {
							t.Errorf("shard %d, decided %t: %s", i, c.decided, text(b))
						}
					}
				}
				return s
			}
			if l := look("running").lane(0); l.Unstable != c.open {
				t.Errorf("held: %s", text(l))
			} else if !c.open {
				l.mustShowTruth(w)
			}
			out := w.status(0)
			t.Log("\n" + out)
			if !strings.Contains(out, "\nprepared branches:\n") {
				t.Error("it does not show the branches")
			}

			p.kill()
			var s *statusSays
			servers.Eventually(t, time.Minute, func() error { // the member's session times out
				if s = w.statusJSON(0); s.Group.State != "Empty" {
					return fmt.Errorf("the group is %s", s.Group.State)
				}
				return nil
			})
			if s.lane(0).State != "unowned" {
				t.Errorf("%s", text(s))
			}
			before := w.booked(0)
			epoch := w.transaction(0).ProducerEpoch
			s = look("unowned")
			t.Log("\n" + w.status(0))
			if l := s.lane(0); l.Unstable != c.open || len(l.Notes) > 0 != c.open {
				t.Errorf("killed: %s", text(l))
			}
			if now := w.booked(0); now != before || w.transaction(0).ProducerEpoch != epoch {
				t.Errorf("looking has changed something: producer epoch %d, now %d\n%s\n%s", epoch, w.transaction(0).ProducerEpoch, before, now)
			}

			p = w.run("")
			w.waitAccounted()
			p.stop()
			w.exact()
		})
	}
}

// TestStatusBeforeTheFirstStart: nothing is there but messages.
func TestStatusBeforeTheFirstStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(2))
	begins := time.Now().UTC().Truncate(time.Millisecond)
	w.charge(0, 7)
	after := time.Now()
	s := w.statusJSON(0)
	l := s.lane(0)
	if l.State != "unowned" || l.Owner != nil || l.Seq != nil || !is(l.LagRecords, 7) || l.CompleteUpTo == nil || l.CompleteUpTo.Before(begins) || l.CompleteUpTo.After(after) || l.Foreseen {
		t.Errorf("%s", text(l))
	}
	if l := s.lane(1); !is(l.LagRecords, 0) || l.CompleteUpTo == nil || l.CompleteUpTo.Before(after) {
		t.Errorf("%s", text(l))
	}
	if len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "has not started yet") || len(s.Problems) > 0 {
		t.Errorf("%s", text(s))
	}

	w.edit("first_start: true", "first_start: false")
	s = w.statusJSON(3)
	if l := s.lane(0); !l.Foreseen || l.Reason != "first-start" || l.CompleteUpTo != nil || l.LagRecords != nil {
		t.Errorf("%s", text(l))
	}
	if len(s.Problems) == 0 || s.Problems[0].Kind != "refusal" || s.Problems[0].Reason != "topic-missing" || s.Problems[0].NextStep == "" {
		t.Errorf("%s", text(s.Problems))
	}
	t.Log("\n" + w.status(3))
	topics, err := kadm.NewClient(w.admin).ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if topics.Has(w.job+".decision") || topics.Has(w.job+".state") || !topics.Has(w.topic) {
		t.Error("looking has created a topic")
	}
}
