package proxy

import (
	"context"
	"testing"
	"time"
)

// KafkaFor stands before a broker for one test, which fails if there was anything that the proxy did not understand.
func KafkaFor(t testing.TB, target string) *Kafka {
	t.Helper()
	k, err := NewKafka("127.0.0.1:0", target)
	closeAfter(t, k, err)
	return k
}

// MySQLFor stands before a mysqld for one test, as KafkaFor does.
func MySQLFor(t testing.TB, target string) *MySQL {
	t.Helper()
	m, err := NewMySQL("127.0.0.1:0", target)
	closeAfter(t, m, err)
	return m
}

func closeAfter(t testing.TB, p interface{ Close() error }, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Await returns when the rule has acted n times.
func (h *Handle) Await(t testing.TB, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := h.WaitHits(ctx, n); err != nil {
		t.Fatal(err)
	}
}
