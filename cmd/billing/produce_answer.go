package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	"billing/internal/loadgen"
)

// loadAnswer is what must come of a load, but for the totals, which may be many.
// produce --help says what each is.
type loadAnswer struct {
	Messages          int64                          `json:"messages"`
	Outcomes          loadgen.Outcomes               `json:"outcomes"`
	Reasons           map[string]int64               `json:"reasons"`
	Currencies        map[string]loadgen.CurrencySum `json:"currencies"`
	Transactions      int64                          `json:"transactions"`
	Aborted           int64                          `json:"aborted"`
	AbortedMessages   int64                          `json:"aborted_messages"`
	Seed              int64                          `json:"seed"`
	Topic             string                         `json:"topic"`
	Partitions        int32                          `json:"partitions"`
	Started           time.Time                      `json:"started"`
	Seconds           float64                        `json:"seconds"`
	MessagesPerSecond float64                        `json:"messages_per_second"`
	Interrupted       bool                           `json:"interrupted"`
}

func (w *loadWriting) answer(topic string, partitions int32) loadAnswer {
	a := loadAnswer{
		Messages: w.load.Outcomes().Messages(), Outcomes: w.load.Outcomes(), Reasons: w.load.Reasons(),
		Currencies:   w.load.Currencies(),
		Transactions: w.transactions, Aborted: w.aborted, AbortedMessages: w.abortedMessages,
		Seed: w.cfg.Seed, Topic: topic, Partitions: partitions,
		Started: w.started.UTC(), Seconds: w.took.Seconds(), Interrupted: w.interrupted,
	}
	if a.Seconds > 0 {
		a.MessagesPerSecond = float64(a.Messages) / a.Seconds
	}
	return a
}

// writeLoadAnswer writes the answer as one JSON object, a total on each line, and
// no more of it in memory than one.
func writeLoadAnswer(out io.Writer, a loadAnswer, totals iter.Seq[loadgen.Total]) error {
	w := bufio.NewWriterSize(out, 64<<10)
	head, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return fmt.Errorf("answer: encode: %w", err)
	}
	fmt.Fprintf(w, "%s,\n  \"totals\": [", bytes.TrimSuffix(head, []byte("\n}")))
	separator := "\n    "
	for t := range totals {
		row, err := json.Marshal(t)
		if err != nil {
			return fmt.Errorf("answer: encode: %w", err)
		}
		fmt.Fprintf(w, "%s%s", separator, row)
		separator = ",\n    "
	}
	fmt.Fprint(w, "\n  ]\n}\n")
	if err := w.Flush(); err != nil { // of all the writes
		return fmt.Errorf("answer: write: %w", err)
	}
	return nil
}

// readAnswer reads what writeLoadAnswer has written: path is a file, or - for
// stdin. It has to be of a load that was written to the topic.
func readAnswer(path string, stdin io.Reader, topic string) (*loadgen.Expected, error) {
	wrong := func(format string, args ...any) error {
		return &usageError{fmt.Errorf("--answer %s: "+format+"; want the JSON that billing produce wrote to stdout", append([]any{path}, args...)...)}
	}
	from := stdin
	if path == "" {
		return nil, &usageError{errors.New("--answer is empty: name a file, or - for stdin")}
	}
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, wrong("can't be read: %w", errors.Unwrap(err))
		}
		defer f.Close() //nolint:errcheck // only read
		from = f
	}
	var a struct {
		loadAnswer
		Totals []loadgen.Total `json:"totals"`
	}
	d := json.NewDecoder(bufio.NewReader(from))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); errors.Is(err, io.EOF) {
		return nil, wrong("is empty")
	} else if err != nil {
		return nil, wrong("is no answer of a load")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, wrong("has something behind its end")
	}
	switch {
	case a.Topic == "" || a.Reasons == nil || a.Messages != a.Outcomes.Messages():
		return nil, wrong("is no answer of a load")
	case a.Topic != topic:
		return nil, wrong("is of a load on topic %s, and kafka.topic is %s", a.Topic, topic)
	}
	rows := make(map[loadgen.Total]bool, len(a.Totals))
	for _, t := range a.Totals {
		rows[t] = true
	}
	if len(rows) < len(a.Totals) {
		return nil, wrong("has a total twice")
	}
	return &loadgen.Expected{Messages: a.Messages, Outcomes: a.Outcomes, Reasons: a.Reasons, Totals: a.Totals}, nil
}
