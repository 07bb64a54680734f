package e2e

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"billing/test/servers"
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
		{"lookup", "0/0"}, {"lookup", "0/0", "--json"}, {"produce", "--count", "0"}, {"healthcheck"},
	}
	asksNoShard := func(args []string) bool {
		return args[0] == "produce" || args[0] == "config" && !slices.Contains(args, "--connect")
	}
	all := func(what string, env []string, ends, endsAlone int, commands ...[]string) {
		t.Helper()
		for _, args := range commands {
			p := w.commandEnv(append([]string{"BILLING_LOG_LEVEL=debug", "BILLING_LOG_FORMAT=json"}, env...), args...)
			if err := p.wait(2 * time.Minute); err != nil {
				t.Fatal(err)
			}
			hidesSecret(t, what+": "+strings.Join(args, " "), p.output())
			want := ends
			if asksNoShard(args) {
				want = endsAlone
			}
			if code := p.cmd.ProcessState.ExitCode(); code != want && args[0] != "healthcheck" { // of port 0
				t.Errorf("%s: %s: exit %d, want %d\n%s", what, strings.Join(args, " "), code, want, p.output())
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
	all("the right password", nil, 0, 0, commands...)

	// What goes wrong: another password, no server, no such host, another form.
	c.Passwd = secret[:len(secret)-1] + "X" + secret
	wrong := c.FormatDSN()
	c.Passwd = secret
	c.Addr = "127.0.0.1:1"
	away := c.FormatDSN()
	c.Addr = "no-such-host.invalid:3306"
	unknown := c.FormatDSN()
	for _, c := range []struct {
		what, dsn       string
		ends, endsAlone int // of commands that ask a shard, and of those that ask none
	}{
		{"a wrong password", wrong, 4, 0},
		{"a server that is away", away, 4, 0},
		{"an unknown host", unknown, 4, 0},
		{"no tcp", "u:" + secret + "@db:3306/x", 2, 2},
		{"no database", "u:" + secret + "@tcp(db:3306)", 2, 2},
		{"a URL", "mysql://u:" + url.QueryEscape(secret) + "@db:3306/x", 2, 2},
		{"a wrong parameter", "u:" + secret + "@tcp(db:3306)/x?timeout=" + url.QueryEscape(secret), 2, 2},
		{"the password only", secret, 2, 2},
		{"two lines", right + "\n" + secret, 2, 2},
	} {
		given(c.dsn)
		all(c.what, nil, c.ends, c.endsAlone, commands...)
		all(c.what+" by variable", shards(c.dsn), c.ends, c.endsAlone, commands[3:5]...)
		p := w.commandEnv(append(shards(c.dsn), "BILLING_LOG_LEVEL=debug"), "run")
		if c.ends == 4 {
			servers.Eventually(t, 2*time.Minute, func() error { return contains(p.output(), `for="the shards"`) })
			p.kill()
		} else {
			p.mustExit(2)
		}
		hidesSecret(t, c.what+": run", p.output())
	}
	w.exact()
}
