package txsink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// questions are answered when the test says so.
type questions struct {
	asked chan chan []XID // one channel for each question that was sent, for its answer
}

func (q *questions) ask(ctx context.Context) ([]XID, error) {
	answer := make(chan []XID)
	q.asked <- answer
	select {
	case xids := <-answer:
		return xids, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type got struct {
	xids []XID
	err  error
}

// call is a caller of l, with its result.
func call(ctx context.Context, l *listing) chan got {
	result := make(chan got, 1) // the caller's one result
	go func() {
		xids, err := l.get(ctx)
		result <- got{xids, err}
	}()
	return result
}

func answerOf(name string) []XID { return []XID{{FormatID: 1, GTRID: name}} }

// want takes a caller's result, which must be there.
func want(t *testing.T, who string, result chan got, name string) {
	t.Helper()
	select {
	case g := <-result:
		if g.err != nil || len(g.xids) != 1 || g.xids[0].GTRID != name {
			t.Errorf("%s got %v, %v, want %s", who, g.xids, g.err, name)
		}
	default:
		t.Errorf("%s has no answer, want %s", who, name)
	}
}

// Who comes while questions are on their way shares one question that is sent later, and takes no older answer.
func TestListingsAreSharedButNeverOlderThanTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &questions{asked: make(chan chan []XID, 100)}
		l := newListing(q.ask)
		a := call(t.Context(), l)
		synctest.Wait()
		b := call(t.Context(), l) // A's question is on its way: B needs one of its own
		synctest.Wait()
		var later []chan got
		for range 60 {
			later = append(later, call(t.Context(), l))
		}
		synctest.Wait()
		if n := len(q.asked); n != 2 {
			t.Fatalf("%d questions are on their way, want 2", n)
		}
		toA, toB := <-q.asked, <-q.asked
		toA <- answerOf("of A's question")
		synctest.Wait()
		want(t, "A", a, "of A's question")
		for i, c := range later {
			if len(c) != 0 {
				t.Fatalf("caller %d has an answer: %v, to a question from before it came", i, <-c)
			}
		}
		if n := len(q.asked); n != 1 {
			t.Fatalf("%d questions for all who came later, want 1", n)
		}
		<-q.asked <- answerOf("of the shared question")
		synctest.Wait()
		for i, c := range later {
			want(t, fmt.Sprint("caller ", i), c, "of the shared question")
		}
		toB <- answerOf("of B's question")
		synctest.Wait()
		want(t, "B", b, "of B's question")
		if n := len(q.asked); n != 0 {
			t.Errorf("%d more questions were sent", n)
		}
	})
}

// Who asks for others and has to leave leaves them no error of its own: they ask again.
func TestListingIsAskedAgainWhenWhoAsksLeaves(t *testing.T) {
	type who struct{}
	synctest.Test(t, func(t *testing.T) {
		q := &questions{asked: make(chan chan []XID, 100)}
		asks := make(chan int, 100) // whose context a question has
		l := newListing(func(ctx context.Context) ([]XID, error) {
			asks <- ctx.Value(who{}).(int) //nolint:errcheck // every caller below has a number
			return q.ask(ctx)
		})
		for range cap(l.slots) {
			l.slots <- struct{}{} // all connections are busy: who comes now is in one round
		}
		var leave [3]context.CancelFunc
		var results [3]chan got
		for i := range results {
			var ctx context.Context
			ctx, leave[i] = context.WithCancel(context.WithValue(t.Context(), who{}, i))
			defer leave[i]()
			results[i] = call(ctx, l)
		}
		synctest.Wait()
		<-l.slots
		synctest.Wait()
		if len(asks) != 1 {
			t.Fatalf("%d ask for the round, want 1", len(asks))
		}
		first := <-asks
		leave[first]()
		synctest.Wait()
		if g := <-results[first]; !errors.Is(g.err, context.Canceled) {
			t.Errorf("who left: %v, %v", g.xids, g.err)
		}
		if len(asks) != 1 || len(q.asked) != 2 {
			t.Fatalf("%d ask again for those who stayed, want 1", len(asks))
		}
		<-q.asked     // the answer that nobody waits for
		for range 2 { // the two share a question, or the faster one has asked before the other could join
			select {
			case to := <-q.asked:
				to <- answerOf("for two")
			default:
			}
			synctest.Wait()
		}
		for i, c := range results {
			if i != first {
				want(t, fmt.Sprint("caller ", i), c, "for two")
			}
		}
		if n := len(l.slots); n != cap(l.slots)-1 {
			t.Errorf("%d slots are taken, want the one of before", n)
		}
	})
}

// A server's error is everybody's; nobody takes it for an empty list.
func TestListingFailsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("the server is down")
		hold := make(chan struct{})
		l := newListing(func(context.Context) ([]XID, error) {
			<-hold
			return nil, down
		})
		var all []chan got
		for range 10 {
			all = append(all, call(t.Context(), l))
		}
		synctest.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.get(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller whose time is over: %v", err)
		}
		close(hold)
		for i, c := range all {
			if g := <-c; !errors.Is(g.err, down) || g.xids != nil {
				t.Errorf("caller %d: %v, %v", i, g.xids, g.err)
			}
		}
	})
}

// Many callers against a server whose branches only become more: each list has at least what was there before the call.
func TestListingUnderLoad(t *testing.T) {
	var prepared, asking, most, questions atomic.Int64
	l := newListing(func(context.Context) ([]XID, error) {
		questions.Add(1)
		n := asking.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		xids := make([]XID, prepared.Load())
		runtime.Gosched()
		asking.Add(-1)
		return xids, nil
	})
	const callers, calls = 64, 200
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for range calls {
				before := prepared.Add(1)
				xids, err := l.get(t.Context())
				if err != nil || int64(len(xids)) < before {
					t.Errorf("%d branches are listed, %v; %d were prepared before", len(xids), err, before)
					return
				}
			}
		})
	}
	group.Wait()
	if most.Load() > listingSlots {
		t.Errorf("%d questions at once", most.Load())
	}
	if n := questions.Load(); n >= callers*calls {
		t.Errorf("%d questions for %d calls: nothing is shared", n, callers*calls)
	}
}

func TestForeignFormatsAreWarnedAboutOnce(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	var f foreignFormats
	for range 3 { // each sweep lists them again, under new names
		for i := range 1000 {
			f.warn(log, "east", []XID{
				{FormatID: 1, GTRID: fmt.Sprint("another shard's ", i), BQUAL: "s1"},
				{FormatID: 7, GTRID: fmt.Sprint("somebody's ", i)},
				{FormatID: 4660, GTRID: "\x00\xff"},
			})
		}
	}
	if len(f.warned) != 2 {
		t.Errorf("%d things are remembered, want the 2 formatIDs", len(f.warned))
	}
	for word, n := range map[string]int{"\n": 2, "format_id=7": 1, "format_id=4660": 1, "shard=east": 2, "another shard's": 0, "a server of its own": 2} {
		if got := strings.Count(out.String(), word); got != n {
			t.Errorf("%q is logged %d times, want %d: %s", word, got, n, out.String())
		}
	}
	for i := range int64(10 * maxFormats) {
		f.warn(log, "east", []XID{{FormatID: 100 + i}})
	}
	if len(f.warned) != maxFormats {
		t.Errorf("%d formatIDs are remembered, want no more than %d", len(f.warned), maxFormats)
	}
}
