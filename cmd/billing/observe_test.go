package main

import (
	"bytes"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"testing"
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
	l.InDoubt(at, []checkpoint.ShardBranches{
		{Shard: "a", Answered: true, InDoubt: []checkpoint.GTRID{gtrid("07", "29"), gtrid("06", "29")}},
		{Shard: "b", Answered: true},
	})
	settled := []checkpoint.ShardBranches{
		{Shard: "a", Answered: true, Committed: []checkpoint.GTRID{gtrid("07", "29")}, RolledBack: []checkpoint.GTRID{gtrid("06", "29")}},
		{Shard: "b", Answered: true},
	}
	l.Settled(at, settled, time.Second, nil)
	l.Restored(lane, checkpoint.Decision{Incarnation: 8, Seq: 41, Count: 5}, 2, time.Millisecond)
	settled[1].Answered = false
	l.Settled(at, settled, time.Second, errors.New("shard b does not answer"))
	want := `level=INFO msg="lane taken over" lane=in/3 incarnation=8 seq=41 decided="epoch 41 of incarnation 7" next_offset=900 found_incarnation=7 found_build=v1
level=INFO msg="in doubt" lane=in/3 incarnation=8 seq=41 branches="a: epoch 41 of incarnation 7, epoch 41 of incarnation 6; b: nothing"
level=INFO msg=settled lane=in/3 incarnation=8 seq=41 branches="a: committed epoch 41 of incarnation 7, rolled back epoch 41 of incarnation 6; b: nothing to do" took=1s
level=INFO msg="dedup state restored" lane=in/3 incarnation=8 seq=41 ids=5 chunks=2 took=1ms
level=WARN msg="not settled" lane=in/3 incarnation=8 seq=41 branches="a: committed epoch 41 of incarnation 7, rolled back epoch 41 of incarnation 6; b: no answer" took=1s
`
	if out.String() != want {
		t.Errorf("the log is\n%s\nwant\n%s", &out, want)
	}
}

// TestLogIsAsConfigured: level and format.
func TestLogIsAsConfigured(t *testing.T) {
	for _, c := range []struct{ level, format, want string }{
		{"debug", "text", "level=DEBUG msg=a\nlevel=INFO msg=b\nlevel=WARN msg=c\nlevel=ERROR msg=d\n"},
		{"info", "text", "level=INFO msg=b\nlevel=WARN msg=c\nlevel=ERROR msg=d\n"},
		{"warn", "text", "level=WARN msg=c\nlevel=ERROR msg=d\n"},
		{"error", "json", `"level":"ERROR","msg":"d"}` + "\n"},
	} {
		var out bytes.Buffer
		log := newLogger(&out, &config.Config{Log: config.Log{Level: c.level, Format: c.format}})
		log.Debug("a")
		log.Info("b")
		log.Warn("c")
		log.Error("d")
		if got := regexp.MustCompile(`time=\S+ |\{"time":"[^"]*",`).ReplaceAllString(out.String(), ""); got != c.want {
			t.Errorf("%s, %s: the log is\n%s\nwant\n%s", c.level, c.format, got, c.want)
		}
	}
}
