// Package event turns one Kafka record into one billing event, or into the
// reason why it is none.
//
// A message is a CloudEvents 1.0 event in structured, binary or headerless
// form. Decoding is strict: whatever two readers could understand in two ways
// is refused. It depends on the record alone, never on a clock, on other
// records or on the order of fields, so a replay comes to the same verdicts.
package event

import (
	"fmt"
	"strconv"
	"strings"

	"billing/internal/money"
)

// Header is one Kafka record header. A nil Value is Kafka's null.
type Header struct {
	Key   string
	Value []byte
}

// Record is a Kafka record as the lane reads it. The byte slices belong to
// whoever fetched the record; they must not change while an Event made from it
// is in use.
type Record struct {
	Offset      int64
	LeaderEpoch int32
	Headers     []Header
	// Key is not part of the message: producers key by account or by id.
	Key []byte
	// Value is nil for a null value, which is not the same as zero bytes to
	// Kafka; both are rejected as empty.
	Value []byte
	// Control marks a record that only moves the position, such as a
	// transaction marker. It is no message, has no outcome, and is not decoded.
	Control bool
}

// Outcome is what became of one record: exactly one of the four. The zero value
// is none of them.
type Outcome uint8

const (
	// Applied means that the event is booked.
	Applied Outcome = iota + 1
	// Duplicate means that an event with this key and content was applied before.
	Duplicate
	// Conflict means that an event with this key and other content was applied before.
	Conflict
	// Rejected means that the record is no valid event; a Reason says why.
	Rejected
)

// String is the outcome's lower-case name.
func (o Outcome) String() string {
	switch o {
	case Applied:
		return "applied"
	case Duplicate:
		return "duplicate"
	case Conflict:
		return "conflict"
	case Rejected:
		return "rejected"
	}
	return "none"
}

// Type is the kind of entry an event books. The zero value is none. Values are
// part of the content hash and never change.
type Type uint8

const (
	// Charge adds to what an account owes; its amount is zero or positive.
	Charge Type = 1
	// Credit lowers it; its amount is zero or negative.
	Credit Type = 2
)

// String is the type's name as in the ledger's entry_type.
func (t Type) String() string {
	switch t {
	case Charge:
		return "charge"
	case Credit:
		return "credit"
	}
	return "none"
}

// Event is a decoded message.
//
// The byte slices alias the record's value or headers, or, where the text had
// escapes, memory of their own that nothing else writes to. They are valid as
// long as the record's bytes are and must not be written to. An Event may be
// copied and kept; the next Decode into the same variable replaces its fields
// and leaves what they pointed to alone.
type Event struct {
	ID      []byte // 1..255 bytes
	Source  []byte // 1..512 bytes
	Account []byte // the CloudEvents subject, 1..255 bytes
	SKU     []byte // 1..255 bytes, empty if none
	Unit    []byte // 1..255 bytes, empty if none; may be there without a quantity
	Note    []byte // data.reason, at most 1024 bytes, empty if none

	// Currency is the configured code itself, so equal currencies of one
	// decoder share their memory.
	Currency string

	// Time is when it happened, in microseconds since 1970-01-01 UTC, truncated.
	Time int64

	// Amount is signed: >= 0 for a charge, <= 0 for a credit.
	Amount money.Amount
	// Quantity is >= 0, and 0 where HasQuantity is false.
	Quantity money.Amount

	// Key identifies the event for dedup: the same for every copy of one event
	// in any mode, and for no other event.
	Key [16]byte
	// Content tells a repeated event from another one under the same key.
	Content [8]byte

	// UnknownFields counts the fields that were ignored: extension attributes
	// and unknown members of data, not what is nested in them.
	UnknownFields uint32

	Type        Type
	HasQuantity bool
}

// Reason says why a record was rejected. The zero value is none. Operators and
// their queries see only the word, so numbers may change between versions.
type Reason uint8

const (
	// ReasonNotCloudEvent is JSON that claims to be no CloudEvent at all.
	ReasonNotCloudEvent Reason = iota + 1
	// ReasonUnsupportedFormat is a batch, data_base64, a format other than
	// JSON, or a specversion other than 1.0.
	ReasonUnsupportedFormat
	// ReasonAmbiguousEnvelope is a message whose headers say one thing twice,
	// or not what the body says.
	ReasonAmbiguousEnvelope
	// ReasonEmptyData is a null value or one of zero bytes.
	ReasonEmptyData
	// ReasonInvalidJSON is a value that is not exactly one JSON text.
	ReasonInvalidJSON
	// ReasonDuplicateKey is an object with one key twice, or with a key that
	// differs only in case from one that has a meaning.
	ReasonDuplicateKey
	// ReasonInvalidUTF8 is invalid UTF-8 or a lone surrogate, in any text.
	ReasonInvalidUTF8
	// ReasonMissingField is a required field that is absent or null.
	ReasonMissingField
	// ReasonInvalidField is a field of the wrong kind, length or form.
	ReasonInvalidField
	// ReasonUnknownType is an event type that is not handled.
	ReasonUnknownType
	// ReasonInvalidTime is a time that is not RFC 3339 with a zone, or outside
	// the years 2000 to 2100.
	ReasonInvalidTime
	// ReasonTooOld is an event older than the lateness allows. Not given by Decode.
	ReasonTooOld
	// ReasonInFuture is an event too far ahead of the clock. Not given by Decode.
	ReasonInFuture
	// ReasonAmountNotString is an amount that is no JSON string.
	ReasonAmountNotString
	// ReasonInvalidAmount is an amount that is no plain decimal number.
	ReasonInvalidAmount
	// ReasonScaleExceeded is an amount with more than 12 decimal places.
	ReasonScaleExceeded
	// ReasonAmountOutOfRange is an amount with more than 26 integer digits.
	ReasonAmountOutOfRange
	// ReasonWrongSign is a charge below or a credit above zero.
	ReasonWrongSign
	// ReasonUnknownCurrency is a currency that is not configured.
	ReasonUnknownCurrency
	// ReasonTooLarge is a value over 1 MiB or nested deeper than 32.
	ReasonTooLarge
	// ReasonAlreadyReversed is for reversals. Not given yet.
	ReasonAlreadyReversed
	// ReasonCorrectionMismatch is for corrections. Not given yet.
	ReasonCorrectionMismatch
	// ReasonOrphanCorrection is for corrections. Not given yet.
	ReasonOrphanCorrection
)

var reasonWords = [...]string{
	0:                        "none",
	ReasonNotCloudEvent:      "not_cloudevent",
	ReasonUnsupportedFormat:  "unsupported_format",
	ReasonAmbiguousEnvelope:  "ambiguous_envelope",
	ReasonEmptyData:          "empty_data",
	ReasonInvalidJSON:        "invalid_json",
	ReasonDuplicateKey:       "duplicate_key",
	ReasonInvalidUTF8:        "invalid_utf8",
	ReasonMissingField:       "missing_field",
	ReasonInvalidField:       "invalid_field",
	ReasonUnknownType:        "unknown_type",
	ReasonInvalidTime:        "invalid_time",
	ReasonTooOld:             "too_old",
	ReasonInFuture:           "in_future",
	ReasonAmountNotString:    "amount_not_string",
	ReasonInvalidAmount:      "invalid_amount",
	ReasonScaleExceeded:      "scale_exceeded",
	ReasonAmountOutOfRange:   "amount_out_of_range",
	ReasonWrongSign:          "wrong_sign",
	ReasonUnknownCurrency:    "unknown_currency",
	ReasonTooLarge:           "too_large",
	ReasonAlreadyReversed:    "already_reversed",
	ReasonCorrectionMismatch: "correction_mismatch",
	ReasonOrphanCorrection:   "orphan_correction",
}

// String is the word that tables, metrics and logs use.
func (r Reason) String() string {
	if int(r) < len(reasonWords) {
		return reasonWords[r]
	}
	return "reason(" + strconv.Itoa(int(r)) + ")"
}

// Rejection is why a record is no event.
type Rejection struct {
	Reason Reason
	// Detail names the field and what was expected, for a person to read: at
	// most 200 bytes of printable text. What it quotes of the record is short
	// and escaped.
	Detail string
}

// String is the reason and its detail on one line.
func (r *Rejection) String() string { return r.Reason.String() + ": " + r.Detail }

// maxDetail bounds Rejection.Detail, in bytes.
const maxDetail = 200

func reject(r Reason, format string, args ...any) *Rejection {
	detail := fmt.Sprintf(format, args...)
	if len(detail) > maxDetail {
		// only a configured type prefix can have a rune that the cut splits
		detail = strings.ToValidUTF8(detail[:maxDetail-3], "") + "..."
	}
	return &Rejection{Reason: r, Detail: detail}
}

// unquoted shows the start of a JSON value as it is written, in printable ASCII.
func unquoted(b []byte) string {
	q, cut := strings.CutSuffix(quoted(b), "...")
	q = q[1 : len(q)-1]
	if cut {
		q += "..."
	}
	return q
}

// quoted shows the start of untrusted bytes in printable ASCII.
func quoted(b []byte) string {
	const most = 32
	cut := ""
	if len(b) > most {
		b, cut = b[:most], "..."
	}
	return strconv.QuoteToASCII(string(b)) + cut
}
