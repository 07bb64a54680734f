package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"billing/test/servers"
)

// looked is the answer of `billing lookup --json`.
type looked struct {
	Outcome string `json:"outcome"`
	Offset  *int64 `json:"offset"`
	Source  string `json:"source"`
	ID      string `json:"event_id"`
	Why     string `json:"why"`
	Entries []struct {
		Partition int32  `json:"kafka_partition"`
		Offset    int64  `json:"kafka_offset"`
		Source    string `json:"source"`
		ID        string `json:"event_id"`
	} `json:"entries"`
	Kept []struct {
		Reason string `json:"reason"`
	} `json:"kept"`
}

func (w *world) lookup(code int, args ...string) (a looked) {
	w.t.Helper()
	cmd := exec.Command(shared.binary, append([]string{"lookup", "--json", "--config", w.configFor([]string{"lookup"})}, args...)...)
	cmd.Env = environ()
	out, err := cmd.Output()
	if got := cmd.ProcessState.ExitCode(); got != code {
		w.t.Fatalf("lookup %q: exit code %d, want %d: %v, %s", args, got, code, err, out)
	}
	if len(out) > 0 {
		if err := json.Unmarshal(out, &a); err != nil {
			w.t.Fatalf("lookup %q: %v: %s", args, err, out)
		}
	}
	return a
}

// Whatever place of a partition is asked for, the answer is what its epoch has
// counted: each message has its outcome, and all other offsets have no message.
func TestLookup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	service := w.run("")
	load := w.startProduce(strings.Fields("--count 90 --accounts 20 --duplicates 0.3 --bad 0.2 --transactions 9 --aborted 0.4 --seed 12")...)
	load.answer()
	w.mustVerifyAnswer(load.out.Bytes())
	service.stop()

	var want, got [4]int64
	var decided, records int64
	if err := w.shards[0].QueryRow("SELECT SUM(applied), SUM(duplicates), SUM(conflicts), SUM(rejected), SUM(records_in), MAX(offset_next) FROM billing_epoch").
		Scan(&want[0], &want[1], &want[2], &want[3], &records, &decided); err != nil {
		t.Fatal(err)
	}
	next := endOf(t, w) // behind the last epoch, where a Kafka transaction's mark is the last
	counted := map[string]*int64{"applied": &got[0], "duplicate": &got[1], "conflict": &got[2], "rejected": &got[3]}
	var none int64
	for offset := range next {
		a := w.lookup(0, fmt.Sprint("0/", offset))
		if *a.Offset != offset {
			t.Fatalf("offset %d: %+v", offset, a)
		}
		if n := counted[a.Outcome]; n != nil {
			*n++
		} else if none++; a.Outcome != "no-message" {
			t.Errorf("offset %d: %+v", offset, a)
		}
		switch a.Outcome {
		case "applied":
			e := a.Entries[0]
			if by := w.lookup(0, "--source", e.Source, "--id", e.ID); by.Outcome != "applied" || len(by.Entries) != 1 || by.Entries[0] != e || e.Offset != offset {
				t.Errorf("offset %d: %+v, by its id %+v", offset, a, by)
			}
		case "duplicate":
			if e := a.Entries[0]; e.Offset >= offset || e.Source != a.Source || e.ID != a.ID {
				t.Errorf("offset %d: %+v", offset, a)
			}
		case "conflict", "rejected":
			if len(a.Kept) != 1 || len(a.Entries) != 0 {
				t.Errorf("offset %d: %+v", offset, a)
			}
		}
	}
	if got != want || none != next-records || want[1] == 0 || want[2] == 0 || want[3] == 0 || none == 0 {
		t.Errorf("found %v and %d places without a message; the epochs have %v in %d records up to %d of %d", got, none, want, records, decided, next)
	}

	if a := w.lookup(0, "--source", "/nobody", "--id", "1"); a.Outcome != "not-booked" {
		t.Errorf("%+v", a)
	}
	if a := w.lookup(0, fmt.Sprint("0/", next)); a.Outcome != "waiting" {
		t.Errorf("behind the end: %+v", a)
	}
	w.charge(0, 40) // of 16 accounts: each shard has some
	if a := w.lookup(0, fmt.Sprint("0/", next)); a.Outcome != "waiting" || a.Why != "not decided yet" {
		t.Errorf("a message that waits: %+v", a)
	}
	w.lookup(2, "7/0")
	w.lookup(2, "0")
	w.lookup(2, "0/1", "--id", "x")
	w.lookup(2, "--id", "x")

	// Dead before the decision: all is prepared, and nothing can be seen.
	w.run("all-prepared:1").mustDieAtFailpoint()
	if a := w.lookup(0, fmt.Sprint("0/", next)); a.Outcome != "in-doubt" || len(a.Entries) != 0 {
		t.Errorf("prepared on each shard: %+v", a)
	}

	// Dead between the two shards' XA COMMIT: the first shard's accounts are booked, the other's are not yet.
	w.run("some-committed:1").mustDieAtFailpoint()
	if err := w.shards[0].QueryRow("SELECT MAX(offset_next) FROM billing_epoch").Scan(&decided); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for offset := next; offset < decided; offset++ {
		var rows int
		if err := w.shards[0].QueryRow("SELECT COUNT(*) FROM billing_ledger WHERE kafka_offset = ?", offset).Scan(&rows); err != nil {
			t.Fatal(err)
		}
		want := "in-doubt"
		if rows > 0 {
			want = "applied"
		}
		seen[want]++
		if a := w.lookup(0, fmt.Sprint("0/", offset)); a.Outcome != want || len(a.Entries) != rows {
			t.Errorf("offset %d, %d rows on the first shard: want %s: %+v", offset, rows, want, a)
		}
	}
	if seen["in-doubt"] == 0 || seen["applied"] == 0 {
		t.Errorf("not both kinds in the offsets %d to %d: %v", next, decided, seen)
	}
	service = w.run("")
	servers.Eventually(t, 2*time.Minute, func() error {
		if a := w.lookup(0, fmt.Sprint("0/", next)); a.Outcome != "applied" {
			return fmt.Errorf("%+v", a)
		}
		return nil
	})
	service.stop()

	// What only Kafka can say is not guessed at without it.
	w.edit("brokers: [", "brokers: [\"127.0.0.1:1\"] #")
	a := w.lookup(0, fmt.Sprint("0/", next))
	if a.Outcome != "applied" {
		t.Errorf("booked, without Kafka: %+v", a)
	}
	w.lookup(4, fmt.Sprint("0/", next+45))
}
