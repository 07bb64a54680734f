package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// querier is a database, or a transaction in it.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// tableLines is every row of the service's tables in one database, a sorted line each.
func tableLines(t *testing.T, q querier) (lines []string) {
	t.Helper()
	for _, table := range column(t, q, "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND table_name LIKE 'billing\\_%'") {
		rows, err := q.QueryContext(t.Context(), "SELECT * FROM `"+table+"`")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		names, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		cells, into := make([]sql.RawBytes, len(names)), make([]any, len(names))
		for i := range cells {
			into[i] = &cells[i]
		}
		for rows.Next() {
			if err := rows.Scan(into...); err != nil {
				t.Fatal(err)
			}
			var line strings.Builder
			fmt.Fprintf(&line, "%s:", table)
			for i, c := range cells {
				fmt.Fprintf(&line, " %s=%q", names[i], []byte(c))
			}
			lines = append(lines, line.String())
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if len(lines) == 0 {
		t.Fatal("the service's tables are empty: not even its own description is there")
	}
	slices.Sort(lines)
	return lines
}

// tables is every row of the service's tables, a sorted line each, by shard.
func (w *world) tables() (lines [][]string) {
	w.t.Helper()
	for _, db := range w.shards {
		lines = append(lines, tableLines(w.t, db))
	}
	return lines
}

// difference are the lines that only one of two sorted lists has.
func difference(before, now []string) (diff []string) {
	for _, l := range before {
		if _, ok := slices.BinarySearch(now, l); !ok {
			diff = append(diff, "- "+l)
		}
	}
	for _, l := range now {
		if _, ok := slices.BinarySearch(before, l); !ok {
			diff = append(diff, "+ "+l)
		}
	}
	return diff
}

// column is the first column of a query's rows.
func column(t *testing.T, q querier, query string, args ...any) (values []string) {
	t.Helper()
	rows, err := q.QueryContext(t.Context(), query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			t.Fatal(err)
		}
		values = append(values, v)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return values
}

// TestRowsAreNotSeenBeforeTheDecision: while an epoch is held anywhere between
// its prepare and phase 2, other sessions of MySQL see nothing of it on any
// shard; when it goes on they see all of it.
func TestRowsAreNotSeenBeforeTheDecision(t *testing.T) {
	t.Parallel()
	for _, point := range []string{
		"all-prepared:1",
		"before-end-txn:1",
		"end-txn-sent:2", // the takeover's is the first
		"decided:1",
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			first := w.run("")
			w.charge(0, 100)
			w.waitAccounted()
			first.stop()
			before := w.tables()

			p := w.run(point + ":hold")
			w.charge(0, 100)
			p.mustHoldAtFailpoint()
			all(t, "prepared", w.prepared(), 1)
			levels := []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead}
			for _, level := range levels {
				for i, db := range w.shards {
					if diff := difference(before[i], isolated(t, db, level)); len(diff) > 0 {
						t.Errorf("%s sees rows of the epoch on shard %d:\n%s", level, i, strings.Join(diff, "\n"))
					}
				}
			}

			p.signal(syscall.SIGUSR1)
			w.waitAccounted()
			now := w.tables()
			for _, level := range levels {
				for i, db := range w.shards {
					seen := isolated(t, db, level)
					if diff := difference(now[i], seen); len(diff) > 0 || slices.Equal(seen, before[i]) {
						t.Errorf("%s does not see what was committed on shard %d:\n%s", level, i, strings.Join(diff, "\n"))
					}
				}
			}
			p.stop()
			w.exact()
		})
	}
}

// isolated is tableLines as a transaction of that isolation level sees them.
func isolated(t *testing.T, db *sql.DB, level sql.IsolationLevel) []string {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }() // it has only read
	return tableLines(t, tx)
}
