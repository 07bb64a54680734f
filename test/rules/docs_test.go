package rules

import (
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	protocolDoc = "docs/protocol.md"
	runbookDoc  = "docs/runbook.md"
	watchingDoc = "docs/watching.md"
	dataDoc     = "docs/data.md"
)

var quoted = regexp.MustCompile("`([^`]+)`")

// rows are the table rows of a document, cells trimmed, by their first cell.
func rows(doc string) map[string][]string {
	out := map[string][]string{}
	for line := range strings.Lines(doc) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		out[cells[0]] = cells
	}
	return out
}

// functions are all functions and methods of the repository, as
// "path:Func" or "path:Type.Method"; tests are the tests' names.
func functions() (all, tests map[string]bool) {
	all, tests = map[string]bool{}, map[string]bool{}
	for _, s := range sources() {
		for _, d := range s.file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := fn.Name.Name
			if fn.Recv != nil {
				typ := fn.Recv.List[0].Type
				if star, ok := typ.(*ast.StarExpr); ok {
					typ = star.X
				}
				if generic, ok := typ.(*ast.IndexExpr); ok {
					typ = generic.X
				}
				if id, ok := typ.(*ast.Ident); ok {
					name = id.Name + "." + name
				}
			} else if s.test() && regexp.MustCompile(`^(Test|Fuzz)[A-Z0-9]`).MatchString(name) {
				tests[name] = true
			}
			all[s.path+":"+name] = true
		}
	}
	return all, tests
}

// TestProtocolTableIsTrue: each step and invariant of the protocol is listed
// with a function and a test that exist.
func TestProtocolTableIsTrue(t *testing.T) {
	table := rows(text(t, protocolDoc))
	all, tests := functions()
	var keys []string
	for _, c := range []struct {
		prefix      string
		first, last int
	}{{"S", 0, 6}, {"C", 1, 9}, {"", 1, 9}} {
		for n := c.first; n <= c.last; n++ {
			keys = append(keys, c.prefix+strconv.Itoa(n))
		}
	}
	for _, key := range append(keys, "sweep", "idle") {
		cells, ok := table[key]
		if !ok {
			t.Errorf("%s: %q is not in the table", protocolDoc, key)
			continue
		}
		if len(cells) < 3 {
			t.Errorf("%s: the row of %q has no functions and tests", protocolDoc, key)
			continue
		}
		funcs, held := 0, 0
		for _, cell := range cells[len(cells)-2:] {
			for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
				switch name := m[1]; {
				case strings.Contains(name, ".go:"):
					funcs++
					if !all[name] {
						t.Errorf("%s: %q names %s, which does not exist", protocolDoc, key, name)
					}
				case tests[name]:
					held++
				default:
					t.Errorf("%s: %q names %s, which is neither a function (file.go:Func) nor a test", protocolDoc, key, name)
				}
			}
		}
		if funcs == 0 || held == 0 {
			t.Errorf("%s: %q has %d functions and %d tests", protocolDoc, key, funcs, held)
		}
	}
}

// TestNamedTestsExist: whatever test a document names exists.
func TestNamedTestsExist(t *testing.T) {
	_, tests := functions()
	name := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
	for _, path := range documents() {
		for _, m := range name.FindAllStringSubmatch(text(t, path), -1) {
			if !tests[m[1]] {
				t.Errorf("%s names %s, which does not exist", path, m[1])
			}
		}
	}
}

func documents() []string {
	return slices.DeleteFunc(slices.Clone(files()), func(p string) bool { return !strings.HasSuffix(p, ".md") })
}

// TestCommandsExist: what the documents tell people to type exists: targets of
// the Makefile, commands of the service, scripts.
func TestCommandsExist(t *testing.T) {
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z-]*):`).FindAllStringSubmatch(text(t, "Makefile"), -1) {
		targets[m[1]] = true
	}
	commands := map[string]bool{"help": true}
	use := regexp.MustCompile(`Use:\s+"([a-z-]+)`)
	for _, s := range sources() {
		if strings.HasPrefix(s.path, "cmd/billing/") && !s.test() {
			for _, m := range use.FindAllStringSubmatch(string(s.text), -1) {
				commands[m[1]] = true
			}
		}
	}
	if len(targets) < 5 || len(commands) < 5 {
		t.Fatalf("found targets %v, commands %v", slices.Collect(maps.Keys(targets)), slices.Collect(maps.Keys(commands)))
	}
	makes := regexp.MustCompile("(?m)(?:^|`|&& )make ([a-z][a-z-]*)")
	runs := regexp.MustCompile("(?m)(?:^ *|`|bin/|&& |billing:\\S+ )billing ([a-z][a-z-]*)")
	scripts := regexp.MustCompile(`\bscripts/([a-z-]+)`)
	for _, path := range documents() {
		doc := text(t, path)
		for _, m := range makes.FindAllStringSubmatch(doc, -1) {
			if !targets[m[1]] {
				t.Errorf("%s says make %s: the Makefile has no such target", path, m[1])
			}
		}
		for _, m := range runs.FindAllStringSubmatch(doc, -1) {
			if !commands[m[1]] {
				t.Errorf("%s says billing %s: there is no such command", path, m[1])
			}
		}
		for _, m := range scripts.FindAllStringSubmatch(doc, -1) {
			if _, err := os.Stat(filepath.Join(root(), "scripts", m[1])); err != nil {
				t.Errorf("%s names scripts/%s, which does not exist", path, m[1])
			}
		}
	}
	for _, must := range []string{"make demo", "make test"} {
		if !strings.Contains(text(t, "README.md"), must) {
			t.Errorf("README.md does not say %s", must)
		}
	}
}

// TestLinksLead: each relative link of a document leads to a file, and to a
// heading of it where it names one.
func TestLinksLead(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]*)(#[^)\s]*)?\)`)
	for _, p := range documents() {
		for _, m := range link.FindAllStringSubmatch(text(t, p), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			to := p
			if m[1] != "" {
				to = path.Join(path.Dir(p), m[1])
			}
			if _, err := os.Stat(filepath.Join(root(), to)); err != nil {
				t.Errorf("%s links to %s, which does not exist", p, m[1])
			} else if m[2] != "" && !headings(text(t, to))[m[2][1:]] {
				t.Errorf("%s links to %s%s, and there is no such heading", p, m[1], m[2])
			}
		}
	}
}

// headings are the names by which links lead to a document's headings.
func headings(doc string) map[string]bool {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(doc, -1) {
		name := strings.ReplaceAll(strings.ToLower(m[1]), " ", "-")
		found[regexp.MustCompile(`[^a-z0-9_-]`).ReplaceAllString(name, "")] = true
	}
	return found
}

// TestCrashTableIsTested: each row of the crash table is a case of TestCrash.
func TestCrashTableIsTested(t *testing.T) {
	_, section, ok := strings.Cut(text(t, protocolDoc), "\n## Crash table\n")
	section, _, end := strings.Cut(section, "\n## ")
	if !ok || !end {
		t.Fatalf("%s has no crash table", protocolDoc)
	}
	var cases []string
	ast.Inspect(goFile(t, "test/e2e/crash_test.go").file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			cases = append(cases, strings.Trim(lit.Value, `"`))
		}
		return true
	})
	checked := 0
	for row := range rows(section) {
		if row == "dies after" || strings.HasPrefix(row, "---") {
			continue
		}
		checked++
		if !slices.ContainsFunc(cases, func(c string) bool { return c == row || strings.HasPrefix(c, row+" (") }) {
			t.Errorf("%s: TestCrash has no case %q", protocolDoc, row)
		}
	}
	if checked < 6 {
		t.Errorf("%s: the crash table has %d rows only", protocolDoc, checked)
	}
}

// TestFailPointsAreUsed: the real binary is killed, frozen or held at each of
// its fail points.
func TestFailPointsAreUsed(t *testing.T) {
	var tests strings.Builder
	for _, s := range sources() {
		if s.test() && strings.HasPrefix(s.path, "test/e2e/") {
			tests.Write(s.text)
		}
	}
	points := regexp.MustCompile(`\w+ +Point = "([a-z-]+)"`).FindAllStringSubmatch(text(t, "internal/failpoint/points.go"), -1)
	if len(points) < 10 {
		t.Fatalf("found %d fail points only", len(points))
	}
	for _, m := range points {
		if !strings.Contains(tests.String(), `"`+m[1]+`:`) {
			t.Errorf("no test of test/e2e comes to the fail point %s", m[1])
		}
	}
}

// TestWaitsAreTested: each wait of the protocol has a bound, and a test that
// shows what happens then.
func TestWaitsAreTested(t *testing.T) {
	_, section, ok := strings.Cut(text(t, protocolDoc), "\n## Waiting\n")
	section, _, end := strings.Cut(section, "\n## ")
	if !ok || !end {
		t.Fatalf("%s does not say what waits", protocolDoc)
	}
	_, tests := functions()
	checked := 0
	for wait, cells := range rows(section) {
		if wait == "wait" || strings.HasPrefix(wait, "---") {
			continue
		}
		checked++
		if len(cells) != 3 {
			t.Errorf("%s: %q has no bound or no tests", protocolDoc, wait)
			continue
		}
		named := quoted.FindAllStringSubmatch(cells[2], -1)
		if len(named) == 0 {
			t.Errorf("%s: %q has no test", protocolDoc, wait)
		}
		for _, m := range named {
			if !tests[m[1]] {
				t.Errorf("%s: %q names %s, which is no test", protocolDoc, wait, m[1])
			}
		}
	}
	if checked < 10 {
		t.Errorf("%s: the table of waits has %d rows only", protocolDoc, checked)
	}
}
