package main

import (
	"errors"
	"fmt"
	"strings"

	"billing/cmd/billing/config"
	"billing/internal/checkpoint"
)

// problem is one thing that is wrong, with the key that it belongs to.
type problem struct {
	config.Problem
	Source string `json:"source,omitempty"` // FILE:LINE, the variable's name, or default
	Kind   string `json:"kind"`
	Reason string `json:"reason,omitempty"` // one word
	What   string `json:"what,omitempty"`   // the shard, the broker, the lane, the topic
	Next   string `json:"next,omitempty"`   // what to do
}

// Kinds of problems.
const (
	kindStatic      = "static"      // of the configuration itself
	kindRefusal     = "refusal"     // a start would refuse
	kindUnreachable = "unreachable" // a server can't be reached, or says no: a start would wait
)

// Reasons of kindUnreachable.
const (
	reasonUnreachable = "unreachable"
	reasonTurnedAway  = "turned-away"
)

// String is the problem on one line, as config.Problem's.
func (p problem) String() string {
	shown := p.Problem
	if p.Kind == kindRefusal {
		shown.Message = fmt.Sprintf("refused (%s) %s: %s", p.Reason, p.What, p.Message)
	}
	if p.Next != "" {
		shown.Message += ". Next step: " + p.Next
	}
	return shown.String()
}

// at is the same problem with another key.
func (p problem) at(c *config.Config, path string) problem {
	p.Problem = c.Problem(path, p.Message)
	p.Source = sourceOf(p.Problem)
	return p
}

func staticProblem(p config.Problem) problem {
	return problem{Problem: p, Source: sourceOf(p), Kind: kindStatic}
}

// sourceOf is where the value came from; "" where there is none.
func sourceOf(p config.Problem) string {
	switch {
	case p.Variable != "":
		return p.Variable
	case p.Line > 0:
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	case p.Path != "":
		return "default"
	}
	return p.File
}

// problemsOf makes problems of what a check has returned. path is the key that
// the check is about, where the reason does not name another.
func problemsOf(c *config.Config, path string, err error) (all []problem) {
	for _, err := range checkpoint.Problems(err) {
		if r := checkpoint.AsRefusal(err); r != nil {
			message := r.Wrong
			if r.Err != nil {
				message += " (" + r.Err.Error() + ")"
			}
			for _, path := range keysOf(r, path) {
				p := c.Problem(path, message)
				all = append(all, problem{Problem: p, Source: sourceOf(p), Kind: kindRefusal, Reason: r.Reason, What: r.What, Next: r.Next})
			}
			continue
		}
		p := problem{Problem: c.Problem(path, err.Error()), Kind: kindUnreachable, Reason: reasonUnreachable}
		p.Source = sourceOf(p.Problem)
		var away *checkpoint.ServerError
		if errors.As(err, &away) {
			p.Message, p.What, p.Next = away.Says(), away.What, away.Next
			if away.TurnedAway {
				p.Reason = reasonTurnedAway
			}
		}
		all = append(all, p)
	}
	return all
}

// keysOf are the keys that a refusal is about. path is that of what was checked.
func keysOf(r *checkpoint.Refusal, path string) []string {
	if len(r.Keys) > 0 {
		return r.Keys
	}
	switch r.Reason {
	case checkpoint.ReasonFirstStart:
		return []string{"first_start"}
	case checkpoint.ReasonPartitionsChanged, checkpoint.ReasonTopicRecreated:
		return []string{"kafka.topic"}
	case checkpoint.ReasonTopicMissing:
		if path == "job" { // one of the job's own
			return []string{"first_start"}
		}
	case checkpoint.ReasonShardsChanged:
		// Of a shard: the place in the list decides as much as the DSN does.
		if path == "job" { // found in a decision
			return []string{"shards"}
		}
		return []string{strings.TrimSuffix(strings.TrimSuffix(path, ".dsn_file"), ".dsn")}
	}
	return []string{path}
}

// checkError is what `config check` found wrong. Its text has all problems.
type checkError struct{ problems []problem }

func (e *checkError) Error() string {
	lines := make([]string, len(e.problems))
	static := 0
	for i, p := range e.problems {
		lines[i] = p.String()
		if p.Kind == kindStatic {
			static++
		}
	}
	with := "configuration and servers"
	switch static {
	case 0:
		with = "servers"
	case len(lines):
		with = "configuration"
	}
	return config.Summary(with, lines)
}

// Unwrap gives what decides the exit code: the configuration's own problems
// first, then a refusal. Servers that can't be reached are left.
func (e *checkError) Unwrap() error {
	var static []config.Problem
	var refused error
	for _, p := range e.problems {
		switch p.Kind {
		case kindStatic:
			static = append(static, p.Problem)
		case kindRefusal:
			refused = &checkpoint.Refusal{Scope: checkpoint.EndsProcess, Reason: p.Reason, What: p.What, Wrong: p.Message, Next: p.Next}
		}
	}
	if len(static) > 0 {
		return &config.Error{Problems: static}
	}
	return refused
}
