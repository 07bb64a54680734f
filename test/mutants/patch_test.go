// Package mutants breaks the protocol on purpose and looks whether a test sees it. Each *.patch is one bug that a
// colleague could write, with a head that names the test which must fail of it. See docs/mutants.md.
package mutants

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// mutant is one seeded bug.
type mutant struct {
	name    string // of the file, without .patch
	breaks  string // what is broken, for a person
	step    string // of docs/protocol.md
	pkg     string // of the test that must fail, from the root: internal/checkpoint
	test    string // that must fail; a subtest behind a slash
	says    string // what its output must say: it fails for the right reason
	ends    string // how it fails: "" for a failed test, else "panic" or "timeout"
	servers bool   // it needs real servers
	hunks   []hunk
}

// hunk is one change of a file.
type hunk struct {
	path     string
	old, new []string // lines, context included
}

// ofTests are the tests and their fakes.
var ofTests = regexp.MustCompile(`_test\.go$|(^|/)[a-z]*test/`)

// parse reads a patch: head lines, each a word, a colon and a text, then a unified diff.
func parse(name, text string) (*mutant, error) {
	m := &mutant{name: name}
	head := map[string]*string{"Breaks": &m.breaks, "Step": &m.step, "Package": &m.pkg, "Test": &m.test, "Says": &m.says, "Ends": &m.ends}
	path, inHunk := "", false
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		fail := func(what string) error { return fmt.Errorf("%s.patch:%d: %s: %q", name, i+1, what, line) }
		switch {
		case strings.HasPrefix(line, "--- "):
			path, inHunk = "", false
		case strings.HasPrefix(line, "+++ b/"):
			path = line[len("+++ b/"):]
		case strings.HasPrefix(line, "@@ ") && path != "":
			m.hunks = append(m.hunks, hunk{path: path})
			inHunk = true
		case inHunk:
			h := &m.hunks[len(m.hunks)-1]
			if line == "" {
				line = " " // an editor has taken the space of an empty line
			}
			switch line[0] {
			case ' ':
				h.old, h.new = append(h.old, line[1:]), append(h.new, line[1:])
			case '-':
				h.old = append(h.old, line[1:])
			case '+':
				h.new = append(h.new, line[1:])
			default:
				return nil, fail("no line of a hunk")
			}
		case line == "Servers: yes":
			m.servers = true
		default:
			word, value, ok := strings.Cut(line, ": ")
			field := head[word]
			if !ok || field == nil || *field != "" {
				return nil, fail("no line of a head")
			}
			*field = value
		}
	}
	for word, value := range head {
		if *value == "" && word != "Ends" {
			return nil, fmt.Errorf("%s.patch has no line %s", name, word)
		}
	}
	if !slices.Contains([]string{"", "panic", "timeout"}, m.ends) {
		return nil, fmt.Errorf("%s.patch: Ends is %q, want panic or timeout", name, m.ends)
	}
	if len(m.hunks) == 0 {
		return nil, fmt.Errorf("%s.patch changes nothing", name)
	}
	for _, h := range m.hunks {
		if ofTests.MatchString(h.path) {
			return nil, fmt.Errorf("%s.patch breaks %s, which is no code of the service: a test that is broken sees nothing", name, h.path)
		}
	}
	if said := strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(m.says, "--- "), "FAIL:")); strings.Contains(asEvent(m.test), asEvent(said)) || strings.HasPrefix(asEvent(said), asEvent(m.test)+"/") {
		return nil, fmt.Errorf("%s.patch: Says is only the test's name, which every failure of it says: %q", name, m.says)
	}
	return m, nil
}

// apply gives the patched files by their paths. The old lines of a hunk must be in its file exactly once; the numbers of
// lines are not looked at, so that a change elsewhere in the file breaks no patch.
func (m *mutant) apply(read func(path string) (string, error)) (map[string]string, error) {
	files := map[string]string{}
	for _, h := range m.hunks {
		text, ok := files[h.path]
		if !ok {
			var err error
			if text, err = read(h.path); err != nil {
				return nil, fmt.Errorf("%s.patch: %w", m.name, err)
			}
		}
		was, becomes := "\n"+strings.Join(h.old, "\n")+"\n", "\n"+strings.Join(h.new, "\n")+"\n"
		if was == becomes {
			return nil, fmt.Errorf("%s.patch: a hunk of %s changes nothing", m.name, h.path)
		}
		switch n := places("\n"+text, was); n {
		case 1:
			files[h.path] = strings.Replace("\n"+text, was, becomes, 1)[1:]
		case 0:
			return nil, fmt.Errorf("%s.patch does not apply: %s has no lines\n%s", m.name, h.path, strings.Join(h.old, "\n"))
		default:
			return nil, fmt.Errorf("%s.patch: %s has these lines %d times, give more of them\n%s", m.name, h.path, n, strings.Join(h.old, "\n"))
		}
	}
	return files, nil
}

// places counts where part is in text; two may share a line's end.
func places(text, part string) (n int) {
	for {
		at := strings.Index(text, part)
		if at < 0 {
			return n
		}
		n, text = n+1, text[at+1:]
	}
}

// root is the repository's.
var root = sync.OnceValue(func() string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return dir
})

func readFile(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join(root(), filepath.FromSlash(path)))
	return string(b), err
}

// all are the mutants, by name.
var all = sync.OnceValues(func() ([]*mutant, error) {
	names, err := filepath.Glob("*.patch")
	if err != nil {
		return nil, err
	}
	var mutants []*mutant
	var errs []error
	for _, file := range names {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		m, err := parse(strings.TrimSuffix(file, ".patch"), string(text))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		mutants = append(mutants, m)
	}
	return mutants, errors.Join(errs...)
})

// pattern is what go test -run takes for a test's name and nothing else.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}
