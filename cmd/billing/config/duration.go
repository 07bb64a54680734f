package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

var errDuration = errors.New("write whole numbers, each with its unit (ms, s, m, h or d), without spaces, such as 500ms, 10s, 5m, 1h30m, 35d or 1d12h")

// parseDuration reads Go's form of a duration, with whole days before it: 35d,
// 1d12h.
func parseDuration(s string) (time.Duration, error) {
	rest := s
	var days time.Duration
	if n, after, ok := strings.Cut(s, "d"); ok {
		v, err := strconv.ParseUint(n, 10, 32)
		if err != nil || n[0] == '+' || v > uint64(math.MaxInt64/day) {
			return 0, errDuration
		}
		days, rest = time.Duration(v)*day, after
		if rest == "" {
			return days, nil
		}
		if rest[0] == '-' || rest[0] == '+' {
			return 0, errDuration
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d > math.MaxInt64-days {
		return 0, errDuration
	}
	return days + d, nil
}

// formatDuration is the shortest form that parseDuration reads back.
func formatDuration(d time.Duration) string {
	var days string
	if d >= day {
		days = strconv.FormatInt(int64(d/day), 10) + "d"
		if d %= day; d == 0 {
			return days
		}
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return days + s
}
