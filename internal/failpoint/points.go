// Package failpoint names the places at which the tests kill, freeze or hold
// the real binary. Without the build tag "failpoints" every Hit compiles to
// nothing.
package failpoint

// Point is a place in the protocol.
type Point string

// The points of a session's start, in the order in which it passes them.
const (
	Fenced          Point = "fenced"           // S1 is done, D is not read
	DecisionRead    Point = "decision-read"    // S2 is done, the takeover is not begun
	TakeoverDecided Point = "takeover-decided" // S3 is known committed, S4 has not begun
	Settling        Point = "settling"         // S4 on the first shard has looked whether the lane is still ours, and has done nothing
	Settled         Point = "settled"          // S4 is done on every shard
)

// The points of a checkpoint, likewise.
const (
	Polled        Point = "polled"         // records of a new epoch were read, nothing of it is stored
	Frozen        Point = "frozen"         // C1 and C2 are done, phase 1 is not begun
	InBranch      Point = "in-branch"      // everything is written in the first shard's branch, XA PREPARE is not sent
	SomePrepared  Point = "some-prepared"  // phase 1 is done on the first shard and not begun on the others
	AllPrepared   Point = "all-prepared"   // phase 1 is done; the Kafka transaction is not begun
	ChunksWritten Point = "chunks-written" // the dedup state is in the open Kafka transaction, D is not
	BeforeEndTxn  Point = "before-end-txn" // D and the offset are in the open Kafka transaction
	EndTxnSent    Point = "end-txn-sent"   // EndTxn was written to the socket, no answer was read
	Decided       Point = "decided"        // the decision is known committed, phase 2 is not begun
	SomeCommitted Point = "some-committed" // phase 2 is done on the first shard and not begun on the others
	AllCommitted  Point = "all-committed"  // phase 2 is done, nothing behind it
)

// Sweeping is a place of the sweep: it has read D, and has not asked the first
// shard for its prepared branches.
const Sweeping Point = "sweeping"
