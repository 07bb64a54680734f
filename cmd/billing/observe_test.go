package main

import (
	"bytes"
	"errors"
	"log/slog"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"billing/cmd/billing/config"
	"billing/internal/checkpoint"
	"billing/internal/pipeline"
)

// What operators and orchestrators are told of a lane, by what it does.
func TestLaneHealthAndReadiness(t *testing.T) {
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	for _, c := range []struct {
		name         string
		status       pipeline.Status
		wait         string
		stuck, ready bool
		why          string
	}{
		{"running, nothing to do for long", pipeline.Status{State: pipeline.Running, Since: ago(time.Hour), Moved: ago(time.Hour)}, "", false, true, ""},
		{"running, at work", pipeline.Status{State: pipeline.Running, Moved: ago(time.Hour), Pending: true, PendingSince: ago(time.Second)}, "", false, true, ""},
		{"recovering", pipeline.Status{State: pipeline.Recovering}, "", false, false, "on its way"},
		{"recovering, a shard is away", pipeline.Status{State: pipeline.Recovering}, "settle shard a: connection refused", false, false, "connection refused"},
		{"stopped", pipeline.Status{State: pipeline.Stopped, Message: "refused. Next step: x"}, "old", true, false, "Next step: x"},
		{"paused", pipeline.Status{State: pipeline.Paused, Message: "max-ids"}, "", true, false, "max-ids"},
		{"failed once, just recovered", pipeline.Status{State: pipeline.Running, Since: time.Now(), Failures: 1, LastError: "boom"}, "", false, false, "boom"},
		{"failed once, well for a while", pipeline.Status{State: pipeline.Running, Since: ago(time.Minute), Failures: 1, LastError: "boom"}, "", false, true, ""},
		{"fails again and again", pipeline.Status{State: pipeline.Running, Since: time.Now(), Failures: 5, LastError: "boom", Pending: true, PendingSince: time.Now()}, "", true, false, "boom"},
		{"more is there, just now", pipeline.Status{State: pipeline.Running, End: 9, Unread: ago(20 * time.Second)}, "", false, true, ""},
		{"more is there for a minute", pipeline.Status{State: pipeline.Running, End: 9, Position: 2, Unread: ago(time.Minute)}, "", false, false, "7 offsets wait and nothing was delivered for 1m0s"},
		{"more is there for long", pipeline.Status{State: pipeline.Running, End: 9, Unread: ago(3 * time.Minute)}, "", true, false, "answer no fetch"},
		{"an epoch in flight for a while", pipeline.Status{State: pipeline.Running, Seq: 7, InDoubt: true, Moved: ago(15 * time.Second), Pending: true, PendingSince: ago(15 * time.Second)}, "", false, true, "for 15s: epoch 8 waits"},
		{"an epoch in flight for a minute", pipeline.Status{State: pipeline.Running, Moved: ago(time.Minute), Pending: true, PendingSince: ago(time.Minute)}, "commit on shard b: no answer", false, false, "no answer"},
		{"an epoch in flight for long", pipeline.Status{State: pipeline.Running, Moved: ago(time.Hour), Pending: true, PendingSince: ago(3 * time.Minute)}, "commit on shard b: no answer", true, false, "no answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.status.Lane = checkpoint.Lane{Topic: "in", Partition: 3}
			l := laneHealth(&c.status, c.wait)
			if l.Lane != "in/3" || l.State != string(c.status.State) || l.Stuck != c.stuck || !strings.Contains(l.Why, c.why) || c.why == "" && l.Why != "" {
				t.Errorf("health: %+v, want stuck %t, why %q", l, c.stuck, c.why)
			}
			if not := laneReady(&c.status, c.wait, 30*time.Second); (not == "") != c.ready {
				t.Errorf("ready: %q, want %t", not, c.ready)
			}
		})
	}
}

// TestTakeoverTellsItsStory: what was decided, what was in doubt, what was done,
// what was restored; the lane itself says that it runs.
func TestTakeoverTellsItsStory(t *testing.T) {
	gtrid := func(incarnation, seq string) checkpoint.GTRID {
		return checkpoint.GTRID("exb1" + strings.Repeat("0", 36) + strings.Repeat("0", 10) + incarnation + strings.Repeat("0", 10) + seq)
	}
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	l := listener(NewMetrics(func() Gauges { return Gauges{} }, nil), &view{}, log)
	lane := checkpoint.Lane{Topic: "in", Partition: 3}
	at := checkpoint.At{Lane: lane, Incarnation: 8, Seq: 41}
	d := checkpoint.Decision{Incarnation: 7, Seq: 41, GTRID: gtrid("07", "29"), Next: 900, Build: "v1", Count: 5}
	l.TakenOver(at, d)
	prepared := []checkpoint.GTRID{gtrid("07", "29"), gtrid("06", "29")}
	l.InDoubt(at, []checkpoint.ShardBranches{{Shard: "a", Answered: true, InDoubt: prepared}, {Shard: "b", Answered: true}})
	settled := []checkpoint.ShardBranches{
		{Shard: "a", Answered: true, InDoubt: prepared, Committed: []checkpoint.GTRID{gtrid("07", "29")}, RolledBack: []checkpoint.GTRID{gtrid("06", "29")}},
		{Shard: "b", Answered: true},
	}
	l.Settled(at, settled, time.Second, nil)
	r := checkpoint.Recovery{}
	for i := range r.Took {
		r.Took[i] = time.Duration(i+1) * time.Millisecond
	}
	l.Recovered(lane, checkpoint.Decision{Incarnation: 8, Seq: 42, Next: 930}, checkpoint.Counts{In: 30}, r)
	settled[0].RolledBack, settled[1].Answered = nil, false
	l.Settled(at, settled, time.Second, errors.New("shard b does not answer"))
	want := `level=INFO msg="lane taken over" lane=in/3 incarnation=8 seq=41 decided="epoch 41 of incarnation 7" next_offset=900 found_incarnation=7 found_build=v1
level=INFO msg="in doubt" lane=in/3 incarnation=8 seq=41 in_doubt=2 branches="a: epoch 41 of incarnation 7, epoch 41 of incarnation 6; b: nothing"
level=INFO msg=settled lane=in/3 incarnation=8 seq=41 branches="a: committed epoch 41 of incarnation 7, rolled back epoch 41 of incarnation 6; b: nothing to do" took=1s
level=INFO msg="lane recovered" lane=in/3 incarnation=8 seq=42 next_offset=930 in=30 decided_after=45ms steps="fence 1ms, read 2ms, takeover 3ms, settle 4ms, restore 5ms, fetch 6ms, fill 7ms, prepare 8ms, decide 9ms, commit 10ms"
level=WARN msg="not settled" lane=in/3 incarnation=8 seq=41 branches="a: committed epoch 41 of incarnation 7, left, or not known to have ended: epoch 41 of incarnation 6; b: not asked" took=1s
`
	if out.String() != want {
		t.Errorf("the log is\n%s\nwant\n%s", &out, want)
	}
}

// TestLogIsAsConfigured: level and format.
func TestLogIsAsConfigured(t *testing.T) {
	for _, c := range []struct{ level, format, want string }{
		{"debug", "text", "level=DEBUG msg=a\nlevel=INFO msg=b\nlevel=WARN msg=c\nlevel=ERROR msg=d err=\"x; y\" took=1.5s\n"},
		{"info", "text", "level=INFO msg=b\nlevel=WARN msg=c\nlevel=ERROR msg=d err=\"x; y\" took=1.5s\n"},
		{"warn", "text", "level=WARN msg=c\nlevel=ERROR msg=d err=\"x; y\" took=1.5s\n"},
		{"error", "json", `"level":"ERROR","msg":"d","err":"x; y","took":"1.5s"}` + "\n"},
	} {
		var out bytes.Buffer
		log := newLogger(&out, &config.Config{Log: config.Log{Level: c.level, Format: c.format}})
		log.Debug("a")
		log.Info("b")
		log.Warn("c")
		log.Error("d", "err", errors.Join(errors.New("x"), errors.New("y")), "took", 1500*time.Millisecond)
		if strings.Contains(out.String(), "\\n") {
			t.Errorf("an error of two lines: %s", &out)
		}
		if got := regexp.MustCompile(`time=\S+ |\{"time":"[^"]*",`).ReplaceAllString(out.String(), ""); got != c.want {
			t.Errorf("%s, %s: the log is\n%s\nwant\n%s", c.level, c.format, got, c.want)
		}
	}
}

// TestGaugesOfLanes: what is scraped is what the lanes say of themselves.
func TestGaugesOfLanes(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	got := gaugesOf([]pipeline.Status{ // all but the last have had a session
		{Lane: checkpoint.Lane{Partition: 0}, Incarnation: 1, State: pipeline.Running, Next: 10, End: 10, StreamTime: ago(time.Hour), Moved: ago(time.Minute), IDs: 3},
		{Lane: checkpoint.Lane{Partition: 1}, Incarnation: 1, State: pipeline.Running, Next: 10, End: 17, StreamTime: ago(time.Hour), InDoubt: true, IDs: 4},
		{Lane: checkpoint.Lane{Partition: 2}, Incarnation: 1, State: pipeline.Stopped, Reason: checkpoint.ReasonLostEpoch, Next: 10, End: 17}, // nothing booked yet
		{Lane: checkpoint.Lane{Partition: 3}, Incarnation: 1, State: pipeline.Recovering, End: -1, InDoubt: true},                             // heard of no end yet
		{Lane: checkpoint.Lane{Partition: 4}, Incarnation: 1, State: pipeline.Running, Next: 10, End: 17, StreamTime: now.Add(time.Minute)},   // a clock ahead
		{Lane: checkpoint.Lane{Partition: 5}, State: pipeline.Stopped, Reason: checkpoint.ReasonOffsetReset, End: 17},
	}, 99, now)
	want := Gauges{InDoubt: 2, DedupEntries: 7, DedupLimit: 99, Lanes: []LaneGauges{
		{Partition: 0, State: "running", AgeKnown: true, LagKnown: true, Decided: ago(time.Minute)},
		{Partition: 1, State: "running", Lag: 7, LagKnown: true, Age: time.Hour, AgeKnown: true},
		{Partition: 2, State: "stopped", Reason: checkpoint.ReasonLostEpoch, Lag: 7, LagKnown: true},
		{Partition: 3, State: "recovering"},
		{Partition: 4, State: "running", Lag: 7, LagKnown: true, AgeKnown: true},
		{Partition: 5, State: "stopped", Reason: checkpoint.ReasonOffsetReset, Lag: 17},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestWaitsAreForgotten: an answer of long ago explains nothing.
func TestWaitsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, lane := &view{}, checkpoint.Lane{Topic: "in"}
		v.wait(lane, "shard a does not answer")
		if got := v.waitOf(lane); got != "shard a does not answer" {
			t.Errorf("at once: %q", got)
		}
		<-time.After(waitCounts + time.Second)
		if got := v.waitOf(lane); got != "" {
			t.Errorf("later: %q", got)
		}
	})
}

// TestAServerThatIsAwayIsSaidOnce: not by each lane, and when it is back.
func TestAServerThatIsAwayIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := listener(NewMetrics(func() Gauges { return Gauges{} }, nil), &view{}, slog.New(slog.NewTextHandler(&out, nil)))
		at := func(partition int32) checkpoint.At {
			return checkpoint.At{Lane: checkpoint.Lane{Topic: "in", Partition: partition}, Incarnation: 2, Seq: 9}
		}
		for range 21 { // 0 to 20 s
			for p := range int32(4) {
				l.Waiting(at(p), "C8", "commit the decided epoch on shard a", errors.New("refused"))
				l.Waiting(at(p), "sweep", "list prepared branches on shard a", errors.New("refused"))
				l.Waiting(at(p), "C4 to C7", "the decision's Kafka transaction", errors.New("no answer"))
			}
			<-time.After(time.Second)
		}
		for text, want := range map[string]int{"level=WARN msg=waiting lane=in/0 incarnation=2 seq=9 step=C8": 3, "step=\"C4 to C7\"": 3, "msg=waiting": 6, "answers again": 0} {
			if got := strings.Count(out.String(), text); got != want {
				t.Errorf("%q is said %d times, want %d:\n%s", text, got, want, &out)
			}
		}
		l.Phase(at(0), "commit", time.Second)
		if got := out.String(); strings.Count(got, "answers again") != 1 || !strings.Contains(got, `msg="answers again" server="shard a" after=21s`) {
			t.Errorf("the shard is back:\n%s", got)
		}
		l.Phase(at(0), "decide", time.Second)
		if got := out.String(); !strings.Contains(got, `msg="answers again" server="the brokers"`) {
			t.Errorf("the brokers are back:\n%s", got)
		}
	})
}
