package config

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// The shipped file is the documentation of the configuration: every key is in
// it, explained, and at its default.
func TestShippedFile(t *testing.T) {
	path, err := filepath.Abs("../../../config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	inFile(t, "")
	c, err := Load(path, io.Discard, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	comments := commentsByKey(string(b))
	got, def := reflect.ValueOf(*c), reflect.ValueOf(Default())
	for _, k := range leaves() {
		if _, ok := c.sources[k.path]; !ok {
			t.Errorf("%s: not in the file", k.path)
			continue
		}
		value, byDefault := got.FieldByIndex(k.index), def.FieldByIndex(k.index)
		comment := comments[k.path]
		if noDefault := byDefault.IsZero() && k.path != "kafka.instance_id" && k.typ.Kind() != reflect.Bool; noDefault {
			if !strings.Contains(comment, "No default.") {
				t.Errorf("%s: its comment does not say that there is no default:\n%s", k.path, comment)
			}
			continue
		}
		if !reflect.DeepEqual(value.Interface(), byDefault.Interface()) {
			t.Errorf("%s: the file has %v, the default is %v", k.path, value, byDefault)
		}
		text := format(byDefault.Interface())
		if text == "" {
			text = `""`
		}
		if !regexp.MustCompile(`Default: ` + regexp.QuoteMeta(text) + `[. ]`).MatchString(comment) {
			t.Errorf("%s: its comment does not say \"Default: %s\":\n%s", k.path, text, comment)
		}
	}
	shard := reflect.TypeFor[Shard]()
	for i := range shard.NumField() {
		key := shard.Field(i).Tag.Get("mapstructure")
		if !regexp.MustCompile(`(?m)^#\s+` + key + `\s{2,}\S`).MatchString(string(b)) {
			t.Errorf("shards[].%s: not explained", key)
		}
	}
}

// Bounds that the file names are those of the rules: a value just beyond each
// is refused, the bound itself is not.
func TestShippedBoundsAreTheRules(t *testing.T) {
	path, err := filepath.Abs("../../../config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	span := regexp.MustCompile(`Default: \S+(?: \([^)]*\))?\. (\w+)(?: \([^)]*\))? to (\w+)(?: \([^)]*\))?[,;.]`)
	n := 0
	for key, comment := range commentsByKey(string(b)) {
		m := span.FindStringSubmatch(comment)
		if m == nil {
			continue
		}
		n++
		for _, bound := range m[1:] {
			if says := boundProblem(t, key, bound); says != "" {
				t.Errorf("%s: %s is a bound by the file, but: %s", key, bound, says)
			}
		}
		for _, beyond := range []string{before(m[1]), after(m[2])} {
			if says := boundProblem(t, key, beyond); says == "" {
				t.Errorf("%s: %s is beyond the bounds by the file (%s to %s), but is taken", key, beyond, m[1], m[2])
			}
		}
	}
	if n < 9 {
		t.Errorf("only %d keys with bounds found", n)
	}
}

// boundProblem loads good with one value and gives what is said of it by the
// bounds of the key, not by its relations to others.
func boundProblem(t *testing.T, key, value string) string {
	t.Helper()
	inFile(t, good)
	t.Setenv(variableOf(key), value)
	if key == "aggregate.window" {
		t.Setenv("BILLING_DEDUP_LATENESS", "100d")
	}
	for _, p := range problems(t) {
		if strings.Contains(p, "allowed: ") {
			return p
		}
	}
	return ""
}

// before and after are the values next to a bound, on the far side.
func before(bound string) string {
	if d, err := parseDuration(bound); err == nil {
		return formatDuration(d - 1)
	}
	return fmt.Sprint(number(bound) - 1)
}

func after(bound string) string {
	if d, err := parseDuration(bound); err == nil {
		return formatDuration(d + 1)
	}
	return fmt.Sprint(number(bound) + 1)
}

func number(s string) (n int64) {
	if _, err := fmt.Sscan(s, &n); err != nil {
		panic(fmt.Sprintf("%q: %v", s, err))
	}
	return n
}

// commentsByKey gives the comment above each key of a file that is indented by
// two, on one line.
func commentsByKey(text string) map[string]string {
	key := regexp.MustCompile(`^( *)([a-z_]+):`)
	comments := map[string]string{}
	section := ""
	var comment []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if c, ok := strings.CutPrefix(strings.TrimSpace(line), "#"); ok {
			comment = append(comment, strings.TrimSpace(c))
			continue
		}
		if m := key.FindStringSubmatch(line); m != nil {
			path := m[2]
			if m[1] == "" {
				section = path
			} else {
				path = section + "." + path
			}
			comments[path] = strings.Join(comment, " ")
		}
		comment = nil
	}
	return comments
}
