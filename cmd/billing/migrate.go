package main

import (
	"errors"
	"fmt"
	"strings"

	"billing/internal/checkpoint"
	"billing/internal/txsink"

	"github.com/spf13/cobra"
)

func newMigrateCommand() *cobra.Command {
	var accept []string
	var ifNeeded bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create or update the tables on all shards",
		Long: `Creates or updates the tables on all shards. Run it once before the first start,
and with each new version that has something to migrate, while the service is
stopped. The databases exist already. It may be repeated, also after a failure
half-way.

It refuses while branches of this job are prepared: billing xa resolve ends
them, or a start of the version before. Other jobs' branches do not matter. With
--if-needed it changes nothing and refuses no branches where the tables are of
this version already: for deployments that run it each time, also beside
instances at work.

After a planned failover of a shard, --accept server-changed:SHARD records the
new server, as it does for run.`,
		Example: `  billing migrate --config config.yaml

  # as a MySQL user of its own, who may make tables (docs/grants.md)
  BILLING_SHARDS='[{"name":"a","dsn_file":"/run/secrets/migrate-a"}]' \
    billing migrate --config config.yaml

  # after a planned failover of shard eu-1
  billing migrate --config config.yaml --accept server-changed:eu-1`,
		Annotations: exits(`0  the tables are those of this version
2  wrong usage or configuration
3  refused: nothing was changed on the shard that is named
4  a server could not be reached or failed; run it again`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(configFlag(cmd), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			logger := newLogger(cmd.ErrOrStderr(), c)
			cfg := sinkConfig(c, logger)
			accepts, err := parseAccept(accept, c, logger, checkpoint.ReasonServerChanged)
			if err != nil {
				return &usageError{err}
			}
			if ifNeeded && len(accept) > 0 {
				return &usageError{errors.New("--if-needed does nothing where the tables are of this version, and --accept has it record a server: give one of them")}
			}
			cfg.Accept, cfg.IfNeeded = accepts.accept, ifNeeded
			if err := txsink.Migrate(cmd.Context(), cfg, cmd.OutOrStdout()); err != nil {
				return fmt.Errorf("migrate: %w", err)
			}
			accepts.tellUnused(checkpoint.ReasonServerChanged)
			return nil
		},
	}
	cmd.Flags().BoolVar(&ifNeeded, "if-needed", false, "do nothing, whatever is prepared, where the tables are of this version")
	cmd.Flags().StringArrayVar(&accept, "accept", nil, "override the refusal `REASON:WHAT`, which is server-changed:SHARD here; may be repeated")
	return cmd
}

// checkDSN says whether MySQL's side can use a DSN, without a network.
func checkDSN(dsn string) error {
	const name = "this"
	sink, err := txsink.Open(txsink.Config{Job: "check", Shards: []txsink.ShardConfig{{Name: name, DSN: dsn}}})
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "shard "+name+": dsn: "))
	}
	return sink.Close()
}
