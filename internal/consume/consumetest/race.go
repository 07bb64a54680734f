package consumetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"billing/internal/checkpoint"
	"billing/internal/consume"
)

// Race lets owners of one lane fence each other as fast as they can, while
// answers get lost. Each decision says which one it follows: "7<6". The
// committed decisions must be one chain, with every known one in it, none
// twice, and no chunk of a decision that is not in it.
//
// hurt, if not nil, is called once beside it and may do more harm; failed
// returns when another session has failed.
func Race(t *testing.T, brokers []string, hurt func(failed func())) {
	r, net := NewRig(t, brokers, 1), NewNetwork()
	m := r.JoinAll(t, 1, func(c *consume.Config) {
		c.Dial = net.Dial
		c.RequestTimeout = 300 * time.Millisecond
	})
	lane := r.Lane(0)
	const owners, enough = 2, 40 // known decisions

	var mu sync.Mutex
	known := map[string]bool{}
	seen := map[string]bool{} // those after the harm
	hurting := hurt != nil
	failures := make(chan struct{}, 1)
	session := func(ctx context.Context) error {
		o, err := m.Fence(ctx, lane)
		if err != nil {
			return err
		}
		defer o.Close()
		read, err := o.Read(ctx)
		if err != nil {
			return err
		}
		for read.Metadata != read.Record {
			// The other owner may have decided between the two reads of this one, which
			// it has fenced, and again between the next two: it is a fact when nothing
			// has moved.
			before := read
			if read, err = o.Read(ctx); err != nil {
				return err
			}
			if read.Same(&before) {
				return fmt.Errorf("%w: %+v", errUnequal, read)
			}
		}
		last := read.Record
		for range 1 + rand.IntN(4) {
			d := follow(last)
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			_, err := Decide(ctx, o, int64(number(d)), d, d)
			cancel()
			if err != nil {
				if !errors.Is(err, checkpoint.ErrOutcomeUnknown) && rand.IntN(2) == 0 {
					o.Abort(ctx)
				}
				return err
			}
			mu.Lock()
			known[d], seen[d] = true, true
			mu.Unlock()
			last = d
		}
		return nil
	}

	start := time.Now()
	done := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return !hurting && (len(seen) >= enough || time.Since(start) > patience)
	}
	var wg sync.WaitGroup
	for range owners {
		wg.Go(func() {
			for !done() {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				err := session(ctx)
				if errors.Is(err, errUnequal) {
					t.Error(err)
				}
				if err != nil {
					select {
					case failures <- struct{}{}:
					default: // one is enough
					}
				}
				cancel()
			}
		})
	}
	calm := make(chan struct{})
	go func() {
		defer close(calm)
		faults := []func(kmsg.Key) *Fault{net.Drop, net.Cut, net.Lose, net.Hold}
		keys := []kmsg.Key{kmsg.EndTxn, kmsg.EndTxn, kmsg.Produce, kmsg.TxnOffsetCommit, kmsg.InitProducerID}
		for !done() {
			f := faults[rand.IntN(len(faults))](keys[rand.IntN(len(keys))])
			select {
			case <-f.hit:
			case <-t.Context().Done():
			case <-time.After(100 * time.Millisecond): // nothing of the kind was sent
			}
			f.Heal()
		}
	}()
	if hurt != nil {
		hurt(func() {
			select {
			case <-failures: // an older one
			default:
			}
			select {
			case <-failures:
			case <-t.Context().Done():
			}
		})
		mu.Lock()
		clear(seen)
		hurting, start = false, time.Now()
		mu.Unlock()
	}
	wg.Wait()
	<-calm

	// What the log says, read by somebody else.
	final := Truth(t, m.Client, lane)
	committed := func(topic string) (got []string) {
		cl := r.Raw(t, kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
			kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
		ends, err := r.Admin.ListEndOffsets(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		end, _ := ends.Lookup(topic, 0)
		for at := int64(-1); at < end.Offset-1; {
			for _, rec := range cl.PollFetches(t.Context()).Records() {
				if at = rec.Offset; !rec.Attrs.IsControl() {
					got = append(got, string(rec.Value))
				}
			}
		}
		return got
	}
	chain := committed(m.DecisionTopic())
	last := ""
	if len(seen) < enough {
		t.Fatalf("only %d known decisions within %s", len(seen), patience)
	}
	for i, d := range chain {
		if d != follow(last) {
			t.Fatalf("decision %d is %s, after %q: one was lost or decided twice", i, d, last)
		}
		delete(known, d)
		last = d
	}
	if len(known) > 0 {
		t.Fatalf("known committed and not in the log: %v", known)
	}
	if final.Record != last || final.Metadata != last || final.Offset != int64(number(last)) {
		t.Fatalf("read %+v, the log ends with %q", final, last)
	}
	equal(t, committed(m.StateTopic()), chain...)
}

var errUnequal = errors.New("the two copies of the decision differ under a fence")

// follow names the decision behind another one.
func follow(last string) string {
	n := number(last)
	return fmt.Sprintf("%d<%d", n+1, n)
}

func number(d string) int {
	s, _, _ := strings.Cut(d, "<")
	n, _ := strconv.Atoi(s) // "" is before all
	return n
}
