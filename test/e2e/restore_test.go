package e2e

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"billing/test/servers"
)

// Backing up and restoring one shard, by the commands of docs/restoring.md.

// The backups, as they are made on the shard's machine.
const (
	shipBinaryLog = `mkdir /tmp/logs
nohup mysqlbinlog --read-from-remote-server --host=127.0.0.1 --user=root --raw --stop-never --result-file=/tmp/logs/ binlog.000001 >/tmp/ship 2>&1 &`
	cloneServer = `mkdir /tmp/clone && chown mysql: /tmp/clone
mysql -uroot -e "INSTALL PLUGIN clone SONAME 'mysql_clone.so'; CLONE LOCAL DATA DIRECTORY = '/tmp/clone/mysql'"`
	dumpServer = `mysqldump -uroot --all-databases --single-transaction --source-data=2 --routines --events --triggers --flush-privileges --result-file=/tmp/%s.sql`
)

// replayed replays the binary log from a place on. force goes on after an error.
func replayed(t *testing.T, m *servers.MySQLServer, file, position string, force bool) (said string, err error) {
	t.Helper()
	options := ""
	if force {
		options = "--force"
	}
	return m.Shell(t.Context(), fmt.Sprintf(`cd /tmp/logs
mysql -uroot -e 'SET GLOBAL max_allowed_packet = 1073741824'
mysqlbinlog --start-position=%s $(ls | awk '$0 >= "%s"') | mysql -uroot --max-allowed-packet=1G %s`, position, file, options))
}

// shell is a script that must end well.
func shell(t *testing.T, m *servers.MySQLServer, script string) string {
	t.Helper()
	said, err := m.Shell(t.Context(), script)
	if err != nil {
		t.Fatal(err)
	}
	return said
}

// give copies what was saved of another server.
func give(t *testing.T, m *servers.MySQLServer, saved ...[]byte) {
	t.Helper()
	for _, data := range saved {
		if err := m.Put(t.Context(), "/tmp", data); err != nil {
			t.Fatal(err)
		}
	}
}

func take(t *testing.T, m *servers.MySQLServer, path string) []byte {
	t.Helper()
	data, err := m.Take(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// move points a shard's DSN at another server.
func (w *world) move(shard int, to *servers.MySQLServer) {
	w.t.Helper()
	dsn := at(w.t, w.dsns[shard], to.Addr(), 0)
	w.edit(w.dsns[shard], dsn)
	db, err := sql.Open("mysql", servers.AsRoot(dsn))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = db.Close() })
	w.dsns[shard], w.servers[shard], w.shards[shard] = dsn, to, db
}

// TestRestore loses the server of a shard while a branch that Kafka has decided is
// prepared there, and restores it on others: from a clone and from a dump, which
// are right; from a dump that was taken at the wrong moment, which verify must
// find; and from a dump alone, which is a lost epoch.
func TestRestore(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	old := servers.MySQL(t)
	w := newWorld(t, 2, onServers(shared.kafka, old, shared.mysql[1]), withPartitions(2))
	shell(t, old, shipBinaryLog)

	// A dump while nothing is prepared.
	s := w.run("")
	w.charge(0, 60)
	w.charge(1, 60)
	w.waitAccounted()
	s.stop()
	w.mustList()
	shell(t, old, fmt.Sprintf(dumpServer, "quiet"))

	// A clone and a dump while lane 0 is between its phases and lane 1 works.
	s = w.run("all-prepared:1:hold")
	w.charge(0, 40)
	s.mustHoldAtFailpoint()
	if n := w.prepared()[0]; n != 1 {
		t.Fatalf("%d branches are prepared", n)
	}
	held := w.epochs(0)[0] + 1
	var busy sync.WaitGroup
	stop, halt := context.WithCancel(ctx)
	busy.Go(func() {
		for stop.Err() == nil {
			if _, err := w.tryCharge(1, 5); err != nil {
				t.Error(err)
				return
			}
		}
	})
	shell(t, old, cloneServer)
	shell(t, old, fmt.Sprintf(dumpServer, "prepared"))
	halt()
	busy.Wait()
	s.signal(syscall.SIGUSR1)
	w.waitAccounted()
	s.stop()

	// The server is lost. All of its binary log was shipped.
	w.charge(0, 40)
	w.run("decided:1").mustDieAtFailpoint()
	last := w.decided(0).Seq
	decidedEventually(t, w, last)
	servers.Eventually(t, time.Minute, func() error {
		_, err := old.Shell(ctx, `last=$(ls /tmp/logs | tail -n 1) && test $(stat -c %s /tmp/logs/$last) = $(stat -c %s /var/lib/mysql/$last)`)
		return err
	})
	if err := old.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	logs, clone := take(t, old, "/tmp/logs"), take(t, old, "/tmp/clone/mysql")

	// load fills a server with a dump, and says where that stands in the binary log.
	at := regexp.MustCompile(`SOURCE_LOG_FILE='(\S+)', SOURCE_LOG_POS=(\d+)`)
	load := func(m *servers.MySQLServer, dump string) (file, position string) {
		give(t, m, take(t, old, "/tmp/"+dump+".sql"))
		shell(t, m, "mysql -uroot < /tmp/"+dump+".sql")
		place := at.FindStringSubmatch(shell(t, m, "grep -m 1 'CHANGE REPLICATION SOURCE' /tmp/"+dump+".sql"))
		if place == nil {
			t.Fatal("the dump has no position")
		}
		return place[1], place[2]
	}
	// whole is right but for the last branch, which is decided and prepared.
	whole := func(how string) {
		if v := w.mustVerify(t, 0); len(v.InDoubt) == 0 || !v.DecisionsCompared {
			t.Errorf("%s: %s", how, v)
		}
	}

	m := servers.MySQL(t)
	give(t, m, logs)
	w.move(0, m)
	file, position := load(m, "quiet")
	if said, err := replayed(t, m, file, position, false); err != nil || strings.Contains(said, "ERROR") {
		t.Fatal(said, err)
	}
	whole("a dump while nothing is prepared")

	// Nothing but a dump: both lanes have lost epochs, and say so.
	for _, b := range m.XABranches(t) {
		w.root(0, fmt.Sprintf("XA ROLLBACK '%s','%s'", b.GTRID, b.BQUAL))
	}
	w.root(0, "RESET BINARY LOGS AND GTIDS")
	file, position = load(m, "prepared")
	w.mustVerify(t, 1)
	s = w.command("run", "--accept", "server-changed:s0")
	servers.Eventually(t, 2*time.Minute, func() error {
		for p := range w.partitions {
			if err := contains(s.output(), fmt.Sprintf("refused (lost-epoch) %s/%d: shard s0", w.topic, p)); err != nil {
				return err
			}
		}
		return nil
	})
	s.stop()

	// The branch that was prepared then is not in the dump, and its XA PREPARE is not behind it. Rows that it would
	// have made can be missed later, too.
	if said, err := replayed(t, m, file, position, true); err != nil || !strings.HasPrefix(said, "ERROR 1397 (XAE04)") {
		t.Errorf("the replay has said %q (%v)", said, err)
	}
	if v := w.mustVerify(t, 1); !v.has(0, "billing_epoch", fmt.Sprintf("%s/0 epoch %d", w.topic, held)) {
		t.Errorf("epoch %d is lost, and it says %s", held, v)
	}

	m = servers.MySQL(t, servers.WithData(clone))
	give(t, m, logs)
	row := strings.Fields(shell(t, m, "mysql -uroot -N -e 'SELECT binlog_file, binlog_position FROM performance_schema.clone_status'"))
	if len(row) != 2 {
		t.Fatalf("clone_status: %q", row)
	}
	w.move(0, m)
	if said, err := replayed(t, m, row[0], row[1], false); err != nil || strings.Contains(said, "ERROR") {
		t.Fatal(said, err)
	}
	whole("a clone")
	w.mustRefuse(t, "server-changed", "--accept server-changed:s0")
	s = w.command("run", "--accept", "server-changed:s0")
	w.charge(0, 40)
	w.charge(1, 40)
	w.waitAccounted()
	s.stop()
	w.exact()
	w.mustVerify(t, 0)
	if got := w.decided(0).Seq; got <= last {
		t.Errorf("the lane is at epoch %d, and was at %d", got, last)
	}
	s = w.run("") // the new server is the recorded one
	w.charge(0, 10)
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestDecisionTopicLost: the topic of the decisions was deleted. It is made again
// by a start that may be the first one, the lane shows the copy that is left, and
// goes on when that was written.
func TestDecisionTopicLost(t *testing.T) {
	t.Parallel()
	w := ran(t)
	_, left := w.offset(0)
	if _, err := kadm.NewClient(w.admin).DeleteTopic(t.Context(), w.job+".decision"); err != nil {
		t.Fatal(err)
	}
	s := w.run("")
	servers.Eventually(t, 2*time.Minute, func() error {
		return errors.Join(contains(s.output(), "refused (decisions-unequal)"), contains(s.output(), w.job+".decision says nothing"))
	})
	var status struct{ Lanes []struct{ Message string } }
	if err := json.Unmarshal([]byte(w.ask("status", "--json").must(t, 0).out), &status); err != nil || len(status.Lanes) != 1 {
		t.Fatal(err, status)
	}
	copies := regexp.MustCompile(`in full: ("(?:[^"\\]|\\.)*") and ""`).FindStringSubmatch(status.Lanes[0].Message)
	if copies == nil {
		t.Fatalf("it does not show the copies: %s", status.Lanes[0].Message)
	}
	shown, err := strconv.Unquote(copies[1])
	if err != nil || shown != left {
		t.Errorf("it shows %s (%v), the copy that is left is %s", shown, err, left)
	}
	s.stop()
	w.record(0, shown)
	s = w.run("")
	w.charge(0, 30)
	w.waitAccounted()
	s.stop()
	w.exact()
}

// TestKafkaForgetsTheLane: the group and both topics of the job are deleted, while
// the shards know the lane. It would bill everything again from offset 0: it does not
// start, though a first start is allowed.
func TestKafkaForgetsTheLane(t *testing.T) {
	t.Parallel()
	w := ran(t)
	booked, config := w.booked(0), w.configuration()
	admin := kadm.NewClient(w.admin)
	servers.Eventually(t, time.Minute, func() error {
		_, err := admin.DeleteGroup(t.Context(), w.job)
		return err
	})
	if answers, err := admin.DeleteTopics(t.Context(), w.job+".decision", w.job+".state"); err != nil || answers.Error() != nil {
		t.Fatal(err, answers.Error())
	}
	w.edit("first_start: true", "first_start: false")
	w.mustRefuse(t, "topic-missing", w.job+".decision", w.job+".state")
	w.configure(config)

	s := w.run("")
	servers.Eventually(t, 2*time.Minute, func() error {
		return errors.Join(contains(s.output(), "refused (lane-known) "+w.topic+"/0"), contains(s.output(), "starting again would bill every message twice"))
	})
	w.charge(0, 10) // nobody is there to bill it
	s.waitSays("/readyz", 503)
	s.waitSays("/metrics", 200, `billing_lane_stopped{partition="0",reason="lane-known"} 1`)
	if now := w.booked(0); now != booked {
		t.Errorf("the shards had\n%s\nand have\n%s", booked, now)
	}
	if next, text := w.offset(0); next >= 0 || text != "" {
		t.Errorf("the group has offset %d with %q", next, text)
	}
	s.stop()
}

// TestKafkaLost: Kafka is gone for good while branches are prepared. An epoch that
// some shard has was decided, any other one counts as not booked; when its branches
// are ended so, verify finds nothing wrong.
func TestKafkaLost(t *testing.T) {
	t.Parallel()
	for failpoint, decided := range map[string]bool{"some-committed:1": true, "all-prepared:1": false, "some-prepared:1": false} {
		t.Run(failpoint, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			n := w.died(failpoint)
			w.withoutKafka()
			branches := w.xaList(4)
			for _, b := range branches {
				if b.Owner != "job" {
					continue
				}
				if b.Decision != "unknown" {
					t.Errorf("without Kafka: %+v", b)
				}
				end := "XA ROLLBACK "
				for i := range w.shards {
					if w.epochsOn(i, 0) >= b.Seq {
						end = "XA COMMIT "
					}
				}
				var shard int
				if _, err := fmt.Sscanf(b.Shard, "s%d", &shard); err != nil {
					t.Fatal(err)
				}
				w.root(shard, end+b.XID)
			}
			if left := slices.Max(w.prepared()); left != 0 {
				t.Errorf("%d branches are prepared", left)
			}
			want := n
			if decided {
				want++
			}
			all(t, "epochs", w.epochs(0), want)
			if v := w.mustVerify(t, 0); len(v.InDoubt) != 0 || v.DecisionsCompared {
				t.Errorf("it says %s", v)
			}
		})
	}
}
