package checkpoint

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func fullDecision() Decision {
	return Decision{
		Version: 1, Job: "billing", Topic: "billing.events", TopicID: UUID{1, 2, 0xff}, Partition: 17, Partitions: 64,
		Incarnation: 12, Seq: 345, GTRID: newGTRID(judgePrefix, 11, 345), Shards: 2, Fingerprint: Fingerprint(UUID{7}, time.Hour, "com.example."),
		Next: math.MaxInt64, LeaderEpoch: -1, StreamTime: 1_700_000_000_000_000, ForgottenBefore: -3_000,
		StateFrom: 10, StateNext: 12, OldestLive: 3, Count: math.MaxUint64, Checksum: math.MaxUint64 - 1, Build: "v1.2.3",
	}
}

// TestDecisionRoundTrip: what is written is read, 64-bit numbers to the last
// digit, and two copies of one D are equal byte by byte.
func TestDecisionRoundTrip(t *testing.T) {
	for _, d := range []Decision{fullDecision(), {Version: 1, Incarnation: 1}} {
		text, err := d.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseDecision(text)
		if err != nil {
			t.Fatal(err)
		}
		if got != d {
			t.Errorf("read %+v, wrote %+v", got, d)
		}
		again, err := got.Encode()
		if err != nil || again != text {
			t.Errorf("encoded again: %q, %v; want %q", again, err, text)
		}
	}
}

// TestDecisionFitsOffsetMetadata: ASCII, one line, and within what brokers take
// with every field at its longest.
func TestDecisionFitsOffsetMetadata(t *testing.T) {
	d := fullDecision()
	d.Job, d.Topic, d.Build = strings.Repeat("j", 40), strings.Repeat("t", 249), strings.Repeat("b", 200)
	d.Partition, d.Partitions, d.Incarnation, d.Seq = math.MaxInt32, math.MaxInt32, maxNum, maxNum
	d.StreamTime, d.ForgottenBefore, d.StateFrom, d.StateNext, d.OldestLive = math.MinInt64, math.MinInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64
	text, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 4096/2 {
		t.Errorf("%d characters: nearer to the broker's limit of 4096 than is wise", len(text))
	}
	for _, c := range text {
		if c < ' ' || c > '~' {
			t.Fatalf("%q is not printable ASCII", text)
		}
	}
	d.Build = strings.Repeat("b", maxDecision)
	if text, err := d.Encode(); err == nil || !strings.Contains(err.Error(), "shorten") {
		t.Errorf("%d characters were let through: %v", len(text), err)
	}
	d.Build = "naïve"
	if text, err := d.Encode(); err == nil {
		t.Errorf("%q is not ASCII and was let through", text)
	}
}

// TestParseDecisionRefuses: what is no D of this build is an error that says
// which kind.
func TestParseDecisionRefuses(t *testing.T) {
	d := fullDecision()
	text, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"empty":               {"", ErrNotDecision},
		"an admin's metadata": {"set by kafka-consumer-groups.sh", ErrNotDecision},
		"no version":          {`{"job":"billing"}`, ErrNotDecision},
		"null":                {"null", ErrNotDecision},
		"a list":              {"[]", ErrNotDecision},
		"a newer build's":     {strings.Replace(text, `"v":1`, `"v":2`, 1), ErrDecisionVersion},
		"newer, other fields": {`{"v":7,"what":"ever"}`, ErrDecisionVersion},
		"an unknown field":    {strings.Replace(text, `"v":1`, `"v":1,"extra":0`, 1), ErrNotDecision},
		"trailing data":       {text + "{}", ErrNotDecision},
		"trailing text":       {text + "x", ErrNotDecision},
		"cut off":             {text[:len(text)-1], ErrNotDecision},
		"a short topic id":    {strings.Replace(text, d.TopicID.String(), "0102", 1), ErrNotDecision},
		"a topic id not hex":  {strings.Replace(text, d.TopicID.String(), strings.Repeat("z", 32), 1), ErrNotDecision},
		"a number too large":  {strings.Replace(text, `"seq":345`, `"seq":9223372036854775808`, 1), ErrNotDecision},
		"a fraction":          {strings.Replace(text, `"seq":345`, `"seq":345.5`, 1), ErrNotDecision},
	} {
		got, err := ParseDecision(c.text)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if got != (Decision{}) {
			t.Errorf("%s: %+v beside the error", name, got)
		}
	}
}

// TestFingerprint: a change of any part is another deployment.
func TestFingerprint(t *testing.T) {
	base := Fingerprint(UUID{7}, time.Hour, "a.")
	if again := Fingerprint(UUID{7}, time.Hour, "a."); again != base || len(base) != 16 {
		t.Errorf("%s and %s", base, again)
	}
	for name, other := range map[string]string{
		"set": Fingerprint(UUID{8}, time.Hour, "a."), "window": Fingerprint(UUID{7}, time.Minute, "a."), "prefix": Fingerprint(UUID{7}, time.Hour, "b."),
	} {
		if other == base {
			t.Errorf("another %s has the same fingerprint", name)
		}
	}
}

// FuzzParseDecision: no text makes it panic, and what it takes can be written
// and read again.
func FuzzParseDecision(f *testing.F) {
	d := fullDecision()
	text, err := d.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text + " ")
	f.Add(`{"v":1}`)
	f.Add(`{"v":2}`)
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDecision(s)
		if err != nil {
			if !errors.Is(err, ErrNotDecision) && !errors.Is(err, ErrDecisionVersion) {
				t.Fatalf("%q: %v is neither of the two errors", s, err)
			}
			return
		}
		text, err := d.Encode()
		if err != nil {
			return // names that this service would not have: too long, or not ASCII
		}
		if again, err := ParseDecision(text); err != nil || again != d {
			t.Fatalf("%q: read again as %+v, %v; was %+v", s, again, err, d)
		}
	})
}
