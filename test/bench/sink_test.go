package bench

import (
	"context"
	"testing"
	"time"

	"billing/test/bench/measure"
)

// TestBenchSink drains a backlog by the real binary from the real broker into the
// real MySQL, and has MySQL alone take what the service has said to it in such a run.
func TestBenchSink(t *testing.T) {
	r := measure.New(t, "sink")
	r.Uses("Kafka", kafkaVersion(t))
	r.Uses("MySQL", mysqlVersion(t))
	rates := measure.Bars{Name: "rates", Title: "Messages a second: the whole service, and MySQL alone", Unit: "messages/s"}
	costs := measure.Bars{Name: "costs", Title: "Processor time of one message, by process", Unit: "microseconds"}
	const half = "the service shares two cores with MySQL and Kafka, so half of what MySQL does with both"

	few, many := standardLoad(measure.Pick(2_000_000, 20_000), 4), standardLoad(measure.Pick(1_000_000, 20_000), 4)
	many.Accounts = 100_000
	ledger := standardLoad(measure.Pick(400_000, 20_000), 4)
	for _, c := range []struct {
		name   string
		load   load
		ledger bool
		target measure.Target
		epochs bool // also with small epochs
		note   string
	}{
		{"ledger", ledger, true, measure.AtLeast(0.5), false, ""},
		{"totals", many, false, measure.AtLeast(0.5), false, "nearly every message has a row of its own"},
		{"shared", few, false, measure.Target{}, true, "many messages share a row, so MySQL has little to do: what bounds the service is its own work"},
	} {
		s := newSinkBench(t, c.load, c.ledger)
		things := []measure.Thing{
			{Name: "service", Run: func() measure.Values { return s.service("") }},
			{Name: "mysql", Run: s.mysqlAlone},
		}
		if c.epochs {
			things = append(things, measure.Thing{Name: "small", Run: func() measure.Values { return s.service(smallEpochs) }})
		}
		rounds := r.Alternate(things...)
		figure := func(name, unit string, values []float64) {
			t.Helper()
			r.Figure(measure.Figure{Name: c.name + ": " + name, Unit: unit, Values: values})
		}
		figure("service", "messages/s", rounds.Of("service", "rate"))
		figure("MySQL alone", "messages/s", rounds.Of("mysql", "rate"))
		ratio := measure.Figure{Name: c.name + ": of MySQL's rate", Unit: "share", Values: rounds.Ratio("service", "mysql", "rate"), Target: c.target, Note: c.note}
		if c.target != (measure.Target{}) {
			ratio.From = half
		}
		r.Figure(ratio)
		figure("MySQL alone, rows", "rows/s", rounds.Of("mysql", "rows"))
		figure("messages of a row", "messages", rounds.Of("mysql", "shared"))
		figure("messages of an epoch", "messages", rounds.Of("service", "epoch"))
		figure("rows written", "a message", rounds.Of("service", "written"))
		if c.epochs {
			figure("small, messages an epoch", "messages", rounds.Of("small", "epoch"))
			figure("small, MySQL's CPU", "µs/message", rounds.Of("small", "mysqld"))
			figure("small, rows written", "a message", rounds.Of("small", "written"))
			figure("small, service", "messages/s", rounds.Of("small", "rate"))
			r.Figure(measure.Figure{Name: c.name + ": of small's rows", Unit: "times", Values: rounds.Ratio("service", "small", "written"),
				Target: measure.AtMost(0.9), From: "a backlog is drained in larger epochs so that more messages share a row: a tenth fewer, or it is not worth having"})
		}
		figure("service's CPU", "µs/message", rounds.Of("service", "billing"))
		figure("MySQL's CPU", "µs/message", rounds.Of("service", "mysqld"))
		figure("Kafka's CPU", "µs/message", rounds.Of("service", "kafka"))
		figure("MySQL's CPU, alone", "µs/message", rounds.Of("mysql", "mysqld"))
		rates.Groups = append(rates.Groups, measure.Group{Label: c.name, Bars: []measure.Bar{
			{Label: "service", Values: rounds.Of("service", "rate")}, {Label: "MySQL alone", Values: rounds.Of("mysql", "rate")},
		}})
		costs.Groups = append(costs.Groups, measure.Group{Label: c.name, Bars: []measure.Bar{
			{Label: "service", Values: rounds.Of("service", "billing")}, {Label: "MySQL", Values: rounds.Of("service", "mysqld")},
			{Label: "Kafka", Values: rounds.Of("service", "kafka")},
		}})
	}
	r.Bars(rates)
	r.Bars(costs)
}

// smallEpochs is a configuration in which a lane that is behind has epochs as one that
// keeps up.
const smallEpochs = "checkpoint: {max_interval: 1s}\n"

// sinkBench is one load, and what the service has said to MySQL when it drained it.
type sinkBench struct {
	t      *testing.T
	topic  string
	ledger bool
	want   expected
	said   *recording
}

func newSinkBench(t *testing.T, l load, ledger bool) *sinkBench {
	s := &sinkBench{t: t, topic: newTopic(t, l.Partitions), ledger: ledger}
	s.want = l.produce(t, kafkaServer(t), s.topic)
	s.said = record(t, l.Partitions, func() {
		j := s.job("")
		defer j.drop()
		p := j.start()
		j.drained(p, s.want.Records)
		p.stop()
	})
	return s
}

func (s *sinkBench) job(more string) *job {
	s.t.Helper()
	return newJob(s.t, s.topic, jobConfig{Shards: 1, Ledger: s.ledger, More: more})
}

// service drains the load with this beside the configuration's defaults, and holds the
// tables against what must be in them.
func (s *sinkBench) service(more string) measure.Values {
	j := s.job(more)
	defer j.drop()
	mysqld, kafka := s.processor(mysqlServer(s.t)), s.processor(kafkaServer(s.t))
	written := s.rowsWritten()
	p := j.start()
	took := j.drained(p, s.want.Records)
	used := p.stop()
	records := float64(s.want.Records)
	v := measure.Values{
		"rate":    records / took.Seconds(),
		"billing": micros(used) / records,
		"mysqld":  micros(s.processor(mysqlServer(s.t))-mysqld) / records,
		"kafka":   micros(s.processor(kafkaServer(s.t))-kafka) / records,
		"written": (s.rowsWritten() - written) / records,
	}
	var epochs float64
	if err := j.db[0].QueryRow("SELECT COUNT(*) FROM billing_epoch").Scan(&epochs); err != nil {
		s.t.Fatal(err)
	}
	v["epoch"] = records / epochs
	j.exact(s.want)
	return v
}

// mysqlAlone has MySQL take the same statements again.
func (s *sinkBench) mysqlAlone() measure.Values {
	j := s.job("")
	defer j.drop()
	mysqld := s.processor(mysqlServer(s.t))
	took := s.said.replay(s.t, j.dsns[0])
	records := float64(s.want.Records)
	v := measure.Values{
		"rate":   records / took.Seconds(),
		"rows":   float64(s.said.rows) / took.Seconds(),
		"shared": records / float64(s.said.rows),
		"mysqld": micros(s.processor(mysqlServer(s.t))-mysqld) / records,
	}
	j.booked(s.want)
	return v
}

// rowsWritten is how many rows MySQL has inserted and changed so far, of all tables.
func (s *sinkBench) rowsWritten() (n float64) {
	s.t.Helper()
	err := mysqlServer(s.t).Root().QueryRow("SELECT SUM(variable_value) FROM performance_schema.global_status WHERE variable_name IN ('Innodb_rows_inserted', 'Innodb_rows_updated')").Scan(&n)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// processor is what a server has used so far.
func (s *sinkBench) processor(server interface {
	Processor(ctx context.Context) (time.Duration, error)
}) time.Duration {
	s.t.Helper()
	d, err := server.Processor(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
