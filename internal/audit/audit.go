// Package audit reads what the service has written and says whether it is
// right: it computes every sum, hash and digest again, from the tables alone,
// and holds the shards and Kafka's decisions against each other. It changes
// nothing, and may run beside the service.
//
//   - audit.go: what is asked for and what is answered; Verify, the whole of it
//   - snapshot.go: one shard at one moment
//   - identity.go: whose tables these are, and which lanes they have
//   - lane.go: a lane's chain of epochs on all shards, in step
//   - epoch.go: one epoch on one shard; the digest
//   - rows.go: one row of the ledger or of the kept records
//   - locate.go: which row it is, where a digest is wrong
//   - totals.go: the totals against the ledger and the epochs' sums
//   - behind.go: what a shard has still to show; Kafka's decisions; what is in doubt
//   - answer.go: the tables against the answer of a load
//   - lookup.go: what became of one message
//
// What is in doubt can also be asked for alone:
//
//   - indoubt.go: prepared branches, of whoever, and what the decision says of each
//   - unsettled.go: the lanes for which S0 to S4 has something to do or to say
package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/loadgen"
)

// MySQL is what an audit needs of the shards, by number.
type MySQL interface {
	// Reader gives a connection of its own, for reading only. The caller closes it.
	Reader(ctx context.Context, shard int) (*sql.Conn, error)
	// Prepared lists the branches that are prepared on the shard, whosever.
	Prepared(ctx context.Context, shard int) ([]checkpoint.GTRID, error)
}

// Kafka is what an audit needs of Kafka.
type Kafka interface {
	// Partitions is the input's number of partitions.
	Partitions(ctx context.Context) (int32, error)
	// Look reads what Kafka knows of a lane of the input, stably and under no
	// fence. It waits for an open Kafka transaction of the lane until ctx ends.
	Look(ctx context.Context, partition int32) (checkpoint.Read, error)
}

// Config says what is right.
type Config struct {
	Job    string
	Topic  string        // the input
	Shards []string      // names, by number
	Window time.Duration // of the totals

	TypePrefix string // with Window it is what the job's decisions were made with

	MySQL MySQL
	Kafka Kafka // nil: decisions are not compared

	// Answer is what must be in the tables, and nothing else: a load was the first
	// and only one of the job. It is waited for while it is being booked. nil: it is
	// not known what the messages were.
	Answer *loadgen.Expected

	// Patience is for how long shards that are an epoch apart, and decisions that
	// are ahead, are read again. 0 means 10 s.
	Patience time.Duration

	Tell Listener
}

// Listener is told what is found. Its functions are called one at a time; nil
// ones are not called.
type Listener struct {
	Difference func(Difference)
	InDoubt    func(InDoubt)
	Note       func(string)   // what was not checked, or is worth knowing and no difference
	Progress   func(Progress) // often
}

// Difference is one thing that is not as it must be.
type Difference struct {
	Shard    string `json:"shard"` // its name; "kafka" for a decision
	Table    string `json:"table"` // or the topic of decisions
	Key      string `json:"key"`   // of the row
	Wrong    string `json:"wrong"`
	Expected string `json:"expected"`
}

// InDoubt is a branch that is prepared, and stays so for longer than a service
// at work takes to end it.
type InDoubt struct {
	Shard       string           `json:"shard"`
	Lane        string           `json:"lane"` // topic/partition, as far as it is known
	Incarnation int64            `json:"incarnation"`
	Seq         int64            `json:"seq"`
	GTRID       checkpoint.GTRID `json:"gtrid"`
	Decision    checkpoint.Word  `json:"decision"` // Unknown without Kafka
}

// Progress is how far an audit has come.
type Progress struct {
	Step  string // "epochs", "totals", ...
	Done  int64  // in the unit of Total
	Total int64  // 0 where it is not known
	Rows  int64  // rows read so far, of all steps
}

// Summary is what an audit has looked at and found.
type Summary struct {
	Shards      int      // of the configuration
	Lanes       int      // that any table has
	Epochs      int64    // of all lanes
	LedgerOff   int64    // of them, written with the ledger off
	Outcomes    Outcomes // of all epochs
	LedgerRows  int64    // of all shards, as all below
	Rejects     int64    // kept records: rejected and conflicting ones
	Totals      int64    // rows of billing_total
	Booked      []Booked // by currency, from the totals
	Differences int64    // told
	InDoubt     int64    // told
	Compared    bool     // with Kafka's decisions, all of them
	Answered    bool     // with the load's answer, all of it
	Took        time.Duration
}

// Outcomes are what became of the records: RecordsIn is the sum of the others.
type Outcomes struct {
	RecordsIn  int64 `json:"records_in"`
	Applied    int64 `json:"applied"`
	Duplicates int64 `json:"duplicates"`
	Conflicts  int64 `json:"conflicts"`
	Rejected   int64 `json:"rejected"`
}

// Booked is what is booked in a currency.
type Booked struct {
	Currency string `json:"currency"`
	Charge   string `json:"charge_amount"`
	Credit   string `json:"credit_amount"`
	Net      string `json:"net_amount"`
	Entries  int64  `json:"entry_count"`
}

// errStop ends an audit that has said why it can't go on.
var errStop = errors.New("stop")

// verifier is one audit at work. Its goroutines work on one shard each, and
// meet after each step.
type verifier struct {
	cfg    Config
	shards []*snapshot
	owner  string // of the job's branches; "" where no shard says which set this is
	lanes  []*lane
	told   telling
	sum    Summary
	before []listed // branches that were prepared before the snapshots were taken
}

// Verify looks at everything once. Differences are told as they are found; an
// error says that it was not looked at everything.
func Verify(ctx context.Context, cfg Config) (Summary, error) {
	if cfg.Patience == 0 {
		cfg.Patience = 10 * time.Second
	}
	v := &verifier{cfg: cfg, told: telling{to: cfg.Tell}}
	begun := time.Now()
	defer v.close()
	for _, step := range []func(context.Context) error{
		v.awaitLoad, // whose answer is known
		v.open,      // every shard at one moment, all moments as near as can be
		v.identity,  // whose tables these are
		v.findLanes, // which lanes there are
		v.sameJob,   // whether Kafka knows them by the same settings
		v.chains,    // every epoch of every lane, with everything that it wrote
		v.totals,    // what the totals add up to
		v.answer,    // what a load says they must be
		v.behind,    // what shards were behind with; the decisions; what is in doubt
	} {
		if err := step(ctx); errors.Is(err, errStop) {
			break
		} else if err != nil {
			return v.summary(begun), err
		}
	}
	return v.summary(begun), nil
}

func (v *verifier) summary(begun time.Time) Summary {
	v.sum.Shards, v.sum.Lanes = len(v.cfg.Shards), len(v.lanes)
	v.sum.Differences, v.sum.InDoubt = v.told.differences, v.told.inDoubt
	v.sum.Took = time.Since(begun)
	return v.sum
}

// laneKey is the key of a row of billing_lane.
func laneKey(l checkpoint.Lane) string { return l.String() }

func epochKey(l checkpoint.Lane, seq int64) string { return fmt.Sprintf("%s epoch %d", l, seq) }

func epochsKey(l checkpoint.Lane, from, to int64) string {
	if from == to {
		return epochKey(l, from)
	}
	return fmt.Sprintf("%s epochs %d to %d", l, from, to)
}

func offsetKey(l checkpoint.Lane, offset int64) string { return fmt.Sprintf("%s offset %d", l, offset) }

func sumKey(l checkpoint.Lane, seq int64, currency string) string {
	return fmt.Sprintf("%s epoch %d %s", l, seq, Printable(currency))
}

// The tables, as lines name them.
const (
	tableSchema = "billing_schema"
	tableMeta   = "billing_meta"
	tableLane   = "billing_lane"
	tableEpoch  = "billing_epoch"
	tableSum    = "billing_epoch_sum"
	tableTotal  = "billing_total"
	tableLedger = "billing_ledger"
	tableReject = "billing_rejects"
)
