package consume

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"billing/internal/checkpoint"
)

// Input is the input topic as found.
type Input struct {
	ID          checkpoint.UUID
	Partitions  int32
	Replication int
}

// Check looks whether the brokers can do what the protocol needs, and whether
// the input topic is there. A *checkpoint.Refusal ends the process; any other
// error says that a broker could not be reached, or was not ready.
func (c *Client) Check(ctx context.Context) (Input, error) {
	admin := kadm.NewClient(c.fetch.cl)
	if err := c.checkFeatures(ctx, admin); err != nil {
		return Input{}, err
	}
	if err := c.checkTimeout(ctx, admin); err != nil {
		return Input{}, err
	}
	return c.input(ctx)
}

func refuse(reason, what, next, wrong string, args ...any) *checkpoint.Refusal {
	return &checkpoint.Refusal{Scope: checkpoint.EndsProcess, Reason: reason, What: what, Wrong: fmt.Sprintf(wrong, args...), Next: next}
}

// Before version 2 of its transactions a broker may let a delayed EndTxn
// decide a later transaction.
const (
	featureTransactions = "transaction.version"
	featureLevel        = 2
)

func (c *Client) checkFeatures(ctx context.Context, admin *kadm.Client) error {
	brokers, err := admin.ApiVersions(ctx)
	if err != nil {
		return fmt.Errorf("kafka: ask the brokers for their versions: %w", err)
	}
	if len(brokers) == 0 {
		return errors.New("kafka: the cluster names no broker yet")
	}
	for _, broker := range brokers.Sorted() {
		if broker.Err != nil {
			return fmt.Errorf("kafka: ask broker %d for its versions: %w", broker.NodeID, broker.Err)
		}
		raw := broker.Raw()
		if raw.FinalizedFeaturesEpoch < 0 && len(raw.SupportedFeatures) > 0 {
			return fmt.Errorf("kafka: broker %d does not know the cluster's features yet", broker.NodeID)
		}
		level := int16(0)
		kversion.FromApiVersionsResponse(raw).EachFinalizedFeature(func(name string, l int16) {
			if name == featureTransactions {
				level = l
			}
		})
		if level < featureLevel {
			return refuse(checkpoint.ReasonBrokerFeature, fmt.Sprintf("broker %d", broker.NodeID),
				"use brokers of Kafka 4.0 or later, and raise the feature: kafka-features.sh upgrade --feature "+featureTransactions+"="+strconv.Itoa(featureLevel),
				"%s is %d, %d is needed: before it a delayed request can decide a later transaction", featureTransactions, level, featureLevel)
		}
	}
	return nil
}

const configMaxTimeout = "transaction.max.timeout.ms"

// checkTimeout finds out now what the first fence would be told. A cluster
// that doesn't show its brokers' configuration still tells it then.
func (c *Client) checkTimeout(ctx context.Context, admin *kadm.Client) error {
	brokers, err := admin.ListBrokers(ctx)
	if err != nil {
		return fmt.Errorf("kafka: list the brokers: %w", err)
	}
	configs, err := admin.DescribeBrokerConfigs(ctx, brokers.NodeIDs()...)
	var denied *kadm.AuthError
	if errors.As(err, &denied) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kafka: read the brokers' configuration: %w", err)
	}
	for _, broker := range configs {
		for _, config := range broker.Configs {
			if config.Key != configMaxTimeout || config.Value == nil {
				continue
			}
			if limit, err := strconv.ParseInt(*config.Value, 10, 64); err == nil && c.cfg.TransactionTimeout.Milliseconds() > limit {
				return c.refuseTimeout("broker "+broker.Name, fmt.Sprintf(" (%s is %d)", configMaxTimeout, limit), nil)
			}
		}
	}
	return nil
}

func (c *Client) refuseTimeout(what, limit string, err error) error {
	r := refuse(checkpoint.ReasonTransactionTimeout, what, "lower kafka.transaction_timeout, or raise the broker's "+configMaxTimeout,
		"the transaction timeout of %s is more than the broker allows%s", c.cfg.TransactionTimeout, limit)
	r.Err = err
	return r
}

func (c *Client) input(ctx context.Context) (Input, error) {
	t, err := describeTopic(ctx, c.fetch.cl, c.cfg.Topic)
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return Input{}, refuse(checkpoint.ReasonTopicMissing, c.cfg.Topic, "create it, or correct kafka.topic", "there is no topic of this name")
	}
	if err != nil {
		return Input{}, fmt.Errorf("kafka: look up topic %s: %w", c.cfg.Topic, err)
	}
	return Input{ID: t.TopicID, Partitions: int32(len(t.Partitions)), Replication: len(t.Partitions[0].Replicas)}, nil
}

// ownTopic is one of the two topics that the service writes.
type ownTopic struct {
	name   string
	create map[string]*string
	// wrong says what of an existing topic's configuration does not do.
	wrong func(config map[string]string) string
}

// maxChunk is the size of a state chunk with room for the batch around it.
const maxChunk = 768 << 10

func (c *Client) ownTopics() []ownTopic {
	return []ownTopic{
		{
			name:   c.DecisionTopic(),
			create: map[string]*string{"cleanup.policy": kmsg.StringPtr("compact")},
			wrong: func(config map[string]string) string {
				if config["cleanup.policy"] != "compact" {
					return fmt.Sprintf("cleanup.policy is %q, want \"compact\": a deleted decision stops its lane", config["cleanup.policy"])
				}
				return ""
			},
		},
		{
			name: c.StateTopic(),
			create: map[string]*string{
				"cleanup.policy":    kmsg.StringPtr("delete"),
				"retention.ms":      kmsg.StringPtr("-1"),
				"retention.bytes":   kmsg.StringPtr("-1"),
				"max.message.bytes": kmsg.StringPtr("1048588"),
			},
			wrong: func(config map[string]string) string {
				var wrong []string
				for key, want := range map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"} {
					if config[key] != want {
						wrong = append(wrong, fmt.Sprintf("%s is %q, want %q", key, config[key], want))
					}
				}
				if limit, err := strconv.ParseInt(config["max.message.bytes"], 10, 64); err == nil && limit < maxChunk {
					wrong = append(wrong, fmt.Sprintf("max.message.bytes is %d, want at least %d", limit, maxChunk))
				}
				return strings.Join(wrong, ", ")
			},
		},
	}
}

// EnsureTopics looks after the topics of decisions and of dedup state: where
// they are missing it creates them, if create says so, with the input's
// partition count and replication. It returns when all their partitions have a
// leader. A *checkpoint.Refusal ends the process.
func (c *Client) EnsureTopics(ctx context.Context, create bool) error {
	admin := kadm.NewClient(c.fetch.cl)
	input, err := c.input(ctx)
	if err != nil {
		return err
	}
	for _, topic := range c.ownTopics() {
		if err := c.ensureTopic(ctx, admin, topic, input, create); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) ensureTopic(ctx context.Context, admin *kadm.Client, topic ownTopic, input Input, create bool) error {
	made := false
	for n := 1; ; n++ {
		t, err := describeTopic(ctx, c.fetch.cl, topic.name)
		if err == nil {
			err = leaders(t)
		}
		if err == nil {
			switch has := int32(len(t.Partitions)); {
			case has < input.Partitions:
				return refusePartitions(topic.name, topic.name, has, c.cfg.Topic, input.Partitions)
			case has > input.Partitions:
				return refuse(checkpoint.ReasonTopicConfig, topic.name, "leave the input as it is; see the runbook: its partitions belong to those of the input, one to one",
					"the topic has %d partitions, the input %s has %d", has, c.cfg.Topic, input.Partitions)
			}
			return c.checkConfig(ctx, admin, topic)
		}
		// A topic that was just made may be unknown to a broker for a while.
		if errors.Is(err, kerr.UnknownTopicOrPartition) && !made {
			if !create {
				return refuse(checkpoint.ReasonTopicMissing, topic.name,
					"if this job is new, set first_start: true; if not, the topic was lost: restore it",
					"there is no topic of this name, and first_start is off")
			}
			created, cerr := admin.CreateTopic(ctx, input.Partitions, int16(input.Replication), topic.create, topic.name)
			if cerr == nil {
				cerr = created.Err
			}
			if cerr != nil && !errors.Is(cerr, kerr.TopicAlreadyExists) {
				return fmt.Errorf("kafka: create topic %s: %w %s", topic.name, cerr, created.ErrMessage)
			}
			made = true
		} else if !transient(err) {
			return fmt.Errorf("kafka: look up topic %s: %w", topic.name, err)
		}
		if cerr := pause(ctx, retryBackoff(n)); cerr != nil {
			return fmt.Errorf("kafka: topic %s is not ready: %w, last: %w", topic.name, cerr, err)
		}
	}
}

// refusePartitions: the input has more partitions than one of our topics. Ours
// must not be raised to it: the input is what has changed.
func refusePartitions(what, own string, has int32, input string, want int32) *checkpoint.Refusal {
	return refuse(checkpoint.ReasonPartitionsChanged, what, "stop the producers, and raise nothing else; drain, write to a new topic with the new count, and start a new job on it; see the runbook",
		"topic %s now has %d partitions, %s has %d: keys have moved between lanes, and with them the ids to compare with", input, want, own, has)
}

// leaders fails with LEADER_NOT_AVAILABLE and the like.
func leaders(t *kmsg.MetadataResponseTopic) error {
	for i := range t.Partitions {
		if err := kerr.ErrorForCode(t.Partitions[i].ErrorCode); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) checkConfig(ctx context.Context, admin *kadm.Client, topic ownTopic) error {
	resources, err := admin.DescribeTopicConfigs(ctx, topic.name)
	var found kadm.ResourceConfig
	if err == nil {
		found, err = resources.On(topic.name, nil)
	}
	if err == nil {
		err = found.Err
	}
	if err != nil {
		return fmt.Errorf("kafka: read the configuration of topic %s: %w", topic.name, err)
	}
	config := make(map[string]string, len(found.Configs))
	for _, entry := range found.Configs {
		config[entry.Key] = entry.MaybeValue()
	}
	if wrong := topic.wrong(config); wrong != "" {
		return refuse(checkpoint.ReasonTopicConfig, topic.name, "set it with kafka-configs.sh", "%s", wrong)
	}
	return nil
}
