package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"strings"

	"billing/internal/checkpoint"
	"billing/internal/money"
)

// epoch is a row of billing_epoch, and what was read of the epoch's rows on the
// same shard.
type epoch struct {
	seq          int64
	topicID      string
	incarnation  int64
	gtrid        checkpoint.GTRID
	from, next   int64 // offsets
	counts       checkpoint.Counts
	shardApplied int64
	shardRejects int64
	ledgerOn     bool
	digest       []byte
	enc          []byte // the row in the digest; row_marks are at its end
	marks        []byte // in enc

	hash            hash.Hash
	ledger, rejects int64              // rows
	conflicts       int64              // of rejects
	least, most     int64              // offsets of these rows
	sums            map[string]*booked // of the ledger, by currency
	booked          map[string]*booked // rows of billing_epoch_sum

	follows  [][]byte // digests that it may follow on
	computed []byte   // the digest, of what was read
	sound    bool     // which is the one of the row
	suspect  bool     // it is not, and every other row that it covers is as it was written
	hints    []string // what looks wrong in the row
	should   string   // what the first of them should be
}

// booked is money in one currency.
type booked struct {
	charge, credit money.Sum
	entries        int64
}

func (b *booked) add(c *booked) {
	b.charge.AddSum(c.charge)
	b.credit.AddSum(c.credit)
	b.entries += c.entries
}

func (b *booked) sub(c *booked) {
	b.charge.SubSum(c.charge)
	b.credit.SubSum(c.credit)
	b.entries -= c.entries
}

type laneCurrency struct {
	lane     checkpoint.Lane
	currency string
}

// has notes a row of the ledger or of the kept records.
func (e *epoch) has(offset int64) {
	if e.ledger+e.rejects == 0 {
		e.least, e.most = offset, offset
	}
	e.least, e.most = min(e.least, offset), max(e.most, offset)
}

// hint notes what looks wrong in the row.
func (e *epoch) hint(wrong, expected string) {
	if len(e.hints) == 0 {
		e.should = expected
	}
	e.hints = append(e.hints, wrong)
}

// column is a value of an epoch's row that is the same on every shard.
type column struct{ name, value string }

func (e *epoch) whole() []column {
	return []column{
		{"topic_id", fmt.Sprintf("%x", e.topicID)},
		{"incarnation", fmt.Sprint(e.incarnation)},
		{"gtrid", string(e.gtrid)},
		{"offset_from", fmt.Sprint(e.from)},
		{"offset_next", fmt.Sprint(e.next)},
		{"records_in", fmt.Sprint(e.counts.In)},
		{"applied", fmt.Sprint(e.counts.Applied)},
		{"duplicates", fmt.Sprint(e.counts.Duplicates)},
		{"conflicts", fmt.Sprint(e.counts.Conflicts)},
		{"rejected", fmt.Sprint(e.counts.Rejected)},
		{"ledger_on", fmt.Sprint(e.ledgerOn)},
	}
}

const epochColumns = "kafka_topic, kafka_partition, seq, topic_id, incarnation, gtrid, offset_from, offset_next, records_in, applied, duplicates, conflicts, rejected, shard_applied, shard_rejects, ledger_on, prepared_at, row_marks"

// plan looks which epochs come next, without what takes room.
func (s *side) plan(ctx context.Context) error {
	s.ahead = s.ahead[:0]
	err := s.scan(ctx, func(r row) error {
		s.ahead = append(s.ahead, planned{seq: r.int(0), rows: r.int(1) + r.int(2), from: r.int(3), next: r.int(4)})
		return nil
	}, fmt.Sprintf("SELECT seq, shard_applied, shard_rejects, offset_from, offset_next FROM billing_epoch FORCE INDEX (PRIMARY) WHERE kafka_topic = ? AND kafka_partition = ? AND seq > ? ORDER BY seq LIMIT %d", epochsOfRun),
		s.lane.id.Topic, s.lane.id.Partition, s.lane.done)
	s.more = len(s.ahead) == epochsOfRun
	return err
}

// load reads the rows of billing_epoch up to the run's last epoch.
func (s *side) load(ctx context.Context, to int64) error {
	s.epochs, s.bySeq = s.epochs[:0], map[int64]*epoch{}
	return s.scan(ctx, func(r row) error {
		e := newEpoch(r)
		switch {
		case e.seq < 1:
			s.tell(tableEpoch, epochKey(s.lane.id, e.seq), "a row that no epoch has written", "epochs from 1 on")
			return nil
		case s.bySeq[e.seq] != nil:
			s.tell(tableEpoch, epochKey(s.lane.id, e.seq), "there is a second row", "one for each epoch")
			return nil
		}
		s.epochs = append(s.epochs, e)
		s.bySeq[e.seq] = e
		return nil
	}, "SELECT "+epochColumns+", digest FROM billing_epoch FORCE INDEX (PRIMARY) WHERE kafka_topic = ? AND kafka_partition = ? AND seq > ? AND seq <= ? ORDER BY seq",
		s.lane.id.Topic, s.lane.id.Partition, s.lane.done, to)
}

func newEpoch(r row) *epoch {
	n := len(r) - 1 // the digest is in no digest
	e := &epoch{
		seq: r.int(2), topicID: r.text(3), incarnation: r.int(4), gtrid: checkpoint.GTRID(r.text(5)),
		from: r.int(6), next: r.int(7),
		counts:       checkpoint.Counts{In: r.int(8), Applied: r.int(9), Duplicates: r.int(10), Conflicts: r.int(11), Rejected: r.int(12)},
		shardApplied: r.int(13), shardRejects: r.int(14), ledgerOn: r.text(15) != "0",
		digest: bytes.Clone(r[n]),
		enc:    r[:n].encode(nil, 'E'),
		hash:   sha256.New(),
		sums:   map[string]*booked{}, booked: map[string]*booked{},
	}
	e.marks = e.enc[len(e.enc)-len(r[n-1]):]
	return e
}

// check reads what the epochs of the run, which ends with epoch to and before
// offset end, have written on this shard, and computes their digests.
func (s *side) check(ctx context.Context, to, end int64) error {
	s.until = end
	before := s.last
	for _, e := range s.epochs {
		e.follows = [][]byte{s.next}
		if first := before == nil; first && e.seq != 1 || !first && e.seq != before.seq+1 {
			e.follows = nil // the one before it is not there
		}
		if len(e.follows) > 0 {
			e.hash.Write(e.follows[0])
		}
		s.next = e.digest
		before = e
	}
	if err := s.readLedger(ctx, end); err != nil {
		return err
	}
	if err := s.readRejects(ctx, end); err != nil {
		return err
	}
	if err := s.readSums(ctx, to, end); err != nil {
		return err
	}
	return s.digests(ctx)
}

// digests compares the digests, and looks for what is wrong where they differ.
func (s *side) digests(ctx context.Context) error {
	before := s.last
	for _, e := range s.epochs {
		e.hash.Write(e.enc)
		e.computed = e.hash.Sum(nil)
		e.sound = len(e.follows) > 0 && bytes.Equal(e.computed, e.digest)
		s.proven = s.proven || e.sound
		s.off = s.off || e.sound && !e.ledgerOn
		if !e.sound {
			if before != nil && before.seq == e.seq-1 && !before.sound {
				// Perhaps it is only the digest before that was changed.
				e.follows = append(e.follows[:len(e.follows):len(e.follows)], before.computed)
			}
			if err := s.locate(ctx, e); err != nil {
				return err
			}
		}
		s.consistent(before, e)
		before = e
	}
	return nil
}

// consistent is what an epoch's row must be by itself, and as the one behind
// another. Where the digest is right, the service itself has written it so.
func (s *side) consistent(before, e *epoch) {
	says := func(wrong, expected string, args ...any) {
		expected = fmt.Sprintf(expected, args...)
		if e.sound {
			s.tell(tableEpoch, epochKey(s.lane.id, e.seq), wrong, expected)
		} else {
			e.hint(wrong, expected)
		}
	}
	if c := &e.counts; c.In != c.Applied+c.Duplicates+c.Conflicts+c.Rejected {
		says(fmt.Sprintf("records_in is %d", c.In), "%d, the sum of applied, duplicates, conflicts and rejected", c.Applied+c.Duplicates+c.Conflicts+c.Rejected)
	}
	if before != nil && before.seq == e.seq-1 && before.sound {
		if e.from != before.next {
			says(fmt.Sprintf("offset_from is %d", e.from), "%d, where the epoch before ends", before.next)
		}
		if e.incarnation < before.incarnation {
			says(fmt.Sprintf("incarnation is %d", e.incarnation), "%d or more, as of the epoch before", before.incarnation)
		}
		if e.topicID != before.topicID {
			says(fmt.Sprintf("topic_id is %x", e.topicID), "%x, as of the epoch before", before.topicID)
		}
	}
	if n, err := e.gtrid.Parse(); err != nil {
		says("gtrid is "+Printable(string(e.gtrid)), "the name of a branch of this service")
	} else {
		if s.lane.v.owner != "" && n.Owner != s.lane.v.owner {
			says("gtrid is that of another job or set of shards: "+string(e.gtrid), "one that begins with %s", s.lane.v.owner)
		}
		var id checkpoint.UUID
		copy(id[:], e.topicID)
		if want := checkpoint.LanePrefix(n.Owner, id, s.lane.id.Partition); n.Lane != want {
			says("gtrid is that of another lane: "+string(e.gtrid), "one that begins with %s", want)
		}
		if n.Incarnation != e.incarnation || n.Seq != e.seq {
			says(fmt.Sprintf("gtrid is that of epoch %d of incarnation %d", n.Seq, n.Incarnation), "one of epoch %d of incarnation %d", e.seq, e.incarnation)
		}
	}
	rows := e.shardApplied
	if !e.ledgerOn {
		rows = 0
	}
	if !e.sound {
		return // which rows are wrong is told already
	}
	if e.ledger != rows {
		says(fmt.Sprintf("shard_applied is %d and ledger_on %t", e.shardApplied, e.ledgerOn), "the %d rows that billing_ledger has of it", e.ledger)
	}
	if e.rejects != e.shardRejects {
		says(fmt.Sprintf("shard_rejects is %d", e.shardRejects), "%d, the rows that billing_rejects has of it", e.rejects)
	}
	if e.ledger+e.rejects > 0 && (e.least < e.from || e.most >= e.next) {
		says(fmt.Sprintf("it has rows of offsets %d to %d", e.least, e.most), "rows of offsets from %d on, before %d", e.from, e.next)
	}
	s.epochSums(e)
}

// epochSums compares billing_epoch_sum with the ledger, and with the epoch's row.
func (s *side) epochSums(e *epoch) {
	var entries int64
	for currency, sum := range e.booked {
		entries += sum.entries
		is := e.sums[currency]
		if is == nil {
			is = new(booked)
		}
		if e.ledgerOn && *is != *sum {
			s.tell(tableSum, sumKey(s.lane.id, e.seq, currency), "it has "+sum.String(), is.String()+", which the ledger's rows add up to")
		}
	}
	for currency, is := range e.sums {
		if e.booked[currency] == nil {
			s.tell(tableSum, sumKey(s.lane.id, e.seq, currency), "there is no row", is.String()+", which the ledger's rows add up to")
		}
	}
	if entries != e.shardApplied {
		s.tell(tableEpoch, epochKey(s.lane.id, e.seq), fmt.Sprintf("shard_applied is %d", e.shardApplied), fmt.Sprintf("%d, which billing_epoch_sum adds up to", entries))
	}
}

func (b *booked) String() string {
	return fmt.Sprintf("charges %s, credits %s in %d entries", b.charge, b.credit, b.entries)
}

// unsound tells of epochs whose own row was changed.
func (s *side) unsound() {
	for _, e := range s.epochs {
		if e.suspect && len(e.hints) == 0 {
			e.hint("the row or its digest was changed, while all rows that it has elsewhere are as they were written",
				fmt.Sprintf("digest %x with these columns", e.computed))
		}
		if !e.sound && len(e.hints) > 0 {
			s.tell(tableEpoch, epochKey(s.lane.id, e.seq), strings.Join(e.hints, ", "), e.should)
		}
	}
}
