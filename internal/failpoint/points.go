// Package failpoint names the places at which the tests kill or hold the real
// binary. Without the build tag "failpoints" every Hit compiles to nothing.
package failpoint

// Point is a place in the protocol.
type Point string

// The points, in the order in which a checkpoint passes them.
const (
	Polled          Point = "polled"           // records of a new epoch were read, nothing of it is stored
	SomePrepared    Point = "some-prepared"    // phase 1 is done on the first shard and not begun on the others
	AllPrepared     Point = "all-prepared"     // phase 1 is done; the Kafka transaction is not begun
	BeforeEndTxn    Point = "before-end-txn"   // D and the offset are in the open Kafka transaction
	EndTxnSent      Point = "end-txn-sent"     // EndTxn was written to the socket, no answer was read
	Decided         Point = "decided"          // the decision is known committed, phase 2 is not begun
	SomeCommitted   Point = "some-committed"   // phase 2 is done on the first shard and not begun on the others
	AllCommitted    Point = "all-committed"    // phase 2 is done, nothing behind it
	TakeoverDecided Point = "takeover-decided" // S3 is known committed, S4 has not begun
	Settled         Point = "settled"          // S4 is done on every shard
)
