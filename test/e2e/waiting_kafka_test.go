package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/test/proxy"
	"billing/test/servers"
)

// fault is a rule that can end without letting go of what it holds.
type fault struct {
	*proxy.Handle
	over atomic.Bool
}

// fault puts a rule before the world's broker; times 0 is until the fault is over.
func (w *world) fault(match func(*proxy.Request) bool, times int, do proxy.KafkaAction) *fault {
	f := &fault{}
	f.Handle = w.kafkaProxy.Add(proxy.KafkaRule{
		Match: func(r *proxy.Request) bool { return !f.over.Load() && match(r) }, Times: times, Do: do,
	})
	return f
}

// about matches requests of one kind that name a topic, by its name or its id.
func (w *world) about(topic string, key kmsg.Key) func(*proxy.Request) bool {
	w.t.Helper()
	topics, err := shared.kafka.Admin(w.t).ListTopics(w.t.Context(), topic)
	if err != nil || topics[topic].Err != nil {
		w.t.Fatalf("topic %s: %v, %v", topic, err, topics[topic].Err)
	}
	id := topics[topic].ID
	return func(r *proxy.Request) bool {
		return r.Key == key && (bytes.Contains(r.Body, id[:]) || bytes.Contains(r.Body, []byte(topic)))
	}
}

// sessionsEnded counts the sessions that have failed, by the log.
func (p *process) sessionsEnded() int { return strings.Count(p.output(), saysEnded) }

func (p *process) mustEndSessions(n int) {
	p.t.Helper()
	servers.Eventually(p.t, 2*time.Minute, func() error {
		if got := p.sessionsEnded(); got < n {
			return fmt.Errorf("%d sessions have ended, want %d", got, n)
		}
		return nil
	})
}

// kafkaWait is a request by which the service waits for Kafka.
type kafkaWait struct {
	name  string
	match func(w *world) func(*proxy.Request) bool
	skip  int // so many pass before the first that counts

	// How the service comes to ask; without any, a load is enough.
	session bool // a session begins
	start   bool // a process begins, and one ends

	ends  bool // when nothing is answered for the step's bound, the session ends
	slow  bool // an answer may take 30 s: for who waits, a request that is lost is like one that is held
	tries int  // otherwise: so many are seen to be held
	load  func(w *world)
	env   []string
}

func named(keys ...kmsg.Key) func(*world) func(*proxy.Request) bool {
	return func(w *world) func(*proxy.Request) bool { return proxy.Containing(w.job, keys...) }
}

func ofTopic(suffix string, key kmsg.Key) func(*world) func(*proxy.Request) bool {
	return func(w *world) func(*proxy.Request) bool { return w.about(w.job+suffix, key) }
}

// C4 and C5 have two thirds of it.
const shortTransaction = "BILLING_KAFKA_TRANSACTION_TIMEOUT=6s"

var kafkaWaits = []kafkaWait{
	{name: "InitProducerID", match: named(kmsg.InitProducerID), session: true, ends: true},
	{name: "OffsetFetch", match: named(kmsg.OffsetFetch), session: true, ends: true},
	// The bound of these is OffsetFetch's: each of them is in S1 or S2.
	{name: "FindCoordinator", match: named(kmsg.FindCoordinator), session: true, tries: 3},
	{name: "Metadata", match: ofTopic(".decision", kmsg.Metadata), session: true, tries: 3},
	{name: "ListOffsets", match: ofTopic(".decision", kmsg.ListOffsets), session: true, tries: 3},
	{name: "Fetch of decisions", match: ofTopic(".decision", kmsg.Fetch), session: true, tries: 3},
	{name: "Fetch of state", match: ofTopic(".state", kmsg.Fetch), session: true, ends: true},
	{name: "Produce of chunks", match: ofTopic(".state", kmsg.Produce), ends: true, env: []string{shortTransaction}},
	{name: "Produce of D", match: ofTopic(".decision", kmsg.Produce), ends: true, env: []string{shortTransaction}},
	{name: "TxnOffsetCommit", match: named(kmsg.TxnOffsetCommit), ends: true, env: []string{shortTransaction}},
	{name: "EndTxn", match: func(w *world) func(*proxy.Request) bool { return proxy.EndTxn(true, w.job) }, ends: true},
	{name: "DeleteRecords", match: named(kmsg.DeleteRecords), tries: 1, load: hourAfterHour, env: []string{"BILLING_DEDUP_LATENESS=1h"}},
	{name: "JoinGroup", match: named(kmsg.JoinGroup), skip: 1, start: true, slow: true, tries: 1},
	{name: "SyncGroup", match: named(kmsg.SyncGroup), start: true, slow: true, tries: 1},
	{name: "Heartbeat", match: named(kmsg.Heartbeat), tries: 3},
	{name: "LeaveGroup", match: named(kmsg.LeaveGroup), start: true, tries: 1},
	{name: "Fetch of messages", match: func(w *world) func(*proxy.Request) bool { return w.about(w.topic, kmsg.Fetch) }, tries: 3},
}

// hourAfterHour sends charges of another hour each time, so that with a short
// dedup.lateness state is forgotten, and trimmed.
func hourAfterHour(w *world) {
	w.t.Helper()
	var records []*kgo.Record
	for range 20 {
		id := uuid.NewString()
		account, amount := chargeOf(id)
		at := time.Now().Add(-1000*time.Hour + time.Duration(w.sent)*10*time.Minute) // 20 records: more than 3 hours
		records = append(records, &kgo.Record{Value: messageAt(at, id, account, amount), Headers: structured})
		w.expect(account, amount)
	}
	w.produce(records...)
}

// duplicated is a load of new charges and of duplicates of old ones.
func duplicated(old []string) func(w *world) {
	return func(w *world) {
		w.t.Helper()
		fresh := w.charge(0, 50)
		w.again(0, old[:20])
		w.again(0, fresh[:10])
	}
}

// TestKafkaAnswers: each request by which the service waits for Kafka gets lost
// once, loses its answer, or comes late. While that is so there is a load with
// duplicates in it; the service goes on unaided, and every total is exact.
func TestKafkaAnswers(t *testing.T) {
	t.Parallel()
	for _, k := range kafkaWaits {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, throughProxies())
			s := w.commandEnv(k.env, "run")
			load := k.load
			if load == nil {
				load = duplicated(w.charge(0, 100))
			} else {
				load(w)
			}
			w.waitAccounted()
			match := k.match(w)

			// come lets the service come to the request, under the load.
			come := func() {
				t.Helper()
				if k.session {
					w.fault(proxy.EndTxn(true, w.job), 1, proxy.PatchError(kerr.UnknownServerError))
				}
				load(w)
				if k.start {
					s.stop()
					s = w.commandEnv(k.env, "run")
				}
			}
			for _, lost := range []struct {
				how string
				do  proxy.KafkaAction
			}{
				{"request lost, connection hangs", proxy.DropRequest{Hang: true}},
				{"answer lost, connection hangs", proxy.DropAnswer{Hang: true}},
				{"answer lost, connection closed", proxy.DropAnswer{}},
			} {
				if _, request := lost.do.(proxy.DropRequest); request && k.slow {
					continue
				}
				passed := 0
				f := w.fault(func(r *proxy.Request) bool {
					if !match(r) {
						return false
					}
					passed++ // one request is matched at a time
					return passed > k.skip
				}, 1, lost.do)
				come()
				f.Await(t, 1)
				began, ended := time.Now(), s.sessionsEnded()
				load(w)
				w.waitAccounted()
				ended = s.sessionsEnded() - ended
				t.Logf("%s: all accounted for after %s and %d sessions", lost.how, time.Since(began).Round(100*time.Millisecond), ended)
				if k.session && ended > 0 {
					t.Errorf("%s: one request has used up the time of its whole step", lost.how)
				}
			}

			// Held for longer than the step's bound, and let go when the service has
			// long gone on.
			f := w.fault(match, 0, proxy.HoldRequest{})
			come()
			f.Await(t, 1)
			began, ended := time.Now(), s.sessionsEnded()
			if k.ends {
				s.mustEndSessions(ended + 1)
			} else {
				f.Await(t, k.tries)
			}
			gave := time.Since(began)
			f.over.Store(true)
			load(w)
			w.waitAccounted()
			t.Logf("held: given up after %s, all accounted for after %s", gave.Round(100*time.Millisecond), time.Since(began).Round(100*time.Millisecond))
			f.Remove() // what is late comes now
			load(w)
			w.waitAccounted()
			s.stop()
			w.exact()
		})
	}
}

// unmoved is a good answer to EndTxn by which the producer's epoch stays.
func unmoved(r *proxy.Request) []byte {
	req, err := r.Decode()
	if err != nil {
		return nil
	}
	q := req.(*kmsg.EndTxnRequest) //nolint:errcheck // the rule matches no other
	resp := kmsg.NewPtrEndTxnResponse()
	resp.SetVersion(r.Version)
	resp.ProducerID, resp.ProducerEpoch = q.ProducerID, q.ProducerEpoch
	return resp.AppendTo(nil)
}

// TestEndTxnAnswers: whatever is wrong with every answer to a decision, its
// outcome is unknown: no branch is touched before the next fence, and what the
// broker has done is what becomes of the epoch.
func TestEndTxnAnswers(t *testing.T) {
	t.Parallel()
	type row struct {
		name    string
		do      proxy.KafkaAction
		decided bool // by the broker
	}
	lost := []row{
		{"request lost", proxy.DropRequest{Hang: true}, false},
		{"answer lost, connection hangs", proxy.DropAnswer{Hang: true}, true},
		{"answer lost, connection closed", proxy.DropAnswer{}, true},
		{"request late", proxy.HoldRequest{}, false},
		{"answer late", proxy.HoldAnswer{}, true},
	}
	applied := []row{{"epoch unmoved", proxy.Patch(func(r *proxy.Request, _ []byte) []byte { return unmoved(r) }), true}}
	ignored := []row{{"epoch unmoved", proxy.Answer(unmoved), false}}
	for _, code := range []*kerr.Error{
		kerr.UnknownServerError, kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidTxnState,
		kerr.NotCoordinator, kerr.CoordinatorNotAvailable, kerr.ConcurrentTransactions,
	} {
		applied = append(applied, row{code.Message, proxy.PatchError(code), true})
		ignored = append(ignored, row{code.Message, proxy.AnswerError(code), false})
	}
	for _, group := range []struct {
		name string
		rows []row
	}{{"lost", lost}, {"applied", applied}, {"not applied", ignored}} {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, throughProxies())
			s := w.run("")
			ids := w.charge(0, 100)
			w.waitAccounted()
			aborts := w.kafkaProxy.Add(proxy.KafkaRule{Match: proxy.EndTxn(false, w.job), Do: proxy.Watch{}})
			for _, c := range group.rows {
				before := w.lastDecision()
				n := before.Seq
				fence := w.fault(proxy.Containing(w.job, kmsg.InitProducerID), 0, proxy.HoldRequest{})
				end := w.fault(proxy.EndTxn(true, w.job), 0, c.do)
				w.charge(0, 50)
				w.again(0, ids[:10])
				end.Await(t, 1)
				began, aborted := time.Now(), aborts.Hits()
				fence.Await(t, 1)
				t.Logf("%s: unknown after %s", c.name, time.Since(began).Round(100*time.Millisecond))
				if n := aborts.Hits() - aborted; n != 0 {
					t.Errorf("%s: %d aborts were sent behind the decision", c.name, n)
				}
				if c.decided {
					decidedEventually(t, w, n+1)
				} else if d := w.decided(0); d.Seq != n {
					t.Errorf("%s: D is of epoch %d, want %d", c.name, d.Seq, n)
				}
				all(t, c.name+": epochs before the fence", w.epochs(0), n)
				all(t, c.name+": prepared before the fence", w.prepared(), 1)

				end.over.Store(true)
				fence.Remove()
				w.waitAccounted()
				w.became(c.name, before, c.decided)
				end.Remove() // what is late comes now
				w.charge(0, 10)
				w.again(0, ids[10:20])
				w.waitAccounted()
			}
			s.stop()
			w.exact()
		})
	}
}

// TestEndTxnIsRepeated: an answer that asks for another try, or none, is no
// unknown outcome as long as a later one says what has become of the Kafka
// transaction, in time.
func TestEndTxnIsRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, throughProxies())
	s := w.run("")
	ids := w.charge(0, 100)
	w.waitAccounted()
	before := w.decided(0)
	for _, do := range []proxy.KafkaAction{
		proxy.AnswerError(kerr.NotCoordinator), proxy.PatchError(kerr.NotCoordinator),
		proxy.AnswerError(kerr.CoordinatorNotAvailable), proxy.PatchError(kerr.CoordinatorNotAvailable),
		proxy.AnswerError(kerr.ConcurrentTransactions), proxy.PatchError(kerr.ConcurrentTransactions),
		proxy.DropRequest{}, proxy.DropAnswer{},
	} {
		f := w.fault(proxy.EndTxn(true, w.job), 2, do)
		w.charge(0, 50)
		w.again(0, ids[:10])
		f.Await(t, 2)
		w.waitAccounted()
	}
	if d := w.decided(0); d.Incarnation != before.Incarnation || s.sessionsEnded() != 0 {
		t.Errorf("incarnation %d has become %d, %d sessions have ended", before.Incarnation, d.Incarnation, s.sessionsEnded())
	}
	s.stop()
	w.exact()
}

// TestTxnOffsetCommitAnswers: a group that has gone on without us is asked
// again in the same Kafka transaction while the lane is ours; when that never
// helps, the epoch is rolled back in time and the lane recovers.
func TestTxnOffsetCommitAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, throughProxies())
	s := w.commandEnv([]string{shortTransaction}, "run")
	ids := w.charge(0, 100)
	w.waitAccounted()
	before := w.decided(0)

	var mu sync.Mutex
	var under []string // the producers under which offsets were sent
	sent := proxy.On(func(r *kmsg.TxnOffsetCommitRequest) bool {
		if r.Group != w.job {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		under = append(under, fmt.Sprintf("%d/%d", r.ProducerID, r.ProducerEpoch))
		return true
	})
	for _, code := range []*kerr.Error{kerr.IllegalGeneration, kerr.RebalanceInProgress, kerr.UnknownMemberID} {
		mu.Lock()
		under = nil
		mu.Unlock()
		f := w.fault(sent, 3, proxy.AnswerError(code))
		w.charge(0, 50)
		w.again(0, ids[:10])
		f.Await(t, 3)
		w.waitAccounted()
		f.Remove()
		mu.Lock()
		if len(slices.Compact(under[:3])) != 1 {
			t.Errorf("%s: sent again under %v: not in the same Kafka transaction", code.Message, under)
		}
		mu.Unlock()
	}
	if d := w.decided(0); d.Incarnation != before.Incarnation || s.sessionsEnded() != 0 {
		t.Errorf("incarnation %d has become %d, %d sessions have ended", before.Incarnation, d.Incarnation, s.sessionsEnded())
	}

	n := w.epochs(0)[0]
	decisions := w.kafkaProxy.Add(proxy.KafkaRule{Match: proxy.EndTxn(true, w.job), Do: proxy.Watch{}})
	aborts := w.kafkaProxy.Add(proxy.KafkaRule{Match: proxy.EndTxn(false, w.job), Do: proxy.Watch{}})
	ever := w.fault(sent, 0, proxy.AnswerError(kerr.IllegalGeneration))
	w.charge(0, 50)
	w.again(0, ids[:10])
	ever.Await(t, 1)
	began := time.Now()
	s.mustEndSessions(1)
	// The next session can't take over, so it is C9 that has rolled back.
	all(t, "prepared", w.prepared(), 0)
	s.mustEndSessions(3)
	took := time.Since(began)
	if took < 10*time.Second { // three times two thirds of 6 s
		t.Errorf("3 sessions in %s: a storm", took)
	}
	t.Logf("3 sessions in %s", took.Round(100*time.Millisecond))
	all(t, "epochs", w.epochs(0), n)
	if d := w.decided(0); d.Seq != n || d.Incarnation != before.Incarnation {
		t.Errorf("D is %+v, want epoch %d of incarnation %d", d, n, before.Incarnation)
	}
	if decisions.Hits() != 0 || aborts.Hits() == 0 {
		t.Errorf("%d decisions without an offset, %d aborts", decisions.Hits(), aborts.Hits())
	}
	ever.Remove()
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestUnstableOffset: as long as the group's offset is not stable there is no
// offset to start from: none is guessed, the wait is bounded, log and health
// name it, and the lane goes on when it ends.
func TestUnstableOffset(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, throughProxies())
	s := w.run("")
	ids := w.charge(0, 100)
	w.waitAccounted()
	s.stop()
	n := w.epochs(0)[0]
	before := w.decided(0)

	// A broker says so only to who asks for a stable offset: S2.
	read := proxy.On(func(r *kmsg.OffsetFetchRequest) bool { return r.RequireStable })
	unstable := w.fault(read, 0, proxy.Patch(func(r *proxy.Request, answer []byte) []byte {
		resp := kmsg.NewPtrOffsetFetchResponse()
		resp.SetVersion(r.Version)
		if err := resp.ReadFrom(answer); err != nil {
			return nil
		}
		for g := range resp.Groups {
			for t := range resp.Groups[g].Topics {
				for p := range resp.Groups[g].Topics[t].Partitions {
					q := &resp.Groups[g].Topics[t].Partitions[p]
					q.Offset, q.Metadata, q.ErrorCode = -1, nil, kerr.UnstableOffsetCommit.Code
				}
			}
		}
		return resp.AppendTo(nil)
	}))
	s = w.run("")
	w.charge(0, 50)
	w.again(0, ids[:20])
	unstable.Await(t, 3)
	began := time.Now()
	s.mustEndSessions(1)
	t.Logf("the wait ended after %s", time.Since(began).Round(100*time.Millisecond))
	if err := contains(s.output(), "UNSTABLE_OFFSET_COMMIT"); err != nil {
		t.Error("log: ", err)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if _, body, err := s.get(path); err != nil || contains(body, "UNSTABLE_OFFSET_COMMIT") != nil {
			t.Errorf("%s does not say why: %s (%v)", path, body, err)
		}
	}
	all(t, "epochs", w.epochs(0), n)
	if d := w.decided(0); d != before {
		t.Errorf("D is %+v, want %+v", d, before)
	}
	unstable.Remove()
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestMarkersHeld: between the decision and its markers nobody can fence the
// lane or read D. It is not parallel: see shared.
func TestMarkersHeld(t *testing.T) {
	hold := func(t *testing.T, w *world) *proxy.Handle {
		t.Helper()
		late := shared.markers.Add(proxy.KafkaRule{Match: proxy.Markers(w.job), Do: proxy.HoldRequest{}})
		t.Cleanup(late.Remove)
		return late
	}

	// The one that comes next waits, bounded, again and again, and touches
	// nothing on MySQL.
	t.Run("the service is killed", func(t *testing.T) {
		w := newWorld(t, 2, throughProxies())
		s := w.run("decided:2")
		ids := w.charge(0, 100)
		w.waitAccounted()
		n := w.epochs(0)[0]
		if n != 1 {
			t.Fatalf("%d epochs, want one: the fail point is for the next", n)
		}
		late := hold(t, w)
		w.charge(0, 50)
		s.mustDieAtFailpoint()
		late.Await(t, 1)

		s = w.run("")
		w.again(0, ids[:10])
		began := time.Now()
		s.mustEndSessions(1)
		t.Logf("a session waited for %s", time.Since(began).Round(100*time.Millisecond))
		if err := errors.Join(contains(s.output(), "initialise producer"), contains(s.output(), "CONCURRENT_TRANSACTIONS")); err != nil {
			t.Error("log: ", err)
		}
		all(t, "epochs", w.epochs(0), n)
		all(t, "prepared", w.prepared(), 1)
		late.Remove()
		w.waitAccounted()
		s.stop()
		w.exact()
	})

	// The decision is known, so phase 2 goes on; the next epoch has no
	// Kafka transaction to be decided in.
	t.Run("the service lives", func(t *testing.T) {
		w := newWorld(t, 2, throughProxies())
		s := w.commandEnv([]string{shortTransaction}, "run")
		ids := w.charge(0, 100)
		w.waitAccounted()
		n := w.epochs(0)[0]
		late := hold(t, w)
		w.charge(0, 50)
		late.Await(t, 1)
		servers.Eventually(t, time.Minute, func() error {
			if e := w.epochs(0); e[0] != n+1 || e[1] != n+1 {
				return fmt.Errorf("epochs %v, want %d", e, n+1)
			}
			return nil
		})
		w.charge(0, 50)
		w.again(0, ids[:10])
		s.mustEndSessions(1)
		all(t, "epochs", w.epochs(0), n+1)
		began := time.Now()
		late.Remove()
		w.waitAccounted()
		t.Logf("all accounted for %s after the markers", time.Since(began).Round(100*time.Millisecond))
		s.stop()
		w.exact()
	})
}
