package e2e

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ---- counters

var (
	logTime   = regexp.MustCompile(`^time=(\S+) `)
	committed = regexp.MustCompile(`msg="epoch committed" .* applied=(\d+) duplicates=(\d+) conflicts=(\d+) rejected=(\d+)`)
)

// timeOf is when a line was said; zero for one that does not tell.
func timeOf(line string) time.Time {
	found := logTime.FindStringSubmatch(line)
	if found == nil {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, found[1])
	if err != nil {
		return time.Time{}
	}
	return at
}

// counted is what the instance has counted, records by outcome: each line of an epoch
// goes with its counting.
func (i *instance) counted() map[string]int64 {
	sum := map[string]int64{}
	for line := range strings.Lines(i.output()) {
		if found := committed.FindStringSubmatch(line); found != nil {
			for n, outcome := range outcomesOfRecords {
				sum[outcome] += number(found[1+n])
			}
		}
	}
	return sum
}

// readToTheEnd reads the counters again and again until nobody answers, and returns
// what they said last; nil when they never did.
func (i *instance) readToTheEnd() (last map[string]int64) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if now, err := i.readCounters(); err == nil {
			last = now
		}
		select {
		case <-i.done:
			return last
		case <-tick.C:
		}
	}
}

func (i *instance) readCounters() (map[string]int64, error) {
	_, body, err := i.get("/metrics")
	if err != nil {
		return nil, err
	}
	counters := map[string]int64{}
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(line, `billing_records_total{outcome="`); ok {
			outcome, value, _ := strings.Cut(strings.TrimSpace(rest), `"} `)
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return nil, err
			}
			counters[outcome] = int64(v)
		}
	}
	return counters, nil
}

// checkCounters: what the instances have counted together is what the tables have.
// Those that were killed take their counters along.
func (m *many) checkCounters(kills bool, add func(string, ...any)) {
	m.t.Helper()
	all, read, behind := map[string]int64{}, 0, 0
	for _, i := range m.instances() {
		logged := i.counted()
		for outcome, n := range logged {
			all[outcome] += n
		}
		if i.counters == nil {
			continue
		}
		read++
		// An epoch that ended between the last answer and the end is in the log only.
		late := false
		for _, outcome := range outcomesOfRecords {
			if i.counters[outcome] > logged[outcome] {
				add("instance %d counts %d records %s, and its log has %d", i.slot, i.counters[outcome], outcome, logged[outcome])
			}
			late = late || i.counters[outcome] < logged[outcome]
		}
		if late {
			behind++
		}
	}
	m.say("billing_records_total, over all instances: %v; read at the end of %d instances, of which %d counted one more epoch behind the last answer", all, read, behind)
	if !kills {
		m.checkEachEpochCounted(all, add)
	}
}

// inDoubtAtTheEnd is a session that ended before it knew its epoch committed.
var (
	epochCounted    = regexp.MustCompile(`msg="epoch committed" lane=\S+/(\d+) incarnation=\d+ seq=(\d+) `)
	inDoubtAtTheEnd = regexp.MustCompile(` lane=\S+/(\d+) .*phase 2 of epoch (\d+):`)
)

// checkEachEpochCounted: each epoch is counted once, by one instance. There is one
// exception, which decision 0006 takes on: a session ended in phase 2, and the XA
// COMMIT that it had sent came to the shard by itself, so that neither it nor the next
// owner saw the end. Such an epoch must have left its line, and its records are exactly
// those that are missing.
func (m *many) checkEachEpochCounted(all map[string]int64, add func(string, ...any)) {
	m.t.Helper()
	counted, doubted := map[[2]int64]int64{}, map[[2]int64]bool{}
	for _, i := range m.instances() {
		for line := range strings.Lines(i.output()) {
			if found := epochCounted.FindStringSubmatch(line); found != nil {
				counted[[2]int64{number(found[1]), number(found[2])}]++
			}
			if found := inDoubtAtTheEnd.FindStringSubmatch(line); found != nil {
				doubted[[2]int64{number(found[1]), number(found[2])}] = true
			}
		}
	}
	want, sum := map[string]int64{}, maps.Clone(all)
	for _, outcome := range outcomesOfRecords {
		sum[outcome] += 0
	}
	rows, err := m.shards[0].Query("SELECT kafka_partition, seq, applied, duplicates, conflicts, rejected FROM billing_epoch")
	m.must(err)
	defer rows.Close()
	for rows.Next() {
		var epoch [2]int64
		n := make([]int64, len(outcomesOfRecords))
		m.must(rows.Scan(&epoch[0], &epoch[1], &n[0], &n[1], &n[2], &n[3]))
		times := counted[epoch]
		if times != 1 && !doubted[epoch] {
			add("epoch %d of lane %d is counted %d times", epoch[1], epoch[0], times)
		} else if times != 1 {
			m.say("epoch %d of lane %d is counted %d times: its session ended in phase 2", epoch[1], epoch[0], times)
		}
		for i, outcome := range outcomesOfRecords {
			want[outcome] += n[i]
			if doubted[epoch] {
				sum[outcome] += n[i] * (1 - times)
			}
		}
	}
	m.must(rows.Err())
	if !maps.Equal(sum, want) {
		add("billing_records_total, over all instances: %v, and the tables have %v", sum, want)
	}
}

// ---- after a SIGKILL

// kill is a SIGKILL of an instance.
type kill struct {
	at time.Time
	p  *process
	f  *planned
}

var (
	laneLine   = regexp.MustCompile(` msg=("[^"]*"|\S+) .*?lane=\S+/(\d+)`)
	lanesOf    = regexp.MustCompile(` msg="(lanes assigned|lanes given up|lanes lost)[^"]*" partitions=("[^"]*"|\S+)`)
	restoredIn = regexp.MustCompile(` restored_in=(\S+)`)
)

// story is a line about a lane.
type story struct {
	at       time.Time
	instance *instance
	what     string // its first words, and "gone" for a lane that was given up
	restored string // how long S5 took
	recovery bool
}

// stories are the lines of all instances, by lane, in their order.
func (m *many) stories() map[int32][]story {
	all := map[int32][]story{}
	for _, i := range m.instances() {
		for line := range strings.Lines(i.output()) {
			at := timeOf(line)
			if found := lanesOf.FindStringSubmatch(line); found != nil {
				what := map[bool]string{true: "lanes assigned", false: "gone"}[found[1] == "lanes assigned"]
				for _, p := range strings.FieldsFunc(found[2], func(r rune) bool { return r < '0' || r > '9' }) {
					n := int32(number(p))
					all[n] = append(all[n], story{at: at, instance: i, what: what})
				}
			} else if found := laneLine.FindStringSubmatch(line); found != nil {
				s := story{at: at, instance: i, what: strings.Trim(found[1], `"`), recovery: strings.Contains(line, "recovered=true")}
				if restored := restoredIn.FindStringSubmatch(line); restored != nil {
					s.restored = restored[1]
				}
				n := int32(number(found[2]))
				all[n] = append(all[n], s)
			}
		}
	}
	for _, s := range all {
		slices.SortStableFunc(s, func(a, b story) int { return a.at.Compare(b.at) })
	}
	return all
}

// afterKills says of each SIGKILL how long each lane of the dead instance stood still,
// until a next owner's first epoch was decided and on every shard, and of what that
// consists.
func (m *many) afterKills() (lines []string) {
	all := m.stories()
	for _, k := range m.killed {
		lines = append(lines, fmt.Sprintf("%s at %s:", k.f, k.at.Format(clock)))
		lanes := 0
		for p := range m.partitions {
			if line := afterKill(all[p], k); line != "" {
				lines = append(lines, fmt.Sprintf("    lane %d: %s", p, line))
				lanes++
			}
		}
		if lanes == 0 {
			lines = append(lines, "    it had no lane at work")
		}
	}
	return lines
}

// afterKill is that of one lane; "" when the dead instance did not have it.
func afterKill(lane []story, k kill) string {
	var owner *instance
	var assigned, taken, settled, running time.Time
	restored := "?"
	since := func(from, to time.Time) string {
		if from.IsZero() || to.IsZero() {
			return "?"
		}
		return to.Sub(from).Round(10 * time.Millisecond).String()
	}
	sessions := 0
	for _, s := range lane {
		if s.at.Before(k.at) {
			switch {
			case s.what == "lane taken over":
				owner = s.instance
			case s.what == "gone" && s.instance == owner:
				owner = nil
			}
			continue
		}
		if owner == nil || owner.process != k.p {
			return ""
		}
		if s.instance == owner {
			continue // its last words, of the same instant
		}
		switch s.what {
		case "lanes assigned":
			assigned = s.at
		case "lane taken over":
			sessions++
			taken, settled, running, restored = s.at, time.Time{}, time.Time{}, "?"
		case "settled":
			settled = s.at
		case "lane running":
			running, restored = s.at, s.restored
		case "epoch committed", "idle lane's offset moved":
			if s.recovery || taken.IsZero() {
				continue
			}
			group, takeover := since(k.at, assigned), since(assigned, taken)
			if assigned.IsZero() { // its owner had it before, or has it from a session's end on
				group, takeover = "?", since(k.at, taken)
			}
			return fmt.Sprintf("first new decision after %s: until it was assigned %s, takeover (S1 to S3) %s, S4 %s, S5 %s, first epoch %s; %d sessions began",
				since(k.at, s.at), group, takeover, since(taken, settled), restored, since(running, s.at), sessions)
		}
	}
	if owner == nil || owner.process != k.p {
		return ""
	}
	return "no new decision, for there was nothing to decide"
}
