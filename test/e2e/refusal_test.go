package e2e

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"billing/test/servers"
)

// ran is a world whose lane has some epochs, and no service running.
func ran(t *testing.T) *world {
	w := newWorld(t, 2)
	s := w.run("")
	w.charge(0, 100)
	w.waitAccounted()
	w.charge(0, 100)
	w.waitAccounted() // a second epoch
	s.stop()
	return w
}

// edit changes the configuration file.
func (w *world) edit(from, to string) {
	w.t.Helper()
	b, err := os.ReadFile(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	if !bytes.Contains(b, []byte(from)) {
		w.t.Fatalf("the configuration has no %q", from)
	}
	if err := os.WriteFile(w.config, bytes.Replace(b, []byte(from), []byte(to), 1), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// TestRefusalsThatEndTheProcess: exit 3, the reason and a next step, and nothing
// was changed.
func TestRefusalsThatEndTheProcess(t *testing.T) {
	for _, c := range []struct {
		reason string
		make   func(t *testing.T, w *world)
	}{
		{"fingerprint", func(_ *testing.T, w *world) { w.edit("checkpoint:\n", "aggregate:\n  window: 15m\ncheckpoint:\n") }},
		{"partitions-changed", func(t *testing.T, w *world) {
			if _, err := shared.kafka.Admin(t).UpdatePartitions(t.Context(), 2, w.topic, w.job+".decision", w.job+".state"); err != nil {
				t.Fatal(err)
			}
		}},
		{"topic-recreated", func(t *testing.T, w *world) {
			admin := shared.kafka.Admin(t)
			if _, err := admin.DeleteTopic(t.Context(), w.topic); err != nil {
				t.Fatal(err)
			}
			servers.Eventually(t, time.Minute, func() error {
				_, err := admin.CreateTopic(t.Context(), 1, 1, nil, w.topic)
				return err
			})
			servers.Eventually(t, time.Minute, func() error {
				topics, err := admin.ListTopics(t.Context(), w.topic) // the broker knows it
				return errors.Join(err, topics.Error())
			})
		}},
		{"shards-changed", func(_ *testing.T, w *world) { w.edit("name: s0", "name: x"); w.swapShards() }},
		{"migrations-pending", func(t *testing.T, w *world) {
			if _, err := w.shards[1].Exec("DROP TABLE billing_schema"); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			w := ran(t)
			before := w.decided(0)
			c.make(t, w)
			s := w.run("")
			s.mustExit(3)
			out := s.output()
			for _, want := range []string{c.reason, "Next step:"} {
				if err := contains(out, want); err != nil {
					t.Error(err)
				}
			}
			if c.reason != "topic-recreated" { // there the offsets went with the topic
				if after := w.decided(0); after != before {
					t.Errorf("D was %+v, is %+v", before, after)
				}
			}
			all(t, "epochs", w.epochs(0), before.Seq)
		})
	}
}

// TestPartitionsGrownWhileRunning: more partitions move keys to lanes that do not
// know their ids. The process notices by itself, before the group does, and
// nothing that an operator may think of makes it go on.
func TestPartitionsGrownWhileRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	s := w.run("")
	ids := w.charge(0, 100)
	w.waitAccounted()
	admin := shared.kafka.Admin(t)
	if _, err := admin.UpdatePartitions(t.Context(), 2, w.topic); err != nil {
		t.Fatal(err)
	}
	s.mustExit(3)
	if err := contains(s.output(), "partitions-changed"); err != nil {
		t.Error(err)
	}

	// The same ids on the new partition, and the job's own topics grown to match.
	before := w.dump()
	w.producer = w.newProducer(shared.kafka) // the old one knows one partition
	w.again(1, ids)
	if _, err := admin.UpdatePartitions(t.Context(), 2, w.job+".decision", w.job+".state"); err != nil {
		t.Fatal(err)
	}
	s = w.run("")
	s.mustExit(3)
	if err := contains(s.output(), "partitions-changed"); err != nil {
		t.Error(err)
	}
	if now := w.dump(); now != before {
		t.Errorf("totals were\n%s\nare\n%s", before, now)
	}
}

// swapShards exchanges the two databases of the configuration.
func (w *world) swapShards() {
	b, err := os.ReadFile(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	s := strings.NewReplacer(w.dsns[0], w.dsns[1], w.dsns[1], w.dsns[0]).Replace(string(b))
	if err := os.WriteFile(w.config, []byte(s), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// TestRefusalsThatStopALane: the process goes on, the log says why and what to
// do, and no total changes.
func TestRefusalsThatStopALane(t *testing.T) {
	trim := func(t *testing.T, topic string, before int64) {
		var offsets kadm.Offsets
		offsets.AddOffset(topic, 0, before, -1)
		resp, err := shared.kafka.Admin(t).DeleteRecords(t.Context(), offsets)
		if err = errors.Join(err, resp.Error()); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		reason string
		make   func(t *testing.T, w *world)
	}{
		{"unread-deleted", func(t *testing.T, w *world) {
			w.charge(0, 10)
			trim(t, w.topic, endOf(t, w))
		}},
		{"state-deleted", func(t *testing.T, w *world) { trim(t, w.job+".state", 1) }},
		{"lane-known", func(t *testing.T, w *world) {
			// State and decision topics wiped, the group gone, while the shards know the lane.
			admin := shared.kafka.Admin(t)
			servers.Eventually(t, time.Minute, func() error {
				_, err := admin.DeleteGroup(t.Context(), w.job)
				return err
			})
			if _, err := admin.DeleteTopics(t.Context(), w.job+".decision", w.job+".state"); err != nil {
				t.Fatal(err)
			}
		}},
		{"lost-epoch", func(t *testing.T, w *world) {
			// Restored from a backup that is one epoch older.
			for _, q := range []string{
				"DELETE FROM billing_epoch WHERE seq = (SELECT seq FROM billing_lane)",
				"UPDATE billing_lane SET seq = seq - 1",
			} {
				if _, err := w.shards[1].Exec(q); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"shard-ahead", func(t *testing.T, w *world) {
			if _, err := w.shards[0].Exec("UPDATE billing_lane SET seq = seq + 1"); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			w := ran(t)
			totals := w.dump()
			c.make(t, w)
			s := w.run("")
			servers.Eventually(t, 2*time.Minute, func() error {
				if err := contains(s.output(), "reason="+c.reason); err != nil {
					return err
				}
				return contains(s.output(), "Next step:")
			})
			s.stop()
			if now := w.dump(); now != totals {
				t.Errorf("totals were\n%s\nare\n%s", totals, now)
			}
		})
	}
}

// dump is all totals as text.
func (w *world) dump() string {
	w.t.Helper()
	var out strings.Builder
	for _, db := range w.shards {
		var s string
		if err := db.QueryRow("SELECT COALESCE(GROUP_CONCAT(account_id, ' ', currency, ' ', window_start, ' ', net_amount, ' ', entry_count ORDER BY account_id, window_start SEPARATOR '\n'), '') FROM billing_totals").Scan(&s); err != nil {
			w.t.Fatal(err)
		}
		out.WriteString(s + "\n")
	}
	return out.String()
}

// TestFirstStartMustBeWanted: without the setting a new lane does not start, and
// with it it does.
func TestFirstStartMustBeWanted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.edit("first_start: true", "first_start: false")
	w.charge(0, 10)
	s := w.run("")
	s.mustExit(3) // the job's own topics are missing
	if err := contains(s.output(), "first_start"); err != nil {
		t.Error(err)
	}
	all(t, "epochs", w.epochs(0), 0)
	w.edit("first_start: false", "first_start: true")
	s = w.run("")
	w.waitAccounted()
	s.stop()
	w.exact()
}
