package main

import (
	"bytes"
	"fmt"
	"strings"
	"text/tabwriter"
)

// repairText is the answer for people: a line for each lane and shard, what is to
// be booked there, and what was done.
func repairText(a *repairAnswer) string {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	head := "LANE\tSHARD\tHAS\tMISSING\tOFFSETS\tRECORDS\tAPPLIED HERE\tKEPT HERE\tRESULT\n"
	for i := range a.Lanes {
		l := &a.Lanes[i]
		for j := range l.Shards {
			s := &l.Shards[j]
			fmt.Fprint(t, head)
			head = ""
			records, applied, kept := "-", "-", "-" // where they could not be computed
			if len(s.Epochs) > 0 {
				records, applied, kept = fmt.Sprint(s.Records), fmt.Sprint(s.Applied), fmt.Sprint(s.Kept)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d to %d\t%s\t%s\t%s\t%s\n", l.Lane, s.Shard, epochOr(s.Has), span("epoch", s.From, s.To),
				s.Offset, s.Next-1, records, applied, kept, l.result())
		}
	}
	_ = t.Flush() // to memory
	writeSums(&b, a)
	n := map[string]int{}
	for i := range a.Lanes {
		l := &a.Lanes[i]
		n[l.Result]++
		if l.Message != "" {
			b.WriteByte('\n')
			wrap(&b, "", l.Lane+": "+l.Message)
		}
	}
	if b.Len() > 0 {
		b.WriteByte('\n')
	}
	var ends []string
	if n[laneRefused]+n[laneFailed] > 0 {
		ends = append(ends, fmt.Sprintf("not repaired: %s", number(n[laneRefused]+n[laneFailed], "lane")))
	}
	switch {
	case len(a.Lanes) == 0:
		ends = append(ends, "no shard lacks a decided epoch")
	case n[laneMissing] > 0:
		ends = append(ends, fmt.Sprintf("%s can be repaired. Nothing was changed. Next step: the same with --apply", number(n[laneMissing], "lane")))
	case n[laneBooked] > 0:
		ends = append(ends, fmt.Sprintf("booked again: %s. Next step: billing verify; the instances take the lanes up within a minute", number(n[laneBooked], "lane")))
	}
	fmt.Fprintln(&b, strings.Join(ends, "; "))
	return b.String()
}

func (l *repairLaneAnswer) result() string {
	if l.Reason != "" {
		return l.Result + " (" + l.Reason + ")"
	}
	return l.Result
}

func epochOr(seq int64) string {
	if seq == 0 {
		return "nothing"
	}
	return fmt.Sprintf("epoch %d", seq)
}

func span(what string, from, to int64) string {
	if from == to {
		return fmt.Sprintf("%s %d", what, from)
	}
	return fmt.Sprintf("%ss %d to %d", what, from, to)
}

// writeSums says what is booked on each shard, of all lanes, and what becomes of
// branches.
func writeSums(b *bytes.Buffer, a *repairAnswer) {
	first := true
	for i := range a.Lanes {
		l := &a.Lanes[i]
		for j := range l.Shards {
			s := &l.Shards[j]
			if first && len(s.Sums)+len(s.Branches) > 0 {
				b.WriteByte('\n')
				first = false
			}
			for _, sum := range s.Sums {
				fmt.Fprintf(b, "%s on %s: %s charges %s, credits %s in %d entries\n", l.Lane, s.Shard, sum.Currency, sum.Charge, sum.Credit, sum.Entries)
			}
			for _, branch := range s.Branches {
				what := "it is not the decided one of epoch %d: it is rolled back"
				if branch.Action == "commit" {
					what = "it is the decided one of epoch %d: it is committed"
				}
				fmt.Fprintf(b, "%s on %s: branch %s is prepared, "+what+"\n", l.Lane, s.Shard, branch.GTRID, branch.Seq)
			}
		}
	}
}
