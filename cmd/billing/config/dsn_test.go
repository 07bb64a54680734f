package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
)

// Whatever a slip of the finger makes of the file or the variable, no message
// and no warning holds the password.
func TestNoSlipShowsThePassword(t *testing.T) {
	inFile(t, "")
	hides := func(t *testing.T, what string) {
		t.Helper()
		var out strings.Builder
		c, err := Load("", &out, nil)
		fmt.Fprint(&out, err)
		if c != nil {
			fmt.Fprint(&out, c.Settings())
		}
		for _, piece := range []string{"s3cr", "cr3t", "3tPw"} {
			if strings.Contains(out.String(), piece) {
				t.Fatalf("%s: shows %q:\n%s", what, piece, &out)
			}
		}
	}
	slips := []string{"", ":", ": ", " #", "\n", "\n    ", "\n  - ", "\t", "'", `"`, "{", "}", "[", "]", ",", "&", "*", "!", "|", "%", "@", "`", "/", "(", "\x00", "\xff"}
	for from := strings.Index(good, "shards"); from < strings.Index(good, "message"); from++ {
		for _, slip := range slips {
			text := good[:from] + slip + good[from+1:]
			if slip != "" {
				text = good[:from] + slip + good[from:]
			}
			if err := os.WriteFile("config.yaml", []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			hides(t, text)
		}
	}
	if err := os.WriteFile("config.yaml", []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	const shards = `[{"name":"a","dsn":"app:s3cr3tPw@tcp(db)/d"},{"name":"b","dsn":"app:s3cr3tPw@tcp(db)/e"}]`
	for from := range len(shards) {
		for _, slip := range []string{"", `"`, ",", ":", `":"`, "{", "]", `\`, "7", "/", "@"} {
			text := shards[:from] + slip + shards[from:]
			if slip == "" {
				text = shards[:from] + shards[from+1:]
			}
			t.Setenv("BILLING_SHARDS", text)
			hides(t, text)
		}
	}
}

func TestDSNIsNeverPrinted(t *testing.T) {
	s := Shard{Name: "a", DSN: "app:s3cr3tPw@tcp(db)/d"}
	j, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "dsn", s.DSN, "shard", s)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "dsn", s.DSN, "shard", s)
	for how, text := range map[string]string{
		"%v": fmt.Sprint(s), "%+v": fmt.Sprintf("%+v", s), "%#v": fmt.Sprintf("%#v", s), "%s": fmt.Sprintf("%s", s.DSN), //nolint:staticcheck // the verb is what is tested
		"%q": fmt.Sprintf("%q", s.DSN), "%x": fmt.Sprintf("%x", s.DSN), "JSON": string(j), "slog": log.String(),
		"pointer": fmt.Sprintf("%v", &s), "config": fmt.Sprintf("%+v", Config{Shards: []Shard{s}}),
	} {
		if strings.Contains(text, "s3cr3t") || strings.Contains(text, fmt.Sprintf("%x", "s3cr3t")) {
			t.Errorf("%s shows it: %s", how, text)
		}
	}
	if s.DSN.Reveal() != "app:s3cr3tPw@tcp(db)/d" {
		t.Error("Reveal does not reveal")
	}
}

func TestDSNSplit(t *testing.T) {
	for dsn, want := range map[DSN]string{
		"app:pw@tcp(db:3307)/billing":               "app:***@tcp(db:3307)/billing",
		"app:p@w/x:(y)@tcp(db)/billing?tls=true":    "app:***@tcp(db:3306)/billing",
		"app@/billing":                              "***@tcp(127.0.0.1:3306)/billing",
		"app:pw@tcp([2001:db8::1])/billing":         "app:***@tcp([2001:db8::1]:3306)/billing",
		"app:pw@unix(/run/mysqld.sock)/billing?a=b": "app:***@unix(/run/mysqld.sock)/billing",
	} {
		got, err := dsn.split()
		if err != nil || got.String() != want {
			t.Errorf("%s: got %s, %v; want %s", dsn.Reveal(), got, err, want)
		}
	}
}

func TestDSNFromAFile(t *testing.T) {
	inFile(t, strings.Replace(good, "dsn: app:s3cr3tPw@tcp(db-a:3306)/billing", "dsn_file: secret", 1))
	if err := os.WriteFile("secret", []byte("  app:fromFile@tcp(db-c)/billing\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := mustLoad(t)
	if got := c.Shards[0].DSN.Reveal(); got != "app:fromFile@tcp(db-c)/billing" {
		t.Errorf("dsn %q", got)
	}
	if got := c.Shards[0].Target(); got != "app:***@tcp(db-c:3306)/billing" {
		t.Errorf("target %q", got)
	}
}

func TestDriverIsAsked(t *testing.T) {
	inFile(t, good)
	var asked []string
	_, err := Load("", io.Discard, func(dsn string) error {
		asked = append(asked, dsn)
		return errors.New("the driver does not like it")
	})
	want := []string{"app:s3cr3tPw@tcp(db-a:3306)/billing", "app:s3cr3tPw@tcp(db-b:3306)/billing"}
	if !slices.Equal(asked, want) {
		t.Errorf("asked of %q, want %q", asked, want)
	}
	if got := fmt.Sprint(err); !strings.Contains(got, "config.yaml:7: shards[0].dsn: is no data source name: the driver does not like it") {
		t.Errorf("error %q", got)
	}
}
