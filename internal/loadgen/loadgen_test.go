package loadgen

import (
	"bytes"
	"encoding/json"
	"math"
	"math/big"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func testConfig() Config {
	return Config{
		Count: 6_000, Accounts: 300, Skew: 0.4, Duplicates: 0.2, Bad: 0.1, Seed: 7, Partitions: 4,
		Now: time.Date(2027, 3, 1, 0, 20, 30, 123456789, time.UTC), Lateness: 35 * day, Window: time.Hour,
		TypePrefix: "com.example.billing.", Currencies: []string{"USD", "EUR", "JPY"},
	}
}

func all(g *Generator) []Message {
	var messages []Message
	for {
		m, more := g.Next()
		if !more {
			return messages
		}
		messages = append(messages, m)
	}
}

func TestSameConfigSameLoad(t *testing.T) {
	one, two := New(testConfig()), New(testConfig())
	if !reflect.DeepEqual(all(one), all(two)) || !reflect.DeepEqual(one.Expected(), two.Expected()) {
		t.Error("the same configuration gave two loads")
	}
	cfg := testConfig()
	cfg.Seed++
	other := New(cfg)
	if reflect.DeepEqual(all(New(testConfig())), all(other)) || reflect.DeepEqual(one.Expected(), other.Expected()) {
		t.Error("another seed gave the same load")
	}
}

func TestExpectedIsWhatTheMessagesSay(t *testing.T) {
	other := testConfig()
	other.Seed, other.Window, other.TypePrefix, other.Currencies = -3, 15*time.Minute, "x.", []string{"KWD"}
	other.Accounts, other.Partitions, other.Skew, other.Now = 1, 1, 0, other.Now.In(time.FixedZone("", -8*3600))
	short := testConfig()
	short.Lateness, short.Rate = 2*time.Second, 20
	long := testConfig()
	long.Lateness, long.AmountAsNumber, long.Window = 3650*day, true, day
	none := testConfig()
	none.Duplicates, none.Bad = 0, 0
	onlyBad := testConfig()
	onlyBad.Duplicates, onlyBad.Bad = 0, 1
	for name, cfg := range map[string]Config{"usual": testConfig(), "other": other, "short": short, "long": long, "none": none, "onlyBad": onlyBad} {
		t.Run(name, func(t *testing.T) {
			g := New(cfg)
			counted := recount(t, g)
			same(t, g.Expected(), counted)
			sameSums(t, g.Currencies(), counted.Totals)
			if counted.Messages != int64(cfg.Count) {
				t.Fatalf("%d messages, not %d", counted.Messages, cfg.Count)
			}
			share := func(what string, n int64, want float64) {
				if got := float64(n) / float64(cfg.Count); math.Abs(got-want) > 0.03 {
					t.Errorf("share of %s is %.3f, not %.3f", what, got, want)
				}
			}
			share("repeats", counted.Outcomes.Duplicate+counted.Outcomes.Conflict, cfg.Duplicates)
			share("conflicts", counted.Outcomes.Conflict, cfg.Duplicates/10)
			share("bad messages", counted.Outcomes.Rejected, cfg.Bad)
		})
	}
}

// same fails unless both answers are the same.
func same(t *testing.T, expected, counted Expected) {
	t.Helper()
	if expected.Messages != counted.Messages || expected.Outcomes != counted.Outcomes || !reflect.DeepEqual(expected.Reasons, counted.Reasons) {
		t.Fatalf("expected %d, %+v %v\ncounted  %d, %+v %v", expected.Messages, expected.Outcomes, expected.Reasons, counted.Messages, counted.Outcomes, counted.Reasons)
	}
	if len(expected.Totals) != len(counted.Totals) {
		t.Fatalf("%d totals expected, %d counted", len(expected.Totals), len(counted.Totals))
	}
	for i := range expected.Totals {
		if expected.Totals[i] != counted.Totals[i] {
			t.Fatalf("expected %+v\ncounted  %+v", expected.Totals[i], counted.Totals[i])
		}
	}
}

// sameSums fails unless the sums of the currencies are those of the totals.
func sameSums(t *testing.T, sums map[string]CurrencySum, totals []Total) {
	t.Helper()
	added := map[string]*[3]big.Rat{}
	entries := map[string]int64{}
	for _, total := range totals {
		if added[total.Currency] == nil {
			added[total.Currency] = new([3]big.Rat)
		}
		for i, text := range []string{total.ChargeAmount, total.CreditAmount, total.NetAmount} {
			amount, ok := new(big.Rat).SetString(text)
			if !ok {
				t.Fatalf("%q is no number", text)
			}
			added[total.Currency][i].Add(&added[total.Currency][i], amount)
		}
		entries[total.Currency] += total.EntryCount
	}
	if len(sums) != len(added) {
		t.Errorf("sums of %d currencies, not %d", len(sums), len(added))
	}
	for currency, s := range added {
		want := CurrencySum{s[0].FloatString(12), s[1].FloatString(12), s[2].FloatString(12), entries[currency]}
		if sums[currency] != want {
			t.Errorf("%s is %+v, the totals add up to %+v", currency, sums[currency], want)
		}
	}
}

// A good message is spoiled in every way and form, and is then bad for that
// reason; what was spoiled was good before.
func TestEverySpoilingIsBad(t *testing.T) {
	for _, asNumber := range []bool{false, true} {
		cfg := testConfig()
		cfg.AmountAsNumber = asNumber
		g := New(cfg)
		all(g)
		for i, way := range spoilings {
			forms := map[form]int{}
			for range 60 {
				h, style := g.invent(), g.rng.Uint64()
				if _, reason := read(g.message(h, g.write(h, style)), cfg, g.clock); reason != "" {
					t.Fatalf("a good message is %s", reason)
				}
				d := g.write(h, style)
				forms[d.form]++
				way.spoil(g.spoiler(h), d)
				m := g.message(h, d)
				r, reason := read(m, cfg, g.clock.Add(day))
				if reason == "" && r.at.Before(g.oldest(m.Partition)) {
					reason = "too_old"
				}
				if reason != way.reason {
					t.Fatalf("spoiling %d, which is to be %s, is %q: %s %q", i, way.reason, reason, m.Headers, m.Value)
				}
			}
			if len(forms) != 3 {
				t.Errorf("spoiling %d was tried on %d forms", i, len(forms))
			}
		}
	}
}

func TestRepeats(t *testing.T) {
	cfg := testConfig()
	type place struct {
		at      int
		message Message
	}
	first := map[string]place{}
	var near, far, exact, rewritten, rebodied int
	for i, m := range all(New(cfg)) {
		r, reason := read(m, cfg, cfg.Now)
		if reason != "" || r.at.Before(cfg.Now.Add(-cfg.Lateness)) {
			continue
		}
		id := r.source + "\x00" + r.id
		was, known := first[id]
		if !known {
			first[id] = place{i, m}
			continue
		}
		if was.message.Partition != m.Partition || !bytes.Equal(was.message.Key, m.Key) {
			t.Fatal("a repeat went to another partition than its original")
		}
		if i-was.at < 60 {
			near++
		}
		if i-was.at > 2000 {
			far++
		}
		if reflect.DeepEqual(was.message, m) {
			exact++
		} else if other, _ := read(was.message, cfg, cfg.Now); other.content() == r.content() {
			rewritten++
			if len(was.message.Headers) != len(m.Headers) {
				rebodied++
			}
		}
	}
	for what, n := range map[string]int{"near": near, "far": far, "exact": exact, "rewritten": rewritten, "in another mode": rebodied} {
		if n < 50 {
			t.Errorf("only %d repeats are %s", n, what)
		}
	}
}

func TestHottestAccounts(t *testing.T) {
	cfg := testConfig()
	cfg.Accounts, cfg.Skew = 200, 0.8
	perAccount := map[string]int{}
	partitions := map[int32]bool{}
	for _, m := range all(New(cfg)) {
		perAccount[string(m.Key)]++
		partitions[m.Partition] = true
	}
	var counts []int
	for _, n := range perAccount {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	hottest := 0
	for _, n := range counts[len(counts)-2:] {
		hottest += n
	}
	if share := float64(hottest) / float64(cfg.Count); math.Abs(share-0.8) > 0.05 {
		t.Errorf("the two hottest of 200 accounts have %.2f of the messages, not 0.8", share)
	}
	if len(perAccount) < 190 || len(partitions) != 4 {
		t.Errorf("%d accounts in %d partitions", len(perAccount), len(partitions))
	}
}

func TestExpectedAsJSON(t *testing.T) {
	cfg := testConfig()
	cfg.Count = 0
	b, err := json.Marshal(New(cfg).Expected())
	want := `{"messages":0,"outcomes":{"applied":0,"duplicate":0,"conflict":0,"rejected":0},"reasons":{},"totals":[]}`
	if err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
	names := map[string]any{}
	b, _ = json.Marshal(Total{})
	if err := json.Unmarshal(b, &names); err != nil {
		t.Fatal(err)
	}
	for _, column := range strings.Fields("tenant_id account_id sku unit currency window_start booked_period charge_amount credit_amount net_amount quantity entry_count") {
		if _, found := names[column]; !found {
			t.Errorf("a total has no %s", column)
		}
		delete(names, column)
	}
	if len(names) > 0 {
		t.Errorf("a total has %v, which is no column of the view", names)
	}
}

func TestCheckNamesEveryProblem(t *testing.T) {
	if err := testConfig().Check(); err != nil {
		t.Fatal(err)
	}
	err := Config{Count: -1, Skew: math.NaN(), Duplicates: 0.7, Bad: 0.7, Rate: math.NaN(), Window: 7 * time.Hour}.Check()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, name := range []string{"count", "accounts", "skew", "together", "partitions", "now", "rate", "lateness", "window", "type prefix", "currencies"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("nothing about %s in %v", name, err)
		}
	}
	for name, change := range map[string]func(*Config){
		"takes 32 years":  func(c *Config) { c.Count, c.Rate = 1_000_000_000, 1 },
		"rate is -1":      func(c *Config) { c.Rate = -1 },
		"rate is +Inf":    func(c *Config) { c.Rate = math.Inf(1) },
		"time since 2001": func(c *Config) { c.Lateness = 27 * 365 * day },
		"2001 to 2079":    func(c *Config) { c.Now = c.Now.AddDate(60, 0, 0) },
	} {
		c := testConfig()
		change(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("want %q, got %v", name, err)
		}
	}
}

func BenchmarkNext(b *testing.B) {
	cfg := testConfig()
	cfg.Count = math.MaxInt
	g := New(cfg)
	b.ReportAllocs()
	for b.Loop() {
		g.Next()
	}
}

// The order of styles must not matter: a style alone decides how a message is
// written.
func TestStyleAloneDecides(t *testing.T) {
	cfg := testConfig()
	cfg.AmountAsNumber = true
	g := New(cfg)
	h := g.invent()
	styles := rand.New(rand.NewPCG(1, 2))
	seen := map[string]bool{}
	for range 50 {
		style := styles.Uint64()
		one, two := g.message(h, g.write(h, style)), g.message(h, g.write(h, style))
		if !reflect.DeepEqual(one, two) {
			t.Fatal("one style, two messages")
		}
		seen[string(one.Value)] = true
	}
	if len(seen) < 20 {
		t.Errorf("50 styles gave only %d different values", len(seen))
	}
}
