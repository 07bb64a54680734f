package audit

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
)

const (
	testJob   = "billing"
	testTopic = "usage"
)

var (
	set     = checkpoint.UUID{7}
	topicID = checkpoint.UUID{1}
	within  = 10 * time.Second
	laneIn  = 3 * time.Second  // one try to read a lane
	lanesIn = 30 * time.Second // all of them
)

// gtridOf is written down a second time, on purpose: names are a contract.
func gtridOf(job string, topic checkpoint.UUID, partition int32, incarnation, seq int64) string {
	sum := sha256.Sum256(topic[:])
	return fmt.Sprintf("%s%x%08x%012x%012x", checkpoint.OwnerPrefix(job, set), sum[:6], partition, incarnation, seq)
}

// our is a branch of this job on a shard.
func our(shard int, partition int32, incarnation, seq int64) XID {
	return XID{FormatID: 1, GTRID: gtridOf(testJob, topicID, partition, incarnation, seq), BQUAL: fmt.Sprint("s", shard), Shard: shard}
}

// fakeShards have what each look at them shows, one after the other; the last
// one stays.
type fakeShards struct {
	mu    sync.Mutex
	looks [][]Seen
	errs  []error
	asked []int
	hang  int // shard that does not answer; -1 for none
}

func shardsOf(seen ...Seen) *fakeShards {
	f := &fakeShards{errs: make([]error, len(seen)), asked: make([]int, len(seen)), hang: -1}
	for _, s := range seen {
		f.looks = append(f.looks, []Seen{s})
	}
	return f
}

func (f *fakeShards) Names() (names []string) {
	for i := range f.looks {
		names = append(names, fmt.Sprint("eu-", i))
	}
	return names
}

func (f *fakeShards) See(ctx context.Context, shard int) (Seen, error) {
	if f.hang == shard {
		<-ctx.Done()
		return Seen{}, fmt.Errorf("shard eu-%d: %w", shard, ctx.Err())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(f.asked[shard], len(f.looks[shard])-1)
	f.asked[shard]++
	return f.looks[shard][n], f.errs[shard]
}

// on is what a shard on a server shows.
func on(server string, listed ...XID) Seen {
	return Seen{Server: server, Set: set, Listed: listed}
}

// fakeKafka has the decisions of lanes, one after the other; the last one stays.
type fakeKafka struct {
	mu       sync.Mutex
	topic    error
	reads    map[int32][]checkpoint.Read
	errs     map[int32]error
	hang     map[int32]bool
	openTo   time.Time // until when they hang; zero for good
	owned    []int32
	ownedErr error
	looked   int
}

func (f *fakeKafka) Topic(context.Context) (checkpoint.UUID, error) { return topicID, f.topic }

func (f *fakeKafka) Look(ctx context.Context, partition int32) (checkpoint.Read, error) {
	if f.hang[partition] {
		ended := make(<-chan time.Time)
		if !f.openTo.IsZero() {
			ended = time.After(time.Until(f.openTo))
		}
		select {
		case <-ctx.Done():
			return checkpoint.Read{}, fmt.Errorf("lane %d: unstable: %w", partition, ctx.Err())
		case <-ended:
		}
	}
	if ctx.Err() != nil {
		return checkpoint.Read{}, fmt.Errorf("lane %d: %w", partition, ctx.Err())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looked++
	if err := f.errs[partition]; err != nil {
		return checkpoint.Read{}, err
	}
	all := f.reads[partition]
	if len(all) == 0 {
		return checkpoint.Read{TopicID: topicID}, nil
	}
	r := all[0]
	if len(all) > 1 {
		f.reads[partition] = all[1:]
	}
	return r, nil
}

func (f *fakeKafka) Owned(context.Context) (func(int32) bool, error) {
	if f.ownedErr != nil {
		return nil, f.ownedErr
	}
	return func(p int32) bool { return slices.Contains(f.owned, p) }, nil
}

// decidedBy is what Kafka shows of a lane whose last decision is this one.
func decidedBy(t *testing.T, partition int32, incarnation, branchOf, seq int64) checkpoint.Read {
	t.Helper()
	d := checkpoint.Decision{Version: 1, Job: testJob, Topic: testTopic, TopicID: topicID, Partition: partition, Incarnation: incarnation, Seq: seq, Next: seq * 10}
	if seq > 0 {
		d.GTRID = checkpoint.GTRID(gtridOf(testJob, topicID, partition, branchOf, seq))
	}
	text, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return checkpoint.Read{HasOffset: true, Offset: d.Next, Metadata: text, Record: text, TopicID: topicID}
}

func ask(t *testing.T, shards BranchShards, kafka BranchKafka) (lines []string, branches []Branch, problems []error) {
	t.Helper()
	branches, problems = ListBranches(t.Context(), Question{Job: testJob, Topic: testTopic, Shards: shards, Kafka: kafka, Within: within, LaneWithin: laneIn, LanesWithin: lanesIn})
	for i := range branches {
		b := &branches[i]
		line := string(b.Owner)
		if b.Owner != Foreign {
			line += fmt.Sprintf(" %s %d/%d", b.Lane(), b.Name.Incarnation, b.Name.Seq)
		}
		if b.Owner == Ours {
			line += fmt.Sprintf(" of %q %s", b.Of, b.Word)
		} else {
			line += " " + b.GTRID[:min(4, len(b.GTRID))]
		}
		lines = append(lines, line+" on "+strings.Join(b.Servers, ","))
	}
	return lines, branches, problems
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func noProblems(t *testing.T, problems []error) {
	t.Helper()
	if len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
}

// TestWhatTheDecisionSays: every word, by the decision and by who has the lane.
func TestWhatTheDecisionSays(t *testing.T) {
	unequal := decidedBy(t, 3, 5, 5, 9)
	unequal.Record = ""
	byHand := checkpoint.Read{HasOffset: true, Offset: 4, Metadata: "", Record: unequal.Metadata}
	expired := decidedBy(t, 3, 5, 5, 9)
	expired.HasOffset, expired.Metadata = false, ""
	for name, c := range map[string]struct {
		read        checkpoint.Read
		err         error
		incarnation int64
		seq         int64
		owned       []int32
		word        checkpoint.Word
		why         string // a part of it
		problem     string
	}{
		"D names it":                         {decidedBy(t, 3, 5, 5, 9), nil, 5, 9, nil, checkpoint.Decided, "", ""},
		"D names it, of a session before":    {decidedBy(t, 3, 6, 5, 9), nil, 5, 9, nil, checkpoint.Decided, "", ""},
		"D names it, its owner is at work":   {decidedBy(t, 3, 5, 5, 9), nil, 5, 9, []int32{3}, checkpoint.Decided, "", ""},
		"the offset has expired":             {expired, nil, 5, 9, nil, checkpoint.Decided, "", ""},
		"the next epoch, nobody has it":      {decidedBy(t, 3, 5, 5, 9), nil, 5, 10, nil, checkpoint.Undecided, "", ""},
		"the next epoch, another lane is":    {decidedBy(t, 3, 5, 5, 9), nil, 5, 10, []int32{4}, checkpoint.Undecided, "", ""},
		"the next epoch, its owner at work":  {decidedBy(t, 3, 5, 5, 9), nil, 5, 10, []int32{3}, InFlight, "", ""},
		"of a dead session, an owner's lane": {decidedBy(t, 3, 6, 5, 9), nil, 5, 10, []int32{3}, checkpoint.Undecided, "", ""},
		"the first epoch":                    {decidedBy(t, 3, 1, 0, 0), nil, 1, 1, nil, checkpoint.Undecided, "", ""},
		"an epoch before":                    {decidedBy(t, 3, 5, 5, 9), nil, 4, 8, nil, checkpoint.Older, "come back older", ""},
		"a later session":                    {decidedBy(t, 3, 5, 5, 9), nil, 6, 10, nil, checkpoint.Ahead, "epoch 9, by incarnation 5", ""},
		"a later epoch":                      {decidedBy(t, 3, 5, 5, 9), nil, 5, 11, nil, checkpoint.Ahead, "Kafka has lost", ""},
		"a later epoch, its owner at work":   {decidedBy(t, 3, 5, 5, 9), nil, 5, 11, []int32{3}, InFlight, "", ""},
		"a later session, an owner's lane":   {decidedBy(t, 3, 5, 5, 9), nil, 6, 10, []int32{3}, checkpoint.Ahead, "Kafka has lost", ""},
		"for an epoch that is decided":       {decidedBy(t, 3, 5, 4, 9), nil, 5, 9, []int32{3}, checkpoint.Undecided, "", ""},
		"Kafka knows nothing":                {checkpoint.Read{}, nil, 5, 10, nil, NoDecision, "were lost", ""},
		"the copies are not equal":           {unequal, nil, 5, 10, nil, Unknown, "(decisions-unequal) usage/3", "decisions-unequal"},
		"an offset set by hand":              {byHand, nil, 5, 10, nil, Unknown, "(offset-reset) usage/3", "offset-reset"},
		"it can't be read":                   {checkpoint.Read{}, errors.New("broker away"), 5, 10, nil, Unknown, "broker away", "broker away"},
	} {
		t.Run(name, func(t *testing.T) {
			kafka := &fakeKafka{reads: map[int32][]checkpoint.Read{3: {c.read}}, errs: map[int32]error{3: c.err}, owned: c.owned}
			_, branches, problems := ask(t, shardsOf(on("A", our(0, 3, c.incarnation, c.seq))), kafka)
			if len(branches) != 1 {
				t.Fatalf("%+v", branches)
			}
			if c.err != nil && kafka.looked > 1 {
				t.Errorf("asked %d times for what was refused at once", kafka.looked)
			}
			b := branches[0]
			if b.Word != c.word || !strings.Contains(b.Why, c.why) || c.why == "" && b.Why != "" || b.Lane() != "usage/3" || b.Of != "eu-0" {
				t.Errorf("%s of %s on %s: %s (%s), want %s (%s)", b.GTRID, b.Lane(), b.Of, b.Word, b.Why, c.word, c.why)
			}
			if c.problem == "" {
				noProblems(t, problems)
			} else if len(problems) != 1 || !strings.Contains(problems[0].Error(), c.problem) {
				t.Errorf("problems %v, want %s", problems, c.problem)
			}
		})
	}
}

// TestEachBranchOnce: shards that share a server list the same branches; each is
// shown once, and with whose it is.
func TestEachBranchOnce(t *testing.T) {
	another := XID{FormatID: 1, GTRID: gtridOf("other", topicID, 5, 2, 8), BQUAL: "s0", Shard: 0}
	text := XID{FormatID: 4711, GTRID: "text", BQUAL: "b", Shard: -1}
	looksLikeOurs := XID{FormatID: 1, GTRID: "exb1nothex", BQUAL: "s1", Shard: 1}
	moved := our(1, 0, 5, 9)
	renamed := our(0, 1, 5, 9)
	renamed.FormatID, renamed.Shard = 9, -1
	unnumbered := our(7, 2, 5, 9)
	unnumbered.Shard = -1
	onA := []XID{text, our(2, 0, 5, 10), moved, our(0, 0, 5, 10), another, renamed}
	shards := shardsOf(on("A", onA...), on("B", looksLikeOurs, text, unnumbered), on("A", onA...))
	kafka := &fakeKafka{reads: map[int32][]checkpoint.Read{}}
	for p := range int32(3) {
		kafka.reads[p] = []checkpoint.Read{decidedBy(t, p, 5, 5, 9)}
	}
	lines, branches, problems := ask(t, shards, kafka)
	noProblems(t, problems)
	wantLines(t, lines,
		`job usage/0 5/10 of "eu-0" undecided on eu-0,eu-2`,
		`job usage/0 5/9 of "eu-1" decided on eu-0,eu-2`,
		`job usage/0 5/10 of "eu-2" undecided on eu-0,eu-2`,
		`job usage/1 5/9 of "" decided on eu-0,eu-2`,
		`job usage/2 5/9 of "" decided on eu-1`,
		`another-job ?/5 2/8 exb1 on eu-0,eu-2`,
		`foreign exb1 on eu-1`,
		`foreign text on eu-0,eu-2`,
		`foreign text on eu-1`,
	)
	for i, want := range map[int]string{0: "", 1: "shard eu-1 is on another one", 3: "of no shard of the configuration", 4: "of no shard of the configuration"} {
		if got := branches[i].Why; !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: why %q, want %q", lines[i], got, want)
		}
	}
}

// TestTopics: a branch's topic is the one that its own row names, or that has its
// id; what is not of the configured one is not judged.
func TestTopics(t *testing.T) {
	of := func(topic checkpoint.UUID, seq int64) XID {
		return XID{FormatID: 1, GTRID: gtridOf(testJob, topic, 1, 5, seq), BQUAL: "s0", Shard: 0}
	}
	old, renamed, lost, plain := of(checkpoint.UUID{2}, 1), of(checkpoint.UUID{3}, 2), of(checkpoint.UUID{4}, 3), of(topicID, 10)
	at := time.Now()
	seen := on("A", old, renamed, lost, plain)
	seen.Written = map[checkpoint.GTRID]Written{
		checkpoint.GTRID(old.GTRID):     {Lane: checkpoint.Lane{Topic: testTopic, Partition: 1}, PreparedAt: at},
		checkpoint.GTRID(renamed.GTRID): {Lane: checkpoint.Lane{Topic: "elsewhere", Partition: 1}, PreparedAt: at},
		checkpoint.GTRID(plain.GTRID):   {Lane: checkpoint.Lane{Topic: testTopic, Partition: 1}, From: 90, Next: 95, Records: 4, PreparedAt: at},
	}
	kafka := &fakeKafka{reads: map[int32][]checkpoint.Read{1: {decidedBy(t, 1, 5, 5, 9)}}}
	lines, branches, problems := ask(t, shardsOf(seen), kafka)
	noProblems(t, problems)
	wantLines(t, lines,
		`job ?/1 5/3 of "eu-0" other-topic on eu-0`,
		`job elsewhere/1 5/2 of "eu-0" other-topic on eu-0`,
		`job usage/1 5/1 of "eu-0" other-topic on eu-0`,
		`job usage/1 5/10 of "eu-0" undecided on eu-0`,
	)
	if w := branches[3].Written; w == nil || *w != seen.Written[checkpoint.GTRID(plain.GTRID)] {
		t.Errorf("written: %+v", w)
	}
	if branches[0].Written != nil {
		t.Errorf("written: %+v, of a branch whose rows nobody sees", branches[0].Written)
	}
	for i, want := range []string{"not the configured usage", "not the configured usage", "created again"} {
		if !strings.Contains(branches[i].Why, want) {
			t.Errorf("%s: %q, want %q", lines[i], branches[i].Why, want)
		}
	}

	// Without Kafka the rows alone tell the lane.
	kafka.topic = errors.New("no brokers")
	lines, _, problems = ask(t, shardsOf(seen), kafka)
	wantLines(t, lines,
		`job ?/1 5/3 of "eu-0" unknown on eu-0`,
		`job elsewhere/1 5/2 of "eu-0" other-topic on eu-0`,
		`job usage/1 5/1 of "eu-0" unknown on eu-0`,
		`job usage/1 5/10 of "eu-0" unknown on eu-0`,
	)
	if len(problems) != 1 || problems[0] != kafka.topic { //nolint:errorlint // the very same
		t.Errorf("problems: %v", problems)
	}
}

// TestBesideAnOwnerAtWork: the owner decides and prepares between all reads.
// What it has done meanwhile is never called older, ahead or undecided.
func TestBesideAnOwnerAtWork(t *testing.T) {
	shards := shardsOf(Seen{})
	shards.looks[0] = []Seen{
		on("A", our(0, 0, 5, 10)), // before any decision is read
		on("A", our(0, 0, 5, 14)), // after the first one
		on("A", our(0, 0, 5, 17)),
	}
	reads := []checkpoint.Read{decidedBy(t, 0, 5, 5, 12)}
	for seq := range int64(6) { // its two copies are never of the same moment
		torn := decidedBy(t, 0, 5, 5, 10+seq)
		torn.Record = decidedBy(t, 0, 5, 5, 11+seq).Record
		reads = append(reads, torn)
	}
	kafka := &fakeKafka{owned: []int32{0}, reads: map[int32][]checkpoint.Read{0: append(reads, decidedBy(t, 0, 5, 5, 16))}}
	lines, _, problems := ask(t, shards, kafka)
	noProblems(t, problems)
	wantLines(t, lines, `job usage/0 5/17 of "eu-0" in-flight on eu-0`)

	// A lane that came in between is asked for, too.
	shards = shardsOf(Seen{})
	shards.looks[0] = []Seen{on("A", our(0, 0, 5, 10)), on("A", our(0, 1, 2, 4)), on("A", our(0, 1, 2, 4))}
	kafka = &fakeKafka{owned: []int32{0, 1}, reads: map[int32][]checkpoint.Read{0: {decidedBy(t, 0, 5, 5, 12)}, 1: {decidedBy(t, 1, 2, 2, 4)}}}
	lines, _, problems = ask(t, shards, kafka)
	noProblems(t, problems)
	wantLines(t, lines, `job usage/1 2/4 of "eu-0" decided on eu-0`)

	// A lane that could not be read in its time, and has ended its branch meanwhile,
	// is no matter.
	synctest.Test(t, func(t *testing.T) {
		shards := shardsOf(Seen{})
		shards.looks[0] = []Seen{on("A", our(0, 0, 5, 10)), on("A")}
		lines, _, problems := ask(t, shards, &fakeKafka{hang: map[int32]bool{0: true}})
		noProblems(t, problems)
		wantLines(t, lines)
	})

	// It does not run after an owner for ever.
	shards = shardsOf(Seen{})
	shards.looks[0] = nil
	for n := range int64(20) {
		shards.looks[0] = append(shards.looks[0], on("A", our(0, 0, 5, 10+3*n)))
	}
	kafka = &fakeKafka{}
	for n := range int64(20) {
		kafka.reads = map[int32][]checkpoint.Read{0: append(kafka.reads[0], decidedBy(t, 0, 5, 5, 9+n))}
	}
	_, branches, _ := ask(t, shards, kafka)
	if len(branches) != 1 || branches[0].Word != checkpoint.Ahead || kafka.looked != rounds {
		t.Errorf("%+v after %d reads", branches, kafka.looked)
	}
}

// TestNothingPrepared: nothing is asked of lanes.
func TestNothingPrepared(t *testing.T) {
	kafka := &fakeKafka{}
	lines, _, problems := ask(t, shardsOf(on("A"), on("A", XID{GTRID: "x", Shard: -1})), kafka)
	noProblems(t, problems)
	wantLines(t, lines) // the servers' list is the first shard's
	if kafka.looked > 0 {
		t.Errorf("%d lanes were looked at", kafka.looked)
	}
}

// TestWhatDoesNotAnswer: the rest is listed, within the bound, and what is
// missing is named.
func TestWhatDoesNotAnswer(t *testing.T) {
	two := map[int32][]checkpoint.Read{0: {decidedBy(t, 0, 5, 5, 9)}, 1: {decidedBy(t, 1, 5, 5, 9)}}
	listed := func() *fakeShards {
		return shardsOf(on("A", our(0, 0, 5, 10), our(1, 1, 5, 9)), on("A", our(0, 0, 5, 10), our(1, 1, 5, 9)))
	}
	rest := []string{`job usage/0 5/10 of "eu-0" undecided on eu-0`, `job usage/1 5/9 of "eu-1" decided on eu-0`}
	all := []string{`job usage/0 5/10 of "eu-0" undecided on eu-0,eu-1`, `job usage/1 5/9 of "eu-1" decided on eu-0,eu-1`}
	for name, c := range map[string]struct {
		spoil   func(s *fakeShards, k *fakeKafka)
		want    []string
		problem string
		takes   time.Duration
	}{
		"a shard fails": {func(s *fakeShards, _ *fakeKafka) { s.errs[1] = errors.New("shard eu-1: refused") }, rest, "shard eu-1: refused", 0},
		"a shard hangs": {func(s *fakeShards, _ *fakeKafka) { s.hang = 1 }, rest, "shard eu-1", within},
		"a lane hangs": {func(_ *fakeShards, k *fakeKafka) { k.hang = map[int32]bool{0: true} },
			[]string{`job usage/0 5/10 of "eu-0" unknown on eu-0,eu-1`, all[1]}, "lane 0: unstable", rounds * laneIn},
		"the group does not answer": {func(_ *fakeShards, k *fakeKafka) { k.ownedErr = errors.New("no coordinator") }, all, "no coordinator", 0},
		"a shard is not as recorded": {func(s *fakeShards, _ *fakeKafka) {
			s.looks[1][0].Problems = []error{errors.New("another server")}
		}, all, "another server", 0},
		"a shard has no tables": {func(s *fakeShards, _ *fakeKafka) {
			s.looks[1][0].Set, s.looks[1][0].Problems = checkpoint.UUID{}, []error{errors.New("migrations pending")}
		}, all, "migrations pending", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, k := listed(), &fakeKafka{reads: map[int32][]checkpoint.Read{0: two[0], 1: two[1]}}
				c.spoil(s, k)
				begun := time.Now()
				lines, branches, problems := ask(t, s, k)
				if took := time.Since(begun); took != c.takes {
					t.Errorf("took %s, want %s", took, c.takes)
				}
				wantLines(t, lines, c.want...)
				if len(problems) != 1 || !strings.Contains(problems[0].Error(), c.problem) {
					t.Errorf("problems %v, want %q", problems, c.problem)
				}
				if strings.HasPrefix(name, "a shard") && len(branches[1].Servers) == 1 && !strings.Contains(branches[1].Why, "eu-1 itself did not answer") {
					t.Errorf("why: %q", branches[1].Why)
				}
			})
		})
	}
}

// TestManyLanesBehindOpenTransactions: they hold up no others, have another turn
// after them, and the whole has an end.
func TestManyLanesBehindOpenTransactions(t *testing.T) {
	for name, c := range map[string]struct {
		hang    int           // so many lanes come before one that answers
		openFor time.Duration // that long; 0 for good
		unknown int
		takes   time.Duration
	}{
		"an owner that is slow":      {hang: 1, openFor: 3*laneIn + time.Second, takes: 3*laneIn + time.Second},
		"slower":                     {hang: 1, openFor: 5 * laneIn, unknown: 1, takes: rounds * laneIn},
		"many that are slow":         {hang: 5 * atOnce, openFor: 5*laneIn + time.Second, takes: 5*laneIn + time.Second},
		"many, for good":             {hang: 6 * atOnce, unknown: 6 * atOnce, takes: lanesIn},
		"more than there is time":    {hang: 11 * atOnce, unknown: 11*atOnce + 1, takes: lanesIn},
		"it is in time for the last": {hang: 9 * atOnce, unknown: 9 * atOnce, takes: lanesIn},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kafka := &fakeKafka{hang: map[int32]bool{}, reads: map[int32][]checkpoint.Read{}}
				begun := time.Now()
				if c.openFor > 0 {
					kafka.openTo = begun.Add(c.openFor)
				}
				var listed []XID
				for p := range int32(c.hang + 1) {
					kafka.hang[p] = p < int32(c.hang)
					kafka.reads[p] = []checkpoint.Read{decidedBy(t, p, 5, 5, 9)}
					listed = append(listed, our(0, p, 5, 9))
				}
				shards := shardsOf(on("A", listed...))
				_, branches, problems := ask(t, shards, kafka)
				if c.takes == lanesIn && shards.asked[0] > 3 {
					t.Errorf("the shard was looked at %d times, also after the end", shards.asked[0])
				}
				if took := time.Since(begun); took != c.takes {
					t.Errorf("took %s, want %s", took, c.takes)
				}
				unknown := 0
				for i := range branches {
					b := &branches[i]
					if b.Word == Unknown {
						unknown++
					} else if b.Word != checkpoint.Decided {
						t.Errorf("%s is %s (%s)", b.Lane(), b.Word, b.Why)
					}
				}
				if unknown != c.unknown || len(problems) != c.unknown || len(branches) != c.hang+1 {
					t.Errorf("of %d branches %d are unknown, with %d problems; want %d", len(branches), unknown, len(problems), c.unknown)
				}
			})
		})
	}
}
