package e2e

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"billing/test/servers"
)

// TestProduce writes loads by the command while the service works and is killed,
// and holds the command's answer against the tables, by SQL alone.
func TestProduce(t *testing.T) {
	everything := [][2]string{
		{"com.example.billing.", `usage."metered"/é.`}, {"[USD, EUR, JPY, KWD, KRW, IRR]", "[TOKENS]\n  amount_as_number: true"},
		{"admin:", "dedup:\n  lateness: 2d\n  skew: 0s\naggregate:\n  window: 15m\nledger:\n  enabled: false\nadmin:"},
	}
	for name, c := range map[string]struct {
		partitions int32
		edits      [][2]string // of the configuration
		args       string
	}{
		"plain":                        {3, nil, "--count 12000 --rate 3000 --duplicates 0.2 --bad 0.05 --seed 1"},
		"few hot accounts":             {1, nil, "--count 8000 --rate 2000 --accounts 5000 --skew 0.7 --seed 2"},
		"transactions":                 {4, nil, "--count 12000 --rate 3000 --transactions 150 --aborted 0.4 --bad 0.1 --seed 3"},
		"another configuration":        {2, everything, "--count 8000 --rate 2000 --duplicates 0.2 --bad 0.2 --seed 4"},
		"another one, in transactions": {3, everything, "--count 8000 --rate 2000 --aborted 0.5 --transactions 100 --duplicates 0.2 --bad 0.2 --seed -5"},
		// Ids are forgotten all the time.
		"lateness of seconds": {2, [][2]string{{"admin:", "dedup:\n  lateness: 2s\n  skew: 1s\naggregate:\n  window: 1d\nadmin:"}}, "--count 8000 --rate 1000 --duplicates 0.3 --bad 0.1 --seed 6"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Epochs so small that it dies long before the last one.
			w := newWorld(t, 2, withPartitions(c.partitions), withCheckpoint("max_records: 500"))
			for _, e := range c.edits {
				w.edit(e[0], e[1])
			}
			service := w.run("some-committed:6")
			load := w.startProduce(strings.Fields(c.args)...)
			service.mustDieAtFailpoint()
			service = w.run("")
			answer := load.answer()
			if fmt.Sprint("--count ", answer.Messages) != strings.Join(strings.Fields(c.args)[:2], " ") || answer.Interrupted || answer.Partitions != c.partitions {
				t.Errorf("%+v", answer.head)
			}
			if strings.Contains(c.args, "--aborted") && (answer.Aborted < 10 || answer.AbortedMessages < 500 || answer.Transactions < 50) {
				t.Errorf("%+v", answer.head)
			}
			w.sent = answer.Messages
			w.mustVerifyAnswer(load.out.Bytes()) // which waits until it is booked
			w.waitAccounted()
			service.stop()
			w.mustBe(answer, !strings.Contains(fmt.Sprint(c.edits), "ledger"))
		})
	}
}

// A load that a signal ends has an answer for what was written by then.
func TestProduceInterrupted(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"--rate 400", "--rate 400 --transactions 30 --aborted 0.5"} {
		w := newWorld(t, 2, withPartitions(2))
		service := w.run("")
		load := w.startProduce(strings.Fields("--count 10000000 --bad 0.1 " + args)...)
		servers.Eventually(t, 2*time.Minute, func() error {
			n, err := w.accounted()
			if err == nil && n < 500 {
				err = fmt.Errorf("%d messages are accounted for", n)
			}
			return err
		})
		load.signal(syscall.SIGTERM)
		answer := load.answer()
		if !answer.Interrupted || answer.Messages < 500 {
			t.Errorf("%+v", answer.head)
		}
		w.sent = answer.Messages
		w.waitAccounted()
		service.stop()
		w.mustBe(answer, true)
	}
}

// produced is the answer of `billing produce`, as its help describes it.
type produced struct {
	head
	Totals []bookedTotal `json:"totals"`
}

type head struct {
	Messages int64 `json:"messages"`
	Outcomes struct {
		Applied   int64 `json:"applied"`
		Duplicate int64 `json:"duplicate"`
		Conflict  int64 `json:"conflict"`
		Rejected  int64 `json:"rejected"`
	} `json:"outcomes"`
	Reasons         map[string]int64 `json:"reasons"`
	Transactions    int64            `json:"transactions"`
	Aborted         int64            `json:"aborted"`
	AbortedMessages int64            `json:"aborted_messages"`
	Topic           string           `json:"topic"`
	Partitions      int32            `json:"partitions"`
	Interrupted     bool             `json:"interrupted"`
}

// bookedTotal is a row of billing_totals.
type bookedTotal struct {
	bookedKey
	Charge   string `json:"charge_amount"`
	Credit   string `json:"credit_amount"`
	Net      string `json:"net_amount"`
	Quantity string `json:"quantity"`
	Entries  int64  `json:"entry_count"`
}

type bookedKey struct {
	Tenant   string `json:"tenant_id"`
	Account  string `json:"account_id"`
	SKU      string `json:"sku"`
	Unit     string `json:"unit"`
	Currency string `json:"currency"`
	Window   string `json:"window_start"`
	Period   string `json:"booked_period"`
}

// producing is the command at work.
type producing struct {
	t           *testing.T
	cmd         *exec.Cmd
	out, errOut bytes.Buffer // whole when done is closed
	done        chan struct{}
	err         error
}

// startProduce starts `billing produce`, whose two outputs matter by themselves.
func (w *world) startProduce(args ...string) *producing {
	w.t.Helper()
	p := &producing{t: w.t, done: make(chan struct{})}
	p.cmd = exec.Command(shared.binary, append([]string{"produce", "--config", w.config}, args...)...)
	p.cmd.Env = environ()
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.errOut
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	w.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

func (p *producing) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *producing) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// answer waits for the end, which is a good one.
func (p *producing) answer() (a produced) {
	p.t.Helper()
	servers.Eventually(p.t, 5*time.Minute, func() error {
		if !p.ended() {
			return fmt.Errorf("the load is not written")
		}
		return nil
	})
	said := regexp.MustCompile(`(?m)^produce: \d+ of \d+ messages written, \d+ a second$\n`).ReplaceAllString(p.errOut.String(), "") // by a slow machine
	if p.err != nil || said != "" {
		p.t.Fatalf("billing produce: %v: %s", p.err, p.errOut.String())
	}
	if err := json.Unmarshal(p.out.Bytes(), &a); err != nil {
		p.t.Fatalf("billing produce: %v: %s", err, p.out.String())
	}
	return a
}

// mustBe fails unless the tables are what the answer says, in every row and
// column, and nothing else is in them.
func (w *world) mustBe(a produced, ledger bool) {
	w.t.Helper()
	if sum := a.Outcomes.Applied + a.Outcomes.Duplicate + a.Outcomes.Conflict + a.Outcomes.Rejected; sum != a.Messages || len(a.Totals) == 0 {
		w.t.Errorf("%d messages, outcomes of %d, %d totals", a.Messages, sum, len(a.Totals))
	}
	for i, db := range w.shards {
		found := a.Outcomes
		if err := db.QueryRow("SELECT SUM(applied), SUM(duplicates), SUM(conflicts), SUM(rejected) FROM billing_epoch").
			Scan(&found.Applied, &found.Duplicate, &found.Conflict, &found.Rejected); err != nil {
			w.t.Fatal(err)
		}
		if found != a.Outcomes {
			w.t.Errorf("shard %d: outcomes %+v, produced %+v", i, found, a.Outcomes)
		}
	}

	kept := map[string]int64{}
	var entries int64
	totals := map[bookedKey]bookedTotal{}
	for _, db := range w.shards {
		each(w.t, db, "SELECT IF(kind = 'conflict', kind, reason), COUNT(*) FROM billing_rejects GROUP BY 1", func(rows *sql.Rows) error {
			var what string
			var n int64
			err := rows.Scan(&what, &n)
			kept[what] += n
			return err
		})
		each(w.t, db, "SELECT COUNT(*) FROM billing_ledger", func(rows *sql.Rows) error {
			var n int64
			err := rows.Scan(&n)
			entries += n
			return err
		})
		each(w.t, db, `SELECT tenant_id, account_id, sku, unit, currency, CAST(window_start AS CHAR), booked_period,
			CAST(charge_amount AS CHAR), CAST(credit_amount AS CHAR), CAST(net_amount AS CHAR), CAST(quantity AS CHAR), entry_count FROM billing_totals`,
			func(rows *sql.Rows) error {
				var r bookedTotal
				k := &r.bookedKey
				err := rows.Scan(&k.Tenant, &k.Account, &k.SKU, &k.Unit, &k.Currency, &k.Window, &k.Period, &r.Charge, &r.Credit, &r.Net, &r.Quantity, &r.Entries)
				if other, twice := totals[*k]; twice { // an account is on one shard
					w.t.Errorf("two shards have %+v and %+v", other, r)
				}
				totals[*k] = r
				return err
			})
	}
	want := maps.Clone(a.Reasons)
	if a.Outcomes.Conflict > 0 {
		want["conflict"] = a.Outcomes.Conflict
	}
	if !maps.Equal(kept, want) {
		w.t.Errorf("kept %v, produced %v", kept, want)
	}
	if wantEntries := map[bool]int64{true: a.Outcomes.Applied}[ledger]; entries != wantEntries {
		w.t.Errorf("%d rows in the ledger, not %d", entries, wantEntries)
	}

	wrong := 0
	differ := func(format string, args ...any) {
		if wrong++; wrong <= 10 {
			w.t.Errorf("billing_totals: "+format, args...)
		}
	}
	for _, row := range a.Totals {
		if found, ok := totals[row.bookedKey]; !ok || found != row {
			differ("found %v %+v, produced %+v", ok, found, row)
		}
		delete(totals, row.bookedKey) // a row that the answer has twice has none the second time
	}
	for _, row := range totals {
		differ("a row too many: %+v", row)
	}
	if wrong > 10 {
		w.t.Errorf("billing_totals: %d differences", wrong)
	}
	for p := range w.partitions {
		w.epochs(p) // without a hole
	}
	w.t.Logf("%d totals of %d messages, %+v", len(a.Totals), a.Messages, a.head)
}

// each calls scan for every row of the answer.
func each(t *testing.T, db *sql.DB, query string, scan func(*sql.Rows) error) {
	t.Helper()
	rows, err := db.Query(query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			t.Fatal(err)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}
