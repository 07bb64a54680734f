package config

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"unicode"
)

// target is what a DSN says without its secrets.
type target struct {
	user        string
	hasPassword bool
	network     string
	address     string
	name        string // of the database
}

// String is the DSN's form without password and parameters.
func (t target) String() string {
	user := "***" // without a colon it may be a password whose colon is missing
	if t.hasPassword {
		user = t.user + ":***"
	}
	return user + "@" + t.network + "(" + t.address + ")/" + t.name
}

// database names the database, so that two DSNs of one are found. Names that
// only a resolver could tell to be one server are not.
func (t target) database() string {
	address := strings.ToLower(t.address)
	if host, port, err := net.SplitHostPort(address); err == nil && host == "localhost" {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	return t.network + "(" + address + ")/" + t.name
}

const dsnForm = "want user:password@tcp(host:3306)/database; the value is not shown, for it holds a password"

// split takes [user[:password]@][network[(address)]]/database[?parameters]
// apart, from the right as the driver does, for a password may hold every
// character. Whether the driver can use it is for CheckDSN to say. Errors never
// hold a part of the DSN.
func (d DSN) split() (target, error) {
	s := d.Reveal()
	slash := strings.LastIndexByte(s, '/')
	if slash < 0 {
		return target{}, errors.New("there is no / before the database's name (a # or a colon with a space behind it wants quotes around the whole): " + dsnForm)
	}
	name, _, _ := strings.Cut(s[slash+1:], "?")
	left := s[:slash]
	var t target
	if at := strings.LastIndexByte(left, '@'); at >= 0 {
		t.user, _, t.hasPassword = strings.Cut(left[:at], ":")
		left = left[at+1:]
	}
	t.network, t.address, t.name = left, "", name
	if open := strings.IndexByte(left, '('); open >= 0 && strings.HasSuffix(left, ")") {
		t.network, t.address = left[:open], left[open+1:len(left)-1]
	}
	switch t.network {
	case "", "tcp":
		t.network = "tcp"
		if t.address == "" {
			t.address = "127.0.0.1"
		}
		_, port, err := net.SplitHostPort(t.address)
		if err != nil {
			t.address, port = net.JoinHostPort(strings.Trim(t.address, "[]"), "3306"), "3306"
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return target{}, errors.New("the port is no number from 1 to 65535: " + dsnForm)
		}
	case "unix":
		if t.address == "" {
			t.address = "/tmp/mysql.sock"
		}
	default:
		// What stands here may be a piece of a password with an @ in it.
		what := "host and port are not in tcp( and )"
		if strings.Contains(s, "://") {
			what = "it is a URL, which is another form"
		} else if strings.HasPrefix(left, "tcp(") || strings.HasPrefix(left, "unix(") {
			what = "there is something between ) and /"
		}
		return target{}, errors.New(what + ": " + dsnForm)
	}
	switch {
	case t.name == "" || strings.ContainsAny(t.name, "@():"):
		return target{}, errors.New("names no database: " + dsnForm)
	case strings.ContainsFunc(t.name, unicode.IsSpace):
		return target{}, errors.New("the database's name has a space in it: " + dsnForm)
	case t.user == "":
		return target{}, errors.New("names no user: " + dsnForm)
	}
	return t, nil
}
