package txsink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/failpoint"
)

// ErrCompareAndSet says that the lane's row was not the one that this epoch
// follows on. It is a net, and comes within a *checkpoint.NetError: under the
// protocol it never decides.
var ErrCompareAndSet = errors.New("the lane's row is not that of the epoch before")

// The nets of this package, as checkpoint.NetError names them.
const (
	netCompareAndSet = "compare-and-set"
	netEpochKey      = "epoch-key"
)

// cleanup bounds what follows a burst: it must also be tried when the burst's
// own time is over.
const cleanup = 2 * time.Second

// progress is how far a burst has come, for what its failure means.
type progress int

const (
	untouched progress = iota // no branch was begun
	open                      // XA START was answered with OK: this connection alone has the branch
	uncertain                 // an answer is missing, or the name belongs to a branch of somebody else
)

// Prepare is phase 1 on this shard (C3), in one burst on one connection. See
// checkpoint.Shard for what its errors mean.
func (s *shard) Prepare(ctx context.Context, b *checkpoint.Branch) error {
	part, err := s.part(b, s.cfg.LedgerEnabled)
	if err != nil {
		return notBegun(err)
	}
	select {
	case s.bursts <- struct{}{}:
		defer func() { <-s.bursts }()
	case <-ctx.Done():
		return notBegun(fmt.Errorf("wait for another lane's burst: %w", ctx.Err()))
	}
	c, err := s.take(ctx)
	if err != nil {
		return notBegun(err)
	}
	lock := hexLiteral(lockName(c.known.set, s.number, b.Lane))

	at, err := s.burst(ctx, c, b, part, lock)
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	if err == nil {
		// Prepared and detached: the connection is nobody's again.
		if _, err := c.ExecContext(clean, "DO RELEASE_LOCK("+lock+")"); err != nil {
			c.discard() // ends the lock too
		} else {
			c.giveBack()
		}
		return nil
	}

	// A failed statement does not poison a branch, MySQL would prepare the rest:
	// the whole branch has to go, and the connection with it.
	gone := at == untouched
	if at == open {
		name := xid(b.GTRID, s.number)
		_, _ = c.ExecContext(clean, "XA END "+name) // fails where the burst had already ended it
		_, rerr := c.ExecContext(clean, "XA ROLLBACK "+name)
		gone = rerr == nil
	}
	c.discard()
	if !gone {
		return err
	}
	if isAnswer(err, errDuplicate) {
		return s.twice(ctx, b, part, err)
	}
	if isAnswer(err, errCacheFull) {
		err = fmt.Errorf("%w: %w", checkpoint.ErrTooLarge, err)
	}
	return notBegun(err)
}

// notBegun is for errors after which nothing of the branch is left.
func notBegun(err error) error {
	return fmt.Errorf("%w: %w", checkpoint.ErrRolledBack, err)
}

// bug is for what no server and no message can bring about: it would be the same
// again with the next try, so the lane stops.
func (s *shard) bug(format string, args ...any) error {
	return broken("shard %s: %s", s.name, fmt.Sprintf(format, args...))
}

// part is this shard's share of the epoch, after what would be our own bug.
func (s *shard) part(b *checkpoint.Branch, ledgerOn bool) (*aggregate.Part, error) {
	epoch, ok := b.Contents.(*aggregate.Epoch)
	if !ok {
		return nil, s.bug("epoch %d of %s: its contents are %T", b.Seq, b.Lane, b.Contents)
	}
	if len(epoch.Parts) != len(s.cfg.Shards) {
		return nil, s.bug("epoch %d of %s is made for %d shards, there are %d", b.Seq, b.Lane, len(epoch.Parts), len(s.cfg.Shards))
	}
	part := &epoch.Parts[s.number]
	var totals, sums int64
	for key, total := range part.Totals.All() {
		totals += total.Entries
		if key.WindowStart%1e6 != 0 {
			return nil, s.bug("epoch %d of %s: a window begins at %d µs: windows are whole seconds", b.Seq, b.Lane, key.WindowStart)
		}
	}
	for _, sum := range part.Sums {
		sums += sum.Entries
	}
	ledger := part.Applied
	if !ledgerOn {
		ledger = 0
	}
	if totals != part.Applied || sums != part.Applied || int64(part.Ledger.Len()) != ledger {
		return nil, s.bug("epoch %d of %s: %d entries are applied on shard %d, but the totals have %d, the sums %d, the ledger %d (enabled: %t)",
			b.Seq, b.Lane, part.Applied, s.number, totals, sums, part.Ledger.Len(), ledgerOn)
	}
	return part, nil
}

// burst writes the branch, from the lane's lock to XA PREPARE.
func (s *shard) burst(ctx context.Context, c *conn, b *checkpoint.Branch, part *aggregate.Part, lock string) (at progress, err error) {
	exec := s.exec(c)
	// Whoever takes the lane over finds this connection by the lock: an
	// unprepared branch is in no list.
	var got *int64
	err = c.QueryRowContext(ctx, "SELECT GET_LOCK("+lock+", "+strconv.Itoa(int(s.cfg.LockWait/time.Second))+")").Scan(&got)
	if err != nil {
		return untouched, fmt.Errorf("take the lane's lock: %w", err)
	}
	if got == nil || *got != 1 {
		return untouched, errors.New("take the lane's lock: another connection has it")
	}

	w := writers.Get().(*writer) //nolint:errcheck // the pool holds nothing else
	defer w.free()
	now := time.Now().UnixMicro()
	w.exec, w.branch, w.preparedAt, w.changedAt = exec, b, now, now
	if err := chain(w.hash, b); err != nil {
		return untouched, err
	}

	name := xid(b.GTRID, s.number)
	if _, err := exec(ctx, "XA START "+name); err != nil {
		at = untouched
		if answer(err) == nil || isAnswer(err, errXIDExists) {
			at = uncertain
		}
		return at, fmt.Errorf("XA START: %w", err)
	}
	// From here the branch is this connection's: while it lives, XA ROLLBACK
	// undoes everything.
	if err := s.write(ctx, c, w, part, s.cfg.LedgerEnabled); err != nil {
		return open, err
	}
	if _, err := exec(ctx, "XA END "+name); err != nil {
		return open, fmt.Errorf("XA END: %w", err)
	}
	failpoint.Hit(failpoint.InBranch, s.number)
	if _, err := exec(ctx, "XA PREPARE "+name); err != nil {
		if answer(err) == nil {
			return uncertain, fmt.Errorf("XA PREPARE was sent, its answer is missing: %w", err)
		}
		return open, fmt.Errorf("XA PREPARE: %w", err)
	}
	return open, nil
}

// exec runs the statements of a writer on one connection.
func (s *shard) exec(c *conn) func(ctx context.Context, sql string) (affected int64, err error) {
	return func(ctx context.Context, sql string) (int64, error) {
		begun := time.Now()
		result, err := c.ExecContext(ctx, sql)
		if err != nil {
			return 0, s.late(begun, err)
		}
		return result.RowsAffected()
	}
}

// late says of an answer that is missing that its time was up. The driver only
// says that the connection is gone, and an epoch that is too much for a slow
// shard would be tried again and again as it is.
func (s *shard) late(begun time.Time, err error) error {
	within := s.driver.ReadTimeout
	if answer(err) != nil || time.Since(begun) < within {
		return err
	}
	return fmt.Errorf("no answer within %s: %w: %w", within, context.DeadlineExceeded, err)
}

// write is everything between XA START and XA END. The lane's row comes first:
// its lock is held to the end of phase 2 and allows one undecided epoch.
func (s *shard) write(ctx context.Context, c *conn, w *writer, part *aggregate.Part, ledgerOn bool) error {
	if err := w.compareAndSet(ctx, c); err != nil {
		return err
	}
	if err := w.ledger(ctx, &part.Ledger); err != nil {
		return err
	}
	if err := w.rejects(ctx, part.Rejects); err != nil {
		return err
	}
	if err := w.totals(ctx, &part.Totals, &part.Ledger); err != nil {
		return err
	}
	if err := w.sums(ctx, part.Sums); err != nil {
		return err
	}
	return w.epoch(ctx, part, ledgerOn)
}

// compareAndSet moves the lane's row from the epoch before to this one, or
// makes it; exactly one row changes.
func (w *writer) compareAndSet(ctx context.Context, c *conn) error {
	b := w.branch
	t := &table{name: "billing_lane"}
	if b.Seq == 1 {
		w.start(intoLane)
		w.row(0)
		w.lane()
		w.bytes(b.TopicID[:])
		w.int(b.Incarnation)
		w.int(b.Seq)
		w.int(b.OffsetNext)
		w.micros(w.changedAt)
		w.endUnhashed()
	} else {
		w.start("UPDATE billing_lane SET incarnation = ")
		w.sql = strconv.AppendInt(w.sql, b.Incarnation, 10)
		w.sql = append(w.sql, ", seq = "...)
		w.sql = strconv.AppendInt(w.sql, b.Seq, 10)
		w.sql = append(w.sql, ", offset_next = "...)
		w.sql = strconv.AppendInt(w.sql, b.OffsetNext, 10)
		w.sql = append(w.sql, ", updated_at = "...)
		w.micros(w.changedAt)
		w.sql = append(w.sql[:len(w.sql)-1], laneWhere(b.Lane)...)
		w.sql = append(w.sql, " AND seq = "...)
		w.sql = strconv.AppendInt(w.sql, b.Seq-1, 10)
		w.sql = append(w.sql, " AND incarnation <= "...)
		w.sql = strconv.AppendInt(w.sql, b.Incarnation, 10)
		w.sql = append(w.sql, " AND offset_next = "...)
		w.sql = strconv.AppendInt(w.sql, b.OffsetFrom, 10)
		w.sql = append(w.sql, " AND topic_id = "...)
		w.sql = appendHex(w.sql, b.TopicID[:])
	}
	changed, err := w.exec(ctx, string(w.sql))
	if err == nil && changed == 1 {
		return nil
	}
	if err != nil && !isAnswer(err, errDuplicate) {
		return fmt.Errorf("%s: %w", w.where(t), err)
	}
	has := "has no row"
	if row, ok, rerr := laneRow(ctx, c, b.Lane); rerr != nil {
		has = "can't be read: " + rerr.Error()
	} else if ok {
		has = fmt.Sprintf("is at epoch %d of incarnation %d, next offset %d", row.Seq, row.Incarnation, row.Next)
	}
	return &checkpoint.NetError{Net: netCompareAndSet, Err: fmt.Errorf("%w: epoch %d of incarnation %d (%s): the lane %s", ErrCompareAndSet, b.Seq, b.Incarnation, w.where(t), has)}
}
