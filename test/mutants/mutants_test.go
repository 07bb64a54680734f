package mutants

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// What make mutants sets: all of them, or those whose name has a match of the pattern; and that docs/mutants.md is to be
// written.
const (
	envAll      = "BILLING_MUTANTS"
	envOnly     = "BILLING_MUTANTS_ONLY"
	envDocument = "BILLING_MUTANTS_DOCUMENT"
)

// sideBySide is how many mutants run at the same time: each is mostly one compiler.
const sideBySide = 2

// TestMutants: each seeded bug is seen by the test that its patch names. make mutants runs all of them, after the killing
// tests on the code as it is; make test runs some of those that need no servers.
func TestMutants(t *testing.T) {
	watchSources(t)
	mutants, err := all()
	if err != nil {
		t.Fatal(err)
	}
	everything := os.Getenv(envAll) != ""
	if only := os.Getenv(envOnly); only != "" {
		match, err := regexp.Compile(only)
		if err != nil {
			t.Fatalf("ONLY: %v", err)
		}
		mutants = slices.DeleteFunc(slices.Clone(mutants), func(m *mutant) bool { return !match.MatchString(m.name) })
	}
	if !everything {
		mutants = some(mutants)
	}
	if len(mutants) == 0 {
		t.Fatal("no mutant has this name")
	}
	var healthy func(*mutant) string
	if everything {
		healthy = baseline(t, mutants)
	}
	results := make([]result, len(mutants))
	var servers sync.Mutex // the servers of two at once are too much for a small machine
	slots := make(chan struct{}, sideBySide)
	var wg sync.WaitGroup
	for i, m := range mutants {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			switch {
			case healthy != nil && healthy(m) != "":
				results[i] = result{mutant: m, verdict: brokenBefore, why: healthy(m)}
			case m.servers:
				servers.Lock()
				defer servers.Unlock()
				results[i] = m.kill(t)
			default:
				results[i] = m.kill(t)
			}
			if everything {
				fmt.Fprintf(os.Stdout, "%-9s %s (%s)\n", results[i].verdict, m.name, results[i].took.Round(100*time.Millisecond))
			}
		})
	}
	wg.Wait()
	for _, r := range results {
		if r.verdict != killed {
			t.Errorf("%s: %s: %s must fail and say %q:\n%s", r.name, r.verdict, r.test, r.says, r.why)
		}
	}
	if everything {
		table(os.Stdout, results)
	}
}

// some are the mutants of make test: every third of those that need no servers, the same ones each time. All of them
// compile there, see TestPatches.
func some(mutants []*mutant) (part []*mutant) {
	n := 0
	for _, m := range mutants {
		if m.servers {
			continue
		}
		if n%3 == 0 {
			part = append(part, m)
		}
		n++
	}
	return part
}

// baseline runs the killing tests on the code as it is, and gives of each mutant what is wrong with its test there.
func baseline(t *testing.T, mutants []*mutant) func(*mutant) string {
	tests, servers := map[string]map[string]bool{}, map[string]bool{}
	for _, m := range mutants {
		if tests[m.pkg] == nil {
			tests[m.pkg] = map[string]bool{}
		}
		name, _, _ := strings.Cut(m.test, "/")
		tests[m.pkg][name] = true
		servers[m.pkg] = m.servers
	}
	reports := map[string]report{}
	for _, pkg := range slices.Sorted(maps.Keys(tests)) {
		begun := time.Now()
		rep, err := runTests(t.Context(), pkg, "^("+strings.Join(slices.Sorted(maps.Keys(tests[pkg])), "|")+")$", servers[pkg])
		if err != nil {
			t.Fatalf("%s: %v", pkg, err)
		}
		reports[pkg] = rep
		fmt.Fprintf(os.Stdout, "%s: %d killing tests ran on the code as it is (%s)\n", pkg, len(tests[pkg]), time.Since(begun).Round(time.Second))
	}
	return func(m *mutant) string {
		rep := reports[m.pkg]
		switch {
		case rep.ended[asEvent(m.test)] == "pass":
			return ""
		case !rep.built || len(rep.ran) == 0:
			return "it does not run: " + tail(rep.output)
		}
		return fmt.Sprintf("%s: %q\n%s", m.test, rep.ended[asEvent(m.test)], tail(rep.output))
	}
}

// table prints what became of all.
func table(to io.Writer, results []result) {
	fmt.Fprintln(to)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MUTANT\tSTEP\tWHAT IS BROKEN\tKILLED BY\tRESULT\tTIME")
	bad := 0
	for _, r := range results {
		if r.verdict != killed {
			bad++
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s %s\t%s\t%.1f s\n", r.name, r.step, r.breaks, r.pkg, r.test, r.verdict, r.took.Seconds())
	}
	_ = w.Flush()
	fmt.Fprintf(to, "\n%d mutants, %d killed\n", len(results), len(results)-bad)
}

// watchSources looks at every Go file, so that go test runs this test again when one has changed: the go commands that
// the test runs are not seen by its cache.
func watchSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(root(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root() && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			_, err = os.Stat(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
