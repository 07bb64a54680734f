package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"billing/cmd/billing/config"
	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/txsink"
)

// The check against the servers asks everything that a start would ask, each
// once: nothing is waited for, and nothing is changed. All servers together have
// the first two bounds, what is asked of the lanes afterwards the third.
const (
	connectShards = 10 * time.Second
	connectKafka  = 5 * time.Second // for the seeds, and again for what is asked of those that answer
	connectLanes  = 8 * time.Second
	lookAgain     = 3 * time.Second // for a branch that is neither listed nor a row
	lanesAtOnce   = 16
)

// check is one thing that was looked at, or could not be.
type check struct {
	Name   string `json:"name"`
	Result string `json:"result"`
	Detail string `json:"detail,omitempty"`
}

// Results of a check.
const (
	resultOK         = "ok"
	resultWarning    = "warning"
	resultProblem    = "problem"
	resultNotChecked = "not checked"
)

// findings are what one part of the check has found.
type findings struct {
	checks   []check
	problems []problem
	warnings []string
}

// add notes a check with its problems; detail is for one without.
func (f *findings) add(name, detail string, problems ...problem) {
	c := check{Name: name, Result: resultOK, Detail: detail}
	if len(problems) > 0 {
		c.Result, c.Detail = resultProblem, ""
	}
	f.checks = append(f.checks, c)
	f.problems = append(f.problems, problems...)
}

// skip notes what was not checked, and why.
func (f *findings) skip(why string, names ...string) {
	for _, name := range names {
		f.checks = append(f.checks, check{Name: name, Result: resultNotChecked, Detail: why})
	}
}

// warn notes a check with its warnings, none of which is in the way of a start.
func (f *findings) warn(name string, warnings []string) {
	c := check{Name: name, Result: resultOK}
	if len(warnings) > 0 {
		c.Result = resultWarning
	}
	f.checks = append(f.checks, c)
	f.warnings = append(f.warnings, warnings...)
}

func (f *findings) join(other findings) {
	f.checks = append(f.checks, other.checks...)
	f.problems = append(f.problems, other.problems...)
	f.warnings = append(f.warnings, other.warnings...)
}

// Checks that are made, or not, together.
const (
	checkFeatures = "Kafka: features"
	checkTxn      = "Kafka: transaction timeout"
	checkSession  = "Kafka: session timeout"
	checkInput    = "Kafka: input topic"
	checkTopics   = "Kafka: topics of the job"
	checkRights   = "Kafka: rights"
	checkSame     = "same deployment"
	checkLanes    = "lanes"
	checkClock    = "clock"
	checkConns    = "connections"
)

// Keys that are named more than once.
const (
	keyTxn     = "kafka.transaction_timeout"
	keySession = "kafka.session_timeout"
)

// connect checks the configuration, of which the usable part may be used, against
// the servers that it names.
func connect(ctx context.Context, c *config.Config) findings {
	var shards, kafka, lanes findings
	var sink *txsink.Sink
	var broker *asked
	var both sync.WaitGroup
	both.Go(func() { sink = connectToShards(ctx, c, &shards) })
	both.Go(func() { broker = connectToKafka(ctx, c, &kafka) })
	both.Wait()
	if sink != nil {
		defer sink.Close()
	}
	if broker != nil {
		defer broker.Close()
	}
	foresee(ctx, c, sink, broker, &lanes)
	all := shards
	all.join(kafka)
	all.join(lanes)
	if sink != nil && len(sink.Facts()) > 0 {
		all.warn(checkClock, clockWarnings(c, sink.Facts()))
		all.warn(checkConns, connectionWarnings(sink.Facts()))
	} else {
		all.skip("no shard could be asked", checkClock, checkConns)
	}
	return all
}

// connectToShards asks the shards. It returns nil where the configuration names
// none that could be asked.
func connectToShards(ctx context.Context, c *config.Config, f *findings) *txsink.Sink {
	cfg := sinkConfig(c, quiet)
	cfg.JobUnknown = !c.Usable("job")
	taken := map[string]bool{}
	known := 0
	for i := range cfg.Shards {
		s := &cfg.Shards[i]
		if s.Name == "" || taken[s.Name] || !c.Usable(shardPath(i)+".name") {
			s.Name = shardPath(i)
		}
		taken[s.Name] = true
		if s.Unknown = !dsnUsable(c, i); !s.Unknown {
			known++
		}
	}
	if known == 0 {
		f.skip("no DSN can be used", "shards")
		return nil
	}
	sink, err := txsink.Open(cfg)
	if err != nil { // the configuration's own check has asked the same
		f.add("shards", "", problemsOf(c, "shards", err)...)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectShards)
	defer cancel()
	wrong := map[string][]problem{}
	for _, err := range checkpoint.Problems(sink.Check(ctx)) {
		what, path := shardOf(c, cfg.Shards, err)
		wrong[what] = append(wrong[what], problemsOf(c, path, err)...)
	}
	for _, s := range cfg.Shards {
		if s.Unknown {
			f.skip("its configuration has a problem", "shard "+s.Name)
			continue
		}
		f.add("shard "+s.Name, "", wrong[s.Name]...)
		delete(wrong, s.Name)
	}
	for _, rest := range wrong {
		f.add("shards", "", rest...)
	}
	return sink
}

func shardPath(i int) string { return fmt.Sprintf("shards[%d]", i) }

// dsnUsable reports whether the shard's DSN can be used, wherever it is given.
func dsnUsable(c *config.Config, i int) bool {
	path := shardPath(i)
	return c.Shards[i].DSN != "" && c.Usable(path+".dsn") && c.Usable(path+".dsn_file")
}

// shardOf is the shard that an error of the check is about, and its key.
func shardOf(c *config.Config, shards []txsink.ShardConfig, err error) (name, path string) {
	var away *checkpoint.ServerError
	if r := checkpoint.AsRefusal(err); r != nil {
		name = r.What
	} else if errors.As(err, &away) {
		name = away.What
	}
	i := slices.IndexFunc(shards, func(s txsink.ShardConfig) bool { return s.Name == name })
	switch {
	case i < 0:
		return "", "shards"
	case c.Shards[i].DSNFile != "":
		return name, shardPath(i) + ".dsn_file"
	}
	return name, shardPath(i) + ".dsn"
}

// asked is Kafka's side as far as it could be asked.
type asked struct {
	*consume.Client
	input  *consume.Input // nil where it could not be looked up
	absent []string       // topics of the job
	lanes  bool           // nothing that was found is in the way of reading the lanes
}

// connectToKafka asks the brokers. It returns nil where none could be asked.
func connectToKafka(ctx context.Context, c *config.Config, f *findings) *asked {
	everything := []string{checkFeatures, checkTxn, checkSession, checkInput, checkTopics, checkRights}
	cfg := kafkaConfig(usableKafka(c), quiet, nil)
	seeds := usableBrokers(c)
	if len(seeds) == 0 {
		f.skip("kafka.brokers has a problem", everything...)
		return nil
	}
	answering := askSeeds(ctx, c, cfg, seeds, f)
	if len(answering) == 0 {
		f.skip("no broker could be asked", everything...)
		return nil
	}
	cfg.Brokers = answering
	client, err := consume.Open(cfg)
	if err != nil { // the configuration's own check has asked the same
		f.add("Kafka", "", problemsOf(c, "kafka", err)...)
		return nil
	}
	a := &asked{Client: client}
	ctx, cancel := context.WithTimeout(ctx, connectKafka)
	defer cancel()
	brokers, err := a.Brokers(ctx)
	if err != nil {
		f.add("Kafka", "", problemsOf(c, "kafka.brokers", err)...)
		f.skip("the brokers could not be listed", everything...)
		return a
	}

	// Side by side: what one waits for is none of the others' time.
	results := make([]findings, 5)
	var wg sync.WaitGroup
	side := func(i int, name string, keys []string, ask func() []problem) {
		for _, key := range keys {
			if !c.Usable(key) {
				results[i].skip(key+" has a problem", name)
				return
			}
		}
		wg.Go(func() { results[i].add(name, "", ask()...) })
	}
	side(0, checkFeatures, nil, func() []problem { return problemsOf(c, "kafka.brokers", a.CheckFeatures(ctx, brokers)) })
	side(1, checkTxn, []string{keyTxn}, func() []problem { return problemsOf(c, keyTxn, a.CheckTransactionTimeout(ctx, brokers)) })
	side(2, checkSession, []string{keySession}, func() []problem { return problemsOf(c, keySession, a.CheckSessionTimeout(ctx, brokers)) })
	wg.Go(func() { a.lookUp(ctx, c, &results[3]) })
	side(4, checkRights, []string{"job", "kafka.topic"}, func() (all []problem) {
		for _, p := range problemsOf(c, "job", a.CheckRights(ctx)) {
			if p.What == "topic "+c.Kafka.Topic {
				p = p.at(c, "kafka.topic")
			}
			all = append(all, p)
		}
		return all
	})
	wg.Wait()
	for _, r := range results {
		f.join(r)
	}
	return a
}

// askSeeds asks each configured broker, and returns those that have answered.
// seeds are by their place in the configuration.
func askSeeds(ctx context.Context, c *config.Config, cfg consume.Config, seeds map[int]string, f *findings) (answering []string) {
	places := sortedKeys(seeds)
	for _, i := range places {
		cfg.Brokers = append(cfg.Brokers, seeds[i])
	}
	client, err := consume.Open(cfg)
	if err != nil { // the configuration's own check has asked the same
		f.add("Kafka", "", problemsOf(c, "kafka", err)...)
		return nil
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, connectKafka)
	defer cancel()
	for n, err := range client.Seeds(ctx) {
		f.add("broker "+cfg.Brokers[n], "", problemsOf(c, fmt.Sprintf("kafka.brokers[%d]", places[n]), err)...)
		if err == nil {
			answering = append(answering, cfg.Brokers[n])
		}
	}
	return answering
}

// lookUp looks for the input, and for the job's own topics.
func (a *asked) lookUp(ctx context.Context, c *config.Config, f *findings) {
	if !c.Usable("kafka.topic") {
		f.skip("kafka.topic has a problem", checkInput, checkTopics)
		return
	}
	input, err := a.LookUp(ctx)
	if err != nil {
		f.add(checkInput, "", problemsOf(c, "kafka.topic", err)...)
		f.skip("the input topic could not be looked up", checkTopics)
		return
	}
	a.input = &input
	f.add(checkInput, fmt.Sprintf("%s has %d partitions", c.Kafka.Topic, input.Partitions))
	if !c.Usable("job") {
		f.skip("job has a problem", checkTopics)
		return
	}
	absent, err := a.CheckTopics(ctx, input, c.FirstStart || !c.Usable("first_start"))
	detail := ""
	if len(absent) > 0 {
		detail = strings.Join(absent, ", ") + " will be created by the first start"
	}
	f.add(checkTopics, detail, problemsOf(c, "job", err)...)
	// Of a topic that can't be had, no lane says more.
	missing := slices.ContainsFunc(checkpoint.Problems(err), func(err error) bool {
		r := checkpoint.AsRefusal(err)
		return r == nil || r.Reason == checkpoint.ReasonTopicMissing
	})
	a.absent, a.lanes = absent, !missing
}

// usableKafka is the configuration with defaults where Kafka's part of it can't
// be used. What is judged by them is not checked.
func usableKafka(c *config.Config) *config.Config {
	u, d := *c, config.Default()
	for path, repair := range map[string]func(){
		"job":                   func() { u.Job = "unknown" },
		"kafka.topic":           func() { u.Kafka.Topic = "unknown" },
		keySession:              func() { u.Kafka.SessionTimeout = d.Kafka.SessionTimeout },
		keyTxn:                  func() { u.Kafka.TransactionTimeout = d.Kafka.TransactionTimeout },
		"kafka.max_batch_bytes": func() { u.Kafka.MaxBatchBytes = d.Kafka.MaxBatchBytes },
		"memory.max_bytes":      func() { u.Memory.MaxBytes = d.Memory.MaxBytes },
	} {
		if !c.Usable(path) {
			repair()
		}
	}
	u.Kafka.Brokers = nil
	return &u
}

// usableBrokers are the configured brokers that can be asked, by their place.
func usableBrokers(c *config.Config) map[int]string {
	usable := map[int]string{}
	for i, b := range c.Kafka.Brokers {
		if c.Usable(fmt.Sprintf("kafka.brokers[%d]", i)) {
			usable[i] = b
		}
	}
	return usable
}

// clockWarnings are about shards whose clock is so far from ours that one of the
// two must be wrong: events are held against ours.
func clockWarnings(c *config.Config, facts []txsink.Facts) (warnings []string) {
	const precision = time.Second // more is worth a word, however small the skew is
	for _, f := range facts {
		if !c.Usable("dedup.skew") || f.ClockAhead.Abs() <= max(c.Dedup.Skew, precision) {
			continue
		}
		apart, side, then := f.ClockAhead, "behind", "events of this moment would be rejected as in_future"
		if apart < 0 {
			apart, side, then = -apart, "ahead of", "events that lie in the future would be booked"
		}
		warnings = append(warnings, fmt.Sprintf("dedup.skew: this machine's clock is %s %s that of shard %s, more than %s: if it is this one that is wrong, %s",
			apart.Round(time.Second), side, f.Shard, c.Dedup.Skew, then))
	}
	return warnings
}

// connectionWarnings are about servers that take fewer connections than this one
// instance may open.
func connectionWarnings(facts []txsink.Facts) (warnings []string) {
	names, open := map[string][]string{}, map[string]int{}
	for _, f := range facts {
		names[f.Server] = append(names[f.Server], f.Shard)
		open[f.Server] += f.Connections
	}
	for _, f := range facts {
		if f.Shard != names[f.Server][0] || f.MaxConnections >= open[f.Server] {
			continue
		}
		warnings = append(warnings, fmt.Sprintf("shards: the server of %s takes %d connections (max_connections), each instance may open %d there",
			strings.Join(names[f.Server], ", "), f.MaxConnections, open[f.Server]))
	}
	return warnings
}
