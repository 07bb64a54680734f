package main

import (
	"strings"
	"testing"
	"time"

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
		{"an epoch in flight for a minute", pipeline.Status{State: pipeline.Running, Moved: ago(time.Minute), Pending: true, PendingSince: ago(time.Minute)}, "commit on shard b: no answer", false, false, ""},
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
