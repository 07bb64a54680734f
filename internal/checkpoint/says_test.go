package checkpoint

import "testing"

// TestSays: what the tools show is what the lane's next session does.
func TestSays(t *testing.T) {
	d := &Decision{Incarnation: 5, Seq: 9, GTRID: newGTRID(judgePrefix, 4, 9)}
	for _, c := range []struct {
		incarnation, seq int64
		want             Word
	}{
		{4, 9, Decided},
		{3, 9, Undecided}, // prepared late, for the epoch that another session has made
		{5, 9, Undecided},
		{5, 10, Undecided},
		{4, 10, Undecided},
		{4, 8, Older},
		{5, 8, Older},
		{5, 11, Ahead},
		{4, 11, Ahead},
		{6, 10, Ahead},
		{7, 10, Ahead},
		{7, 8, Ahead},
	} {
		g := newGTRID(judgePrefix, c.incarnation, c.seq)
		n, err := g.Parse()
		if err != nil {
			t.Fatal(err)
		}
		if got := d.Says(g, n); got != c.want {
			t.Errorf("incarnation %d seq %d: %s, want %s", c.incarnation, c.seq, got, c.want)
		}
	}
}
