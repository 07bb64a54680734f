package measure

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// recorder stands in for the test that a benchmark is: it keeps failures, and
// ends when it is told.
type recorder struct {
	testing.TB
	errors []string
	ends   []func()
}

func (r *recorder) Helper()           {}
func (r *recorder) Failed() bool      { return len(r.errors) > 0 }
func (r *recorder) Cleanup(fn func()) { r.ends = append(r.ends, fn) }
func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	panic(r)
}

// fails is what do fails with; it must not go on behind it.
func (r *recorder) fails(do func()) (with string) {
	defer func() {
		if p := recover(); p == r {
			with = r.errors[len(r.errors)-1]
		} else if p != nil {
			panic(p)
		}
	}()
	do()
	return ""
}

func (r *recorder) end() {
	for _, fn := range slices.Backward(r.ends) {
		fn()
	}
}

// started is a report of a recorder, what it prints, and where it writes.
func started(t *testing.T, mode string) (*recorder, *Report, *bytes.Buffer, string) {
	t.Helper()
	out := t.TempDir()
	t.Setenv(modeVariable, mode)
	t.Setenv(outVariable, out)
	rec := &recorder{TB: t}
	r := New(rec, "thing")
	var printed bytes.Buffer
	r.out = &printed
	return rec, r, &printed, out
}

func TestNumber(t *testing.T) {
	for _, c := range []struct {
		v    float64
		want string
	}{
		{0, "0"}, {1, "1"}, {46.4123, "46.4"}, {0.012345, "0.0123"}, {999.4, "999"}, {999.6, "999.6"}, {1000, "1,000"}, {1454.4, "1,454"},
		{812345, "812,300"}, {1_234_567, "1,235,000"}, {10_000_000, "10,000,000"}, {-1454, "-1,454"}, {-145, "-145"}, {1e-7, "0.0000001"},
	} {
		if got := Number(c.v); got != c.want {
			t.Errorf("%v is written %s, want %s", c.v, got, c.want)
		}
	}
}

// A target is held against the median; one that is just reached is met.
func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		values []float64
		target Target
		want   string
	}{
		{[]float64{1, 9, 5}, AtLeast(5), "pass"},
		{[]float64{9, 1, 4, 9, 2}, AtLeast(5), "FAIL"},
		{[]float64{5}, AtMost(5), "pass"},
		{[]float64{1, 6, 7}, AtMost(5), "FAIL"},
		{[]float64{-1}, AtMost(0), "pass"},
		{[]float64{0}, AtLeast(1), "FAIL"},
		{[]float64{1}, Target{}, "-"},
	} {
		f := Figure{Values: c.values, Target: c.target}
		if got := f.verdict(); got != c.want {
			t.Errorf("%v, %s: %s, want %s", c.values, c.target.sign(), got, c.want)
		}
	}
}

// A full run prints each figure at once, and fails at its end, when everything
// is written.
func TestFullRunHoldsTargets(t *testing.T) {
	for _, c := range []struct {
		name   string
		target Target
		want   []string
	}{
		{"met", AtLeast(800_000), nil},
		{"missed", AtLeast(900_000), []string{"thing: rate is 812,300 msgs/CPU-s, the target is at least 900,000"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec, r, printed, out := started(t, "full")
			r.Uses("Kafka", "4.1.0")
			r.Figure(Figure{Name: "rate", Unit: "msgs/CPU-s", Values: []float64{812345, 798_000, 1_024_000.4999}, Target: c.target, From: "a test"})
			r.Figure(Figure{Name: "other", Unit: "bytes", Values: []float64{3}, Note: "told only"})
			verdict := map[bool]string{true: "pass", false: "FAIL"}[c.want == nil]
			want := "rate                                  812,300 798,000 - 1,024,000     msgs/CPU-s  >= " + Number(c.target.Value) + "   " + verdict + "\n" +
				"other                                       3 -                       bytes                    -\n"
			if printed.String() != want || len(rec.errors) != 0 {
				t.Errorf("printed\n%swant\n%sfailures %q", printed, want, rec.errors)
			}
			rec.end()
			if !slices.Equal(rec.errors, c.want) {
				t.Errorf("it fails with %q, want %q", rec.errors, c.want)
			}
			if last := "thing: " + map[bool]string{true: "1", false: "0"}[c.want == nil] + " of 1 targets met\n"; !strings.HasSuffix(printed.String(), last) {
				t.Errorf("printed\n%swithout\n%s", printed, last)
			}
			text, err := os.ReadFile(filepath.Join(out, resultsFolder, "thing.json"))
			if err != nil {
				t.Fatal(err)
			}
			var stored Result
			if err := json.Unmarshal(text, &stored); err != nil {
				t.Fatal(err)
			}
			again, err := json.MarshalIndent(stored, "", "  ")
			if err != nil || string(again)+"\n" != string(text) {
				t.Errorf("stored\n%s, read again\n%s (%v)", text, again, err)
			}
			if f := stored.Figures[0]; !slices.Equal(f.Values, []float64{812345, 798_000, 1.024e6}) || stored.Run.Servers[0] != "Kafka 4.1.0" || stored.Run.Rounds != 5 {
				t.Errorf("stored %+v", stored)
			}
			if _, err := os.Stat(filepath.Join(out, documentName)); err != nil {
				t.Error(err)
			}
		})
	}
}

// No test asserts a time, and a run that broke has no results.
func TestWhatWritesNothing(t *testing.T) {
	for _, c := range []struct {
		name, mode string
		broken     bool
	}{{"smoke", "", false}, {"broken", "full", true}} {
		t.Run(c.name, func(t *testing.T) {
			rec, r, printed, out := started(t, c.mode)
			r.Figure(Figure{Name: "rate", Unit: "x", Values: []float64{1}, Target: AtLeast(2), From: "a test"})
			if c.broken {
				rec.Errorf("the benchmark itself")
			}
			failed := len(rec.errors)
			rec.end()
			if len(rec.errors) != failed {
				t.Errorf("it fails with %q", rec.errors)
			}
			if found, err := os.ReadDir(out); err != nil || len(found) != 0 {
				t.Errorf("it wrote %v (%v)", found, err)
			}
			if !c.broken && strings.Contains(printed.String(), "FAIL") {
				t.Errorf("printed\n%s", printed)
			}
		})
	}
}

// What a benchmark must not do ends it, with a word on what to change.
func TestMisuse(t *testing.T) {
	rec, r, _, _ := started(t, "")
	one := []float64{1}
	zero := 0.0
	r.Figure(Figure{Name: "twice", Unit: "x", Values: one})
	for name, do := range map[string]func(){
		"no values":     func() { r.Figure(Figure{Name: "a", Unit: "x"}) },
		"no number":     func() { r.Figure(Figure{Name: "a", Unit: "x", Values: []float64{zero / zero}}) },
		"two figures":   func() { r.Figure(Figure{Name: "twice", Unit: "x", Values: one}) },
		"target from":   func() { r.Figure(Figure{Name: "a", Unit: "x", Values: one, Target: AtMost(1)}) },
		"wide":          func() { r.Figure(Figure{Name: strings.Repeat("a", 81), Unit: "x", Values: one}) },
		"name":          func() { New(rec, "No Name") },
		"name of plot":  func() { r.Bars(Bars{Name: "../x"}) },
		"empty bar":     func() { r.Bars(Bars{Name: "x", Groups: []Group{{Bars: []Bar{{Label: "none"}}}}}) },
		"uneven series": func() { r.Lines(Lines{Name: "x", Series: []Series{{X: one}}}) },
		"two plots": func() {
			r.Histograms(HistoPlot{Name: "same"})
			r.Lines(Lines{Name: "same", Series: []Series{{X: one, Y: one}}})
		},
	} {
		if rec.fails(do) == "" {
			t.Errorf("%s: it goes on", name)
		}
	}
}

// Everything that can be printed in 100 columns is as wide as its neighbours.
func TestLinesHaveOneWidth(t *testing.T) {
	line := columns(strings.Repeat("n", nameWidth), "10,000,000", "10,000,000 - 10,000,000", strings.Repeat("u", unitWidth), ">= 1,000,000", "pass")
	if n := utf8.RuneCountInString(line); n > maxColumns {
		t.Errorf("%d columns:\n%s", n, line)
	}
}

// Things alternate, and ratios are of one round.
func TestAlternate(t *testing.T) {
	rec, r, _, _ := started(t, "full")
	var order []string
	round := map[string]float64{}
	thing := func(name string, factor float64) Thing {
		return Thing{Name: name, Run: func() Values {
			order = append(order, name)
			round[name]++
			return Values{"rate": factor * round[name]}
		}}
	}
	rounds := r.Alternate(thing("a", 10), thing("b", 5), thing("c", 1))
	if got := strings.Join(order, ""); got != "abc"+"cba"+"abc"+"cba"+"abc" {
		t.Errorf("they ran as %s", got)
	}
	if got := rounds.Of("b", "rate"); !slices.Equal(got, []float64{5, 10, 15, 20, 25}) {
		t.Errorf("values %v", got)
	}
	if got := rounds.Ratio("a", "b", "rate"); !slices.Equal(got, []float64{2, 2, 2, 2, 2}) {
		t.Errorf("ratios %v", got)
	}
	for _, do := range []func(){func() { rounds.Of("d", "rate") }, func() { rounds.Of("a", "other") }} {
		if rec.fails(do) == "" {
			t.Error("it gives values of what was not measured")
		}
	}
}

// The processor time of this process goes on while it works, and its thread's
// is a part of it.
func TestCPU(t *testing.T) {
	start := CPU()
	for x := uint64(1); CPU()-start < 20e6; x *= 3 {
		_, _ = io.Discard.Write([]byte{byte(x)})
	}
	if own, all := ThreadCPU(), CPU(); own <= 0 || own > all {
		t.Errorf("the thread has used %v of %v", own, all)
	}
}

func TestKernelNumber(t *testing.T) {
	for release, want := range map[string]string{"6.18.44-of-somebody-1\n": "6.18.44", "6.18.44\n": "6.18.44", "": ""} {
		if got := kernelNumber(release); got != want {
			t.Errorf("%q: got %q, want %q", release, got, want)
		}
	}
}
