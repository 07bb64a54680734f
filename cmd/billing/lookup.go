package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"billing/cmd/billing/config"
	"billing/internal/audit"
	"billing/internal/checkpoint"
	"billing/internal/consume"
	"billing/internal/event"
	"billing/internal/txsink"

	"github.com/spf13/cobra"
)

func newLookupCommand() *cobra.Command {
	var asJSON bool
	var source, id string
	cmd := &cobra.Command{
		Use:   "lookup [PARTITION/OFFSET]",
		Short: "Say what became of a message: was it billed?",
		Long: `Says what became of one message of the input topic, by its place, or by the
source and id of its event. Use it when somebody asks: did we bill this? It
changes nothing and may run beside the service.

  applied     booked: the row of billing_ledger is shown
  duplicate   its event was booked before, from another message, which is shown
  conflict    kept, not booked: its id was booked before, with another content
  rejected    kept, not booked: the reason is shown
  waiting     not decided yet; billing status says how far the lane is, and why
  in-doubt    decided, or about to be: a branch with it is prepared
  no-message  nothing is at this place: it was aborted by its producer, or
              compacted away, or is a mark of Kafka's own
  not-booked  by source and id: no message of this event is booked. Whether one
              was rejected, or waits, can be asked by its place only
  unknown     the tables can't say: the ledger was off, or the job has begun
              behind the place, or Kafka has deleted the message, or is away

The answer of --json is one object: outcome, topic, partition, offset, source,
event_id, why, next_step, entries (rows of billing_ledger with their shard),
kept (of billing_rejects), epoch.`,
		Example: `  # the message at offset 81234 of partition 3
  billing lookup 3/81234 --config config.yaml

  # the event, wherever it is
  billing lookup --source /meters/eu-1 --id 9c0b4a52-7d0e-4c55-8a0f-2b0c8e0e6d11

  # for a script
  billing lookup 3/81234 --json | jq -r .outcome`,
		Annotations: exits(`0  it could be said, whatever it is
1  the tables have the message twice
2  wrong usage or configuration
3  a shard is not the recorded one, or a right is missing
4  a shard could not be read, or Kafka had to be asked and could not be`),
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			q, err := lookupQuestion(args, source, id)
			if err != nil {
				return err
			}
			c, err := loadConfig(configFlag(cmd), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			a, err := lookUp(cmd.Context(), c, q)
			if a != nil {
				write := writeLookup
				if asJSON {
					write = func(w io.Writer, a *lookupAnswer) error { return writeJSON(w, a) }
				}
				if werr := write(cmd.OutOrStdout(), a); werr != nil {
					return werr
				}
			}
			if err != nil {
				return fmt.Errorf("lookup: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "answer in JSON")
	cmd.Flags().StringVar(&source, "source", "", "the event's `SOURCE`, with --id")
	cmd.Flags().StringVar(&id, "id", "", "the event's `ID`, with --source")
	return cmd
}

// question is what is looked up: a place, or where that is nil an event.
type question struct {
	place      *place
	source, id string
}

type place struct {
	partition int32
	offset    int64
}

func lookupQuestion(args []string, source, id string) (question, error) {
	byEvent := source != "" || id != ""
	switch {
	case len(args) == 0 && !byEvent:
		return question{}, &usageError{errors.New("which message? Give its place, such as 3/81234 (partition and offset), or --source and --id of its event")}
	case len(args) > 1 || len(args) == 1 && byEvent:
		return question{}, &usageError{errors.New("give one place, such as 3/81234, or --source and --id, and not both")}
	case byEvent && (source == "" || id == ""):
		return question{}, &usageError{errors.New("an event is named by its source and its id: give both --source and --id")}
	case byEvent:
		return question{source: source, id: id}, nil
	}
	p, o, _ := strings.Cut(args[0], "/")
	partition, err1 := strconv.ParseInt(p, 10, 32)
	offset, err2 := strconv.ParseInt(o, 10, 64)
	if err1 != nil || err2 != nil || partition < 0 || offset < 0 {
		return question{}, &usageError{fmt.Errorf("%q is no place: want PARTITION/OFFSET, such as 3/81234", args[0])}
	}
	return question{place: &place{int32(partition), offset}}, nil
}

// lookupAnswer is what became of a message.
type lookupAnswer struct {
	Outcome   string        `json:"outcome"`
	Topic     string        `json:"topic"`
	Partition *int32        `json:"partition"`
	Offset    *int64        `json:"offset"`
	Source    string        `json:"source,omitempty"`
	ID        string        `json:"event_id,omitempty"`
	Why       string        `json:"why"`
	NextStep  string        `json:"next_step,omitempty"`
	Entries   []audit.Entry `json:"entries"`
	Kept      []audit.Kept  `json:"kept"`
	Epoch     *audit.Epoch  `json:"epoch"`
}

func (a *lookupAnswer) say(outcome, why string, args ...any) {
	a.Outcome, a.Why, a.NextStep = outcome, fmt.Sprintf(why, args...), ""
}

// lookUp asks the shards, and Kafka where they alone can't say it. What is known
// is answered beside an error, too.
func lookUp(ctx context.Context, c *config.Config, q question) (*lookupAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupWithin)
	defer cancel()
	sink, kafka, err := openToLook(c, sinkConfig(c, quiet))
	if err != nil {
		return nil, err
	}
	defer sink.Close()
	defer kafka.Close()
	l := &lookup{cfg: c, kafka: kafka, finder: audit.Finder{Topic: c.Kafka.Topic, Shards: shardNames(c), MySQL: sink}}
	for i := range c.Shards {
		view, err := sink.Look(ctx, i)
		if err == nil {
			err = errors.Join(view.Problems...)
		}
		if err != nil {
			return nil, err
		}
		l.shards = append(l.shards, view)
	}
	if q.place == nil {
		return l.event(ctx, q.source, q.id)
	}
	return l.at(ctx, *q.place)
}

const lookupWithin = 30 * time.Second

type lookup struct {
	cfg    *config.Config
	kafka  *consume.Client
	finder audit.Finder
	shards []txsink.Look // read before the rows are
}

func (l *lookup) event(ctx context.Context, source, id string) (*lookupAnswer, error) {
	a := &lookupAnswer{Topic: l.cfg.Kafka.Topic, Source: source, ID: id, Kept: []audit.Kept{}}
	entries, err := l.finder.Event(ctx, []byte(source), []byte(id))
	if err != nil {
		return nil, err
	}
	off := false
	if len(entries) == 0 {
		if off, err = l.finder.LedgerWasOff(ctx); err != nil {
			return nil, err
		}
	}
	a.Entries = append([]audit.Entry{}, entries...)
	switch {
	case len(entries) == 1:
		a.say("applied", "booked once, in epoch %d of %s/%d", entries[0].Seq, a.Topic, entries[0].Partition)
	case len(entries) > 1:
		a.say("applied", "booked %d times", len(entries))
		a.NextStep = "an event that is sent again must go to the same partition: these did not. Correct the account, and the producer"
	case off:
		a.say("unknown", "no row of the ledger has it, but for some epochs the ledger was off, so that single messages were not kept")
	default:
		a.say("not-booked", "no message of this event is booked on any shard")
		a.NextStep = "if you know its place: billing lookup PARTITION/OFFSET; whether it was rejected: see docs/watching.md, \"Was it billed?\""
	}
	return a, nil
}

func (l *lookup) at(ctx context.Context, p place) (*lookupAnswer, error) {
	a := &lookupAnswer{Topic: l.cfg.Kafka.Topic, Partition: &p.partition, Offset: &p.offset, Entries: []audit.Entry{}, Kept: []audit.Kept{}}
	found, err := l.finder.At(ctx, p.partition, p.offset)
	if err != nil {
		return nil, err
	}
	a.Entries, a.Kept, a.Epoch = append(a.Entries, found.Entries...), append(a.Kept, found.Kept...), found.Epoch
	switch rows := len(found.Entries) + len(found.Kept); {
	case rows > 1:
		a.say("unknown", "the tables have it %d times", rows)
		a.NextStep = "billing verify"
		return a, &differenceError{rows - 1}
	case len(found.Entries) == 1:
		a.say("applied", "booked in epoch %d", found.Entries[0].Seq)
		return a, nil
	case len(found.Kept) == 1:
		a.say(found.Kept[0].Kind, "not booked, kept in epoch %d: %s", found.Kept[0].Seq, found.Kept[0].Reason)
		return a, nil
	}
	lane := checkpoint.Lane{Topic: a.Topic, Partition: p.partition}
	var behind, prepared bool
	next := int64(-1)
	for i := range l.shards {
		row, known := l.shards[i].Lanes[lane]
		next = max(next, row.Next)
		behind = behind || !known || row.Next <= p.offset
		for _, e := range l.shards[i].Newest {
			prepared = prepared || e.Lane == lane && e.From <= p.offset && p.offset < e.Next
		}
	}
	switch {
	case behind && (prepared || next > p.offset):
		a.say("in-doubt", "a branch with it is prepared, and not committed on every shard")
		a.NextStep = "ask again; if it stays so: billing status"
		return a, nil
	case behind:
		return l.ahead(ctx, a, p)
	case found.Epoch == nil:
		a.say("unknown", "no epoch has this offset: the job has begun behind it")
		return a, nil
	}
	return l.withoutRow(ctx, a, p)
}

// ahead is about a place that no shard's lane has come to.
func (l *lookup) ahead(ctx context.Context, a *lookupAnswer, p place) (*lookupAnswer, error) {
	a.say("waiting", "not decided yet")
	a.NextStep = "billing status says how far the lane is, and why"
	input, err := l.kafka.LookUp(ctx)
	if err == nil && p.partition >= input.Partitions {
		return nil, &usageError{fmt.Errorf("%s: the topic has the partitions 0 to %d", a.place(), input.Partitions-1)}
	}
	var m consume.MessageAt
	if err == nil {
		m, err = l.kafka.Message(ctx, p.partition, p.offset)
	}
	switch {
	case err != nil:
		a.Why += "; whether there is such a message could not be asked"
	case m.Deleted:
		a.say("unknown", "not decided, and Kafka has it no more")
	case m.Ahead && p.offset >= m.End:
		a.Why, a.NextStep = fmt.Sprintf("there is no such message yet: the partition ends at offset %d", m.End), ""
	case m.Ahead:
		a.Why = "not decided yet: a Kafka transaction before it is open"
	case m.Record == nil:
		a.say("no-message", "nothing is at this place but what Kafka or an aborted transaction has left")
	}
	return a, err
}

// withoutRow is about a place whose epoch is committed, and which has left no row.
func (l *lookup) withoutRow(ctx context.Context, a *lookupAnswer, p place) (*lookupAnswer, error) {
	a.say("unknown", "a duplicate, or no message at all: only Kafka knows which")
	m, err := l.kafka.Message(ctx, p.partition, p.offset)
	switch {
	case err != nil:
		return a, err
	case m.Deleted:
		a.Why = "a duplicate, or no message at all: Kafka, which has it no more, would know which"
		return a, nil
	case m.Record == nil:
		a.say("no-message", "nothing is at this place but what Kafka or an aborted transaction has left")
		return a, nil
	}
	var e event.Event
	if rejection := event.NewDecoder(event.Config{TypePrefix: l.cfg.Message.TypePrefix, Currencies: l.cfg.Message.Currencies, AmountAsNumber: l.cfg.Message.AmountAsNumber}).Decode(m.Record, &e); rejection != nil {
		a.say("unknown", "a duplicate, by the configuration that it was read with; by today's it is rejected: %s", rejection)
		return a, nil
	}
	a.Source, a.ID = string(e.Source), string(e.ID)
	if !a.Epoch.LedgerOn {
		a.say("unknown", "applied or a duplicate: the ledger was off in its epoch, so that single messages were not kept")
		return a, nil
	}
	entries, err := l.finder.Event(ctx, e.Source, e.ID)
	if err != nil {
		return a, err
	}
	a.say("duplicate", "its event was booked before, while the ledger was off")
	for _, entry := range entries {
		if entry.Partition == p.partition {
			a.say("duplicate", "not booked again: its event was booked at offset %d, in epoch %d", entry.Offset, entry.Seq)
			a.Entries = []audit.Entry{entry}
		}
	}
	return a, nil
}

func (a *lookupAnswer) place() string {
	if a.Partition == nil {
		return fmt.Sprintf("source %s id %s", audit.Printable(a.Source), audit.Printable(a.ID))
	}
	return fmt.Sprintf("%s/%d offset %d", a.Topic, *a.Partition, *a.Offset)
}

func writeLookup(w io.Writer, a *lookupAnswer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n  %s\n", a.place(), a.Outcome, a.Why)
	for i := range a.Kept {
		k := &a.Kept[i]
		fmt.Fprintf(&b, "  %s (shard %s, state %s)\n", printable(k.Detail), k.Shard, k.State)
	}
	if a.Partition != nil && a.ID != "" {
		fmt.Fprintf(&b, "  event      source %s id %s\n", audit.Printable(a.Source), audit.Printable(a.ID))
	}
	for i := range a.Entries {
		e := &a.Entries[i]
		fmt.Fprintf(&b, "  booked     %s of %s %s to account %s", e.Type, shortened(e.Amount), e.Currency, audit.Printable(e.Account))
		if e.SKU != "" {
			fmt.Fprintf(&b, ", sku %s", audit.Printable(e.SKU))
		}
		if e.Quantity != nil {
			fmt.Fprintf(&b, ", %s %s", shortened(*e.Quantity), audit.Printable(e.Unit))
		}
		fmt.Fprintf(&b, "\n  in         window %s UTC, period %s; it occurred %s\n", e.Window, e.Period, e.Occurred)
		fmt.Fprintf(&b, "  from       %s/%d offset %d, source %s id %s; shard %s\n", a.Topic, e.Partition, e.Offset, audit.Printable(e.Source), audit.Printable(e.ID), e.Shard)
	}
	if a.NextStep != "" {
		fmt.Fprintf(&b, "  next step  %s\n", a.NextStep)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("lookup: write: %w", err)
	}
	return nil
}

// shortened is a decimal without the zeros behind its last digit.
func shortened(decimal string) string {
	if strings.Contains(decimal, ".") {
		decimal = strings.TrimSuffix(strings.TrimRight(decimal, "0"), ".")
	}
	return decimal
}
