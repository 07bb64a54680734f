package audit

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"billing/internal/loadgen"
)

// everyShard stands where a difference is of no shard alone.
const everyShard = "(all)"

// awaitLoad returns when every shard has accounted for all messages of the answer,
// or when nothing has moved for three times the patience: an instance that takes
// over from one that died needs longer than shards that are an epoch apart.
func (v *verifier) awaitLoad(ctx context.Context) error {
	if v.cfg.Answer == nil {
		return nil
	}
	var conns []*sql.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for i := range v.cfg.Shards {
		c, err := v.cfg.MySQL.Reader(ctx, i)
		if err != nil {
			return err
		}
		conns = append(conns, c)
	}
	last, moved := int64(-1), time.Now()
	for {
		least := int64(-1) // every shard has every epoch: the last one to commit it counts
		for _, c := range conns {
			var n int64
			if err := c.QueryRowContext(ctx, "SELECT COALESCE(SUM(records_in), 0) FROM billing_epoch").Scan(&n); err != nil {
				return ctx.Err() // what is wrong with the shard is for the steps behind to say
			}
			if least < 0 || n < least {
				least = n
			}
		}
		if least != last {
			last, moved = least, time.Now()
		}
		if least >= v.cfg.Answer.Messages || time.Since(moved) > 3*v.cfg.Patience {
			return nil
		}
		v.told.progress("waiting for the load", least, v.cfg.Answer.Messages)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second): // it reads all epochs
		}
	}
}

// answer holds what the tables have against what a load says must be in them.
func (v *verifier) answer(ctx context.Context) error {
	a := v.cfg.Answer
	if a == nil {
		return nil
	}
	if v.sum.Outcomes.RecordsIn < a.Messages {
		v.told.difference(Difference{everyShard, tableEpoch, "records_in", fmt.Sprintf("%d are accounted for, and nothing has moved for %s", v.sum.Outcomes.RecordsIn, 3*v.cfg.Patience),
			fmt.Sprintf("%d, the messages of the load: is the service at work? billing status says what a lane waits for", a.Messages)})
		return nil // what is missing would be told row by row
	}
	if more := v.sum.Outcomes.RecordsIn - a.Messages; more > 0 {
		v.told.note("%d more messages are booked than the load has: its answer is right for a topic and a job of its own", more)
	}
	o, want := &v.sum.Outcomes, &a.Outcomes
	for _, c := range []struct {
		column      string
		found, want int64
	}{
		{"applied", o.Applied, want.Applied}, {"duplicates", o.Duplicates, want.Duplicate},
		{"conflicts", o.Conflicts, want.Conflict}, {"rejected", o.Rejected, want.Rejected},
	} {
		v.sameCount(tableEpoch, c.column, c.found, c.want)
	}

	found, err := v.keptByReason(ctx)
	if err != nil {
		return err
	}
	kept := maps.Clone(a.Reasons)
	if want.Conflict > 0 {
		kept["conflict"] = want.Conflict
	}
	all := maps.Clone(kept)
	maps.Copy(all, found)
	for _, reason := range slices.Sorted(maps.Keys(all)) {
		v.sameCount(tableReject, "reason "+Printable(reason), found[reason], kept[reason])
	}
	if err := v.sameTotals(ctx); err != nil {
		return err
	}
	v.sum.Answered = true
	return nil
}

func (v *verifier) sameCount(table, key string, found, want int64) {
	if found != want {
		v.told.difference(Difference{everyShard, table, key, "there are " + strconv.FormatInt(found, 10), strconv.FormatInt(want, 10) + ", by the load's answer"})
	}
}

func (v *verifier) keptByReason(ctx context.Context) (map[string]int64, error) {
	kept := map[string]int64{}
	for _, s := range v.shards {
		err := s.scan(ctx, func(r row) error {
			kept[r.text(0)] += r.int(1)
			return nil
		}, "SELECT IF(kind = 'conflict', kind, reason), COUNT(*) FROM billing_rejects GROUP BY 1")
		if err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// sameTotals reads the view that users read, so that it is looked at, too.
func (v *verifier) sameTotals(ctx context.Context) error {
	open := make(map[loadgen.Total]*loadgen.Total, len(v.cfg.Answer.Totals)) // by the columns that name the row
	for i := range v.cfg.Answer.Totals {
		t := &v.cfg.Answer.Totals[i]
		open[rowOf(t)] = t
	}
	for _, s := range v.shards {
		err := s.scan(ctx, func(r row) error {
			t := loadgen.Total{TenantID: r.text(0), AccountID: r.text(1), SKU: r.text(2), Unit: r.text(3), Currency: r.text(4), WindowStart: r.text(5), BookedPeriod: r.text(6),
				ChargeAmount: r.text(7), CreditAmount: r.text(8), NetAmount: r.text(9), Quantity: r.text(10), EntryCount: r.int(11)}
			key := rowOf(&t)
			want, known := open[key]
			delete(open, key)
			switch {
			case !known:
				v.told.difference(Difference{s.name, viewTotals, totalName(&t), "it has " + totalValues(&t), "no such row, by the load's answer"})
			case *want != t:
				v.told.difference(Difference{s.name, viewTotals, totalName(&t), "it has " + totalValues(&t), totalValues(want) + ", by the load's answer"})
			}
			return nil
		}, `SELECT tenant_id, account_id, sku, unit, currency, CAST(window_start AS CHAR), booked_period,
			CAST(charge_amount AS CHAR), CAST(credit_amount AS CHAR), CAST(net_amount AS CHAR), CAST(quantity AS CHAR), entry_count FROM billing_totals`)
		if err != nil {
			return err
		}
	}
	for i := range v.cfg.Answer.Totals {
		if t := &v.cfg.Answer.Totals[i]; open[rowOf(t)] == t {
			v.told.difference(Difference{everyShard, viewTotals, totalName(t), "there is no row", totalValues(t) + ", by the load's answer"})
		}
	}
	return nil
}

const viewTotals = "billing_totals"

// rowOf is what names the row: all but the values.
func rowOf(t *loadgen.Total) loadgen.Total {
	return loadgen.Total{TenantID: t.TenantID, AccountID: t.AccountID, SKU: t.SKU, Unit: t.Unit, Currency: t.Currency, WindowStart: t.WindowStart, BookedPeriod: t.BookedPeriod}
}

func totalName(t *loadgen.Total) string {
	return fmt.Sprintf("account %s sku %s unit %s %s window %s", Printable(t.AccountID), Printable(t.SKU), Printable(t.Unit), t.Currency, t.WindowStart)
}

func totalValues(t *loadgen.Total) string {
	return fmt.Sprintf("charges %s, credits %s, net %s, quantity %s, entries %d", t.ChargeAmount, t.CreditAmount, t.NetAmount, t.Quantity, t.EntryCount)
}
