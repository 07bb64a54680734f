package rules

import (
	"bytes"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// reasonWords are the words of all constants named Reason... of type string.
func reasonWords(t *testing.T) map[string]string {
	t.Helper()
	words := map[string]string{}
	for _, s := range sources() {
		if s.test() || !strings.HasPrefix(s.path, "internal/") {
			continue
		}
		for _, d := range s.file.Decls {
			gen, ok := d.(*ast.GenDecl)
			if !ok || gen.Tok != token.CONST {
				continue
			}
			for _, spec := range gen.Specs {
				v, ok := spec.(*ast.ValueSpec)
				if !ok {
					continue
				}
				for i, name := range v.Names {
					if !strings.HasPrefix(name.Name, "Reason") || i >= len(v.Values) {
						continue
					}
					if lit, ok := v.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
						word, err := strconv.Unquote(lit.Value)
						if err != nil {
							t.Fatal(err)
						}
						words[word] = name.Name
					}
				}
			}
		}
	}
	if len(words) < 20 {
		t.Fatalf("found %d reasons only", len(words))
	}
	return words
}

// netWords are the names of nets: what Session.net and Listener.Net are told,
// and what a NetError says.
func netWords() map[string]bool {
	words := map[string]bool{}
	constants := map[string]string{}
	for _, s := range sources() {
		for _, d := range s.file.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
				for _, spec := range g.Specs {
					v := spec.(*ast.ValueSpec) //nolint:errcheck // of a const declaration
					for i, name := range v.Names {
						if i < len(v.Values) {
							if lit, ok := v.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
								constants[name.Name] = strings.Trim(lit.Value, `"`)
							}
						}
					}
				}
			}
		}
	}
	word := func(e ast.Expr) {
		if id, ok := e.(*ast.Ident); ok && constants[id.Name] != "" {
			words[constants[id.Name]] = true
		}
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			words[strings.Trim(lit.Value, `"`)] = true
		}
	}
	for _, s := range sources() {
		if s.test() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "net" && len(n.Args) == 3 {
					word(n.Args[1])
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Net" {
					word(n.Value)
				}
			case *ast.IfStmt: // if f := listener.Net; f != nil { f(at, "word", err) }
				init, ok := n.Init.(*ast.AssignStmt)
				if !ok || len(init.Rhs) != 1 {
					return true
				}
				if sel, ok := init.Rhs[0].(*ast.SelectorExpr); !ok || sel.Sel.Name != "Net" {
					return true
				}
				ast.Inspect(n.Body, func(n ast.Node) bool {
					if call, ok := n.(*ast.CallExpr); ok && len(call.Args) == 3 {
						word(call.Args[1])
					}
					return true
				})
			}
			return true
		})
	}
	return words
}

// TestRunbook: each reason of a refusal, each net and each alert has a section in
// the runbook, and each section is for one that exists.
func TestRunbook(t *testing.T) {
	doc := text(t, runbookDoc)
	sections := func(kind string) map[string]bool {
		out := map[string]bool{}
		for _, m := range regexp.MustCompile("(?m)^### "+kind+" `([A-Za-z0-9-]+)`").FindAllStringSubmatch(doc, -1) {
			if out[m[1]] {
				t.Errorf("%s: %s %s has two sections", runbookDoc, kind, m[1])
			}
			out[m[1]] = true
		}
		return out
	}
	same := func(kind string, have, want map[string]bool) {
		for w := range want {
			if !have[w] {
				t.Errorf("%s has no section \"### %s `%s`\"", runbookDoc, kind, w)
			}
		}
		for w := range have {
			if !want[w] {
				t.Errorf("%s has a section for %s %s, which the code does not know", runbookDoc, kind, w)
			}
		}
	}
	reasons := map[string]bool{}
	for word := range reasonWords(t) {
		reasons[word] = true
	}
	nets := netWords()
	if len(nets) == 0 {
		t.Fatal("found no nets")
	}
	same("Refusal", sections("Refusal"), reasons)
	same("Net", sections("Net"), nets)
	alerts := map[string]bool{}
	for _, a := range alertRules(t) {
		alerts[a.Alert] = true
	}
	same("Alert", sections("Alert"), alerts)
	for _, section := range strings.Split(doc, "\n### ")[1:] {
		head, _, _ := strings.Cut(section, "\n")
		for _, part := range []string{"**Means.**", "**Check.**", "**Do.**"} {
			if !strings.Contains(section, part) {
				t.Errorf("%s: section %s has no %s", runbookDoc, head, part)
			}
		}
	}
}

// TestRefusalTable: each reason of a refusal has a row in the contract, each row
// is of one that exists, and each of its tests exists. One of them at least is in
// a file that names the reason. What --accept takes is what the command takes.
func TestRefusalTable(t *testing.T) {
	_, section, ok := strings.Cut(text(t, protocolDoc), "\n## Refusals\n")
	section, _, end := strings.Cut(section, "\n## ")
	if !ok || !end {
		t.Fatalf("%s has no section Refusals", protocolDoc)
	}
	reasons := reasonWords(t)
	accepted := acceptedReasons(t)
	table := rows(section)
	for word, name := range reasons {
		cells := table["`"+word+"`"]
		if len(cells) != 5 {
			t.Errorf("%s has no row of five cells for %s", protocolDoc, word)
			continue
		}
		if !slices.Contains([]string{"process, 3", "lane", "`billing migrate`, 3", "`billing xa resolve`, 3", "`billing repair`, 3"}, cells[2]) {
			t.Errorf("%s: %s stops %q", protocolDoc, word, cells[2])
		}
		accept, what, _ := strings.Cut(strings.Trim(cells[3], "`"), ":")
		if accepted[name] != what || (accept == "") != (what == "") || accept != "" && accept != word {
			t.Errorf("%s: %s is accepted by %q, the command says %q", protocolDoc, word, cells[3], accepted[name])
		}
		held, named := 0, false
		for _, m := range quoted.FindAllStringSubmatch(cells[4], -1) {
			file := fileOfTest(m[1])
			if file == nil {
				t.Errorf("%s: %s names %s, which does not exist", protocolDoc, word, m[1])
				continue
			}
			held++
			named = named || bytes.Contains(file.text, []byte(strconv.Quote(word))) || regexp.MustCompile(`\.`+name+`\b`).Match(file.text)
		}
		if held == 0 || !named {
			t.Errorf("%s: %s has %d tests; in a file that names it: %t", protocolDoc, word, held, named)
		}
	}
	for row := range table {
		if word := strings.Trim(row, "`"); word != row && reasons[word] == "" {
			t.Errorf("%s has a row for %s, which the code does not know", protocolDoc, word)
		}
	}
}

// acceptedReasons are the constants that --accept takes, with what for.
func acceptedReasons(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	ast.Inspect(goFile(t, "cmd/billing/accept.go").file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != "acceptable" {
			return true
		}
		for _, e := range spec.Values[0].(*ast.CompositeLit).Elts {
			row := e.(*ast.CompositeLit).Elts
			found[row[0].(*ast.SelectorExpr).Sel.Name] = strings.Trim(row[1].(*ast.BasicLit).Value, `"`)
		}
		return false
	})
	if len(found) == 0 {
		t.Fatal("found nothing that can be accepted")
	}
	return found
}

// fileOfTest is where a test is, nil where there is none of this name.
func fileOfTest(name string) *source {
	for _, s := range sources() {
		if !s.test() {
			continue
		}
		for _, d := range s.file.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == name {
				return s
			}
		}
	}
	return nil
}

// TestDataWords: docs/data.md lists every reason for which a record is rejected,
// and every table.
func TestDataWords(t *testing.T) {
	doc := text(t, dataDoc)
	var words []string
	ast.Inspect(goFile(t, "internal/event/event.go").file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != "reasonWords" {
			return true
		}
		for _, e := range spec.Values[0].(*ast.CompositeLit).Elts {
			if lit, ok := e.(*ast.KeyValueExpr).Value.(*ast.BasicLit); ok {
				words = append(words, strings.Trim(lit.Value, `"`))
			}
		}
		return false
	})
	if len(words) < 15 {
		t.Fatalf("found %d reasons only", len(words))
	}
	for _, w := range words {
		if w != "none" && !strings.Contains(doc, "`"+w+"`") {
			t.Errorf("%s does not explain %s", dataDoc, w)
		}
	}
	created := regexp.MustCompile(`(?m)^CREATE (?:TABLE IF NOT EXISTS|OR REPLACE SQL SECURITY INVOKER VIEW) (\w+)`)
	tables := 0
	for _, path := range files() {
		if strings.HasPrefix(path, "migrations/") && strings.HasSuffix(path, ".sql") {
			for _, m := range created.FindAllStringSubmatch(text(t, path), -1) {
				tables++
				if !strings.Contains(doc, "`"+m[1]+"`") {
					t.Errorf("%s does not explain %s", dataDoc, m[1])
				}
			}
		}
	}
	if tables < 8 {
		t.Fatalf("found %d tables only", tables)
	}
}

// TestMetricsAreExplained: docs/watching.md explains every metric, and none that
// does not exist.
func TestMetricsAreExplained(t *testing.T) {
	name := regexp.MustCompile(`^billing_[a-z_]+$`)
	made := map[string]bool{}
	ast.Inspect(goFile(t, "cmd/billing/metrics.go").file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && name.MatchString(strings.Trim(lit.Value, `"`)) {
			made[strings.Trim(lit.Value, `"`)] = true
		}
		return true
	})
	if len(made) < 10 {
		t.Fatalf("found %d metrics only", len(made))
	}
	explained := map[string]bool{}
	for _, m := range regexp.MustCompile("`(billing_[a-z_]+)").FindAllStringSubmatch(text(t, watchingDoc), -1) {
		if !strings.HasPrefix(m[1], "billing_test_") {
			explained[m[1]] = true
		}
	}
	tables := regexp.MustCompile(`billing_(?:totals?|ledger|rejects|lane|epoch|epoch_sum|meta|schema)$`)
	for m := range made {
		if !explained[m] {
			t.Errorf("%s does not explain %s", watchingDoc, m)
		}
	}
	for m := range explained {
		if !made[m] && !tables.MatchString(m) {
			t.Errorf("%s explains %s, which does not exist", watchingDoc, m)
		}
	}
}

// TestRightsAreTheTestedOnes: docs/grants.md shows the file of which the tests
// make their users, and README.md its convenient way.
func TestRightsAreTheTestedOnes(t *testing.T) {
	sql := regexp.MustCompile("(?s)```sql\n(.*?)```")
	shown := sql.FindAllStringSubmatch(text(t, "docs/grants.md"), -1)
	if len(shown) != 2 {
		t.Fatalf("docs/grants.md has %d blocks of SQL", len(shown))
	}
	if file := text(t, "deploy/mysql/grants.sql"); shown[0][1] != file {
		t.Errorf("docs/grants.md does not show deploy/mysql/grants.sql as it is:\n%s", shown[0][1])
	}
	if readme := sql.FindStringSubmatch(text(t, "README.md")); readme == nil || readme[1] != shown[1][1] {
		t.Errorf("README.md has %q, docs/grants.md ends with %q", readme, shown[1][1])
	}
}
