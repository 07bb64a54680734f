// Package txsink is the MySQL side of the protocol: the tables, and one epoch's
// branch on each shard, as an XA transaction.
//
//   - sink.go: configuration, the pools, what every connection is set to
//   - shard.go: checked connections; reads, commit and rollback on one shard
//   - burst.go: phase 1, from XA START to XA PREPARE
//   - rows.go: the epoch's rows as statements
//   - encode.go: values as SQL and in the digest, which ties an epoch together
//   - refused.go: rows that MySQL refuses: which record, and what is there already
//   - leftovers.go: what older sessions left: connections, prepared branches
//   - look.go: a shard as it is, for who only looks
//   - rebook.go: decided epochs that a shard has lost
//   - check.go, fit.go, tables.go, rights.go: what a shard must be before money is put there
//   - away.go: what to do about a shard that can't be reached or says no
//   - migrate.go: how the tables come to be
//
// No password is ever logged or part of an error.
package txsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"billing/internal/checkpoint"
)

// Config is what the service knows of its shards. Their order counts: it
// decides which shard an account is on.
type Config struct {
	Job    string // as in the configuration: part of every branch's name
	Shards []ShardConfig

	// JobUnknown says that the job's name can't be used: Check then doesn't hold the
	// tables against it.
	JobUnknown bool

	// LooksOnly says that nothing is written: Check then asks for the rights of
	// looking only, and records no server.
	LooksOnly bool

	// Repairs says that lost epochs are looked for (Epochs), and written (Rebook) if
	// not LooksOnly: Check then asks for the rights of that.
	Repairs bool

	// LedgerEnabled writes billing_ledger. It is noted with every epoch.
	LedgerEnabled bool

	// Bursts bounds the branches that are being written on one shard at the
	// same time, by all lanes of this process. 0 means 16.
	Bursts int

	// LockWait bounds the wait for a row's or a lane's lock. A whole number of
	// seconds; 0 means 5 s.
	LockWait time.Duration

	// IdleTimeout is when the server ends a connection that says nothing, and
	// with it the unprepared branch of a frozen process: the last net under
	// EndOlder. A whole number of seconds; 0 means 30 s.
	IdleTimeout time.Duration

	// StatementTimeout bounds one statement's answer; larger than LockWait.
	// 0 means 30 s. A DSN's readTimeout, larger than LockWait too, and its
	// writeTimeout come first.
	StatementTimeout time.Duration

	// IfNeeded has Migrate do nothing, whatever is prepared, where every shard has
	// all migrations: a deployment runs it each time, beside instances at work or
	// before instances that have to settle what the last ones left.
	IfNeeded bool

	// Accept reports whether the operator accepts a refusal of Check or Migrate
	// by name; nil accepts nothing. The only one of this package is
	// checkpoint.ReasonServerChanged with the shard's name.
	Accept func(reason, what string) bool

	// Refused, if set, is told of each connection to a shard that could not be
	// had, or was given up when it was checked; why is one of RefusedReasons. It
	// is called by many goroutines.
	Refused func(shard, why string)

	Logger *slog.Logger // nil discards
}

// ShardConfig is one shard: a database on a MySQL server.
type ShardConfig struct {
	Name string // for people and for Accept; the order counts, not the name
	DSN  string // in the driver's form; what the service needs is added to it

	// Unknown says that the DSN can't be used: the shard has its place among the
	// others, and Check asks only those.
	Unknown bool
}

// partial reports whether something of the configuration is missing, so that the
// shards can be checked and not used.
func (cfg *Config) partial() bool {
	return cfg.JobUnknown || slices.ContainsFunc(cfg.Shards, func(s ShardConfig) bool { return s.Unknown })
}

// Sink is the set of shards. It is safe for concurrent use.
type Sink struct {
	cfg    Config
	shards []*shard

	mu    sync.Mutex
	set   checkpoint.UUID // random id of the set; zero before Check has found it
	facts []Facts         // of the last Check
}

// Open makes the pools, without network. Its errors name the shard and are the
// configuration's.
func Open(cfg Config) (*Sink, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Sink{cfg: cfg}
	var errs []error
	for i, sc := range cfg.Shards {
		if sc.Unknown {
			sh := &shard{number: i, name: sc.Name, cfg: &s.cfg}
			sh.listing = newListing(sh.askListed)
			s.shards = append(s.shards, sh)
			continue
		}
		driverConfig, err := connection(sc.DSN, &cfg)
		if err != nil {
			errs = append(errs, fmt.Errorf("shard %s: %w", sc.Name, err))
			continue
		}
		sh, err := newShard(i, sc.Name, driverConfig, &s.cfg)
		if err != nil {
			errs = append(errs, fmt.Errorf("shard %s: %w", sc.Name, err))
			continue
		}
		s.shards = append(s.shards, sh)
	}
	if len(errs) > 0 {
		return nil, errors.Join(append(errs, s.Close())...)
	}
	return s, nil
}

func (cfg Config) withDefaults() Config {
	if cfg.Bursts == 0 {
		cfg.Bursts = 16
	}
	if cfg.LockWait == 0 {
		cfg.LockWait = 5 * time.Second
	}
	if cfg.IdleTimeout == 0 {
		cfg.IdleTimeout = 30 * time.Second
	}
	if cfg.StatementTimeout == 0 {
		cfg.StatementTimeout = 30 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg
}

func (cfg *Config) validate() error {
	var errs []error
	if cfg.Job == "" && !cfg.JobUnknown {
		errs = append(errs, errors.New("no job"))
	}
	if len(cfg.Shards) == 0 {
		errs = append(errs, errors.New("no shards"))
	}
	if len(cfg.Shards) > maxShards {
		errs = append(errs, fmt.Errorf("%d shards, more than %d", len(cfg.Shards), maxShards))
	}
	if cfg.Bursts < 1 {
		errs = append(errs, fmt.Errorf("bursts: %d, want 1 or more", cfg.Bursts))
	}
	for name, d := range map[string]time.Duration{"lock wait": cfg.LockWait, "idle timeout": cfg.IdleTimeout} {
		if d < time.Second || d%time.Second != 0 {
			errs = append(errs, fmt.Errorf("%s: %s, want whole seconds, at least one", name, d))
		}
	}
	if cfg.StatementTimeout <= cfg.LockWait {
		errs = append(errs, fmt.Errorf("statement timeout: %s, want more than the lock wait's %s", cfg.StatementTimeout, cfg.LockWait))
	}
	names := make(map[string]bool)
	for _, s := range cfg.Shards {
		if s.Name == "" || names[s.Name] {
			errs = append(errs, fmt.Errorf("shard name %q is empty or used twice", s.Name))
		}
		names[s.Name] = true
	}
	return errors.Join(errs...)
}

// controlConns is how many connections a pool has beyond those for bursts, so
// that a commit never waits for a burst to end.
const controlConns = 8

// newPool makes a shard's pool. Idle connections are closed long before the
// server would close them.
func newPool(driverConfig *mysql.Config, cfg *Config) (*sqlx.DB, error) {
	connector, err := mysql.NewConnector(driverConfig)
	if err != nil {
		return nil, errDSN
	}
	db := sqlx.NewDb(sql.OpenDB(connector), "mysql")
	db.SetMaxOpenConns(cfg.Bursts + controlConns)
	db.SetMaxIdleConns(cfg.Bursts + controlConns)
	db.SetConnMaxIdleTime(cfg.IdleTimeout / 2)
	return db, nil
}

// SetID is the random id of this set of shards, as Check found it; zero before.
func (s *Sink) SetID() checkpoint.UUID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set
}

// Shards are the shards by number. Their methods fail until Check has passed.
func (s *Sink) Shards() []checkpoint.Shard {
	shards := make([]checkpoint.Shard, len(s.shards))
	for i, sh := range s.shards {
		shards[i] = sh
	}
	return shards
}

// Reader gives a connection of its own to a shard, for the tools that only read,
// also for hours and beside the service. It writes nothing: its transactions are
// READ ONLY. It works before Check, so nothing is known of the server yet, but
// that the user may read everything. The caller closes it, and uses the Sink for
// nothing that writes.
func (s *Sink) Reader(ctx context.Context, shard int) (*sql.Conn, error) {
	sh := s.shards[shard]
	c, err := sh.db.Conn(ctx)
	if err != nil {
		return nil, sh.failed(fmt.Errorf("connect: %w", err))
	}
	r, err := missingRights(ctx, c, &readerRole)
	if err == nil {
		err = sh.lacking(r)
	}
	if err != nil {
		return nil, errors.Join(sh.failed(err), c.Close())
	}
	// The connection idles while other shards are read, and the server waits for
	// a reader that has much to compute.
	for _, statement := range []string{
		"SET SESSION wait_timeout = 86400", "SET SESSION net_write_timeout = 3600",
		"SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
	} {
		if _, err := c.ExecContext(ctx, statement); err != nil {
			return nil, errors.Join(sh.failed(fmt.Errorf("prepare to read: %w", err)), c.Close())
		}
	}
	return c, nil
}

// Close closes the pools. Branches that are prepared stay prepared.
func (s *Sink) Close() error {
	var errs []error
	for _, sh := range s.shards {
		if sh.db == nil {
			continue // its DSN is not known
		}
		if err := sh.db.Close(); err != nil {
			errs = append(errs, fmt.Errorf("shard %s: close: %w", sh.name, err))
		}
	}
	return errors.Join(errs...)
}

// errDSN stands for the driver's own words about a DSN that it can't read: they
// may quote a part of the password.
var errDSN = errors.New("dsn: want user:password@tcp(host:port)/database, with ?parameter=value where needed; the driver can't read it")

// connection is the driver's configuration for a user's DSN: where and how to
// connect is the user's, what a session is set to is the service's.
func connection(dsn string, cfg *Config) (*mysql.Config, error) {
	if !strings.Contains(dsn, "/") {
		return nil, errors.New("dsn: no slash before the database's name: want user:password@tcp(host:port)/database")
	}
	c, err := parseDSN(dsn)
	if err != nil {
		return nil, unreadable(dsn)
	}
	if c.DBName == "" {
		return nil, errors.New("dsn: no database: want user:password@tcp(host:port)/database")
	}
	params, err := sessionVariables(c.Params, cfg)
	if err != nil {
		return nil, err
	}
	c.Params = params
	c.Loc = time.UTC
	c.ParseTime = false // times are read as the text that MySQL has
	c.InterpolateParams = true
	c.MultiStatements = false
	c.ClientFoundRows = false // affected rows are rows changed: the compare-and-set counts them
	// A read-only server's answer would be hidden behind "bad connection", an
	// unknown outcome. Every connection with an error is discarded anyway.
	c.RejectReadOnly = false
	c.AllowAllFiles = false
	c.CheckConnLiveness = true
	c.ColumnsWithAlias = false
	c.MaxAllowedPacket = 64 << 20 // statements are shorter, see minPacket, which Check holds the server's limit against
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.ReadTimeout == 0 {
		c.ReadTimeout = cfg.StatementTimeout
	}
	if c.ReadTimeout <= cfg.LockWait {
		// Each wait for a lock would end as an answer that is missing.
		return nil, fmt.Errorf("dsn: readTimeout is %s, want more than the lock wait's %s", c.ReadTimeout, cfg.LockWait)
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = cfg.StatementTimeout
	}
	if c.ConnectionAttributes == "" {
		c.ConnectionAttributes = "program_name:billing,job:" + cfg.Job
	}
	c.Logger = driverLog{cfg.Logger}
	if err := c.Apply(mysql.Charset("utf8mb4", "utf8mb4_bin")); err != nil {
		return nil, fmt.Errorf("dsn: %w", err)
	}
	return c, nil
}

// valueForms are what the driver's own parameters look like that have a form.
var valueForms = map[string]string{ //nolint:gosec // words about values
	"timeout": "want a time span such as 5s", "readTimeout": "want a time span such as 30s", "writeTimeout": "want a time span such as 30s",
	"tls": "want true, skip-verify or preferred", "loc": "want the name of a time zone", "maxAllowedPacket": "want a number of bytes",
	"strict": "it is not taken any more: remove it", "allowOldPasswords": "want true or false", "allowNativePasswords": "want true or false",
	"allowCleartextPasswords": "want true or false", "allowFallbackToPlaintext": "want true or false", "allowAllFiles": "want true or false",
	"checkConnLiveness": "want true or false", "clientFoundRows": "want true or false", "columnsWithAlias": "want true or false", "compress": "want true or false",
	"interpolateParams": "want true or false", "multiStatements": "want true or false", "parseTime": "want true or false", "rejectReadOnly": "want true or false",
}

// unreadable says why the driver can't read a DSN: by the name of a parameter of
// its own, if that is it, and never by a value.
func unreadable(dsn string) error {
	_, parameters, _ := strings.Cut(dsn[strings.LastIndexByte(dsn, '/')+1:], "?")
	for p := range strings.SplitSeq(parameters, "&") {
		name, _, _ := strings.Cut(p, "=")
		if form, known := valueForms[name]; known {
			if _, err := parseDSN("/x?" + p); err != nil {
				return fmt.Errorf("dsn: the value of its parameter %s can't be used: %s", name, form)
			}
		}
	}
	return errDSN
}

// parseDSN is mysql.ParseDSN, which panics for the parameter strict.
func parseDSN(dsn string) (c *mysql.Config, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errDSN
		}
	}()
	return mysql.ParseDSN(dsn)
}

// sessionVariables are what every session is set to. A user's own value of one
// of them is replaced.
func sessionVariables(user map[string]string, cfg *Config) (map[string]string, error) {
	lockWait := strconv.Itoa(int(cfg.LockWait / time.Second))
	ours := map[string]string{
		"time_zone":                "'+00:00'",
		"transaction_isolation":    "'READ-COMMITTED'",
		"sql_mode":                 "'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,ONLY_FULL_GROUP_BY,NO_ENGINE_SUBSTITUTION'",
		"autocommit":               "1",
		"unique_checks":            "1",
		"foreign_key_checks":       "1",
		"innodb_lock_wait_timeout": lockWait,
		"lock_wait_timeout":        lockWait,
		"wait_timeout":             strconv.Itoa(int(cfg.IdleTimeout / time.Second)),
	}
	for key, value := range user {
		name := strings.ToLower(strings.TrimSpace(key))
		for _, prefix := range []string{"@@", "session.", "local.", "session ", "local "} {
			name = strings.TrimPrefix(name, prefix)
		}
		if _, ok := ours[name]; ok {
			continue
		}
		// These take away what the service relies on, or are no session's.
		if name == "sql_log_bin" || name == "xa_detach_on_prepare" || strings.ContainsAny(name, ". @") {
			return nil, fmt.Errorf("dsn: parameter %s can't be set for the service: remove it", key)
		}
		ours[key] = value
	}
	return ours, nil
}

// driverLog takes what the driver prints: mostly that an idle connection was
// closed, which costs nothing here.
type driverLog struct{ to *slog.Logger }

func (l driverLog) Print(v ...any) {
	l.to.Debug("mysql driver", "message", strings.TrimSpace(fmt.Sprint(v...)))
}
