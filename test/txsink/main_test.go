// Package txsink_test holds internal/txsink against real servers: two shards, each on a MySQL of its own.
package txsink_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/sync/errgroup"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/event"
	"billing/internal/money"
	"billing/internal/txsink"
	"billing/test/servers"
)

// The servers that the package's tests share. Tests that break a server start one of their own.
var shared [2]*servers.MySQLServer

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if err := servers.Available(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var group errgroup.Group
	for i := range shared {
		group.Go(func() (err error) {
			shared[i], err = servers.StartMySQL(context.Background(), fmt.Sprint("shard ", i))
			return err
		})
	}
	err := group.Wait()
	defer func() {
		for _, s := range shared {
			if s != nil {
				if err := s.Close(); err != nil {
					fmt.Fprintln(os.Stderr, err)
				}
			}
		}
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// config is a job with an empty database on each shared server.
func config(t testing.TB) txsink.Config {
	t.Helper()
	return txsink.Config{
		Job:           "test-" + strings.ToLower(fmt.Sprintf("%x", sha256.Sum256([]byte(t.Name()))))[:12],
		LedgerEnabled: true,
		LockWait:      2 * time.Second,
		Shards: []txsink.ShardConfig{
			{Name: "east", DSN: shared[0].NewDatabase(t)},
			{Name: "west", DSN: shared[1].NewDatabase(t)},
		},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// database is the name in a DSN.
func database(t testing.TB, dsn string) string {
	t.Helper()
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return c.DBName
}

// asMigrate is the same set with the users who make the tables.
func asMigrate(cfg txsink.Config) txsink.Config { return asUser(cfg, servers.AsMigrate) }

func asUser(cfg txsink.Config, user func(dsn string) string) txsink.Config {
	cfg.Shards = slices.Clone(cfg.Shards)
	for i := range cfg.Shards {
		cfg.Shards[i].DSN = user(cfg.Shards[i].DSN)
	}
	return cfg
}

func migrate(t testing.TB, cfg txsink.Config) {
	t.Helper()
	if err := txsink.Migrate(t.Context(), asMigrate(cfg), io.Discard); err != nil {
		t.Fatalf("migrate: %v", err)
	}
}

// open opens and checks a set whose tables are there.
func open(t testing.TB, cfg txsink.Config) *txsink.Sink {
	t.Helper()
	s, err := txsink.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Check(t.Context()); err != nil {
		t.Fatalf("check: %v", err)
	}
	return s
}

// fresh is a migrated, open set of two shards.
func fresh(t testing.TB) (*txsink.Sink, txsink.Config) {
	t.Helper()
	cfg := config(t)
	migrate(t, cfg)
	return open(t, cfg), cfg
}

var topicID = checkpoint.UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

// lane writes epochs as a session would.
type lane struct {
	t           testing.TB
	sink        *txsink.Sink
	job         string
	id          checkpoint.Lane
	incarnation int64
	seq         int64 // of the last epoch
	next        int64
	digests     [2][]byte
	window      time.Duration
	ledger      bool
}

func newLane(t testing.TB, s *txsink.Sink, cfg txsink.Config, partition int32) *lane {
	return &lane{t: t, sink: s, job: cfg.Job, id: checkpoint.Lane{Topic: "usage.events", Partition: partition}, incarnation: 1,
		window: time.Hour, ledger: cfg.LedgerEnabled}
}

func (l *lane) epoch() *aggregate.Epoch {
	return aggregate.New(aggregate.Config{Topic: l.id.Topic, Partition: l.id.Partition, Shards: len(l.sink.Shards()), Window: l.window, Ledger: l.ledger})
}

// gtrid is the name that the protocol gives: magic, owner, topic, partition, incarnation, seq.
func (l *lane) gtrid(incarnation, seq int64) checkpoint.GTRID {
	topic := sha256.Sum256(topicID[:])
	return checkpoint.GTRID(fmt.Sprintf("%s%x%08x%012x%012x", checkpoint.OwnerPrefix(l.job, l.sink.SetID()), topic[:6], l.id.Partition, incarnation, seq))
}

func (l *lane) prefix() string { return string(l.gtrid(0, 0))[:40] }

// branch is the next epoch's branch on a shard.
func (l *lane) branch(e *aggregate.Epoch, shard int, records int64) *checkpoint.Branch {
	return &checkpoint.Branch{
		Lane: l.id, TopicID: topicID, GTRID: l.gtrid(l.incarnation, l.seq+1), Incarnation: l.incarnation, Seq: l.seq + 1,
		OffsetFrom: l.next, OffsetNext: l.next + records,
		Counts: checkpoint.Counts{In: e.Counts.In, Applied: e.Counts.Applied, Duplicates: e.Counts.Duplicates,
			Conflicts: e.Counts.Conflicts, Rejected: e.Counts.Rejected},
		PrevDigest: l.digests[shard], Contents: e,
	}
}

// prepare prepares e on both shards; records is how far the offset moves.
func (l *lane) prepare(e *aggregate.Epoch, records int64) error {
	var errs []error
	for i, s := range l.sink.Shards() {
		if err := s.Prepare(l.t.Context(), l.branch(e, i, records)); err != nil {
			errs = append(errs, fmt.Errorf("shard %s: %w", s.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// commit commits what was prepared last, on both shards.
func (l *lane) commit(records int64) {
	l.t.Helper()
	g := l.gtrid(l.incarnation, l.seq+1)
	for i, s := range l.sink.Shards() {
		if err := s.Commit(l.t.Context(), g); err != nil {
			l.t.Fatalf("commit on %s: %v", s.Name(), err)
		}
		row, ok, err := s.EpochRow(l.t.Context(), l.id, l.seq+1)
		if err != nil || !ok || row.GTRID != g || row.Next != l.next+records {
			l.t.Fatalf("row of epoch %d on %s: %+v, %t, %v", l.seq+1, s.Name(), row, ok, err)
		}
		l.digests[i] = row.Digest
	}
	l.seq++
	l.next += records
}

// book prepares and commits.
func (l *lane) book(e *aggregate.Epoch, records int64) {
	l.t.Helper()
	if err := l.prepare(e, records); err != nil {
		l.t.Fatal(err)
	}
	l.commit(records)
}

const noon = int64(1_772_366_400_000_000) // 2026-03-01 12:00 UTC, in µs

// charge is an event of its own.
func charge(id, account, amount string) *event.Event {
	e := &event.Event{
		ID: []byte(id), Source: []byte("/meter/1"), Account: []byte(account), SKU: []byte("vm.large"), Unit: []byte("h"),
		Currency: "EUR", Time: noon + 123_456, Amount: parse(amount), Quantity: parse("1.5"), HasQuantity: true, Type: event.Charge,
	}
	key := sha256.Sum256([]byte("key" + id))
	content := sha256.Sum256([]byte("content" + id + amount))
	copy(e.Key[:], key[:])
	copy(e.Content[:], content[:])
	return e
}

// credit is a charge's opposite, without what is optional.
func credit(id, account, amount string) *event.Event {
	e := charge(id, account, amount)
	e.Type, e.HasQuantity, e.Quantity, e.SKU, e.Unit = event.Credit, false, money.Amount{}, nil, nil
	return e
}

func parse(s string) money.Amount {
	a, err := money.Parse([]byte(s))
	if err != nil {
		panic(fmt.Sprintf("amount %q: %v", s, err))
	}
	return a
}

// on is an account of the shard with this number.
func on(shard int, name string) string {
	for i := 0; ; i++ {
		account := fmt.Sprintf("%s-%d", name, i)
		if aggregate.ShardOf([]byte(account), 2) == shard {
			return account
		}
	}
}

// query reads one value with all rights; the statement has %s where the database's name goes.
func query[T any](t testing.TB, shard int, cfg txsink.Config, statement string) (v T) {
	t.Helper()
	statement = strings.ReplaceAll(statement, "%s", "`"+database(t, cfg.Shards[shard].DSN)+"`")
	if err := shared[shard].Root().QueryRowContext(t.Context(), statement).Scan(&v); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return v
}

// exec runs a statement with all rights, as query does.
func exec(t testing.TB, shard int, cfg txsink.Config, statement string) {
	t.Helper()
	statement = strings.ReplaceAll(statement, "%s", "`"+database(t, cfg.Shards[shard].DSN)+"`")
	if _, err := shared[shard].Root().ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
