package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Problem is one thing that is wrong, and where.
type Problem struct {
	Path     string `json:"path,omitempty"`     // YAML path: kafka.brokers[1]
	Variable string `json:"variable,omitempty"` // the environment variable, where the value came from one
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"` // in File, from 1; 0 where there is none
	Message  string `json:"message"`        // what is wrong and what would be right; never a secret
}

// String is the problem on one line: config.yaml:12: kafka.topic: message.
func (p Problem) String() string {
	var b strings.Builder
	switch {
	case p.Variable != "":
		b.WriteString(p.Variable + ": ")
	case p.File != "" && p.Line > 0:
		fmt.Fprintf(&b, "%s:%d: ", p.File, p.Line)
	case p.File != "":
		b.WriteString(p.File + ": ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Error is a configuration that can't be used: all its problems, those of the
// file in its order, then those of the environment.
type Error struct{ Problems []Problem }

func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return Summary("configuration", lines)
}

// Summary is the text of problems with something, one a line.
func Summary(with string, problems []string) string {
	n := "1 problem"
	if len(problems) != 1 {
		n = fmt.Sprintf("%d problems", len(problems))
	}
	rest := ""
	if more := len(problems) - mostShown; more > 0 {
		problems, rest = problems[:mostShown], fmt.Sprintf("\n  and %d more; billing config check --json has all", more)
	}
	return with + ": " + n + ":\n  " + strings.Join(problems, "\n  ") + rest
}

// mostShown is how many problems a person gets to see at once: more are of a
// wrong file.
const mostShown = 100

func sortProblems(ps []Problem) {
	rank := func(p Problem) int {
		switch {
		case p.Variable != "":
			return 2
		case p.Line == 0:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Variable, b.Variable),
		)
	})
}

// source says where a value came from: a line of the file, a variable, or (the
// zero value) the default.
type source struct {
	file     string
	line     int
	variable string
}

func (s source) String() string {
	switch {
	case s.variable != "":
		return s.variable
	case s.file != "":
		return fmt.Sprintf("%s:%d", s.file, s.line)
	}
	return "default"
}

// place is where the value at a path was given, or what it is a part of where it
// was not given itself.
func place(sources map[string]source, file, path string) source {
	for p := path; p != ""; p = parent(p) {
		if s, ok := sources[p]; ok {
			return s
		}
	}
	return source{file: file}
}

func parent(path string) string {
	return path[:max(0, strings.LastIndexAny(path, ".["))]
}

func (s source) problem(path, format string, args ...any) Problem {
	return Problem{
		Path: path, Variable: s.variable, File: s.file, Line: s.line,
		Message: fmt.Sprintf(format, args...),
	}
}

// show quotes a value for a message, cut to a length that fits a line. What may
// hold a password (anything of the form user:password@host) is not shown.
func show(v string) string {
	if strings.ContainsAny(v, "@") {
		return "the value (not shown: it may hold a password)"
	}
	const most = 60
	if utf8.RuneCountInString(v) > most {
		return fmt.Sprintf("%q...", string([]rune(v)[:most]))
	}
	return fmt.Sprintf("%q", v)
}
