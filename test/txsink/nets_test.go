package txsink_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/event"
	"billing/internal/txsink"
)

// wantNet wants a net's decision, with nothing left of the branch.
func wantNet(t *testing.T, err error, name string) {
	t.Helper()
	var net *checkpoint.NetError
	if !errors.As(err, &net) || net.Net != name || !errors.Is(err, checkpoint.ErrRolledBack) {
		t.Errorf("got %v, want the net %s, rolled back", err, name)
	}
}

// wantBroken wants a broken invariant, which stops the lane, with nothing left of the branch.
func wantBroken(t *testing.T, err error, words ...string) {
	t.Helper()
	var broken *checkpoint.InvariantError
	if !errors.As(err, &broken) || !errors.Is(err, checkpoint.ErrRolledBack) {
		t.Fatalf("got %v, want an *InvariantError, rolled back", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func TestEpochIsBookedOnceWhateverTheLanesRowSays(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	l.book(small(l, "a", 0), 2)
	before := *l
	l.book(small(l, "b", 2), 2)
	// The lane's row is set back by hand; the compare-and-set sees nothing wrong.
	exec(t, 0, cfg, "UPDATE %s.billing_lane SET seq = 1, offset_next = 2")
	// Whichever row of the epoch meets its like first: one of the sums, or the epoch's own.
	repeats := before.epoch()
	repeats.Duplicate()
	for name, e := range map[string]*aggregate.Epoch{"billing_epoch_sum": small(&before, "c", 10), "billing_epoch": repeats} {
		before.incarnation++
		err := s.Shards()[0].Prepare(t.Context(), before.branch(e, 0, 20))
		wantNet(t, err, "epoch-key")
		if errors.Is(err, txsink.ErrCompareAndSet) || !strings.Contains(err.Error(), name+",") {
			t.Errorf("got %v, want it to be of %s", err, name)
		}
	}
}

func TestLedgerHasOneMessageAtAnOffset(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 4)
	account := on(0, "acme")
	for _, before := range []struct{ id string }{{"first"}, {"second"}} {
		e := l.epoch()
		e.Apply(charge(before.id, account, "1"), l.next)
		l.book(e, 1)
	}
	e := l.epoch()
	for i := range int64(700) { // more than one look-up
		e.Apply(charge(fmt.Sprint("new", i), account, "1"), 100+i)
	}
	other := charge("other", account, "1")
	e.Apply(other, 1) // where the ledger has "second"
	e.Apply(charge("first", account, "1"), 900)
	was := charge("second", account, "1")
	err := s.Shards()[0].Prepare(t.Context(), l.branch(e, 0, 2000))
	wantBroken(t, err, "usage.events/4", "offset 1,", "epoch 2", "epoch 3", fmt.Sprintf("%x", was.Key), fmt.Sprintf("%x", was.Content), fmt.Sprintf("%x", other.Key), fmt.Sprintf("%x", other.Content))
	var exist *checkpoint.RowsExistError
	if errors.As(err, &exist) {
		t.Errorf("%v: a broken invariant is no forgotten id", err)
	}
	if n := query[int](t, 0, cfg, "SELECT COUNT(*) FROM %s.billing_ledger"); n != 2 {
		t.Errorf("%d ledger rows, want the 2 of before", n)
	}
}

func TestEpochWithAnIDTwiceIsBroken(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 4)
	account := on(0, "acme")
	for name, c := range map[string]struct {
		id     string
		offset int64
		words  string
	}{
		"id":     {"a", 7, "the same id, at offsets 5 and 7"},
		"offset": {"b", 5, "two entries for offset 5"},
	} {
		e := l.epoch()
		e.Apply(charge("a", account, "1"), 5)
		e.Apply(charge(c.id, account, "1"), c.offset)
		t.Run(name, func(t *testing.T) {
			wantBroken(t, s.Shards()[0].Prepare(t.Context(), l.branch(e, 0, 10)), c.words)
		})
		l.incarnation++
	}
}

func TestEpochForOtherShardsIsBroken(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	e := small(l, "a", 0)
	e.Parts = append(e.Parts, e.Parts[1])
	wantBroken(t, s.Shards()[1].Prepare(t.Context(), l.branch(e, 1, 2)), "made for 3 shards, there are 2")
	b := l.branch(small(l, "a", 0), 1, 2)
	b.PrevDigest = make([]byte, 31)
	wantBroken(t, s.Shards()[1].Prepare(t.Context(), b), "a first epoch has no digest before it")
}

func TestKeptRecordThatIsThereAlreadyStopsTheLane(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	e := l.epoch()
	for offset := range int64(8) {
		e.Reject(&event.Record{Offset: offset, Value: []byte("x")}, event.ReasonInvalidJSON, "")
	}
	shard := 0
	if len(e.Parts[0].Rejects) < len(e.Parts[1].Rejects) {
		shard = 1
	}
	rejects := e.Parts[shard].Rejects
	there := rejects[len(rejects)-1].Offset
	exec(t, shard, cfg, fmt.Sprintf("INSERT INTO %%s.billing_rejects (kafka_topic, kafka_partition, kafka_offset, seq, kind, reason, detail, raw_size, raw_headers, value_hash)"+
		" VALUES ('usage.events', 0, %d, 1, 'rejected', 'invalid_json', '', 0, '', REPEAT('x', 32))", there))
	wantBroken(t, s.Shards()[shard].Prepare(t.Context(), l.branch(e, shard, 8)), "billing_rejects", fmt.Sprintf("refused at offset %d:", there), "there already")
}

// A check's violation does not say which row it is about.
func TestViolatedCheckNamesTheRecord(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 7)
	account := on(0, "acme")
	e := l.epoch()
	for i := range int64(900) {
		ev := charge(fmt.Sprint("v", i), account, "1")
		if i == 611 {
			ev.Amount = parse("-1") // no charge is negative
		}
		e.Apply(ev, 100+i)
	}
	err := s.Shards()[0].Prepare(t.Context(), l.branch(e, 0, 1000))
	if !errors.Is(err, checkpoint.ErrRolledBack) {
		t.Fatalf("got %v, want ErrRolledBack", err)
	}
	for _, want := range []string{"billing_ledger_signs", "topic usage.events, partition 7", "refused at offset 711:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if n := query[int](t, 0, cfg, "SELECT COUNT(*) FROM %s.billing_ledger"); n != 0 {
		t.Errorf("%d rows of the search are left", n)
	}
	// A total has many records: it is named, and the first of them.
	e = l.epoch()
	e.Apply(charge("ok", on(0, "other"), "1"), 0)
	e.Apply(charge("a", account, "1"), 1)
	for key, total := range e.Parts[0].Totals.All() {
		if key.Account == account {
			total.Credit.Add(parse("5")) // no sum of credits is positive
		}
	}
	l.incarnation++
	err = s.Shards()[0].Prepare(t.Context(), l.branch(e, 0, 2))
	if err == nil || !strings.Contains(err.Error(), "billing_total_signs") || !strings.Contains(err.Error(), fmt.Sprintf("account %q", account)) || !strings.Contains(err.Error(), "at offset 1:") {
		t.Errorf("got %v, want the account and offset 1", err)
	}
}

func TestForeignFormatIsWarnedAboutOnce(t *testing.T) {
	var out bytes.Buffer
	cfg := config(t)
	migrate(t, cfg)
	cfg.Logger = slog.New(slog.NewTextHandler(&out, nil))
	exec(t, 0, cfg, "CREATE TABLE %s.foreign_rows (id INT PRIMARY KEY)")
	for i, x := range []string{"X'736f6d65626f6479',X'',4711", "X'616e6f74686572',X'6231',4711"} { // of another application altogether
		c, err := shared[0].Root().Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, statement := range []string{"XA START " + x, fmt.Sprintf("INSERT INTO `%s`.foreign_rows VALUES (%d)", database(t, cfg.Shards[0].DSN), i), "XA END " + x, "XA PREPARE " + x} {
			if _, err := c.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		t.Cleanup(func() {
			if _, err := shared[0].Root().ExecContext(context.Background(), "XA ROLLBACK "+x); err != nil {
				t.Errorf("foreign branch %s: %v", x, err)
			}
		})
	}
	s := open(t, cfg)
	l := newLane(t, s, cfg, 0)
	if got := strings.Count(out.String(), "format_id=4711"); got != 1 || !strings.Contains(out.String(), "shard=east") || strings.Contains(out.String(), "shard=west") {
		t.Errorf("after the check, %d warnings: %s", got, out.String())
	}
	for range 3 {
		if got, err := s.Shards()[0].Prepared(t.Context(), l.prefix()); err != nil || len(got) != 0 {
			t.Errorf("prepared: %v, %v", got, err)
		}
	}
	if got := strings.Count(out.String(), "format_id=4711"); got != 1 {
		t.Errorf("%d warnings: %s", got, out.String())
	}
}

// All lanes sweep a shard at once: they leave the pool to others.
func TestSweepsShareConnections(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	if err := l.prepare(small(l, "a", 0), 2); err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	for range 64 {
		group.Go(func() error {
			got, err := s.Shards()[0].Prepared(t.Context(), l.prefix())
			if err == nil && (len(got) != 1 || got[0] != l.gtrid(1, 1)) {
				err = fmt.Errorf("prepared: %v", got)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if n := query[int](t, 0, cfg, "SELECT COUNT(*) FROM information_schema.processlist WHERE db = TRIM('`' FROM '%s')"); n == 0 || n > 3 {
		t.Errorf("%d connections are open after 64 sweeps, want no more than the 2 that ask and the one that prepared", n)
	}
	l.commit(2)
}
