package consumetest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/checkpoint"
	"billing/internal/consume"
)

// Topics is the suite of what is checked at the start.
func Topics(t *testing.T, brokers []string) {
	t.Run("the job's topics", func(t *testing.T) {
		r := NewRig(t, brokers, 2)
		c := r.Open(t, nil)
		in, err := c.Check(t.Context())
		if err != nil || in.Partitions != 2 || in.ID.IsZero() || in.Replication != 1 {
			t.Fatalf("%+v, %v", in, err)
		}
		if err := c.EnsureTopics(t.Context(), false); err != nil { // they are there
			t.Fatal(err)
		}
		refused := func(err error, reason, says string) {
			t.Helper()
			var r *checkpoint.Refusal
			if !errors.As(err, &r) || r.Reason != reason || r.Scope != checkpoint.EndsProcess || !strings.Contains(r.Error(), says) {
				t.Fatalf("got %v, want %s: %s", err, reason, says)
			}
		}
		missing := r.Open(t, func(c *consume.Config) { c.Job = "other-" + r.Job })
		refused(missing.EnsureTopics(t.Context(), false), checkpoint.ReasonTopicMissing, "first_start")
		nowhere := r.Open(t, func(c *consume.Config) { c.Topic = "nowhere" })
		_, err = nowhere.Check(t.Context())
		refused(err, checkpoint.ReasonTopicMissing, "nowhere")
		refused(nowhere.EnsureTopics(t.Context(), true), checkpoint.ReasonTopicMissing, "nowhere")
		patient := r.Open(t, func(c *consume.Config) { c.TransactionTimeout = time.Hour })
		_, err = patient.Check(t.Context())
		refused(err, checkpoint.ReasonTransactionTimeout, "transaction.max.timeout.ms")
		_, err = patient.Fence(t.Context(), r.Lane(0))
		refused(err, checkpoint.ReasonTransactionTimeout, "transaction.max.timeout.ms")

		for key, value := range map[string]string{"cleanup.policy": "compact", "retention.ms": "1000", "retention.bytes": "1000", "max.message.bytes": "1000"} {
			set := func(op kadm.IncrementalOp) {
				t.Helper()
				answers, err := r.Admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: op, Name: key, Value: kmsg.StringPtr(value)}}, c.StateTopic())
				if err != nil || answers[0].Err != nil {
					t.Fatal(err, answers)
				}
			}
			set(kadm.SetConfig)
			// A broker knows a change a moment after the answer.
			Eventually(t, func() error {
				err := c.EnsureTopics(t.Context(), true)
				var r *checkpoint.Refusal
				if errors.As(err, &r) && r.Reason == checkpoint.ReasonTopicConfig && strings.Contains(err.Error(), key) {
					return nil
				}
				return fmt.Errorf("%s: got %v", key, err) //nolint:errorlint // a wrapped refusal would end Eventually
			})
			value = map[string]string{"cleanup.policy": "delete", "max.message.bytes": "1048588"}[key]
			if value == "" {
				value = "-1"
			}
			set(kadm.SetConfig)
			Eventually(t, func() error { return errString(c.EnsureTopics(t.Context(), true)) })
		}

		if created, err := r.Admin.CreateTopic(t.Context(), 1, 1, nil, "f-"+r.Job+".state"); errors.Join(err, created.Err) != nil {
			t.Fatal(err, created.Err)
		}
		fewer := r.Open(t, func(c *consume.Config) { c.Job = "f-" + r.Job })
		refused(fewer.EnsureTopics(t.Context(), true), checkpoint.ReasonPartitionsChanged, "new topic")
		if created, err := r.Admin.CreateTopic(t.Context(), 3, 1, nil, "o-"+r.Job+".decision"); errors.Join(err, created.Err) != nil {
			t.Fatal(err, created.Err)
		}
		other := r.Open(t, func(c *consume.Config) { c.Job = "o-" + r.Job })
		refused(other.EnsureTopics(t.Context(), true), checkpoint.ReasonTopicConfig, "3 partitions")
	})

	t.Run("the input alone is raised", func(t *testing.T) {
		r := NewRig(t, brokers, 1)
		c := r.Open(t, nil)
		raised, err := r.Admin.UpdatePartitions(t.Context(), 2, r.Topic)
		if err := errors.Join(err, raised.Error()); err != nil {
			t.Fatal(err)
		}
		// A broker knows of it a moment after the answer.
		refused := func(what string, try func() error) {
			t.Helper()
			Eventually(t, func() error {
				err := try()
				var r *checkpoint.Refusal
				if !errors.As(err, &r) || r.Reason != checkpoint.ReasonPartitionsChanged {
					return fmt.Errorf("%s: got %v", what, err) //nolint:errorlint // a wrapped refusal would end Eventually
				}
				if r.Scope != checkpoint.EndsProcess || r.What != what || !strings.Contains(r.Next, "new topic") {
					t.Fatal(err)
				}
				return nil
			})
		}
		for p := range int32(2) { // the new lane, and the old one at its next start
			refused(r.Lane(p).String(), func() error {
				_, err := Fence(t, c, r.Lane(p)).Read(t.Context())
				return err
			})
		}
		refused(c.DecisionTopic(), func() error { return c.EnsureTopics(t.Context(), false) })
	})
}

// errString keeps a refusal from ending Eventually: here it may pass.
func errString(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(err.Error())
}
