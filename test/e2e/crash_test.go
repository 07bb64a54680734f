package e2e

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"billing/test/servers"
)

// crash is one row of the protocol's crash table: where the process dies, and
// what Kafka and MySQL must then say. n is the last epoch before.
type crash struct {
	name      string
	failpoint string
	shards    []int // with how many shards the row makes sense
	check     func(t *testing.T, w *world, n int64)
}

// all says that every shard has the same value.
func all[T comparable](t *testing.T, what string, got []T, want T) {
	t.Helper()
	for i := range got {
		if got[i] != want {
			t.Errorf("%s: shard %d has %v, want %v on all: %v", what, i, got[i], want, got)
		}
	}
}

var crashes = []crash{
	{"polling", "polled:1", []int{1, 2}, func(t *testing.T, w *world, n int64) {
		all(t, "epochs", w.epochs(0), n)
		all(t, "prepared", w.prepared(), 0)
		if d := w.decided(0); d.Seq != n {
			t.Errorf("D is of epoch %d, want %d", d.Seq, n)
		}
	}},
	{"some shards prepared", "some-prepared:1", []int{2}, func(t *testing.T, w *world, n int64) {
		all(t, "epochs", w.epochs(0), n)
		if p := w.prepared(); p[0] != 1 || p[1] != 0 {
			t.Errorf("prepared: %v, want shard 0 only", p)
		}
		if d := w.decided(0); d.Seq != n {
			t.Errorf("D is of epoch %d, want %d", d.Seq, n)
		}
	}},
	{"all prepared, EndTxn not sent (no transaction)", "all-prepared:1", []int{1, 2}, undecided("")},
	{"all prepared, EndTxn not sent (open transaction)", "before-end-txn:1", []int{1, 2}, undecided("Ongoing")},
	{"dedup state written, the decision not", "chunks-written:1", []int{2}, undecided("Ongoing")},
	{"EndTxn sent, answer lost", "end-txn-sent:2", []int{1, 2}, func(t *testing.T, w *world, n int64) {
		all(t, "epochs", w.epochs(0), n)
		all(t, "prepared", w.prepared(), 1)
		// Either: what was written to the socket may have arrived or not.
		if d := w.decided(0); d.Seq != n && d.Seq != n+1 {
			t.Errorf("D is of epoch %d, want %d or %d", d.Seq, n, n+1)
		}
	}},
	{"decided, none committed", "decided:1", []int{1, 2}, func(t *testing.T, w *world, n int64) {
		all(t, "epochs", w.epochs(0), n)
		all(t, "prepared", w.prepared(), 1)
		decidedEventually(t, w, n+1)
	}},
	{"decided, some committed", "some-committed:1", []int{2}, func(t *testing.T, w *world, n int64) {
		if e := w.epochs(0); e[0] != n+1 || e[1] != n {
			t.Errorf("epochs: %v, want %d on shard 0 and %d on shard 1", e, n+1, n)
		}
		if p := w.prepared(); p[0] != 0 || p[1] != 1 {
			t.Errorf("prepared: %v, want shard 1 only", p)
		}
		decidedEventually(t, w, n+1)
	}},
	{"all committed", "all-committed:1", []int{1, 2}, func(t *testing.T, w *world, n int64) {
		all(t, "epochs", w.epochs(0), n+1)
		all(t, "prepared", w.prepared(), 0)
		decidedEventually(t, w, n+1)
	}},
	// Not rows of the table, but of a session: a recovery can die too.
	{"taken over, nothing settled", "takeover-decided:1", []int{2}, func(t *testing.T, w *world, n int64) {
		all(t, "epochs", w.epochs(0), n)
		all(t, "prepared", w.prepared(), 0)
	}},
}

func undecided(transaction string) func(t *testing.T, w *world, n int64) {
	return func(t *testing.T, w *world, n int64) {
		all(t, "epochs", w.epochs(0), n)
		all(t, "prepared", w.prepared(), 1)
		if d := w.decided(0); d.Seq != n {
			t.Errorf("D is of epoch %d, want %d", d.Seq, n)
		}
		if transaction != "" {
			if state := w.transaction(0).State; state != transaction {
				t.Errorf("transaction is %q, want %q", state, transaction)
			}
		}
	}
}

// decidedEventually waits for the markers: the commit is known, and the offset
// becomes visible a little later.
func decidedEventually(t *testing.T, w *world, seq int64) {
	t.Helper()
	servers.Eventually(t, 30*time.Second, func() error {
		if d := w.decided(0); d.Seq != seq {
			return fmt.Errorf("D is of epoch %d, want %d", d.Seq, seq)
		}
		return nil
	})
}

// TestCrash kills the process at each place of the crash table, asserts what
// the row says of Kafka and MySQL, starts it again and compares every total
// with the messages' own sums.
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, c := range crashes {
		for _, shards := range c.shards {
			t.Run(fmt.Sprintf("%s/%d shards", c.name, shards), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, shards)

				// Some epochs that end well.
				first := w.run("")
				old := w.charge(0, 300)
				w.waitAccounted()
				first.stop()
				n := w.epochs(0)[0]
				if n == 0 {
					t.Fatal("no epoch before the crash")
				}

				// One that does not, with duplicates of the others in it.
				w.charge(0, 200)
				w.again(0, old[:100])
				w.run(c.failpoint).mustDieAtFailpoint()
				c.check(t, w, n)

				// The next one ends what was left before it decides anything new.
				again := w.run("settled:1:hold")
				again.mustHoldAtFailpoint()
				d := w.decided(0)
				if d.Seq != n && d.Seq != n+1 {
					t.Errorf("D is of epoch %d, want %d or %d", d.Seq, n, n+1)
				}
				all(t, "epochs, settled", w.epochs(0), d.Seq)
				all(t, "prepared, settled", w.prepared(), 0)

				// More duplicates behind it.
				again.signal(syscall.SIGUSR1)
				more := w.charge(0, 100)
				w.again(0, more[:50])
				w.again(0, old[100:])
				w.waitAccounted()
				again.stop()
				w.exact()
			})
		}
	}
}
