package e2e

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"billing/test/servers"
)

// Refusals that end the process. Those that stop one lane: refusal_lane_test.go.
// docs/protocol.md lists all of them with their tests.

// refusedRow is a condition under which the process ends with 3.
type refusedRow struct {
	name   string
	reason string
	says   []string // what was found and what was expected, as an operator reads it
	make   func(t *testing.T, w *world)
	undo   func(t *testing.T, w *world) // beside the configuration, which is always put back; nil: nothing
}

// ran is a world whose lane has some epochs, and no service running.
func ran(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, 2)
	s := w.run("")
	for range 2 {
		w.charge(0, 100)
		w.waitAccounted()
	}
	s.stop()
	return w
}

// mustRefuse starts the service and waits for it to end with 3. The refusal is
// said once, as the last thing, with a next step, and nothing was changed.
func (w *world) mustRefuse(t *testing.T, reason string, says ...string) {
	t.Helper()
	d, booked := w.decided(0), w.booked(0)
	s := w.run("")
	s.mustExit(3)
	out := s.output()
	_, last, ok := strings.Cut(out, "\nbilling: ")
	if !ok {
		t.Fatalf("no last word:\n%s", tail(out, 20))
	}
	for _, want := range append(says, "refused ("+reason+")", ". Next step: ") {
		if err := contains(last, want); err != nil {
			t.Errorf("%v; it says\n%s", err, last)
		}
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "time=") && strings.Contains(line, "Next step:") && !strings.Contains(line, `msg="waiting for a server"`) {
			t.Errorf("the log has the message too: %s", line)
		}
	}
	t.Log(last)
	after := w.decided(0)
	d.Incarnation, after.Incarnation = 0, 0 // what is found after the takeover is found again and again
	if after != d {
		t.Errorf("D was %+v, is %+v", d, after)
	}
	if now := w.booked(0); now != booked {
		t.Errorf("the shards had\n%s\nand have\n%s", booked, now)
	}
}

// mustNotAccept: a refusal that is not in the closed list can't be accepted.
func (w *world) mustNotAccept(t *testing.T, reason, what string) {
	t.Helper()
	p := w.command("run", "--accept", reason+":"+what)
	p.mustExit(2)
	if err := contains(p.output(), reason); err != nil {
		t.Error(err)
	}
}

// TestRefusalsThatEndTheProcess: one job goes through every condition that can be
// undone, and is exact at the end.
func TestRefusalsThatEndTheProcess(t *testing.T) {
	t.Parallel()
	w := ran(t)
	var saved string // D
	for _, c := range []refusedRow{
		{name: "window", reason: "fingerprint", says: []string{"window 1h0m0s", "window 15m0s", w.topic + "/0"},
			make: func(_ *testing.T, w *world) { w.edit("checkpoint:\n", "aggregate:\n  window: 15m\ncheckpoint:\n") }},
		{name: "prefix", reason: "fingerprint", says: []string{`type_prefix "com.example.billing."`, `type_prefix "com.other."`},
			make: func(_ *testing.T, w *world) { w.edit("com.example.billing.", "com.other.") }},
		{name: "order of shards", reason: "shards-changed", says: []string{"s0: it is shard 0 of 2", "recorded as shard 1 of 2", "order"},
			make: func(_ *testing.T, w *world) { w.swapShards() }},
		{name: "number of shards", reason: "shards-changed", says: []string{"it is shard 0 of 1", "recorded as shard 0 of 2", "number"},
			make: func(_ *testing.T, w *world) { w.edit(fmt.Sprintf("  - name: s1\n    dsn: %q\n", w.dsns[1]), "") }},
		{name: "tables of another job", reason: "shards-changed", says: []string{"belong to job " + w.job, "this is job other"},
			make: func(_ *testing.T, w *world) { w.edit("job: "+w.job, "job: other") }},
		{name: "billing_meta changed by hand", reason: "shards-changed", says: []string{"s1: the row of billing_meta", "checksum", "changed by hand", "from a copy"},
			make: func(_ *testing.T, w *world) { w.exec(1, "UPDATE billing_meta SET shard_count = 3") },
			undo: func(_ *testing.T, w *world) { w.exec(1, "UPDATE billing_meta SET shard_count = 2") }},

		{name: "no XA_RECOVER_ADMIN", reason: "shard-unfit", says: []string{"s1: the user " + w.user(1) + " lacks the right XA_RECOVER_ADMIN", "1401", "GRANT XA_RECOVER_ADMIN ON *.* TO " + w.user(1)},
			make: func(_ *testing.T, w *world) { w.root(1, "REVOKE XA_RECOVER_ADMIN ON *.* FROM "+w.user(1)) },
			undo: func(_ *testing.T, w *world) { w.root(1, "GRANT XA_RECOVER_ADMIN ON *.* TO "+w.user(1)) }},
		{name: "not InnoDB", reason: "shard-unfit", says: []string{"s0: table billing_rejects is MyISAM", "ALTER TABLE billing_rejects ENGINE = InnoDB"},
			make: func(_ *testing.T, w *world) { w.exec(0, "ALTER TABLE billing_rejects ENGINE = MyISAM") },
			undo: func(_ *testing.T, w *world) { w.exec(0, "ALTER TABLE billing_rejects ENGINE = InnoDB") }},
		{name: "unique key missing", reason: "shard-unfit", says: []string{"billing_ledger has no unique key on (kafka_topic, kafka_partition, dedup_key)", "ALTER TABLE billing_ledger ADD UNIQUE KEY"},
			make: func(_ *testing.T, w *world) { w.exec(0, "ALTER TABLE billing_ledger DROP INDEX billing_ledger_dedup") },
			undo: func(_ *testing.T, w *world) {
				w.exec(0, "ALTER TABLE billing_ledger ADD UNIQUE KEY billing_ledger_dedup (kafka_topic, kafka_partition, dedup_key)")
			}},

		{name: "older tables", reason: "migrations-pending", says: []string{"s1: not done yet: 0003_rejects.sql", "run: billing migrate"},
			make: func(_ *testing.T, w *world) {
				w.exec(1, "CREATE TABLE saved_schema AS SELECT * FROM billing_schema")
				w.exec(1, "DELETE FROM billing_schema WHERE version = 3")
			},
			undo: func(_ *testing.T, w *world) {
				w.exec(1, "INSERT INTO billing_schema SELECT * FROM saved_schema WHERE version = 3")
			}},
		{name: "newer tables", reason: "migrations-pending", says: []string{"s1: migration 9999_future.sql was done", "newer build", "run a build that is not older"},
			make: func(_ *testing.T, w *world) {
				w.exec(1, "INSERT INTO billing_schema VALUES (9999, '9999_future.sql', REPEAT('x', 32))")
			},
			undo: func(_ *testing.T, w *world) { w.exec(1, "DELETE FROM billing_schema WHERE version = 9999") }},
		{name: "another migration of the same number", reason: "migrations-pending", says: []string{"s1: migration 3 was done as 0003_other.sql", "this build has 0003_rejects.sql"},
			make: func(_ *testing.T, w *world) {
				w.exec(1, "UPDATE billing_schema SET name = '0003_other.sql' WHERE version = 3")
			},
			undo: func(_ *testing.T, w *world) {
				w.exec(1, "UPDATE billing_schema SET name = '0003_rejects.sql' WHERE version = 3")
			}},
		{name: "migration broken off between tables", reason: "migrations-pending", says: []string{"s1: missing: billing_epoch_sum", "run: billing migrate"},
			make: func(_ *testing.T, w *world) { w.exec(1, "RENAME TABLE billing_epoch_sum TO saved_sum") },
			undo: func(_ *testing.T, w *world) { w.exec(1, "RENAME TABLE saved_sum TO billing_epoch_sum") }},
		{name: "migration broken off at its end", reason: "migrations-pending", says: []string{"s1: billing_meta has no row", "broken off", "run: billing migrate"},
			make: func(_ *testing.T, w *world) {
				w.exec(1, "CREATE TABLE saved_meta AS SELECT * FROM billing_meta")
				w.exec(1, "DELETE FROM billing_meta")
			},
			undo: func(_ *testing.T, w *world) { w.exec(1, "INSERT INTO billing_meta SELECT * FROM saved_meta") }},

		{name: "no input topic", reason: "topic-missing", says: []string{"nowhere: there is no topic of this name", "correct kafka.topic"},
			make: func(_ *testing.T, w *world) { w.edit("topic: "+w.topic, "topic: nowhere") }},
		{name: "retention of state", reason: "topic-config", says: []string{w.job + ".state", `retention.ms is "604800000", want "-1"`, "kafka-configs.sh"},
			make: func(_ *testing.T, w *world) { w.alter(w.job+".state", "retention.ms", "604800000") },
			undo: func(_ *testing.T, w *world) { w.alter(w.job+".state", "retention.ms", "-1") }},
		{name: "state is compacted", reason: "topic-config", says: []string{w.job + ".state", `cleanup.policy is "compact", want "delete"`},
			make: func(_ *testing.T, w *world) { w.alter(w.job+".state", "cleanup.policy", "compact") },
			undo: func(_ *testing.T, w *world) { w.alter(w.job+".state", "cleanup.policy", "delete") }},
		{name: "decisions are deleted", reason: "topic-config", says: []string{w.job + ".decision", `cleanup.policy is "delete", want "compact"`},
			make: func(_ *testing.T, w *world) { w.alter(w.job+".decision", "cleanup.policy", "delete") },
			undo: func(_ *testing.T, w *world) { w.alter(w.job+".decision", "cleanup.policy", "compact") }},

		{name: "D of a newer build", reason: "decision-version", says: []string{w.topic + "/0", "newer build", "2, this build knows 1", "run the newer build"},
			make: func(t *testing.T, w *world) {
				_, saved = w.offset(0)
				w.setD(0, withNumber(t, saved, "v", 2))
			},
			undo: func(_ *testing.T, w *world) { w.setD(0, saved) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := w.configuration()
			c.make(t, w)
			w.mustRefuse(t, c.reason, c.says...)
			w.mustNotAccept(t, c.reason, "s0")
			w.configure(config)
			if c.undo != nil {
				c.undo(t, w)
			}
		})
	}
	s := w.run("")
	w.charge(0, 10)
	w.waitAccounted()
	s.stop()
	w.exact()
}

// chunkOfVersion is a sound state chunk of one entry: magic, version and CRC stay
// where they are in every version.
func chunkOfVersion(version uint16, bucketEnd time.Time) []byte {
	b := make([]byte, 24+32)
	copy(b, "bdup")
	binary.LittleEndian.PutUint16(b[4:], version)
	binary.LittleEndian.PutUint16(b[6:], 32)
	binary.LittleEndian.PutUint64(b[8:], uint64(bucketEnd.Truncate(time.Hour).Add(time.Hour).UnixMicro()))
	binary.LittleEndian.PutUint32(b[16:], 1)
	copy(b[24:], "0123456789abcdef")
	table := crc32.MakeTable(crc32.Castagnoli)
	binary.LittleEndian.PutUint32(b[20:], crc32.Update(crc32.Checksum(b[:20], table), table, b[24:]))
	return b
}

// TestRefusalsForGood: conditions that nobody can undo, each in a job of its own.
func TestRefusalsForGood(t *testing.T) {
	t.Parallel()
	for _, c := range []refusedRow{
		{reason: "partitions-changed", says: []string{"now has 2 partitions", "started with 1", "new topic"},
			make: func(t *testing.T, w *world) {
				if _, err := shared.kafka.Admin(t).UpdatePartitions(t.Context(), 2, w.topic, w.job+".decision", w.job+".state"); err != nil {
					t.Fatal(err)
				}
			}},
		{reason: "topic-recreated", says: []string{"deleted and created again", "new job name"},
			make: func(t *testing.T, w *world) {
				w.recreate()
				// The offsets go with the topic, some time after it.
				servers.Eventually(t, time.Minute, func() error {
					if next, _ := w.offset(0); next >= 0 {
						return fmt.Errorf("the group still has offset %d", next)
					}
					return nil
				})
			}},
		{reason: "topic-config", says: []string{".state: the topic has 2 partitions", "has 1", "runbook"},
			make: func(t *testing.T, w *world) {
				if _, err := shared.kafka.Admin(t).UpdatePartitions(t.Context(), 2, w.job+".state"); err != nil {
					t.Fatal(err)
				}
			}},
		{reason: "topic-missing", says: []string{".decision: there is no topic of this name", "first_start", "restore it"},
			make: func(t *testing.T, w *world) {
				w.edit("first_start: true", "first_start: false")
				if _, err := shared.kafka.Admin(t).DeleteTopic(t.Context(), w.job+".decision"); err != nil {
					t.Fatal(err)
				}
			}},
		{reason: "chunk-version", says: []string{"/0: the chunk at offset", ".state was written by a newer build", "run the newer build"},
			make: func(_ *testing.T, w *world) {
				w.write(&kgo.Record{Topic: w.job + ".state", Value: chunkOfVersion(2, time.Now())})
			}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			w := ran(t)
			c.make(t, w)
			w.mustRefuse(t, c.reason, c.says...)
			w.mustNotAccept(t, c.reason, w.topic+"/0")
		})
	}
}

// TestSecondDeployment: another deployment under this job's name says why and
// ends, before it has taken a lane; the first one does not notice.
func TestSecondDeployment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	other := newWorld(t, 2)
	first := w.run("")
	w.charge(0, 50)
	w.waitAccounted()
	was := w.decided(0)
	config := w.configuration()
	for _, c := range []struct {
		name, reason string
		says         []string
		change       func()
	}{
		{"window", "fingerprint", []string{"window 1h0m0s", "window 15m0s"}, func() { w.edit("checkpoint:\n", "aggregate:\n  window: 15m\ncheckpoint:\n") }},
		{"prefix", "fingerprint", []string{`type_prefix "com.other."`}, func() { w.edit("com.example.billing.", "com.other.") }},
		{"shards of another job", "shards-changed", []string{"belong to job " + other.job}, func() {
			w.configure([]byte(strings.NewReplacer(w.dsns[0], other.dsns[0], w.dsns[1], other.dsns[1]).Replace(string(config))))
		}},
		// The same job's name in databases of its own: migrated, so known to MySQL.
		{"other shards", "fingerprint", []string{"another set of shards", "Another deployment uses this job's name"}, func() {
			replaced := strings.NewReplacer(w.dsns[0], w.servers[0].NewDatabase(t), w.dsns[1], w.servers[1].NewDatabase(t)).Replace(string(config))
			w.configure([]byte(replaced))
			w.command("migrate").mustExit(0)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.change()
			w.mustRefuse(t, c.reason, c.says...)
			w.configure(config)
		})
	}
	w.charge(0, 50)
	w.waitAccounted()
	if now := w.decided(0); now.Incarnation != was.Incarnation {
		t.Errorf("the lane's incarnation was %d, is %d: a second deployment took it", was.Incarnation, now.Incarnation)
	}
	first.stop()
	w.exact()
}

// TestTopicRecreatedWhileRunning: the process notices by itself.
func TestTopicRecreatedWhileRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	s := w.run("")
	w.charge(0, 10)
	w.waitAccounted()
	booked := w.booked(0)
	w.recreate()
	s.mustExit(3)
	if err := contains(s.output(), "\nbilling: refused (topic-recreated) "+w.topic+"/0: "); err != nil {
		t.Error(err)
	}
	if now := w.booked(0); now != booked {
		t.Errorf("the shards had\n%s\nand have\n%s", booked, now)
	}
}

// TestPartitionsGrownWhileRunning: more partitions move keys to lanes that do not
// know their ids. The process notices by itself, before the group does, and
// nothing that an operator may think of makes it go on.
func TestPartitionsGrownWhileRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	s := w.run("")
	ids := w.charge(0, 100)
	w.waitAccounted()
	admin := shared.kafka.Admin(t)
	if _, err := admin.UpdatePartitions(t.Context(), 2, w.topic); err != nil {
		t.Fatal(err)
	}
	s.mustExit(3)
	if err := contains(s.output(), "partitions-changed"); err != nil {
		t.Error(err)
	}

	// The same ids on the new partition, and the job's own topics grown to match.
	before := w.dump()
	w.producer = w.newProducer(shared.kafka) // the old one knows one partition
	w.again(1, ids)
	if _, err := admin.UpdatePartitions(t.Context(), 2, w.job+".decision", w.job+".state"); err != nil {
		t.Fatal(err)
	}
	w.mustRefuse(t, "partitions-changed", "new topic")
	if now := w.dump(); now != before {
		t.Errorf("totals were\n%s\nare\n%s", before, now)
	}
}

// TestFirstStartMustBeWanted: without the setting a new job does not start, and
// with it it does.
func TestFirstStartMustBeWanted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.edit("first_start: true", "first_start: false")
	w.charge(0, 10)
	w.mustRefuse(t, "topic-missing", "first_start") // the job's own topics
	w.edit("first_start: false", "first_start: true")
	s := w.run("")
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestRefusalsOfAServer: conditions of a whole MySQL server, which is this test's
// own; what ends the process at the start, and what a lane at work does.
func TestRefusalsOfAServer(t *testing.T) {
	t.Parallel()
	m := servers.MySQL(t)
	w := newWorld(t, 1, withServer(m))
	s := w.run("")
	w.charge(0, 50)
	w.waitAccounted()
	s.stop()

	for _, c := range []struct {
		variable, bad, good string
		reason              string
		says                []string
	}{
		{"read_only", "ON", "OFF", "shard-read-only", []string{"s0: read_only is ON", "replica", "point the DSN at the primary"}},
		{"super_read_only", "ON", "OFF", "shard-read-only", []string{"s0: super_read_only is ON", "replica"}},
		{"innodb_flush_log_at_trx_commit", "2", "1", "shard-unfit", []string{"is 2, want 1", "crash", "SET PERSIST innodb_flush_log_at_trx_commit = 1"}},
		{"sync_binlog", "0", "1", "shard-unfit", []string{"is 0, want 1", "crash", "SET PERSIST sync_binlog = 1"}},
		{"xa_detach_on_prepare", "OFF", "ON", "shard-unfit", []string{"is OFF, want ON", "SET PERSIST xa_detach_on_prepare = ON"}},
		{"max_allowed_packet", "1024", "67108864", "shard-unfit", []string{"is 1024", "SET PERSIST max_allowed_packet = "}},
	} {
		t.Run(c.variable, func(t *testing.T) {
			w.root(0, "SET GLOBAL "+c.variable+" = "+c.bad)
			w.mustRefuse(t, c.reason, c.says...)
			w.mustNotAccept(t, c.reason, "s0")
			w.root(0, "SET GLOBAL "+c.variable+" = "+c.good)
			w.root(0, "SET GLOBAL read_only = OFF") // super_read_only has set it too
		})
	}

	// A failover: a primary that becomes read-only while lanes work is waited for.
	s = w.run("")
	w.charge(0, 10)
	w.waitAccounted()
	w.root(0, "SET GLOBAL super_read_only = ON")
	w.charge(0, 10)
	servers.Eventually(t, 2*time.Minute, func() error {
		h, err := s.health()
		if err != nil {
			return err
		}
		return contains(fmt.Sprint(h), "read-only")
	})
	s.waitSays("/readyz", 503)
	w.root(0, "SET GLOBAL read_only = OFF")
	w.waitAccounted()
	s.waitSays("/readyz", 200)

	// Another server with the same data behind the address, while lanes work.
	if err := m.Reidentify(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.mustExit(3)
	for _, want := range []string{`msg="refused: the process ends" reason=server-changed what=s0`, "\nbilling: refused (server-changed) s0: "} {
		if err := contains(s.output(), want); err != nil {
			t.Error(err)
		}
	}
	w.mustRefuse(t, "server-changed", "s0: the server is ", "the recorded one is ", "--accept server-changed:s0")
	w.mustNotAccept(t, "server-changed", "s1") // there is no such shard
	check := w.connect(t, 3)                   // which records nothing
	check.mustHave(t, "shards[0].dsn refusal server-changed s0")
	s = w.commandEnv(nil, "run", "--accept", "server-changed:s0")
	w.charge(0, 10)
	w.waitAccounted()
	s.stop()
	s = w.run("") // it is the recorded one now
	w.charge(0, 10)
	w.waitAccounted()
	s.stop()
	w.exact()
}
