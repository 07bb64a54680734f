package audit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"billing/internal/checkpoint"
)

// XID is the name of a prepared branch as its server lists it.
type XID struct {
	FormatID     int64
	GTRID, BQUAL string // the bytes
	Shard        int    // the number of the shard that FormatID and BQUAL stand for, if it is a branch of ours; -1 for none
}

// Written is what a branch of ours has written of itself on its shard.
type Written struct {
	Lane       checkpoint.Lane
	From, Next int64 // its offsets
	Records    int64
	PreparedAt time.Time // by the clock of the service
}

// Seen is what a shard and its server show at one moment.
type Seen struct {
	Server   string          // which server it is: several shards may share one
	Set      checkpoint.UUID // the set of shards that is recorded there; zero for none
	Listed   []XID           // everything that is prepared on the server
	Written  map[checkpoint.GTRID]Written
	Problems []error // what is not as recorded, and does not keep anybody from looking
}

// BranchShards is what a list of prepared branches needs of MySQL's side.
type BranchShards interface {
	// Names are the shards' names, by number.
	Names() []string
	// See looks at one shard. It changes nothing, waits for no lock, and is bounded
	// by ctx. Its error names the shard. It is called from several goroutines.
	See(ctx context.Context, shard int) (Seen, error)
}

// BranchKafka is what it needs of Kafka's side. It is called from several goroutines.
type BranchKafka interface {
	// Topic is the id of the input topic. After an error nothing else is asked.
	Topic(ctx context.Context) (checkpoint.UUID, error)
	// Look reads a lane stably, under no fence. It waits for an open Kafka
	// transaction of the lane until ctx ends.
	Look(ctx context.Context, partition int32) (checkpoint.Read, error)
	// Owned tells of which lanes a member of the job's group may be at work.
	Owned(ctx context.Context) (func(partition int32) bool, error)
}

// Owner is whose a prepared branch is.
type Owner string

// The owners.
const (
	Ours     Owner = "job"         // of this job on this set of shards
	OtherJob Owner = "another-job" // made by this service, for another job or another set
	Foreign  Owner = "foreign"     // of another application
	Unclear  Owner = "unclear"     // made by this service; no shard says of which set it is
)

// What is said of a branch where no decision can say it.
const (
	InFlight   checkpoint.Word = "in-flight"   // not decided yet, of the lane's last session, and a member of the group has the lane
	NoDecision checkpoint.Word = "no-decision" // Kafka has none of the lane
	OtherTopic checkpoint.Word = "other-topic" // of a lane of another topic than the configured one
	Unknown    checkpoint.Word = "unknown"     // the decision could not be read
)

// Branch is a prepared branch, and what is known of it.
type Branch struct {
	XID
	Owner   Owner
	Of      string   // the name of the shard whose branch it is; "" if it is none's
	Servers []string // the shards on whose server it is listed

	Name checkpoint.Name // of ours, and of other jobs'

	// Of ours only.
	Topic   string   // "" where nobody knows it
	Written *Written // nil where it can't be seen
	Word    checkpoint.Word
	Why     string // what the word does not say; "" for nothing
}

// Lane is the branch's lane for people; of an unknown topic only the partition.
func (b *Branch) Lane() string {
	return checkpoint.Lane{Topic: cmp.Or(b.Topic, "?"), Partition: b.Name.Partition}.String()
}

// Question is what ListBranches asks about.
type Question struct {
	Job, Topic  string
	Shards      BranchShards
	Kafka       BranchKafka
	Within      time.Duration // for one look at a shard, and for what Kafka is asked at a time
	LaneWithin  time.Duration // for one try to read a lane
	LanesWithin time.Duration // for all that is read of lanes
}

// rounds bound how often a lane is looked at again because its owner has moved
// on meanwhile, or because it could not be read in its time.
const rounds = 4

// ListBranches lists the prepared branches of the shards' servers. Problems are what
// could not be asked, or is not as recorded; the list has the rest all the same.
// It may be asked beside the service at work.
func ListBranches(ctx context.Context, q Question) (branches []Branch, problems []error) {
	l := &look{Question: q, names: q.Shards.Names(), owners: map[string]bool{}, found: map[int32]laneDecision{}, owned: func(int32) bool { return false }}
	l.seen, l.failed = make([]*Seen, len(l.names)), make([]error, len(l.names))
	var wg sync.WaitGroup
	wg.Go(func() {
		kctx, cancel := context.WithTimeout(ctx, q.Within)
		defer cancel()
		l.input, l.away = q.Kafka.Topic(kctx)
	})
	l.see(ctx)
	wg.Wait()

	if l.away == nil {
		// D before the list: a branch that is still listed when D has been read was
		// not ended under it. Without that order an owner at work would make its
		// last epoch look older than its decision.
		ask := l.lanes(everyBranch)
		lctx, cancel := context.WithTimeout(ctx, q.LanesWithin)
		defer cancel()
		for n := 0; n < rounds && len(ask) > 0 && lctx.Err() == nil; n++ {
			l.decide(lctx, ask)
			l.see(ctx)
			ask = l.lanes(l.again)
		}
	}
	return l.branches(), l.problems()
}

// look is one call of ListBranches.
type look struct {
	Question
	names []string

	seen   []*Seen // by shard; nil for one that did not answer
	failed []error // likewise
	owners map[string]bool

	input checkpoint.UUID
	away  error // why Kafka was asked for nothing more

	owned      func(partition int32) bool
	ownedError error
	found      map[int32]laneDecision // by partition
}

// laneDecision is what could be told of a lane's D.
type laneDecision struct {
	d     checkpoint.Decision
	known bool
	err   error
	late  bool // it could not be read in the lane's time
}

// see looks at every shard that has answered so far.
func (l *look) see(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range l.names {
		if l.failed[i] != nil {
			continue
		}
		wg.Go(func() {
			sctx, cancel := context.WithTimeout(ctx, l.Within)
			defer cancel()
			seen, err := l.Shards.See(sctx, i)
			if err != nil {
				l.seen[i], l.failed[i] = nil, err
				return
			}
			l.seen[i] = &seen
		})
	}
	wg.Wait()
	for _, s := range l.seen {
		if s != nil && !s.Set.IsZero() {
			l.owners[checkpoint.OwnerPrefix(l.Job, s.Set)] = true
		}
	}
}

// ours takes a name apart if it is one of ours.
func (l *look) ours(x *XID) (checkpoint.Name, bool) {
	n, err := checkpoint.GTRID(x.GTRID).Parse()
	return n, err == nil && l.owners[n.Owner]
}

// onTopic reports whether a name of ours is of a lane of the topic with this id.
func onTopic(n checkpoint.Name, topic checkpoint.UUID) bool {
	return n.Lane == checkpoint.LanePrefix(n.Owner, topic, n.Partition)
}

// lanes are the partitions of the input of which a branch is listed that is
// wanted.
func (l *look) lanes(wanted func(partition int32, g checkpoint.GTRID, n checkpoint.Name) bool) (partitions []int32) {
	for _, s := range l.seen {
		if s == nil {
			continue
		}
		for i := range s.Listed {
			x := &s.Listed[i]
			if n, ok := l.ours(x); ok && onTopic(n, l.input) && wanted(n.Partition, checkpoint.GTRID(x.GTRID), n) {
				partitions = append(partitions, n.Partition)
			}
		}
	}
	slices.Sort(partitions)
	return slices.Compact(partitions)
}

func everyBranch(int32, checkpoint.GTRID, checkpoint.Name) bool { return true }

// again reports whether a branch is newer than what was read of its lane, or
// nothing could be read in the lane's time.
func (l *look) again(partition int32, g checkpoint.GTRID, n checkpoint.Name) bool {
	f, ok := l.found[partition]
	return !ok || f.late || f.err == nil && f.known && f.d.Says(g, n) == checkpoint.Ahead
}

// atOnce bounds the lanes that are read side by side.
const atOnce = 16

// decide reads what the decisions of the lanes are, and who has the lanes. A lane
// has a short time of its own: behind those with an open Kafka transaction others
// wait for their turn. They have another one when all have had theirs.
func (l *look) decide(ctx context.Context, partitions []int32) {
	var wg sync.WaitGroup
	wg.Go(func() {
		octx, cancel := context.WithTimeout(ctx, l.Within)
		defer cancel()
		owned, err := l.Kafka.Owned(octx)
		if l.ownedError = err; err == nil {
			l.owned = owned
		}
	})
	found := make([]laneDecision, len(partitions))
	eachOf(len(partitions), func(i int) {
		found[i] = l.read(ctx, partitions[i])
	})
	for i, p := range partitions {
		l.found[p] = found[i]
	}
	wg.Wait()
}

// read reads a lane's D. Its two copies are read one after the other, and an
// owner at work may decide in between: that they can't be told is believed when a
// second reading finds the same.
func (l *look) read(ctx context.Context, partition int32) (f laneDecision) {
	ctx, cancel := context.WithTimeout(ctx, l.LaneWithin)
	defer cancel()
	job := &checkpoint.Job{Name: l.Job}
	lane := checkpoint.Lane{Topic: l.Topic, Partition: partition}
	var before *checkpoint.Read
	for {
		r, err := l.Kafka.Look(ctx, partition)
		if err != nil {
			return laneDecision{err: err, late: ctx.Err() != nil}
		}
		f.d, f.known, f.err = job.Decided(lane, &r)
		if f.err == nil || before != nil && r.Same(before) {
			return f
		}
		before = &r
	}
}

// branches are all that are listed, each once: those of a shard as the shard
// lists them, everything else once for each server.
func (l *look) branches() (all []Branch) {
	servers := map[string][]string{} // the shards' names
	for i, s := range l.seen {
		if s != nil {
			servers[s.Server] = append(servers[s.Server], l.names[i])
		}
	}
	for i, s := range l.seen {
		if s == nil {
			continue
		}
		here := servers[s.Server]
		for _, x := range s.Listed {
			n, ours := l.ours(&x)
			own := ours && l.onOwnServer(x.Shard, s.Server)
			if own && x.Shard == i || !own && here[0] == l.names[i] {
				all = append(all, l.branch(x, n, ours, here))
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Branch) int {
		return cmp.Or(cmp.Compare(place(a.Owner), place(b.Owner)), cmp.Compare(uint(a.Shard), uint(b.Shard)), cmp.Compare(a.Topic, b.Topic),
			cmp.Compare(a.Name.Partition, b.Name.Partition), cmp.Compare(a.Name.Seq, b.Name.Seq), cmp.Compare(a.GTRID, b.GTRID), cmp.Compare(a.BQUAL, b.BQUAL))
	})
	return all
}

func place(o Owner) int { return slices.Index([]Owner{Ours, Unclear, OtherJob, Foreign}, o) }

// onOwnServer reports whether the server is that of the shard with this number.
func (l *look) onOwnServer(shard int, server string) bool {
	return shard >= 0 && l.seen[shard] != nil && l.seen[shard].Server == server
}

// branch is what is known of one, which is listed on the server of these shards.
func (l *look) branch(x XID, n checkpoint.Name, ours bool, here []string) Branch {
	b := Branch{XID: x, Owner: Foreign, Servers: here}
	if !ours {
		b.Shard = -1
		if n, err := checkpoint.GTRID(x.GTRID).Parse(); err == nil {
			b.Owner, b.Name = OtherJob, n
			if len(l.owners) == 0 {
				b.Owner, b.Why = Unclear, "no shard says which set of shards this is: it may be this job's"
			}
		}
		return b
	}
	b.Owner, b.Name = Ours, n
	switch {
	case x.Shard < 0:
		b.Why = "it is of no shard of the configuration: nobody looks for it"
	case l.seen[x.Shard] == nil:
		b.Of = l.names[x.Shard]
		b.Why = fmt.Sprintf("it is listed on the server of %s; shard %s itself did not answer", strings.Join(here, ", "), b.Of)
	case !slices.Contains(here, l.names[x.Shard]):
		b.Of = l.names[x.Shard]
		b.Why = fmt.Sprintf("it is listed on the server of %s, but shard %s is on another one: nobody looks for it here", strings.Join(here, ", "), b.Of)
	default:
		b.Of = l.names[x.Shard]
		if w, ok := l.seen[x.Shard].Written[checkpoint.GTRID(x.GTRID)]; ok {
			b.Written, b.Topic = &w, w.Lane.Topic
		}
	}
	if b.Topic == "" && l.away == nil && onTopic(n, l.input) {
		b.Topic = l.Topic
	}
	word, why := l.judge(&b)
	if b.Why != "" && why != "" {
		why = "; " + why
	}
	b.Word, b.Why = word, b.Why+why
	return b
}

// judge is what the decision says of a branch of ours.
func (l *look) judge(b *Branch) (word checkpoint.Word, why string) {
	switch {
	case b.Topic != "" && b.Topic != l.Topic:
		return OtherTopic, "its topic is not the configured " + l.Topic
	case l.away != nil:
		return Unknown, "Kafka can't be asked for the decision"
	case !onTopic(b.Name, l.input) && b.Topic != "":
		return OtherTopic, "topic " + l.Topic + " was created again since"
	case !onTopic(b.Name, l.input):
		return OtherTopic, "its topic is not the configured " + l.Topic + ", or that one was created again since"
	}
	f, ok := l.found[b.Name.Partition]
	switch {
	case !ok:
		return Unknown, "it came while the others were looked at"
	case f.err != nil:
		return Unknown, "the decision can't be told: " + f.err.Error()
	case !f.known:
		return NoDecision, "Kafka knows nothing of the lane: its offset and its decision were lost"
	}
	word = f.d.Says(checkpoint.GTRID(b.GTRID), b.Name)
	d := fmt.Sprintf("the decision is of epoch %d, by incarnation %d", f.d.Seq, f.d.Incarnation)
	switch {
	case word != checkpoint.Decided && b.Name.Seq > f.d.Seq && b.Name.Incarnation == f.d.Incarnation && l.owned(b.Name.Partition):
		return InFlight, "" // where it is ahead, its owner has moved on since D was read
	case word == checkpoint.Older:
		return word, d + ": the shard has come back older than it was, and the lane refuses (old-branch)"
	case word == checkpoint.Ahead:
		return word, d + ": Kafka has lost the branch's own session, or the decision before it"
	}
	return word, ""
}

// problems are what could not be asked, or is not as recorded.
func (l *look) problems() (all []error) {
	for i, s := range l.seen {
		if s != nil {
			all = append(all, s.Problems...)
		} else {
			all = append(all, l.failed[i])
		}
	}
	if l.away != nil {
		return append(all, l.away)
	}
	if l.ownedError != nil {
		all = append(all, l.ownedError)
	}
	var partitions []int32
	for p := range l.found {
		partitions = append(partitions, p)
	}
	slices.Sort(partitions)
	listed := l.lanes(everyBranch)
	for _, p := range partitions {
		// A lane that was late may have ended its branches meanwhile.
		if f := l.found[p]; f.err != nil && (!f.late || slices.Contains(listed, p)) {
			all = append(all, f.err)
		}
	}
	return all
}

// eachOf runs fn for 0 to n-1, some side by side, and waits for all.
func eachOf(n int, fn func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce) // holds a token for each that runs
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			fn(i)
		})
	}
	wg.Wait()
}
