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

// cases are, by test, the texts in the source of its package: its cases' names are
// among them.
func cases() map[string]map[string]bool {
	const suite = "internal/consume/consumetest" // of the two packages consume
	texts, packagesOf := map[string]map[string]bool{}, map[string][]string{}
	for _, s := range sources() {
		dir := path.Dir(s.path)
		if !s.test() && dir != suite {
			continue
		}
		if texts[dir] == nil {
			texts[dir] = map[string]bool{}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					texts[dir][text] = true
				}
			case *ast.FuncDecl:
				if strings.HasPrefix(n.Name.Name, "Test") {
					packagesOf[n.Name.Name] = append(packagesOf[n.Name.Name], dir)
				}
			}
			return true
		})
	}
	of := map[string]map[string]bool{}
	for test, packages := range packagesOf {
		of[test] = map[string]bool{}
		for _, dir := range packages {
			maps.Copy(of[test], texts[dir])
			if path.Base(dir) == "consume" {
				maps.Copy(of[test], texts[suite])
			}
		}
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
