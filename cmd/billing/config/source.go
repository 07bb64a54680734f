package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// node is a value as it was written, in YAML or JSON: keys in their order,
// repeated ones too, and the type that the writer gave it. Both readers build
// the same tree, so that one strict reading (schema.go) serves both.
type node struct {
	kind    kind
	text    string  // of a scalar
	line    int     // 0 in JSON
	entries []entry // of a mapping
	items   []*node // of a list
}

type entry struct {
	key   string
	line  int
	value *node
}

type kind int

const (
	isNull kind = iota
	isText
	isNumber
	isBool
	isList
	isMapping
	isOther // anchors, aliases, tags: not taken
)

func (k kind) String() string {
	return [...]string{"nothing", "text", "a number", "true or false", "a list", "keys with values", "an anchor, alias or tag"}[k]
}

// maxSource bounds a configuration, in bytes: more is a wrong file.
const maxSource = 1 << 20

// maxBrackets is more than 256 shards as JSON have.
const maxBrackets = 2000

// syntaxError is a text that could not be read at all. msg never quotes the
// text, which may hold a password.
type syntaxError struct {
	line int
	msg  string
}

func (e *syntaxError) Error() string { return e.msg }

// readYAML reads one YAML document. An empty one is nil.
func readYAML(b []byte) (*node, *syntaxError) {
	if len(b) > maxSource {
		return nil, &syntaxError{msg: fmt.Sprintf("is larger than %d bytes: not a configuration of this service", maxSource)}
	}
	// Reading lists within lists takes memory by the square of their depth.
	if bytes.Count(b, []byte("["))+bytes.Count(b, []byte("{")) > maxBrackets {
		return nil, &syntaxError{msg: fmt.Sprintf("has more than %d brackets: not a configuration of this service", maxBrackets)}
	}
	if bytes.HasPrefix(b, []byte("\xff\xfe")) || bytes.HasPrefix(b, []byte("\xfe\xff")) {
		return nil, &syntaxError{msg: "is UTF-16 text: save it as UTF-8"}
	}
	for rest, line := b, 1; len(rest) > 0; line++ {
		text, after, _ := bytes.Cut(rest, []byte("\n"))
		if !utf8.Valid(text) {
			return nil, &syntaxError{line: line, msg: "has a character that is not UTF-8: save the file as UTF-8"}
		}
		rest = after
	}
	// Repeated keys are let through here, to be found with all other problems.
	file, err := parser.ParseBytes(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")), 0, parser.AllowDuplicateMapKey())
	if err != nil {
		// Error() would quote the lines around the place, passwords and all, and
		// the message alone may quote, too.
		var at yaml.Error
		if errors.As(err, &at) && at.GetToken() != nil {
			return nil, &syntaxError{line: at.GetToken().Position.Line, msg: "is not valid YAML: " + plainYAML(at.GetMessage())}
		}
		return nil, &syntaxError{msg: "is not valid YAML"}
	}
	var root *node
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		n := fromAST(doc.Body)
		if doc.Body.Type() == ast.DirectiveType {
			return nil, &syntaxError{line: n.line, msg: "a line that begins with % is not taken here: remove it"}
		}
		if root != nil {
			return nil, &syntaxError{line: n.line, msg: "has more than one YAML document: keep one"}
		}
		root = n
	}
	return root, nil
}

// yamlFaults are the reader's own words for what people get wrong, and ours.
var yamlFaults = []struct{ says, means string }{
	{"tab character", "there is a tab: indent with spaces"},
	{"character '\t'", "there is a tab: indent with spaces"},
	{"mapping value is not allowed", "there is a colon with a space behind it inside a value: put the value in quotes"},
	{"value is not allowed in this context", "the line is not indented as the others of its section: keys of one section begin in the same column"},
	{"non-map value", "want KEY: VALUE, with a space behind the colon"},
	{"could not find end character", "a quote is not closed"},
	{"is a reserved character", "a value begins with @ or `: put it in quotes"},
	{"flow map content", "a value begins with {: put it in quotes, or fill in what the template has left open"},
	{"flow mapping end", "a { is not closed by a }"},
	{"',' or '}'", "a { is not closed by a }, or a comma is missing"},
	{"sequence end token", "a [ is not closed by a ]"},
	{"',' or ']'", "a [ is not closed by a ], or a comma is missing"},
	{"corresponding to", "a ] or } has no [ or { before it"},
	{"escape character", "there is a backslash in double quotes: use single quotes"},
	{"invalid header option", "a line or a value begins with | or >: put the value in quotes; marks of a merge conflict must go"},
}

// plainYAML is what the reader of YAML says, in words that need no knowledge of
// its insides.
func plainYAML(said string) string {
	for _, f := range yamlFaults {
		if strings.Contains(said, f.says) {
			return f.means
		}
	}
	return "this line, or the one before it, can't be understood: compare it with the config.yaml that came with the service"
}

func fromAST(a ast.Node) *node {
	n := &node{}
	if t := a.GetToken(); t != nil {
		n.line = t.Position.Line
	}
	switch a := a.(type) {
	case *ast.MappingNode:
		n.kind = isMapping
		for _, v := range a.Values {
			n.entries = append(n.entries, entryFromAST(v))
		}
	case *ast.MappingValueNode:
		n.kind = isMapping
		n.entries = []entry{entryFromAST(a)}
	case *ast.SequenceNode:
		n.kind = isList
		for _, v := range a.Values {
			n.items = append(n.items, fromAST(v))
		}
	case *ast.StringNode:
		n.kind, n.text = isText, a.Value
	case *ast.LiteralNode:
		n.kind, n.text = isText, a.Value.Value
	case *ast.IntegerNode:
		n.kind, n.text = isNumber, a.Token.Value
	case *ast.FloatNode:
		n.kind, n.text = isNumber, a.Token.Value
	case *ast.InfinityNode:
		n.kind, n.text = isNumber, a.Token.Value
	case *ast.NanNode:
		n.kind, n.text = isNumber, a.Token.Value
	case *ast.BoolNode:
		n.kind, n.text = isBool, a.Token.Value
	case *ast.NullNode:
		n.kind = isNull
	default:
		n.kind = isOther
	}
	return n
}

func entryFromAST(v *ast.MappingValueNode) entry {
	e := entry{line: v.Key.GetToken().Position.Line, value: fromAST(v.Value)}
	switch k := v.Key.(type) {
	case *ast.StringNode:
		e.key = k.Value
	default:
		e.key = v.Key.GetToken().Value
	}
	return e
}

// readJSON reads one JSON value.
func readJSON(s string) (*node, *syntaxError) {
	if len(s) > maxSource {
		return nil, &syntaxError{msg: fmt.Sprintf("is larger than %d bytes", maxSource)}
	}
	d := json.NewDecoder(bytes.NewReader([]byte(s)))
	d.UseNumber()
	n, err := fromJSON(d, 0)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return n, nil
		} // else there is text after the value
	}
	switch c := strings.TrimSpace(s); {
	case strings.HasPrefix(c, "{"):
		return nil, &syntaxError{msg: "is not valid JSON: put [ and ] around it"}
	case !strings.HasPrefix(c, "["):
		return nil, &syntaxError{msg: "is not JSON"}
	}
	return nil, &syntaxError{msg: fmt.Sprintf("is not valid JSON: the mistake is near its character %d", utf8.RuneCountInString(s[:d.InputOffset()])+1)}
}

func fromJSON(d *json.Decoder, depth int) (*node, error) {
	if depth > 100 {
		return nil, errors.New("nested too deep")
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		n := &node{kind: isList}
		if t == '{' {
			n.kind = isMapping
		}
		for d.More() {
			var key string
			if n.kind == isMapping {
				k, err := d.Token()
				if err != nil {
					return nil, err
				}
				key, _ = k.(string) // the decoder lets only strings be keys
			}
			v, err := fromJSON(d, depth+1)
			if err != nil {
				return nil, err
			}
			if n.kind == isMapping {
				n.entries = append(n.entries, entry{key: key, value: v})
			} else {
				n.items = append(n.items, v)
			}
		}
		_, err := d.Token() // the closing delimiter
		return n, err
	case string:
		return &node{kind: isText, text: t}, nil
	case json.Number:
		return &node{kind: isNumber, text: t.String()}, nil
	case bool:
		return &node{kind: isBool, text: fmt.Sprint(t)}, nil
	}
	return &node{kind: isNull}, nil
}
