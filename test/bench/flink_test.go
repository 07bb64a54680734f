package bench

import (
	"context"
	"database/sql"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"billing/test/bench/measure"
	"billing/test/servers"
)

// withFlink asks for the comparison, which needs what is not needed elsewhere, Java and
// Maven. Its value is arguments for the job, or "default".
const withFlink = "BILLING_BENCH_FLINK"

// TestBenchFlink drains the same topic by the service and by a job of Flink, turn by
// turn, into the same MySQL server. Where nobody asks for it, it only looks at
// the job's files.
func TestBenchFlink(t *testing.T) {
	project := flinkProject(t)
	if os.Getenv(withFlink) == "" {
		return
	}
	folder := buildFlinkJob(t)
	var more []string
	if v := os.Getenv(withFlink); v != "default" {
		more = strings.Fields(v)
	}
	r := measure.New(t, "flink")
	r.Uses("Kafka", kafkaVersion(t))
	r.Uses("MySQL", mysqlVersion(t))
	r.Uses("Flink", project.Properties.Flink)
	rates := measure.Bars{Name: "rates", Title: "Messages a second: the service, and Flink", Unit: "messages/s"}
	costs := measure.Bars{Name: "costs", Title: "Processor time of one message, by process", Unit: "microseconds"}
	const target = "the service does more than the job, and is to be no slower"

	for _, c := range []struct {
		name     string
		messages int
		ledger   bool
	}{
		{"ledger", measure.Pick(500_000, 20_000), true},
		{"totals", measure.Pick(2_000_000, 40_000), false},
	} {
		l := standardLoad(c.messages, 4)
		b := &flinkBench{topic: newTopic(t, l.Partitions), partitions: l.Partitions, ledger: c.ledger, folder: folder, more: more}
		b.want = l.produce(t, kafkaServer(t), b.topic)
		run := func(name string, drain func(*testing.T, *job) *drain, holds func(*testing.T, *job)) measure.Thing {
			return measure.Thing{Name: name, Run: func() (v measure.Values) {
				t.Run(c.name+"/"+name, func(t *testing.T) { v = b.measured(t, drain, holds) })
				if t.Failed() {
					t.FailNow() // it has said why
				}
				return v
			}}
		}
		things := []measure.Thing{run("service", b.service, b.serviceHolds), run("Flink", b.flink(), b.flinkHolds)}
		if !c.ledger { // where larger epochs have fewer rows
			things = append(things, run("Flink 5s", b.flink("--interval", "5s"), b.flinkHolds))
		}
		rounds := r.Alternate(things...)
		figure := func(name, unit string, values []float64) {
			t.Helper()
			r.Figure(measure.Figure{Name: c.name + ": " + name, Unit: unit, Values: values})
		}
		speed, cost := measure.Group{Label: c.name}, measure.Group{Label: c.name}
		for _, thing := range things {
			name, bar := thing.Name, func(g *measure.Group, label, of string) {
				g.Bars = append(g.Bars, measure.Bar{Label: label, Values: rounds.Of(thing.Name, of)})
			}
			figure(name, "messages/s", rounds.Of(name, "rate"))
			figure(name+", from first row", "messages/s", rounds.Of(name, "first row"))
			bar(&speed, name, "rate")
			if name != "service" { // whose epochs are too large for halves
				figure(name+", second half", "messages/s", rounds.Of(name, "second half"))
				bar(&speed, name+", second half", "second half")
			}
			figure(name+", to its work", "s", rounds.Of(name, "start"))
			figure(name+", to first row", "s", rounds.Of(name, "to first row"))
			figure(name+", its CPU", "µs/message", rounds.Of(name, "cpu"))
			figure(name+", MySQL's CPU", "µs/message", rounds.Of(name, "mysqld"))
			figure(name+", Kafka's CPU", "µs/message", rounds.Of(name, "kafka"))
			figure(name+", its peak memory", "MiB", rounds.Of(name, "peak"))
			bar(&cost, name, "cpu")
			bar(&cost, "MySQL with "+name, "mysqld")
		}
		rates.Groups, costs.Groups = append(rates.Groups, speed), append(costs.Groups, cost)
		for _, thing := range things[1:] {
			ratio := func(name string, theirs []float64) {
				t.Helper()
				times := rounds.Of("service", "rate")
				for i := range times {
					times[i] /= theirs[i]
				}
				r.Figure(measure.Figure{Name: c.name + ": by " + thing.Name + name, Unit: "times", Values: times, Target: measure.AtLeast(1), From: target,
					Note: "the service's rate, divided by this one"})
			}
			ratio("", rounds.Of(thing.Name, "rate"))
			ratio(", 2nd half", rounds.Of(thing.Name, "second half"))
		}
	}
	r.Bars(rates)
	r.Bars(costs)
}

// flinkBench is one load, which both drain.
type flinkBench struct {
	topic      string
	partitions int32
	ledger     bool
	want       expected
	folder     string   // with the jars of Flink's job
	more       []string // arguments of the job
}

// measured is one drain, into a database of its own, which goes with t. holds
// compares every row with what has to come out, when nobody measures any more.
func (b *flinkBench) measured(t *testing.T, contender func(*testing.T, *job) *drain, holds func(*testing.T, *job)) measure.Values {
	j := newJob(t, b.topic, jobConfig{Shards: 1, Ledger: b.ledger})
	mysqld, kafka := processors(t)
	d := contender(t, j)
	mysqldAfter, kafkaAfter := processors(t)
	holds(t, j)
	records := float64(b.want.Records)
	return measure.Values{
		"rate":         d.rate(d.atWork),
		"first row":    d.rate(d.from(0)),
		"second half":  d.rate(d.from(0.5)),
		"start":        d.atWork.at.Sub(d.began).Seconds(),
		"to first row": d.from(0).at.Sub(d.atWork.at).Seconds(),
		"cpu":          micros(d.cpu) / records,
		"mysqld":       micros(mysqldAfter-mysqld) / records,
		"kafka":        micros(kafkaAfter-kafka) / records,
		"peak":         float64(d.peak) / (1 << 20),
	}
}

// processors are what both servers have used so far.
func processors(t *testing.T) (mysqld, kafka time.Duration) {
	t.Helper()
	ask := func(server interface {
		Processor(ctx context.Context) (time.Duration, error)
	}) time.Duration {
		used, err := server.Processor(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return used
	}
	return ask(mysqlServer(t)), ask(kafkaServer(t))
}

// service drains the topic by `billing run`.
func (b *flinkBench) service(t *testing.T, j *job) *drain {
	p := j.start()
	d := follow(t, contender{cmd: p.cmd, done: p.done, said: p.text, atWork: "lane running"}, b.want.Records, func() (float64, error) {
		n, err := j.records()
		return float64(n) / float64(b.want.Records), err
	})
	d.cpu = p.stop()
	return d
}

func (b *flinkBench) serviceHolds(_ *testing.T, j *job) { j.exact(b.want) }

// flink drains the topic by the job, into tables like the service's.
func (b *flinkBench) flink(more ...string) func(*testing.T, *job) *drain {
	return func(t *testing.T, j *job) *drain {
		for _, table := range []string{"ledger", "total"} {
			if _, err := j.db[0].Exec("CREATE TABLE flink_" + table + " LIKE billing_" + table); err != nil {
				t.Fatal(err)
			}
		}
		p := b.startFlink(t, j, more)
		d := follow(t, p, b.want.Records, func() (float64, error) {
			booked, err := b.bookedByFlink(j)
			return float64(booked) / float64(b.want.Applied), err
		})
		d.cpu = p.stop(t)
		return d
	}
}

func (b *flinkBench) flinkHolds(t *testing.T, j *job) {
	table := "SELECT SUM(entry_count), CAST(SUM(charge_amount + credit_amount) * 1000000 AS SIGNED) FROM flink_total"
	if b.ledger {
		table = "SELECT COUNT(*), CAST(SUM(amount) * 1000000 AS SIGNED) FROM flink_ledger"
	}
	got := expected{Records: b.want.Records, Duplicates: b.want.Duplicates} // of which it keeps no account
	if err := j.db[0].QueryRow(table).Scan(&got.Applied, &got.Micros); err != nil {
		t.Fatal(err)
	}
	if got != b.want {
		t.Errorf("Flink's tables say %+v, want %+v", got, b.want)
	}
}

// bookedByFlink is how many messages have come to its tables. Rows of a ledger
// are only counted when the last ones are there: to count them all takes MySQL so long
// that it would be measured, too.
func (b *flinkBench) bookedByFlink(j *job) (int64, error) {
	if !b.ledger {
		return one(j.db[0], "SELECT SUM(entry_count) FROM flink_total")
	}
	var reached int64
	for p := range b.partitions {
		n, err := one(j.db[0], "SELECT MAX(kafka_offset) + 1 FROM flink_ledger WHERE kafka_topic = ? AND kafka_partition = ?", b.topic, p)
		if err != nil {
			return 0, err
		}
		reached += n
	}
	if reached < b.want.Records-b.want.Records/100 { // the last messages may be duplicates
		return reached * b.want.Applied / b.want.Records, nil
	}
	return one(j.db[0], "SELECT COUNT(*) FROM flink_ledger")
}

// The JVM's heap has room for the ids several times over, so that collecting it costs
// little.
var flinkJVM = []string{
	"-Xms3g", "-Xmx3g", "-XX:+UseParallelGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
	"--add-opens=java.base/java.util=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED",
}

func (b *flinkBench) startFlink(t *testing.T, j *job, more []string) contender {
	t.Helper()
	to, err := mysql.ParseDSN(servers.AsRoot(j.dsns[0]))
	if err != nil {
		t.Fatal(err)
	}
	url := "jdbc:mysql://" + to.Addr + "/" + to.DBName + "?rewriteBatchedStatements=true&sslMode=DISABLED&allowPublicKeyRetrieval=true" +
		"&sessionVariables=transaction_isolation='READ-COMMITTED'" // as the service's
	args := append(slices.Clone(flinkJVM), "-cp", b.folder+"/*:"+b.folder+"/lib/*", "Job",
		"--brokers", kafkaServer(t).Addr(), "--topic", b.topic, "--group", "flink-"+uuid.NewString()[:8],
		"--url", url, "--user", to.User, "--password", to.Passwd, "--checkpoints", t.TempDir(),
		"--type-prefix", "com.example.billing.", "--currencies", "EUR,USD")
	if b.ledger {
		args = append(args, "--ledger", "true")
	}
	args = append(append(args, more...), b.more...)
	log, err := os.CreateTemp(t.TempDir(), "flink-*.log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	done := make(chan struct{})
	p := contender{cmd: exec.Command("java", args...), done: done, atWork: "at work"}
	p.said = func() string {
		text, err := os.ReadFile(log.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text[max(0, len(text)-8000):])
	}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // the JVM's own code for a signal
		close(done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-done
		if t.Failed() {
			t.Logf("the log's end:\n%s", p.said())
		}
	})
	return p
}

// stop ends the process and returns what it has used of the processor.
func (c contender) stop(t *testing.T) time.Duration {
	t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-c.done
	return c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime()
}

// pom is what this benchmark has to know of the job's build.
type pom struct {
	Properties struct {
		Flink   string `xml:"flink"`
		Release int    `xml:"maven.compiler.release"`
	} `xml:"properties"`
	Dependencies []struct {
		Artifact string `xml:"artifactId"`
		Version  string `xml:"version"`
	} `xml:"dependencies>dependency"`
}

// flinkProject reads the job's build, and holds what a build would only find out
// with Java: that it is well formed, and that each library has a version.
func flinkProject(t *testing.T) pom {
	t.Helper()
	text, err := os.ReadFile("flink/pom.xml")
	if err != nil {
		t.Fatal(err)
	}
	var p pom
	if err := xml.Unmarshal(text, &p); err != nil {
		t.Fatal("flink/pom.xml: ", err)
	}
	libraries := map[string]bool{}
	for _, d := range p.Dependencies {
		libraries[d.Artifact] = d.Version != ""
	}
	for _, want := range []string{"flink-streaming-java", "flink-connector-kafka", "flink-connector-jdbc", "mysql-connector-j"} {
		if !libraries[want] {
			t.Errorf("flink/pom.xml has no %s with a version", want)
		}
	}
	if p.Properties.Flink == "" || p.Properties.Release == 0 {
		t.Errorf("flink/pom.xml does not say the versions of Flink and of Java: %+v", p.Properties)
	}
	for _, class := range []string{"Job", "Event"} {
		text, err := os.ReadFile("flink/" + class + ".java")
		if err != nil || !strings.Contains(string(text), "public class "+class+" {") {
			t.Errorf("flink/%s.java has no class %s: %v", class, class, err)
		}
	}
	return p
}

var javaVersion = regexp.MustCompile(`version "(\d+)`)

// buildFlinkJob returns the folder with the job's jar, and what it needs in lib.
func buildFlinkJob(t *testing.T) string {
	t.Helper()
	const next = "next step: install a JDK, 17 or later, and Maven 3"
	for _, tool := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("there is no %s on the PATH; %s", tool, next)
		}
	}
	said, err := exec.Command("java", "-version").CombinedOutput()
	if err != nil {
		t.Fatalf("java -version: %v; %s\n%s", err, next, said)
	}
	if m := javaVersion.FindSubmatch(said); m != nil {
		if v, err := strconv.Atoi(string(m[1])); err != nil || v < 17 {
			t.Fatalf("this Java is too old; %s\n%s", next, said)
		}
	}
	folder := filepath.Join(t.TempDir(), "flink")
	build := func(more ...string) (string, error) {
		cmd := exec.Command("mvn", append(more, "-q", "-B", "-f", "flink/pom.xml", "-Dto="+folder, "package")...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if _, err := build("-o"); err == nil { // nothing is to be fetched
		return folder
	}
	if out, err := build(); err != nil {
		t.Fatalf("build Flink's job: %v; next step: see that Maven reaches a repository\n%s", err, out)
	}
	return folder
}

// one asks for one number, 0 where there is none.
func one(db *sql.DB, query string, args ...any) (n int64, err error) {
	var found *int64
	if err := db.QueryRow(query, args...).Scan(&found); err != nil || found == nil {
		return 0, err
	}
	return *found, nil
}
