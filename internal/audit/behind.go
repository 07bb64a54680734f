package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"billing/internal/checkpoint"
)

// behind is what one moment of each shard does not show: whether a shard that was
// an epoch behind the others, or behind the decision, has it by now, and what is
// in doubt. It comes last, so that a service at work has had the most time.
func (v *verifier) behind(ctx context.Context) error {
	decided := v.decisions(ctx)
	lates := v.lates(decided)
	if err := v.await(ctx, lates); err != nil {
		return err
	}
	stay, err := v.inDoubt(ctx, lates)
	if err != nil {
		return err
	}
	for _, l := range lates {
		if stay, err = v.settle(ctx, l, stay); err != nil {
			return err
		}
		if err := v.tellLate(ctx, l, stay); err != nil {
			return err
		}
	}
	for _, b := range stay {
		v.tellDoubt(b, decided)
	}
	return nil
}

// late is a shard that has still to show epochs of a lane.
type late struct {
	*snapshot
	id       checkpoint.Lane
	shows    int64 // the last epoch in its snapshot
	to       int64 // the last that it must show
	gtrid    checkpoint.GTRID
	says     string // who has it
	arrived  bool
	wrongRow checkpoint.GTRID // the branch of epoch to, where it is another
}

// lates compares how far the shards were, and with the decisions.
func (v *verifier) lates(decided map[checkpoint.Lane]*checkpoint.Decision) (lates []*late) {
	lanes := v.lanes
	for _, id := range slices.SortedFunc(maps.Keys(decided), func(a, b checkpoint.Lane) int { return int(a.Partition - b.Partition) }) {
		if !slices.ContainsFunc(lanes, func(l *lane) bool { return l.id == id }) && decided[id].Seq > 0 {
			lanes = append(lanes, newLane(v, id))
		}
	}
	for _, l := range lanes {
		var to int64
		var gtrid checkpoint.GTRID
		var says string
		for _, s := range l.sides {
			if s.last != nil && s.last.sound && s.last.seq > to {
				to, gtrid, says = s.last.seq, s.last.gtrid, "shard "+s.name
			}
		}
		if d := decided[l.id]; d != nil {
			v.compareDecision(l, d, to, gtrid, says)
			if d.Seq > to {
				to, gtrid, says = d.Seq, d.GTRID, "the decision in Kafka"
			}
		}
		for _, s := range l.sides {
			if shows := s.latest(); shows < to {
				lates = append(lates, &late{snapshot: s.snapshot, id: l.id, shows: shows, to: to, gtrid: gtrid, says: says})
			}
		}
	}
	return lates
}

// compareDecision holds a decision against the last epoch that a shard shows.
// It was read after the snapshots were taken, so it is not older.
func (v *verifier) compareDecision(l *lane, d *checkpoint.Decision, seq int64, gtrid checkpoint.GTRID, says string) {
	tell := func(wrong, expected string) {
		v.told.difference(Difference{"kafka", v.cfg.Job + ".decision", laneKey(l.id), wrong, expected})
	}
	switch {
	case d.Seq < seq:
		tell(fmt.Sprintf("the decision is of epoch %d", d.Seq), fmt.Sprintf("epoch %d or a later one, as %s has it", seq, says))
	case d.Seq > seq || d.Seq == 0:
	case d.GTRID != gtrid:
		tell(fmt.Sprintf("the decision of epoch %d names branch %s", d.Seq, d.GTRID), fmt.Sprintf("%s, by which %s has it", gtrid, says))
	default:
		for _, s := range l.sides {
			if s.last != nil && s.last.seq == seq && s.last.sound && d.Next < s.last.next {
				tell(fmt.Sprintf("the decision of epoch %d has offset %d", d.Seq, d.Next), fmt.Sprintf("%d or more, where shard %s ends the epoch", s.last.next, s.name))
				return
			}
		}
	}
}

// lookAgain is the wait between two looks.
const lookAgain = 100 * time.Millisecond

// await looks at the shards that were behind, as they are now, for as long as
// patience lasts.
func (v *verifier) await(ctx context.Context, lates []*late) error {
	if len(lates) == 0 {
		return nil
	}
	// What comes now is not in the snapshots.
	if err := v.each(func(s *snapshot) error {
		if _, err := s.conn.ExecContext(ctx, "COMMIT"); err != nil {
			return s.failed("end the snapshot", err)
		}
		return nil
	}); err != nil {
		return err
	}
	until := time.Now().Add(v.cfg.Patience)
	for {
		open := 0
		for _, l := range lates {
			if l.arrived {
				continue
			}
			if err := l.look(ctx); err != nil {
				return err
			}
			if !l.arrived {
				open++
			}
		}
		if open == 0 || time.Now().After(until) {
			return nil
		}
		v.told.progress("waiting for shards that are an epoch behind", 0, 0)
		if err := pause(ctx, lookAgain); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// look reads whether the epochs are there now.
func (l *late) look(ctx context.Context) error {
	var rows int64
	err := l.scan(ctx, func(r row) error {
		rows = r.int(0)
		return nil
	}, "SELECT COUNT(*) FROM billing_epoch WHERE kafka_topic = ? AND kafka_partition = ? AND seq > ? AND seq <= ?", l.id.Topic, l.id.Partition, l.shows, l.to)
	if err != nil || rows < l.to-l.shows {
		return err
	}
	l.arrived = true
	return l.scan(ctx, func(r row) error {
		if g := checkpoint.GTRID(r.text(0)); g != l.gtrid {
			l.wrongRow = g
		}
		return nil
	}, "SELECT gtrid FROM billing_epoch WHERE kafka_topic = ? AND kafka_partition = ? AND seq = ?", l.id.Topic, l.id.Partition, l.to)
}

// neither is for how long an epoch may be neither a row nor prepared: a commit
// that is executing is in neither.
const neither = 5 * time.Second

// settle looks again where an epoch is neither there nor in doubt: its commit may
// be executing, or it was ended between the look at the rows and that at the list.
func (v *verifier) settle(ctx context.Context, l *late, stay []listed) ([]listed, error) {
	is := func(b listed) bool { return b.shard == l.number && b.gtrid == l.gtrid }
	for until := time.Now().Add(min(neither, v.cfg.Patience)); !l.arrived && !slices.ContainsFunc(stay, is) && time.Now().Before(until); {
		now, err := v.prepared(ctx)
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(now, is); i >= 0 {
			stay = append(stay, now[i])
		}
		if err := l.look(ctx); err != nil {
			return nil, err
		}
		if err := pause(ctx, lookAgain); err != nil {
			return nil, err
		}
	}
	if l.arrived {
		stay = slices.DeleteFunc(stay, is)
	}
	return stay, nil
}

// tellLate tells what is missing on a shard that was behind. A branch that is
// prepared is in doubt, and nothing is missing as long as it is.
func (v *verifier) tellLate(ctx context.Context, l *late, stay []listed) error {
	if l.wrongRow != "" {
		v.told.difference(Difference{l.name, tableEpoch, epochKey(l.id, l.to), "gtrid is " + string(l.wrongRow), fmt.Sprintf("%s, by which %s has it", l.gtrid, l.says)})
	}
	if l.arrived {
		return nil
	}
	to := l.to // beyond it nothing is missing
	if slices.ContainsFunc(stay, func(b listed) bool { return b.shard == l.number && b.gtrid == l.gtrid }) {
		to--
	}
	before := l.shows
	gap := func(next int64) {
		if from, last := before+1, next-1; from <= last {
			v.told.difference(Difference{l.name, tableEpoch, epochsKey(l.id, from, last), "there is no row, and no prepared branch", fmt.Sprintf("one for each epoch: %s has them", l.says)})
		}
		before = next
	}
	err := l.scan(ctx, func(r row) error {
		gap(r.int(0))
		return nil
	}, "SELECT seq FROM billing_epoch WHERE kafka_topic = ? AND kafka_partition = ? AND seq > ? AND seq <= ? ORDER BY seq", l.id.Topic, l.id.Partition, l.shows, to)
	if err != nil {
		return err
	}
	gap(to + 1)
	return nil
}

// listed is a prepared branch of this service on a shard.
type listed struct {
	shard int
	gtrid checkpoint.GTRID
	name  checkpoint.Name
}

// prepared lists the branches of this service that are prepared now.
func (v *verifier) prepared(ctx context.Context) (all []listed, err error) {
	for i := range v.cfg.Shards {
		gtrids, err := v.cfg.MySQL.Prepared(ctx, i)
		if err != nil {
			return nil, err // it names the shard
		}
		for _, g := range gtrids {
			if n, err := g.Parse(); err == nil {
				all = append(all, listed{i, g, n})
			}
		}
	}
	return all, nil
}

// flies is for how long a branch that was there before the snapshots, and still
// is, is looked at again: those of a service at work come and go.
const flies = 3 * time.Second

// inDoubt gives the job's branches that stay prepared: those that were there all
// the time, and those that shards which are behind wait for.
func (v *verifier) inDoubt(ctx context.Context, lates []*late) (stay []listed, err error) {
	if v.owner == "" {
		return nil, nil
	}
	awaited := func(b listed) bool {
		return slices.ContainsFunc(lates, func(l *late) bool { return !l.arrived && l.number == b.shard && l.gtrid == b.gtrid })
	}
	until := time.Now().Add(min(flies, v.cfg.Patience))
	for {
		now, err := v.prepared(ctx)
		if err != nil {
			return nil, err
		}
		stay = stay[:0]
		looked := false
		for _, b := range now {
			if b.name.Owner != v.owner {
				continue
			}
			if before := slices.Contains(v.before, b); before || awaited(b) {
				stay = append(stay, b)
				looked = looked || before
			}
		}
		if !looked || time.Now().After(until) {
			return stay, nil
		}
		if err := pause(ctx, lookAgain); err != nil {
			return nil, err
		}
	}
}

func (v *verifier) tellDoubt(b listed, decided map[checkpoint.Lane]*checkpoint.Decision) {
	d := InDoubt{Shard: v.cfg.Shards[b.shard], Incarnation: b.name.Incarnation, Seq: b.name.Seq, GTRID: b.gtrid, Decision: Unknown,
		Lane: fmt.Sprintf("partition %d of another topic", b.name.Partition)}
	for _, l := range v.lanes {
		for _, s := range l.sides {
			if s.row == nil || l.id.Partition != b.name.Partition {
				continue
			}
			var id checkpoint.UUID
			copy(id[:], s.row.topicID)
			if checkpoint.LanePrefix(v.owner, id, l.id.Partition) == b.name.Lane {
				d.Lane = l.id.String()
			}
		}
	}
	for id, dec := range decided {
		if checkpoint.LanePrefix(v.owner, dec.TopicID, id.Partition) != b.name.Lane {
			continue
		}
		d.Lane = id.String()
		d.Decision = dec.Says(b.gtrid, b.name)
	}
	v.told.doubt(d)
}

// reachable is for how long Kafka is tried to be reached.
const reachable = 4 * time.Second

// lanesAtOnce is how many lanes' decisions are read side by side: one behind an
// open Kafka transaction takes all of patience.
const lanesAtOnce = 32

// decisions reads the lanes' decisions from Kafka. What can't be read is noted,
// and then missing.
func (v *verifier) decisions(ctx context.Context) map[checkpoint.Lane]*checkpoint.Decision {
	decided := map[checkpoint.Lane]*checkpoint.Decision{}
	if v.cfg.Kafka == nil {
		v.told.note("decisions were not compared: no Kafka was asked")
		return decided
	}
	first, stop := context.WithTimeout(ctx, min(reachable, v.cfg.Patience))
	partitions, err := v.cfg.Kafka.Partitions(first)
	stop()
	if err != nil {
		v.told.note("decisions were not compared: %s", oneLine(err))
		return decided
	}
	claims := map[checkpoint.Lane]int64{}
	for _, l := range v.lanes {
		for _, s := range l.sides {
			if s.last != nil && s.last.sound {
				claims[l.id] = max(claims[l.id], s.last.seq)
			}
		}
	}
	v.sum.Compared = true
	var mu sync.Mutex
	var wg sync.WaitGroup
	turns := make(chan struct{}, lanesAtOnce) // a token for each lane that is being read
	for p := range partitions {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			id := checkpoint.Lane{Topic: v.cfg.Topic, Partition: p}
			d, wrong, err := v.decision(ctx, id, claims[id])
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				v.sum.Compared = false
				v.told.note("the decision of %s was not compared: %s", id, oneLine(err))
			case wrong != nil:
				v.told.difference(*wrong)
			case d != nil:
				decided[id] = d
			}
		})
	}
	wg.Wait()
	return decided
}

// decision reads one lane's decision: its two copies, which are equal unless an
// owner moves between the two reads. claim is the epoch that a shard shows. What
// looks wrong counts when a second reading is the same.
func (v *verifier) decision(ctx context.Context, id checkpoint.Lane, claim int64) (*checkpoint.Decision, *Difference, error) {
	ctx, cancel := context.WithTimeout(ctx, v.cfg.Patience)
	defer cancel()
	var before *checkpoint.Read
	var found *Difference
	for {
		r, err := v.cfg.Kafka.Look(ctx, id.Partition)
		if err == nil && before != nil {
			err = ctx.Err()
		}
		switch {
		case err != nil && found != nil:
			return nil, nil, fmt.Errorf("%w (before it: %s)", err, found.Wrong)
		case err != nil:
			return nil, nil, err
		}
		d, wrong, err := v.judge(id, claim, &r)
		if err != nil || wrong == nil && (d == nil || d.Seq >= claim) || before != nil && before.Same(&r) {
			return d, wrong, err
		}
		before, found = &r, wrong
		if err := pause(ctx, lookAgain); err != nil {
			return nil, nil, err
		}
	}
}

// judge says what is wrong with what Kafka knows of a lane.
func (v *verifier) judge(id checkpoint.Lane, claim int64, r *checkpoint.Read) (*checkpoint.Decision, *Difference, error) {
	tell := func(wrong, expected string, args ...any) *Difference {
		return &Difference{"kafka", v.cfg.Job + ".decision", laneKey(id), wrong, fmt.Sprintf(expected, args...)}
	}
	if !r.HasOffset && r.Record == "" {
		if claim > 0 {
			return nil, tell("there is no decision", "one of epoch %d or a later one, which the shards have", claim), nil
		}
		return nil, nil, nil
	}
	if r.HasOffset && r.Metadata != r.Record {
		return nil, tell("the two copies of the decision differ: the group's offset says "+checkpoint.Brief(r.Metadata)+", the topic "+checkpoint.Brief(r.Record), "the same in both"), nil
	}
	d, err := checkpoint.ParseDecision(r.Record)
	switch {
	case errors.Is(err, checkpoint.ErrDecisionVersion):
		return nil, nil, err
	case err != nil:
		return nil, tell("it is no decision of this service", "one"), nil //nolint:nilerr // that is the finding
	case r.HasOffset && r.Offset != d.Next:
		return nil, tell(fmt.Sprintf("the group's offset is %d", r.Offset), "%d, that of the decision", d.Next), nil
	case d.TopicID != r.TopicID:
		return nil, tell("the decision is of topic id "+d.TopicID.String(), "%s, the topic's", r.TopicID), nil
	}
	return &d, nil, nil
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
