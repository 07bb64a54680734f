package e2e

import (
	"fmt"
	"slices"
	"testing"
)

// backup is the state of a shard at a moment, in a database beside it.
type backup struct {
	w      *world
	shard  int
	name   string
	tables []string
}

// backUp copies a shard's tables.
func (w *world) backUp(shard int) *backup {
	w.t.Helper()
	root := w.servers[shard].Root()
	from := databaseOf(w.t, w.dsns[shard])
	b := &backup{w: w, shard: shard, name: databaseOf(w.t, w.servers[shard].NewDatabase(w.t))}
	b.tables = column(w.t, root, "SELECT table_name FROM information_schema.tables WHERE table_schema = ? AND table_type = 'BASE TABLE'", from)
	for _, table := range b.tables {
		copyTable(w.t, root, from, b.name, table)
	}
	return b
}

// restore sets the shard back.
func (b *backup) restore() {
	b.w.t.Helper()
	root := b.w.servers[b.shard].Root()
	to := databaseOf(b.w.t, b.w.dsns[b.shard])
	for _, table := range b.tables {
		mustExec(b.w.t, root, fmt.Sprintf("DELETE FROM `%s`.%s", to, table))
		mustExec(b.w.t, root, fmt.Sprintf("INSERT INTO `%s`.%s SELECT * FROM `%s`.%s", to, table, b.name, table))
	}
}

// rowsOf are a shard's rows without what only says when they were written, and
// what follows from that.
func (w *world) rowsOf(shard int) (all []string) {
	w.t.Helper()
	for _, table := range w.everyTable(shard) {
		for _, row := range table.rows {
			line := table.name
			for n, c := range table.columns {
				if !slices.Contains([]string{"prepared_at", "updated_at", "digest"}, c.name) {
					line += fmt.Sprintf(" %s=%q", c.name, row[n])
				}
			}
			all = append(all, line)
		}
	}
	slices.Sort(all)
	return all
}

// TestRepair: a shard comes back from a backup that lacks epochs. What was lost is
// shown, and then booked again as it was.
func TestRepair(t *testing.T) {
	t.Parallel()
	w := rich(t, 2)
	old := w.backUp(1)
	s := w.run("")
	for range 3 {
		w.sendRich()
		w.waitAccounted()
	}
	s.stop()
	w.ask("repair").must(t, 0, "no shard lacks a decided epoch")
	before := w.rowsOf(1)
	old.restore()
	lost := w.rowsOf(1)

	w.ask("repair").must(t, 1, w.topic+"/0", w.topic+"/1", "s1", "Nothing was changed")
	if now := w.rowsOf(1); !slices.Equal(now, lost) {
		t.Fatal("a dry run has changed something")
	}
	a := w.ask("repair", "--apply").must(t, 0, "booked again")
	t.Log(a.out)
	w.mustVerify(t, 0)
	if now := w.rowsOf(1); !slices.Equal(now, before) {
		t.Errorf("after the repair %d rows, before the loss %d", len(now), len(before))
		for _, r := range now {
			if !slices.Contains(before, r) {
				t.Log("new: ", r)
			}
		}
		for _, r := range before {
			if !slices.Contains(now, r) {
				t.Log("missing: ", r)
			}
		}
	}
}
