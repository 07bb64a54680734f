package compose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// command is one of the document's, with what stands under it.
type command struct {
	text string // what is typed
	says string // what it prints, with a line feed at the end of each line
}

// In the document the tour is between these, its commands in blocks of this kind.
const (
	tourBegins  = "<!-- tour -->\n"
	tourEnds    = "<!-- /tour -->\n"
	blockBegins = "```console\n"
	blockEnds   = "```\n"
	prompt      = "$ "
)

// readTour gives the commands in their order.
func readTour(doc string) ([]command, error) {
	var commands []command
	err := eachLine(doc, func(string) {}, func(line string) {
		if text, ok := strings.CutPrefix(line, prompt); ok {
			commands = append(commands, command{text: strings.TrimSuffix(text, "\n")})
		} else if len(commands) > 0 {
			commands[len(commands)-1].says += line
		}
	})
	if err == nil && len(commands) == 0 {
		err = fmt.Errorf("there are no commands between %q and %q", tourBegins, tourEnds)
	}
	return commands, err
}

// writeTour is the document with what the commands print now, in their order.
func writeTour(doc string, printed []string) (string, error) {
	var out strings.Builder
	err := eachLine(doc, func(line string) { out.WriteString(line) }, func(line string) {
		if strings.HasPrefix(line, prompt) {
			out.WriteString(line + printed[0])
			printed = printed[1:]
		}
	})
	return out.String(), err
}

// eachLine calls inside with the lines of the tour's blocks, outside with all others.
func eachLine(doc string, outside, inside func(line string)) error {
	before, tour, begins := strings.Cut(doc, tourBegins)
	tour, after, ends := strings.Cut(tour, tourEnds)
	if !begins || !ends {
		return fmt.Errorf("the document has no %q with %q after it", tourBegins, tourEnds)
	}
	outside(before + tourBegins)
	block := false
	for line := range strings.Lines(tour) {
		switch {
		case !block:
			outside(line)
			block = line == blockBegins
		case line == blockEnds:
			outside(line)
			block = false
		default:
			inside(line)
		}
	}
	outside(tourEnds + after)
	return nil
}

var (
	anyTime  = regexp.MustCompile(`\b\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}:\d{2}Z| \d{2}:\d{2}:\d{2}(\.\d{6})?\b)`)
	period   = regexp.MustCompile(`\bperiod \d{4}-\d{2}\b`)
	epoch    = regexp.MustCompile(`\bin epoch \d+\b`)
	anyUUID  = regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)
	anyHost  = regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}\b`)
	epochs   = regexp.MustCompile(`(?m)^(read: .*), \d+ epochs,`)
	gaps     = regexp.MustCompile(` {2,}`)
	fewLanes = regexp.MustCompile(`^\d+(,\d+)*$`)
)

// comparable leaves out what is another at each run: times, addresses, ids, in which epoch a message was; in the tables
// of billing status how often a lane has been taken over, in how many epochs it has booked, and which lanes an instance
// has, but not how many.
func comparable(says string) string {
	says = anyTime.ReplaceAllString(says, "TIME")
	says = period.ReplaceAllString(says, "period SOME")
	says = epoch.ReplaceAllString(says, "in epoch SOME")
	says = anyUUID.ReplaceAllString(says, "ID")
	says = anyHost.ReplaceAllString(says, "HOST")
	says = epochs.ReplaceAllString(says, "$1, SOME epochs,")
	lines := strings.Split(says, "\n")
	for first := 0; first < len(lines); first++ {
		cells := cellsOf(lines[first])
		if !slices.Contains(cells, "INCARNATION") && !slices.Contains(cells, "MEMBER") {
			continue
		}
		last := first + 1
		for last < len(lines) && len(cellsOf(lines[last])) == len(cells) {
			last++
		}
		compareTable(cells, lines[first+1:last])
		lines[first] = strings.Join(cells, "  ")
		first = last - 1
	}
	return strings.Join(lines, "\n")
}

func cellsOf(line string) []string { return gaps.Split(strings.TrimSpace(line), -1) }

// compareTable rewrites the rows below a head of billing status.
func compareTable(head, rows []string) {
	table := make([][]string, len(rows))
	for i, row := range rows {
		table[i] = cellsOf(row)
	}
	for column, name := range head {
		switch name {
		case "INCARNATION", "SEQ":
			for _, row := range table {
				row[column] = "SOME"
			}
		case "OWNER":
			owners := make([]string, len(table))
			for i, row := range table {
				owners[i] = row[column]
			}
			slices.Sort(owners)
			for i, row := range table {
				row[column] = owners[i]
			}
		case "LANES":
			for _, row := range table {
				if fewLanes.MatchString(row[column]) {
					row[column] = fmt.Sprintf("%d lanes", 1+strings.Count(row[column], ","))
				}
			}
		}
	}
	for i, row := range table {
		rows[i] = strings.Join(row, "  ")
	}
}

func TestTourIsReadAndWritten(t *testing.T) {
	const doc = "a\n```console\n$ outside\n```\n<!-- tour -->\nword\n\n```console\n$ one 'x'\n1\n\n2\n$ two\n```\n```\n$ no console\n```\n<!-- /tour -->\n```console\n$ outside\n```\n"
	got, err := readTour(doc)
	want := []command{{"one 'x'", "1\n\n2\n"}, {"two", ""}}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("read %q, %v; want %q", got, err, want)
	}
	if same, err := writeTour(doc, []string{"1\n\n2\n", ""}); err != nil || same != doc {
		t.Errorf("with the same outputs it is %q, %v", same, err)
	}
	other, err := writeTour(doc, []string{"", "3\n"})
	if want := strings.Replace(strings.Replace(doc, "1\n\n2\n", "", 1), "$ two\n", "$ two\n3\n", 1); err != nil || other != want {
		t.Errorf("with others it is %q, %v", other, err)
	}
	for _, none := range []string{"", "<!-- tour -->\n", "<!-- /tour -->\n<!-- tour -->\n", "<!-- tour -->\n<!-- /tour -->\n"} {
		if _, err := readTour(none); err == nil {
			t.Errorf("%q is taken for a tour", none)
		}
	}
}

const (
	oneStatus = `billing: 2 lanes, 2 running; complete up to 2026-03-01T09:00:00Z; lag 0 records, event lag 0s

LANE              STATE    OWNER      INCARNATION  SEQ  NEXT  LAG  EVENT-LAG  COMPLETE-UP-TO        IN-DOUBT
billing.events/0  running  billing-1  1            3    4470  0    0s         2026-03-01T09:00:00Z  0
billing.events/1  running  billing-2  1            2    2534  0    0s         2026-03-01T09:00:00Z  0

group billing: Stable
  HOST        INSTANCE   ADMIN-PORT       BUILD    LANES  MEMBER
  172.18.0.5  billing-1  172.18.0.5:8080  (devel)  0,3    billing-1-17b36b97-a19b-4b36-8cc9-a75c15c48171
  172.18.0.4  billing-2  172.18.0.4:8080  (devel)  1      billing-2-54ed50a1-8dfc-4977-86bc-b94f17257a86
read: 2 shards, 6 lanes, 14 epochs, 17793 ledger rows
  not booked again: its event was booked at offset 4493, in epoch 30
  in         window 2026-11-30 09:00:00 UTC, period 2026-11; it occurred 2026-11-30 09:09:52.000000
`
	sameStatus = `billing: 2 lanes, 2 running; complete up to 2027-12-31T23:59:59Z; lag 0 records, event lag 0s

LANE              STATE    OWNER      INCARNATION  SEQ    NEXT  LAG  EVENT-LAG  COMPLETE-UP-TO        IN-DOUBT
billing.events/0  running  billing-2  12           10003  4470  0    0s         2027-12-31T23:59:59Z  0
billing.events/1  running  billing-1  1            2      2534  0    0s         2027-12-31T23:59:59Z  0

group billing: Stable
  HOST         INSTANCE   ADMIN-PORT        BUILD    LANES  MEMBER
  172.31.20.5  billing-1  172.31.20.5:8080  (devel)  4,5    billing-1-00036b97-a19b-4b36-8cc9-a75c15c48171
  172.31.20.4  billing-2  172.31.20.4:8080  (devel)  0      billing-2-00050a1f-8dfc-4977-86bc-b94f17257a86
read: 2 shards, 6 lanes, 9 epochs, 17793 ledger rows
  not booked again: its event was booked at offset 4493, in epoch 7
  in         window 2027-12-31 23:00:00 UTC, period 2027-12; it occurred 2027-12-31 23:59:59.123456
`
)

// What is left out is what differs from run to run, and nothing else.
func TestOnlyWhatVariesIsLeftOut(t *testing.T) {
	want := comparable(oneStatus)
	if got := comparable(sameStatus); got != want {
		t.Errorf("two runs differ:\n%s\n%s", want, got)
	}
	for _, change := range [][2]string{
		{"2 running", "1 running"}, {"lag 0 records", "lag 1 records"}, {"event lag 0s", "event lag 1s"},
		{"running  billing-1", "running  billing-2"}, {"0  running", "0  stopped"}, {"4470", "4471"}, {"2534  0 ", "2534  7 "},
		{"09:00:00Z  0\n", "09:00:00Z  1\n"}, {"Stable", "Empty"}, {"0,3 ", "0   "}, {"  1      billing-2", "  -      billing-2"},
		{"(devel)  1", "v1  1"}, {":8080", ":8081"}, {"billing-2-54", "billing-3-54"},
		{"2 shards", "1 shards"}, {"6 lanes", "5 lanes"}, {"17793", "17794"}, {"14 epochs", "no epochs"},
		{"offset 4493", "offset 4492"}, {"epoch 30", "epoch"}, {"period 2026-11", "period"}, {"09:09:52", "soon"},
	} {
		if changed := strings.Replace(oneStatus, change[0], change[1], 1); changed == oneStatus {
			t.Errorf("%q is not there", change[0])
		} else if comparable(changed) == want {
			t.Errorf("%q instead of %q is not seen", change[1], change[0])
		}
	}
	for _, pair := range [][2]string{{"| EUR | 3184 |", "| EUR | 3185 |"}, {"| 12.50 |", "| 12.5 |"}, {"ok", ""}, {"a\nb", "a"}} {
		if comparable(pair[0]) == comparable(pair[1]) {
			t.Errorf("%q and %q are the same", pair[0], pair[1])
		}
	}
}
