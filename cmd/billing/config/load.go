package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
)

const (
	// FileVariable names the configuration file where no flag does.
	FileVariable = "BILLING_CONFIG"
	// DefaultFile is read where neither a flag nor FileVariable names a file;
	// without it the environment alone has to do.
	DefaultFile = "config.yaml"
)

// Load reads the configuration: the file (path; where that is "", the one that
// BILLING_CONFIG names, or config.yaml if there is one), the environment over
// it, and the files that hold DSNs. It fails with an *Error that holds all
// problems; the configuration beside it, nil where nothing could be read, is for
// Usable and what that says can be used. What is only strange goes to warn, a
// line each.
//
// checkDSN says whether the database's driver can use a DSN, without a network;
// its errors must not hold a part of the DSN. nil checks the form only.
func Load(path string, warn io.Writer, checkDSN func(dsn string) error) (*Config, error) {
	c, problems := load(path, warn, checkDSN)
	if len(problems) > 0 {
		sortProblems(problems)
		if c != nil {
			c.problems = problems
		}
		return c, &Error{Problems: problems}
	}
	return c, nil
}

// Usable reports whether the value at a path has no problem, nor what it is made
// of or a part of.
func (c *Config) Usable(path string) bool {
	for p := range c.wrong { // also what was given under a wrong name
		if under(p, path) || under(path, p) {
			return false
		}
	}
	return !slices.ContainsFunc(c.problems, func(p Problem) bool { return under(p.Path, path) || under(path, p.Path) })
}

// Problem is one that was found elsewhere with the value at a path, with the
// place where that was given.
func (c *Config) Problem(path, message string) Problem {
	return place(c.sources, c.from, path).problem(path, "%s", message)
}

// LoadListen reads admin.listen only, for a probe of the running service: a
// problem elsewhere in the configuration must not make a healthy process look
// dead.
func LoadListen(path string) (string, error) {
	c, problems := load(path, io.Discard, nil)
	problems = slices.DeleteFunc(problems, func(p Problem) bool {
		return p.Path != "" && p.Path != "admin" && p.Path != "admin.listen"
	})
	if len(problems) > 0 {
		return "", &Error{Problems: problems}
	}
	return c.Admin.Listen, nil
}

func load(path string, warn io.Writer, checkDSN func(string) error) (*Config, []Problem) {
	file, data, err := find(path)
	if err != nil {
		return nil, []Problem{{File: file, Message: err.Error()}}
	}
	r := &reading{origin: source{file: file}, sources: map[string]source{}, wrong: map[string]bool{}}
	given := map[string]any{} // nested, as viper wants it
	root, bad := readYAML(data)
	switch {
	case bad != nil:
		// Nothing is known of any key: what else is wrong can't be said.
		return nil, []Problem{{File: file, Line: bad.line, Message: bad.msg}}
	case root == nil: // an empty file
	case root.kind != isMapping:
		return nil, []Problem{{File: file, Line: root.line, Message: "want keys with values, such as job: billing; got " + root.kind.String()}}
	default:
		r.mapping(root, reflect.TypeFor[Config](), "", func(path string, _ []int, v reflect.Value) {
			nest(given, path, v.Interface())
		})
	}
	for _, path := range r.meant {
		if _, given := r.sources[path]; !given {
			r.wrong[path] = true // it is not missing, too
		}
	}
	c, err := merge(r, given)
	if err != nil {
		return nil, append(r.problems, Problem{File: file, Message: err.Error()})
	}
	c.sources, c.from = r.sources, file
	warnUnknown(warn)
	k := &check{c: c, r: r, dsnCheck: checkDSN}
	k.all()
	if len(r.problems) > 0 {
		c.wrong = r.wrong
	}
	return c, r.problems
}

// find is the file to read and its bytes; no file is no error where none was
// asked for.
func find(path string) (string, []byte, error) {
	asked := true
	if path == "" {
		var set bool
		if path, set = os.LookupEnv(FileVariable); set && path == "" {
			return "", nil, fmt.Errorf("%s is set to nothing: name a file, or unset it", FileVariable)
		}
	}
	if path == "" {
		path, asked = DefaultFile, false
	}
	b, err := readAtMost(path, maxSource)
	switch {
	case err == nil:
		return path, b, nil
	case !asked && errors.Is(err, fs.ErrNotExist):
		return "", nil, nil
	}
	return path, nil, fmt.Errorf("can't be read: %w; name the file with --config or %s", reason(err), FileVariable)
}

// readAtMost reads a file, and one byte more than most of one that is longer: it
// may be a device.
func readAtMost(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it is only read
	return io.ReadAll(io.LimitReader(f, most+1))
}

// reason is err without the path, which the message names already.
func reason(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// merge lets viper decide what wins: the environment over the file over the
// defaults. Every key's variable is looked up and parsed here, by the rules of
// the file, and handed over as a value. viper's own binding hands texts on:
// what it makes of them is not strict (it cuts JSON at its commas), its errors
// name Go fields, and a variable that is set to nothing, which is a mistake to
// report, it takes for one that is not set.
func merge(r *reading, given map[string]any) (*Config, error) {
	v := viper.New()
	defaults := reflect.ValueOf(Default())
	keys := leaves()
	for _, k := range keys {
		v.SetDefault(k.path, defaults.FieldByIndex(k.index).Interface())
	}
	if err := v.MergeConfigMap(given); err != nil {
		return nil, fmt.Errorf("configuration: merge: %w", err)
	}
	for _, k := range keys {
		text, ok := os.LookupEnv(k.variable)
		if !ok {
			continue
		}
		// The file's value loses, so its places and faults no longer matter to
		// the rules (its problems stay reported).
		maps.DeleteFunc(r.sources, func(p string, _ source) bool { return under(p, k.path) })
		maps.DeleteFunc(r.wrong, func(p string, _ bool) bool { return under(p, k.path) })
		value, ok := r.environment(k, text)
		if !ok {
			value = reflect.Zero(k.typ)
		}
		v.Set(k.path, value.Interface())
	}
	c := &Config{}
	err := v.Unmarshal(c, func(d *mapstructure.DecoderConfig) {
		d.WeaklyTypedInput = false
		d.DecodeHook = nil
		d.ErrorUnused = true
	})
	if err != nil {
		return nil, fmt.Errorf("configuration: decode: %w", err)
	}
	return c, nil
}

func under(path, parent string) bool {
	rest, ok := strings.CutPrefix(path, parent)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// environment reads a variable's text as the value of its key.
func (r *reading) environment(k leaf, text string) (reflect.Value, bool) {
	file := r.origin
	r.origin = source{variable: k.variable}
	defer func() { r.origin = file }()
	r.at(k.path, 0)

	v := reflect.New(k.typ).Elem()
	text = strings.TrimSpace(text)
	wrong := func(format string, args ...any) (reflect.Value, bool) {
		r.fail(k.path, 0, format, args...)
		return v, false
	}
	switch {
	case text == "" && example(k.path) != "":
		return wrong("is set to nothing: give it a value, such as %s, or unset it", variableExample(k))
	case len(text) > 1 && (text[0] == '"' || text[0] == '\'') && text[0] == text[len(text)-1]:
		return wrong("is in quotes, which are a part of the value here: remove them (a file for docker --env-file takes none)")
	case k.typ.Kind() != reflect.Slice:
		if msg := parse(text, v, k.path); msg != "" {
			return wrong("%s", msg)
		}
		return v, true
	case k.typ.Elem().Kind() == reflect.String && (strings.HasPrefix(text, "[\"") || !strings.Contains(text, ",") && strings.ContainsAny(text, " ;")):
		return wrong("%s: items are separated by commas, such as %s", show(text), variableExample(k))
	case k.typ.Elem().Kind() == reflect.String:
		list := &node{kind: isList}
		for item := range strings.SplitSeq(text, ",") {
			list.items = append(list.items, &node{kind: isText, text: strings.TrimSpace(item)})
		}
		return r.value(list, k.typ, k.path, 0)
	}
	n, bad := readJSON(text)
	if bad != nil {
		return wrong(`%s; want a list such as [{"name":"a","dsn":"user:password@tcp(host:3306)/database"}], each text in double quotes`, bad.msg)
	}
	return r.value(n, k.typ, k.path, 0)
}

// variableExample is a value of a key as its variable has it.
func variableExample(k leaf) string {
	text := example(k.path)
	if k.typ.Kind() == reflect.Slice && k.typ.Elem().Kind() == reflect.String {
		text = strings.ReplaceAll(strings.Trim(text, "[]"), ", ", ",")
	}
	return text
}

// nest puts v at the path a.b.c of nested maps.
func nest(m map[string]any, path string, v any) {
	for {
		head, rest, more := strings.Cut(path, ".")
		if !more {
			m[head] = v
			return
		}
		next, ok := m[head].(map[string]any)
		if !ok {
			next = map[string]any{}
			m[head] = next
		}
		m, path = next, rest
	}
}

// warnUnknown names variables that look like ours and are not. It is no error:
// Kubernetes gives every container variables that are named after a service,
// and one that is called billing makes BILLING_SERVICE_HOST.
func warnUnknown(warn io.Writer) {
	known := map[string]bool{FileVariable: true}
	for _, k := range leaves() {
		known[k.variable] = true
	}
	environ := os.Environ()
	slices.Sort(environ)
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		upper := strings.ToUpper(name)
		if !strings.HasPrefix(upper, variablePrefix) || known[name] {
			continue
		}
		hint, near := "", 3
		for _, k := range slices.Sorted(maps.Keys(known)) {
			d := Apart(upper, k)
			if d >= 3 && strings.HasPrefix(k, upper+"_") {
				d = 2
			}
			if d < near {
				hint, near = "; did you mean "+k+"?", d
			}
		}
		fmt.Fprintf(warn, "warning: %s: not a variable of this service, ignored%s\n", name, hint)
	}
}
