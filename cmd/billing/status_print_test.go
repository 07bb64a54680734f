package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/txsink"
)

// TestStatusForPeople: the whole answer, as people read it.
func TestStatusForPeople(t *testing.T) {
	s := atWork()
	s.members[0].Instance = "one"
	s.members[0].said.Notes = []string{"waiting for the shards"}
	s.members = append(s.members, memberSeen{Member: consume.Member{ID: "m-2", Host: "10.0.0.8"}, why: "no answer at 10.0.0.8:1: \x1b[31mred"})
	s.lanes = append(s.lanes, laneSeen{partition: 1, at: statusAt, next: 20, judged: true, foreseen: &checkpoint.Refusal{Reason: "offset-reset", What: "in/1", Wrong: strings.Repeat("word ", 30) + "end", Next: "restore it"},
		read: &reading{Read: checkpoint.Read{LogEnd: 30}}, decision: statusDecision(3, 20), undecided: &consume.Undecided{Any: true, Since: statusAt.Add(-2 * time.Second)}})
	s.shards[0].view.XIDs = []txsink.XID{{FormatID: 1, GTRID: string(statusGTRID(0, 4, 18)), BQUAL: "s0"}}
	s.shards[0].view.Lanes[checkpoint.Lane{Topic: "in", Partition: 1}] = checkpoint.LaneRow{Incarnation: 4, Seq: 2, Next: 15}
	s.failures = []error{&checkpoint.ServerError{What: "eu-1", Next: "start it", Err: errors.New("shard eu-1: connect: connection refused")}}
	a, _ := s.joined()
	var b bytes.Buffer
	if err := writeStatus(&b, a); err != nil {
		t.Fatal(err)
	}
	want := `usage: 2 lanes, 1 running, 1 unowned, 1 would be refused; complete up to 2026-03-01T11:59:58Z; lag 10 records, event lag 1m30s

LANE  STATE    OWNER  INCARNATION  SEQ  NEXT  LAG  EVENT-LAG  COMPLETE-UP-TO        IN-DOUBT
in/0  running  one    4            17   100   0    0s         2026-03-01T12:00:00Z  1
in/1  unowned  -      4            3    20    10   1m30s      2026-03-01T11:59:58Z  0

in/1 is unowned, and a session would be refused now: offset-reset
  refused (offset-reset) in/1: word word word word word word word word word word word word word word
  word word word word word word word word word word word word word word word word end.
  Next step: restore it
  shard eu-0 has epoch 2 of incarnation 4, next offset 15

group usage: Stable
  HOST      INSTANCE  ADMIN-PORT     BUILD  LANES  MEMBER
  10.0.0.8  -         -              -      -      m-2
  10.0.0.7  one       10.0.0.7:8080  v1     0      m-1
  10.0.0.8: no answer at 10.0.0.8:1: [31mred
  10.0.0.7: waiting for the shards

prepared branches:
  SHARD  LANE  INCARNATION  SEQ  DECIDED  GTRID
  eu-0   in/0  4            18   no       ` + string(statusGTRID(0, 4, 18)) + `

shard eu-1: connect: connection refused.
Next step: start it
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestStatusForPrograms: names and null are a contract.
func TestStatusForPrograms(t *testing.T) {
	s := atWork()
	s.lanes[0].undecided = nil
	a, _ := s.joined()
	var indented, line bytes.Buffer
	if err := errors.Join(writeStatusJSON(&indented, a), writeStatusLine(&line, a)); err != nil {
		t.Fatal(err)
	}
	if strings.Count(line.String(), "\n") != 1 {
		t.Errorf("not one line: %s", line.String())
	}
	var one, other map[string]any
	if err := errors.Join(json.Unmarshal(indented.Bytes(), &one), json.Unmarshal(line.Bytes(), &other)); err != nil || !reflect.DeepEqual(one, other) {
		t.Fatalf("the two differ (%v)", err)
	}
	for path, want := range map[string]any{
		"at": "2026-03-01T12:00:00Z", "job": "usage", "summary.lag_records": 0.0, "summary.complete_up_to": nil, "summary.states.running": 1.0,
		"lanes.lane": "in/0", "lanes.seq": 17.0, "lanes.next": 100.0, "lanes.incarnation": 4.0, "lanes.complete_up_to": nil, "lanes.event_lag_seconds": nil,
		"lanes.owner.member": "m-1", "lanes.since": "2026-03-01T11:00:00Z", "lanes.foreseen": false, "lanes.shards.seq": 17.0, "lanes.stream_time": "2026-03-01T11:58:30Z",
		"group.state": "Stable", "group.members.asked": true, "shards.shard": "eu-0",
	} {
		var at any = one
		for _, key := range strings.Split(path, ".") {
			m, ok := at.(map[string]any)
			if !ok {
				t.Fatalf("%s: no object", path)
			}
			if at, ok = m[key]; !ok {
				t.Fatalf("no %s in %s", path, indented.String())
			}
			if list, ok := at.([]any); ok {
				at = list[0]
			}
		}
		if at != want {
			t.Errorf("%s is %v, want %v", path, at, want)
		}
	}
	if strings.Contains(line.String(), `:null,"problems"`) || !strings.Contains(line.String(), `"problems":[]`) || !strings.Contains(line.String(), `"notes":[]`) {
		t.Errorf("a list is null: %s", line.String())
	}
}

// TestStatusWatch looks until it is told to end, and then ends well.
func TestStatusWatch(t *testing.T) {
	for _, c := range []struct {
		json, terminal bool
		between        string
	}{
		{false, false, "\n\n2026-03-01T12:00:00Z\nusage: "},
		{false, true, clearScreen + "2026-03-01T12:00:00Z\nusage: "},
		{true, true, "\n{"},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var looks []time.Time
			write, separator := watched(c.json, c.terminal)
			var out bytes.Buffer
			err := watchStatus(ctx, &out, 5*time.Second, separator, write, func(context.Context) *seen {
				looks = append(looks, time.Now())
				if len(looks) == 4 {
					cancel() // a look that was broken off says nothing
				}
				s := atWork()
				s.failures = []error{errors.New("away")}
				return s
			})
			if err != nil || exitCode(err) != 0 {
				t.Errorf("ended with %v", err)
			}
			if len(looks) != 4 || looks[3].Sub(looks[0]) != 15*time.Second {
				t.Errorf("looked at %v", looks)
			}
			text := out.String()
			if c.json {
				text = "\n" + text
			}
			if n := strings.Count(text, c.between); n != map[bool]int{true: 3, false: 2}[c.json || c.terminal] || strings.Contains(text, clearScreen) != (c.terminal && !c.json) {
				t.Errorf("json %t, terminal %t: %d times %q in\n%q", c.json, c.terminal, n, c.between, text)
			}
		})
	}
	if isTerminal(new(bytes.Buffer)) {
		t.Error("a buffer is a terminal")
	}
}

// TestStatusUsage: what is not understood is said before a server is asked.
func TestStatusUsage(t *testing.T) {
	dir := inDir(t, goodConfig)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--every", "5s"}, "--every is how often --watch looks"},
		{[]string{"--watch", "--every", "1ms"}, "want at least 100ms"},
		{[]string{"--watch", "--every", "often"}, `--every "often": want a time span with its unit`},
		{[]string{"in/0"}, "takes no arguments"},
	} {
		got := run(t, dir, nil, slices.Concat([]string{"status"}, c.args)...)
		if got.code != exitUsage || got.out != "" || !strings.Contains(got.errOut, c.says) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", c.args, got.code, got.out, got.errOut)
		}
	}
	if got := run(t, dir, nil, "status", "--help"); got.code != 0 || !strings.Contains(got.out, "COMPLETE-UP-TO") || !strings.Contains(got.out, "billing status --config config.yaml --watch") {
		t.Errorf("help: exit %d\n%s", got.code, got.out)
	}
}
