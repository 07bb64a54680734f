package checkpoint

import "time"

// BookedEpoch is all that a shard shows of an epoch, for who has to book it again
// on another one.
type BookedEpoch struct {
	Seq        int64
	GTRID      GTRID
	OffsetFrom int64
	OffsetNext int64
	Counts     Counts
	LedgerOn   bool      // what was booked is in billing_ledger
	PreparedAt time.Time // by the clock of the service

	// The shard's own part.
	Applied int64
	Rejects int64
	Sums    map[string]BookedSum // by currency
}

// BookedSum is what an epoch booked on a shard in a currency, as MySQL prints it.
type BookedSum struct {
	Charge, Credit string
	Entries        int64
}
