package event

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// benchValue is a message of ordinary size, 374 bytes.
const benchValue = `{"specversion":"1.0","id":"0193af2e-7c1b-7a54-9d2e-5b8f6c3a1e47","source":"/svc/metering/eu-1","type":"com.example.billing.charge.v1","subject":"acct-0001234","time":"2026-11-29T11:30:00.123Z","datacontenttype":"application/json","data":{"amount":"12.345678","currency":"USD","sku":"vm.standard-4","quantity":"1.5","unit":"hour","reason":"usage","labels":{"region":"eu-1"}}}`

const benchData = `{"amount":"12.345678","currency":"USD","sku":"vm.standard-4","quantity":"1.5","unit":"hour","reason":"usage","labels":{"region":"eu-1"}}`

func testConfig() Config {
	return Config{TypePrefix: "com.example.billing.", Currencies: []string{"USD", "EUR", "JPY", "KWD", "KRW", "IRR"}}
}

func benchRecords() map[string]*Record {
	h := func(kv ...string) (hs []Header) {
		for i := 0; i < len(kv); i += 2 {
			hs = append(hs, Header{kv[i], []byte(kv[i+1])})
		}
		return hs
	}
	return map[string]*Record{
		"structured": {Headers: h("content-type", "application/cloudevents+json; charset=UTF-8"), Value: []byte(benchValue)},
		"headerless": {Value: []byte(benchValue)},
		"binary": {Headers: h("ce_specversion", "1.0", "ce_id", "0193af2e-7c1b-7a54-9d2e-5b8f6c3a1e47", "ce_source", "/svc/metering/eu-1",
			"ce_type", "com.example.billing.charge.v1", "ce_subject", "acct-0001234", "ce_time", "2026-11-29T11:30:00.123Z",
			"content-type", "application/json"), Value: []byte(benchData)},
	}
}

type fileCase struct {
	Name, Needs string
	Messages    []fileMessage
	Expect      []fileExpect
}

type fileMessage struct {
	Headers  [][2]string
	Value    *string
	ValueB64 []byte `json:"value_b64"`
	Repeat   []any
	Count    int
}

type fileExpect struct {
	Outcome string
	Reason  []string
	Count   int
}

func (m *fileMessage) records(t *testing.T) []*Record {
	t.Helper()
	value := m.ValueB64
	if m.Value != nil {
		text := *m.Value
		if m.Repeat != nil {
			n := int(m.Repeat[2].(float64))
			text = strings.ReplaceAll(text, m.Repeat[0].(string), strings.Repeat(m.Repeat[1].(string), n))
		}
		value = []byte(text)
	}
	var headers []Header
	for _, h := range m.Headers {
		headers = append(headers, Header{h[0], []byte(h[1])})
	}
	var rs []*Record
	for i := range max(m.Count, 1) {
		v := value
		if m.Count > 0 {
			v = bytes.ReplaceAll(value, []byte("@i@"), []byte(strconv.Itoa(i)))
		}
		rs = append(rs, &Record{Headers: headers, Value: v})
	}
	return rs
}

// TestCases runs the service's cases as far as the decoder decides them: which
// messages decode, with which reason the others don't, and, by key and content,
// which are the same event. Time limits are not for the decoder.
func TestCases(t *testing.T) {
	f, err := os.Open("testdata/messages.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	n := 0
	for lines.Scan() {
		var c fileCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		n++
		t.Run(c.Name, func(t *testing.T) { c.run(t) })
	}
	if err := lines.Err(); err != nil || n == 0 {
		t.Fatalf("%d cases, %v", n, err)
	}
}

func (c *fileCase) run(t *testing.T) {
	d := NewDecoder(testConfig())
	seen := map[[16]byte][8]byte{}
	for i := range c.Messages {
		want := c.Expect[i]
		for _, r := range c.Messages[i].records(t) {
			var e Event
			rej := d.Decode(r, &e)
			if c.Needs == "corrections" && (bytes.Contains(r.Value, []byte("correction.v1")) || bytes.Contains(r.Value, []byte("reversal.v1"))) {
				want = fileExpect{Outcome: "rejected", Reason: []string{"unknown_type"}}
			}
			timeOnly := want.Outcome == "rejected" && !slices.ContainsFunc(want.Reason, func(s string) bool { return s != "too_old" && s != "in_future" })
			if want.Outcome == "rejected" && !timeOnly {
				if rej == nil {
					t.Errorf("message %d decodes, want one of %v", i, want.Reason)
				} else if !slices.Contains(want.Reason, rej.Reason.String()) {
					t.Errorf("message %d: %s, want one of %v", i, rej, want.Reason)
				}
				continue
			}
			if rej != nil {
				t.Errorf("message %d: %s, want %s", i, rej, want.Outcome)
				continue
			}
			content, known := seen[e.Key]
			got := "applied"
			if known && content == e.Content {
				got = "duplicate"
			} else if known {
				got = "conflict"
			}
			if !timeOnly && got != want.Outcome {
				t.Errorf("message %d would be %s, want %s", i, got, want.Outcome)
			}
			if !known {
				seen[e.Key] = e.Content
			}
		}
	}
}

// The words are what operators and their queries see.
func TestWords(t *testing.T) {
	want := strings.Fields(`none not_cloudevent unsupported_format ambiguous_envelope empty_data invalid_json duplicate_key invalid_utf8
		missing_field invalid_field unknown_type invalid_time too_old in_future amount_not_string invalid_amount scale_exceeded
		amount_out_of_range wrong_sign unknown_currency too_large already_reversed correction_mismatch orphan_correction`)
	for i, w := range want {
		if got := Reason(i).String(); got != w {
			t.Errorf("reason %d is %q, want %q", i, got, w)
		}
	}
	if len(want) != len(reasonWords) {
		t.Errorf("%d reasons, want %d", len(reasonWords), len(want))
	}
	got := []string{Outcome(0).String(), Applied.String(), Duplicate.String(), Conflict.String(), Rejected.String(), Type(0).String(), Charge.String(), Credit.String()}
	if !slices.Equal(got, []string{"none", "applied", "duplicate", "conflict", "rejected", "none", "charge", "credit"}) {
		t.Errorf("%q", got)
	}
}

func TestDetailIsShort(t *testing.T) {
	c := testConfig()
	c.TypePrefix = strings.Repeat("é", 90) + "."
	d := NewDecoder(c)
	expect(t, d, "long prefix", structuredRecord(envelopeWith()), "unknown_type")
	expect(t, d, "long type", structuredRecord(envelopeWith("type", `"`+strings.Repeat("\U0001f600", 60)+`"`)), "unknown_type")
}
