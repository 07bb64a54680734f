package txsink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"

	"billing/internal/checkpoint"
	"billing/migrations"
)

// What can be done about a shard that can't be reached or says no.
func TestNextSteps(t *testing.T) {
	s := &shard{name: "east", driver: &mysql.Config{User: "app", Passwd: "hunter2"}}
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for name, c := range map[string]struct {
		err        error
		turnedAway bool
		next       string
	}{
		"password":      {&mysql.MySQLError{Number: 1045, Message: "Access denied for user 'app'@'h' (using password: YES)"}, true, "correct the user or the password in the DSN"},
		"no database":   {&mysql.MySQLError{Number: 1049}, true, "CREATE DATABASE"},
		"not allowed":   {&mysql.MySQLError{Number: 1044}, true, "GRANT the user its rights there: docs/grants.md"},
		"host":          {&mysql.MySQLError{Number: 1130}, true, "let this machine in"},
		"too many":      {&mysql.MySQLError{Number: 1040}, true, "max_connections"},
		"expired":       {&mysql.MySQLError{Number: 1862}, true, "ALTER USER"},
		"locked":        {&mysql.MySQLError{Number: 3118}, true, "ACCOUNT UNLOCK"},
		"wants TLS":     {&mysql.MySQLError{Number: 3159}, true, "tls=true"},
		"parameter":     {&mysql.MySQLError{Number: 1193}, true, "remove the parameter"},
		"another no":    {&mysql.MySQLError{Number: 1290}, true, ""},
		"no TLS":        {mysql.ErrNoTLS, false, "remove tls from the DSN"},
		"certificate":   {&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, false, "a certificate that this machine trusts"},
		"other name":    {x509.HostnameError{Certificate: &x509.Certificate{}, Host: "db"}, false, "names the DSN's host"},
		"no such host":  {dial(&net.DNSError{Err: "no such host", Name: "db"}), false, "correct the host in the DSN"},
		"refused":       {dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), false, "start the server, or correct host and port"},
		"no socket":     {dial(os.NewSyscallError("connect", syscall.ENOENT)), false, "start the server"},
		"no route":      {dial(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), false, "a firewall"},
		"time-out":      {dial(os.ErrDeadlineExceeded), false, "whether the server is up"},
		"end of ours":   {context.DeadlineExceeded, false, "whether the server is up"},
		"who knows":     {mysql.ErrInvalidConn, false, ""},
		"without words": {errors.New("strange"), false, ""},
	} {
		var away *checkpoint.ServerError
		err := s.failed(fmt.Errorf("connect: %w", c.err))
		if !errors.As(err, &away) || away.What != "east" || away.TurnedAway != c.turnedAway || !strings.HasPrefix(err.Error(), "shard east: connect: ") {
			t.Errorf("%s: %#v", name, err)
			continue
		}
		if !strings.Contains(away.Next, c.next) || (c.next == "") != (away.Next == "") {
			t.Errorf("%s: next step %q, want %q", name, away.Next, c.next)
		}
		if !errors.Is(err, c.err) {
			t.Errorf("%s: the cause is lost: %v", name, err)
		}
	}
	refusal := refuse(checkpoint.ReasonServerChanged, "east", "x", "y")
	if got := s.failed(fmt.Errorf("x: %w", refusal)); checkpoint.AsRefusal(got) != refusal {
		t.Errorf("a refusal becomes %v", got)
	}
	if r := checkpoint.AsRefusal(s.failed(&mysql.MySQLError{Number: 1142})); r == nil || r.Reason != checkpoint.ReasonShardUnfit {
		t.Errorf("a missing right becomes %v", r)
	}
}

// A user without a password may be a password without its colon.
func TestAUserWithoutAPasswordIsNotShown(t *testing.T) {
	s := &shard{name: "east", driver: &mysql.Config{User: "hunter2"}}
	denied := &mysql.MySQLError{Number: 1045, Message: "Access denied for user 'hunter2'@'h' (using password: NO)"}
	err := s.failed(denied)
	if strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "for user '***'@'h'") || !isAnswer(err, 1045) {
		t.Errorf("got %v", err)
	}
	s.driver.Passwd = "x"
	if err := s.failed(denied); !strings.Contains(err.Error(), "'hunter2'@'h'") {
		t.Errorf("with a password the user is named: %v", err)
	}
}

func TestMissingRightsAreNamedByTableAndGrant(t *testing.T) {
	onAll := []string{"billing_lane", "billing_epoch", "billing_epoch_sum", "billing_total", "billing_ledger", "billing_rejects"}
	absent := make(map[string]bool)
	for _, table := range migrations.Tables {
		absent[table] = true
	}
	const end = "; or run this as the user that docs/grants.md has for it"
	for name, c := range map[string]struct {
		of          *role
		lacks       map[string][]string
		absent      map[string]bool
		idle        string
		wrong, next string
	}{
		"none": {of: &serviceRole},
		"one table": {of: &serviceRole, lacks: map[string][]string{"SELECT": {"billing_total"}, "INSERT": {"billing_total"}}, wrong: "SELECT on billing_total; INSERT on billing_total",
			next: "GRANT SELECT, INSERT ON `mo``n_y`.billing_total TO 'app'@'%'"},
		"one right": {of: &serviceRole, lacks: map[string][]string{"UPDATE": {"billing_meta", "billing_lane", "billing_total"}}, wrong: "UPDATE on billing_meta, billing_lane, billing_total",
			next: "GRANT UPDATE ON `mo``n_y`.billing_lane TO 'app'@'%'; GRANT UPDATE ON `mo``n_y`.billing_meta TO 'app'@'%'; GRANT UPDATE ON `mo``n_y`.billing_total TO 'app'@'%'"},
		"before the tables are there": {of: &serviceRole, lacks: map[string][]string{"INSERT": onAll, "UPDATE": {"billing_meta", "billing_lane", "billing_total"}}, absent: absent,
			wrong: "; UPDATE on billing_meta, billing_lane, billing_total", next: "GRANT INSERT, UPDATE ON `mo``n\\_y`.* TO 'app'@'%'"},
		"one table that is not there": {of: &serviceRole, lacks: map[string][]string{"UPDATE": {"billing_lane"}}, absent: absent, wrong: "UPDATE on billing_lane",
			next: "GRANT CREATE, UPDATE ON `mo``n_y`.billing_lane TO 'app'@'%'; REVOKE CREATE ON `mo``n_y`.billing_lane FROM 'app'@'%'"},
		"one table that is hidden": {of: &serviceRole, lacks: map[string][]string{"INSERT": {"billing_rejects"}}, wrong: "INSERT on billing_rejects",
			next: "GRANT CREATE, INSERT ON `mo``n_y`.billing_rejects TO 'app'@'%'; REVOKE CREATE ON `mo``n_y`.billing_rejects FROM 'app'@'%'"},
		"a reader's": {of: &readerRole, lacks: map[string][]string{"SELECT": slices.Concat(migrations.Tables, migrations.Views)}, wrong: "SELECT on billing_schema, ",
			next: "GRANT SELECT ON `mo``n\\_y`.* TO 'app'@'%'"},
		"who migrates": {of: &migrateRole, lacks: map[string][]string{"CREATE": migrations.Tables, "DROP": {"billing_totals"}}, wrong: "billing_rejects; DROP on billing_totals",
			next: "GRANT CREATE ON `mo``n\\_y`.* TO 'app'@'%'; GRANT CREATE, DROP ON `mo``n_y`.billing_totals TO 'app'@'%'"},
		"a role that is not active": {of: &serviceRole, lacks: map[string][]string{"SELECT": {"billing_total"}}, idle: "biller", wrong: "SELECT on billing_total",
			next: "SET DEFAULT ROLE ALL TO 'app'@'%', if a granted role that is not active has the rights (biller); GRANT SELECT ON `mo``n_y`.billing_total TO 'app'@'%'"},
	} {
		s := &shard{name: "east"}
		r := checkpoint.AsRefusal(s.lacking(&rights{role: c.of, lacks: c.lacks, absent: c.absent, database: "mo`n_y", user: "'app'@'%'", idle: c.idle}))
		if r == nil {
			if c.next != "" {
				t.Errorf("%s: no refusal", name)
			}
			continue
		}
		if r.Reason != checkpoint.ReasonShardUnfit || r.What != "east" || !strings.Contains(r.Wrong, "the user 'app'@'%' lacks rights: ") || !strings.Contains(r.Wrong, c.wrong) || r.Next != c.next+end {
			t.Errorf("%s: got %+v", name, r)
		}
	}
}
