package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"

	"billing/cmd/billing/config"
	"billing/internal/checkpoint"
)

// acceptable is the closed list of what --accept takes, and what it means.
var acceptable = []struct{ reason, what, meaning string }{
	{checkpoint.ReasonServerChanged, "SHARD", "the shard is on another server than the recorded one, after a\nplanned failover that lost nothing; the new one is recorded"},
	{checkpoint.ReasonOffsetReset, "LANE", "drop the offset that somebody has set for the lane\n(TOPIC/PARTITION), and go on from the lane's own decision"},
}

// acceptText is what may be accepted, for --help.
func acceptText() string {
	var list strings.Builder
	for _, a := range acceptable {
		fmt.Fprintf(&list, "  %s:%s\n      %s\n", a.reason, a.what, strings.ReplaceAll(a.meaning, "\n", "\n      "))
	}
	return list.String()
}

// acceptance is what the operator accepts, by name, for one start.
type acceptance struct {
	log   *slog.Logger
	given []string

	mu   sync.Mutex
	used map[string]bool
}

// parseAccept checks the operator's list against the closed one. reasons are those
// that can come up in the command at all.
func parseAccept(list []string, c *config.Config, log *slog.Logger, reasons ...string) (*acceptance, error) {
	for _, a := range list {
		reason, what, ok := strings.Cut(a, ":")
		known := false
		for _, k := range acceptable {
			known = known || k.reason == reason
		}
		switch {
		case !known:
			return nil, fmt.Errorf("--accept %q: %q is no reason that can be accepted; billing run --help lists them", a, reason)
		case !slices.Contains(reasons, reason):
			return nil, fmt.Errorf("--accept %q: %s can't come up here; billing run takes it", a, reason)
		case !ok || what == "":
			return nil, fmt.Errorf("--accept %q: say for what: %s:SHARD or %s:TOPIC/PARTITION", a, checkpoint.ReasonServerChanged, checkpoint.ReasonOffsetReset)
		}
		if reason == checkpoint.ReasonServerChanged && !slices.Contains(shardNames(c), what) {
			return nil, fmt.Errorf("--accept %q: there is no shard %q; the shards are %s", a, what, strings.Join(shardNames(c), ", "))
		}
		if reason == checkpoint.ReasonOffsetReset {
			if _, ok := partitionOf(what, c.Kafka.Topic); !ok {
				return nil, fmt.Errorf("--accept %q: want a lane of topic %s, such as %s/0", a, c.Kafka.Topic, c.Kafka.Topic)
			}
		}
	}
	return &acceptance{log: log, given: list, used: map[string]bool{}}, nil
}

// partitionOf is the partition of a lane of the topic.
func partitionOf(lane, topic string) (int32, bool) {
	n, ok := strings.CutPrefix(lane, topic+"/")
	p, err := strconv.ParseInt(n, 10, 32)
	return int32(p), ok && err == nil && strconv.FormatInt(p, 10) == n && p >= 0
}

// accept reports whether a refusal is accepted, and says so if it is.
func (a *acceptance) accept(reason, what string) bool {
	name := reason + ":" + what
	if !slices.Contains(a.given, name) {
		return false
	}
	a.mu.Lock()
	a.used[name] = true
	a.mu.Unlock()
	a.log.Warn("refusal accepted by the operator", "reason", reason, "what", what)
	return true
}

// tellUnused warns of what was accepted and did not come up, once it can't any
// more: left on the command line it would accept the next one unseen.
func (a *acceptance) tellUnused(reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range a.given {
		if strings.HasPrefix(name, reason+":") && !a.used[name] {
			a.log.Warn("there was nothing to accept: leave it out", "accept", name)
		}
	}
}

// inside refuses lanes that the topic does not have.
func (a *acceptance) inside(topic string, partitions int32) error {
	for _, name := range a.given {
		lane, ok := strings.CutPrefix(name, checkpoint.ReasonOffsetReset+":")
		if p, _ := partitionOf(lane, topic); ok && p >= partitions {
			return fmt.Errorf("--accept %q: topic %s has the lanes %s/0 to %s/%d", name, topic, topic, topic, partitions-1)
		}
	}
	return nil
}
