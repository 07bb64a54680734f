package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// prepareToPlant makes a copied world ready: nothing stops an error, and every
// table is saved beside itself.
func (w *world) prepareToPlant() {
	w.t.Helper()
	w.loosen()
	for i, db := range w.shards {
		for _, name := range column(w.t, db, "SELECT DISTINCT c.table_name"+fromTables) {
			w.exec(i, "CREATE TABLE saved_"+name+" LIKE "+name)
			w.exec(i, "INSERT INTO saved_"+name+" SELECT * FROM "+name)
		}
	}
}

// must changes exactly one row.
func (p *planting) must(w *world, statement string) error {
	result, err := w.shards[p.shard].Exec(statement)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", p, statement, err)
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("%s: %s: %d rows changed (%w)", p, statement, n, err)
	}
	return nil
}

// restore takes the error back; the table is then what it was.
func (p *planting) restore(w *world) error {
	for _, statement := range p.undo {
		if err := p.must(w, statement); err != nil {
			return err
		}
	}
	rows, err := w.shards[p.shard].Query("CHECKSUM TABLE " + p.table + ", saved_" + p.table)
	if err != nil {
		return err
	}
	defer rows.Close()
	var sums []int64
	for rows.Next() {
		var name string
		var sum int64
		if err := rows.Scan(&name, &sum); err != nil {
			return err
		}
		sums = append(sums, sum)
	}
	if err := rows.Err(); err != nil || len(sums) != 2 || sums[0] != sums[1] {
		return fmt.Errorf("%s: it was not restored exactly: %v, %w", p, sums, err)
	}
	return nil
}

// named says whether verify names the row; one whose total_key was changed may go by
// the key that it has now.
func (p *planting) named(v *verified) bool {
	return v.has(p.shard, p.table, p.key) || p.column == "total_key" && v.has(p.shard, p.table, p.now)
}

// found is the judgement of verify on a planted error: it names the row that had
// it, and no other shard.
func (p *planting) found(v *verified) error {
	if v.code != 1 {
		return fmt.Errorf("%s: not found: %s", p, v)
	}
	if !p.named(v) {
		return fmt.Errorf("%s: the row is not named: %s", p, v)
	}
	if p.step == deleted && !slices.ContainsFunc(v.Differences, func(d wrongRow) bool {
		return d.Table == p.table && d.names(p.key) && strings.HasPrefix(d.Wrong, "there is no row")
	}) {
		return fmt.Errorf("%s: it is not said that the row is gone: %s", p, v)
	}
	if len(v.Differences) > 4 {
		return fmt.Errorf("%s: one row is wrong, and too much is said: %s", p, v)
	}
	for _, d := range v.Differences {
		if d.Shard != fmt.Sprint("s", p.shard) {
			return fmt.Errorf("%s: a shard is named that is right: %+v", p, d)
		}
	}
	return nil
}

// planted takes the plantings one after the other: each is found, and when it is
// taken back all is well again. Its error ends it.
func (w *world) planted(ctx context.Context, all <-chan planting) (tried int, most int, err error) {
	well := func() error {
		v, err := w.verify(ctx)
		if err == nil && v.code != 0 {
			err = fmt.Errorf("all is as it was, and it says %s", v)
		}
		return err
	}
	const wellEvery, enough = 15, 10
	unfound := 0
	for p := range all {
		if err := p.must(w, p.plant); err != nil {
			return tried, most, err
		}
		v, err := w.verify(ctx)
		if ctx.Err() != nil {
			return tried, most, nil //nolint:nilerr // another one has failed
		}
		if err != nil {
			return tried, most, fmt.Errorf("%s: %w", &p, err)
		}
		if err := p.found(v); err != nil {
			w.t.Error(err)
			if unfound++; unfound == enough {
				return tried, most, errors.New("that is enough")
			}
		}
		if p.step == deleted { // a few for each table
			text, err := w.verifyText(ctx)
			if err == nil {
				err = v.compareText(text)
			}
			if err != nil {
				return tried, most, fmt.Errorf("%s: %w", &p, err)
			}
		}
		most = max(most, len(v.Differences))
		if err := p.restore(w); err != nil {
			return tried, most, err
		}
		if tried++; tried%wellEvery == 0 {
			if err := well(); err != nil {
				return tried, most, fmt.Errorf("after %s: %w", &p, err)
			}
		}
	}
	return tried, most, well()
}

// everything: BILLING_TEST_VERIFY=all.
func everything() bool { return os.Getenv("BILLING_TEST_VERIFY") == "all" }

// TestVerifyFindsEveryError plants every single error that a row can have, in
// every table of every shard. `make test` takes a part of them, BILLING_TEST_VERIFY=all
// takes all.
func TestVerifyFindsEveryError(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{2, 3} {
		t.Run(fmt.Sprint(shards, " shards"), func(t *testing.T) {
			t.Parallel()
			original := rich(t, shards)
			original.mustVerify(t, 0)
			plan := original.plan()
			all := len(plan)
			if !everything() {
				plan = part(plan)
			}
			if shards == 3 { // the third is no other than the second
				plan = slices.DeleteFunc(part(plan), func(p planting) bool { return p.shard != 2 })
			}
			next := make(chan planting)
			const atOnce = 4
			var workers sync.WaitGroup
			errs := make([]error, atOnce)
			tried, most := make([]int, atOnce), make([]int, atOnce)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for i := range atOnce {
				w := original.copied(t)
				w.prepareToPlant()
				workers.Go(func() {
					if tried[i], most[i], errs[i] = w.planted(ctx, next); errs[i] != nil {
						cancel()
					}
				})
			}
			for _, p := range plan {
				select {
				case next <- p:
				case <-ctx.Done():
				}
			}
			close(next)
			workers.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			sum := 0
			for _, n := range tried {
				sum += n
			}
			t.Logf("%d of %d errors tried, each found; at most %d differences were said of one", sum, all, slices.Max(most))
			if sum != len(plan) {
				t.Errorf("%d tried, %d planned", sum, len(plan))
			}
		})
	}
}

// TestVerifyLetsOperatorsWork: what operators may change, and what only tells when
// something was written, is no error.
func TestVerifyLetsOperatorsWork(t *testing.T) {
	t.Parallel()
	w := rich(t, 2)
	for i, db := range w.shards {
		for _, c := range column(t, db, "SELECT CONCAT(c.table_name, ' SET ', c.column_name, ' = ', CASE WHEN c.data_type = 'datetime' THEN 'NOW(6)' ELSE '''waived''' END)"+fromTables+" AND "+exemptColumn) {
			w.exec(i, "UPDATE "+c)
		}
	}
	w.mustVerify(t, 0)
}
