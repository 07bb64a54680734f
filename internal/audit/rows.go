package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"time"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/event"
	"billing/internal/money"
)

// Columns in the order of the digest.
const (
	ledgerColumns = "kafka_topic, kafka_partition, kafka_offset, seq, tenant_id, source, event_id, entry_type, account_id, sku, unit, currency, amount, quantity, note, occurred_at, window_start, booked_period, dedup_key, content_hash"
	rejectColumns = "kafka_topic, kafka_partition, kafka_offset, seq, kind, reason, detail, raw_key, raw_value, raw_size, raw_headers, value_hash"
	sumColumns    = "kafka_topic, kafka_partition, seq, currency, charge_amount, credit_amount, entry_count"
)

const tenant = "default"

// between is the condition for offsets of the run, which ends before end.
func (s *side) between(end int64) (condition string, args []any) {
	condition, args = " FORCE INDEX (PRIMARY) WHERE kafka_topic = ? AND kafka_partition = ?", []any{s.lane.id.Topic, s.lane.id.Partition}
	if s.from != math.MinInt64 {
		condition, args = condition+" AND kafka_offset >= ?", append(args, s.from)
	}
	if end != all {
		condition, args = condition+" AND kafka_offset < ?", append(args, end)
	}
	return condition, args
}

// readLedger reads the run's rows of billing_ledger.
func (s *side) readLedger(ctx context.Context, end int64) error {
	where, args := s.between(end)
	book := bookkeeper{side: s, window: s.lane.v.cfg.Window.Microseconds(), currencies: map[string]string{}}
	return s.scan(ctx, func(r row) error {
		seq := r.int(3)
		entry := book.check(r)
		s.part.add(&entry)
		e := s.bySeq[seq]
		if e == nil {
			s.stray(tableLedger, seq, offsetKey(s.lane.id, r.int(2)))
			return nil
		}
		s.scratch = r.encode(s.scratch[:0], 'L')
		e.hash.Write(s.scratch)
		e.has(r.int(2))
		e.ledger++
		sum := e.sums[entry.currency]
		if sum == nil {
			sum = new(booked)
			e.sums[entry.currency] = sum
		}
		sum.add(&entry.booked)
		return nil
	}, "SELECT "+ledgerColumns+" FROM billing_ledger"+where+" ORDER BY kafka_offset", args...)
}

// bookkeeper checks rows of the ledger by what they say themselves.
type bookkeeper struct {
	*side
	window     int64 // µs
	currencies map[string]string
	hasher     event.Hasher

	start     int64 // of the last row's window, µs since 1970 UTC
	startText []byte
}

// check tells what is wrong in a row, and gives what it adds to its total.
func (b *bookkeeper) check(r row) (entry entry) {
	id, offset := b.lane.id, r.int(2)
	wrong := func(what, expected string, args ...any) {
		b.tell(tableLedger, offsetKey(id, offset), what, fmt.Sprintf(expected, args...))
	}
	ev := event.Event{Source: r[5], ID: r[6], Account: r[8], SKU: r[9], Unit: r[10], HasQuantity: r[13] != nil, Currency: b.currency(r[11])}
	switch string(r[7]) {
	case "charge":
		ev.Type = event.Charge
	case "credit":
		ev.Type = event.Credit
	default:
		wrong("entry_type is "+Printable(r.text(7)), "charge or credit")
	}
	var err error
	if ev.Amount, err = money.Parse(r[12]); err != nil {
		wrong(fmt.Sprintf("amount is %s: %v", r[12], err), "an amount")
	}
	if ev.HasQuantity {
		if ev.Quantity, err = money.Parse(r[13]); err != nil {
			wrong(fmt.Sprintf("quantity is %s: %v", r[13], err), "a quantity")
		}
	}
	var ok bool
	if ev.Time, ok = micros(r[15]); !ok {
		wrong("occurred_at is "+Printable(r.text(15)), "a time")
	}
	b.hasher.Hash(&ev)
	if string(r[4]) != tenant {
		wrong("tenant_id is "+Printable(r.text(4)), tenant)
	}
	if !bytes.Equal(ev.Key[:], r[18]) {
		wrong(fmt.Sprintf("dedup_key %x is not the hash of tenant, source and event_id: one of them was changed", r[18]), "%x for these", ev.Key)
	}
	if !bytes.Equal(ev.Content[:], r[19]) {
		wrong(fmt.Sprintf("content_hash %x is not that of what the row says: one of its columns was changed", r[19]), "%x for these", ev.Content)
	}
	if start := b.windowOf(ev.Time); !bytes.Equal(start, r[16]) {
		wrong("window_start is "+Printable(r.text(16)), "%s, the window of %s that occurred_at lies in", start, b.lane.v.cfg.Window)
	}
	if len(r[15]) < 7 || !bytes.Equal(r[15][:7], r[17]) {
		wrong("booked_period is "+Printable(r.text(17)), "the month of occurred_at, which is %s", r[15])
	}
	if n := aggregate.ShardOf(r[8], len(b.lane.v.shards)); n != b.number {
		wrong("the row is on this shard", "on shard %s, where account %s is", b.lane.v.shards[n].name, Printable(r.text(8)))
	}
	entry.of(r, &ev)
	return entry
}

// currency gives a currency without making it anew for each row.
func (b *bookkeeper) currency(of []byte) string {
	c, ok := b.currencies[string(of)]
	if !ok {
		c = string(of)
		b.currencies[c] = c
	}
	return c
}

func (b *bookkeeper) windowOf(at int64) []byte {
	start := at - at%b.window
	if b.startText == nil || start != b.start {
		b.start = start
		b.startText = time.UnixMicro(start).UTC().AppendFormat(b.startText[:0], time.DateTime)
	}
	return b.startText
}

// micros reads a DATETIME(6) as MySQL prints it, in µs since 1970 UTC.
func micros(b []byte) (us int64, ok bool) {
	const form = "0000-00-00 00:00:00.000000"
	if len(b) != len(form) {
		return 0, false
	}
	for i := range b {
		digit := b[i]-'0' <= 9
		if digit != (form[i] == '0') || !digit && b[i] != form[i] {
			return 0, false
		}
	}
	n := func(from, to int) (n int) {
		for _, c := range b[from:to] {
			n = 10*n + int(c-'0')
		}
		return n
	}
	t := time.Date(n(0, 4), time.Month(n(5, 7)), n(8, 10), n(11, 13), n(14, 16), n(17, 19), 1000*n(20, 26), time.UTC)
	return t.UnixMicro(), true
}

// readRejects reads the run's rows of billing_rejects.
func (s *side) readRejects(ctx context.Context, end int64) error {
	where, args := s.between(end)
	return s.scan(ctx, func(r row) error {
		s.keptRow(r)
		e := s.bySeq[r.int(3)]
		if e == nil {
			s.stray(tableReject, r.int(3), offsetKey(s.lane.id, r.int(2)))
			return nil
		}
		s.scratch = r.encode(s.scratch[:0], 'R')
		e.hash.Write(s.scratch)
		e.has(r.int(2))
		e.rejects++
		if string(r[4]) == string(aggregate.KindConflict) {
			e.conflicts++
		}
		return nil
	}, "SELECT "+rejectColumns+" FROM billing_rejects"+where+" ORDER BY kafka_offset", args...)
}

// keptRow tells what is wrong in a row of billing_rejects by itself.
func (s *side) keptRow(r row) {
	id, offset := s.lane.id, r.int(2)
	wrong := func(what, expected string, args ...any) {
		s.tell(tableReject, offsetKey(id, offset), what, fmt.Sprintf(expected, args...))
	}
	size, kept := r.int(9), int64(len(r[8]))
	if size < kept || kept < aggregate.MaxRaw && size != kept {
		wrong(fmt.Sprintf("raw_size is %d", size), "%d, the length of raw_value", kept)
	}
	if sum := sha256.Sum256(r[8]); size == kept && !bytes.Equal(sum[:], r[11]) {
		wrong(fmt.Sprintf("value_hash %x is not that of raw_value: one of them was changed", r[11]), "%x for this value", sum)
	}
	if kind := string(r[4]); kind != string(aggregate.KindConflict) && kind != string(aggregate.KindRejected) || (kind == string(aggregate.KindConflict)) != (string(r[5]) == "conflict") {
		wrong(fmt.Sprintf("kind is %s, reason %s", Printable(kind), Printable(r.text(5))), "conflict for both, or rejected with a reason")
	}
	if n := aggregate.RejectShardOf(id.Topic, id.Partition, offset, len(s.lane.v.shards)); n != s.number {
		wrong("the row is on this shard", "on shard %s, where records of this offset are kept", s.lane.v.shards[n].name)
	}
}

// readSums reads the run's rows of billing_epoch_sum, which ends with epoch to,
// or with all where end says so.
func (s *side) readSums(ctx context.Context, to, end int64) error {
	query, args := "SELECT "+sumColumns+" FROM billing_epoch_sum FORCE INDEX (PRIMARY) WHERE kafka_topic = ? AND kafka_partition = ?", []any{s.lane.id.Topic, s.lane.id.Partition}
	if s.lane.done != math.MinInt64 {
		query, args = query+" AND seq > ?", append(args, s.lane.done)
	}
	if end != all {
		query, args = query+" AND seq <= ?", append(args, to)
	}
	return s.scan(ctx, func(r row) error {
		seq, currency := r.int(2), r.text(3)
		sum, err := sumsOf(r[4], r[5], r.int(6))
		if err != nil {
			s.tell(tableSum, sumKey(s.lane.id, seq, currency), err.Error(), "amounts")
		}
		s.sum(s.lane.id, currency).add(sum)
		e := s.bySeq[seq]
		if e == nil {
			s.stray(tableSum, seq, sumKey(s.lane.id, seq, currency))
			return nil
		}
		s.scratch = r.encode(s.scratch[:0], 'S')
		e.hash.Write(s.scratch)
		e.booked[currency] = sum
		return nil
	}, query+" ORDER BY seq, currency", args...)
}

// sum is what the lane has booked in a currency on the shard, by
// billing_epoch_sum.
func (s *snapshot) sum(id checkpoint.Lane, currency string) *booked {
	at := laneCurrency{id, currency}
	if s.sums[at] == nil {
		s.sums[at] = new(booked)
	}
	return s.sums[at]
}

func sumsOf(charge, credit []byte, entries int64) (*booked, error) {
	b := &booked{entries: entries}
	var err error
	if b.charge, err = money.ParseSum(charge); err != nil {
		return b, fmt.Errorf("charge_amount is %s: %w", charge, err)
	}
	if b.credit, err = money.ParseSum(credit); err != nil {
		return b, fmt.Errorf("credit_amount is %s: %w", credit, err)
	}
	return b, nil
}
