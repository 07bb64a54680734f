package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/test/proxy"
	"billing/test/servers"
)

// waited is one statement by which the protocol waits for MySQL.
type waited struct {
	name    string
	match   func(string) bool
	trigger trigger
	then    then
}

// trigger is what it takes to have the statement sent, to both shards.
type trigger int

const (
	everyEpoch trigger = iota
	connecting         // the connections that there are go away
	recovering         // phase 1 fails on shard 1 and is done on shard 0
	lockHeld           // the connections of a burst go silent: their locks stay
)

// then is what follows when the statement or its answer is lost.
type then int

const (
	newSession  then = iota // that of a branch: the session ends, and the next one recovers
	sameSession             // it is asked again, and nothing else happens
	eitherOne
)

var statements = []waited{
	{name: "connect", match: proxy.Statement("SET "), trigger: connecting, then: eitherOne}, // the epoch's or the sweep's
	{name: "look", match: proxy.Statement("SELECT @@server_uuid"), then: sameSession},
	{name: "GET_LOCK", match: proxy.Statement("SELECT GET_LOCK")},
	{name: "XA START", match: proxy.Statement("XA START")},
	{name: "compare-and-set", match: proxy.Statement("UPDATE billing_lane")},
	{name: "ledger", match: proxy.Statement("INSERT INTO billing_ledger")},
	{name: "totals", match: proxy.Statement("INSERT INTO billing_total ")},
	{name: "epoch", match: proxy.Statement("INSERT INTO billing_epoch ")},
	{name: "XA END", match: proxy.Statement("XA END")},
	{name: "XA PREPARE", match: proxy.Statement("XA PREPARE")},
	// The epoch goes on without an answer. Where the server was not asked, its
	// end of the connection keeps the lock, and the next epoch may meet it.
	{name: "RELEASE_LOCK", match: proxy.Statement("DO RELEASE_LOCK"), then: eitherOne},
	{name: "XA COMMIT", match: proxy.Statement("XA COMMIT"), then: sameSession},
	{name: "epoch's row", match: proxy.Statement("SELECT gtrid"), then: sameSession},
	{name: "XA RECOVER in a sweep", match: proxy.Statement("XA RECOVER"), then: sameSession},
	{name: "XA RECOVER in a recovery", match: proxy.Statement("XA RECOVER"), trigger: recovering},
	{name: "XA ROLLBACK", match: proxy.Statement("XA ROLLBACK"), trigger: recovering},
	{name: "IS_USED_LOCK", match: proxy.Statement("SELECT IS_USED_LOCK"), trigger: recovering},
	{name: "lane's row", match: proxy.Statement("SELECT incarnation"), trigger: recovering},
	{name: "KILL", match: proxy.Statement("KILL"), trigger: lockHeld},
}

// losses are the ways in which one statement or its answer gets lost, by shard:
// two at once, for the shards are asked side by side.
var losses = [][2]proxy.MySQLAction{
	{proxy.DropRequest{Hang: true}, proxy.DropAnswer{Hang: true}},
	{proxy.DropAnswer{}, proxy.HoldRequest{}},
}

// answerWithin is shorter than by default, where each silent connection costs
// 30 s, and longer than the wait for a lock.
const answerWithin = 6 * time.Second

// standstill bounds how long a lane may stand still by lost answers: the
// statement's bound, the roll back's, the next session's; and that once more
// where a trigger was needed. The machine may be slow.
const standstill = 40 * time.Second

// TestMySQLAnswers: each statement, or its answer, gets lost or comes late. The
// lane goes on unaided, and soon. What belongs to a branch ends the session,
// and what may be asked again does not.
func TestMySQLAnswers(t *testing.T) {
	t.Parallel()
	for _, stmt := range statements {
		t.Run(stmt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, throughProxies(), withAnswerWithin(answerWithin))
			s := w.run("")
			w.charge(0, 100)
			w.waitAccounted()
			for _, loss := range losses {
				before := w.latest()
				lost := []*proxy.Handle{w.loses(0, stmt, loss[0]), w.loses(1, stmt, loss[1])}
				w.meets(lost, fmt.Sprintf("%T and %T", loss[0], loss[1]))
				for _, h := range lost {
					h.Remove() // what was held comes now
				}
				w.charge(0, 10)
				w.waitAccounted()
				w.follows(before, stmt.then)
			}
			s.stop()
			w.exact()
		})
	}
}

// loses has the statement's next request to a shard lost, and brings about that
// there is one.
func (w *world) loses(shard int, stmt waited, do proxy.MySQLAction) *proxy.Handle {
	p := w.shardProxy[shard]
	h := p.Add(proxy.MySQLRule{Match: stmt.match, Times: 1, Do: do})
	switch stmt.trigger {
	case everyEpoch:
	case connecting:
		p.Cut()
	case recovering:
		if shard == 1 {
			p.Add(proxy.MySQLRule{Match: proxy.Statement("XA PREPARE"), Times: 1, Do: failing(1205, "HY000")})
		}
	case lockHeld:
		p.Add(proxy.MySQLRule{Match: proxy.Statement("XA END"), Times: 1, Do: proxy.DropRequest{Hang: true}})
	}
	return h
}

// meets sends charges, and duplicates of some, while rules wait for them, and
// waits until all have their outcome.
func (w *world) meets(rules []*proxy.Handle, what string) {
	w.t.Helper()
	start := time.Now()
	ids := w.charge(0, 50)
	w.again(0, ids[:20])
	for _, h := range rules {
		h.Await(w.t, 1)
	}
	w.waitAccounted() // unaided: no restart of the service
	since(w.t, start, what, standstill)
}

// follows looks at what came after a decision, in which sessions.
func (w *world) follows(before decision, want then) {
	w.t.Helper()
	after := w.latest()
	if want != eitherOne && (want == newSession) != (after.Incarnation > before.Incarnation) {
		w.t.Errorf("incarnation %d, then %d", before.Incarnation, after.Incarnation)
	}
	if want != newSession {
		return
	}
	// What the first session had of the next epoch was never decided.
	for i, db := range w.shards {
		var n int
		if err := db.QueryRow("SELECT COUNT(*) FROM billing_epoch WHERE seq > ? AND incarnation <= ?", before.Seq, before.Incarnation).Scan(&n); err != nil {
			w.t.Fatal(err)
		}
		if n != 0 {
			w.t.Errorf("shard %d: %d epochs after %d are of the session that was to end", i, n, before.Seq)
		}
	}
}

// latest is the last decision, when all of it is committed; its offset may not
// be visible yet.
func (w *world) latest() decision {
	w.t.Helper()
	d := w.decided(0)
	d.Seq = w.epochs(0)[0]
	return d
}

func failing(number uint16, state string) proxy.Fail {
	return proxy.Fail{Number: number, State: state, Message: "made by the test"}
}

// TestMySQLRefuses: a server answers with an error. The whole branch goes, no
// part of the epoch is ever seen, and the next session does it again; what can
// be asked again within a session is.
func TestMySQLRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		waited
		answers []proxy.Fail
	}{
		{on("SET ", connecting, eitherOne), []proxy.Fail{failing(1040, "08004")}},
		{on("SELECT @@server_uuid", everyEpoch, eitherOne), []proxy.Fail{failing(1317, "70100")}},
		{on("SELECT GET_LOCK", everyEpoch, newSession), []proxy.Fail{failing(1317, "70100")}},
		{on("XA START", everyEpoch, newSession), []proxy.Fail{failing(1399, "XAE07"), failing(1440, "XAE08")}},
		{on("UPDATE billing_lane", everyEpoch, newSession), []proxy.Fail{failing(1205, "HY000"), failing(1290, "HY000"), failing(1836, "HY000")}},
		{on("INSERT INTO billing_ledger", everyEpoch, newSession), []proxy.Fail{failing(1213, "40001"), failing(1062, "23000"), failing(3100, "HY000"), failing(1197, "HY000")}},
		{on("INSERT INTO billing_total ", everyEpoch, newSession), []proxy.Fail{failing(1317, "70100"), failing(2013, "HY000"), failing(3, "HY000")}},
		{on("XA END", everyEpoch, newSession), []proxy.Fail{failing(1399, "XAE07")}},
		{on("XA PREPARE", everyEpoch, newSession), []proxy.Fail{failing(1399, "XAE07"), failing(1402, "XA100"), failing(3100, "HY000")}},
		{on("XA COMMIT", everyEpoch, sameSession), []proxy.Fail{failing(1397, "XAE04"), failing(1399, "XAE07"), failing(1205, "HY000"), failing(3100, "HY000"), failing(1290, "HY000")}},
		{on("SELECT gtrid", everyEpoch, sameSession), []proxy.Fail{failing(1317, "70100")}},
		{on("XA RECOVER", everyEpoch, sameSession), []proxy.Fail{failing(1205, "HY000")}},
		{on("XA ROLLBACK", recovering, newSession), []proxy.Fail{failing(1397, "XAE04"), failing(1399, "XAE07")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, throughProxies())
			s := w.run("")
			w.charge(0, 100)
			w.waitAccounted()
			for _, answer := range c.answers {
				before := w.latest()
				w.meets([]*proxy.Handle{w.loses(1, c.waited, answer)}, fmt.Sprint("error ", answer.Number))
				w.follows(before, c.then)
			}
			if c.name == "INSERT INTO billing_ledger" { // 1197: the next epoch is smaller
				if err := contains(s.output(), "too large for a shard"); err != nil {
					t.Error(err)
				}
			}
			if c.name == "SELECT @@server_uuid" {
				if n := s.refused(1, "turned-away"); n < 1 {
					t.Errorf("the metric counts %v connections that were turned away", n)
				}
			}
			s.stop()
			w.exact()
		})
	}
}

func on(statement string, trigger trigger, then then) waited {
	return waited{name: statement, match: proxy.Statement(statement), trigger: trigger, then: then}
}

// TestValueThatMySQLRefuses: a shard takes a value not that the service took. The
// epoch is not booked, on no shard, the offset stays, the error names the record, and
// the lane goes on when the shard takes it.
func TestValueThatMySQLRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, refuse, take, says string }{
		{"too long", "ALTER TABLE billing_ledger MODIFY event_id VARBINARY(36) NOT NULL", "ALTER TABLE billing_ledger MODIFY event_id VARBINARY(255) NOT NULL", "1406"},
		{"against a check", "ALTER TABLE billing_ledger ADD CONSTRAINT short CHECK (LENGTH(event_id) <= 36)", "ALTER TABLE billing_ledger DROP CHECK short", "3819"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			s := w.run("")
			w.charge(0, 100)
			w.waitAccounted()
			for i := range w.shards {
				w.exec(i, c.refuse)
			}
			before, booked, mark := w.latest(), w.booked(0), len(s.output())

			id := uuid.NewString() + "-longer"
			account, amount := chargeOf(id)
			bad := &kgo.Record{Value: message(id, account, amount), Headers: structured}
			good, ids := w.charges(w.topic, 40)
			w.produce(append(good, bad)...)
			for _, id := range append(ids, id) {
				w.expect(chargeOf(id))
			}
			named := fmt.Sprintf("topic %s, partition 0", w.topic)
			for again := range 2 { // it tries again, and says the same
				servers.Eventually(t, 2*time.Minute, func() error {
					said := s.output()[mark:]
					if n := strings.Count(said, c.says); n < again+1 {
						return fmt.Errorf("%s was said %d times: %s", c.says, n, tail(said, 3))
					}
					return errors.Join(contains(said, named), contains(said, fmt.Sprintf("offset %d", bad.Offset)))
				})
			}
			if d := w.latest(); d.Seq != before.Seq || d.Next != before.Next {
				t.Errorf("D was %+v, is %+v", before, d)
			}
			if now := w.booked(0); now != booked {
				t.Errorf("the shards had\n%s\nand have\n%s", booked, now)
			}
			s.waitSays("/readyz", 503)
			for i := range w.shards {
				w.exec(i, c.take)
			}
			w.waitAccounted() // unaided: no restart of the service
			s.stop()
			w.exact()
		})
	}
}
