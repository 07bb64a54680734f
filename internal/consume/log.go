package consume

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// clientLogger passes the library's warnings and errors on. While a broker is
// away the same line would come many times a second; it comes once in 5 s.
type clientLogger struct {
	log  *slog.Logger
	mu   sync.Mutex
	last map[string]time.Time // by message
}

const (
	sameLineEvery = 5 * time.Second
	maxLines      = 256 // messages remembered
)

func newClientLogger(log *slog.Logger) *clientLogger {
	return &clientLogger{log: log, last: map[string]time.Time{}}
}

func (l *clientLogger) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (l *clientLogger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	msg, _, _ = strings.Cut(msg, " (is ") // its guesses about TLS and SASL mislead: nearly always a broker has gone
	// The membership says this better, with the next step: for a member that was
	// away for too long it is no error.
	if strings.HasPrefix(msg, "group manage loop errored") {
		return
	}
	if level > kgo.LogLevelWarn || !l.due(msg) {
		return
	}
	// Its errors too: what a lane or an operator has to do about it, others say.
	l.log.Warn("kafka: "+msg, keyvals...)
}

// due reports whether the line was not written for a while, and notes it.
func (l *clientLogger) due(line string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if last, ok := l.last[line]; ok && now.Sub(last) < sameLineEvery {
		return false
	}
	if len(l.last) >= maxLines {
		clear(l.last)
	}
	l.last[line] = now
	return true
}
