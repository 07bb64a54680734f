package txsink

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
)

const tenant = "default"

// maxStatement bounds a statement of several rows, in bytes. MySQL takes a few
// hundred rows at a time fastest: with more, what it parses them into does not fit
// its caches (a fifth slower at 1 MiB). A longer row is sent alone: a kept
// record's, or an epoch's with its row_marks (see minPacket).
const maxStatement = 128 << 10

// writer sends the rows of one epoch on one shard. Writers are used again, for
// their buffers.
type writer struct {
	statement
	spare    []byte // the row that did not fit
	keys     []totalRow
	rowMarks rowMarks

	exec       func(ctx context.Context, sql string) (affected int64, err error)
	branch     *checkpoint.Branch
	preparedAt int64 // of the epoch, µs since 1970 UTC
	changedAt  int64 // likewise, when rows that are there already are changed

	laneOf           checkpoint.Lane // whose topic and partition are in laneSQL and laneEnc
	laneSQL, laneEnc []byte          // nil before the first row
}

type totalRow struct {
	key   [16]byte
	of    aggregate.TotalKey
	total *aggregate.Total
}

var writers = sync.Pool{New: func() any {
	w := new(writer)
	w.hash = sha256.New()
	return w
}}

// free drops what belongs to the epoch and keeps the buffers.
func (w *writer) free() {
	clear(w.keys)
	w.rowMarks.enc = w.rowMarks.enc[:0]
	w.exec, w.branch = nil, nil
	writers.Put(w)
}

// table is one of the epoch's tables while its rows are sent.
type table struct {
	name, head, tail string
	first            int                     // index of the statement's first row
	of               func(i int) string      // names row i for the operator; nil where there is one row only
	affected         func(rows int) [2]int64 // bounds of the rows that a statement may change
}

func exactly(rows int) [2]int64 { return [2]int64{int64(rows), int64(rows)} }

// fit is called behind each row, which began at mark in w.sql: it sends the
// rows before it when the statement has become too long.
func (w *writer) fit(ctx context.Context, t *table, i, mark int) error {
	if len(w.sql)+len(t.tail) <= maxStatement || w.rows == 1 {
		return nil
	}
	w.spare = append(w.spare[:0], w.sql[mark+1:]...) // without the comma before it
	w.sql = w.sql[:mark]
	w.rows--
	w.marks = w.marks[:w.rows]
	if err := w.send(ctx, t); err != nil {
		return err
	}
	w.start(t.head)
	t.first = i
	w.marks = append(w.marks, len(w.sql))
	w.sql = append(w.sql, w.spare...)
	w.rows = 1
	return nil
}

// send sends the statement, if it has rows.
func (w *writer) send(ctx context.Context, t *table) error {
	if w.rows == 0 {
		return nil
	}
	w.sql = append(w.sql, t.tail...)
	affected, err := w.exec(ctx, string(w.sql))
	if err != nil {
		return w.refused(ctx, t, err)
	}
	if want := t.affected(w.rows); affected < want[0] || affected > want[1] {
		return fmt.Errorf("%s: %d rows changed by a statement with %d rows", w.where(t), affected, w.rows)
	}
	return nil
}

// lane writes the topic and the partition, with which every row begins.
func (w *writer) lane() {
	if w.laneSQL == nil || w.laneOf != w.branch.Lane {
		one := statement{}
		one.text(w.branch.Lane.Topic)
		one.int(int64(w.branch.Lane.Partition))
		w.laneOf, w.laneSQL, w.laneEnc = w.branch.Lane, one.sql, one.enc
	}
	w.sql = append(w.sql, w.laneSQL...)
	w.enc = append(w.enc, w.laneEnc...)
}

// What the service writes begins so. The rights that it needs are asked for with the same words.
const (
	intoLane     = "INSERT INTO billing_lane (kafka_topic, kafka_partition, topic_id, incarnation, seq, offset_next, updated_at) VALUES "
	intoEpoch    = "INSERT INTO billing_epoch (kafka_topic, kafka_partition, seq, topic_id, incarnation, gtrid, offset_from, offset_next, records_in, applied, duplicates, conflicts, rejected, shard_applied, shard_rejects, ledger_on, prepared_at, row_marks, digest) VALUES "
	intoEpochSum = "INSERT INTO billing_epoch_sum (kafka_topic, kafka_partition, seq, currency, charge_amount, credit_amount, entry_count) VALUES "
	intoTotal    = "INSERT INTO billing_total (total_key, kafka_topic, kafka_partition, tenant_id, account_id, sku, unit, currency, window_start, booked_period, charge_amount, credit_amount, quantity, entry_count, updated_at) VALUES "
	addToTotal   = " AS new ON DUPLICATE KEY UPDATE charge_amount = billing_total.charge_amount + new.charge_amount, credit_amount = billing_total.credit_amount + new.credit_amount, quantity = billing_total.quantity + new.quantity, entry_count = billing_total.entry_count + new.entry_count, updated_at = new.updated_at"
	intoLedger   = "INSERT INTO billing_ledger (kafka_topic, kafka_partition, kafka_offset, seq, tenant_id, source, event_id, entry_type, account_id, sku, unit, currency, amount, quantity, note, occurred_at, window_start, booked_period, dedup_key, content_hash) VALUES "
	intoRejects  = "INSERT INTO billing_rejects (kafka_topic, kafka_partition, kafka_offset, seq, kind, reason, detail, raw_key, raw_value, raw_size, raw_headers, value_hash) VALUES "
)

// errLedgerRows marks what went wrong in billing_ledger.
var errLedgerRows = errors.New("billing_ledger")

func (w *writer) ledger(ctx context.Context, rows *aggregate.Rows[aggregate.LedgerRow]) error {
	w.rowMarks.begin(w.branch.OffsetFrom)
	t := &table{
		name: "insert into billing_ledger",
		head: intoLedger,
		of:   func(i int) string { return offsetText(rows.At(i).Offset) }, affected: exactly,
	}
	w.start(t.head)
	for i, r := range rows.All() {
		mark := len(w.sql)
		w.row(tagLedger)
		w.lane()
		w.int(r.Offset)
		w.int(w.branch.Seq)
		w.text(tenant)
		w.bytes(r.Source())
		w.bytes(r.ID())
		w.text(r.Type.String())
		w.bytes(r.Account())
		w.bytes(r.SKU())
		w.bytes(r.Unit())
		w.text(r.Currency)
		w.amount(r.Amount)
		if r.HasQuantity {
			w.amount(r.Quantity)
		} else {
			w.null()
		}
		if note := r.Note(); len(note) > 0 {
			w.bytes(note)
		} else {
			w.null()
		}
		w.micros(r.Time)
		w.seconds(r.WindowStart)
		w.bytes(r.Period[:])
		w.bytes(r.Key[:])
		w.bytes(r.Content[:])
		w.end()
		w.rowMarks.at(r.Offset, w.enc)
		if err := w.fit(ctx, t, i, mark); err != nil {
			return fmt.Errorf("%w: %w", errLedgerRows, err)
		}
	}
	if err := w.send(ctx, t); err != nil {
		return fmt.Errorf("%w: %w", errLedgerRows, err)
	}
	return nil
}

// totals adds to billing_total in key order, column to column: MySQL would add
// a string in DOUBLE.
//
// ledger is only for the name of a total that MySQL refuses; empty with the
// ledger off.
func (w *writer) totals(ctx context.Context, totals *aggregate.Totals, ledger *aggregate.Rows[aggregate.LedgerRow]) error {
	w.keys = slices.Grow(w.keys[:0], totals.Len())
	for of, total := range totals.All() {
		w.keys = append(w.keys, totalRow{key: w.totalKey(&of), of: of, total: total})
	}
	slices.SortFunc(w.keys, func(a, b totalRow) int { return bytes.Compare(a.key[:], b.key[:]) })
	t := &table{
		name: "add to billing_total",
		head: intoTotal,
		tail: addToTotal,
		// 1 for a new row, 2 for one that was added to; entry_count always changes
		affected: func(rows int) [2]int64 { return [2]int64{int64(rows), 2 * int64(rows)} },
		of:       func(i int) string { return totalText(&w.keys[i].of, ledger) },
	}
	w.start(t.head)
	for i := range w.keys {
		k := &w.keys[i]
		mark := len(w.sql)
		w.row(0)
		w.bytes(k.key[:])
		w.identity(&k.of)
		w.sum(k.total.Charge)
		w.sum(k.total.Credit)
		w.sum(k.total.Quantity)
		w.int(k.total.Entries)
		w.micros(w.changedAt)
		w.endUnhashed()
		if err := w.fit(ctx, t, i, mark); err != nil {
			return err
		}
	}
	return w.send(ctx, t)
}

// identity writes the columns that total_key is the hash of.
func (w *writer) identity(k *aggregate.TotalKey) {
	w.lane()
	w.text(tenant)
	w.text(k.Account)
	w.text(k.SKU)
	w.text(k.Unit)
	w.text(k.Currency)
	w.seconds(k.WindowStart)
	w.bytes(k.Period[:])
}

func (w *writer) totalKey(k *aggregate.TotalKey) (key [16]byte) {
	w.start("")
	w.enc = w.enc[:0]
	w.identity(k)
	sum := sha256.Sum256(w.enc)
	copy(key[:], sum[:])
	return key
}

func (w *writer) rejects(ctx context.Context, rows []aggregate.RejectRow) error {
	w.rowMarks.begin(w.branch.OffsetFrom)
	t := &table{
		name: "insert into billing_rejects",
		head: intoRejects,
		of:   func(i int) string { return offsetText(rows[i].Offset) }, affected: exactly,
	}
	w.start(t.head)
	var headers []byte
	for i := range rows {
		r := &rows[i]
		mark := len(w.sql)
		w.row(tagReject)
		w.lane()
		w.int(r.Offset)
		w.int(w.branch.Seq)
		w.text(string(r.Kind))
		w.text(r.Reason)
		w.text(detailText(r.Detail))
		w.optional(r.Key)
		w.optional(r.Value)
		w.int(max(r.Size, 0))
		headers = headersText(headers[:0], r)
		w.bytes(headers)
		w.bytes(r.Hash[:])
		w.end()
		w.rowMarks.at(r.Offset, w.enc)
		if err := w.fit(ctx, t, i, mark); err != nil {
			return err
		}
	}
	return w.send(ctx, t)
}

func (w *writer) sums(ctx context.Context, sums map[string]*aggregate.CurrencySum) error {
	t := &table{
		name:     "insert into billing_epoch_sum",
		head:     intoEpochSum,
		affected: exactly,
	}
	currencies := slices.Sorted(maps.Keys(sums))
	t.of = func(i int) string { return "the sums of currency " + currencies[i] }
	w.start(t.head)
	for i, currency := range currencies {
		mark := len(w.sql)
		w.row(tagSum)
		w.lane()
		w.int(w.branch.Seq)
		w.text(currency)
		w.sum(sums[currency].Charge)
		w.sum(sums[currency].Credit)
		w.int(sums[currency].Entries)
		w.end()
		w.rowMarks.of(currency, w.enc)
		if err := w.fit(ctx, t, i, mark); err != nil {
			return err
		}
	}
	return w.send(ctx, t)
}

// epoch writes the row of billing_epoch, the last of the branch: its digest
// covers everything before it.
func (w *writer) epoch(ctx context.Context, part *aggregate.Part, ledgerOn bool) error {
	t := &table{
		name:     "insert into billing_epoch",
		head:     intoEpoch,
		affected: exactly,
	}
	b := w.branch
	w.start(t.head)
	w.row(tagEpoch)
	w.lane()
	w.int(b.Seq)
	w.bytes(b.TopicID[:])
	w.int(b.Incarnation)
	w.text(string(b.GTRID))
	w.int(b.OffsetFrom)
	w.int(b.OffsetNext)
	w.int(b.Counts.In)
	w.int(b.Counts.Applied)
	w.int(b.Counts.Duplicates)
	w.int(b.Counts.Conflicts)
	w.int(b.Counts.Rejected)
	w.int(part.Applied)
	w.int(int64(len(part.Rejects)))
	if ledgerOn {
		w.int(1)
	} else {
		w.int(0)
	}
	w.micros(w.preparedAt)
	w.bytes(w.rowMarks.enc)
	w.hash.Write(w.enc)
	w.bytes(w.hash.Sum(nil))
	w.endUnhashed()
	err := w.send(ctx, t)
	if isAnswer(err, errDuplicate) {
		return &checkpoint.NetError{Net: netEpochKey, Err: err}
	}
	return err
}
