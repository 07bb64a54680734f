package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"billing/cmd/billing/config"
	"billing/internal/admin"

	"github.com/goccy/go-yaml"
)

// inRepository reads a file of the repository.
func inRepository(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// only is the single match's first group.
func only(t *testing.T, where, text, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1)
	if len(found) != 1 {
		t.Fatalf("%s has %d of %s", where, len(found), pattern)
	}
	return found[0][1]
}

// shipped loads a configuration whose secrets are mounted in a folder. secrets are what each file has.
func shipped(t *testing.T, text, folder string, secrets map[string]string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	for name, dsn := range secrets {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(dsn), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, folder+"/", dir+"/")), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := loadConfig(file, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if !c.FirstStart || len(c.Shards) != len(secrets) {
		t.Errorf("first_start is %t, there are %d shards", c.FirstStart, len(c.Shards))
	}
	return c
}

// enoughMemory: a container that has less than the configuration may need is killed by the system.
func enoughMemory(t *testing.T, where string, c *config.Config, limit string) {
	t.Helper()
	digits := strings.TrimRight(limit, "GMgikm")
	n, err := strconv.ParseInt(digits, 10, 64)
	unit, known := map[string]int64{"Mi": 1 << 20, "Gi": 1 << 30, "m": 1 << 20, "g": 1 << 30}[limit[len(digits):]]
	if err != nil || !known {
		t.Fatalf("%s has the limit %q", where, limit)
	}
	if n *= unit; n < c.MemoryNeed() {
		t.Errorf("%s has a limit of %s, the configuration may need %s", where, size(n), size(c.MemoryNeed()))
	}
}

// enoughGrace: what stops the service has to wait for longer than the service takes, with some room for a slow machine.
func enoughGrace(t *testing.T, where string, grace time.Duration) {
	t.Helper()
	if grace < exitWithin+5*time.Second {
		t.Errorf("%s gives %s, the service may take %s", where, grace, exitWithin)
	}
}

func TestComposeFile(t *testing.T) {
	var file struct {
		Services map[string]struct {
			Command         any
			Ports           []string
			StopGracePeriod string `yaml:"stop_grace_period"`
			MemLimit        string `yaml:"mem_limit"`
			User            string
			Secrets         []any
		}
		Secrets map[string]struct{ File string }
	}
	text := inRepository(t, "compose.yaml")
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		t.Fatal(err)
	}
	for name, s := range file.Secrets {
		if inRepository(t, s.File) == "" {
			t.Errorf("secret %s is empty", name)
		}
	}
	conf := inRepository(t, "deploy/compose/billing.yaml")
	for name, command := range map[string]string{"migrate": "migrate", "billing-1": "run", "billing-2": "run", "look": "status", "load": "produce"} {
		s := file.Services[name]
		if said, _ := s.Command.(string); strings.Fields(said + " -")[0] != command { //nolint:errcheck // another kind is none
			t.Errorf("%s does %v, not %s", name, s.Command, command)
		}
		secrets := map[string]string{}
		for _, secret := range s.Secrets {
			m, _ := secret.(map[string]any) //nolint:errcheck // another kind is none
			source, target := fmt.Sprint(m["source"]), fmt.Sprint(m["target"])
			secrets[target] = inRepository(t, file.Secrets[source].File)
		}
		c := shipped(t, conf, "/run/secrets", secrets)
		if command != "run" {
			continue
		}
		enoughMemory(t, name, c, s.MemLimit)
		listen := c.Admin.Listen
		if len(s.Ports) != 1 || !strings.HasPrefix(s.Ports[0], "127.0.0.1:") || !strings.HasSuffix(s.Ports[0], listen) {
			t.Errorf("%s has ports %q, it listens on %s", name, s.Ports, listen)
		}
		grace, err := time.ParseDuration(s.StopGracePeriod)
		if err != nil {
			t.Error(err)
		}
		enoughGrace(t, name, grace)
	}
}

// What the Dockerfile, compose.yaml and the tests take by themselves is the same.
func TestSameImagesEverywhere(t *testing.T) {
	compose, dockerfile, images := inRepository(t, "compose.yaml"), inRepository(t, "Dockerfile"), inRepository(t, "test/servers/images.env")
	for variable, official := range map[string]string{"KAFKA_IMAGE": "OFFICIAL_KAFKA_IMAGE", "MYSQL_IMAGE": "OFFICIAL_MYSQL_IMAGE", "BUILD_IMAGE": "OFFICIAL_BUILD_IMAGE"} {
		want := only(t, "images.env", images, `(?m)^`+official+`=(.+)$`)
		for _, m := range regexp.MustCompile(`\$\{`+variable+`:-([^}]*)\}`).FindAllStringSubmatch(compose, -1) {
			if m[1] != want {
				t.Errorf("compose.yaml has %s, images.env %s", m[1], want)
			}
		}
	}
	if got, want := only(t, "Dockerfile", dockerfile, `(?m)^ARG BUILD_IMAGE=(.+)$`), only(t, "images.env", images, `(?m)^OFFICIAL_BUILD_IMAGE=(.+)$`); got != want {
		t.Errorf("the Dockerfile has %s, images.env %s", got, want)
	}
}

// manifest is what we look at in one document of those for Kubernetes.
type manifest struct {
	Kind string
	Data map[string]string
	Spec struct {
		Ports    []struct{ Port int }
		Template struct {
			Spec struct {
				Grace      int `yaml:"terminationGracePeriodSeconds"`
				Containers []struct {
					Image string
					Args  []string
					Ports []struct {
						Port int `yaml:"containerPort"`
					}
					Mounts []struct {
						Name string
						Path string `yaml:"mountPath"`
					} `yaml:"volumeMounts"`
					Resources struct{ Requests, Limits struct{ Memory string } }
					Liveness  probe `yaml:"livenessProbe"`
					Readiness probe `yaml:"readinessProbe"`
				}
			}
		}
	}
}

type probe struct {
	Get struct{ Path string } `yaml:"httpGet"`
}

// manifests are the documents of a file, by kind.
func manifests(t *testing.T, file string) map[string]manifest {
	t.Helper()
	all := map[string]manifest{}
	for dec := yaml.NewDecoder(strings.NewReader(inRepository(t, file))); ; {
		var m manifest
		err := dec.Decode(&m)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all[m.Kind] = m
	}
}

func TestKubernetesManifests(t *testing.T) {
	all := manifests(t, "deploy/kubernetes.yaml")
	for kind, m := range manifests(t, "deploy/kubernetes-migrate.yaml") {
		if kind != "ConfigMap" && kind != "Job" {
			t.Errorf("a %s is made before the tables are", kind)
		}
		if _, twice := all[kind]; twice {
			t.Errorf("the %s is in the service's file, too", kind)
		}
		all[kind] = m
	}
	dockerfile := inRepository(t, "Dockerfile")
	const dsn = "billing:secret@tcp(mysql:3306)/billing_"
	for kind, command := range map[string]string{"StatefulSet": "run", "Job": "migrate --if-needed"} {
		containers := all[kind].Spec.Template.Spec.Containers
		if len(containers) != 1 || !slices.Equal(containers[0].Args, strings.Fields(command)) {
			t.Fatalf("the %s has %+v", kind, containers)
		}
		if image := all["StatefulSet"].Spec.Template.Spec.Containers[0].Image; containers[0].Image != image {
			t.Errorf("the %s is of the image %s, the service of %s", kind, containers[0].Image, image)
		}
		mounts := map[string]string{}
		for _, m := range containers[0].Mounts {
			mounts[m.Name] = m.Path
		}
		if workdir := only(t, "Dockerfile", dockerfile, `(?m)^WORKDIR (/etc/.+)$`); mounts["config"] != workdir {
			t.Errorf("the configuration is mounted at %s, and looked for in %s", mounts["config"], workdir)
		}
		conf := all["ConfigMap"].Data["config.yaml"]
		if !strings.Contains(conf, path.Join(mounts["secrets"], "shard-a")) {
			t.Errorf("the secrets are mounted at %s, where the configuration does not look", mounts["secrets"])
		}
		loaded := shipped(t, conf, mounts["secrets"], map[string]string{"shard-a": dsn + "a", "shard-b": dsn + "b"})
		if command != "run" {
			continue
		}
		c := containers[0]
		enoughMemory(t, kind, loaded, c.Resources.Limits.Memory)
		if c.Resources.Requests.Memory != c.Resources.Limits.Memory {
			t.Errorf("it asks for %s of memory, and may have %s", c.Resources.Requests.Memory, c.Resources.Limits.Memory)
		}
		listen := loaded.Admin.Listen
		if port := ":" + fmt.Sprint(c.Ports[0].Port); listen != port || all["Service"].Spec.Ports[0].Port != c.Ports[0].Port {
			t.Errorf("it listens on %s, the container's port is %s, the service's %d", listen, port, all["Service"].Spec.Ports[0].Port)
		}
		enoughGrace(t, kind, time.Duration(all[kind].Spec.Template.Spec.Grace)*time.Second)
		for _, probe := range []string{c.Liveness.Get.Path, c.Readiness.Get.Path} {
			if code := adminAnswers(t, probe); code != http.StatusOK {
				t.Errorf("the admin port answers %q with %d", probe, code)
			}
		}
	}
	if user := only(t, "Dockerfile", dockerfile, `(?m)^USER (\d+):\d+$`); user == "0" {
		t.Error("the image's user is root")
	}
}

// adminAnswers is the code of an instance's answer that is well.
func adminAnswers(t *testing.T, path string) int {
	t.Helper()
	s := admin.New(admin.Config{
		Listen: net.JoinHostPort("127.0.0.1", "0"), Health: func() admin.Report { return admin.Report{} },
		Ready: func() (bool, string) { return true, "" }, Status: func() admin.Instance { return admin.Instance{} }, Metrics: http.NotFoundHandler(),
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addr()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}
