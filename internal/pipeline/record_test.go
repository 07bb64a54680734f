package pipeline

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"billing/internal/aggregate"
	"billing/internal/checkpoint"
	"billing/internal/dedup"
	"billing/internal/event"
)

// newTestWork is a lane's stream without a session: nothing is ever cut.
func newTestWork(now time.Time) *work {
	cfg := &Config{
		Lateness: 35 * 24 * time.Hour, Skew: 5 * time.Minute, Now: func() time.Time { return now },
		Decoder: event.Config{TypePrefix: "com.example.billing.", Currencies: []string{"USD", "EUR", "JPY", "KWD", "KRW", "IRR"}},
	}
	return &work{
		cfg: cfg, decoder: event.NewDecoder(cfg.Decoder), state: dedup.New(),
		epoch: aggregate.New(aggregate.Config{Topic: "in", Shards: 2, Window: time.Hour, Ledger: true}),
	}
}

func (w *work) takeAt(r *event.Record, now time.Time) error {
	w.decode([]event.Record{*r})
	return w.take(r, &w.ahead[0], now.Add(w.cfg.Skew).UnixMicro())
}

// outcomeOf takes one record and says what became of it, by the counts.
func outcomeOf(t *testing.T, w *work, r *event.Record, now time.Time) (outcome, reason string) {
	t.Helper()
	before := w.epoch.Counts
	if err := w.takeAt(r, now); err != nil {
		t.Fatal(err)
	}
	c := w.epoch.Counts
	if c.In != before.In+1 || c.In != c.Applied+c.Duplicates+c.Conflicts+c.Rejected {
		t.Fatalf("a record has not exactly one outcome: %+v after %+v", c, before)
	}
	switch {
	case c.Applied > before.Applied:
		return "applied", ""
	case c.Duplicates > before.Duplicates:
		return "duplicate", ""
	case c.Conflicts > before.Conflicts:
		outcome = "conflict"
	default:
		outcome = "rejected"
	}
	for _, p := range w.epoch.Parts {
		for _, x := range p.Rejects {
			if x.Offset == r.Offset {
				return outcome, x.Reason
			}
		}
	}
	t.Fatalf("offset %d is neither applied nor kept", r.Offset)
	return "", ""
}

type laneCase struct {
	Name, Why string
	Now       time.Time
	Needs     string
	Messages  []struct {
		Headers [][2]string
		Value   *string
		B64     *string `json:"value_b64"`
		Repeat  []any
		Count   int
	}
	Expect []struct {
		Outcome string
		Reason  []string
		Count   int
	}
	Totals *[]struct {
		Account, Currency, Net string
		WindowStart            time.Time `json:"window_start"`
		Entries                *int64
	}
}

// TestMessageCasesAtTheirClock runs every case of the decoder's test data as a
// fresh lane, by the clock that the case names.
func TestMessageCasesAtTheirClock(t *testing.T) {
	f, err := os.Open("../event/testdata/messages.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(nil, 16<<20)
	n := 0
	for in.Scan() {
		var c laneCase
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		n++
		t.Run(c.Name, func(t *testing.T) { c.run(t) })
	}
	if in.Err() != nil || n < 80 {
		t.Fatalf("%d cases read (%v)", n, in.Err())
	}
}

func (c *laneCase) run(t *testing.T) {
	w := newTestWork(c.Now)
	offset := int64(0)
	for i, m := range c.Messages {
		correction := m.Value != nil && (strings.Contains(*m.Value, ".correction.v1") || strings.Contains(*m.Value, ".reversal.v1"))
		for copies := range max(m.Count, 1) {
			r := &event.Record{Offset: offset}
			offset++
			for _, h := range m.Headers {
				r.Headers = append(r.Headers, event.Header{Key: h[0], Value: []byte(h[1])})
			}
			switch {
			case m.B64 != nil:
				if r.Value, _ = base64.StdEncoding.DecodeString(*m.B64); r.Value == nil {
					t.Fatal("not base64")
				}
			case m.Value != nil:
				v := *m.Value
				if len(m.Repeat) == 3 {
					v = strings.ReplaceAll(v, m.Repeat[0].(string), strings.Repeat(m.Repeat[1].(string), int(m.Repeat[2].(float64))))
				}
				r.Value = []byte(strings.ReplaceAll(v, "@i@", strconv.Itoa(copies)))
			}
			want, reasons := c.Expect[i].Outcome, c.Expect[i].Reason
			if correction {
				want, reasons = "rejected", []string{"unknown_type"}
			}
			got, reason := outcomeOf(t, w, r, c.Now)
			if got != want || (got == "rejected" && !slices.Contains(reasons, reason)) {
				t.Errorf("message %d (%s): got %s %s, want %s %v", i, c.Why, got, reason, want, reasons)
			}
		}
	}
	if c.Totals == nil || c.Needs != "" {
		return
	}
	totals := map[string]string{}
	entries := map[string]int64{}
	for _, p := range w.epoch.Parts {
		for k, x := range p.Totals.All() {
			net := x.Charge
			net.AddSum(x.Credit)
			key := k.Account + "\x00" + k.Currency + "\x00" + micros(k.WindowStart)
			totals[key], entries[key] = net.String(), x.Entries
		}
	}
	for _, x := range *c.Totals {
		key := x.Account + "\x00" + x.Currency + "\x00" + micros(x.WindowStart.UnixMicro())
		got, ok := new(big.Rat).SetString(totals[key])
		want, _ := new(big.Rat).SetString(x.Net)
		if !ok || got.Cmp(want) != 0 || (x.Entries != nil && entries[key] != *x.Entries) {
			t.Errorf("total %q: got %q with %d entries, want %s", key, totals[key], entries[key], x.Net)
		}
		delete(totals, key)
	}
	for key, net := range totals {
		t.Errorf("a total that nobody expects: %q = %s", key, net)
	}
}

func charge(offset int64, id string, at time.Time) *event.Record {
	return &event.Record{Offset: offset, Value: []byte(`{"specversion":"1.0","id":"` + id + `","source":"/s","type":"com.example.billing.charge.v1","subject":"a","time":"` +
		at.UTC().Format(time.RFC3339Nano) + `","data":{"amount":"1","currency":"USD"}}`)}
}

// TestFutureBySkew: exactly the skew ahead is allowed, a microsecond more is
// not, and what is refused does not move the stream time.
func TestFutureBySkew(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	w := newTestWork(now)
	if got, _ := outcomeOf(t, w, charge(0, "a", now.Add(5*time.Minute)), now); got != "applied" {
		t.Errorf("skew exactly: %s", got)
	}
	was := w.streamTime
	if got, reason := outcomeOf(t, w, charge(1, "b", now.Add(5*time.Minute+time.Microsecond)), now); got != "rejected" || reason != "in_future" {
		t.Errorf("a microsecond more: %s %s", got, reason)
	}
	if w.streamTime != was {
		t.Error("a refused event moved the stream time")
	}
}

// TestLatenessIsARule: the horizon counts for each record, from the largest
// event time applied, and raising the lateness does not bring back what was
// forgotten.
func TestLatenessIsARule(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	w := newTestWork(now)
	old := now.Add(-w.cfg.Lateness)
	for i, x := range []struct {
		id   string
		at   time.Time
		want string
	}{
		{"early", old.Add(-24 * time.Hour), "applied"}, // nothing newer was seen
		{"new", now, "applied"},
		{"early", old.Add(-24 * time.Hour), "rejected"}, // its id may be forgotten by now
		{"edge", old, "applied"},
		{"past", old.Add(-time.Microsecond), "rejected"},
		{"edge", old, "duplicate"},
	} {
		if got, reason := outcomeOf(t, w, charge(int64(i), x.id, x.at), now); got != x.want || (got == "rejected" && reason != "too_old") {
			t.Errorf("%s: got %s %s, want %s", x.id, got, reason, x.want)
		}
	}
	w.cfg.Lateness *= 2
	w.moveHorizon()
	if got, reason := outcomeOf(t, w, charge(10, "early", old.Add(-24*time.Hour)), now); got != "rejected" || reason != "too_old" {
		t.Errorf("after raising the lateness a forgotten id is %s %s", got, reason)
	}
}

// TestLedgerRowIsRemembered as long as the later one of its own time and that of the record that met it.
func TestLedgerRowIsRemembered(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 30, 0, 0, time.UTC)
	for _, apart := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		w := newTestWork(now)
		r := charge(7, "a", now)
		w.decode([]event.Record{*r})
		key := w.ahead[0].event.Key
		w.booked = map[[16]byte]checkpoint.ExistingRow{key: {Key: key, Offset: 3, Time: now.Add(apart).UnixMicro()}}
		if got, _ := outcomeOf(t, w, r, now); got != "conflict" {
			t.Errorf("a row %v apart: %s", apart, got)
		}
		later := max(now.UnixMicro(), now.Add(apart).UnixMicro())
		if first, known := w.state.Lookup(&key, later); !known || first.Offset != 3 {
			t.Errorf("a row %v apart, at the later time: %+v, %v", apart, first, known)
		}
	}
}

// TestOnlyAppliedMovesTheStreamTime: an id that is known brings no time with it,
// whatever its record says: what is as late as its first record is applied still.
func TestOnlyAppliedMovesTheStreamTime(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	old := now.Add(-3 * time.Hour)
	for _, again := range []string{"conflict", "duplicate"} {
		w := newTestWork(now)
		w.cfg.Lateness = time.Hour
		if got, _ := outcomeOf(t, w, charge(0, "first", old), now); got != "applied" {
			t.Fatalf("the first: %s", got)
		}
		a := charge(2, "a", now)
		if again == "conflict" {
			if got, _ := outcomeOf(t, w, charge(1, "a", old), now); got != "applied" {
				t.Fatalf("a: %s", got)
			}
		} else { // an id that only the ledger knew
			var e event.Event
			if rejection := w.decoder.Decode(a, &e); rejection != nil {
				t.Fatal(rejection)
			}
			w.state.Add(&e.Key, e.Content, 1, e.Time)
		}
		was, horizon := w.streamTime, w.forgottenBefore
		if got, _ := outcomeOf(t, w, a, now); got != again {
			t.Errorf("a again: %s, want %s", got, again)
		}
		if w.streamTime != was || w.forgottenBefore != horizon {
			t.Errorf("a %s moved the stream time from %s to %s", again, micros(was), micros(w.streamTime))
		}
		if got, reason := outcomeOf(t, w, charge(3, "b", old), now); got != "applied" {
			t.Errorf("b behind a %s: %s %s", again, got, reason)
		}
	}
}

// TestStateAheadOfStream: an entry at the record's own or a larger offset is a
// broken invariant, neither applied nor duplicate.
func TestStateAheadOfStream(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for _, first := range []int64{5, 6} {
		w := newTestWork(now)
		r := charge(5, "a", now)
		var e event.Event
		if rejection := w.decoder.Decode(r, &e); rejection != nil {
			t.Fatal(rejection)
		}
		w.state.Add(&e.Key, e.Content, first, e.Time)
		var broken *checkpoint.InvariantError
		if err := w.takeAt(r, now); !errors.As(err, &broken) {
			t.Errorf("entry at offset %d, record at 5: %v", first, err)
		}
		if w.epoch.Counts.In != 0 {
			t.Errorf("the record was counted: %+v", w.epoch.Counts)
		}
	}
}

// TestOffsetsOnlyGrow: a record that was taken already is never taken again.
func TestOffsetsOnlyGrow(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	w := newTestWork(now)
	if err := w.takeAt(charge(7, "a", now), now); err != nil {
		t.Fatal(err)
	}
	if err := w.takeAt(&event.Record{Offset: 8, Control: true}, now); err != nil || w.position != 9 || w.epoch.Counts.In != 1 {
		t.Errorf("control record: %v, position %d, in %d", err, w.position, w.epoch.Counts.In)
	}
	var broken *checkpoint.InvariantError
	if err := w.takeAt(charge(8, "b", now), now); !errors.As(err, &broken) {
		t.Errorf("offset 8 again: %v", err)
	}
}

func micros(us int64) string { return time.UnixMicro(us).UTC().Format(time.RFC3339Nano) }
