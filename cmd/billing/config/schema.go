package config

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var durationType = reflect.TypeFor[time.Duration]()

// leaf is one key of the configuration with a value of its own.
type leaf struct {
	path     string
	variable string
	typ      reflect.Type
	index    []int // of the field in Config, for reflect.Value.FieldByIndex
}

// leaves lists all keys in the order of the struct. A list, also one of
// mappings, is one leaf: the environment replaces it as a whole.
func leaves() []leaf {
	var all []leaf
	var walk func(t reflect.Type, prefix string, index []int)
	walk = func(t reflect.Type, prefix string, index []int) {
		for i := range t.NumField() {
			f := t.Field(i)
			key := f.Tag.Get("mapstructure")
			if key == "" {
				continue
			}
			path := join(prefix, key)
			at := append(index[:len(index):len(index)], i)
			if f.Type.Kind() == reflect.Struct {
				walk(f.Type, path, at)
				continue
			}
			all = append(all, leaf{path: path, variable: variableOf(path), typ: f.Type, index: at})
		}
	}
	walk(reflect.TypeFor[Config](), "", nil)
	return all
}

const variablePrefix = "BILLING_"

func variableOf(path string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

func join(prefix, key string) string {
	if prefix == "" {
		return key
	}
	return prefix + "." + key
}

// reading is one strict pass over a tree of nodes.
type reading struct {
	origin   source // file or variable; the line is added
	problems []Problem
	sources  map[string]source // of every path that was given, wrong ones too
	wrong    map[string]bool   // paths whose value can't be used
	meant    []string          // paths that unknown keys seem to stand for
}

func (r *reading) at(path string, line int) source {
	s := r.origin
	if s.file != "" {
		s.line = line
	}
	r.sources[path] = s
	return s
}

func (r *reading) fail(path string, line int, format string, args ...any) {
	r.wrong[path] = true
	r.problems = append(r.problems, r.at(path, line).problem(path, format, args...))
}

// keysOf are the keys of a struct, in its order.
func keysOf(t reflect.Type) (keys []string) {
	for i := range t.NumField() {
		if key := t.Field(i).Tag.Get("mapstructure"); key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

// mapping reads n as the struct type t and calls set for each field that was
// given and is right, with a value of the field's type. Structs in it are read
// by calling mapping again, so set sees only leaves.
func (r *reading) mapping(n *node, t reflect.Type, path string, set func(path string, index []int, v reflect.Value)) {
	fields := map[string]reflect.StructField{}
	known := keysOf(t)
	for i := range t.NumField() {
		if key := t.Field(i).Tag.Get("mapstructure"); key != "" {
			fields[key] = t.Field(i)
		}
	}
	first := map[string]int{}
	for _, e := range n.entries {
		f, ok := fields[e.key]
		if !ok {
			p, msg := path, "a key that is not shown: it does not look like one and may be a piece of a password; are all quotes right?"
			name, hint, meant := unknown(e.key, known, path)
			if name != "" {
				p, msg = join(path, name), "unknown key"+hint
			}
			r.fail(p, e.line, "%s", msg)
			if meant != "" {
				r.meant = append(r.meant, meant)
			}
			continue
		}
		p := join(path, e.key)
		if line, ok := first[e.key]; ok {
			if line > 0 {
				r.fail(p, e.line, "the key is already given in line %d: keep one of them", line)
			} else {
				r.fail(p, e.line, "the key is given twice: keep one of them")
			}
			continue
		}
		first[e.key] = e.line
		r.at(p, e.line)
		if f.Type.Kind() == reflect.Struct {
			if e.value.kind != isMapping {
				r.fail(p, e.line, "want its keys below it, indented (%s), got %s", strings.Join(keysOf(f.Type), ", "), e.value.kind)
				continue
			}
			r.mapping(e.value, f.Type, p, func(path string, index []int, v reflect.Value) {
				set(path, append(f.Index[:1:1], index...), v)
			})
			continue
		}
		if v, ok := r.value(e.value, f.Type, p, e.line); ok {
			set(p, f.Index, v)
		}
	}
}

// value reads n as a leaf of type t.
func (r *reading) value(n *node, t reflect.Type, path string, line int) (reflect.Value, bool) {
	v := reflect.New(t).Elem()
	want, fits := wanted(t, path)
	switch {
	case n.kind == isNull:
		r.fail(path, line, "is empty: give it a value or remove the key")
		return v, false
	case n.kind == isOther:
		r.fail(path, line, "anchors, aliases and tags are not taken here: write the value out")
		return v, false
	case t == durationType && n.kind == isNumber && n.text != "0":
		r.fail(path, line, "a number without a unit: %s", errDuration)
		return v, false
	case n.kind == isText && strings.Contains(n.text, "${") && r.origin.file != "" && !strings.HasPrefix(path, "shards"): // where it may be a password
		key, _, _ := strings.Cut(path, "[")
		r.fail(path, line, "%s: variables are not replaced in this file: write the value, or give it as %s", show(n.text), variableOf(key))
		return v, false
	case path == "admin.listen" && n.kind == isNumber: // in quotes it would be wrong still
		r.fail(path, line, "want %s, got a number", want)
		return v, false
	case t.Kind() == reflect.String && (n.kind == isNumber || n.kind == isBool):
		r.fail(path, line, "want text, got %s: put it in quotes", n.kind)
		return v, false
	case t.Kind() == reflect.String && n.kind == isMapping:
		r.fail(path, line, "want text, got %s: text with a colon and a space behind it needs quotes", n.kind)
		return v, false
	case n.kind == isText && t.Kind() != reflect.Slice && !fits[isText]:
		// Also what only looks like a number: YAML makes text of it.
		msg := parse(n.text, v, path)
		if msg == "" {
			msg = fmt.Sprintf("want %s, got text: remove the quotes", want)
		}
		r.fail(path, line, "%s", msg)
		return v, false
	case !fits[n.kind]:
		r.fail(path, line, "want %s, got %s", want, n.kind)
		return v, false
	}
	if t.Kind() != reflect.Slice {
		if msg := parse(n.text, v, path); msg != "" {
			r.fail(path, line, "%s", msg)
			return v, false
		}
		return v, true
	}
	// A wrong item stays in the list as a zero value, with its path marked as
	// wrong, so that the rules can still look at the others.
	for i, item := range n.items {
		p := fmt.Sprintf("%s[%d]", path, i)
		elem := reflect.New(t.Elem()).Elem()
		r.at(p, item.line)
		switch {
		case elem.Kind() != reflect.Struct:
			elem, _ = r.value(item, t.Elem(), p, item.line)
		case item.kind != isMapping:
			r.fail(p, item.line, "want its keys (%s), got %s", strings.Join(keysOf(t.Elem()), ", "), item.kind)
		default:
			if len(item.entries) > 0 { // the mapping's own token is its first colon
				r.at(p, item.entries[0].line)
			}
			r.mapping(item, elem.Type(), p, func(_ string, index []int, got reflect.Value) {
				elem.FieldByIndex(index).Set(got)
			})
		}
		v = reflect.Append(v, elem)
	}
	return v, true
}

// examples are values of the keys that have no default.
var examples = map[string]string{
	"job": "billing", "kafka.brokers": "[kafka-1:9092, kafka-2:9092]", "kafka.topic": "billing.events",
	"shards":              `[{"name": "a", "dsn_file": "/run/secrets/shard-a"}]`,
	"message.type_prefix": "com.example.billing.", "message.currencies": "[EUR, USD]",
}

// example is a value of a key, as the file would have it; "" where any will do.
func example(path string) string {
	if text, ok := examples[path]; ok {
		return text
	}
	for _, k := range leaves() {
		if k.path == path {
			return format(reflect.ValueOf(Default()).FieldByIndex(k.index).Interface())
		}
	}
	return ""
}

// wanted says in words what a value of type t looks like, and which kinds of
// node may hold one.
func wanted(t reflect.Type, path string) (string, map[kind]bool) {
	switch {
	case t == durationType:
		return "a time span such as 10s or 35d", map[kind]bool{isText: true, isNumber: true}
	case t.Kind() == reflect.Bool:
		return "true or false", map[kind]bool{isBool: true}
	case t.Kind() == reflect.Slice:
		return "a list such as " + example(path), map[kind]bool{isList: true}
	case t.Kind() == reflect.String:
		want := "text"
		if e := example(path); e != "" {
			want += " such as " + e
		}
		return want, map[kind]bool{isText: true}
	}
	return "a whole number", map[kind]bool{isNumber: true}
}

var (
	digits  = regexp.MustCompile(`^-?(0|[1-9][0-9]*(_[0-9]+)*)$`)
	tooLong = regexp.MustCompile(`^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$`)
)

// parse sets v, the value of a key, from a scalar's text; a non-empty answer says
// what is wrong.
func parse(text string, v reflect.Value, path string) string {
	switch {
	case v.Type() == durationType:
		d, err := parseDuration(text)
		if err != nil && strings.ContainsAny(text, "0123456789") && tooLong.MatchString(text) {
			return fmt.Sprintf("%s is too long", show(text))
		}
		if err != nil {
			return fmt.Sprintf("%s is not a time span: %s", show(text), err)
		}
		v.SetInt(int64(d))
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		switch strings.ToLower(text) {
		case "true":
			v.SetBool(true)
		case "false":
			v.SetBool(false)
		default:
			return fmt.Sprintf("%s: want true or false", show(text))
		}
	default:
		if !digits.MatchString(text) {
			return fmt.Sprintf("%s is not a whole number: write it out in digits, such as %s", show(text), example(path))
		}
		n, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, v.Type().Bits())
		if err != nil {
			if text[0] == '-' {
				return fmt.Sprintf("%s is too small", show(text))
			}
			return fmt.Sprintf("%s is too large", show(text))
		}
		v.SetInt(n)
	}
	return ""
}

var (
	wordLike  = regexp.MustCompile(`^[A-Za-z][A-Za-z_-]{0,31}$`)
	plainLike = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,63}$`)
)

// unknown names an unknown key, and hints at the known one that was meant, whose
// path is the last answer. It gives no name where the key may be a piece of a DSN
// that lost its quotes. Among the shards, where DSNs are, only plain words are
// shown.
func unknown(key string, known []string, path string) (name, hint, meant string) {
	if key == "<<" {
		return key, ": merge keys are not taken here: write the keys out", ""
	}
	near, least := "", 3
	for _, k := range known {
		if strings.EqualFold(k, key) {
			return key, fmt.Sprintf(": keys are written exactly so: %s", k), join(path, k)
		}
		if d := Apart(strings.ToLower(key), k); d < least && d < len(k) {
			near, least = k, d
		}
	}
	shown := plainLike
	if strings.HasPrefix(path, "shards") {
		shown = wordLike
	}
	switch {
	case !shown.MatchString(key):
		return "", "", ""
	case strings.Contains(key, "."):
		return key, ": a dot does not nest; write each part on a line of its own, indented", ""
	}
	for _, k := range leaves() {
		switch {
		case key == k.variable:
			return key, ": it is the variable of the key " + k.path, ""
		case strings.HasSuffix(k.path, "."+key):
			return key, fmt.Sprintf(": it belongs under %s, indented", parent(k.path)), k.path
		}
	}
	switch {
	case near != "":
		return key, fmt.Sprintf(": did you mean %s?", near), join(path, near)
	case strings.HasPrefix(path, "shards"):
		return key, ": known are " + strings.Join(known, ", ") + "; user, password, host and database are parts of dsn: user:password@tcp(host:3306)/database", ""
	}
	return key, ": known are " + strings.Join(known, ", "), ""
}

// Apart is how many letters must be put in, left out or replaced to make b
// of a.
func Apart(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			above := row[j+1]
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(diagonal+cost, above+1, row[j]+1)
			diagonal = above
		}
	}
	return row[len(b)]
}
