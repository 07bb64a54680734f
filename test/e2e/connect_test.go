package e2e

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/test/servers"
)

// `billing config check --connect`: what a start would be told, all of it, and
// nothing is changed.

// connected is its answer.
type connected struct {
	OK       bool
	Problems []wrongKey
	Warnings []string
	Checks   []struct{ Name, Result, Detail string }

	took time.Duration
	text string
}

type wrongKey struct{ Path, Source, Kind, Reason, What, Message, Next string }

func (p wrongKey) String() string { return p.Path + " " + p.Kind + " " + p.Reason + " " + p.What }

// connect runs it, and fails if anything has changed, or a password is shown.
func (w *world) connect(t *testing.T, code int, env ...string) (a connected) {
	t.Helper()
	before := w.everything()
	begun := time.Now()
	p := w.commandEnv(env, "config", "check", "--connect", "--json")
	p.mustExit(code)
	a.took = time.Since(begun)
	a.text = p.output()
	if err := json.Unmarshal([]byte(a.text), &a); err != nil {
		t.Fatalf("%v:\n%s", err, a.text)
	}
	if after := w.everything(); after != before {
		t.Errorf("there was\n%s\nand is\n%s", before, after)
	}
	w.noPassword(t, a.text)
	if a.OK != (code == 0) {
		t.Errorf("exit %d, but ok is %t", code, a.OK)
	}
	return a
}

func (w *world) noPassword(t *testing.T, text string) {
	t.Helper()
	for _, dsn := range w.dsns {
		c, err := mysql.ParseDSN(dsn)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, c.Passwd) {
			t.Errorf("shows a password:\n%s", text)
		}
	}
}

// problems are the problems in their order.
func (a *connected) problems() (all []string) {
	for _, p := range a.Problems {
		all = append(all, p.String())
	}
	return all
}

func (a *connected) mustHave(t *testing.T, problems ...string) {
	t.Helper()
	if got := a.problems(); !slices.Equal(got, problems) {
		t.Errorf("got the problems\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(problems, "\n  "))
	}
}

// mustSay holds a problem's message and next step against what they must say.
func (a *connected) mustSay(t *testing.T, problem string, words ...string) {
	t.Helper()
	i := slices.Index(a.problems(), problem)
	if i < 0 {
		t.Errorf("no problem %q in\n%s", problem, strings.Join(a.problems(), "\n"))
		return
	}
	for _, word := range words {
		if err := contains(a.Problems[i].Message+" | "+a.Problems[i].Next, word); err != nil {
			t.Errorf("%s: %v: %+v", problem, err, a.Problems[i])
		}
	}
}

// result is the result of one check, with its detail.
func (a *connected) result(name string) string {
	for _, c := range a.Checks {
		if c.Name == name {
			return strings.TrimSuffix(c.Result+": "+c.Detail, ": ")
		}
	}
	return "no such check"
}

func (a *connected) mustResult(t *testing.T, results map[string]string) {
	t.Helper()
	for name, want := range results {
		if got := a.result(name); got != want {
			t.Errorf("check %q: %q, want %q", name, got, want)
		}
	}
}

// everything that a check could have changed: topics, the group, the lanes' fences,
// the recorded shards, tables. What a running service changes is not in it.
func (w *world) everything() string {
	w.t.Helper()
	var out strings.Builder
	admin := kadm.NewClient(w.admin)
	servers.Eventually(w.t, time.Minute, func() error {
		out.Reset()
		topics, err := admin.ListTopics(w.t.Context())
		if err != nil {
			return err
		}
		for _, topic := range topics.Sorted() {
			if strings.Contains(topic.Topic, w.job) || topic.Topic == w.topic {
				fmt.Fprintf(&out, "topic %s %s with %d partitions\n", topic.Topic, topic.ID, len(topic.Partitions))
			}
		}
		groups, err := admin.DescribeGroups(w.t.Context(), w.job)
		if err != nil {
			return err
		}
		g := groups[w.job]
		fmt.Fprintf(&out, "group %s with %d members\n", g.State, len(g.Members))
		for _, m := range g.Members {
			fmt.Fprintf(&out, "member %s\n", m.MemberID)
		}
		for p := range w.partitions {
			id := w.transactionalID(p)
			states, err := admin.DescribeTransactions(w.t.Context(), id)
			if err != nil {
				return err
			}
			if state := states[id]; len(g.Members) == 0 { // each decision moves the epoch
				fmt.Fprintf(&out, "partition %d: producer %d, epoch %d (%v)\n", p, state.ProducerID, state.ProducerEpoch, state.Err)
			}
		}
		return nil
	})
	for p := range w.partitions {
		fmt.Fprintf(&out, "partition %d: incarnation %d\n", p, w.decided(p).Incarnation)
	}
	out.WriteString(w.column("SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY table_name"))
	out.WriteString(w.column("SELECT CONCAT_WS(' ', job, HEX(set_id), shard_number, shard_count, server_uuid, HEX(checksum)) FROM billing_meta"))
	return out.String()
}

// TestConnectAroundTheFirstStart: before migrate, before the first start, beside
// the service at work, and after it.
func TestConnectAroundTheFirstStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(3), withInterval("20ms"))
	config := w.configuration()
	empty := string(config)
	var tables []*sql.DB
	for i, dsn := range w.dsns {
		other := w.servers[i].NewDatabase(t)
		empty = strings.ReplaceAll(empty, dsn, other)
		db, err := sql.Open("mysql", servers.AsRoot(other))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		tables = append(tables, db)
	}
	w.configure([]byte(empty))
	a := w.connect(t, 3)
	for i, db := range tables {
		if made := column(t, db, "SHOW TABLES"); len(made) > 0 {
			t.Errorf("shard %d: the check has made %v", i, made)
		}
	}
	a.mustHave(t, "shards[0].dsn refusal migrations-pending s0", "shards[1].dsn refusal migrations-pending s1")
	a.mustSay(t, a.problems()[1], "before a job's first start that is as it should be", "run: billing migrate")
	a.mustResult(t, map[string]string{
		"configuration": "ok", "shard s0": "problem", "shard s1": "problem", "broker " + w.kafka.Addr(): "ok", "Kafka: features": "ok",
		"Kafka: input topic": "ok: " + w.topic + " has 3 partitions", "lanes": "not checked: no shard says to which set it belongs", "clock": "ok", "connections": "ok",
	})

	w.configure(config)
	created := "ok: " + w.job + ".decision, " + w.job + ".state will be created by the first start"
	a = w.connect(t, 0)
	a.mustHave(t)
	a.mustResult(t, map[string]string{"shard s0": "ok", "shard s1": "ok", "Kafka: topics of the job": created, "Kafka: rights": "ok", "same deployment": "ok", "lanes": "ok: 3 of 3"})
	for _, c := range a.Checks {
		if c.Result != "ok" {
			t.Errorf("%s: %s: %s", c.Name, c.Result, c.Detail)
		}
	}
	w.edit("first_start: true", "first_start: false")
	a = w.connect(t, 3)
	a.mustHave(t, "first_start refusal topic-missing "+w.job+".decision", "first_start refusal topic-missing "+w.job+".state")
	w.configure(config)

	s := w.run("")
	for p := range w.partitions {
		w.charge(p, 10)
	}
	w.waitAccounted()
	// An owner at work moves between two readings.
	done := make(chan struct{})
	var load sync.WaitGroup
	load.Go(func() {
		for {
			for p := range w.partitions {
				if _, err := w.tryCharge(p, 5); err != nil {
					t.Error(err)
					return
				}
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	for range 10 {
		a = w.connect(t, 0)
		a.mustHave(t)
		a.mustResult(t, map[string]string{"Kafka: topics of the job": "ok", "same deployment": "ok", "lanes": "ok: 3 of 3"})
	}
	close(done)
	load.Wait()
	w.waitAccounted()
	s.stop()
	a = w.connect(t, 0)
	a.mustHave(t)

	// For people: the settings, and what was checked.
	p := w.command("config", "check", "--connect")
	p.mustExit(0)
	for _, want := range []string{"ok: ", "\nCHECK ", "\nlanes ", "ok: 3 of 3\n"} {
		if err := contains(p.output(), want); err != nil {
			t.Errorf("%v:\n%s", err, p.output())
		}
	}
	w.noPassword(t, p.output())

	// A clock that is wrong is in nobody's way; the service says so, too.
	dsn, err := mysql.ParseDSN(w.dsns[0])
	if err != nil {
		t.Fatal(err)
	}
	dsn.Params = map[string]string{"timestamp": fmt.Sprint(time.Now().Add(time.Hour).Unix())}
	w.edit(w.dsns[0], dsn.FormatDSN())
	a = w.connect(t, 0)
	a.mustResult(t, map[string]string{"clock": "warning"})
	const behind = "behind that of shard s0, more than 5m0s"
	if len(a.Warnings) != 1 || !strings.Contains(a.Warnings[0], behind) {
		t.Errorf("warnings: %q", a.Warnings)
	}
	s = w.run("")
	servers.Eventually(t, time.Minute, func() error { return contains(s.output(), behind) })
	s.stop()
	w.configure(config)
	w.exact()
}

// TestConnectForeseesStoppedLanes: what the lanes' sessions then say, with the
// same words.
func TestConnectForeseesStoppedLanes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(4))
	s := w.run("")
	for range 2 {
		for p := range w.partitions {
			w.charge(p, 10)
		}
		w.waitAccounted()
	}
	s.stop()
	_, d := w.offset(1)
	w.setOffset(1, 0, "")
	w.exec(0, "UPDATE billing_lane SET seq = seq + 1 WHERE kafka_partition = 2")
	w.exec(1, "CREATE TABLE saved_epoch AS SELECT * FROM billing_epoch WHERE kafka_partition = 3 AND seq = 2")
	w.exec(1, "DELETE FROM billing_epoch WHERE kafka_partition = 3 AND seq = 2")

	lane := func(p int) string { return fmt.Sprintf("%s/%d", w.topic, p) }
	a := w.connect(t, 3)
	a.mustHave(t, "kafka.topic refusal offset-reset "+lane(1), "kafka.topic refusal shard-ahead "+lane(2), "kafka.topic refusal lost-epoch "+lane(3))
	a.mustResult(t, map[string]string{"lanes": "problem", "same deployment": "ok", "shard s0": "ok"})

	s = w.run("")
	servers.Eventually(t, time.Minute, func() error {
		h, err := s.health()
		if err != nil {
			return err
		}
		if len(h.Stuck) != 3 {
			return fmt.Errorf("stuck: %v", h.Stuck)
		}
		for _, l := range h.Lanes {
			for _, p := range a.Problems {
				if p.What == l.Lane && !strings.Contains(l.Why, p.Message) {
					return fmt.Errorf("%s says %q, foreseen was %q", l.Lane, l.Why, p.Message)
				}
			}
		}
		return nil
	})
	again := w.connect(t, 3) // beside it
	again.mustHave(t, a.problems()...)

	w.setD(1, d)
	w.exec(0, "UPDATE billing_lane SET seq = seq - 1 WHERE kafka_partition = 2")
	w.exec(1, "INSERT INTO billing_epoch SELECT * FROM saved_epoch")
	w.exec(1, "DROP TABLE saved_epoch")
	for p := range w.partitions {
		w.charge(p, 10)
	}
	w.waitAccounted()
	s.stop()
	w.connect(t, 0)
	w.exact()
}

// TestConnectSaysEverythingAtOnce: one run names each problem by its key.
func TestConnectSaysEverythingAtOnce(t *testing.T) {
	t.Parallel()
	kafka := servers.Kafka(t, servers.WithEnv("KAFKA_TRANSACTION_MAX_TIMEOUT_MS", "60000"), servers.WithEnv("KAFKA_GROUP_MAX_SESSION_TIMEOUT_MS", "20000"))
	w := newWorld(t, 2, onServers(kafka, shared.mysql[:]...))
	w.edit("  session_timeout: 6s\n", "  session_timeout: 6s\n  transaction_timeout: 10s\n")
	s := w.run("")
	w.charge(0, 10)
	w.waitAccounted()
	s.stop()
	w.connect(t, 0)

	good := w.configuration()
	dsn, err := mysql.ParseDSN(w.dsns[1])
	if err != nil {
		t.Fatal(err)
	}
	dsn.Passwd = "s3cr3t-and-wrong"
	w.edit(w.dsns[1], dsn.FormatDSN())
	w.edit("  transaction_timeout: 10s\n", "  transaction_timeout: 2m\n")
	w.edit("  session_timeout: 6s\n", "  session_timeout: 25s\n")
	w.edit(fmt.Sprintf("[%q]", kafka.Addr()), fmt.Sprintf("[%q, '127.0.0.1:1', 'nowhere']", kafka.Addr()))
	w.edit("checkpoint:\n", "aggregate:\n  window: 15m\nlog:\n  level: loud\ncheckpoint:\n")
	w.edit("com.example.billing.", "com.other.")
	w.root(0, "REVOKE UPDATE ON "+w.database(0)+".billing_lane FROM "+w.user(0))
	w.exec(0, "ALTER TABLE billing_ledger DROP INDEX billing_ledger_dedup")
	w.alter(w.job+".state", "retention.ms", "604800000")
	_, d := w.offset(0)
	w.setOffset(0, 0, "")

	a := w.connect(t, 2)
	static := []string{"kafka.brokers[2] static  ", "log.level static  "}
	refused := []string{
		"shards[0].dsn refusal shard-unfit s0", // the right
		"shards[0].dsn refusal shard-unfit s0", // the key
		"shards[1].dsn unreachable turned-away s1",
		"kafka.brokers[1] unreachable unreachable 127.0.0.1:1",
		"kafka.transaction_timeout refusal transaction-timeout broker 1",
		"kafka.session_timeout unreachable turned-away broker 1 (" + kafka.Addr() + ")",
		"job refusal topic-config " + w.job + ".state",
		"kafka.topic refusal offset-reset " + w.topic + "/0",
	}
	got := a.problems()
	want := slices.Concat(static, refused)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got the problems\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	a.mustSay(t, "shards[1].dsn unreachable turned-away s1", "Access denied for user", "correct the user or the password")
	a.mustSay(t, "kafka.brokers[1] unreachable unreachable 127.0.0.1:1", "connection refused", "host and port in kafka.brokers")
	for _, want := range []string{"the user " + w.user(0) + " lacks rights: UPDATE on billing_lane", "GRANT UPDATE ON " + w.database(0) + ".billing_lane TO " + w.user(0),
		"table billing_ledger has no unique key on (kafka_topic, kafka_partition, dedup_key)", "ALTER TABLE billing_ledger ADD UNIQUE KEY"} {
		if err := contains(a.text, want); err != nil {
			t.Error(err)
		}
	}

	// As text: the same, each with its place.
	p := w.command("config", "check", "--connect")
	p.mustExit(2)
	for _, want := range []string{"CHECK", "shard s1", "FAILED", "billing: configuration and servers: 10 problems:\n",
		".yaml:9: shards[0].dsn: refused (shard-unfit) s0: the user " + w.user(0) + " lacks rights: UPDATE on billing_lane", ".yaml:11: shards[1].dsn: shard s1: connect: Error 1045",
		".yaml:3: kafka.brokers[1]: kafka: ask 127.0.0.1:1: ", ".yaml:6: kafka.transaction_timeout: refused (transaction-timeout) broker 1: ", ". Next step: "} {
		if err := contains(p.output(), want); err != nil {
			t.Errorf("%v:\n%s", err, p.output())
		}
	}
	for _, text := range []string{a.text, p.output()} {
		if strings.Contains(text, dsn.Passwd) {
			t.Errorf("shows a password:\n%s", text)
		}
		w.noPassword(t, text)
	}

	// The offset is the lane's own again: now the deployment is another one.
	w.configure(good)
	w.edit("checkpoint:\n", "aggregate:\n  window: 15m\ncheckpoint:\n")
	w.edit("com.example.billing.", "com.other.")
	w.edit(w.dsns[1], dsn.FormatDSN())
	w.root(0, "GRANT UPDATE ON "+w.database(0)+".billing_lane TO "+w.user(0))
	w.exec(0, "ALTER TABLE billing_ledger ADD UNIQUE KEY billing_ledger_dedup (kafka_topic, kafka_partition, dedup_key)")
	w.alter(w.job+".state", "retention.ms", "-1")
	w.setD(0, d)
	a = w.connect(t, 3)
	a.mustHave(t, "shards[1].dsn unreachable turned-away s1",
		"aggregate.window refusal fingerprint "+w.topic+"/0", "message.type_prefix refusal fingerprint "+w.topic+"/0")
	a.mustSay(t, "aggregate.window refusal fingerprint "+w.topic+"/0", "window 1h0m0s", "window 15m0s")
	a.mustResult(t, map[string]string{"same deployment": "problem", "lanes": "ok: 1 of 1"})

	// From the environment: the variable is the place.
	w.configure(good)
	a = w.connect(t, 3, "BILLING_KAFKA_TOPIC=nowhere")
	a.mustHave(t, "kafka.topic refusal topic-missing nowhere")
	if a.Problems[0].Source != "BILLING_KAFKA_TOPIC" {
		t.Errorf("got the source %q", a.Problems[0].Source)
	}
	a.mustResult(t, map[string]string{"Kafka: topics of the job": "not checked: the input topic could not be looked up", "lanes": "not checked: the input topic could not be looked up"})
	// A DSN that can't be read, beside a shard that is asked at its place.
	w.edit(fmt.Sprintf("dsn: %q", w.dsns[1]), "dsn: 'u:s3cr3t-and-wrong@tcp(/x'")
	a = w.connect(t, 2)
	a.mustHave(t, "shards[1].dsn static  ")
	a.mustResult(t, map[string]string{"shard s0": "ok", "shard s1": "not checked: its configuration has a problem", "same deployment": "ok",
		"lanes": "not checked: the shards have a problem: only what Kafka knows of the lanes was checked"})
	if strings.Contains(a.text, "s3cr3t") {
		t.Errorf("shows a password:\n%s", a.text)
	}
	w.configure(good)
	w.connect(t, 0)
	w.exact()
}

// database is the shard's database, quoted.
func (w *world) database(shard int) string {
	w.t.Helper()
	c, err := mysql.ParseDSN(w.dsns[shard])
	if err != nil {
		w.t.Fatal(err)
	}
	return "`" + c.DBName + "`"
}

// TestConnectNamesRightsInKafka: a cluster with an authorizer tells what is allowed, and
// what is missing is named before it is needed.
func TestConnectNamesRightsInKafka(t *testing.T) {
	t.Parallel()
	kafka := servers.Kafka(t,
		servers.WithEnv("KAFKA_AUTHORIZER_CLASS_NAME", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
		servers.WithEnv("KAFKA_ALLOW_EVERYONE_IF_NO_ACL_FOUND", "true"))
	w := newWorld(t, 1, onServers(kafka, shared.mysql[:]...))
	s := w.run("")
	w.charge(0, 10)
	w.waitAccounted()
	s.stop()
	w.connect(t, 0)

	// Once there is a rule for something, only what its rules say is allowed.
	allow := func(b *kadm.ACLBuilder, ops ...kmsg.ACLOperation) {
		t.Helper()
		results, err := kafka.Admin(t).CreateACLs(t.Context(), b.Allow("User:*").AllowHosts("*").Operations(ops...).ResourcePatternType(kadm.ACLPatternLiteral))
		for _, r := range results {
			err = errors.Join(err, r.Err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	allow(kadm.NewACLs().Topics(w.topic), kmsg.ACLOperationDescribe)
	allow(kadm.NewACLs().Topics(w.job+".decision"), kmsg.ACLOperationRead, kmsg.ACLOperationDescribeConfigs)
	allow(kadm.NewACLs().Topics(w.job+".state"), kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDescribeConfigs)
	allow(kadm.NewACLs().Groups(w.job), kmsg.ACLOperationDescribe)
	group := "job unreachable turned-away group " + w.job
	var a connected
	servers.Eventually(t, time.Minute, func() error { // a rule holds a moment after the answer
		p := w.command("config", "check", "--connect", "--json")
		p.mustExit(4)
		a = connected{}
		if err := json.Unmarshal([]byte(p.output()), &a); err != nil {
			return err
		}
		if !slices.Contains(a.problems(), group) {
			return errors.New("no problem with the group yet")
		}
		return nil
	})
	a.mustHave(t, "kafka.topic unreachable turned-away topic "+w.topic, "job unreachable turned-away topic "+w.job+".decision",
		"job unreachable turned-away topic "+w.job+".state", group)
	for i, want := range []string{"READ on topic " + w.topic, "WRITE on topic " + w.job + ".decision", "DELETE on topic " + w.job + ".state", "READ on group " + w.job} {
		a.mustSay(t, a.problems()[i], "this service may not "+want+" |", "grant this service "+want)
	}
}

// TestConnectServersAway: each is a problem among the others, and none is waited
// for.
func TestConnectServersAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	config := w.configuration()
	hole := servers.Silent(t)
	const atMost = 20 * time.Second // 15 s, on a machine that has other work

	w.edit(w.kafka.Addr(), hole)
	a := w.connect(t, 4)
	a.mustHave(t, "kafka.brokers[0] unreachable unreachable "+hole)
	a.mustSay(t, a.problems()[0], "look whether the broker is up")
	a.mustResult(t, map[string]string{"shard s0": "ok", "shard s1": "ok", "Kafka: features": "not checked: no broker could be asked", "lanes": "not checked: no broker could be asked"})
	if a.took > atMost {
		t.Errorf("Kafka is away: took %s", a.took)
	}

	w.configure(config)
	w.edit(w.dsns[0], at(t, w.dsns[0], hole, 0))
	w.edit(w.dsns[1], at(t, w.dsns[1], "127.0.0.1:1", 0))
	a = w.connect(t, 4)
	a.mustHave(t, "shards[0].dsn unreachable unreachable s0", "shards[1].dsn unreachable unreachable s1")
	a.mustSay(t, a.problems()[0], "shard s0: ", "look whether the server is up")
	a.mustSay(t, a.problems()[1], "shard s1: ", "connection refused", "correct host and port in the DSN")
	a.mustResult(t, map[string]string{"broker " + w.kafka.Addr(): "ok", "Kafka: input topic": "ok: " + w.topic + " has 1 partitions", "lanes": "not checked: no shard says to which set it belongs"})
	if a.took > atMost {
		t.Errorf("MySQL is away: took %s", a.took)
	}

	w.edit(w.kafka.Addr(), hole)
	a = w.connect(t, 4)
	a.mustHave(t, "shards[0].dsn unreachable unreachable s0", "shards[1].dsn unreachable unreachable s1", "kafka.brokers[0] unreachable unreachable "+hole)
	if a.took > atMost {
		t.Errorf("everything is away: took %s", a.took)
	}
}
