package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"text/tabwriter"
	"time"

	"billing/cmd/billing/config"
	"billing/internal/audit"
	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/txsink"

	"github.com/spf13/cobra"
)

func newXAResolveCommand() *cobra.Command {
	var asJSON bool
	var accept []string
	cmd := &cobra.Command{
		Use:   "resolve",
		Short: "Settle what is in doubt, while no instance runs",
		Long: `Does for the lanes that are in doubt what an instance does when it starts: it
commits the branches that the decision names, rolls back the others of this job,
and looks that every shard has every decided epoch. It reads no messages and
books nothing. Use it where nothing shall run but nothing may be left prepared:
before an update, a migration or the move of a database. An instance that starts
does the same by itself.

It refuses while the consumer group has members: they settle their lanes
themselves. One that has died stays a member until its kafka.session_timeout is
over. With nothing in doubt it says so and joins no group. Branches of other
applications, of other jobs and of other topics are never touched; xa list shows
them. After SIGTERM or SIGINT, or kill -9, what was begun can be begun again.

Refusals that --accept REASON:WHAT overrides:
` + acceptText() + `
The fields of --json: job; lanes, each with lane, result (settled, refused,
failed), reason and message where it was not settled, incarnation and seq of the
decision that it was settled by, and shards, each with shard, in_doubt,
committed and rolled_back (gtrids); other_topics (the number of branches that
were left alone).`,
		Example: `  # no instance runs, and the last one has died in the middle
  billing xa resolve --config config.yaml
  billing migrate --config config.yaml`,
		Annotations: exits(`0  every lane is settled, or nothing was in doubt
2  wrong usage or configuration
3  refused, or a lane is: the other lanes are settled all the same
4  a server could not be reached or failed; run it again`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(configFlag(cmd), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			log := newLogger(cmd.ErrOrStderr(), c)
			accepts, err := parseAccept(accept, c, log, checkpoint.ReasonServerChanged, checkpoint.ReasonOffsetReset)
			if err != nil {
				return &usageError{err}
			}
			r, err := resolve(cmd.Context(), c, accepts, log)
			if err != nil {
				return fmt.Errorf("xa resolve: %w", err)
			}
			accepts.tellUnused(checkpoint.ReasonOffsetReset)
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), newResolveAnswer(c.Job, r))
			} else {
				err = writeResolved(cmd.OutOrStdout(), c.Job, r)
			}
			if err != nil {
				return err
			}
			if err := r.problem(); err != nil {
				return fmt.Errorf("xa resolve: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "answer in JSON")
	cmd.Flags().StringArrayVar(&accept, "accept", nil, "override the refusal `REASON:WHAT`, which is one of those above; may be repeated")
	return cmd
}

// Bounds of what comes before lanes are settled.
const (
	checkWithin    = 30 * time.Second
	readLaneWithin = 5 * time.Second // behind an open Kafka transaction, which the lane's fence ends
)

// resolution is what xa resolve has done.
type resolution struct {
	lanes     []*settled // those that were in doubt
	elsewhere int        // branches of the job that are of other topics
}

// problem is what went wrong with lanes, each named.
func (r *resolution) problem() error {
	var errs []error
	for _, l := range r.lanes {
		if l.Err != nil {
			errs = append(errs, fmt.Errorf("lane %s: %w", l.Lane, l.Err))
		}
	}
	return errors.Join(errs...)
}

// resolve settles the lanes that are in doubt. Its own error says that no lane
// was touched.
func resolve(ctx context.Context, c *config.Config, accepts *acceptance, log *slog.Logger) (*resolution, error) {
	sinkCfg := sinkConfig(c, log)
	sinkCfg.Accept = accepts.accept
	sink, err := txsink.Open(sinkCfg)
	if err != nil {
		return nil, &usageError{err}
	}
	defer sink.Close()
	kafkaCfg := kafkaConfig(c, log, nil)
	kafkaCfg.InstanceID = "" // a static member would stay in the group
	kafka, err := consume.Open(kafkaCfg)
	if err != nil {
		return nil, &usageError{err}
	}
	defer kafka.Close()

	job, err := checkedJob(ctx, c, sink, kafka, accepts)
	if err != nil {
		return nil, err
	}
	lanes, elsewhere, err := audit.Unsettled(ctx, job, kafka.Look, readLaneWithin)
	if err != nil {
		return nil, err
	}
	r := &resolution{elsewhere: elsewhere}
	if len(lanes) == 0 {
		return r, nil
	}
	for _, l := range lanes {
		log.Info("in doubt", "lane", l.Lane.String(), "why", l.Why)
	}
	log.Info("joining the consumer group", "group", c.Job, "lanes", len(lanes))
	r.lanes = settle(ctx, job, kafka, source{kafka}.Assigned, lanes, log)
	return r, nil
}

// checkedJob looks that no instance runs, and at the servers as a start does.
func checkedJob(ctx context.Context, c *config.Config, sink *txsink.Sink, kafka *consume.Client, accepts *acceptance) (*checkpoint.Job, error) {
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	// The shards last: their check records a server that was accepted, and who is
	// refused because of members has changed nothing.
	input, err := kafka.Check(ctx)
	if err != nil {
		return nil, err
	}
	if err := kafka.EnsureTopics(ctx, false); err != nil {
		return nil, nothingMade(err)
	}
	found, err := kafka.Decisions(ctx, input)
	if err != nil {
		return nil, err
	}
	_, members, err := kafka.Members(ctx)
	if err != nil {
		return nil, err
	}
	if len(members) > 0 {
		return nil, hasMembers(c.Job, members, "and nothing was changed")
	}
	if err := accepts.inside(c.Kafka.Topic, input.Partitions); err != nil {
		return nil, &usageError{err}
	}
	if err := sink.Check(ctx); err != nil {
		return nil, err
	}
	accepts.tellUnused(checkpoint.ReasonServerChanged)
	job := newJob(c, sink, kafka, input, accepts.accept)
	job.FirstStart = false // no lane starts here
	if err := job.SameDeployment(found, input.ID, input.Partitions); err != nil {
		return nil, err
	}
	return job, nil
}

// nothingMade says of topics that are missing what is to be done where none are
// made, whatever first_start is.
func nothingMade(err error) error {
	var all []error
	for _, err := range checkpoint.Problems(err) {
		if r := checkpoint.AsRefusal(err); r != nil && r.Reason == checkpoint.ReasonTopicMissing {
			missing := *r
			missing.Wrong = "there is no topic of this name, and nothing is made here"
			missing.Next = "a job that was never started has nothing to settle: start it with billing run; if this one is not new, the topic was lost: restore it"
			err = &missing
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}

// resultOf is what became of a lane in a word, and why.
func resultOf(l *settled) (result, reason, message string) {
	switch r := checkpoint.AsRefusal(l.Err); {
	case l.Err == nil:
		return "settled", "", ""
	case r != nil:
		return "refused", r.Reason, l.Err.Error()
	default:
		return "failed", "", l.Err.Error()
	}
}

func writeResolved(w io.Writer, job string, r *resolution) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(r.lanes) > 0 {
		fmt.Fprintln(t, "LANE\tRESULT\tSHARD\tDONE")
	}
	n := map[string]int{}
	committed, rolledBack := 0, 0
	for _, l := range r.lanes {
		result, reason, _ := resultOf(l)
		n[result]++
		if reason != "" {
			result += " (" + reason + ")"
		}
		if len(l.Shards) == 0 {
			fmt.Fprintf(t, "%s\t%s\t-\tno branch was touched\n", l.Lane, result)
		}
		for i := range l.Shards {
			s := &l.Shards[i]
			committed += len(s.Committed)
			rolledBack += len(s.RolledBack)
			what := "not asked, or no answer"
			if s.Answered {
				what = done(s, l.Err == nil)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", l.Lane, result, s.Shard, what)
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("xa resolve: write: %w", err)
	}
	text := "nothing is in doubt"
	if len(r.lanes) > 0 {
		text = fmt.Sprintf("\nlanes: %d settled, %d refused, %d failed; branches: %d committed, %d rolled back", n["settled"], n["refused"], n["failed"], committed, rolledBack)
	}
	if r.elsewhere > 0 {
		text += fmt.Sprintf("\nleft alone, of other topics: %d prepared branches of job %s; billing xa list shows them", r.elsewhere, job)
	}
	if _, err := fmt.Fprintln(w, text); err != nil {
		return fmt.Errorf("xa resolve: write: %w", err)
	}
	return nil
}

// resolveAnswer is the JSON form of xa resolve.
type resolveAnswer struct {
	Job         string       `json:"job"`
	Lanes       []laneAnswer `json:"lanes"`
	OtherTopics int          `json:"other_topics"`
}

type laneAnswer struct {
	Lane        string        `json:"lane"`
	Result      string        `json:"result"`
	Reason      string        `json:"reason,omitempty"`
	Message     string        `json:"message,omitempty"`
	Incarnation int64         `json:"incarnation,omitempty"`
	Seq         *int64        `json:"seq,omitempty"`
	Shards      []shardAnswer `json:"shards"`
}

type shardAnswer struct {
	Shard      string   `json:"shard"`
	InDoubt    []string `json:"in_doubt"`
	Committed  []string `json:"committed"`
	RolledBack []string `json:"rolled_back"`
}

func newResolveAnswer(job string, r *resolution) resolveAnswer {
	names := func(gtrids []checkpoint.GTRID) []string {
		out := make([]string, len(gtrids))
		for i, g := range gtrids {
			out[i] = string(g)
		}
		return out
	}
	answer := resolveAnswer{Job: job, Lanes: []laneAnswer{}, OtherTopics: r.elsewhere}
	for _, l := range r.lanes {
		a := laneAnswer{Lane: l.Lane.String(), Incarnation: l.D.Incarnation, Shards: []shardAnswer{}}
		a.Result, a.Reason, a.Message = resultOf(l)
		if l.Err == nil {
			a.Seq = &l.D.Seq
		}
		for i := range l.Shards {
			s := &l.Shards[i]
			a.Shards = append(a.Shards, shardAnswer{Shard: s.Shard, InDoubt: names(s.InDoubt), Committed: names(s.Committed), RolledBack: names(s.RolledBack)})
		}
		answer.Lanes = append(answer.Lanes, a)
	}
	return answer
}
