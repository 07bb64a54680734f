package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// tell runs the demo.
func tell(ctx context.Context, o options, s *screen) (r report, err error) {
	dir, err := makeDir("")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.usesDocker() {
		if err := removeContainers(ctx); err != nil {
			return r, err
		}
	}
	s.say(doing, "starting a private MySQL")
	db, err := startMySQL(ctx, o.mysqld, dir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, db.close()) }() //nolint:contextcheck // it is removed whatever has ended
	if r.MySQL, err = db.version(ctx); err != nil {
		return r, err
	}
	s.say(good, "MySQL %s, a private one with %d databases for each contender", r.MySQL, shards)

	s.say(doing, "starting a broker")
	broker, err := o.broker(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, broker.close()) }()
	r.Broker = broker.what
	s.say(good, "%s, topic %s with %d partitions", broker.what, topic, partitions)

	plain, err := newPlain(ctx, dir, o.self, o.batch(), broker, db)
	if err != nil {
		return r, err
	}
	ours, service, err := newOurs(ctx, dir, o.billing, o.batch(), broker, db)
	if err != nil {
		return r, err
	}

	want, err := produce(ctx, o, service, broker, s)
	if err != nil {
		return r, err
	}
	if r.Expected, err = expect(want); err != nil {
		return r, err
	}
	x := want.Outcomes
	s.say(good, "billing produce: %s messages written: %s to be booked, %s repeats, %s conflicts, %s bad",
		grouped(want.Messages), grouped(x.Applied), grouped(x.Duplicate), grouped(x.Conflict), grouped(x.Rejected))

	for _, c := range []struct {
		contender *contender
		into      *result
	}{{plain, &r.Plain}, {ours, &r.Ours}} {
		if *c.into, err = contend(ctx, c.contender, db, broker, want, s); err != nil {
			return r, err
		}
	}
	s.say(doing, "billing verify: computing everything that is booked again")
	if r.Verify, err = verify(ctx, service, filepath.Join(dir, "verify.json")); err != nil {
		return r, err
	}
	s.say(good, "billing verify: done")
	s.clear()
	return r, nil
}

// produce has the load written by the service's own command, and reads its answer.
func produce(ctx context.Context, o options, service *service, b *broker, s *screen) (*answer, error) {
	path := filepath.Join(service.dir, "answer.json")
	child, err := service.answering(path, "produce", "--count", strconv.Itoa(o.count), "--seed", strconv.FormatInt(o.seed, 10),
		"--accounts", "400", "--skew", "0.3", "--duplicates", "0.1", "--bad", "0.02")
	if err != nil {
		return nil, err
	}
	for begin := time.Now(); !child.ended(); {
		at, err := b.ends(ctx)
		if err == nil {
			s.bar("writing", at.sum(), int64(o.count), time.Since(begin), nil)
			err = pause(ctx, 50*time.Millisecond)
		}
		if err != nil {
			child.kill()
			return nil, err
		}
	}
	if err := child.wait(ctx); err != nil {
		return nil, err
	}
	return read[answer](path)
}

// contend has one of the two book everything, and asks its databases.
func contend(ctx context.Context, c *contender, db *privateMySQL, b *broker, want *answer, s *screen) (r result, err error) {
	ends, err := b.ends(ctx)
	if err != nil {
		return r, err
	}
	if ends.sum() != want.Messages {
		return r, fmt.Errorf("the topic has %d messages, billing produce has written %d", ends.sum(), want.Messages)
	}
	s.say(head, "%s", c.about)
	p := &play{contender: c, mysql: db, broker: b, screen: s, ends: ends}
	kills, took, err := p.run(ctx)
	if err != nil {
		return r, err
	}
	r.Kills, r.Seconds, r.Rate = kills, took.Seconds(), float64(want.Messages)/took.Seconds()
	s.say(good, "all %s messages accounted for in %.1f s, kills included", grouped(want.Messages), r.Seconds)
	s.say(doing, "reading its tables")
	a, err := ask(ctx, c.shards, c.tables)
	if err != nil {
		return r, err
	}
	r.books, err = compare(want, a)
	return r, err
}

// verify runs the service's own audit.
func verify(ctx context.Context, service *service, path string) (*verdict, error) {
	child, err := service.answering(path, "verify", "--json")
	if err != nil {
		return nil, err
	}
	failure := child.wait(ctx)
	if ctx.Err() != nil || failure != nil && child.cmd.ProcessState.ExitCode() != 1 { // 1: differences, which the answer has
		return nil, failure
	}
	found, err := read[struct {
		OK          bool              `json:"ok"`
		Differences []json.RawMessage `json:"differences"`
		Seconds     float64           `json:"seconds"`
	}](path)
	if err != nil {
		return nil, err
	}
	return &verdict{OK: found.OK && failure == nil, Differences: len(found.Differences), Seconds: found.Seconds}, nil
}

// read reads an answer in JSON.
func read[T any](path string) (*T, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read an answer: %w", err)
	}
	v := new(T)
	if err := json.Unmarshal(text, v); err != nil {
		return nil, fmt.Errorf("read an answer, %s: %w", filepath.Base(path), err)
	}
	return v, nil
}
