package aggregate

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"billing/internal/event"
)

// Config says whose epochs these are and how they are cut. It is the same for
// all epochs of a lane.
type Config struct {
	Topic     string // of the lane
	Partition int32
	Shards    int           // at least 1
	Window    time.Duration // of the totals; whole microseconds, at least one
	Ledger    bool          // whether applied messages get a ledger row each
}

// New is an empty epoch. It costs a few hundred bytes until its first record.
// It panics for a Config outside its bounds.
func New(cfg Config) *Epoch {
	if cfg.Shards < 1 || cfg.Window < time.Microsecond {
		panic(fmt.Sprintf("aggregate: %d shards, window %s", cfg.Shards, cfg.Window))
	}
	return &Epoch{Parts: make([]Part, cfg.Shards), cfg: cfg}
}

// Next is an empty epoch to follow e, of the same Config.
func (e *Epoch) Next() *Epoch { return New(e.cfg) }

// Memory of a row besides the texts it refers to. A map's or a table's slots count
// twice: they are seldom full.
const (
	ledgerBytes = int64(unsafe.Sizeof(LedgerRow{}))
	rejectBytes = int64(unsafe.Sizeof(RejectRow{}))
	totalBytes  = int64(unsafe.Sizeof(totalRow{})) + 2*int64(unsafe.Sizeof(uint64(0))) // a row and, half of them empty, its slots
	sumBytes    = 2*int64(unsafe.Sizeof("")+unsafe.Sizeof(uintptr(0))) + int64(unsafe.Sizeof(CurrencySum{}))
	headerBytes = int64(unsafe.Sizeof(event.Header{}))
)

// Empty reports whether no record has had an outcome yet: no records, no epoch.
func (e *Epoch) Empty() bool { return e.Counts.In == 0 }

// Rows is how many rows the epoch writes to the tables of totals, ledger,
// rejects and sums on all shards. The protocol's own rows, a few on each shard,
// are not among them.
func (e *Epoch) Rows() int { return e.rows }

// Apply books ev, which the record at offset carries. It keeps nothing of ev's
// memory. Offsets must rise from call to call, those of Conflict and Reject
// included.
func (e *Epoch) Apply(ev *event.Event, offset int64) {
	p := &e.Parts[ShardOf(ev.Account, len(e.Parts))]
	window := windowStart(ev.Time, e.cfg.Window.Microseconds())
	period := e.month.of(ev.Time)

	e.Counts.In++
	e.Counts.Applied++
	p.Applied++
	total := e.total(p, ev, window, &period)
	total.Entries++
	sum := e.sum(p, ev.Currency)
	sum.Entries++
	switch ev.Type {
	case event.Charge:
		total.Charge.Add(ev.Amount)
		sum.Charge.Add(ev.Amount)
		total.Quantity.Add(ev.Quantity) // 0 without one
	case event.Credit:
		total.Credit.Add(ev.Amount)
		sum.Credit.Add(ev.Amount)
		total.Quantity.Sub(ev.Quantity)
	default:
		panic(fmt.Sprintf("aggregate: event of type %d at offset %d", ev.Type, offset))
	}
	if e.cfg.Ledger {
		row := p.Ledger.Add()
		row.Offset, row.Time, row.WindowStart, row.Period = offset, ev.Time, window, period
		row.Amount, row.Quantity, row.HasQuantity, row.Currency, row.Type = ev.Amount, ev.Quantity, ev.HasQuantity, ev.Currency, ev.Type
		row.Key, row.Content = ev.Key, ev.Content
		e.texts.own(row, ev)
		e.Bytes += ledgerBytes + int64(len(row.text))
		e.rows++
	}
}

// total is the row of totals that ev belongs to.
func (e *Epoch) total(p *Part, ev *event.Event, window int64, period *Period) *Total {
	e.key = appendKey(e.key[:0], ev, window, period)
	row, made := p.Totals.of(e.key)
	if made {
		e.Bytes += totalBytes + int64(len(e.key))
		e.rows++
	}
	return row
}

// sum is the part's sum in a currency.
func (e *Epoch) sum(p *Part, currency string) *CurrencySum {
	s := p.Sums[currency]
	if s == nil {
		if p.Sums == nil {
			p.Sums = make(map[string]*CurrencySum)
		}
		s = new(CurrencySum)
		p.Sums[currency] = s
		e.Bytes += sumBytes
		e.rows++
	}
	return s
}

// Duplicate counts a record whose event was applied before.
func (e *Epoch) Duplicate() {
	e.Counts.In++
	e.Counts.Duplicates++
}

// Conflict keeps a record whose id was applied at firstOffset with other
// content. The first one stands.
func (e *Epoch) Conflict(r *event.Record, ev *event.Event, firstOffset int64) {
	e.Counts.In++
	e.Counts.Conflicts++
	e.keep(r, KindConflict, "conflict", fmt.Sprintf("id %s was first applied at offset %d with other content; another event needs an id of its own",
		shortID(ev.ID), firstOffset))
}

// shortID shows the beginning of an id in printable ASCII.
func shortID(id []byte) string {
	const most = 20
	if len(id) > most {
		return strconv.QuoteToASCII(string(id[:most])) + "..."
	}
	return strconv.QuoteToASCII(string(id))
}

// Reject keeps a record that is no valid event, or not one in time.
func (e *Epoch) Reject(r *event.Record, reason event.Reason, detail string) {
	e.Counts.In++
	e.Counts.Rejected++
	e.keep(r, KindRejected, reason.String(), detail)
}

// InFuture rejects a record whose event is ahead of the clock by more than skew.
func (e *Epoch) InFuture(r *event.Record, skew time.Duration) {
	e.Reject(r, event.ReasonInFuture, fmt.Sprintf("time is more than %s ahead of the clock", skew))
}

// TooOld rejects a record whose event is from before the lane's horizon, µs since
// 1970 UTC.
func (e *Epoch) TooOld(r *event.Record, horizon int64) {
	e.Reject(r, event.ReasonTooOld, fmt.Sprintf("time is before %s, the largest event time applied less dedup.lateness", time.UnixMicro(horizon).UTC().Format(time.RFC3339Nano)))
}

func (e *Epoch) keep(r *event.Record, kind Kind, reason, detail string) {
	row := RejectRow{
		Offset: r.Offset, Kind: kind, Reason: reason, Detail: detail,
		Value: e.texts.copy(cut(r.Value)), Size: int64(len(r.Value)), Hash: sha256.Sum256(r.Value),
		Key: e.texts.copy(cut(r.Key)),
	}
	if r.Value == nil {
		row.Size = -1
	}
	size := rejectBytes + int64(len(detail)+len(row.Value)+len(row.Key))
	if len(r.Headers) > 0 {
		row.Headers = make([]event.Header, len(r.Headers))
		for i, h := range r.Headers {
			row.Headers[i] = event.Header{Key: strings.Clone(h.Key), Value: e.texts.copy(h.Value)}
			size += headerBytes + int64(len(h.Key)+len(h.Value))
		}
	}
	p := &e.Parts[RejectShardOf(e.cfg.Topic, e.cfg.Partition, r.Offset, len(e.Parts))]
	p.Rejects = append(p.Rejects, row)
	e.Bytes += size
	e.rows++
}

func cut(b []byte) []byte { return b[:min(len(b), MaxRaw)] }
