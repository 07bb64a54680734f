package txsink

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"billing/internal/checkpoint"
)

// EndOlder ends the connections that hold the lane's lock: older sessions'
// bursts. When it returns, what they had not prepared is rolled back.
func (s *shard) EndOlder(ctx context.Context, lane checkpoint.Lane) error {
	return s.short(ctx, func(ctx context.Context, c *conn) error {
		lock := hexLiteral(lockName(c.known.set, s.number, lane))
		for {
			var owner sql.NullInt64
			if err := c.QueryRowContext(ctx, "SELECT IS_USED_LOCK("+lock+")").Scan(&owner); err != nil {
				return fmt.Errorf("ask for the lane's lock: %w", err)
			}
			if !owner.Valid {
				break
			}
			if owner.Int64 == c.id {
				return fmt.Errorf("connection %d came from the pool with the lane's lock", c.id)
			}
			// Ids are given again only by a server that was restarted, and then this
			// connection is dead too.
			_, err := c.ExecContext(ctx, "KILL "+strconv.FormatInt(owner.Int64, 10))
			if err != nil && !isAnswer(err, errNoSuchThread) {
				return fmt.Errorf("end connection %d, which holds the lane's lock: %w", owner.Int64, err)
			}
			if err := wait(ctx, killPoll); err != nil {
				return fmt.Errorf("wait for connection %d to end: %w", owner.Int64, err)
			}
		}
		// A commit by another connection in the instant in which a branch's owner
		// disconnects can answer OK and commit nothing: let that instant pass.
		if err := wait(ctx, disconnectPause); err != nil {
			return fmt.Errorf("wait after the lane's lock was free: %w", err)
		}
		return nil
	})
}

const (
	killPoll        = 5 * time.Millisecond
	disconnectPause = 10 * time.Millisecond
)

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// XID is one line of XA RECOVER.
type XID struct {
	FormatID     int64
	GTRID, BQUAL string // the bytes
}

// listed reads XA RECOVER: all prepared branches of the server, whosever.
func listed(ctx context.Context, c *sql.Conn) (xids []XID, err error) {
	rows, err := c.QueryContext(ctx, "XA RECOVER CONVERT XID")
	if err != nil {
		return nil, fmt.Errorf("list prepared branches: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var x XID
		var gtridLen, bqualLen int
		var data string
		if err := rows.Scan(&x.FormatID, &gtridLen, &bqualLen, &data); err != nil {
			return nil, fmt.Errorf("list prepared branches: %w", err)
		}
		raw, err := hex.DecodeString(strings.TrimPrefix(data, "0x"))
		if err != nil || gtridLen < 0 || bqualLen < 0 || len(raw) != gtridLen+bqualLen {
			return nil, fmt.Errorf("list prepared branches: can't read xid %q of lengths %d and %d", data, gtridLen, bqualLen)
		}
		x.GTRID, x.BQUAL = string(raw[:gtridLen]), string(raw[gtridLen:])
		xids = append(xids, x)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list prepared branches: %w", err)
	}
	return xids, nil
}

// Listed lists all prepared branches of a shard's server, also foreign ones and
// those of other shards on the same server (see OnShard). It works before Check,
// for the operator's tools.
func (s *Sink) Listed(ctx context.Context, shard int) ([]XID, error) {
	sh := s.shards[shard]
	c, err := sh.db.Conn(ctx)
	if err != nil {
		return nil, sh.failed(fmt.Errorf("connect: %w", err))
	}
	defer c.Close()
	var user string
	if err := c.QueryRowContext(ctx, "SELECT CURRENT_USER()").Scan(&user); err != nil {
		return nil, sh.failed(fmt.Errorf("ask for the user: %w", err))
	}
	xids, err := listed(ctx, c)
	if err != nil {
		return nil, sh.xaProblem(err, grantee(user))
	}
	return xids, nil
}

// Prepared lists the branches that are prepared on a shard and could be ours, of
// any job. It works before Check, for the operator's tools.
func (s *Sink) Prepared(ctx context.Context, shard int) (gtrids []checkpoint.GTRID, err error) {
	xids, err := s.Listed(ctx, shard)
	for _, x := range xids {
		if x.OnShard(shard) {
			gtrids = append(gtrids, checkpoint.GTRID(x.GTRID))
		}
	}
	return gtrids, err
}

// OnShard reports whether x could be a branch of the shard with this number:
// whose it is, its GTRID says.
func (x XID) OnShard(number int) bool { return x.FormatID == ownFormat && x.BQUAL == bqual(number) }

// ownFormat is MySQL's formatID for a name that gives none, as ours.
const ownFormat = 1

// Prepared lists this shard's prepared branches whose gtrid begins with prefix.
// Callers that come together share one answer of the server (see listing).
func (s *shard) Prepared(ctx context.Context, prefix string) (gtrids []checkpoint.GTRID, err error) {
	xids, err := s.listing.get(ctx)
	if err != nil {
		return nil, err
	}
	for _, x := range xids {
		if strings.HasPrefix(x.GTRID, prefix) && x.OnShard(s.number) {
			gtrids = append(gtrids, checkpoint.GTRID(x.GTRID))
		}
	}
	return gtrids, nil
}

// askListed asks the server for the list, for all who wait for it.
func (s *shard) askListed(ctx context.Context) (xids []XID, err error) {
	err = s.short(ctx, func(ctx context.Context, c *conn) error {
		xids, err = listed(ctx, c.Conn.Conn)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.formats.warn(s.cfg.Logger, s.name, xids)
	return xids, nil
}

// listing shares one XA RECOVER among the callers that wait for one: each lane
// sweeps every shard, and on a shard that hangs their connections would use up
// the pool, so that nothing is left for a commit.
//
// No caller gets an answer whose question was sent before it came: such a list
// may miss a branch that the caller has to see. So callers join the round that
// nobody has asked for yet, and the round is closed before its question is sent:
//
//	A comes, joins round 1, gets a slot, closes round 1, sends XA RECOVER
//	B comes: round 1 is closed; it joins round 2 and waits for a slot
//	    (a branch is prepared, and B is told of it)
//	C comes, joins round 2
//	A's answer comes, perhaps without the branch: A alone takes it
//	B gets a slot, closes round 2, sends XA RECOVER: the answer is B's and C's
//
// There are two slots, so that one connection that is half dead does not hold
// up all lanes until its time is out; nothing above depends on their number.
type listing struct {
	ask   func(ctx context.Context) ([]XID, error)
	slots chan struct{} // holds a token for each question on its way; its capacity is their bound

	mu   sync.Mutex
	next *round // whose question is not sent yet; nil when nobody waits
}

// round is one question and who waits for its answer.
type round struct {
	done     chan struct{} // closed by who asks, behind the answer
	xids     []XID         // read-only
	err      error
	deserted bool // who asked had to leave before there was an answer
}

const listingSlots = 2

// errDeserted is what a round's answer is until there is one.
var errDeserted = errors.New("list prepared branches: the question was broken off")

func newListing(ask func(context.Context) ([]XID, error)) *listing {
	return &listing{ask: ask, slots: make(chan struct{}, listingSlots)}
}

// get is the list as it was at some moment after the call. It waits no longer
// than ctx allows.
func (l *listing) get(ctx context.Context) ([]XID, error) {
	for {
		r := l.join()
		select {
		case <-r.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("list prepared branches: wait for the others' question: %w", ctx.Err())
		case l.slots <- struct{}{}:
			if l.begin(r) {
				l.answer(ctx, r)
				return r.xids, r.err
			}
			<-l.slots
			select { // somebody else asks for this round
			case <-r.done:
			case <-ctx.Done():
				return nil, fmt.Errorf("list prepared branches: wait for the others' question: %w", ctx.Err())
			}
		}
		if !r.deserted {
			return r.xids, r.err
		}
	}
}

// join is the round whose question is still to be sent.
func (l *listing) join() *round {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = &round{done: make(chan struct{}), err: errDeserted, deserted: true}
	}
	return l.next
}

// begin closes the round to newcomers; false if somebody else has.
func (l *listing) begin(r *round) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next != r {
		return false
	}
	l.next = nil
	return true
}

// answer asks for the round, holding a slot, and tells all who wait.
func (l *listing) answer(ctx context.Context, r *round) {
	defer func() {
		close(r.done)
		<-l.slots
	}()
	xids, err := l.ask(ctx)
	// An error because this caller's own time is over says nothing to the others.
	r.xids, r.err, r.deserted = xids, err, err != nil && ctx.Err() != nil
}

// foreignFormats are the formatIDs that a shard's server has shown and that are
// not ours, for one warning each.
type foreignFormats struct {
	mu     sync.Mutex
	warned map[int64]bool
}

// maxFormats bounds what is remembered; what comes then is not warned about.
const maxFormats = 64

// warn warns once of each formatID, whoever's the branch: in one binary log with
// ours, another formatID makes MySQL lose an acknowledged prepare at a crash.
func (f *foreignFormats) warn(log *slog.Logger, shard string, xids []XID) {
	for _, x := range xids {
		if x.FormatID == ownFormat || !f.first(x.FormatID) {
			continue
		}
		log.Warn("another application prepares XA branches with another formatID on this server: a crash of MySQL can lose a prepared branch that was acknowledged; give the shard a server of its own, or let that application leave its formatID out",
			"shard", shard, "format_id", x.FormatID, "gtrid", fmt.Sprintf("%q", x.GTRID), "bqual", fmt.Sprintf("%q", x.BQUAL))
	}
}

func (f *foreignFormats) first(format int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.warned[format] || len(f.warned) == maxFormats {
		return false
	}
	if f.warned == nil {
		f.warned = make(map[int64]bool)
	}
	f.warned[format] = true
	return true
}
