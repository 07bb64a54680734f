package main

import "testing"

func TestMomentsOfThePlainLoop(t *testing.T) {
	at := func(partition0, partition1 int64) offsets { return offsets{partition0, partition1} }
	for _, c := range []struct {
		what      string
		committed offsets
		highest   [shards]offsets
		want      moment
	}{
		{"nothing yet", at(0, 0), [shards]offsets{}, 0},
		{"the first batch on one shard", at(0, 0), [shards]offsets{at(5, 0), at(0, 0)}, halfWritten},
		{"a batch on the other shard", at(5, 7), [shards]offsets{at(5, 6), at(4, 9)}, halfWritten},
		{"a batch on both", at(5, 7), [shards]offsets{at(8, 7), at(5, 9)}, written},
		{"between two batches", at(8, 9), [shards]offsets{at(8, 7), at(5, 9)}, acknowledged},
	} {
		f := facts{committed: c.committed, highest: c.highest}
		if f.judgePlain(); f.at != c.want || len(f.words) > 1 {
			t.Errorf("%s: %v, %v", c.what, f.at, f.words)
		}
	}
}

func TestMomentsOfTheService(t *testing.T) {
	one, two := branch{"one", "0"}, branch{"two", "0"}
	other := func(b branch) branch { b.shard = "1"; return b }
	for _, c := range []struct {
		what      string
		prepared  []branch
		decisions []string
		want      moment
	}{
		{"nothing", nil, []string{"D one"}, 0},
		{"phase 1", []branch{one}, []string{"D zero", ""}, halfWritten},
		{"phase 1 is done", []branch{one, other(one)}, []string{"D zero", ""}, written},
		{"decided", []branch{one, other(one)}, []string{"", "D one"}, acknowledged},
		{"phase 2", []branch{other(one)}, []string{"D one"}, halfWritten | acknowledged},
		{"two lanes", []branch{one, two, other(one)}, []string{"D zero"}, halfWritten | written},
	} {
		f := facts{}
		if f.judgeOurs(c.prepared, c.decisions); f.at != c.want {
			t.Errorf("%s: %v, %v", c.what, f.at, f.words)
		}
	}
}

func TestKillIsShownAsItWas(t *testing.T) {
	f := facts{committed: offsets{3, 4}, at: halfWritten | acknowledged, words: map[moment]string{halfWritten: "half", acknowledged: "decided"}}
	for wanted, want := range map[moment]caught{
		halfWritten:  {Wanted: halfWritten.String(), Moment: halfWritten.String(), Facts: "half", Messages: 7},
		acknowledged: {Wanted: acknowledged.String(), Moment: acknowledged.String(), Facts: "decided", Messages: 7},
		written:      {Wanted: written.String(), Moment: halfWritten.String(), Facts: "half", Messages: 7},
	} {
		if c := describe(wanted, f); c != want || c.asWanted() != (want.Moment == want.Wanted) {
			t.Errorf("%v: %+v", wanted, c)
		}
	}
	if c := describe(written, facts{}); c.asWanted() || c.Facts == "" {
		t.Errorf("at rest: %+v", c)
	}
}

// A recovery is over with a booking of what nobody had booked before.
func TestFirstNewBooking(t *testing.T) {
	before := facts{committed: offsets{5, 5}, highest: [shards]offsets{{7, 2}, {3, 6}}}
	at := before.farthest()
	if at != (offsets{7, 6}) {
		t.Errorf("farthest %v", at)
	}
	for _, c := range []struct {
		highest [shards]offsets
		want    bool
	}{{before.highest, false}, {[shards]offsets{{7, 6}, {7, 6}}, false}, {[shards]offsets{{3, 2}, {3, 7}}, true}} {
		if f := (facts{highest: c.highest}); f.beyond(at) != c.want {
			t.Errorf("%v is beyond %v: %v", c.highest, at, !c.want)
		}
	}
}
