package txsink_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/txsink"
)

// TestLook: a prepared branch is seen with the rows that it has written, although
// nobody has committed them and it holds their locks; without Check, and without
// a change.
func TestLook(t *testing.T) {
	s, cfg := fresh(t)
	quiet, busy, first := newLane(t, s, cfg, 1), newLane(t, s, cfg, 2), newLane(t, s, cfg, 3)
	quiet.book(small(quiet, "q", 0), 2)
	busy.book(small(busy, "b", 0), 2)
	before := time.Now()
	for _, err := range []error{busy.prepare(small(busy, "c", 2), 5), first.prepare(small(first, "f", 0), 7)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	after := time.Now()
	defer func() {
		for _, sh := range s.Shards() {
			for _, g := range []checkpoint.GTRID{busy.gtrid(1, 2), first.gtrid(1, 1)} {
				if err := sh.Rollback(t.Context(), g); err != nil {
					t.Error(err)
				}
			}
		}
	}()

	unchecked, err := txsink.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unchecked.Close() })
	for i := range cfg.Shards {
		for range 2 { // a second time on the same connection
			look, err := unchecked.Look(t.Context(), i)
			if err != nil {
				t.Fatal(err)
			}
			if look.Set != s.SetID() || look.Server == "" || len(look.Problems) != 0 {
				t.Errorf("shard %d: set %s, server %q, problems %v", i, look.Set, look.Server, look.Problems)
			}
			if want := map[checkpoint.Lane]checkpoint.LaneRow{quiet.id: {Incarnation: 1, Seq: 1, Next: 2}, busy.id: {Incarnation: 1, Seq: 1, Next: 2}}; !maps.Equal(look.Lanes, want) {
				t.Errorf("shard %d: lanes %v, want %v", i, look.Lanes, want)
			}
			var lanes []string
			for _, e := range look.Newest {
				lanes = append(lanes, fmt.Sprintf("%s %s [%d,%d) %d", e.Lane, e.GTRID[40:], e.From, e.Next, e.Records))
				if e.PreparedAt.Before(before.Add(-time.Minute)) || e.PreparedAt.After(after.Add(time.Second)) {
					t.Errorf("shard %d: %s was prepared at %s", i, e.Lane, e.PreparedAt)
				}
			}
			want := fmt.Sprintf("usage.events/1 %s [0,2) 2; usage.events/2 %s [2,7) 2; usage.events/3 %s [0,7) 2", quiet.gtrid(1, 1)[40:], busy.gtrid(1, 2)[40:], first.gtrid(1, 1)[40:])
			if got := strings.Join(lanes, "; "); got != want {
				t.Errorf("shard %d: newest epochs %s, want %s", i, got, want)
			}
			ours := 0
			for _, x := range look.XIDs {
				if strings.HasPrefix(x.GTRID, checkpoint.OwnerPrefix(cfg.Job, s.SetID())) && x.OnShard(i) {
					ours++
				}
			}
			if ours != 2 {
				t.Errorf("shard %d: %d branches of ours are listed, want 2: %v", i, ours, look.XIDs)
			}
			if row, ok, err := s.Shards()[i].LaneRow(t.Context(), first.id); ok || err != nil {
				t.Errorf("shard %d: the lane's row is committed: %+v, %v", i, row, err)
			}
		}
	}
}

// TestLookSaysWhatIsNotAsRecorded: what a start would refuse does not keep an
// operator from looking, unless nothing can be seen.
func TestLookSaysWhatIsNotAsRecorded(t *testing.T) {
	m, cfg := alone(t)
	look := func() (txsink.Look, error) {
		t.Helper()
		s, err := txsink.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		return s.Look(t.Context(), 0)
	}
	problem := func(reason string, words ...string) {
		t.Helper()
		l, err := look()
		if err != nil || len(l.Problems) != 1 {
			t.Fatalf("%v, %v", l.Problems, err)
		}
		wantRefusal(t, l.Problems[0], reason, "only", words...)
	}
	problem(checkpoint.ReasonMigrationsPending, "billing_meta", "billing migrate")
	migrate(t, cfg)
	if l, err := look(); err != nil || len(l.Problems) != 0 || l.Set.IsZero() {
		t.Errorf("%+v, %v", l, err)
	}
	job := cfg.Job
	cfg.Job = "another"
	problem(checkpoint.ReasonShardsChanged, "belong to job "+job)
	cfg.Job = job
	if err := m.Reidentify(t.Context()); err != nil {
		t.Fatal(err)
	}
	problem(checkpoint.ReasonServerChanged, "the recorded one is")

}
