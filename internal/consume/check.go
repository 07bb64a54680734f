package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
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
// the input topic is there. It returns all problems, joined: refusals, each a
// *checkpoint.Refusal, and brokers that could not be reached, say no or were
// not ready, each a *checkpoint.ServerError. It changes nothing.
func (c *Client) Check(ctx context.Context) (Input, error) {
	brokers, err := c.Brokers(ctx)
	if err != nil {
		return Input{}, err // the others would say the same
	}
	problems := []error{c.CheckFeatures(ctx, brokers), c.CheckTransactionTimeout(ctx, brokers)}
	in, err := c.LookUp(ctx)
	return in, errors.Join(append(problems, err)...)
}

func refuse(reason, what, next, wrong string, args ...any) *checkpoint.Refusal {
	return &checkpoint.Refusal{Scope: checkpoint.EndsProcess, Reason: reason, What: what, Wrong: fmt.Sprintf(wrong, args...), Next: next}
}

// Brokers are the cluster's, as it names them.
type Brokers []Broker

// Broker is one of them.
type Broker struct {
	ID      int32
	Address string // host:port, as it is advertised
}

// String is what a broker is called in messages.
func (b Broker) String() string { return fmt.Sprintf("broker %d (%s)", b.ID, b.Address) }

// Brokers asks for the cluster's brokers.
func (c *Client) Brokers(ctx context.Context) (Brokers, error) {
	details, err := kadm.NewClient(c.fetch.cl).ListBrokers(ctx)
	if err != nil {
		return nil, failed("brokers", "list the brokers", err)
	}
	if len(details) == 0 {
		return nil, failed("brokers", "list the brokers", errors.New("the cluster names no broker yet"))
	}
	var all Brokers
	for _, d := range details {
		all = append(all, Broker{ID: d.NodeID, Address: net.JoinHostPort(d.Host, strconv.Itoa(int(d.Port)))})
	}
	slices.SortFunc(all, func(a, b Broker) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}

// Seeds asks each of the configured brokers by itself, once. The errors, nil
// where one has answered, are in the order of Config.Brokers.
func (c *Client) Seeds(ctx context.Context) []error {
	errs := make([]error, len(c.cfg.Brokers))
	var wg sync.WaitGroup
	for i, address := range c.cfg.Brokers {
		wg.Go(func() {
			cl, err := kgo.NewClient(c.options(kgo.SeedBrokers(address))...)
			if err == nil {
				defer cl.Close()
				_, err = askVersions().RequestWith(ctx, cl.SeedBrokers()[0])
			}
			if err != nil {
				errs[i] = failedAt(address, "ask "+address, "kafka.brokers", err)
			}
		})
	}
	wg.Wait()
	return errs
}

// Before version 2 of its transactions a broker may let a delayed EndTxn
// decide a later transaction.
const (
	featureTransactions = "transaction.version"
	featureLevel        = 2
)

// CheckFeatures asks every broker for the features that the protocol rests on.
func (c *Client) CheckFeatures(ctx context.Context, brokers Brokers) error {
	errs := make([]error, len(brokers))
	levels := make([]int, len(brokers))
	var wg sync.WaitGroup
	for i, b := range brokers {
		wg.Go(func() { levels[i], errs[i] = c.feature(ctx, b) })
	}
	wg.Wait()
	problems := slices.Clone(errs)
	low := map[int][]int32{}
	for i, b := range brokers {
		if errs[i] == nil && levels[i] < featureLevel {
			low[levels[i]] = append(low[levels[i]], b.ID)
		}
	}
	for _, level := range slices.Sorted(maps.Keys(low)) {
		problems = append(problems, refuse(checkpoint.ReasonBrokerFeature, named(low[level]),
			"use brokers of Kafka 4.0 or later, and raise the feature: kafka-features.sh upgrade --feature "+featureTransactions+"="+strconv.Itoa(featureLevel),
			"%s is %d, %d is needed: before it a delayed request can decide a later transaction", featureTransactions, level, featureLevel))
	}
	return errors.Join(problems...)
}

// named is "broker 1" or "brokers 1, 2".
func named(ids []int32) string {
	var texts []string
	for _, id := range ids {
		texts = append(texts, strconv.Itoa(int(id)))
	}
	if len(texts) == 1 {
		return "broker " + texts[0]
	}
	return "brokers " + strings.Join(texts, ", ")
}

// askVersions is a question that every broker answers.
func askVersions() *kmsg.ApiVersionsRequest {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "billing", "0" // brokers refuse empty ones
	return req
}

func (c *Client) feature(ctx context.Context, b Broker) (level int, err error) {
	raw, err := askVersions().RequestWith(ctx, c.fetch.cl.Broker(int(b.ID)))
	if err == nil {
		err = kerr.ErrorForCode(raw.ErrorCode)
	}
	if err == nil && raw.FinalizedFeaturesEpoch < 0 && len(raw.SupportedFeatures) > 0 {
		err = errors.New("it does not know the cluster's features yet")
	}
	if err != nil {
		return 0, failedAt(b.String(), "ask "+b.String()+" for its versions", "the broker's advertised.listeners", err)
	}
	kversion.FromApiVersionsResponse(raw).EachFinalizedFeature(func(name string, l int16) {
		if name == featureTransactions {
			level = int(l)
		}
	})
	return level, nil
}

const configMaxTimeout = "transaction.max.timeout.ms"

// CheckTransactionTimeout finds out now what the first fence would be told. A
// cluster that doesn't show its brokers' configuration still tells it then.
func (c *Client) CheckTransactionTimeout(ctx context.Context, brokers Brokers) error {
	configs, err := c.brokerConfigs(ctx, brokers)
	if err != nil {
		return err
	}
	most := c.cfg.TransactionTimeout.Milliseconds()
	low := map[int64][]int32{}
	for _, b := range brokers {
		if limit, err := strconv.ParseInt(configs[b.ID][configMaxTimeout], 10, 64); err == nil && most > limit {
			low[limit] = append(low[limit], b.ID)
		}
	}
	var problems []error
	for _, limit := range slices.Sorted(maps.Keys(low)) {
		problems = append(problems, c.refuseTimeout(named(low[limit]), fmt.Sprintf(" (%s is %d)", configMaxTimeout, limit), nil))
	}
	return errors.Join(problems...)
}

// CheckSessionTimeout finds out now what the group would say to a member.
func (c *Client) CheckSessionTimeout(ctx context.Context, brokers Brokers) error {
	configs, err := c.brokerConfigs(ctx, brokers)
	if err != nil {
		return err
	}
	mine := c.cfg.SessionTimeout.Milliseconds()
	for _, b := range brokers { // they are mostly alike: the first one is enough
		const least, most = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
		low, lerr := strconv.ParseInt(configs[b.ID][least], 10, 64)
		high, herr := strconv.ParseInt(configs[b.ID][most], 10, 64)
		if lerr == nil && mine < low || herr == nil && mine > high {
			return &checkpoint.ServerError{What: b.String(), TurnedAway: true, Next: groupNext(kerr.InvalidSessionTimeout),
				Err: fmt.Errorf("kafka: %s takes no member with a session timeout of %s: %s is %s, %s is %s", b, c.cfg.SessionTimeout, least, configs[b.ID][least], most, configs[b.ID][most])}
		}
	}
	return nil
}

// brokerConfigs reads the brokers' configurations, as far as the cluster shows
// them.
func (c *Client) brokerConfigs(ctx context.Context, brokers Brokers) (map[int32]map[string]string, error) {
	all := map[int32]map[string]string{}
	var ids []int32
	for _, b := range brokers {
		ids = append(ids, b.ID)
	}
	configs, err := kadm.NewClient(c.fetch.cl).DescribeBrokerConfigs(ctx, ids...)
	var denied *kadm.AuthError
	if errors.As(err, &denied) {
		return all, nil
	}
	if err != nil {
		return nil, failed("brokers", "read the brokers' configuration", err)
	}
	for _, broker := range configs {
		id, err := strconv.ParseInt(broker.Name, 10, 32)
		if err != nil || broker.Err != nil {
			continue
		}
		all[int32(id)] = map[string]string{}
		for _, config := range broker.Configs {
			all[int32(id)][config.Key] = config.MaybeValue()
		}
	}
	return all, nil
}

func (c *Client) refuseTimeout(what, limit string, err error) error {
	r := refuse(checkpoint.ReasonTransactionTimeout, what, "lower kafka.transaction_timeout, or raise the broker's "+configMaxTimeout,
		"the transaction timeout of %s is more than the broker allows%s", c.cfg.TransactionTimeout, limit)
	r.Err = err
	return r
}
