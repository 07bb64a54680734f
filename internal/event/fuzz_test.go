package event

import (
	"bufio"
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// seeds are the values of the service's cases and some of our own.
func seeds(t testing.TB) (values [][]byte) {
	t.Helper()
	f, err := os.Open("testdata/messages.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var c fileCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		for _, m := range c.Messages {
			if m.Value != nil {
				values = append(values, []byte(*m.Value))
			} else {
				values = append(values, m.ValueB64)
			}
		}
	}
	return append(values, []byte(benchValue), []byte(benchData), []byte(goodData),
		[]byte(dataWith("labels", `{"a":[1,-2.5e+3,true,false,null,"\u00e9\ud83d\ude00\/"],"\u0061":{}}`, "ſku", `"x"`, "quantity", `"1.0"`)),
		[]byte(envelopeWith("datacontenttype", `"text/json"`, "x", `{"y":{"y":[[[]]]}}`, "Id", `null`, "data_base64", `null`)),
		[]byte(envelopeWith("time", `"2026-11-29T11:30:00.123456789+05:45"`, "id", "\"日本\u0080\"", "subject", `"\u0031"`)),
		[]byte(`[{"specversion":"1.0"}]`), []byte(`"specversion"`), []byte(strings.Repeat("[", 40)))
}

func modes() []mode { return []mode{structured, headerless, binaryMode} }

// FuzzDecode holds the decoder against the reference: the same verdict and the
// same fields for any value in each mode.
func FuzzDecode(f *testing.F) {
	for _, v := range seeds(f) {
		f.Add(v)
	}
	d := NewDecoder(testConfig())
	f.Fuzz(func(t *testing.T, value []byte) {
		for _, m := range modes() {
			if m == binaryMode && claimsEvent(value) {
				continue // the reference doesn't know what ce_ headers do beside it
			}
			agree(t, d, value, m)
		}
	})
}

func claimsEvent(value []byte) bool {
	root, err := parse(value, true, true)
	return err == nil && slices.Contains(root.names, "specversion")
}

// The same with messages that are good but for a few random changes, so that
// they get past the first checks; part of every test run.
func TestMutations(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	d := NewDecoder(testConfig())
	values := seeds(t)
	tokens := []string{`"`, `\`, `\u`, `\ud800`, `\udc00`, `\u0069`, `{`, `}`, `[`, `]`, `,`, `:`, `null`, `true`, `0`, `-`, `.`, `e`, "\xff", "\xc2\x80", "\x7f", "\x00", "\n", " ",
		`"id"`, `"Id":1,`, `"amount"`, `"x":1,`, `"specversion"`, `"data":{`, `é`, `ſ`, "\u212a", `[[[[[[[[[[`, `9999999999999`, `\u0000`, `Z`, `+01:00`}
	n := 60_000
	if testing.Short() {
		n = 5_000
	}
	for range n {
		v := slices.Clone(values[r.IntN(len(values))])
		if len(v) > 2000 {
			v = v[:2000]
		}
		for range 1 + r.IntN(3) {
			if len(v) == 0 {
				break
			}
			i := r.IntN(len(v))
			switch r.IntN(5) {
			case 0: // change a byte
				v[i] = byte(r.IntN(256))
			case 1: // remove some
				v = slices.Delete(v, i, min(len(v), i+1+r.IntN(4)))
			case 2: // repeat a piece
				j := min(len(v), i+1+r.IntN(30))
				v = slices.Insert(v, r.IntN(len(v)), slices.Clone(v[i:j])...)
			case 3: // change the case of a letter
				v[i] ^= 0x20
			default:
				v = slices.Insert(v, i, []byte(tokens[r.IntN(len(tokens))])...)
			}
		}
		for _, m := range modes() {
			if m != binaryMode || !claimsEvent(v) {
				agree(t, d, v, m)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// FuzzText holds the string scanner against the library's.
func FuzzText(f *testing.F) {
	for _, s := range []string{``, `abc`, `\"`, `\\\/\b\f\n\r\t`, `\u00e9`, `\ud83d\ude00`, `\ud83d`, `\ude00`, `\u00g0`, `\x`, "é", "\xff", "\n", "\x7f",
		"12345678", `1234567\`, "1234567\xc3\xa9", "日本語日本語", `\uD83D\uDE0`, "\xed\xa0\x80", `a"b`} {
		f.Add([]byte(s))
	}
	s := newScanner()
	f.Fuzz(func(t *testing.T, body []byte) {
		b := append(append([]byte{'"'}, body...), '"')
		s.reset(b)
		var got field
		ok := s.text(0, &got) == len(b)
		want, err := jsontext.AppendUnquote(nil, b)
		if (ok && !s.badUTF8) != (err == nil) {
			t.Fatalf("%q: ok %v, UTF-8 %v, the library says %v", b, ok, !s.badUTF8, err)
		}
		if err != nil {
			return
		}
		if text := unescape(nil, got.raw); !bytes.Equal(text, want) {
			t.Fatalf("%q is %q, the library says %q", b, text, want)
		}
		if got.escaped != bytes.ContainsRune(got.raw, '\\') || got.control != bytes.ContainsFunc(want, isCc) {
			t.Fatalf("%q: escaped %v, control %v", b, got.escaped, got.control)
		}
	})
}

// FuzzHeaders: whatever the headers are, the decoder answers, and the same
// twice.
func FuzzHeaders(f *testing.F) {
	f.Add("ce_id", []byte("e1"), "ce_x", []byte("1"), []byte(envelopeWith()))
	f.Add("content-type", []byte("application/cloudevents+json"), "CE_ID", []byte("x"), []byte(envelopeWith("x", "1")))
	f.Add("ce_specversion", []byte("1.0"), "content-type", []byte("application/json"), []byte(goodData))
	f.Add("ce_", []byte(""), "_", []byte(""), []byte(`{"specversion":"1.0"}`))
	f.Fuzz(func(t *testing.T, k1 string, v1 []byte, k2 string, v2 []byte, value []byte) {
		r := &Record{Headers: []Header{{k1, v1}, {k2, v2}}, Value: value}
		verdict := func(d *Decoder) (string, Event) {
			var e Event
			rej := d.Decode(r, &e)
			if rej == nil {
				return "", e
			}
			if !validDetail(rej) {
				t.Fatalf("detail %q", rej.Detail)
			}
			return rej.String(), Event{}
		}
		d := NewDecoder(testConfig())
		a, x := verdict(d)
		r.Headers[0], r.Headers[1] = r.Headers[1], r.Headers[0]
		_, _ = verdict(d)
		r.Headers[0], r.Headers[1] = r.Headers[1], r.Headers[0]
		b, y := verdict(d)
		if a != b || x.Key != y.Key || x.Content != y.Content {
			t.Fatalf("%q, then %q", a, b)
		}
	})
}
