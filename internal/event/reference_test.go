package event

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// The reference decodes slowly and by other means: the library's tokenizer into
// a tree, regular expressions, package time. It shares no code with the decoder
// except the names of reasons, and gives a verdict and the texts of the event.

type node struct {
	kind    jsontext.Kind // 'n' 't' 'f' '"' '0' '{' '['
	text    string        // of a string without escapes, else the literal
	names   []string
	members []*node
}

func (n *node) get(name string) *node {
	for i := range n.names {
		if n.names[i] == name {
			return n.members[i]
		}
	}
	return nil
}

var errDeep = errors.New("deep")

// parse reads the one value in b, tolerant of duplicates and invalid UTF-8 as
// asked.
func parse(b []byte, dups, utf bool) (*node, error) {
	d := jsontext.NewDecoder(bytes.NewReader(b), jsontext.AllowDuplicateNames(dups), jsontext.AllowInvalidUTF8(utf))
	n, err := parseValue(d)
	if err != nil {
		return nil, err
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("trailing data")
	}
	return n, nil
}

func parseValue(d *jsontext.Decoder) (*node, error) {
	t, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	n := &node{kind: t.Kind(), text: t.String()}
	if n.kind != '{' && n.kind != '[' {
		return n, nil
	}
	if d.StackDepth() > 32 {
		return nil, errDeep
	}
	for {
		switch k := d.PeekKind(); {
		case k == '}' || k == ']':
			_, err := d.ReadToken()
			return n, err
		case n.kind == '{':
			name, err := d.ReadToken()
			if err != nil {
				return nil, err
			}
			n.names = append(n.names, name.String())
		}
		m, err := parseValue(d)
		if err != nil {
			return nil, err
		}
		n.members = append(n.members, m)
	}
}

var (
	attributes = []string{"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data", "data_base64"}
	dataFields = []string{"amount", "currency", "sku", "quantity", "unit", "reason", "labels", "corrects"}

	amountForm = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)
	rangeForm  = regexp.MustCompile(`^-?[0-9]{27}`)
	scaleForm  = regexp.MustCompile(`\.[0-9]{13}`)
	timeForm   = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$`)
	jsonMedia  = regexp.MustCompile(`^(?i:[ \t]*[^;/]+/(json|[^;/]*\+json)[ \t]*(;.*)?)$`)
)

func caseVariant(name string, of []string) bool {
	name = strings.NewReplacer("ı", "i", "İ", "i").Replace(name)
	return slices.ContainsFunc(of, func(s string) bool { return strings.EqualFold(s, name) })
}

// reference judges a value in structured or headerless mode without ce_ headers,
// or in binary mode with good headers, whose fields then are in attrs.
func reference(value []byte, m mode, attrs map[string]string) (Reason, map[string]string) {
	if len(value) == 0 {
		return ReasonEmptyData, nil
	}
	if len(value) > 1<<20 {
		return ReasonTooLarge, nil
	}
	root, err := parse(value, true, true)
	switch {
	case errors.Is(err, errDeep):
		return ReasonTooLarge, nil
	case err != nil:
		return ReasonInvalidJSON, nil
	}
	if _, err := parse(value, true, false); err != nil {
		return ReasonInvalidUTF8, nil
	}
	_, dupErr := parse(value, false, false)
	dup := dupErr != nil
	variants := func(n *node, of []string) (found bool) {
		for _, name := range n.names {
			found = found || !slices.Contains(of, name) && caseVariant(name, of)
		}
		return found
	}

	data := root
	if m != binaryMode {
		if root.kind != '{' {
			if root.kind == '[' && (m == structured || bytes.Contains(value, []byte(`"specversion"`))) {
				return ReasonUnsupportedFormat, nil
			}
			return ReasonNotCloudEvent, nil
		}
		if m == headerless && !slices.ContainsFunc(root.names, func(s string) bool { return caseVariant(s, []string{"specversion"}) }) {
			return ReasonNotCloudEvent, nil
		}
		dup = dup || variants(root, attributes)
		data = root.get("data")
	}
	if data != nil && data.kind == '{' {
		dup = dup || variants(data, dataFields)
	}
	if dup {
		return ReasonDuplicateKey, nil
	}

	given := func(n *node) bool { return n != nil && n.kind != 'n' }
	isText := func(n *node) bool { return n.kind == '"' }
	attr := func(name string) *node {
		if m == binaryMode {
			if name == "data" {
				return data
			}
			return &node{kind: '"', text: attrs[name]}
		}
		return root.get(name)
	}
	if v := attr("specversion"); !given(v) {
		return ReasonMissingField, nil
	} else if !isText(v) || v.text != "1.0" {
		return ReasonUnsupportedFormat, nil
	}
	if m != binaryMode {
		if given(attr("data_base64")) {
			return ReasonUnsupportedFormat, nil
		}
		if t := attr("datacontenttype"); given(t) && (!isText(t) || !jsonMedia.MatchString(t.text)) {
			return ReasonUnsupportedFormat, nil
		}
	}
	good := func(n *node, least, most int) bool {
		return isText(n) && len(n.text) >= least && len(n.text) <= most && !strings.ContainsFunc(n.text, unicode.IsControl)
	}
	for _, name := range []string{"id", "source", "type"} {
		if !given(attr(name)) {
			return ReasonMissingField, nil
		}
	}
	if !good(attr("type"), 1, 255) {
		return ReasonInvalidField, nil
	}
	out := map[string]string{}
	switch attr("type").text {
	case "com.example.billing.charge.v1":
		out["type"] = "charge"
	case "com.example.billing.credit.v1":
		out["type"] = "credit"
	default:
		return ReasonUnknownType, nil
	}
	for _, name := range []string{"subject", "time", "data"} {
		if !given(attr(name)) {
			return ReasonMissingField, nil
		}
	}
	if data.kind != '{' {
		return ReasonInvalidField, nil
	}
	if !given(data.get("amount")) || !given(data.get("currency")) {
		return ReasonMissingField, nil
	}
	for name, most := range map[string]int{"id": 255, "source": 512, "subject": 255} {
		if !good(attr(name), 1, most) {
			return ReasonInvalidField, nil
		}
		out[name] = attr(name).text
	}
	for name, most := range map[string]int{"sku": 255, "unit": 255, "reason": 1024} {
		n := data.get(name)
		if !given(n) {
			continue
		}
		least := 1
		if name == "reason" {
			least = 0
		}
		if !good(n, least, most) {
			return ReasonInvalidField, nil
		}
		out[name] = n.text
	}
	if q := data.get("quantity"); given(q) {
		if !isText(q) || decimalFault(q.text) != 0 || strings.HasPrefix(q.text, "-") && strings.ContainsAny(q.text, "123456789") {
			return ReasonInvalidField, nil
		}
		out["quantity"] = normal(q.text)
	}
	if l := data.get("labels"); given(l) && l.kind != '{' {
		return ReasonInvalidField, nil
	}
	if given(data.get("corrects")) || !isText(data.get("currency")) {
		return ReasonInvalidField, nil
	}
	when := attr("time")
	if !isText(when) || !timeForm.MatchString(when.text) {
		return ReasonInvalidTime, nil
	}
	at, err := time.Parse(time.RFC3339Nano, when.text)
	if y := at.UTC().Year(); err != nil || y < 2000 || y > 2100 || strings.Contains(when.text[19:], "+24:") || strings.Contains(when.text[19:], "-24:") {
		return ReasonInvalidTime, nil
	}
	out["time"] = at.UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano)
	if out["currency"] = data.get("currency").text; !slices.Contains(testConfig().Currencies, out["currency"]) {
		return ReasonUnknownCurrency, nil
	}
	amount := data.get("amount")
	if !isText(amount) {
		return ReasonAmountNotString, nil
	}
	if r := decimalFault(amount.text); r != 0 {
		return r, nil
	}
	out["amount"] = normal(amount.text)
	if n := out["amount"]; n != "0" && strings.HasPrefix(n, "-") != (out["type"] == "credit") {
		return ReasonWrongSign, nil
	}
	return 0, out
}

func decimalFault(s string) Reason {
	switch {
	case !amountForm.MatchString(s):
		return ReasonInvalidAmount
	case rangeForm.MatchString(s):
		return ReasonAmountOutOfRange
	case scaleForm.MatchString(s):
		return ReasonScaleExceeded
	}
	return 0
}

func normal(s string) string {
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	if s == "-0" {
		return "0"
	}
	return s
}

// texts is an Event in the reference's terms.
func texts(e *Event) map[string]string {
	out := map[string]string{
		"type": e.Type.String(), "id": string(e.ID), "source": string(e.Source), "subject": string(e.Account),
		"time":     time.UnixMicro(e.Time).UTC().Format(time.RFC3339Nano),
		"currency": e.Currency, "amount": e.Amount.String(),
	}
	for name, b := range map[string][]byte{"sku": e.SKU, "unit": e.Unit, "reason": e.Note} {
		if b != nil {
			out[name] = string(b)
		}
	}
	if e.HasQuantity {
		out["quantity"] = e.Quantity.String()
	}
	return out
}

func isCc(r rune) bool { return unicode.Is(unicode.Cc, r) }

func validDetail(r *Rejection) bool {
	return r.Detail != "" && len(r.Detail) <= maxDetail && utf8.ValidString(r.Detail)
}
