package measure

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
)

const (
	resultsFolder = "benchmarks"    // under docs: results, plots, templates
	documentName  = "benchmarks.md" // under docs
	templateEnd   = ".md.tmpl"
	frame         = "document" // the template of the whole
	hotPathPart   = "hot-path-"
)

// moduleFolder is the one with go.mod, above the folder that the test runs in.
func moduleFolder() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the test")
		}
		dir = parent
	}
}

func docsFolder() (string, error) {
	root, err := moduleFolder()
	return filepath.Join(root, "docs"), err
}

// Document is what is made of the results: files by their paths under docs.
type Document struct {
	Files map[string][]byte
	Met   int // targets, over all benchmarks
	Of    int
}

// Write writes the files under a folder.
func (d *Document) Write(docs string) error {
	for path, text := range d.Files {
		if err := writeFile(filepath.Join(docs, path), text); err != nil {
			return err
		}
	}
	return nil
}

// writeFile writes what everybody may read.
func writeFile(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // documents
		return err
	}
	return os.WriteFile(path, text, 0o644) //nolint:gosec // documents
}

// Render makes the document of the templates in one folder and the results in
// another one. The text is the templates' own; they call
//
//	{{include "decode"}}          decode.md.tmpl
//	{{hotpath}}                   all hot-path-*.md.tmpl, in the order of their names
//	{{table "decode"}}            the figures of decode.json
//	{{plots "decode"}}            all its plots
//	{{plot "decode" "rates"}}     one of them
//	{{median "decode" "ours"}}    a figure in the text
//	{{summary}} {{machines}}      over all benchmarks
//
// A benchmark that has no result yet says so.
func Render(templates, results string) (*Document, error) {
	all, err := readResults(results)
	if err != nil {
		return nil, err
	}
	r := &renderer{templates: templates, all: all}
	text, err := r.include(frame)
	if err != nil {
		return nil, err
	}
	d := &Document{Files: map[string][]byte{documentName: []byte(notice + strings.TrimRight(text, "\n") + "\n")}}
	for _, result := range all {
		met, of := result.targets()
		d.Met, d.Of = d.Met+met, d.Of+of
		for _, p := range result.plots() {
			d.Files[result.plotPath(p)] = p.svg()
		}
	}
	return d, nil
}

const notice = "<!-- Made by `make bench` of docs/benchmarks/*.json and docs/benchmarks/*.md.tmpl: change those. -->\n\n"

// readResults are the stored results, by name.
func readResults(folder string) ([]*Result, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	var all []*Result
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var result Result
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&result); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, &result)
	}
	return all, nil
}

// plot is one drawing of a result.
type plot struct {
	name, title string
	svg         func() []byte
}

func (r *Result) plots() []plot {
	var out []plot
	for i := range r.Bars {
		out = append(out, plot{r.Bars[i].Name, r.Bars[i].Title, r.Bars[i].svg})
	}
	for i := range r.Histograms {
		out = append(out, plot{r.Histograms[i].Name, r.Histograms[i].Title, r.Histograms[i].svg})
	}
	for i := range r.Lines {
		out = append(out, plot{r.Lines[i].Name, r.Lines[i].Title, r.Lines[i].svg})
	}
	return out
}

func (r *Result) plotPath(p plot) string {
	return resultsFolder + "/" + r.Name + "-" + p.name + ".svg"
}

type renderer struct {
	templates string
	all       []*Result
}

// result is nil for a benchmark that has not run yet.
func (r *renderer) result(name string) *Result {
	for _, result := range r.all {
		if result.Name == name {
			return result
		}
	}
	return nil
}

func (r *renderer) include(name string) (string, error) {
	path := filepath.Join(r.templates, name+templateEnd)
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	t, err := template.New(filepath.Base(path)).Option("missingkey=error").Funcs(template.FuncMap{
		"include": r.include, "hotpath": r.hotPath, "table": r.table, "plots": r.plots, "plot": r.plot,
		"median": r.median, "summary": r.summary, "machines": r.machines,
	}).Parse(string(text))
	if err != nil {
		return "", err
	}
	var out strings.Builder
	if err := t.Execute(&out, nil); err != nil {
		return "", err
	}
	return strings.TrimRight(out.String(), "\n"), nil
}

func (r *renderer) hotPath() (string, error) {
	paths, err := fs.Glob(os.DirFS(r.templates), hotPathPart+"*"+templateEnd)
	if err != nil {
		return "", err
	}
	var parts []string
	for _, path := range paths {
		part, err := r.include(strings.TrimSuffix(path, templateEnd))
		if err != nil {
			return "", err
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "\n\n"), nil
}

func notYet(name string) string { return "Not measured yet: `make bench-" + name + "`." }

// cell makes a text safe inside of a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

func (r *renderer) table(name string) string {
	result := r.result(name)
	if result == nil {
		return notYet(name)
	}
	var b strings.Builder
	b.WriteString("| figure | median | min - max | unit | target | |\n|---|--:|--:|---|---|---|\n")
	var about []string
	for i := range result.Figures {
		f := &result.Figures[i]
		target := "-"
		if !f.Target.none() {
			target = f.Target.Bound + " " + Number(f.Target.Value)
		}
		verdict := f.verdict()
		if verdict == "FAIL" {
			verdict = "**FAIL**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", cell(f.Name), Number(f.Median()), f.spread(), cell(f.Unit), target, verdict)
		var words []string
		if f.From != "" {
			words = append(words, "target: "+f.From)
		}
		if f.Note != "" {
			words = append(words, f.Note)
		}
		if len(words) > 0 {
			about = append(about, "- *"+f.Name+"*: "+strings.Join(words, "; "))
		}
	}
	if len(about) > 0 {
		b.WriteString("\n" + strings.Join(about, "\n") + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}

func (r *renderer) plots(name string) string {
	result := r.result(name)
	if result == nil {
		return ""
	}
	var out []string
	for _, p := range result.plots() {
		out = append(out, result.image(p))
	}
	return strings.Join(out, "\n\n")
}

func (r *Result) image(p plot) string { return "![" + p.title + "](" + r.plotPath(p) + ")" }

func (r *renderer) plot(name, which string) (string, error) {
	result := r.result(name)
	if result == nil {
		return "", nil
	}
	for _, p := range result.plots() {
		if p.name == which {
			return result.image(p), nil
		}
	}
	return "", fmt.Errorf("%s has no plot %q", name, which)
}

func (r *renderer) median(name, figure string) (string, error) {
	result := r.result(name)
	if result == nil {
		return "(not measured yet)", nil
	}
	for i := range result.Figures {
		if f := &result.Figures[i]; f.Name == figure {
			return Number(f.Median()), nil
		}
	}
	return "", fmt.Errorf("%s has no figure %q", name, figure)
}

// summary is a row for each benchmark.
func (r *renderer) summary() string {
	var b strings.Builder
	b.WriteString("| benchmark | targets met | missed |\n|---|---|---|\n")
	for _, result := range r.all {
		met, of := result.targets()
		missed := []string{}
		for i := range result.Figures {
			if f := &result.Figures[i]; f.verdict() == "FAIL" {
				missed = append(missed, f.Name)
			}
		}
		fmt.Fprintf(&b, "| [%s](#%s) | %d of %d | %s |\n", result.Name, result.Name, met, of, cell(strings.Join(missed, "; ")))
	}
	return strings.TrimRight(b.String(), "\n")
}

// machines says where and when the benchmarks ran: usually all on one machine.
func (r *renderer) machines() string {
	var b strings.Builder
	b.WriteString("| benchmarks | CPU | cores | memory | kernel | Go |\n|---|---|---|---|---|---|\n")
	var seen []Machine
	for _, result := range r.all {
		if slices.Contains(seen, result.Machine) {
			continue
		}
		seen = append(seen, result.Machine)
		var names []string
		for _, other := range r.all {
			if other.Machine == result.Machine {
				names = append(names, other.Name)
			}
		}
		m := result.Machine
		fmt.Fprintf(&b, "| %s | %s | %d | %s MiB | %s | %s |\n", strings.Join(names, ", "), cell(m.CPU), m.Cores, grouped(m.MemoryMiB), m.Kernel, m.Go)
	}
	b.WriteString("\n| benchmark | when | commit | runs | load before | servers |\n|---|---|---|---|---|---|\n")
	for _, result := range r.all {
		run := result.Run
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %s | %s |\n", result.Name, run.Date, run.Commit, run.Rounds, Number(run.LoadBefore), cell(strings.Join(run.Servers, ", ")))
	}
	return strings.TrimRight(b.String(), "\n")
}
