// Package migrations carries the tables' definitions: numbered SQL files that
// run in order on every shard.
//
// A file never changes once a release had it: its checksum is recorded on the
// shards. MySQL commits each DDL statement by itself, so a migration that was
// broken off is run again from its first statement, and every statement must
// be one that can be: IF NOT EXISTS, OR REPLACE, or the only statement of its
// file and repeatable.
package migrations

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
)

//go:embed *.sql
var files embed.FS

// Migration is one numbered file.
type Migration struct {
	Version  int      // from 1, without gaps
	Name     string   // of the file
	SQL      string   // statements, each ended by a semicolon
	Checksum [32]byte // SHA-256 of SQL
}

// All returns the migrations in order. It fails when the files that the build
// carries are not numbered from 0001 without gaps.
func All() ([]Migration, error) {
	names, err := fs.Glob(files, "*.sql") // sorted
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	all := make([]Migration, 0, len(names))
	for i, name := range names {
		if len(name) < 5 || name[4] != '_' {
			return nil, fmt.Errorf("migrations: %s: want a name like 0001_what.sql", name)
		}
		version, err := strconv.Atoi(name[:4])
		if err != nil || version != i+1 {
			return nil, fmt.Errorf("migrations: %s: want number %04d", name, i+1)
		}
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("migrations: %w", err)
		}
		all = append(all, Migration{Version: version, Name: name, SQL: string(text), Checksum: sha256.Sum256(text)})
	}
	return all, nil
}

// Tables are the base tables that the migrations make, and Views the views.
var (
	Tables = []string{
		"billing_schema", "billing_meta", "billing_lane", "billing_epoch", "billing_epoch_sum",
		"billing_total", "billing_ledger", "billing_rejects",
	}
	Views = []string{"billing_totals"}
)
