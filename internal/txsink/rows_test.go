package txsink

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/event"
)

// recorder answers statements as MySQL does, and keeps them.
type recorder struct {
	statements []string
	affected   func(rows int) int64
	err        error
}

func (r *recorder) exec(_ context.Context, sql string) (int64, error) {
	r.statements = append(r.statements, sql)
	return r.affected(rowsOf(sql)), r.err
}

// rowsOf counts the rows behind VALUES; values never have parentheses.
func rowsOf(sql string) int {
	_, values, _ := strings.Cut(sql, " VALUES ")
	values, _, _ = strings.Cut(values, " AS new ")
	return strings.Count(values, "(")
}

func newWriter(r *recorder) *writer {
	return &writer{statement: statement{hash: sha256.New()}, exec: r.exec,
		branch: &checkpoint.Branch{Lane: checkpoint.Lane{Topic: "orders", Partition: 3}, Seq: 9, OffsetFrom: 10, OffsetNext: 20_010}}
}

// charges are events for the ledger, at the offsets from firstOffset on.
func charges(n, source int) []event.Event {
	events := make([]event.Event, n)
	for i := range events {
		events[i] = event.Event{ID: fmt.Append(nil, "id", i), Source: []byte(strings.Repeat("s", source)),
			Account: []byte("acme"), Currency: "EUR", Type: event.Charge}
	}
	return events
}

const firstOffset = 10

// booked are the ledger's rows of the events from number first on.
func booked(events []event.Event, first int) *aggregate.Rows[aggregate.LedgerRow] {
	e := aggregate.New(aggregate.Config{Shards: 1, Window: time.Hour, Ledger: true})
	for i := range events {
		e.Apply(&events[i], int64(firstOffset+first+i))
	}
	return &e.Parts[0].Ledger
}

// totalsOf is a total of each account with one entry.
func totalsOf(accounts ...string) *aggregate.Totals {
	e := aggregate.New(aggregate.Config{Shards: 1, Window: time.Hour})
	for _, a := range accounts {
		e.Apply(&event.Event{Account: []byte(a), Currency: "EUR", Type: event.Charge}, 0)
	}
	return &e.Parts[0].Totals
}

// Rows are split over statements without losing, doubling or reordering one, and
// the digest does not depend on where they are split.
func TestStatementsAreBounded(t *testing.T) {
	exact := func(rows int) int64 { return int64(rows) }
	for _, source := range []int{1, 500, 20_000, maxStatement} {
		rows := charges(1000, source)
		if source > 1000 {
			rows = rows[:20]
		}
		r := &recorder{affected: exact}
		w := newWriter(r)
		if err := w.ledger(t.Context(), booked(rows, 0)); err != nil {
			t.Fatal(err)
		}
		next := 0
		for _, sql := range r.statements {
			n := rowsOf(sql)
			if len(sql) > maxStatement && n > 1 {
				t.Errorf("source of %d bytes: a statement of %d bytes with %d rows", source, len(sql), n)
			}
			if !strings.HasPrefix(sql, "INSERT INTO billing_ledger (") || !strings.HasSuffix(sql, ")") || strings.Contains(sql, ",,") || strings.Contains(sql, ")(") {
				t.Errorf("statement %.60q...%q", sql, sql[len(sql)-20:])
			}
			for range n {
				if id := hexLiteral(fmt.Sprint("id", next)); strings.Count(sql, ","+id+",") != 1 {
					t.Fatalf("source of %d bytes: row %d is not in its place", source, next)
				}
				next++
			}
		}
		if next != len(rows) {
			t.Errorf("source of %d bytes: %d rows of %d are sent", source, next, len(rows))
		}
		one := newWriter(&recorder{affected: exact})
		for i := range rows {
			if err := one.ledger(t.Context(), booked(rows[i:i+1], i)); err != nil {
				t.Fatal(err)
			}
		}
		if string(one.hash.Sum(nil)) != string(w.hash.Sum(nil)) {
			t.Errorf("source of %d bytes: the digest depends on the statements", source)
		}
	}
}

func TestNoRowsNoStatement(t *testing.T) {
	r := &recorder{affected: func(int) int64 { return 0 }}
	w := newWriter(r)
	for name, err := range map[string]error{
		"ledger": w.ledger(t.Context(), booked(nil, 0)), "rejects": w.rejects(t.Context(), nil), "totals": w.totals(t.Context(), totalsOf(), nil), "sums": w.sums(t.Context(), nil),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(r.statements) != 0 {
		t.Errorf("sent: %q", r.statements)
	}
}

func TestTotalsGoInKeyOrder(t *testing.T) {
	r := &recorder{affected: func(rows int) int64 { return 2 * int64(rows) }}
	w := newWriter(r)
	var accounts []string
	for i := range 2000 {
		accounts = append(accounts, fmt.Sprint("a", i))
	}
	if err := w.totals(t.Context(), totalsOf(accounts...), nil); err != nil {
		t.Fatal(err)
	}
	last, rows := "", 0
	for _, sql := range r.statements {
		for _, row := range strings.Split(sql, "(")[2:] {
			if key, _, ok := strings.Cut(row, ","); ok && strings.HasPrefix(key, "X'") {
				if key <= last {
					t.Fatalf("key %s behind %s", key, last)
				}
				last = key
				rows++
			}
		}
	}
	if rows != len(accounts) || len(r.statements) < 2 {
		t.Errorf("%d rows in %d statements, want %d in several", rows, len(r.statements), len(accounts))
	}
}

func TestAffectedRowsAreChecked(t *testing.T) {
	totals := totalsOf("a", "b")
	for affected, ok := range map[int64]bool{0: false, 1: false, 2: true, 3: true, 4: true, 5: false} {
		w := newWriter(&recorder{affected: func(int) int64 { return affected }})
		if err := w.totals(t.Context(), totals, nil); (err == nil) != ok {
			t.Errorf("%d rows changed by two totals: %v", affected, err)
		}
		if err := w.ledger(t.Context(), booked(charges(2, 1), 0)); (err == nil) != (affected == 2) {
			t.Errorf("%d rows changed by two ledger rows: %v", affected, err)
		}
	}
}

func TestRefusedRowIsNamedAcrossStatements(t *testing.T) {
	r := &recorder{affected: func(rows int) int64 { return int64(rows) }}
	if err := newWriter(r).ledger(t.Context(), booked(charges(1000, 500), 0)); err != nil {
		t.Fatal(err)
	}
	first := rowsOf(r.statements[0])
	// The second statement's third row.
	n := 0
	w := newWriter(r)
	w.exec = func(_ context.Context, sql string) (int64, error) {
		if n++; n == 2 {
			return 0, &mysql.MySQLError{Number: 1264, Message: "Out of range value for column 'amount' at row 3"}
		}
		return int64(rowsOf(sql)), nil
	}
	err := w.ledger(t.Context(), booked(charges(1000, 500), 0))
	want := fmt.Sprintf("insert into billing_ledger, topic orders, partition 3, offsets 10 to 20009, refused at offset %d: ", 10+first+2)
	if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, errLedgerRows) {
		t.Errorf("got %v, want %s", err, want)
	}
	w.exec = func(context.Context, string) (int64, error) { return 0, mysql.ErrInvalidConn }
	if err := w.ledger(t.Context(), booked(charges(1, 1), 0)); err == nil || strings.Contains(err.Error(), "refused at") {
		t.Errorf("a lost connection: %v", err)
	}
}

// refusing answers as MySQL does to statements with a row that a check refuses: without the row's number.
func refusing(number uint16, row string) func(context.Context, string) (int64, error) {
	return func(_ context.Context, sql string) (int64, error) {
		if strings.Contains(sql, row) {
			return 0, &mysql.MySQLError{Number: number, Message: "Check constraint 'some_check' is violated."}
		}
		return int64(rowsOf(sql)), nil
	}
}

func TestRefusedRowIsSearchedWhereMySQLDoesNotNameIt(t *testing.T) {
	rows := charges(700, 500)
	for _, bad := range []int{0, 1, 2, 3, 100, 101, 102, 103, 350, 697, 698, 699} {
		for _, number := range rowless {
			w := newWriter(&recorder{})
			w.exec = refusing(number, hexLiteral(rows[bad].ID))
			err := w.ledger(t.Context(), booked(rows, 0))
			if want := fmt.Sprintf("refused at offset %d: ", firstOffset+bad); err == nil || !strings.Contains(err.Error(), want) || !isAnswer(err, number) {
				t.Errorf("row %d, error %d: %v, want %q", bad, number, err, want)
			}
		}
	}
	// Other answers are not about a row, and a lost connection ends the search.
	for name, again := range map[string]error{
		"lock wait": &mysql.MySQLError{Number: 1205, Message: "Lock wait timeout exceeded"}, "lost": mysql.ErrInvalidConn,
	} {
		w := newWriter(&recorder{})
		sent := 0
		w.exec = func(context.Context, string) (int64, error) {
			if sent++; sent == 1 && name == "lost" {
				return 0, &mysql.MySQLError{Number: errCheckViolated, Message: "Check constraint 'some_check' is violated."}
			}
			return 0, again
		}
		err := w.ledger(t.Context(), booked(rows, 0))
		if err == nil || strings.Contains(err.Error(), "refused at") || sent > 2 {
			t.Errorf("%s: %v after %d statements", name, err, sent)
		}
	}
}

func TestRefusedTotalAndSumAreNamed(t *testing.T) {
	ledger := charges(3, 1)
	ledger[1].Account, ledger[2].Account = []byte("b"), []byte("b")
	w := newWriter(&recorder{})
	w.exec = refusing(errCheckViolated, hexLiteral("b"))
	err := w.totals(t.Context(), totalsOf("acme", "b", "b"), booked(ledger, 0))
	if want := `refused at the total of account "b", SKU "", unit "", currency EUR, window 1970-01-01 00:00:00, first added to at offset 11: `; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	w.exec = refusing(errCheckViolated, hexLiteral("JPY"))
	err = w.sums(t.Context(), map[string]*aggregate.CurrencySum{"EUR": {}, "JPY": {}, "USD": {}})
	if want := "offsets 10 to 20009, refused at the sums of currency JPY: "; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A writer is used for one lane after another, and every row has its own lane.
func TestWritersAreUsedForManyLanes(t *testing.T) {
	r := &recorder{affected: func(rows int) int64 { return int64(rows) }}
	w := newWriter(r)
	for _, lane := range []checkpoint.Lane{{}, {Topic: "orders", Partition: 3}, {Topic: "orders", Partition: 4}, {Topic: "refunds", Partition: 4}, {Topic: "orders", Partition: 3}} {
		w.branch.Lane = lane
		w.hash.Reset()
		if err := w.ledger(t.Context(), booked(charges(3, 1), 0)); err != nil {
			t.Fatal(err)
		}
		sql := r.statements[len(r.statements)-1]
		if want := fmt.Sprintf("(%s,%d,1", hexLiteral(lane.Topic), lane.Partition); strings.Count(sql, want) != 3 {
			t.Errorf("rows of %s: %s", lane, sql)
		}
		alone := newWriter(&recorder{affected: r.affected})
		alone.branch.Lane = lane
		if err := alone.ledger(t.Context(), booked(charges(3, 1), 0)); err != nil {
			t.Fatal(err)
		}
		if string(alone.hash.Sum(nil)) != string(w.hash.Sum(nil)) {
			t.Errorf("%s: the digest has another lane", lane)
		}
	}
	rows := booked(charges(1000, 1), 0)
	if err := w.ledger(t.Context(), rows); err != nil { // the buffers have their size now
		t.Fatal(err)
	}
	per := testing.AllocsPerRun(5, func() {
		r.statements = r.statements[:0]
		_ = w.ledger(t.Context(), rows)
	})
	if per > 200 {
		t.Errorf("%.0f allocations for 1000 rows", per)
	}
}
