package e2e

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func (w *world) verifyAnswer(answer []byte) *verified {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "answer.json")
	if err := os.WriteFile(file, answer, 0o600); err != nil {
		w.t.Fatal(err)
	}
	v, err := w.verify(w.t.Context(), "--answer", file)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// mustVerifyAnswer waits until a load is booked, and fails unless it is as the
// load's answer says.
func (w *world) mustVerifyAnswer(answer []byte) {
	w.t.Helper()
	if v := w.verifyAnswer(answer); !v.OK || !v.AnswerCompared {
		w.t.Errorf("a load that is right, compared %t: %s", v.AnswerCompared, v)
	}
}

// Whatever in an answer is not what the tables have is a difference that names it,
// and so is what the tables have and the answer does not.
func TestVerifyAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(2))
	service := w.run("")
	load := w.startProduce(strings.Fields("--count 3000 --duplicates 0.2 --bad 0.1 --seed 11")...)
	load.answer()
	right := load.out.Bytes()
	w.mustVerifyAnswer(right)
	service.stop()

	type object = map[string]any
	for name, c := range map[string]struct {
		change func(answer object, totals []any) []any
		says   []string // of each of the differences
	}{
		"an amount": {func(_ object, totals []any) []any {
			totals[7].(object)["charge_amount"] = "0.000000000001"
			return totals
		}, []string{"billing_totals, account"}},
		"a count of entries": {func(_ object, totals []any) []any {
			totals[0].(object)["entry_count"] = 1e6
			return totals
		}, []string{"entries 1000000, by"}},
		"a total that is missing": {func(_ object, totals []any) []any { return totals[1:] }, []string{"no such row, by"}},
		"a total too many": {func(_ object, totals []any) []any {
			more := maps.Clone(totals[3].(object))
			more["account_id"] = "nobody"
			return append(totals, more)
		}, []string{"account nobody"}},
		"another account": {func(_ object, totals []any) []any {
			totals[3].(object)["account_id"] = "nobody"
			return totals
		}, []string{"no such row, by", "there is no row"}},
		"an outcome": {func(a object, totals []any) []any {
			o := a["outcomes"].(object)
			o["applied"], o["duplicate"] = o["applied"].(float64)+1, o["duplicate"].(float64)-1
			return totals
		}, []string{"applied: there are", "duplicates: there are"}},
		"a reason": {func(a object, totals []any) []any {
			reasons := a["reasons"].(object)
			reasons[slices.Sorted(maps.Keys(reasons))[0]], reasons["made_up"] = 0, 2
			return totals
		}, []string{"reason ", "reason made_up: there are 0; expected 2"}},
		"messages that never came": {func(a object, totals []any) []any {
			o := a["outcomes"].(object)
			a["messages"], o["applied"] = 3001, o["applied"].(float64)+1
			return totals
		}, []string{"records_in: 3000 are accounted for"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var a object
			if err := json.Unmarshal(right, &a); err != nil {
				t.Fatal(err)
			}
			a["totals"] = c.change(a, a["totals"].([]any))
			wrong, err := json.Marshal(a)
			if err != nil {
				t.Fatal(err)
			}
			v := w.verifyAnswer(wrong)
			var lines []string
			for _, d := range v.Differences {
				lines = append(lines, d.Table+", "+d.Key+": "+d.Wrong+"; expected "+d.Expected)
			}
			slices.Sort(lines)
			if v.code != 1 || len(lines) != len(c.says) {
				t.Fatal(v)
			}
			for _, says := range c.says {
				if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, says) }) {
					t.Errorf("nothing says %q: %q", says, lines)
				}
			}
		})
	}
}
