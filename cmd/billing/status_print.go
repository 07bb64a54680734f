package main

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// statusWidth is how wide messages are written.
const statusWidth = 100

// writeStatus writes the answer for people.
func writeStatus(w io.Writer, a *statusAnswer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s: %s\n", a.Job, a.Summary.text())
	if len(a.Lanes) > 0 {
		b.WriteByte('\n')
		writeLanes(&b, a.Lanes, a.Group.names())
	}
	for i := range a.Lanes {
		a.Lanes[i].write(&b)
	}
	a.Group.write(&b, a.Job)
	writePrepared(&b, a.Shards)
	for _, note := range a.Notes {
		b.WriteByte('\n')
		wrap(&b, "", note)
	}
	for _, p := range a.Problems {
		b.WriteByte('\n')
		wrap(&b, "", p.Message)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("status: write: %w", err)
	}
	return nil
}

// stateOrder is how states are counted: first those that are as they should be.
var stateOrder = []string{"running", "recovering", "paused", "stopped", stateUnowned, stateAssigned, stateNotAsked, stateRebalancing, stateUnknown}

// text is all lanes on one line.
func (s *statusSummary) text() string {
	var parts []string
	word := "lanes"
	if s.Lanes == 1 {
		word = "lane"
	}
	if s.Lanes == 0 {
		return "no lanes are known"
	}
	parts = append(parts, fmt.Sprintf("%d %s", s.Lanes, word))
	for _, state := range stateOrder {
		if n := s.States[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	if n := s.Stuck - s.States["stopped"] - s.States["paused"]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d stuck", n))
	}
	if s.Refused > 0 {
		parts = append(parts, fmt.Sprintf("%d would be refused", s.Refused))
	}
	lag := "unknown"
	switch {
	case s.Lag != nil && s.EventLag != nil:
		lag = fmt.Sprintf("%d records, event lag %s", *s.Lag, age(*s.EventLag))
	case s.Lag != nil:
		lag = fmt.Sprintf("%d records", *s.Lag)
	}
	return fmt.Sprintf("%s; complete up to %s; lag %s", strings.Join(parts, ", "), cell(s.CompleteUpTo, moment), lag)
}

// names are the members for people, by id: the shortest that says which.
func (g *statusGroup) names() map[string]string {
	names, hosts := map[string]string{}, map[string]int{}
	for i := range g.Members {
		hosts[g.Members[i].Host]++
	}
	for i := range g.Members {
		switch m := &g.Members[i]; {
		case m.Instance != "":
			names[m.Member] = m.Instance
		case hosts[m.Host] > 1 && m.Admin != "":
			names[m.Member] = m.Admin
		default:
			names[m.Member] = m.Host
		}
	}
	return names
}

func writeLanes(b *bytes.Buffer, lanes []statusLane, names map[string]string) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LANE\tSTATE\tOWNER\tINCARNATION\tSEQ\tNEXT\tLAG\tEVENT-LAG\tCOMPLETE-UP-TO\tIN-DOUBT")
	for i := range lanes {
		l := &lanes[i]
		state := l.State
		if l.Stuck && state != "stopped" && state != "paused" {
			state += ", stuck"
		}
		owner := "-"
		if l.Owner != nil {
			owner = names[l.Owner.Member]
		}
		atLeast := ""
		if l.Unstable {
			atLeast = ">=" // see the lane's note
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", printable(l.Lane), printable(state), printable(owner),
			atLeast+cell(l.Incarnation, integer), atLeast+cell(l.Seq, integer), atLeast+cell(l.Next, integer),
			cell(l.Lag, integer), cell(l.EventLag, age), cell(l.CompleteUpTo, moment), cell(l.InDoubt, integer))
	}
	_ = t.Flush() // to memory
}

// write says what is wrong with a lane, or is not known of it.
func (l *statusLane) write(b *bytes.Buffer) {
	rows := l.rows()
	if l.Message == "" && len(l.Notes) == 0 && rows == "" {
		return
	}
	head := fmt.Sprintf("%s is %s", l.Lane, l.State)
	if l.State == stateUnknown {
		head = l.Lane + ": who has it is unknown"
	}
	if !l.Since.IsZero() {
		head += " since " + moment(l.Since)
	}
	if l.Foreseen {
		head += ", and a session would be refused now"
	}
	if l.Reason != "" {
		head += ": " + l.Reason
	}
	fmt.Fprintf(b, "\n%s\n", printable(head))
	if l.Message != "" {
		wrap(b, "  ", l.Message)
	}
	if rows != "" {
		wrap(b, "  ", rows)
	}
	for _, note := range l.Notes {
		wrap(b, "  ", note)
	}
}

// rows is what the shards have of a lane that nobody is known to work on, where
// that is not the last decision's epoch: of a lane at work they were read a moment
// later.
func (l *statusLane) rows() string {
	if l.State == "running" || l.State == "paused" {
		return ""
	}
	var all []string
	differ := false
	for _, r := range l.Shards {
		differ = differ || l.Seq == nil || r.Seq != *l.Seq
		all = append(all, fmt.Sprintf("%s has epoch %d of incarnation %d, next offset %d", r.Shard, r.Seq, r.Incarnation, r.Next))
	}
	if !differ {
		return ""
	}
	return "shard " + strings.Join(all, "; ")
}

func (g *statusGroup) write(b *bytes.Buffer, job string) {
	state := g.State
	switch state {
	case "":
		fmt.Fprintf(b, "\ngroup %s: could not be asked\n", printable(job))
		return
	case "Dead": // Kafka's word for a group that there is not
		state = "nobody has joined it yet"
	}
	fmt.Fprintf(b, "\ngroup %s: %s", printable(job), printable(state))
	if len(g.Members) == 0 {
		b.WriteString(", no members\n")
		return
	}
	b.WriteByte('\n')
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  HOST\tINSTANCE\tADMIN-PORT\tBUILD\tLANES\tMEMBER")
	for i := range g.Members {
		m := &g.Members[i]
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\n", printable(orNone(m.Host)), printable(orNone(m.Instance)), printable(orNone(m.Admin)), printable(orNone(m.Build)), orNone(list(m.Lanes)), printable(m.Member))
	}
	_ = t.Flush() // to memory
	for i := range g.Members {
		for _, note := range g.Members[i].Notes {
			wrap(b, "  ", g.Members[i].Host+": "+note)
		}
	}
}

func writePrepared(b *bytes.Buffer, shards []statusShard) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	head := "\nprepared branches:\n  SHARD\tLANE\tINCARNATION\tSEQ\tDECIDED\tGTRID\n"
	for i := range shards {
		for _, x := range shards[i].Branches {
			fmt.Fprintf(t, "%s  %s\t%s\t%d\t%d\t%s\t%s\n", head, printable(shards[i].Shard), printable(x.Lane), x.Incarnation, x.Seq, cell(x.Decided, yesNo), printable(x.GTRID))
			head = ""
		}
	}
	_ = t.Flush() // to memory
}

// cell is a value of the table; what is not known is said.
func cell[T any](v *T, text func(T) string) string {
	if v == nil {
		return "unknown"
	}
	return text(*v)
}

func integer[T int | int64](n T) string { return strconv.FormatInt(int64(n), 10) }

// moment never says a later one.
func moment(t time.Time) string { return t.UTC().Truncate(time.Second).Format(time.RFC3339) }

func age(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func orNone(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func list(numbers []int32) string {
	var all []string
	for _, n := range numbers {
		all = append(all, strconv.Itoa(int(n)))
	}
	return strings.Join(all, ",")
}

// printable is text of others, on one line and without what steers a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}

// wrap writes a message in lines of statusWidth; its next step begins a line.
func wrap(b *bytes.Buffer, indent, message string) {
	message = strings.ReplaceAll(message, ". Next step: ", ".\nNext step: ")
	for line := range strings.Lines(message) {
		n := 0
		for _, w := range strings.Fields(printable(line)) {
			switch {
			case n == 0:
				b.WriteString(indent)
				n = len(indent)
			case n+1+len(w) > statusWidth:
				b.WriteString("\n" + indent)
				n = len(indent)
			default:
				b.WriteByte(' ')
				n++
			}
			b.WriteString(w)
			n += len(w)
		}
		if n > 0 {
			b.WriteByte('\n')
		}
	}
}
