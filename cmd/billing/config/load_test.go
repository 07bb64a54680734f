package config

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// good is a whole configuration with nothing but the keys that have no default.
const good = `job: billing
kafka:
  brokers: [kafka-1:9092, kafka-2:9092]
  topic: events
shards:
  - name: a
    dsn: app:s3cr3tPw@tcp(db-a:3306)/billing
  - name: b
    dsn: app:s3cr3tPw@tcp(db-b:3306)/billing
message:
  type_prefix: com.example.billing.
  currencies: [EUR, USD]
`

// inFile writes text to config.yaml in a directory of its own and makes that
// the working directory, so that places read "config.yaml:LINE".
func inFile(t *testing.T, text string) {
	t.Helper()
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, variablePrefix) {
			t.Setenv(name, "") // restores it afterwards
			os.Unsetenv(name)
		}
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("config.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func mustLoad(t *testing.T) *Config {
	t.Helper()
	c, err := Load("", io.Discard, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// problems loads the configuration and gives its problems, one a line.
func problems(t *testing.T) []string {
	t.Helper()
	_, err := Load("", io.Discard, nil)
	if err == nil {
		return nil
	}
	var wrong *Error
	if !errors.As(err, &wrong) {
		t.Fatalf("got %T %v, want *Error", err, err)
	}
	var lines []string
	for _, p := range wrong.Problems {
		lines = append(lines, p.String())
	}
	return lines
}

func TestGoodFileAndDefaults(t *testing.T) {
	inFile(t, good)
	c := mustLoad(t)
	c.sources, c.from = nil, ""
	want := Default()
	want.Job = "billing"
	want.Kafka.Brokers = []string{"kafka-1:9092", "kafka-2:9092"}
	want.Kafka.Topic = "events"
	want.Shards = []Shard{
		{Name: "a", DSN: "app:s3cr3tPw@tcp(db-a:3306)/billing"},
		{Name: "b", DSN: "app:s3cr3tPw@tcp(db-b:3306)/billing"},
	}
	want.Message.TypePrefix = "com.example.billing."
	want.Message.Currencies = []string{"EUR", "USD"}
	if !reflect.DeepEqual(*c, want) {
		t.Errorf("got  %#v\nwant %#v", *c, want)
	}
	for key, value := range map[string]any{
		"session timeout": c.Kafka.SessionTimeout == 10*time.Second,
		"interval":        c.Checkpoint.Interval == time.Second,
		"lateness":        c.Dedup.Lateness == 35*24*time.Hour,
		"skew":            c.Dedup.Skew == 5*time.Minute,
		"memory":          c.Memory.MaxBytes == 512<<20,
		"max ids":         c.Dedup.MaxIDs == 50_000_000,
		"window":          c.Aggregate.Window == time.Hour,
		"ledger":          c.Ledger.Enabled,
		"listen":          c.Admin.Listen == ":8080",
		"first start":     !c.FirstStart,
	} {
		if value != true {
			t.Errorf("%s: not the documented default", key)
		}
	}
}

func TestEveryKeyOfTheFileIsRead(t *testing.T) {
	inFile(t, `job: j
kafka: {brokers: ['h:1'], topic: t, session_timeout: 11s, transaction_timeout: 12s, instance_id: pod-1, max_batch_bytes: 2000000}
shards: [{name: s, dsn: 'u:p@tcp(h:1)/d'}]
checkpoint: {interval: 2s, max_interval: 3s, max_rows: 40, max_records: 30, max_bytes: 2_000_000}
memory: {max_bytes: 70_000_000}
dedup: {lateness: 1d12h, skew: 0, max_ids: 1_000}
aggregate: {window: 15m}
message: {type_prefix: p, currencies: [EUR], amount_as_number: true}
ledger: {enabled: false}
admin: {listen: '127.0.0.1:0'}
log: {level: warn, format: json}
first_start: true
`)
	c := mustLoad(t)
	if c.from != "config.yaml" {
		t.Errorf("file %q", c.from)
	}
	c.sources, c.from = nil, ""
	want := Config{
		Job:        "j",
		Kafka:      Kafka{Brokers: []string{"h:1"}, Topic: "t", SessionTimeout: 11 * time.Second, TransactionTimeout: 12 * time.Second, InstanceID: "pod-1", MaxBatchBytes: 2000000},
		Shards:     []Shard{{Name: "s", DSN: "u:p@tcp(h:1)/d"}},
		Checkpoint: Checkpoint{Interval: 2 * time.Second, MaxInterval: 3 * time.Second, MaxRows: 40, MaxRecords: 30, MaxBytes: 2_000_000},
		Memory:     Memory{MaxBytes: 70_000_000},
		Dedup:      Dedup{Lateness: 36 * time.Hour, Skew: 0, MaxIDs: 1000},
		Aggregate:  Aggregate{Window: 15 * time.Minute},
		Message:    Message{TypePrefix: "p.", Currencies: []string{"EUR"}, AmountAsNumber: true},
		Ledger:     Ledger{Enabled: false},
		Admin:      Admin{Listen: "127.0.0.1:0"}, Log: Log{Level: "warn", Format: "json"},
		FirstStart: true,
	}
	if !reflect.DeepEqual(*c, want) {
		t.Errorf("got  %#v\nwant %#v", *c, want)
	}
	def := reflect.ValueOf(Default())
	for _, k := range leaves() {
		if reflect.DeepEqual(reflect.ValueOf(want).FieldByIndex(k.index).Interface(), def.FieldByIndex(k.index).Interface()) {
			t.Errorf("%s: this test leaves it at its default, so it proves nothing", k.path)
		}
	}
}

// Every key of the struct can be given by the environment, with and without a
// file, and wins over the file.
func TestEveryKeyFromTheEnvironment(t *testing.T) {
	texts := map[string]string{ // by type; by key where a rule wants another
		"string": "from-env", "[]string": "AAA:1 , BBB:2", "bool": "true", "int": "77", "int64": "2097152",
		"time.Duration": "2m", "[]config.Shard": `[{"name":"env","dsn":"u:p\u0040x@tcp(h)/d"}]`,
		"kafka.max_batch_bytes": "2000000", "memory.max_bytes": "70000000",
		"admin.listen": "h:1", "log.level": "debug", "log.format": "json", "message.currencies": "CHF,JPY", "ledger.enabled": "false",
		"checkpoint.interval": "2s", "checkpoint.max_interval": "3s", "dedup.lateness": "2d", "message.type_prefix": "from.env.",
	}
	values := map[string]any{
		"string": "from-env", "[]string": []string{"AAA:1", "BBB:2"}, "bool": true, "int": 77, "int64": int64(2097152),
		"time.Duration": 2 * time.Minute, "[]config.Shard": []Shard{{Name: "env", DSN: "u:p@x@tcp(h)/d"}},
		"kafka.max_batch_bytes": 2000000, "memory.max_bytes": int64(70_000_000),
		"admin.listen": "h:1", "log.level": "debug", "log.format": "json", "message.currencies": []string{"CHF", "JPY"}, "ledger.enabled": false,
		"checkpoint.interval": 2 * time.Second, "checkpoint.max_interval": 3 * time.Second, "dedup.lateness": 48 * time.Hour, "message.type_prefix": "from.env.",
	}
	pick := func(k leaf) string {
		if _, ok := texts[k.path]; ok {
			return k.path
		}
		return k.typ.String()
	}
	verify := func(t *testing.T, k leaf) {
		t.Helper()
		c := mustLoad(t)
		if got := reflect.ValueOf(*c).FieldByIndex(k.index).Interface(); !reflect.DeepEqual(got, values[pick(k)]) {
			t.Errorf("%s: got %#v, want %#v", k.variable, got, values[pick(k)])
		}
		if got := c.sources[k.path].String(); got != k.variable {
			t.Errorf("%s: said to come from %s", k.variable, got)
		}
	}
	for _, k := range leaves() {
		t.Run(k.path, func(t *testing.T) {
			inFile(t, good)
			t.Setenv(k.variable, texts[pick(k)])
			verify(t, k)
		})
	}
	t.Run("all without a file", func(t *testing.T) {
		inFile(t, "")
		if err := os.Remove("config.yaml"); err != nil {
			t.Fatal(err)
		}
		for _, k := range leaves() {
			t.Setenv(k.variable, texts[pick(k)])
		}
		for _, k := range leaves() {
			verify(t, k)
		}
	})
	if n := len(leaves()); n < 20 {
		t.Errorf("only %d keys found in the struct", n)
	}
	if got := variableOf("kafka.session_timeout"); got != "BILLING_KAFKA_SESSION_TIMEOUT" {
		t.Errorf("variable %s", got)
	}
}

func TestEnvironmentWinsOverAWrongPlace(t *testing.T) {
	inFile(t, strings.Replace(good, "topic: events", "topic: 'no good'", 1))
	t.Setenv("BILLING_KAFKA_TOPIC", "fine")
	if c := mustLoad(t); c.Kafka.Topic != "fine" {
		t.Errorf("topic %q", c.Kafka.Topic)
	}
}

func TestUnknownVariablesAreWarnedOf(t *testing.T) {
	inFile(t, good)
	t.Setenv("BILLING_SERVICE_HOST", "10.0.0.1-s3cr3tPw")
	t.Setenv("BILLING_KAFKA_TOPICS", "x")
	t.Setenv("BILLING_KAFKA_TOPIC", "x")
	t.Setenv("BILLING_CONFIG", "config.yaml")
	var warnings strings.Builder
	if _, err := Load("", &warnings, nil); err != nil {
		t.Fatal(err)
	}
	want := "warning: BILLING_KAFKA_TOPICS: not a variable of this service, ignored; did you mean BILLING_KAFKA_TOPIC?\n" +
		"warning: BILLING_SERVICE_HOST: not a variable of this service, ignored\n"
	if warnings.String() != want {
		t.Errorf("got\n%swant\n%s", &warnings, want)
	}
}

func TestWhichFile(t *testing.T) {
	inFile(t, good)
	other := filepath.Join(t.TempDir(), "other.yaml")
	if err := os.WriteFile(other, []byte(strings.Replace(good, "topic: events", "topic: other", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	topic := func(path string) string {
		c, err := Load(path, io.Discard, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c.Kafka.Topic
	}
	if got := topic(""); got != "events" {
		t.Errorf("by default: %s", got)
	}
	t.Setenv("BILLING_CONFIG", other)
	if got := topic(""); got != "other" {
		t.Errorf("by BILLING_CONFIG: %s", got)
	}
	if got := topic("config.yaml"); got != "events" {
		t.Errorf("by flag over BILLING_CONFIG: %s", got)
	}
	t.Setenv("BILLING_CONFIG", "missing.yaml")
	want := []string{"missing.yaml: can't be read: no such file or directory; name the file with --config or BILLING_CONFIG"}
	if got := problems(t); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNoFileAtAll(t *testing.T) {
	inFile(t, good)
	if err := os.Remove("config.yaml"); err != nil {
		t.Fatal(err)
	}
	want := "kafka.topic: is missing: there is no default and no config.yaml here; name the file with --config, or give the key as BILLING_KAFKA_TOPIC"
	if got := problems(t); !slices.Contains(got, want) {
		t.Errorf("got %q, without %q", got, want)
	}
}

// A probe looks at one key only: whatever else is wrong must not make a living
// process look dead.
func TestLoadListen(t *testing.T) {
	inFile(t, "job: NO\nnonsense: 1\nadmin: {listen: ':9090'}\nshards: [{name: a, dsn_file: missing}]\n")
	if got, err := LoadListen(""); err != nil || got != ":9090" {
		t.Errorf("got %q, %v", got, err)
	}
	t.Setenv("BILLING_ADMIN_LISTEN", "nowhere")
	if got, err := LoadListen(""); err == nil {
		t.Errorf("got %q for a wrong address", got)
	}
}

// TestUsablePartBesideProblems: a problem spoils its own key and what that is made
// of or a part of, and a place is known for every key.
func TestUsablePartBesideProblems(t *testing.T) {
	text := strings.NewReplacer("topic: events", "topic: 'my events'", "name: b", "name: 'b b'", "[kafka-1:9092,", "[kafka-1,").Replace(good) + "dedup: {lateness: long}\ntopik: x\n"
	inFile(t, strings.Replace(text, "app:s3cr3tPw@tcp(db-a:3306)/billing", "app:s3cr3tPw@tcp(db-a:3306)", 1))
	t.Setenv("BILLING_JOB", "j")
	c, err := Load("", io.Discard, nil)
	var wrong *Error
	if !errors.As(err, &wrong) || len(wrong.Problems) != 6 || c == nil {
		t.Fatalf("%v, %v", c, err)
	}
	for path, want := range map[string]bool{
		"job": true, "kafka.topic": false, "kafka": false, "kafka.session_timeout": true, "kafka.brokers[0]": false, "kafka.brokers[1]": true, "kafka.brokers": false,
		"shards[0].dsn": false, "shards[0]": false, "shards[0].name": true, "shards[1].dsn": true, "shards[1].name": false, "shards": false,
		"dedup.lateness": false, "dedup.skew": true, "message.type_prefix": true,
	} {
		if got := c.Usable(path); got != want {
			t.Errorf("%s: usable %t, want %t", path, got, want)
		}
	}
	if c.Job != "j" || c.Shards[1].DSN.Reveal() != "app:s3cr3tPw@tcp(db-b:3306)/billing" || c.Kafka.Brokers[1] != "kafka-2:9092" {
		t.Errorf("the usable part is not there: %+v", c)
	}
	for path, want := range map[string]string{
		"shards[1].dsn": "config.yaml:9: shards[1].dsn: x 100%", "shards[1].dsn_file": "config.yaml:8: shards[1].dsn_file: x 100%", "job": "BILLING_JOB: job: x 100%",
		"aggregate.window": "config.yaml: aggregate.window: x 100%", "kafka.brokers[1]": "config.yaml:3: kafka.brokers[1]: x 100%",
	} {
		if got := c.Problem(path, "x 100%").String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	// What was given under a wrong name is not there, and what is there beside one is.
	inFile(t, strings.NewReplacer("job:", "jobs:", "topic: events", "topic: events\n  topics: x").Replace(good))
	c, err = Load("", io.Discard, nil)
	if !errors.As(err, &wrong) || len(wrong.Problems) != 2 || c.Usable("job") || !c.Usable("kafka.topic") || !c.Usable("kafka.brokers") {
		t.Errorf("%v: job usable %t, kafka.topic %t", err, c.Usable("job"), c.Usable("kafka.topic"))
	}
	inFile(t, "job: [")
	if c, err := Load("", io.Discard, nil); c != nil || !errors.As(err, &wrong) {
		t.Errorf("nothing could be read: %v, %v", c, err)
	}
}
