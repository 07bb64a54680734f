package txsink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/go-sql-driver/mysql"

	"billing/internal/checkpoint"
)

// failed names the shard. A missing right becomes a refusal; everything else
// says what can be done about it, where that is known.
func (s *shard) failed(err error) error {
	if checkpoint.AsRefusal(err) != nil {
		return err
	}
	if isDenied(err) {
		r := refuse(checkpoint.ReasonShardUnfit, s.name, "the user lacks a right", "GRANT it: docs/grants.md has all that each user needs")
		r.Err = err
		return r
	}
	e := answer(err)
	return &checkpoint.ServerError{What: s.name, TurnedAway: e != nil, Next: s.nextStep(err), Err: fmt.Errorf("shard %s: %w", s.name, s.withoutUser(err))}
}

// withoutUser leaves the user out of an answer where the DSN has no password:
// the user may be a password then, whose colon is missing.
func (s *shard) withoutUser(err error) error {
	if s.driver == nil || s.driver.Passwd != "" || s.driver.User == "" || answer(err) == nil || !strings.Contains(err.Error(), s.driver.User) {
		return err
	}
	return &hiddenError{text: strings.ReplaceAll(err.Error(), s.driver.User, "***"), err: err}
}

// hiddenError is an error with another text.
type hiddenError struct {
	text string
	err  error
}

func (e *hiddenError) Error() string { return e.text }
func (e *hiddenError) Unwrap() error { return e.err }

// Answers by which a server turns a connection away.
const (
	errTooManyConns    = 1040 // ER_CON_COUNT_ERROR
	errDBDenied        = 1044 // ER_DBACCESS_DENIED_ERROR
	errLoginDenied     = 1045 // ER_ACCESS_DENIED_ERROR
	errNoDatabase      = 1049 // ER_BAD_DB_ERROR
	errHostBlocked     = 1129 // ER_HOST_IS_BLOCKED
	errHostDenied      = 1130 // ER_HOST_NOT_PRIVILEGED
	errUnknownVariable = 1193 // ER_UNKNOWN_SYSTEM_VARIABLE
	errTooManyOfUser   = 1203 // ER_TOO_MANY_USER_CONNECTIONS
	errUserLimit       = 1226 // ER_USER_LIMIT_REACHED
	errLoginNoPassword = 1698 // ER_ACCESS_DENIED_NO_PASSWORD_ERROR
	errMustChange      = 1820 // ER_MUST_CHANGE_PASSWORD
	errMustChangeLogin = 1862 // ER_MUST_CHANGE_PASSWORD_LOGIN
	errAccountLocked   = 3118 // ER_ACCOUNT_HAS_BEEN_LOCKED
	errSecureRequired  = 3159 // ER_SECURE_TRANSPORT_REQUIRED
)

// nextStep is what can be done about an error of a connection; "" where that is
// not known.
func (s *shard) nextStep(err error) string {
	if e := answer(err); e != nil {
		switch e.Number {
		case errLoginDenied, errLoginNoPassword:
			return "correct the user or the password in the DSN, or make the user: docs/grants.md"
		case errDBDenied, errNoDatabase:
			return "CREATE DATABASE, and GRANT the user its rights there: docs/grants.md; or correct the database's name in the DSN"
		case errHostDenied, errHostBlocked:
			return "let this machine in: the host of CREATE USER, or FLUSH HOSTS"
		case errTooManyConns, errTooManyOfUser, errUserLimit:
			return "raise max_connections, or the user's own limit"
		case errMustChange, errMustChangeLogin:
			return "ALTER USER: the password has expired"
		case errAccountLocked:
			return "ALTER USER ... ACCOUNT UNLOCK"
		case errSecureRequired:
			return "the server wants TLS: add tls=true to the DSN"
		case errUnknownVariable:
			return "remove the parameter from the DSN: the server knows no such variable"
		}
		return ""
	}
	var (
		host        *net.DNSError
		unknown     x509.UnknownAuthorityError
		name        x509.HostnameError
		invalid     x509.CertificateInvalidError
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		timeout     net.Error
	)
	switch {
	case errors.Is(err, mysql.ErrNoTLS):
		return "turn TLS on at the server, or remove tls from the DSN"
	case errors.As(err, &unknown), errors.As(err, &name), errors.As(err, &invalid), errors.As(err, &certificate), errors.As(err, &record):
		return "give the server a certificate that this machine trusts and that names the DSN's host, or correct tls in the DSN"
	case errors.As(err, &host):
		return "correct the host in the DSN, what resolves it, or start it: a container that is stopped has no name"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return "start the server, or correct host and port in the DSN"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "look whether the server is up and can be reached from here: a firewall, the host and port in the DSN"
	}
	return ""
}
