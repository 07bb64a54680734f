package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync"
	"time"
)

// watcher looks at every shard again and again, each time in one snapshot, while
// the service works: what it sees there has to be whole epochs, and nothing but
// what the load has sent.
type watcher struct {
	*chaosLoad
	mu     sync.Mutex
	seen   []shardSeen
	epochs map[[2]int64]epochSeen // by partition and seq: the same on every shard
	booked []bits                 // of each partition, by an event's number
	moved  []time.Time            // of each lane, when a shard first showed its last epoch
	calm   pace                   // of each single lane, while nothing is wrong anywhere
	served pace                   // of all lanes together, while one instance and all servers are well
	wrong  time.Time              // when something was seen that must not be
}

// pace is the longest time without an epoch.
type pace struct {
	since   time.Time // from then on epochs have to come; zero: nothing is asked
	longest time.Duration
	at      time.Time
	where   string
}

func (p *pace) see(now, moved time.Time, where string) {
	if p.since.IsZero() {
		return
	}
	last := p.since
	if moved.After(last) {
		last = moved
	}
	if d := now.Sub(last); d > p.longest {
		p.longest, p.at, p.where = d, now, where
	}
}

func (p *pace) String() string {
	if p.longest == 0 {
		return "not known"
	}
	return fmt.Sprintf("%s (%s, %s)", p.longest.Round(10*time.Millisecond), p.where, p.at.Format(clock))
}

// expectEpochs says since when there is a reason to expect some of any lane, and
// some of each lane; zero: there is none.
func (w *watcher) expectEpochs(served, calm time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.served.since, w.calm.since = served, calm
}

// shardSeen is what a shard has shown.
type shardSeen struct {
	lanes []epochSeen // of each lane, its last epoch
	sums  sums        // of the ledger
	in    []int64     // records of each lane
}

type epochSeen struct {
	partition, seq, from, next, incarnation      int64
	gtrid                                        string
	in, applied, duplicates, conflicts, rejected int64
}

func newWatcher(l *chaosLoad) *watcher {
	w := &watcher{chaosLoad: l, epochs: map[[2]int64]epochSeen{}, booked: make([]bits, l.partitions), moved: make([]time.Time, l.partitions)}
	for range l.shards {
		w.seen = append(w.seen, shardSeen{lanes: make([]epochSeen, l.partitions), sums: sums{}, in: make([]int64, l.partitions)})
	}
	return w
}

// bits are a set of small numbers.
type bits struct {
	words []uint64
	count int64
}

// add reports whether n was not in it.
func (b *bits) add(n int64) bool {
	for int64(len(b.words)) <= n/64 {
		b.words = append(b.words, 0)
	}
	if b.words[n/64]&(1<<(n%64)) != 0 {
		return false
	}
	b.words[n/64] |= 1 << (n % 64)
	b.count++
	return true
}

// wrong is what must not be seen, whatever fails.
type wrong struct{ error }

func wrongf(format string, args ...any) error { return wrong{fmt.Errorf(format, args...)} }

// run looks until ctx ends. A server that is down is asked again.
func (w *watcher) run(ctx context.Context) {
	tick := time.NewTicker(400 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for i := range w.shards {
			if err := w.look(ctx, i); errors.As(err, new(wrong)) {
				now := time.Now()
				w.t.Errorf("difference: %s, shard %d: %v", now.Format(clock), i, err)
				w.mu.Lock()
				w.wrong = now
				w.mu.Unlock()
				return
			}
		}
		w.measure()
	}
}

// measure notes how long no epoch has come that should have.
func (w *watcher) measure() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	var last time.Time
	for p, moved := range w.moved {
		w.calm.see(now, moved, fmt.Sprint("lane ", p))
		if moved.After(last) {
			last = moved
		}
	}
	w.served.see(now, last, "all lanes")
}

// accounted fails while a shard has no outcome for so many records of each lane. A
// watcher that has seen something wrong looks no more; then the tables are asked.
func (w *watcher) accounted(records []int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.shards {
		if w.wrong.IsZero() {
			break
		}
		for p := range records {
			err := w.shards[i].QueryRow("SELECT COALESCE(SUM(records_in), 0) FROM billing_epoch WHERE kafka_topic = ? AND kafka_partition = ?", w.topic, p).Scan(&w.seen[i].in[p])
			if err != nil {
				return err
			}
		}
	}
	for i, s := range w.seen {
		for p, n := range records {
			if s.in[p] < n {
				return fmt.Errorf("shard %d, lane %d: %d of %d records accounted for", i, p, s.in[p], n)
			}
		}
	}
	return nil
}

// look takes in what is new on a shard. Its error is a wrong, or of the server.
func (w *watcher) look(ctx context.Context, shard int) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	tx, err := w.shards[shard].BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	w.mu.Lock()
	before := w.seen[shard]
	w.mu.Unlock()
	s := &snapshot{
		chaosLoad: w.chaosLoad, ctx: ctx, tx: tx, before: before.lanes, lanes: slices.Clone(before.lanes),
		missing: make([]int64, len(before.lanes)), booked: make([][]int64, len(before.lanes)), added: sums{}, totals: sums{},
	}
	for _, read := range []func() error{s.readEpochs, s.readLanes, s.readLedger, s.readTotals} {
		if err := read(); err != nil {
			return err
		}
	}
	return w.take(shard, s)
}

// take makes what is new old. It is called when all of it was read.
func (w *watcher) take(shard int, s *snapshot) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := &w.seen[shard]
	for p, numbers := range s.booked {
		for _, n := range numbers {
			if !w.booked[p].add(n) {
				return wrongf("%s is booked a second time", w.numbered(int32(p), n).id)
			}
		}
	}
	for t, units := range s.added {
		if seen.sums[t] == nil {
			seen.sums[t] = new(big.Int)
		}
		seen.sums[t].Add(seen.sums[t], units)
	}
	for t, units := range s.totals {
		if have := seen.sums[t]; have == nil || have.Cmp(units) != 0 {
			return wrongf("total of %v: %s of the smallest amounts, and the ledger has %v", t, units, have)
		}
	}
	if len(seen.sums) != len(s.totals) {
		return wrongf("%d totals, and the ledger has %d", len(s.totals), len(seen.sums))
	}
	for _, e := range s.epochs {
		key := [2]int64{e.partition, e.seq}
		if other, ok := w.epochs[key]; !ok {
			w.epochs[key] = e
			w.moved[e.partition] = time.Now()
		} else if other != e {
			return wrongf("epoch %+v, and another shard has %+v", e, other)
		}
		seen.in[e.partition] += e.in
	}
	seen.lanes = s.lanes
	return nil
}

// snapshot is one look at one shard: all of it at the same moment.
type snapshot struct {
	*chaosLoad
	ctx    context.Context
	tx     *sql.Tx
	before []epochSeen // each lane's last epoch when it was looked at before

	lanes   []epochSeen // and now
	epochs  []epochSeen // since then
	missing []int64     // of each lane: entries that these have booked here, and that the ledger has not
	booked  [][]int64   // of each partition, the events' numbers
	added   sums        // by these
	totals  sums
}

func (s *snapshot) each(query string, row func(scan func(...any) error) error) error {
	rows, err := s.tx.QueryContext(s.ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// since makes a condition of each lane's last epoch, as SQL.
func (s *snapshot) since(column string, of func(epochSeen) int64) string {
	parts := make([]string, len(s.before))
	for p, last := range s.before {
		parts[p] = fmt.Sprintf("kafka_topic = '%s' AND kafka_partition = %d AND %s %d", s.topic, p, column, of(last))
	}
	return " WHERE " + strings.Join(parts, " OR ")
}

// readEpochs: the chain has no hole.
func (s *snapshot) readEpochs() error {
	query := "SELECT kafka_partition, seq, offset_from, offset_next, gtrid, incarnation, records_in, applied, duplicates, conflicts, rejected, shard_applied FROM billing_epoch" +
		s.since("seq >", func(e epochSeen) int64 { return e.seq }) + " ORDER BY kafka_partition, seq"
	return s.each(query, func(scan func(...any) error) error {
		var e epochSeen
		var here int64
		if err := scan(&e.partition, &e.seq, &e.from, &e.next, &e.gtrid, &e.incarnation, &e.in, &e.applied, &e.duplicates, &e.conflicts, &e.rejected, &here); err != nil {
			return err
		}
		last := s.lanes[e.partition]
		if e.seq != last.seq+1 || last.seq > 0 && e.from != last.next || e.incarnation < last.incarnation || e.in != e.applied+e.duplicates+e.conflicts+e.rejected {
			return wrongf("epoch %+v follows %+v", e, last)
		}
		s.lanes[e.partition] = e
		s.missing[e.partition] += here
		s.epochs = append(s.epochs, e)
		return nil
	})
}

// readLanes: a lane's row is its last epoch's.
func (s *snapshot) readLanes() error {
	rows := make([]epochSeen, len(s.lanes))
	err := s.each("SELECT kafka_partition, incarnation, seq, offset_next FROM billing_lane", func(scan func(...any) error) error {
		var e epochSeen
		if err := scan(&e.partition, &e.incarnation, &e.seq, &e.next); err != nil {
			return err
		}
		rows[e.partition] = e
		return nil
	})
	if err != nil {
		return err
	}
	for p, e := range rows {
		if last := s.lanes[p]; e.seq != last.seq || e.next != last.next || e.incarnation != last.incarnation {
			return wrongf("lane %d: its row is %+v, its last epoch %+v", p, e, last)
		}
	}
	return nil
}

// readLedger: what the new epochs have booked was sent, and is booked once.
func (s *snapshot) readLedger() error {
	query := "SELECT kafka_partition, kafka_offset, event_id, entry_type, account_id, currency, CAST(amount AS CHAR) FROM billing_ledger" +
		s.since("kafka_offset >=", func(e epochSeen) int64 { return e.next })
	err := s.each(query, func(scan func(...any) error) error {
		var row ledgerRow
		if err := scan(&row.partition, &row.offset, &row.id, &row.kind, &row.account, &row.currency, &row.amount); err != nil {
			return err
		}
		sent, partition, number := s.event(row.id)
		if sent == nil {
			return wrongf("%s: it was never sent, or is not to be booked", row)
		}
		if err := row.is(sent, partition); err != nil {
			return err
		}
		s.booked[partition] = append(s.booked[partition], number)
		s.added.add(total{sent.account, sent.currency, sent.kind()}, sent.amount)
		s.missing[partition]--
		return nil
	})
	if err != nil {
		return err
	}
	for p, n := range s.missing {
		if n != 0 {
			return wrongf("lane %d: the epochs up to %d have booked %d entries more than the ledger has", p, s.lanes[p].seq, n)
		}
	}
	return nil
}

// ledgerRow is one of them, as it is read.
type ledgerRow struct {
	partition                           int32
	offset                              int64
	id, kind, account, currency, amount string
}

func (r ledgerRow) String() string {
	return fmt.Sprintf("partition %d, offset %d: %s of %s %s to %s, id %s", r.partition, r.offset, r.kind, r.amount, r.currency, r.account, r.id)
}

// is fails unless the row says what was sent.
func (r ledgerRow) is(sent *charged, partition int32) error {
	if r.partition != partition || r.kind != sent.kind() || r.account != sent.account || r.currency != sent.currency || r.amount != amountText(sent.amount) {
		return wrongf("%s: sent was %s to partition %d", r, sent, partition)
	}
	return nil
}

// readTotals reads each account's charges and credits, as far as there are any.
func (s *snapshot) readTotals() error {
	return s.each(totalsQuery, func(scan func(...any) error) error {
		return s.totals.scan(scan)
	})
}

const totalsQuery = "SELECT account_id, currency, CAST(SUM(charge_amount) AS CHAR), CAST(SUM(credit_amount) AS CHAR) FROM billing_total GROUP BY account_id, currency"

// scan adds a row of totalsQuery.
func (s sums) scan(scan func(...any) error) error {
	var account, currency string
	amounts := make([]string, 2)
	if err := scan(&account, &currency, &amounts[0], &amounts[1]); err != nil {
		return err
	}
	for i, kind := range []string{"charge", "credit"} {
		units, ok := new(big.Int).SetString(strings.Replace(amounts[i], ".", "", 1), 10)
		if _, decimals, _ := strings.Cut(amounts[i], "."); !ok || len(decimals) != 12 {
			return fmt.Errorf("the sum %q has not 12 decimals", amounts[i])
		}
		if t := (total{account, currency, kind}); units.Sign() != 0 {
			if s[t] == nil {
				s[t] = new(big.Int)
			}
			s[t].Add(s[t], units)
		}
	}
	return nil
}
