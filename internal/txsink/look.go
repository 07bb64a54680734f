package txsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"billing/internal/checkpoint"
)

// View is what a shard shows to who only looks.
type View struct {
	Server   string // @@server_uuid
	Migrated bool   // it has the row that says whose its tables are; the fields down to Count are that row's

	Job           string
	Set           checkpoint.UUID
	Number, Count int

	Lanes    map[int32]checkpoint.LaneRow // of one topic, by partition
	Prepared []XID                        // of the whole server, as Listed gives them
}

// Look reads a shard, and holds it against nothing: it works before Check, and
// on a server that Check refuses. It is no snapshot: a branch may end between
// the reading of the lanes and that of the list. A missing right is a
// *checkpoint.Refusal; any other error says that the server could not be asked.
func (s *Sink) Look(ctx context.Context, shard int, topic string) (v View, err error) {
	sh := s.shards[shard]
	c, err := sh.db.Conn(ctx)
	if err != nil {
		return View{}, sh.failed(fmt.Errorf("connect: %w", err))
	}
	defer c.Close()
	if err := c.QueryRowContext(ctx, "SELECT @@server_uuid").Scan(&v.Server); err != nil {
		return View{}, sh.failed(fmt.Errorf("ask for the server's uuid: %w", err))
	}
	m, ok, err := readMeta(ctx, c)
	if err != nil {
		return View{}, sh.failed(err)
	}
	if ok {
		v.Migrated, v.Job, v.Set, v.Number, v.Count = true, m.job, m.set, m.number, m.count
	}
	if v.Lanes, err = laneRows(ctx, c, topic); err != nil {
		return View{}, sh.failed(err)
	}
	if v.Prepared, err = listed(ctx, c); err != nil {
		return View{}, sh.xaProblem(ctx, c, err)
	}
	return v, nil
}

// laneRows reads the rows of a topic's lanes; none where there is no table.
func laneRows(ctx context.Context, c *sql.Conn, topic string) (lanes map[int32]checkpoint.LaneRow, err error) {
	lanes = map[int32]checkpoint.LaneRow{}
	rows, err := c.QueryContext(ctx, "SELECT kafka_partition, incarnation, seq, offset_next FROM billing_lane WHERE kafka_topic = "+hexLiteral(topic))
	if isAnswer(err, errNoSuchTable) {
		return lanes, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read billing_lane: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var partition int32
		var row checkpoint.LaneRow
		if err := rows.Scan(&partition, &row.Incarnation, &row.Seq, &row.Next); err != nil {
			return nil, fmt.Errorf("read billing_lane: %w", err)
		}
		lanes[partition] = row
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read billing_lane: %w", err)
	}
	return lanes, nil
}
