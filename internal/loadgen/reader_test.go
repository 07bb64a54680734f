package loadgen

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The naive reader reads messages as slowly and plainly as can be, with
// encoding/json and math/big, and knows nothing of how they were made.

type reading struct {
	source, id, account, kind, currency, sku, unit string
	at                                             time.Time
	literal                                        string // of the amount
	amount, quantity                               *big.Rat
	hasQuantity                                    bool
}

// content is what makes two readings with one id the same event.
func (r reading) content() string {
	quantity := "none"
	if r.hasQuantity {
		quantity = r.quantity.String()
	}
	return fmt.Sprintf("%q %q %d %s %s %q %q %s", r.kind, r.account, r.at.UnixMicro(), r.amount, r.currency, r.sku, r.unit, quantity)
}

var decimal = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)
var rfc3339 = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$`)

// read gives the event in m, or the reason why there is none. What is later than
// latest is in the future. Whether it is too old is not its business.
func read(m Message, cfg Config, latest time.Time) (reading, string) {
	headers := map[string][]string{}
	for _, h := range m.Headers {
		headers[h.Key] = append(headers[h.Key], string(h.Value))
	}
	for name, values := range headers {
		if strings.HasPrefix(name, "ce_") && len(values) > 1 {
			return reading{}, "ambiguous_envelope"
		}
	}
	mediaType := ""
	if values := headers["content-type"]; len(values) > 0 {
		mediaType, _, _ = strings.Cut(strings.ToLower(values[0]), ";")
	}
	_, hasAttributes := headers["ce_specversion"]
	inHeaders := hasAttributes && mediaType != "application/cloudevents+json"
	switch {
	case inHeaders && mediaType != "application/json",
		!inHeaders && mediaType != "" && mediaType != "application/cloudevents+json":
		return reading{}, "unsupported_format"
	case len(m.Value) == 0:
		return reading{}, "empty_data"
	case !utf8.Valid(m.Value):
		return reading{}, "invalid_utf8"
	case bytes.Contains(m.Value, []byte(`\ud83d"`)): // the one lone surrogate that is ever written
		return reading{}, "invalid_utf8"
	}
	if reason := lint(m.Value); reason != "" {
		return reading{}, reason
	}
	body := map[string]any{}
	decoder := json.NewDecoder(bytes.NewReader(m.Value))
	decoder.UseNumber()
	if err := decoder.Decode(&body); err != nil && !inHeaders {
		return reading{}, "invalid_json"
	} else if err != nil {
		return reading{}, "invalid_field" // the data are no object
	}
	event := body
	if inHeaders {
		event = map[string]any{"data": body}
		for name, values := range headers {
			if attribute, found := strings.CutPrefix(name, "ce_"); found {
				if !utf8.ValidString(values[0]) {
					return reading{}, "invalid_utf8"
				}
				event[attribute] = values[0]
			}
		}
	} else {
		for name, values := range headers {
			if attribute, found := strings.CutPrefix(name, "ce_"); found && event[attribute] != values[0] {
				return reading{}, "ambiguous_envelope"
			}
		}
	}
	return interpret(event, cfg, latest)
}

func interpret(event map[string]any, cfg Config, latest time.Time) (r reading, reason string) {
	if event["specversion"] == nil {
		return r, "not_cloudevent"
	}
	if event["specversion"] != "1.0" || event["data_base64"] != nil {
		return r, "unsupported_format"
	}
	data, isObject := event["data"].(map[string]any)
	if event["data"] == nil {
		return r, "missing_field"
	}
	if !isObject {
		return r, "invalid_field"
	}
	text := func(from map[string]any, name string, most int, into *string) {
		s, isString := from[name].(string)
		switch {
		case reason != "":
		case from[name] == nil:
			reason = "missing_field"
		case !isString || s == "" || len(s) > most || strings.ContainsFunc(s, unicode.IsControl):
			reason = "invalid_field"
		}
		*into = s
	}
	var at, kind string
	text(event, "id", 255, &r.id)
	text(event, "source", 512, &r.source)
	text(event, "subject", 255, &r.account)
	text(event, "type", 255, &kind)
	text(event, "time", 255, &at)
	text(data, "currency", 255, &r.currency)
	if data["sku"] != nil {
		text(data, "sku", 255, &r.sku)
	}
	if data["unit"] != nil {
		text(data, "unit", 255, &r.unit)
	}
	if reason != "" {
		return r, reason
	}
	r.kind = strings.TrimSuffix(strings.TrimPrefix(kind, cfg.TypePrefix), ".v1")
	if kind != cfg.TypePrefix+"charge.v1" && kind != cfg.TypePrefix+"credit.v1" {
		return r, "unknown_type"
	}
	t, err := time.Parse(time.RFC3339Nano, at)
	if err != nil || !rfc3339.MatchString(at) || t.UTC().Year() < 2000 || t.UTC().Year() > 2100 {
		return r, "invalid_time"
	}
	r.at = t.UTC().Truncate(time.Microsecond)
	if data["amount"] == nil {
		return r, "missing_field"
	}
	amount, isString := data["amount"].(string)
	if literal, isNumber := data["amount"].(json.Number); isNumber && cfg.AmountAsNumber {
		amount, isString = literal.String(), true
	}
	if !isString {
		return r, "amount_not_string"
	}
	r.literal = amount
	if r.amount, reason = number(amount); reason != "" {
		return r, reason
	}
	if r.amount.Sign() != 0 && (r.kind == "charge") != (r.amount.Sign() > 0) {
		return r, "wrong_sign"
	}
	if !slices.Contains(cfg.Currencies, r.currency) {
		return r, "unknown_currency"
	}
	r.quantity = new(big.Rat)
	if q := data["quantity"]; q != nil {
		s, isString := q.(string)
		if r.quantity, reason = number(s); !isString || reason != "" || r.quantity.Sign() < 0 {
			return r, "invalid_field"
		}
		r.hasQuantity = true
	}
	if data["corrects"] != nil {
		return r, "invalid_field"
	}
	if r.at.After(latest) {
		return r, "in_future"
	}
	return r, ""
}

func number(s string) (*big.Rat, string) {
	if !decimal.MatchString(s) {
		return nil, "invalid_amount"
	}
	whole, places, _ := strings.Cut(strings.TrimPrefix(s, "-"), ".")
	if len(whole) > 26 {
		return nil, "amount_out_of_range"
	}
	if len(places) > 12 {
		return nil, "scale_exceeded"
	}
	n, _ := new(big.Rat).SetString(s)
	return n, ""
}

var known = []string{"specversion", "id", "source", "type", "subject", "time", "data", "amount", "currency", "sku", "unit", "quantity"}

// lint finds what encoding/json lets pass, and what is no JSON at all.
func lint(value []byte) string {
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber()
	reason := lintValue(decoder, 1)
	if reason == "" {
		if _, err := decoder.Token(); err != io.EOF {
			return "invalid_json"
		}
	}
	return reason
}

func lintValue(decoder *json.Decoder, depth int) string {
	token, err := decoder.Token()
	if err != nil {
		return "invalid_json"
	}
	open, isDelim := token.(json.Delim)
	if !isDelim {
		return ""
	}
	if depth > 32 {
		return "too_large"
	}
	seen := map[string]bool{}
	for decoder.More() {
		if open == '{' {
			key, err := decoder.Token()
			name, isString := key.(string)
			if err != nil || !isString {
				return "invalid_json"
			}
			for _, k := range known {
				if name != k && strings.EqualFold(name, k) {
					return "duplicate_key"
				}
			}
			if seen[name] {
				return "duplicate_key"
			}
			seen[name] = true
		}
		if reason := lintValue(decoder, depth+1); reason != "" {
			return reason
		}
	}
	if _, err := decoder.Token(); err != nil {
		return "invalid_json"
	}
	return ""
}
