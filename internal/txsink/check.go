package txsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"billing/internal/checkpoint"
)

// Check looks at every shard before money is put there, and makes the shards
// usable. It returns nil; or all problems, joined: refusals, each a
// *checkpoint.Refusal, and servers that can't be reached or say no, each a
// *checkpoint.ServerError: wait and call it again. It changes nothing, unless
// the operator accepts another server by name: that server is then the recorded
// one, once nothing is wrong any more. Of a configuration that is not whole it
// checks what there is, and makes nothing usable.
func (s *Sink) Check(ctx context.Context) error {
	found := make([]seen, len(s.shards))
	var wg sync.WaitGroup
	for i, sh := range s.shards {
		wg.Go(func() { found[i] = sh.check(ctx, len(s.shards)) })
	}
	wg.Wait()
	var problems []error
	metas := make([]*meta, len(s.shards))
	for i := range found {
		problems = append(problems, found[i].problems...)
		metas[i] = found[i].meta
	}
	contradictions := oneSet(s.shards, metas)
	s.note(found, len(contradictions) == 0)
	problems = append(problems, contradictions...)
	places := make(map[string]string)
	for i, sh := range s.shards {
		if err := sh.ownPlace(places, found[i].facts.Server, found[i].database); err != nil {
			problems = append(problems, err)
		}
	}
	if len(problems) > 0 || s.cfg.partial() {
		return errors.Join(problems...)
	}
	for i, sh := range s.shards {
		if s.cfg.LooksOnly {
			break
		}
		if err := sh.recordServer(ctx, metas[i], found[i].facts.Server); err != nil {
			return err
		}
	}
	for i, sh := range s.shards {
		sh.known.Store(&known{set: metas[0].set, server: found[i].facts.Server})
	}
	return nil
}

// note keeps what was seen. The set is known as soon as one shard names it and
// none contradicts.
func (s *Sink) note(found []seen, oneSet bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.facts = nil
	for i := range found {
		if found[i].answered {
			s.facts = append(s.facts, found[i].facts)
		}
		if found[i].meta != nil && oneSet {
			s.set = found[i].meta.set
		}
	}
}

// Facts are what Check has seen of a shard beside what it refuses.
type Facts struct {
	Shard          string
	Server         string        // @@server_uuid
	ClockAhead     time.Duration // of the server's clock before ours, at least; negative where ours is ahead
	MaxConnections int           // that the server takes
	Connections    int           // that this process may open there
}

// Facts are those of the shards that the last Check could ask.
func (s *Sink) Facts() []Facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.facts)
}

// seen is what check has found on one shard.
type seen struct {
	problems []error
	meta     *meta // nil where it can't be read, or is not this job's
	database string
	answered bool // facts are known
	facts    Facts
}

func (f *seen) add(problems ...error) {
	for _, p := range problems {
		if p != nil {
			f.problems = append(f.problems, p)
		}
	}
}

// oneSet holds the shards that are known against each other.
func oneSet(shards []*shard, metas []*meta) (problems []error) {
	var first *meta
	var firstName string
	for i, m := range metas {
		switch {
		case m == nil:
		case first == nil:
			first, firstName = m, shards[i].name
		case m.set != first.set:
			problems = append(problems, refuse(checkpoint.ReasonShardsChanged, shards[i].name,
				fmt.Sprintf("it belongs to shard set %s, shard %s to %s", m.set, firstName, first.set),
				"give each shard the DSN that it had when it was migrated"))
		}
	}
	return problems
}

// ownPlace refuses a database that is another shard's too. places are those so
// far.
func (s *shard) ownPlace(places map[string]string, server, database string) error {
	if database == "" {
		return nil // not known
	}
	place := server + "/" + database
	if other, ok := places[place]; ok {
		return refuse(checkpoint.ReasonShardsChanged, s.name, fmt.Sprintf("it is the same database as shard %s: %s", other, database), "give each shard a database of its own")
	}
	places[place] = s.name
	return nil
}

// check is Check on one shard; it only looks.
func (s *shard) check(ctx context.Context, count int) (f seen) {
	if s.db == nil {
		return f // its DSN is not known
	}
	v, err := s.look(ctx)
	if err != nil {
		f.add(s.failed(err))
		return f
	}
	if err := v.productProblem(s.name); err != nil {
		f.add(err)
		return f
	}
	c, err := s.db.Conn(ctx)
	if err != nil {
		f.add(s.failed(fmt.Errorf("connect: %w", err)))
		return f
	}
	defer c.Close()
	f.add(v.settingsProblems(s.name)...)
	f.add(v.readOnlyProblem(s.name))
	if err := s.checkTables(ctx, c, v, count, &f); err != nil {
		f.add(s.failed(err))
	}
	return f
}

// checkTables is the part of check that needs the database. It returns an error
// where the server ends it.
func (s *shard) checkTables(ctx context.Context, c *sql.Conn, v server, count int, f *seen) error {
	user, err := s.introduce(ctx, c, v, f)
	if err != nil {
		return err
	}
	if xids, err := listed(ctx, c); err != nil {
		f.add(s.xaProblem(err, user))
	} else {
		s.formats.warn(s.cfg.Logger, s.name, xids)
	}
	needed := &serviceRole
	switch {
	case s.cfg.LooksOnly && s.cfg.Repairs:
		needed = &lostRole
	case s.cfg.LooksOnly:
		needed = &lookRole
	case s.cfg.Repairs:
		needed = &repairRole
	}
	r, err := missingRights(ctx, c, needed)
	if err != nil {
		return err
	}
	f.add(s.lacking(r))
	problems, err := s.tablesProblems(ctx, c)
	if err != nil {
		return err
	}
	f.add(problems...)
	known, err := s.checkSchema(ctx, c, r, f)
	if err != nil {
		return err
	}
	if r.absent["billing_meta"] || r.lack("SELECT", "billing_meta") {
		return nil
	}
	m, ok, err := readMeta(ctx, c)
	switch {
	case err != nil && !known && answer(err) != nil:
		return nil //nolint:nilerr // tables of another version may have another billing_meta: migrate looks at it
	case err != nil:
		return err
	case !ok && known:
		f.add(s.pending("billing_meta has no row: migrate was broken off"))
		return nil
	case !ok:
		return nil
	}
	f.add(s.metaProblems(m, count)...)
	f.add(s.serverProblems(m, f.facts.Server)...)
	if m.checksum == metaChecksum(m) && m.job == s.cfg.Job {
		f.meta = m
	}
	return nil
}

// introduce asks for what is no problem by itself. user is the account, as GRANT
// takes it.
func (s *shard) introduce(ctx context.Context, c *sql.Conn, v server, f *seen) (user string, err error) {
	var current, now string
	f.facts = Facts{Shard: s.name, Server: v.vars["server_uuid"], Connections: s.cfg.Bursts + controlConns}
	before := time.Now()
	if err := c.QueryRowContext(ctx, "SELECT DATABASE(), CURRENT_USER(), UTC_TIMESTAMP(6), @@global.max_connections").
		Scan(&f.database, &current, &now, &f.facts.MaxConnections); err != nil {
		return "", fmt.Errorf("look at the server: %w", err)
	}
	after := time.Now()
	clock, err := time.Parse("2006-01-02 15:04:05.999999", now)
	if err != nil {
		return "", fmt.Errorf("read the server's clock: %w", err)
	}
	// It was read some time between our two readings.
	switch {
	case clock.Before(before):
		f.facts.ClockAhead = clock.Sub(before)
	case clock.After(after):
		f.facts.ClockAhead = clock.Sub(after)
	}
	f.answered = true
	return grantee(current), nil
}

// xaProblem explains why XA RECOVER failed.
func (s *shard) xaProblem(err error, user string) error {
	if !isAnswer(err, errXAPrivilege) {
		return s.failed(err)
	}
	r := refuse(checkpoint.ReasonShardUnfit, s.name, "the user "+user+" lacks the right XA_RECOVER_ADMIN and can't see prepared XA transactions", "GRANT XA_RECOVER_ADMIN ON *.* TO "+user)
	r.Err = err
	return r
}

func (s *shard) pending(wrong string) error {
	return refuse(checkpoint.ReasonMigrationsPending, s.name, wrong, "stop all instances, and run: billing migrate")
}

// neverMigrated is pending before the first migrate.
func (s *shard) neverMigrated() error {
	return refuse(checkpoint.ReasonMigrationsPending, s.name, "none of the tables is there: before a job's first start that is as it should be", "run: billing migrate")
}

// meta is the row of billing_meta: whose tables these are.
type meta struct {
	job           string
	set           checkpoint.UUID
	number, count int
	server        string // @@server_uuid
	checksum      [32]byte
}

// readMeta reads billing_meta; false where the row or the table is not there.
func readMeta(ctx context.Context, c *sql.Conn) (*meta, bool, error) {
	m := new(meta)
	var set, checksum []byte
	err := c.QueryRowContext(ctx, "SELECT job, set_id, shard_number, shard_count, server_uuid, checksum FROM billing_meta WHERE id = 1").
		Scan(&m.job, &set, &m.number, &m.count, &m.server, &checksum)
	if errors.Is(err, sql.ErrNoRows) || isAnswer(err, errNoSuchTable) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read billing_meta: %w", err)
	}
	if copy(m.set[:], set) != len(m.set) || copy(m.checksum[:], checksum) != len(m.checksum) {
		return nil, false, fmt.Errorf("read billing_meta: set_id has %d bytes, checksum %d", len(set), len(checksum))
	}
	return m, true, nil
}

// metaProblems hold the recorded names against the configuration.
func (s *shard) metaProblems(m *meta, count int) (problems []error) {
	if m.checksum != metaChecksum(m) {
		// Nothing else that it says can be trusted.
		return []error{refuse(checkpoint.ReasonShardsChanged, s.name,
			"the row of billing_meta does not have the checksum of its columns: it was changed by hand", "restore the row from a copy of it; see the runbook")}
	}
	if m.job != s.cfg.Job && !s.cfg.JobUnknown {
		problems = append(problems, refuse(checkpoint.ReasonShardsChanged, s.name,
			fmt.Sprintf("its tables belong to job %s, this is job %s", m.job, s.cfg.Job), "give each job databases of its own"))
	}
	if m.number != s.number || m.count != count {
		problems = append(problems, refuse(checkpoint.ReasonShardsChanged, s.name,
			fmt.Sprintf("it is shard %d of %d in the configuration (counted from 0), recorded as shard %d of %d", s.number, count, m.number, m.count),
			"restore the number and the order of the shards: they decide where an account is"))
	}
	return problems
}

// serverProblems refuse another server than the recorded one, unless the
// operator accepts it.
func (s *shard) serverProblems(m *meta, here string) []error {
	if m.server == here || s.cfg.Accept != nil && s.cfg.Accept(checkpoint.ReasonServerChanged, s.name) {
		return nil
	}
	return []error{serverChanged(s.name, m.server, here)}
}

// recordServer records the accepted server; it does nothing where that is the
// recorded one. After an error it may be done or not: it can be tried again.
func (s *shard) recordServer(ctx context.Context, m *meta, here string) error {
	if m.server == here {
		return nil
	}
	was := m.server
	now := *m
	now.server = here
	now.checksum = metaChecksum(&now)
	// The server that was looked at is the one that is written to, whatever is
	// behind the address by now.
	result, err := s.db.ExecContext(ctx, "UPDATE billing_meta SET server_uuid = "+hexLiteral(here)+", checksum = "+hexLiteral(now.checksum[:])+
		" WHERE id = 1 AND server_uuid = "+hexLiteral(was)+" AND @@server_uuid = "+hexLiteral(here))
	if err != nil {
		return s.failed(fmt.Errorf("record the accepted server: %w", err))
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return s.failed(errors.Join(fmt.Errorf("record the accepted server: %d rows changed, somebody else was faster: try again", n), err))
	}
	*m = now
	s.cfg.Logger.Warn("another server was accepted by the operator and is now the recorded one", "shard", s.name, "was", was, "is", here)
	return nil
}
