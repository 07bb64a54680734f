package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

func TestHealthcheck(t *testing.T) {
	var code atomic.Int32
	code.Store(http.StatusOK)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			code.Store(http.StatusTeapot)
		}
		w.WriteHeader(int(code.Load()))
		fmt.Fprint(w, "says this\n")
	}))
	defer srv.Close()
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	// Nothing else of the configuration needs to be there, and a proxy is not asked.
	env := []string{"BILLING_ADMIN_LISTEN=:" + port, "HTTP_PROXY=http://127.0.0.1:1", "http_proxy=http://127.0.0.1:1"}
	dir := t.TempDir()
	if got := run(t, dir, env, "healthcheck"); got.code != 0 || got.out != "says this\n" {
		t.Errorf("alive: %+v", got)
	}
	code.Store(http.StatusServiceUnavailable)
	if got := run(t, dir, env, "healthcheck"); got.code != 4 || got.out != "says this\n" || !strings.Contains(got.errOut, "answered 503") {
		t.Errorf("dead: %+v", got)
	}
	srv.Close()
	if got := run(t, dir, env, "healthcheck"); got.code != 4 || !strings.Contains(got.errOut, "the admin port does not answer") {
		t.Errorf("nobody there: %+v", got)
	}
	for _, listen := range []string{"nowhere", ":0"} {
		if got := run(t, dir, []string{"BILLING_ADMIN_LISTEN=" + listen}, "healthcheck"); got.code != 2 {
			t.Errorf("%s: %+v", listen, got)
		}
	}
}

func TestHealthURL(t *testing.T) {
	for listen, want := range map[string]string{
		":8080":            "http://127.0.0.1:8080/healthz",
		"0.0.0.0:8080":     "http://127.0.0.1:8080/healthz",
		"[::]:8080":        "http://127.0.0.1:8080/healthz",
		"[::1]:8080":       "http://[::1]:8080/healthz",
		"10.1.2.3:80":      "http://10.1.2.3:80/healthz",
		"[2001:db8::1]:80": "http://[2001:db8::1]:80/healthz",
		"localhost:80":     "http://localhost:80/healthz",
	} {
		if got, err := healthURL(listen); err != nil || got != want {
			t.Errorf("%s: got %s, %v; want %s", listen, got, err, want)
		}
	}
}
