package repair_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/repair"
)

// TestShownOtherwise: whatever one shard shows otherwise of a lost epoch, nothing of
// the lane is booked. The others may well be equal.
func TestShownOtherwise(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*checkpoint.Branch, *aggregate.Part)
		says   string
	}{
		{"counts", func(b *checkpoint.Branch, _ *aggregate.Part) { b.Counts.Duplicates, b.Counts.Conflicts = 2, 0 }, "1 conflicts, 1 rejected), shard %s has 5 records (2 applied, 2 duplicates"},
		{"applied", func(_ *checkpoint.Branch, p *aggregate.Part) { p.Applied++ }, "of shard %s are"},
		{"kept records", func(_ *checkpoint.Branch, p *aggregate.Part) { p.Rejects = append(p.Rejects, aggregate.RejectRow{}) }, "of shard %s are"},
		{"sums", func(_ *checkpoint.Branch, p *aggregate.Part) {
			p.Sums = map[string]*aggregate.CurrencySum{"USD": {Entries: 7}}
		}, "the sums of shard %s are"},
	} {
		for other := range 2 {
			t.Run(fmt.Sprint(c.name, " of ", other), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := sixEpochs(t, 3, nil)
					l.loses(2, 2)
					s := l.shards[other]
					shown, err := s.Booked(t.Context(), 6, 6)
					if err != nil {
						t.Fatal(err)
					}
					c.change(shown[0], s.part(shown[0]))
					mustRefuse(t, l, repair.ReasonNotExact, strings.ReplaceAll(c.says, "%s", s.Name()))
				})
			})
		}
	}
}

// TestChargeMissing: a charge is not in Kafka any more, and nothing but the dedup
// state knows that there was one: no shard, and not the stream time.
func TestChargeMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := sixEpochs(t, 1, nil)
		l.loses(0, 3)
		l.drop(func(i int) bool { return i == 21 })
		mustRefuse(t, l, repair.ReasonMessagesDeleted, "1 of the messages that were applied (the first at offset 31)")
	})
}

// mustRefuse fails unless the repair is refused and nothing is changed.
func mustRefuse(t *testing.T, l *loss, reason, says string) {
	t.Helper()
	had := l.lines()
	_, err := l.repair(l.repairer())
	if r := checkpoint.AsRefusal(err); r == nil || r.Reason != reason || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, want %s: %s", err, reason, says)
	}
	if now := l.lines(); !slices.Equal(now, had) {
		t.Errorf("refused, and changed:\n%s\nwas\n%s", now, had)
	}
}
