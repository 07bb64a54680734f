package txsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"billing/internal/checkpoint"
)

// Check looks at every shard before money is put there, and makes the shards
// usable. It returns nil; or all refusals, each a *checkpoint.Refusal, joined;
// or, where a server can't be reached, a plain error: wait and call it again.
// It changes nothing, unless the operator accepts another server by name: that
// server is then the recorded one, once no shard refuses any more.
func (s *Sink) Check(ctx context.Context) error {
	var problems []error
	metas := make([]*meta, len(s.shards))
	here := make([]string, len(s.shards)) // @@server_uuid
	for i, sh := range s.shards {
		m, server, err := sh.check(ctx, len(s.shards))
		if err != nil {
			problems = append(problems, err)
			continue
		}
		metas[i], here[i] = m, server
	}
	problems = append(problems, oneSet(s.shards, metas)...)
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	for i, sh := range s.shards {
		if err := sh.recordServer(ctx, metas[i], here[i]); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set = metas[0].set
	for i, sh := range s.shards {
		sh.known.Store(&known{set: s.set, server: here[i]})
	}
	return nil
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

// check is Check on one shard; it only looks. here is @@server_uuid: the
// recorded one, or one that the operator accepts.
func (s *shard) check(ctx context.Context, count int) (m *meta, here string, err error) {
	v, err := s.look(ctx)
	if err != nil {
		return nil, "", s.failed(err)
	}
	if err := v.productProblem(s.name); err != nil {
		return nil, "", err
	}
	c, err := s.db.Conn(ctx)
	if err != nil {
		return nil, "", s.failed(fmt.Errorf("connect: %w", err))
	}
	defer c.Close()

	problems := v.settingsProblems(s.name)
	if xids, err := listed(ctx, c); err != nil {
		problems = append(problems, s.xaProblem(ctx, c, err))
	} else {
		s.formats.warn(s.cfg.Logger, s.name, xids)
	}
	readOnly := v.readOnlyProblem(s.name)
	if readOnly != nil {
		problems = append(problems, readOnly)
	}
	missing, err := s.tablesProblem(ctx, c)
	if err != nil {
		return nil, "", errors.Join(append(problems, err)...)
	}
	if missing == nil {
		missing, err = s.schemaProblem(ctx, c)
		if err != nil {
			return nil, "", errors.Join(append(problems, err)...)
		}
	}
	here = v.vars["server_uuid"]
	if missing != nil {
		problems = append(problems, missing)
		// An update and a failover may come together. Tables of another version may
		// have another billing_meta: what can't be read now is looked at by migrate.
		if m, ok, err := readMeta(ctx, c); err == nil && ok {
			problems = append(problems, s.serverProblems(m, here)...)
		}
		return nil, "", errors.Join(problems...)
	}
	for _, statement := range neededRights {
		if _, err := c.ExecContext(ctx, statement); err != nil {
			return nil, "", errors.Join(append(problems, s.failed(err))...)
		}
	}
	m, ok, err := readMeta(ctx, c)
	switch {
	case err != nil:
		return nil, "", errors.Join(append(problems, s.failed(err))...)
	case !ok:
		return nil, "", errors.Join(append(problems, s.pending("billing_meta has no row: migrate was broken off"))...)
	}
	problems = append(problems, s.metaProblems(m, count)...)
	problems = append(problems, s.serverProblems(m, here)...)
	if len(problems) > 0 {
		return nil, "", errors.Join(problems...)
	}
	return m, here, nil
}

// failed names the shard, and turns a missing right into a refusal.
func (s *shard) failed(err error) error {
	for _, number := range []uint16{errCommandDenied, errColumnDenied, errAccessDenied} {
		if isAnswer(err, number) {
			r := refuse(checkpoint.ReasonShardUnfit, s.name, "the user lacks a right", "GRANT the rights that the README names")
			r.Err = err
			return r
		}
	}
	return fmt.Errorf("shard %s: %w", s.name, err)
}

// xaProblem explains why XA RECOVER failed.
func (s *shard) xaProblem(ctx context.Context, c *sql.Conn, err error) error {
	if !isAnswer(err, errXAPrivilege) {
		return s.failed(err)
	}
	user := "the service's user"
	var current string
	if c.QueryRowContext(ctx, "SELECT CURRENT_USER()").Scan(&current) == nil {
		if at := strings.LastIndexByte(current, '@'); at >= 0 {
			user = "'" + current[:at] + "'@'" + current[at+1:] + "'"
		}
	}
	r := refuse(checkpoint.ReasonShardUnfit, s.name, "the user can't see prepared XA transactions", "GRANT XA_RECOVER_ADMIN ON *.* TO "+user)
	r.Err = err
	return r
}

func (s *shard) pending(wrong string) error {
	return refuse(checkpoint.ReasonMigrationsPending, s.name, wrong, "stop all instances, and run: billing migrate")
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
	if m.job != s.cfg.Job {
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
