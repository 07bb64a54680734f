package txsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"billing/internal/checkpoint"
	"billing/migrations"
)

// neededRights are refused, like the statements they explain, to a user who may
// not do them. The first epoch would be too late to find out.
var neededRights = []string{
	"EXPLAIN UPDATE billing_lane SET seq = seq WHERE FALSE",
	"EXPLAIN UPDATE billing_total SET entry_count = entry_count WHERE FALSE",
	"EXPLAIN INSERT INTO billing_lane SELECT * FROM billing_lane WHERE FALSE",
	"EXPLAIN INSERT INTO billing_epoch SELECT * FROM billing_epoch WHERE FALSE",
	"EXPLAIN INSERT INTO billing_epoch_sum SELECT * FROM billing_epoch_sum WHERE FALSE",
	"EXPLAIN INSERT INTO billing_total SELECT * FROM billing_total WHERE FALSE",
	"EXPLAIN INSERT INTO billing_ledger SELECT * FROM billing_ledger WHERE FALSE",
	"EXPLAIN INSERT INTO billing_rejects SELECT * FROM billing_rejects WHERE FALSE",
}

// uniqueKeys are the nets of the tables: what must never be there twice. Their
// columns, by table.
var uniqueKeys = map[string][]string{
	"billing_lane":      {"kafka_topic, kafka_partition"},
	"billing_epoch":     {"kafka_topic, kafka_partition, seq"},
	"billing_epoch_sum": {"kafka_topic, kafka_partition, seq, currency"},
	"billing_total":     {"total_key"},
	"billing_ledger":    {"kafka_topic, kafka_partition, kafka_offset", "kafka_topic, kafka_partition, dedup_key"},
	"billing_rejects":   {"kafka_topic, kafka_partition, kafka_offset"},
}

// tablesProblem is about tables that are missing or have another engine; err
// when that can't be found out.
func (s *shard) tablesProblem(ctx context.Context, c *sql.Conn) (problem, err error) {
	rows, err := c.QueryContext(ctx, "SELECT table_name, COALESCE(engine, table_type) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'billing\\_%'")
	if err != nil {
		return nil, s.failed(fmt.Errorf("list the tables: %w", err))
	}
	defer rows.Close()
	engines := make(map[string]string)
	for rows.Next() {
		var name, engine string
		if err := rows.Scan(&name, &engine); err != nil {
			return nil, s.failed(fmt.Errorf("list the tables: %w", err))
		}
		engines[name] = engine
	}
	if err := rows.Err(); err != nil {
		return nil, s.failed(fmt.Errorf("list the tables: %w", err))
	}
	var missing []string
	var problems []error
	for _, name := range migrations.Tables {
		switch engine, ok := engines[name]; {
		case !ok:
			missing = append(missing, name)
		case !strings.EqualFold(engine, "InnoDB"):
			problems = append(problems, refuse(checkpoint.ReasonShardUnfit, s.name,
				fmt.Sprintf("table %s is %s, which knows no transactions", name, engine), "ALTER TABLE "+name+" ENGINE = InnoDB"))
		}
	}
	for _, name := range migrations.Views {
		if _, ok := engines[name]; !ok {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		problems = append(problems, s.pending("missing: "+strings.Join(missing, ", ")))
		return errors.Join(problems...), nil
	}
	keys, err := s.keysProblems(ctx, c)
	if err != nil {
		return nil, s.failed(fmt.Errorf("list the unique keys: %w", err))
	}
	return errors.Join(append(problems, keys...)...), nil
}

func (s *shard) keysProblems(ctx context.Context, c *sql.Conn) (problems []error, err error) {
	rows, err := c.QueryContext(ctx, "SELECT table_name, GROUP_CONCAT(column_name ORDER BY seq_in_index SEPARATOR ', ') FROM information_schema.statistics"+
		" WHERE table_schema = DATABASE() AND table_name LIKE 'billing\\_%' AND non_unique = 0 GROUP BY table_name, index_name")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	there := make(map[string]bool)
	for rows.Next() {
		var table, columns string
		if err := rows.Scan(&table, &columns); err != nil {
			return nil, err
		}
		there[table+": "+columns] = true
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for _, table := range migrations.Tables {
		for _, columns := range uniqueKeys[table] {
			if !there[table+": "+columns] {
				problems = append(problems, refuse(checkpoint.ReasonShardUnfit, s.name,
					fmt.Sprintf("table %s has no unique key on (%s)", table, columns), "ALTER TABLE "+table+" ADD UNIQUE KEY ("+columns+")"))
			}
		}
	}
	return problems, nil
}

// schemaProblem compares the migrations that are done with those of this build.
func (s *shard) schemaProblem(ctx context.Context, c *sql.Conn) (problem, err error) {
	done, err := readSchema(ctx, c)
	if err != nil {
		return nil, s.failed(err)
	}
	all, err := migrations.All()
	if err != nil {
		return nil, err
	}
	if problem := s.strangeMigrations(all, done); problem != nil {
		return problem, nil
	}
	var todo []string
	for _, m := range all {
		if _, ok := done[m.Version]; !ok {
			todo = append(todo, m.Name)
		}
	}
	if len(todo) > 0 {
		return s.pending("not done yet: " + strings.Join(todo, ", ")), nil
	}
	return nil, nil
}

// strangeMigrations is about migrations that this build does not know as they
// were done.
func (s *shard) strangeMigrations(all []migrations.Migration, done map[int]migration) error {
	for version, m := range done {
		if version < 1 || version > len(all) {
			return refuse(checkpoint.ReasonMigrationsPending, s.name,
				fmt.Sprintf("migration %s was done, which this build does not know: a newer build was here", m.name), "run a build that is not older than the tables")
		}
		if known := all[version-1]; m.name != known.Name || m.checksum != known.Checksum {
			return refuse(checkpoint.ReasonMigrationsPending, s.name,
				fmt.Sprintf("migration %d was done as %s with checksum %x, this build has %s with %x", version, m.name, m.checksum[:4], known.Name, known.Checksum[:4]),
				"run the build that made the tables, or repair billing_schema if it was changed by hand")
		}
	}
	return nil
}

// migration is a row of billing_schema.
type migration struct {
	name     string
	checksum [32]byte
}

func readSchema(ctx context.Context, c *sql.Conn) (done map[int]migration, err error) {
	rows, err := c.QueryContext(ctx, "SELECT version, name, checksum FROM billing_schema")
	if err != nil {
		return nil, fmt.Errorf("read billing_schema: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	done = make(map[int]migration)
	for rows.Next() {
		var version int
		var m migration
		var checksum []byte
		if err := rows.Scan(&version, &m.name, &checksum); err != nil {
			return nil, fmt.Errorf("read billing_schema: %w", err)
		}
		copy(m.checksum[:], checksum)
		done[version] = m
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read billing_schema: %w", err)
	}
	return done, nil
}
