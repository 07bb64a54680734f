package txsink_test

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"billing/internal/checkpoint"
	"billing/internal/txsink"
)

// TestLook: what a shard shows to who only looks, before and after it has
// anything, and on a server that Check refuses.
func TestLook(t *testing.T) {
	m, cfg := alone(t)
	s, err := txsink.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	look := func(topic string) txsink.View {
		t.Helper()
		v, err := s.Look(t.Context(), 0, topic)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := look("usage.events"); v.Migrated || len(v.Lanes) > 0 || v.Server == "" {
		t.Errorf("before migrate: %+v", v)
	}

	migrate(t, cfg)
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, l := range []*lane{newLane(t, s, cfg, 0), newLane(t, s, cfg, 7)} {
		for range l.id.Partition + 1 {
			e := l.epoch()
			e.Apply(charge(fmt.Sprint(l.next), "acme", "1"), l.next)
			l.book(e, 5)
		}
	}
	l := newLane(t, s, cfg, 0)
	l.incarnation, l.seq, l.next, l.digests[0] = 2, 1, 5, make([]byte, 32)
	if err := l.prepare(l.epoch(), 5); err != nil {
		t.Fatal(err)
	}
	v := look("usage.events")
	want := map[int32]checkpoint.LaneRow{0: {Incarnation: 1, Seq: 1, Next: 5}, 7: {Incarnation: 1, Seq: 8, Next: 40}}
	if !v.Migrated || v.Job != cfg.Job || v.Set != s.SetID() || v.Number != 0 || v.Count != 1 || !maps.Equal(v.Lanes, want) {
		t.Errorf("%+v, want the lanes %v", v, want)
	}
	if len(v.Prepared) != 1 || checkpoint.GTRID(v.Prepared[0].GTRID) != l.gtrid(2, 2) || !v.Prepared[0].OnShard(0) {
		t.Errorf("prepared: %+v", v.Prepared)
	}
	if v := look("other.events"); len(v.Lanes) > 0 {
		t.Errorf("another topic's lanes: %v", v.Lanes)
	}

	if _, err := m.Root().ExecContext(t.Context(), "SET GLOBAL super_read_only = ON"); err != nil {
		t.Fatal(err)
	}
	if v := look("usage.events"); len(v.Lanes) != 2 {
		t.Errorf("read-only: %+v", v)
	}
	if err := s.Shards()[0].Rollback(t.Context(), l.gtrid(2, 2)); err == nil {
		t.Error("rolled back on a read-only server")
	}
	if _, err := m.Root().ExecContext(t.Context(), "SET GLOBAL super_read_only = OFF"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Root().ExecContext(t.Context(), "SET GLOBAL read_only = OFF"); err != nil {
		t.Fatal(err)
	}
	if err := s.Shards()[0].Rollback(t.Context(), l.gtrid(2, 2)); err != nil {
		t.Error(err)
	}

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Look(gone, 0, "usage.events"); err == nil || checkpoint.AsRefusal(err) != nil {
		t.Errorf("no time: %v", err)
	}
}
