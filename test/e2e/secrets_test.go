package e2e

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// secret is a password with all that is written otherwise somewhere: in a URL, in
// YAML, in JSON, in SQL.
const secret = `Qz7@/:?%41 &"'\+#k9`

// disguises are the forms in which a password may come out, whole or as the
// pieces that a careless split leaves.
func disguises(password string) map[string]string {
	quoted, _ := json.Marshal(password) //nolint:errcheck,errchkjson // a string
	forms := map[string]string{
		"as it is": password, "in a query": url.QueryEscape(password), "in a path": url.PathEscape(password), "in user info": url.UserPassword("u", password).String()[2:],
		"quoted": strings.Trim(strconv.Quote(password), `"`), "in JSON": strings.Trim(string(quoted), `"`), "in hex": hex.EncodeToString([]byte(password)),
		"in SQL": strings.ReplaceAll(password, "'", "''"), "with escapes in SQL": strings.NewReplacer(`\`, `\\`, "'", `\'`, `"`, `\"`).Replace(password),
		"in base64": base64.RawStdEncoding.EncodeToString([]byte(password)),
	}
	for i, piece := range strings.FieldsFunc(password, func(r rune) bool { return strings.ContainsRune(`@/:?&"'\ #`, r) }) {
		if len(piece) > 2 {
			forms[fmt.Sprintf("piece %d", i)] = piece
		}
	}
	return forms
}

func hidesSecret(t *testing.T, what, text string) {
	t.Helper()
	for form, shown := range disguises(secret) {
		if strings.Contains(text, shown) {
			t.Errorf("%s shows the password, %s (%s):\n%s", what, form, shown, tail(text, 60))
		}
	}
}

// TestNoCommandShowsThePassword: whatever a command writes, to whatever end it
// comes, and however it got the password.
func TestNoCommandShowsThePassword(t *testing.T) {
	t.Parallel()
	if len(disguises(secret)) < 12 {
		t.Fatalf("not many disguises: %q", disguises(secret))
	}
	w := newWorld(t, 1)
	c, err := mysql.ParseDSN(w.dsns[0])
	if err != nil {
		t.Fatal(err)
	}
	c.Passwd = secret
	right := c.FormatDSN()
	w.root(0, "ALTER USER "+w.user(0)+" IDENTIFIED BY '"+strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(secret)+"' RETAIN CURRENT PASSWORD") // the test's own connections have it
	w.root(0, "GRANT SELECT, CREATE, CREATE VIEW, DROP, INSERT, UPDATE ON "+w.database(0)+".* TO "+w.user(0))                                   // one user for all commands
	file := filepath.Join(w.dir, "secret")
	given := func(dsn string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(dsn+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	given(right)
	w.edit(fmt.Sprintf("dsn: %q", w.dsns[0]), fmt.Sprintf("dsn_file: %q", file))

	commands := [][]string{
		{"config", "check"}, {"config", "check", "--json"}, {"config", "check", "--connect"}, {"config", "check", "--connect", "--json"}, {"migrate"},
		{"status"}, {"status", "--json"}, {"verify"}, {"verify", "--json"}, {"xa", "list"}, {"xa", "list", "--json"}, {"xa", "resolve"}, {"xa", "resolve", "--json"},
		{"produce", "--count", "0"}, {"healthcheck"},
	}
	all := func(what string, env []string, ends map[int]bool, commands ...[]string) {
		t.Helper()
		for _, args := range commands {
			p := w.commandEnv(append([]string{"BILLING_LOG_LEVEL=debug", "BILLING_LOG_FORMAT=json"}, env...), args...)
			if err := p.wait(2 * time.Minute); err != nil {
				t.Fatal(err)
			}
			hidesSecret(t, what+": "+strings.Join(args, " "), p.output())
			if code := p.cmd.ProcessState.ExitCode(); !ends[code] && args[0] != "healthcheck" { // of port 0
				t.Errorf("%s: %s: exit %d\n%s", what, strings.Join(args, " "), code, p.output())
			}
		}
	}
	shards := func(dsn string) []string {
		text, err := json.Marshal([]map[string]string{{"name": "s0", "dsn": dsn}})
		if err != nil {
			t.Fatal(err)
		}
		return []string{"BILLING_SHARDS=" + string(text)}
	}
	s := w.commandEnv(append(shards(right), "BILLING_LOG_LEVEL=debug"), "run")
	w.charge(0, 10)
	w.waitAccounted()
	for _, path := range []string{"/healthz", "/readyz", "/status", "/metrics"} {
		_, body, err := s.get(path)
		if err != nil {
			t.Error(err)
		}
		hidesSecret(t, path, body)
	}
	s.stop()
	hidesSecret(t, "run", s.output())
	s = w.commandEnv([]string{"BILLING_LOG_LEVEL=debug", "BILLING_LOG_FORMAT=json"}, "run")
	w.charge(0, 10)
	w.waitAccounted()
	s.signal(syscall.SIGTERM)
	s.mustExit(0)
	hidesSecret(t, "run with log.format json", s.output())
	all("the right password", nil, map[int]bool{0: true}, commands...)

	// What goes wrong: another password, no server, no such host, another form.
	c.Passwd = secret[:len(secret)-1] + "X" + secret
	wrong := c.FormatDSN()
	c.Passwd = secret
	c.Addr = "127.0.0.1:1"
	away := c.FormatDSN()
	c.Addr = "no-such-host.invalid:3306"
	unknown := c.FormatDSN()
	for what, dsn := range map[string]string{
		"a wrong password": wrong, "a server that is away": away, "an unknown host": unknown,
		"no tcp":            "u:" + secret + "@db:3306/x",
		"no database":       "u:" + secret + "@tcp(db:3306)",
		"a URL":             "mysql://u:" + url.QueryEscape(secret) + "@db:3306/x",
		"a wrong parameter": "u:" + secret + "@tcp(db:3306)/x?timeout=" + url.QueryEscape(secret),
		"the password only": secret,
		"two lines":         right + "\n" + secret,
	} {
		ends := map[int]bool{0: true, 2: true, 4: true} // config check and produce ask no shard
		given(dsn)
		all(what, nil, ends, commands...)
		all(what+" by variable", shards(dsn), ends, commands[3:5]...)
		p := w.commandEnv(append(shards(dsn), "BILLING_LOG_LEVEL=debug"), "run")
		if err := p.wait(3 * time.Second); err != nil { // it waits for the server
			p.kill()
		}
		hidesSecret(t, what+": run", p.output())
	}
	w.exact()
}
