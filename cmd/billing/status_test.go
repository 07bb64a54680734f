package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"billing/internal/admin"
	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/txsink"
)

var (
	statusAt  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	statusSet = checkpoint.UUID{7}
)

// D of a lane at work: its stream time is 90 s before statusAt.
func statusDecision(seq, next int64) *checkpoint.Decision {
	return &checkpoint.Decision{Job: "usage", Topic: "in", Incarnation: 4, Seq: seq, Next: next, GTRID: statusGTRID(0, 4, seq), StreamTime: statusAt.Add(-90 * time.Second).UnixMicro()}
}

func statusGTRID(partition int32, incarnation, seq int64) checkpoint.GTRID {
	return checkpoint.GTRID(fmt.Sprintf("%s%012x%08x%012x%012x", checkpoint.OwnerPrefix("usage", statusSet), 1, partition, incarnation, seq))
}

// atWork is a job with one lane and one shard, and nothing to do.
func atWork() *seen {
	return &seen{
		job: "usage", topic: "in", at: statusAt, group: "Stable",
		lanes: []laneSeen{{
			at: statusAt.Add(10 * time.Millisecond), read: &reading{Read: checkpoint.Read{LogEnd: 100}}, decision: statusDecision(17, 100),
			next: 100, undecided: &consume.Undecided{},
		}},
		members: []memberSeen{{
			Member: consume.Member{ID: "m-1", Host: "10.0.0.7", AdminAddr: "10.0.0.7:8080", Lanes: []int32{0}},
			said:   &admin.Instance{Job: "usage", Member: "m-1", Build: "v1", Lanes: []admin.InstanceLane{{Lane: admin.Lane{Lane: "in/0", State: "running", Since: statusAt.Add(-time.Hour)}}}},
		}},
		shards: []shardSeen{{name: "eu-0", view: txsink.Look{Set: statusSet, Lanes: map[checkpoint.Lane]checkpoint.LaneRow{{Topic: "in"}: {Incarnation: 4, Seq: 17, Next: 100}}}}},
	}
}

var lostEpoch = &checkpoint.Refusal{Reason: checkpoint.ReasonLostEpoch, What: "in/0", Wrong: "shard eu-0 has lost the committed epoch 17", Next: "restore it"}

// TestStatusOwner: whose a lane is and how it is, by the group and by what the
// members say themselves. What nobody says is not guessed.
func TestStatusOwner(t *testing.T) {
	silent := func(s *seen) { s.members[0].said, s.members[0].why = nil, "connection refused" }
	second := func(s *seen, incarnation int64) {
		m := memberSeen{Member: consume.Member{ID: "m-2", Host: "10.0.0.8"}, said: &admin.Instance{Lanes: []admin.InstanceLane{
			{Lane: admin.Lane{Lane: "in/0", State: "recovering"}, Incarnation: incarnation},
		}}}
		s.members = append(s.members, m)
	}
	for name, c := range map[string]struct {
		change func(s *seen)
		state  string
		owner  string
	}{
		"at work":         {func(*seen) {}, "running", "m-1"},
		"cannot be asked": {silent, "not asked", "m-1"},
		"does not list it": {func(s *seen) {
			s.members[0].said.Lanes = nil
		}, "assigned", "m-1"},
		"another topic's lane": {func(s *seen) {
			s.members[0].said.Lanes[0].Lane.Lane = "other/0"
		}, "assigned", "m-1"},
		"nobody has it": {func(s *seen) {
			s.members[0].Lanes = nil
		}, "unowned", ""},
		"no members": {func(s *seen) {
			s.group, s.members = "Empty", nil
		}, "unowned", ""},
		"no group": {func(s *seen) {
			s.group, s.members = "Dead", nil
		}, "unowned", ""},
		"the group can't be asked": {func(s *seen) {
			s.group, s.members = "", nil
		}, "unknown", ""},
		"a rebalance, and its owner goes on": {func(s *seen) {
			s.group, s.members[0].Lanes = "PreparingRebalance", nil
		}, "running", "m-1"},
		"a rebalance, and nobody says so": {func(s *seen) {
			s.group, s.members[0].Lanes = "CompletingRebalance", nil
			silent(s)
		}, "rebalancing", ""},
		"a rebalance, two say so": {func(s *seen) {
			s.group, s.members[0].Lanes = "PreparingRebalance", nil
			s.members[0].said.Lanes[0].Incarnation = 4
			second(s, 5)
		}, "recovering", "m-2"},
		"a rebalance, two say so, the newer one first": {func(s *seen) {
			s.group, s.members[0].Lanes = "PreparingRebalance", nil
			s.members[0].said.Lanes[0].Incarnation = 6
			second(s, 5)
		}, "running", "m-1"},
		"stable, another one still says so": {func(s *seen) {
			second(s, 9)
		}, "running", "m-1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := atWork()
			c.change(s)
			a, _ := s.joined()
			l := a.Lanes[0]
			owner := ""
			if l.Owner != nil {
				owner = l.Owner.Member
			}
			if l.State != c.state || owner != c.owner || l.Since.IsZero() == (l.State == "running") {
				t.Errorf("%s by %q since %s, want %s by %q", l.State, owner, l.Since, c.state, c.owner)
			}
		})
	}
}

// TestStatusOfALane: how far a lane is, and what is known of it when not
// everything could be found out.
func TestStatusOfALane(t *testing.T) {
	unowned := func(s *seen) { s.group, s.members = "Empty", nil }
	waits := func(since time.Time, open bool) func(*seen) {
		return func(s *seen) {
			s.lanes[0].read.LogEnd = 107
			s.lanes[0].undecided = &consume.Undecided{Any: true, Since: since, Open: open}
		}
	}
	earlier := statusAt.Add(-5 * time.Second)
	for name, c := range map[string]struct {
		change []func(s *seen)
		want   string // lag, event lag, complete up to, in doubt
		reason string
		notes  []string // a part of each
	}{
		"nothing to do": {nil, "0 0 12:00:00.01 0", "", nil},
		"behind":        {[]func(*seen){waits(earlier, false)}, "7 90 11:59:55 0", "", nil},
		"only control records": {[]func(*seen){func(s *seen) {
			s.lanes[0].read.LogEnd = 101
		}}, "1 0 12:00:00.01 0", "", nil},
		"held back by a producer": {[]func(*seen){waits(earlier, true)}, "7 90 11:59:55 0", "", []string{"left open since 2026-03-01T11:59:55Z"}},
		"no event was applied yet": {[]func(*seen){waits(earlier, false), func(s *seen) {
			s.lanes[0].decision.StreamTime = 0
		}}, "7 ? 11:59:55 0", "", nil},
		"events ahead of this clock": {[]func(*seen){waits(earlier, false), func(s *seen) {
			s.lanes[0].decision.StreamTime = statusAt.Add(time.Minute).UnixMicro()
		}}, "7 0 11:59:55 0", "", nil},
		"what waits was deleted": {[]func(*seen){func(s *seen) {
			s.lanes[0].undecided = nil
		}}, "0 ? ? 0", "", nil},
		"beyond the end": {[]func(*seen){func(s *seen) {
			s.lanes[0].next, s.lanes[0].undecided = -1, nil
		}}, "? ? ? 0", "", nil},
		"not read": {[]func(*seen){func(s *seen) {
			s.lanes[0] = laneSeen{next: -1}
		}}, "? ? ? 0", "", nil},
		"a shard is away": {[]func(*seen){func(s *seen) {
			s.shards = append(s.shards, shardSeen{name: "eu-1", number: 1, failed: true})
		}}, "0 0 12:00:00.01 ?", "", nil},
		"in doubt": {[]func(*seen){func(s *seen) {
			s.shards[0].view.XIDs = []txsink.XID{
				{FormatID: 1, GTRID: string(statusGTRID(0, 4, 18)), BQUAL: "s0"},
				{FormatID: 1, GTRID: string(statusGTRID(0, 4, 18)), BQUAL: "s1"}, // another shard's, on the same server
				{FormatID: 1, GTRID: string(statusGTRID(1, 4, 18)), BQUAL: "s0"}, // another lane's
				{FormatID: 1, GTRID: "foreign", BQUAL: "s0"},
				{FormatID: 1, GTRID: strings.Replace(string(statusGTRID(0, 4, 18)), "exb1", "exb1f", 1)[:64], BQUAL: "s0"}, // another job's
			}
		}}, "0 0 12:00:00.01 1", "", nil},
		"a branch of a topic that was deleted": {[]func(*seen){func(s *seen) {
			s.topicID = checkpoint.UUID{7}
			s.shards[0].view.XIDs = []txsink.XID{{FormatID: 1, GTRID: string(statusGTRID(0, 4, 18)), BQUAL: "s0"}}
		}}, "0 0 12:00:00.01 0", "", nil},
		"foreseen, nobody has it": {[]func(*seen){unowned, func(s *seen) {
			s.lanes[0].judged, s.lanes[0].foreseen = true, fmt.Errorf("a: %w", lostEpoch)
		}}, "0 0 ? 0", "lost-epoch, foreseen: restore it", nil},
		"foreseen, and what is decided is there": {[]func(*seen){unowned, func(s *seen) {
			s.lanes[0].judged, s.lanes[0].foreseen = true, &checkpoint.Refusal{Reason: checkpoint.ReasonOffsetReset, What: "in/0", Next: "accept it"}
		}}, "0 0 12:00:00.01 0", "offset-reset, foreseen: accept it", nil},
		"nothing is foreseen": {[]func(*seen){unowned, func(s *seen) {
			s.lanes[0].judged = true
		}}, "0 0 12:00:00.01 0", "", nil},
		"could not be foreseen": {[]func(*seen){unowned, func(s *seen) {
			s.lanes[0].judged, s.lanes[0].foreseen = true, errors.New("shard eu-0: gone")
		}}, "0 0 12:00:00.01 0", "", []string{"not found out: shard eu-0: gone"}},
		"was not judged": {[]func(*seen){unowned}, "0 0 12:00:00.01 0", "", []string{"the shards could not all be asked"}},
		"an owner died while deciding": {[]func(*seen){unowned, func(s *seen) {
			s.lanes[0].read.open = true
		}}, "0 0 12:00:00.01 0", "", []string{"an open Kafka transaction"}},
		"said by its owner": {[]func(*seen){func(s *seen) {
			s.members[0].said.Lanes[0] = admin.InstanceLane{Lane: admin.Lane{Lane: "in/0", State: "stopped", Stuck: true, Why: "refused. Next step: x"}, Reason: "shard-ahead", NextStep: "x"}
		}}, "0 0 ? 0", "shard-ahead: x", nil},
		"no decision, and a first start": {[]func(*seen){unowned, func(s *seen) {
			s.lanes[0] = laneSeen{at: statusAt, read: &reading{Read: checkpoint.Read{LogStart: 3, LogEnd: 5}}, next: 3, undecided: &consume.Undecided{Any: true, Since: earlier}, judged: true}
		}}, "2 ? 11:59:55 0", "", nil},
		"no decision, and nobody knows why": {[]func(*seen){func(s *seen) {
			s.lanes[0] = laneSeen{at: statusAt, read: &reading{Read: checkpoint.Read{LogStart: 3, LogEnd: 5}}, next: 3, undecided: &consume.Undecided{}}
		}}, "? ? ? 0", "", nil},
		"no decision, and no first start": {[]func(*seen){unowned, func(s *seen) {
			s.lanes[0] = laneSeen{at: statusAt, read: &reading{Read: checkpoint.Read{LogStart: 3, LogEnd: 5}}, next: 3, undecided: &consume.Undecided{}, judged: true, foreseen: lostEpoch}
		}}, "? ? ? 0", "lost-epoch, foreseen: restore it", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := atWork()
			for _, change := range c.change {
				change(s)
			}
			a, err := s.joined()
			if err != nil {
				t.Errorf("a lane's trouble ends the command: %v", err)
			}
			l := a.Lanes[0]
			known := func(unknown bool, text string) string {
				if unknown {
					return "?"
				}
				return text
			}
			clock := func(m *time.Time) string {
				if m == nil {
					return "?"
				}
				return m.Format("15:04:05.999")
			}
			var zero struct {
				lag int64
				age float64
				n   int
			}
			got := fmt.Sprintf("%s %s %s %s", known(l.Lag == nil, fmt.Sprint(*or(l.Lag, &zero.lag))), known(l.EventLag == nil, fmt.Sprint(*or(l.EventLag, &zero.age))), clock(l.CompleteUpTo), known(l.InDoubt == nil, fmt.Sprint(*or(l.InDoubt, &zero.n))))
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			reason := l.Reason
			if l.Foreseen {
				reason += ", foreseen"
			}
			if l.NextStep != "" {
				reason += ": " + l.NextStep
			}
			if reason != c.reason || (reason != "") != (l.Message != "") {
				t.Errorf("reason %q, want %q; message %q", reason, c.reason, l.Message)
			}
			if len(l.Notes) != len(c.notes) {
				t.Fatalf("notes %q", l.Notes)
			}
			for i, part := range c.notes {
				if !strings.Contains(l.Notes[i], part) {
					t.Errorf("note %q does not say %q", l.Notes[i], part)
				}
			}
		})
	}
}

func or[T any](v, other *T) *T {
	if v == nil {
		return other
	}
	return v
}

// TestStatusDecided: which prepared branches the decision names.
func TestStatusDecided(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *seen)
		seq    int64
		want   string
	}{
		"named":                          {func(*seen) {}, 17, "yes"},
		"not named":                      {func(*seen) {}, 18, "no"},
		"named, and one may have come":   {func(s *seen) { s.lanes[0].read.open = true }, 17, "yes"},
		"not named, but may be by now":   {func(s *seen) { s.lanes[0].read.open = true }, 18, "unknown"},
		"of an epoch that is ahead":      {func(*seen) {}, 19, "unknown"},
		"of an epoch before":             {func(*seen) {}, 16, "unknown"},
		"there is no decision to be had": {func(s *seen) { s.lanes[0].decision = nil }, 18, "unknown"},
		"Kafka is away":                  {func(s *seen) { s.lanes = nil }, 18, "unknown"},
	} {
		s := atWork()
		s.shards[0].view.XIDs = []txsink.XID{{FormatID: 1, GTRID: string(statusGTRID(0, 4, c.seq)), BQUAL: "s0"}}
		c.change(s)
		a, _ := s.joined()
		b := a.Shards[0].Branches
		if len(b) != 1 || cell(b[0].Decided, yesNo) != c.want || b[0].Lane != "in/0" || b[0].Seq != c.seq || b[0].Incarnation != 4 {
			t.Errorf("%s: %+v, want %s", name, b, c.want)
		}
	}
}

// TestStatusSummary: all lanes together; what one does not tell, all don't.
func TestStatusSummary(t *testing.T) {
	s := atWork()
	s.lanes = append(s.lanes, laneSeen{
		partition: 1, at: statusAt, read: &reading{Read: checkpoint.Read{LogEnd: 30}}, decision: statusDecision(3, 20), next: 20,
		undecided: &consume.Undecided{Any: true, Since: statusAt.Add(-90 * time.Second)}, judged: true, foreseen: &checkpoint.Refusal{Reason: checkpoint.ReasonOffsetReset},
	})
	a, err := s.joined()
	if got, want := a.Summary.text(), "2 lanes, 1 running, 1 unowned, 1 would be refused; complete up to 2026-03-01T11:58:30Z; lag 10 records, event lag 1m30s"; err != nil || got != want {
		t.Errorf("got  %s\nwant %s (%v)", got, want, err)
	}
	s.lanes[1].undecided = nil
	a, _ = s.joined()
	if got, want := a.Summary.text(), "2 lanes, 1 running, 1 unowned, 1 would be refused; complete up to unknown; lag 10 records"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s.lanes[0].next, s.members[0].said.Lanes[0].Stuck = -1, true
	a, _ = s.joined()
	if got, want := a.Summary.text(), "2 lanes, 1 running, 1 unowned, 1 stuck, 1 would be refused; complete up to unknown; lag unknown"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s.members[0].said.Lanes[0].State = "stopped" // which says enough
	a, _ = s.joined()
	if got := a.Summary.text(); !strings.HasPrefix(got, "2 lanes, 1 stopped, 1 unowned, 1 would be refused; ") || a.Summary.Stuck != 1 {
		t.Errorf("got  %s", got)
	}
	none := &seen{job: "usage", topic: "in"}
	a, _ = none.joined()
	if got := a.Summary.text(); got != "no lanes are known" || a.Summary.CompleteUpTo != nil || a.Summary.Lag != nil {
		t.Errorf("got %s", got)
	}
	if got := moment(statusAt.Add(999 * time.Millisecond)); got != "2026-03-01T12:00:00Z" {
		t.Errorf("a moment was rounded up: %s", got)
	}
}

// TestStatusExitCodes: a refusal of the whole job wins over a server that is away.
func TestStatusExitCodes(t *testing.T) {
	away := &checkpoint.ServerError{What: "eu-1", Next: "start it", Err: errors.New("shard eu-1: connect: connection refused")}
	denied := &checkpoint.ServerError{What: "usage", TurnedAway: true, Next: "grant it", Err: errors.New("kafka: not authorized")}
	changed := &checkpoint.Refusal{Scope: checkpoint.EndsProcess, Reason: checkpoint.ReasonServerChanged, What: "eu-0", Wrong: "another server", Next: "see"}
	fingerprint := &checkpoint.Refusal{Scope: checkpoint.EndsProcess, Reason: checkpoint.ReasonFingerprint, What: "in/0", Wrong: "window", Next: "restore"}
	for name, c := range map[string]struct {
		failures []error
		foreseen error
		code     int
		problems string
	}{
		"nothing":                  {nil, nil, 0, ""},
		"a stopped lane":           {nil, lostEpoch, 0, ""},
		"a server is away":         {[]error{away}, nil, 4, "unreachable unreachable eu-1"},
		"a server says no":         {[]error{denied}, nil, 4, "unreachable turned-away usage"},
		"of no server":             {[]error{errors.New("odd")}, nil, 4, "unreachable unreachable"},
		"another server":           {[]error{changed}, nil, 3, "refusal server-changed eu-0"},
		"both":                     {[]error{away, changed}, nil, 3, "unreachable unreachable eu-1, refusal server-changed eu-0"},
		"another deployment":       {nil, fingerprint, 3, "refusal fingerprint in/0"},
		"said of the job and here": {[]error{fingerprint}, fingerprint, 3, "refusal fingerprint in/0"},
	} {
		s := atWork()
		s.failures = c.failures
		s.lanes[0].judged, s.lanes[0].foreseen = true, c.foreseen
		s.lanes = append(s.lanes, s.lanes[0]) // a second lane would say the same
		s.lanes[1].partition = 1
		a, err := s.joined()
		var problems []string
		for _, p := range a.Problems {
			problems = append(problems, strings.TrimSpace(p.Kind+" "+p.Reason+" "+p.What))
			if p.Message == "" || (p.What != "") != (p.NextStep != "") || !strings.Contains(p.Message, p.NextStep) {
				t.Errorf("%s: %+v", name, p)
			}
		}
		if got := strings.Join(problems, ", "); exitCode(err) != c.code || got != c.problems {
			t.Errorf("%s: exit %d, want %d; problems %s, want %s", name, exitCode(err), c.code, got, c.problems)
		}
	}
}
