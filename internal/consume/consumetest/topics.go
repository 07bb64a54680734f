package consumetest

import (
	"errors"
	"fmt"
	"slices"
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

	t.Run("looking makes nothing", func(t *testing.T) {
		r := NewRig(t, brokers, 1)
		c := r.Open(t, func(c *consume.Config) { c.Job = "l-" + r.Job })
		in, err := c.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		both := []string{c.DecisionTopic(), c.StateTopic()}
		if absent, err := c.CheckTopics(t.Context(), in, true); err != nil || !slices.Equal(absent, both) {
			t.Errorf("absent: %v, %v", absent, err)
		}
		absent, err := c.CheckTopics(t.Context(), in, false)
		if problems := checkpoint.Problems(err); len(problems) != 2 || !slices.Equal(absent, both) {
			t.Errorf("with first_start off: absent %v, %v", absent, err)
		}
		for _, what := range []error{c.CheckRights(t.Context()), c.CheckTransactionTimeout(t.Context(), Brokers(t, c)), c.CheckSessionTimeout(t.Context(), Brokers(t, c))} {
			if what != nil {
				t.Error(what)
			}
		}
		// What is absent is read as it will be made.
		r.Write(t, 0, "a", "b")
		read, err := c.LookWithout(t.Context(), 0, absent)
		want := checkpoint.Read{TopicID: in.ID, Partitions: 1, LogEnd: 2}
		if err != nil || read != want {
			t.Errorf("read %+v, %v; want %+v", read, err, want)
		}
		topics, err := r.Admin.ListTopics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		groups, err := r.Admin.ListGroups(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range append(topics.Names(), groups.Groups()...) {
			if strings.HasPrefix(name, "l-"+r.Job) {
				t.Errorf("looking has made %s", name)
			}
		}

		// All problems of both topics.
		for name, config := range map[string]map[string]*string{
			c.DecisionTopic(): {"cleanup.policy": kmsg.StringPtr("delete")},
			c.StateTopic():    {"cleanup.policy": kmsg.StringPtr("delete"), "retention.ms": kmsg.StringPtr("1000")},
		} {
			if created, err := r.Admin.CreateTopic(t.Context(), 2, 1, config, name); errors.Join(err, created.Err) != nil {
				t.Fatal(err, created.Err)
			}
		}
		want4 := []string{"the topic has 2 partitions", `cleanup.policy is "delete"`, "the topic has 2 partitions", `retention.ms is "1000"`}
		for what, check := range map[string]func() error{
			"CheckTopics":  func() error { _, err := c.CheckTopics(t.Context(), in, true); return err },
			"EnsureTopics": func() error { return c.EnsureTopics(t.Context(), true) },
		} {
			Eventually(t, func() error { // a broker knows a new topic a moment after the answer
				err := check()
				problems := checkpoint.Problems(err)
				if len(problems) != len(want4) {
					return fmt.Errorf("%s: %d problems: %w", what, len(problems), errString(err))
				}
				for i, p := range problems {
					if r := checkpoint.AsRefusal(p); r == nil || r.Reason != checkpoint.ReasonTopicConfig || !strings.Contains(r.Wrong, want4[i]) {
						return fmt.Errorf("%s: problem %d: %w", what, i, errString(p))
					}
				}
				return nil
			})
		}
	})

	t.Run("everything that is wrong", func(t *testing.T) {
		r := NewRig(t, brokers, 1)
		c := r.Open(t, func(c *consume.Config) {
			c.Topic, c.TransactionTimeout, c.SessionTimeout, c.RebalanceTimeout = "nowhere", time.Hour, time.Hour, time.Hour
		})
		_, err := c.Check(t.Context())
		var got []string
		for _, p := range checkpoint.Problems(err) {
			got = append(got, checkpoint.AsRefusal(p).Reason)
		}
		if !slices.Equal(got, []string{checkpoint.ReasonTransactionTimeout, checkpoint.ReasonTopicMissing}) {
			t.Errorf("got %v", err)
		}
		var away *checkpoint.ServerError
		if err := c.CheckSessionTimeout(t.Context(), Brokers(t, c)); !errors.As(err, &away) || !away.TurnedAway || !strings.Contains(err.Error(), "group.max.session.timeout.ms is ") || !strings.Contains(away.Next, "kafka.session_timeout") {
			t.Errorf("session timeout: %v", err)
		}
	})

	t.Run("each seed", func(t *testing.T) {
		r := NewRig(t, brokers, 1)
		c := r.Open(t, func(c *consume.Config) { c.Brokers = []string{"127.0.0.1:1", brokers[0], "no-such-host.invalid:9092"} })
		errs := c.Seeds(t.Context())
		if len(errs) != 3 || errs[1] != nil {
			t.Fatalf("got %v", errs)
		}
		for i, want := range map[int][]string{0: {"127.0.0.1:1", "connection refused", "correct host and port in kafka.brokers"}, 2: {"no-such-host.invalid:9092", "correct the host in kafka.brokers"}} {
			var away *checkpoint.ServerError
			if !errors.As(errs[i], &away) || away.TurnedAway || away.What != want[0] {
				t.Fatalf("seed %d: %v", i, errs[i])
			}
			for _, word := range want {
				if !strings.Contains(errs[i].Error(), word) {
					t.Errorf("seed %d does not say %q: %v", i, word, errs[i])
				}
			}
		}
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

// Brokers are the cluster's.
func Brokers(t testing.TB, c *consume.Client) consume.Brokers {
	t.Helper()
	all, err := c.Brokers(t.Context())
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	return all
}

// errString keeps a refusal from ending Eventually: here it may pass.
func errString(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(err.Error())
}
