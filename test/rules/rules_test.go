// Package rules holds the rules of this repository that no compiler checks:
// who may import whom, what code and tests never do, and that the documents
// say what the code has. It has tests only, and needs no servers.
package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// root is the repository's: the folder above that has go.mod.
var root = sync.OnceValue(func() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if parent := filepath.Dir(dir); parent != dir {
			dir = parent
			continue
		}
		panic("no go.mod above the test")
	}
})

// source is one Go file.
type source struct {
	path string // from the root, with slashes
	text []byte
	file *ast.File
	set  *token.FileSet
}

func (s *source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

// where is a position for a person: path:line.
func (s *source) where(n ast.Node) string {
	p := s.set.Position(n.Pos())
	return p.Filename + ":" + strconv.Itoa(p.Line)
}

// files lists the repository's files, from the root and with slashes, that a
// person wrote: no hidden folders but .ci, nothing that was built.
var files = sync.OnceValue(func() []string {
	var out []string
	err := filepath.WalkDir(root(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root(), path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			hidden := strings.HasPrefix(d.Name(), ".") && rel != "." && rel != ".ci"
			if hidden || rel == "bin" {
				return fs.SkipDir
			}
			return nil
		}
		if d.Type().IsRegular() {
			out = append(out, rel)
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	return out
})

// sources are all Go files, parsed, whatever their build tags.
var sources = sync.OnceValue(func() []*source {
	var out []*source
	set := token.NewFileSet()
	for _, path := range files() {
		if !strings.HasSuffix(path, ".go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root(), path))
		if err != nil {
			panic(err)
		}
		file, err := parser.ParseFile(set, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			panic(err)
		}
		out = append(out, &source{path: path, text: text, file: file, set: set})
	}
	return out
})

// text reads a file of the repository.
func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root(), path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// goFile is one parsed file of the repository.
func goFile(t *testing.T, path string) *source {
	t.Helper()
	for _, s := range sources() {
		if s.path == path {
			return s
		}
	}
	t.Fatalf("there is no %s", path)
	return nil
}
