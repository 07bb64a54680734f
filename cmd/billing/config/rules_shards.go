package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// maxShards bounds the branches that one decision can name.
const maxShards = 256

func (k *check) shards() {
	if !k.required("shards", len(k.c.Shards) == 0) {
		return
	}
	if len(k.c.Shards) > maxShards {
		k.fail("shards", "%d shards are more than %d, the most allowed", len(k.c.Shards), maxShards)
	}
	names, databases := map[string]int{}, map[string]int{}
	for i := range k.c.Shards {
		path := fmt.Sprintf("shards[%d]", i)
		if !k.usable(path) {
			continue
		}
		s := &k.c.Shards[i]
		k.shardName(path+".name", s.Name, names, i)
		at, ok := k.dsn(path, s)
		if !ok {
			continue
		}
		t, err := s.DSN.split()
		if err == nil && k.dsnCheck != nil {
			err = k.dsnCheck(s.DSN.Reveal())
		}
		if err != nil {
			k.fail(at, "is no data source name: %s", err)
			continue
		}
		if first, twice := databases[t.database()]; twice {
			k.fail(at, "the same database as shards[%d]: each shard needs one of its own, or charges would be counted twice", first)
		}
		databases[t.database()] = i
	}
}

func (k *check) shardName(path, name string, names map[string]int, i int) {
	switch first, twice := names[name]; {
	case !k.usable(path):
		return
	case name == "":
		k.fail(path, "is missing: every shard has a name, by which logs and refusals call it")
		return
	case !shardForm.MatchString(name):
		k.fail(path, "the value (not shown: it may hold a password) is no name: want 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'")
	case twice:
		k.fail(path, "%s is also the name of shards[%d]", show(name), first)
	}
	names[name] = i
}

// dsn fills the shard's DSN from its file, if it is in one, and says which key
// gave it.
func (k *check) dsn(path string, s *Shard) (at string, ok bool) {
	inline, file := path+".dsn", path+".dsn_file"
	switch {
	case !k.usable(inline) || !k.usable(file):
		return "", false
	case s.DSN != "" && s.DSNFile != "":
		k.fail(path, "dsn and dsn_file are both given: keep one")
		return "", false
	case s.DSN != "":
		return inline, true
	case s.DSNFile == "":
		k.fail(path, "dsn or dsn_file is missing, such as dsn: user:password@tcp(host:3306)/database")
		return "", false
	}
	dsn, err := readSecret(s.DSNFile)
	if err != nil {
		k.fail(file, "%s %s", show(s.DSNFile), err)
		return "", false
	}
	s.DSN = DSN(dsn)
	return file, true
}

// readSecret reads a file that holds one line, without the white space around
// it that editors and secret stores add.
func readSecret(path string) (string, error) {
	b, err := readAtMost(path, maxSecret)
	if err != nil {
		hint := ""
		switch here, _ := os.Getwd(); { //nolint:errcheck // without it the hint is shorter
		case strings.HasPrefix(path, "~"), strings.Contains(path, "$"):
			hint = "; ~ and $ are not replaced here: write the whole path"
		case !filepath.IsAbs(path) && errors.Is(err, fs.ErrNotExist):
			hint = "; it was looked for in the working directory, " + here
		}
		return "", fmt.Errorf("can't be read: %w%s", reason(err), hint)
	}
	s := strings.TrimSpace(strings.TrimPrefix(string(b), "\ufeff"))
	switch {
	case s == "":
		return "", errors.New("is an empty file: want one line, user:password@tcp(host:3306)/database")
	case len(b) > maxSecret:
		return "", fmt.Errorf("is longer than %d bytes: want one line, user:password@tcp(host:3306)/database", maxSecret)
	case strings.ContainsAny(s, "\r\n"):
		return "", errors.New("holds more than one line: want one, user:password@tcp(host:3306)/database")
	case !utf8.ValidString(s) || strings.Contains(s, "\x00"):
		return "", errors.New("is not UTF-8 text: save it as UTF-8")
	case strings.HasPrefix(s, "'"), strings.HasPrefix(s, `"`):
		return "", errors.New("begins with a quote, which would be a part of the user's name: remove the quotes")
	case strings.HasPrefix(s, "dsn: "):
		return "", errors.New("begins with dsn: and a space: want what is behind them only")
	}
	return s, nil
}

// maxSecret bounds the file of a DSN, in bytes.
const maxSecret = 4096
