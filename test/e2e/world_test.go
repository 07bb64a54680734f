package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/test/proxy"
	"billing/test/servers"
)

// world is one test's job: its topic, its databases, its configuration.
type world struct {
	t          *testing.T
	job, topic string
	partitions int32
	kafka      *servers.KafkaServer
	shards     []*sql.DB              // with all rights
	servers    []*servers.MySQLServer // of each shard
	dsns       []string               // the service's
	config     string
	dir        string
	build      string // of the service, "" for the one that all tests share
	producer   *kgo.Client
	admin      *kgo.Client

	// With throughProxies: what the service's configuration names. The test's
	// own clients go directly.
	kafkaProxy *proxy.Kafka
	shardProxy []*proxy.MySQL

	sent   int64 // records that the service must account for
	oracle map[string]*big.Rat
}

type option func(*settings)

type settings struct {
	partitions int32
	interval   string
	proxies    bool
	kafka      *servers.KafkaServer
	mysql      []*servers.MySQLServer
	checkpoint []string
	answer     time.Duration
}

func withPartitions(n int32) option { return func(s *settings) { s.partitions = n } }
func withInterval(d string) option  { return func(s *settings) { s.interval = d } }
func throughProxies() option        { return func(s *settings) { s.proxies = true } }

// withServer puts the world's shards on a server of the test's own.
func withServer(m *servers.MySQLServer) option {
	return func(s *settings) { s.mysql = []*servers.MySQLServer{m} }
}

// onServers is for tests that have servers of their own.
func onServers(kafka *servers.KafkaServer, mysql ...*servers.MySQLServer) option {
	return func(s *settings) { s.kafka, s.mysql = kafka, mysql }
}

// withCheckpoint adds a line to the configuration's part checkpoint.
func withCheckpoint(line string) option {
	return func(s *settings) { s.checkpoint = append(s.checkpoint, "  "+line+"\n") }
}

// withAnswerWithin bounds the wait for MySQL's answer to one statement, which is
// 30 s by itself. Only through proxies.
func withAnswerWithin(d time.Duration) option { return func(s *settings) { s.answer = d } }

// newWorld makes a topic, a database for each shard, and the tables. More shards
// than servers share them.
func newWorld(t *testing.T, shards int, opts ...option) *world {
	t.Helper()
	s := settings{partitions: 1, interval: "200ms", kafka: shared.kafka, mysql: shared.mysql[:]}
	for _, o := range opts {
		o(&s)
	}
	id := uuid.NewString()[:8]
	w := &world{t: t, job: "job-" + id, topic: "in-" + id, partitions: s.partitions, kafka: s.kafka, oracle: map[string]*big.Rat{}}
	w.dir = filepath.Join(t.ArtifactDir(), w.job)
	if err := os.Mkdir(w.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s.kafka.CreateTopic(t, w.topic, s.partitions, map[string]string{"max.message.bytes": "4194304"})
	w.producer = w.newProducer(s.kafka)
	w.admin = s.kafka.Client(t)

	broker := s.kafka.Addr()
	if s.proxies {
		w.kafkaProxy = proxy.KafkaFor(t, broker)
		broker = w.kafkaProxy.Addr()
	}
	var list strings.Builder
	for i := range shards {
		m := s.mysql[i%len(s.mysql)]
		w.servers = append(w.servers, m)
		dsn := m.NewDatabase(t)
		w.dsns = append(w.dsns, dsn)
		if s.proxies {
			p := proxy.MySQLFor(t, m.Addr())
			w.shardProxy = append(w.shardProxy, p)
			dsn = at(t, dsn, p.Addr(), s.answer)
		}
		fmt.Fprintf(&list, "  - name: s%d\n    dsn: %q\n", i, dsn)
		db, err := sql.Open("mysql", servers.AsRoot(w.dsns[i]))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		w.shards = append(w.shards, db)
	}
	w.config = filepath.Join(w.dir, "config.yaml")
	yaml := fmt.Sprintf(`job: %s
kafka:
  brokers: [%q]
  topic: %s
  session_timeout: 6s
shards:
%scheckpoint:
  interval: %s
%smessage:
  type_prefix: com.example.billing.
  currencies: [USD, EUR, JPY, KWD, KRW, IRR]
admin:
  listen: "127.0.0.1:0"
first_start: true
`, w.job, broker, w.topic, list.String(), s.interval, strings.Join(s.checkpoint, ""))
	if err := os.WriteFile(w.config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	w.command("migrate").mustExit(0)
	return w
}

// at is the same database at another address; answerWithin 0 leaves the bound of an
// answer as it is.
func at(t *testing.T, dsn, addr string, answerWithin time.Duration) string {
	t.Helper()
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	c.Addr = addr
	c.ReadTimeout = answerWithin
	return c.FormatDSN()
}

func (w *world) newProducer(kafka *servers.KafkaServer) *kgo.Client {
	return kafka.Client(w.t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(w.topic), kgo.ProducerBatchMaxBytes(4<<20))
}

// ---- messages

// charge sends n charges with fresh ids to a partition and adds them to the
// oracle. It returns the ids.
func (w *world) charge(partition int32, n int) []string {
	w.t.Helper()
	ids, err := w.tryCharge(partition, n)
	if err != nil {
		w.t.Fatal(err)
	}
	return ids
}

// tryCharge is charge for a goroutine, which may not end the test.
func (w *world) tryCharge(partition int32, n int) ([]string, error) {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = uuid.NewString()
	}
	if err := w.trySend(partition, ids...); err != nil {
		return nil, err
	}
	for _, id := range ids {
		w.expect(chargeOf(id))
	}
	return ids, nil
}

// chargeLarge sends n charges of at least size bytes each, of what no
// compression makes less.
func (w *world) chargeLarge(partition int32, n, size int) {
	w.t.Helper()
	const atOnce = 2 << 20
	var records []*kgo.Record
	for i := range n {
		id := uuid.NewString()
		account, amount := chargeOf(id)
		w.expect(account, amount)
		var fields map[string]any
		if err := json.Unmarshal(message(id, account, amount), &fields); err != nil {
			w.t.Fatal(err)
		}
		noise := make([]byte, size*3/4)
		_, _ = rand.Read(noise)
		fields["noise"] = base64.StdEncoding.EncodeToString(noise)
		value, err := json.Marshal(fields)
		if err != nil {
			w.t.Fatal(err)
		}
		records = append(records, &kgo.Record{Partition: partition, Value: value, Headers: structured})
		if len(records)*size >= atOnce || i == n-1 {
			w.produce(records...)
			records = nil
		}
	}
}

// again sends the same charges a second time: duplicates.
func (w *world) again(partition int32, ids []string) {
	w.t.Helper()
	w.send(partition, ids...)
}

func (w *world) expect(account, amount string) {
	r, ok := new(big.Rat).SetString(amount)
	if !ok {
		w.t.Fatalf("amount %q", amount)
	}
	if w.oracle[account] == nil {
		w.oracle[account] = new(big.Rat)
	}
	w.oracle[account].Add(w.oracle[account], r)
}

// chargeOf is the account and amount of a charge, from its random id.
func chargeOf(id string) (account, amount string) {
	n, err := strconv.ParseUint(id[:8], 16, 64)
	if err != nil {
		panic(err)
	}
	return "acct-" + id[:1], fmt.Sprintf("%d.%012d", n%1000, n)
}

func (w *world) send(partition int32, ids ...string) {
	w.t.Helper()
	if err := w.trySend(partition, ids...); err != nil {
		w.t.Fatal(err)
	}
}

// trySend is send for a goroutine.
func (w *world) trySend(partition int32, ids ...string) error {
	records := make([]*kgo.Record, len(ids))
	for i, id := range ids {
		account, amount := chargeOf(id)
		records[i] = &kgo.Record{Partition: partition, Value: message(id, account, amount), Headers: structured}
	}
	return w.tryProduce(records...)
}

var structured = []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/cloudevents+json; charset=UTF-8")}}

func message(id, account, amount string) []byte {
	return messageAt(time.Now().Add(-time.Minute), id, account, amount)
}

func messageAt(at time.Time, id, account, amount string) []byte {
	b, err := json.Marshal(map[string]any{
		"specversion": "1.0", "id": id, "source": "/e2e", "type": "com.example.billing.charge.v1", "subject": account,
		"time": at.UTC().Format(time.RFC3339Nano),
		"data": map[string]any{"amount": amount, "currency": "USD"},
	})
	if err != nil {
		panic(err)
	}
	return b
}

func (w *world) produce(records ...*kgo.Record) {
	w.t.Helper()
	if err := w.tryProduce(records...); err != nil {
		w.t.Fatal(err)
	}
}

// tryProduce is produce for a goroutine.
func (w *world) tryProduce(records ...*kgo.Record) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // a busy machine's broker takes its time to come back
	defer cancel()
	if err := w.producer.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	w.sent += int64(len(records))
	return nil
}

// ---- what MySQL says

// epochs returns, for each shard, the seq of the lane's last epoch row, 0
// without one. It fails if the chain has a hole.
func (w *world) epochs(partition int32) (out []int64) {
	w.t.Helper()
	for i := range w.shards {
		out = append(out, w.epochsOn(i, partition))
	}
	return out
}

// epochsOn is epochs on one shard.
func (w *world) epochsOn(shard int, partition int32) (last int64) {
	w.t.Helper()
	rows, err := w.shards[shard].Query("SELECT seq, offset_from, offset_next, records_in, applied + duplicates + conflicts + rejected FROM billing_epoch WHERE kafka_topic = ? AND kafka_partition = ? ORDER BY seq", w.topic, partition)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	var next int64
	for rows.Next() {
		var seq, from, to, in, sum int64
		if err := rows.Scan(&seq, &from, &to, &in, &sum); err != nil {
			w.t.Fatal(err)
		}
		if seq != last+1 || (last > 0 && from != next) || in != sum {
			w.t.Fatalf("shard %d, partition %d: epoch %d [%d,%d) in %d = %d follows epoch %d that ended at %d", shard, partition, seq, from, to, in, sum, last, next)
		}
		last, next = seq, to
	}
	if err := rows.Err(); err != nil {
		w.t.Fatal(err)
	}
	return last
}

// prepared returns, for each shard, how many prepared branches of this job and
// of this shard its server lists.
func (w *world) prepared() []int {
	w.t.Helper()
	var out []int
	for i, db := range w.shards {
		var set []byte
		if err := db.QueryRow("SELECT set_id FROM billing_meta").Scan(&set); err != nil {
			w.t.Fatal(err)
		}
		n := 0
		for _, b := range w.servers[i].XABranches(w.t) {
			if strings.HasPrefix(b.GTRID, ownerPrefix(w.job, set)) && b.BQUAL == fmt.Sprintf("s%d", i) {
				n++
			}
		}
		out = append(out, n)
	}
	return out
}

// accounted is the number of records of all committed epochs on shard 0.
func (w *world) accounted() (n int64, err error) { return w.accountedOn(0) }

func (w *world) accountedOn(shard int) (n int64, err error) {
	err = w.shards[shard].QueryRow("SELECT COALESCE(SUM(records_in), 0) FROM billing_epoch").Scan(&n)
	return n, err
}

// waitAccounted waits until every record sent has its outcome on every shard.
func (w *world) waitAccounted() {
	w.t.Helper()
	servers.Eventually(w.t, 2*time.Minute, w.allAccounted)
}

// allAccounted says whether every record sent has its outcome on every shard.
func (w *world) allAccounted() error {
	for i := range w.shards {
		n, err := w.accountedOn(i)
		if err != nil {
			return err
		}
		if n != w.sent {
			return fmt.Errorf("shard %d: %d of %d records accounted for", i, n, w.sent)
		}
	}
	return nil
}

// exact fails unless the totals are the oracle's, the ledger agrees, or is off and
// empty, every record is accounted for once, the chains have no hole and nothing is left
// prepared.
func (w *world) exact() {
	w.t.Helper()
	got := map[string]*big.Rat{}
	ledger := map[string]*big.Rat{}
	for _, db := range w.shards {
		sum(w.t, db, got, "SELECT account_id, CAST(SUM(net_amount) AS CHAR) FROM billing_totals GROUP BY account_id")
		sum(w.t, db, ledger, "SELECT account_id, CAST(SUM(amount) AS CHAR) FROM billing_ledger GROUP BY account_id")
	}
	compare(w.t, "billing_totals", got, w.oracle)
	booked := w.oracle
	if bytes.Contains(w.configuration(), []byte(ledgerOff)) {
		booked = nil
	}
	compare(w.t, "billing_ledger", ledger, booked)
	for p := range w.partitions {
		e := w.epochs(p)
		for i := range e {
			if e[i] != e[0] {
				w.t.Errorf("partition %d: shards at different epochs: %v", p, e)
			}
		}
	}
	if n, err := w.accounted(); err != nil || n != w.sent {
		w.t.Errorf("%d records accounted for, %d sent (%v)", n, w.sent, err)
	}
	for i, n := range w.prepared() {
		if n != 0 {
			w.t.Errorf("shard %d: %d branches left prepared", i, n)
		}
	}
}

func sum(t *testing.T, db *sql.DB, into map[string]*big.Rat, query string) {
	t.Helper()
	rows, err := db.Query(query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var account, amount string
		if err := rows.Scan(&account, &amount); err != nil {
			t.Fatal(err)
		}
		r, ok := new(big.Rat).SetString(amount)
		if !ok {
			t.Fatalf("amount %q", amount)
		}
		if into[account] == nil {
			into[account] = new(big.Rat)
		}
		into[account].Add(into[account], r)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

func compare(t *testing.T, what string, got, want map[string]*big.Rat) {
	t.Helper()
	for account, r := range want {
		if got[account] == nil || got[account].Cmp(r) != 0 {
			t.Errorf("%s: account %s: got %v, want %s", what, account, got[account], r.FloatString(12))
		}
	}
	for account, r := range got {
		if want[account] == nil && r.Sign() != 0 {
			t.Errorf("%s: account %s: got %s, nothing was sent", what, account, r.FloatString(12))
		}
	}
}

// ---- what Kafka says

// decision is the part of D that these tests look at.
type decision struct {
	Incarnation int64  `json:"incarnation"`
	Seq         int64  `json:"seq"`
	GTRID       string `json:"gtrid"`
	Next        int64  `json:"next"`
}

// decided reads D from the group's offset as it is committed now; a transaction
// that is open is not waited for.
func (w *world) decided(partition int32) (d decision) {
	w.t.Helper()
	servers.Eventually(w.t, time.Minute, func() (err error) { // a broker under load may have no coordinator for a moment
		d, err = w.readD(partition)
		return err
	})
	return d
}

// readD is decided for who asks again: a coordinator may be on its way.
func (w *world) readD(partition int32) (d decision, err error) {
	_, text, err := w.readOffset(partition)
	if err != nil || text == "" {
		return d, err
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return d, fmt.Errorf("D is not JSON: %w: %s", err, text)
	}
	return d, nil
}

// offset reads the group's offset of the lane and its metadata; -1 without one.
func (w *world) offset(partition int32) (next int64, text string) {
	w.t.Helper()
	next, text, err := w.readOffset(partition)
	if err != nil {
		w.t.Fatal(err)
	}
	return next, text
}

func (w *world) readOffset(partition int32) (next int64, text string, err error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = w.job
	rt := kmsg.NewOffsetFetchRequestGroupTopic()
	rt.Topic, rt.Partitions = w.topic, []int32{partition}
	g.Topics = append(g.Topics, rt)
	req.Groups = append(req.Groups, g)
	req.Group = w.job
	ot := kmsg.NewOffsetFetchRequestTopic()
	ot.Topic, ot.Partitions = w.topic, []int32{partition}
	req.Topics = append(req.Topics, ot)
	req.RequireStable = false
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	resp, err := req.RequestWith(ctx, w.admin)
	if err != nil {
		return -1, "", err
	}
	var metadata *string
	next = -1
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				next, metadata = p.Offset, p.Metadata
			}
		}
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			next, metadata = p.Offset, p.Metadata
		}
	}
	if metadata == nil {
		return next, "", nil
	}
	return next, *metadata, nil
}

// transaction asks the broker for the lane's transaction.
func (w *world) transaction(partition int32) kmsg.DescribeTransactionsResponseTransactionState {
	w.t.Helper()
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{w.transactionalID(partition)}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	resp, err := req.RequestWith(ctx, w.admin)
	if err == nil && len(resp.TransactionStates) != 1 {
		err = errors.New("no such transactional id")
	}
	if err == nil {
		err = kerr.ErrorForCode(resp.TransactionStates[0].ErrorCode)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.TransactionStates[0]
}

func (w *world) transactionalID(partition int32) string {
	return fmt.Sprintf("%s.%s.%d", w.job, w.topic, partition)
}
