package config

import (
	"strings"
	"testing"
	"time"
)

// What can be read and must not be.
func TestRules(t *testing.T) {
	for _, c := range []faulty{
		{"job", edit("job: billing", "job: my.job"), nil, []string{
			"config.yaml:1: job: \"my.job\": want 1 to 40 of a-z, 0-9 and -; no dots, which separate the parts of the transactional ids",
		}},
		{"topic", edit("topic: events", "topic: 'my events'"), nil, []string{
			"config.yaml:4: kafka.topic: \"my events\" is no name of a Kafka topic: want 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'",
		}},
		{"a topic that is the job's own", edit("topic: events", "topic: billing_state"), nil, []string{
			"config.yaml:4: kafka.topic: \"billing_state\" is, or collides with, the job's own topic billing.state: name the topic that the messages come in, or rename the job",
		}},
		{"brokers", edit("[kafka-1:9092, kafka-2:9092]", "[kafka-1, ':9092', 'k:0', 'k:x', 'k:1', 'k:1', 'sasl://u:s3cr3tPw@k:1']"), nil, []string{
			"config.yaml:3: kafka.brokers[0]: \"kafka-1\": the port is missing: want host:port, such as kafka-1:9092",
			"config.yaml:3: kafka.brokers[1]: \":9092\": the host is missing: want host:port, such as kafka-1:9092",
			"config.yaml:3: kafka.brokers[2]: \"k:0\": the port is no number from 1 to 65535: want host:port, such as kafka-1:9092",
			"config.yaml:3: kafka.brokers[3]: \"k:x\": the port is no number from 1 to 65535: want host:port, such as kafka-1:9092",
			"config.yaml:3: kafka.brokers[5]: \"k:1\" is the same as kafka.brokers[4]",
			"config.yaml:3: kafka.brokers[6]: the value (not shown: it may hold a password): remove the protocol: want host:port, such as kafka-1:9092",
		}},
		{"empty lists", edit("[EUR, USD]", "[]"), nil, []string{"config.yaml:12: message.currencies: is empty: give it a value, such as [EUR, USD]"}},
		{"no shards", "shards: []\n" + good[:strings.Index(good, "shards")] + good[strings.Index(good, "message"):], nil, []string{"config.yaml:1: shards: is empty: give it a value, such as [{\"name\": \"a\", \"dsn_file\": \"/run/secrets/shard-a\"}]"}},
		{"a currency twice", edit("[EUR, USD]", "[EUR, USD, EUR]"), nil, []string{
			"config.yaml:12: message.currencies[2]: \"EUR\" is the same as message.currencies[0]",
		}},
		{"type prefix", edit("com.example.billing.", "'com example'"), nil, []string{
			"config.yaml:11: message.type_prefix: \"com example.\": no spaces or control characters",
		}},
		{"only a dot", edit("com.example.billing.", "."), nil, []string{
			"config.yaml:11: message.type_prefix: \".\": want something before the dot, such as com.example.billing.",
		}},
		{"listen", good + "admin: {listen: '8080'}\n", nil, []string{
			"config.yaml:13: admin.listen: \"8080\": want host:port or :port, such as :8080",
		}},
		{"log", good + "log: {level: INFO, format: yaml}\n", nil, []string{
			"config.yaml:13: log.level: \"INFO\": want one of debug, info, warn, error",
			"config.yaml:13: log.format: \"yaml\": want one of text, json",
		}},

		{"too little", good + "kafka_: 1\ncheckpoint: {interval: 9ms, max_interval: 9ms, max_rows: 0, max_records: 0, max_bytes: 5}\ndedup: {lateness: 999ms, skew: -1s, max_ids: 0}\naggregate: {window: 500ms}\n", nil, []string{
			"config.yaml:13: kafka_: unknown key: did you mean kafka?",
			"config.yaml:14: checkpoint.interval: 9ms is less than 10ms, the least allowed: charges show in the tables about so long after they were read",
			"config.yaml:14: checkpoint.max_interval: 9ms is less than 10ms, the least allowed: what a lane that is behind has read shows in the tables about so long after it",
			"config.yaml:14: checkpoint.max_rows: 0 is less than 1, the least allowed: an epoch's rows are one branch on each shard",
			"config.yaml:14: checkpoint.max_records: 0 is less than 1, the least allowed: an epoch's writes are one branch on each shard",
			"config.yaml:14: checkpoint.max_bytes: 5 is less than 1048576, the least allowed: one message may have 1 MiB, and an epoch is held in memory",
			"config.yaml:15: dedup.lateness: 999ms is less than 1s, the least allowed: older events are refused, and ids are remembered so long",
			"config.yaml:15: dedup.skew: -1s is less than 0s, the least allowed: events so far ahead of the clock are still booked",
			"config.yaml:15: dedup.max_ids: 0 is less than 1, the least allowed: each takes 35 to 60 bytes of memory",
			"config.yaml:16: aggregate.window: 500ms is less than 1s, the least allowed: it is the time span of one row of the totals",
		}},
		{"too much", edit("topic: events", "topic: events\n  session_timeout: 1h\n  transaction_timeout: 1h") + "checkpoint: {interval: 1h}\naggregate: {window: 2d}\n", nil, []string{
			"config.yaml:5: kafka.session_timeout: 1h is more than 30m, the most allowed: so long a dead instance's lanes stand still; brokers allow 6s to 30m by default",
			"config.yaml:6: kafka.transaction_timeout: 1h is more than 15m, the most allowed: an epoch's decision must fit in it, and readers of the topics wait so long for an owner that died; brokers allow 15m by default",
			"config.yaml:15: checkpoint.interval: 1h is more than 1m, the most allowed: charges show in the tables about so long after they were read",
			"config.yaml:16: aggregate.window: 2d is more than 1d, the most allowed: it is the time span of one row of the totals",
		}},
		{"a window that does not divide a day", good + "aggregate: {window: 7h}\n", nil, []string{
			"config.yaml:13: aggregate.window: a day is not a whole number of windows of 7h: rows would span midnight, and with it months; take one that divides 24h, such as 15m, 1h or 1d",
		}},
		{"a window with a part of a second", good + "aggregate: {window: 1500ms}\n", nil, []string{
			"config.yaml:13: aggregate.window: 1.5s is not a whole number of seconds",
		}},
		{"skew and lateness", good + "dedup:\n  lateness: 2h\n  skew: 3h\n", nil, []string{
			"config.yaml:15: dedup.skew: dedup.skew (3h) is more than dedup.lateness (2h): one event from the future would make all of the present too old",
		}},

		{"shards", `shards:
  - name: a
    dsn: app:s3cr3tPw@tcp(db)/billing
  - name: a
    dsn: other:s3cr3tPw@tcp(DB:3306)/billing
  - dsn: app:s3cr3tPw@tcp(db)/
  - name: s3cr3tPw@x
    dsn: s3cr3tPw
  - name: e
  - name: f
    dsn: app:s3cr3tPw@tcp(db)/f
    dsn_file: f
  - name: g
    dsn_file: missing
  - name: h
    dsn_file: s3cr3tPw@tcp(db)/h
  - name: i
    dsn: app:s3cr3t@Pw/i
  - name: k
    dsn: tcp(db)/k
` + good[:strings.Index(good, "shards")] + good[strings.Index(good, "message"):], nil, []string{
			"config.yaml:4: shards[1].name: \"a\" is also the name of shards[0]",
			"config.yaml:5: shards[1].dsn: the same database as shards[0]: each shard needs one of its own, or charges would be counted twice",
			"config.yaml:6: shards[2].name: is missing: every shard has a name, by which logs and refusals call it",
			"config.yaml:6: shards[2].dsn: is no data source name: names no database: " + dsnForm,
			"config.yaml:7: shards[3].name: the value (not shown: it may hold a password) is no name: want 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'",
			"config.yaml:8: shards[3].dsn: is no data source name: there is no / before the database's name (a # or a colon with a space behind it wants quotes around the whole): " + dsnForm,
			"config.yaml:9: shards[4]: dsn or dsn_file is missing, such as dsn: user:password@tcp(host:3306)/database",
			"config.yaml:10: shards[5]: dsn and dsn_file are both given: keep one",
			"config.yaml:14: shards[6].dsn_file: \"missing\" can't be read: no such file or directory; it was looked for in the working directory, DIR",
			"config.yaml:16: shards[7].dsn_file: the value (not shown: it may hold a password) can't be read: no such file or directory; it was looked for in the working directory, DIR",
			"config.yaml:18: shards[8].dsn: is no data source name: host and port are not in tcp( and ): " + dsnForm,
			"config.yaml:20: shards[9].dsn: is no data source name: names no user: " + dsnForm,
		}},
	} {
		t.Run(c.name, c.run)
	}
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"35d": 35 * day, "1d12h": 36 * time.Hour, "0d": 0, "500ms": 500 * time.Millisecond, "1h30m": 90 * time.Minute,
		"0": 0, "1.5h": 90 * time.Minute, "-1s": -time.Second, "106751d": 106751 * day,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%s: got %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "1.5d", "-1d", "+1d", "1d-1h", "1d+1h", "1h1d", "1d2d", "10", "1 d", "1D", "106752d", "106751d24h", "99999999999999999999d", "1w", "∞"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q: taken as %s", text, got)
		}
	}
	for d, want := range map[time.Duration]string{
		35 * day: "35d", 36 * time.Hour: "1d12h", time.Hour: "1h", 90 * time.Minute: "1h30m", 10 * time.Second: "10s",
		0: "0s", time.Hour + time.Second: "1h0m1s", 500 * time.Millisecond: "500ms", day + time.Nanosecond: "1d1ns", 10 * time.Minute: "10m",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("%d: got %s, want %s", d, got, want)
		}
		if back, err := parseDuration(want); err != nil || back != d {
			t.Errorf("%s: reads back as %d, %v; want %d", want, back, err, d)
		}
	}
}
