package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"billing/cmd/billing/config"
	"billing/internal/checkpoint"
	"billing/internal/txsink"

	"github.com/twmb/franz-go/pkg/kfake"
)

// loaded is what Load gives for a file and variables, problems or not.
func loaded(t *testing.T, text string, env map[string]string) *config.Config {
	t.Helper()
	t.Chdir(inDir(t, text))
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "BILLING_") {
			t.Setenv(name, "") // restores it afterwards
			os.Unsetenv(name)
		}
	}
	for name, value := range env {
		t.Setenv(name, value)
	}
	c, err := loadConfig("", io.Discard)
	var wrong *config.Error
	if err != nil && !errors.As(err, &wrong) {
		t.Fatal(err)
	}
	return c
}

func refusal(reason, what string, keys ...string) *checkpoint.Refusal {
	return &checkpoint.Refusal{Scope: checkpoint.EndsProcess, Reason: reason, What: what, Wrong: "it is so", Next: "do this", Keys: keys}
}

// Each problem belongs to a key, and says where that was given.
func TestProblemsHaveKeys(t *testing.T) {
	c := loaded(t, goodConfig, map[string]string{"BILLING_KAFKA_TRANSACTION_TIMEOUT": "1m"})
	for _, k := range []struct {
		err  error
		path string // of what was checked
		want string
	}{
		{refusal(checkpoint.ReasonShardUnfit, "a"), "shards[0].dsn", "config.yaml:7: shards[0].dsn: refused (shard-unfit) a: it is so. Next step: do this"},
		{refusal(checkpoint.ReasonShardsChanged, "a"), "shards[0].dsn", "config.yaml:6: shards[0]: refused (shards-changed) a: it is so. Next step: do this"},
		{refusal(checkpoint.ReasonShardsChanged, "events/0"), "job", "config.yaml:5: shards: refused (shards-changed) events/0: it is so. Next step: do this"},
		{refusal(checkpoint.ReasonFingerprint, "events/0", "aggregate.window", "message.type_prefix"), "job",
			"config.yaml: aggregate.window: refused (fingerprint) events/0: it is so. Next step: do this\nconfig.yaml:9: message.type_prefix: refused (fingerprint) events/0: it is so. Next step: do this"},
		{refusal(checkpoint.ReasonTransactionTimeout, "broker 1"), keyTxn, "BILLING_KAFKA_TRANSACTION_TIMEOUT: kafka.transaction_timeout: refused (transaction-timeout) broker 1: it is so. Next step: do this"},
		{refusal(checkpoint.ReasonTopicMissing, "events"), "kafka.topic", "config.yaml:4: kafka.topic: refused (topic-missing) events: it is so. Next step: do this"},
		{refusal(checkpoint.ReasonTopicMissing, "billing.state"), "job", "config.yaml: first_start: refused (topic-missing) billing.state: it is so. Next step: do this"},
		{refusal(checkpoint.ReasonTopicConfig, "billing.state"), "job", "config.yaml:1: job: refused (topic-config) billing.state: it is so. Next step: do this"},
		{refusal(checkpoint.ReasonPartitionsChanged, "events/0"), "job", "config.yaml:4: kafka.topic: refused (partitions-changed) events/0: it is so. Next step: do this"},
		{refusal(checkpoint.ReasonFirstStart, "events/0"), "kafka.topic", "config.yaml: first_start: refused (first-start) events/0: it is so. Next step: do this"},
		{&checkpoint.ServerError{What: "a", Err: errors.New("shard a: away"), Next: "start it"}, "shards[0].dsn", "config.yaml:7: shards[0].dsn: shard a: away. Next step: start it"},
		{errors.New("who knows"), "kafka", "config.yaml:2: kafka: who knows"},
	} {
		var got []string
		for _, p := range problemsOf(c, k.path, k.err) {
			got = append(got, p.String())
		}
		if strings.Join(got, "\n") != k.want {
			t.Errorf("got  %s\nwant %s", strings.Join(got, "\n"), k.want)
		}
	}
	turned := problemsOf(c, "job", errors.Join(&checkpoint.ServerError{What: "group billing", TurnedAway: true, Err: errors.New("no")}, &checkpoint.ServerError{What: "x", Err: errors.New("no")}))
	if turned[0].Reason != reasonTurnedAway || turned[1].Reason != reasonUnreachable || turned[0].Source != "config.yaml:1" || turned[0].Kind != kindUnreachable {
		t.Errorf("got %+v", turned)
	}
	for path, want := range map[string]string{keyTxn: "BILLING_KAFKA_TRANSACTION_TIMEOUT", "first_start": "default", "kafka.topic": "config.yaml:4"} {
		if got := problemsOf(c, path, errors.New("x"))[0].Source; got != want {
			t.Errorf("source of %s: %q, want %q", path, got, want)
		}
	}
	cause := refusal(checkpoint.ReasonShardUnfit, "a")
	cause.Err = errors.New("Error 1142")
	if got := problemsOf(c, "shards[0].dsn", cause)[0].Message; got != "it is so (Error 1142)" {
		t.Errorf("the cause is lost: %q", got)
	}
}

// The configuration's own problems come before a refusal, and a refusal before
// servers that are away.
func TestCheckedExitCodes(t *testing.T) {
	static, refused, away := problem{Kind: kindStatic}, problem{Kind: kindRefusal, Reason: checkpoint.ReasonFingerprint}, problem{Kind: kindUnreachable}
	for _, c := range []struct {
		problems []problem
		want     int
	}{
		{nil, exitDone},
		{[]problem{away}, exitFailed},
		{[]problem{away, refused}, exitRefused},
		{[]problem{refused, away, static}, exitUsage},
		{[]problem{static}, exitUsage},
	} {
		k := &checkedConfig{OK: len(c.problems) == 0, Problems: c.problems}
		if got := exitCode(k.failure()); got != c.want {
			t.Errorf("%v: exit %d, want %d", c.problems, got, c.want)
		}
		var out bytes.Buffer
		if got := exitCode(k.writeJSON(&out)); got != c.want {
			t.Errorf("%v as JSON: exit %d, want %d", c.problems, got, c.want)
		}
	}
}

func TestCheckedText(t *testing.T) {
	k := &checkedConfig{
		OK: true, File: "config.yaml", Warnings: []string{"dedup.skew: a clock is wrong"},
		Settings: []config.Setting{{Path: "job", Value: "billing", Source: "config.yaml:1"}, {Path: "kafka.instance_id", Value: "", Source: "default"}},
		Checks:   []check{{Name: "shard a", Result: resultOK}, {Name: "lanes", Result: resultOK, Detail: "3 of 3"}, {Name: "clock", Result: resultWarning}},
	}
	var out, errOut bytes.Buffer
	if err := k.write(&out, &errOut); err != nil {
		t.Fatal(err)
	}
	if want := "ok: config.yaml\n\nKEY                VALUE    FROM\njob                billing  config.yaml:1\nkafka.instance_id  -        default\n\nCHECK    RESULT\nshard a  ok\nlanes    ok: 3 of 3\nclock    warning\n"; out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	if want := "warning: dedup.skew: a clock is wrong\n"; errOut.String() != want {
		t.Errorf("got %q", errOut.String())
	}
	out.Reset()
	k.OK, k.File, k.Settings = false, "", nil
	k.Problems = []problem{{Problem: config.Problem{Path: "job", Message: "x"}, Kind: kindStatic}, {Problem: config.Problem{Path: "shards", Message: "y"}, Kind: kindUnreachable, Next: "z"}}
	k.Checks = []check{{Name: "shard a", Result: resultProblem}, {Name: "lanes", Result: resultNotChecked, Detail: "no broker could be asked"}}
	err := k.write(&out, io.Discard)
	if want := "configuration and servers: 2 problems:\n  job: x\n  shards: y. Next step: z"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	for with, ps := range map[string][]problem{"configuration": k.Problems[:1], "servers": k.Problems[1:]} {
		if err := (&checkError{ps}); !strings.HasPrefix(err.Error(), with+": 1 problem:\n") {
			t.Errorf("got %v, want problems of: %s", err, with)
		}
	}
	if want := "CHECK    RESULT\nshard a  FAILED\nlanes    not checked: no broker could be asked\n"; out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestWarningsOfServers(t *testing.T) {
	c := loaded(t, goodConfig, nil) // dedup.skew is 5m
	facts := func(ahead time.Duration, most int) txsink.Facts {
		return txsink.Facts{Shard: "a", Server: "1", ClockAhead: ahead, MaxConnections: most, Connections: 24}
	}
	for _, k := range []struct {
		ahead time.Duration
		want  string
	}{
		{0, ""}, {5 * time.Minute, ""}, {-5 * time.Minute, ""},
		{301 * time.Second, "dedup.skew: this machine's clock is 5m1s behind that of shard a, more than 5m0s: if it is this one that is wrong, events of this moment would be rejected as in_future"},
		{-301 * time.Second, "dedup.skew: this machine's clock is 5m1s ahead of that of shard a, more than 5m0s: if it is this one that is wrong, events that lie in the future would be booked"},
	} {
		if got := strings.Join(clockWarnings(c, []txsink.Facts{facts(k.ahead, 100)}), "\n"); got != k.want {
			t.Errorf("%s: got %q, want %q", k.ahead, got, k.want)
		}
	}
	c.Dedup.Skew = 0
	if got := clockWarnings(c, []txsink.Facts{facts(time.Second, 100)}); got != nil {
		t.Errorf("a second is no warning: %v", got)
	}
	other := facts(0, 47)
	other.Shard = "b"
	for _, k := range []struct {
		facts []txsink.Facts
		want  string
	}{
		{[]txsink.Facts{facts(0, 24)}, ""},
		{[]txsink.Facts{facts(0, 23)}, "shards: the server of a takes 23 connections (max_connections), each instance may open 24 there"},
		{[]txsink.Facts{facts(0, 47), other}, "shards: the server of a, b takes 47 connections (max_connections), each instance may open 48 there"},
	} {
		if got := strings.Join(connectionWarnings(k.facts), "\n"); got != k.want {
			t.Errorf("got %q, want %q", got, k.want)
		}
	}
}

// What many lanes say is said once where it is about the job.
func TestForeseenIsSorted(t *testing.T) {
	c := loaded(t, goodConfig, nil)
	lane := func(n int, reason string) error {
		return &checkpoint.Refusal{Reason: reason, What: fmt.Sprint("events/", n), Wrong: "it is so", Next: "do this"}
	}
	for name, k := range map[string]struct {
		errs   []error
		want   []string // path, reason, what
		checks string
	}{
		"nothing is wrong":   {[]error{nil, nil, fmt.Errorf("shard a: %w", checkpoint.ErrSuperseded)}, nil, "same deployment ok, lanes ok: 3 of 3"},
		"another deployment": {[]error{refusal(checkpoint.ReasonFingerprint, "events/0", "shards"), refusal(checkpoint.ReasonFingerprint, "events/1", "shards")}, []string{"shards fingerprint events/0"}, "same deployment problem, lanes ok: 2 of 2"},
		"one lane": {[]error{nil, fmt.Errorf("look: %w", lane(1, checkpoint.ReasonOffsetReset)), errors.Join(lane(2, checkpoint.ReasonLostEpoch), lane(2, checkpoint.ReasonShardAhead))},
			[]string{"kafka.topic offset-reset events/1", "kafka.topic lost-epoch events/2", "kafka.topic shard-ahead events/2"}, "same deployment ok, lanes problem"},
		"both": {[]error{refusal(checkpoint.ReasonPartitionsChanged, "events/0"), lane(1, checkpoint.ReasonOffsetReset)},
			[]string{"kafka.topic partitions-changed events/0", "kafka.topic offset-reset events/1"}, "same deployment problem, lanes problem"},
		"not asked": {[]error{errors.New("kafka: lane events/0: deadline"), errors.New("2"), errors.New("3")}, []string{"kafka.topic unreachable "}, "same deployment ok, lanes problem"},
		"without shards": {[]error{fmt.Errorf("shard a: %w", txsink.ErrNotChecked), lane(1, checkpoint.ReasonOffsetReset)},
			[]string{"kafka.topic offset-reset events/1"}, "same deployment ok, lanes problem"},
		"only without shards": {[]error{fmt.Errorf("shard a: %w", txsink.ErrNotChecked)}, nil, "same deployment ok, lanes not checked: the shards have a problem: only what Kafka knows of the lanes was checked"},
	} {
		found := &foreseen{lanes: len(k.errs)}
		for _, err := range k.errs {
			found.note(err)
		}
		var f findings
		found.tell(c, &f)
		var got, checks []string
		for _, p := range f.problems {
			got = append(got, p.Path+" "+p.Reason+" "+p.What)
		}
		for _, c := range f.checks {
			checks = append(checks, c.Name+" "+strings.TrimSuffix(c.Result+": "+c.Detail, ": "))
		}
		if !slices.Equal(got, k.want) || strings.Join(checks, ", ") != k.checks {
			t.Errorf("%s: got %q, %q", name, got, checks)
		}
		if name == "not asked" && !strings.HasSuffix(f.problems[0].Message, "(and 2 more lanes)") {
			t.Errorf("got %q", f.problems[0].Message)
		}
	}
}

// What the usable part of a configuration names is asked, and nothing is judged by
// what can't be used.
func TestConnectUsesWhatIsUsable(t *testing.T) {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "events"), kfake.BrokerConfigs(map[string]string{"transaction.max.timeout.ms": "20000"}))
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	good := strings.Replace(goodConfig, "kafka-1:9092", broker.ListenAddrs()[0], 1) + "first_start: true\n"
	base := "BILLING_KAFKA_TRANSACTION_TIMEOUT=20s"
	const away = "shards[0].dsn unreachable"
	for name, c := range map[string]struct {
		config string
		env    []string
		code   int
		want   []string          // path and reason
		checks map[string]string // by name
	}{
		"only a shard is away": {good, []string{base}, exitFailed, []string{away},
			map[string]string{"configuration": "ok", "shard a": "problem", checkFeatures: "ok", checkTxn: "ok", checkInput: "ok: events has 2 partitions", checkTopics: "ok: billing.decision, billing.state will be created by the first start",
				checkLanes: "not checked: no shard says to which set it belongs", checkClock: "not checked: no shard could be asked"}},
		"transaction timeout": {good, nil, exitRefused, []string{away, "kafka.transaction_timeout transaction-timeout"}, map[string]string{checkTxn: "problem"}},
		"the timeout is no timeout": {good, []string{"BILLING_KAFKA_TRANSACTION_TIMEOUT=long"}, exitUsage, []string{"kafka.transaction_timeout ", away},
			map[string]string{checkTxn: "not checked: kafka.transaction_timeout has a problem", checkSession: "ok", checkInput: "ok: events has 2 partitions"}},
		"job": {good, []string{base, "BILLING_JOB=a.b"}, exitUsage, []string{"job ", away},
			map[string]string{"shard a": "problem", checkInput: "ok: events has 2 partitions", checkTopics: "not checked: job has a problem", checkRights: "not checked: job has a problem", checkLanes: "not checked: job has a problem"}},
		"topic": {good, []string{base, "BILLING_KAFKA_TOPIC=a b"}, exitUsage, []string{"kafka.topic ", away},
			map[string]string{checkFeatures: "ok", checkInput: "not checked: kafka.topic has a problem", checkLanes: "not checked: the input topic could not be looked up"}},
		"no such topic": {good, []string{base, "BILLING_KAFKA_TOPIC=other"}, exitRefused, []string{away, "kafka.topic topic-missing"},
			map[string]string{checkInput: "problem", checkTopics: "not checked: the input topic could not be looked up"}},
		"brokers": {good, []string{base, "BILLING_KAFKA_BROKERS=x"}, exitUsage, []string{"kafka.brokers[0] ", away},
			map[string]string{checkFeatures: "not checked: kafka.brokers has a problem", checkLanes: "not checked: no broker could be asked"}},
		"one of the brokers": {good, []string{base, "BILLING_KAFKA_BROKERS=x," + broker.ListenAddrs()[0] + ",127.0.0.1:1"}, exitUsage, []string{"kafka.brokers[0] ", away, "kafka.brokers[2] unreachable"},
			map[string]string{"broker 127.0.0.1:1": "problem", "broker " + broker.ListenAddrs()[0]: "ok", checkFeatures: "ok"}},
		"shards": {good, []string{base, "BILLING_SHARDS=[]"}, exitUsage, []string{"shards "}, map[string]string{"shards": "not checked: no DSN can be used", checkInput: "ok: events has 2 partitions"}},
		"one of the shards": {strings.Replace(good, "  - name: a\n", "  - name: a\n    dsn: s3cr3tPw@nowhere\n  - name: a\n", 1), []string{base}, exitUsage, []string{"shards[0].dsn ", "shards[1].name ", "shards[1].dsn unreachable"},
			map[string]string{"shard a": "not checked: its configuration has a problem", "shard shards[1]": "problem"}},
		"first_start":        {strings.Replace(good, "first_start: true", "first_start: maybe", 1), []string{base}, exitUsage, []string{"first_start ", away}, map[string]string{checkTopics: "ok: billing.decision, billing.state will be created by the first start"}},
		"first_start is off": {strings.Replace(good, "first_start: true", "first_start: false", 1), []string{base}, exitRefused, []string{away, "first_start topic-missing", "first_start topic-missing"}, map[string]string{checkTopics: "problem", checkLanes: "not checked: the topics of the job have a problem"}},
		"no YAML":            {"job: [", []string{base}, exitUsage, []string{" "}, map[string]string{"servers": "not checked: the configuration can't be read"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := run(t, inDir(t, c.config), c.env, "config", "check", "--connect", "--json")
			var a struct {
				Problems []problem
				Checks   []check
			}
			if err := json.Unmarshal([]byte(got.out), &a); err != nil || got.code != c.code || got.errOut != "" {
				t.Fatalf("exit %d, want %d, %v, stderr %q, stdout %s", got.code, c.code, err, got.errOut, got.out)
			}
			var problems []string
			for _, p := range a.Problems {
				problems = append(problems, p.Path+" "+p.Reason)
			}
			if !slices.Equal(problems, c.want) {
				t.Errorf("got the problems %q, want %q", problems, c.want)
			}
			results := map[string]string{}
			for _, k := range a.Checks {
				results[k.Name] = strings.TrimSuffix(k.Result+": "+k.Detail, ": ")
			}
			for name, want := range c.checks {
				if results[name] != want {
					t.Errorf("check %q: %q, want %q", name, results[name], want)
				}
			}
			if strings.Contains(got.out, "s3cr3t") {
				t.Errorf("shows a password: %s", got.out)
			}
		})
	}
}
