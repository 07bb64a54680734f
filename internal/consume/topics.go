package consume

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/checkpoint"
)

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
			name: c.DecisionTopic(),
			create: map[string]*string{
				"cleanup.policy": kmsg.StringPtr("compact"),
				// Only the last decision counts. Those of the last two days are for repairs:
				// they say where each epoch ended when no shard does any more.
				"min.compaction.lag.ms": kmsg.StringPtr(strconv.FormatInt((48 * time.Hour).Milliseconds(), 10)),
			},
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
// leader. Its errors are Check's.
func (c *Client) EnsureTopics(ctx context.Context, create bool) error {
	input, err := c.LookUp(ctx)
	if err != nil {
		return err
	}
	var problems []error
	for _, topic := range c.ownTopics() {
		problems = append(problems, c.ensureTopic(ctx, topic, input, create))
	}
	return errors.Join(problems...)
}

// CheckTopics is EnsureTopics for who only looks. absent are the topics that are
// not there; without create they are refused, too.
func (c *Client) CheckTopics(ctx context.Context, input Input, create bool) (absent []string, err error) {
	var problems []error
	for _, topic := range c.ownTopics() {
		t, err := describeTopic(ctx, c.fetch.cl, topic.name)
		if err == nil {
			err = leaders(t)
		}
		switch {
		case err == nil:
			problems = append(problems, c.judge(ctx, topic, t, input))
		case !errors.Is(err, kerr.UnknownTopicOrPartition):
			problems = append(problems, failed(topic.name, "look up topic "+topic.name, err))
		default:
			absent = append(absent, topic.name)
			if !create {
				problems = append(problems, missingTopic(topic.name))
			}
		}
	}
	return absent, errors.Join(problems...)
}

func missingTopic(name string) *checkpoint.Refusal {
	return refuse(checkpoint.ReasonTopicMissing, name,
		"before a job's first start that is as it should be: set first_start: true, and the start creates it; if the job is not new, the topic was lost: restore it",
		"there is no topic of this name, and first_start is off")
}

func (c *Client) ensureTopic(ctx context.Context, topic ownTopic, input Input, create bool) error {
	made := false
	for n := 1; ; n++ {
		t, err := describeTopic(ctx, c.fetch.cl, topic.name)
		if err == nil {
			err = leaders(t)
		}
		if err == nil {
			return c.judge(ctx, topic, t, input)
		}
		// A topic that was just made may be unknown to a broker for a while.
		if errors.Is(err, kerr.UnknownTopicOrPartition) && !made {
			if !create {
				return missingTopic(topic.name)
			}
			created, cerr := kadm.NewClient(c.fetch.cl).CreateTopic(ctx, input.Partitions, int16(input.Replication), topic.create, topic.name)
			if cerr == nil {
				cerr = created.Err
			}
			if cerr != nil && !errors.Is(cerr, kerr.TopicAlreadyExists) {
				return failed(topic.name, "create topic "+topic.name, fmt.Errorf("%w %s", cerr, created.ErrMessage))
			}
			made = true
		} else if !transient(err) {
			return failed(topic.name, "look up topic "+topic.name, err)
		}
		if cerr := pause(ctx, retryBackoff(n)); cerr != nil {
			return failed(topic.name, "topic "+topic.name+" is not ready", fmt.Errorf("%w, last: %w", cerr, err))
		}
	}
}

// judge says what of a topic that is there does not do: its partitions, and its
// configuration.
func (c *Client) judge(ctx context.Context, topic ownTopic, t *kmsg.MetadataResponseTopic, input Input) error {
	var partitions error
	switch has := int32(len(t.Partitions)); {
	case has < input.Partitions:
		partitions = refusePartitions(topic.name, topic.name, has, c.cfg.Topic, input.Partitions)
	case has > input.Partitions:
		partitions = refuse(checkpoint.ReasonTopicConfig, topic.name, "leave the input as it is; see the runbook: its partitions belong to those of the input, one to one",
			"the topic has %d partitions, the input %s has %d", has, c.cfg.Topic, input.Partitions)
	}
	return errors.Join(partitions, c.checkConfig(ctx, topic))
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

func (c *Client) topicConfig(ctx context.Context, name string) (map[string]string, error) {
	resources, err := kadm.NewClient(c.fetch.cl).DescribeTopicConfigs(ctx, name)
	var found kadm.ResourceConfig
	if err == nil {
		found, err = resources.On(name, nil)
	}
	if err == nil {
		err = found.Err
	}
	if err != nil {
		return nil, failed(name, "read the configuration of topic "+name, err)
	}
	config := make(map[string]string, len(found.Configs))
	for _, entry := range found.Configs {
		config[entry.Key] = entry.MaybeValue()
	}
	return config, nil
}

// Compacted reports whether messages of the input may go although newer ones of
// their keys stay.
func (c *Client) Compacted(ctx context.Context) (bool, error) {
	config, err := c.topicConfig(ctx, c.cfg.Topic)
	return strings.Contains(config["cleanup.policy"], "compact"), err
}

func (c *Client) checkConfig(ctx context.Context, topic ownTopic) error {
	config, err := c.topicConfig(ctx, topic.name)
	if err != nil {
		return err
	}
	if wrong := topic.wrong(config); wrong != "" {
		return refuse(checkpoint.ReasonTopicConfig, topic.name, "set it with kafka-configs.sh", "%s", wrong)
	}
	return nil
}
