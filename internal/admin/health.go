package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Report is the health of the process and its lanes.
type Report struct {
	// Dead says why the process can do no more work whatever happens outside,
	// and is "" while it can. Only this makes /healthz fail: an orchestrator
	// restarts what fails, and a restart repairs no lane that refuses, nor a
	// server that is away.
	Dead  string
	Lanes []Lane   // those that do not work, and why; others may be left out
	Notes []string // what else an operator should know, a sentence each
}

// Lane is the state of one lane.
type Lane struct {
	Lane  string    `json:"lane"`           // topic/partition
	State string    `json:"state"`          // one word, as in the metrics
	Stuck bool      `json:"stuck"`          // it does no work until something is repaired
	Why   string    `json:"why,omitempty"`  // for the operator: what is wrong and the next step
	Since time.Time `json:"since,omitzero"` // when the state was entered
}

// healthBody is what /healthz answers.
type healthBody struct {
	Status string   `json:"status"` // ok, degraded (a lane is stuck) or dead
	Dead   string   `json:"dead,omitempty"`
	Stuck  []string `json:"stuck"` // names of the lanes that are stuck
	Lanes  []Lane   `json:"lanes"`
	Notes  []string `json:"notes,omitempty"`
}

// readyBody is what /readyz answers.
type readyBody struct {
	Ready bool   `json:"ready"`
	Why   string `json:"why,omitempty"`
}

func (s *Server) routes() http.Handler {
	health := &asker[Report]{ask: s.cfg.Health, within: s.cfg.AnswerWithin}
	ready := &asker[readyBody]{within: s.cfg.AnswerWithin, ask: func() readyBody {
		ok, why := s.cfg.Ready()
		return readyBody{Ready: ok, Why: why}
	}}
	status := &asker[Instance]{ask: s.cfg.Status, within: s.cfg.AnswerWithin}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		report, err := health.answer()
		if err != nil {
			report = Report{Dead: "health: " + err.Error()}
		}
		body := healthBody{Status: "ok", Dead: report.Dead, Stuck: []string{}, Lanes: report.Lanes, Notes: report.Notes}
		if body.Lanes == nil {
			body.Lanes = []Lane{}
		}
		for _, l := range report.Lanes {
			if l.Stuck {
				body.Status = "degraded"
				body.Stuck = append(body.Stuck, l.Lane)
			}
		}
		code := http.StatusOK
		if report.Dead != "" {
			body.Status, code = "dead", http.StatusServiceUnavailable
		}
		reply(w, code, body)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		body, err := ready.answer()
		if err != nil {
			body = readyBody{Why: "readiness: " + err.Error()}
		}
		code := http.StatusOK
		if !body.Ready {
			code = http.StatusServiceUnavailable
		}
		reply(w, code, body)
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		body, err := status.answer()
		if err != nil {
			http.Error(w, "status: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		reply(w, http.StatusOK, body)
	})
	mux.Handle("GET /metrics", s.cfg.Metrics)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprint(w, "/healthz  200 while the process lives; names lanes that are stuck\n/readyz   200 when every assigned lane works\n/status   this instance and its lanes, for billing status\n/metrics  for Prometheus\n")
	})
	return mux
}

// reply writes v as JSON, indented: it is read by people with curl as often as
// by machines.
func reply(w http.ResponseWriter, code int, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, "encode: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n')) // who asked is gone: nobody to tell
}

// asker calls a function that may never return, for example because it waits
// for a lock that a dead loop holds. At most one call is running; whoever asks
// meanwhile waits for that one, so that probes do not pile up goroutines.
type asker[T any] struct {
	ask    func() T
	within time.Duration

	mu      sync.Mutex
	current *call[T] // owned by mu; nil while none is running
}

type call[T any] struct {
	done  chan struct{} // closed by the calling goroutine, after value and err are set
	value T
	err   error
}

func (a *asker[T]) answer() (T, error) {
	a.mu.Lock()
	c := a.current
	if c == nil {
		c = &call[T]{done: make(chan struct{})}
		a.current = c
		go a.run(c)
	}
	a.mu.Unlock()

	timer := time.NewTimer(a.within)
	defer timer.Stop()
	select {
	case <-c.done:
		return c.value, c.err
	case <-timer.C:
		var none T
		return none, fmt.Errorf("no answer from inside the process within %s", a.within)
	}
}

func (a *asker[T]) run(c *call[T]) {
	defer func() {
		if p := recover(); p != nil {
			c.err = fmt.Errorf("panic: %v", p)
		}
		a.mu.Lock()
		a.current = nil
		a.mu.Unlock()
		close(c.done)
	}()
	c.value = a.ask()
}
