package servers

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// KafkaServer is a single node: broker and controller in one process.
type KafkaServer struct {
	server
	port, proxied, interBroker int
}

// Listeners inside the container. A broker must reach itself at what it advertises to brokers: with the clients'
// listener only, whose advertised port exists outside the container, the first transaction would hang for ever.
const (
	portClients     = "9092"
	portController  = "9093"
	portProxied     = "9094"
	portInterBroker = "9095"
)

// WithAdvertised gives the broker one more listener for clients, advertised as addr (host:port), where the test runs
// a proxy: clients that start from the proxy stay on it. The proxy forwards to KafkaServer.ProxyTarget.
func WithAdvertised(addr string) Option { return func(o *options) { o.advertised = addr } }

// WithInterBrokerProxy makes the broker reach itself (transaction markers, for one) through a proxy that the test
// runs: it listens on all addresses at port listen and forwards to 127.0.0.1:target. It must be up before the start.
// Both ports come from FreePort.
func WithInterBrokerProxy(listen, target int) Option {
	return func(o *options) { o.interProxy = [2]int{listen, target} }
}

// Kafka starts a broker for one test and removes it at the end.
func Kafka(t testing.TB, opts ...Option) *KafkaServer {
	t.Helper()
	Require(t)
	k, err := StartKafka(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	k.LogsOnFailure(t)
	return k
}

// StartKafka starts a broker; the caller closes it. It returns when the broker has answered a client, has begun and
// ended a transaction, and has stored an offset: the internal topics exist and their coordinators are loaded.
func StartKafka(ctx context.Context, opts ...Option) (*KafkaServer, error) {
	e, err := engine()
	if err != nil {
		return nil, err
	}
	o := apply(opts)
	k := &KafkaServer{server: server{kind: "Kafka", engine: e}}
	k.ready = k.serves
	if k.port, err = FreePort(); err != nil {
		return nil, err
	}
	published := map[string]int{portClients: k.port}
	listeners := "CLIENTS://0.0.0.0:" + portClients + ",CONTROLLER://127.0.0.1:" + portController
	advertised := "CLIENTS://" + k.Addr()
	if o.advertised != "" {
		if k.proxied, err = FreePort(); err != nil {
			return nil, err
		}
		published[portProxied] = k.proxied
		listeners += ",PROXIED://0.0.0.0:" + portProxied
		advertised += ",PROXIED://" + o.advertised
	}
	if o.interProxy[0] != 0 {
		k.interBroker = o.interProxy[1]
		published[portInterBroker] = k.interBroker
		o.extraHosts = append(o.extraHosts, "host.docker.internal:host-gateway")
		listeners += ",BROKERS://0.0.0.0:" + portInterBroker
		advertised += ",BROKERS://host.docker.internal:" + strconv.Itoa(o.interProxy[0])
	} else {
		listeners += ",BROKERS://127.0.0.1:" + portInterBroker
		advertised += ",BROKERS://127.0.0.1:" + portInterBroker
	}
	clusterID := uuid.New()
	clusterID[0] &= 0x7f // the format tool takes an id that begins with - for an option
	env := map[string]string{
		"CLUSTER_ID":                           base64.RawURLEncoding.EncodeToString(clusterID[:]),
		"KAFKA_NODE_ID":                        "1",
		"KAFKA_PROCESS_ROLES":                  "broker,controller",
		"KAFKA_CONTROLLER_QUORUM_VOTERS":       "1@127.0.0.1:" + portController,
		"KAFKA_CONTROLLER_LISTENER_NAMES":      "CONTROLLER",
		"KAFKA_LISTENERS":                      listeners,
		"KAFKA_ADVERTISED_LISTENERS":           advertised,
		"KAFKA_INTER_BROKER_LISTENER_NAME":     "BROKERS",
		"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CLIENTS:PLAINTEXT,PROXIED:PLAINTEXT,BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"KAFKA_LOG_DIRS":                       "/tmp/kafka-logs",
		"KAFKA_HEAP_OPTS":                      "-Xms512m -Xmx512m",
		"KAFKA_AUTO_CREATE_TOPICS_ENABLE":      "false",

		"KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR":         "1",
		"KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
		"KAFKA_TRANSACTION_STATE_LOG_MIN_ISR":            "1",
		// 50 by default: so many logs to make at the first use and to recover after a kill.
		"KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS":         "4",
		"KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "4",

		"KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
		"KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS":     "500",
		// After a kill the controller waits for the old registration to run out: 4 to 6 s so, 14 s by default.
		"KAFKA_BROKER_SESSION_TIMEOUT_MS":    "6000",
		"KAFKA_BROKER_HEARTBEAT_INTERVAL_MS": "300",
	}
	for name, value := range o.env {
		env[name] = value
	}
	o.env = env
	if err := k.run(ctx, imageName("BILLING_TEST_KAFKA_IMAGE", "OFFICIAL_KAFKA_IMAGE"), o, published); err != nil {
		return nil, err
	}
	return k, nil
}

// Addr is where clients start, host:port. It stays the same over Kill, Stop and Start.
func (k *KafkaServer) Addr() string {
	return net.JoinHostPort(k.engine.host, strconv.Itoa(k.port))
}

// ProxyTarget is where the proxy of WithAdvertised forwards to.
func (k *KafkaServer) ProxyTarget() string {
	return net.JoinHostPort(k.engine.host, strconv.Itoa(k.proxied))
}

const warmUp = "billing-testbed-warm-up" // topic, group and transactional id of the readiness check

// serves is one try of the whole way that tests use.
func (k *KafkaServer) serves(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	client, err := k.client(kgo.TransactionalID(warmUp), kgo.TransactionTimeout(30*time.Second), kgo.DefaultProduceTopic(warmUp))
	if err != nil {
		return finalError{err}
	}
	defer client.Close()
	admin := kadm.NewClient(client)

	if _, err := admin.ApiVersions(ctx); err != nil {
		return fmt.Errorf("ApiVersions: %w", err)
	}
	brokers, err := admin.ListBrokers(ctx)
	if err != nil {
		return fmt.Errorf("list the brokers: %w", err)
	}
	if len(brokers) != 1 {
		return fmt.Errorf("%d brokers, want one", len(brokers))
	}
	// A new cluster may deny topics until its broker is unfenced: an error here is only a reason to try again.
	created, err := admin.CreateTopic(ctx, 1, 1, nil, warmUp)
	if err == nil {
		err = created.Err
	}
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("CreateTopics: %w", err)
	}
	if _, _, err := client.ProducerID(ctx); err != nil {
		return fmt.Errorf("InitProducerID: %w", err)
	}
	if err := client.BeginTransaction(); err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}
	if err := client.ProduceSync(ctx, kgo.StringRecord("")).FirstErr(); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	if err := client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("EndTxn: %w", err)
	}
	offsets := make(kadm.Offsets)
	offsets.AddOffset(warmUp, 0, 1, -1)
	if err := admin.CommitAllOffsets(ctx, warmUp, offsets); err != nil {
		return fmt.Errorf("OffsetCommit: %w", err)
	}
	if fetched, err := admin.FetchOffsetsForTopics(ctx, warmUp, warmUp); err != nil || fetched.Error() != nil {
		return fmt.Errorf("OffsetFetch: %w", errors.Join(err, fetched.Error()))
	}
	// The transaction's markers, which the broker sends to itself, come after the answer to EndTxn.
	return poll(ctx, func(ctx context.Context) error {
		stable, err := admin.ListCommittedOffsets(ctx, warmUp)
		if err != nil {
			return fmt.Errorf("ListOffsets: %w", err)
		}
		end, err := admin.ListEndOffsets(ctx, warmUp)
		if err != nil {
			return fmt.Errorf("ListOffsets: %w", err)
		}
		s, _ := stable.Lookup(warmUp, 0)
		e, _ := end.Lookup(warmUp, 0)
		if err := errors.Join(s.Err, e.Err); err != nil {
			return fmt.Errorf("ListOffsets: %w", err)
		}
		if s.Offset < e.Offset {
			return fmt.Errorf("a transaction's markers are not written: stable up to %d of %d", s.Offset, e.Offset)
		}
		return nil
	})
}

func (k *KafkaServer) client(opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(k.Addr()), kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.AlwaysRetryEOF(), // the port of a broker that restarts is open before anybody is behind it
	}, opts...)...)
}

// Client connects for one test.
func (k *KafkaServer) Client(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := k.client(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// Admin connects for one test.
func (k *KafkaServer) Admin(t testing.TB) *kadm.Client {
	t.Helper()
	return kadm.NewClient(k.Client(t))
}

// CreateTopic creates a topic and returns when all its partitions have a leader. configs may be nil.
func (k *KafkaServer) CreateTopic(t testing.TB, name string, partitions int32, configs map[string]string) {
	t.Helper()
	admin := k.Admin(t)
	values := make(map[string]*string, len(configs))
	for key, value := range configs {
		values[key] = kmsg.StringPtr(value)
	}
	Eventually(t, time.Minute, func() error { // a broker that has stood still is fenced for a moment
		created, err := admin.CreateTopic(t.Context(), partitions, 1, values, name)
		if err == nil {
			err = created.Err
		}
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w %s", name, err, created.ErrMessage)
		}
		return nil
	})
	Eventually(t, time.Minute, func() error {
		topics, err := admin.ListTopics(t.Context(), name)
		if err != nil {
			return err
		}
		topic := topics[name]
		if topic.Err != nil {
			return fmt.Errorf("topic %s: %w", name, topic.Err)
		}
		if len(topic.Partitions) != int(partitions) {
			return fmt.Errorf("topic %s has %d of %d partitions", name, len(topic.Partitions), partitions)
		}
		for _, partition := range topic.Partitions {
			if partition.Err != nil {
				return fmt.Errorf("topic %s: partition %d: %w", name, partition.Partition, partition.Err)
			}
			if partition.Leader < 0 {
				return fmt.Errorf("topic %s: partition %d has no leader", name, partition.Partition)
			}
		}
		return nil
	})
}
