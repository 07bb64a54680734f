package event

import (
	"errors"

	"billing/internal/money"
)

var (
	attrNames = [attrCount]string{"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data", "data_base64"}
	dataNames = [dataCount]string{"data.amount", "data.currency", "data.sku", "data.quantity", "data.unit", "data.reason", "data.labels", "data.corrects"}
)

// judge checks the fields in a fixed order and fills e.
func (d *Decoder) judge(m *message, e *Event) *Rejection {
	if rej := d.judgeFormat(m); rej != nil {
		return rej
	}
	if rej := missing(m, attrID, attrSource, attrType); rej != nil {
		return rej
	}
	*e = Event{UnknownFields: m.unknown}
	if rej := d.judgeType(&m.attr[attrType], e); rej != nil {
		return rej
	}
	if rej := missing(m, attrSubject, attrTime, attrData); rej != nil {
		return rej
	}
	if m.attr[attrData].kind != object {
		return reject(ReasonInvalidField, "data: expected an object")
	}
	for _, i := range [...]int{dataAmount, dataCurrency} {
		if !m.data[i].given() {
			return reject(ReasonMissingField, "%s is required", dataNames[i])
		}
	}
	if rej := d.judgeTexts(m, e); rej != nil {
		return rej
	}
	if rej := d.judgeQuantity(&m.data[dataQuantity], e); rej != nil {
		return rej
	}
	if f := &m.data[dataLabels]; f.given() && f.kind != object {
		return reject(ReasonInvalidField, "data.labels: expected an object")
	}
	if m.data[dataCorrects].given() {
		return reject(ReasonInvalidField, "data.corrects: a %s corrects nothing", e.Type)
	}
	currency := &m.data[dataCurrency]
	if currency.kind != text {
		return reject(ReasonInvalidField, "data.currency: expected a string")
	}
	when := &m.attr[attrTime]
	if when.kind != text {
		return reject(ReasonInvalidTime, "time: expected an RFC 3339 string")
	}
	var ok bool
	if e.Time, ok = parseTime(d.look(when)); !ok {
		return reject(ReasonInvalidTime, "time: expected RFC 3339 with a zone in the years 2000 to 2100, got %s", quoted(d.look(when)))
	}
	if e.Currency, ok = d.currencies[string(d.look(currency))]; !ok {
		return reject(ReasonUnknownCurrency, "data.currency: %s is not configured", quoted(d.look(currency)))
	}
	if rej := d.judgeAmount(&m.data[dataAmount], e); rej != nil {
		return rej
	}
	d.hasher.Hash(e)
	return nil
}

func (d *Decoder) judgeFormat(m *message) *Rejection {
	version := &m.attr[attrSpecVersion]
	if !version.given() {
		return reject(ReasonMissingField, "specversion is required")
	}
	if version.kind != text || string(d.look(version)) != "1.0" {
		return reject(ReasonUnsupportedFormat, "specversion: expected the string \"1.0\", got %s", quoted(version.raw))
	}
	if m.mode == binaryMode {
		return nil
	}
	if m.attr[attrDataBase64].given() {
		return reject(ReasonUnsupportedFormat, "data_base64 is not supported")
	}
	// The binary form of the same event would have this as its content type.
	if f := &m.attr[attrDataContentType]; f.given() && (f.kind != text || !isJSONMedia(d.look(f))) {
		return reject(ReasonUnsupportedFormat, "datacontenttype: expected a JSON media type, got %s", quoted(f.raw))
	}
	return nil
}

func missing(m *message, attrs ...int) *Rejection {
	for _, i := range attrs {
		if !m.attr[i].given() {
			return reject(ReasonMissingField, "%s is required", attrNames[i])
		}
	}
	return nil
}

func (d *Decoder) judgeType(f *field, e *Event) *Rejection {
	if why := checkText(f, d.look(f), 1, 255); why != "" {
		return reject(ReasonInvalidField, "type: expected %s", why)
	}
	name := d.look(f)
	for i := range d.types {
		if string(name) == d.types[i] {
			e.Type = typeOf[i]
			return nil
		}
	}
	return reject(ReasonUnknownType, "type: expected %s or %s, got %s", d.types[0], d.types[1], quoted(name))
}

func (d *Decoder) judgeTexts(m *message, e *Event) *Rejection {
	// Unrolled rather than a table: this is on the way of every message.
	var why, name string
	if e.ID, why = keep(&m.attr[attrID], 1, 255); why != "" {
		name = attrNames[attrID]
	} else if e.Source, why = keep(&m.attr[attrSource], 1, 512); why != "" {
		name = attrNames[attrSource]
	} else if e.Account, why = keep(&m.attr[attrSubject], 1, 255); why != "" {
		name = attrNames[attrSubject]
	} else if e.SKU, why = keep(&m.data[dataSKU], 1, 255); why != "" {
		name = dataNames[dataSKU]
	} else if e.Unit, why = keep(&m.data[dataUnit], 1, 255); why != "" {
		name = dataNames[dataUnit]
	} else if e.Note, why = keep(&m.data[dataReason], 0, 1024); why != "" {
		name = dataNames[dataReason]
	}
	if why != "" {
		return reject(ReasonInvalidField, "%s: expected %s", name, why)
	}
	return nil
}

// keep is a text that the event keeps: nil where the field is not given, the
// record's own bytes, or fresh ones where there were escapes. Or it is why not.
func keep(f *field, least, most int) (b []byte, why string) {
	if !f.given() {
		return nil, ""
	}
	b = f.raw
	if f.escaped && f.kind == text && len(b) <= 6*most { // six bytes is the longest way to write one
		b = unescape(make([]byte, 0, len(b)), b)
	}
	return b, checkText(f, b, least, most)
}

// checkText is why b, the text of f, won't do, or "".
func checkText(f *field, b []byte, least, most int) string {
	switch {
	case f.kind != text:
		return "a string"
	case len(b) < least:
		return "a string that is not empty"
	case len(b) > most:
		switch most {
		case 255:
			return "at most 255 bytes"
		case 512:
			return "at most 512 bytes"
		}
		return "at most 1024 bytes"
	case f.control:
		return "a string without control characters"
	}
	return ""
}

func (d *Decoder) judgeQuantity(f *field, e *Event) *Rejection {
	if !f.given() {
		return nil
	}
	if f.kind != text {
		return reject(ReasonInvalidField, "data.quantity: expected a decimal string")
	}
	q, err := money.Parse(d.look(f))
	if err != nil {
		return reject(ReasonInvalidField, "data.quantity: %v: %s", err, quoted(d.look(f)))
	}
	if q.Sign() < 0 {
		return reject(ReasonInvalidField, "data.quantity: expected zero or more, got %s", quoted(d.look(f)))
	}
	e.Quantity, e.HasQuantity = q, true
	return nil
}

func (d *Decoder) judgeAmount(f *field, e *Event) *Rejection {
	if f.kind != text && (!d.asNumber || f.kind != number) {
		return reject(ReasonAmountNotString, "data.amount: expected a decimal string such as \"12.50\", got the JSON value %s", unquoted(f.raw))
	}
	a, err := money.Parse(d.look(f))
	if err != nil {
		reason := ReasonInvalidAmount
		switch {
		case errors.Is(err, money.ErrScale):
			reason = ReasonScaleExceeded
		case errors.Is(err, money.ErrRange):
			reason = ReasonAmountOutOfRange
		}
		return reject(reason, "data.amount: %v: %s", err, quoted(d.look(f)))
	}
	if sign := a.Sign(); e.Type == Charge && sign < 0 || e.Type == Credit && sign > 0 {
		return reject(ReasonWrongSign, "data.amount: a charge is not negative and a credit not positive, got %s", quoted(d.look(f)))
	}
	e.Amount = a
	return nil
}

const (
	microsPerSecond = 1_000_000
	firstSecond     = 946_684_800   // 2000-01-01T00:00:00Z
	endSecond       = 4_133_980_800 // 2101-01-01T00:00:00Z
)

// parseTime reads RFC 3339 exactly: upper-case T and Z, two digits everywhere,
// a point before any fraction, no leap second. The result is in microseconds
// since 1970, truncated. The years 2000 to 2100 are those of the instant in
// UTC, so all spellings of one instant get the same verdict.
func parseTime(b []byte) (micros int64, ok bool) {
	const layout = "2006-01-02T15:04:05"
	if len(b) <= len(layout) || b[4] != '-' || b[7] != '-' || b[10] != 'T' || b[13] != ':' || b[16] != ':' {
		return 0, false
	}
	century, year, month, day := two(b[0:]), two(b[2:]), two(b[5:]), two(b[8:])
	hour, minute, second := two(b[11:]), two(b[14:]), two(b[17:])
	if century|year|month|day|hour|minute|second < 0 {
		return 0, false
	}
	year += 100 * century
	if month < 1 || month > 12 || day < 1 || day > daysIn(year, month) || hour > 23 || minute > 59 || second > 59 {
		return 0, false
	}
	b = b[len(layout):]
	if b[0] == '.' {
		n, scale := 1, int64(microsPerSecond/10)
		for ; n < len(b) && b[n]-'0' <= 9; n++ {
			micros += int64(b[n]-'0') * scale
			scale /= 10 // 0 after six places: the rest is cut off
		}
		if n == 1 {
			return 0, false
		}
		b = b[n:]
	}
	offset := 0 // seconds east of UTC
	switch {
	case len(b) == 1 && b[0] == 'Z':
	case len(b) == 6 && (b[0] == '+' || b[0] == '-') && b[3] == ':':
		h, m := two(b[1:]), two(b[4:])
		if h < 0 || h > 23 || m < 0 || m > 59 {
			return 0, false
		}
		offset = 3600*h + 60*m
		if b[0] == '-' {
			offset = -offset
		}
	default:
		return 0, false
	}
	seconds := int64(daysSince1970(year, month, day))*86400 + int64(3600*hour+60*minute+second-offset)
	if seconds < firstSecond || seconds >= endSecond {
		return 0, false
	}
	return seconds*microsPerSecond + micros, true
}

// two is a number of two digits, or -1.
func two(b []byte) int {
	hi, lo := b[0]-'0', b[1]-'0'
	if hi > 9 || lo > 9 {
		return -1
	}
	return int(hi)*10 + int(lo)
}

func daysIn(year, month int) int {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

// daysSince1970 counts from a year that begins in March, so that the leap day
// is the last of it.
func daysSince1970(year, month, day int) int {
	if month <= 2 {
		year--
		month += 12
	}
	return 365*year + year/4 - year/100 + year/400 + (153*(month-3)+2)/5 + day - 1 - 719468
}
