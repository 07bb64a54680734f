package txsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"billing/internal/checkpoint"
)

// Look is what a shard and its server show to who only looks.
type Look struct {
	Server string          // @@server_uuid
	Set    checkpoint.UUID // of billing_meta; zero where there is none

	Lanes map[checkpoint.Lane]checkpoint.LaneRow // as they are committed
	XIDs  []XID                                  // all prepared branches of the server, also foreign ones and those of other shards (see XID.OnShard)

	// Newest are the last epochs of the shard's lanes, prepared ones among them:
	// a branch that is prepared is its lane's newest epoch, as it holds the lock of
	// the lane's row.
	Newest []NewestEpoch

	// Problems are the *checkpoint.Refusal that a start would meet because the
	// shard is not the recorded one.
	Problems []error
}

// NewestEpoch is what a lane's last branch has written of itself.
type NewestEpoch struct {
	GTRID      checkpoint.GTRID
	Lane       checkpoint.Lane
	From, Next int64 // its offsets
	Records    int64
	PreparedAt time.Time // by the clock of the service
}

// Look looks at a shard for the operator's tools, by number. It works before
// Check, changes nothing, and waits for no lock. It is no snapshot: a branch may
// end between the reading of the lanes, that of the list, and that of the newest
// epochs, in this order. A user who lacks a right for it is a
// *checkpoint.Refusal.
func (s *Sink) Look(ctx context.Context, shard int) (Look, error) {
	sh := s.shards[shard]
	c, err := sh.db.Conn(ctx)
	if err != nil {
		return Look{}, sh.failed(fmt.Errorf("connect: %w", err))
	}
	defer c.Close()
	r, err := missingRights(ctx, c, &lookRole)
	if err == nil {
		err = sh.lacking(r)
	}
	if err != nil {
		return Look{}, sh.failed(err)
	}
	var l Look
	var user string
	if err := c.QueryRowContext(ctx, "SELECT @@server_uuid, CURRENT_USER()").Scan(&l.Server, &user); err != nil {
		return Look{}, sh.failed(fmt.Errorf("look at the server: %w", err))
	}
	if l.Lanes, err = laneRows(ctx, c); err != nil {
		return Look{}, sh.failed(err)
	}
	// Before the newest rows: what is listed has written its own.
	if l.XIDs, err = listed(ctx, c); err != nil {
		return Look{}, sh.xaProblem(err, grantee(user))
	}
	switch m, ok, err := readMeta(ctx, c); {
	case err != nil:
		return Look{}, sh.failed(err)
	case !ok:
		l.Problems = append(l.Problems, sh.pending("there is no row of billing_meta"))
		return l, nil
	default:
		l.Set = m.set
		l.Problems = append(l.Problems, sh.metaProblems(m, len(s.shards))...)
		l.Problems = append(l.Problems, sh.serverProblems(m, l.Server)...)
	}
	if l.Newest, err = newest(ctx, c); err != nil {
		return Look{}, sh.failed(err)
	}
	return l, nil
}

// laneRows reads the lanes' rows; none where there is no table.
func laneRows(ctx context.Context, c *sql.Conn) (lanes map[checkpoint.Lane]checkpoint.LaneRow, err error) {
	lanes = map[checkpoint.Lane]checkpoint.LaneRow{}
	rows, err := c.QueryContext(ctx, "SELECT kafka_topic, kafka_partition, incarnation, seq, offset_next FROM billing_lane")
	if isAnswer(err, errNoSuchTable) {
		return lanes, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read billing_lane: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var lane checkpoint.Lane
		var row checkpoint.LaneRow
		if err := rows.Scan(&lane.Topic, &lane.Partition, &row.Incarnation, &row.Seq, &row.Next); err != nil {
			return nil, fmt.Errorf("read billing_lane: %w", err)
		}
		lanes[lane] = row
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read billing_lane: %w", err)
	}
	return lanes, nil
}

// newest reads the last epoch of each lane, as it is written and not as it is
// committed: a prepared branch's own row is what it says of itself.
func newest(ctx context.Context, c *sql.Conn) (found []NewestEpoch, err error) {
	tx, err := c.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadUncommitted, ReadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("read the newest epochs: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // nothing was written
	rows, err := tx.QueryContext(ctx, "SELECT e.gtrid, e.kafka_topic, e.kafka_partition, e.offset_from, e.offset_next, e.records_in, e.prepared_at"+
		" FROM billing_lane l JOIN billing_epoch e ON e.kafka_topic = l.kafka_topic AND e.kafka_partition = l.kafka_partition AND e.seq = l.seq")
	if err != nil {
		return nil, fmt.Errorf("read the newest epochs: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var e NewestEpoch
		var prepared string
		if err := rows.Scan(&e.GTRID, &e.Lane.Topic, &e.Lane.Partition, &e.From, &e.Next, &e.Records, &prepared); err != nil {
			return nil, fmt.Errorf("read the newest epochs: %w", err)
		}
		if e.PreparedAt, err = time.Parse(microsFormat, prepared); err != nil {
			return nil, fmt.Errorf("read the newest epochs: prepared_at: %w", err)
		}
		found = append(found, e)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the newest epochs: %w", err)
	}
	return found, nil
}
