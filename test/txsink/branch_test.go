package txsink_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/event"
	"billing/internal/txsink"
	"billing/test/servers"
)

// small is an epoch with one charge on each shard, at offsets from and from+1.
func small(l *lane, tag string, from int64) *aggregate.Epoch {
	e := l.epoch()
	for i := range 2 {
		e.Apply(charge(fmt.Sprint(tag, i), on(i, "acme"), "2.50"), from+int64(i))
	}
	return e
}

func TestBranchIsInvisibleUntilCommitted(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 3)
	if err := l.prepare(small(l, "a", 0), 2); err != nil {
		t.Fatal(err)
	}
	g := l.gtrid(1, 1)
	for i, sh := range s.Shards() {
		for _, table := range []string{"billing_lane", "billing_epoch", "billing_epoch_sum", "billing_total", "billing_ledger", "billing_rejects"} {
			if n := query[int](t, i, cfg, "SELECT COUNT(*) FROM %s."+table); n != 0 {
				t.Errorf("shard %d shows %d rows of %s before the commit", i, n, table)
			}
		}
		if _, ok, err := sh.EpochRow(t.Context(), l.id, 1); ok || err != nil {
			t.Errorf("epoch row before the commit: %t, %v", ok, err)
		}
		got, err := sh.Prepared(t.Context(), l.prefix())
		if err != nil || !slices.Equal(got, []checkpoint.GTRID{g}) {
			t.Errorf("prepared on shard %d: %v, %v, want %s", i, got, err, g)
		}
	}
	l.commit(2)
	for i, sh := range s.Shards() {
		if n := query[int](t, i, cfg, "SELECT COUNT(*) FROM %s.billing_ledger"); n != 1 {
			t.Errorf("shard %d has %d ledger rows, want 1", i, n)
		}
		row, ok, err := sh.LaneRow(t.Context(), l.id)
		if want := (checkpoint.LaneRow{Incarnation: 1, Seq: 1, Next: 2}); err != nil || !ok || row != want {
			t.Errorf("lane row: %+v, %t, %v, want %+v", row, ok, err, want)
		}
		if err := sh.Commit(t.Context(), g); !errors.Is(err, checkpoint.ErrNotListed) {
			t.Errorf("second commit: %v, want ErrNotListed", err)
		}
		if err := sh.Rollback(t.Context(), g); !errors.Is(err, checkpoint.ErrNotListed) {
			t.Errorf("rollback after the commit: %v, want ErrNotListed", err)
		}
	}
}

func TestRolledBackBranchLeavesNothing(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	l.book(small(l, "a", 0), 2)
	if err := l.prepare(small(l, "b", 2), 2); err != nil {
		t.Fatal(err)
	}
	for i, sh := range s.Shards() {
		if err := sh.Rollback(t.Context(), l.gtrid(1, 2)); err != nil {
			t.Fatal(err)
		}
		got := query[string](t, i, cfg, "SELECT CONCAT_WS(',', (SELECT seq FROM %s.billing_lane), (SELECT COUNT(*) FROM %s.billing_ledger), (SELECT net_amount FROM %s.billing_totals))")
		if want := "1,1,2.500000000000"; got != want {
			t.Errorf("shard %d after the rollback: %s, want %s", i, got, want)
		}
	}
	// The same ids again, under another incarnation: the epoch was never there.
	l.incarnation = 2
	l.book(small(l, "b", 2), 2)
	if got := query[string](t, 0, cfg, "SELECT net_amount FROM %s.billing_totals"); got != "5.000000000000" {
		t.Errorf("total: %s", got)
	}
}

func TestCompareAndSetRefusesAnyOtherLaneRow(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	l.incarnation = 5
	l.book(small(l, "a", 0), 2)
	sh := s.Shards()[0]
	for name, change := range map[string]func(*checkpoint.Branch){
		"first epoch again":    func(b *checkpoint.Branch) { b.Seq, b.PrevDigest = 1, nil },
		"epoch left out":       func(b *checkpoint.Branch) { b.Seq = 3 },
		"smaller incarnation":  func(b *checkpoint.Branch) { b.Incarnation = 4 },
		"hole in the offsets":  func(b *checkpoint.Branch) { b.OffsetFrom++ },
		"topic made anew":      func(b *checkpoint.Branch) { b.TopicID[0]++ },
		"lane that has no row": func(b *checkpoint.Branch) { b.Lane.Partition = 9 },
	} {
		b := l.branch(small(l, "b", 2), 0, 3)
		change(b)
		b.GTRID = l.gtrid(b.Incarnation, b.Seq)
		err := sh.Prepare(t.Context(), b)
		if !errors.Is(err, txsink.ErrCompareAndSet) || !errors.Is(err, checkpoint.ErrRolledBack) {
			t.Errorf("%s: %v, want ErrCompareAndSet and ErrRolledBack", name, err)
		}
		wantNet(t, err, "compare-and-set")
	}
	if got := shared[0].XARecover(t); slices.ContainsFunc(got, func(x string) bool { return strings.HasPrefix(x, fmt.Sprintf("%x", l.prefix())) }) {
		t.Errorf("left prepared: %v", got)
	}
	l.incarnation = 6
	l.book(small(l, "b", 2), 2)
}

func TestLedgerIsTheLastLineOfDefence(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	l.book(small(l, "a", 0), 2)
	e := l.epoch()
	account := on(1, "acme")
	for i := range 1200 { // more than one look-up
		e.Apply(charge(fmt.Sprint("new", i), account, "1"), 10+int64(i))
	}
	// The same id, told later with a larger time: it must be remembered under that one, and so with a smaller one.
	old := charge("a1", account, "2.50")
	again := charge("a1", account, "3")
	again.Time += 5
	e.Apply(again, 5000)
	err := s.Shards()[1].Prepare(t.Context(), l.branch(e, 1, 6000))
	var exist *checkpoint.RowsExistError
	if !errors.As(err, &exist) {
		t.Fatalf("got %v, want *RowsExistError", err)
	}
	want := []checkpoint.ExistingRow{{Key: old.Key, Content: old.Content, Offset: 1, Time: again.Time}}
	if exist.Shard != "west" || !slices.Equal(exist.Entries, want) {
		t.Errorf("got %+v, want %+v on west", exist, want)
	}
	e = l.epoch()
	again.Time = old.Time - 5
	e.Apply(again, 5000)
	l.incarnation++
	want[0].Time = old.Time
	if err := s.Shards()[1].Prepare(t.Context(), l.branch(e, 1, 6000)); !errors.As(err, &exist) || !slices.Equal(exist.Entries, want) {
		t.Errorf("got %v, %+v, want %+v", err, exist, want)
	}
	if n := query[int](t, 1, cfg, "SELECT COUNT(*) FROM %s.billing_ledger"); n != 1 {
		t.Errorf("%d ledger rows, want the 1 of before", n)
	}
}

func TestRefusedValueNamesTheRecord(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 7)
	e := l.epoch()
	account := on(0, "acme")
	for i := range 5 {
		ev := charge(fmt.Sprint("v", i), account, "1")
		if i == 3 {
			ev.Source = []byte(strings.Repeat("s", 513))
		}
		e.Apply(ev, 100+int64(i))
	}
	err := s.Shards()[0].Prepare(t.Context(), l.branch(e, 0, 200))
	if !errors.Is(err, checkpoint.ErrRolledBack) {
		t.Fatalf("got %v, want ErrRolledBack", err)
	}
	for _, want := range []string{"usage.events", "partition 7", "offsets 0 to 199", "offset 103", "source"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %q", err, want)
		}
	}
	wantBroken(t, s.Shards()[0].Prepare(t.Context(), &checkpoint.Branch{Lane: l.id, Contents: "not an epoch"}), "contents are string")
}

// blocked starts an epoch's burst on a shard that waits for the lane's row, which the test holds. It returns the
// burst's connection; release lets the row go.
func blocked(t *testing.T, l *lane, cfg txsink.Config, shard int) (id int64, result chan error, release func()) {
	t.Helper()
	tx, err := shared[shard].Root().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var seq int
	if err := tx.QueryRowContext(t.Context(), "SELECT seq FROM `"+database(t, cfg.Shards[shard].DSN)+"`.billing_lane FOR UPDATE").Scan(&seq); err != nil {
		t.Fatal(err)
	}
	result = make(chan error, 1) // the burst's one answer
	b := l.branch(small(l, "blocked", l.next), shard, 2)
	go func() { result <- l.sink.Shards()[shard].Prepare(context.WithoutCancel(t.Context()), b) }()
	servers.Eventually(t, 30*time.Second, func() error {
		return shared[shard].Root().QueryRowContext(t.Context(),
			"SELECT id FROM information_schema.processlist WHERE db = ? AND info LIKE 'UPDATE billing_lane%'", database(t, cfg.Shards[shard].DSN)).Scan(&id)
	})
	return id, result, func() {
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
	}
}

func TestKilledConnectionLeavesNothingPrepared(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	l.book(small(l, "a", 0), 2)
	id, result, release := blocked(t, l, cfg, 0)
	if _, err := shared[0].Root().ExecContext(t.Context(), fmt.Sprint("KILL ", id)); err != nil {
		t.Fatal(err)
	}
	err := <-result
	release()
	if err == nil {
		t.Fatal("a burst whose connection was killed has prepared")
	}
	if got, err := s.Shards()[0].Prepared(t.Context(), l.prefix()); err != nil || len(got) != 0 {
		t.Errorf("prepared: %v, %v", got, err)
	}
	l.incarnation++
	l.book(small(l, "b", 2), 2)
}

func TestLockWaitEndsTheBranch(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	l.book(small(l, "a", 0), 2)
	_, result, release := blocked(t, l, cfg, 0)
	err := <-result // 1205 after LockWait
	release()
	if !errors.Is(err, checkpoint.ErrRolledBack) || !strings.Contains(err.Error(), "1205") {
		t.Errorf("got %v, want 1205 and ErrRolledBack", err)
	}
}

func TestCancelledBurstIsEndedByTheNextSession(t *testing.T) {
	s, cfg := fresh(t)
	cfg.LockWait = 20 * time.Second
	old := open(t, cfg) // an older process of the same job
	l := newLane(t, old, cfg, 0)
	l.book(small(l, "a", 0), 2)
	_, result, release := blocked(t, l, cfg, 0)

	young := newLane(t, s, cfg, 0)
	young.seq, young.next, young.digests, young.incarnation = l.seq, l.next, l.digests, 2
	if err := s.Shards()[0].EndOlder(t.Context(), l.id); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err == nil {
		t.Error("the older session's burst has prepared")
	} else if strings.Contains(err.Error(), "1205") { // that after LockWait it ended by itself
		t.Errorf("the older session's burst was not ended: %v", err)
	}
	release()
	if got, err := s.Shards()[0].Prepared(t.Context(), l.prefix()); err != nil || len(got) != 0 {
		t.Errorf("prepared: %v, %v", got, err)
	}
	young.book(small(young, "b", 2), 2)

	// Other lanes' bursts and free locks are left alone.
	if err := s.Shards()[0].EndOlder(t.Context(), checkpoint.Lane{Topic: "usage.events", Partition: 1}); err != nil {
		t.Error(err)
	}
}

func TestContextEndsTheWait(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	l.book(small(l, "a", 0), 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.Shards()[0].Prepare(ctx, l.branch(small(l, "b", 2), 0, 2))
	if !errors.Is(err, context.Canceled) || !errors.Is(err, checkpoint.ErrRolledBack) {
		t.Errorf("prepare with a context that has ended: %v", err)
	}
	if err := s.Shards()[0].Commit(ctx, l.gtrid(1, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("commit with a context that has ended: %v", err)
	}
}

func TestPreparedBranchIsDetachedAndSurvivesACrash(t *testing.T) {
	m := servers.MySQL(t)
	cfg := config(t)
	cfg.Shards = cfg.Shards[:1]
	cfg.Shards[0].DSN = m.NewDatabase(t)
	migrate(t, cfg)
	s := open(t, cfg)
	sh := s.Shards()[0]
	l := newLane(t, s, cfg, 0)
	e := l.epoch()
	e.Apply(charge("a", "acme", "7"), 0)
	if err := sh.Prepare(t.Context(), l.branch(e, 0, 1)); err != nil {
		t.Fatal(err)
	}
	// Everything that prepared is gone: the process's connections, then the server.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s = open(t, cfg)
	sh = s.Shards()[0]
	got, err := sh.Prepared(t.Context(), l.prefix())
	if err != nil || !slices.Equal(got, []checkpoint.GTRID{l.gtrid(1, 1)}) {
		t.Fatalf("prepared after the crash: %v, %v", got, err)
	}
	if err := sh.Commit(t.Context(), got[0]); err != nil {
		t.Fatal(err)
	}
	// A connection that died while it was idle costs nothing.
	if err := m.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := sh.EpochRow(t.Context(), l.id, 1); err == nil {
		t.Error("a dead server has answered")
	}
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if row, ok, err := sh.EpochRow(t.Context(), l.id, 1); err != nil || !ok || row.GTRID != l.gtrid(1, 1) {
		t.Errorf("row after the second crash: %+v, %t, %v", row, ok, err)
	}
}

func TestConnectionsGoBackWithoutTheLanesLock(t *testing.T) {
	s, cfg := fresh(t)
	for p := range int32(4) {
		l := newLane(t, s, cfg, p)
		for i := range 3 {
			l.book(small(l, fmt.Sprint(p, "-", i), l.next), 2)
		}
	}
	// A burst that fails is rolled back, and leaves its lock on no connection either.
	l := newLane(t, s, cfg, 4)
	l.book(small(l, "twice", l.next), 2)
	var exist *checkpoint.RowsExistError
	if err := l.prepare(small(l, "twice", l.next), 2); !errors.As(err, &exist) {
		t.Fatalf("ids that the ledger has: %v", err)
	}
	for i := range shared {
		held := query[int](t, i, cfg, "SELECT COUNT(*) FROM performance_schema.metadata_locks WHERE object_type = 'USER LEVEL LOCK' AND object_name LIKE 'billing:%'")
		open := query[int](t, i, cfg, "SELECT COUNT(*) FROM information_schema.processlist WHERE db = TRIM('`' FROM '%s')")
		if held != 0 || open == 0 || open > 2 {
			t.Errorf("shard %d: %d lane locks are held, %d connections are open, want 0 and 1 or 2", i, held, open)
		}
	}
}

func TestForeignBranchesAreNotListed(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	if err := l.prepare(small(l, "a", 0), 2); err != nil {
		t.Fatal(err)
	}
	ours, other := l.gtrid(1, 1), l.gtrid(9, 1)
	db := database(t, cfg.Shards[0].DSN)
	exec(t, 0, cfg, "CREATE TABLE %s.foreign_rows (id INT PRIMARY KEY)")
	foreign := []string{
		fmt.Sprintf("X'%x',X'%x'", "somebody-else", "s0"),
		fmt.Sprintf("X'%x',X'%x'", string(ours), "s1"),    // another shard on the same server
		fmt.Sprintf("X'%x',X'%x',7", string(other), "s0"), // another formatID
		fmt.Sprintf("X'%x',X'%x'", string(l.gtrid(1, 1))[:20]+strings.Repeat("0", 44), "s0"),
		"X'00ff27',X''",
	}
	for i, x := range foreign {
		c, err := shared[0].Root().Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, statement := range []string{"XA START " + x, fmt.Sprintf("INSERT INTO `%s`.foreign_rows VALUES (%d)", db, i), "XA END " + x, "XA PREPARE " + x} {
			if _, err := c.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		_ = c.Close()
		t.Cleanup(func() {
			if _, err := shared[0].Root().ExecContext(context.Background(), "XA ROLLBACK "+x); err != nil {
				t.Errorf("foreign branch %s: %v", x, err)
			}
		})
	}
	got, err := s.Shards()[0].Prepared(t.Context(), l.prefix())
	if err != nil || !slices.Equal(got, []checkpoint.GTRID{ours}) {
		t.Errorf("prepared: %v, %v, want only %s", got, err, ours)
	}
	all, err := s.Listed(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []txsink.XID{
		{FormatID: 1, GTRID: string(ours), BQUAL: "s0"}, {FormatID: 1, GTRID: "somebody-else", BQUAL: "s0"},
		{FormatID: 1, GTRID: string(ours), BQUAL: "s1"}, {FormatID: 7, GTRID: string(other), BQUAL: "s0"},
		{FormatID: 1, GTRID: "\x00\xff'", BQUAL: ""},
	} {
		if !slices.Contains(all, want) {
			t.Errorf("not listed: %+v", want)
		}
	}
	if x := (txsink.XID{FormatID: 1, BQUAL: "s0"}); !x.OnShard(0) || x.OnShard(1) {
		t.Error("bqual s0 is shard 0's")
	}
	l.commit(2)
}

func TestLedgerOffBooksTotalsAndSums(t *testing.T) {
	cfg := config(t)
	cfg.LedgerEnabled = false
	migrate(t, cfg)
	s := open(t, cfg)
	l := newLane(t, s, cfg, 0)
	l.book(small(l, "a", 0), 2)
	got := query[string](t, 0, cfg, "SELECT CONCAT_WS(',', (SELECT COUNT(*) FROM %s.billing_ledger), (SELECT ledger_on FROM %s.billing_epoch), (SELECT charge_amount FROM %s.billing_epoch_sum), (SELECT net_amount FROM %s.billing_totals))")
	if want := "0,0,2.500000000000,2.500000000000"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// An epoch that was filled for a ledger is our own mistake, not to be booked.
	l.ledger = true
	wantBroken(t, l.prepare(small(l, "b", 2), 2), "epoch 2 of usage.events/0", "the ledger 1 (enabled: false)")
}

func TestRejectsAreKeptWhole(t *testing.T) {
	s, cfg := fresh(t)
	l := newLane(t, s, cfg, 0)
	e := l.epoch()
	value := []byte("\x00'\\\xff" + strings.Repeat("v", 70_000))
	e.Reject(&event.Record{Offset: 0, Value: value, Key: []byte("k\x00"), Headers: []event.Header{
		{Key: "ce_id", Value: []byte("a\"b\n\xff")}, {Key: "ce_type", Value: nil}, {Key: "é", Value: []byte{}},
	}}, event.ReasonInvalidJSON, "bad \xff detail "+strings.Repeat("ü", 1100))
	e.Reject(&event.Record{Offset: 1}, event.ReasonEmptyData, "null")
	e.Conflict(&event.Record{Offset: 2, Value: []byte{}, Key: []byte{}}, charge("x", "acme", "1"), 0)
	e.Reject(&event.Record{Offset: 3, Value: []byte("v"), Headers: []event.Header{
		{Key: "big", Value: []byte(strings.Repeat("h", 200_000))}, {Key: "big", Value: []byte(strings.Repeat("h", 100_000))}, {Key: "small", Value: []byte("h")},
	}}, event.ReasonTooLarge, "")
	l.book(e, 4)

	type row struct {
		kind, reason, detail, state, headers string
		key, value                           []byte
		size                                 int64
	}
	rows := make(map[int64]row)
	for i := range shared {
		db := database(t, cfg.Shards[i].DSN)
		found, err := shared[i].Root().QueryContext(t.Context(), "SELECT kafka_offset, kind, reason, detail, state, raw_headers, raw_key, raw_value, raw_size FROM `"+db+"`.billing_rejects")
		if err != nil {
			t.Fatal(err)
		}
		defer found.Close()
		for found.Next() {
			var offset int64
			var r row
			if err := found.Scan(&offset, &r.kind, &r.reason, &r.detail, &r.state, &r.headers, &r.key, &r.value, &r.size); err != nil {
				t.Fatal(err)
			}
			rows[offset] = r
		}
		if err := found.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if len(rows) != 4 {
		t.Fatalf("%d rejects are kept, want 4", len(rows))
	}
	r := rows[0]
	if r.kind != "rejected" || r.reason != "invalid_json" || r.state != "open" || string(r.key) != "k\x00" || string(r.value) != string(value[:aggregate.MaxRaw]) || r.size != int64(len(value)) {
		t.Errorf("offset 0: %s %s %s, key %q, %d of %d bytes", r.kind, r.reason, r.state, r.key, len(r.value), r.size)
	}
	if want := "\"ce_id\"=\"a\\\"b\\n\\xff\"\n\"ce_type\"=null\n\"\\u00e9\"=\"\"\n"; r.headers != want {
		t.Errorf("headers %q, want %q", r.headers, want)
	}
	if !strings.HasPrefix(r.detail, "bad \uFFFD detail ü") || len([]rune(r.detail)) != 1024 {
		t.Errorf("detail: %d characters, %.30q", len([]rune(r.detail)), r.detail)
	}
	if r := rows[1]; r.value != nil || r.key != nil || r.size != 0 {
		t.Errorf("a null value is kept as %q of %d bytes, key %q", r.value, r.size, r.key)
	}
	if r := rows[2]; r.kind != "conflict" || r.reason != "conflict" || r.value == nil || len(r.value) != 0 || r.key == nil {
		t.Errorf("offset 2: %+v", r)
	}
	if r := rows[3]; !strings.HasPrefix(r.headers, `"big"="hhh`) || !strings.HasSuffix(r.headers, "\"\n+2\n") || len(r.headers) > 210_000 {
		t.Errorf("headers that do not fit: %d bytes, %.20q to %q", len(r.headers), r.headers, r.headers[max(0, len(r.headers)-8):])
	}
}
