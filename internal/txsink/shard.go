package txsink

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"billing/internal/checkpoint"
)

// shard is one database. It implements checkpoint.Shard.
type shard struct {
	number int
	name   string
	cfg    *Config
	driver *mysql.Config // of db; never logged, it has the password
	db     *sqlx.DB
	bursts chan struct{} // holds a token for each burst that runs; its capacity is their bound

	known   atomic.Pointer[known] // what Check found; nil before
	listing *listing              // of prepared branches, shared by the lanes
	formats foreignFormats        // that were warned about
}

// known is what Check found and every connection is held against.
type known struct {
	set    checkpoint.UUID
	server string // @@server_uuid
}

var _ checkpoint.Shard = (*shard)(nil)

func newShard(number int, name string, driverConfig *mysql.Config, cfg *Config) (*shard, error) {
	db, err := newPool(driverConfig, cfg)
	if err != nil {
		return nil, err
	}
	s := &shard{number: number, name: name, cfg: cfg, driver: driverConfig, db: db, bursts: make(chan struct{}, cfg.Bursts)}
	s.listing = newListing(s.askListed)
	return s, nil
}

// Name is the shard's name in the configuration.
func (s *shard) Name() string { return s.name }

// ErrNotChecked says that Check has not passed.
var ErrNotChecked = errors.New("the shard is used before the start-up check has passed")

// conn is a connection of its own, checked when it was taken to be one of the
// recorded, writable server. XA runs on nothing else: a pooled connection with
// an open branch would swallow other callers' writes.
type conn struct {
	*sqlx.Conn
	id    int64 // CONNECTION_ID()
	known *known
}

// Why a connection to a shard was refused: it could not be had, or was given up
// when it was checked.
const (
	RefusedUnreachable   = "unreachable"    // no connection, or none that answers
	RefusedTurnedAway    = "turned-away"    // the server itself says no
	RefusedServerChanged = "server-changed" // another server than the recorded one
	RefusedReadOnly      = "read-only"
	RefusedDetachOff     = "xa-detach-off"
)

// RefusedReasons are all of them.
var RefusedReasons = []string{RefusedUnreachable, RefusedTurnedAway, RefusedServerChanged, RefusedReadOnly, RefusedDetachOff}

// firstLook bounds the first question on a connection of the pool: a network
// that has forgotten idle connections answers nothing on any of them, and the
// bound of a statement on each one would add up to minutes. A server that is
// slow has all of a statement's time for the next try, on a new connection.
const firstLook = 5 * time.Second

// take gets a connection that is what Check found. Its error, when the server
// is another one, is a *checkpoint.Refusal.
func (s *shard) take(ctx context.Context) (*conn, error) {
	k := s.known.Load()
	if k == nil {
		return nil, ErrNotChecked
	}
	for try := 0; ; try++ {
		c, why, err := s.checked(ctx, k, try == 0)
		if err == nil {
			return c, nil
		}
		if s.cfg.Refused != nil && !errors.Is(ctx.Err(), context.Canceled) {
			s.cfg.Refused(s.name, why)
		}
		// An idle connection may have died unnoticed: nothing was lost with it.
		if why == RefusedUnreachable && c != nil && ctx.Err() == nil && try < 3 {
			continue
		}
		return nil, err
	}
}

// checked takes a connection and looks where it leads. With an error the
// connection, if there was one, is gone, and why says what it was.
func (s *shard) checked(ctx context.Context, k *known, first bool) (c *conn, why string, err error) {
	sc, err := s.db.Connx(ctx)
	if err != nil {
		if answer(err) != nil {
			return nil, RefusedTurnedAway, fmt.Errorf("connect: %w", err)
		}
		return nil, RefusedUnreachable, fmt.Errorf("connect: %w", err)
	}
	c = &conn{Conn: sc, known: k}
	lctx := ctx
	if first {
		var cancel context.CancelFunc
		lctx, cancel = context.WithTimeout(ctx, firstLook)
		defer cancel()
	}
	var server string
	var readOnly, superReadOnly, detach bool
	err = sc.QueryRowContext(lctx, "SELECT @@server_uuid, @@global.read_only, @@global.super_read_only, @@xa_detach_on_prepare, CONNECTION_ID()").
		Scan(&server, &readOnly, &superReadOnly, &detach, &c.id)
	switch {
	case err != nil && answer(err) != nil:
		why, err = RefusedTurnedAway, fmt.Errorf("connect: look at the server: %w", err)
	case err != nil:
		if lctx.Err() != nil && ctx.Err() == nil {
			s.dropIdle() // they are as old as this one
		}
		why, err = RefusedUnreachable, fmt.Errorf("connect: look at the server: %w", err)
	case server != k.server:
		why, err = RefusedServerChanged, serverChanged(s.name, k.server, server)
	case readOnly || superReadOnly:
		why, err = RefusedReadOnly, errors.New("the server is read-only (a failover?): waiting for it to become writable")
	case !detach:
		why, err = RefusedDetachOff, errors.New("the server has xa_detach_on_prepare off: SET PERSIST xa_detach_on_prepare = ON")
	default:
		return c, "", nil
	}
	c.discard() // the server may change behind this address: look again with a new connection
	return c, why, err
}

// dropIdle closes the pool's idle connections.
func (s *shard) dropIdle() {
	s.db.SetMaxIdleConns(0)
	s.db.SetMaxIdleConns(s.cfg.Bursts + controlConns)
}

// giveBack puts the connection back into the pool. No branch, transaction or
// lock is on it.
func (c *conn) giveBack() { _ = c.Close() }

// discard ends the connection: nobody gets what may still be on it.
func (c *conn) discard() {
	_ = c.Raw(func(any) error { return driver.ErrBadConn })
	_ = c.Close()
}

// answer is err where the server gave it, so that the connection lived then;
// nil where the outcome is unknown.
func answer(err error) *mysql.MySQLError {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e
	}
	return nil
}

func isAnswer(err error, number uint16) bool {
	e := answer(err)
	return e != nil && e.Number == number
}

// with runs fn on a checked connection; after an error the connection is gone.
func (s *shard) with(ctx context.Context, fn func(context.Context, *conn) error) error {
	c, err := s.take(ctx)
	if err != nil {
		return err
	}
	if err := fn(ctx, c); err != nil {
		c.discard()
		return err
	}
	c.giveBack()
	return nil
}

// shortTimeout bounds what is short on a server that works. An answer that does
// not come is asked for again on another connection, several times within the
// bound of the protocol's step.
const shortTimeout = 10 * time.Second

// short is with for what is short. fn's context has the bound.
func (s *shard) short(ctx context.Context, fn func(context.Context, *conn) error) error {
	return s.with(ctx, func(ctx context.Context, c *conn) error {
		ctx, cancel := context.WithTimeout(ctx, shortTimeout)
		defer cancel()
		return fn(ctx, c)
	})
}

// Server errors that mean something here.
const (
	errNotNull       = 1048 // ER_BAD_NULL_ERROR
	errDuplicate     = 1062 // ER_DUP_ENTRY
	errNoSuchThread  = 1094 // ER_NO_SUCH_THREAD
	errCacheFull     = 1197 // ER_TRANS_CACHE_FULL: max_binlog_cache_size
	errUnknownXID    = 1397 // ER_XAER_NOTA
	errXAPrivilege   = 1401 // ER_XAER_RMERR: what XA RECOVER says without XA_RECOVER_ADMIN
	errXIDExists     = 1440 // ER_XAER_DUPID
	errOutOfRange    = 1690 // ER_DATA_OUT_OF_RANGE
	errCheckViolated = 3819 // ER_CHECK_CONSTRAINT_VIOLATED
	errNoSuchTable   = 1146 // ER_NO_SUCH_TABLE
	errCommandDenied = 1142 // ER_TABLEACCESS_DENIED_ERROR
	errColumnDenied  = 1143 // ER_COLUMNACCESS_DENIED_ERROR
	errAccessDenied  = 1227 // ER_SPECIFIC_ACCESS_DENIED_ERROR
)

func laneWhere(lane checkpoint.Lane) string {
	return " WHERE kafka_topic = " + hexLiteral(lane.Topic) + " AND kafka_partition = " + strconv.Itoa(int(lane.Partition))
}

// LaneRow reads the lane's row; false without one.
func (s *shard) LaneRow(ctx context.Context, lane checkpoint.Lane) (row checkpoint.LaneRow, found bool, err error) {
	err = s.short(ctx, func(ctx context.Context, c *conn) error {
		row, found, err = laneRow(ctx, c, lane)
		return err
	})
	return row, found, err
}

func laneRow(ctx context.Context, c *conn, lane checkpoint.Lane) (row checkpoint.LaneRow, found bool, err error) {
	var r struct {
		Incarnation int64 `db:"incarnation"`
		Seq         int64 `db:"seq"`
		Next        int64 `db:"offset_next"`
	}
	err = c.GetContext(ctx, &r, "SELECT incarnation, seq, offset_next FROM billing_lane"+laneWhere(lane))
	if errors.Is(err, sql.ErrNoRows) {
		return row, false, nil
	}
	if err != nil {
		return row, false, fmt.Errorf("read billing_lane: %w", err)
	}
	return checkpoint.LaneRow(r), true, nil
}

// EpochRow reads the row of the lane's epoch; false without one.
func (s *shard) EpochRow(ctx context.Context, lane checkpoint.Lane, seq int64) (row checkpoint.EpochRow, found bool, err error) {
	err = s.short(ctx, func(ctx context.Context, c *conn) error {
		var r struct {
			GTRID      checkpoint.GTRID `db:"gtrid"`
			Next       int64            `db:"offset_next"`
			In         int64            `db:"records_in"`
			Applied    int64            `db:"applied"`
			Duplicates int64            `db:"duplicates"`
			Conflicts  int64            `db:"conflicts"`
			Rejected   int64            `db:"rejected"`
			Digest     []byte           `db:"digest"`
		}
		err := c.GetContext(ctx, &r, "SELECT gtrid, offset_next, records_in, applied, duplicates, conflicts, rejected, digest FROM billing_epoch"+
			laneWhere(lane)+" AND seq = "+strconv.FormatInt(seq, 10))
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read billing_epoch: %w", err)
		}
		found = true
		row = checkpoint.EpochRow{
			GTRID: r.GTRID, Next: r.Next, Digest: r.Digest,
			Counts: checkpoint.Counts{In: r.In, Applied: r.Applied, Duplicates: r.Duplicates, Conflicts: r.Conflicts, Rejected: r.Rejected},
		}
		return nil
	})
	return row, found, err
}

// Commit is XA COMMIT. checkpoint.ErrNotListed proves nothing.
func (s *shard) Commit(ctx context.Context, g checkpoint.GTRID) error {
	return s.finish(ctx, "XA COMMIT ", g)
}

// Rollback is XA ROLLBACK. checkpoint.ErrNotListed proves nothing.
func (s *shard) Rollback(ctx context.Context, g checkpoint.GTRID) error {
	return s.finish(ctx, "XA ROLLBACK ", g)
}

func (s *shard) finish(ctx context.Context, verb string, g checkpoint.GTRID) error {
	notListed, sent := false, false
	err := s.short(ctx, func(ctx context.Context, c *conn) error {
		sent = true
		_, err := c.ExecContext(ctx, verb+xid(g, s.number))
		if isAnswer(err, errUnknownXID) {
			notListed = true // nothing is wrong with the connection
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s%s: %w", verb, g, err)
		}
		return nil
	})
	if notListed {
		return checkpoint.ErrNotListed
	}
	if err != nil && !sent {
		return fmt.Errorf("%w: %w", checkpoint.ErrNotSent, err)
	}
	return err
}
