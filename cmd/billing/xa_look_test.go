package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"billing/internal/consume"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestTopicsToSee: which of what is wrong with the job's topics is in the way of
// reading decisions.
func TestTopicsToSee(t *testing.T) {
	fit := map[string]*string{"cleanup.policy": kmsg.StringPtr("compact")}
	unfit := map[string]*string{"cleanup.policy": kmsg.StringPtr("delete"), "retention.ms": kmsg.StringPtr("1000")}
	for name, c := range map[string]struct {
		decision, state map[string]*string // nil: it is not there
		firstStart      bool
		says            string // "": lanes can be read
	}{
		"both are unfit":               {decision: unfit, state: unfit},
		"unfit and missing":            {decision: unfit, says: "(topic-missing) job.state"},
		"missing and unfit":            {state: unfit, says: "(topic-missing) job.decision"},
		"none is there":                {says: "(topic-missing) job.decision"},
		"before the first start":       {firstStart: true},
		"one is there, first_start on": {decision: fit, firstStart: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokers, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "usage"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(brokers.Close)
			raw, err := kgo.NewClient(kgo.SeedBrokers(brokers.ListenAddrs()...))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(raw.Close)
			for topic, config := range map[string]map[string]*string{"job.decision": c.decision, "job.state": c.state} {
				if config == nil {
					continue
				}
				if created, err := kadm.NewClient(raw).CreateTopic(t.Context(), 1, 1, config, topic); errors.Join(err, created.Err) != nil {
					t.Fatal(err, created.Err)
				}
			}
			client, err := consume.Open(consume.Config{
				Brokers: brokers.ListenAddrs(), Job: "job", Topic: "usage", SessionTimeout: 6 * time.Second,
				TransactionTimeout: 3 * time.Second, RequestTimeout: time.Second, ReadTimeout: 3 * time.Second, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(client.Close)

			k := &kafkaToSee{Client: client, firstStart: c.firstStart}
			topic, err := k.Topic(t.Context())
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "decisions can't be read: ") || strings.Contains(err.Error(), "topic-config") {
					t.Errorf("%v, want %s", err, c.says)
				}
				return
			}
			if err != nil || topic.IsZero() {
				t.Fatalf("%v, %v", topic, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), lookWithin)
			defer cancel()
			if r, err := k.Look(ctx, 0); err != nil || r.TopicID != topic || r.HasOffset || r.Record != "" {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}
