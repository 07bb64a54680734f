package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const ledgerOff = "ledger:\n  enabled: false\n"

// rounds runs the service for so many rounds of the rich load.
func (w *world) rounds(n int) {
	w.t.Helper()
	s := w.run("")
	for range n {
		w.sendRich()
		w.waitAccounted()
	}
	s.stop()
}

// sumsOnly says that the totals could not be held against the ledger.
func (v *verified) sumsOnly() bool { return v.noted("totals", "sums") }

// TestVerifyWithTheLedgerOff: the totals are then the sums' and no more is known,
// which it says; everything else is found as ever. The ledger may be switched off
// and on again.
func TestVerifyWithTheLedgerOff(t *testing.T) {
	t.Parallel()
	for name, runs := range map[string][]bool{
		"on":          {true},
		"off":         {false},
		"off and on":  {false, true},
		"on and off":  {true, false},
		"on, off, on": {true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, withPartitions(2))
			for _, on := range runs {
				if plain := strings.ReplaceAll(string(w.configuration()), ledgerOff, ""); on {
					w.configure([]byte(plain))
				} else {
					w.configure([]byte(plain + ledgerOff))
				}
				w.rounds(2)
				v := w.mustVerify(t, 0)
				if off := slices.Contains(runs, false) && len(column(t, w.shards[0], "SELECT 1 FROM billing_epoch WHERE ledger_on = 0")) > 0; v.sumsOnly() != off {
					t.Errorf("epochs without a ledger: %t, and it says %s", off, v)
				}
			}
		})
	}
}

// TestVerifyFindsErrorsWithTheLedgerOff plants what TestVerifyFindsEveryError
// plants, in tables of which some epochs have no ledger.
func TestVerifyFindsErrorsWithTheLedgerOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(2))
	w.rounds(2)
	w.edit("checkpoint:\n", ledgerOff+"checkpoint:\n")
	w.rounds(2)
	plan := w.plan()
	if !everything() {
		plan = part(plan)
	}
	w.prepareToPlant()

	// The columns of a total that its key is not made of, and the sums do not have.
	unknown := func(p planting) bool { return p.table == "billing_total" && p.column == "quantity" }
	for i := range plan {
		p := &plan[i]
		// One shard is enough, and some errors of the other tables.
		if p.shard != 0 || p.table != "billing_total" && i%4 != 0 {
			continue
		}
		if err := p.must(w, p.plant); err != nil {
			t.Fatal(err)
		}
		switch v, err := w.verify(t.Context()); {
		case err != nil:
			t.Fatal(err)
		case unknown(*p):
			if v.code != 0 || !v.sumsOnly() {
				t.Errorf("%s: nobody can know it, and it says %s", p, v)
			}
		case p.table == "billing_total" && (p.step == deleted || p.column == "charge_amount" || p.column == "credit_amount" || p.column == "entry_count"):
			// Which one it was nobody knows.
			if v.code != 1 || !slices.ContainsFunc(v.Differences, func(d wrongRow) bool { return d.Shard == "s0" && d.Table == p.table }) {
				t.Errorf("%s: not found: %s", p, v)
			}
		default:
			if err := p.found(v); err != nil {
				t.Error(err)
			}
		}
		if err := p.restore(w); err != nil {
			t.Fatal(err)
		}
	}
	w.mustVerify(t, 0)

	// A row that no epoch without a ledger can have.
	w.exec(0, fmt.Sprintf("UPDATE billing_ledger SET seq = (SELECT MIN(seq) FROM billing_epoch WHERE ledger_on = 0) WHERE %s ORDER BY kafka_offset LIMIT 1", w.laneIs(0)))
	w.mustVerify(t, 1)
}
