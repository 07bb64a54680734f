package rules

import (
	"fmt"
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

const benchFrame = "docs/benchmarks/document.md.tmpl"

// TestBenchmarksAreShown: each benchmark reports under its name, has a make
// target that runs it, and a section of its own in docs/benchmarks.md.
func TestBenchmarksAreShown(t *testing.T) {
	makefile, frame, found := text(t, "Makefile"), text(t, benchFrame), 0
	list := ""
	for _, m := range regexp.MustCompile(`(?m)^BENCHMARKS(?:_JAVA)? += (.*)$`).FindAllStringSubmatch(makefile, -1) {
		list += " " + m[1] + " "
	}
	if list == "" {
		t.Fatal("the Makefile has no list BENCHMARKS")
	}
	for _, s := range sources() {
		if !s.test() || !strings.HasPrefix(s.path, "test/bench/") || strings.HasPrefix(s.path, "test/bench/measure/") {
			continue
		}
		for _, d := range s.file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(fn.Name.Name, "TestBench") {
				continue
			}
			found++
			name := strings.ToLower(strings.TrimPrefix(fn.Name.Name, "TestBench"))
			if want := "test/bench/" + name + "_test.go"; s.path != want {
				t.Errorf("%s: %s belongs into %s", s.where(fn), fn.Name.Name, want)
			}
			if !strings.Contains(string(s.text), fmt.Sprintf("measure.New(t, %q)", name)) {
				t.Errorf("%s: %s does not report as %q", s.path, fn.Name.Name, name)
			}
			if !regexp.MustCompile(`(?m)^bench-` + name + `: ##`).MatchString(makefile) {
				t.Errorf("the Makefile has no target bench-%s for %s", name, fn.Name.Name)
			}
			if !strings.Contains(list, " "+name+" ") {
				t.Errorf("bench-%s is in no list of the Makefile: make bench leaves it out", name)
			}
			if !strings.Contains(frame, fmt.Sprintf("{{include %q}}", name)) {
				t.Errorf("%s has no section of %s", benchFrame, name)
			}
		}
	}
	if found == 0 {
		t.Error("found no benchmarks")
	}
}
