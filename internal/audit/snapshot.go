package audit

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"billing/internal/checkpoint"
)

// snapshot is one shard as it was at one moment: a connection in a transaction
// that only reads, REPEATABLE READ. It is used by one goroutine at a time.
type snapshot struct {
	number int
	name   string
	conn   *sql.Conn
	rows   *atomic.Int64 // read so far, of all shards

	known  bool                     // billing_meta's row has the checksum of its columns
	set    checkpoint.UUID          // from it
	sums   map[laneCurrency]*booked // of billing_epoch_sum
	sketch *sketch                  // of the totals, as the ledger has them
	part   *sketch                  // likewise, of the lane that is being read

	ledgerWrong bool // a difference in the ledger was told
}

// open takes the snapshots: first all connections, so that the moments are as
// near to each other as can be.
func (v *verifier) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	seed := maphash.MakeSeed()
	for i, name := range v.cfg.Shards {
		conn, err := v.cfg.MySQL.Reader(ctx, i)
		if err != nil {
			return err
		}
		v.shards = append(v.shards, &snapshot{
			number: i, name: name, conn: conn, rows: &v.told.rows,
			sums: map[laneCurrency]*booked{}, sketch: newSketch(seed), part: newSketch(seed),
		})
	}
	var err error
	if v.before, err = v.prepared(ctx); err != nil {
		return err
	}
	return v.each(func(s *snapshot) error {
		if _, err := s.conn.ExecContext(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"); err != nil {
			return s.failed("take a snapshot", err)
		}
		return nil
	})
}

// openWithin bounds the beginning: a server that answers nothing shows here.
const openWithin = 30 * time.Second

func (v *verifier) close() {
	for _, s := range v.shards {
		_ = s.conn.Close()
	}
}

// each runs fn for every shard side by side and waits for all.
func (v *verifier) each(fn func(s *snapshot) error) error {
	errs := make([]error, len(v.shards))
	var wg sync.WaitGroup
	for i, s := range v.shards {
		wg.Go(func() { errs[i] = fn(s) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *snapshot) failed(doing string, err error) error {
	return fmt.Errorf("shard %s: %s: %w", s.name, doing, err)
}

// row is a row's columns as the text that MySQL gives; nil is NULL. They are
// valid until the next row.
type row []sql.RawBytes

// scan runs a query and calls fn for each of its rows.
func (s *snapshot) scan(ctx context.Context, fn func(r row) error, query string, args ...any) (err error) {
	rows, err := s.conn.QueryContext(ctx, query, args...)
	if err != nil {
		return s.failed("read", err)
	}
	defer func() {
		if cerr := rows.Close(); err == nil && cerr != nil {
			err = s.failed("read", cerr)
		}
	}()
	names, err := rows.Columns()
	if err != nil {
		return s.failed("read", err)
	}
	r := make(row, len(names))
	into := make([]any, len(r))
	for i := range r {
		into[i] = &r[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return s.failed("read", err)
		}
		s.rows.Add(1)
		if err := fn(r); err != nil {
			return s.failed("read", err)
		}
	}
	if err := rows.Err(); err != nil {
		return s.failed("read", err)
	}
	return nil
}

// int is a column that is a whole number.
func (r row) int(i int) int64 {
	var n int64
	b := r[i]
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		b = b[1:]
	}
	for _, c := range b {
		n = 10*n + int64(c-'0')
	}
	if negative {
		return -n
	}
	return n
}

func (r row) text(i int) string { return string(r[i]) }

// encode appends the row as it stands in a digest: its tag and its columns, each
// with its length before it. internal/txsink has the definition.
func (r row) encode(dst []byte, tag byte) []byte {
	dst = append(dst, tag)
	for _, column := range r {
		dst = appendColumn(dst, column)
	}
	return dst
}

func appendColumn(dst, column []byte) []byte {
	if column == nil {
		return binary.BigEndian.AppendUint32(dst, 0xFFFFFFFF)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(column)))
	return append(dst, column...)
}

// Printable is a text of others for a line of output: quoted where it would not be
// seen as it is.
func Printable(s string) string {
	if q := strconv.QuoteToASCII(s); s == "" || q != `"`+s+`"` || s[0] == ' ' || s[len(s)-1] == ' ' {
		return q
	}
	return s
}

// telling tells the listener, one at a time, and counts.
type telling struct {
	to   Listener
	rows atomic.Int64

	mu                   sync.Mutex
	differences, inDoubt int64
}

func (t *telling) difference(d Difference) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.differences++
	if t.to.Difference != nil {
		t.to.Difference(d)
	}
}

func (t *telling) doubt(d InDoubt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inDoubt++
	if t.to.InDoubt != nil {
		t.to.InDoubt(d)
	}
}

func (t *telling) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.to.Note != nil {
		t.to.Note(fmt.Sprintf(format, args...))
	}
}

func (t *telling) progress(step string, done, total int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.to.Progress != nil {
		t.to.Progress(Progress{Step: step, Done: done, Total: total, Rows: t.rows.Load()})
	}
}
