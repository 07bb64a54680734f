package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"billing/internal/admin"
	"billing/internal/checkpoint"
	"billing/internal/consume"

	"github.com/twmb/franz-go/pkg/kerr"
)

// TestStatusBelieved: which decision is shown.
func TestStatusBelieved(t *testing.T) {
	text := func(seq, next int64) string {
		d := checkpoint.Decision{Version: 1, Job: "usage", Incarnation: 4, Seq: seq, Next: next}
		s, err := d.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, c := range map[string]struct {
		read     checkpoint.Read
		unstable bool
		seq      int64 // 0: none
	}{
		"nothing":                {checkpoint.Read{}, false, 0},
		"both agree":             {checkpoint.Read{HasOffset: true, Offset: 9, Metadata: text(2, 9), Record: text(2, 9)}, false, 2},
		"the offset has expired": {checkpoint.Read{Record: text(2, 9)}, false, 2},
		"the offset was set":     {checkpoint.Read{HasOffset: true, Offset: 0, Record: text(2, 9)}, false, 2},
		"the offset was moved":   {checkpoint.Read{HasOffset: true, Offset: 5, Metadata: text(2, 9), Record: text(2, 9)}, false, 2},
		"the offset was moved, the record is older": {checkpoint.Read{HasOffset: true, Offset: 5, Metadata: text(2, 9), Record: text(1, 4)}, false, 1},
		"the two differ":              {checkpoint.Read{HasOffset: true, Offset: 9, Metadata: text(2, 9), Record: text(1, 5)}, false, 0},
		"one is lost":                 {checkpoint.Read{HasOffset: true, Offset: 9, Metadata: text(2, 9)}, false, 0},
		"a newer build's":             {checkpoint.Read{HasOffset: true, Offset: 9, Metadata: `{"v":2}`, Record: `{"v":2}`}, false, 0},
		"read in between, the record": {checkpoint.Read{HasOffset: true, Offset: 9, Metadata: text(2, 9), Record: text(3, 12)}, true, 2},
		"read in between, the offset": {checkpoint.Read{HasOffset: true, Offset: 12, Metadata: text(3, 12), Record: text(2, 9)}, true, 2},
	} {
		d := believed(&reading{Read: c.read, moving: c.unstable})
		if (d == nil) != (c.seq == 0) || d != nil && d.Seq != c.seq {
			t.Errorf("%s: %+v, want seq %d", name, d, c.seq)
		}
	}
}

// TestStatusReadsUntilClear: copies that differ twice in the same way are what
// Kafka has; those of an owner that moves on are not.
func TestStatusReadsUntilClear(t *testing.T) {
	pair := func(offset, record string) checkpoint.Read {
		return checkpoint.Read{HasOffset: true, Metadata: offset, Record: record}
	}
	open := fmt.Errorf("read: %w", consumeUnstable(t))
	slow := errors.New("list offsets: time is up")
	for name, c := range map[string]struct {
		reads []any // a checkpoint.Read or an error
		want  reading
		err   error
	}{
		"equal at once":      {[]any{pair("2", "2")}, reading{Read: pair("2", "2")}, nil},
		"nothing there":      {[]any{checkpoint.Read{}}, reading{}, nil},
		"no offset":          {[]any{checkpoint.Read{Record: "2"}}, reading{Read: checkpoint.Read{Record: "2"}}, nil},
		"equal at last":      {[]any{pair("2", "3"), pair("3", "3")}, reading{Read: pair("3", "3")}, nil},
		"really differ":      {[]any{pair("2", "1"), pair("2", "1")}, reading{Read: pair("2", "1")}, nil},
		"an owner moves":     {[]any{pair("2", "3"), pair("4", "5")}, reading{Read: pair("4", "5"), moving: true}, nil},
		"a slow broker":      {[]any{slow, pair("2", "2")}, reading{Read: pair("2", "2")}, nil},
		"too slow":           {[]any{slow, slow}, reading{}, slow},
		"open":               {[]any{open, pair("2", "1")}, reading{Read: pair("2", "1"), open: true}, nil},
		"slow, and open":     {[]any{slow, open, pair("2", "1")}, reading{Read: pair("2", "1"), open: true}, nil},
		"moves, and open":    {[]any{pair("2", "3"), open, pair("4", "4")}, reading{Read: pair("4", "4"), open: true}, nil},
		"open, and too slow": {[]any{open, slow}, reading{open: true}, slow},
	} {
		n := 0
		look := func(context.Context) (r checkpoint.Read, err error) {
			switch v := c.reads[n].(type) {
			case checkpoint.Read:
				r = v
			case error:
				err = v
			}
			n++
			return r, err
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		got, err := readUntilClear(ctx, look, look)
		cancel()
		if got != c.want || err != c.err || n != len(c.reads) { //nolint:errorlint // the very one
			t.Errorf("%s: %+v, %v after %d reads", name, got, err, n)
		}
	}
}

// consumeUnstable is an error of a reading behind an open Kafka transaction.
func consumeUnstable(t *testing.T) error {
	t.Helper()
	err := error(kerr.UnstableOffsetCommit)
	if !consume.Unstable(err) {
		t.Fatal("this is not what consume calls unstable")
	}
	return err
}

// TestStatusAsksInstances: an instance is believed for itself only.
func TestStatusAsksInstances(t *testing.T) {
	good := admin.Instance{Job: "usage", Member: "m-1", Lanes: []admin.InstanceLane{{Lane: admin.Lane{Lane: "in/0", State: "running"}}}}
	other, stranger, left := good, good, good
	other.Member, stranger.Job, left.Member = "m-2", "else", ""
	says := func(i admin.Instance) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/status" || r.Method != http.MethodGet {
				t.Errorf("asked %s %s", r.Method, r.URL)
			}
			_ = json.NewEncoder(w).Encode(i)
		}
	}
	elsewhere := httptest.NewServer(says(good))
	defer elsewhere.Close()
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		why     string // "": believed
	}{
		"itself":           {says(good), ""},
		"another member":   {says(other), `another process answers: of job "usage", member "m-2"`},
		"another job":      {says(stranger), `another process answers: of job "else"`},
		"out of the group": {says(left), `another process answers: of job "usage", member ""`},
		"an older build":   {http.NotFound, "404 Not Found"},
		"dead inside":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, "503"},
		"not JSON":         {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, "no answer of this service"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/status", http.StatusFound)
		}, "302"},
		"hangs up": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "no answer at"},
	} {
		server := httptest.NewServer(c.handler)
		s := &seen{job: "usage", topic: "in", members: []memberSeen{{Member: consume.Member{ID: "m-1", AdminAddr: server.Listener.Addr().String()}}}}
		askMembers(t.Context(), s)
		server.Close()
		if m := s.members[0]; (m.said != nil) != (c.why == "") || !strings.Contains(m.why, c.why) || c.why != "" && !strings.Contains(m.why, m.AdminAddr) {
			t.Errorf("%s: said %+v, why %q", name, m.said, m.why)
		}
	}

	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer server.Close()
	defer close(hang)
	s := &seen{job: "usage", members: []memberSeen{
		{Member: consume.Member{ID: "m-1", AdminAddr: server.Listener.Addr().String()}},
		{Member: consume.Member{ID: "m-2", AdminAddr: server.Listener.Addr().String()}},
		{Member: consume.Member{ID: "m-3"}},
	}}
	began := time.Now()
	askMembers(t.Context(), s)
	if took := time.Since(began); took > 2*askWithin {
		t.Errorf("took %s", took)
	}
	for _, m := range s.members {
		if m.said != nil || m.why == "" {
			t.Errorf("%+v", m)
		}
	}
	if !strings.Contains(s.members[0].why, "deadline") || !strings.Contains(s.members[2].why, "older build") {
		t.Errorf("%q, %q", s.members[0].why, s.members[2].why)
	}
}

// TestInstanceBeforeItHasLanes: a list without entries is one.
func TestInstanceBeforeItHasLanes(t *testing.T) {
	v := &view{job: "usage"}
	why := "waiting for the shards: away"
	v.waiting.Store(&why)
	b, err := json.Marshal(v.instance())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"job":"usage"`, `"member":""`, `"lanes":[]`, `"notes":["waiting for the shards: away"]`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %s in %s", want, b)
		}
	}
}
