package txsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"billing/internal/checkpoint"
	"billing/migrations"
)

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

// tablesProblems says what is wrong with the tables as they are. It sees those on
// which the user has any right.
func (s *shard) tablesProblems(ctx context.Context, c *sql.Conn) (problems []error, err error) {
	rows, err := c.QueryContext(ctx, "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'billing\\_%' AND engine IS NOT NULL")
	if err != nil {
		return nil, fmt.Errorf("list the tables: %w", err)
	}
	defer rows.Close()
	engines := make(map[string]string)
	for rows.Next() {
		var name, engine string
		if err := rows.Scan(&name, &engine); err != nil {
			return nil, fmt.Errorf("list the tables: %w", err)
		}
		engines[name] = engine
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list the tables: %w", err)
	}
	for _, name := range migrations.Tables {
		if engine, ok := engines[name]; ok && !strings.EqualFold(engine, "InnoDB") {
			problems = append(problems, refuse(checkpoint.ReasonShardUnfit, s.name,
				fmt.Sprintf("table %s is %s, which knows no transactions", name, engine), "ALTER TABLE "+name+" ENGINE = InnoDB"))
		}
	}
	keys, err := s.keysProblems(ctx, c, engines)
	if err != nil {
		return nil, fmt.Errorf("list the unique keys: %w", err)
	}
	return append(problems, keys...), nil
}

// keysProblems is about unique keys; tables are those that are seen.
func (s *shard) keysProblems(ctx context.Context, c *sql.Conn, tables map[string]string) (problems []error, err error) {
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
			if tables[table] != "" && !there[table+": "+columns] {
				problems = append(problems, refuse(checkpoint.ReasonShardUnfit, s.name,
					fmt.Sprintf("table %s has no unique key on (%s)", table, columns), "ALTER TABLE "+table+" ADD UNIQUE KEY ("+columns+")"))
			}
		}
	}
	return problems, nil
}

// checkSchema compares the tables and the migrations that are done with those of
// this build. known says that they are the same. A table that the user may not
// see is not taken for one that is missing.
func (s *shard) checkSchema(ctx context.Context, c *sql.Conn, r *rights, f *seen) (known bool, err error) {
	var missing []string
	for _, name := range slices.Concat(migrations.Tables, migrations.Views) {
		if r.absent[name] {
			missing = append(missing, name)
		}
	}
	if !slices.ContainsFunc(migrations.Tables, func(name string) bool { return !r.absent[name] }) {
		f.add(s.neverMigrated())
		return false, nil
	}
	var pending []string
	if len(missing) > 0 {
		pending = append(pending, "missing: "+strings.Join(missing, ", "))
	}
	if !r.absent["billing_schema"] && !r.lack("SELECT", "billing_schema") {
		done, err := readSchema(ctx, c)
		if err != nil {
			return false, err
		}
		all, err := migrations.All()
		if err != nil {
			return false, err
		}
		strange := s.strangeMigrations(all, done)
		f.add(strange...)
		var todo []string
		for _, m := range all {
			if _, ok := done[m.Version]; !ok {
				todo = append(todo, m.Name)
			}
		}
		if len(todo) > 0 {
			pending = append(pending, "not done yet: "+strings.Join(todo, ", "))
		}
		known = len(strange) == 0
	}
	if len(pending) > 0 {
		f.add(s.pending(strings.Join(pending, "; ")))
		known = false
	}
	return known, nil
}

// strangeMigrations are about migrations that this build does not know as they
// were done.
func (s *shard) strangeMigrations(all []migrations.Migration, done map[int]migration) (problems []error) {
	for _, version := range slices.Sorted(maps.Keys(done)) {
		m := done[version]
		if version < 1 || version > len(all) {
			problems = append(problems, refuse(checkpoint.ReasonMigrationsPending, s.name,
				fmt.Sprintf("migration %s was done, which this build does not know: a newer build was here", m.name), "run a build that is not older than the tables"))
		} else if known := all[version-1]; m.name != known.Name || m.checksum != known.Checksum {
			problems = append(problems, refuse(checkpoint.ReasonMigrationsPending, s.name,
				fmt.Sprintf("migration %d was done as %s with checksum %x, this build has %s with %x", version, m.name, m.checksum[:4], known.Name, known.Checksum[:4]),
				"run the build that made the tables, or repair billing_schema if it was changed by hand"))
		}
	}
	return problems
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
