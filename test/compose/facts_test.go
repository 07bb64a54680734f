package compose

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"billing/test/servers"
)

// inspected is what docker says of a container or an image.
type inspected struct {
	Name   string
	Size   int64
	Config struct{ User string }
	State  struct {
		Status   string
		ExitCode int
		Health   *struct{ Status string }
	}
	HostConfig struct{ ReadonlyRootfs bool }
}

func (p *project) inspect(t *testing.T, what ...string) []inspected {
	t.Helper()
	var all []inspected
	if err := json.Unmarshal([]byte(p.output(t, "docker", append([]string{"inspect"}, what...)...)), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// container is the id of a service's container.
func (p *project) container(t *testing.T, service string) string {
	t.Helper()
	ids, err := p.of(t.Context(), p.name, "container", "--all", "--filter", "label=com.docker.compose.service="+service, "--filter", "label=com.docker.compose.oneoff=False")
	if err != nil || len(ids) != 1 {
		t.Fatalf("%s has containers %q, %v", service, ids, err)
	}
	return ids[0]
}

// checkTakeover: the instance was killed while there was work: the next owner of its lanes has booked some.
func (p *project) checkTakeover(t *testing.T) {
	t.Helper()
	rows := p.output(t, "scripts/compose", "exec", "-T", "mysql", "mysql", "--defaults-extra-file=/run/secrets/mysql-client", "--skip-table", "--batch", "--skip-column-names",
		"-e", "SELECT COUNT(DISTINCT kafka_partition) FROM billing_a.billing_epoch e WHERE records_in > 0 AND seq > 1 AND incarnation > (SELECT MIN(incarnation) FROM billing_a.billing_epoch f WHERE f.kafka_topic = e.kafka_topic AND f.kafka_partition = e.kafka_partition)")
	if lanes := strings.TrimSpace(rows); lanes != "3" {
		t.Errorf("%s lanes were taken over with work left to do, not 3", lanes)
	}
}

// checkImage: small, and no process of it is root's.
func (p *project) checkImage(t *testing.T) {
	t.Helper()
	image := p.inspect(t, p.image)[0]
	if image.Config.User != "65532:65532" {
		t.Errorf("the image's user is %q", image.Config.User)
	}
	const most = 25 << 20
	if image.Size == 0 || image.Size > most {
		t.Errorf("the image has %.1f MB, more than %d", float64(image.Size)/1e6, most/1_000_000)
	}
	t.Logf("the image has %.1f MB", float64(image.Size)/1e6)
	version := p.output(t, "docker", "run", "--rm", "--read-only", "--network=none", p.image, "version")
	if !strings.Contains(version, "billing (devel)\n") {
		t.Errorf("version says %q", version)
	}
	if c := p.inspect(t, p.container(t, "billing-2"))[0]; !c.HostConfig.ReadonlyRootfs {
		t.Error("billing-2 may write to its file system")
	}
}

// checkSecrets: the passwords are in the files of secrets, and nowhere else that one can look.
func (p *project) checkSecrets(t *testing.T) {
	t.Helper()
	all, err := p.of(t.Context(), p.name, "container", "--all")
	if err != nil || len(all) < 6 {
		t.Fatalf("containers: %q, %v", all, err)
	}
	places := map[string]string{
		"docker inspect":         p.output(t, "docker", append([]string{"inspect", p.image}, all...)...),
		"the containers' logs":   p.output(t, "scripts/compose", "logs", "--no-color"),
		"scripts/compose config": p.output(t, "scripts/compose", "config"),
		"billing config check":   p.output(t, "scripts/compose", "exec", "-T", "billing-2", "/billing", "config", "check"),
	}
	files, err := filepath.Glob(filepath.Join(p.root, "deploy/compose/secrets/*"))
	if err != nil {
		t.Fatal(err)
	}
	passwords := map[string]bool{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range regexp.MustCompile(`\w+-of-the-example`).FindAllString(string(b), -1) {
			passwords[word] = true
		}
	}
	if len(passwords) != 4 {
		t.Errorf("the secrets have the passwords %v", passwords)
	}
	for place, text := range places {
		if len(text) < 100 {
			t.Errorf("%s: %q", place, text)
		}
		for word := range passwords {
			if strings.Contains(text, word) {
				t.Errorf("%s has %s", place, word)
			}
		}
	}
}

// checkHealthAndStop: the instances are healthy by the image's own check and answer at their ports of this machine, and
// on SIGTERM they end in good order before Docker would kill them.
func (p *project) checkHealthAndStop(t *testing.T) {
	t.Helper()
	instances := []string{p.container(t, "billing-1"), p.container(t, "billing-2")}
	servers.Eventually(t, 2*time.Minute, func() error {
		for _, c := range p.inspect(t, instances...) {
			if c.State.Health == nil || c.State.Health.Status != "healthy" {
				return fmt.Errorf("%s is %+v", c.Name, c.State)
			}
		}
		return nil
	})
	servers.Eventually(t, 2*time.Minute, func() error { return p.ready(t) })
	p.output(t, "scripts/compose", "stop", "billing-1", "billing-2")
	for _, c := range p.inspect(t, instances...) {
		if c.State.Status != "exited" || c.State.ExitCode != 0 {
			t.Errorf("after stop %s is %+v", c.Name, c.State)
		}
	}
}

// ready asks both instances at their ports.
func (p *project) ready(t *testing.T) error {
	t.Helper()
	for _, port := range p.ports {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/readyz", port), nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("port %d: %s", port, answer.Status)
		}
	}
	return nil
}

func (p *project) checkNothingIsLeft(t *testing.T) {
	t.Helper()
	for _, kind := range []string{"container", "network", "volume"} {
		var all []string
		if kind == "container" {
			all = []string{"--all"}
		}
		if left, err := p.of(t.Context(), p.name, kind, all...); err != nil || len(left) > 0 {
			t.Errorf("after down -v there are %ss: %q, %v", kind, left, err)
		}
	}
}
