package main

import (
	"errors"
	"log/slog"

	"billing/cmd/billing/config"
	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/txsink"
)

// sinkConfig is the part of the configuration that MySQL's side needs.
func sinkConfig(c *config.Config, logger *slog.Logger) txsink.Config {
	shards := make([]txsink.ShardConfig, len(c.Shards))
	for i, s := range c.Shards {
		shards[i] = txsink.ShardConfig{Name: s.Name, DSN: s.DSN.Reveal()}
	}
	return txsink.Config{Job: c.Job, Shards: shards, LedgerEnabled: c.Ledger.Enabled, Logger: logger}
}

// kafkaConfig is the part of the configuration that Kafka's side needs.
// unreachable may be nil.
func kafkaConfig(c *config.Config, logger *slog.Logger, unreachable func()) consume.Config {
	return consume.Config{
		Brokers: c.Kafka.Brokers, Job: c.Job, Topic: c.Kafka.Topic, InstanceID: c.Kafka.InstanceID,
		SessionTimeout: c.Kafka.SessionTimeout, TransactionTimeout: c.Kafka.TransactionTimeout,
		FetchBytes: c.Memory.MaxBytes / 2, MaxBatchBytes: c.Kafka.MaxBatchBytes, LeaveTimeout: leaveWithin, Logger: logger,
		Unreachable: unreachable,
	}
}

// quiet is for commands that only look: what their clients would log is in their
// answers.
var quiet = slog.New(slog.DiscardHandler)

// openToLook opens both sides for a command that only looks, without a network.
// The caller closes them.
func openToLook(c *config.Config, cfg txsink.Config) (*txsink.Sink, *consume.Client, error) {
	cfg.LooksOnly = true
	sink, err := txsink.Open(cfg)
	if err != nil {
		return nil, nil, &usageError{err}
	}
	kafka, err := consume.Open(kafkaConfig(c, quiet, nil))
	if err != nil {
		return nil, nil, errors.Join(&usageError{err}, sink.Close())
	}
	return sink, kafka, nil
}

// newJob is what all lanes share. The shards are checked, and so is the input
// topic. accept may be nil.
func newJob(c *config.Config, sink *txsink.Sink, kafka *consume.Client, input consume.Input, accept func(reason, what string) bool) *checkpoint.Job {
	return &checkpoint.Job{
		Name: c.Job, Topic: c.Kafka.Topic, TopicID: input.ID, Partitions: input.Partitions, Set: sink.SetID(),
		Fingerprint: checkpoint.Fingerprint(sink.SetID(), c.Aggregate.Window, c.Message.TypePrefix),
		Settings:    checkpoint.Settings(c.Aggregate.Window, c.Message.TypePrefix),
		Build:       thisBuild().Version, FirstStart: c.FirstStart,
		Kafka: kafka, Shards: sink.Shards(), Limits: checkpoint.DefaultLimits(c.Kafka.TransactionTimeout),
		Accept: accept,
	}
}
