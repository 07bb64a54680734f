package e2e

import (
	"database/sql"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestVerify: what the service has written is right, beside it and after it.
func TestVerify(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(2))
	s := w.run("")
	for p := range int32(2) {
		for range 3 {
			ids := w.charge(p, 200)
			w.again(p, ids[:20])
			var bad []*kgo.Record
			for range 10 {
				bad = append(bad, &kgo.Record{Partition: p, Value: []byte("not json " + uuid.NewString()), Headers: structured})
				account, _ := chargeOf(ids[1])
				bad = append(bad, &kgo.Record{Partition: p, Value: message(ids[1], account, "77"), Headers: structured})
			}
			w.produce(bad...)
			w.command("verify").mustExit(0)
			w.waitAccounted()
		}
	}
	s.stop()
	v := w.command("verify")
	v.mustExit(0)
	if err := contains(v.output(), "ok: no difference, the decisions in Kafka agree\n"); err != nil {
		t.Error(err, v.output())
	}
	w.exact()
}

// TestWasItBilled: the statement that docs/watching.md gives for an event's id
// finds it, by its index.
func TestWasItBilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(2))
	s := w.run("")
	ids := w.charge(1, 20)
	w.waitAccounted()
	s.stop()
	doc, err := os.ReadFile("../../docs/watching.md")
	if err != nil {
		t.Fatal(err)
	}
	_, statement, _ := strings.Cut(string(doc), "SET @source")
	set, statement, found := strings.Cut(statement, ";\n")
	statement, _, ended := strings.Cut(statement, ";\n```")
	if !found || !ended {
		t.Fatal("docs/watching.md has no such statement any more")
	}
	set = "SET @source" + strings.NewReplacer("/meters/eu-1", "/e2e", "9c0b4a52-7d0e-4c55-8a0f-2b0c8e0e6d11", ids[7]).Replace(set)
	statement = strings.NewReplacer("'billing.events'", "'"+w.topic+"'", "12 - 1", "2 - 1").Replace(statement)
	rows := 0
	for i, db := range w.shards {
		c, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.ExecContext(t.Context(), set); err != nil {
			t.Fatalf("%s: %v", set, err)
		}
		var partition, offset int
		var account, amount, currency, window string
		switch err := c.QueryRowContext(t.Context(), statement).Scan(&partition, &offset, &account, &amount, &currency, &window); {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			t.Fatalf("shard %d: %s: %v", i, statement, err)
		default:
			if rows++; partition != 1 || offset != 7 {
				t.Errorf("shard %d: partition %d, offset %d", i, partition, offset)
			}
		}
	}
	if rows != 1 {
		t.Errorf("%d rows for an event that is booked once", rows)
	}
}
