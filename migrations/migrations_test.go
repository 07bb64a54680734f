package migrations

import (
	"crypto/sha256"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestAllAreNumberedAndComplete(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	var made []string
	create := regexp.MustCompile(`(?s)^(?:--[^\n]*\n|\s)*CREATE (?:TABLE IF NOT EXISTS|OR REPLACE SQL SECURITY INVOKER VIEW) (\w+)`)
	for i, m := range all {
		if m.Version != i+1 || m.Checksum != sha256.Sum256([]byte(m.SQL)) {
			t.Errorf("%s: version %d, checksum %x", m.Name, m.Version, m.Checksum)
		}
		statements, err := m.Statements()
		if err != nil || len(statements) == 0 {
			t.Fatalf("%s: %d statements, %v", m.Name, len(statements), err)
		}
		for _, s := range statements {
			found := create.FindStringSubmatch(s)
			if found == nil {
				t.Errorf("%s: can it be run twice? %.80q", m.Name, s)
				continue
			}
			made = append(made, found[1])
			if strings.Contains(s, "CREATE TABLE") {
				if !strings.Contains(s, "ENGINE = InnoDB") {
					t.Errorf("%s: table %s leaves its engine to the server", m.Name, found[1])
				}
				for _, line := range strings.Split(s, "\n") {
					if regexp.MustCompile(`^  [a-z_]+ +[A-Z]+`).MatchString(line) && !strings.Contains(line, " COMMENT '") {
						t.Errorf("%s: a column of %s has no comment: %s", m.Name, found[1], line)
					}
				}
			}
		}
	}
	want := append(slices.Clone(Tables), Views...)
	slices.Sort(made)
	slices.Sort(want)
	if !slices.Equal(made, want) {
		t.Errorf("made %v, declared %v", made, want)
	}
}

func TestStatements(t *testing.T) {
	for name, c := range map[string]struct {
		sql  string
		want []string
	}{
		"none":                  {" \n-- only a comment\n/* and another; */ # and a third;\n", nil},
		"two":                   {"A;\nB ;", []string{"A", "B"}},
		"empty statements":      {";;A;;", []string{"A"}},
		"quotes":                {"A 'x;y' \"p;q\" `b;c`;B;", []string{"A 'x;y' \"p;q\" `b;c`", "B"}},
		"doubled quotes":        {"A 'it''s;' \"\"\"\" '' ```;`;B;", []string{"A 'it''s;' \"\"\"\" '' ```;`", "B"}},
		"backslashes":           {`A '\';' "\\";B;`, []string{`A '\';' "\\"`, "B"}},
		"backslash is a name":   {"A `\\`;B;", []string{"A `\\`", "B"}},
		"comments":              {"A -- x; 'y\n 1; /* ; ' */ B # `;\n;", []string{"A -- x; 'y\n 1", "/* ; ' */ B # `;"}},
		"dashes that are minus": {"A 1--1;B;", []string{"A 1--1", "B"}},
		"comment at the end":    {"A;-- end", []string{"A"}},
	} {
		got, err := Migration{Name: name, SQL: c.sql}.Statements()
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
	for _, cut := range []string{"A", "A 'x;", "A `x;", "A /* x;", "A;B", "A \"x\\\";"} {
		if got, err := (Migration{Name: "cut.sql", SQL: cut}).Statements(); err == nil || !strings.Contains(err.Error(), "cut.sql") {
			t.Errorf("%q: %q, %v, want an error that names the file", cut, got, err)
		}
	}
}
