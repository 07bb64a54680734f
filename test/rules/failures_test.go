package rules

import (
	"go/ast"
	"go/token"
	"maps"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const failuresDoc = "docs/failures.md"

// cases are, by test, the texts in the source of its file: its cases' names are among
// them. A test that hands itself to a suite of the two packages consume, TestX to
// consumetest.X, has those of the suites, too.
func cases() map[string]map[string]bool {
	const suites = "internal/consume/consumetest"
	of, suite, ofSuites := map[string]map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, s := range sources() {
		inSuites := path.Dir(s.path) == suites
		if !s.test() && !inSuites {
			continue
		}
		texts := map[string]bool{}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					texts[text] = true
				}
			}
			return true
		})
		if inSuites {
			maps.Copy(ofSuites, texts)
			continue
		}
		for _, decl := range s.file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			test := f.Name.Name
			if of[test] == nil {
				of[test] = map[string]bool{}
			}
			maps.Copy(of[test], texts)
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if call, ok := n.(*ast.SelectorExpr); ok && "Test"+call.Sel.Name == test {
					if pkg, ok := call.X.(*ast.Ident); ok && pkg.Name == path.Base(suites) {
						suite[test] = true
					}
				}
				return true
			})
		}
	}
	for test := range suite {
		maps.Copy(of[test], ofSuites)
	}
	return of
}

// TestFailuresAreShown: each situation in the page of the failures has a right
// outcome, a test that exists, with its case where one is named, and says what
// the test runs on.
func TestFailuresAreShown(t *testing.T) {
	of := cases()
	doc := text(t, failuresDoc)
	situations, seen := 0, map[string]bool{}
	for _, section := range []string{"Decision and branches", "Owners and rebalances", "Kafka", "MySQL", "Dedup and replay", "Load and input"} {
		_, table, ok := strings.Cut(doc, "\n## "+section+"\n")
		if !ok {
			t.Errorf("%s has no section %q", failuresDoc, section)
			continue
		}
		table, _, _ = strings.Cut(table, "\n## ")
		in := 0
		for line := range strings.Lines(table) {
			if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "| situation ") || strings.HasPrefix(line, "|---") {
				continue
			}
			in++
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			if len(cells) != 4 {
				t.Errorf("%s, %s: %d cells, want 4: %s", failuresDoc, section, len(cells), line)
				continue
			}
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			if cells[0] == "" || cells[1] == "" || seen[cells[0]] {
				t.Errorf("%s, %s: the situation or its outcome is missing, or it is there twice: %s", failuresDoc, section, line)
			}
			seen[cells[0]] = true
			named := quoted.FindAllStringSubmatch(cells[2], -1)
			if len(named) == 0 {
				t.Errorf("%s: no test shows: %s", failuresDoc, cells[0])
			}
			for _, m := range named {
				test, name, sub := strings.Cut(m[1], "/")
				if of[test] == nil {
					t.Errorf("%s: %s is no test: %s", failuresDoc, test, cells[0])
				} else if sub && !of[test][name] {
					t.Errorf("%s: %s has no case %q: %s", failuresDoc, test, name, cells[0])
				}
			}
			if !regexp.MustCompile(`^(real servers|kfake|fakes|one process)(, (real servers|kfake|fakes|one process))*$`).MatchString(cells[3]) {
				t.Errorf("%s: it runs on %q: %s", failuresDoc, cells[3], cells[0])
			}
		}
		if in == 0 {
			t.Errorf("%s: the section %q has no rows", failuresDoc, section)
		}
		situations += in
	}
	if situations < 53 {
		t.Errorf("%s has %d situations only", failuresDoc, situations)
	}
}
