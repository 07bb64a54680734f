package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/txsink"
)

// statusAnswer is the JSON form of the answer. Times are UTC; what is null could
// not be found out, or there is none: the notes and problems say which.
type statusAnswer struct {
	At       time.Time       `json:"at"` // when the look began
	Job      string          `json:"job"`
	Topic    string          `json:"topic"`
	Summary  statusSummary   `json:"summary"`
	Lanes    []statusLane    `json:"lanes"`
	Group    statusGroup     `json:"group"`
	Shards   []statusShard   `json:"shards"`
	Notes    []string        `json:"notes"`
	Problems []statusProblem `json:"problems"` // refusals of the whole job, servers that could not be reached or failed
}

// statusSummary is all lanes together.
type statusSummary struct {
	Lanes        int            `json:"lanes"`
	States       map[string]int `json:"states"` // number of lanes by state
	Stuck        int            `json:"stuck"`
	Refused      int            `json:"refused"` // lanes of which no instance says so, but a session would be refused
	Lag          *int64         `json:"lag_records"`
	EventLag     *float64       `json:"event_lag_seconds"` // the largest of the lanes
	CompleteUpTo *time.Time     `json:"complete_up_to"`    // the smallest of the lanes
	InDoubt      *int           `json:"in_doubt"`
}

// statusLane is one lane.
type statusLane struct {
	Lane         string       `json:"lane"`
	Partition    int32        `json:"partition"`
	State        string       `json:"state"`
	Since        time.Time    `json:"since,omitzero"` // of the state; only where the owner was asked
	Stuck        bool         `json:"stuck"`
	Owner        *statusOwner `json:"owner"`
	Reason       string       `json:"reason,omitempty"`    // a refusal's, or max-ids
	Message      string       `json:"message,omitempty"`   // what is wrong, or waited for
	NextStep     string       `json:"next_step,omitempty"` // of a refusal
	Foreseen     bool         `json:"foreseen"`            // no instance says it: it is what a session would meet now
	Incarnation  *int64       `json:"incarnation"`         // of the last decision, as are:
	Seq          *int64       `json:"seq"`
	Next         *int64       `json:"next"`
	Unstable     bool         `json:"unstable"` // a later decision may have been made: an open Kafka transaction, or an owner that moved on, hides it
	LogStart     *int64       `json:"log_start"`
	LogEnd       *int64       `json:"log_end"`
	Lag          *int64       `json:"lag_records"`
	StreamTime   *time.Time   `json:"stream_time"`
	EventLag     *float64     `json:"event_lag_seconds"`
	CompleteUpTo *time.Time   `json:"complete_up_to"`
	HeldBack     bool         `json:"held_back"` // by a Kafka transaction that a producer has left open
	InDoubt      *int         `json:"in_doubt"`  // prepared branches, on all shards
	Shards       []statusRow  `json:"shards"`    // the lane's row on each shard that has one
	Notes        []string     `json:"notes"`
}

// statusOwner is the member that has a lane.
type statusOwner struct {
	Member   string `json:"member"`
	Instance string `json:"instance_id,omitempty"`
	Host     string `json:"host"`
	Admin    string `json:"admin,omitempty"`
}

// statusRow is a lane's row in billing_lane: its last committed epoch on a shard.
type statusRow struct {
	Shard       string `json:"shard"`
	Incarnation int64  `json:"incarnation"`
	Seq         int64  `json:"seq"`
	Next        int64  `json:"next"`
}

// statusGroup is the consumer group.
type statusGroup struct {
	State   string         `json:"state"` // Kafka's word; "" where it could not be asked
	Members []statusMember `json:"members"`
}

// statusMember is an instance.
type statusMember struct {
	Member   string   `json:"member"`
	Instance string   `json:"instance_id,omitempty"`
	Host     string   `json:"host"`
	Admin    string   `json:"admin,omitempty"` // where it was asked
	Lanes    []int32  `json:"lanes"`           // that the group has given it
	Asked    bool     `json:"asked"`
	Build    string   `json:"build,omitempty"`
	Notes    []string `json:"notes"` // what it says, or why it could not be asked
}

// statusShard is a shard.
type statusShard struct {
	Shard    string         `json:"shard"`
	Asked    bool           `json:"asked"`
	Branches []statusBranch `json:"branches"` // of this job, prepared
}

// statusBranch is a prepared branch.
type statusBranch struct {
	GTRID       string `json:"gtrid"`
	Lane        string `json:"lane"`
	Incarnation int64  `json:"incarnation"`
	Seq         int64  `json:"seq"`
	Decided     *bool  `json:"decided"` // the decision names it: it will be committed; null: not known
}

// statusProblem is a refusal of the whole job, or a server that could not be asked.
type statusProblem struct {
	Kind     string `json:"kind"`   // refusal or unreachable
	Reason   string `json:"reason"` // a refusal's word; unreachable or turned-away
	What     string `json:"what,omitempty"`
	Message  string `json:"message"`
	NextStep string `json:"next_step,omitempty"`
}

// joined makes the answer of what was seen, and the error that the command ends
// with: what is wrong with the servers or with the whole job. A lane that is
// stopped is an answer, and no error.
func (s *seen) joined() (*statusAnswer, error) {
	a := &statusAnswer{
		At: s.at.UTC(), Job: s.job, Topic: s.topic,
		Lanes: []statusLane{}, Shards: []statusShard{}, Notes: []string{}, Problems: []statusProblem{},
		Group: statusGroup{State: s.group, Members: []statusMember{}},
	}
	failures := slices.Clone(s.failures)
	for i := range s.lanes {
		a.Lanes = append(a.Lanes, s.lane(&s.lanes[i]))
		// The whole job's: each lane would say it.
		if r := checkpoint.AsRefusal(s.lanes[i].foreseen); r != nil && r.Scope == checkpoint.EndsProcess && !slices.ContainsFunc(failures, func(err error) bool {
			known := checkpoint.AsRefusal(err)
			return known != nil && known.Reason == r.Reason
		}) {
			failures = append(failures, r)
		}
	}
	if len(s.lanes) == 0 { // Kafka does not say what lanes there are
		for _, n := range s.partitionsOnShards() {
			a.Lanes = append(a.Lanes, s.lane(&laneSeen{partition: n, next: -1}))
		}
		if len(a.Lanes) > 0 {
			a.Notes = append(a.Notes, "the lanes are those that the shards have rows of: Kafka could not be asked for the topic")
		}
	}
	if len(s.absent) > 0 {
		a.Notes = append(a.Notes, "not there: "+strings.Join(s.absent, ", ")+". The job has not started yet, or has lost them")
	}
	for i := range s.members {
		a.Group.Members = append(a.Group.Members, s.members[i].answer())
	}
	slices.SortFunc(a.Group.Members, func(x, y statusMember) int {
		return strings.Compare(x.Instance+" "+x.Host+" "+x.Member, y.Instance+" "+y.Host+" "+y.Member)
	})
	for i := range s.shards {
		a.Shards = append(a.Shards, s.shard(&s.shards[i]))
	}
	for _, err := range failures {
		a.Problems = append(a.Problems, problemOf(err))
	}
	a.Summary = a.summary()
	return a, errors.Join(failures...)
}

func problemOf(err error) statusProblem {
	if r := checkpoint.AsRefusal(err); r != nil {
		return statusProblem{Kind: kindRefusal, Reason: r.Reason, What: r.What, Message: r.Error(), NextStep: r.Next}
	}
	p := statusProblem{Kind: kindUnreachable, Reason: reasonUnreachable, Message: err.Error()}
	var server *checkpoint.ServerError
	if errors.As(err, &server) {
		p.What, p.NextStep = server.What, server.Next
		if server.TurnedAway {
			p.Reason = reasonTurnedAway
		}
	}
	return p
}

// partitionsOnShards are the lanes that some shard has a row of.
func (s *seen) partitionsOnShards() (all []int32) {
	for i := range s.shards {
		for lane := range s.shards[i].view.Lanes {
			if lane.Topic == s.topic {
				all = append(all, lane.Partition)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (m *memberSeen) answer() statusMember {
	a := statusMember{Member: m.ID, Instance: m.Instance, Host: m.Host, Admin: m.AdminAddr, Lanes: []int32{}, Notes: []string{}}
	a.Lanes = append(a.Lanes, m.Lanes...)
	if m.said == nil {
		a.Notes = append(a.Notes, m.why)
		return a
	}
	a.Asked, a.Build, a.Notes = true, m.said.Build, append(a.Notes, m.said.Notes...)
	return a
}

// lane joins what the group, its owner, Kafka and the shards have of a lane.
func (s *seen) lane(l *laneSeen) statusLane {
	id := checkpoint.Lane{Topic: s.topic, Partition: l.partition}
	w := s.owner(l.partition)
	a := statusLane{Lane: id.String(), Partition: l.partition, State: w.state, Shards: []statusRow{}, Notes: []string{}}
	if w.member != nil {
		a.Owner = &statusOwner{Member: w.member.ID, Instance: w.member.Instance, Host: w.member.Host, Admin: w.member.AdminAddr}
	}
	if w.said != nil {
		a.Since, a.Stuck = w.said.Since, w.said.Stuck
		a.Reason, a.Message, a.NextStep = w.said.Reason, w.said.Why, w.said.NextStep
	}
	if w.state == stateAssigned {
		a.Notes = append(a.Notes, "the group has given it to an instance that does not work on it: it is on its way there, or from there")
	}
	a.judge(l, w)
	a.decide(l)
	a.behind(l, s.at)
	a.InDoubt = new(int)
	for i := range s.shards {
		shard := &s.shards[i]
		if shard.failed {
			a.InDoubt = nil
			continue
		}
		if row, ok := shard.view.Lanes[checkpoint.Lane{Topic: s.topic, Partition: l.partition}]; ok {
			a.Shards = append(a.Shards, statusRow{Shard: shard.name, Incarnation: row.Incarnation, Seq: row.Seq, Next: row.Next})
		}
		if s.nameless(shard) {
			a.InDoubt = nil
		}
		for _, n := range s.branches(shard) {
			if n.Partition == l.partition && !n.otherTopic && a.InDoubt != nil {
				*a.InDoubt++
			}
		}
	}
	return a
}

// judge takes what the lane's next session would meet, where no instance says
// how the lane is.
func (a *statusLane) judge(l *laneSeen, w word) {
	r := checkpoint.AsRefusal(l.foreseen)
	switch {
	case w.said != nil:
	case r != nil:
		a.Foreseen, a.Reason, a.Message, a.NextStep = true, r.Reason, r.Error(), r.Next
	case l.foreseen != nil:
		a.Notes = append(a.Notes, "what a session would meet was not found out: "+l.foreseen.Error())
	case l.read != nil && l.read.open:
		a.Notes = append(a.Notes, "an open Kafka transaction holds the lane's decision back: that of an owner who died while deciding, which the next session ends, or the broker after kafka.transaction_timeout. The numbers are those of the decision before")
	case !l.judged && l.read != nil:
		a.Notes = append(a.Notes, "what a session would meet was not found out: the shards could not all be asked")
	}
}

// decide shows the last decision.
func (a *statusLane) decide(l *laneSeen) {
	if l.decision != nil {
		d := *l.decision
		a.Incarnation, a.Seq, a.Next, a.Unstable = &d.Incarnation, &d.Seq, &d.Next, l.read.unstable()
		if d.StreamTime != 0 {
			t := time.UnixMicro(d.StreamTime).UTC()
			a.StreamTime = &t
		}
	}
	if l.read != nil {
		start, end := l.read.LogStart, l.read.LogEnd
		a.LogStart, a.LogEnd = &start, &end
	}
}

// lostReasons are the refusals that say that a shard does not show what was
// decided: nothing is complete there.
var lostReasons = []string{checkpoint.ReasonLostEpoch, checkpoint.ReasonShardAhead, checkpoint.ReasonOldBranch, checkpoint.ReasonInvariant}

// behind is how far the lane is behind, at the moment of looking.
func (a *statusLane) behind(l *laneSeen, at time.Time) {
	begins := l.judged && l.foreseen == nil // a lane without a decision: everything waits
	if l.read == nil || l.next < 0 || l.decision == nil && !begins {
		return
	}
	lag := max(0, l.read.LogEnd-l.next)
	a.Lag = &lag
	if l.undecided == nil {
		return
	}
	complete, age := l.at.UTC(), new(float64)
	if l.undecided.Any {
		if since := l.undecided.Since.UTC(); since.Before(complete) { // a producer's clock may be ahead
			complete = since
		}
		if age = nil; a.StreamTime != nil {
			seconds := max(0, at.Sub(*a.StreamTime).Seconds())
			age = &seconds
		}
	}
	a.EventLag = age
	if !slices.Contains(lostReasons, a.Reason) {
		a.CompleteUpTo = &complete
	}
	if a.HeldBack = l.undecided.Open; a.HeldBack {
		a.Notes = append(a.Notes, fmt.Sprintf("a Kafka transaction that a producer has left open since %s holds back what follows; the broker ends it after that producer's transaction time-out (kafka-transactions.sh find-hanging)", complete.Format(time.RFC3339)))
	}
}

// nameless reports whether a shard lists branches of this service and does not
// say whose it is itself: then nobody knows whether they are this job's.
func (s *seen) nameless(shard *shardSeen) bool {
	return shard.view.Set.IsZero() && slices.ContainsFunc(shard.view.XIDs, func(x txsink.XID) bool {
		_, err := checkpoint.GTRID(x.GTRID).Parse()
		return err == nil && x.OnShard(shard.number)
	})
}

// branches are this job's prepared branches on a shard, taken apart.
func (s *seen) branches(shard *shardSeen) (names []namedBranch) {
	owner := checkpoint.OwnerPrefix(s.job, shard.view.Set)
	for _, x := range shard.view.XIDs {
		n, err := checkpoint.GTRID(x.GTRID).Parse()
		if err == nil && n.Owner == owner && x.OnShard(shard.number) {
			other := !s.topicID.IsZero() && n.Lane != checkpoint.LanePrefix(owner, s.topicID, n.Partition)
			names = append(names, namedBranch{n, checkpoint.GTRID(x.GTRID), other})
		}
	}
	slices.SortFunc(names, func(a, b namedBranch) int { return strings.Compare(string(a.gtrid), string(b.gtrid)) })
	return names
}

type namedBranch struct {
	checkpoint.Name
	gtrid      checkpoint.GTRID
	otherTopic bool // of a topic with another id: one that was deleted, or another one
}

func (s *seen) shard(shard *shardSeen) statusShard {
	a := statusShard{Shard: shard.name, Asked: !shard.failed, Branches: []statusBranch{}}
	for _, n := range s.branches(shard) {
		b := statusBranch{GTRID: string(n.gtrid), Lane: checkpoint.Lane{Topic: s.topic, Partition: n.Partition}.String(), Incarnation: n.Incarnation, Seq: n.Seq}
		if n.otherTopic {
			b.Lane = fmt.Sprintf("partition %d of another topic", n.Partition)
		} else if int(n.Partition) < len(s.lanes) {
			l := &s.lanes[n.Partition]
			b.Decided = l.decided(n)
		}
		a.Branches = append(a.Branches, b)
	}
	return a
}

// decided reports whether the lane's decision names the branch; nil where that is
// not known, for there is none, or a later one.
func (l *laneSeen) decided(n namedBranch) *bool {
	if l.decision == nil {
		return nil
	}
	says := l.decision.Says(n.gtrid, n.Name)
	named := says == checkpoint.Decided
	if !named && (l.read.unstable() || says != checkpoint.Undecided) {
		return nil
	}
	return &named
}

// summary is all lanes together; what one lane does not tell, all don't.
func (a *statusAnswer) summary() statusSummary {
	s := statusSummary{Lanes: len(a.Lanes), States: map[string]int{}}
	known := len(a.Lanes) > 0
	s.Lag, s.EventLag, s.InDoubt = new(int64), new(float64), new(int)
	var complete *time.Time
	completeKnown := known
	for i := range a.Lanes {
		l := &a.Lanes[i]
		s.States[l.State]++
		if l.Stuck {
			s.Stuck++
		}
		if l.Foreseen {
			s.Refused++
		}
		if s.Lag = both(s.Lag, l.Lag); s.Lag != nil {
			*s.Lag += *l.Lag
		}
		if s.EventLag = both(s.EventLag, l.EventLag); s.EventLag != nil {
			*s.EventLag = max(*s.EventLag, *l.EventLag)
		}
		if s.InDoubt = both(s.InDoubt, l.InDoubt); s.InDoubt != nil {
			*s.InDoubt += *l.InDoubt
		}
		switch {
		case l.CompleteUpTo == nil:
			completeKnown = false
		case complete == nil || l.CompleteUpTo.Before(*complete):
			complete = l.CompleteUpTo
		}
	}
	if completeKnown {
		s.CompleteUpTo = complete
	}
	if !known {
		s.Lag, s.EventLag, s.InDoubt = nil, nil, nil
	}
	return s
}

// both is sum, unless one of the two is not known.
func both[T any](sum, one *T) *T {
	if one == nil {
		return nil
	}
	return sum
}
