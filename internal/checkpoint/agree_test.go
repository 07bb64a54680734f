package checkpoint_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
)

type world = checkpointtest.World

// TestRefusalsBeforeTheTakeover: each refusal of S2, by its reason and scope.
// No decision is written and nothing on MySQL is changed, though a decided and
// unfinished branch waits there.
func TestRefusalsBeforeTheTakeover(t *testing.T) {
	newer := func(text string) string { return strings.Replace(text, `"v":1`, `"v":2`, 1) }
	for name, c := range map[string]struct {
		damage func(t *testing.T, w *world, job *checkpoint.Job)
		reason string
		scope  checkpoint.Scope
		says   string
	}{
		"another job's decision": {func(t *testing.T, w *world, _ *checkpoint.Job) {
			changeD(t, w, func(d *checkpoint.Decision) { d.Job = "other" })
		}, checkpoint.ReasonFingerprint, checkpoint.EndsProcess, `job "other"`},
		"another topic's decision": {func(t *testing.T, w *world, _ *checkpoint.Job) {
			changeD(t, w, func(d *checkpoint.Decision) { d.Topic = "elsewhere" })
		}, checkpoint.ReasonFingerprint, checkpoint.EndsProcess, "elsewhere/2"},
		"another partition's decision": {func(t *testing.T, w *world, _ *checkpoint.Job) {
			changeD(t, w, func(d *checkpoint.Decision) { d.Partition = 3 })
		}, checkpoint.ReasonFingerprint, checkpoint.EndsProcess, "in/3"},
		"topic created again": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.TopicID = checkpoint.UUID{9}
		}, checkpoint.ReasonTopicRecreated, checkpoint.EndsProcess, checkpoint.UUID{9}.String()},
		"topic created again, its offsets gone with it": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.TopicID = checkpoint.UUID{9}
			w.LoseOffset()
		}, checkpoint.ReasonTopicRecreated, checkpoint.EndsProcess, checkpoint.UUID{9}.String()},
		"partition count changed": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.Partitions = 8
		}, checkpoint.ReasonPartitionsChanged, checkpoint.EndsProcess, "8 partitions"},
		"number of shards changed": {func(_ *testing.T, w *world, job *checkpoint.Job) {
			job.Shards = job.Shards[:1]
		}, checkpoint.ReasonShardsChanged, checkpoint.EndsProcess, "1 shards"},
		"another fingerprint": {func(_ *testing.T, _ *world, job *checkpoint.Job) {
			job.Fingerprint = "changed"
		}, checkpoint.ReasonFingerprint, checkpoint.EndsProcess, "changed"},
		"messages deleted unread": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.LogStart = 7
		}, checkpoint.ReasonUnreadDeleted, checkpoint.StopsLane, "3 offsets"},
		"billed messages lost": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.LogEnd = 3
		}, checkpoint.ReasonOffsetBeyondEnd, checkpoint.StopsLane, "ends at 3"},
		"live state deleted": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.SetStateStart(1)
		}, checkpoint.ReasonStateDeleted, checkpoint.StopsLane, "begins at 1"},
		"the end of the state lost": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.SetStateEnd(lastDecision(w).StateNext - 1) // one chunk
		}, checkpoint.ReasonStateDeleted, checkpoint.StopsLane, "has written job.state up to offset"},
		"decision of a newer build": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.SetOffset(lastDecision(w).Next, newer(w.Metadata()))
		}, checkpoint.ReasonDecisionVersion, checkpoint.EndsProcess, "group's offset"},
		"decision of a newer build, offset expired": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.SetDecision(newer(w.Metadata()))
			w.LoseOffset()
		}, checkpoint.ReasonDecisionVersion, checkpoint.EndsProcess, "job.decision"},
		"decision of a newer build behind an accepted reset": {func(_ *testing.T, w *world, job *checkpoint.Job) {
			w.SetDecision(newer(w.Metadata()))
			w.SetOffset(0, "")
			job.Accept = func(string, string) bool { return true }
		}, checkpoint.ReasonDecisionVersion, checkpoint.EndsProcess, "job.decision"},
		"offset set by an administrator": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.SetOffset(0, "")
		}, checkpoint.ReasonOffsetReset, checkpoint.StopsLane, "--accept offset-reset:in/2"},
		"offset set by an administrator, metadata kept": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.SetOffset(0, w.Metadata())
		}, checkpoint.ReasonOffsetReset, checkpoint.StopsLane, "--accept offset-reset:in/2"},
		"another reset accepted": {func(_ *testing.T, w *world, job *checkpoint.Job) {
			w.SetOffset(0, "")
			job.Accept = func(reason, what string) bool { return reason == checkpoint.ReasonOffsetReset && what == "in/3" }
		}, checkpoint.ReasonOffsetReset, checkpoint.StopsLane, "--accept offset-reset:in/2"},
		"offset set, decision topic lost": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.SetDecision("")
			w.SetOffset(0, "")
		}, checkpoint.ReasonOffsetReset, checkpoint.StopsLane, "not stored by this service"},
		"offset set and accepted, decision topic lost": {func(_ *testing.T, w *world, job *checkpoint.Job) {
			w.SetDecision("")
			w.SetOffset(0, "")
			job.Accept = func(string, string) bool { return true }
		}, checkpoint.ReasonDecisionsUnequal, checkpoint.StopsLane, "job.decision"},
		"decision topic lost": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.SetDecision("")
		}, checkpoint.ReasonDecisionsUnequal, checkpoint.StopsLane, "job.decision"},
		"decision topic older": {func(t *testing.T, w *world, _ *checkpoint.Job) {
			text, err := w.Decisions[1].Encode()
			if err != nil {
				t.Fatal(err)
			}
			w.SetDecision(text)
		}, checkpoint.ReasonDecisionsUnequal, checkpoint.StopsLane, "job.decision"},
		"decision topic has something else, offset expired": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.SetDecision("something else")
			w.LoseOffset()
		}, checkpoint.ReasonDecisionsUnequal, checkpoint.StopsLane, "something else"},
		"offset and decision lost, state there": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.SetDecision("")
			w.LoseOffset()
		}, checkpoint.ReasonLaneKnown, checkpoint.StopsLane, "job.state"},
		"everything in Kafka lost, shards there": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.SetDecision("")
			w.LoseOffset()
			w.SetStateStart(w.StateEnd())
		}, checkpoint.ReasonLaneKnown, checkpoint.StopsLane, "would bill every message twice"},
		"everything in Kafka lost, one shard there, first start wanted": {func(_ *testing.T, w *world, _ *checkpoint.Job) {
			w.SetDecision("")
			w.LoseOffset()
			w.SetStateStart(w.StateEnd())
			w.Shard(0).SetLaneRow(nil)
		}, checkpoint.ReasonLaneKnown, checkpoint.StopsLane, "shard s1"},
		"everything lost, first start off": {func(_ *testing.T, w *world, job *checkpoint.Job) {
			w.SetDecision("")
			w.LoseOffset()
			w.SetStateStart(w.StateEnd())
			w.Shard(0).SetLaneRow(nil)
			w.Shard(1).SetLaneRow(nil)
			job.FirstStart = false
		}, checkpoint.ReasonFirstStart, checkpoint.StopsLane, "first_start: true"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, job := interrupted(t, 2, 1, "EndTxn", checkpointtest.Lost)
				c.damage(t, w, job)
				decisions := len(w.Decisions)
				prepared := fmt.Sprint(w.Shard(0).PreparedNow(), w.Shard(1).PreparedNow())
				w.Plan(nil)
				foreseen := foresee(t, w, job)
				err := tryOpen(t, job)
				refusedWith(t, err, c.reason, c.scope, c.says)
				sameRefusal(t, foreseen, err)
				if did := changes(w.Calls()); len(did) > 0 {
					t.Errorf("changed: %v", did)
				}
				if n := len(w.Decisions); n != decisions {
					t.Errorf("decided: %+v", lastDecision(w))
				}
				if now := fmt.Sprint(w.Shard(0).PreparedNow(), w.Shard(1).PreparedNow()); now != prepared || !strings.Contains(now, "exb1") {
					t.Errorf("prepared were %s, now %s", prepared, now)
				}
				fences := 1
				if c.reason == checkpoint.ReasonDecisionsUnequal {
					fences = 2 // unequal copies are looked at again, under a fresh fence
				}
				if n := count(w.Calls(), "InitProducerID"); n != fences {
					t.Errorf("%d fences, want %d", n, fences)
				}
			})
		})
	}
}

// TestUnequalOnceIsReadAgain: copies that were unequal under one fence and are
// equal under the next are no refusal.
func TestUnequalOnceIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := started(t, 1, 1)
		good := w.Metadata()
		w.SetDecision("")
		w.Plan(func(_ int, call string) checkpointtest.Fault {
			if call == "InitProducerID" && count(w.CallsLocked(), call) == 2 {
				w.SetDecision(good)
			}
			return checkpointtest.None
		})
		e := new(events).listen(job)
		s, _ := mustOpen(t, job)
		s.Close()
		if want := checkpoint.Steps[:checkpoint.StepRestore+1]; !slices.Equal(e.steps, want) {
			t.Errorf("steps of two fences and a reading in vain: %q, want each once", e.steps)
		}
		runToEnd(t, w, job, 1, 6)
	})
}

// TestTornReadIsNoRefusal: an owner is frozen between two of its readings in S2,
// and a later one takes over and works. What does not fit together then is no
// fact about the lane.
func TestTornReadIsNoRefusal(t *testing.T) {
	for _, done := range []int{0, 1} {
		for _, call := range []string{"Read input", "Read offset", "Read decision", "Read state", "SELECT lane on s0", "Produce decision"} {
			if done > 0 && call == "SELECT lane on s0" {
				continue // only a first start looks at the shards before its takeover
			}
			t.Run(fmt.Sprintf("behind %s, %d epochs done", call, done), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStage(t, threeEpochs.world(t, 1, done), firstShard)
					s.start("A", threeEpochs.work)
					for s.next("A").call != call {
					}
					s.start("B", threeEpochs.own)
					if err := s.end("B"); err != nil {
						t.Fatal(err)
					}
					if err := s.end("A"); err == nil || final(err) {
						t.Errorf("the superseded owner: %v", err)
					}
					if err := threeEpochs.finished(t, s.w, 1); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// TestOffsetExpired: the group's offset expired while the group was idle. The
// decision stands, its offset is stored again, and the operator is told.
func TestOffsetExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := interrupted(t, 2, 2, "EndTxn", checkpointtest.Lost)
		w.LoseOffset()
		e := new(events).listen(job)
		s, _ := mustOpen(t, job)
		s.Close()
		if len(e.nets) != 1 || e.nets[0] != "offset-expired" {
			t.Errorf("nets: %v", e.nets)
		}
		if d := lastDecision(w); d.Next != 6 || d.Seq != 3 || w.Metadata() == "" {
			t.Errorf("stored again: %+v", d)
		}
		runToEnd(t, w, job, 2, 10)
	})
}

// TestAcceptedOffsetReset: the operator accepts that the offset which somebody
// set is dropped. The lane goes on from its own decision, not from that offset.
func TestAcceptedOffsetReset(t *testing.T) {
	for _, offset := range []int64{0, 1, 500} {
		synctest.Test(t, func(t *testing.T) {
			w, job := started(t, 2, 2)
			w.SetOffset(offset, "")
			var asked []string
			job.Accept = func(reason, what string) bool {
				asked = append(asked, reason+":"+what)
				return true
			}
			runToEnd(t, w, job, 2, 8)
			if len(asked) != 1 || asked[0] != "offset-reset:in/2" {
				t.Errorf("asked for %v", asked)
			}
		})
	}
}

// TestFirstStart: a lane that nobody knows begins at the log's start, with a
// takeover of incarnation 1 and seq 0, and its first epoch is seq 1.
func TestFirstStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := checkpointtest.NewWorld(lane, 2)
		w.LogStart, w.LogEnd = 4, 8
		w.AddChunk([]byte("aborted, of another life of the topic's name"))
		w.SetStateStart(1)
		job := newJob(w)
		s, state := mustOpen(t, job)
		defer s.Close()
		d := s.Decision()
		if d.Incarnation != 1 || d.Seq != 0 || d.GTRID != "" || d.Next != 4 || d.OldestLive != 1 || d.LeaderEpoch != -1 {
			t.Errorf("first decision: %+v", d)
		}
		if err := s.Checkpoint(t.Context(), state.feed(4, 8)); err != nil {
			t.Fatal(err)
		}
		if d := lastDecision(w); d.Seq != 1 || d.Next != 8 {
			t.Errorf("first epoch: %+v", d)
		}
		if n, err := w.Shard(1).Chain(); n != 1 || err != nil {
			t.Errorf("%d epochs, %v", n, err)
		}
		if from := w.Shard(1).From(1); from != 4 {
			t.Errorf("the first epoch begins at %d", from)
		}
		if err := w.Sound(); err != nil {
			t.Error(err)
		}
	})
}

// TestFirstStartNeedsEveryShard: while a shard does not answer, nobody knows
// whether it knows the lane: no takeover.
func TestFirstStartNeedsEveryShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := checkpointtest.NewWorld(lane, 2)
		w.Plan(onCall("SELECT lane on s1", 1, checkpointtest.Failed))
		err := tryOpen(t, newJob(w))
		var refused *checkpoint.Refusal
		if err == nil || errors.As(err, &refused) || !strings.Contains(err.Error(), "s1") {
			t.Errorf("got %v, want an error that names the shard and is no refusal", err)
		}
		if len(w.Decisions) != 0 {
			t.Errorf("decided: %+v", w.Decisions)
		}
	})
}

// TestNotAssignedTouchesNothing is S0.
func TestNotAssignedTouchesNothing(t *testing.T) {
	w, job := started(t, 1, 1)
	w.Plan(nil)
	_, err := checkpoint.Open(t.Context(), job, lane, func() bool { return false }, &ids{})
	if !errors.Is(err, checkpoint.ErrNotAssigned) {
		t.Errorf("got %v", err)
	}
	if calls := w.Calls(); len(calls) > 0 {
		t.Errorf("called: %v", calls)
	}
}

// TestNotAssignedSettlesNothing: the lane went after the takeover. The next
// owner writes on what looks like an older session's connection.
func TestNotAssignedSettlesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job := interrupted(t, 2, 2, "EndTxn", checkpointtest.Lost)
		ours := true
		job.Listener.TakenOver = func(checkpoint.At, checkpoint.Decision) { ours = false }
		w.Plan(nil)
		_, err := checkpoint.Open(t.Context(), job, lane, func() bool { return ours }, &ids{})
		var open *checkpoint.OpenError
		if !errors.Is(err, checkpoint.ErrNotAssigned) || !errors.As(err, &open) || open.At.Incarnation == 0 || open.At.Seq != 3 {
			t.Errorf("got %v (%+v)", err, open)
		}
		for _, call := range w.Calls() {
			if strings.Contains(call, " on s") {
				t.Errorf("%s", call)
			}
		}
	})
}
