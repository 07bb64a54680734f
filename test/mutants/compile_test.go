package mutants

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// TestPatches: every patch applies to the code as it is, the broken code is Go, and its killing test is there. The types are
// checked here and not by the go command, which would take seconds for each.
func TestPatches(t *testing.T) {
	mutants, err := all()
	if err != nil {
		t.Error(err)
	}
	b, err := newBuild(t, mutants)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			files, err := m.apply(readFile)
			if err != nil {
				t.Fatal(err)
			}
			packages := map[string]bool{}
			for file := range files {
				packages[path.Dir(file)] = true
			}
			for pkg := range packages {
				if err := b.check(pkg, files); err != nil {
					t.Errorf("%s does not compile: %v", pkg, err)
				}
			}
			if err := m.testIsThere(); err != nil {
				t.Error(err)
			}
		})
	}
}

// testIsThere looks for the killing test in its package's files.
func (m *mutant) testIsThere() error {
	name, _, _ := strings.Cut(m.test, "/")
	files, err := filepath.Glob(filepath.Join(root(), filepath.FromSlash(m.pkg), "*_test.go"))
	for _, file := range files {
		text, rerr := os.ReadFile(file)
		if rerr == nil && strings.Contains(string(text), "\nfunc "+name+"(t *testing.T)") {
			return nil
		}
		err = errors.Join(err, rerr)
	}
	return errors.Join(err, fmt.Errorf("there is no %s in %s", name, m.pkg))
}

// build checks packages of ours, some files of which are others than on disk.
type build struct {
	set     *token.FileSet
	imports types.Importer
	files   map[string][]string  // of a package: those that the go command compiles
	parsed  map[string]*ast.File // as they are on disk
}

func newBuild(t *testing.T, mutants []*mutant) (*build, error) {
	packages := map[string]bool{}
	for _, m := range mutants {
		for _, h := range m.hunks {
			packages["./"+path.Dir(h.path)] = true
		}
	}
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles"}
	for p := range packages {
		args = append(args, p)
	}
	out, stderr, err := goTool(t.Context(), args...)
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr)
	}
	b := &build{set: token.NewFileSet(), files: map[string][]string{}, parsed: map[string]*ast.File{}}
	exports := map[string]string{}
	for dec := json.NewDecoder(strings.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
		}
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		exports[p.ImportPath] = p.Export
		if rel, err := filepath.Rel(root(), p.Dir); err == nil {
			b.files[filepath.ToSlash(rel)] = p.GoFiles
		}
	}
	b.imports = importer.ForCompiler(b.set, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("package %s is not there", path)
		}
		return os.Open(exports[path])
	})
	return b, nil
}

// check checks the types of a package of ours with the patched files in the places of its own.
func (b *build) check(pkg string, patched map[string]string) error {
	var files []*ast.File
	for _, name := range b.files[pkg] {
		file := pkg + "/" + name
		text, changed := patched[file]
		if !changed {
			if f := b.parsed[file]; f != nil {
				files = append(files, f)
				continue
			}
			var err error
			if text, err = readFile(file); err != nil {
				return err
			}
		}
		f, err := parser.ParseFile(b.set, file, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !changed {
			b.parsed[file] = f
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		return errors.New("no such package")
	}
	conf := types.Config{Importer: b.imports}
	_, err := conf.Check("billing/"+pkg, b.set, files, nil)
	return err
}
