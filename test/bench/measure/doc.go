// Package measure is what the benchmarks of test/bench are built on: sizes and
// rounds, figures with targets, two things that alternate in one run, plots, and
// the document that is made of the results.
//
// # One benchmark
//
//	func TestBenchThing(t *testing.T) {
//		r := measure.New(t, "thing")
//		n := measure.Pick(1_000_000, 10_000)
//		rounds := r.Alternate(
//			measure.Thing{Name: "ours", Run: func() measure.Values { ... return measure.Values{"rate": ...} }},
//			measure.Thing{Name: "theirs", Run: ...},
//		)
//		r.Figure(measure.Figure{Name: "ours", Unit: "msgs/CPU-s", Values: rounds.Of("ours", "rate"),
//			Target: measure.AtLeast(800_000), From: "where this number comes from"})
//		r.Figure(measure.Figure{Name: "ours against theirs", Unit: "times", Values: rounds.Ratio("ours", "theirs", "rate")})
//	}
//
// In a plain go test it runs at smoke size, in one round, and no target is looked
// at: a test asserts counts, never times. With BILLING_BENCH=full it runs at the
// published size, in five rounds; when everything is printed and written, it
// fails if a target is missed.
//
// # What is written
//
// A full run writes docs/benchmarks/NAME.json and renders docs/benchmarks.md and
// the plots anew from all results that are there, through the hand-written
// templates docs/benchmarks/*.md.tmpl. BILLING_BENCH_OUT names another folder in
// the place of docs for all that is written.
//
// # Files
//
// measure.go is what a benchmark calls, histogram.go counts durations, machine.go
// says where it ran; bars.go, lines.go and histogram_plot.go draw with svg.go;
// document.go renders.
package measure
