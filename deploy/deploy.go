// Package deploy carries the files of a deployment that tests use exactly as users
// do.
package deploy

import (
	_ "embed"
	"regexp"
	"strings"
)

//go:embed mysql/grants.sql
var grants string

// MySQL names one shard's database and its users, in place of those in
// mysql/grants.sql. Names and passwords have no quotes and no backslashes in
// them.
type MySQL struct {
	Database                 string
	Host                     string // where the users may come from, as in CREATE USER
	Reader, Service, Migrate Login
}

// Login is a user and its password.
type Login struct{ User, Password string }

var (
	databaseName = regexp.MustCompile(`\bbilling(\.billing_|;)`)
	userName     = regexp.MustCompile(`'(billing(?:_reader|_migrate)?)'@'%'( IDENTIFIED BY 'change-me')?`)
)

// Grants are the statements of mysql/grants.sql, without their semicolons.
func (m MySQL) Grants() (statements []string) {
	logins := map[string]Login{"billing_reader": m.Reader, "billing": m.Service, "billing_migrate": m.Migrate}
	text := databaseName.ReplaceAllString(grants, "`"+m.Database+"`$1")
	// In a right on all tables _ is any character.
	text = strings.ReplaceAll(text, "billing.*", "`"+strings.ReplaceAll(m.Database, "_", `\_`)+"`.*")
	text = userName.ReplaceAllStringFunc(text, func(found string) string {
		parts := userName.FindStringSubmatch(found)
		login := logins[parts[1]]
		user := "'" + login.User + "'@'" + m.Host + "'"
		if parts[2] != "" {
			user += " IDENTIFIED BY '" + login.Password + "'"
		}
		return user
	})
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			statements = append(statements, strings.TrimSuffix(line, ";"))
		}
	}
	return statements
}
