package repair_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"billing/internal/checkpoint"
	"billing/internal/checkpoint/checkpointtest"
	"billing/internal/event"
	"billing/internal/pipeline"
	"billing/internal/repair"
)

// sixEpochs is a lane with six epochs of five records, the same in each: two
// charges, a duplicate, a conflict with a later time, and one in an unknown currency,
// which is one that is too old in the fifth.
func sixEpochs(t *testing.T, shards int, between func(epoch int, cfg *pipeline.Config)) *loss {
	wait(100 * 24 * time.Hour)
	r := newRig(t, shards)
	r.cfg.MaxRecords = 5
	for n := range 6 {
		if between != nil {
			between(n, &r.cfg)
		}
		r.start()
		id, at := fmt.Sprint("id", n), time.Now()
		last := message(id+"c", at, "a", "5", "GBP")
		if n == 4 {
			last = message(id+"c", at.Add(-40*24*time.Hour), "a", "5", "USD")
		}
		r.topic.append(int64(n),
			message(id, at, "a", "1", "USD"), message(id+"b", at.Add(-time.Minute), "b", "-2", "EUR"), message(id, at, "a", "1", "USD"),
			message(id, at.Add(time.Minute), "a", "1", "USD"), last)
		r.work()
		wait(20 * time.Minute)
	}
	l := &loss{rig: r}
	for _, s := range r.shards {
		l.before = append(l.before, s.lines())
	}
	if n := r.last().Seq; n != 6 {
		t.Fatalf("%d epochs", n)
	}
	return l
}

func (l *loss) loses(shard, epochs int) {
	for range epochs {
		l.shards[shard].LoseEpoch()
	}
}

// drop takes records out of Kafka, as compaction does.
func (l *loss) drop(offsets func(i int) bool) {
	i := -1
	l.topic.records = slices.DeleteFunc(l.topic.records, func(event.Record) bool { i++; return offsets(i) })
}

// TestRefuses: what can't be told is refused by its reason, with what to do, and
// nothing is changed; what can be told all the same is booked.
func TestRefuses(t *testing.T) {
	const booked = ""
	for _, c := range []struct {
		name    string
		shards  int
		between func(epoch int, cfg *pipeline.Config)
		lose    func(l *loss)
		reason  string
		says    string
	}{
		{name: "one shard", shards: 1, lose: func(l *loss) { l.loses(0, 3) }, reason: booked},
		{name: "one shard, all", shards: 1, lose: func(l *loss) { l.loses(0, 6) }, reason: booked},
		{name: "all on both shards", shards: 2, lose: func(l *loss) { l.loses(0, 6); l.loses(1, 6) }, reason: booked},
		{name: "no decision left but the last", shards: 2, lose: func(l *loss) { l.loses(1, 4); l.oldest = len(l.world.Decisions) - 1 }, reason: booked},

		{name: "deleted from the beginning", shards: 2, lose: func(l *loss) { l.loses(1, 3); l.world.LogStart = 25 }, reason: repair.ReasonMessagesDeleted, says: "raise the topic's retention"},
		{name: "cut", shards: 2, lose: func(l *loss) { l.loses(1, 3); l.world.LogEnd = l.last().Next; l.topic.records = l.topic.records[:20] }, reason: repair.ReasonMessagesDeleted, says: "4 of the messages that were applied"},
		{name: "a charge compacted away", shards: 1, lose: func(l *loss) { l.loses(0, 3); l.drop(func(i int) bool { return i == 20 }) }, reason: repair.ReasonMessagesDeleted, says: "1 of the messages that were applied (the first at offset 30)"},
		{name: "a duplicate compacted away", shards: 2, lose: func(l *loss) { l.loses(0, 3); l.drop(func(i int) bool { return i == 22 }) }, reason: repair.ReasonMessagesDeleted, says: "Kafka has only 4"},
		{name: "an epoch compacted away", shards: 2, lose: func(l *loss) { l.loses(0, 3); l.drop(func(i int) bool { return i >= 20 && i < 25 }) }, reason: repair.ReasonMessagesDeleted},

		{name: "not of one moment", shards: 2, lose: func(l *loss) { l.loses(0, 3); l.beyond = "billing_total adds up to more" }, reason: repair.ReasonShardHole, says: "billing_total adds up to more"},
		{name: "a compacted input", shards: 2, lose: func(l *loss) { l.loses(0, 3); l.compacted = true }, reason: booked},
		{name: "a compacted input, one shard", shards: 1, lose: func(l *loss) { l.loses(0, 3); l.compacted = true }, reason: repair.ReasonNotExact, says: "the topic is compacted, and no shard has epoch 4"},

		{name: "no decisions, one shard", shards: 1, lose: func(l *loss) { l.loses(0, 3); l.oldest = len(l.world.Decisions) - 1 }, reason: repair.ReasonEpochsUnknown, says: "no shard has the epochs 4 to 6"},
		{name: "no decisions, both shards", shards: 2, lose: func(l *loss) { l.loses(0, 3); l.loses(1, 2); l.oldest = len(l.world.Decisions) - 1 }, reason: repair.ReasonEpochsUnknown, says: "no shard has the epochs 5 to 6"},

		{name: "a currency less", shards: 1, lose: func(l *loss) { l.loses(0, 3); l.cfg.Decoder.Currencies = []string{"USD"} }, reason: repair.ReasonNotExact, says: "by this configuration it is rejected (unknown_currency)"},
		{name: "a currency more", shards: 1, lose: func(l *loss) { l.loses(0, 3); l.cfg.Decoder.Currencies = []string{"USD", "EUR", "GBP"} }, reason: repair.ReasonNotExact, says: "was not applied, but by this configuration it would have been"},
		{name: "a currency more, all lost", shards: 1, lose: func(l *loss) { l.loses(0, 6); l.cfg.Decoder.Currencies = []string{"USD", "EUR", "GBP"} }, reason: repair.ReasonNotExact},
		{name: "another skew", shards: 2, lose: func(l *loss) { l.loses(1, 3); l.cfg.Skew = time.Second }, reason: repair.ReasonNotExact, says: "comes out otherwise than it was: 5 records (2 applied, 1 duplicates, 0 conflicts, 2 rejected)"},
		{name: "another lateness", shards: 1, lose: func(l *loss) { l.loses(0, 3); l.cfg.Lateness /= 2 }, reason: repair.ReasonNotExact, says: "dedup.lateness"},
		{name: "another lateness in between", shards: 1, between: func(n int, cfg *pipeline.Config) {
			if n == 4 {
				cfg.Lateness /= 2
			}
		}, lose: func(l *loss) { l.loses(0, 3) }, reason: repair.ReasonNotExact, says: "changed between these epochs"},
		{name: "forgotten since", shards: 1, between: func(_ int, cfg *pipeline.Config) { cfg.Lateness = 10 * time.Minute },
			lose: func(l *loss) { l.loses(0, 6) }, reason: repair.ReasonNotExact, says: "the ids are forgotten since"},
		{name: "the ledger switched unseen", shards: 1, between: func(n int, cfg *pipeline.Config) { cfg.Ledger = n != 4 },
			lose: func(l *loss) { l.cfg.Ledger = false; l.loses(0, 2) }, reason: repair.ReasonNotExact, says: "whether the ledger was on in the epochs 5 to 6"},
		{name: "the ledger switched unseen, and nobody says how it was", shards: 1, between: func(n int, cfg *pipeline.Config) { cfg.Ledger = n < 3 },
			lose: func(l *loss) { l.loses(0, 4) }, reason: repair.ReasonNotExact, says: "whether the ledger was on in the epochs 3 to 6"},
		{name: "the ledger switched, and a shard shows it", shards: 2, between: func(n int, cfg *pipeline.Config) { cfg.Ledger = n < 3 },
			lose: func(l *loss) { l.loses(0, 5) }, reason: booked},

		{name: "no epoch's row", shards: 2, lose: func(l *loss) {
			l.loses(1, 1)
			l.shards[1].SetLaneRow(&checkpoint.LaneRow{Incarnation: 3, Seq: 3, Next: 30})
		}, reason: repair.ReasonShardHole, says: "ends with epoch 3 at offset 30, but it has a row of epoch"},
		{name: "no lane's row", shards: 2, lose: func(l *loss) { l.loses(1, 1); l.shards[1].SetLaneRow(nil) }, reason: repair.ReasonShardHole},
		{name: "a branch on top of nothing", shards: 2, lose: func(l *loss) {
			l.loses(1, 4)
			g := l.last().GTRID
			l.shards[1].Put(&checkpoint.Branch{GTRID: g[:len(g)-1] + "4"})
		}, reason: repair.ReasonShardHole, says: "is prepared on top of epoch 2"},
		{name: "an old branch, and nothing is missing", shards: 2, lose: func(l *loss) {
			g := l.last().GTRID
			l.shards[1].Put(&checkpoint.Branch{GTRID: g[:len(g)-1] + "4"})
		}, reason: checkpoint.ReasonOldBranch},
		{name: "the state is damaged", shards: 2, lose: func(l *loss) { l.loses(1, 2); l.world.DropChunk() }, reason: checkpoint.ReasonStateDamaged},
		{name: "another branch", shards: 2, lose: func(l *loss) {
			l.loses(1, 2)
			g := l.last().GTRID
			l.shards[0].SetEpochGTRID(6, g[:len(g)-1]+"7")
		}, reason: checkpoint.ReasonInvariant},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := sixEpochs(t, c.shards, c.between)
				c.lose(l)
				had := l.lines()
				_, err := l.repair(l.repairer())
				if c.reason == booked {
					if err != nil {
						t.Fatal(err)
					}
					l.mustBeAgain()
					return
				}
				if r := checkpoint.AsRefusal(err); r == nil || r.Reason != c.reason || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, want %s", err, c.reason)
				}
				if now := l.lines(); !slices.Equal(now, had) {
					t.Errorf("refused, and changed:\n%s\nwas\n%s", now, had)
				}
			})
		})
	}
}

// TestEveryCallOfARepairFails: each call fails, loses its answer, or comes late
// while the next repair is at work. That one books what is left, once.
func TestEveryCallOfARepairFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole := sixEpochs(t, 2, nil)
		whole.loses(0, 2)
		whole.loses(1, 3)
		whole.world.Plan(nil)
		if _, err := whole.repair(whole.repairer()); err != nil {
			t.Fatal(err)
		}
		calls := len(whole.world.Calls())
		for n := range calls {
			for _, fault := range []checkpointtest.Fault{checkpointtest.Failed, checkpointtest.Lost, checkpointtest.Late} {
				l := sixEpochs(t, 2, nil)
				l.loses(0, 2)
				l.loses(1, 3)
				l.world.Plan(func(i int, _ string) checkpointtest.Fault {
					if i == n+1 {
						return fault
					}
					return checkpointtest.None
				})
				_, err := l.repair(l.repairer())
				if checkpoint.AsRefusal(err) != nil {
					t.Errorf("call %d %s: %v", n+1, fault, err)
				}
				l.world.Plan(nil)
				var again atomic.Int64 // calls of the next repair
				l.world.Before(func(context.Context, string) {
					if again.Add(1) == int64(12+n) {
						l.world.Land()
					}
				})
				if _, err := l.repair(l.repairer()); err != nil {
					t.Errorf("call %d %s, and again: %v", n+1, fault, err)
				}
				l.world.Before(nil)
				l.world.Land()
				l.mustBeAgain()
			}
		}
		if calls < 20 {
			t.Errorf("only %d calls", calls)
		}
	})
}

// TestTwoRepairs: a second repair does everything before a call of the first one.
func TestTwoRepairs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		for range 30 {
			l := sixEpochs(t, 2, nil)
			l.loses(0, 1+rng.IntN(6))
			l.loses(1, 1+rng.IntN(6))
			var n atomic.Int64
			at := 1 + rng.Int64N(60)
			l.world.Before(func(ctx context.Context, _ string) {
				if checkpointtest.Who(ctx) == "second" {
					return
				}
				if n.Add(1) == at {
					f := repair.Find(checkpointtest.As(ctx, "second"), l.repairer(), []checkpoint.Lane{lane})[0]
					if f.Loss == nil {
						return
					}
					if err := f.Loss.Book(checkpointtest.As(ctx, "second"), l.repairer()); err != nil {
						t.Error(err)
					}
				}
			})
			if _, err := l.repair(l.repairer()); err != nil {
				t.Errorf("before call %d: %v", at, err)
			}
			l.world.Before(nil)
			if _, err := l.repair(l.repairer()); err != nil {
				t.Error(err)
			}
			l.mustBeAgain()
		}
	})
}

// TestGoneOnSince: another repair was faster, and the lane has booked more since. The
// slower one changes nothing, and says what has happened: nothing is damaged.
func TestGoneOnSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := sixEpochs(t, 2, nil)
		l.loses(1, 3)
		slow := repair.Find(t.Context(), l.repairer(), []checkpoint.Lane{lane})[0].Loss
		if _, err := l.repair(l.repairer()); err != nil {
			t.Fatal(err)
		}
		l.start()
		l.topic.append(0, message("more", time.Now(), "a", "1", "USD"), message("and more", time.Now(), "a", "1", "USD"))
		l.work()
		had := l.lines()
		for doing, err := range map[string]error{"compute": slow.Compute(t.Context(), l.repairer()), "book": slow.Book(t.Context(), l.repairer())} {
			if err == nil || checkpoint.AsRefusal(err) != nil || !strings.Contains(err.Error(), "has gone on to epoch 7 since") {
				t.Errorf("%s: %v", doing, err)
			}
		}
		if !slices.Equal(l.lines(), had) {
			t.Error("something has changed")
		}
	})
}

// TestComesBackPrepared: the shard has a prepared branch of the first epoch that it
// lacks.
func TestComesBackPrepared(t *testing.T) {
	for _, decided := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			l := sixEpochs(t, 2, nil)
			l.loses(1, 2)
			if decided {
				l.shards[1].ComeBack() // epoch 4
			} else {
				l.loses(1, 1)
				g := l.last().GTRID
				l.shards[1].Put(&checkpoint.Branch{GTRID: g[:40] + "000000000001" + "000000000004"})
			}
			loss, err := l.repair(l.repairer())
			if err != nil {
				t.Fatal(err, l.world.Sound())
			}
			if b := loss.Missing[0].Branches; len(b) != 1 || b[0].Decided != decided || b[0].Seq != 4 {
				t.Errorf("%+v", b)
			}
			l.mustBeAgain()
		})
	}
}

// TestClockOfThen: whether a message was in the future, or in conflict, depends on
// when it was looked at. Where nothing says on which side of its time that was,
// the lane is refused; a kept record is never given another reason.
func TestClockOfThen(t *testing.T) {
	for ahead, reason := range map[time.Duration]string{
		4 * time.Minute:                "",                    // when it was written it was not in the future any more
		5*time.Minute + 10*time.Second: repair.ReasonNotExact, // it depends: looked at at once it was, half a minute later it was not
		time.Hour:                      "",                    // whenever that was
	} {
		t.Run(ahead.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wait(100 * 24 * time.Hour)
				r := newRig(t, 1)
				for n := range 2 {
					r.topic.append(0, message("id", time.Now().Add(time.Duration(n)*ahead), "a", "1", "USD"))
					wait(30 * time.Second)
					r.start()
					r.work()
					wait(time.Hour)
				}
				l := &loss{rig: r, before: [][]string{r.shards[0].lines()}}
				l.loses(0, 1)
				_, err := l.repair(l.repairer())
				if refused := checkpoint.AsRefusal(err); refused == nil && reason != "" || refused != nil && refused.Reason != reason {
					t.Errorf("%s ahead: %v", ahead, err)
				}
				if reason == "" {
					l.mustBeAgain()
				}
			})
		})
	}
}

// TestFutureAndThenApplied: a message is in the future, is sent again when it is
// not, and comes a third time.
func TestFutureAndThenApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait(100 * 24 * time.Hour)
		r := newRig(t, 1)
		m := message("id", time.Now().Add(time.Hour), "a", "1", "USD")
		for range 3 {
			r.start()
			r.topic.append(0, m)
			r.work()
			wait(time.Hour)
		}
		l := &loss{rig: r, before: [][]string{r.shards[0].lines()}}
		for n, outcome := range []string{"in_future", "sum USD: 1 0 1", "Duplicates:1"} {
			if !strings.Contains(l.before[0][n], outcome) {
				t.Fatalf("not %s: %s", outcome, l.before[0][n])
			}
		}
		l.loses(0, 3)
		if _, err := l.repair(l.repairer()); err != nil {
			t.Fatal(err)
		}
		l.mustBeAgain()
	})
}
