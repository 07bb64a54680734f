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
		fmt.Fprintf(os.Stdout, "all benchmarks: %d of %d targets met\n", d.Met, d.Of)
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

// The renderer takes the text as it is, and every number from the results; what
// was not measured it says, and what does not exist it refuses.
func TestRender(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("document.md.tmpl", `{{summary}}{{include "a"}}|{{hotpath}}|{{table "b"}}|{{median "b" "x"}}|{{plots "b"}}`)
	write("a.md.tmpl", "{{table \"a\"}}\n{{median \"a\" \"rate | both\"}} {{plot \"a\" \"p\"}}\n\n")
	write("hot-path-2.md.tmpl", "two\n")
	write("hot-path-1.md.tmpl", "one\n")
	write("a.json", `{"name": "a", "run": {"rounds": 2}, "figures": [
		{"name": "rate | both", "unit": "x/s", "target": {"bound": "at least", "value": 5000}, "from": "here", "note": "there", "values": [1000, 2000]},
		{"name": "told", "unit": "bytes", "values": [7]}],
		"bars": [{"name": "p", "title": "P", "unit": "x", "groups": [{"bars": [{"label": "l", "values": [1]}]}]}]}`)
	d, err := Render(dir, dir)
	if err != nil {
		t.Fatal(err)
	}
	want := notice + `| benchmark | targets met | missed |
|---|---|---|
| [a](#a) | 0 of 1 | rate \| both || figure | median | min - max | unit | target | |
|---|--:|--:|---|---|---|
| rate \| both | 2,000 | 1,000 - 2,000 | x/s | at least 5,000 | **FAIL** |
| told | 7 | - | bytes | - | - |

- *rate | both*: target: here; there
2,000 ![P](benchmarks/a-p.svg)|one

two|Not measured yet: ` + "`make bench-b`" + `.|(not measured yet)|
`
	if got := string(d.Files[documentName]); got != want {
		t.Errorf("rendered\n%s\nwant\n%s", got, want)
	}
	if len(d.Files) != 2 || d.Files["benchmarks/a-p.svg"] == nil || d.Met != 0 || d.Of != 1 {
		t.Errorf("%d files, %d of %d targets", len(d.Files), d.Met, d.Of)
	}
	for _, wrong := range []string{`{{median "a" "none"}}`, `{{plot "a" "none"}}`, `{{include "none"}}`, `{{nothing}}`} {
		write("document.md.tmpl", wrong)
		if _, err := Render(dir, dir); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
	write("document.md.tmpl", "")
	write("a.json", `{"name": "a", "unheard": 1}`)
	if _, err := Render(dir, dir); err == nil {
		t.Error("a result with an unknown field is taken")
	}
}
