package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"billing/cmd/billing/config"
	"billing/internal/admin"
	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/pipeline"
)

// view is what health, readiness and gauges see of the service.
type view struct {
	interval time.Duration
	limit    int64
	lanes    atomic.Pointer[pipeline.Pipeline]
	kafka    atomic.Pointer[consume.Client]
	waiting  atomic.Pointer[string] // for a server at the start

	mu    sync.Mutex
	waits map[string]waited // by lane
}

// waited is the last answer of a server that was not what a lane asked for.
type waited struct {
	why  string
	when time.Time
}

// waitCounts is for how long it explains what the lane does: who still waits
// says so again within it.
const waitCounts = 30 * time.Second

// wait notes why a lane asks again; "" that it goes on.
func (v *view) wait(lane checkpoint.Lane, why string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.waits == nil {
		v.waits = map[string]waited{}
	}
	if why == "" {
		delete(v.waits, lane.String())
		return
	}
	v.waits[lane.String()] = waited{why, time.Now()}
}

func (v *view) waitOf(lane checkpoint.Lane) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.waits[lane.String()]
	if time.Since(w.when) > waitCounts {
		return ""
	}
	return w.why
}

func (v *view) status() []pipeline.Status {
	if p := v.lanes.Load(); p != nil {
		return p.Status()
	}
	return nil
}

// A lane is called stuck when it is stopped or paused, or after so many failed
// sessions or so long a time without a decision.
const (
	stuckFailures = 5
	stuckAfter    = 2 * time.Minute
	stalledAfter  = 10 * time.Second // from here on health says what the lane waits for
	starvedAfter  = 45 * time.Second // likewise, for records: it is looked at every lagEvery
)

// health names the lanes that do not work. The process is never dead inside as
// long as it can answer: lanes and servers are repaired outside of it.
func (v *view) health() admin.Report {
	var r admin.Report
	if w := v.waiting.Load(); w != nil {
		r.Notes = append(r.Notes, *w)
	}
	if problem := v.groupProblem(); problem != "" {
		r.Notes = append(r.Notes, problem)
	}
	for _, s := range v.status() {
		r.Lanes = append(r.Lanes, laneHealth(&s, v.waitOf(s.Lane)))
	}
	return r
}

// laneHealth is what an operator is told of a lane. wait is the last answer that
// was not what the lane asked for, "" for none.
func laneHealth(s *pipeline.Status, wait string) admin.Lane {
	l := admin.Lane{Lane: s.Lane.String(), State: string(s.State), Since: s.Since, Why: s.Message}
	switch {
	case s.State == pipeline.Stopped, s.State == pipeline.Paused:
		l.Stuck = true
	case s.Failing() >= stuckFailures:
		l.Stuck = true
		l.Why = fmt.Sprintf("%d sessions have failed since the lane last moved at %s, the last one: %s", s.Failures, s.Moved.UTC().Format(time.RFC3339), s.LastError)
	case s.Stalled() > stuckAfter:
		l.Stuck = true
		l.Why = fmt.Sprintf("records are waiting and nothing was decided for %s: %s", s.Stalled().Round(time.Second), why(s, wait))
	case s.Starved() > starvedAfter:
		l.Stuck = s.Starved() > stuckAfter
		l.Why = starved(s)
	case s.State != pipeline.Running || s.Failing() > 0:
		l.Why = why(s, wait)
	case s.Stalled() > stalledAfter:
		l.Why = fmt.Sprintf("nothing was decided for %s: %s", s.Stalled().Round(time.Second), why(s, wait))
	}
	return l
}

// starved says that a lane gets nothing to read. Offsets that hold no records
// (aborted, compacted, control) are passed within a minute.
func starved(s *pipeline.Status) string {
	return fmt.Sprintf("%d offsets wait and nothing was delivered for %s: the brokers answer no fetch, or a Kafka transaction that a producer has left open holds the records back", s.End-s.Position, s.Starved().Round(time.Second))
}

// why is what is known of a lane that does not work.
func why(s *pipeline.Status, wait string) string {
	order := []string{s.Message, wait, s.LastError}
	if s.State == pipeline.Recovering {
		order = []string{wait, s.Message, s.LastError} // what it waits for now, before why the last session ended
	}
	for _, w := range order {
		if w != "" {
			return w
		}
	}
	if s.InDoubt {
		return fmt.Sprintf("epoch %d waits for an answer of a shard or of the broker", s.Seq+1)
	}
	return "on its way"
}

// laneReady says why a lane is not ready, "" for one that is: it has recovered,
// and its last decision is young or there is nothing to do.
func laneReady(s *pipeline.Status, wait string, young time.Duration) string {
	switch {
	case s.State != pipeline.Running:
		return fmt.Sprintf("lane %s is %s: %s", s.Lane, s.State, why(s, wait))
	case s.Failing() > 0:
		return fmt.Sprintf("lane %s has recovered and not moved since: %s", s.Lane, s.LastError)
	case s.Starved() > max(young, starvedAfter):
		return fmt.Sprintf("lane %s: %s", s.Lane, starved(s))
	case s.Stalled() > young:
		return fmt.Sprintf("lane %s has records waiting and made no decision for %s: %s", s.Lane, s.Stalled().Round(time.Second), why(s, wait))
	}
	return ""
}

func (v *view) groupProblem() string {
	k := v.kafka.Load()
	if k == nil {
		return ""
	}
	if problem := k.GroupProblem(); problem != "" {
		return problem
	}
	if k.Joined() && len(v.status()) > 0 && !k.Fresh() {
		return "the consumer group has not answered for kafka.session_timeout: lanes decide nothing until it does"
	}
	return ""
}

// young is how old the last decision of a lane with records waiting may be.
func (v *view) young() time.Duration { return max(30*time.Second, 10*v.interval) }

// ready: every assigned lane has recovered, and its last decision is young or
// there is nothing to do. None assigned: ready, once the group has taken us in.
func (v *view) ready() (bool, string) {
	k := v.kafka.Load()
	if v.lanes.Load() == nil || k == nil {
		if w := v.waiting.Load(); w != nil {
			return false, *w
		}
		return false, "starting"
	}
	if problem := v.groupProblem(); problem != "" {
		return false, problem
	}
	if !k.Joined() {
		return false, "joining the consumer group"
	}
	for _, s := range v.status() {
		if not := laneReady(&s, v.waitOf(s.Lane), v.young()); not != "" {
			return false, not
		}
	}
	return true, ""
}

func (v *view) gauges() Gauges {
	g := gaugesOf(v.status(), v.limit, time.Now())
	if k := v.kafka.Load(); k != nil {
		g.Member = k.Joined() && v.groupProblem() == ""
	}
	return g
}

func gaugesOf(lanes []pipeline.Status, limit int64, now time.Time) Gauges {
	g := Gauges{DedupLimit: limit}
	for _, s := range lanes {
		l := LaneGauges{Partition: s.Lane.Partition, State: string(s.State), Reason: s.Reason, Lag: s.Behind(), LagKnown: s.Known(), Decided: s.Moved}
		if age, known := s.Age(now); known {
			l.Age, l.AgeKnown = age, true
		}
		g.Lanes = append(g.Lanes, l)
		g.DedupEntries += s.IDs
		if s.InDoubt {
			g.InDoubt++
		}
	}
	return g
}

// listener turns the protocol's events into log lines and metrics. The log of a
// takeover tells its story in five lines: what was decided, what was in doubt,
// what was done, what was restored, and that the lane runs (which the lane says).
func listener(m *Metrics, v *view, log *slog.Logger) checkpoint.Listener {
	away := &outages{servers: map[string]*outage{}}
	about := func(at checkpoint.At) *slog.Logger {
		return log.With("lane", at.Lane.String(), "incarnation", at.Incarnation, "seq", at.Seq)
	}
	return checkpoint.Listener{
		TakenOver: func(at checkpoint.At, d checkpoint.Decision) {
			m.TakenOver()
			if d.Incarnation == 0 {
				about(at).Info("lane taken over", "decided", "nothing: it starts for the first time", "next_offset", d.Next)
				return
			}
			about(at).Info("lane taken over", "decided", branchName(d.GTRID), "next_offset", d.Next,
				"found_incarnation", d.Incarnation, "found_build", d.Build)
		},
		InDoubt: func(at checkpoint.At, shards []checkpoint.ShardBranches) {
			msg := "nothing in doubt"
			for i := range shards {
				if len(shards[i].InDoubt) > 0 {
					msg = "in doubt"
				}
			}
			about(at).Info(msg, "branches", perShard(shards, func(s *checkpoint.ShardBranches) string { return branchNames(s.InDoubt) }))
		},
		Settled: func(at checkpoint.At, shards []checkpoint.ShardBranches, took time.Duration, err error) {
			committed, rolledBack := 0, 0
			for i := range shards {
				committed += len(shards[i].Committed)
				rolledBack += len(shards[i].RolledBack)
			}
			m.Settled(committed, rolledBack)
			level, msg := slog.LevelInfo, "settled"
			switch {
			case err == nil:
				v.wait(at.Lane, "")
				away.answers(log, shardPrefix)
			case errors.Is(err, checkpoint.ErrSuperseded), errors.Is(err, checkpoint.ErrNotAssigned):
				msg = "not settled" // it is the next owner's
			default:
				level, msg = slog.LevelWarn, "not settled" // why, the end of the session says
			}
			about(at).Log(context.Background(), level, msg, "branches", perShard(shards, done), "took", took.Round(time.Millisecond))
		},
		Restored: func(lane checkpoint.Lane, d checkpoint.Decision, chunks int, took time.Duration) {
			m.Restored(took)
			log.Info("dedup state restored", "lane", lane.String(), "incarnation", d.Incarnation, "seq", d.Seq, "ids", d.Count, "chunks", chunks, "took", took.Round(time.Millisecond))
		},
		Phase: func(at checkpoint.At, phase string, took time.Duration) {
			m.Phase(phase, took)
			v.wait(at.Lane, "")
			if phase == "decide" {
				away.answers(log, brokers)
			} else {
				away.answers(log, shardPrefix)
			}
		},
		Committed: func(lane checkpoint.Lane, d checkpoint.Decision, c checkpoint.Counts, recovered bool) {
			m.Committed(c.Applied, c.Duplicates, c.Conflicts, c.Rejected, recovered)
			log.Debug("epoch committed", "lane", lane.String(), "incarnation", d.Incarnation, "seq", d.Seq, "next_offset", d.Next,
				"in", c.In, "applied", c.Applied, "duplicates", c.Duplicates, "conflicts", c.Conflicts, "rejected", c.Rejected, "recovered", recovered)
		},
		Moved: func(lane checkpoint.Lane, d checkpoint.Decision) {
			log.Debug("idle lane's offset moved", "lane", lane.String(), "incarnation", d.Incarnation, "seq", d.Seq, "next_offset", d.Next)
		},
		Waiting: func(at checkpoint.At, step, what string, err error) {
			m.Waiting(step)
			v.wait(at.Lane, what+": "+err.Error())
			// A server that is away keeps every lane waiting: one of them says so.
			level := slog.LevelDebug
			if away.waits(serverOf(what)) {
				level = slog.LevelWarn
			}
			about(at).Log(context.Background(), level, "waiting", "step", step, "what", what, "err", err)
		},
		Net: func(at checkpoint.At, net string, err error) {
			m.Net(net)
			about(at).Warn("a net decided", "net", net, "err", err)
		},
	}
}

// perShard says the same of each shard, in one attribute.
func perShard(shards []checkpoint.ShardBranches, say func(*checkpoint.ShardBranches) string) string {
	parts := make([]string, len(shards))
	for i := range shards {
		what := "not asked"
		if shards[i].Answered {
			what = say(&shards[i])
		}
		parts[i] = shards[i].Shard + ": " + what
	}
	return strings.Join(parts, "; ")
}

// done is what was done with a shard's branches.
func done(s *checkpoint.ShardBranches) string {
	var parts []string
	if len(s.Committed) > 0 {
		parts = append(parts, "committed "+branchNames(s.Committed))
	}
	if len(s.RolledBack) > 0 {
		parts = append(parts, "rolled back "+branchNames(s.RolledBack))
	}
	left := slices.DeleteFunc(slices.Clone(s.InDoubt), func(g checkpoint.GTRID) bool {
		return slices.Contains(s.Committed, g) || slices.Contains(s.RolledBack, g)
	})
	if len(left) > 0 {
		parts = append(parts, "gone, or not ended yet: "+branchNames(left))
	}
	if len(parts) == 0 {
		return "nothing to do"
	}
	return strings.Join(parts, ", ")
}

func branchNames(gtrids []checkpoint.GTRID) string {
	if len(gtrids) == 0 {
		return "nothing"
	}
	names := make([]string, len(gtrids))
	for i, g := range gtrids {
		names[i] = branchName(g)
	}
	return strings.Join(names, ", ")
}

// branchName is a branch for people: all of a gtrid that is not the lane's.
func branchName(g checkpoint.GTRID) string {
	n, err := g.Parse()
	if err != nil {
		return "nothing" // D of a lane that has no epoch
	}
	return fmt.Sprintf("epoch %d of incarnation %d", n.Seq, n.Incarnation)
}

const (
	shardPrefix = "shard "
	brokers     = "the brokers"
)

// serverOf is the server that a lane waits for, by what it waits for.
func serverOf(what string) string {
	if i := strings.LastIndex(what, shardPrefix); i >= 0 {
		return what[i:]
	}
	return brokers
}

// outages are the servers that lanes wait for.
type outages struct {
	mu      sync.Mutex
	servers map[string]*outage
}

type outage struct{ since, said time.Time }

// sayEvery is how often the log says that a server is waited for.
const sayEvery = 10 * time.Second

// waits notes that a lane waits for a server, and reports whether to say so.
func (o *outages) waits(server string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	s := o.servers[server]
	if s == nil {
		s = &outage{since: now}
		o.servers[server] = s
	}
	if now.Sub(s.said) < sayEvery {
		return false
	}
	s.said = now
	return true
}

// answers says of the servers whose name begins so that they answer again.
func (o *outages) answers(log *slog.Logger, prefix string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for server, s := range o.servers {
		if strings.HasPrefix(server, prefix) {
			log.Info("answers again", "server", server, "after", time.Since(s.since).Round(time.Millisecond))
			delete(o.servers, server)
		}
	}
}

// newLogger is the log as the configuration wants it.
func newLogger(w io.Writer, c *config.Config) *slog.Logger {
	level := map[string]slog.Level{"debug": slog.LevelDebug, "warn": slog.LevelWarn, "error": slog.LevelError}[c.Log.Level] // else info, which is 0
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: plain}
	if c.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// plain makes values readable in both formats: durations with their unit, and
// errors in one line.
func plain(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().String())
	}
	if err, ok := a.Value.Any().(error); ok {
		return slog.String(a.Key, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return a
}
