package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"billing/test/proxy"
	"billing/test/servers"
)

// backup is the state of a shard at a moment, in a database beside it.
type backup struct {
	shard  int
	name   string
	tables []string
}

// backUp copies a shard's tables.
func (w *world) backUp(shard int) *backup {
	w.t.Helper()
	root := w.servers[shard].Root()
	from := databaseOf(w.t, w.dsns[shard])
	b := &backup{shard: shard, name: databaseOf(w.t, w.servers[shard].NewDatabase(w.t))}
	b.tables = column(w.t, root, "SELECT table_name FROM information_schema.tables WHERE table_schema = ? AND table_type = 'BASE TABLE'", from)
	for _, table := range b.tables {
		copyTable(w.t, root, from, b.name, table)
	}
	return b
}

// statements set a database back.
func (b *backup) statements(database string) (all []string) {
	for _, table := range b.tables {
		all = append(all,
			fmt.Sprintf("DELETE FROM `%s`.%s", database, table),
			fmt.Sprintf("INSERT INTO `%s`.%s SELECT * FROM `%s`.%s", database, table, b.name, table))
	}
	return all
}

// restore sets the world's shard back.
func (w *world) restore(b *backup) {
	w.t.Helper()
	for _, s := range b.statements(databaseOf(w.t, w.dsns[b.shard])) {
		mustExec(w.t, w.servers[b.shard].Root(), s)
	}
}

// restoreBut sets the world's shard back, one table to a moment of its own.
func (w *world) restoreBut(b, other *backup, table string) {
	w.t.Helper()
	w.restore(b)
	database, root := databaseOf(w.t, w.dsns[b.shard]), w.servers[b.shard].Root()
	mustExec(w.t, root, fmt.Sprintf("DELETE FROM `%s`.%s", database, table))
	mustExec(w.t, root, fmt.Sprintf("INSERT INTO `%s`.%s SELECT * FROM `%s`.%s", database, table, other.name, table))
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

// rows are rowsOf each shard.
func (w *world) rows() (all [][]string) {
	w.t.Helper()
	for i := range w.shards {
		all = append(all, w.rowsOf(i))
	}
	return all
}

// mustBeAgain fails unless the shards have these rows again, and verify agrees.
func (w *world) mustBeAgain(t *testing.T, before [][]string) {
	t.Helper()
	w.mustVerify(t, 0)
	for i, now := range w.rows() {
		if slices.Equal(now, before[i]) {
			continue
		}
		t.Errorf("shard %d: %d rows, before the loss %d", i, len(now), len(before[i]))
		for _, line := range difference(before[i], now) {
			t.Log(line)
		}
	}
}

// mustNotChange runs the command, which changes nothing.
func (w *world) mustNotChange(t *testing.T, code int, args []string, says ...string) answer {
	t.Helper()
	had := w.rows()
	a := w.ask(args...).must(t, code, says...)
	for i, now := range w.rows() {
		if !slices.Equal(now, had[i]) {
			t.Errorf("billing %s has changed shard %d: %v", strings.Join(args, " "), i, difference(had[i], now))
		}
	}
	return a
}

// repaired is the answer of repair --json.
type repaired struct {
	Job, Topic string
	DryRun     bool `json:"dry_run"`
	Lanes      []struct {
		Lane, Result, Reason, Message string
		Seq                           int64
		Shards                        []struct {
			Shard    string
			Has      int64 `json:"has_seq"`
			From     int64 `json:"seq_from"`
			To       int64 `json:"seq_to"`
			Offset   int64 `json:"offset_from"`
			Next     int64 `json:"offset_next"`
			Records  int64
			Applied  int64
			Kept     int64
			Sums     []struct{ Currency string }
			Branches []struct {
				GTRID  string
				Seq    int64
				Action string
			}
			Epochs []struct {
				Seq, Records, Applied, Kept int64
				From                        int64 `json:"offset_from"`
				Next                        int64 `json:"offset_next"`
				GTRID                       string
			}
		}
	}
}

func (w *world) repairJSON(t *testing.T, code int, args ...string) (r repaired) {
	t.Helper()
	a := w.ask(append([]string{"repair", "--json"}, args...)...).must(t, code)
	if err := json.Unmarshal([]byte(a.out), &r); err != nil {
		t.Fatalf("%v:\n%s", err, a.out)
	}
	return r
}

// onProxy puts a proxy before one shard of the configuration.
func (w *world) onProxy(t *testing.T, shard int) *proxy.MySQL {
	p := proxy.MySQLFor(t, w.servers[shard].Addr())
	w.edit(fmt.Sprintf("%q", w.dsns[shard]), fmt.Sprintf("%q", at(t, w.dsns[shard], p.Addr(), 0)))
	return p
}

// TestRepair: shards come back from backups that lack epochs. What was lost is
// shown, and then booked again as it was.
func TestRepair(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(2))
	w.partitions = 2
	s := w.run("")
	const moments = 3
	var old [moments][2]*backup
	for m := range moments {
		w.sendRich()
		w.waitAccounted()
		for i := range w.shards {
			old[m][i] = w.backUp(i)
		}
	}
	w.sendRich()
	w.waitAccounted()
	s.stop()
	w.ask("repair").must(t, 0, "no shard lacks a decided epoch")
	before := w.rows()
	last := [2]int64{w.epochsOn(0, 0), w.epochsOn(0, 1)}
	lanes := [2]string{w.topic + "/0", w.topic + "/1"}

	for _, c := range []struct {
		name string
		lose func(w *world)
		also func(t *testing.T, w *world) // before it is booked
		with []string                     // flags
	}{
		{name: "one shard", lose: func(w *world) {
			w.exec(1, "UPDATE billing_rejects SET state = 'waived'") // comes back open, and as it was before that
			w.restore(old[0][1])
		}, also: func(t *testing.T, w *world) {
			w.mustNotChange(t, 1, []string{"repair"}, lanes[0], lanes[1], "s1", "EUR charges", "Nothing was changed", "--apply")
			w.mustNotChange(t, 1, []string{"repair", "--dry-run"})
			for _, r := range w.repairJSON(t, 1).Lanes {
				sh := r.Shards[0]
				if r.Result != "missing" || len(r.Shards) != 1 || sh.Shard != "s1" || sh.From != sh.Has+1 || sh.To != r.Seq || int64(len(sh.Epochs)) != sh.To-sh.Has ||
					sh.Records != 3*38 || len(sh.Sums) != 2 || sh.Epochs[0].From != sh.Offset || sh.Epochs[len(sh.Epochs)-1].Next != sh.Next || len(sh.Branches) != 0 {
					t.Errorf("%+v", r)
				}
			}
		}},
		{name: "both shards", lose: func(w *world) { w.restore(old[0][0]); w.restore(old[0][1]) }},
		{name: "both shards, not the same", lose: func(w *world) { w.restore(old[2][0]); w.restore(old[0][1]) }},
		{name: "all of a lane", lose: func(w *world) { w.forgetLane(1, 0) }, also: func(t *testing.T, w *world) {
			w.mustNotChange(t, 1, []string{"repair"}, lanes[0], "nothing", "1 lane can be repaired")
		}},
		{name: "all of a lane on both shards", lose: func(w *world) { w.forgetLane(0, 1); w.forgetLane(1, 1) }},
		{name: "an empty shard", lose: func(w *world) { w.forgetLane(1, 0); w.forgetLane(1, 1) }},
		{name: "lane by lane", lose: func(w *world) { w.restore(old[1][1]) }, also: func(t *testing.T, w *world) {
			w.ask("repair", "--lane", lanes[1], "--apply").must(t, 0, "booked again: 1 lane")
			if e := w.epochsOn(1, 0); e == last[0] || w.epochsOn(1, 1) != last[1] {
				t.Errorf("lane 0 is at %d, lane 1 at %d of %v", e, w.epochsOn(1, 1), last)
			}
			if r := w.repairJSON(t, 1); len(r.Lanes) != 1 || r.Lanes[0].Lane != lanes[0] {
				t.Errorf("what is left: %+v", r)
			}
			w.mustNotChange(t, 2, []string{"repair", "--lane", w.topic + "/2"}, "2 partitions")
			w.mustNotChange(t, 2, []string{"repair", "--lane", "other/0"}, "want a lane of topic")
			w.mustNotChange(t, 2, []string{"repair", "--apply", "--dry-run"}, "want one of them")
		}},
		{name: "two at once", lose: func(w *world) { w.restore(old[0][1]) }, also: func(t *testing.T, w *world) {
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() {
					if a := w.ask("repair", "--apply"); a.code != 0 {
						t.Errorf("exit code %d: %s%s", a.code, a.out, a.err)
					}
				})
			}
			both.Wait()
		}},
		{name: "another configuration", lose: func(w *world) { w.restore(old[1][1]) }, also: func(t *testing.T, w *world) {
			was := w.configuration()
			for _, e := range []struct{ from, to, says string }{
				{"USD, EUR,", "USD,", "(not-exact)"},
				{"USD, EUR,", "USD,", "unknown_currency"},
				{"message:", "dedup:\n  lateness: 1h\nmessage:", "(not-exact)"},
				{"message:", "aggregate:\n  window: 30m\nmessage:", "(fingerprint)"},
			} {
				w.edit(e.from, e.to)
				w.mustNotChange(t, 3, []string{"repair", "--apply"}, e.says)
				w.configure(was)
			}
			w.edit("kafka:\n  brokers: [", "kafka:\n  brokers: [\"127.0.0.1:1\"]\n#")
			w.mustNotChange(t, 4, []string{"repair", "--apply"}, "127.0.0.1:1")
			w.configure(was)
		}},
		{name: "totals of a later moment", lose: func(w *world) { w.restoreBut(old[0][1], old[1][1], "billing_total") }, also: func(t *testing.T, w *world) {
			w.mustNotChange(t, 3, []string{"repair"}, "shard-hole", "billing_total adds up to")
			w.mustNotChange(t, 3, []string{"repair", "--apply"}, "shard-hole", lanes[0], lanes[1])
			w.restore(old[1][1])
		}},
		{name: "other rows of a later moment", lose: func(w *world) { w.restore(old[0][1]) }, also: func(t *testing.T, w *world) {
			for _, table := range []string{"billing_ledger", "billing_rejects", "billing_epoch_sum"} {
				w.restoreBut(old[0][1], old[1][1], table)
				w.mustNotChange(t, 3, []string{"repair", "--apply"}, "shard-hole", table+" has rows of later ones")
			}
			w.restore(old[0][1])
		}},
		{name: "a hole", lose: func(w *world) { w.restore(old[1][1]) }, also: func(t *testing.T, w *world) {
			db, seq := databaseOf(t, w.dsns[1]), w.epochsOn(1, 0)
			w.exec(1, fmt.Sprintf("DELETE FROM billing_epoch WHERE %s AND seq = %d", w.laneIs(0), seq))
			w.mustNotChange(t, 3, []string{"repair"}, "(shard-hole)", "what shard s1 has is not of one moment", "not repaired: 1 lane; 1 lane can be repaired")
			mustExec(t, w.servers[1].Root(), fmt.Sprintf("INSERT INTO `%s`.billing_epoch SELECT * FROM `%s`.billing_epoch WHERE %s AND seq = %d", db, old[1][1].name, w.laneIs(0), seq))
		}},
		{name: "another server", lose: func(w *world) {
			w.restore(old[0][1])
			w.exec(1, "UPDATE billing_meta SET server_uuid = '00000000-0000-4000-8000-000000000000', checksum = UNHEX(SHA2(CONCAT("+
				framed("'1'", "job", "set_id", "CAST(shard_number AS CHAR)", "CAST(shard_count AS CHAR)", "server_uuid")+"), 256))")
		}, also: func(t *testing.T, w *world) {
			w.mustNotChange(t, 3, []string{"repair", "--apply"}, "(server-changed)", "server-changed:s1")
			w.mustNotChange(t, 1, []string{"repair", "--accept", "server-changed:s1"}, "Nothing was changed")
			w.mustNotChange(t, 2, []string{"repair", "--accept", "offset-reset:" + lanes[0]})
		}, with: []string{"--accept", "server-changed:s1"}},
		{name: "as the reader", lose: func(w *world) { w.restore(old[1][1]) }, also: func(t *testing.T, w *world) {
			was := w.configuration()
			w.configure([]byte(servers.AsReader(string(was))))
			w.mustNotChange(t, 1, []string{"repair"}, "Nothing was changed")
			w.mustNotChange(t, 3, []string{"repair", "--apply"}, "lacks rights: INSERT on billing_lane")
			w.configure(was)
		}},
		{name: "answers lost, and killed in the middle", lose: func(w *world) { w.restore(old[0][1]); w.forgetLane(1, 1) }, also: func(t *testing.T, w *world) {
			p := w.onProxy(t, 1)
			for _, at := range []struct {
				statement string
				skip      int
				do        proxy.MySQLAction
			}{
				{"INSERT INTO billing_total", 0, proxy.HoldRequest{}},
				{"COMMIT", 0, proxy.HoldRequest{}}, // it comes late, while the next one is at work
				{"COMMIT", 0, proxy.HoldAnswer{}},
			} {
				h := p.Add(proxy.MySQLRule{Match: proxy.Statement(at.statement), Skip: at.skip, Times: 1, Do: at.do})
				r := w.command("repair", "--apply")
				h.Await(t, 1)
				r.kill()
				h.Remove()
			}
			h := p.Add(proxy.MySQLRule{Match: proxy.Statement("COMMIT"), Times: 1, Do: proxy.DropAnswer{}})
			w.ask("repair", "--apply").must(t, 0, "booked again")
			h.Await(t, 1)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := w.copied(t)
			want := slices.Clone(before)
			c.lose(w)
			if c.also != nil {
				c.also(t, w)
			}
			w.ask(append([]string{"repair", "--apply"}, c.with...)...).must(t, 0)
			if len(c.with) > 0 { // the server is the recorded one again
				w.ask("repair").must(t, 0, "no shard lacks a decided epoch")
			}
			w.mustBeAgain(t, want)
		})
	}
}

// framed is the SQL for columns in the digest's encoding.
func framed(columns ...string) string {
	for i, c := range columns {
		columns[i] = "CONCAT(UNHEX(LPAD(HEX(LENGTH(" + c + ")), 8, '0')), " + c + ")"
	}
	return strings.Join(columns, ", ")
}
