package event

import "testing"

// The whole is measured in test/bench; these are its two largest parts.

func BenchmarkScanOnly(b *testing.B) {
	s, value := newScanner(), []byte(benchValue)
	for b.Loop() {
		var m message
		s.reset(value)
		if !s.body(&m) {
			b.Fatal("bad")
		}
	}
}

func BenchmarkHashOnly(b *testing.B) {
	d := NewDecoder(testConfig())
	var e Event
	if rej := d.Decode(benchRecords()["structured"], &e); rej != nil {
		b.Fatal(rej)
	}
	var h Hasher
	for b.Loop() {
		h.Hash(&e)
	}
}
