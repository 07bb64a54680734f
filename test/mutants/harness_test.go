package mutants

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

const head = "Breaks: b\nStep: C1\nPackage: internal/dedup\nTest: TestA/a case, of some\nSays: lost\n"

func mustParse(t *testing.T, text string) *mutant {
	t.Helper()
	m, err := parse("m", text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestOnlyTheNamedFailureKills: a compile error is no kill, nor is a test that is not there, passes, fails for another
// reason, or dies where the patch does not say so.
func TestOnlyTheNamedFailureKills(t *testing.T) {
	const run = `{"Action":"run","Test":"TestA"}{"Action":"run","Test":"TestA/a_case,_of_some"}`
	says := `{"Action":"output","Test":"TestA/a_case,_of_some","Output":"an entry is lost\n"}`
	fail := `{"Action":"fail","Test":"TestA/a_case,_of_some"}{"Action":"fail","Test":"TestA"}{"Action":"fail"}`
	dies := `{"Action":"output","Output":"panic: an entry is lost\n"}{"Action":"fail"}`
	late := `{"Action":"output","Output":"panic: test timed out after 2m0s\n"}{"Action":"fail","Test":"TestA/a_case,_of_some"}`
	for name, c := range map[string]struct{ said, ends, want string }{
		"it fails as it should":           {run + says + fail, "", killed},
		"it fails and says something":     {run + fail, "", otherwise},
		"it passes":                       {run + says + `{"Action":"pass","Test":"TestA/a_case,_of_some"}`, "", survived},
		"it is skipped":                   {run + says + `{"Action":"skip","Test":"TestA/a_case,_of_some"}`, "", notRun},
		"only its parent fails":           {`{"Action":"run","Test":"TestA"}` + says + `{"Action":"fail","Test":"TestA"}`, "", noTest},
		"no tests to run":                 {`{"Action":"output","Output":"testing: warning: no tests to run\n"}{"Action":"pass"}`, "", noTest},
		"nothing":                         {``, "", noTest},
		"a compile error":                 {`{"Action":"build-output","Output":"lost\n"}{"Action":"build-fail"}{"Action":"fail","FailedBuild":"x"}`, "", notCompiled},
		"it panics":                       {run + dies, "", otherwise},
		"it panics, as the patch says":    {run + dies, "panic", killed},
		"it panics with other words":      {run + `{"Action":"output","Output":"panic: nil\n"}`, "panic", otherwise},
		"it should panic, and fails":      {run + says + fail, "panic", otherwise},
		"its process ends":                {run + says + `{"Action":"fail"}`, "", otherwise},
		"it times out":                    {run + says + late, "", otherwise},
		"it times out, as the patch says": {run + says + late, "timeout", killed},
		"it should panic, and times out":  {run + says + late, "panic", otherwise},
	} {
		rep, err := readReport(strings.NewReader(c.said))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		m := mustParse(t, head+"+++ b/f\n@@ -1 +1 @@\n-a\n+b\n")
		m.ends = c.ends
		if got := m.judge(rep); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if _, err := readReport(strings.NewReader(`{"Action":"run"} and then`)); err == nil {
		t.Error("an answer that is none is read")
	}
}

// TestHunksFindTheirLines: anywhere in the file, and in one place only.
func TestHunksFindTheirLines(t *testing.T) {
	patch := head + "--- a/f\n+++ b/f\n@@ -7,3 +7,3 @@\n one\n-two\n+2\n\n@@ -20 +20,2 @@\n+new\n last\n"
	for text, want := range map[string]string{
		"zero\none\ntwo\n\nlast\n":          "zero\none\n2\n\nnew\nlast\n",
		"one\ntwo\n\nlast\n":                "one\n2\n\nnew\nlast\n",
		"one\ntwo\nlast\n":                  "", // the empty line is missing
		"none\ntwo\n\nlast\n":               "", // only whole lines
		"one\ntwo\n\none\ntwo\n\nlast\n":    "", // twice
		"one\ntwo\n\nlast\nbut\nlast\n":     "",
		"one\n\tindented\ntwo\n\nlast\n":    "",
		"one\ntwo\n\nlast of\nsome\nlast\n": "one\n2\n\nlast of\nsome\nnew\nlast\n",
	} {
		got, err := mustParse(t, patch).apply(func(string) (string, error) { return text, nil })
		if (err == nil) != (want != "") || got["f"] != want {
			t.Errorf("%q: %q, %v, want %q", text, got["f"], err, want)
		}
	}
	if _, err := mustParse(t, patch).apply(func(string) (string, error) { return "", os.ErrNotExist }); err == nil {
		t.Error("a file that is not there was patched")
	}
	for what, text := range map[string]string{
		"no head":          "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n",
		"no hunk":          head,
		"a word twice":     head + "Step: C2\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n",
		"another word":     head + "Why: so\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n",
		"an end of no use": head + "Ends: well\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n",
		"a broken test":    head + "+++ b/internal/dedup/state_test.go\n@@ -1 +1 @@\n-a\n+b\n",
		"a broken fake":    head + "+++ b/internal/checkpoint/checkpointtest/world.go\n@@ -1 +1 @@\n-a\n+b\n",
		"and another one":  head + "+++ b/f\n@@ -1 +1 @@\n-a\n+b\n--- a/t\n+++ b/internal/consume/consumetest/group.go\n@@ -1 +1 @@\n-a\n+b\n",
		"only its test":    strings.Replace(head, "lost", "FAIL: TestA/a_case,_of_some", 1) + "+++ b/f\n@@ -1 +1 @@\n-a\n+b\n",
		"its test's case":  strings.Replace(head, "lost", "a case, of some", 1) + "+++ b/f\n@@ -1 +1 @@\n-a\n+b\n",
		"its test alone":   strings.Replace(head, "lost", "TestA", 1) + "+++ b/f\n@@ -1 +1 @@\n-a\n+b\n",
		"a case of it":     strings.Replace(head, "lost", "--- FAIL: TestA/a_case,_of_some/deep", 1) + "+++ b/f\n@@ -1 +1 @@\n-a\n+b\n",
		"a stray line":     head + "+++ b/f\n@@ -1 +1 @@\n-a\n+b\nc\n",
	} {
		if m, err := parse("m", text); err == nil {
			t.Errorf("%s: %+v", what, m)
		}
	}
}

// TestPatternIsOneTest: what go test is given runs the killing test alone.
func TestPatternIsOneTest(t *testing.T) {
	got := pattern(asEvent("TestA/a case, of some (other) ones"))
	parts := strings.Split(got, "/")
	if len(parts) != 2 || !regexp.MustCompile(parts[0]).MatchString("TestA") || regexp.MustCompile(parts[0]).MatchString("TestAB") ||
		!regexp.MustCompile(parts[1]).MatchString("a_case,_of_some_(other)_ones") {
		t.Errorf("got %s", got)
	}
}
