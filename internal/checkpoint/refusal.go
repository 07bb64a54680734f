package checkpoint

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Scope says what a Refusal stops.
type Scope int

const (
	// StopsLane stops one lane: the others go on, health names it, and it
	// looks again every minute, so that a repair needs no restart.
	StopsLane Scope = iota
	// EndsProcess ends the process with exit code 3.
	EndsProcess
)

// Refusal is a state in which going on could lose or double money. Its message
// is for the operator and names the next step.
type Refusal struct {
	Scope  Scope
	Reason string // one stable word of the closed list below
	What   string // the lane ("topic/3") or the shard's name
	Wrong  string // what was found, what was expected
	Next   string // what to do
	Err    error  // the cause, if any

	// Keys are those of the configuration that it is about, where the reason does
	// not say so alone.
	Keys []string
}

func (r *Refusal) Error() string {
	cause := ""
	if r.Err != nil {
		cause = " (" + r.Err.Error() + ")"
	}
	return fmt.Sprintf("refused (%s) %s: %s%s. Next step: %s", r.Reason, r.What, r.Wrong, cause, r.Next)
}

func (r *Refusal) Unwrap() error { return r.Err }

// ServerError is a server that could not be asked, or that failed or said no.
// Money is not in danger, and waiting may help.
type ServerError struct {
	What       string // the shard's name; the broker, or what was asked of it
	TurnedAway bool   // the server itself has said no
	Next       string // what to do; "" where that is not known
	Err        error
}

func (e *ServerError) Error() string {
	if e.Next == "" {
		return e.Says()
	}
	return e.Says() + ". Next step: " + e.Next
}

// Says is what has happened, in words for who runs the service.
func (e *ServerError) Says() string { return libraryWords.Replace(e.Err.Error()) }

// libraryWords are what libraries say of a server that is away.
var libraryWords = strings.NewReplacer(
	"context deadline exceeded", "no answer in time",
	"i/o timeout", "no answer in time",
	"unable to dial: dial tcp: lookup ", "look up ", "unable to dial: dial tcp ", "connect to ",
	"connect: dial tcp: lookup ", "connect: look up ", "connect: dial tcp ", "connect to ",
)

func (e *ServerError) Unwrap() error { return e.Err }

// Problems takes apart what several checks have joined: each refusal and each
// server's error by itself, and what is neither as it is.
func Problems(err error) (all []error) {
	switch e := err.(type) { //nolint:errorlint // the tree is walked here
	case nil:
		return nil
	case *Refusal, *ServerError:
		return []error{err}
	case interface{ Unwrap() []error }:
		if parts := e.Unwrap(); knows(err) {
			for _, part := range parts {
				all = append(all, Problems(part)...)
			}
			return all
		}
	case interface{ Unwrap() error }:
		if knows(err) {
			return Problems(e.Unwrap())
		}
	}
	return []error{err}
}

// knows reports whether Problems finds something in err.
func knows(err error) bool {
	for e := range every[error](err) {
		switch e.(type) { //nolint:errorlint // every walks the tree
		case *Refusal, *ServerError:
			return true
		}
	}
	return false
}

// AsRefusal finds the refusal in err, nil without one. Of several, from several
// shards, one that ends the process comes first.
func AsRefusal(err error) *Refusal {
	var first *Refusal
	for r := range every[*Refusal](err) {
		if r.Scope == EndsProcess {
			return r
		}
		if first == nil {
			first = r
		}
	}
	return first
}

// EveryRowsExist finds what each shard's ledger had (see RowsExistError).
func EveryRowsExist(err error) (all []*RowsExistError) {
	return slices.Collect(every[*RowsExistError](err))
}

// every yields all errors of a type in the tree of err; errors.As stops at the
// first, and what several shards say is joined.
func every[T error](err error) iter.Seq[T] {
	return func(yield func(T) bool) { walk(err, yield) }
}

func walk[T error](err error, yield func(T) bool) bool {
	if err == nil {
		return true
	}
	if e, ok := err.(T); ok && !yield(e) { //nolint:errorlint // the walk unwraps itself
		return false
	}
	switch u := err.(type) { //nolint:errorlint // likewise
	case interface{ Unwrap() error }:
		return walk(u.Unwrap(), yield)
	case interface{ Unwrap() []error }:
		for _, e := range u.Unwrap() {
			if !walk(e, yield) {
				return false
			}
		}
	}
	return true
}

// Reasons of refusals: the words of logs, health, --accept and the runbook.
const (
	ReasonPartitionsChanged  = "partitions-changed"  // input's partition count is not D's
	ReasonTopicRecreated     = "topic-recreated"     // input's topic id is not D's
	ReasonFingerprint        = "fingerprint"         // shard set, window or prefix is not D's
	ReasonShardsChanged      = "shards-changed"      // number or order of shards is not the recorded one
	ReasonBrokerFeature      = "broker-feature"      // transaction.version below 2
	ReasonTransactionTimeout = "transaction-timeout" // larger than the broker allows
	ReasonTopicMissing       = "topic-missing"       // input, decision or state topic
	ReasonTopicConfig        = "topic-config"        // decision or state topic with another policy or partition count
	ReasonShardUnfit         = "shard-unfit"         // no usable XA, not durable, wrong product or version
	ReasonShardReadOnly      = "shard-read-only"     // read_only or super_read_only
	ReasonServerChanged      = "server-changed"      // another server than recorded
	ReasonMigrationsPending  = "migrations-pending"  // schema older or newer than this build
	ReasonDecisionVersion    = "decision-version"    // a newer build wrote D
	ReasonChunkVersion       = "chunk-version"       // a newer build wrote a state chunk
	ReasonFirstStart         = "first-start"         // nothing known, and not allowed to start
	ReasonLaneKnown          = "lane-known"          // Kafka knows nothing of the lane, a shard does
	ReasonOffsetReset        = "offset-reset"        // an offset without D
	ReasonDecisionsUnequal   = "decisions-unequal"   // the two copies of D differ, twice
	ReasonUnreadDeleted      = "unread-deleted"      // log start beyond the next offset
	ReasonOffsetBeyondEnd    = "offset-beyond-end"   // next offset beyond the log's end
	ReasonStateDeleted       = "state-deleted"       // log start of the state topic beyond the oldest live offset
	ReasonStateDamaged       = "state-damaged"       // a chunk missing or wrong, count or checksum not D's
	ReasonLostEpoch          = "lost-epoch"          // a shard has lost a committed epoch
	ReasonShardAhead         = "shard-ahead"         // a lane's row is ahead of D: Kafka lost a decision
	ReasonOldBranch          = "old-branch"          // a prepared branch of an epoch before D's: the shard came back older
	ReasonInvariant          = "invariant"           // a broken invariant
	ReasonBatchTooLarge      = "batch-too-large"     // a compressed batch that takes more memory than allowed
	ReasonOffsetOutOfRange   = "offset-out-of-range" // while running
)
