package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/test/servers"
)

// What operators and accidents do to a job, and what an operator sees of it.

// ---- the configuration

func (w *world) configuration() []byte {
	w.t.Helper()
	b, err := os.ReadFile(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

func (w *world) configure(b []byte) {
	w.t.Helper()
	if err := os.WriteFile(w.config, b, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// edit changes the configuration file.
func (w *world) edit(from, to string) {
	w.t.Helper()
	b := w.configuration()
	if !bytes.Contains(b, []byte(from)) {
		w.t.Fatalf("the configuration has no %q", from)
	}
	w.configure(bytes.Replace(b, []byte(from), []byte(to), 1))
}

// swapShards exchanges the two databases of the configuration.
func (w *world) swapShards() {
	w.t.Helper()
	w.configure([]byte(strings.NewReplacer(w.dsns[0], w.dsns[1], w.dsns[1], w.dsns[0]).Replace(string(w.configuration()))))
}

// ---- MySQL

func (w *world) exec(shard int, query string, args ...any) {
	w.t.Helper()
	if _, err := w.shards[shard].Exec(query, args...); err != nil {
		w.t.Fatalf("shard %d: %s: %v", shard, query, err)
	}
}

// root changes a shard's server as its administrator.
func (w *world) root(shard int, statement string) {
	w.t.Helper()
	if _, err := w.servers[shard].Root().Exec(statement); err != nil {
		w.t.Fatalf("shard %d: %s: %v", shard, statement, err)
	}
}

// user is the service's user on a shard, as in a GRANT, and reader the one who
// only looks.
func (w *world) user(shard int) string   { return w.userIn(w.dsns[shard]) }
func (w *world) reader(shard int) string { return w.userIn(servers.AsReader(w.dsns[shard])) }

func (w *world) userIn(dsn string) string {
	w.t.Helper()
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	return "'" + c.User + "'@'%'"
}

// column is one column of all rows as text, a line each, of every shard.
func (w *world) column(query string, args ...any) string {
	w.t.Helper()
	var out strings.Builder
	for i, db := range w.shards {
		for _, s := range column(w.t, db, query, args...) {
			fmt.Fprintf(&out, "shard %d: %s\n", i, s)
		}
	}
	return out.String()
}

// dump is all totals as text.
func (w *world) dump() string {
	w.t.Helper()
	return w.column("SELECT CONCAT_WS(' ', account_id, currency, window_start, net_amount, entry_count) FROM billing_totals ORDER BY account_id, currency, window_start")
}

// booked is everything that the shards have of a lane, as text.
func (w *world) booked(partition int32) string {
	w.t.Helper()
	var out strings.Builder
	for _, q := range []string{
		"SELECT CONCAT_WS(' ', incarnation, seq, offset_next) FROM billing_lane WHERE kafka_topic = ? AND kafka_partition = ?",
		"SELECT CONCAT_WS(' ', seq, gtrid, HEX(digest)) FROM billing_epoch WHERE kafka_topic = ? AND kafka_partition = ? ORDER BY seq",
		"SELECT CONCAT_WS(' ', account_id, window_start, charge_amount, entry_count) FROM billing_total WHERE kafka_topic = ? AND kafka_partition = ? ORDER BY total_key",
		"SELECT CONCAT_WS(' ', kafka_offset, event_id, amount) FROM billing_ledger WHERE kafka_topic = ? AND kafka_partition = ? ORDER BY kafka_offset",
		"SELECT CONCAT_WS(' ', kafka_offset, reason) FROM billing_rejects WHERE kafka_topic = ? AND kafka_partition = ? ORDER BY kafka_offset",
	} {
		out.WriteString(w.column(q, w.topic, partition))
	}
	return out.String()
}

// ---- Kafka

// trim deletes the records of a partition before an offset; -1 all of them.
func (w *world) trim(topic string, partition int32, before int64) {
	w.t.Helper()
	var offsets kadm.Offsets
	offsets.AddOffset(topic, partition, before, -1)
	resp, err := kadm.NewClient(w.admin).DeleteRecords(w.t.Context(), offsets)
	if err = errors.Join(err, resp.Error()); err != nil {
		w.t.Fatal(err)
	}
}

// recreate deletes the input topic and makes it again, with one partition.
func (w *world) recreate() {
	w.t.Helper()
	admin := kadm.NewClient(w.admin)
	if _, err := admin.DeleteTopic(w.t.Context(), w.topic); err != nil {
		w.t.Fatal(err)
	}
	servers.Eventually(w.t, time.Minute, func() error {
		_, err := admin.CreateTopic(w.t.Context(), 1, 1, nil, w.topic)
		return err
	})
	servers.Eventually(w.t, time.Minute, func() error {
		topics, err := admin.ListTopics(w.t.Context(), w.topic) // the broker knows it
		return errors.Join(err, topics.Error())
	})
}

// alter sets a configuration of a topic and returns when the broker shows it.
func (w *world) alter(topic, key, value string) {
	w.t.Helper()
	admin := kadm.NewClient(w.admin)
	answers, err := admin.AlterTopicConfigs(w.t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}, topic)
	if err != nil || answers[0].Err != nil {
		w.t.Fatal(err, answers)
	}
	servers.Eventually(w.t, time.Minute, func() error {
		found, err := admin.DescribeTopicConfigs(w.t.Context(), topic)
		if err != nil {
			return err
		}
		for _, c := range found[0].Configs {
			if c.Key == key && c.MaybeValue() == value {
				return nil
			}
		}
		return fmt.Errorf("%s of %s is not %s yet", key, topic, value)
	})
}

// write adds records to one of the job's own topics.
func (w *world) write(r *kgo.Record) {
	w.t.Helper()
	if err := w.producer.ProduceSync(w.t.Context(), r).FirstErr(); err != nil {
		w.t.Fatal(err)
	}
}

// record writes the lane's record of <job>.decision; "" is a tombstone.
func (w *world) record(partition int32, d string) {
	w.t.Helper()
	r := &kgo.Record{Topic: w.job + ".decision", Partition: partition, Key: fmt.Appendf(nil, "%s/%d", w.topic, partition)}
	if d != "" {
		r.Value = []byte(d)
	}
	w.write(r)
}

// setOffset stores the group's offset of a lane, also while the group has
// members: a group takes an offset in a Kafka transaction from anybody.
func (w *world) setOffset(partition int32, next int64, metadata string) {
	w.t.Helper()
	ctx := w.t.Context()
	topics, err := kadm.NewClient(w.admin).ListTopics(ctx, w.topic)
	if err = errors.Join(err, topics.Error()); err != nil {
		w.t.Fatal(err)
	}
	id := "operator-" + uuid.NewString()
	start := kmsg.NewPtrInitProducerIDRequest()
	start.TransactionalID, start.TransactionTimeoutMillis = &id, 60_000
	producer, err := start.RequestWith(ctx, w.admin)
	if err == nil {
		err = kerr.ErrorForCode(producer.ErrorCode)
	}
	if err != nil {
		w.t.Fatal(err)
	}

	rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	rp.Partition, rp.Offset, rp.Metadata = partition, next, &metadata
	rt := kmsg.NewTxnOffsetCommitRequestTopic()
	rt.Topic, rt.TopicID, rt.Partitions = w.topic, topics[w.topic].ID, []kmsg.TxnOffsetCommitRequestTopicPartition{rp}
	offset := kmsg.NewPtrTxnOffsetCommitRequest()
	offset.TransactionalID, offset.Group, offset.ProducerID, offset.ProducerEpoch = id, w.job, producer.ProducerID, producer.ProducerEpoch
	offset.Topics = append(offset.Topics, rt)
	servers.Eventually(w.t, time.Minute, func() error {
		stored, err := offset.RequestWith(ctx, w.admin)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(stored.Topics[0].Partitions[0].ErrorCode)
	})

	end := kmsg.NewPtrEndTxnRequest()
	end.TransactionalID, end.ProducerID, end.ProducerEpoch, end.Commit = id, producer.ProducerID, producer.ProducerEpoch, true
	ended, err := end.RequestWith(ctx, w.admin)
	if err == nil {
		err = kerr.ErrorForCode(ended.ErrorCode)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	servers.Eventually(w.t, time.Minute, func() error {
		if at, text := w.offset(partition); at != next || text != metadata {
			return fmt.Errorf("the group's offset is still %d", at)
		}
		return nil
	})
}

// deleteOffset removes the group's offset of a lane while no member is there.
func (w *world) deleteOffset(partition int32) {
	w.t.Helper()
	set := kadm.TopicsSet{}
	set.Add(w.topic, partition)
	servers.Eventually(w.t, time.Minute, func() error {
		answers, err := kadm.NewClient(w.admin).DeleteOffsets(w.t.Context(), w.job, set)
		return errors.Join(err, answers.Error())
	})
}

// setD stores a D in both places.
func (w *world) setD(partition int32, d string) {
	w.t.Helper()
	var at decision
	if err := json.Unmarshal([]byte(d), &at); err != nil {
		w.t.Fatal(err)
	}
	w.record(partition, d)
	w.setOffset(partition, at.Next, d)
}

// withNumber is the D in which a field has another value.
func withNumber(t *testing.T, d, field string, value int64) string {
	t.Helper()
	re := regexp.MustCompile(`"` + field + `":-?\d+`)
	if !re.MatchString(d) {
		t.Fatalf("D has no number %s: %s", field, d)
	}
	return re.ReplaceAllString(d, fmt.Sprintf(`"%s":%d`, field, value))
}

// ---- the admin port

type health struct {
	Status string
	Stuck  []string
	Notes  []string
	Lanes  []struct {
		Lane, State, Why string
		Stuck            bool
	}
}

// health is /healthz, which answers 200 as long as the process lives.
func (p *process) health() (h health, err error) {
	code, body, err := p.get("/healthz")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("/healthz: %d, %s", code, body)
	}
	if err == nil {
		err = json.Unmarshal([]byte(body), &h)
	}
	return h, err
}
