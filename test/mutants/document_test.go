package mutants

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const document = "docs/mutants.md"

var documentTable = regexp.MustCompile(`(?s)\n\| mutant \|.*?\n\n`)

// TestDocument: docs/mutants.md lists the mutants as they are. With BILLING_MUTANTS_DOCUMENT=1 its table is written anew.
func TestDocument(t *testing.T) {
	mutants, err := all()
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString("\n| mutant | step | what is broken | killed by | real servers |\n|---|---|---|---|---|\n")
	for _, m := range mutants {
		test, sub, _ := strings.Cut(m.test, "/")
		test = "`" + test + "`"
		if sub != "" {
			test += ": " + sub
		}
		servers := ""
		if m.servers {
			servers = "yes"
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s | `%s` %s | %s |\n", m.name, m.step, m.breaks, m.pkg, test, servers)
	}
	want.WriteString("\n")
	text, err := readFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(documentTable.FindAllString(text, -1)); n != 1 {
		t.Fatalf("%s has %d tables of mutants", document, n)
	}
	if documentTable.FindString(text) == want.String() {
		return
	}
	if os.Getenv(envDocument) == "" {
		t.Fatalf("%s does not list the mutants as they are; next step: make mutants-document", document)
	}
	text = documentTable.ReplaceAllLiteralString(text, want.String())
	if err := os.WriteFile(filepath.Join(root(), document), []byte(text), 0o644); err != nil { //nolint:gosec // a document
		t.Fatal(err)
	}
}
