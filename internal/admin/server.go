// Package admin serves the port that operators and orchestrators ask: health,
// readiness, metrics, and what one instance says of its lanes. It is fed by
// functions and knows nothing of what they report on.
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Config is what the server shows; its functions and Metrics are required. They
// may be called at any time and by many goroutines.
type Config struct {
	Listen  string                // host:port; port 0 takes a free one
	Health  func() Report         // what /healthz says
	Ready   func() (bool, string) // what /readyz says: whether, and if not, why not
	Status  func() Instance       // what /status says
	Metrics http.Handler          // what /metrics serves
	Logger  *slog.Logger          // nil is slog.Default()

	// AnswerWithin bounds Health, Ready and Status: a function that has not returned by
	// then is taken as a process that is dead inside. 0 is 3 s, less than the
	// time that probes usually wait.
	AnswerWithin time.Duration
}

// Bounds of one exchange: the port is open to whatever scans the network, and
// a client that never ends its request must not hold a connection for ever.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second // a scrape of many lanes over a slow link
	idleTimeout   = 2 * time.Minute  // longer than the usual scrape interval, so that connections are kept
	maxHeader     = 16 << 10         // bytes
)

// Server is the admin port. Start it once; Shutdown ends it.
type Server struct {
	cfg    Config
	http   *http.Server
	listen net.Listener
	done   chan struct{} // closed by the serving goroutine when it ends
}

// New makes a server that does not listen yet.
func New(cfg Config) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.AnswerWithin == 0 {
		cfg.AnswerWithin = 3 * time.Second
	}
	s := &Server{cfg: cfg, done: make(chan struct{})}
	s.http = &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	return s
}

// Start listens and serves in the background until Shutdown. It fails if the
// address can't be listened on.
func (s *Server) Start(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("admin port: %w", err)
	}
	s.listen = l
	go func() {
		defer close(s.done)
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			// The work goes on: a billing service that stops because nobody can
			// read its metrics is worse than one that can't be read.
			s.cfg.Logger.Error("admin port stopped serving", "err", err)
		}
	}()
	return nil
}

// Addr is the address that is listened on, after Start.
func (s *Server) Addr() string { return s.listen.Addr().String() }

// Shutdown stops listening, waits for requests that are being answered until
// ctx ends, then cuts them off. It does nothing before Start.
func (s *Server) Shutdown(ctx context.Context) error {
	if s.listen == nil {
		return nil
	}
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("admin port: shut down: %w", err), s.http.Close())
	}
	<-s.done
	return err
}
