package model

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// large is set by make model: bounds that take minutes.
var large = os.Getenv("BILLING_TEST_MODEL") == "large"

// processor is how much of it this process has used.
func processor(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestProtocolIsSound visits every state of the protocol within each bound: none
// is bad, and from each of them either owner alone comes to the right end. How many
// there are is what docs/model.md says: a step more or less in the model shows.
func TestProtocolIsSound(t *testing.T) {
	document, err := os.ReadFile("../../docs/model.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		epochs, wire int
		large        bool
	}{
		{1, 1, false},
		{1, 2, false},
		{2, 1, false},
		{3, 1, true},
		{2, 2, true},
	} {
		if c.large && !large {
			continue
		}
		before := processor(t)
		r := (&Model{Epochs: c.epochs, Wire: c.wire}).Search(everything)
		t.Logf("epochs %d, on their way %d: %d states, %d steps deep, %s (%s of processors)",
			c.epochs, c.wire, r.States, r.Depth, r.Took.Round(time.Second/10), (processor(t) - before).Round(time.Second/10))
		if r.Bad != fine {
			t.Errorf("epochs %d, on their way %d: %s", c.epochs, c.wire, r)
		}
		if row := fmt.Sprintf("\n| %d | %d | %s | %d steps |", c.epochs, c.wire, thousands(r.States), r.Depth); !strings.Contains(string(document), row) {
			t.Errorf("docs/model.md has no row %q", row)
		}
		// A step that is never taken would make a small world of this.
		broken := []step{stepTakeoverGuess, stepNotListed, stepPhase2Skipped, stepRetry, stepStable, stepRefuse}
		for st, taken := range r.Taken {
			if taken == slices.Contains(broken, step(st)) {
				t.Errorf("epochs %d, on their way %d: taken %t: %s", c.epochs, c.wire, taken, stepText[st])
			}
		}
	}
}

// thousands puts a comma before every three digits.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// TestStatesArePackedWhole: packed and unpacked, a state is the same, and so are
// states that differ only in who is called what.
func TestStatesArePackedWhole(t *testing.T) {
	m := &Model{Epochs: 2, Wire: 2}
	at := []state{{}}
	for len(at) < 20_000 {
		s := at[len(at)/2*3/4]
		m.next(&s, func(_ label, n *state, _ bad) { at = append(at, *n) })
		at = at[1:]
	}
	for _, s := range at {
		k, _ := m.canonical(s)
		u := unpack(k)
		if again, _ := m.canonical(u); again != k {
			t.Fatalf("%+v is packed as %x, and unpacked and packed as %x", s, k, again)
		}
		o := s
		o.owner[0], o.owner[1] = s.owner[1], s.owner[0]
		o.shard[0], o.shard[1] = s.shard[1], s.shard[0]
		for i := range o.owner {
			o.owner[i].done[0], o.owner[i].done[1] = o.owner[i].done[1], o.owner[i].done[0]
		}
		if o.holder != 0 {
			o.holder = 3 - o.holder
		}
		if mirrored, _ := m.canonical(o); mirrored != k {
			t.Fatalf("%+v is packed as %x, its mirror as %x", s, k, mirrored)
		}
		if v, w := s.view(), u.view(); v.d.seq != w.d.seq || v.row[0]+v.row[1] != w.row[0]+w.row[1] {
			t.Fatalf("%+v is unpacked as %+v", s, u)
		}
	}
}

// TestTraceIsReadable: a counterexample says who does what, from the start.
func TestTraceIsReadable(t *testing.T) {
	text := (&Model{Epochs: 1, Wire: 1, Broken: Broken{SettleFirst: true}}).Search(money).String()
	for _, says := range []string{"a decided branch is rolled back, after 13 steps", "owner A  S1 fences", "owner B  S1 fences", "XA ROLLBACK (incarnation "} {
		if !strings.Contains(text, says) {
			t.Errorf("%q is not in\n%s", says, text)
		}
	}
	t.Log(text)
}
