package e2e

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// messageCases is the same file that the decoder is tested with.
const messageCases = "../../internal/event/testdata/messages.jsonl"

type messageCase struct {
	Name     string
	Why      string
	Now      time.Time
	Needs    string
	Messages []caseMessage
	Expect   []caseOutcome
	Totals   *[]caseTotal
}

type caseMessage struct {
	Headers [][2]string
	Key     *string
	Value   *string
	B64     *string `json:"value_b64"`
	Repeat  []any
	Count   int
}

type caseOutcome struct {
	Outcome string
	Reason  []string
	Count   int
}

type caseTotal struct {
	Account, Currency, Net string
	WindowStart            time.Time `json:"window_start"`
	Entries                *int64
}

func readCases(t *testing.T) []messageCase {
	t.Helper()
	f, err := os.Open(messageCases)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var cases []messageCase
	in := bufio.NewScanner(f)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var c messageCase
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			t.Fatalf("line %d: %v", len(cases)+1, err)
		}
		cases = append(cases, c)
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 80 {
		t.Fatalf("only %d cases", len(cases))
	}
	return cases
}

// values gives the record's value for each of its copies; nil is a null value.
func (m *caseMessage) values(t *testing.T, shift func(string) string) [][]byte {
	t.Helper()
	n := max(m.Count, 1)
	out := make([][]byte, n)
	for i := range out {
		switch {
		case m.B64 != nil:
			b, err := base64.StdEncoding.DecodeString(*m.B64)
			if err != nil {
				t.Fatal(err)
			}
			out[i] = []byte(shift(string(b)))
		case m.Value != nil:
			v := shift(*m.Value)
			if len(m.Repeat) == 3 {
				v = strings.ReplaceAll(v, m.Repeat[0].(string), strings.Repeat(m.Repeat[1].(string), int(m.Repeat[2].(float64))))
			}
			out[i] = []byte(strings.ReplaceAll(v, "@i@", strconv.Itoa(i)))
		}
	}
	return out
}

// shiftDates moves every date of the text by whole days. The year 2000 to 2100
// and the form stay what they were.
func shiftDates(days int) func(string) string {
	return func(s string) string {
		b := []byte(s)
		for i := 0; i+10 <= len(b); i++ {
			if i > 0 && b[i-1] >= '0' && b[i-1] <= '9' {
				continue
			}
			d, err := time.Parse("2006-01-02", string(b[i:i+10]))
			if err != nil || d.Year() < 2020 || d.Year() > 2050 {
				continue
			}
			copy(b[i:], d.AddDate(0, 0, days).Format("2006-01-02"))
			i += 9
		}
		return string(b)
	}
}

// TestMessageCases sends every case through the real pipeline: one topic, one
// partition a case, so a fresh lane each.
func TestMessageCases(t *testing.T) {
	t.Parallel()
	cases := readCases(t)
	w := newWorld(t, 2, withPartitions(int32(len(cases))))

	type sentRecord struct {
		offset int64
		want   caseOutcome
	}
	sent := make([][]sentRecord, len(cases))
	days := make([]int, len(cases))
	for p, c := range cases {
		// The cases' clock is moved to the last moment of the same time of day.
		days[p] = int(time.Since(c.Now) / (24 * time.Hour))
		if time.Since(c.Now) < 0 {
			days[p]--
		}
		shift := shiftDates(days[p])
		var want []caseOutcome
		for _, e := range c.Expect {
			if c.Needs == "corrections" && slices.ContainsFunc(c.Messages, isCorrection) {
				break
			}
			for range max(e.Count, 1) {
				want = append(want, e)
			}
		}
		var records []*kgo.Record
		for i, m := range c.Messages {
			for _, value := range m.values(t, shift) {
				r := &kgo.Record{Partition: int32(p), Value: value}
				for _, h := range m.Headers {
					r.Headers = append(r.Headers, kgo.RecordHeader{Key: h[0], Value: []byte(shift(h[1]))})
				}
				if m.Key != nil {
					r.Key = []byte(*m.Key)
				}
				records = append(records, r)
				if c.Needs == "corrections" {
					var e caseOutcome
					if isCorrection(m) {
						e = caseOutcome{Outcome: "rejected", Reason: []string{"unknown_type"}}
					} else {
						e = c.Expect[i]
					}
					want = append(want, e)
				}
			}
		}
		if len(want) != len(records) {
			t.Fatalf("%s: %d records, %d expectations", c.Name, len(records), len(want))
		}
		w.produce(records...)
		for i, r := range records {
			sent[p] = append(sent[p], sentRecord{r.Offset, want[i]})
		}
	}

	s := w.run("")
	w.waitAccounted()
	s.stop()

	for p, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			got := w.outcomes(t, int32(p))
			counts := map[string]int64{}
			for i, r := range sent[p] {
				counts[r.want.Outcome]++
				g, ok := got[r.offset]
				if !ok {
					g = kept{outcome: "duplicate"} // neither in the ledger nor kept; the counts below prove it
				}
				if g.outcome != r.want.Outcome || (g.outcome == "rejected" && !slices.Contains(r.want.Reason, g.reason)) {
					t.Errorf("message %d (%s): got %s %s (%s), want %s %v", i, c.Why, g.outcome, g.reason, g.detail, r.want.Outcome, r.want.Reason)
				}
				delete(got, r.offset)
			}
			if len(got) > 0 {
				t.Errorf("rows for offsets that were not sent: %v", got)
			}
			w.compareCounts(t, int32(p), counts)
			if c.Totals != nil && c.Needs == "" {
				w.compareTotals(t, int32(p), *c.Totals, days[p])
			}
		})
	}
	for i, n := range w.prepared() {
		if n != 0 {
			t.Errorf("shard %d: %d branches left prepared", i, n)
		}
	}
}

func isCorrection(m caseMessage) bool {
	return m.Value != nil && (strings.Contains(*m.Value, ".correction.v1") || strings.Contains(*m.Value, ".reversal.v1"))
}

type kept struct{ outcome, reason, detail string }

// outcomes reads what became of each offset: a ledger row or a kept record.
func (w *world) outcomes(t *testing.T, partition int32) map[int64]kept {
	t.Helper()
	out := map[int64]kept{}
	add := func(offset int64, k kept) {
		if old, ok := out[offset]; ok {
			t.Errorf("offset %d has two outcomes: %v and %v", offset, old, k)
		}
		out[offset] = k
	}
	for _, db := range w.shards {
		rows, err := db.Query("SELECT kafka_offset FROM billing_ledger WHERE kafka_topic = ? AND kafka_partition = ?", w.topic, partition)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var offset int64
			if err := rows.Scan(&offset); err != nil {
				t.Fatal(err)
			}
			add(offset, kept{outcome: "applied"})
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		rejects, err := db.Query("SELECT kafka_offset, kind, reason, detail FROM billing_rejects WHERE kafka_topic = ? AND kafka_partition = ?", w.topic, partition)
		if err != nil {
			t.Fatal(err)
		}
		defer rejects.Close()
		for rejects.Next() {
			var offset int64
			var k kept
			if err := rejects.Scan(&offset, &k.outcome, &k.reason, &k.detail); err != nil {
				t.Fatal(err)
			}
			add(offset, k)
		}
		if err := rejects.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// compareCounts compares the epochs' own counts with the expected outcomes: what
// left no row is a duplicate only if it was counted as one.
func (w *world) compareCounts(t *testing.T, partition int32, want map[string]int64) {
	t.Helper()
	for i, db := range w.shards {
		var applied, duplicates, conflicts, rejected int64
		err := db.QueryRow("SELECT COALESCE(SUM(applied), 0), COALESCE(SUM(duplicates), 0), COALESCE(SUM(conflicts), 0), COALESCE(SUM(rejected), 0) FROM billing_epoch WHERE kafka_topic = ? AND kafka_partition = ?",
			w.topic, partition).Scan(&applied, &duplicates, &conflicts, &rejected)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int64{"applied": applied, "duplicate": duplicates, "conflict": conflicts, "rejected": rejected}
		for outcome, n := range got {
			if n != want[outcome] {
				t.Errorf("shard %d: %d records %s, want %d", i, n, outcome, want[outcome])
			}
		}
	}
}

// compareTotals compares all totals of the lane.
func (w *world) compareTotals(t *testing.T, partition int32, want []caseTotal, days int) {
	t.Helper()
	type key struct{ account, currency, window string }
	got := map[key]string{}
	entries := map[key]int64{}
	for _, db := range w.shards {
		rows, err := db.Query("SELECT account_id, currency, DATE_FORMAT(window_start, '%Y-%m-%dT%H:%i:%sZ'), CAST(SUM(charge_amount + credit_amount) AS CHAR), SUM(entry_count) FROM billing_total WHERE kafka_topic = ? AND kafka_partition = ? GROUP BY 1, 2, 3", w.topic, partition)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var k key
			var net string
			var n int64
			if err := rows.Scan(&k.account, &k.currency, &k.window, &net, &n); err != nil {
				t.Fatal(err)
			}
			got[k], entries[k] = net, n
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range want {
		k := key{x.Account, x.Currency, x.WindowStart.AddDate(0, 0, days).UTC().Format("2006-01-02T15:04:05Z")}
		a, okA := new(big.Rat).SetString(got[k])
		b, okB := new(big.Rat).SetString(x.Net)
		if !okA || !okB || a.Cmp(b) != 0 {
			t.Errorf("total %v: got %q, want %s", k, got[k], x.Net)
		}
		if x.Entries != nil && entries[k] != *x.Entries {
			t.Errorf("total %v: %d entries, want %d", k, entries[k], *x.Entries)
		}
		delete(got, k)
	}
	for k, net := range got {
		t.Errorf("a total that nobody expects: %v = %s", k, net)
	}
}
