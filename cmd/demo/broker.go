package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// broker is a Kafka with the input topic, and the demo's own eyes on it.
type broker struct {
	what  string // it is
	addrs []string
	admin *kadm.Client
	close func() error
}

// embeddedBroker starts a Kafka in this process, on loopback. It keeps everything in memory.
func embeddedBroker(ctx context.Context) (*broker, error) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	b := &broker{what: "embedded broker", addrs: c.ListenAddrs(), close: func() error { c.Close(); return nil }}
	return b, b.open(ctx, nil)
}

// realBroker starts a container of the image: broker and controller in one process.
func realBroker(ctx context.Context, image string) (*broker, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	// Settings of a single node, as the tests' brokers have them.
	c, err := runContainer(ctx, "Kafka", image, port, 9092, map[string]string{
		"CLUSTER_ID":                                     "MkU3OEVBNTcwNTJENDM2Qk",
		"KAFKA_NODE_ID":                                  "1",
		"KAFKA_PROCESS_ROLES":                            "broker,controller",
		"KAFKA_CONTROLLER_QUORUM_VOTERS":                 "1@127.0.0.1:9093",
		"KAFKA_CONTROLLER_LISTENER_NAMES":                "CONTROLLER",
		"KAFKA_LISTENERS":                                "CLIENTS://0.0.0.0:9092,CONTROLLER://127.0.0.1:9093,BROKERS://127.0.0.1:9095",
		"KAFKA_ADVERTISED_LISTENERS":                     "CLIENTS://" + addr + ",BROKERS://127.0.0.1:9095",
		"KAFKA_INTER_BROKER_LISTENER_NAME":               "BROKERS",
		"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP":           "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"KAFKA_LOG_DIRS":                                 "/tmp/kafka-logs",
		"KAFKA_HEAP_OPTS":                                "-Xms512m -Xmx512m",
		"KAFKA_AUTO_CREATE_TOPICS_ENABLE":                "false",
		"KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR":         "1",
		"KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
		"KAFKA_TRANSACTION_STATE_LOG_MIN_ISR":            "1",
		// 50 by default: so many logs to make at the first use.
		"KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS":         "4",
		"KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "4",
		"KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS":     "0",
	})
	if err != nil {
		return nil, err
	}
	b := &broker{what: "Kafka in a container of " + image, addrs: []string{addr}, close: c.close}
	return b, b.open(ctx, c)
}

// open makes the topic, as soon as the broker answers, or closes the broker.
// c is its container, nil where it has none.
func (b *broker) open(ctx context.Context, c *container) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.addrs...), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", b.what, err), b.close())
	}
	end := b.close
	b.close = func() error { client.Close(); return end() }
	b.admin = kadm.NewClient(client)
	for begin := time.Now(); ; {
		if err = b.makeTopic(ctx); err == nil {
			return nil
		}
		if c != nil {
			if dead := c.running(ctx); dead != nil {
				return errors.Join(dead, b.close())
			}
		}
		if pause(ctx, 250*time.Millisecond) != nil || time.Since(begin) > 2*time.Minute {
			return errors.Join(fmt.Errorf("%s: does not answer: %w", b.what, err), b.close())
		}
	}
}

func (b *broker) makeTopic(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	made, err := b.admin.CreateTopic(ctx, partitions, 1, nil, topic)
	if err == nil {
		err = made.Err
	}
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("make topic %s: %w", topic, err)
	}
	_, err = b.ends(ctx)
	return err
}

// offsets has one for each partition.
type offsets [partitions]int64

func (o offsets) sum() (n int64) {
	for _, at := range o {
		n += at
	}
	return n
}

// ends are where the topic's partitions end: it begins at 0, and it was written
// without Kafka transactions, so this is how many messages there are.
func (b *broker) ends(ctx context.Context) (at offsets, err error) {
	listed, err := b.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return at, fmt.Errorf("%s: ask for the topic's ends: %w", b.what, err)
	}
	for p := range at {
		l, ok := listed.Lookup(topic, int32(p))
		if !ok {
			return at, fmt.Errorf("%s: ask for the topic's ends: no partition %d", b.what, p)
		}
		at[p] = l.Offset
	}
	return at, nil
}

// committed are the offsets that a group has committed, with their metadata.
func (b *broker) committed(ctx context.Context, group string) (at offsets, metadata [partitions]string, err error) {
	var fetched kadm.OffsetResponses
	for begin := time.Now(); ; {
		fetched, err = b.admin.FetchOffsets(ctx, group)
		// A broker makes its topic of offsets when it is first asked.
		if err == nil || !kerr.IsRetriable(err) || time.Since(begin) > time.Minute || pause(ctx, 100*time.Millisecond) != nil {
			break
		}
	}
	if errors.Is(err, kerr.GroupIDNotFound) { // nobody has joined it yet
		return at, metadata, nil
	}
	if err != nil {
		return at, metadata, fmt.Errorf("%s: ask for the offsets of group %s: %w", b.what, group, err)
	}
	for p := range at {
		if o, ok := fetched.Lookup(topic, int32(p)); ok && o.Err == nil {
			at[p], metadata[p] = max(0, o.At), o.Metadata
		}
	}
	return at, metadata, nil
}
