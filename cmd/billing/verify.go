package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"billing/cmd/billing/config"
	"billing/internal/audit"
	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/loadgen"

	"github.com/spf13/cobra"
)

func newVerifyCommand() *cobra.Command {
	var asJSON bool
	var answer string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compute everything that is booked again, and compare",
		Long: `Reads all tables of all shards, each shard in one consistent snapshot, and
compares: the chain of epochs, the equation of outcomes, the digests, the ledger
with the totals and with the epochs' sums per currency, lanes, kept records, and
the shards with each other; where Kafka can be reached, also the decisions. It
changes nothing and may run beside the service. Run it daily, after each restore
and failover, and before the books are closed.

Each difference is one line on stdout: shard, table, key, what is wrong, what
was expected. A branch that stays prepared is in doubt, which is no difference:
the service ends it, or billing xa resolve. Without Kafka it says that decisions
were not compared; that changes no exit code.

With --answer it also compares the tables with what billing produce said must be
in them: every outcome, reason and total, and nothing else. It first waits until
the load is booked, for as long as the service goes on booking it.

The answer of --json is one object: ok, differences (shard, table, key, wrong,
expected), in_doubt (shard, lane, incarnation, seq, gtrid, decision), notes,
decisions_compared, answer_compared, checked (what was read), outcomes, booked
(by currency).`,
		Example: `  billing verify --config config.yaml

  # a load on a fresh topic: is everything booked as it must be?
  billing produce --config config.yaml --count 100000 > answer.json
  billing verify --config config.yaml --answer answer.json

  # as a MySQL user of its own, who may read everything (docs/grants.md)
  BILLING_SHARDS='[{"name":"a","dsn_file":"/run/secrets/reader-a"}]' \
    billing verify --config config.yaml

  # for a script
  billing verify --config config.yaml --json | jq '.differences | length'`,
		Annotations: exits(`0  everything is right
1  there are differences
2  wrong usage or configuration
3  the databases are not those of the configuration
4  a MySQL server could not be reached or failed: not everything was compared`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(configFlag(cmd), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			var expected *loadgen.Expected
			if cmd.Flags().Changed("answer") {
				if expected, err = readAnswer(answer, cmd.InOrStdin(), c.Kafka.Topic); err != nil {
					return err
				}
			}
			var out verifyWriter = &verifyText{to: cmd.OutOrStdout()}
			if asJSON {
				out = &verifyJSON{to: cmd.OutOrStdout()}
			}
			return verify(cmd.Context(), c, expected, out, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "answer in JSON")
	cmd.Flags().StringVar(&answer, "answer", "", "compare with what billing produce has written to `FILE`; - is stdin")
	return cmd
}

// verify audits what the configuration names; expected is a load's answer, or
// nil. Answers go to out as they come.
func verify(ctx context.Context, c *config.Config, expected *loadgen.Expected, out verifyWriter, errOut io.Writer) error {
	cfg := sinkConfig(c, quiet)
	cfg.StatementTimeout = verifyStatement
	sink, kafka, err := openToLook(c, cfg)
	if err != nil {
		return err
	}
	defer sink.Close()
	defer kafka.Close()

	shown := newProgress(errOut, isTerminal(errOut))
	begun := time.Now()
	sum, err := audit.Verify(ctx, audit.Config{
		Job: c.Job, Topic: c.Kafka.Topic, Shards: shardNames(c), Window: c.Aggregate.Window, TypePrefix: c.Message.TypePrefix,
		MySQL: sink, Kafka: &auditKafka{Client: kafka}, Answer: expected,
		Tell: audit.Listener{
			Difference: func(d audit.Difference) { shown.clear(); out.difference(d) },
			InDoubt:    func(d audit.InDoubt) { shown.clear(); out.inDoubt(d) },
			Note:       func(n string) { shown.clear(); out.note(n) },
			Progress:   func(p audit.Progress) { shown.show(func() string { return progressLine(p, time.Since(begun)) }) },
		},
	})
	shown.clear()
	if werr := out.end(sum, err); err == nil && werr != nil {
		return fmt.Errorf("verify: write: %w", werr)
	}
	switch {
	case err != nil:
		return fmt.Errorf("verify: not everything was compared: %w", err)
	case sum.Differences > 0:
		return &reportedError{&differenceError{int(sum.Differences)}}
	}
	return nil
}

// auditKafka is Kafka as an audit sees it.
type auditKafka struct {
	*consume.Client
	absent []string // the job's own topics that are not there, set before lanes are read
}

// Partitions is the input's number of partitions.
func (k *auditKafka) Partitions(ctx context.Context) (int32, error) {
	input, err := k.LookUp(ctx)
	if err != nil {
		return 0, err
	}
	// How the topics are set up is the start's business.
	if k.absent, err = k.CheckTopics(ctx, input, true); err != nil && checkpoint.AsRefusal(err) == nil {
		return 0, err
	}
	return input.Partitions, nil
}

// Look reads a lane; a topic that is not there is read as empty.
func (k *auditKafka) Look(ctx context.Context, partition int32) (checkpoint.Read, error) {
	r, err := k.LookWithout(ctx, partition, k.absent)
	if consume.Unstable(err) {
		err = errHeldBack
	}
	return r, err
}

var errHeldBack = errors.New("an open Kafka transaction holds it back: that of an owner who died while deciding, which the lane's next session ends, or the broker after kafka.transaction_timeout")

// verifyStatement bounds the wait for one answer of MySQL: some questions go
// through whole indexes.
const verifyStatement = 3 * time.Minute

func progressLine(p audit.Progress, took time.Duration) string {
	if p.Total == 0 {
		return fmt.Sprintf("%s (%d rows read so far)", p.Step, p.Rows)
	}
	rate := fmt.Sprintf("%d rows, %.0f rows/s", p.Rows, float64(p.Rows)/took.Seconds())
	share := float64(p.Done) / float64(p.Total)
	left := ""
	if share > 0.01 {
		left = fmt.Sprintf(", %s left", time.Duration(float64(took)*(1-share)/share).Round(time.Second))
	}
	return fmt.Sprintf("%s %s  %s%s", p.Step, bar(share), rate, left)
}

// verifyWriter writes the answer, piece by piece: there may be many.
type verifyWriter interface {
	difference(d audit.Difference)
	inDoubt(d audit.InDoubt)
	note(n string)
	end(sum audit.Summary, failure error) error
}

// verifyText writes lines for people.
type verifyText struct {
	to  io.Writer
	err error // the first
}

func (w *verifyText) line(format string, args ...any) {
	if _, err := fmt.Fprintf(w.to, format+"\n", args...); err != nil && w.err == nil {
		w.err = err
	}
}

func (w *verifyText) difference(d audit.Difference) {
	w.line("difference: shard %s, %s, %s: %s; expected %s", d.Shard, d.Table, d.Key, d.Wrong, d.Expected)
}

func (w *verifyText) inDoubt(d audit.InDoubt) {
	w.line("in doubt: shard %s, %s epoch %d of incarnation %d: prepared, %s; branch %s", d.Shard, d.Lane, d.Seq, d.Incarnation, decisionWords[d.Decision], d.GTRID)
}

// decisionWords say what the decision makes of a branch that is prepared.
var decisionWords = map[checkpoint.Word]string{
	checkpoint.Decided:   "decided: the lane's next owner commits it, or billing xa resolve",
	checkpoint.Undecided: "not decided: the lane's next owner rolls it back, or billing xa resolve",
	checkpoint.Older:     "older than the decision: the shard has come back older; see the runbook (old-branch)",
	checkpoint.Ahead:     "ahead of the decision: Kafka has lost decisions; see the runbook (shard-ahead)",
	audit.Unknown:        "unknown whether decided: the lane's decision was not read, see the notes",
}

func (w *verifyText) note(n string) { w.line("note: %s", n) }

func (w *verifyText) end(sum audit.Summary, failure error) error {
	if failure != nil {
		w.line("FAILED: not everything was compared, %d differences so far", sum.Differences)
		return w.err
	}
	o := &sum.Outcomes
	w.line("read: %d shards, %d lanes, %d epochs, %d ledger rows, %d kept records, %d totals", sum.Shards, sum.Lanes, sum.Epochs, sum.LedgerRows, sum.Rejects, sum.Totals)
	w.line("records: %d = %d applied + %d duplicates + %d conflicts + %d rejected", o.RecordsIn, o.Applied, o.Duplicates, o.Conflicts, o.Rejected)
	for _, b := range sum.Booked {
		w.line("booked: %s %s (charges %s, credits %s) in %d entries", b.Currency, shortened(b.Net), shortened(b.Charge), shortened(b.Credit), b.Entries)
	}
	decisions := "the decisions in Kafka agree"
	if !sum.Compared {
		decisions = "the decisions in Kafka were not compared, see the notes"
	}
	answer := ""
	if sum.Answered {
		answer = ", everything is booked that the load's answer says, and nothing else"
	}
	doubt := ""
	if sum.InDoubt > 0 {
		doubt = ", in doubt: " + count(sum.InDoubt, "branch")
	}
	if sum.Differences > 0 {
		w.line("FAILED: %s%s. Next step: docs/runbook.md, \"Verify finds a difference\"", count(sum.Differences, "difference"), doubt)
	} else {
		w.line("ok: no difference%s, %s%s", answer, decisions, doubt)
	}
	return w.err
}

func count(n int64, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "h"):
		return fmt.Sprintf("%d %ses", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// verifyJSON writes one object. Differences are written as they come, so that
// any number of them takes no memory; the rest comes behind them.
type verifyJSON struct {
	to    io.Writer
	count int
	doubt []audit.InDoubt
	notes []string
	err   error // the first
}

func (w *verifyJSON) write(s string) {
	if _, err := io.WriteString(w.to, s); err != nil && w.err == nil {
		w.err = err
	}
}

func (w *verifyJSON) begin() {
	if w.count == 0 {
		w.write("{\n  \"differences\": [")
	}
}

func (w *verifyJSON) difference(d audit.Difference) {
	w.begin()
	if w.count++; w.count > 1 {
		w.write(",")
	}
	b, err := json.Marshal(d)
	if err != nil && w.err == nil {
		w.err = err
	}
	w.write("\n    " + string(b))
}

func (w *verifyJSON) inDoubt(d audit.InDoubt) { w.doubt = append(w.doubt, d) }
func (w *verifyJSON) note(n string)           { w.notes = append(w.notes, n) }

// verifyRest is what stands behind the differences.
type verifyRest struct {
	OK       bool            `json:"ok"`
	Complete bool            `json:"complete"` // everything was compared; false after a failure
	InDoubt  []audit.InDoubt `json:"in_doubt"`
	Notes    []string        `json:"notes"`
	Compared bool            `json:"decisions_compared"`
	Answered bool            `json:"answer_compared"`
	Checked  verifyChecked   `json:"checked"`
	Outcomes audit.Outcomes  `json:"outcomes"`
	Booked   []audit.Booked  `json:"booked"`
	Seconds  float64         `json:"seconds"`
}

type verifyChecked struct {
	Shards     int   `json:"shards"`
	Lanes      int   `json:"lanes"`
	Epochs     int64 `json:"epochs"`
	LedgerOff  int64 `json:"epochs_with_ledger_off"`
	LedgerRows int64 `json:"ledger_rows"`
	Rejects    int64 `json:"rejects"`
	Totals     int64 `json:"totals"`
}

func (w *verifyJSON) end(sum audit.Summary, failure error) error {
	w.begin()
	if w.count > 0 {
		w.write("\n  ")
	}
	b, err := json.MarshalIndent(verifyRest{
		OK: failure == nil && sum.Differences == 0, Complete: failure == nil,
		InDoubt: append([]audit.InDoubt{}, w.doubt...), Notes: append([]string{}, w.notes...), Compared: sum.Compared, Answered: sum.Answered,
		Checked:  verifyChecked{sum.Shards, sum.Lanes, sum.Epochs, sum.LedgerOff, sum.LedgerRows, sum.Rejects, sum.Totals},
		Outcomes: sum.Outcomes, Booked: append([]audit.Booked{}, sum.Booked...), Seconds: sum.Took.Seconds(),
	}, "", "  ")
	if err != nil {
		return err
	}
	w.write("],\n" + string(b[2:]) + "\n")
	return w.err
}
