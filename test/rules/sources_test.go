package rules

import (
	"bytes"
	"go/ast"
	"go/format"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Lines that a file may have: code is read from top to bottom, tables of cases
// are looked up.
const (
	maxLines     = 600
	maxTestLines = 800
)

// TestFilesAreShort holds the bounds on files.
func TestFilesAreShort(t *testing.T) {
	for _, s := range sources() {
		most := maxLines
		if s.test() {
			most = maxTestLines
		}
		if n := bytes.Count(s.text, []byte("\n")); n > most {
			t.Errorf("%s has %d lines, more than %d: split it by what its parts do", s.path, n, most)
		}
	}
}

// TestFormatted: gofmt would change nothing.
func TestFormatted(t *testing.T) {
	for _, s := range sources() {
		want, err := format.Source(s.text)
		if err != nil {
			t.Errorf("%s: %v", s.path, err)
		} else if !bytes.Equal(want, s.text) {
			t.Errorf("%s is not formatted: gofmt -w %s", s.path, s.path)
		}
	}
}

// selectors calls fn for each a.B in a file where a is a plain name.
func selectors(s *source, fn func(n ast.Node, left, right string)) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok {
				fn(n, x.Name, sel.Sel.Name)
			}
		}
		return true
	})
}

// imports reports whether a file imports the package, by its own name.
func imports(s *source, path string) bool {
	return slices.ContainsFunc(s.file.Imports, func(i *ast.ImportSpec) bool {
		return i.Path.Value == `"`+path+`"`
	})
}

// TestNobodySleeps: tests and code wait for facts, or for a timer beside a
// context.
func TestNobodySleeps(t *testing.T) {
	for _, s := range sources() {
		selectors(s, func(n ast.Node, left, right string) {
			if left == "time" && right == "Sleep" && imports(s, "time") {
				t.Errorf("%s: time.Sleep: wait for a fact", s.where(n))
			}
		})
	}
}

// TestNoTestIsSkipped: what can't run here fails and says what is missing.
func TestNoTestIsSkipped(t *testing.T) {
	skips := []string{"Skip", "Skipf", "SkipNow"}
	for _, s := range sources() {
		if !imports(s, "testing") {
			continue
		}
		selectors(s, func(n ast.Node, left, right string) {
			if slices.Contains(skips, right) && (len(left) == 1 || left == "tb") {
				t.Errorf("%s: %s.%s: a test that is skipped holds nothing", s.where(n), left, right)
			}
		})
	}
}

// TestUnsafeOnlyMeasures: unsafe tells sizes and does nothing else.
func TestUnsafeOnlyMeasures(t *testing.T) {
	for _, s := range sources() {
		if !imports(s, "unsafe") {
			continue
		}
		selectors(s, func(n ast.Node, left, right string) {
			if left == "unsafe" && right != "Sizeof" {
				t.Errorf("%s: unsafe.%s", s.where(n), right)
			}
		})
	}
}

// TestNothingIsLeftToDo: what is not done is said in an issue or in the
// documents, not in the code.
func TestNothingIsLeftToDo(t *testing.T) {
	marks := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX|HA` + `CK)\b`)
	for _, s := range sources() {
		for _, group := range s.file.Comments {
			if m := marks.FindString(group.Text()); m != "" {
				t.Errorf("%s: %s in a comment", s.where(group), m)
			}
		}
	}
}

// TestEveryPackageIsExplained: each package says what its room is for.
func TestEveryPackageIsExplained(t *testing.T) {
	explained := map[string]bool{}
	for _, s := range sources() {
		dir := filepath.Dir(s.path)
		explained[dir] = explained[dir] || s.file.Doc.Text() != ""
	}
	for dir, ok := range explained {
		if !ok {
			t.Errorf("no file of %s has a package comment", dir)
		}
	}
}

// TestNamesSayWhatRoomsDo: no package is a drawer for everything.
func TestNamesSayWhatRoomsDo(t *testing.T) {
	drawers := []string{"util", "utils", "common", "helper", "helpers", "misc", "shared", "base", "lib", "pkg"}
	for _, s := range sources() {
		parts := strings.Split(strings.TrimSuffix(strings.TrimSuffix(s.path, ".go"), "_test"), "/")
		for _, part := range parts {
			if slices.Contains(drawers, part) {
				t.Errorf("%s: %q does not say what is in it", s.path, part)
			}
		}
	}
}

// TestNoOtherPlaces: the repository speaks of itself alone. Nothing names a
// folder of somebody's machine.
func TestNoOtherPlaces(t *testing.T) {
	places := regexp.MustCompile(`(?:^|[\s"'(=` + "`" + `])(/(?:home|Users|mnt|media|wor[k]|workspaces?)/[\w.-]+|[A-Z]:\\[\w.-]+)`)
	for _, path := range files() {
		if path == "go.sum" || path == ".git" { // a linked checkout has a file of this name
			continue
		}
		b, err := os.ReadFile(filepath.Join(root(), path))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(b, 0) >= 0 {
			continue // not text
		}
		for i, line := range strings.Split(string(b), "\n") {
			if m := places.FindStringSubmatch(line); m != nil {
				t.Errorf("%s:%d names %s", path, i+1, m[1])
			}
		}
	}
}
