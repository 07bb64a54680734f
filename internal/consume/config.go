// Package consume is the Kafka side of the service: the group that says which
// lanes are ours, the fetching of their records, and the lanes' decisions. It
// implements checkpoint.Kafka and checkpoint.Owner, and is the only package
// that knows the client library.
//
// An instance has one group client, which is a member and never fetches; one
// fetch client, which consumes the partitions it is told to at the offsets it
// is told; one client that reads pieces of a log by itself; and one producer
// client per session of a lane (an Owner).
package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"billing/internal/checkpoint"
)

// Config is what a Client needs. Zero durations and sizes mean the default.
type Config struct {
	Brokers []string // where to start from, host:port, at least one
	Job     string   // the consumer group, and what the job's own topics begin with; no dots
	Topic   string   // the input

	// InstanceID makes the member static: a restart under the same id gets its
	// lanes back at once, and leaving sends nothing. Empty: a dynamic member.
	InstanceID string

	// AdminAddr is where this instance's admin port listens, host:port; the group
	// shows it to who looks for the instance (see Member.AdminAddr). Empty: no port.
	AdminAddr string

	SessionTimeout     time.Duration // without a heartbeat the broker gives our lanes away; 500 ms or more, default 10 s
	RebalanceTimeout   time.Duration // a rebalance waits so long for a member; default 30 s, or three session timeouts if that is more; Handler.Revoked gets half
	TransactionTimeout time.Duration // the broker aborts a transaction open for longer; 1 s or more, default 30 s
	ReadTimeout        time.Duration // Owner.Read, within its context; default 30 s
	RequestTimeout     time.Duration // one answer of a broker, beside what a request itself may wait; default 5 s
	LeaveTimeout       time.Duration // leaving the group at the end of Run; default 3 s
	WriteTimeout       time.Duration // Load: so long without a message being acknowledged; default 1 min

	FetchBytes    int64 // what may be held of what was fetched, until lanes take it, besides one batch; default 256 MiB
	MaxBatchBytes int   // what one batch may take in memory, decompressed; beyond it the lane fails; default 64 MiB

	// Unreachable, if set, is told of each connection to a broker that failed. It
	// is called by many goroutines.
	Unreachable func()

	Logger *slog.Logger // default slog.Default()

	// Dial opens every connection; nil is TCP. It is the place for TLS.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

func (c *Config) setDefaults() {
	duration := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	duration(&c.SessionTimeout, 10*time.Second)
	duration(&c.RebalanceTimeout, max(30*time.Second, 3*c.SessionTimeout))
	duration(&c.TransactionTimeout, 30*time.Second)
	duration(&c.ReadTimeout, 30*time.Second)
	duration(&c.RequestTimeout, 5*time.Second)
	duration(&c.LeaveTimeout, 3*time.Second)
	duration(&c.WriteTimeout, time.Minute)
	if c.FetchBytes == 0 {
		c.FetchBytes = 256 << 20
	}
	if c.MaxBatchBytes == 0 {
		c.MaxBatchBytes = 64 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	}
}

// With a dot in it, job a on topic b.c and job a.b on topic c would share a
// transactional id, and fence each other for ever.
var jobName = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)

func (c *Config) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(len(c.Brokers) > 0, "no brokers")
	check(jobName.MatchString(c.Job), "job %q: want %s", c.Job, jobName)
	check(c.Topic != "", "no topic")
	check(c.SessionTimeout >= 500*time.Millisecond, "session timeout %s: less than 500ms", c.SessionTimeout)
	check(c.RebalanceTimeout >= c.SessionTimeout, "rebalance timeout %s: less than the session timeout %s", c.RebalanceTimeout, c.SessionTimeout)
	check(c.TransactionTimeout >= time.Second, "transaction timeout %s: less than 1s", c.TransactionTimeout)
	check(c.FetchBytes > 0, "fetch: %d bytes, want more than none", c.FetchBytes)
	return errors.Join(errs...)
}

// clientID is what quotas by client id and the brokers' logs go by.
func (c *Config) clientID() string { return "billing-" + c.Job }

// memberClientID is the group client's, which carries no data: the group keeps
// it for each member, and shows it to whoever may describe the group.
func (c *Config) memberClientID() string {
	if c.AdminAddr == "" {
		return c.clientID()
	}
	return c.clientID() + "@" + c.AdminAddr
}

// Client is one instance's connection to Kafka. Its methods may be called from
// several goroutines.
type Client struct {
	cfg     Config
	log     *clientLogger
	wires   *wires
	fetch   *fetcher
	reads   *kgo.Client                // pieces of a log: neither held up by a fetch on its way, nor counted with what is fetched
	member  atomic.Pointer[membership] // set by Run
	running atomic.Bool
}

var _ checkpoint.Kafka = (*Client)(nil)

// Open prepares a Client. It does not use the network. The caller closes it.
func Open(cfg Config) (*Client, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("kafka configuration: %w", err)
	}
	c := &Client{cfg: cfg, log: newClientLogger(cfg.Logger), wires: newWires(cfg.Dial)}
	var err error
	if c.reads, err = kgo.NewClient(c.options()...); err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	if c.fetch, err = newFetcher(c); err != nil {
		c.reads.Close()
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	return c, nil
}

// Close frees what Open took. Run has returned, and every Owner is closed.
func (c *Client) Close() {
	c.fetch.cl.Close()
	c.reads.Close()
}

// DecisionTopic is the name of the topic of decisions.
func (c *Client) DecisionTopic() string { return c.cfg.Job + ".decision" }

// StateTopic is the name of the topic of dedup state.
func (c *Client) StateTopic() string { return c.cfg.Job + ".state" }

// options are what all clients share. Never kgo.MaxVersions: with an old
// version of EndTxn a delayed one could decide a later transaction.
func (c *Client) options(more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{
		kgo.SeedBrokers(c.cfg.Brokers...),
		kgo.ClientID(c.cfg.clientID()),
		kgo.WithHooks(connects{c.cfg.Unreachable}),
		kgo.WithLogger(c.log),
		kgo.Dialer(c.wires.dial),
		kgo.DisableClientMetrics(),
		kgo.RequestTimeoutOverhead(c.cfg.RequestTimeout),
		// A coordinator says NOT_COORDINATOR for 1 to 2 s after a move.
		kgo.RequestRetries(20),
		kgo.RetryBackoffFn(retryBackoff),
		// The default makes a produce behind late markers wait for 5 s with the
		// transaction open.
		kgo.MetadataMinAge(200 * time.Millisecond),
		kgo.MaxDecompressBatchBytes(c.cfg.MaxBatchBytes),
	}, more...)
}

// connects tells of connections that failed.
type connects struct{ failed func() }

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (c connects) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err != nil && c.failed != nil && !errors.Is(err, context.Canceled) {
		c.failed()
	}
}
