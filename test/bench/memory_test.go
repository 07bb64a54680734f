package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"billing/test/bench/measure"
	"billing/test/proxy"
)

// mib is the unit of memory's figures.
const mib = 1 << 20

// TestBenchMemory measures what the real binary takes of memory while a backlog is
// there, against what its configuration may need, with few lanes and with many.
func TestBenchMemory(t *testing.T) {
	r := measure.New(t, "memory")
	r.Uses("Kafka", kafkaVersion(t))
	r.Uses("MySQL", mysqlVersion(t))
	messages := measure.Pick(5_000_000, 20_000)
	within := time.Duration(measure.Pick(40, 60)) * time.Second
	plot := measure.Lines{Name: "resident", Title: "Resident memory while a backlog is drained", XUnit: "s", YUnit: "MiB", BoundLabel: "what the configuration may need"}

	var things []measure.Thing
	lines := map[int32]measure.Series{}
	few, many := int32(measure.Pick(8, 2)), int32(measure.Pick(64, 8))
	for _, partitions := range []int32{few, many} {
		topic := newTopic(t, partitions)
		e := standardLoad(messages, partitions).produce(t, kafkaServer(t), topic)
		things = append(things, measure.Thing{Name: lanes(partitions), Run: func() measure.Values {
			j := newJob(t, topic, jobConfig{Shards: 2, More: fmt.Sprintf("memory: {max_bytes: %d}\ndedup: {max_ids: %d}\n", 256*mib, messages)})
			defer j.drop()
			may := j.mayNeed() / mib
			p := j.start()
			line, drained := p.watch(e.Records, within)
			line.Label = lanes(partitions)
			lines[partitions], plot.Bound = line, may
			peak := float64(p.status("VmHWM")) / mib
			if drained == 0 {
				t.Fatalf("nothing was booked within %s", within)
			}
			if p.stop(); drained == e.Records {
				j.exact(e)
			}
			return measure.Values{"peak": peak, "share": 100 * peak / may, "drained": 100 * float64(drained) / float64(e.Records), "may": may}
		}})
	}
	rounds := r.Alternate(things...)
	for _, partitions := range []int32{few, many} {
		name := lanes(partitions)
		plot.Series = append(plot.Series, lines[partitions])
		r.Figure(measure.Figure{Name: name + ": peak", Unit: "MiB", Values: rounds.Of(name, "peak"),
			Target: measure.AtMost(rounds.Of(name, "may")[0]), From: "what `billing config check` says that this configuration may need",
			Note: fmt.Sprintf("the process's own peak (VmHWM), %d messages of %d bytes waiting at the start", messages, eventSize)})
		r.Figure(measure.Figure{Name: name + ": drained meanwhile", Unit: "%", Values: rounds.Of(name, "drained"),
			Note: fmt.Sprintf("of the backlog, within %s", within)})
	}
	r.Lines(plot)
	idle(t, r)
}

func lanes(n int32) string { return fmt.Sprintf("%d lanes", n) }

// idle measures what lanes cost that have nothing to do: one process, and a stretch
// of time for each run.
func idle(t *testing.T, r *measure.Report) {
	partitions := int32(measure.Pick(64, 8))
	window := time.Duration(measure.Pick(15, 2)) * time.Second
	kafka := proxy.KafkaFor(t, kafkaServer(t).Addr())
	requests := kafka.Add(proxy.KafkaRule{Match: func(*proxy.Request) bool { return true }, Do: proxy.Watch{}})
	j := newJob(t, newTopic(t, partitions), jobConfig{Shards: 2, Ledger: true, Broker: kafka.Addr()})
	p := j.start()
	p.awaitLanes(int(partitions))
	p.pass(time.Duration(measure.Pick(75, 1)) * time.Second) // lanes are idle after a minute
	var cpu, asked, queries, resident []float64
	for range measure.Runs() {
		c, a, q := p.cpu(), requests.Hits(), j.questions()
		p.pass(window)
		cpu = append(cpu, 100*float64(p.cpu()-c)/float64(window))
		asked = append(asked, float64(requests.Hits()-a)/window.Seconds())
		queries = append(queries, (j.questions()-q-1)/window.Seconds()) // the second look counts itself
		resident = append(resident, float64(p.status("VmRSS"))/mib)
	}
	p.stop()
	r.Figure(measure.Figure{Name: "idle: processor", Unit: "% of 1 core", Values: cpu,
		Target: measure.AtMost(1), From: "idle lanes shall cost nothing that anybody would notice",
		Note: fmt.Sprintf("%d lanes, two shards; each value over %s", partitions, window)})
	r.Figure(measure.Figure{Name: "idle: MySQL", Unit: "queries/s", Values: queries,
		Target: measure.AtMost(10), From: "three looks at each shard every 2 s, of two queries each, and not one for each lane",
		Note: "both shards, on one server"})
	r.Figure(measure.Figure{Name: "idle: Kafka", Unit: "requests/s", Values: asked, Note: "one broker"})
	r.Figure(measure.Figure{Name: "idle: resident", Unit: "MiB", Values: resident})
}

// mayNeed is what billing config check says of the job's memory, in bytes.
func (j *job) mayNeed() float64 {
	j.t.Helper()
	out, err := command(j.t, "config", "check", "--json", "--config", j.config).Output()
	if err != nil {
		j.t.Fatalf("config check: %v\n%s", err, out)
	}
	var said struct {
		Memory float64 `json:"memory_bytes"`
	}
	if err := json.Unmarshal(out, &said); err != nil || said.Memory == 0 {
		j.t.Fatalf("config check: %v\n%s", err, out)
	}
	return said.Memory
}

// questions is how many statements the job's server was sent.
func (j *job) questions() float64 {
	j.t.Helper()
	var name string
	var n float64
	if err := mysqlServer(j.t).Root().QueryRow("SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n); err != nil {
		j.t.Fatal(err)
	}
	return n
}

// watch notes the resident memory until n records are accounted for, or the time
// is over, and how many are.
func (p *instance) watch(n int64, within time.Duration) (line measure.Series, drained int64) {
	p.j.t.Helper()
	begun := time.Now()
	for time.Since(begun) < within && drained < n {
		p.pass(100 * time.Millisecond)
		line.X = append(line.X, time.Since(begun).Seconds())
		line.Y = append(line.Y, float64(p.status("VmRSS"))/mib)
		if len(line.X)%10 == 0 { // looking costs the server a little
			var err error
			if drained, err = p.j.records(); err != nil {
				p.j.t.Fatal(err)
			}
		}
	}
	return line, drained
}

// pass lets time pass, in which the process must live.
func (p *instance) pass(d time.Duration) {
	p.j.t.Helper()
	select {
	case <-time.After(d):
	case <-p.done:
		p.j.t.Fatalf("billing run ended: %v\n%s", p.err, p.said())
	}
}

// status is a line of the process's status in bytes.
func (p *instance) status(key string) int64 {
	p.j.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.j.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\n"+key+":")
	fields := strings.Fields(rest)
	if len(fields) < 2 || fields[1] != "kB" {
		p.j.t.Fatalf("no %s in\n%s", key, b)
	}
	n, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		p.j.t.Fatal(err)
	}
	return n << 10
}

// cpu is the processor time that the process has used, by its own clock.
func (p *instance) cpu() time.Duration {
	p.j.t.Helper()
	const sched = 2 // CPUCLOCK_SCHED
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^p.cmd.Process.Pid<<3|sched), &ts); err != nil {
		p.j.t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}
