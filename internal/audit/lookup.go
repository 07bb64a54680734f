package audit

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"billing/internal/event"
)

// Finder finds what became of single messages, in the tables alone. It reads
// what is committed and changes nothing.
type Finder struct {
	Topic  string
	Shards []string // names, by number
	MySQL  MySQL
}

// Entry is a row of billing_ledger: a message that is booked.
type Entry struct {
	Shard     string  `json:"shard"`
	Partition int32   `json:"kafka_partition"`
	Offset    int64   `json:"kafka_offset"`
	Seq       int64   `json:"seq"`
	Source    string  `json:"source"`
	ID        string  `json:"event_id"`
	Type      string  `json:"entry_type"`
	Account   string  `json:"account_id"`
	SKU       string  `json:"sku"`
	Unit      string  `json:"unit"`
	Currency  string  `json:"currency"`
	Amount    string  `json:"amount"`
	Quantity  *string `json:"quantity"`
	Note      *string `json:"note"`
	Occurred  string  `json:"occurred_at"`
	Window    string  `json:"window_start"`
	Period    string  `json:"booked_period"`
}

// Kept is a row of billing_rejects: a message that is not booked.
type Kept struct {
	Shard  string `json:"shard"`
	Seq    int64  `json:"seq"`
	Kind   string `json:"kind"`
	Reason string `json:"reason"`
	Detail string `json:"detail"`
	State  string `json:"state"`
}

// Epoch is the epoch that a message is in, as its shards show it.
type Epoch struct {
	Seq         int64 `json:"seq"`
	Incarnation int64 `json:"incarnation"`
	From        int64 `json:"offset_from"`
	Next        int64 `json:"offset_next"`
	LedgerOn    bool  `json:"ledger_on"`
}

// Found is what the shards have of one place of the topic.
type Found struct {
	Entries []Entry // one, if everything is right
	Kept    []Kept  // likewise
	Epoch   *Epoch  // that the place is in; nil where no shard shows one
}

const entryColumns = `kafka_partition, kafka_offset, seq, source, event_id, entry_type, account_id, sku, unit, currency,
	CAST(amount AS CHAR), CAST(quantity AS CHAR), note, CAST(occurred_at AS CHAR), CAST(window_start AS CHAR), booked_period FROM billing_ledger`

// At finds what is at a partition's offset.
func (f *Finder) At(ctx context.Context, partition int32, offset int64) (found Found, err error) {
	err = f.each(ctx, func(shard string, c *sql.Conn) error {
		const here = " WHERE kafka_topic = ? AND kafka_partition = ? AND kafka_offset = ?"
		entries, err := entries(ctx, c, shard, "SELECT "+entryColumns+here, f.Topic, partition, offset)
		if err != nil {
			return err
		}
		found.Entries = append(found.Entries, entries...)
		err = query(ctx, c, func(rows *sql.Rows) error {
			k := Kept{Shard: shard}
			err := rows.Scan(&k.Seq, &k.Kind, &k.Reason, &k.Detail, &k.State)
			found.Kept = append(found.Kept, k)
			return err
		}, "SELECT seq, kind, reason, detail, state FROM billing_rejects"+here, f.Topic, partition, offset)
		if err != nil {
			return err
		}
		// Epochs are ordered by their offsets as by their numbers, which have the
		// key. So half as many are left with each step.
		e, err := epochAt(ctx, c, f.Topic, partition, offset)
		if e != nil {
			found.Epoch = e
		}
		return err
	})
	return found, err
}

func epochAt(ctx context.Context, c *sql.Conn, topic string, partition int32, offset int64) (*Epoch, error) {
	const lane = " FROM billing_epoch WHERE kafka_topic = ? AND kafka_partition = ?"
	var least, most sql.NullInt64
	if err := c.QueryRowContext(ctx, "SELECT MIN(seq), MAX(seq)"+lane, topic, partition).Scan(&least, &most); err != nil {
		return nil, err
	}
	for low, high := least.Int64, most.Int64; least.Valid && low <= high; {
		var e Epoch
		middle := low + (high-low)/2
		err := c.QueryRowContext(ctx, "SELECT seq, incarnation, offset_from, offset_next, ledger_on"+lane+" AND seq >= ? ORDER BY seq LIMIT 1", topic, partition, middle).
			Scan(&e.Seq, &e.Incarnation, &e.From, &e.Next, &e.LedgerOn)
		switch {
		case err != nil:
			return nil, err
		case offset < e.From:
			high = middle - 1
		case offset >= e.Next:
			low = e.Seq + 1
		default:
			return &e, nil
		}
	}
	return nil, nil
}

// Event finds where an event is booked: in one place, if it was always sent to
// one partition.
func (f *Finder) Event(ctx context.Context, source, id []byte) (all []Entry, err error) {
	e := event.Event{Source: source, ID: id}
	new(event.Hasher).Hash(&e)
	err = f.each(ctx, func(shard string, c *sql.Conn) error {
		// The key begins with the lane.
		args := []any{f.Topic}
		err := query(ctx, c, func(rows *sql.Rows) error {
			var partition int32
			err := rows.Scan(&partition)
			args = append(args, partition)
			return err
		}, "SELECT kafka_partition FROM billing_lane WHERE kafka_topic = ?", f.Topic)
		if err != nil || len(args) == 1 {
			return err
		}
		in := strings.Repeat(", ?", len(args)-1)[2:]
		args = append(args, e.Key[:])
		entries, err := entries(ctx, c, shard, "SELECT "+entryColumns+" WHERE kafka_topic = ? AND kafka_partition IN ("+in+") AND dedup_key = ?", args...)
		all = append(all, entries...)
		return err
	})
	return all, err
}

// LedgerWasOff reports whether some epoch was written with the ledger off. It
// reads all epochs.
func (f *Finder) LedgerWasOff(ctx context.Context) (off bool, err error) {
	err = f.each(ctx, func(_ string, c *sql.Conn) error {
		var here bool
		err := c.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM billing_epoch WHERE kafka_topic = ? AND ledger_on = 0)", f.Topic).Scan(&here)
		off = off || here
		return err
	})
	return off, err
}

// each calls fn with a connection to each shard, one after the other.
func (f *Finder) each(ctx context.Context, fn func(shard string, c *sql.Conn) error) error {
	one := func(i int, name string) error {
		c, err := f.MySQL.Reader(ctx, i)
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // only read
		if err := fn(name, c); err != nil {
			return fmt.Errorf("shard %s: read: %w", name, err)
		}
		return nil
	}
	for i, name := range f.Shards {
		if err := one(i, name); err != nil {
			return err
		}
	}
	return nil
}

func entries(ctx context.Context, c *sql.Conn, shard, statement string, args ...any) (all []Entry, err error) {
	err = query(ctx, c, func(rows *sql.Rows) error {
		e := Entry{Shard: shard}
		err := rows.Scan(&e.Partition, &e.Offset, &e.Seq, &e.Source, &e.ID, &e.Type, &e.Account, &e.SKU, &e.Unit, &e.Currency,
			&e.Amount, &e.Quantity, &e.Note, &e.Occurred, &e.Window, &e.Period)
		all = append(all, e)
		return err
	}, statement, args...)
	return all, err
}

func query(ctx context.Context, c *sql.Conn, scan func(*sql.Rows) error, statement string, args ...any) error {
	rows, err := c.QueryContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
