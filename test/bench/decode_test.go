package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/internal/event"
	"billing/internal/money"
	"billing/test/bench/measure"
)

// decodeMessages is how many different messages are decoded over and over: more
// than a processor remembers the branches of, and few enough for its caches.
const decodeMessages = 4096

// TestBenchDecode measures the decoder against other ways to read the same bytes.
func TestBenchDecode(t *testing.T) {
	r := measure.New(t, "decode")
	forms := newForms(t)
	n := measure.Pick(1_000_000, decodeMessages)

	var things []measure.Thing
	decoding := func(name string, records []event.Record) {
		things = append(things, measure.Thing{Name: name, Run: func() measure.Values { return forms.decode(t, records, n) }})
	}
	decoding("structured", forms.structured)
	decoding("headerless", forms.headerless)
	decoding("binary", forms.binary)
	decoding("any order", forms.anyOrder)
	reading := func(name string, read func(value []byte) bool) {
		things = append(things, measure.Thing{Name: name, Run: func() measure.Values { return forms.read(t, read, n) }})
	}
	reading("walk", walk)
	reading("json", intoStruct)
	reading("tokens", newTokens())
	alone := r.Alternate(things...)

	const setAt = "set for a machine where, with the consume, encoding/json makes 242,000 and a bare walk over the bytes 1.1 M"
	rate := func(name string, rounds *measure.Rounds, thing string, target measure.Target, note string) {
		t.Helper()
		from := ""
		if target != (measure.Target{}) {
			from = setAt
		}
		r.Figure(measure.Figure{Name: name, Unit: "msgs/CPU-s", Values: rounds.Of(thing, "rate"), Target: target, From: from, Note: note})
	}
	none := measure.Target{}
	for _, form := range []string{"structured", "headerless", "binary"} {
		rate(form, alone, form, measure.AtLeast(800_000), "")
	}
	rate("headerless, keys in any order", alone, "any order", none, "another order in each message: nothing that the decoder has learned of it is right")
	rate("encoding/json", alone, "json", none, "into a struct, without any check")
	rate("jsontext", alone, "tokens", none, "tokens only: the strict reader of JSON that the scanner replaces")
	rate("bare walk", alone, "walk", none, "quotes, and braces outside of texts")
	for _, form := range []string{"structured", "headerless", "binary"} {
		r.Figure(measure.Figure{Name: form + ", of encoding/json", Unit: "times", Values: alone.Ratio(form, "json", "rate"), Target: measure.AtLeast(3.3),
			From: "800,000 of 242,000, for any machine"})
	}
	for _, form := range []string{"structured", "headerless", "binary"} {
		r.Figure(measure.Figure{Name: "allocations, " + form, Unit: "a message", Values: alone.Of(form, "allocations"), Target: measure.AtMost(0),
			From: "nothing is allocated for a single record without a reason"})
	}

	topic := newDecodeTopic(t, forms, measure.Pick(400_000, 4_000))
	d, e := newDecoder(), event.Event{}
	consuming := func(name string, each func(*event.Record) bool) measure.Thing {
		return measure.Thing{Name: name, Run: func() measure.Values { return topic.consume(t, each) }}
	}
	consumed := r.Alternate(
		consuming("nothing", func(*event.Record) bool { return true }),
		consuming("walk", func(r *event.Record) bool { return walk(r.Value) }),
		consuming("json", func(r *event.Record) bool { return intoStruct(r.Value) }),
		consuming("structured", func(r *event.Record) bool { return d.Decode(r, &e) == nil }),
	)
	rate("consume alone", consumed, "nothing", none, "")
	rate("consume, bare walk", consumed, "walk", none, "")
	rate("consume, encoding/json", consumed, "json", none, "")
	rate("consume, structured", consumed, "structured", none, "")
	r.Figure(measure.Figure{Name: "consume, of encoding/json", Unit: "times", Values: consumed.Ratio("structured", "json", "rate"), Target: measure.AtLeast(3.3),
		From: "as above", Note: "the client's work is on both sides"})
	r.Figure(measure.Figure{Name: "consume, of the bare walk", Unit: "times", Values: consumed.Ratio("structured", "walk", "rate")})

	bars := func(name, title string, target float64, rounds *measure.Rounds, labels ...[2]string) {
		plot := measure.Bars{Name: name, Title: title, Unit: "thousands", Target: target, Groups: []measure.Group{{}}}
		for _, l := range labels {
			values := rounds.Of(l[1], "rate")
			for i := range values {
				values[i] /= 1000
			}
			plot.Groups[0].Bars = append(plot.Groups[0].Bars, measure.Bar{Label: l[0], Values: values})
		}
		r.Bars(plot)
	}
	bars("rates", "Messages a CPU-second, from memory", 800, alone, [2]string{"structured", "structured"}, [2]string{"headerless", "headerless"},
		[2]string{"binary", "binary"}, [2]string{"keys in any order", "any order"}, [2]string{"jsontext", "tokens"}, [2]string{"encoding/json", "json"})
	bars("consume", "Messages a CPU-second, with the consume", 0, consumed, [2]string{"consume alone", "nothing"},
		[2]string{"bare walk", "walk"}, [2]string{"structured", "structured"}, [2]string{"encoding/json", "json"})
}

func newDecoder() *event.Decoder {
	return event.NewDecoder(event.Config{TypePrefix: "com.example.billing.", Currencies: []string{"USD", "EUR", "JPY", "KWD", "KRW", "IRR"}})
}

// forms are the same events in each form that producers may send.
type forms struct {
	structured, headerless, binary []event.Record
	anyOrder                       []event.Record // headerless
}

func newForms(t testing.TB) *forms {
	t.Helper()
	f := &forms{}
	rng := rand.New(rand.NewPCG(1, 2))
	l := standardLoad(decodeMessages, 1)
	l.Duplicates = 0
	expected := l.each(time.Now(), func(_ int32, value []byte) {
		value = bytes.Clone(value)
		var members map[string]json.RawMessage
		if err := json.Unmarshal(value, &members); err != nil {
			t.Fatal(err)
		}
		text := func(name string) []byte {
			var s string
			if err := json.Unmarshal(members[name], &s); err != nil {
				t.Fatal(err)
			}
			return []byte(s)
		}
		f.headerless = append(f.headerless, event.Record{Value: value})
		structured := event.Record{Value: value}
		for _, h := range eventHeaders {
			structured.Headers = append(structured.Headers, event.Header{Key: h.Key, Value: h.Value})
		}
		f.structured = append(f.structured, structured)
		binary := event.Record{Value: members["data"], Headers: []event.Header{{Key: "content-type", Value: text("datacontenttype")}}}
		for _, name := range []string{"specversion", "id", "source", "type", "subject", "time"} {
			binary.Headers = append(binary.Headers, event.Header{Key: "ce_" + name, Value: text(name)})
		}
		f.binary = append(f.binary, binary)
		f.anyOrder = append(f.anyOrder, event.Record{Value: anyOrder(rng, members)})
	})
	want, err := money.ParseSum(fmt.Appendf(nil, "%d.%06d", expected.Micros/1_000_000, expected.Micros%1_000_000))
	if err != nil {
		t.Fatal(err)
	}
	// Each form gives the same event, and the amounts are those of the load.
	d := newDecoder()
	for _, form := range [][]event.Record{f.structured, f.headerless, f.binary, f.anyOrder} {
		var sum money.Sum
		for i := range form {
			var e, same event.Event
			if rejection := d.Decode(&form[i], &e); rejection != nil {
				t.Fatal(rejection)
			}
			if d.Decode(&f.structured[i], &same); e.Key != same.Key || e.Content != same.Content {
				t.Fatalf("%s is another event than its structured form", form[i].Value)
			}
			sum.Add(e.Amount)
		}
		if sum != want {
			t.Fatalf("the amounts are %s in all, not %s", sum, want)
		}
	}
	return f
}

// decode decodes n messages.
func (f *forms) decode(t testing.TB, records []event.Record, n int) measure.Values {
	d := newDecoder()
	var e event.Event
	rejected := 0
	cost := each(n, func() {
		for i := range n {
			if d.Decode(&records[i%decodeMessages], &e) != nil {
				rejected++
			}
		}
	})
	if rejected > 0 {
		t.Fatalf("%d messages were rejected", rejected)
	}
	i := 0
	allocations := testing.AllocsPerRun(decodeMessages, func() {
		d.Decode(&records[i%decodeMessages], &e)
		i++
	})
	return measure.Values{"rate": 1e9 / cost, "allocations": allocations}
}

// read does something else with the values of n messages.
func (f *forms) read(t testing.TB, read func([]byte) bool, n int) measure.Values {
	failed := 0
	cost := each(n, func() {
		for i := range n {
			if !read(f.headerless[i%decodeMessages].Value) {
				failed++
			}
		}
	})
	if failed > 0 {
		t.Fatalf("%d messages were not read", failed)
	}
	return measure.Values{"rate": 1e9 / cost}
}

// walk looks at each byte once, for what nobody can do without: where texts end,
// and whether the braces outside of them match.
func walk(b []byte) bool {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '{':
			depth++
		case '}':
			depth--
		case '"':
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		}
	}
	return depth == 0
}

// intoStruct has the library find all that the decoder looks for.
func intoStruct(b []byte) bool {
	var v struct {
		SpecVersion     string `json:"specversion"`
		ID              string `json:"id"`
		Source          string `json:"source"`
		Type            string `json:"type"`
		Subject         string `json:"subject"`
		Time            string `json:"time"`
		DataContentType string `json:"datacontenttype"`
		Data            struct {
			Amount   string            `json:"amount"`
			Currency string            `json:"currency"`
			SKU      string            `json:"sku"`
			Quantity string            `json:"quantity"`
			Unit     string            `json:"unit"`
			Reason   string            `json:"reason"`
			Labels   map[string]string `json:"labels"`
		} `json:"data"`
	}
	return json.Unmarshal(b, &v) == nil && v.Data.Amount != ""
}

// newTokens makes a reader of JSON that is as strict about it as the decoder.
func newTokens() func([]byte) bool {
	r := bytes.NewReader(nil)
	d := jsontext.NewDecoder(r)
	return func(b []byte) bool {
		r.Reset(b)
		d.Reset(r)
		for {
			if _, err := d.ReadToken(); err != nil {
				return errors.Is(err, io.EOF)
			}
		}
	}
}

// messageTopic is a topic of an embedded broker, with so many messages.
type messageTopic struct {
	broker   string
	messages int
}

const decodeTopic = "decode"

func newDecodeTopic(t testing.TB, f *forms, messages int) *messageTopic {
	t.Helper()
	broker := embeddedBroker(t, decodeTopic)
	cl, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.DefaultProduceTopic(decodeTopic), kgo.MaxBufferedRecords(messages),
		kgo.ProducerBatchMaxBytes(1<<20), kgo.ProducerLinger(20*time.Millisecond), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	records := make([]*kgo.Record, messages)
	for i := range records {
		records[i] = &kgo.Record{Value: f.structured[i%decodeMessages].Value, Headers: eventHeaders}
	}
	if err := cl.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return &messageTopic{broker, messages}
}

// consume reads the topic from its start with a new client.
func (p *messageTopic) consume(t testing.TB, each func(*event.Record) bool) measure.Values {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	start := measure.CPU()
	cl, err := kgo.NewClient(kgo.SeedBrokers(p.broker), kgo.ConsumeTopics(decodeTopic))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var r event.Record
	for n := 0; n < p.messages; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(from *kgo.Record) {
			r.Offset, r.Value, r.Headers = from.Offset, from.Value, r.Headers[:0]
			for _, h := range from.Headers {
				r.Headers = append(r.Headers, event.Header{Key: h.Key, Value: h.Value})
			}
			if !each(&r) {
				t.Fatalf("%s was not read", from.Value)
			}
			n++
		})
	}
	return measure.Values{"rate": float64(p.messages) / (measure.CPU() - start).Seconds()}
}

// anyOrder writes an object with its members in a random order.
func anyOrder(rng *rand.Rand, members map[string]json.RawMessage) []byte {
	names := slices.Sorted(maps.Keys(members))
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	b := []byte("{")
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(append(b, '"'), name...), `":`...), members[name]...)
	}
	return append(b, '}')
}
