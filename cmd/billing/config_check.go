package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"billing/cmd/billing/config"

	"github.com/spf13/cobra"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config COMMAND",
		Short: "Check the configuration",
		Example: `  billing config check --config config.yaml
  billing config check --config config.yaml --connect`,
	}
	cmd.AddCommand(newConfigCheckCommand())
	return cmd
}

func newConfigCheckCommand() *cobra.Command {
	var asJSON, withServers bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the configuration; with --connect, the servers too",
		Long: `Checks the file and the environment without a network, and shows the effective
value of every key and where it comes from, passwords left out, and how much
memory one instance may need. Use it before each deployment. With problems it
shows all of them, each with its YAML path and line.

With --connect it also asks the servers everything that a start asks: brokers,
topics, rights and tables, whether this is the same deployment as before, and of
each lane what its next session would be told. It changes nothing, creates no
topics and joins no group, so it may run before billing migrate, before the
first start and beside the service. It waits for nothing: after about 15 s it
has shown everything that is wrong, in the configuration and on the servers,
each with its key and the next step, and a table of what was checked.

Before the first billing migrate all shards are refused with migrations-pending,
and before the first start the job's topics with topic-missing unless
first_start is true: that is as it should be.

The answer of --json is one object: ok, file, problems (kind: static, refusal or
unreachable; path, source, reason, what, message, next), warnings, settings,
memory_bytes (what one instance may need), and with --connect checks (name,
result: ok, warning, problem or not checked; detail).`,
		Example: `  # before a deployment
  billing config check --config config.yaml --connect

  # what the container will see
  docker run --rm --env-file billing.env -v "$PWD":/etc/billing:ro \
    billing config check

  # for a script
  billing config check --json | jq -r '.problems[].path'
  billing config check --connect --json |
    jq -r '.checks[] | select(.result != "ok") | .name'`,
		Annotations: exits(`0  nothing is wrong (warnings are in no start's way)
2  the configuration itself has problems, whatever else has
3  with --connect: a start would be refused
4  with --connect: servers can't be reached or say no; nothing else is wrong`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var warnings bytes.Buffer
			c, err := loadConfig(configFlag(cmd), &warnings)
			checked, err := checkConfig(cmd.Context(), c, err, withServers)
			if err != nil {
				return err
			}
			for line := range strings.Lines(warnings.String()) {
				checked.Warnings = append(checked.Warnings, strings.TrimPrefix(strings.TrimSpace(line), "warning: "))
			}
			if asJSON {
				return checked.writeJSON(cmd.OutOrStdout())
			}
			return checked.write(cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "answer in JSON, problems too (on stdout)")
	cmd.Flags().BoolVar(&withServers, "connect", false, "ask the servers, too; changes nothing")
	return cmd
}

// checkedConfig is the answer; this is its JSON form.
type checkedConfig struct {
	OK       bool             `json:"ok"`
	File     string           `json:"file,omitempty"`
	Problems []problem        `json:"problems"`
	Warnings []string         `json:"warnings"`
	Settings []config.Setting `json:"settings"`
	Memory   int64            `json:"memory_bytes,omitempty"` // what one instance may need
	Checks   []check          `json:"checks,omitempty"`

	memory string // Memory, and what of, for people
}

// checkConfig checks what Load gave: c may be nil. Its error is one that is no
// problem of the configuration.
func checkConfig(ctx context.Context, c *config.Config, failure error, withServers bool) (*checkedConfig, error) {
	checked := &checkedConfig{Problems: []problem{}, Warnings: []string{}, Settings: []config.Setting{}}
	var wrong *config.Error
	switch {
	case errors.As(failure, &wrong):
		for _, p := range wrong.Problems {
			checked.Problems = append(checked.Problems, staticProblem(p))
		}
	case failure != nil:
		return nil, failure
	default:
		checked.File, checked.Settings = c.File(), c.Settings()
		checked.Memory, checked.memory = c.MemoryNeed(), memoryLine(c)
	}
	if withServers {
		var f findings
		f.add("configuration", "", checked.Problems...)
		if c != nil {
			f.join(connect(ctx, c))
			if ctx.Err() != nil {
				return nil, fmt.Errorf("config check: stopped before everything was asked: %w", ctx.Err())
			}
		} else {
			f.skip("the configuration can't be read", "servers")
		}
		checked.Problems, checked.Checks = append([]problem{}, f.problems...), f.checks
		checked.Warnings = append(checked.Warnings, f.warnings...)
	}
	checked.OK = len(checked.Problems) == 0
	return checked, nil
}

// failure is what the problems end the command with, nil without any.
func (k *checkedConfig) failure() error {
	if k.OK {
		return nil
	}
	return &checkError{k.Problems}
}

func (k *checkedConfig) writeJSON(w io.Writer) error {
	if err := writeJSON(w, k); err != nil {
		return err
	}
	if err := k.failure(); err != nil {
		return &reportedError{err}
	}
	return nil
}

// write writes the answer to w, for people. Its error has the problems.
func (k *checkedConfig) write(w, errOut io.Writer) error {
	for _, warning := range k.Warnings {
		fmt.Fprintf(errOut, "warning: %s\n", warning)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if k.OK {
		file := k.File
		if file == "" {
			file = "no file, the environment alone"
		}
		fmt.Fprintf(t, "ok: %s\n\nKEY\tVALUE\tFROM\n", file)
		for _, s := range k.Settings {
			value := s.Text()
			if value == "" {
				value = "-"
			}
			fmt.Fprintf(t, "%s\t%s\t%s\n", s.Path, value, s.Source)
		}
	}
	if k.memory != "" {
		fmt.Fprintf(t, "\n%s\n", k.memory)
	}
	if len(k.Checks) > 0 {
		if k.OK {
			fmt.Fprintln(t)
		}
		fmt.Fprintln(t, "CHECK\tRESULT")
		for _, c := range k.Checks {
			result := c.Result
			if result == resultProblem {
				result = "FAILED"
			}
			if c.Detail != "" {
				result += ": " + c.Detail
			}
			fmt.Fprintf(t, "%s\t%s\n", c.Name, result)
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("config check: write: %w", err)
	}
	return k.failure()
}

// writeJSON writes an answer as indented JSON.
func writeJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("answer: encode: %w", err)
	}
	if _, err := w.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("answer: write: %w", err)
	}
	return nil
}
