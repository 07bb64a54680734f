package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"billing/internal/event"
	"billing/internal/loadgen"
	"billing/test/servers"

	"github.com/go-sql-driver/mysql"
	"github.com/twmb/franz-go/pkg/kgo"
)

// writtenLoad gives the messages of a load, by partition at their offsets, and what
// must come of them.
func writtenLoad(count int, duplicates float64, now time.Time) ([]*kgo.Record, *answer) {
	g := loadgen.New(loadgen.Config{
		Count: count, Accounts: 50, Duplicates: duplicates, Bad: 0.1, Seed: 3, Partitions: partitions,
		Now: now.Add(-time.Minute), Lateness: lateness, Window: window, TypePrefix: typePrefix, Currencies: currencies,
	})
	var next offsets
	var all []*kgo.Record
	for m, more := g.Next(); more; m, more = g.Next() {
		r := &kgo.Record{Topic: topic, Partition: m.Partition, Offset: next[m.Partition], Key: m.Key, Value: m.Value}
		next[m.Partition]++
		for _, h := range m.Headers {
			r.Headers = append(r.Headers, kgo.RecordHeader(h))
		}
		all = append(all, r)
	}
	x := g.Expected()
	return all, &answer{Messages: x.Messages, Outcomes: x.Outcomes, Reasons: x.Reasons, Totals: x.Totals}
}

func plainLoopConfig(dsns []string) plainConfig {
	return plainConfig{
		Topic: topic, Group: plainUser, Instance: "test", Shards: dsns, Batch: 300,
		Window: window, Lateness: lateness, Skew: skew, TypePrefix: typePrefix, Currencies: currencies,
	}
}

// The plain loop is no straw man: where all repeats come in one batch with the
// first, it is right about every single message.
func TestPlainLoopSortsABatch(t *testing.T) {
	now := time.Now()
	records, want := writtenLoad(3000, 0.3, now)
	cfg := plainLoopConfig(nil)
	l := &plainLoop{cfg: cfg, newest: map[int32]int64{}, shards: make([]*plainShard, shards),
		decoder: event.NewDecoder(event.Config{TypePrefix: cfg.TypePrefix, Currencies: cfg.Currencies})}
	var booked, kept int
	for _, part := range l.sort(records, now) {
		booked += len(part.ledger) / plainLedgerColumns
		kept += len(part.rejects) / plainRejectColumns
	}
	o := want.Outcomes
	if int64(booked) != o.Applied || int64(kept) != o.Conflict+o.Rejected || o.Duplicate == 0 || o.Conflict == 0 {
		t.Errorf("booked %d and kept %d, had to be %+v", booked, kept, o)
	}
}

// Without repeats and kills the plain loop's tables are exact, by the same comparison as
// the service's, over a broker, in many batches, with a restart between two of them.
func plainLoopIsExact(t *testing.T, server *servers.MySQLServer) {
	named := plainLoopTables
	var dsns []string
	var users []string
	for shard := range shards {
		dsn := server.NewDatabase(t)
		cfg, err := mysql.ParseDSN(dsn)
		if err != nil {
			t.Fatal(err)
		}
		dsns, users = append(dsns, dsn), append(users, cfg.User)
		named.databases[shard] = cfg.DBName
	}
	must(t, server.Root(), "GRANT SELECT ON `"+named.databases[1]+"`.* TO '"+users[0]+"'@'%'")
	if err := makePlainTables(t.Context(), dsns); err != nil {
		t.Fatal(err)
	}
	b, err := embeddedBroker(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	}()
	records, want := writtenLoad(5000, 0, time.Now())
	client, err := kgo.NewClient(kgo.SeedBrokers(b.addrs...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	cfg := plainLoopConfig(dsns)
	cfg.Brokers = b.addrs
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "plain.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]*kgo.Record{records[:2000], records[2000:]} {
		if err := client.ProduceSync(t.Context(), part...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		ends, err := b.ends(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1) // one loop
		go func() { ended <- runPlainLoop(ctx, path) }()
		servers.Eventually(t, time.Minute, func() error {
			at, _, err := b.committed(t.Context(), plainUser)
			if err == nil && at != ends {
				err = fmt.Errorf("committed %v of %v", at, ends)
			}
			return err
		})
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	dbs := make([]*plainShard, shards)
	for i, dsn := range dsns {
		if dbs[i], err = openPlainShard(dsn); err != nil {
			t.Fatal(err)
		}
		defer dbs[i].db.Close()
	}
	a, err := ask(t.Context(), []*sql.DB{dbs[0].db, dbs[1].db}, named)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := compare(want, a); err != nil || !b.Exact || b.Entries == 0 || b.RejectedKept == 0 {
		t.Errorf("%v, %+v", err, b)
	}
}
