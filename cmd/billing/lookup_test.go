package main

import (
	"strings"
	"testing"

	"billing/internal/audit"
)

func TestLookupQuestion(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"":                            "which message?",
		"3":                           `"3" is no place: want PARTITION/OFFSET, such as 3/81234`,
		"-- -1/3":                     "is no place",
		"3/-1":                        "is no place",
		"3/4/5":                       "is no place",
		"4294967296/1":                "is no place",
		"3/9223372036854775808":       "is no place",
		"3/1 3/2":                     "give one place",
		"3/1 --id x":                  "not both",
		"--id x":                      "give both --source and --id",
		"--source x":                  "give both --source and --id",
		"--source x --id y --place z": "unknown flag: --place",
	} {
		got := run(t, inDir(t, goodConfig), nil, append([]string{"lookup"}, strings.Fields(args)...)...)
		if got.code != exitUsage || got.out != "" || !strings.Contains(got.errOut, says) {
			t.Errorf("%s: exit %d, %s%s", args, got.code, got.out, got.errOut)
		}
	}
	if q, err := lookupQuestion([]string{"3/81234"}, "", ""); err != nil || *q.place != (place{3, 81234}) {
		t.Errorf("%+v, %v", q, err)
	}
}

func TestLookupText(t *testing.T) {
	t.Parallel()
	quantity, partition, offset := "250.000000000000", int32(3), int64(81300)
	entry := audit.Entry{Shard: "eu-1", Partition: 3, Offset: 81234, Seq: 512, Source: "/meters/eu-1", ID: "9c0b\n", Type: "charge", Account: "acct-1 ",
		SKU: "storage", Unit: "GB-h", Currency: "EUR", Amount: "12.500000000000", Quantity: &quantity,
		Occurred: "2026-03-01 09:30:00.125000", Window: "2026-03-01 09:00:00", Period: "2026-03"}
	for want, a := range map[string]lookupAnswer{
		`usage/3 offset 81300: duplicate
  not booked again
  event      source /meters/eu-1 id "9c0b\n"
  booked     charge of 12.5 EUR to account "acct-1 ", sku storage, 250 GB-h
  in         window 2026-03-01 09:00:00 UTC, period 2026-03; it occurred 2026-03-01 09:30:00.125000
  from       usage/3 offset 81234, source /meters/eu-1 id "9c0b\n"; shard eu-1
`: {Outcome: "duplicate", Topic: "usage", Partition: &partition, Offset: &offset, Source: entry.Source, ID: entry.ID, Why: "not booked again", Entries: []audit.Entry{entry}},
		`usage/3 offset 81300: rejected
  not booked, kept in epoch 512: too_old
  older than "what"? (shard eu-1, state open)
  next step  look
`: {Outcome: "rejected", Topic: "usage", Partition: &partition, Offset: &offset, Why: "not booked, kept in epoch 512: too_old", NextStep: "look",
			Kept: []audit.Kept{{Shard: "eu-1", Seq: 512, Kind: "rejected", Reason: "too_old", Detail: `older than "what"?`, State: "open"}}},
		"source /s id \"\": not-booked\n  nothing\n": {Outcome: "not-booked", Topic: "usage", Source: "/s", Why: "nothing"},
	} {
		var b strings.Builder
		if err := writeLookup(&b, &a); err != nil || b.String() != want {
			t.Errorf("%v\n%s\nwant\n%s", err, &b, want)
		}
	}
	for decimal, want := range map[string]string{"0.000000000000": "0", "-12.500000000000": "-12.5", "100": "100", "100.000000000000": "100"} {
		if got := shortened(decimal); got != want {
			t.Errorf("%s: %s", decimal, got)
		}
	}
}
