package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"billing/cmd/billing/config"
	"billing/internal/admin"
	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/event"
	"billing/internal/pipeline"
	"billing/internal/txsink"

	"github.com/spf13/cobra"
)

// The end of the process: SIGTERM to exit within 20 s is the contract. What is
// not finished by then is left to the next owner's recovery, as in a crash.
const (
	drainGrace  = 5 * time.Second  // for epochs in flight
	leaveWithin = 2 * time.Second  // for leaving the group
	exitWithin  = 18 * time.Second // whatever happens
)

// Bounds of the lanes that are not worth a key of the configuration.
const (
	stoppedRetry = time.Minute // a stopped lane looks again: a repair needs no restart
	idleMove     = time.Minute // an idle lane's offset follows a tail without records
)

// acceptable is the closed list of what --accept takes, and what it means.
var acceptable = []struct{ reason, what, meaning string }{
	{checkpoint.ReasonServerChanged, "SHARD", "the shard is another server than recorded, after a planned failover that lost nothing; the new one is recorded"},
	{checkpoint.ReasonOffsetReset, "LANE", "drop the offset that an administrator has set for the lane (TOPIC/PARTITION), and go on from the lane's own decision"},
}

func newRunCommand() *cobra.Command {
	var accept []string
	var list strings.Builder
	for _, a := range acceptable {
		fmt.Fprintf(&list, "  %s:%s\n      %s\n", a.reason, a.what, a.meaning)
	}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the service",
		Long: `Joins the job's consumer group and bills the messages of the lanes that it is given,
until SIGTERM or SIGINT: then it ends with 0 within 20 s. Any number of instances
may run with the same configuration.

Servers that can't be reached, at the start or later, are waited for. A refusal
that concerns the whole job ends the process with 3; one that concerns a lane
stops that lane, which looks again every minute. /healthz names it.

Refusals that --accept REASON:WHAT overrides, each for one start:
` + list.String(),
		Example: `  billing run --config config.yaml
  # after a planned failover of shard eu-1
  billing run --config config.yaml --accept server-changed:eu-1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(configFlag(cmd), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			accepts, err := parseAccept(accept, c)
			if err != nil {
				return &usageError{err}
			}
			logger := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			return runService(cmd.Context(), c, accepts, logger)
		},
	}
	cmd.Flags().StringArrayVar(&accept, "accept", nil, "override the refusal `REASON:WHAT` (may be repeated)")
	return cmd
}

// parseAccept checks the operator's list against the closed one.
func parseAccept(list []string, c *config.Config) (func(reason, what string) bool, error) {
	accepted := map[string]bool{}
	for _, a := range list {
		reason, what, ok := strings.Cut(a, ":")
		known := false
		for _, k := range acceptable {
			known = known || k.reason == reason
		}
		if !ok || !known || what == "" {
			return nil, fmt.Errorf("--accept %q: want REASON:WHAT with a reason of the list in --help", a)
		}
		if reason == checkpoint.ReasonServerChanged {
			named := false
			for _, s := range c.Shards {
				named = named || s.Name == what
			}
			if !named {
				return nil, fmt.Errorf("--accept %q: there is no shard %q", a, what)
			}
		}
		if reason == checkpoint.ReasonOffsetReset && !strings.HasPrefix(what, c.Kafka.Topic+"/") {
			return nil, fmt.Errorf("--accept %q: want a lane of topic %s, such as %s/0", a, c.Kafka.Topic, c.Kafka.Topic)
		}
		accepted[a] = true
	}
	return func(reason, what string) bool { return accepted[reason+":"+what] }, nil
}

// runService is the whole service: open, check, run the lanes, let them go.
func runService(ctx context.Context, c *config.Config, accept func(reason, what string) bool, log *slog.Logger) error {
	log.Info("starting", "version", thisBuild().Version, "commit", thisBuild().Commit, "job", c.Job, "topic", c.Kafka.Topic, "shards", len(c.Shards))
	view := &view{interval: c.Checkpoint.Interval, limit: c.Dedup.MaxIDs}
	metrics := NewMetrics(view.gauges)
	port := admin.New(admin.Config{Listen: c.Admin.Listen, Health: view.health, Ready: view.ready, Metrics: metrics.Handler(), Logger: log})
	if err := port.Start(ctx); err != nil {
		return &usageError{fmt.Errorf("admin.listen: %w", err)}
	}
	log.Info("admin port open", "address", port.Addr())
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = port.Shutdown(end)
	}()

	// Whatever a server or a network does, the process ends in time.
	context.AfterFunc(ctx, func() {
		time.AfterFunc(exitWithin, func() {
			log.Warn("not everything ended in time: the next owner's recovery finishes it", "after", exitWithin)
			os.Exit(exitDone)
		})
	})

	sinkCfg := sinkConfig(c, log)
	sinkCfg.Accept = accept
	sink, err := txsink.Open(sinkCfg)
	if err != nil {
		return &usageError{err}
	}
	defer sink.Close()
	kafka, err := consume.Open(consume.Config{
		Brokers: c.Kafka.Brokers, Job: c.Job, Topic: c.Kafka.Topic, InstanceID: c.Kafka.InstanceID,
		SessionTimeout: c.Kafka.SessionTimeout, TransactionTimeout: c.Kafka.TransactionTimeout,
		LeaveTimeout: leaveWithin, Logger: log,
	})
	if err != nil {
		return &usageError{err}
	}
	defer kafka.Close()

	// Servers that can't be reached are waited for; refusals are not.
	if err := await(ctx, log, view, "the shards", sink.Check); err != nil {
		return err
	}
	if err := await(ctx, log, view, "Kafka", func(ctx context.Context) error {
		if _, err := kafka.Check(ctx); err != nil {
			return err
		}
		return kafka.EnsureTopics(ctx, c.FirstStart)
	}); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}

	job := &checkpoint.Job{
		Name: c.Job, Topic: c.Kafka.Topic, Set: sink.SetID(),
		Fingerprint: checkpoint.Fingerprint(sink.SetID(), c.Aggregate.Window, c.Message.TypePrefix),
		Build:       thisBuild().Version, FirstStart: c.FirstStart,
		Kafka: kafka, Shards: sink.Shards(), Limits: checkpoint.DefaultLimits(c.Kafka.TransactionTimeout),
		Accept: accept, Listener: listener(metrics, log), //nolint:contextcheck // its context is only for the logger
	}
	lanes := pipeline.New(pipeline.Config{
		Job: job, Interval: c.Checkpoint.Interval, MaxRecords: c.Checkpoint.MaxRecords, MaxBytes: c.Checkpoint.MaxBytes,
		Lateness: c.Dedup.Lateness, Skew: c.Dedup.Skew, MaxIDs: c.Dedup.MaxIDs,
		Window: c.Aggregate.Window, Ledger: c.Ledger.Enabled,
		Decoder:      event.Config{TypePrefix: c.Message.TypePrefix, Currencies: c.Message.Currencies, AmountAsNumber: c.Message.AmountAsNumber},
		StoppedRetry: stoppedRetry, IdleMove: idleMove,
		Now: time.Now, Logger: log,
	})
	lanes.Bind(source{kafka})
	view.lanes.Store(lanes)

	group, leave := context.WithCancel(context.WithoutCancel(ctx))
	left := make(chan error, 1)
	go func() { left <- kafka.Run(group, lanes) }()

	var fatal error
	select {
	case <-ctx.Done():
		log.Info("stopping: finishing what is in flight", "within", drainGrace)
	case fatal = <-lanes.Fatal():
	case err := <-left:
		leave()
		return fmt.Errorf("consumer group: %w", err)
	}
	// Lanes first, while the group still counts us in: an epoch past its barrier
	// may need the group's generation to be decided.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainGrace)
	defer cancel()
	lanes.Drain(grace)
	leave()
	<-left //nolint:errcheck // a group that was left has nothing to say any more
	if fatal == nil {
		log.Info("stopped")
	}
	return fatal
}

// await repeats check until it works, a refusal ends it, or ctx ends.
func await(ctx context.Context, log *slog.Logger, view *view, what string, check func(context.Context) error) error {
	for wait := 250 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		try, cancel := context.WithTimeout(ctx, 30*time.Second)
		err := check(try)
		cancel()
		var refused *checkpoint.Refusal
		switch {
		case err == nil:
			view.waiting.Store(nil)
			return nil
		case errors.As(err, &refused):
			return err
		case ctx.Err() != nil:
			return nil //nolint:nilerr // asked to stop while waiting
		}
		msg := fmt.Sprintf("waiting for %s: %v", what, err)
		view.waiting.Store(&msg)
		log.Warn("waiting for a server", "for", what, "err", err, "again_in", wait)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// source is the consumer as the lanes see it.
type source struct{ *consume.Client }

// Assigned is S0: ours, and the group's word is fresh.
func (s source) Assigned(partition int32) bool {
	return s.Client.Assigned(partition) && s.Fresh()
}
