package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// logLine is one line of a log, by its keys.
type logLine map[string]string

var logPair = regexp.MustCompile(`(\w+)=("(?:[^"\\]|\\.)*"|\S+)`)

func lines(log string) (all []logLine) {
	for text := range strings.Lines(log) {
		l := logLine{}
		for _, m := range logPair.FindAllStringSubmatch(text, -1) {
			l[m[1]] = strings.Trim(m[2], `"`)
		}
		all = append(all, l)
	}
	return all
}

func (l logLine) at() time.Time {
	at, _ := time.Parse(time.RFC3339Nano, l["time"])
	return at
}

// of gives a lane's lines of its recovery. That a server is slow is no part of it: the
// machine is full.
func (k *corpse) of(all []logLine, partition int32) (story []logLine) {
	lane := fmt.Sprintf("%s/%d", k.w.topic, partition)
	for _, l := range all {
		if l["lane"] == lane && l["msg"] != "waiting" {
			story = append(story, l)
		}
		if l["lane"] == lane && l["msg"] == "lane recovered" {
			break
		}
	}
	return story
}

// The five lines; the second one has two forms.
var fiveLines = []string{"lane taken over", "in doubt", "settled", "lane running", "lane recovered"}

var branchSaid = regexp.MustCompile(`epoch (\d+) of incarnation (\d+)`)

// told holds what each lane says of its recovery against what is so.
func (k *corpse) told(next *process) {
	t := k.w.t
	t.Helper()
	said := lines(k.said(next))
	for _, l := range said {
		if l["level"] != "INFO" && !slow(l) {
			t.Errorf("it says more than that: %v", l)
		}
	}
	for _, n := range k.lanes {
		story := k.of(said, n)
		var got []string
		for _, l := range story {
			got = append(got, strings.TrimPrefix(l["msg"], "nothing "))
		}
		if !slices.Equal(got, fiveLines) {
			t.Errorf("lane %d tells %q, want %q", n, got, fiveLines)
			continue
		}
		k.toldRight(n, story)
	}
}

// slow says that a line is about a server, or this machine, that was slow or away: it is
// full, and nothing of a lane's recovery is wrong by it.
func slow(l logLine) bool {
	return l["msg"] == "waiting" || l["lane"] == "" && (strings.HasPrefix(l["msg"], "kafka: ") ||
		l["msg"] == "waiting for a server" || strings.HasPrefix(l["msg"], "this process stood still"))
}

// toldRight holds one lane's five lines against the tables.
func (k *corpse) toldRight(partition int32, story []logLine) {
	t := k.w.t
	t.Helper()
	takenOver, doubt, settled, running, recovered := story[0], story[1], story[2], story[3], story[4]
	wrong := func(l logLine, format string, args ...any) {
		t.Errorf("lane %d: %s: it says %v", partition, fmt.Sprintf(format, args...), l)
	}

	// What was decided is in the tables of every shard, by whom it says.
	var seq, incarnation int64
	if _, err := fmt.Sscanf(takenOver["decided"], "epoch %d of incarnation %d", &seq, &incarnation); err != nil {
		wrong(takenOver, "what was decided: %v", err)
		return
	}
	if seq < k.seq[partition] || seq > k.seq[partition]+2 {
		wrong(takenOver, "a shard has shown epoch %d at the death, and two may have been decided since", k.seq[partition])
	}
	ours := incarnation + 1 // of the session that recovered, if the dead one had taken over once
	for _, l := range story {
		want := fmt.Sprint(seq)
		if l["msg"] == "lane recovered" {
			want = fmt.Sprint(seq + 1)
		}
		if l["incarnation"] != fmt.Sprint(ours) || l["seq"] != want {
			wrong(l, "want incarnation %d, epoch %s", ours, want)
		}
	}
	if restored := running["restored_in"]; restored == "" || contains(recovered["steps"], ", restore "+restored+",") != nil {
		wrong(running, "the lane's last line has the steps %s", recovered["steps"])
	}
	if takenOver["found_incarnation"] != fmt.Sprint(incarnation) {
		wrong(takenOver, "it has found incarnation %d", incarnation)
	}
	for i, db := range k.w.shards {
		row := func(seq int64) (incarnation, next, in int64, ids int64) {
			if err := db.QueryRow("SELECT incarnation, offset_next, records_in FROM billing_epoch WHERE kafka_topic = ? AND kafka_partition = ? AND seq = ?",
				k.w.topic, partition, seq).Scan(&incarnation, &next, &in); err != nil {
				t.Fatalf("lane %d: epoch %d on shard %d: %v", partition, seq, i, err)
			}
			if err := db.QueryRow("SELECT SUM(applied) FROM billing_epoch WHERE kafka_topic = ? AND kafka_partition = ? AND seq <= ?",
				k.w.topic, partition, seq).Scan(&ids); err != nil {
				t.Fatal(err)
			}
			return incarnation, next, in, ids
		}
		has, next, _, ids := row(seq)
		if has != incarnation || takenOver["next_offset"] != fmt.Sprint(next) || running["next_offset"] != fmt.Sprint(next) {
			wrong(takenOver, "shard %d has epoch %d of incarnation %d, up to offset %d", i, seq, has, next)
		}
		if running["ids"] != fmt.Sprint(ids) || running["chunks"] == "0" {
			wrong(running, "the epochs up to %d have %d ids", seq, ids)
		}
		has, next, in, _ := row(seq + 1)
		if has != ours || recovered["next_offset"] != fmt.Sprint(next) || recovered["in"] != fmt.Sprint(in) {
			wrong(recovered, "shard %d has epoch %d of incarnation %d, %d records up to offset %d", i, seq+1, has, in, next)
		}

		k.toldBranches(partition, i, seq, incarnation, doubt, settled)
	}
	if n := len(branchSaid.FindAllString(doubt["branches"], -1)); doubt["in_doubt"] != fmt.Sprint(n) || (n == 0) != (doubt["msg"] == "nothing in doubt") {
		wrong(doubt, "it names %d branches", n)
	}
}

// toldBranches holds what it says of a lane's branches on one shard against what was
// prepared there, and what has become of it.
func (k *corpse) toldBranches(partition int32, shard int, seq, incarnation int64, doubt, settled logLine) {
	t := k.w.t
	t.Helper()
	on := func(l logLine) string {
		for part := range strings.SplitSeq(l["branches"], "; ") {
			if said, ok := strings.CutPrefix(part, fmt.Sprintf("s%d: ", shard)); ok {
				return said
			}
		}
		t.Errorf("lane %d: nothing of shard %d: %v", partition, shard, l)
		return ""
	}
	listed, did := branchSaid.FindAllString(on(doubt), -1), on(settled)
	decided := fmt.Sprintf("epoch %d of incarnation %d", seq, incarnation)
	for _, name := range listed {
		want := "rolled back " + name
		if name == decided {
			want = "committed " + name
		}
		if err := contains(did, want); err != nil {
			t.Errorf("lane %d, shard %d, with %s decided: %v: %v", partition, shard, decided, err, settled)
		}
		if next := fmt.Sprintf("epoch %d of incarnation %d", seq+1, incarnation); name != decided && name != next {
			t.Errorf("lane %d, shard %d: with %s decided, %s can't be prepared: %v", partition, shard, decided, name, doubt)
		}
	}
	if n := len(branchSaid.FindAllString(did, -1)); n != len(listed) {
		t.Errorf("lane %d, shard %d: %d branches in doubt, %d ended: %v, %v", partition, shard, len(listed), n, doubt, settled)
	}
	lane := k.w.decided(partition).GTRID[:40]
	for gtrid := range k.left[shard] {
		var i, s int64
		if !strings.HasPrefix(gtrid, lane) {
			continue
		}
		if _, err := fmt.Sscanf(gtrid[40:], "%012x%012x", &i, &s); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("epoch %d of incarnation %d", s, i)
		if i == incarnation && name != decided && !slices.Contains(listed, name) { // what was decided may be on its way
			t.Errorf("lane %d, shard %d: %s was prepared after the death, and it says %v", partition, shard, name, doubt)
		}
	}
}

// took is how long each step of one lane's recovery took: the names of the steps are the log's.
type took map[string]time.Duration

// The steps that the log names, and what it does not know: how long it took until the
// lane was assigned, and from the death to the first new decision.
var stepNames = []string{"assigned", "fence", "read", "takeover", "settle", "restore", "fetch", "fill", "prepare", "decide", "commit"}

const (
	tookAssigned = "assigned"
	tookDecided  = "kill to first decision"
	tookBehind   = "of it behind the restore"
)

// steps are those of many lanes.
type steps []took

// tell prints when each lane came to the end of each step, after the death.
func (k *corpse) tell(next *process) (all steps) {
	t := k.w.t
	t.Helper()
	var out strings.Builder
	rounded := func(d time.Duration) string { return d.Round(time.Millisecond).String() }
	for _, l := range lines(next.output()) {
		if at := l.at().Sub(k.at); at > 0 && slices.Contains([]string{"starting", "servers checked, joining the consumer group", "lanes assigned"}, l["msg"]) {
			fmt.Fprintf(&out, "%s: %s\n", rounded(at), l["msg"])
		}
	}
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "lane\tids\t%s\t\n", strings.Join(stepNames, "\t"))
	said := lines(k.said(next))
	for _, n := range k.lanes {
		of := took{}
		ids := ""
		var end time.Time
		for _, l := range k.of(said, n) {
			switch l["msg"] {
			case "lane running":
				ids = l["ids"]
			case "lane recovered":
				end = l.at()
				for part := range strings.SplitSeq(l["steps"], ", ") {
					name, text, _ := strings.Cut(part, " ")
					d, err := time.ParseDuration(text)
					if err != nil {
						t.Fatalf("lane %d: %v: %v", n, err, l)
					}
					of[name] = d
				}
			}
		}
		of[tookAssigned] = end.Sub(k.at)
		for _, name := range stepNames[1:] {
			of[tookAssigned] -= of[name]
		}
		fmt.Fprintf(table, "%d\t%s\t", n, ids)
		var at time.Duration
		for _, name := range stepNames {
			at += of[name]
			fmt.Fprintf(table, "%s\t", rounded(at))
		}
		fmt.Fprintln(table)
		of[tookDecided] = at - of["commit"]
		of[tookBehind] = of["fetch"] + of["fill"] + of["prepare"] + of["decide"]
		all = append(all, of)
	}
	_ = table.Flush()
	t.Logf("since the death, each lane has come to the end of\n%s", &out)
	return all
}

// String is the median and the largest of each step.
func (all steps) String() string {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "%d recoveries\tmedian\tworst\t\n", len(all))
	for _, name := range append(slices.Clone(stepNames), tookDecided, tookBehind) {
		var ds []time.Duration
		for _, of := range all {
			ds = append(ds, of[name])
		}
		slices.Sort(ds)
		fmt.Fprintf(table, "%s\t%s\t%s\t\n", name, ds[len(ds)/2].Round(time.Millisecond), ds[len(ds)-1].Round(time.Millisecond))
	}
	_ = table.Flush()
	return out.String()
}
