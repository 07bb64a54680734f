package main

import (
	"net/http"
	"strconv"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/txsink"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics turns the service's events into Prometheus metrics. Counters are fed
// by its methods, which may be called from any goroutine and return at once;
// gauges are asked for when somebody scrapes, so that none is ever stale.
type Metrics struct {
	registry *prometheus.Registry

	records    *prometheus.CounterVec
	epochs     *prometheus.CounterVec
	phases     *prometheus.HistogramVec
	pauses     prometheus.Histogram
	takeovers  prometheus.Counter
	firsts     prometheus.Histogram
	steps      *prometheus.HistogramVec
	recoveries *prometheus.CounterVec
	waits      *prometheus.CounterVec
	nets       *prometheus.CounterVec
	refused    *prometheus.CounterVec
	unknown    prometheus.Counter
}

// Gauges is the state of the service at one moment.
type Gauges struct {
	Lanes        []LaneGauges // those that are assigned
	Member       bool         // the consumer group has us, and answers
	InDoubt      int          // epochs between their barrier and their last commit
	DedupEntries int64        // of all lanes of this process
	DedupLimit   int64        // dedup.max_ids
}

// LaneGauges is the state of one lane.
type LaneGauges struct {
	Partition int32
	State     string        // recovering, running, paused or stopped
	Reason    string        // of a stopped or paused lane
	Lag       int64         // offsets that are not decided
	Age       time.Duration // of the largest event time that is decided, while there is lag
	AgeKnown  bool          // else Age is missing
	LagKnown  bool          // likewise Lag
	Decided   time.Time     // when a decision last moved the lane
}

var (
	outcomes   = []string{"applied", "duplicate", "conflict", "rejected"}
	laneStates = []string{"recovering", "running", "paused", "stopped"}
	phaseNames = []string{"prepare", "decide", "commit"}
	settleEnds = []string{"committed", "rolled_back"}
	nets       = []string{"sweep", "ledger", "compare-and-set", "epoch-key", "row-read-back", "offset-expired"}
	waitSteps  = []string{"S4", "sweep", "C3", "C4 to C7", "C8", "C9"}
	finishedBy = []string{"checkpoint", "recovery"}
)

// NewMetrics makes the metrics with a registry of their own. gauges is called
// for each scrape, by many goroutines; it must not wait for the work of a lane.
// shards are their names.
func NewMetrics(gauges func() Gauges, shards []string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "billing_records_total",
			Help: "Records of committed epochs by outcome. What was rolled back and read again counts once.",
		}, []string{"outcome"}),
		epochs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "billing_epochs_total",
			Help: "Epochs committed on every shard, by who finished them: the checkpoint itself or a recovery.",
		}, []string{"by"}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "billing_epoch_phase_seconds",
			Help:    "Time of a checkpoint's phases: prepare (on all shards), decide (the Kafka transaction), commit (on all shards).",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 17), // 1 ms to 65 s, beyond which every phase is given up
		}, []string{"phase"}),
		pauses: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "billing_barrier_pause_seconds",
			Help:    "How long a barrier held up its lane's stream: from its beginning until the next record was taken.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 4, 9), // 10 µs to 0.7 s
		}),
		takeovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "billing_takeovers_total",
			Help: "Sessions begun: a lane's takeover is known committed.",
		}),
		firsts: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "billing_recovery_seconds",
			Help:    "Time from a session's beginning to its first new decision, of lanes for which records were waiting.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 15), // 10 ms to 164 s
		}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "billing_recovery_step_seconds",
			Help:    "Time of the steps of a session up to its first epoch; those after restore only of lanes for which records were waiting.",
			Buckets: prometheus.ExponentialBuckets(0.004, 4, 9), // 4 ms to 262 s
		}, []string{"step"}),
		recoveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "billing_recovered_branches_total",
			Help: "Prepared branches of older sessions that a new session ended, by what it did with them.",
		}, []string{"end"}),
		waits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "billing_waits_total",
			Help: "Answers that were not what was asked for and made a step ask again, by step.",
		}, []string{"step"}),
		nets: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "billing_nets_total",
			Help: "Times a safety net decided that should never decide. Alarm when it grows.",
		}, []string{"net"}),
	}
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "billing_connections_refused_total",
		Help: "Connections that could not be had, or were given up when they were checked, by server (a shard's name with \"shard \" before it, or kafka).",
	}, []string{"server", "why"})
	m.unknown = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "billing_unknown_fields_total",
		Help: "Fields of messages that no rule knows and that were ignored, each time that a message was read.",
	})
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "billing_build_info",
		Help: "Always 1; its labels name the build.",
	}, []string{"version", "commit", "go"})
	b := thisBuild()
	info.WithLabelValues(b.Version, b.Commit, b.Go).Set(1)

	m.registry.MustRegister(
		m.records, m.epochs, m.phases, m.pauses, m.takeovers, m.firsts, m.steps, m.recoveries, m.waits, m.nets, m.refused, m.unknown, info,
		newGaugeCollector(gauges),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	// Series exist from the first scrape on: a rate over one that appears late
	// misses its first step.
	for _, o := range outcomes {
		m.records.WithLabelValues(o)
	}
	for _, p := range phaseNames {
		m.phases.WithLabelValues(p)
	}
	for _, s := range checkpoint.Steps {
		m.steps.WithLabelValues(s)
	}
	for _, e := range settleEnds {
		m.recoveries.WithLabelValues(e)
	}
	for _, by := range finishedBy {
		m.epochs.WithLabelValues(by)
	}
	for _, s := range waitSteps {
		m.waits.WithLabelValues(s)
	}
	for _, n := range nets {
		m.nets.WithLabelValues(n)
	}
	for _, s := range shards {
		for _, why := range txsink.RefusedReasons {
			m.ShardRefused(s, why, 0)
		}
	}
	m.KafkaRefused(0)
	return m
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError, // a part is better than nothing
		MaxRequestsInFlight: 4,
		Timeout:             10 * time.Second,
	})
}

// Committed counts the records of one epoch that is committed on every shard.
// recovered: a recovery finished it.
func (m *Metrics) Committed(applied, duplicates, conflicts, rejected int64, recovered bool) {
	for i, n := range []int64{applied, duplicates, conflicts, rejected} {
		m.records.WithLabelValues(outcomes[i]).Add(float64(n))
	}
	by := finishedBy[0]
	if recovered {
		by = finishedBy[1]
	}
	m.epochs.WithLabelValues(by).Inc()
}

// Phase observes how long a checkpoint's phase took.
func (m *Metrics) Phase(name string, took time.Duration) {
	m.phases.WithLabelValues(name).Observe(took.Seconds())
}

// Paused counts a barrier, by how long its lane's stream stood still.
func (m *Metrics) Paused(d time.Duration) { m.pauses.Observe(d.Seconds()) }

// TakenOver counts a session that began.
func (m *Metrics) TakenOver() { m.takeovers.Inc() }

// Step observes how long a step of a session's way to its first epoch took.
func (m *Metrics) Step(step checkpoint.Step, took time.Duration) {
	m.steps.WithLabelValues(checkpoint.Steps[step]).Observe(took.Seconds())
}

// Recovered observes how long a lane's way to its first new decision took.
func (m *Metrics) Recovered(took time.Duration) { m.firsts.Observe(took.Seconds()) }

// Settled counts the branches of older sessions that a new one ended.
func (m *Metrics) Settled(committed, rolledBack int) {
	m.recoveries.WithLabelValues(settleEnds[0]).Add(float64(committed))
	m.recoveries.WithLabelValues(settleEnds[1]).Add(float64(rolledBack))
}

// Waiting counts a step that had to ask again.
func (m *Metrics) Waiting(step string) { m.waits.WithLabelValues(step).Inc() }

// UnknownFields counts ignored fields of messages.
func (m *Metrics) UnknownFields(n int64) { m.unknown.Add(float64(n)) }

// Net counts a safety net that decided.
func (m *Metrics) Net(net string) { m.nets.WithLabelValues(net).Inc() }

// ShardRefused counts connections to a shard that were refused, by either side.
func (m *Metrics) ShardRefused(shard, why string, n int) {
	m.refused.WithLabelValues("shard "+shard, why).Add(float64(n))
}

// KafkaRefused counts connections to brokers that failed.
func (m *Metrics) KafkaRefused(n int) {
	m.refused.WithLabelValues("kafka", txsink.RefusedUnreachable).Add(float64(n))
}

// gaugeCollector asks for the state of the service at each scrape.
type gaugeCollector struct {
	ask func() Gauges

	member, lanes, stopped, inDoubt, entries, limit, lag, age, decided *prometheus.Desc
}

func newGaugeCollector(ask func() Gauges) *gaugeCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &gaugeCollector{
		ask:     ask,
		member:  desc("billing_group_member", "1 while the consumer group has this instance and answers it, else 0."),
		lanes:   desc("billing_lanes", "Assigned lanes by state.", "state"),
		stopped: desc("billing_lane_stopped", "1 for a lane that is stopped or paused, with the reason.", "partition", "reason"),
		inDoubt: desc("billing_in_doubt", "Epochs of this process between their barrier and their last commit; also those whose session has ended, until the next one has recovered."),
		entries: desc("billing_dedup_entries", "Ids remembered by all lanes of this process."),
		limit:   desc("billing_dedup_entries_limit", "Ids at which lanes pause (dedup.max_ids)."),
		lag:     desc("billing_lag_records", "Offsets of the lane's partition that are not decided. Missing while unknown: before a lane's first session.", "partition"),
		age:     desc("billing_lag_seconds", "Lag in event time: age of the largest event time that is decided while there are offsets that are not, else 0. Missing while unknown.", "partition"),
		decided: desc("billing_last_decision_timestamp_seconds", "When a decision last moved the lane, or the lane was assigned, in seconds since 1970.", "partition"),
	}
}

// Describe implements prometheus.Collector.
func (c *gaugeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.member, c.lanes, c.stopped, c.inDoubt, c.entries, c.limit, c.lag, c.age, c.decided} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *gaugeCollector) Collect(ch chan<- prometheus.Metric) {
	g := c.ask()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := map[string]int{}
	for _, s := range laneStates {
		count[s] = 0
	}
	for _, l := range g.Lanes {
		count[l.State]++
		partition := strconv.FormatInt(int64(l.Partition), 10)
		if l.LagKnown {
			gauge(c.lag, float64(l.Lag), partition)
		}
		if l.AgeKnown {
			gauge(c.age, l.Age.Seconds(), partition)
		}
		if l.Reason != "" {
			gauge(c.stopped, 1, partition, l.Reason)
		}
		if !l.Decided.IsZero() {
			gauge(c.decided, float64(l.Decided.UnixMicro())/1e6, partition)
		}
	}
	for s, n := range count {
		gauge(c.lanes, float64(n), s)
	}
	member := 0.0
	if g.Member {
		member = 1
	}
	gauge(c.member, member)
	gauge(c.inDoubt, float64(g.InDoubt))
	gauge(c.entries, float64(g.DedupEntries))
	gauge(c.limit, float64(g.DedupLimit))
}
