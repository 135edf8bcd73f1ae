package deploy

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// The secrets that compose.yaml takes from the environment.
func composeSecrets() map[string]string {
	return map[string]string{"admin": adminToken, "cache": "a-key-of-32-characters-or-more-it-is"}
}

func composeEnv(redisURL string) []string {
	return []string{"UPSTREAM_URL=http://127.0.0.1:1", "REDIS_URL=" + redisURL, "OTEL_METRICS_EXPORTER=none", "OTEL_LOGS_EXPORTER=none"}
}

// project loads compose.yaml as docker compose does, with these variables only.
func project(t *testing.T, env ...string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{root + "/deploy/compose/compose.yaml"}, cli.WithEnv(env), cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	p, err := cli.ProjectFromOptions(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// mounted finds the file of the checkout that a service has at a path.
func mounted(t *testing.T, s types.ServiceConfig, at string) string {
	t.Helper()
	for _, v := range s.Volumes {
		if v.Target == at {
			if !v.ReadOnly {
				t.Errorf("%s: %s can be written", s.Name, at)
			}
			b, err := os.ReadFile(v.Source)
			if err != nil {
				t.Fatalf("%s: %v", s.Name, err)
			}
			return string(b)
		}
	}
	t.Fatalf("%s has nothing at %s", s.Name, at)
	return ""
}

func TestComposeIsInOrder(t *testing.T) {
	p := project(t)
	for name, s := range p.Services {
		if strings.HasSuffix(s.Image, ":latest") || !strings.Contains(s.Image, ":") {
			t.Errorf("%s: which version is %q?", name, s.Image)
		}
		for _, v := range s.Volumes {
			if v.Type == "bind" {
				mounted(t, s, v.Target)
			}
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: others reach %s", name, port.Published)
			}
		}
		for of := range s.DependsOn {
			if p.Services[of].HealthCheck == nil {
				t.Errorf("%s waits for the health of %s, which has none", name, of)
			}
		}
	}
	var names []string
	for name := range p.Services {
		names = append(names, name)
	}
	slices.Sort(names)
	if want := "collector grafana jaeger prometheus redis service weir"; strings.Join(names, " ") != want {
		t.Errorf("services %v, want %s", names, want)
	}
	if s := p.Services["weir"]; s.ReadOnly {
		t.Error("docker cannot hand secrets of the environment to a container that is read-only")
	}
}

// TestComposeRunsTheReferenceServiceAndAGatewayBeforeIt starts both as compose.yaml says.
func TestComposeRunsTheReferenceServiceAndAGatewayBeforeIt(t *testing.T) {
	p := project(t)
	s := p.Services["weir"]
	for name, secret := range p.Secrets {
		if _, known := composeSecrets()[name]; !known || secret.Environment == "" {
			t.Errorf("secret %s: %+v", name, secret)
		}
	}
	var env []string
	for name, value := range s.Environment {
		switch name {
		case "REDIS_URL":
			env = append(env, "REDIS_URL="+redis(t))
		case "OTEL_EXPORTER_OTLP_ENDPOINT":
			env = append(env, name+"="+backend(t))
		default:
			env = append(env, name+"="+*value)
		}
	}
	upstream := *s.Environment["UPSTREAM_URL"]
	service := p.Services["service"].Command
	if _, port, _ := net.SplitHostPort(strings.TrimPrefix(upstream, "http://")); upstream != "http://service:"+port || service[len(service)-1] != ":"+port {
		t.Errorf("%s is not where %v listens", upstream, service)
	}
	r := run(t, mounted(t, s, "/etc/weir/weir.yaml"), "/run/secrets", composeSecrets(), env...)
	r.operated("weir:9090")
	if status, _ := r.asks(r.admin+"/metrics", "Host: elsewhere:9090", "Authorization: Bearer "+adminToken); status != http.StatusForbidden {
		t.Errorf("by another name: %d", status)
	}
}

// backend is where telemetry goes.
func backend(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return "http://" + l.Addr().String()
}

// TestPrometheusOfComposeKnowsWhereWeirIs has promtool check the file with the rules beside
// it, as they lie in the container.
func TestPrometheusOfComposeKnowsWhereWeirIs(t *testing.T) {
	p := project(t)
	s := p.Services["prometheus"]
	folder := t.TempDir()
	for _, name := range []string{"prometheus.yml", "weir.rules.yml", "admin"} {
		content := adminToken
		if name != "admin" {
			content = strings.ReplaceAll(mounted(t, s, "/etc/prometheus/"+name), "/run/secrets/admin", folder+"/admin")
		}
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tool(t, "promtool", "check", "config", folder+"/prometheus.yml")
	if !slices.ContainsFunc(s.Secrets, func(c types.ServiceSecretConfig) bool { return c.Source == "admin" }) {
		t.Error("Prometheus has no token")
	}
	var file struct {
		Global    map[string]string `yaml:"global"`
		Rules     []string          `yaml:"rule_files"`
		Scrapings []struct {
			Job           string            `yaml:"job_name"`
			Authorization map[string]string `yaml:"authorization"`
			Static        []struct {
				Targets []string `yaml:"targets"`
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	into(t, "deploy/compose/prometheus.yml", &file)
	if got := file.Scrapings[0].Static[0].Targets[0]; got != "weir:9090" || file.Scrapings[0].Authorization["credentials_file"] != "/run/secrets/admin" {
		t.Errorf("%+v", file)
	}
}

// TestTracesOfComposeArriveSomewhere follows them: where Weir sends them the collector
// listens, and it hands them on to what is there.
func TestTracesOfComposeArriveSomewhere(t *testing.T) {
	p := project(t)
	var c struct {
		Receivers map[string]struct {
			Protocols map[string]struct{ Endpoint string }
		}
		Processors map[string]map[string]any
		Exporters  map[string]struct {
			Endpoint string
			TLS      map[string]bool
		}
		Service struct {
			Pipelines map[string]struct{ Receivers, Processors, Exporters []string }
		}
	}
	into(t, "deploy/compose/collector.yaml", &c)
	to := *p.Services["weir"].Environment["OTEL_EXPORTER_OTLP_ENDPOINT"]
	if _, port, _ := net.SplitHostPort(c.Receivers["otlp"].Protocols["http"].Endpoint); to != "http://collector:"+port {
		t.Errorf("Weir sends to %s, the collector listens on %s", to, port)
	}
	traces := c.Service.Pipelines["traces"]
	for _, name := range traces.Processors {
		if _, ok := c.Processors[name]; !ok {
			t.Errorf("no processor %s", name)
		}
	}
	for _, name := range traces.Exporters {
		host, _, _ := net.SplitHostPort(c.Exporters[name].Endpoint)
		if _, ok := p.Services[host]; !ok {
			t.Errorf("%s is nobody's name", host)
		}
	}
	if len(traces.Receivers) != 1 || len(traces.Exporters) == 0 {
		t.Errorf("%+v", traces)
	}
}

// TestGrafanaOfComposeFindsItsSources: what is provisioned is where Grafana looks, and leads
// to a service of that name.
func TestGrafanaOfComposeFindsItsSources(t *testing.T) {
	p := project(t)
	s := p.Services["grafana"]
	mounted(t, s, "/etc/grafana/provisioning/dashboards/weir.yaml")
	mounted(t, s, "/var/lib/grafana/dashboards/weir.json")
	for _, path := range []string{"deploy/grafana/provisioning/datasources/prometheus.yaml", "deploy/compose/jaeger.yaml"} {
		if got := mounted(t, s, "/etc/grafana/provisioning/datasources/"+filepath.Base(path)); got != text(t, path) {
			t.Errorf("%s is another file", path)
		}
		var file struct {
			APIVersion  int `yaml:"apiVersion"`
			Datasources []struct {
				Name, Type, Access, URL string
				Default                 bool `yaml:"isDefault"`
			}
		}
		into(t, path, &file)
		for _, source := range file.Datasources {
			host, _, _ := net.SplitHostPort(strings.TrimPrefix(source.URL, "http://"))
			if _, ok := p.Services[host]; !ok {
				t.Errorf("%s: %s is nobody's name", path, host)
			}
		}
	}
}
