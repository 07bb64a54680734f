package main

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"billing/internal/checkpoint"
)

// What is accepted and does not come up is told, and what can't come up is wrong
// usage.
func TestAccept(t *testing.T) {
	c := loaded(t, goodConfig, nil)
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, nil))
	both := []string{checkpoint.ReasonServerChanged, checkpoint.ReasonOffsetReset}
	a, err := parseAccept([]string{"server-changed:a", "offset-reset:events/1"}, c, logger, both...)
	if err != nil {
		t.Fatal(err)
	}
	if a.accept(checkpoint.ReasonServerChanged, "b") || log.Len() > 0 {
		t.Errorf("accepts what was not named: %s", &log)
	}
	a.tellUnused(checkpoint.ReasonServerChanged)
	if got := log.String(); !strings.Contains(got, `level=WARN msg="there was nothing to accept: leave it out" accept=server-changed:a`) || strings.Contains(got, "offset-reset") {
		t.Errorf("not needed: %s", got)
	}
	log.Reset()
	if !a.accept(checkpoint.ReasonServerChanged, "a") || !strings.Contains(log.String(), "refusal accepted by the operator") {
		t.Errorf("does not accept what was named: %s", &log)
	}
	log.Reset()
	if a.tellUnused(checkpoint.ReasonServerChanged); log.Len() > 0 {
		t.Errorf("needed: %s", &log)
	}
	if err := a.inside("events", 2); err != nil {
		t.Error(err)
	}
	if err := a.inside("events", 1); err == nil || !strings.Contains(err.Error(), "topic events has the lanes events/0 to events/0") {
		t.Errorf("a lane that the topic does not have: %v", err)
	}
	if _, err := parseAccept([]string{"offset-reset:events/1"}, c, logger, both[:1]...); err == nil || !strings.Contains(err.Error(), "offset-reset can't come up here; billing run takes it") {
		t.Errorf("what can't come up: %v", err)
	}
}

// xa resolve makes no topics, so that it is no use to set first_start for it.
func TestNothingMade(t *testing.T) {
	away := &checkpoint.ServerError{What: "broker 1", Err: errors.New("away")}
	missing := &checkpoint.Refusal{Reason: checkpoint.ReasonTopicMissing, What: "billing.state", Wrong: "first_start is off", Next: "set first_start: true"}
	err := nothingMade(errors.Join(away, missing))
	if exitCode(err) != exitRefused || !errors.Is(err, away) || strings.Contains(err.Error(), "first_start") || !strings.Contains(err.Error(), "nothing to settle: start it with billing run") {
		t.Errorf("got %v", err)
	}
	if missing.Next != "set first_start: true" {
		t.Error("the refusal itself was changed")
	}
}
