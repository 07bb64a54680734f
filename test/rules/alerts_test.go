package rules

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

const (
	alertsFile = "deploy/prometheus/alerts.yaml"
	alertTests = "deploy/prometheus/alerts.test.yaml"
)

// alertRule is one rule of the shipped file: an alert, or what is recorded for
// them.
type alertRule struct {
	Record, Alert, Expr, For string
	Labels, Annotations      map[string]string
}

// shippedRules are all rules, read as strictly as Prometheus does.
func shippedRules(t *testing.T) []alertRule {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []alertRule
		}
	}
	if err := yaml.UnmarshalWithOptions([]byte(text(t, alertsFile)), &file, yaml.Strict()); err != nil {
		t.Fatalf("%s: %v", alertsFile, err)
	}
	var all []alertRule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// alertRules are those that alert.
func alertRules(t *testing.T) []alertRule {
	t.Helper()
	alerts := slices.DeleteFunc(shippedRules(t), func(r alertRule) bool { return r.Alert == "" })
	if len(alerts) < 10 {
		t.Fatalf("%s has %d alerts only", alertsFile, len(alerts))
	}
	return alerts
}

// metricLabels are the metrics of the code with their labels.
func metricLabels(t *testing.T) map[string][]string {
	t.Helper()
	code := text(t, "cmd/billing/metrics.go")
	made := map[string][]string{}
	label := regexp.MustCompile(`"([a-z_]+)"`)
	add := func(re string) {
		for _, m := range regexp.MustCompile(re).FindAllStringSubmatch(code, -1) {
			made[m[1]] = nil
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				made[m[1]] = append(made[m[1]], l[1])
			}
		}
	}
	add(`(?s)Name: +"(billing_[a-z_]+)",.*?\n\t+}(, \[\]string{[^}]*})?\)`)
	add(`desc\("(billing_[a-z_]+)", "[^\n]*?"((?:, "[a-z]+")*)\)`)
	if len(made) < 15 || len(made["billing_records_total"]) != 1 || len(made["billing_connections_refused_total"]) != 2 || len(made["billing_lane_stopped"]) != 2 || len(made["billing_takeovers_total"]) != 0 {
		t.Fatalf("metrics of the code: %v", made)
	}
	return made
}

// TestAlerts: an alert names a metric that exists, with labels that it has, and
// says what an operator needs; it leads to its section in the runbook, has a row
// in the table of docs/watching.md, and is shown to fire.
func TestAlerts(t *testing.T) {
	metrics := metricLabels(t)
	ofPrometheus := []string{"job", "instance"}
	for _, r := range shippedRules(t) {
		name := r.Alert + r.Record
		used := regexp.MustCompile(`\bbilling_[a-z_]+(?:{[^}]*})?`).FindAllString(strings.ReplaceAll(r.Expr, "job:billing_lanes_owned:count", ""), -1)
		if len(used) == 0 && !strings.Contains(r.Expr, "job:billing_lanes_owned:count") {
			t.Errorf("%s: %s names no metric of ours", alertsFile, name)
		}
		labels := slices.Clone(ofPrometheus)
		for _, u := range used {
			metric, selectors, _ := strings.Cut(strings.TrimSuffix(u, "}"), "{")
			has, ok := metrics[metric]
			if !ok {
				t.Errorf("%s: %s names %s, which does not exist", alertsFile, name, metric)
			}
			labels = append(labels, has...)
			for _, m := range regexp.MustCompile(`([a-z_]+) *[=!]~?`).FindAllStringSubmatch(selectors, -1) {
				if !slices.Contains(has, m[1]) {
					t.Errorf("%s: %s: %s has no label %s", alertsFile, name, metric, m[1])
				}
			}
		}
		for _, m := range regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`).FindAllStringSubmatch(r.Expr, -1) {
			for l := range strings.SplitSeq(m[1], ", ") {
				if !slices.Contains(labels, l) {
					t.Errorf("%s: %s groups by %s, which none of its metrics has", alertsFile, name, l)
				}
			}
		}
		for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(r.Annotations["summary"]+r.Annotations["description"], -1) {
			if !slices.Contains(labels, m[1]) {
				t.Errorf("%s: %s says %s, which none of its metrics has", alertsFile, name, m[0])
			}
		}
	}

	_, section, ok := strings.Cut(text(t, watchingDoc), "\n## What to alert on\n")
	section, _, end := strings.Cut(section, "\n## ")
	if !ok || !end {
		t.Fatalf("%s does not say what to alert on", watchingDoc)
	}
	table := rows(section)
	shown := text(t, alertTests)
	known := map[string]bool{}
	for _, a := range alertRules(t) {
		if known[a.Alert] {
			t.Errorf("%s has two alerts %s", alertsFile, a.Alert)
		}
		known[a.Alert] = true
		cells := table["`"+a.Alert+"`"]
		if len(cells) != 4 || cells[1] != a.Labels["severity"] {
			t.Errorf("%s: the row of %s is %q, its severity is %q", watchingDoc, a.Alert, cells, a.Labels["severity"])
		}
		if !slices.Contains([]string{"critical", "warning"}, a.Labels["severity"]) || a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s: %s has no severity, summary or description", alertsFile, a.Alert)
		}
		if want := runbookDoc + "#alert-" + strings.ToLower(a.Alert); a.Annotations["runbook_url"] != want {
			t.Errorf("%s: %s leads to %q, not to %s", alertsFile, a.Alert, a.Annotations["runbook_url"], want)
		}
		if !strings.Contains(shown, `alertname="`+a.Alert+`"`) {
			t.Errorf("%s shows no time at which %s fires", alertTests, a.Alert)
		}
	}
	for row := range maps.Keys(table) {
		if name := strings.Trim(row, "`"); name != row && !known[name] {
			t.Errorf("%s has a row for %s, which is no alert", watchingDoc, name)
		}
	}
}
