package aggregate

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"billing/internal/event"
)

// Money lies on the shard that these say: they never change.
func TestPlacementIsPinned(t *testing.T) {
	for account, want := range map[string][3]int{
		"":                       {1, 6, 921},
		"acct-00012345":          {0, 5, 308},
		"Konto/ä":                {1, 1, 73},
		strings.Repeat("x", 255): {0, 2, 688},
	} {
		got := [3]int{ShardOf([]byte(account), 2), ShardOf([]byte(account), 7), ShardOf([]byte(account), 1000)}
		if got != want {
			t.Errorf("account %q: shards %v, want %v", account, got, want)
		}
	}
	long := strings.Repeat("t", 249)
	got := [3]int{RejectShardOf("usage", 0, 0, 1000), RejectShardOf("usage", 5, 1<<40, 1000), RejectShardOf(long, 1<<31-1, 1<<63-1, 1000)}
	if want := ([3]int{209, 104, 996}); got != want {
		t.Errorf("rejects: shards %v, want %v", got, want)
	}
}

func TestAccountsSpread(t *testing.T) {
	var n [8]int
	for i := range 80_000 {
		n[ShardOf(fmt.Appendf(nil, "account-%d", i), len(n))]++
	}
	for shard, got := range n {
		if got < 9_500 || got > 10_500 {
			t.Errorf("shard %d has %d of 80000 accounts, want about 10000", shard, got)
		}
	}
}

func TestWindowIsHalfOpen(t *testing.T) {
	at := func(s string) int64 {
		v, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return v.UnixMicro()
	}
	for _, c := range []struct{ time, window, want string }{
		{"2026-11-29T11:30:00Z", "1h", "2026-11-29T11:00:00Z"},
		{"2026-11-29T11:00:00Z", "1h", "2026-11-29T11:00:00Z"},
		{"2026-11-29T10:59:59.999999Z", "1h", "2026-11-29T10:00:00Z"},
		{"2026-11-29T11:29:59.999999Z", "15m", "2026-11-29T11:15:00Z"},
		{"2026-11-29T05:29:59.999999+05:45", "24h", "2026-11-28T00:00:00Z"},
		{"2000-01-01T00:00:00Z", "7h", "1999-12-31T18:00:00Z"}, // aligned to 1970, not to the day
		{"1969-12-31T23:59:59.999999Z", "1h", "1969-12-31T23:00:00Z"},
	} {
		window, err := time.ParseDuration(c.window)
		if err != nil {
			t.Fatal(err)
		}
		if got := windowStart(at(c.time), window.Microseconds()); got != at(c.want) {
			t.Errorf("window of %s for %s starts at %s, want %s", c.window, c.time, time.UnixMicro(got).UTC(), c.want)
		}
	}
}

// Every month of the years that events may have, in an order that the cache
// does not like.
func TestPeriodOfEveryMonth(t *testing.T) {
	var m month
	for i := range 101 * 12 {
		n := i * 7 % (101 * 12)
		first := time.Date(2000, time.Month(1+n), 1, 0, 0, 0, 0, time.UTC)
		for _, at := range []time.Time{first, first.AddDate(0, 0, 17), first.AddDate(0, 1, 0).Add(-time.Microsecond), first.AddDate(0, 1, 0), first} {
			if got, want := periodText(&m, at), at.Format("2006-01"); got != want {
				t.Fatalf("month of %s is %s, want %s", at, got, want)
			}
		}
	}
}

func periodText(m *month, at time.Time) string {
	p := m.of(at.UnixMicro())
	return string(p[:])
}

func TestRejectsKeepWhatIsThere(t *testing.T) {
	cfg := Config{Topic: "usage", Shards: 1, Window: time.Hour}
	big := bytes.Repeat([]byte("0123456789"), MaxRaw/5) // twice MaxRaw
	for name, c := range map[string]struct {
		value, key, wantValue []byte
		size                  int64
	}{
		"null value":  {nil, nil, nil, -1},
		"empty value": {[]byte{}, []byte{}, []byte{}, 0},
		"whole":       {big[:MaxRaw], []byte("k"), big[:MaxRaw], MaxRaw},
		"cut":         {big, big, big[:MaxRaw], int64(len(big))},
	} {
		t.Run(name, func(t *testing.T) {
			e := New(cfg)
			e.Reject(&event.Record{Offset: 9, Key: c.key, Value: c.value}, event.ReasonInvalidJSON, "why")
			got := e.Parts[0].Rejects[0]
			if !bytes.Equal(got.Value, c.wantValue) || (got.Value == nil) != (c.value == nil) || got.Size != c.size || got.Hash != sha256.Sum256(c.value) {
				t.Errorf("value is kept as %d bytes (null %t), size %d, hash %x", len(got.Value), got.Value == nil, got.Size, got.Hash)
			}
			if len(got.Key) != min(len(c.key), MaxRaw) || (got.Key == nil) != (c.key == nil) {
				t.Errorf("key is kept as %d bytes", len(got.Key))
			}
			if got.Kind != KindRejected || got.Reason != "invalid_json" || got.Detail != "why" || got.Offset != 9 || got.Headers != nil {
				t.Errorf("kept as %+v", got)
			}
			if e.Bytes < int64(len(got.Value)+len(got.Key)) || e.Bytes > int64(len(got.Value)+len(got.Key))+1_000 {
				t.Errorf("Bytes %d", e.Bytes)
			}
		})
	}
}

// A conflict's detail leads to the first event, and is short printable ASCII
// whatever the id is.
func TestConflictDetail(t *testing.T) {
	e := New(Config{Topic: "usage", Shards: 1, Window: time.Hour})
	for _, id := range []string{"7", strings.Repeat("\U0001f4b6", 60), strings.Repeat("\xff", 255), strings.Repeat("é", 100)} {
		e.Conflict(&event.Record{Value: []byte("v")}, &event.Event{ID: []byte(id)}, 1<<63-1)
	}
	rows := e.Parts[0].Rejects
	if want := `id "7" was first applied at offset 9223372036854775807 with other content; another event needs an id of its own`; rows[0].Detail != want {
		t.Errorf("detail %q, want %q", rows[0].Detail, want)
	}
	for _, r := range rows {
		if len(r.Detail) > 200 || strings.ContainsFunc(r.Detail, func(c rune) bool { return c < ' ' || c > '~' }) || r.Kind != KindConflict || r.Reason != "conflict" {
			t.Errorf("kept as %s, %s, %d bytes: %q", r.Kind, r.Reason, len(r.Detail), r.Detail)
		}
	}
}

// What the epoch says it holds is near what it holds.
func TestBytesIsNearTheTruth(t *testing.T) {
	for _, distinct := range []int{10, 1_000} {
		list := events(distinct)
		e := New(Config{Topic: "usage", Shards: 2, Window: time.Hour, Ledger: true})
		before := live()
		fill(e, list, 20_000)
		holds := live() - before
		// The ledger's slices may have twice the room that they need.
		if e.Bytes < holds*2/5 || e.Bytes > holds*5/4 {
			t.Errorf("%d accounts: Bytes %d, holds %d", distinct, e.Bytes, holds)
		}
		runtime.KeepAlive(e)
		runtime.KeepAlive(list)
	}
}

// live is the memory in use, in bytes.
func live() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// An epoch that follows a full one holds nothing until its first record, little
// with it, and never moves its rows but the first few.
func TestNextBeginsSmall(t *testing.T) {
	list := events(10)
	first := New(Config{Topic: "usage", Shards: 1, Window: time.Hour, Ledger: true})
	fill(first, list, 5_000)
	next := first.Next()
	if !next.Empty() || next.Parts[0].Ledger.Len() != 0 || next.Parts[0].Totals.Len() != 0 || next.cfg != first.cfg {
		t.Fatalf("the next epoch begins with %+v", next)
	}
	before := live()
	fill(next, list, 1)
	if holds := live() - before; holds > 16<<10 {
		t.Errorf("one record takes %d bytes", holds)
	}
	fill(next, list, 100)
	row := next.Parts[0].Ledger.At(99)
	fill(next, list, 5_000)
	if row != next.Parts[0].Ledger.At(99) {
		t.Error("rows were moved")
	}
	runtime.KeepAlive(list)
}

func TestNewRefusesNonsense(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no shards": {Window: time.Hour}, "no window": {Shards: 1}, "too short": {Shards: 1, Window: 999},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			New(cfg)
		}()
	}
	defer func() {
		if recover() == nil {
			t.Error("an event without a type was booked")
		}
	}()
	New(Config{Shards: 1, Window: time.Hour}).Apply(&event.Event{Account: []byte("a")}, 1)
}

// events is a row of events over distinct accounts.
func events(distinct int) []event.Event {
	rng := rand.New(rand.NewPCG(1, 2))
	list := make([]event.Event, 1024)
	for i := range list {
		list[i] = event.Event{
			ID: fmt.Appendf(nil, "0193af2e-7c1b-7a54-9d2e-%012d", i), Source: []byte("/services/metering/eu-1"),
			Account: fmt.Appendf(nil, "acct-%08d", rng.IntN(distinct)), SKU: []byte("vm.standard-4"), Unit: []byte("hour"),
			Currency: "EUR", Type: event.Charge, Time: 1_795_951_800_000_000 + rng.Int64N(3_600_000_000),
			Amount: amount("12.345678"), Quantity: amount("1.5"), HasQuantity: true,
		}
	}
	return list
}

func fill(e *Epoch, list []event.Event, n int) {
	for i := range n {
		e.Apply(&list[i%len(list)], int64(i))
	}
}

// Only new totals and the growth of slices allocate.
func TestApplyDoesNotAllocate(t *testing.T) {
	e := New(Config{Topic: "usage", Shards: 2, Window: time.Hour, Ledger: true})
	list := events(10)
	fill(e, list, 20_000)
	offset := int64(20_000)
	if n := testing.AllocsPerRun(10_000, func() {
		e.Apply(&list[offset%1024], offset)
		offset++
	}); n != 0 {
		t.Errorf("%v allocations per record", n)
	}
}

func BenchmarkApply(b *testing.B) {
	for _, c := range []struct {
		distinct int
		ledger   bool
	}{{10, true}, {10, false}, {1_000, true}} {
		b.Run(fmt.Sprintf("accounts=%d,ledger=%t", c.distinct, c.ledger), func(b *testing.B) {
			list := events(c.distinct)
			e := New(Config{Topic: "usage", Shards: 2, Window: time.Hour, Ledger: c.ledger})
			b.ReportAllocs()
			for b.Loop() {
				if e.Counts.In == 20_000 {
					e = e.Next()
				}
				e.Apply(&list[e.Counts.In%1024], e.Counts.In)
			}
		})
	}
}

func BenchmarkReject(b *testing.B) {
	r := &event.Record{Key: []byte("acct-1"), Value: bytes.Repeat([]byte("x"), 500), Headers: []event.Header{{Key: "content-type", Value: []byte("application/json")}}}
	e := New(Config{Topic: "usage", Shards: 2, Window: time.Hour})
	b.ReportAllocs()
	for b.Loop() {
		if e.Counts.In == 20_000 {
			e = New(e.cfg)
		}
		r.Offset = e.Counts.In
		e.Reject(r, event.ReasonInvalidJSON, "trailing data")
	}
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if e := New(Config{Topic: "usage", Shards: 2, Window: time.Hour}); !e.Empty() {
			b.Fatal("not empty")
		}
	}
}
