package pipeline_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
	"billing/internal/event"
	"billing/internal/pipeline"
)

// rig is a lane at work on fake servers, in virtual time.
type rig struct {
	t     *testing.T
	world *checkpointtest.World
	lanes *pipeline.Pipeline
	topic *topic
	nets  *list
}

// ended is Kafka that knows where the topic ends, as long as no decision is beyond it.
type ended struct {
	checkpoint.Kafka
	topic *topic
}

type endedOwner struct {
	checkpoint.Owner
	topic *topic
}

func (k ended) Fence(ctx context.Context, lane checkpoint.Lane) (checkpoint.Owner, error) {
	o, err := k.Kafka.Fence(ctx, lane)
	return endedOwner{o, k.topic}, err
}

func (o endedOwner) Read(ctx context.Context) (checkpoint.Read, error) {
	r, err := o.Owner.Read(ctx)
	o.topic.mu.Lock()
	defer o.topic.mu.Unlock()
	r.LogEnd = max(int64(len(o.topic.records)), r.Offset)
	return r, err
}

// list is a list that two goroutines use.
type list struct {
	mu sync.Mutex
	s  []string
}

func (l *list) add(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.s = append(l.s, s)
}

func (l *list) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.s...)
}

// topic is one partition as the lanes' source: it keeps its records and delivers
// them from where a session starts.
type topic struct {
	mu        sync.Mutex
	partition int32
	records   []event.Record
	handler   *pipeline.Pipeline
	session   uint64
	next      int64
	atOnce    int // records in a delivery; 0 is one
	paused    bool
	pauses    int
	tail      int64 // where SkipTail ends
	skips     int
	lost      error         // what SkipTail answers
	held      chan struct{} // nil, or SkipTail waits until it is closed, with what it has found
	unread    error         // delivered instead of records
}

func (s *topic) Start(_ int32, session uint64, offset int64, _ int32) {
	s.mu.Lock()
	s.session, s.next = session, offset
	s.mu.Unlock()
	s.pump()
}

func (s *topic) Stop(int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session = 0
}

func (s *topic) Pause(int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = true
	s.pauses++
}

func (s *topic) Resume(int32) {
	s.mu.Lock()
	s.paused = false
	s.mu.Unlock()
	go s.pump()
}

func (s *topic) Assigned(int32) bool { return true }

func (s *topic) SkipTail(ctx context.Context, _ int32, from int64) (int64, error) {
	s.mu.Lock()
	s.skips++
	next, err, held := max(from, s.tail), s.lost, s.held
	s.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if err != nil {
		return 0, err
	}
	return next, nil
}

// ends has the tail without records end at the offset, and SkipTail fail with err,
// if any.
func (s *topic) ends(tail int64, err error) {
	s.mu.Lock()
	s.tail, s.lost = tail, err
	s.mu.Unlock()
	s.handler.Reach(map[int32]int64{0: tail})
}

// hold has SkipTail wait until release is called.
func (s *topic) hold() (release func()) {
	held := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = held
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held = nil
		close(held)
	}
}

// pump delivers what is there, until the lane pauses the partition.
func (s *topic) pump() {
	for {
		s.mu.Lock()
		if s.session == 0 || s.paused || s.next >= int64(len(s.records)) && s.unread == nil {
			s.mu.Unlock()
			return
		}
		session, err := s.session, s.unread
		if err != nil {
			s.session = 0
			s.mu.Unlock()
			s.handler.Failed(s.partition, session, err)
			return
		}
		records := s.records[s.next:min(s.next+int64(max(1, s.atOnce)), int64(len(s.records)))]
		s.next += int64(len(records))
		bytes := 0
		for i := range records {
			bytes += len(records[i].Value)
		}
		end := int64(len(s.records))
		s.mu.Unlock()
		s.handler.Deliver(s.partition, session, slices.Clone(records), bytes, end)
	}
}

func (s *topic) append(values ...string) {
	s.mu.Lock()
	for _, v := range values {
		r := event.Record{Offset: int64(len(s.records)), LeaderEpoch: 1, Value: []byte(v)}
		if v == "control" {
			r.Value, r.Control = nil, true
		}
		s.records = append(s.records, r)
	}
	s.mu.Unlock()
	s.pump()
}

func (s *topic) count() (skips, pauses int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.skips, s.pauses
}

func newRig(t *testing.T, change func(*pipeline.Config)) *rig {
	t.Helper()
	r := &rig{t: t, world: checkpointtest.NewWorld(checkpoint.Lane{Topic: "in"}, 2), topic: &topic{}, nets: &list{}}
	cfg := pipeline.Config{
		Job: &checkpoint.Job{
			Name: "job", Topic: "in", Set: checkpoint.UUID{1}, Fingerprint: "f", FirstStart: true,
			Kafka: ended{r.world, r.topic}, Shards: r.world.Shards(), Limits: checkpoint.DefaultLimits(30 * time.Second),
			Listener: checkpoint.Listener{Net: func(_ checkpoint.At, net string, _ error) { r.nets.add(net) }},
		},
		Interval: time.Second, MaxInterval: 5 * time.Second, MaxRows: 1 << 20, MaxRecords: 100, MaxBytes: 1 << 30, MemoryBytes: 1 << 32,
		Lateness: time.Hour, Skew: 5 * time.Minute, MaxIDs: 1 << 40, Window: time.Hour, Ledger: true,
		Decoder:      event.Config{TypePrefix: "com.example.billing.", Currencies: []string{"USD"}},
		StoppedRetry: time.Minute, IdleMove: time.Minute,
		Now: time.Now, Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	r.lanes = pipeline.New(cfg)
	r.topic.handler = r.lanes
	r.lanes.Bind(r.topic)
	return r
}

// run assigns the partition, runs the test, and has the lane let go.
func (r *rig) run(fn func()) {
	r.lanes.Assigned([]int32{0})
	synctest.Wait() // until it has recovered: what the test sends then was not waiting
	fn()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r.lanes.Revoked(ctx, []int32{0})
	if left := r.lanes.Status(); len(left) != 0 {
		r.t.Errorf("a lane is left: %+v", left)
	}
	if err := r.world.Sound(); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) status() pipeline.Status {
	r.t.Helper()
	all := r.lanes.Status()
	if len(all) != 1 {
		r.t.Fatalf("%d lanes", len(all))
	}
	return all[0]
}

// sleep lets virtual time pass until everything waits again.
func sleep(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// epochs is the number of records of each committed epoch on a shard.
func (r *rig) epochs(shard int) (in []int64) {
	for _, c := range r.world.AppliedOn(shard) {
		in = append(in, c.(*aggregate.Epoch).Counts.In)
	}
	return in
}

func (r *rig) counts() (c aggregate.Counts) {
	for _, x := range r.world.AppliedOn(0) {
		k := x.(*aggregate.Epoch).Counts
		c.In += k.In
		c.Applied += k.Applied
		c.Duplicates += k.Duplicates
		c.Conflicts += k.Conflicts
		c.Rejected += k.Rejected
	}
	return c
}

func message(id string, at time.Time) string {
	return `{"specversion":"1.0","id":"` + id + `","source":"/s","type":"com.example.billing.charge.v1","subject":"a","time":"` +
		at.UTC().Format(time.RFC3339Nano) + `","data":{"amount":"1","currency":"USD"}}`
}

func messages(from, to int) (out []string) {
	for i := from; i < to; i++ {
		out = append(out, message(fmt.Sprint(i), time.Now()))
	}
	return out
}

func want(t *testing.T, what string, got, wanted any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(wanted) {
		t.Errorf("%s: got %v, want %v", what, got, wanted)
	}
}
