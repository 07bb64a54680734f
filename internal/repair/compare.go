package repair

import (
	"fmt"
	"maps"
	"slices"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
)

// compare holds an epoch as it comes out against the shards that still have it.
// Their parts of it are as good as a proof: the part of the shard that lacks it
// comes of the same messages by the same rules.
func (r *replay) compare(e *epoch, filled *aggregate.Epoch) error {
	wrong := func(format string, args ...any) error {
		return r.refuse(ReasonNotExact, sameConfiguration,
			"epoch %d (offsets %d to %d) comes out otherwise than it was: %s", e.seq, e.from, e.next-1, fmt.Sprintf(format, args...))
	}
	counts := checkpoint.Counts(filled.Counts)
	if counts.In == 0 {
		return r.refuse(ReasonMessagesDeleted, deletedAdvice, "of epoch %d (offsets %d to %d) Kafka has no message any more", e.seq, e.from, e.next-1)
	}
	for _, i := range slices.Sorted(maps.Keys(e.shown)) {
		shown, name := e.shown[i], r.cfg.Job.Shards[i].Name()
		part := &filled.Parts[i]
		if counts.In < shown.Counts.In {
			return r.refuse(ReasonMessagesDeleted, deletedAdvice, "of the %d messages of epoch %d (offsets %d to %d) Kafka has only %d: others were deleted or compacted away",
				shown.Counts.In, e.seq, e.from, e.next-1, counts.In)
		}
		if counts != shown.Counts {
			return wrong("%s, shard %s has %s", countsText(counts), name, countsText(shown.Counts))
		}
		if rejects := int64(len(part.Rejects)); part.Applied != shown.Applied || rejects != shown.Rejects {
			return wrong("of shard %s are %d applied and %d kept records, it has %d and %d", name, part.Applied, rejects, shown.Applied, shown.Rejects)
		}
		sums := map[string]checkpoint.BookedSum{}
		for currency, s := range part.Sums {
			sums[currency] = checkpoint.BookedSum{Charge: string(s.Charge.AppendFixed(nil)), Credit: string(s.Credit.AppendFixed(nil)), Entries: s.Entries}
		}
		if !maps.Equal(sums, shown.Sums) {
			return wrong("the sums of shard %s are %v, it has %v", name, sums, shown.Sums)
		}
	}
	return nil
}

func countsText(c checkpoint.Counts) string {
	return fmt.Sprintf("%d records (%d applied, %d duplicates, %d conflicts, %d rejected)", c.In, c.Applied, c.Duplicates, c.Conflicts, c.Rejected)
}
