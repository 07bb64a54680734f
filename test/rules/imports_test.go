package rules

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// mayImport is the map of the house: which packages of ours a package imports
// outside of its tests. Imports point one way, and brothers do not know each
// other. A new package gets a line here and in ARCHITECTURE.md.
var mayImport = map[string][]string{
	"internal/money":                     {},
	"internal/event":                     {"internal/money"},
	"internal/dedup":                     {"internal/event"},
	"internal/aggregate":                 {"internal/event", "internal/money"},
	"internal/failpoint":                 {},
	"internal/admin":                     {},
	"internal/checkpoint":                {"internal/failpoint"},
	"internal/checkpoint/checkpointtest": {"internal/checkpoint"},
	"internal/consume":                   {"internal/checkpoint", "internal/event", "internal/failpoint"},
	"internal/consume/consumetest":       {"internal/checkpoint", "internal/event", "internal/consume"},
	"internal/txsink":                    {"internal/checkpoint", "internal/aggregate", "internal/event", "internal/money", "internal/failpoint", "migrations"},
	"internal/pipeline":                  {"internal/aggregate", "internal/checkpoint", "internal/dedup", "internal/event", "internal/failpoint"},
	"internal/repair":                    {"internal/aggregate", "internal/checkpoint", "internal/dedup", "internal/event", "internal/money"},
	"internal/audit":                     {"internal/aggregate", "internal/checkpoint", "internal/event", "internal/loadgen", "internal/money", "migrations"},
	"internal/loadgen":                   {"internal/money"},
	"migrations":                         {},
	"cmd/billing":                        {"*"},
	"cmd/billing/config":                 {},
	"cmd/demo":                           {"internal/event", "internal/loadgen", "internal/money"},
	"deploy":                             {},
	"test/servers":                       {"deploy"},
	"test/proxy":                         {},
	"test/bench/measure":                 {},
	"test/model":                         {},
}

// onlyIn says where packages of others may be imported, outside of tests and of
// the folder test. A path ends in /... for everything below it.
var onlyIn = []struct {
	pkg   string // with everything below it
	in    []string
	about string
}{
	{"github.com/twmb/franz-go", []string{"internal/consume/...", "cmd/demo"}, "only consume speaks to Kafka"},
	{"github.com/go-sql-driver/mysql", []string{"internal/txsink", "cmd/demo"}, "only txsink speaks to MySQL"},
	{"github.com/jmoiron/sqlx", []string{"internal/txsink"}, "only txsink speaks to MySQL"},
	{"database/sql", []string{"internal/txsink", "internal/audit", "cmd/demo"}, "only txsink and audit read tables"},
	{"github.com/spf13/viper", []string{"cmd/billing/config"}, "only the configuration knows viper"},
	{"github.com/spf13/cobra", []string{"cmd/..."}, "only commands know cobra"},
	{"github.com/prometheus", []string{"cmd/billing"}, "packages emit events; cmd makes metrics of them"},
	{"reflect", []string{"cmd/..."}, "nothing that touches money is found out at run time"},
	{"math/rand", nil, "use math/rand/v2"},
	{"log", nil, "use log/slog, with a logger that was handed over"},
	{"io/ioutil", nil, "use io and os"},
	{"plugin", nil, "one static binary"},
	{"C", nil, "one static binary"},
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

// packages asks the go command, with and without the fail points, so that build
// tags and generated files are judged as they are built.
func packages(t *testing.T) (module string, all []goPackage) {
	t.Helper()
	for _, args := range [][]string{{"list", "-json=ImportPath,Imports", "./..."}, {"list", "-json=ImportPath,Imports", "-tags=failpoints", "./..."}} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = root()
		out, err := cmd.Output()
		if err != nil {
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, exit.Stderr)
			}
			t.Fatal(err)
		}
		for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
			var p goPackage
			err := dec.Decode(&p)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, p)
		}
	}
	if len(all) < 2*10 {
		t.Fatalf("the go command lists %d packages only", len(all)/2)
	}
	module, _, _ = strings.Cut(all[0].ImportPath, "/")
	return module, all
}

// TestImportsPointOneWay holds the map of the house.
func TestImportsPointOneWay(t *testing.T) {
	module, all := packages(t)
	for _, p := range all {
		room := strings.TrimPrefix(p.ImportPath, module+"/")
		may, known := mayImport[room]
		for _, i := range p.Imports {
			ours, inside := strings.CutPrefix(i, module+"/")
			switch {
			case !inside:
			case !known:
				t.Errorf("%s is not on the map of the house: add it to mayImport and to ARCHITECTURE.md", room)
			case !slices.Contains(may, ours) && !slices.Contains(may, "*"):
				t.Errorf("%s imports %s: it may import only %v", room, ours, may)
			}
		}
		if !known && !strings.HasPrefix(room, "test/") {
			t.Errorf("%s is not on the map of the house: add it to mayImport and to ARCHITECTURE.md", room)
		}
	}
}

// TestPackagesOfOthers holds who speaks to which library.
func TestPackagesOfOthers(t *testing.T) {
	module, all := packages(t)
	for _, p := range all {
		room := strings.TrimPrefix(p.ImportPath, module+"/")
		if strings.HasPrefix(room, "test/") {
			continue
		}
		for _, i := range p.Imports {
			for _, rule := range onlyIn {
				if i != rule.pkg && !strings.HasPrefix(i, rule.pkg+"/") || i == "math/rand/v2" || strings.HasPrefix(i, "log/") {
					continue
				}
				if !slices.ContainsFunc(rule.in, func(in string) bool {
					below, all := strings.CutSuffix(in, "/...")
					return room == in || all && (room == below || strings.HasPrefix(room, below+"/"))
				}) {
					t.Errorf("%s imports %s: %s", room, i, rule.about)
				}
			}
		}
	}
}

// TestMapIsInArchitecture: the map in ARCHITECTURE.md has every package.
func TestMapIsInArchitecture(t *testing.T) {
	module, all := packages(t)
	table := rows(text(t, "ARCHITECTURE.md"))
	for _, p := range all {
		room := strings.TrimPrefix(p.ImportPath, module+"/")
		if _, ok := table["`"+room+"`"]; !ok {
			t.Errorf("the map in ARCHITECTURE.md has no row for %s", room)
		}
	}
}
