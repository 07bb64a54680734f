package e2e

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestWrongInLane: one value at a time is wrong, and the check that is for it says so,
// in its own words and alone.
func TestWrongInLane(t *testing.T) {
	t.Parallel()
	type values struct {
		epochs []epochSeen
		lane   epochSeen
		d      decision
		sent   map[string]int64
	}
	right := values{
		epochs: []epochSeen{
			{seq: 1, from: 3, next: 10, gtrid: "g1", incarnation: 2, in: 7, applied: 4, duplicates: 2, conflicts: 1},
			{seq: 2, from: 10, next: 20, gtrid: "g2", incarnation: 2, in: 9, applied: 8, rejected: 1},
			{seq: 3, from: 20, next: 21, gtrid: "g3", incarnation: 4, in: 1, applied: 1},
		},
		lane: epochSeen{seq: 3, next: 21, incarnation: 4},
		d:    decision{Seq: 3, GTRID: "g3", Next: 21, Incarnation: 4},
		sent: map[string]int64{"applied": 13, "duplicate": 2, "conflict": 1, "rejected": 1},
	}
	for _, c := range []struct {
		name  string
		wrong func(v *values)
		says  string // "": nothing is wrong
	}{
		{"nothing", func(*values) {}, ""},
		{"nothing: no epoch", func(v *values) { *v = values{d: decision{Incarnation: 1}} }, ""},
		{"nothing: taken over since, and idle", func(v *values) { v.d.Incarnation, v.d.Next = 5, 25 }, ""},
		{"an epoch's seq", func(v *values) { v.epochs[2].seq, v.lane.seq, v.d.Seq = 4, 4, 4 }, "a hole in the chain: epoch {partition:0 seq:4"},
		{"an epoch's begin, ahead", func(v *values) { v.epochs[1].from = 11 }, "a gap in the chain's offsets: epoch {partition:0 seq:2"},
		{"an epoch's begin, behind", func(v *values) { v.epochs[2].from = 19 }, "a gap in the chain's offsets: epoch {partition:0 seq:3"},
		{"an epoch's end", func(v *values) { v.epochs[0].next = 9 }, "a gap in the chain's offsets: epoch {partition:0 seq:2"},
		{"an epoch's incarnation", func(v *values) { v.epochs[1].incarnation = 1 }, "the chain's incarnation goes back: epoch {partition:0 seq:2"},
		{"applied", func(v *values) { v.epochs[0].applied++ }, "the epochs have 14 records applied, sent were 13"},
		{"duplicates", func(v *values) { v.epochs[0].duplicates-- }, "the epochs have 1 records duplicate, sent were 2"},
		{"conflicts", func(v *values) { v.epochs[0].conflicts++ }, "the epochs have 2 records conflict, sent were 1"},
		{"rejected", func(v *values) { v.epochs[1].rejected-- }, "the epochs have 0 records rejected, sent were 1"},
		{"the row's seq", func(v *values) { v.lane.seq++ }, "the lane's row is of seq 4, "},
		{"the row's incarnation, ahead", func(v *values) { v.lane.incarnation++ }, "the lane's row is of incarnation 5, "},
		{"the row's incarnation, behind", func(v *values) { v.lane.incarnation-- }, "the lane's row is of incarnation 3, "},
		{"the row's offset", func(v *values) { v.lane.next++ }, "the lane's row is up to offset 22, "},
		{"D's seq, ahead", func(v *values) { v.d.Seq++ }, "D's seq is 4, "},
		{"D's seq, behind", func(v *values) { v.d.Seq-- }, "D's seq is 2, "},
		{"D's gtrid", func(v *values) { v.d.GTRID = "g2" }, `D's gtrid is "g2", `},
		{"D's next", func(v *values) { v.d.Next-- }, "D's next offset is 20, "},
		{"D's incarnation", func(v *values) { v.d.Incarnation-- }, "D's incarnation is 3, "},
	} {
		v := right
		v.epochs, v.sent = slices.Clone(right.epochs), maps.Clone(right.sent)
		c.wrong(&v)
		all := wrongInLane(v.epochs, v.lane, v.d, v.sent)
		if c.says == "" && len(all) > 0 || c.says != "" && (len(all) != 1 || !strings.HasPrefix(all[0], c.says)) {
			t.Errorf("%s: %q, want %q alone", c.name, all, c.says)
		}
	}
}

// TestWrongInVerify: likewise of an answer of billing verify.
func TestWrongInVerify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		v    verified
		err  error
		says string // "": nothing is wrong
	}{
		{"nothing", verified{DecisionsCompared: true}, nil, ""},
		{"a difference", verified{DecisionsCompared: true, code: 1}, nil, "exit code 1"},
		{"it failed", verified{DecisionsCompared: true, code: 4}, nil, "exit code 4"},
		{"in doubt", verified{DecisionsCompared: true, InDoubt: []inDoubt{{Shard: "s1"}}}, nil, "branches in doubt: [{Shard:s1"},
		{"not compared", verified{}, nil, "it has not compared the decisions"},
		{"no answer", verified{DecisionsCompared: true}, errors.New("not one JSON object"), "not one JSON object"},
	} {
		all := wrongInVerify(&c.v, c.err)
		if c.says == "" && len(all) > 0 || c.says != "" && (len(all) != 1 || !strings.HasPrefix(all[0], c.says)) {
			t.Errorf("%s: %q, want %q alone", c.name, all, c.says)
		}
	}
}
