package main

import (
	"maps"
	"slices"
)

// report is everything that is known at the end; --json writes it as it is.
type report struct {
	Exact    bool     `json:"exact"` // ours is exact, and the plain loop is not
	MySQL    string   `json:"mysql"`
	Broker   string   `json:"broker"`
	Expected expected `json:"expected"`
	Plain    result   `json:"plain_loop"`
	Ours     result   `json:"ours"`
	Verify   *verdict `json:"verify"`
}

// expected is the load's answer in short.
type expected struct {
	Messages  int64            `json:"messages"`
	Seed      int64            `json:"seed"`
	Entries   int64            `json:"entries"`
	Repeats   int64            `json:"repeats"`
	Conflicts int64            `json:"conflicts"`
	Rejected  int64            `json:"rejected"`
	Reasons   map[string]int64 `json:"reasons"`
	Totals    int64            `json:"totals"`
	Money     []funds          `json:"money"`
}

// result is a contender's part.
type result struct {
	books
	Kills   []caught `json:"kills"`
	Seconds float64  `json:"seconds"` // from the first start until all messages were accounted for, kills included
	Rate    float64  `json:"messages_per_second"`
}

// verdict is what billing verify says of ours.
type verdict struct {
	OK          bool    `json:"ok"`
	Differences int     `json:"differences"`
	Seconds     float64 `json:"seconds"`
}

func expect(a *answer) (expected, error) {
	e := expected{
		Messages: a.Messages, Seed: a.Seed, Entries: a.Outcomes.Applied, Repeats: a.Outcomes.Duplicate,
		Conflicts: a.Outcomes.Conflict, Rejected: a.Outcomes.Rejected, Reasons: a.Reasons, Totals: int64(len(a.Totals)),
	}
	sums, err := a.sums()
	for _, currency := range slices.Sorted(maps.Keys(sums)) {
		s := sums[currency]
		e.Money = append(e.Money, funds{Currency: currency, Charges: fixed(s.charge), Credits: fixed(s.credit), Net: fixed(s.net())})
	}
	return e, err
}

// oursExact says whether the service was right in every respect.
func (r *report) oursExact() bool { return r.Ours.Exact && r.Verify.OK }

// judge decides whether the demo has shown what it says.
func (r *report) judge() { r.Exact = r.oursExact() && !r.Plain.Exact }
