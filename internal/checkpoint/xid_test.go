package checkpoint

import (
	"errors"
	"strings"
	"testing"
)

// TestGTRIDForm: 64 ASCII characters whatever the numbers, and Parse gives back
// what went in.
func TestGTRIDForm(t *testing.T) {
	owner := OwnerPrefix("job", UUID{7})
	for _, partition := range []int32{0, 1, 255, 1<<31 - 1} {
		lane := LanePrefix(owner, UUID{1}, partition)
		for _, incarnation := range []int64{1, 16, maxNum} {
			for _, seq := range []int64{1, 4096, maxNum} {
				g := newGTRID(lane, incarnation, seq)
				if len(g) != 64 {
					t.Fatalf("%s has %d characters", g, len(g))
				}
				n, err := g.Parse()
				if err != nil {
					t.Fatal(err)
				}
				want := Name{Owner: owner, Lane: lane, Partition: partition, Incarnation: incarnation, Seq: seq}
				if n != want {
					t.Errorf("%s: %+v, want %+v", g, n, want)
				}
				if !strings.HasPrefix(string(g), owner) || !strings.HasPrefix(string(g), lane) {
					t.Errorf("%s does not begin with %s and %s", g, owner, lane)
				}
			}
		}
	}
}

// TestGTRIDIsStable: branches that an older build prepared must be recognised,
// so the names never change.
func TestGTRIDIsStable(t *testing.T) {
	got := newGTRID(LanePrefix(OwnerPrefix("billing", UUID{1, 2, 3}), UUID{9}, 17), 5, 300)
	const want = "exb1fa296ca53bcd5486d6370cab1c1a0000001100000000000500000000012c"
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestGTRIDNeverEqual: other input, other name.
func TestGTRIDNeverEqual(t *testing.T) {
	seen := map[GTRID]string{}
	for _, job := range []string{"a", "b", "ab", "1:a", ""} {
		for _, set := range []UUID{{}, {1}, {15: 1}, {'a'}} {
			for _, topic := range []UUID{{}, {1}, {15: 1}} {
				for _, partition := range []int32{0, 1, 16} {
					for _, incarnation := range []int64{1, 2, 17} {
						for _, seq := range []int64{1, 2, 17} {
							g := newGTRID(LanePrefix(OwnerPrefix(job, set), topic, partition), incarnation, seq)
							in := strings.Join([]string{job, set.String(), topic.String(), string('0' + partition), string(rune('0' + incarnation)), string(rune('0' + seq))}, "/")
							if other, ok := seen[g]; ok {
								t.Fatalf("%s is the name of %s and of %s", g, other, in)
							}
							seen[g] = in
						}
					}
				}
			}
		}
	}
}

// TestGTRIDBounds: what does not fit breaks an invariant and makes no name.
func TestGTRIDBounds(t *testing.T) {
	for _, c := range []struct{ incarnation, seq int64 }{{0, 1}, {1, 0}, {-1, 1}, {1, -1}, {maxNum + 1, 1}, {1, maxNum + 1}} {
		err := func() (err error) {
			defer guard(&err)
			newGTRID(judgePrefix, c.incarnation, c.seq)
			return nil
		}()
		var broken *InvariantError
		if !errors.As(err, &broken) {
			t.Errorf("incarnation %d, seq %d: %v", c.incarnation, c.seq, err)
		}
	}
}

// TestForeignGTRIDs: names of others are never taken for ours.
func TestForeignGTRIDs(t *testing.T) {
	ours := newGTRID(judgePrefix, 1, 1)
	for _, g := range []GTRID{
		"", "x", "exb1", ours[:63], ours + "0", "exb2" + ours[4:], "EXB1" + ours[4:],
		ours[:10] + "A" + ours[11:], ours[:20] + "-" + ours[21:], ours[:63] + " ", ours[:63] + "\x00", "exb1" + GTRID(strings.Repeat("é", 30)),
	} {
		if n, err := g.Parse(); err == nil {
			t.Errorf("%q is taken for %+v", g, n)
		} else if !strings.Contains(err.Error(), "not one of this service") {
			t.Errorf("%q: %v", g, err)
		}
	}
}

// FuzzGTRIDParse: what Parse takes is exactly the name of what it gives.
func FuzzGTRIDParse(f *testing.F) {
	f.Add(string(newGTRID(judgePrefix, 1, 1)))
	f.Add(string(newGTRID(judgePrefix, maxNum, maxNum)))
	f.Add("exb1" + strings.Repeat("f", 60))
	f.Add("exb1" + strings.Repeat("0", 60))
	f.Add("foreign")
	f.Fuzz(func(t *testing.T, s string) {
		n, err := GTRID(s).Parse()
		if err != nil {
			if n != (Name{}) && len(s) != xidLen {
				t.Fatalf("%q: %+v beside %v", s, n, err)
			}
			return
		}
		if len(s) != xidLen || !strings.HasPrefix(s, n.Lane) || !strings.HasPrefix(n.Lane, n.Owner) {
			t.Fatalf("%q: %+v", s, n)
		}
		if n.Incarnation == 0 || n.Seq == 0 {
			return // no session makes such a name
		}
		if again := newGTRID(n.Lane, n.Incarnation, n.Seq); string(again) != s {
			t.Fatalf("%q reads as the name %q", s, again)
		}
	})
}
