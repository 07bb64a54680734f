package main

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/txsink"
)

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d", w.Code)
	}
	b, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func mustHave(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, want := range lines {
		if !strings.Contains("\n"+text, "\n"+want+"\n") {
			t.Errorf("no line %q", want)
		}
	}
}

func TestMetricsExistBeforeAnythingHappens(t *testing.T) {
	m := NewMetrics(func() Gauges { return Gauges{DedupLimit: 9} }, []string{"eu-1"})
	mustHave(t, scrape(t, m),
		`billing_records_total{outcome="applied"} 0`,
		`billing_records_total{outcome="duplicate"} 0`,
		`billing_records_total{outcome="conflict"} 0`,
		`billing_records_total{outcome="rejected"} 0`,
		`billing_epochs_total{by="checkpoint"} 0`,
		`billing_epochs_total{by="recovery"} 0`,
		`billing_epoch_phase_seconds_count{phase="prepare"} 0`,
		`billing_epoch_phase_seconds_count{phase="decide"} 0`,
		`billing_epoch_phase_seconds_count{phase="commit"} 0`,
		`billing_lanes{state="recovering"} 0`,
		`billing_lanes{state="running"} 0`,
		`billing_lanes{state="paused"} 0`,
		`billing_lanes{state="stopped"} 0`,
		`billing_recovered_branches_total{end="committed"} 0`,
		`billing_recovered_branches_total{end="rolled_back"} 0`,
		`billing_nets_total{net="sweep"} 0`,
		`billing_takeovers_total 0`,
		`billing_recovery_seconds_count 0`,
		`billing_recovery_step_seconds_count{step="fence"} 0`,
		`billing_recovery_step_seconds_count{step="commit"} 0`,
		`billing_barrier_pause_seconds_count 0`,
		`billing_in_doubt 0`,
		`billing_group_member 0`,
		`billing_waits_total{step="S4"} 0`,
		`billing_dedup_entries 0`,
		`billing_dedup_entries_limit 9`,
		`billing_connections_refused_total{server="shard eu-1",why="read-only"} 0`,
		`billing_connections_refused_total{server="kafka",why="unreachable"} 0`,
	)
}

func TestMetricsTellWhatHappened(t *testing.T) {
	g := Gauges{
		Lanes: []LaneGauges{
			{Partition: 0, State: "running", Lag: 5, LagKnown: true, Age: 90 * time.Second, AgeKnown: true, Decided: time.Unix(1_700_000_000, 500_000_000)},
			{Partition: 7, State: "stopped", Reason: "lost-epoch", Lag: 12, LagKnown: true},
		},
		Member: true, InDoubt: 1, DedupEntries: 4, DedupLimit: 9,
	}
	m := NewMetrics(func() Gauges { return g }, []string{"eu-1"})
	m.Committed(10, 3, 2, 1, false)
	m.Committed(1, 0, 0, 4, true)
	m.Phase("prepare", 20*time.Millisecond)
	m.Phase("prepare", 30*time.Millisecond)
	m.Paused(50 * time.Microsecond)
	m.TakenOver()
	m.Step(checkpoint.StepRestore, 2*time.Second)
	m.Recovered(3 * time.Second)
	m.Settled(2, 3)
	m.Waiting("sweep")
	m.Net("sweep")
	m.ShardRefused("eu-1", txsink.RefusedReadOnly, 2)
	m.KafkaRefused(3)
	text := scrape(t, m)
	mustHave(t, text,
		`billing_records_total{outcome="applied"} 11`,
		`billing_records_total{outcome="duplicate"} 3`,
		`billing_records_total{outcome="conflict"} 2`,
		`billing_records_total{outcome="rejected"} 5`,
		`billing_epochs_total{by="checkpoint"} 1`,
		`billing_epochs_total{by="recovery"} 1`,
		`billing_epoch_phase_seconds_sum{phase="prepare"} 0.05`,
		`billing_epoch_phase_seconds_count{phase="prepare"} 2`,
		`billing_barrier_pause_seconds_sum 5e-05`,
		`billing_barrier_pause_seconds_bucket{le="4e-05"} 0`,
		`billing_barrier_pause_seconds_bucket{le="0.00016"} 1`,
		`billing_takeovers_total 1`,
		`billing_recovery_seconds_sum 3`,
		`billing_recovery_step_seconds_sum{step="restore"} 2`,
		`billing_recovered_branches_total{end="committed"} 2`,
		`billing_recovered_branches_total{end="rolled_back"} 3`,
		`billing_waits_total{step="sweep"} 1`,
		`billing_nets_total{net="sweep"} 1`,
		`billing_lanes{state="running"} 1`,
		`billing_lanes{state="stopped"} 1`,
		`billing_lanes{state="paused"} 0`,
		`billing_lag_records{partition="0"} 5`,
		`billing_lag_records{partition="7"} 12`,
		`billing_lag_seconds{partition="0"} 90`,
		`billing_lane_stopped{partition="7",reason="lost-epoch"} 1`,
		`billing_connections_refused_total{server="shard eu-1",why="read-only"} 2`,
		`billing_connections_refused_total{server="kafka",why="unreachable"} 3`,
		`billing_last_decision_timestamp_seconds{partition="0"} 1.7000000005e+09`,
		`billing_in_doubt 1`,
		`billing_group_member 1`,
		`billing_dedup_entries 4`,
	)
	if strings.Contains(text, `billing_last_decision_timestamp_seconds{partition="7"}`) {
		t.Error("a decision that never was has a time")
	}
	if strings.Contains(text, `billing_lag_seconds{partition="7"}`) {
		t.Error("an age that is not known is shown")
	}
	g.Lanes = g.Lanes[:1]
	if text := scrape(t, m); strings.Contains(text, `partition="7"`) {
		t.Error("a lane that was let go is still shown")
	}
}
