package checkpoint

import (
	"context"
	"errors"
)

// Kafka is what the protocol needs of Kafka.
type Kafka interface {
	// Fence opens a new transactional producer for the lane and returns when
	// its InitProducerID succeeded (S1): from then on no earlier outcome of the
	// lane can change any more. It is bounded by ctx; an error means that this
	// member owns nothing, and may have fenced an older owner all the same.
	// The caller closes the Owner.
	Fence(ctx context.Context, lane Lane) (Owner, error)
}

// Owner is one session's hold on a lane's decision: a fenced transactional
// producer and reads under its fence. It is used by one goroutine at a time,
// and after any error it is only closed (a client that "heals" after an error
// makes the broker abort the living owner's transaction).
type Owner interface {
	// Read reads, stably, everything that Kafka knows of the lane (S2). It
	// fails when it isn't stable within the implementation's own deadline.
	Read(ctx context.Context) (Read, error)

	// ReadState calls fn for each committed chunk of <job>.state from offset
	// from to the high watermark captured at the call, aborted and control
	// records passed over (S5). An error of fn ends it and is returned. data
	// is fn's to keep. passed is called after each answer that moved the
	// position, chunks in it or not: it is progress.
	ReadState(ctx context.Context, from int64, passed func(), fn func(offset int64, data []byte) error) error

	// Begin begins a Kafka transaction. Only locally: nothing is sent.
	Begin() error

	// WriteChunks writes chunks to <job>.state within the transaction and
	// returns after all acknowledgements, with the range [from, next) of
	// offsets that they took. It is not called without chunks.
	WriteChunks(ctx context.Context, chunks [][]byte) (from, next int64, err error)

	// WriteDecision writes d, encoded, to <job>.decision within the
	// transaction and returns after its acknowledgement.
	WriteDecision(ctx context.Context, d string) error

	// CommitOffset stores offset, leader epoch and metadata for the lane in the
	// consumer group within the transaction (C5), with the group's member id
	// and generation. A generation error while the lane is still assigned is
	// sent again with fresh ones, until ctx ends.
	CommitOffset(ctx context.Context, next int64, leaderEpoch int32, metadata string) error

	// Commit is EndTxn(commit): the decision (C7). nil means known committed
	// by C8's rule, and nothing else does. Any error leaves the outcome
	// unknown: it must be taken neither as committed nor as aborted, and the
	// Owner must be closed without another word to the broker.
	Commit(ctx context.Context) error

	// Abort ends the transaction without a decision (C9), best effort: where
	// it fails, the next fence or the broker's time-out aborts. It is never
	// called after Commit.
	Abort(ctx context.Context)

	// Trim deletes the records of <job>.state before the offset. Idempotent,
	// best effort: an error costs disk space, nothing else.
	Trim(ctx context.Context, before int64) error

	// Close closes the producer, without ending its transaction. It frees
	// every call that waits on it.
	Close()
}

// Read is what Kafka knows of a lane, read stably under a fence (S2).
type Read struct {
	HasOffset bool   // the group has an offset for the lane
	Offset    int64  // that offset
	Metadata  string // and its metadata: a D, unless an administrator set it
	Record    string // the last committed D of <job>.decision, "" without one

	TopicID    UUID  // of the input topic
	Partitions int32 // of the input topic
	LogStart   int64 // of the lane's input partition
	LogEnd     int64 // its high watermark

	StateStart int64 // of the lane's partition of <job>.state
	StateEnd   int64 // its high watermark
}

// Same reports whether two readings found the same decision, in the same two
// copies. An owner at work moves between the readings of the copies: what is
// found twice is a fact.
func (r *Read) Same(o *Read) bool {
	return r.HasOffset == o.HasOffset && r.Offset == o.Offset && r.Metadata == o.Metadata && r.Record == o.Record
}

// Shard is what the protocol needs of one MySQL shard. Every call takes a
// connection of its own that was checked to be the recorded, writable server,
// and may be retried by the caller. An error that is not one of this package's
// means that the outcome is unknown: the call may have been applied, or may be
// applied later.
type Shard interface {
	// Name is the shard's name in the configuration.
	Name() string

	// EndOlder ends the connections that older sessions of the lane still have
	// in a burst (S4): an unprepared branch is in no list. It returns when the
	// lane's lock is free.
	EndOlder(ctx context.Context, lane Lane) error

	// Prepared lists the prepared branches whose gtrid begins with prefix.
	Prepared(ctx context.Context, prefix string) ([]GTRID, error)

	// LaneRow reads the lane's row; false without one.
	LaneRow(ctx context.Context, lane Lane) (LaneRow, bool, error)

	// EpochRow reads the row of the lane's epoch; false without one. Only this
	// row proves that the branch was committed.
	EpochRow(ctx context.Context, lane Lane, seq int64) (EpochRow, bool, error)

	// Prepare is phase 1 on this shard (C3), in one burst on one connection:
	// XA START to XA PREPARE. nil means prepared, durable on return. After an
	// error that is a *RowsExistError, or wraps ErrRolledBack, nothing of the
	// branch is left; after any other it may be prepared, now or later. The
	// same gtrid is never tried again.
	Prepare(ctx context.Context, b *Branch) error

	// Commit is XA COMMIT. ErrNotListed (MySQL's 1397) proves nothing.
	Commit(ctx context.Context, g GTRID) error

	// Rollback is XA ROLLBACK. ErrNotListed proves nothing.
	Rollback(ctx context.Context, g GTRID) error
}

// ErrOutcomeUnknown marks an Owner's Commit whose outcome is not known: the
// decision may stand, may not, or may yet be made. Only a later fence makes it
// readable.
var ErrOutcomeUnknown = errors.New("outcome of the decision unknown")

// ErrNotListed is MySQL's "unknown XID". It was seen for branches that never
// existed, were rolled back, committed, still attached, being committed, and on
// another server: it proves nothing.
var ErrNotListed = errors.New("unknown XID")

// ErrNotSent says of a failed Commit or Rollback that no statement was sent: no
// connection could be had.
var ErrNotSent = errors.New("statement not sent")

// ErrTooLarge says of a failed Prepare that the branch is more than the server
// takes in one: a smaller epoch may fit.
var ErrTooLarge = errors.New("the epoch is too large for the shard")

// ErrRolledBack says of a failed Prepare that the branch is gone.
var ErrRolledBack = errors.New("branch rolled back")

// NetError says that a net decided which never should: the row was not the one
// that the protocol promises. A superseded owner can meet it too.
type NetError struct {
	Net string // "compare-and-set", "epoch-key", "row-read-back"
	Err error
}

func (e *NetError) Error() string { return "net " + e.Net + ": " + e.Err.Error() }

// Unwrap gives what the net found.
func (e *NetError) Unwrap() error { return e.Err }

// RowsExistError says that the ledger has rows for ids that the dedup state
// did not know (MySQL's 1062): the last line of defence decided. The branch is
// rolled back. The next session adds the entries to its dedup state as it meets
// their ids.
type RowsExistError struct {
	Shard   string
	Entries []ExistingRow
}

func (e *RowsExistError) Error() string {
	return "shard " + e.Shard + ": the ledger already has rows of this epoch: the dedup state had forgotten their ids"
}

// ExistingRow is a ledger row as the dedup state would remember it.
type ExistingRow struct {
	Key     [16]byte // dedup key
	Content [8]byte  // first bytes of the content hash
	Offset  int64    // where the id was first applied
	// Time decides in which bucket the entry is remembered, µs since 1970 UTC:
	// the larger of the row's event time and that of the record that met it.
	// The row's own bucket may be forgotten, and the same epoch would fail again
	// and again.
	Time int64
}

// LaneRow is a lane's row in billing_lane: its last committed epoch on a shard.
type LaneRow struct {
	Incarnation int64
	Seq         int64
	Next        int64
}

// EpochRow is what the protocol needs of a row of billing_epoch.
type EpochRow struct {
	GTRID  GTRID
	Next   int64
	Counts Counts
	Digest []byte // of this row and all before it on this shard
}

// Counts are the outcomes of an epoch's records: In is the sum of the others.
type Counts struct {
	In, Applied, Duplicates, Conflicts, Rejected int64
}

// Branch is one epoch's writes on one shard.
type Branch struct {
	Lane        Lane
	TopicID     UUID
	GTRID       GTRID
	Incarnation int64
	Seq         int64
	OffsetFrom  int64 // the previous epoch's OffsetNext
	OffsetNext  int64
	Counts      Counts // of the whole epoch, the same on every shard
	PrevDigest  []byte // of the previous epoch's row on this shard; nil with Seq 1
	Contents    any    // Epoch.Contents: opaque to the protocol
}

// Epoch is what a lane froze at a barrier (C1). The protocol reads it and
// never changes it.
type Epoch struct {
	Next            int64 // offset behind the last record of the epoch
	LeaderEpoch     int32 // of that record; -1 where unknown
	StreamTime      int64 // as Decision's
	ForgottenBefore int64 // as Decision's: buckets that end at or before it are forgotten
	Counts          Counts
	Chunks          []Chunk // additions to the dedup state
	StateCount      uint64  // of the dedup state with the additions, less what is forgotten
	StateChecksum   uint64
	Contents        any // given to every shard's Branch
}

// Chunk is a piece of the dedup state: entries of one time bucket.
type Chunk struct {
	BucketEnd int64 // µs since 1970 UTC
	Data      []byte
}

// State is a lane's dedup state while it is restored (S5).
type State interface {
	// Load adds one chunk and says which bucket it belongs to, by its end in µs
	// since 1970 UTC. It fails for an unknown version (ErrChunkVersion) and for
	// damage.
	Load(data []byte) (bucketEnd int64, err error)
	// Restored ends the restore: buckets that end at or before forgottenBefore
	// are dropped. It returns the number of entries left and their checksum.
	Restored(forgottenBefore int64) (count, checksum uint64)
}

// ErrChunkVersion says that a newer build wrote this chunk of the dedup state.
var ErrChunkVersion = errors.New("state chunk of an unknown version")
