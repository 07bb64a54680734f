package config

import (
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

const durationForm = "write whole numbers, each with its unit (ms, s, m, h or d), without spaces, such as 500ms, 10s, 5m, 1h30m, 35d or 1d12h"

// edit is good with the first occurrence of from replaced.
func edit(from, to string) string {
	if !strings.Contains(good, from) {
		panic("no such text: " + from)
	}
	return strings.Replace(good, from, to, 1)
}

// faulty is a configuration and everything that is wrong with it.
type faulty struct {
	name string
	file string
	env  []string
	want []string
}

func (c faulty) run(t *testing.T) {
	inFile(t, c.file)
	for _, e := range c.env {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
	got := problems(t)
	if here, err := os.Getwd(); err == nil {
		for i := range got {
			got[i] = strings.ReplaceAll(got[i], here, "DIR")
		}
	}
	if !slices.Equal(got, c.want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(c.want, "\n  "))
	}
}

// What can't be read, or is not one of the keys.
func TestReading(t *testing.T) {
	for _, c := range []faulty{
		{"nothing", "", nil, []string{
			"config.yaml: job: is missing: there is no default; give it here, such as job: billing, or as BILLING_JOB",
			"config.yaml: kafka.brokers: is missing: there is no default; give it here, such as brokers: [kafka-1:9092, kafka-2:9092], or as BILLING_KAFKA_BROKERS",
			"config.yaml: kafka.topic: is missing: there is no default; give it here, such as topic: billing.events, or as BILLING_KAFKA_TOPIC",
			"config.yaml: shards: is missing: there is no default; give it here, such as shards: [{\"name\": \"a\", \"dsn_file\": \"/run/secrets/shard-a\"}], or as BILLING_SHARDS",
			"config.yaml: message.type_prefix: is missing: there is no default; give it here, such as type_prefix: com.example.billing., or as BILLING_MESSAGE_TYPE_PREFIX",
			"config.yaml: message.currencies: is missing: there is no default; give it here, such as currencies: [EUR, USD], or as BILLING_MESSAGE_CURRENCIES",
		}},
		{"no mapping", "- job\n", nil, []string{"config.yaml:1: want keys with values, such as job: billing; got a list"}},
		{"two documents", good + "---\njob: x\n", nil, []string{"config.yaml:14: has more than one YAML document: keep one"}},
		{"not YAML", edit("topic: events", "topic: [events"), nil, []string{"config.yaml:5: is not valid YAML: a [ is not closed by a ], or a comma is missing"}},
		{"not UTF-8", good + "# \xff\n", nil, []string{"config.yaml:13: has a character that is not UTF-8: save the file as UTF-8"}},
		{"too deep", good + "log: " + strings.Repeat("[", 20_000), nil, []string{"config.yaml: has more than 2000 brackets: not a configuration of this service"}},
		{"too large", good + strings.Repeat("# much ado\n", 100_000), nil, []string{"config.yaml: is larger than 1048576 bytes: not a configuration of this service"}},

		{"unknown keys", good + "nonsense: 1\ndedup:\n  latenes: 1d\n", nil, []string{
			"config.yaml:13: nonsense: unknown key: known are job, kafka, shards, checkpoint, memory, dedup, aggregate, message, ledger, admin, log, first_start",
			"config.yaml:15: dedup.latenes: unknown key: did you mean lateness?",
		}},
		{"unknown key in a shard", edit("    dsn: app:s3cr3tPw@tcp(db-a", "    weight: 3\n    dsn: app:s3cr3tPw@tcp(db-a"), nil, []string{
			"config.yaml:7: shards[0].weight: unknown key: known are name, dsn, dsn_file; user, password, host and database are parts of dsn: user:password@tcp(host:3306)/database",
		}},
		{"a key of other case", edit("job: billing", "Job: billing"), nil, []string{
			"config.yaml:1: Job: unknown key: keys are written exactly so: job",
		}},
		{"two keys that differ in case", edit("job: billing", "job: billing\nJOB: other"), nil, []string{
			"config.yaml:2: JOB: unknown key: keys are written exactly so: job",
		}},
		{"a dotted key", good + "kafka.instance_id: x\n", nil, []string{
			"config.yaml:13: kafka.instance_id: unknown key: a dot does not nest; write each part on a line of its own, indented",
		}},
		{"repeated keys", edit("  topic: events", "  topic: events\n  topic: others") + "job: twice\n", nil, []string{
			"config.yaml:5: kafka.topic: the key is already given in line 4: keep one of them",
			"config.yaml:14: job: the key is already given in line 1: keep one of them",
		}},
		{"a repeated section", good + "kafka:\n  session_timeout: 20s\n", nil, []string{
			"config.yaml:13: kafka: the key is already given in line 2: keep one of them",
		}},
		{"a repeated key in a shard", edit("  - name: a\n", "  - name: a\n    name: c\n"), nil, []string{
			"config.yaml:7: shards[0].name: the key is already given in line 6: keep one of them",
		}},
		{"empty values", good + "dedup:\nadmin:\n  listen:\n", nil, []string{
			"config.yaml:13: dedup: want its keys below it, indented (lateness, skew, max_ids), got nothing",
			"config.yaml:15: admin.listen: is empty: give it a value or remove the key",
		}},
		{"anchors and tags", edit("job: billing", "job: &j billing") + "first_start: !!bool true\n", nil, []string{
			"config.yaml:1: job: anchors, aliases and tags are not taken here: write the value out",
			"config.yaml:13: first_start: anchors, aliases and tags are not taken here: write the value out",
		}},

		{"text for other types", good + "checkpoint: {interval: soon, max_records: many}\nfirst_start: 'yes'\nledger: on\n", nil, []string{
			"config.yaml:13: checkpoint.interval: \"soon\" is not a time span: " + durationForm,
			"config.yaml:13: checkpoint.max_records: \"many\" is not a whole number: write it out in digits, such as 1000000",
			"config.yaml:14: first_start: \"yes\": want true or false",
			"config.yaml:15: ledger: want its keys below it, indented (enabled), got text",
		}},
		{"numbers for other types", edit("job: billing", "job: 7") + "checkpoint: {interval: 10}\nfirst_start: 1\n", nil, []string{
			"config.yaml:1: job: want text, got a number: put it in quotes",
			"config.yaml:13: checkpoint.interval: a number without a unit: " + durationForm,
			"config.yaml:14: first_start: want true or false, got a number",
		}},
		{"numbers in quotes", good + "checkpoint: {max_records: '5'}\n", nil, []string{
			"config.yaml:13: checkpoint.max_records: want a whole number, got text: remove the quotes",
		}},
		{"numbers of other forms", good + "checkpoint:\n  max_records: 1e3\n  max_bytes: 0x20000000\ndedup:\n  max_ids: 99999999999999999999\n", nil, []string{
			"config.yaml:14: checkpoint.max_records: \"1e3\" is not a whole number: write it out in digits, such as 1000000",
			"config.yaml:15: checkpoint.max_bytes: \"0x20000000\" is not a whole number: write it out in digits, such as 33554432",
			"config.yaml:17: dedup.max_ids: \"99999999999999999999\" is too large",
		}},
		{"lists and scalars", edit("brokers: [kafka-1:9092, kafka-2:9092]", "brokers: kafka-1:9092\n  instance_id: [a]"), nil, []string{
			"config.yaml:3: kafka.brokers: want a list such as [kafka-1:9092, kafka-2:9092], got text",
			"config.yaml:4: kafka.instance_id: want text, got a list",
		}},
		{"items of other types", edit("[EUR, USD]", "[EUR, 7, usd]"), nil, []string{
			"config.yaml:12: message.currencies[1]: want text, got a number: put it in quotes",
			"config.yaml:12: message.currencies[2]: \"usd\": want 3 to 16 of A-Z and 0-9, a letter first, such as EUR",
		}},
		{"a shard that is text", edit("  - name: a\n    dsn: app:s3cr3tPw@tcp(db-a:3306)/billing\n", "  - app:s3cr3tPw@tcp(db-a:3306)/billing\n"), nil, []string{
			"config.yaml:6: shards[0]: want its keys (name, dsn, dsn_file), got text",
		}},

		{"wrong variables", good, []string{
			"BILLING_JOB=", "BILLING_DEDUP_LATENESS=10", "BILLING_FIRST_START=maybe", "BILLING_CHECKPOINT_MAX_RECORDS=lots",
			"BILLING_KAFKA_BROKERS=a:1,,b", "BILLING_KAFKA_TRANSACTION_TIMEOUT=1ms",
		}, []string{
			"BILLING_CHECKPOINT_MAX_RECORDS: checkpoint.max_records: \"lots\" is not a whole number: write it out in digits, such as 1000000",
			"BILLING_DEDUP_LATENESS: dedup.lateness: \"10\" is not a time span: " + durationForm,
			"BILLING_FIRST_START: first_start: \"maybe\": want true or false",
			"BILLING_JOB: job: is set to nothing: give it a value, such as billing, or unset it",
			"BILLING_KAFKA_BROKERS: kafka.brokers[1]: is empty: want host:port, such as kafka-1:9092",
			"BILLING_KAFKA_BROKERS: kafka.brokers[2]: \"b\": the port is missing: want host:port, such as kafka-1:9092",
			"BILLING_KAFKA_TRANSACTION_TIMEOUT: kafka.transaction_timeout: 1ms is less than 1s, the least allowed: an epoch's decision must fit in it, and readers of the topics wait so long for an owner that died; brokers allow 15m by default",
		}},
		{"wrong in both", edit("job: billing", "job: 7"), []string{"BILLING_JOB=x.y"}, []string{
			"config.yaml:1: job: want text, got a number: put it in quotes",
			"BILLING_JOB: job: \"x.y\": want 1 to 40 of a-z, 0-9 and -; no dots, which separate the parts of the transactional ids",
		}},
		{"shards that are not JSON", good, []string{`BILLING_SHARDS=[{"name":"a","dsn":"app:s3cr3tPw@tcp(db)/d"]`}, []string{
			`BILLING_SHARDS: shards: is not valid JSON: the mistake is near its character 44; want a list such as [{"name":"a","dsn":"user:password@tcp(host:3306)/database"}], each text in double quotes`,
		}},
		{"shards of wrong JSON", good, []string{`BILLING_SHARDS=[{"name":"a","Name":"b","name":"c","dsn":7},{"name":"b","dsn":"app:x@tcp(db)/"}]`}, []string{
			"BILLING_SHARDS: shards[0].Name: unknown key: keys are written exactly so: name",
			"BILLING_SHARDS: shards[0].name: the key is given twice: keep one of them",
			"BILLING_SHARDS: shards[0].dsn: want text, got a number: put it in quotes",
			"BILLING_SHARDS: shards[1].dsn: is no data source name: names no database: " + dsnForm,
		}},
		{"file and variables", edit("topic: events", "topik: events"), []string{"BILLING_MESSAGE_CURRENCIES=eur"}, []string{
			"config.yaml:4: kafka.topik: unknown key: did you mean topic?",
			"BILLING_MESSAGE_CURRENCIES: message.currencies[0]: \"eur\": want 3 to 16 of A-Z and 0-9, a letter first, such as EUR",
		}},
	} {
		t.Run(c.name, c.run)
	}
}

func TestErrorListsAllProblems(t *testing.T) {
	inFile(t, edit("job: billing", "job: NO")+"nonsense: 1\n")
	_, err := Load("", io.Discard, nil)
	want := "configuration: 2 problems:\n" +
		"  config.yaml:1: job: \"NO\": want 1 to 40 of a-z, 0-9 and -; no dots, which separate the parts of the transactional ids\n" +
		"  config.yaml:13: nonsense: unknown key: known are job, kafka, shards, checkpoint, memory, dedup, aggregate, message, ledger, admin, log, first_start"
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}
