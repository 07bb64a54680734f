package consume

import "testing"

// TestAdminAddr: where a member's admin port is asked, by its client id and the
// address that the broker sees.
func TestAdminAddr(t *testing.T) {
	for _, c := range []struct{ id, host, want string }{
		{"billing-j@[::]:8080", "10.0.0.7", "10.0.0.7:8080"},
		{"billing-j@0.0.0.0:8080", "10.0.0.7", "10.0.0.7:8080"},
		{"billing-j@:8080", "10.0.0.7", "10.0.0.7:8080"},
		{"billing-j@[::]:8080", "fd00:0:0:0:0:0:0:7", "[fd00:0:0:0:0:0:0:7]:8080"},
		{"billing-j@127.0.0.1:41234", "10.0.0.7", "127.0.0.1:41234"},
		{"billing-j@[::1]:41234", "10.0.0.7", "[::1]:41234"},
		{"billing-j@admin.example:1", "10.0.0.7", "admin.example:1"},
		{"billing-j", "10.0.0.7", ""},            // an older build, or no port
		{"billing-j2@[::]:8080", "10.0.0.7", ""}, // another job's: not in this group
		{"somebody@else:8080", "10.0.0.7", ""},
		{"billing-j@nonsense", "10.0.0.7", ""},
	} {
		if got := adminAddr(c.id, "billing-j", c.host); got != c.want {
			t.Errorf("%s from %s: %q, want %q", c.id, c.host, got, c.want)
		}
	}
}

func TestPlainHost(t *testing.T) {
	for host, want := range map[string]string{
		"/10.0.0.7":           "10.0.0.7",
		"name/10.0.0.7":       "10.0.0.7",
		"127.0.0.1:54870":     "127.0.0.1",
		"/fd00:0:0:0:0:0:0:7": "fd00:0:0:0:0:0:0:7",
		"":                    "",
	} {
		if got := plainHost(host); got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	}
}
