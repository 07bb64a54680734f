package proxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func fakeBroker(t *testing.T) string {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "in"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c.ListenAddrs()[0]
}

// client starts at addr, and may go nowhere else.
func client(t *testing.T, addr string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	opts = append([]kgo.Opt{kgo.SeedBrokers(addr), kgo.Dialer(func(ctx context.Context, network, to string) (net.Conn, error) {
		if to != addr {
			t.Errorf("the client goes to %s around %s", to, addr)
		}
		var d net.Dialer
		return d.DialContext(ctx, network, to)
	})}, opts...)
	c, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Everything that clients find out about brokers leads back to the proxy.
func TestKafkaClientsStayOnTheProxy(t *testing.T) {
	k := KafkaFor(t, fakeBroker(t))
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	c := client(t, k.Addr(), kgo.TransactionalID("job-a.in.0"), kgo.DefaultProduceTopic("in"))
	if err := c.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := c.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := c.EndTransaction(ctx, kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	member := client(t, k.Addr(), kgo.ConsumerGroup("job-a"), kgo.ConsumeTopics("in"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	got := member.PollFetches(ctx)
	if err := got.Err(); err != nil || got.NumRecords() != 1 {
		t.Fatalf("%d records, %v", got.NumRecords(), err)
	}
	if err := member.CommitRecords(ctx, got.Records()...); err != nil {
		t.Fatal(err)
	}
	brokers, err := kadm.NewClient(c).ListBrokers(ctx)
	if err != nil || len(brokers) != 1 || fmt.Sprintf("%s:%d", brokers[0].Host, brokers[0].Port) != k.Addr() {
		t.Errorf("%v, %v, want the proxy", brokers, err)
	}
	resp, err := kmsg.NewPtrDescribeClusterRequest().RequestWith(ctx, c)
	if err != nil || len(resp.Brokers) != 1 || fmt.Sprintf("%s:%d", resp.Brokers[0].Host, resp.Brokers[0].Port) != k.Addr() {
		t.Errorf("%+v, %v, want the proxy", resp, err)
	}
}

// A broker that advertises another address would make clients go around the proxy.
func TestKafkaUnknownAddressIsAnError(t *testing.T) {
	_, port, err := net.SplitHostPort(fakeBroker(t))
	if err != nil {
		t.Fatal(err)
	}
	k, err := NewKafka("127.0.0.1:0", "localhost:"+port)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if _, err := kadm.NewClient(client(t, k.Addr())).ListBrokers(ctx); err == nil {
		t.Error("the client got an answer")
	}
	if err := k.Close(); err == nil || !strings.Contains(err.Error(), "around the proxy") {
		t.Errorf("%v", err)
	}
}

// topicAsker asks for a topic through the proxy, and looks directly whether it is there.
type topicAsker struct {
	t      *testing.T
	k      *Kafka
	client *kgo.Client
	direct *kgo.Client
}

func newTopicAsker(t *testing.T) *topicAsker {
	t.Helper()
	addr := fakeBroker(t)
	k := KafkaFor(t, addr)
	return &topicAsker{t: t, k: k, client: client(t, k.Addr()), direct: client(t, addr)}
}

// ask creates a topic. The client does not repeat what it sends to a broker of its choice.
func (a *topicAsker) ask(name string, timeout time.Duration) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, 1, 1
	req.Topics = append(req.Topics, topic)
	ctx, cancel := context.WithTimeout(a.t.Context(), timeout)
	defer cancel()
	resp, err := a.client.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return err
	}
	topics := resp.(*kmsg.CreateTopicsResponse).Topics
	if len(topics) != 1 || topics[0].Topic != name {
		return fmt.Errorf("an answer for %v", topics)
	}
	return kerr.ErrorForCode(topics[0].ErrorCode)
}

func (a *topicAsker) mustBeThere(name string, want bool) {
	a.t.Helper()
	if got := a.isThere(name); got != want {
		a.t.Fatalf("topic %s is there: %t, want %t", name, got, want)
	}
}

func (a *topicAsker) isThere(name string) bool {
	a.t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = kmsg.StringPtr(name)
	req.Topics = append(req.Topics, topic)
	resp, err := a.direct.SeedBrokers()[0].Request(a.t.Context(), req)
	if err != nil {
		a.t.Fatal(err)
	}
	return resp.(*kmsg.MetadataResponse).Topics[0].ErrorCode == 0
}

func TestKafkaActions(t *testing.T) {
	const silence = time.Second // to connect and to send, and then for nothing
	for _, c := range []struct {
		name    string
		do      KafkaAction
		code    *kerr.Error // what the answer says; nil when there is none
		hangs   bool
		applied bool
	}{
		{"drop the request, cut", DropRequest{}, nil, false, false},
		{"drop the request, hang", DropRequest{Hang: true}, nil, true, false},
		{"drop the answer, cut", DropAnswer{}, nil, false, true},
		{"drop the answer, hang", DropAnswer{Hang: true}, nil, true, true},
		{"patch", PatchError(kerr.RequestTimedOut), kerr.RequestTimedOut, false, true},
		{"answer", AnswerError(kerr.NotController), kerr.NotController, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newTopicAsker(t)
			h := a.k.Add(KafkaRule{Match: Containing("victim", kmsg.CreateTopics), Skip: 1, Times: 1, Do: c.do})
			if err := a.ask("victim-skipped", bound); err != nil {
				t.Fatal(err)
			}
			timeout := bound
			if c.hangs {
				timeout = silence
			}
			start := time.Now()
			err := a.ask("victim", timeout)
			var code *kerr.Error
			if errors.As(err, &code); err == nil || code != c.code || (time.Since(start) >= silence) != c.hangs {
				t.Errorf("%v after %s", err, time.Since(start))
			}
			h.Await(t, 1)
			a.mustBeThere("victim", c.applied)
			a.client = client(t, a.k.Addr()) // the other one may still be busy with its broken connection
			if err := a.ask("other", bound); err != nil {
				t.Error(err)
			}
			if err := a.ask("victim-after", bound); err != nil {
				t.Error(err)
			}
			if n := h.Hits(); n != 1 {
				t.Errorf("%d hits", n)
			}
		})
	}
}

func TestKafkaHolds(t *testing.T) {
	for _, c := range []struct {
		name    string
		do      KafkaAction
		applied bool
		end     func(*Handle)
	}{
		{"request", HoldRequest{}, false, (*Handle).Release},
		{"answer", HoldAnswer{}, true, (*Handle).Release},
		{"request, removed", HoldRequest{}, false, (*Handle).Remove},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newTopicAsker(t)
			h := a.k.Add(KafkaRule{Match: Key(kmsg.CreateTopics), Do: c.do})
			answered := make(chan error, 1)
			go func() { answered <- a.ask("victim", bound) }()
			h.Await(t, 1)
			a.mustBeThere("victim", c.applied)
			select {
			case err := <-answered:
				t.Fatalf("answered while it was held: %v", err)
			default:
			}
			c.end(h)
			if err := <-answered; err != nil {
				t.Fatal(err)
			}
			a.mustBeThere("victim", true)
			h.Remove()
			if err := a.ask("after", bound); err != nil || h.Hits() != 1 {
				t.Errorf("%v, %d hits", err, h.Hits())
			}
		})
	}
}

// A request comes late: its client has given up by then.
func TestKafkaHeldRequestOutlivesItsClient(t *testing.T) {
	a := newTopicAsker(t)
	h := a.k.Add(KafkaRule{Match: Key(kmsg.CreateTopics), Times: 1, Do: HoldRequest{}})
	answered := make(chan error, 1)
	go func() { answered <- a.ask("victim", bound) }()
	h.Await(t, 1)
	a.client.Close()
	if err := <-answered; err == nil {
		t.Fatal("answered while it was held")
	}
	a.mustBeThere("victim", false)
	h.Release()
	for !a.isThere("victim") { // the test's own time is the bound
	}
}

// The proxy's own answer waits for its turn.
func TestKafkaAnswersKeepTheirOrder(t *testing.T) {
	k := KafkaFor(t, fakeBroker(t))
	held := k.Add(KafkaRule{Match: Key(kmsg.ListGroups), Do: HoldAnswer{}})
	own := k.Add(KafkaRule{Match: Key(kmsg.Heartbeat), Do: AnswerError(kerr.RebalanceInProgress)})
	c := dial(t, k.Proxy)
	for i, key := range []kmsg.Key{kmsg.ListGroups, kmsg.Heartbeat} {
		req := kmsg.RequestForKey(int16(key))
		req.SetVersion(0)
		b := kmsg.NewRequestFormatter().AppendRequest(nil, req, int32(i))
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	held.Await(t, 1)
	own.Await(t, 1)
	held.Release()
	from := reader(c)
	for want := range uint32(2) {
		frame, err := readFrame(from)
		if err != nil {
			t.Fatal(err)
		}
		if got := binary.BigEndian.Uint32(frame[4:]); got != want {
			t.Fatalf("answer %d comes at the place of %d", got, want)
		}
	}
}

// Both kinds of errors reach every place in an answer where one may be.
func TestErrorsInAnswers(t *testing.T) {
	partition := int32(3)
	produce := kmsg.NewPtrProduceRequest()
	produce.Topics = []kmsg.ProduceRequestTopic{{Topic: "in", Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: partition}}}}
	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: "in", Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Partition: partition}}}}
	fetch := kmsg.NewPtrOffsetFetchRequest()
	fetch.Groups = []kmsg.OffsetFetchRequestGroup{{Group: "job", Topics: []kmsg.OffsetFetchRequestGroupTopic{{Topic: "in", Partitions: []int32{partition}}}}}

	for _, c := range []struct {
		req     kmsg.Request
		version int16
		codes   func(kmsg.Response) []int16
	}{
		{kmsg.NewPtrInitProducerIDRequest(), 4, func(r kmsg.Response) []int16 { return []int16{r.(*kmsg.InitProducerIDResponse).ErrorCode} }},
		{kmsg.NewPtrEndTxnRequest(), 5, func(r kmsg.Response) []int16 { return []int16{r.(*kmsg.EndTxnResponse).ErrorCode} }},
		{kmsg.NewPtrHeartbeatRequest(), 4, func(r kmsg.Response) []int16 { return []int16{r.(*kmsg.HeartbeatResponse).ErrorCode} }},
		{produce, 11, func(r kmsg.Response) []int16 {
			topic := r.(*kmsg.ProduceResponse).Topics[0]
			if topic.Topic != "in" || topic.Partitions[0].Partition != partition {
				t.Errorf("%+v", topic)
			}
			return []int16{topic.Partitions[0].ErrorCode}
		}},
		{commit, 3, func(r kmsg.Response) []int16 {
			topic := r.(*kmsg.TxnOffsetCommitResponse).Topics[0]
			if topic.Topic != "in" || topic.Partitions[0].Partition != partition {
				t.Errorf("%+v", topic)
			}
			return []int16{topic.Partitions[0].ErrorCode}
		}},
		{fetch, 9, func(r kmsg.Response) []int16 {
			group := r.(*kmsg.OffsetFetchResponse).Groups[0]
			topic := group.Topics[0]
			if group.Group != "job" || topic.Topic != "in" || topic.Partitions[0].Partition != partition {
				t.Errorf("%+v", group)
			}
			return []int16{group.ErrorCode, topic.Partitions[0].ErrorCode}
		}},
	} {
		t.Run(kmsg.NameForKey(c.req.Key()), func(t *testing.T) {
			c.req.SetVersion(c.version)
			r, err := parseRequest(kmsg.NewRequestFormatter(kmsg.FormatterClientID("me")).AppendRequest(nil, c.req, 7)[4:])
			if err != nil {
				t.Fatal(err)
			}
			if r.ClientID != "me" || r.correlation != 7 || r.Version != c.version {
				t.Errorf("%+v", r)
			}
			answer := AnswerError(kerr.CoordinatorNotAvailable)(r)
			for _, x := range []struct {
				body []byte
				want *kerr.Error
			}{{answer, kerr.CoordinatorNotAvailable}, {PatchError(kerr.UnknownServerError)(r, answer), kerr.UnknownServerError}} {
				resp := c.req.ResponseKind()
				resp.SetVersion(c.version)
				if err := resp.ReadFrom(x.body); err != nil {
					t.Fatal(err)
				}
				for _, code := range c.codes(resp) {
					if code != x.want.Code {
						t.Errorf("code %d, want %s", code, x.want.Message)
					}
				}
			}
		})
	}
}

func TestAnswerHeaders(t *testing.T) {
	for _, c := range []struct {
		key     kmsg.Key
		version int16
		size    int // the frame's size, the correlation id, and the tags of newer headers
	}{{kmsg.EndTxn, 2, 8}, {kmsg.EndTxn, 3, 9}, {kmsg.ApiVersions, 4, 8}} {
		r := &Request{Key: c.key, Version: c.version}
		if n := len(r.answerFrame(nil)); n != c.size {
			t.Errorf("%s of version %d: %d bytes, want %d", c.key.Name(), c.version, n, c.size)
		}
	}
}

func TestWatchOnlyCounts(t *testing.T) {
	a := newTopicAsker(t)
	h := a.k.Add(KafkaRule{Match: Key(kmsg.CreateTopics), Do: Watch{}})
	for i := range 2 {
		if err := a.ask(fmt.Sprint("topic-", i), bound); err != nil || h.Hits() != i+1 {
			t.Fatalf("%v, %d hits", err, h.Hits())
		}
	}
}

func TestKafkaMatches(t *testing.T) {
	end := func(id string, commit bool) *Request {
		req := kmsg.NewPtrEndTxnRequest()
		req.SetVersion(4)
		req.TransactionalID, req.Commit = id, commit
		return &Request{Key: kmsg.EndTxn, Version: 4, Body: req.AppendTo(nil)}
	}
	for _, c := range []struct {
		name    string
		match   func(*Request) bool
		request *Request
		want    bool
	}{
		{"its own", EndTxn(true, "job-a"), end("job-a.in.0", true), true},
		{"an abort", EndTxn(true, "job-a"), end("job-a.in.0", false), false},
		{"aborts", EndTxn(false, "job-a"), end("job-a.in.0", false), true},
		{"a longer name", EndTxn(true, "job-a"), end("job-aa.in.0", true), false},
		{"another kind", EndTxn(true, "job-a"), &Request{Key: kmsg.InitProducerID, Version: 4}, false},
		{"not to be read", EndTxn(true, "job-a"), &Request{Key: kmsg.EndTxn, Version: 4}, false},
		{"any key", Containing("job-a"), end("job-a.in.0", true), true},
		{"wrong key", Containing("job-a", kmsg.Produce), end("job-a.in.0", true), false},
		{"wrong text", Containing("job-b"), end("job-a.in.0", true), false},
	} {
		if got := c.match(c.request); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}
