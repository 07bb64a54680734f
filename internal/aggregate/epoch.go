// Package aggregate is what one epoch of a lane adds to MySQL: totals, ledger
// rows, kept rejects, counts and sums, split by shard. A lane fills one Epoch
// between two barriers; at the barrier it is frozen by handing over the pointer
// and starting an empty one. A frozen Epoch is never changed again.
package aggregate

import (
	"billing/internal/event"
	"billing/internal/money"
)

// Epoch is what the records of a lane between two barriers add. It keeps copies
// of what it needs of the records, so that it does not keep alive the batches
// they came in. It is filled by one goroutine.
type Epoch struct {
	Parts  []Part // by shard number
	Counts Counts // of the whole epoch

	// Bytes estimates the memory that the epoch holds, so that a lane can bound
	// it. It counts what rows keep alive, not map overhead to the byte.
	Bytes int64

	cfg   Config
	rows  int
	texts texts
	month month
	key   []byte // of the last total, used again
}

// Counts are the outcomes of the epoch's records.
type Counts struct {
	In, Applied, Duplicates, Conflicts, Rejected int64
}

// Part is one shard's share of an epoch.
type Part struct {
	Totals  Totals
	Ledger  Rows[LedgerRow]         // in offset order; empty with the ledger off
	Rejects []RejectRow             // in offset order
	Sums    map[string]*CurrencySum // by currency, over the entries applied on this shard
	Applied int64                   // entries applied on this shard (also with the ledger off)
}

// TotalKey is what one row of billing_totals is kept for (the lane is added by
// the sink). The tenant is "default" until there are others.
type TotalKey struct {
	Account, SKU, Unit, Currency string // SKU and Unit are "" where the message has none
	WindowStart                  int64  // µs since 1970 UTC
	Period                       Period // UTC month in which it is booked
}

// Period is a billing period in the form YYYY-MM.
type Period [7]byte

// Total is what the epoch adds to one row of billing_totals.
type Total struct {
	Charge   money.Sum // of charges
	Credit   money.Sum // of credits: zero or negative
	Quantity money.Sum // charges add, credits subtract
	Entries  int64     // applied messages
}

// CurrencySum is one currency's share of an epoch on one shard.
type CurrencySum struct {
	Charge, Credit money.Sum
	Entries        int64
}

// LedgerRow is one applied message. It is what most of an epoch's memory is for, so
// its texts are one: as in event.Event they would take half of it, and as many
// pointers for the collector to follow.
type LedgerRow struct {
	Offset      int64
	Time        int64 // as event.Event's, as all below that has a name there
	WindowStart int64 // µs since 1970 UTC
	Amount      money.Amount
	Quantity    money.Amount
	Currency    string
	Key         [16]byte
	Content     [8]byte
	Period      Period
	Type        event.Type
	HasQuantity bool

	ends [textCount]uint32
	text []byte
}

// The texts of a row, in their order.
const (
	textID = iota
	textSource
	textAccount
	textSKU
	textUnit
	textNote
	textCount
)

// ID is the event's.
func (r *LedgerRow) ID() []byte { return r.of(textID) }

// Source is the event's.
func (r *LedgerRow) Source() []byte { return r.of(textSource) }

// Account is the event's.
func (r *LedgerRow) Account() []byte { return r.of(textAccount) }

// SKU is the event's, empty if none.
func (r *LedgerRow) SKU() []byte { return r.of(textSKU) }

// Unit is the event's, empty if none.
func (r *LedgerRow) Unit() []byte { return r.of(textUnit) }

// Note is the event's, empty if none.
func (r *LedgerRow) Note() []byte { return r.of(textNote) }

func (r *LedgerRow) of(n int) []byte {
	from := uint32(0)
	if n > 0 {
		from = r.ends[n-1]
	}
	return r.text[from:r.ends[n]]
}

// Kind says why a record is kept in billing_rejects.
type Kind string

// The kinds of kept records, as they stand in billing_rejects.kind.
const (
	KindRejected Kind = "rejected"
	KindConflict Kind = "conflict"
)

// RejectRow is a record that was not applied, kept so that it can be read and
// sent again.
type RejectRow struct {
	Offset  int64
	Kind    Kind
	Reason  string         // a word of the list of outcomes; "conflict" for conflicts
	Detail  string         // for people
	Value   []byte         // the record's value, cut at MaxRaw; nil for a null value
	Size    int64          // of the whole value in bytes; -1 for a null value
	Hash    [32]byte       // SHA-256 of the whole value
	Key     []byte         // the record's key, cut at MaxRaw
	Headers []event.Header // the record's headers: in binary mode they are half of the message
}

// MaxRaw is how much of a kept record's value is stored, in bytes.
const MaxRaw = 64 << 10
