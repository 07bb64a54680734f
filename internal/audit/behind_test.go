package audit

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
)

var in0 = checkpoint.Lane{Topic: "in", Partition: 0}

// answers gives one Read after the other, the last one for ever; each takes its
// time.
type answers struct {
	takes time.Duration
	mu    sync.Mutex
	reads []checkpoint.Read
	err   error
	asked int
}

func (a *answers) Partitions(context.Context) (int32, error) { return 1, a.err }

func (a *answers) Look(ctx context.Context, _ int32) (checkpoint.Read, error) {
	if a.takes > 0 {
		if err := pause(ctx, a.takes); err != nil {
			return checkpoint.Read{}, err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.reads[min(a.asked, len(a.reads)-1)]
	a.asked++
	return r, nil
}

func decision(seq, next int64, gtrid checkpoint.GTRID) checkpoint.Decision {
	return checkpoint.Decision{Version: 1, Job: "j", Topic: "in", TopicID: checkpoint.UUID{9}, Seq: seq, GTRID: gtrid, Next: next, Incarnation: 3}
}

func readOf(t *testing.T, d checkpoint.Decision) checkpoint.Read {
	t.Helper()
	text, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return checkpoint.Read{HasOffset: true, Offset: d.Next, Metadata: text, Record: text, TopicID: d.TopicID, Partitions: 1}
}

// auditOf is an audit whose one lane is at these epochs on its shards, seen right.
func auditOf(kafka Kafka, told *[]string, seqs ...int64) *verifier {
	v := &verifier{cfg: Config{Job: "j", Topic: "in", Kafka: kafka, Patience: 10e9}}
	v.told.to = Listener{
		Difference: func(d Difference) { *told = append(*told, d.Table+" "+d.Key+": "+d.Wrong) },
		Note:       func(n string) { *told = append(*told, "note: "+n) },
	}
	for i := range seqs {
		v.shards = append(v.shards, &snapshot{number: i, name: "s" + string(rune('0'+i))})
		v.cfg.Shards = append(v.cfg.Shards, v.shards[i].name)
	}
	l := newLane(v, in0)
	for i, seq := range seqs {
		if seq > 0 {
			l.sides[i].row = &laneRow{seq: seq, next: 10 * seq}
			l.sides[i].last = &epoch{seq: seq, next: 10 * seq, gtrid: "g", sound: true}
		}
	}
	v.lanes = []*lane{l}
	return v
}

func TestDecisions(t *testing.T) {
	right := readOf(t, decision(7, 70, "g"))
	other := func(change func(r *checkpoint.Read)) checkpoint.Read {
		r := right
		change(&r)
		return r
	}
	for name, c := range map[string]struct {
		reads []checkpoint.Read
		seqs  []int64
		want  string // all that is told, "" for nothing
		late  int    // shards that have to show more
	}{
		"right":                           {reads: []checkpoint.Read{right}, seqs: []int64{7, 7}},
		"an idle lane has moved":          {reads: []checkpoint.Read{readOf(t, decision(7, 90, "g"))}, seqs: []int64{7, 7}},
		"one shard is behind":             {reads: []checkpoint.Read{right}, seqs: []int64{7, 6}, late: 1},
		"the decision is ahead":           {reads: []checkpoint.Read{readOf(t, decision(8, 80, "h"))}, seqs: []int64{7, 7}, late: 2},
		"nothing yet":                     {reads: []checkpoint.Read{{}}, seqs: []int64{0, 0}},
		"only taken over":                 {reads: []checkpoint.Read{readOf(t, decision(0, 0, ""))}, seqs: []int64{0, 0}},
		"the shards lost the lane":        {reads: []checkpoint.Read{right}, seqs: []int64{0, 0}, late: 2},
		"Kafka lost a decision":           {reads: []checkpoint.Read{readOf(t, decision(6, 60, "f"))}, seqs: []int64{7, 7}, want: "j.decision in/0: the decision is of epoch 6"},
		"Kafka lost the lane":             {reads: []checkpoint.Read{{}}, seqs: []int64{7, 7}, want: "j.decision in/0: there is no decision"},
		"another branch":                  {reads: []checkpoint.Read{readOf(t, decision(7, 70, "other"))}, seqs: []int64{7, 7}, want: "j.decision in/0: the decision of epoch 7 names branch other"},
		"an offset that went back":        {reads: []checkpoint.Read{readOf(t, decision(7, 69, "g"))}, seqs: []int64{7, 7}, want: "j.decision in/0: the decision of epoch 7 has offset 69"},
		"the copies differ":               {reads: []checkpoint.Read{other(func(r *checkpoint.Read) { r.Record = "" })}, seqs: []int64{7, 7}, want: "j.decision in/0: the two copies of the decision differ: the group's offset says epoch 7 of incarnation 3 up to offset 70, the topic nothing"},
		"the copies differ for a moment":  {reads: []checkpoint.Read{other(func(r *checkpoint.Read) { r.Record = "" }), right}, seqs: []int64{7, 7}},
		"the decision lags for a moment":  {reads: []checkpoint.Read{readOf(t, decision(6, 60, "f")), right}, seqs: []int64{7, 7}},
		"an offset by an administrator":   {reads: []checkpoint.Read{other(func(r *checkpoint.Read) { r.Metadata = "" })}, seqs: []int64{7, 7}, want: "j.decision in/0: the two copies of the decision differ: the group's offset says nothing, the topic epoch 7 of incarnation 3 up to offset 70"},
		"an offset beside the decision":   {reads: []checkpoint.Read{other(func(r *checkpoint.Read) { r.Offset = 71 })}, seqs: []int64{7, 7}, want: "j.decision in/0: the group's offset is 71"},
		"the group's offset has expired":  {reads: []checkpoint.Read{other(func(r *checkpoint.Read) { r.HasOffset, r.Metadata, r.Offset = false, "", 0 })}, seqs: []int64{7, 7}},
		"the topic was created again":     {reads: []checkpoint.Read{other(func(r *checkpoint.Read) { r.TopicID = checkpoint.UUID{8} })}, seqs: []int64{7, 7}, want: "j.decision in/0: the decision is of topic id 09"},
		"the decision is of a newer form": {reads: []checkpoint.Read{other(func(r *checkpoint.Read) { r.Record = `{"v":99}`; r.Metadata = r.Record })}, seqs: []int64{7, 7}, want: "note: the decision of in/0 was not compared: "},
	} {
		t.Run(name, func(t *testing.T) {
			for _, takes := range []time.Duration{0, 300 * time.Millisecond, 4900 * time.Millisecond} {
				synctest.Test(t, func(t *testing.T) {
					var told []string
					v := auditOf(&answers{reads: c.reads, takes: takes}, &told, c.seqs...)
					lates := v.lates(v.decisions(t.Context()))
					if got := strings.Join(told, "\n"); !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") || len(told) > 1 {
						t.Errorf("readings that take %s: told %q, want %q", takes, got, c.want)
					}
					if len(lates) != c.late {
						t.Errorf("readings that take %s: %d shards have to show more, want %d", takes, len(lates), c.late)
					}
				})
			}
		})
	}
}

// TestDecisionsThatAreNotReadTwice: what was seen once in the time that there is
// is not taken for a difference, and not kept back either.
func TestDecisionsThatAreNotReadTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		torn := readOf(t, decision(7, 70, "g"))
		torn.Record = ""
		var told []string
		v := auditOf(&answers{reads: []checkpoint.Read{torn}, takes: 7 * time.Second}, &told, 7, 7)
		if v.decisions(t.Context()); len(told) != 1 || !strings.HasPrefix(told[0], "note: the decision of in/0 was not compared: ") || !strings.Contains(told[0], "the two copies of the decision differ") {
			t.Errorf("told %q", told)
		}
	})
}

func TestDecisionsWithoutKafka(t *testing.T) {
	for name, kafka := range map[string]Kafka{"none": nil, "away": &answers{err: errors.New("connection\nrefused")}} {
		var told []string
		v := auditOf(kafka, &told, 7, 7)
		if d := v.decisions(t.Context()); len(d) != 0 || v.sum.Compared || len(told) != 1 || !strings.HasPrefix(told[0], "note: decisions were not compared: ") || strings.Contains(told[0], "\n") {
			t.Errorf("%s: %v, compared %t, told %q", name, d, v.sum.Compared, told)
		}
	}
}

// TestSameJob: with other settings than the job's every row would look wrong.
func TestSameJob(t *testing.T) {
	set := checkpoint.UUID{5}
	d := decision(7, 70, "g")
	d.Fingerprint, d.Settings = checkpoint.Fingerprint(set, time.Hour, "a."), checkpoint.Settings(time.Hour, "a.")
	for name, c := range map[string]struct {
		window  time.Duration
		prefix  string
		kafka   Kafka
		refused bool
	}{
		"the same":       {time.Hour, "a.", &answers{reads: []checkpoint.Read{readOf(t, d)}}, false},
		"another window": {15 * time.Minute, "a.", &answers{reads: []checkpoint.Read{readOf(t, d)}}, true},
		"another prefix": {time.Hour, "b.", &answers{reads: []checkpoint.Read{readOf(t, d)}}, true},
		"Kafka is away":  {15 * time.Minute, "a.", &answers{err: errors.New("away")}, false},
		"no decision":    {15 * time.Minute, "a.", &answers{reads: []checkpoint.Read{{}}}, false},
	} {
		var told []string
		v := auditOf(c.kafka, &told, 7)
		v.cfg.Window, v.cfg.TypePrefix = c.window, c.prefix
		v.shards[0].known, v.shards[0].set = true, set
		err := v.sameJob(t.Context())
		if r := checkpoint.AsRefusal(err); (r != nil) != c.refused || r != nil && r.Reason != checkpoint.ReasonFingerprint || len(told) > 0 {
			t.Errorf("%s: %v, told %q", name, err, told)
		}
	}
}
