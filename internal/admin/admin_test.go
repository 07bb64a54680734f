package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func started(t *testing.T, cfg Config) *Server {
	t.Helper()
	cfg.Listen = "127.0.0.1:0"
	if cfg.Health == nil {
		cfg.Health = func() Report { return Report{} }
	}
	if cfg.Ready == nil {
		cfg.Ready = func() (bool, string) { return true, "" }
	}
	if cfg.Status == nil {
		cfg.Status = func() Instance { return Instance{} }
	}
	if cfg.Metrics == nil {
		cfg.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "metrics here") })
	}
	s := New(cfg)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// t.Context() has ended by now.
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func get(t *testing.T, s *Server, method, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addr()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestHealthNamesStuckLanesAndLives(t *testing.T) {
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var report atomic.Pointer[Report]
	s := started(t, Config{Health: func() Report { return *report.Load() }})
	cases := []struct {
		name   string
		report Report
		code   int
		want   string
	}{
		{"nothing to do", Report{}, 200, `{"status":"ok","stuck":[],"lanes":[]}`},
		{"a stuck lane", Report{
			Lanes: []Lane{
				{Lane: "events/1", State: "running", Since: since},
				{Lane: "events/3", State: "stopped", Stuck: true, Why: "lost epoch. Next step: see the runbook", Since: since},
			},
			Notes: []string{"shard b does not answer"},
		}, 200, `{"status":"degraded","stuck":["events/3"],"lanes":[
			{"lane":"events/1","state":"running","stuck":false,"since":"2026-03-01T12:00:00Z"},
			{"lane":"events/3","state":"stopped","stuck":true,"why":"lost epoch. Next step: see the runbook","since":"2026-03-01T12:00:00Z"}],
			"notes":["shard b does not answer"]}`},
		{"dead inside", Report{Dead: "the main loop has ended", Lanes: []Lane{{Lane: "events/3", Stuck: true}}}, 503,
			`{"status":"dead","dead":"the main loop has ended","stuck":["events/3"],"lanes":[{"lane":"events/3","state":"","stuck":true}]}`},
	}
	for _, c := range cases {
		report.Store(&c.report)
		code, body := get(t, s, http.MethodGet, "/healthz")
		var got, want bytes.Buffer
		if err := json.Compact(&got, []byte(body)); err != nil {
			t.Fatalf("%s: %v in %s", c.name, err, body)
		}
		if err := json.Compact(&want, []byte(c.want)); err != nil {
			t.Fatal(err)
		}
		if code != c.code || got.String() != want.String() {
			t.Errorf("%s: got %d %s\nwant %d %s", c.name, code, &got, c.code, &want)
		}
	}
}

// TestStatus: what one instance says of itself and its lanes, as others parse it.
func TestStatus(t *testing.T) {
	want := Instance{
		Job: "usage", Member: "billing-usage@[::]:8080-1f", Build: "v1", Notes: []string{"waiting for the shards"},
		Lanes: []InstanceLane{{
			Lane:   Lane{Lane: "events/3", State: "stopped", Stuck: true, Why: "refused. Next step: x", Since: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)},
			Reason: "lost-epoch", NextStep: "x", Incarnation: 4, Seq: 17, Next: 8210, Failures: 2, LastError: "refused",
		}},
	}
	s := started(t, Config{Status: func() Instance { return want }})
	code, body := get(t, s, http.MethodGet, "/status")
	var got Instance
	if err := json.Unmarshal([]byte(body), &got); code != 200 || err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%d %v: got %+v, want %+v", code, err, got, want)
	}
	for _, field := range []string{`"lane": "events/3"`, `"state": "stopped"`, `"reason": "lost-epoch"`, `"next_step": "x"`, `"incarnation": 4`, `"since": "2026-03-01T12:00:00Z"`} {
		if !strings.Contains(body, field) {
			t.Errorf("no %s in %s", field, body)
		}
	}
}

func TestReady(t *testing.T) {
	var ready atomic.Bool
	s := started(t, Config{Ready: func() (bool, string) {
		if ready.Load() {
			return true, ""
		}
		return false, "lane events/3 is recovering"
	}})
	if code, body := get(t, s, http.MethodGet, "/readyz"); code != 503 || !strings.Contains(body, "lane events/3 is recovering") || !strings.Contains(body, `"ready": false`) {
		t.Errorf("not ready: %d %s", code, body)
	}
	ready.Store(true)
	if code, body := get(t, s, http.MethodGet, "/readyz"); code != 200 || !strings.Contains(body, `"ready": true`) {
		t.Errorf("ready: %d %s", code, body)
	}
}

func TestOtherRoutes(t *testing.T) {
	s := started(t, Config{})
	for _, c := range []struct {
		method, path string
		code         int
		body         string
	}{
		{"GET", "/metrics", 200, "metrics here"},
		{"GET", "/", 200, "/healthz"},
		{"GET", "/", 200, "/status"},
		{"POST", "/status", 405, ""},
		{"GET", "/nonsense", 404, ""},
		{"POST", "/healthz", 405, ""},
		{"HEAD", "/healthz", 200, ""},
	} {
		code, body := get(t, s, c.method, c.path)
		if code != c.code || !strings.Contains(body, c.body) {
			t.Errorf("%s %s: %d %q", c.method, c.path, code, body)
		}
	}
}

// A process whose inside hangs is the one that must be restarted; the probe has
// to be told so, and probes must not pile up in it.
func TestHangingInsideIsDead(t *testing.T) {
	var calls atomic.Int32
	free := make(chan struct{})
	s := started(t, Config{
		AnswerWithin: 20 * time.Millisecond,
		Health: func() Report {
			calls.Add(1)
			<-free
			return Report{}
		},
		Ready:  func() (bool, string) { <-free; return true, "" },
		Status: func() Instance { <-free; return Instance{} },
	})
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addr()+"/healthz", nil)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != 503 || !strings.Contains(string(b), "no answer from inside the process within 20ms") {
				t.Errorf("%d %s %v", resp.StatusCode, b, err)
			}
		})
	}
	wg.Wait()
	if code, body := get(t, s, http.MethodGet, "/readyz"); code != 503 || !strings.Contains(body, "no answer") {
		t.Errorf("readyz: %d %s", code, body)
	}
	if code, body := get(t, s, http.MethodGet, "/status"); code != 503 || !strings.Contains(body, "no answer") {
		t.Errorf("status: %d %s", code, body)
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("health was called %d times at once, want 1", n)
	}
	close(free)
	// The answers that were late have ended their calls; new ones are asked
	// afresh and come in time.
	for {
		if code, _ := get(t, s, http.MethodGet, "/healthz"); code == 200 {
			break
		}
	}
}

func TestPanicInsideIsDead(t *testing.T) {
	s := started(t, Config{Health: func() Report { panic("broken") }})
	if code, body := get(t, s, http.MethodGet, "/healthz"); code != 503 || !strings.Contains(body, "panic: broken") {
		t.Errorf("%d %s", code, body)
	}
}

func TestListenErrorIsClear(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := New(Config{Listen: l.Addr().String(), Metrics: http.NotFoundHandler()})
	err = s.Start(t.Context())
	if err == nil {
		t.Fatal("started on a taken port")
	}
	for _, want := range []string{"admin port: ", l.Addr().String(), "address already in use"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Errorf("shutdown before a start: %v", err)
	}
}

func TestShutdownWaitsForAnswersThenCuts(t *testing.T) {
	entered, free := make(chan struct{}), make(chan struct{})
	s := New(Config{
		Listen: "127.0.0.1:0",
		Logger: slog.New(slog.DiscardHandler),
		Metrics: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(entered)
			<-free
		}),
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	addr := s.Addr()
	answered := make(chan error, 1)
	go func() {
		resp, err := http.Get("http://" + addr + "/metrics")
		if err == nil {
			err = resp.Body.Close()
		}
		answered <- err
	}()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Shutdown(ctx); err == nil {
		t.Error("no error though a request was being answered")
	}
	if err := <-answered; err == nil {
		t.Error("the request was not cut off")
	}
	close(free)
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("still listening after Shutdown")
	}
}
