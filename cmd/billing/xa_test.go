package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"billing/internal/audit"
	"billing/internal/checkpoint"
)

// squeezed is text with the padding of its tables taken out.
func squeezed(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

const ownGTRID = "exb1fa296ca53bcd5486d6370cab1c1a0000000300000000000500000000000a"

// branchesToWrite are one of each kind.
func branchesToWrite(now time.Time) []audit.Branch {
	name := checkpoint.Name{Partition: 3, Incarnation: 5, Seq: 10}
	return []audit.Branch{
		{XID: audit.XID{FormatID: 1, GTRID: ownGTRID, BQUAL: "s0"}, Owner: audit.Ours, Of: "eu-0", Servers: []string{"eu-0", "eu-2"}, Topic: "usage", Name: name, Word: checkpoint.Decided,
			Written: &audit.Written{From: 90, Next: 100, Records: 9, PreparedAt: now.Add(-92*time.Second - 300*time.Millisecond)}},
		{XID: audit.XID{FormatID: 1, GTRID: ownGTRID, BQUAL: "s1"}, Owner: audit.Ours, Of: "eu-1", Servers: []string{"eu-1"}, Topic: "usage", Name: name, Word: checkpoint.Older, Why: "the shard has come back older",
			Written: &audit.Written{PreparedAt: now.Add(time.Hour)}}, // a clock that is wrong
		{XID: audit.XID{FormatID: 7, GTRID: ownGTRID, BQUAL: "s1"}, Owner: audit.Ours, Servers: []string{"eu-1"}, Name: name, Word: audit.OtherTopic, Why: "it is of no shard"},
		{XID: audit.XID{FormatID: 1, GTRID: ownGTRID, BQUAL: "s1"}, Owner: audit.OtherJob, Servers: []string{"eu-1"}, Name: name},
		{XID: audit.XID{FormatID: 1, GTRID: "it's", BQUAL: ""}, Owner: audit.Foreign, Servers: []string{"eu-0", "eu-2"}},
		{XID: audit.XID{FormatID: 4711, GTRID: "\x00\xff", BQUAL: "plain text"}, Owner: audit.Foreign, Servers: []string{"eu-1"}},
	}
}

func TestWriteBranches(t *testing.T) {
	now := time.Now()
	var out bytes.Buffer
	if err := writeBranches(&out, "billing", branchesToWrite(now), false, now); err != nil {
		t.Fatal(err)
	}
	want := `SHARD OWNER LANE INCARNATION SEQ AGE DECISION XID
eu-0 billing usage/3 5 10 1m32s decided '` + ownGTRID + `','s0'
eu-1 billing usage/3 5 10 0s older '` + ownGTRID + `','s1'
- billing ?/3 5 10 - other-topic '` + ownGTRID + `','s1',7
eu-1 another-job ?/3 5 10 - - '` + ownGTRID + `','s1'
eu-0,eu-2 foreign - - - - - X'69742773',''
eu-1 foreign - - - - - X'00ff','plain text',4711

usage/3, epoch 10 of incarnation 5 on eu-1: the shard has come back older
?/3, epoch 10 of incarnation 5 on -: it is of no shard
prepared branches of job billing: 3 (1 decided, 1 older, 1 other-topic); of other jobs: 1; foreign: 2`
	if got := squeezed(out.String()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	out.Reset()
	if err := writeBranches(&out, "billing", nil, true, now); err != nil || !strings.HasSuffix(out.String(), "foreign: 0; not everything could be asked, so there may be more\n") {
		t.Errorf("nobody answers: %q, %v", out.String(), err)
	}
	out.Reset()
	if err := writeBranches(&out, "billing", nil, false, now); err != nil || out.String() != "prepared branches of job billing: 0; of other jobs: 0; foreign: 0\n" {
		t.Errorf("none: %q, %v", out.String(), err)
	}
}

// TestBranchesAsJSON: what is not known is left out, and lists are never null.
func TestBranchesAsJSON(t *testing.T) {
	now := time.Now()
	var out bytes.Buffer
	if err := writeJSON(&out, newBranchesAnswer("billing", "usage", branchesToWrite(now), []error{errors.New("eu-3 is away")}, now)); err != nil {
		t.Fatal(err)
	}
	var a struct {
		Job, Topic string
		Branches   []map[string]any
		Counts     map[string]int
		Problems   []string
	}
	if err := json.Unmarshal(out.Bytes(), &a); err != nil {
		t.Fatal(err)
	}
	if a.Job != "billing" || a.Topic != "usage" || len(a.Branches) != 6 || len(a.Problems) != 1 || a.Problems[0] != "eu-3 is away" {
		t.Errorf("%+v", a)
	}
	if c := a.Counts; len(c) != 5 || c["decided"] != 1 || c["older"] != 1 || c["other-topic"] != 1 || c["another-job"] != 1 || c["foreign"] != 2 {
		t.Errorf("counts: %v", c)
	}
	first, foreign := a.Branches[0], a.Branches[5]
	for key, want := range map[string]any{
		"owner": "job", "shard": "eu-0", "lane": "usage/3", "incarnation": 5.0, "seq": 10.0, "decision": "decided", "age_seconds": 92.3,
		"offset_from": 90.0, "offset_next": 100.0, "records": 9.0, "gtrid": ownGTRID, "xid": "'" + ownGTRID + "','s0'", "format_id": 1.0, "bqual_hex": "7330",
	} {
		if first[key] != want {
			t.Errorf("%s: %v, want %v", key, first[key], want)
		}
	}
	if at, err := time.Parse(time.RFC3339Nano, first["prepared_at"].(string)); err != nil || !at.Equal(now.Add(-92*time.Second-300*time.Millisecond).Truncate(0)) { //nolint:errcheck // a test
		t.Errorf("prepared_at: %v", first["prepared_at"])
	}
	for _, key := range []string{"lane", "shard", "incarnation", "seq", "prepared_at", "age_seconds", "decision", "gtrid", "why"} {
		if v, ok := foreign[key]; ok {
			t.Errorf("a foreign branch has %s %v", key, v)
		}
	}
	if foreign["gtrid_hex"] != "00ff" || foreign["format_id"] != 4711.0 || foreign["xid"] != "X'00ff','plain text',4711" {
		t.Errorf("foreign: %v", foreign)
	}

	out.Reset()
	if err := writeJSON(&out, newBranchesAnswer("billing", "usage", nil, nil, now)); err != nil || strings.Contains(out.String(), "null") {
		t.Errorf("none: %s, %v", out.String(), err)
	}
}

// resolutionToWrite has a lane of each result.
func resolutionToWrite() *resolution {
	lane := func(n int32) checkpoint.Lane { return checkpoint.Lane{Topic: "usage", Partition: n} }
	g := checkpoint.GTRID(ownGTRID)
	refusal := &checkpoint.Refusal{Reason: checkpoint.ReasonLostEpoch, What: "usage/1", Wrong: "eu-1 has lost it", Next: "restore it"}
	return &resolution{elsewhere: 2, lanes: []*settled{
		{Lane: lane(0), D: checkpoint.Decision{Incarnation: 6, Seq: 10}, Shards: []checkpoint.ShardBranches{
			{Shard: "eu-0", Answered: true, InDoubt: []checkpoint.GTRID{g}, Committed: []checkpoint.GTRID{g}}, {Shard: "eu-1", Answered: true}}},
		{Lane: lane(1), Err: &checkpoint.OpenError{Err: refusal}, Shards: []checkpoint.ShardBranches{
			{Shard: "eu-0", Answered: true, InDoubt: []checkpoint.GTRID{g}, RolledBack: []checkpoint.GTRID{g}}, {Shard: "eu-1"}}},
		{Lane: lane(2), Err: errors.New("no brokers")},
	}}
}

func TestWriteResolved(t *testing.T) {
	var out bytes.Buffer
	r := resolutionToWrite()
	if err := writeResolved(&out, "billing", r); err != nil {
		t.Fatal(err)
	}
	want := `LANE RESULT SHARD DONE
usage/0 settled eu-0 committed epoch 10 of incarnation 5
usage/0 settled eu-1 nothing to do
usage/1 refused (lost-epoch) eu-0 rolled back epoch 10 of incarnation 5
usage/1 refused (lost-epoch) eu-1 not asked, or no answer
usage/2 failed - no branch was touched

lanes: 1 settled, 1 refused, 1 failed; branches: 1 committed, 1 rolled back
left alone, of other topics: 2 prepared branches of job billing; billing xa list shows them`
	if got := squeezed(out.String()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if err := r.problem(); exitCode(err) != exitRefused || !strings.Contains(err.Error(), "lane usage/1: ") || !strings.Contains(err.Error(), "lane usage/2: no brokers") {
		t.Errorf("%v", err)
	}
	// What is left of a lane that is not settled may be prepared still.
	left := checkpoint.ShardBranches{Shard: "eu-0", Answered: true, InDoubt: []checkpoint.GTRID{ownGTRID}}
	for settled, want := range map[bool]string{true: "ended by others: epoch 10 of incarnation 5", false: "left, or not known to have ended: epoch 10 of incarnation 5"} {
		if got := done(&left, settled); got != want {
			t.Errorf("settled %t: %q, want %q", settled, got, want)
		}
	}
	r.lanes = r.lanes[:1]
	if err := r.problem(); err != nil {
		t.Errorf("all settled: %v", err)
	}
	out.Reset()
	if err := writeResolved(&out, "billing", &resolution{}); err != nil || out.String() != "nothing is in doubt\n" {
		t.Errorf("nothing: %q, %v", out.String(), err)
	}
}

func TestResolvedAsJSON(t *testing.T) {
	var out bytes.Buffer
	if err := writeJSON(&out, newResolveAnswer("billing", resolutionToWrite())); err != nil {
		t.Fatal(err)
	}
	type shard struct {
		Shard      string
		InDoubt    []string `json:"in_doubt"`
		Committed  []string
		RolledBack []string `json:"rolled_back"`
	}
	var a struct {
		Job         string
		OtherTopics int `json:"other_topics"`
		Lanes       []struct {
			Lane, Result, Reason, Message string
			Incarnation                   int64
			Seq                           *int64
			Shards                        []shard
		}
	}
	if err := json.Unmarshal(out.Bytes(), &a); err != nil || strings.Contains(out.String(), "null") {
		t.Fatalf("%v: %s", err, out.String())
	}
	if a.Job != "billing" || a.OtherTopics != 2 || len(a.Lanes) != 3 {
		t.Fatalf("%+v", a)
	}
	if l := a.Lanes[0]; l.Result != "settled" || l.Reason+l.Message != "" || l.Incarnation != 6 || l.Seq == nil || *l.Seq != 10 || len(l.Shards) != 2 || l.Shards[0].Committed[0] != ownGTRID || len(l.Shards[1].InDoubt) != 0 {
		t.Errorf("%+v", l)
	}
	if l := a.Lanes[1]; l.Result != "refused" || l.Reason != "lost-epoch" || !strings.Contains(l.Message, "Next step: restore it") || l.Seq != nil || l.Shards[0].RolledBack[0] != ownGTRID {
		t.Errorf("%+v", l)
	}
	if l := a.Lanes[2]; l.Result != "failed" || l.Reason != "" || l.Message != "no brokers" || len(l.Shards) != 0 {
		t.Errorf("%+v", l)
	}
}
