package checkpoint

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestProblems: what is joined is taken apart, however it was wrapped since, and
// nothing is lost.
func TestProblems(t *testing.T) {
	refusal := &Refusal{Scope: EndsProcess, Reason: ReasonShardUnfit, What: "a", Err: errors.New("1142")}
	lane := &Refusal{Reason: ReasonOffsetReset, What: "in/1"}
	away := &ServerError{What: "b", Err: errors.New("shard b: connection refused"), Next: "start it"}
	plain := errors.New("plain")
	cut := fmt.Errorf("%w, last: %w", errors.New("deadline"), plain)
	for name, c := range map[string]struct {
		err  error
		want []error
	}{
		"nothing":           {nil, nil},
		"a refusal":         {refusal, []error{refusal}},
		"wrapped":           {fmt.Errorf("kafka: lane: %w", refusal), []error{refusal}},
		"joined":            {errors.Join(refusal, away, plain), []error{refusal, away, plain}},
		"joined twice":      {errors.Join(errors.Join(lane, away), fmt.Errorf("x: %w", errors.Join(refusal, plain))), []error{lane, away, refusal, plain}},
		"neither":           {cut, []error{cut}},
		"a cause stays one": {&ServerError{What: "b", Err: errors.Join(plain, refusal)}, nil},
	} {
		got := Problems(c.err)
		if name == "a cause stays one" {
			c.want = []error{c.err}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
	if got := away.Error(); got != "shard b: connection refused. Next step: start it" {
		t.Errorf("got %q", got)
	}
	if got := (&ServerError{Err: plain}).Error(); got != "plain" {
		t.Errorf("without a next step: %q", got)
	}
}

// TestAnotherDeploymentSaysAllThatDiffers: by key, and in one go.
func TestAnotherDeploymentSaysAllThatDiffers(t *testing.T) {
	set := UUID{7}
	d := fullDecision()
	d.Job, d.Topic, d.Partition = "billing", "in", 2
	d.Fingerprint, d.Settings = Fingerprint(set, time.Hour, "com."), Settings(time.Hour, "com.")
	lane := Lane{Topic: "in", Partition: 2}
	for name, c := range map[string]struct {
		set        UUID
		window     time.Duration
		prefix     string
		partitions int32
		shards     int
		want       string
	}{
		"the same":   {set, time.Hour, "com.", 64, 2, ""},
		"window":     {set, time.Minute, "com.", 64, 2, "fingerprint aggregate.window"},
		"prefix":     {set, time.Hour, "org.", 64, 2, "fingerprint message.type_prefix"},
		"both":       {set, time.Minute, "org.", 64, 2, "fingerprint aggregate.window message.type_prefix"},
		"databases":  {UUID{8}, time.Hour, "com.", 64, 2, "fingerprint shards"},
		"everything": {UUID{8}, time.Minute, "com.", 65, 3, "partitions-changed, shards-changed, fingerprint aggregate.window"},
	} {
		job := &Job{Name: "billing", Topic: "in", Shards: make([]Shard, c.shards),
			Fingerprint: Fingerprint(c.set, c.window, c.prefix), Settings: Settings(c.window, c.prefix)}
		var got []string
		for _, err := range Problems(job.sameDeployment(lane, &d, d.TopicID, c.partitions)) {
			r := AsRefusal(err)
			got = append(got, strings.Join(append([]string{r.Reason}, r.Keys...), " "))
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: got %q, want %q", name, strings.Join(got, ", "), c.want)
		}
	}
	other := &Job{Name: "other", Topic: "in"}
	if r := AsRefusal(other.sameDeployment(lane, &d, d.TopicID, 64)); r == nil || !slices.Equal(r.Keys, []string{"job"}) {
		t.Errorf("another job's: %v", r)
	}
}

// What libraries say of a server that is away is told in plain words.
func TestServerErrorSays(t *testing.T) {
	for said, want := range map[string]string{
		"shard a: connect: dial tcp 10.0.0.1:3306: connect: connection refused": "shard a: connect to 10.0.0.1:3306: connect: connection refused",
		"kafka: list: unable to dial: dial tcp: lookup k: no such host":         "kafka: list: look up k: no such host",
		"shard a: connect: context deadline exceeded":                           "shard a: connect: no answer in time",
		"kafka: list: read tcp 1:2->3:4: i/o timeout":                           "kafka: list: read tcp 1:2->3:4: no answer in time",
	} {
		cause := errors.New(said)
		err := &ServerError{Err: cause, Next: "wait"}
		if got := err.Error(); got != want+". Next step: wait" || !errors.Is(err, cause) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
