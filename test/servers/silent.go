package servers

import (
	"net"
	"testing"
)

// Silent is an address that takes connections and never says a word, as a server that is frozen does.
func Silent(t testing.TB) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // there is nothing to wait for; the kernel takes the connections
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}
