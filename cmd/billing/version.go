package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Set by the linker: -X main.version=v1.2.3 -X main.commit=abcdef0. Without
// it the build information that Go embeds is used.
var (
	version string
	commit  string
)

// What this build works with. The service checks the servers itself when it
// starts; these are the words for people.
const (
	supportedMySQL = "8.0.30 or later (InnoDB; not MariaDB, Galera, TiDB or Vitess)"
	supportedKafka = "4.0 or later (transaction.version 2)"
)

type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
	MySQL   string `json:"mysql"`
	Kafka   string `json:"kafka"`
}

func thisBuild() build {
	b := build{Version: version, Commit: commit, Go: runtime.Version(), MySQL: supportedMySQL, Kafka: supportedKafka}
	if info, ok := debug.ReadBuildInfo(); ok {
		modified := false
		revision := ""
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				revision = s.Value
			case "vcs.modified":
				modified = s.Value == "true"
			}
		}
		if b.Commit == "" && revision != "" {
			b.Commit = revision
			if modified {
				b.Commit += "-modified"
			}
		}
		if b.Version == "" {
			b.Version = info.Main.Version
		}
	}
	if b.Version == "" {
		b.Version = "(devel)"
	}
	if b.Commit == "" {
		b.Commit = "unknown"
	}
	return b
}

func newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version and the servers it supports",
		Example: `  billing version
  billing version --json`,
		Annotations: exits("0  always\n2  wrong usage"),
		Args:        cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := thisBuild()
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), b)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "billing %s\ncommit  %s\ngo      %s\nmysql   %s\nkafka   %s\n", b.Version, b.Commit, b.Go, b.MySQL, b.Kafka)
			if err != nil {
				return fmt.Errorf("version: write: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "answer in JSON")
	return cmd
}
