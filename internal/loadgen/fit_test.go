package loadgen

import (
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// recount makes all messages, finds out what must come of them by reading them,
// and fails at the first one that is not what the generator means it to be.
func recount(t *testing.T, g *Generator) Expected {
	t.Helper()
	type key struct{ account, sku, unit, currency, window, period string }
	type sum struct {
		charge, credit, quantity big.Rat
		entries                  int64
	}
	sums := map[key]*sum{}
	e := Expected{Reasons: map[string]int64{}}
	v := newVerdicts(g.cfg)
	for {
		was, reasons := g.Outcomes(), g.Reasons()
		clock := g.cfg.Now.Add(g.Due())
		m, more := g.Next()
		if !more {
			break
		}
		r, outcome := v.take(t, m, clock)
		e.Messages++
		switch outcome {
		case "applied":
			e.Outcomes.Applied++
		case "duplicate":
			e.Outcomes.Duplicate++
		case "conflict":
			e.Outcomes.Conflict++
		default:
			e.Outcomes.Rejected++
			e.Reasons[outcome]++
			reasons[outcome]++
		}
		is, meant := e.Outcomes, g.Outcomes()
		if is != meant || !reflect.DeepEqual(reasons, g.Reasons()) {
			t.Fatalf("%+v, message %d of %s is %s; before it %+v, after it %+v %v: %s %q",
				g.cfg, e.Messages, r.account, outcome, was, meant, g.Reasons(), m.Headers, m.Value)
		}
		if outcome != "applied" {
			continue
		}
		seconds := r.at.Unix()
		k := key{r.account, r.sku, r.unit, r.currency,
			time.Unix(seconds-seconds%int64(g.cfg.Window.Seconds()), 0).UTC().Format("2006-01-02 15:04:05"),
			strings.Join(strings.Split(r.at.Format("2006-01-02"), "-")[:2], "-")}
		s := sums[k]
		if s == nil {
			s = new(sum)
			sums[k] = s
		}
		s.entries++
		if r.kind == "charge" {
			s.charge.Add(&s.charge, r.amount)
			s.quantity.Add(&s.quantity, r.quantity)
		} else {
			s.credit.Add(&s.credit, r.amount)
			s.quantity.Sub(&s.quantity, r.quantity)
		}
	}
	for k, s := range sums {
		e.Totals = append(e.Totals, Total{"default", k.account, k.sku, k.unit, k.currency, k.window, k.period,
			s.charge.FloatString(12), s.credit.FloatString(12), new(big.Rat).Add(&s.charge, &s.credit).FloatString(12),
			s.quantity.FloatString(12), s.entries})
	}
	slices.SortFunc(e.Totals, func(a, b Total) int {
		return slices.Compare(
			[]string{a.AccountID, a.SKU, a.Unit, a.Currency, a.WindowStart, a.BookedPeriod},
			[]string{b.AccountID, b.SKU, b.Unit, b.Currency, b.WindowStart, b.BookedPeriod})
	})
	return e
}

// verdicts are the naive reader's, who remembers everything.
type verdicts struct {
	cfg    Config
	first  map[[3]string]string // content by partition, source and id
	newest map[int32]time.Time

	oldest  int // good events that are exactly as old as may be
	justOld int // bad ones that are too old by a microsecond
	numbers int // good events with a number for an amount
}

func newVerdicts(cfg Config) *verdicts {
	cfg.Lateness -= cfg.Lateness % time.Microsecond // as times are
	return &verdicts{cfg: cfg, first: map[[3]string]string{}, newest: map[int32]time.Time{}}
}

// take gives the outcome, or the reason for which a message is rejected. clock is
// when it is written; it may be read at once, by a service that takes nothing of
// the future, or years later by one that takes a day of it.
func (v *verdicts) take(t *testing.T, m Message, clock time.Time) (reading, string) {
	t.Helper()
	r, reason := read(m, v.cfg, clock)
	if reason == "in_future" && !r.at.After(clock.AddDate(9, 0, 1)) {
		t.Fatalf("in the future now, but not for a late reader: %q", m.Value)
	}
	newest, any := v.newest[m.Partition]
	age := newest.Sub(r.at)
	if reason == "" && any && age > v.cfg.Lateness {
		reason = "too_old"
		if age == v.cfg.Lateness+time.Microsecond {
			v.justOld++
		}
	}
	if reason != "" {
		return r, reason
	}
	id := [3]string{fmt.Sprint(m.Partition), r.source, r.id}
	if was, known := v.first[id]; known {
		if was == r.content() {
			return r, "duplicate"
		}
		return r, "conflict"
	}
	v.first[id] = r.content()
	if age == v.cfg.Lateness {
		v.oldest++
	}
	if !strings.Contains(string(m.Value), `"`+r.literal+`"`) {
		v.numbers++
	}
	if !any || r.at.After(newest) {
		v.newest[m.Partition] = r.at
	}
	return r, "applied"
}

// randomConfig is one that a configuration of the service may lead to.
func randomConfig(rng *rand.Rand) Config {
	between := func(low, high int) int { return low + rng.IntN(high-low+1) }
	text := func(runes string, n int) string {
		from := []rune(runes)
		var b strings.Builder
		for b.Len() < n {
			b.WriteRune(from[rng.IntN(len(from))])
		}
		return b.String()
	}
	c := Config{
		Count: 600, Accounts: between(1, 40), Skew: rng.Float64(), Duplicates: rng.Float64() / 2, Bad: rng.Float64() / 2,
		Seed: int64(rng.Uint64()), Partitions: int32(between(1, 5)),
		Now:            time.Unix(int64(between(1_750_000_000, 2_000_000_000)), int64(rng.IntN(1e9))),
		Window:         time.Second,
		TypePrefix:     text("abcXYZ019-_.\"\\/é租\U0001f4b6\u2028|", between(1, 235)) + ".",
		AmountAsNumber: rng.IntN(2) == 0,
	}
	for _, prime := range []int{2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 5, 5} { // of a day's seconds
		if rng.IntN(2) == 0 {
			c.Window *= time.Duration(prime)
		}
	}
	// As many short ones as long ones.
	c.Lateness = time.Second
	for range between(0, 27) {
		c.Lateness = min(2*c.Lateness+time.Duration(rng.IntN(2e9)), 3650*day)
	}
	if rng.IntN(2) == 0 {
		c.Rate = 1
		for range between(0, 35) {
			c.Rate *= 0.7
		}
		if rng.IntN(2) == 0 {
			c.Rate = 1 / c.Rate
		}
	}
	for range between(1, 4) {
		code := text("ABQX", 1) + text("ABQX019", between(2, 15))
		if rng.IntN(4) == 0 {
			code = "QX" + fmt.Sprint(rng.IntN(3)) // what is taken for one that is absent
		}
		if !slices.Contains(c.Currencies, code) {
			c.Currencies = append(c.Currencies, code)
		}
	}
	return c
}

// Whatever the service may be configured to, each message becomes what the
// generator says.
func TestEveryMessageFitsTheConfiguration(t *testing.T) {
	reasons := map[string]int64{}
	for seed := range uint64(80) {
		cfg := randomConfig(rand.New(rand.NewPCG(seed, 0)))
		if err := cfg.Check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		g := New(cfg)
		counted := recount(t, g)
		same(t, g.Expected(), counted)
		for reason, n := range counted.Reasons {
			reasons[reason] += n
		}
	}
	for _, way := range spoilings {
		if reasons[way.reason] < 30 {
			t.Errorf("%d messages were %s", reasons[way.reason], way.reason)
		}
	}
}

// The bounds themselves are tried: an event that is exactly as old as may be, one
// that is a microsecond older, and amounts that are numbers where they may be.
func TestLoadGoesToTheBounds(t *testing.T) {
	for _, lateness := range []time.Duration{time.Second, 2 * day, 35 * day, 3650 * day} {
		for _, rate := range []float64{0, 50} {
			cfg := testConfig()
			cfg.Count, cfg.Bad, cfg.Lateness, cfg.Rate, cfg.AmountAsNumber = 2_500, 0.4, lateness, rate, true
			g, v := New(cfg), newVerdicts(cfg)
			for {
				clock := cfg.Now.Add(g.Due())
				m, more := g.Next()
				if !more {
					break
				}
				v.take(t, m, clock)
			}
			for what, n := range map[string]int{"as old as may be": v.oldest, "too old by a microsecond": v.justOld, "numbers": v.numbers} {
				if n < 3 {
					t.Errorf("lateness %s, rate %v: %d are %s", lateness, rate, n, what)
				}
			}
		}
	}
}

// Everyday's amounts are small and have two places; others go to the ends.
func TestEverydayAmounts(t *testing.T) {
	const places = "0000000000" // behind the second
	for everyday, want := range map[bool]bool{true: true, false: false} {
		cfg := testConfig()
		cfg.Count, cfg.Everyday = 5_000, everyday
		g := New(cfg)
		for _, more := g.Next(); more; _, more = g.Next() {
		}
		small := true
		for _, total := range g.Expected().Totals {
			for _, amount := range []string{total.ChargeAmount, total.CreditAmount, total.Quantity} {
				small = small && strings.HasSuffix(amount, places) && len(strings.TrimPrefix(amount, "-")) <= len("99999.00"+places)
			}
		}
		if small != want {
			t.Errorf("everyday %v: all amounts are small: %v", everyday, small)
		}
	}
}

// Started at another time, a load is the same but for its times.
func TestAnotherStart(t *testing.T) {
	for _, lateness := range []time.Duration{3 * time.Second, 3 * time.Hour, 35 * day} {
		for _, rate := range []float64{0, 0.5, 50} {
			cfg := testConfig()
			cfg.Count, cfg.Lateness, cfg.Rate, cfg.Now = 2_000, lateness, rate, cfg.Now.Truncate(cfg.Window)
			later := cfg
			later.Now = cfg.Now.Add(123 * 24 * time.Hour).Add(7 * time.Hour)
			one, two := New(cfg), New(later)
			for n := 1; ; n++ {
				if one.Due() != two.Due() {
					t.Fatalf("message %d is due after %s and %s", n, one.Due(), two.Due())
				}
				a, more := one.Next()
				b, _ := two.Next()
				if !more {
					break
				}
				if one.Outcomes() != two.Outcomes() || !maps.Equal(one.Reasons(), two.Reasons()) || string(a.Key) != string(b.Key) || a.Partition != b.Partition {
					t.Fatalf("message %d: %q %q and %q %q", n, a.Key, a.Value, b.Key, b.Value)
				}
				r, reason := read(a, cfg, one.clock)
				s, _ := read(b, later, two.clock)
				if reason != "" {
					continue
				}
				if !r.at.Add(later.Now.Sub(cfg.Now)).Equal(s.at) {
					t.Fatalf("message %d is of %s, and of %s", n, r.at, s.at)
				}
				s.at = r.at
				if r.content() != s.content() || r.id != s.id || r.source != s.source {
					t.Fatalf("message %d: %+v and %+v", n, r, s)
				}
			}
		}
	}
}

// Messages are due evenly, also less than one in a second.
func TestDue(t *testing.T) {
	for rate, micros := range map[float64]int{0: 0, 0.25: 4_000_000, 1: 1_000_000, 50_000: 20} {
		cfg := testConfig()
		cfg.Rate = rate
		g := New(cfg)
		for n := range 60 {
			if got := g.Due().Microseconds(); got != int64(n*micros) {
				t.Fatalf("rate %v: message %d is due after %d \u00b5s", rate, n, got)
			}
			g.Next()
		}
	}
}
