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
	last := 0
	for _, k := range leaves() {
		if line := c.sources[k.path].line; line < last {
			t.Errorf("%s: is before the key that config check shows before it", k.path)
		} else {
			last = line
		}
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
	comments := commentsByKey(string(b))
	for _, k := range leaves() {
		key, comment := k.path, comments[k.path]
		numbers := k.typ.Kind() == reflect.Int || k.typ.Kind() == reflect.Int64 // time spans too
		m := span.FindStringSubmatch(comment)
		if m == nil {
			if numbers {
				t.Errorf("%s: its comment has no bounds in the form of the others:\n%s", key, comment)
			}
			continue
		}
		for _, size := range regexp.MustCompile(`(\d+) \((\d+) ([MG])iB`).FindAllStringSubmatch(comment, -1) {
			if number(size[1]) != number(size[2])<<map[string]int{"M": 20, "G": 30}[size[3]] {
				t.Errorf("%s: %s is not %s %siB", key, size[1], size[2], size[3])
			}
		}
		if unit := regexp.MustCompile(`(?i)\bbytes\b`); numbers && k.typ != durationType && strings.HasSuffix(key, "_bytes") && !unit.MatchString(comment) {
			t.Errorf("%s: its comment does not name the unit", key)
		}
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
}

// The same of texts and their lengths, of words, and of the number of shards.
func TestShippedLengthsAreTheRules(t *testing.T) {
	b, err := os.ReadFile("../../../config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	comments := commentsByKey(string(b))
	wrong := func(key, value string) (says string) {
		inFile(t, good)
		t.Setenv(variableOf(key), value)
		return strings.Join(problems(t), "; ")
	}
	span := regexp.MustCompile(`\b(\d+) to (\d+) (?:of|bytes)`)
	for key, text := range map[string]func(n int) string{
		"job": letters("a"), "kafka.topic": letters("a"), "kafka.instance_id": letters("a"), "message.currencies": letters("A"),
		"message.type_prefix": func(n int) string { return strings.Repeat("a", n-1) + "." },
		"shards":              func(n int) string { return `[{"name":"` + strings.Repeat("a", n) + `","dsn":"u:p@tcp(h)/d"}]` },
	} {
		m := span.FindStringSubmatch(comments[key])
		if m == nil {
			t.Errorf("%s: its comment names no length:\n%s", key, comments[key])
			continue
		}
		least, most := int(number(m[1])), int(number(m[2]))
		if key == "message.type_prefix" {
			least++ // the dot is added where it is missing
		}
		for n, right := range map[int]bool{least - 1: key == "kafka.instance_id", least: true, most: true, most + 1: false} {
			if key == "message.type_prefix" && n < least {
				continue // "." alone: see TestRules
			}
			if says := wrong(key, text(n)); (says == "") != right {
				t.Errorf("%s of length %d, by the file %s to %s: %q", key, n, m[1], m[2], says)
			}
		}
	}
	for key, words := range map[string]string{"log.level": "debug, info, warn or error", "log.format": "text or json"} {
		if !strings.Contains(comments[key], words) {
			t.Errorf("%s: its comment does not say %s", key, words)
		}
		for word := range strings.FieldsFuncSeq(strings.ReplaceAll(words, " or ", ","), func(r rune) bool { return r == ',' || r == ' ' }) {
			if says := wrong(key, word); says != "" {
				t.Errorf("%s: %s is a word by the file, but: %s", key, word, says)
			}
		}
		if says := wrong(key, "other"); !strings.Contains(says, strings.ReplaceAll(words, " or ", ", ")) {
			t.Errorf("%s: other words are told %q, the file has %s", key, says, words)
		}
	}
	shards := func(n int) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(`{"name":"s%d","dsn":"u:p@tcp(h)/d%d"}`, i, i)
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	if !strings.Contains(comments["shards"], fmt.Sprintf("one or more, up to %d", maxShards)) {
		t.Errorf("shards: its comment does not say up to %d", maxShards)
	}
	if says := wrong("shards", shards(maxShards)); says != "" {
		t.Errorf("%d shards: %s", maxShards, says)
	}
	if says := wrong("shards", shards(maxShards+1)); says == "" {
		t.Errorf("%d shards are taken", maxShards+1)
	}
}

func letters(of string) func(int) string {
	return func(n int) string { return strings.Repeat(of, n) }
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
