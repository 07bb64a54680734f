package txsink_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"billing/internal/checkpoint"
	"billing/test/servers"
)

// TestStatementFails: the server refuses a statement in the middle of a branch, where rows of it are written already
// and MySQL would prepare the rest. Nothing of the epoch is left on that shard, prepared or visible; the other shard's
// branch goes too; and the same epoch goes through under the next incarnation when the cause is gone.
func TestStatementFails(t *testing.T) {
	const shard = 1
	const hold = "UPDATE %s.billing_total SET quantity = quantity + 1"
	const most = "99999999999999999999999999999999999999999999999999999.999999999999"
	for _, c := range []struct {
		name   string
		number uint16
		before string // done and committed, and undone behind it
		undo   string
		held   []string // done by somebody else's session, which then stays open
		during string   // done there when the branch waits for that session
		booked bool     // the epoch has an id that is booked
	}{
		{name: "lock wait", number: 1205, held: []string{hold}},
		// Of two that wait for each other InnoDB ends the one that has changed less.
		{name: "deadlock", number: 1213, before: "CREATE TABLE %s.weight (n INT PRIMARY KEY)", undo: "DROP TABLE %s.weight",
			held:   []string{"INSERT INTO %s.weight WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 900) SELECT n FROM s", hold},
			during: "UPDATE %s.billing_lane SET updated_at = NOW(6)"},
		{name: "out of range", number: 1264, before: "UPDATE %s.billing_total SET charge_amount = " + most, undo: "UPDATE %s.billing_total SET charge_amount = 2.5"},
		{name: "duplicate key", number: 1062, booked: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, cfg := fresh(t)
			l := newLane(t, s, cfg, 0)
			l.book(small(l, "a", 0), 2)
			seen := func(shard int) string {
				return query[string](t, shard, cfg, "SELECT CONCAT_WS(',', (SELECT CONCAT_WS(' ', incarnation, seq, offset_next) FROM %s.billing_lane),"+
					"(SELECT COUNT(*) FROM %s.billing_epoch), (SELECT COUNT(*) FROM %s.billing_epoch_sum), (SELECT COUNT(*) FROM %s.billing_ledger),"+
					"(SELECT CONCAT_WS(' ', charge_amount, entry_count) FROM %s.billing_total))")
			}
			if c.before != "" {
				exec(t, shard, cfg, c.before)
			}
			before := [2]string{seen(0), seen(1)}
			tx, err := shared[shard].Root().BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }() // where the test has failed
			other := func(statement string) {
				t.Helper()
				if _, err := tx.ExecContext(t.Context(), fmt.Sprintf(statement, "`"+database(t, cfg.Shards[shard].DSN)+"`")); err != nil {
					t.Fatalf("%s: %v", statement, err)
				}
			}
			for _, statement := range c.held {
				other(statement)
			}

			e, records := small(l, "b", 2), int64(2)
			if c.booked {
				e.Apply(charge("a1", on(shard, "acme"), "2.50"), 4)
				records++
			}
			if err := s.Shards()[0].Prepare(t.Context(), l.branch(e, 0, records)); err != nil {
				t.Fatal(err)
			}
			result := make(chan error, 1) // the burst's one answer
			b := l.branch(e, shard, records)
			go func() { result <- s.Shards()[shard].Prepare(context.WithoutCancel(t.Context()), b) }()
			if c.during != "" {
				servers.Eventually(t, 30*time.Second, func() error {
					var id int64
					return shared[shard].Root().QueryRowContext(t.Context(),
						"SELECT id FROM information_schema.processlist WHERE db = ? AND info LIKE 'INSERT INTO billing_total%'", database(t, cfg.Shards[shard].DSN)).Scan(&id)
				})
				other(c.during)
			}
			err = <-result
			var exist *checkpoint.RowsExistError
			var answer *mysql.MySQLError
			switch {
			case c.booked:
				if !errors.As(err, &exist) || len(exist.Entries) != 1 {
					t.Errorf("got %v, want the one row that exists", err)
				}
			case !errors.Is(err, checkpoint.ErrRolledBack) || !errors.As(err, &answer) || answer.Number != c.number:
				t.Errorf("got %v, want error %d and that nothing is left", err, c.number)
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			if got, err := s.Shards()[shard].Prepared(t.Context(), l.prefix()); err != nil || len(got) != 0 {
				t.Errorf("prepared: %v, %v", got, err)
			}
			if err := s.Shards()[0].Rollback(t.Context(), l.gtrid(1, 2)); err != nil {
				t.Error(err)
			}
			if now := [2]string{seen(0), seen(1)}; now != before {
				t.Errorf("the shards had %q and have %q", before, now)
			}

			if c.undo != "" {
				exec(t, shard, cfg, c.undo)
			}
			l.incarnation = 2
			l.book(small(l, "b", 2), 2)
			for i := range 2 {
				if got, want := seen(i), "2 2 4,2,2,2,5.000000000000 2"; got != want {
					t.Errorf("shard %d has %q, want %q", i, got, want)
				}
			}
		})
	}
}
