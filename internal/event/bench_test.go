//go:build unix

package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// cpuTime is what the process has used so far. Rates are per second of it, as
// the wall clock says little on a machine that is shared.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func reportRate(b *testing.B, start time.Duration) {
	b.ReportMetric(float64(b.N)/(cpuTime(b)-start).Seconds(), "msgs/cpu-s")
}

// BenchmarkDecode is everything a message costs here: scan, rules, both hashes.
func BenchmarkDecode(b *testing.B) {
	for _, name := range []string{"structured", "headerless", "binary"} {
		b.Run(name, func(b *testing.B) {
			r, d := benchRecords()[name], NewDecoder(testConfig())
			b.ReportAllocs()
			b.SetBytes(int64(len(r.Value)))
			var e Event
			start := cpuTime(b)
			for b.Loop() {
				if rej := d.Decode(r, &e); rej != nil {
					b.Fatal(rej)
				}
			}
			reportRate(b, start)
		})
	}
}

// The parts of it, and what other ways to read the same JSON cost without any
// of the rules and hashes.

func BenchmarkScanOnly(b *testing.B) {
	s, value := newScanner(), []byte(benchValue)
	start := cpuTime(b)
	for b.Loop() {
		var m message
		s.reset(value)
		if !s.body(&m) {
			b.Fatal("bad")
		}
	}
	reportRate(b, start)
}

func BenchmarkHashOnly(b *testing.B) {
	d := NewDecoder(testConfig())
	var e Event
	if rej := d.Decode(benchRecords()["structured"], &e); rej != nil {
		b.Fatal(rej)
	}
	var scratch []byte
	start := cpuTime(b)
	for b.Loop() {
		scratch = e.Hash(scratch)
	}
	reportRate(b, start)
}

func BenchmarkJSONText(b *testing.B) {
	value := []byte(benchValue)
	r := bytes.NewReader(nil)
	d := jsontext.NewDecoder(r)
	b.ReportAllocs()
	start := cpuTime(b)
	for b.Loop() {
		r.Reset(value)
		d.Reset(r)
		for {
			t, err := d.ReadToken()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				b.Fatal(err)
			}
			_ = t.Kind()
		}
	}
	reportRate(b, start)
}

func BenchmarkEncodingJSON(b *testing.B) {
	value := []byte(benchValue)
	b.ReportAllocs()
	start := cpuTime(b)
	for b.Loop() {
		var v struct {
			SpecVersion, ID, Source, Type, Subject, Time, DataContentType string
			Data                                                          struct {
				Amount, Currency, SKU, Quantity, Unit, Reason string
				Labels                                        map[string]string
			}
		}
		if err := json.Unmarshal(value, &v); err != nil {
			b.Fatal(err)
		}
	}
	reportRate(b, start)
}
