package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"billing/test/servers"
)

// ---- what the process says of itself

var adminAddress = regexp.MustCompile(`msg="admin port open" address=(\S+)`)

// get asks the process's admin port.
func (p *process) get(path string) (code int, body string, err error) {
	if p.admin.Load() == nil {
		m := adminAddress.FindStringSubmatch(p.output())
		if m == nil {
			return 0, "", fmt.Errorf("no admin port in the output")
		}
		p.admin.Store(&m[1])
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+*p.admin.Load()+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// says reports whether a page has this code and these texts.
func (p *process) says(path string, code int, texts ...string) error {
	got, body, err := p.get(path)
	if err != nil {
		return err
	}
	if got != code {
		return fmt.Errorf("%s answers %d, want %d: %s", path, got, code, body)
	}
	for _, text := range texts {
		if !strings.Contains(body, text) {
			return fmt.Errorf("%s says nothing of %q: %s", path, text, body)
		}
	}
	return nil
}

func (p *process) waitSays(path string, code int, texts ...string) {
	p.t.Helper()
	servers.Eventually(p.t, 2*time.Minute, func() error { return p.says(path, code, texts...) })
}

// metric is the value of one series, name and labels as in the exposition.
func (p *process) metric(series string) float64 {
	p.t.Helper()
	_, body, err := p.get("/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				p.t.Fatal(err)
			}
			return v
		}
	}
	p.t.Fatalf("no metric %s", series)
	return 0
}

// refused is how many connections to a shard were refused, and why.
func (p *process) refused(shard int, why string) float64 {
	p.t.Helper()
	return p.metric(fmt.Sprintf(`billing_connections_refused_total{server="shard s%d",why=%q}`, shard, why))
}

// peak is the most memory that the process has had, in bytes.
func (p *process) peak() int64 {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				p.t.Fatal(err)
			}
			return kb << 10
		}
	}
	p.t.Fatal("no VmHWM")
	return 0
}

// ---- time

// outage is how long servers stay away: BILLING_TEST_OUTAGE, which is short by
// default.
func outage(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("BILLING_TEST_OUTAGE")
	if text == "" {
		return 20 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("BILLING_TEST_OUTAGE: %v", err)
	}
	return d
}

// since logs how long something took, and fails beyond the bound.
func since(t *testing.T, start time.Time, what string, bound time.Duration) {
	t.Helper()
	took := time.Since(start).Round(10 * time.Millisecond)
	t.Logf("%s: %s", what, took)
	if took > bound {
		t.Errorf("%s took %s, more than %s", what, took, bound)
	}
}
