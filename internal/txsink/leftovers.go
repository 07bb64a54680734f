package txsink

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
)

// EndOlder ends the connections that hold the lane's lock: older sessions'
// bursts. When it returns, what they had not prepared is rolled back.
func (s *shard) EndOlder(ctx context.Context, lane checkpoint.Lane) error {
	return s.with(ctx, func(c *conn) error {
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
	c, err := s.shards[shard].db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer c.Close()
	return listed(ctx, c)
}

// OnShard reports whether x could be a branch of the shard with this number:
// whose it is, its GTRID says.
func (x XID) OnShard(number int) bool { return x.FormatID == 1 && x.BQUAL == bqual(number) }

// Prepared lists this shard's prepared branches whose gtrid begins with prefix.
func (s *shard) Prepared(ctx context.Context, prefix string) (gtrids []checkpoint.GTRID, err error) {
	err = s.with(ctx, func(c *conn) error {
		xids, err := listed(ctx, c.Conn)
		if err != nil {
			return err
		}
		for _, x := range xids {
			if !strings.HasPrefix(x.GTRID, prefix) {
				continue
			}
			if x.OnShard(s.number) {
				gtrids = append(gtrids, checkpoint.GTRID(x.GTRID))
			} else if _, again := s.warned.LoadOrStore(x, true); x.FormatID != 1 && !again {
				s.cfg.Logger.Warn("a prepared branch has a name of this service and a foreign formatID; it is not touched",
					"shard", s.name, "gtrid", x.GTRID, "bqual", x.BQUAL, "format_id", x.FormatID)
			}
		}
		return nil
	})
	return gtrids, err
}

// lookupKeys bounds the keys of one look-up.
const lookupKeys = 500

// existing finds the ledger rows that already have keys of this epoch. The
// branch is gone, so what is found is committed.
func (s *shard) existing(ctx context.Context, b *checkpoint.Branch, part *aggregate.Part) (found []checkpoint.ExistingRow, err error) {
	err = s.with(ctx, func(c *conn) error {
		for rows := range slices.Chunk(part.Ledger, lookupKeys) {
			if err := lookUp(ctx, c, b.Lane, rows, &found); err != nil {
				return fmt.Errorf("find the ledger's rows: %w", err)
			}
		}
		return nil
	})
	return found, err
}

// lookUp finds the rows with the keys of news, which met them.
func lookUp(ctx context.Context, c *conn, lane checkpoint.Lane, news []aggregate.LedgerRow, found *[]checkpoint.ExistingRow) (err error) {
	met := make(map[[16]byte]int64, len(news)) // key -> event time of the record
	var sql strings.Builder
	sql.WriteString("SELECT dedup_key, content_hash, kafka_offset, occurred_at FROM billing_ledger" + laneWhere(lane) + " AND dedup_key IN (")
	for i := range news {
		if i > 0 {
			sql.WriteByte(',')
		}
		sql.WriteString(hexLiteral(news[i].Key[:]))
		met[news[i].Key] = news[i].Time
	}
	sql.WriteByte(')')
	rows, err := c.QueryContext(ctx, sql.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var key, content []byte
		var occurred string
		var row checkpoint.ExistingRow
		if err := rows.Scan(&key, &content, &row.Offset, &occurred); err != nil {
			return err
		}
		at, err := time.Parse(microsFormat, occurred)
		if err != nil {
			return fmt.Errorf("row at offset %d: %w", row.Offset, err)
		}
		if copy(row.Key[:], key) != len(row.Key) || copy(row.Content[:], content) != len(row.Content) {
			return fmt.Errorf("row at offset %d: key %x, content %x", row.Offset, key, content)
		}
		// Remembered under the row's own time it may be forgotten already, and the
		// same record would fail again and again.
		row.Time = max(at.UnixMicro(), met[row.Key])
		*found = append(*found, row)
	}
	return rows.Err()
}
