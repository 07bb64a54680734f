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
	"time"

	"billing/cmd/billing/config"
	"billing/internal/checkpoint"
)

// listener turns the protocol's events into log lines and metrics. The log of a
// recovery tells its story in five lines: what was decided, what was in doubt, what
// was done, that the lane runs with its ids restored (which the lane says), and its
// first new epoch, with the time of each step.
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
			msg, n := "nothing in doubt", 0
			for i := range shards {
				if n += len(shards[i].InDoubt); n > 0 {
					msg = "in doubt"
				}
			}
			about(at).Info(msg, "in_doubt", n, "branches", perShard(shards, func(s *checkpoint.ShardBranches) string { return branchNames(s.InDoubt) }))
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
			about(at).Log(context.Background(), level, msg, "branches", perShard(shards, func(s *checkpoint.ShardBranches) string { return done(s, err == nil) }), "took", took.Round(time.Millisecond))
		},
		Step: func(_ checkpoint.Lane, step checkpoint.Step, took time.Duration) { m.Step(step, took) },
		Recovered: func(lane checkpoint.Lane, d checkpoint.Decision, c checkpoint.Counts, r checkpoint.Recovery) {
			m.Recovered(r.Until(checkpoint.StepDecide))
			log.Info("lane recovered", "lane", lane.String(), "incarnation", d.Incarnation, "seq", d.Seq, "next_offset", d.Next, "in", c.In,
				"decided_after", r.Until(checkpoint.StepDecide).Round(time.Millisecond), "steps", stepTimes(&r))
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

// done is what was done with a shard's branches; settled says that nothing is
// left to do.
func done(s *checkpoint.ShardBranches, settled bool) string {
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
		what := "left, or not known to have ended: "
		if settled {
			what = "ended by others: "
		}
		parts = append(parts, what+branchNames(left))
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

// stepTimes are the steps of a recovery, for people.
func stepTimes(r *checkpoint.Recovery) string {
	parts := make([]string, len(r.Took))
	for i, took := range r.Took {
		parts[i] = checkpoint.Steps[i] + " " + took.Round(time.Millisecond).String()
	}
	return strings.Join(parts, ", ")
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
