package e2e

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/test/servers"
)

// ---- MySQL

// TestUsersOfTheirOwn: the ways of docs/grants.md to run a command as another user, with the real binary; and what a
// command says to the wrong one.
func TestUsersOfTheirOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	was := fmt.Sprintf("dsn: %q", w.dsns[0])
	w.dsns[0] = w.servers[0].NewDatabase(t)
	db, err := sql.Open("mysql", servers.AsRoot(w.dsns[0]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	w.shards[0] = db
	secret := func(name, dsn string) string {
		path := filepath.Join(w.dir, name)
		if err := os.WriteFile(path, []byte(dsn+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	service := secret("service", w.dsns[0])
	reader, migrate := secret("reader", servers.AsReader(w.dsns[0])), secret("migrate", servers.AsMigrate(w.dsns[0]))
	w.edit(was, fmt.Sprintf("dsn_file: %q", service))
	as := func(file string, args ...string) *process {
		return w.commandEnv([]string{fmt.Sprintf(`BILLING_SHARDS=[{"name":"s0","dsn_file":%q}]`, file)}, args...)
	}
	must := func(p *process, code int, says ...string) {
		t.Helper()
		p.mustExit(code)
		for _, want := range says {
			if err := contains(p.output(), want); err != nil {
				t.Errorf("%v:\n%s", err, p.output())
			}
		}
	}
	lacks := func(user, rights string) string { return "the user " + user + " lacks rights: " + rights }

	must(w.command("migrate"), 3, lacks(w.user(0), "INSERT on billing_schema, billing_meta; CREATE on billing_schema, "), "; CREATE VIEW on billing_totals (", "docs/grants.md")
	if made := column(t, db, "SHOW TABLES"); len(made) > 0 {
		t.Errorf("made %v", made)
	}
	must(as(migrate, "migrate"), 0)
	secret("service", servers.AsMigrate(w.dsns[0])) // the other way: another secret in the same place
	must(w.command("migrate"), 0, "up to date")
	secret("service", w.dsns[0])

	s := w.run("")
	w.charge(0, 20)
	w.waitAccounted()
	must(as(reader, "verify"), 0, "ok: no difference, the decisions in Kafka agree")
	must(w.command("verify"), 3, lacks(w.user(0), "SELECT on billing_totals"), "GRANT SELECT ON "+w.database(0)+".* TO "+w.user(0))
	must(as(reader, "lookup", "0/0"), 0, ": applied\n")
	must(w.command("lookup", "0/0"), 3, lacks(w.user(0), "SELECT on billing_totals"), "GRANT SELECT ON "+w.database(0)+".* TO "+w.user(0))
	for _, args := range [][]string{{"status"}, {"xa", "list"}} {
		must(as(reader, args...), 0)
		must(w.command(args...), 0)
	}
	s.stop()
	must(w.command("xa", "resolve"), 0)
	must(w.command("config", "check", "--connect"), 0)

	for _, args := range [][]string{{"run"}, {"xa", "resolve"}, {"config", "check", "--connect"}} {
		must(as(reader, args...), 3, lacks(w.reader(0), "INSERT on billing_lane, billing_epoch, billing_epoch_sum, billing_total, billing_ledger, billing_rejects; UPDATE on billing_meta, billing_lane, billing_total"))
		must(as(migrate, args...), 3, "lacks rights: SELECT on billing_epoch, billing_ledger; INSERT on billing_lane, ")
	}
	w.exact()
}

// ---- Kafka

// rule is one allowed operation on one resource, as a line of docs/grants.md gives it.
type rule struct {
	op       kmsg.ACLOperation
	resource kmsg.ACLResourceType
	name     string
	pattern  kmsg.ACLResourcePatternType
}

func (r rule) String() string { return fmt.Sprintf("%s on %s %s", r.op, r.resource, r.name) }

// builder has the rule for the principal of clients without a name.
func (r rule) builder() *kadm.ACLBuilder {
	b := kadm.NewACLs().Allow("User:ANONYMOUS").AllowHosts("*").Operations(r.op).ResourcePatternType(r.pattern)
	switch r.resource {
	case kmsg.ACLResourceTypeTopic:
		return b.Topics(r.name)
	case kmsg.ACLResourceTypeGroup:
		return b.Groups(r.name)
	default:
		return b.TransactionalIDs(r.name)
	}
}

var aclOption = regexp.MustCompile(`--(\S+) (\S+)`)

// rulesOf are the rules of docs/grants.md for a principal, with the world's names. Those for Create alone are the first
// start's.
func (w *world) rulesOf(principal string) (always, firstStart []rule) {
	w.t.Helper()
	text, err := os.ReadFile("../../docs/grants.md")
	if err != nil {
		w.t.Fatal(err)
	}
	own := strings.NewReplacer("billing.billing.events.", w.job+"."+w.topic+".", "billing.events", w.topic, "billing.decision", w.job+".decision", "billing.state", w.job+".state")
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "kafka-acls.sh ") || !strings.Contains(line, "User:"+principal+" ") {
			continue
		}
		var ops []kmsg.ACLOperation
		pattern := kmsg.ACLResourcePatternTypeLiteral
		for _, option := range aclOption.FindAllStringSubmatch(line, -1) {
			r := rule{pattern: pattern, name: own.Replace(option[2])}
			switch option[1] {
			case "operation":
				op, err := kmsg.ParseACLOperation(option[2])
				if err != nil {
					w.t.Fatalf("%s: %v", line, err)
				}
				ops = append(ops, op)
				continue
			case "resource-pattern-type":
				pattern = kmsg.ACLResourcePatternTypePrefixed
				continue
			case "topic":
				r.resource = kmsg.ACLResourceTypeTopic
			case "group":
				r.resource, r.name = kmsg.ACLResourceTypeGroup, w.job
			case "transactional-id":
				r.resource = kmsg.ACLResourceTypeTransactionalId
			default:
				continue
			}
			for _, r.op = range ops {
				if r.op == kmsg.ACLOperationCreate {
					firstStart = append(firstStart, r)
				} else {
					always = append(always, r)
				}
			}
		}
	}
	if len(always) < 4 {
		w.t.Fatalf("docs/grants.md has the rules %v for %s", always, principal)
	}
	return always, firstStart
}

func (w *world) allow(rules ...rule) {
	w.t.Helper()
	for _, r := range rules {
		results, err := w.kafka.Admin(w.t).CreateACLs(w.t.Context(), r.builder())
		for _, r := range results {
			err = errors.Join(err, r.Err)
		}
		if err != nil {
			w.t.Fatalf("%s: %v", r, err)
		}
	}
}

func (w *world) disallow(rules ...rule) {
	w.t.Helper()
	for _, r := range rules {
		results, err := w.kafka.Admin(w.t).DeleteACLs(w.t.Context(), r.builder())
		deleted := 0
		for _, r := range results {
			err = errors.Join(err, r.Err)
			deleted += len(r.Deleted)
		}
		if err != nil || deleted != 1 {
			w.t.Fatalf("%s: %d rules deleted, %v", r, deleted, err)
		}
	}
}

// without takes one of the rules away, until back is called. Its resource can still be described, which most operations
// imply.
func (w *world) without(all []rule, r rule) (back func()) {
	w.t.Helper()
	describe := r
	describe.op = kmsg.ACLOperationDescribe
	implied := !slices.Contains(all, describe)
	if implied {
		w.allow(describe)
	}
	w.disallow(r)
	return func() {
		w.t.Helper()
		w.allow(r)
		if implied {
			w.disallow(describe)
		}
	}
}

// TestGrantsInKafka: with exactly the rules of docs/grants.md the service starts for the first time and works, and who only
// looks is answered; without any single one of them somebody is told which.
func TestGrantsInKafka(t *testing.T) {
	t.Parallel()
	kafka := servers.Kafka(t,
		servers.WithEnv("KAFKA_AUTHORIZER_CLASS_NAME", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
		servers.WithEnv("KAFKA_ALLOW_EVERYONE_IF_NO_ACL_FOUND", "true"))
	w := newWorld(t, 1, onServers(kafka, shared.mysql[:]...))
	w.charge(0, 50)
	// From now on nothing is allowed without a rule, as there is one for everything. Clients, the test's too, have no names
	// here; nor has the broker, which speaks to itself. So these have the broker's rights and that to change rules besides,
	// which are of no use to the service.
	rules := func(b *kadm.ACLBuilder, principal string, ops ...kmsg.ACLOperation) {
		t.Helper()
		if _, err := kafka.Admin(t).CreateACLs(t.Context(), b.Allow(principal).AllowHosts("*").Operations(ops...).ResourcePatternType(kadm.ACLPatternLiteral)); err != nil {
			t.Fatal(err)
		}
	}
	rules(kadm.NewACLs().Clusters(), "User:ANONYMOUS", kmsg.ACLOperationClusterAction, kmsg.ACLOperationAlter)
	rules(kadm.NewACLs().Topics("*").Groups("*").TransactionalIDs("*"), "User:nobody", kmsg.ACLOperationRead)

	always, firstStart := w.rulesOf("billing")
	w.allow(always...)
	check := func(code int, says string) func() error { // a rule holds a moment after the answer: ask again
		return func() error {
			a := w.ask("config", "check", "--connect")
			if a.code != code {
				return fmt.Errorf("exit code %d, want %d:\n%s\n%s", a.code, code, tail(a.out, 20), tail(a.err, 20))
			}
			return contains(a.err, says)
		}
	}
	servers.Eventually(t, time.Minute, check(0, ""))
	s := w.run("")
	servers.Eventually(t, time.Minute, func() error { return contains(s.output(), "create topic "+w.job+".decision") })
	w.allow(firstStart...)
	w.waitAccounted()
	s.stop()
	w.exact()
	w.ask("xa", "resolve").must(t, 0)
	w.disallow(firstStart...)
	write := rule{op: kmsg.ACLOperationWrite, resource: kmsg.ACLResourceTypeTopic, name: w.topic, pattern: kmsg.ACLResourcePatternTypeLiteral}
	w.allow(write)
	servers.Eventually(t, time.Minute, func() error { _, err := w.tryCharge(0, 5); return err }) // for the readers: these are not booked
	w.disallow(write)

	for _, r := range always {
		back := w.without(always, r)
		if r.resource == kmsg.ACLResourceTypeTransactionalId { // only the first fence is told
			s := w.run("")
			servers.Eventually(t, time.Minute, func() error { return contains(s.output(), "TRANSACTIONAL_ID_AUTHORIZATION_FAILED") })
			s.stop()
		} else {
			servers.Eventually(t, time.Minute, check(4, r.name))
		}
		back()
		servers.Eventually(t, time.Minute, check(0, ""))
	}

	w.disallow(always...)
	reader, _ := w.rulesOf("billing_reader")
	w.allow(reader...)
	look := func() error {
		// What is booked at no offset, only the input can tell.
		for _, command := range [][]string{{"status", "--json"}, {"verify", "--json"}, {"xa", "list", "--json"}, {"lookup", "0/50", "--json"}} {
			if a := w.ask(command...); a.code != 0 || strings.Contains(a.out, `"decisions_compared": false`) {
				return fmt.Errorf("%s: exit code %d\n%s\n%s", strings.Join(command, " "), a.code, tail(a.err, 20), tail(a.out, 20))
			}
		}
		return nil
	}
	servers.Eventually(t, time.Minute, look)
	for _, r := range reader {
		back := w.without(reader, r)
		servers.Eventually(t, time.Minute, func() error {
			if err := look(); err == nil {
				return fmt.Errorf("without %s nothing is missing", r)
			}
			return nil
		})
		back()
		servers.Eventually(t, time.Minute, look)
	}

	// What was lost is told by the memory of ids; nothing is written to Kafka for it.
	w.forgetLane(0, 0)
	repair := func(code int, args ...string) func() error {
		return func() error {
			if a := w.ask(append([]string{"repair"}, args...)...); a.code != code || code == 4 && !strings.Contains(a.err, "TOPIC_AUTHORIZATION_FAILED") {
				return fmt.Errorf("exit code %d\n%s\n%s", a.code, tail(a.err, 20), tail(a.out, 20))
			}
			return nil
		}
	}
	servers.Eventually(t, time.Minute, repair(4))
	w.allow(
		rule{op: kmsg.ACLOperationRead, resource: kmsg.ACLResourceTypeTopic, name: w.job + ".state", pattern: kmsg.ACLResourcePatternTypeLiteral},
		rule{op: kmsg.ACLOperationDescribeConfigs, resource: kmsg.ACLResourceTypeTopic, name: w.topic, pattern: kmsg.ACLResourcePatternTypeLiteral}, // no shard has the epoch
	)
	servers.Eventually(t, time.Minute, repair(1))
	servers.Eventually(t, time.Minute, repair(0, "--apply"))
	w.mustVerify(t, 0)
}
