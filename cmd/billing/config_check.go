package main

import (
	"bytes"
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
		Short: "Work with the configuration",
		Example: `  billing config check --config config.yaml
  billing config check --config config.yaml --json`,
	}
	cmd.AddCommand(newConfigCheckCommand())
	return cmd
}

func newConfigCheckCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the configuration without a network",
		Long: `Checks the file and the environment without a network, and shows the effective
value of every key and where it comes from, passwords left out. With problems it
shows all of them, each with its YAML path and line, and exits with 2.`,
		Example: `  # before a deployment
  billing config check --config config.yaml

  # what the container will see
  docker run --rm --env-file billing.env -v $PWD:/etc/billing:ro billing config check

  # for a script
  billing config check --config config.yaml --json | jq -r '.problems[].path'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var warnings bytes.Buffer
			c, err := loadConfig(configFlag(cmd), &warnings)
			if asJSON {
				return writeCheckJSON(cmd.OutOrStdout(), c, err, warnings.String())
			}
			fmt.Fprint(cmd.ErrOrStderr(), warnings.String())
			if err != nil {
				return err
			}
			return writeCheck(cmd.OutOrStdout(), c)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "answer in JSON, problems too (on stdout)")
	return cmd
}

func writeCheck(w io.Writer, c *config.Config) error {
	file := c.File()
	if file == "" {
		file = "no file, the environment alone"
	}
	if _, err := fmt.Fprintf(w, "ok: %s\n\n", file); err != nil {
		return fmt.Errorf("config check: write: %w", err)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tVALUE\tFROM")
	for _, s := range c.Settings() {
		value := s.Text()
		if value == "" {
			value = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", s.Path, value, s.Source)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("config check: write: %w", err)
	}
	return nil
}

// checkAnswer is the JSON form of the answer.
type checkAnswer struct {
	OK       bool             `json:"ok"`
	File     string           `json:"file,omitempty"`
	Problems []config.Problem `json:"problems"`
	Warnings []string         `json:"warnings"`
	Settings []config.Setting `json:"settings"`
}

func writeCheckJSON(w io.Writer, c *config.Config, failure error, warnings string) error {
	answer := checkAnswer{Problems: []config.Problem{}, Warnings: []string{}, Settings: []config.Setting{}}
	for line := range strings.Lines(warnings) {
		answer.Warnings = append(answer.Warnings, strings.TrimPrefix(strings.TrimSpace(line), "warning: "))
	}
	var wrong *config.Error
	switch {
	case errors.As(failure, &wrong):
		answer.Problems = wrong.Problems
	case failure != nil:
		return failure
	default:
		answer.OK, answer.File, answer.Settings = true, c.File(), c.Settings()
	}
	if err := writeJSON(w, answer); err != nil {
		return err
	}
	if failure != nil {
		return &reportedError{failure}
	}
	return nil
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
