package config

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
)

// testdata/answers.txt is what people do to the configuration, and what they
// are told: a case is a head, what is done to the good file, and the answer.
//
//	# HEAD
//	- TEXT           the text that is taken out of the good file, once,
//	+ TEXT           the text in its place; without one, lines at its end
//	= TEXT           a line of a file instead of the good one
//	$ NAME=VALUE     a variable
//	@ NAME TEXT      another file
//	> TEXT           a line of the answer; DIR is the working directory
//
// \t, \n, \r, \x00 and the like stand for themselves in all but the answer. To
// see what the service says now, let the test fail.
func TestAnswers(t *testing.T) {
	text, err := os.ReadFile("testdata/answers.txt")
	if err != nil {
		t.Fatal(err)
	}
	cases := strings.Split("\n"+string(text), "\n# ")[1:]
	if len(cases) < 100 {
		t.Errorf("%d cases only", len(cases))
	}
	for _, c := range cases {
		head, body, _ := strings.Cut(c, "\n")
		t.Run(head, func(t *testing.T) { answerTo(t, body) })
	}
}

func answerTo(t *testing.T, body string) {
	var out, in, instead []string
	var want strings.Builder
	inFile(t, "")
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		mark, rest, _ := strings.Cut(line, " ")
		switch mark {
		case "":
		case ">":
			want.WriteString(rest + "\n")
		case "-":
			out = append(out, unescape(t, rest))
		case "+":
			in = append(in, unescape(t, rest))
		case "=":
			instead = append(instead, unescape(t, rest))
		case "$":
			name, value, _ := strings.Cut(rest, "=")
			t.Setenv(name, unescape(t, value))
		case "@":
			name, content, _ := strings.Cut(rest, " ")
			if err := os.WriteFile(name, []byte(unescape(t, content)), 0o600); err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatalf("what is %q?", line)
		}
	}
	file := good
	switch {
	case instead != nil:
		file = strings.Join(instead, "\n") + "\n"
	case out != nil:
		file = edit(strings.Join(out, "\n"), strings.Join(in, "\n"))
	case in != nil:
		file = good + strings.Join(in, "\n") + "\n"
	}
	if err := os.WriteFile(DefaultFile, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := Load("", &got, nil); err != nil {
		_, problems, _ := strings.Cut(err.Error(), ":\n")
		for line := range strings.Lines(problems) {
			fmt.Fprintln(&got, strings.TrimSpace(line))
		}
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	said := strings.ReplaceAll(got.String(), here, "DIR")
	if said != want.String() {
		t.Errorf("got\n%swant\n%s", regexp.MustCompile("(?m)^(.)").ReplaceAllString(said, "> $1"), &want)
	}
	for _, word := range insides {
		if strings.Contains(strings.ToLower(said), word) {
			t.Errorf("says %q, which nobody knows who runs a service:\n%s", word, said)
		}
	}
}

// insides are words of Go, of YAML's grammar and of the libraries.
var insides = []string{"marshal", "int64", "struct", "nil", "parse", "strconv", "token", "scalar", "mapping", "decode", "goccy", "viper", "syntax", "invalid", "0x"}

func unescape(t *testing.T, text string) string {
	t.Helper()
	var b strings.Builder
	for rest := text; rest != ""; {
		c := rest[0]
		if c != '\\' {
			b.WriteByte(c)
			rest = rest[1:]
			continue
		}
		var n int
		switch {
		case strings.HasPrefix(rest, `\x`):
			if _, err := fmt.Sscanf(rest[2:4], "%02x", &n); err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			b.WriteByte(byte(n))
			rest = rest[4:]
		default:
			plain, known := map[byte]byte{'t': '\t', 'n': '\n', 'r': '\r', '\\': '\\'}[rest[1]]
			if !known {
				t.Fatalf("%q: what is %s?", text, rest[:2])
			}
			b.WriteByte(plain)
			rest = rest[2:]
		}
	}
	return b.String()
}

// What can't be shown as a list of lines: devices, and very many problems.
func TestAnswersAreBounded(t *testing.T) {
	inFile(t, edit("dsn: app:s3cr3tPw@tcp(db-a:3306)/billing", "dsn_file: /dev/zero"))
	if got := problems(t); len(got) != 1 || !strings.Contains(got[0], `"/dev/zero" is longer than 4096 bytes`) {
		t.Errorf("an endless file: %q", got)
	}
	if _, err := Load("/dev/zero", io.Discard, nil); err == nil || !strings.Contains(err.Error(), "is larger than 1048576 bytes") {
		t.Errorf("an endless configuration: %v", err)
	}
	inFile(t, good+strings.Repeat("nonsense: 1\n", 10_000))
	_, err := Load("", io.Discard, nil)
	if err == nil || strings.Count(err.Error(), "\n") != 101 || !strings.HasPrefix(err.Error(), "configuration: 10000 problems:\n") || !strings.HasSuffix(err.Error(), "\n  and 9900 more; billing config check --json has all") {
		t.Errorf("10000 problems: %.2000s", err)
	}
	if got := problems(t); len(got) != 10_000 {
		t.Errorf("only %d of them are kept", len(got))
	}
}
