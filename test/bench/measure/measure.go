package measure

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// modeVariable says how large the benchmarks are, outVariable where a full run
// writes to.
const (
	modeVariable = "BILLING_BENCH"
	outVariable  = "BILLING_BENCH_OUT"
)

// fullRuns is the number of rounds of a full run: enough for a median and a
// spread, and few enough to be run again.
const fullRuns = 5

// A line of the report has columns of these widths, and at most 100 in all, whatever
// the values are.
const (
	nameWidth, unitWidth = 34, 11
	maxColumns           = 100
)

// Full is true where benchmarks run at the published size.
func Full() bool { return os.Getenv(modeVariable) == "full" }

// Runs is how often each thing runs.
func Runs() int { return Pick(fullRuns, 1) }

// Pick is the first number at the published size, otherwise the second one.
func Pick(full, smoke int) int {
	if Full() {
		return full
	}
	return smoke
}

// Target is what a figure shall reach; the zero value is none.
type Target struct {
	Bound string  `json:"bound"` // "at least" or "at most"
	Value float64 `json:"value"`
}

const (
	atLeast = "at least"
	atMost  = "at most"
)

// AtLeast is a target for what shall be large.
func AtLeast(v float64) Target { return Target{atLeast, v} }

// AtMost is a target for what shall be small.
func AtMost(v float64) Target { return Target{atMost, v} }

func (t Target) none() bool { return t == Target{} }

func (t Target) met(v float64) bool {
	return t.none() || t.Bound == atLeast && v >= t.Value || t.Bound == atMost && v <= t.Value
}

// sign is the target in the report's line.
func (t Target) sign() string {
	switch t.Bound {
	case atLeast:
		return ">= " + Number(t.Value)
	case atMost:
		return "<= " + Number(t.Value)
	default:
		return ""
	}
}

// Figure is one number that was measured, once for each run. Its median is what
// the target is for.
type Figure struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Target Target    `json:"target,omitzero"`
	From   string    `json:"from,omitempty"` // where the target comes from
	Note   string    `json:"note,omitempty"` // what a reader has to know
	Values []float64 `json:"values"`
}

// Median is the middle of the values: the upper one of two.
func (f *Figure) Median() float64 { return median(f.Values) }

// spread is the smallest and the largest value.
func (f *Figure) spread() string {
	if len(f.Values) < 2 {
		return "-"
	}
	return Number(slices.Min(f.Values)) + " - " + Number(slices.Max(f.Values))
}

// verdict is pass, FAIL, or - where there is no target.
func (f *Figure) verdict() string {
	switch {
	case f.Target.none():
		return "-"
	case f.Target.met(f.Median()):
		return "pass"
	default:
		return "FAIL"
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// Number is a figure for a person: three digits that count, four from a
// thousand on.
func Number(v float64) string {
	digits := 3
	if math.Abs(v) >= 999.5 {
		digits = 4
	}
	s := strconv.FormatFloat(rounded(v, digits), 'f', -1, 64)
	whole, rest, fraction := strings.Cut(s, ".")
	first := 0
	if strings.HasPrefix(whole, "-") {
		first = 1
	}
	for i := len(whole) - 3; i > first; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if fraction {
		return whole + "." + rest
	}
	return whole
}

// rounded keeps so many digits that count.
func rounded(v float64, digits int) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', digits, 64), 64)
	if err != nil {
		panic(err) // of what FormatFloat has made
	}
	return r
}

// Result is what a benchmark found, as it is stored.
type Result struct {
	Name       string      `json:"name"`
	Machine    Machine     `json:"machine"`
	Run        Run         `json:"run"`
	Figures    []Figure    `json:"figures"`
	Bars       []Bars      `json:"bars,omitempty"`
	Lines      []Lines     `json:"lines,omitempty"`
	Histograms []HistoPlot `json:"histograms,omitempty"`
}

// targets counts the figures with a target, and those that meet it.
func (r *Result) targets() (met, all int) {
	for i := range r.Figures {
		switch r.Figures[i].verdict() {
		case "pass":
			met++
			all++
		case "FAIL":
			all++
		}
	}
	return met, all
}

// Report collects what one benchmark finds. It is used by one goroutine.
type Report struct {
	t      testing.TB
	out    io.Writer
	result Result
}

// New begins a report, which ends with the test: then the results are written
// and, in a full run, a missed target fails the test. The name is the one of the
// JSON file and of the make target.
func New(t testing.TB, name string) *Report {
	t.Helper()
	if !plainName.MatchString(name) {
		t.Fatalf("%q is no name of a benchmark: small letters and hyphens", name)
	}
	// A smoke run is silent, unless it is looked at.
	out := io.Discard
	if Full() || testing.Verbose() {
		out = os.Stdout
	}
	r := &Report{t: t, out: out, result: Result{Name: name, Machine: thisMachine(), Run: thisRun(t)}}
	size := "smoke size, no target is looked at"
	if Full() {
		size = fmt.Sprintf("full size, %d rounds, commit %s, load before %s", Runs(), r.result.Run.Commit, Number(r.result.Run.LoadBefore))
	}
	r.say("%s: %s", name, size)
	r.say("%s", columns("figure", "median", "min - max", "unit", "target", ""))
	t.Cleanup(r.finish)
	return r
}

var plainName = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// Uses tells the version of a server that takes part, as in "Kafka", "4.1.0".
func (r *Report) Uses(server, version string) {
	r.result.Run.Servers = append(r.result.Run.Servers, server+" "+version)
}

// Figure prints a figure and keeps it.
func (r *Report) Figure(f Figure) {
	r.t.Helper()
	if len(f.Values) == 0 || slices.ContainsFunc(f.Values, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }) {
		r.t.Fatalf("%s: values %v", f.Name, f.Values)
	}
	if !f.Target.none() && f.From == "" {
		r.t.Fatalf("%s has a target, and does not say where it comes from", f.Name)
	}
	if slices.ContainsFunc(r.result.Figures, func(o Figure) bool { return o.Name == f.Name }) {
		r.t.Fatalf("there are two figures %q", f.Name)
	}
	verdict := f.verdict()
	if !Full() {
		verdict = "-"
	}
	line := columns(f.Name, Number(f.Median()), f.spread(), f.Unit, f.Target.sign(), verdict)
	if utf8.RuneCountInString(f.Name) > nameWidth || utf8.RuneCountInString(f.Unit) > unitWidth {
		r.t.Fatalf("figure %q in %q: give it a name of at most %d characters and a unit of at most %d", f.Name, f.Unit, nameWidth, unitWidth)
	}
	r.say("%s", line)
	f.Values = slices.Clone(f.Values)
	for i, v := range f.Values {
		f.Values[i] = rounded(v, 6)
	}
	r.result.Figures = append(r.result.Figures, f)
}

func columns(name, mid, spread, unit, target, verdict string) string {
	return strings.TrimRight(fmt.Sprintf("%-34s %10s %-23s %-11s %-12s %s", name, mid, spread, unit, target, verdict), " ")
}

// say prints a line at once: where the numbers are wanted, someone waits for
// them.
func (r *Report) say(format string, args ...any) {
	fmt.Fprintf(r.out, format+"\n", args...)
}

// Values are what one run of a thing measured, by names of the benchmark's own.
type Values map[string]float64

// Thing is one of those that are held against each other.
type Thing struct {
	Name string
	Run  func() Values
}

// Rounds are the values of things that alternated.
type Rounds struct {
	t      testing.TB
	values map[string][]Values // by thing, one for each round
}

// Alternate runs each thing once a round, and turns their order round with each
// round: what changes on the machine meanwhile changes for all of them, and
// nobody always comes first. Each begins on a heap without garbage.
func (r *Report) Alternate(things ...Thing) *Rounds {
	out := &Rounds{t: r.t, values: map[string][]Values{}}
	order := slices.Clone(things)
	for round := range Runs() {
		for _, thing := range order {
			if Full() {
				fmt.Fprintf(os.Stderr, "%s: round %d of %d: %s\n", r.result.Name, round+1, Runs(), thing.Name)
			}
			runtime.GC()
			runtime.GC() // the second one also frees what only finalizers held
			out.values[thing.Name] = append(out.values[thing.Name], thing.Run())
		}
		slices.Reverse(order)
	}
	return out
}

// Of are a thing's values of one name, in the order of rounds.
func (r *Rounds) Of(thing, name string) []float64 {
	r.t.Helper()
	var out []float64
	for _, v := range r.values[thing] {
		value, ok := v[name]
		if !ok {
			r.t.Fatalf("%s has measured no %q", thing, name)
		}
		out = append(out, value)
	}
	if len(out) == 0 {
		r.t.Fatalf("nothing ran by the name %q", thing)
	}
	return out
}

// Ratio divides one thing's values by those of another one, round by round:
// what slowed both down in a round is in both.
func (r *Rounds) Ratio(thing, by, name string) []float64 {
	r.t.Helper()
	out, divisors := r.Of(thing, name), r.Of(by, name)
	for i := range out {
		out[i] /= divisors[i]
	}
	return out
}

// finish ends the report. A run that failed has no results.
func (r *Report) finish() {
	if r.t.Failed() || !Full() {
		return
	}
	met, all := r.result.targets()
	r.say("%s: %d of %d targets met", r.result.Name, met, all)
	if err := r.write(); err != nil {
		r.t.Errorf("the results could not be written: %v", err)
		return
	}
	for i := range r.result.Figures {
		if f := &r.result.Figures[i]; f.verdict() == "FAIL" {
			r.t.Errorf("%s: %s is %s %s, the target is %s %s", r.result.Name, f.Name, Number(f.Median()), f.Unit, f.Target.Bound, Number(f.Target.Value))
		}
	}
}

// write stores the result, and renders the document anew from all that are there.
func (r *Report) write() error {
	docs, err := docsFolder()
	if err != nil {
		return err
	}
	out := docs
	if other := os.Getenv(outVariable); other != "" {
		out = other
	}
	text, err := json.MarshalIndent(r.result, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(out, resultsFolder, r.result.Name+".json"), append(text, '\n')); err != nil {
		return err
	}
	document, err := Render(filepath.Join(docs, resultsFolder), filepath.Join(out, resultsFolder))
	if err != nil {
		return err
	}
	return document.Write(out)
}
