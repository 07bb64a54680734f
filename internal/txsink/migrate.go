package txsink

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"billing/internal/checkpoint"
	"billing/migrations"
)

// ReasonBranchesPrepared is Migrate's own refusal: prepared branches hold locks
// on the tables, and their epochs were written for the tables as they are.
const ReasonBranchesPrepared = "branches-prepared"

// Migrate creates or updates the tables on all shards, and records once whose
// they are. It can be run again at any time, also after it was broken off. It
// returns nil; or refusals, each a *checkpoint.Refusal, joined; or a plain error
// when a server could not be reached or failed. The databases are there already.
//
// Nothing is written before every shard has been looked at. Another server than
// the recorded one is refused unless cfg.Accept accepts it, as by Check: an
// update of the service and a failover may come together, and Check itself
// refuses while migrations are pending.
func Migrate(ctx context.Context, cfg Config, progress io.Writer) (err error) {
	patience := cfg.withDefaults().StatementTimeout
	cfg.StatementTimeout = time.Hour // a large table may be rebuilt
	s, err := Open(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	all, err := migrations.All()
	if err != nil {
		return err
	}
	m := &migrator{sink: s, all: all, progress: progress, patience: patience}
	defer m.close()
	for _, step := range []func(context.Context) error{m.connect, m.look, m.accept} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	for i := range m.shards {
		if err := m.run(ctx, &m.shards[i]); err != nil {
			return m.shards[i].failed(err)
		}
	}
	return nil
}

type migrator struct {
	sink     *Sink
	all      []migrations.Migration
	progress io.Writer
	patience time.Duration // with a server that does not answer at all
	shards   []migrating
	set      checkpoint.UUID
}

// migrating is one shard under the migration's lock, which its connection holds.
type migrating struct {
	*shard
	c    *sql.Conn
	user string            // the account, as GRANT takes it
	here string            // @@server_uuid, of c
	meta *meta             // nil before the first time
	done map[int]migration // by version
}

func (m *migrator) close() {
	for _, sh := range m.shards {
		_ = sh.c.Close()
	}
}

// connect checks the servers and takes the locks, in the shards' order, so that
// two migrations of one set wait for each other.
func (m *migrator) connect(ctx context.Context) error {
	places := make(map[string]string)
	for _, s := range m.sink.shards {
		lctx, cancel := context.WithTimeout(ctx, m.patience+lockPatience)
		err := m.connectTo(lctx, s, places)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// lockPatience is how long another migrate is waited for.
const lockPatience = 10 * time.Second

// connectTo is connect to one shard. places are the databases so far.
func (m *migrator) connectTo(ctx context.Context, s *shard, places map[string]string) error {
	v, err := s.look(ctx)
	if err != nil {
		return s.failed(err)
	}
	if err := errors.Join(v.productProblem(s.name), v.readOnlyProblem(s.name)); err != nil {
		return err
	}
	c, err := s.db.Conn(ctx)
	if err != nil {
		return s.failed(fmt.Errorf("connect: %w", err))
	}
	m.shards = append(m.shards, migrating{shard: s, c: c})
	sh := &m.shards[len(m.shards)-1]
	// The connection idles while other shards are worked on.
	if _, err := c.ExecContext(ctx, "SET SESSION wait_timeout = 86400"); err != nil {
		return s.failed(err)
	}
	var database, current string
	if err := c.QueryRowContext(ctx, "SELECT DATABASE(), @@server_uuid, CURRENT_USER()").Scan(&database, &sh.here, &current); err != nil {
		return s.failed(err)
	}
	sh.user = grantee(current)
	if err := s.ownPlace(places, sh.here, database); err != nil {
		return err
	}
	name := sha256.Sum256([]byte(database))
	var got sql.NullInt64
	if err := c.QueryRowContext(ctx, "SELECT GET_LOCK("+hexLiteral("billing-migrate:"+hex.EncodeToString(name[:16]))+", "+strconv.Itoa(int(lockPatience/time.Second))+")").Scan(&got); err != nil {
		return s.failed(fmt.Errorf("take the migration's lock: %w", err))
	}
	if got.Int64 != 1 {
		return s.failed(errors.New("another migrate is at work here: wait for it and try again"))
	}
	return nil
}

// look is everything that can be said before something is written.
func (m *migrator) look(ctx context.Context) error {
	lctx, cancel := context.WithTimeout(ctx, m.patience)
	defer cancel()
	if err := m.rights(lctx); err != nil {
		return err
	}
	if err := m.identify(lctx); err != nil {
		return err
	}
	return errors.Join(m.knownSchema(lctx), m.noBranches(lctx))
}

// rights refuses a user who could not finish, or could not migrate again.
func (m *migrator) rights(ctx context.Context) error {
	var problems []error
	for i := range m.shards {
		sh := &m.shards[i]
		r, err := missingRights(ctx, sh.c, &migrateRole)
		if err != nil {
			return sh.failed(err)
		}
		if err := sh.lacking(r); err != nil {
			problems = append(problems, err)
		}
		if _, err := listed(ctx, sh.c); err != nil {
			problems = append(problems, sh.xaProblem(err, sh.user))
		}
	}
	return errors.Join(problems...)
}

// accept records the servers that the operator accepts.
func (m *migrator) accept(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.patience)
	defer cancel()
	for _, sh := range m.shards {
		if sh.meta == nil {
			continue
		}
		if err := sh.recordServer(ctx, sh.meta, sh.here); err != nil {
			return err
		}
	}
	return nil
}

// identify finds out whose tables these are. All of them belong to one set,
// whose id the first migration of all draws.
func (m *migrator) identify(ctx context.Context) error {
	var problems []error
	metas := make([]*meta, len(m.shards))
	for i := range m.shards {
		sh := &m.shards[i]
		found, ok, err := readMeta(ctx, sh.c)
		if err != nil {
			return sh.failed(err)
		}
		if !ok {
			continue
		}
		metas[i], sh.meta, m.set = found, found, found.set
		problems = append(problems, sh.metaProblems(found, len(m.shards))...)
		problems = append(problems, sh.serverProblems(found, sh.here)...)
	}
	problems = append(problems, oneSet(m.sink.shards, metas)...)
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	if m.set.IsZero() {
		if _, err := rand.Read(m.set[:]); err != nil {
			return fmt.Errorf("draw the set's id: %w", err)
		}
		return nil
	}
	return m.noEmptyShard(ctx)
}

// noEmptyShard refuses to make new tables in a set that has worked: a shard of
// it would have lost everything.
func (m *migrator) noEmptyShard(ctx context.Context) error {
	empty := ""
	for _, sh := range m.shards {
		if sh.meta == nil {
			empty = sh.name
		}
	}
	if empty == "" {
		return nil
	}
	for _, sh := range m.shards {
		if sh.meta == nil {
			continue
		}
		var lanes int
		if err := sh.c.QueryRowContext(ctx, "SELECT COUNT(*) FROM billing_lane").Scan(&lanes); err != nil {
			return sh.failed(fmt.Errorf("read billing_lane: %w", err))
		}
		if lanes > 0 {
			return refuse(checkpoint.ReasonShardsChanged, empty,
				fmt.Sprintf("it has no tables, but shard %s of its set has %d lanes at work: the shard is another database than before, or has lost everything", sh.name, lanes),
				"point the DSN at the shard's database, or restore it")
		}
	}
	return nil
}

// noBranches refuses while branches of this job are prepared. Foreign ones
// don't matter. Before the set has an id there can be none. It looks at all shards
// before anything is written on one.
func (m *migrator) noBranches(ctx context.Context) error {
	if m.sink.cfg.IfNeeded && !slices.ContainsFunc(m.shards, func(sh migrating) bool { return sh.meta == nil || len(sh.done) < len(m.all) }) {
		return nil
	}
	owner := checkpoint.OwnerPrefix(m.sink.cfg.Job, m.set)
	var problems []error
	for i := range m.shards {
		sh := &m.shards[i]
		if sh.meta == nil {
			continue
		}
		xids, err := listed(ctx, sh.c)
		if err != nil {
			return sh.failed(err)
		}
		var ours []string
		for _, x := range xids {
			if strings.HasPrefix(x.GTRID, owner) && x.OnShard(sh.number) {
				ours = append(ours, x.GTRID)
			}
		}
		if len(ours) > 0 {
			problems = append(problems, refuse(ReasonBranchesPrepared, sh.name,
				fmt.Sprintf("%d branches of job %s are prepared: %s", len(ours), m.sink.cfg.Job, strings.Join(ours, ", ")),
				"with the version before, and no instance running: billing xa resolve; or start the service with it, which ends them, and stop it in good order"))
		}
	}
	return errors.Join(problems...)
}

// knownSchema refuses tables that this build does not know.
func (m *migrator) knownSchema(ctx context.Context) error {
	var problems []error
	for i := range m.shards {
		sh := &m.shards[i]
		done, err := readSchema(ctx, sh.c)
		if err != nil && !isAnswer(err, errNoSuchTable) {
			return sh.failed(err)
		}
		sh.done = done
		problems = append(problems, sh.strangeMigrations(m.all, done)...)
	}
	return errors.Join(problems...)
}

// What migrate writes begins so.
const (
	intoSchema = "INSERT INTO billing_schema (version, name, checksum) VALUES "
	intoMeta   = "INSERT INTO billing_meta (id, job, set_id, shard_number, shard_count, server_uuid, checksum) VALUES "
)

// run brings one shard up to date.
func (m *migrator) run(ctx context.Context, sh *migrating) error {
	for _, mig := range m.all {
		if _, ok := sh.done[mig.Version]; ok {
			continue
		}
		statements, err := mig.Statements()
		if err != nil {
			return err
		}
		for _, statement := range statements {
			if _, err := sh.c.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("%s: %.60q (nothing is lost: run migrate again): %w", mig.Name, statement, err)
			}
		}
		if _, err := sh.c.ExecContext(ctx, intoSchema+"("+strconv.Itoa(mig.Version)+", "+
			hexLiteral(mig.Name)+", "+hexLiteral(mig.Checksum[:])+")"); err != nil {
			return fmt.Errorf("%s: record it in billing_schema: %w", mig.Name, err)
		}
		fmt.Fprintf(m.progress, "shard %s: %s done\n", sh.name, mig.Name)
	}
	if sh.meta == nil {
		sh.meta = &meta{job: sh.cfg.Job, set: m.set, number: sh.number, count: len(m.shards), server: sh.here}
		sum := metaChecksum(sh.meta)
		if _, err := sh.c.ExecContext(ctx, intoMeta+"(1, "+
			hexLiteral(sh.meta.job)+", "+hexLiteral(sh.meta.set[:])+", "+strconv.Itoa(sh.meta.number)+", "+strconv.Itoa(sh.meta.count)+", "+
			hexLiteral(sh.meta.server)+", "+hexLiteral(sum[:])+")"); err != nil {
			return fmt.Errorf("record the shard in billing_meta: %w", err)
		}
	}
	fmt.Fprintf(m.progress, "shard %s: up to date, shard %d of %d in set %s\n", sh.name, sh.number, len(m.shards), m.set)
	return nil
}
