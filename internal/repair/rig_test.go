package repair_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
	"billing/internal/event"
	"billing/internal/pipeline"
	"billing/internal/repair"
)

var lane = checkpoint.Lane{Topic: "in", Partition: 0}

// rig is a lane that the real pipeline has worked on, over fake servers and in
// virtual time, and what a repair of it sees.
type rig struct {
	t       *testing.T
	world   *checkpointtest.World
	topic   *topic
	lanes   *pipeline.Pipeline
	cfg     pipeline.Config // of the session at work, and of the repair after it
	shards  []*shard
	written []time.Time // when each of world.Decisions was made

	// Kafka as the repair finds it.
	oldest  int  // index of the oldest decision that compaction has left
	onlyFew bool // PastDecisions goes back as far as it is asked for, and no further

	compacted bool   // the input's configuration says so
	beyond    string // what a shard has that does not fit its last epoch
}

// shard notes what the fake does not: when a branch was prepared, and whether
// with a ledger.
type shard struct {
	*checkpointtest.Shard
	r  *rig
	mu sync.Mutex
	at map[checkpoint.GTRID]time.Time
	on map[checkpoint.GTRID]bool
}

func (s *shard) Prepare(ctx context.Context, b *checkpoint.Branch) error {
	if exist := s.exist(ctx, b); len(exist) > 0 {
		return &checkpoint.RowsExistError{Shard: s.Name(), Entries: exist}
	}
	s.note(b.GTRID, time.Now(), s.r.cfg.Ledger)
	return s.Shard.Prepare(ctx, b)
}

// exist is the ledger's unique key: ids that the shard has booked.
func (s *shard) exist(ctx context.Context, b *checkpoint.Branch) (rows []checkpoint.ExistingRow) {
	keys := map[[16]byte]int64{} // of the branch, with their times
	for _, l := range s.part(b).Ledger.All() {
		keys[l.Key] = l.Time
	}
	before, err := s.Booked(ctx, 1, b.Seq-1)
	if err != nil {
		return nil
	}
	for _, old := range before {
		for _, l := range s.part(old).Ledger.All() {
			if at, ok := keys[l.Key]; ok {
				rows = append(rows, checkpoint.ExistingRow{Key: l.Key, Content: l.Content, Offset: l.Offset, Time: max(l.Time, at)})
			}
		}
	}
	return rows
}

func (s *shard) part(b *checkpoint.Branch) *aggregate.Part {
	return &b.Contents.(*aggregate.Epoch).Parts[slices.Index(s.r.shards, s)]
}

func (s *shard) note(g checkpoint.GTRID, at time.Time, ledgerOn bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at[g], s.on[g] = at, ledgerOn
}

// lines are all that the shard has, an epoch each, but for the times at which it
// was written.
func (s *shard) lines() (all []string) {
	branches, err := s.Booked(context.Background(), 1, 1<<20)
	if err != nil {
		s.r.t.Fatal(err)
	}
	for _, b := range branches {
		all = append(all, s.line(b))
	}
	return all
}

// horizonText is where a horizon stands in a detail. Where no decision of then is
// left the repair knows only that it was not earlier.
var horizonText = regexp.MustCompile(`^(time is before )[^,]+`)

func (s *shard) line(b *checkpoint.Branch) string {
	p := s.part(b)
	var lines []string
	for k, t := range p.Totals.All() {
		lines = append(lines, fmt.Sprintf("total %q %q %q %s %d %s: %s %s %s %d", k.Account, k.SKU, k.Unit, k.Currency, k.WindowStart, k.Period, t.Charge, t.Credit, t.Quantity, t.Entries))
	}
	for currency, sum := range p.Sums {
		lines = append(lines, fmt.Sprintf("sum %s: %s %s %d", currency, sum.Charge, sum.Credit, sum.Entries))
	}
	for _, l := range p.Ledger.All() {
		lines = append(lines, fmt.Sprintf("ledger %d %q %q %q %s %d %s %x %x %s", l.Offset, l.ID(), l.Source(), l.Account(), l.Currency, l.Time, l.Amount, l.Key, l.Content, l.Type))
	}
	for _, r := range p.Rejects {
		lines = append(lines, fmt.Sprintf("reject %d %s %s %s %q %d %x", r.Offset, r.Kind, r.Reason, horizonText.ReplaceAllString(r.Detail, "$1"), r.Value, r.Size, r.Hash))
	}
	sort.Strings(lines)
	return fmt.Sprintf("epoch %d incarnation %d %s [%d,%d) %+v applied %d ledger %t\n  %s", b.Seq, b.Incarnation, b.GTRID, b.OffsetFrom, b.OffsetNext,
		b.Counts, p.Applied, s.on[b.GTRID], strings.Join(lines, "\n  "))
}

// topic is the lane's partition: its records, with gaps.
type topic struct {
	mu      sync.Mutex
	records []event.Record
	written map[int64]time.Time // by offset
	end     int64
	grown   func(end int64)
	handler *pipeline.Pipeline
	session uint64
	next    int
	paused  bool
}

func (s *topic) Start(_ int32, session uint64, offset int64, _ int32) {
	s.mu.Lock()
	s.session = session
	s.next = sort.Search(len(s.records), func(i int) bool { return s.records[i].Offset >= offset })
	s.mu.Unlock()
	s.pump()
}

func (s *topic) Stop(int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session = 0
}

func (s *topic) Pause(int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = true
}

func (s *topic) Resume(int32) {
	s.mu.Lock()
	s.paused = false
	s.mu.Unlock()
	go s.pump()
}

func (s *topic) Assigned(int32) bool { return true }

func (s *topic) SkipTail(_ context.Context, _ int32, from int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		if r.Offset >= from && !r.Control {
			return from, nil
		}
	}
	return max(from, s.end), nil
}

// pump delivers what is there, until the lane pauses the partition.
func (s *topic) pump() {
	for {
		s.mu.Lock()
		if s.session == 0 || s.paused || s.next >= len(s.records) {
			s.mu.Unlock()
			return
		}
		session, r, end := s.session, s.records[s.next], s.end
		s.next++
		s.mu.Unlock()
		s.handler.Deliver(lane.Partition, session, []event.Record{r}, len(r.Value), end)
	}
}

// append adds records behind a gap.
func (s *topic) append(gap int64, values ...[]byte) {
	s.mu.Lock()
	s.end += gap
	for _, v := range values {
		s.written[s.end] = time.Now()
		s.records = append(s.records, event.Record{Offset: s.end, LeaderEpoch: 1, Value: v, Key: []byte("k")})
		s.end++
	}
	s.grown(s.end)
	s.mu.Unlock()
	s.pump()
}

func newRig(t *testing.T, shards int) *rig {
	t.Helper()
	r := &rig{t: t, world: checkpointtest.NewWorld(lane, shards), topic: &topic{written: map[int64]time.Time{}}}
	r.topic.grown = func(end int64) { r.world.With(func() { r.world.LogEnd = end }) }
	limits := checkpoint.DefaultLimits(30 * time.Second)
	limits.Sweep = time.Hour // nothing is left to sweep
	limits.LookAgain = time.Millisecond
	var ports []checkpoint.Shard
	for i := range shards {
		s := &shard{Shard: r.world.Shard(i), r: r, at: map[checkpoint.GTRID]time.Time{}, on: map[checkpoint.GTRID]bool{}}
		r.shards = append(r.shards, s)
		ports = append(ports, s)
	}
	r.world.Check(func(string) {
		for len(r.written) < len(r.world.Decisions) {
			r.written = append(r.written, time.Now())
		}
	})
	r.cfg = pipeline.Config{
		Job: &checkpoint.Job{
			Name: "job", Topic: "in", Set: checkpoint.UUID{1}, Fingerprint: "f", FirstStart: true,
			Kafka: r.world, Shards: ports, Limits: limits,
		},
		Interval: time.Second, MaxInterval: 5 * time.Second, MaxRows: 1 << 20, MaxRecords: 20, MaxBytes: 1 << 30, MemoryBytes: 1 << 32,
		Lateness: 35 * 24 * time.Hour, Skew: 5 * time.Minute, MaxIDs: 1 << 40, Window: time.Hour, Ledger: true,
		Decoder:      event.Config{TypePrefix: "com.example.billing.", Currencies: []string{"USD", "EUR"}},
		StoppedRetry: time.Minute, IdleMove: time.Minute,
		Now: time.Now, Logger: slog.New(slog.DiscardHandler),
	}
	return r
}

func (r *rig) start() {
	r.lanes = pipeline.New(r.cfg)
	r.topic.mu.Lock()
	r.topic.handler = r.lanes
	r.topic.mu.Unlock()
	r.lanes.Bind(r.topic)
	r.lanes.Assigned([]int32{lane.Partition})
	synctest.Wait() // what is sent then was not waiting
}

func (r *rig) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r.lanes.Revoked(ctx, []int32{lane.Partition})
}

// work takes everything that was sent, and stops.
func (r *rig) work() {
	r.t.Helper()
	for range 1000 {
		wait(10 * time.Second)
		if r.last().Next >= r.behindLast() {
			r.stop()
			return
		}
	}
	r.t.Fatalf("the lane stands at %+v, the records end at %d: %+v", r.last(), r.behindLast(), r.lanes.Status())
}

func (r *rig) behindLast() int64 {
	r.topic.mu.Lock()
	defer r.topic.mu.Unlock()
	for _, rec := range slices.Backward(r.topic.records) {
		if !rec.Control {
			return rec.Offset + 1
		}
	}
	return 0
}

func (r *rig) last() (d checkpoint.Decision) {
	r.world.With(func() {
		if n := len(r.world.Decisions); n > 0 {
			d = r.world.Decisions[n-1]
		}
	})
	return d
}

// wait lets virtual time pass.
func wait(d time.Duration) { <-time.After(d) }

// repairer is what the repair is told.
func (r *rig) repairer() *repair.Config {
	return &repair.Config{
		Job: r.cfg.Job, Kafka: r, MySQL: r, Decoder: r.cfg.Decoder,
		Window: r.cfg.Window, Lateness: r.cfg.Lateness, Skew: r.cfg.Skew, Ledger: r.cfg.Ledger,
	}
}

// repair finds, computes and books.
func (r *rig) repair(cfg *repair.Config) (*repair.Loss, error) {
	f := repair.Find(context.Background(), cfg, []checkpoint.Lane{lane})[0]
	if f.Err != nil || f.Loss == nil {
		return nil, f.Err
	}
	if err := f.Loss.Compute(context.Background(), cfg); err != nil {
		return f.Loss, err
	}
	return f.Loss, f.Loss.Book(context.Background(), cfg)
}

// Look implements repair.Kafka.
func (r *rig) Look(ctx context.Context, _ int32) (checkpoint.Read, error) { return r.world.Look(ctx) }

// ReadState implements repair.Kafka.
func (r *rig) ReadState(ctx context.Context, _ int32, from int64, fn func(int64, []byte) error) error {
	return r.world.ReadChunks(ctx, from, fn)
}

// ReadInput implements repair.Kafka.
func (r *rig) ReadInput(_ context.Context, _ int32, from, to int64, fn func(*event.Record, time.Time) error) error {
	for _, rec := range r.topic.records {
		if rec.Offset < from || rec.Offset >= to || rec.Control {
			continue
		}
		if err := fn(&rec, r.topic.written[rec.Offset]); err != nil {
			return err
		}
	}
	return nil
}

// Beyond implements repair.MySQL.
func (r *rig) Beyond(context.Context, int, checkpoint.Lane, int64, int64) (string, error) {
	return r.beyond, nil
}

// Compacted implements repair.Kafka.
func (r *rig) Compacted(context.Context) (bool, error) { return r.compacted, nil }

// PastDecisions implements repair.Kafka.
func (r *rig) PastDecisions(_ context.Context, _ int32, enough func(string) bool, fn func(string, time.Time) error) error {
	var texts []string
	for i := range r.world.Decisions {
		text, err := r.world.Decisions[i].Encode()
		if err != nil {
			return err
		}
		texts = append(texts, text)
	}
	from := r.oldest
	if r.onlyFew {
		for from = len(texts) - 1; from > r.oldest && !enough(texts[from]); from-- {
		}
	}
	for i := from; i < len(texts); i++ {
		if err := fn(texts[i], r.written[i]); err != nil {
			return err
		}
	}
	return nil
}

// Epochs implements repair.MySQL.
func (r *rig) Epochs(ctx context.Context, i int, _ checkpoint.Lane, from, to int64, fn func(*checkpoint.BookedEpoch) error) error {
	s := r.shards[i]
	branches, err := s.Booked(ctx, from, to)
	if err != nil {
		return err
	}
	for _, b := range branches {
		p := s.part(b)
		e := &checkpoint.BookedEpoch{
			Seq: b.Seq, GTRID: b.GTRID, OffsetFrom: b.OffsetFrom, OffsetNext: b.OffsetNext, Counts: b.Counts,
			LedgerOn: s.on[b.GTRID], PreparedAt: s.at[b.GTRID], Applied: p.Applied, Rejects: int64(len(p.Rejects)), Sums: map[string]checkpoint.BookedSum{},
		}
		for currency, sum := range p.Sums {
			e.Sums[currency] = checkpoint.BookedSum{Charge: string(sum.Charge.AppendFixed(nil)), Credit: string(sum.Credit.AppendFixed(nil)), Entries: sum.Entries}
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// Rebook implements repair.MySQL.
func (r *rig) Rebook(ctx context.Context, i int, b *checkpoint.Branch, ledgerOn bool, at time.Time) error {
	s := r.shards[i]
	s.note(b.GTRID, at, ledgerOn)
	return s.Rebook(ctx, b)
}

// ---- messages

// message is a charge; amount below zero makes it a credit.
func message(id string, at time.Time, account, amount, currency string) []byte {
	kind := "charge"
	if strings.HasPrefix(amount, "-") {
		kind = "credit"
	}
	return []byte(`{"specversion":"1.0","id":"` + id + `","source":"/s","type":"com.example.billing.` + kind + `.v1","subject":"` + account + `","time":"` +
		at.UTC().Format(time.RFC3339Nano) + `","data":{"amount":"` + amount + `","currency":"` + currency + `"}}`)
}

// stream invents messages: of all kinds, of few ids, around the clock of now.
type stream struct {
	rng  *rand.Rand
	late time.Duration // how far back events go
	ids  int
	sent [][]byte
}

func (s *stream) next() []byte {
	one := func(all ...string) string { return all[s.rng.IntN(len(all))] }
	switch n := s.rng.IntN(40); {
	case n == 0:
		return []byte("no event")
	case n == 1:
		return nil
	case n == 2:
		return message(fmt.Sprint("id", s.rng.IntN(s.ids)), time.Now(), "a", "1", "GBP")
	case n < 8 && len(s.sent) > 0: // again, as it was
		return s.sent[s.rng.IntN(len(s.sent))]
	}
	at := time.Now()
	switch s.rng.IntN(10) {
	case 0:
		at = at.Add(time.Duration(s.rng.Int64N(int64(15 * time.Minute)))) // some are in the future
	case 1, 2, 3:
		at = at.Add(-time.Duration(s.rng.Int64N(int64(s.late))))
	default:
		at = at.Add(-time.Duration(s.rng.Int64N(int64(10 * time.Minute))))
	}
	m := message(fmt.Sprint("id", s.rng.IntN(s.ids)), at, one("a", "b", "c", "d", "e", "f"), one("1", "2.5", "0.000000000001", "-3", "99"), one("USD", "EUR"))
	s.sent = append(s.sent, m)
	return m
}
