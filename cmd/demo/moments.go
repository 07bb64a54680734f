package main

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"
)

// moment is a bad one to die at. There may be several at once, of several lanes.
type moment uint

const (
	halfWritten  moment = 1 << iota // one shard has the batch (the epoch), the other one has not
	written                         // both have it, and the offset is not committed
	acknowledged                    // the offset is committed, and more is on its way
)

// moments are those of the kills, in their order.
var moments = []moment{halfWritten, written, acknowledged}

func (m moment) String() string {
	switch m {
	case halfWritten:
		return "half written"
	case written:
		return "written, not acknowledged"
	case acknowledged:
		return "acknowledged, going on"
	}
	return "at rest"
}

// facts are what a contender has done so far, as its databases and the broker say it.
type facts struct {
	committed offsets         // of its group
	highest   [shards]offsets // behind the last ledger row, by shard
	at        moment          // all that are true
	words     map[moment]string
	finished  bool // nothing is open of what is committed
}

func (f *facts) is(m moment, format string, args ...any) {
	if f.at&m == 0 {
		f.at |= m
		f.words[m] = fmt.Sprintf(format, args...)
	}
}

// beyond says whether a shard has a ledger row behind at.
func (f *facts) beyond(at offsets) bool {
	for _, shard := range f.highest {
		for p, next := range shard {
			if next > at[p] {
				return true
			}
		}
	}
	return false
}

// farthest is, by partition, what anybody knows of.
func (f *facts) farthest() (at offsets) {
	at = f.committed
	for _, shard := range f.highest {
		for p, next := range shard {
			at[p] = max(at[p], next)
		}
	}
	return at
}

func readHighest(ctx context.Context, dbs []*sql.DB, statement string) (at [shards]offsets, err error) {
	for shard, db := range dbs {
		err := each(ctx, db, statement, func(rows *sql.Rows) error {
			var partition, next int64
			if err := rows.Scan(&partition, &next); err != nil {
				return err
			}
			if partition < 0 || partition >= partitions {
				return fmt.Errorf("partition %d is none of the topic", partition)
			}
			at[shard][partition] = next
			return nil
		})
		if err != nil {
			return at, err
		}
	}
	return at, nil
}

// lookAtPlain: a shard has a batch that the group has not acknowledged when its
// ledger goes beyond the committed offset. A batch is large enough to have rows
// for both shards.
func lookAtPlain(ctx context.Context, b *broker, dbs []*sql.DB) (f facts, err error) {
	if f.committed, _, err = b.committed(ctx, plainUser); err != nil {
		return f, err
	}
	f.finished = true // it commits an offset when everything before it is written
	f.highest, err = readHighest(ctx, dbs, plainLoopTables.highest)
	f.judgePlain()
	return f, err
}

func (f *facts) judgePlain() {
	f.words = map[moment]string{}
	var ahead, behind []int
	for shard, next := range f.highest {
		has := false
		for p := range next {
			has = has || next[p] > f.committed[p]
		}
		if has {
			ahead = append(ahead, shard)
		} else {
			behind = append(behind, shard)
		}
	}
	switch {
	case len(behind) == 0:
		f.is(written, "both shards have the batch, its offset is not committed")
	case len(ahead) > 0:
		f.is(halfWritten, "shard %d has the batch, shard %d has not", ahead[0], behind[0])
	case f.committed.sum() > 0:
		f.is(acknowledged, "the batch's offset is committed, the next one is not written yet")
	}
}

// lookAtOurs: a branch that is prepared is an epoch on its way; it is decided when
// the group's offset names it.
func lookAtOurs(ctx context.Context, b *broker, dbs []*sql.DB) (f facts, err error) {
	var decisions [partitions]string
	if f.committed, decisions, err = b.committed(ctx, oursUser); err != nil {
		return f, err
	}
	prepared, err := listPrepared(ctx, dbs[0])
	if err != nil {
		return f, err
	}
	f.finished = len(prepared) == 0
	f.highest, err = readHighest(ctx, dbs, serviceTables.highest)
	f.judgeOurs(prepared, decisions[:])
	return f, err
}

func (f *facts) judgeOurs(prepared []branch, decisions []string) {
	f.words = map[moment]string{}
	on := map[string][]string{} // the shards of each branch
	for _, b := range prepared {
		on[b.gtrid] = append(on[b.gtrid], b.shard)
	}
	for gtrid, where := range on {
		decided := slices.ContainsFunc(decisions, func(d string) bool { return strings.Contains(d, gtrid) })
		switch {
		case len(where) < shards && decided:
			f.is(halfWritten, "an epoch is decided, and committed on one shard; the branch on the other is still prepared")
			f.is(acknowledged, "an epoch is decided, a branch of it is still prepared")
		case len(where) < shards:
			f.is(halfWritten, "an epoch's branch is prepared on one shard, the other shard has nothing of it; not decided")
		case decided:
			f.is(acknowledged, "an epoch is decided, the branches on both shards are still prepared")
		default:
			f.is(written, "an epoch's branches are prepared on both shards, not decided")
		}
	}
}

// caught is a kill, and what was there when it came.
type caught struct {
	Wanted   string  `json:"wanted"`
	Moment   string  `json:"moment"`           // the wanted one, or the nearest
	Facts    string  `json:"facts"`            // what was found after the kill
	Messages int64   `json:"messages"`         // whose offsets were committed
	Recovery float64 `json:"recovery_seconds"` // from SIGKILL to the first new booking
}

// asWanted says whether it was the moment.
func (c caught) asWanted() bool { return c.Moment == c.Wanted }

// Bounds of the hunt for a moment.
const (
	catchingTakes = 15 * time.Second
	fewLooks      = 20
	settlingTakes = 30 * time.Second // what the server does still for a process that is frozen or dead
)

// kill kills the contender at the moment, or at the nearest when it is not caught
// in time, that is before messages are running out. To be sure of it the process
// is frozen, looked at, and let go on until it is caught so. place is the progress
// at which the hunt was to begin; a slow machine may have seen it late.
func (p *play) kill(ctx context.Context, wanted moment, place int64) (facts, error) {
	tenth := p.ends.sum() / 10
	for begin, looks := time.Now(), 1; ; looks++ {
		frozen := time.Now()
		if err := p.freeze(); err != nil {
			return facts{}, err
		}
		// What the process has asked for before it was frozen is still done.
		if err := p.settle(ctx, p.mysql.busy); err != nil {
			return facts{}, err
		}
		f, err := p.contender.look(ctx)
		if err != nil {
			return f, err
		}
		done := f.committed.sum()
		if f.at&wanted != 0 || time.Since(begin) > catchingTakes || done > place+tenth && looks > fewLooks || done > place+2*tenth {
			p.process.kill()
			p.killed = time.Now()
			p.frozen += p.killed.Sub(frozen)
			if err := p.settle(ctx, p.mysql.connections); err != nil {
				return f, err
			}
			return p.contender.look(ctx)
		}
		if err := p.thaw(); err != nil {
			return f, err
		}
		p.frozen += time.Since(frozen)
		p.show(f)
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return f, err
		}
	}
}

// settle returns when the count of what the server has to do with the contender is 0.
func (p *play) settle(ctx context.Context, count func(context.Context, string) (int64, error)) error {
	for begin := time.Now(); ; {
		n, err := count(ctx, p.contender.user)
		if err != nil || n == 0 {
			return err
		}
		if time.Since(begin) > settlingTakes {
			return fmt.Errorf("%s: MySQL works for it after %s, though it is frozen or dead", p.contender.name, settlingTakes)
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}
