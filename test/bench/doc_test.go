// Package bench_test has the benchmarks, a file each: what is measured, against
// what, and the targets. test/bench/measure has what they are built on;
// docs/benchmarks.md shows the results. In a plain go test they run at smoke
// size and hold counts, never times; make bench runs them at full size.
package bench_test
