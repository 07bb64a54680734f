package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"billing/internal/consume/consumetest"
	"billing/internal/event"
	"billing/internal/loadgen"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// loadBench is a fake broker with a topic, and the real program to write to it.
type loadBench struct {
	t       *testing.T
	cluster *kfake.Cluster
	dir     string
}

func newLoadBench(t *testing.T) *loadBench {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "events", "again"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	consumetest.RememberEnds(cluster)
	return &loadBench{t: t, cluster: cluster, dir: inDir(t, strings.Replace(goodConfig, "kafka-1:9092", cluster.ListenAddrs()[0], 1))}
}

func (b *loadBench) produce(args ...string) answer {
	b.t.Helper()
	return run(b.t, b.dir, nil, append([]string{"produce"}, args...)...)
}

// result is the answer as a script reads it.
type result struct {
	Messages int64
	Outcomes struct{ Applied, Duplicate, Conflict, Rejected int64 }
	Reasons  map[string]int64
	Totals   []struct {
		AccountID  string `json:"account_id"`
		Currency   string
		EntryCount int64 `json:"entry_count"`
	}
	Transactions, Aborted int64
	AbortedMessages       int64 `json:"aborted_messages"`
	Seed                  int64
	Topic                 string
	Partitions            int
	Started               time.Time
	Seconds               float64
	MessagesPerSecond     float64 `json:"messages_per_second"`
	Interrupted           bool
}

// parse reads an answer, which has all fields and adds up.
func parse(t *testing.T, text string) (r result) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	if err := d.Decode(&r); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var names map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &names); err != nil {
		t.Fatal(err)
	}
	want := strings.Fields("aborted aborted_messages currencies interrupted messages messages_per_second outcomes partitions reasons seconds seed started topic totals transactions")
	if got := slices.Sorted(maps.Keys(names)); !slices.Equal(got, want) {
		t.Fatalf("the answer has %v", got)
	}
	o := r.Outcomes
	var entries, rejects int64
	for _, total := range r.Totals {
		entries += total.EntryCount
	}
	for _, n := range r.Reasons {
		rejects += n
	}
	if r.Messages != o.Applied+o.Duplicate+o.Conflict+o.Rejected || entries != o.Applied || rejects != o.Rejected || len(names["totals"]) == 0 {
		t.Fatalf("%d messages, %+v, %d entries, %d rejects", r.Messages, o, entries, rejects)
	}
	return r
}

// must is the answer of a run that ended well.
func (b *loadBench) must(args ...string) result {
	b.t.Helper()
	got := b.produce(args...)
	if got.code != 0 || got.errOut != "" {
		b.t.Fatalf("%q: exit %d: %s", args, got.code, got.errOut)
	}
	return parse(b.t, got.out)
}

// record is what is looked at of a record.
type record struct {
	partition       int32
	key, source, id string // without source and id: no event
}

// read reads a topic to its end.
func (b *loadBench) read(topic string, level kgo.IsolationLevel) (all []record) {
	b.t.Helper()
	decoder := event.NewDecoder(event.Config{TypePrefix: "com.example.billing.", Currencies: []string{"EUR"}})
	for p := range int32(3) {
		end := b.cluster.PartitionInfo(topic, p).HighWatermark
		cl, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.FetchIsolationLevel(level), kgo.KeepControlRecords(),
			kgo.FetchMaxWait(50*time.Millisecond), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {p: kgo.NewOffset().AtStart()}}))
		if err != nil {
			b.t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
		for next := int64(0); next < end; {
			fetches := cl.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				b.t.Fatal(err)
			}
			fetches.EachRecord(func(r *kgo.Record) {
				if next = r.Offset + 1; r.Attrs.IsControl() {
					return
				}
				found := record{partition: p, key: string(r.Key)}
				in := event.Record{Value: r.Value}
				for _, h := range r.Headers {
					in.Headers = append(in.Headers, event.Header(h))
				}
				var e event.Event
				if decoder.Decode(&in, &e) == nil {
					found.source, found.id = string(e.Source), string(e.ID)
				}
				all = append(all, found)
			})
		}
		cancel()
		cl.Close()
	}
	return all
}

func TestProduce(t *testing.T) {
	t.Parallel()
	b := newLoadBench(t)
	one := b.must("--count", "3000", "--accounts", "20", "--skew", "0.5", "--duplicates", "0.2", "--bad", "0.1", "--seed", "42")
	if one.Messages != 3000 || one.Seed != 42 || one.Topic != "events" || one.Partitions != 3 || one.Transactions+one.Aborted+one.AbortedMessages != 0 ||
		one.Interrupted || one.Seconds <= 0 || one.MessagesPerSecond <= 0 || time.Since(one.Started) > time.Minute {
		t.Errorf("%+v", one)
	}
	if o := one.Outcomes; o.Applied < 1800 || o.Duplicate < 400 || o.Conflict < 20 || o.Rejected < 200 || one.Totals[0].Currency != "EUR" {
		t.Errorf("%+v", o)
	}
	written := b.read("events", kgo.ReadCommitted())
	if len(written) != 3000 {
		t.Fatalf("%d records", len(written))
	}
	// The topic is not fresh any more.
	got := b.produce("--count", "10")
	if again := parse(t, got.out); got.code != 0 || again.Messages != 10 || !strings.HasPrefix(got.errOut, "warning: topic events has had records before") {
		t.Errorf("exit %d, %s%s", got.code, got.out, got.errOut)
	}
	// The seed decides.
	t.Run("again", func(t *testing.T) {
		args := []string{"produce", "--count", "3000", "--accounts", "20", "--skew", "0.5", "--duplicates", "0.2", "--bad", "0.1", "--seed", "42"}
		got := run(t, b.dir, []string{"BILLING_KAFKA_TOPIC=again"}, args...)
		two := parse(t, got.out)
		if two.Outcomes != one.Outcomes || !maps.Equal(two.Reasons, one.Reasons) || len(two.Totals) != len(one.Totals) {
			t.Errorf("%+v, then %+v", one.Outcomes, two.Outcomes)
		}
		if !slices.Equal(written, b.read("again", kgo.ReadCommitted())) {
			t.Error("the same seed gave other messages")
		}
	})
	// Without one it is drawn, and named.
	seeds := map[int64]bool{}
	for range 3 {
		seeds[parse(t, b.produce("--count", "0").out).Seed] = true
	}
	if len(seeds) != 3 {
		t.Errorf("seeds %v", seeds)
	}
}

func TestProduceNothing(t *testing.T) {
	t.Parallel()
	b := newLoadBench(t)
	if r := b.must("--count", "0", "--aborted", "1"); r.Messages != 0 || r.Totals == nil || len(b.read("events", kgo.ReadUncommitted())) != 0 {
		t.Errorf("%+v", r)
	}
}

// What is aborted comes on top: who reads it gets other messages and other
// events.
func TestProduceInTransactions(t *testing.T) {
	t.Parallel()
	b := newLoadBench(t)
	plain := b.must("--count", "2050", "--seed", "5", "--bad", "0.1")
	count := func(b *loadBench, level kgo.IsolationLevel) (records int64, events map[[2]string]int) {
		events = map[[2]string]int{}
		for _, r := range b.read("events", level) {
			records++
			if r.id != "" {
				events[[2]string{r.source, r.id}]++
			}
		}
		return records, events
	}
	for _, c := range []struct {
		args                  []string
		transactions, aborted int64 // aborted -1: some
	}{
		{[]string{"--transactions", "500"}, 5, 0},
		{[]string{"--aborted", "1"}, 3, 4}, // 1000 each, and one behind them all
		{[]string{"--transactions", "1", "--count", "3", "--aborted", "1"}, 3, 4},
		{[]string{"--transactions", "20", "--aborted", "0.3"}, 103, -1},
	} {
		b := newLoadBench(t)
		r := b.must(append([]string{"--count", "2050", "--seed", "5", "--bad", "0.1"}, c.args...)...)
		if r.Transactions != c.transactions || r.Aborted != c.aborted && (c.aborted >= 0 || r.Aborted < 15 || r.Aborted > 50) {
			t.Errorf("%q: %d committed, %d aborted", c.args, r.Transactions, r.Aborted)
		}
		if r.Messages == 2050 && (r.Outcomes != plain.Outcomes || len(r.Totals) != len(plain.Totals)) {
			t.Errorf("%q: %+v, without transactions %+v", c.args, r.Outcomes, plain.Outcomes)
		}
		committed, good := count(b, kgo.ReadCommitted())
		all, both := count(b, kgo.ReadUncommitted())
		if committed != r.Messages || all != r.Messages+r.AbortedMessages {
			t.Errorf("%q: %d records, %d with the aborted ones; the answer has %d and %d", c.args, committed, all, r.Messages, r.AbortedMessages)
		}
		if r.Aborted == 0 {
			continue
		}
		repeated := 0
		for id, n := range good {
			if both[id] > n {
				repeated++
			}
		}
		if repeated == 0 || len(both) <= len(good) {
			t.Errorf("%q: of %d events %d come in aborted transactions too, and %d come there only", c.args, len(good), repeated, len(both)-len(good))
		}
	}
}

func TestProduceInterrupted(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--rate", "300"}, {"--rate", "300", "--transactions", "7", "--aborted", "0.5"}, {"--rate", "300", "--transactions", "100000"}} {
		for _, signal := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
			t.Run(fmt.Sprint(args, signal), func(t *testing.T) {
				t.Parallel()
				b := newLoadBench(t)
				asked := make(chan struct{}, 1)
				b.cluster.ControlKey(kmsg.InitProducerID.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
					select {
					case asked <- struct{}{}:
					default:
					}
					return nil, nil, false
				})
				var out, errOut bytes.Buffer
				cmd := exec.Command(binary, append([]string{"produce", "--count", "100000000"}, args...)...)
				cmd.Dir, cmd.Stdout, cmd.Stderr = b.dir, &out, &errOut
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- cmd.Wait() }()
				<-asked
				if len(args) < 4 || args[3] != "100000" { // which writes at the end only
					consumetest.Eventually(t, func() error {
						if b.cluster.PartitionInfo("events", 0).HighWatermark < 20 {
							return errors.New("not 20 records yet")
						}
						return nil
					})
				}
				if err := cmd.Process.Signal(signal); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Fatalf("%v: %s", err, errOut.String())
				}
				r := parse(t, out.String())
				if n := len(b.read("events", kgo.ReadCommitted())); !r.Interrupted || r.Messages != int64(n) {
					t.Errorf("interrupted %v after %d messages, %d are in the topic", r.Interrupted, r.Messages, n)
				}
			})
		}
	}
}

// A load of which some may be missing has no answer.
func TestProduceFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault func(*kfake.Cluster)
		env   string
		args  []string
		code  int
		says  string
	}{
		"a message": {
			func(c *kfake.Cluster) {
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{2}, Err: kerr.TopicAuthorizationFailed})
			}, "", nil, 4, "topic events holds an unknown part of the load, so there is no answer (next step: a fresh topic and job): kafka: load: write to events/2: TOPIC_AUTHORIZATION_FAILED",
		},
		"a commit": {
			func(c *kfake.Cluster) {
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.InvalidTxnState, TopLevel: true})
			}, "", []string{"--transactions", "100"}, 4, "topic events holds an unknown part of the load",
		},
		"an abort": {
			func(c *kfake.Cluster) {
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.InvalidTxnState, TopLevel: true})
			}, "", []string{"--aborted", "1"}, 4, "topic events holds an unknown part of the load",
		},
		"the producer": {
			func(c *kfake.Cluster) {
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.TransactionalIDAuthorizationFailed, TopLevel: true, Count: -1})
			}, "", []string{"--transactions", "100"}, 4, "produce: nothing was written: kafka: load: initialise a producer: TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
		},
		"the time-out": {
			func(c *kfake.Cluster) {
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.InvalidTransactionTimeout, TopLevel: true, Count: -1})
			}, "", []string{"--transactions", "100"}, 3, "refused (transaction-timeout) events: the transaction timeout of 30s is more than the broker allows",
		},
		"no topic":  {func(*kfake.Cluster) {}, "BILLING_KAFKA_TOPIC=nowhere", nil, 3, "nothing was written: refused (topic-missing) nowhere"},
		"no broker": {func(*kfake.Cluster) {}, "BILLING_KAFKA_BROKERS=127.0.0.1:1", nil, 4, "nothing was written: kafka: look up topic events"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newLoadBench(t)
			c.fault(b.cluster)
			got := run(t, b.dir, []string{c.env}, append([]string{"produce", "--count", "500"}, c.args...)...)
			if got.code != c.code || (got.out == "") != (c.code != 0) || !strings.Contains(got.errOut, c.says) {
				t.Errorf("exit %d, %s%s", got.code, got.out, got.errOut)
			}
		})
	}
}

func TestProduceWrongUsage(t *testing.T) {
	t.Parallel()
	dir := inDir(t, strings.Replace(goodConfig, "topic: events", "topic: events\n  bogus: 1", 1))
	got := run(t, dir, nil, strings.Fields("produce --count -1 --rate NaN --accounts 0 --skew 2 --duplicates -0.1 --bad NaN --aborted 0.5 --transactions -1")...)
	for _, says := range []string{"--count is -1", "--rate is NaN", "--accounts is 0", "--skew is 2", "--duplicates is -0.1", "--bad is NaN", "--transactions is -1", "kafka.bogus", "Run 'billing produce --help'"} {
		if !strings.Contains(got.errOut, says) {
			t.Errorf("nothing says %q: %s", says, got.errOut)
		}
	}
	if got.code != 2 || got.out != "" {
		t.Errorf("exit %d, %s", got.code, got.out)
	}
	dir = inDir(t, goodConfig)
	for args, says := range map[string]string{
		"--count 1.5":                    `--count "1.5": want a whole number`,
		"--seed x":                       `--seed "x": want a whole number`,
		"--duplicates 0.6 --bad 0.7":     "--duplicates and --bad are 1.3 together",
		"--aborted 1.1":                  "--aborted is 1.1",
		"--aborted 0.1 --transactions 0": "--aborted needs Kafka transactions",
		"--transactions 100001":          "--transactions is 100001: give 0 to 100000 messages",
		"--rate -1":                      "--rate is -1",
		"--rate Inf":                     "--rate is +Inf",
		"--rate 0.001 --count 1000000":   "takes more than 10 years",
		"events":                         `billing produce takes no arguments, got ["events"]`,
	} {
		got := run(t, dir, nil, append([]string{"produce"}, strings.Fields(args)...)...)
		if got.code != 2 || got.out != "" || !strings.Contains(got.errOut, says) {
			t.Errorf("%s: exit %d, %s%s", args, got.code, got.out, got.errOut)
		}
	}
}

// The load fits the configuration: here one without anything that is default.
func TestProduceForTheConfiguration(t *testing.T) {
	t.Parallel()
	b := newLoadBench(t)
	text := strings.Replace(goodConfig, "kafka-1:9092", b.cluster.ListenAddrs()[0], 1)
	text = strings.NewReplacer("com.example.billing", "usage.", "[EUR]", "[TOKENS]").Replace(text) + "  amount_as_number: true\ndedup:\n  lateness: 2d\n  max_ids: 400\naggregate:\n  window: 15m\n"
	if err := os.WriteFile(filepath.Join(b.dir, "config.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := b.produce("--count", "500")
	r := parse(t, got.out)
	if got.code != 0 || !strings.Contains(got.errOut, "warning: --count 500 may be more ids than one instance holds by dedup.max_ids (400)") {
		t.Errorf("exit %d, %s", got.code, got.errOut)
	}
	var answer struct {
		Totals []struct {
			WindowStart string `json:"window_start"`
			Currency    string
		}
	}
	if err := json.Unmarshal([]byte(got.out), &answer); err != nil {
		t.Fatal(err)
	}
	quarters := 0
	for _, total := range answer.Totals {
		at, err := time.Parse(time.DateTime, total.WindowStart)
		if err != nil || at.Minute()%15 != 0 || r.Started.Sub(at) > 5*24*time.Hour || total.Currency != "TOKENS" {
			t.Errorf("%+v", total)
		}
		if at.Minute() > 0 {
			quarters++
		}
	}
	if quarters == 0 {
		t.Error("no total of a quarter of an hour")
	}
}

func TestReadAnswer(t *testing.T) {
	var good bytes.Buffer
	head := loadAnswer{Messages: 3, Outcomes: loadgen.Outcomes{Applied: 1, Rejected: 2}, Reasons: map[string]int64{"invalid_json": 2}, Topic: "usage", Partitions: 1}
	total := loadgen.Total{TenantID: "default", AccountID: "caf\u00e9 ", Currency: "EUR", ChargeAmount: "1.000000000000", EntryCount: 1}
	if err := writeLoadAnswer(&good, head, slices.Values([]loadgen.Total{total})); err != nil {
		t.Fatal(err)
	}
	got, err := readAnswer("-", bytes.NewReader(good.Bytes()), "usage")
	want := &loadgen.Expected{Messages: 3, Outcomes: head.Outcomes, Reasons: head.Reasons, Totals: []loadgen.Total{total}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, c := range map[string]struct{ text, topic, says string }{
		"nothing":            {"", "usage", "--answer -: is empty; want the JSON that billing produce wrote to stdout"},
		"half of it":         {good.String()[:good.Len()/2], "usage", "is no answer of a load"},
		"something else":     {`{"ok": true}`, "usage", "is no answer of a load"},
		"an empty object":    {`{}`, "usage", "is no answer of a load"},
		"no sum of outcomes": {strings.Replace(good.String(), `"messages": 3`, `"messages": 4`, 1), "usage", "is no answer of a load"},
		"two of them":        {good.String() + good.String(), "usage", "has something behind its end"},
		"no reasons":         {strings.Replace(good.String(), `"reasons"`, `"Seconds"`, 1), "usage", "is no answer of a load"},
		"another topic":      {good.String(), "events", "is of a load on topic usage, and kafka.topic is events"},
	} {
		var usage *usageError
		if _, err := readAnswer("-", strings.NewReader(c.text), c.topic); !errors.As(err, &usage) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := readAnswer("", strings.NewReader(good.String()), "usage"); err == nil || !strings.Contains(err.Error(), "--answer is empty") {
		t.Error(err)
	}
	if _, err := readAnswer(filepath.Join(t.TempDir(), "none"), nil, "usage"); err == nil || !strings.Contains(err.Error(), "can't be read: no such file") {
		t.Error(err)
	}
}
