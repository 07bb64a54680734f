package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"billing/internal/audit"
	"billing/internal/checkpoint"

	"github.com/spf13/cobra"
)

func newXACommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "xa COMMAND",
		Short: "Look at prepared branches, and settle those in doubt",
		Example: `  billing xa list --config config.yaml
  billing xa resolve --config config.yaml`,
	}
	cmd.AddCommand(newXAListCommand(), newXAResolveCommand())
	return cmd
}

func newXAListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List prepared branches and what the decision says of each",
		Long: `Lists every branch that is prepared on the shards' MySQL servers, of whoever. It
changes nothing, and may be used beside the service at work.

Of this job's branches it says lane, INCARNATION, epoch (SEQ), since when it has
been prepared (AGE), and what the decision in Kafka says of it (DECISION):

  decided      the decision names it: it is to be committed
  undecided    the decision does not name it: it is to be rolled back
  in-flight    not decided yet: an instance that runs is at work on it
  older        of an epoch before the decided one: the shard has come back older
  ahead        of a later session or epoch than the decision's: Kafka has lost
               some
  no-decision  Kafka has none for the lane
  other-topic  of another topic than the configured one, or of one that was
               created again: neither the service nor xa resolve touches it
  unknown      the decision could not be read

Others' branches are shown once for each server, as foreign, or as another-job
if another job of this service has made them. Nobody touches them. XID is the
name as XA COMMIT and XA ROLLBACK take it; its formatID is 1 where it says none.
Never end a branch of this job by hand: the service does it, or xa resolve.

The fields of --json: job, topic; branches, each with owner (job, another-job,
unclear, foreign), shard, listed_on (the shards on whose server it is), lane,
incarnation, seq, prepared_at, age_seconds, offset_from, offset_next, records,
decision, why, gtrid (of this service's), xid, format_id, gtrid_hex, bqual_hex,
as far as they are known; counts, by decision and of others by owner; problems.`,
		Example: `  billing xa list --config config.yaml

  # is anything left that no instance is at work on?
  billing xa list --config config.yaml --json | jq '.branches[] |
    select(.owner == "job" and .decision != "in-flight")'`,
		Annotations: exits(`0  all could be asked, whether or not there are branches
2  wrong usage or configuration
3  a shard or a topic is not the recorded one, or a right is missing
4  a shard, the brokers or a decision could not be asked; the list is of the
   others`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(configFlag(cmd), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			branches, problems, err := preparedBranches(cmd.Context(), c)
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), newBranchesAnswer(c.Job, c.Kafka.Topic, branches, problems, time.Now()))
			} else {
				err = writeBranches(cmd.OutOrStdout(), c.Job, branches, len(problems) > 0, time.Now())
			}
			if err != nil {
				return err
			}
			if len(problems) > 0 {
				return fmt.Errorf("xa list: %w", errors.Join(problems...))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "answer in JSON")
	return cmd
}

// orDash is a cell of a table.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// writeBranches writes the list for people; partial says that not everything
// could be asked.
func writeBranches(w io.Writer, job string, branches []audit.Branch, partial bool, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(branches) > 0 {
		fmt.Fprintln(t, "SHARD\tOWNER\tLANE\tINCARNATION\tSEQ\tAGE\tDECISION\tXID")
	}
	var notes []string
	for i := range branches {
		b := &branches[i]
		shard, owner, lane, incarnation, seq, age := b.Of, job, "", "", "", ""
		if b.Owner != audit.Ours {
			shard, owner = strings.Join(b.Servers, ","), string(b.Owner)
		}
		if b.Owner != audit.Foreign {
			lane, incarnation, seq = b.Lane(), strconv.FormatInt(b.Name.Incarnation, 10), strconv.FormatInt(b.Name.Seq, 10)
		}
		if b.Written != nil {
			age = ageOf(b.Written, now).Round(time.Second).String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", orDash(shard), owner, orDash(lane), orDash(incarnation), orDash(seq), orDash(age), orDash(string(b.Word)), xidText(&b.XID))
		if b.Why != "" {
			notes = append(notes, fmt.Sprintf("%s, epoch %d of incarnation %d on %s: %s", b.Lane(), b.Name.Seq, b.Name.Incarnation, orDash(b.Of), b.Why))
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("xa list: write: %w", err)
	}
	count := countsText(job, branches)
	if partial {
		count += "; not everything could be asked, so there may be more"
	}
	lines := append(notes, count)
	if len(branches) > 0 {
		lines = append([]string{""}, lines...)
	}
	if _, err := fmt.Fprintln(w, strings.Join(lines, "\n")); err != nil {
		return fmt.Errorf("xa list: write: %w", err)
	}
	return nil
}

// ageOf is how long a branch has been prepared. Two clocks may differ.
func ageOf(w *audit.Written, now time.Time) time.Duration { return max(0, now.Sub(w.PreparedAt)) }

// words are what is said of branches, in the order in which they are counted.
var words = []checkpoint.Word{checkpoint.Decided, checkpoint.Undecided, audit.InFlight, checkpoint.Older, checkpoint.Ahead, audit.NoDecision, audit.OtherTopic, audit.Unknown}

// counts are the numbers of branches: of ours by word, of others by owner.
func counts(branches []audit.Branch) map[string]int {
	n := map[string]int{}
	for i := range branches {
		if b := &branches[i]; b.Owner == audit.Ours {
			n[string(b.Word)]++
		} else {
			n[string(b.Owner)]++
		}
	}
	return n
}

func countsText(job string, branches []audit.Branch) string {
	n := counts(branches)
	ours, parts := 0, []string{}
	for _, w := range words {
		if k := n[string(w)]; k > 0 {
			ours += k
			parts = append(parts, fmt.Sprintf("%d %s", k, w))
		}
	}
	text := fmt.Sprintf("prepared branches of job %s: %d", job, ours)
	if ours > 0 {
		text += " (" + strings.Join(parts, ", ") + ")"
	}
	if k := n[string(audit.Unclear)]; k > 0 {
		text += fmt.Sprintf("; perhaps its own: %d", k)
	}
	return fmt.Sprintf("%s; of other jobs: %d; foreign: %d", text, n[string(audit.OtherJob)], n[string(audit.Foreign)])
}

// xidText is a branch's name as MySQL's XA statements take it: as text where it
// is plain, else as hex.
func xidText(x *audit.XID) string {
	text := xidPart(x.GTRID) + "," + xidPart(x.BQUAL)
	if x.FormatID != 1 { // MySQL's own default
		text += "," + strconv.FormatInt(x.FormatID, 10)
	}
	return text
}

func xidPart(s string) string {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' || c == '\'' || c == '\\' {
			return fmt.Sprintf("X'%x'", s)
		}
	}
	return "'" + s + "'"
}

// branchesAnswer is the JSON form of xa list.
type branchesAnswer struct {
	Job      string         `json:"job"`
	Topic    string         `json:"topic"`
	Branches []branchAnswer `json:"branches"`
	Counts   map[string]int `json:"counts"`
	Problems []string       `json:"problems"`
}

type branchAnswer struct {
	Owner       audit.Owner     `json:"owner"`
	Shard       string          `json:"shard,omitempty"`
	ListedOn    []string        `json:"listed_on"`
	Lane        string          `json:"lane,omitempty"`
	Incarnation int64           `json:"incarnation,omitempty"`
	Seq         int64           `json:"seq,omitempty"`
	PreparedAt  *time.Time      `json:"prepared_at,omitempty"`
	AgeSeconds  *float64        `json:"age_seconds,omitempty"`
	OffsetFrom  *int64          `json:"offset_from,omitempty"`
	OffsetNext  *int64          `json:"offset_next,omitempty"`
	Records     *int64          `json:"records,omitempty"`
	Decision    checkpoint.Word `json:"decision,omitempty"`
	Why         string          `json:"why,omitempty"`
	GTRID       string          `json:"gtrid,omitempty"`
	XID         string          `json:"xid"`
	FormatID    int64           `json:"format_id"`
	GTRIDHex    string          `json:"gtrid_hex"`
	BQUALHex    string          `json:"bqual_hex"`
}

func newBranchesAnswer(job, topic string, branches []audit.Branch, problems []error, now time.Time) branchesAnswer {
	answer := branchesAnswer{Job: job, Topic: topic, Branches: []branchAnswer{}, Counts: counts(branches), Problems: []string{}}
	for i := range branches {
		b := &branches[i]
		a := branchAnswer{
			Owner: b.Owner, Shard: b.Of, ListedOn: b.Servers, Incarnation: b.Name.Incarnation, Seq: b.Name.Seq, Decision: b.Word, Why: b.Why,
			XID: xidText(&b.XID), FormatID: b.FormatID, GTRIDHex: fmt.Sprintf("%x", b.GTRID), BQUALHex: fmt.Sprintf("%x", b.BQUAL),
		}
		if b.Owner != audit.Foreign {
			a.Lane, a.GTRID = b.Lane(), b.GTRID
		}
		if w := b.Written; w != nil {
			at, age := w.PreparedAt.UTC(), ageOf(w, now).Seconds()
			a.PreparedAt, a.AgeSeconds, a.OffsetFrom, a.OffsetNext, a.Records = &at, &age, &w.From, &w.Next, &w.Records
		}
		answer.Branches = append(answer.Branches, a)
	}
	for _, p := range problems {
		answer.Problems = append(answer.Problems, p.Error())
	}
	return answer
}
