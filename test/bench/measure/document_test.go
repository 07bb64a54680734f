package measure

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDocumentIsRendered: docs/benchmarks.md and its plots are what the stored
// results and the hand-written text make, so that no number in it was typed.
// With BILLING_BENCH=document it makes them.
func TestDocumentIsRendered(t *testing.T) {
	docs, err := docsFolder()
	if err != nil {
		t.Fatal(err)
	}
	d, err := Render(filepath.Join(docs, resultsFolder), filepath.Join(docs, resultsFolder))
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(modeVariable) == "document" {
		if err := d.Write(docs); err != nil {
			t.Fatal(err)
		}
		fmt.Printf("all benchmarks: %d of %d targets met\n", d.Met, d.Of)
	}
	for path, want := range d.Files {
		if have, err := os.ReadFile(filepath.Join(docs, path)); err != nil || !bytes.Equal(have, want) {
			t.Errorf("docs/%s is not what the results give (%v); next step: make bench-document", path, err)
		}
	}
	drawn, err := filepath.Glob(filepath.Join(docs, resultsFolder, "*.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range drawn {
		name := resultsFolder + "/" + filepath.Base(path)
		if _, ok := d.Files[name]; !ok {
			t.Errorf("docs/%s belongs to no result; next step: remove it", name)
		}
		if !strings.Contains(string(d.Files[documentName]), "("+name+")") {
			t.Errorf("docs/%s is not in the document", name)
		}
	}
}
