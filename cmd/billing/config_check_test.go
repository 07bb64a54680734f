package main

import (
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"
)

func TestWrongConfigurationIs2(t *testing.T) {
	dir := inDir(t, strings.Replace(goodConfig, "topic: events", "topik: events", 1))
	for _, args := range [][]string{{"config", "check"}, {"migrate"}, {"config", "check", "--config", "config.yaml"}} {
		got := run(t, dir, nil, args...)
		if got.code != 2 || got.out != "" || !strings.Contains(got.errOut, "config.yaml:4: kafka.topik: unknown key: did you mean topic?") {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", args, got.code, got.out, got.errOut)
		}
	}
	got := run(t, dir, nil, "config", "check", "--config", "missing.yaml")
	if got.code != 2 || !strings.Contains(got.errOut, "missing.yaml: can't be read: no such file or directory") {
		t.Errorf("missing file: exit %d, %s", got.code, got.errOut)
	}
}

func TestConfigCheck(t *testing.T) {
	dir := inDir(t, goodConfig)
	env := []string{"BILLING_DEDUP_LATENESS=40d", "BILLING_SERVICE_PORT=80"}
	got := run(t, dir, env, "config", "check")
	if got.code != 0 || got.errOut != "warning: BILLING_SERVICE_PORT: not a variable of this service, ignored\n" {
		t.Errorf("exit %d, stderr %q", got.code, got.errOut)
	}
	want := []string{"ok: config.yaml", "", "KEY VALUE FROM", "job billing config.yaml:1", "shards[0] a app:***@tcp(127.0.0.1:1)/billing config.yaml:6",
		"dedup.lateness 40d BILLING_DEDUP_LATENESS", "kafka.instance_id - default", "message.type_prefix com.example.billing. config.yaml:9",
		"memory: up to 3.6 GiB for one instance: 50000000 ids of 60 bytes (dedup.max_ids), 512 MiB of messages (memory.max_bytes), 64 MiB twice for a batch (kafka.max_batch_bytes), 192 MiB besides"}
	var lines []string
	for line := range strings.Lines(got.out) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	for _, w := range want {
		if !slices.Contains(lines, w) {
			t.Errorf("no line %q in\n%s", w, got.out)
		}
	}
	if strings.Contains(got.out+got.errOut, "s3cr3t") {
		t.Error("shows the password")
	}
}

func TestConfigCheckAsJSON(t *testing.T) {
	type problem struct {
		Path, Variable, File, Message string
		Line                          int
	}
	type setting struct {
		Path, Source string
		Value        any
	}
	var a struct {
		OK       bool
		File     string
		Problems []problem
		Warnings []string
		Settings []setting
	}
	dir := inDir(t, goodConfig)
	got := run(t, dir, []string{"BILLING_SERVICE_PORT=80"}, "config", "check", "--json")
	if err := json.Unmarshal([]byte(got.out), &a); err != nil || got.code != 0 || got.errOut != "" {
		t.Fatalf("exit %d, %v, stderr %q, stdout %s", got.code, err, got.errOut, got.out)
	}
	if !a.OK || a.File != "config.yaml" || len(a.Problems) != 0 || len(a.Settings) < 20 ||
		!slices.Equal(a.Warnings, []string{"BILLING_SERVICE_PORT: not a variable of this service, ignored"}) {
		t.Errorf("got %+v", a)
	}
	if strings.Contains(got.out, "s3cr3t") {
		t.Error("shows the password")
	}

	dir = inDir(t, strings.Replace(goodConfig, "[EUR]", "[eur]", 1))
	got = run(t, dir, []string{"BILLING_JOB=x.y"}, "config", "check", "--json")
	a.OK, a.Settings = true, nil
	if err := json.Unmarshal([]byte(got.out), &a); err != nil || got.code != 2 || got.errOut != "" {
		t.Fatalf("exit %d, %v, stderr %q, stdout %s", got.code, err, got.errOut, got.out)
	}
	want := []problem{
		{Path: "message.currencies[0]", File: "config.yaml", Line: 10, Message: `"eur": want 3 to 16 of A-Z and 0-9, a letter first, such as EUR`},
		{Path: "job", Variable: "BILLING_JOB", Message: `"x.y": want 1 to 40 of a-z, 0-9 and -; no dots, which separate the parts of the transactional ids`},
	}
	if a.OK || len(a.Settings) != 0 || !slices.Equal(a.Problems, want) {
		t.Errorf("got %+v", a)
	}
}

// The driver itself is asked, and what it says of a DSN is not passed on.
func TestWrongDSN(t *testing.T) {
	for _, dsn := range []string{
		"app:s3cr3tPw@tcp(db)/billing?timeout=s3cr3tPw",
		"app:s3cr3tPw@tcp(db)/billing?tls=s3cr3tPw",
		"app:s3cr3tPw@tcp(db)/billing?strict=true",
		"app:s3cr3tPw@tcp(db/billing",
		"app:s3cr3t@Pw/billing",
		"app:s3cr3tPw@tcp(db)",
	} {
		dir := inDir(t, strings.Replace(goodConfig, "app:s3cr3tPw@tcp(127.0.0.1:1)/billing", "'"+dsn+"'", 1))
		got := run(t, dir, nil, "config", "check")
		if got.code != 2 || !strings.Contains(got.errOut, "config.yaml:7: shards[0].dsn: is no data source name: ") || strings.Contains(got.errOut, "s3cr3t") || strings.Contains(got.errOut, "Pw") {
			t.Errorf("%s: exit %d, %s", dsn, got.code, got.errOut)
		}
	}
}

// A start that can't open its admin port says so as a problem of the
// configuration, with the place and what to do.
func TestTakenAdminPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it listens at once
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := inDir(t, goodConfig)
	for listen, next := range map[string]string{
		l.Addr().String(): "address already in use. Next step: another process listens there, perhaps another instance: end it, or give this one another port",
		"192.0.2.1:8080":  "Next step: give it an address of this machine, such as :8080",
	} {
		got := run(t, dir, []string{"BILLING_ADMIN_LISTEN=" + listen}, "run")
		if got.code != 2 || got.out != "" || !strings.Contains(got.errOut, "\n  BILLING_ADMIN_LISTEN: admin.listen: the admin port can't be opened at "+listen+": ") || !strings.Contains(got.errOut, next) {
			t.Errorf("%s: exit %d, %s", listen, got.code, got.errOut)
		}
	}
}
