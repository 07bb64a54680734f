package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
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

func newRunCommand() *cobra.Command {
	var accept []string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the service: bill messages until it is told to end",
		Long: `Joins the job's consumer group and bills the messages of the lanes that it is
given, until SIGTERM or SIGINT. Any number of instances may run with the same
configuration; they share the lanes.

Servers that can't be reached, at the start or later, are waited for. A refusal
that concerns the whole job ends the process; one that concerns a lane stops
that lane, which looks again every minute: /healthz and billing status name it.
A new job's first start needs first_start: true.

Refusals that --accept REASON:WHAT overrides, each for one start:
` + acceptText(),
		Example: `  billing run --config config.yaml

  # the first instances of a new job
  BILLING_FIRST_START=true billing run --config config.yaml

  # after a planned failover of shard eu-1
  billing run --config config.yaml --accept server-changed:eu-1`,
		Annotations: exits(`0  it was told to end, and has ended within 20 s
2  wrong usage or configuration, or the admin port can't be opened
3  the whole job is refused; the last line says why, and the next step`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(configFlag(cmd), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			logger := newLogger(cmd.ErrOrStderr(), c)
			accepts, err := parseAccept(accept, c, logger, checkpoint.ReasonServerChanged, checkpoint.ReasonOffsetReset)
			if err != nil {
				return &usageError{err}
			}
			err = runService(cmd.Context(), c, accepts, logger)
			if err != nil && c.Log.Format == "json" {
				// Who collects objects gets the last line as one too.
				logger.Error("the service ends", "err", err)
				return &reportedError{err}
			}
			return err
		},
	}
	cmd.Flags().StringArrayVar(&accept, "accept", nil, "override the refusal `REASON:WHAT`, which is one of those above; may be repeated")
	return cmd
}

// runService is the whole service: open, check, run the lanes, let them go.
func runService(ctx context.Context, c *config.Config, accepts *acceptance, log *slog.Logger) error {
	log.Info("starting", "version", thisBuild().Version, "commit", thisBuild().Commit, "job", c.Job, "topic", c.Kafka.Topic, "shards", len(c.Shards))
	boundMemory(c, log)
	view := &view{job: c.Job, interval: c.Checkpoint.Interval, maxInterval: c.Checkpoint.MaxInterval, limit: c.Dedup.MaxIDs}
	metrics := NewMetrics(view.gauges, shardNames(c))
	port := admin.New(admin.Config{Listen: c.Admin.Listen, Health: view.health, Ready: view.ready, Status: view.instance, Metrics: metrics.Handler(), Logger: log})
	if err := port.Start(ctx); err != nil {
		return listenProblem(c, err)
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
	sinkCfg.Accept = accepts.accept
	sinkCfg.Refused = func(shard, why string) { metrics.ShardRefused(shard, why, 1) }
	sink, err := txsink.Open(sinkCfg)
	if err != nil {
		return &usageError{err}
	}
	defer sink.Close()
	kafkaCfg := kafkaConfig(c, log, func() { metrics.KafkaRefused(1) })
	kafkaCfg.AdminAddr = port.Addr()
	kafka, err := consume.Open(kafkaCfg)
	if err != nil {
		return &usageError{err}
	}
	defer kafka.Close()

	// Servers that can't be reached are waited for; refusals are not.
	if err := await(ctx, log, view, "the shards", sink.Check); err != nil {
		return err
	}
	for _, warning := range slices.Concat(clockWarnings(c, sink.Facts()), connectionWarnings(sink.Facts())) {
		log.Warn(warning)
	}
	accepts.tellUnused(checkpoint.ReasonServerChanged)
	var missing time.Time // since when a topic is missing
	var input consume.Input
	var found map[int32]string
	if err := await(ctx, log, view, "Kafka", func(ctx context.Context) (err error) {
		defer func() {
			// A broker that has just started may not know all topics yet.
			if r := checkpoint.AsRefusal(err); r == nil || r.Reason != checkpoint.ReasonTopicMissing {
				missing = time.Time{}
			} else if missing.IsZero() || time.Since(missing) < missingFor {
				if missing.IsZero() {
					missing = time.Now()
				}
				err = errors.New(r.Error())
			}
		}()
		if input, err = kafka.Check(ctx); err != nil {
			return err
		}
		if err = kafka.EnsureTopics(ctx, c.FirstStart); err != nil {
			return err
		}
		found, err = kafka.Decisions(ctx, input)
		return err
	}); err != nil {
		return err
	}
	if ctx.Err() != nil {
		log.Info("stopped")
		return nil
	}

	if err := accepts.inside(c.Kafka.Topic, input.Partitions); err != nil {
		return &usageError{err}
	}

	job := newJob(c, sink, kafka, input, accepts.accept)
	job.Listener = listener(metrics, view, log) //nolint:contextcheck // an event has none
	// Before joining: a deployment that must not run takes no lanes from one
	// that may.
	if err := job.SameDeployment(found, input.ID, input.Partitions); err != nil {
		return err
	}
	lanes := pipeline.New(pipeline.Config{
		Job: job, Interval: c.Checkpoint.Interval, MaxInterval: c.Checkpoint.MaxInterval,
		MaxRows: c.Checkpoint.MaxRows, MaxRecords: c.Checkpoint.MaxRecords, MaxBytes: c.Checkpoint.MaxBytes,
		MemoryBytes: c.Memory.MaxBytes,
		Lateness:    c.Dedup.Lateness, Skew: c.Dedup.Skew, MaxIDs: c.Dedup.MaxIDs,
		Window: c.Aggregate.Window, Ledger: c.Ledger.Enabled,
		Decoder:      event.Config{TypePrefix: c.Message.TypePrefix, Currencies: c.Message.Currencies, AmountAsNumber: c.Message.AmountAsNumber},
		StoppedRetry: stoppedRetry, IdleMove: idleMove,
		Now: time.Now, UnknownFields: metrics.UnknownFields, Paused: metrics.Paused, Logger: log,
	})
	log.Info("servers checked, joining the consumer group", "group", c.Job, "partitions", input.Partitions)
	lanes.Bind(source{kafka})
	view.lanes.Store(lanes)
	view.kafka.Store(kafka)

	group, leave := context.WithCancel(context.WithoutCancel(ctx))
	left := make(chan error, 1)
	go func() { left <- kafka.Run(group, lanes) }()
	var beside sync.WaitGroup
	defer beside.Wait()
	changed := make(chan error, 1)
	beside.Go(func() { reach(group, kafka, lanes) })
	beside.Go(func() { watch(group, kafka, job, changed) })
	beside.Go(func() { standstill(group, log) })

	var fatal error
	select {
	case <-ctx.Done():
		log.Info("stopping: finishing what is in flight", "within", drainGrace)
	case fatal = <-lanes.Fatal():
	case fatal = <-changed:
	case err := <-left:
		leave()
		return fmt.Errorf("consumer group: %w", err)
	}
	if fatal != nil {
		// The message itself is the process's last line, after the lanes have ended;
		// the bound is the same as after a signal.
		r := checkpoint.AsRefusal(fatal)
		log.Error("refused: the process ends", "reason", r.Reason, "what", r.What)
		time.AfterFunc(exitWithin, func() {
			log.Warn("not everything ended in time: the next owner's recovery finishes it", "after", exitWithin, "err", fatal)
			os.Exit(exitRefused)
		})
	}
	// Lanes first, while the group still counts us in: an epoch past its barrier
	// may need the group's generation to be decided.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainGrace)
	defer cancel()
	lanes.Drain(grace)
	leave()
	<-left //nolint:errcheck // a group that was left has nothing to say any more
	if fatal != nil {
		return fatal
	}
	select { // it came together with the signal, or while the lanes ended
	case refused := <-lanes.Fatal():
		log.Error("the next start will be refused", "err", refused)
	case refused := <-changed:
		log.Error("the next start will be refused", "err", refused)
	default:
	}
	log.Info("stopped")
	return nil
}

// listenProblem is that the admin port can't be opened.
func listenProblem(c *config.Config, err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err // the address is said anyway
	}
	var call *os.SyscallError
	if errors.As(err, &call) {
		err = call.Err
	}
	next := "give it an address of this machine, such as :8080"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		next = "another process listens there, perhaps another instance: end it, or give this one another port"
	case errors.Is(err, syscall.EACCES):
		next = "give it a port from 1024 up, such as :8080"
	}
	return &config.Error{Problems: []config.Problem{c.Problem("admin.listen",
		fmt.Sprintf("the admin port can't be opened at %s: %v. Next step: %s", c.Admin.Listen, err, next))}}
}

func shardNames(c *config.Config) (names []string) {
	for _, s := range c.Shards {
		names = append(names, s.Name)
	}
	return names
}

// missingFor is how long a topic must be missing to be taken for missing.
const missingFor = 5 * time.Second

// watchEvery is how often the input topic is looked at.
const watchEvery = 2 * time.Second

// watch looks whether the input topic is still the one that the lanes were
// started on, until ctx ends. More partitions move keys to lanes that have
// never seen their ids.
func watch(ctx context.Context, kafka *consume.Client, job *checkpoint.Job, changed chan<- error) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		try, cancel := context.WithTimeout(ctx, 10*time.Second)
		in, err := kafka.LookUp(try)
		cancel()
		if err != nil {
			continue // away, or not known to a broker that has just started
		}
		if err := job.SameTopic(in.ID, in.Partitions); err != nil {
			changed <- err
			return
		}
	}
}

// stoodStill is how long a process must have stood still for it to be said.
const stoodStill = 5 * time.Second

// standstill says that the process was stopped or starved, until ctx ends: its
// lanes are then perhaps somebody else's, and nothing else tells why.
func standstill(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if d := time.Since(last); d > stoodStill {
			log.Warn("this process stood still: stopped, or without processor time", "for", d.Round(time.Second))
		}
		last = time.Now()
	}
}

// lagEvery is how often the ends of the partitions are asked for.
const lagEvery = 15 * time.Second

// reach tells the lanes how far their partitions go, until ctx ends: a lane that
// waits for a shard takes nothing, and would hear nothing of its lag.
func reach(ctx context.Context, kafka *consume.Client, lanes *pipeline.Pipeline) {
	tick := time.NewTicker(lagEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		try, cancel := context.WithTimeout(ctx, lagEvery)
		if ends, err := kafka.Ends(try); err == nil {
			lanes.Reach(ends)
		}
		cancel()
	}
}

// await repeats check until it works, a refusal ends it, or ctx ends.
func await(ctx context.Context, log *slog.Logger, view *view, what string, check func(context.Context) error) error {
	for wait := 250 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		try, cancel := context.WithTimeout(ctx, 30*time.Second)
		err := check(try)
		cancel()
		switch {
		case err == nil:
			view.waiting.Store(nil)
			return nil
		case checkpoint.AsRefusal(err) != nil:
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
