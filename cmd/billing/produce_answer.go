package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
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
