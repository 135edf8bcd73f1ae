package deploy

import (
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// composeSecrets returns values for the secrets that compose.yaml reads from the environment.
func composeSecrets() map[string]string {
	return map[string]string{"admin": adminToken, "cache": "cache-key-with-at-least-32-characters"}
}

// composeEnv returns the environment for the configuration of compose.yaml, without telemetry.
func composeEnv(redisURL string) []string {
	return []string{"UPSTREAM_URL=http://127.0.0.1:1", "REDIS_URL=" + redisURL, "OTEL_METRICS_EXPORTER=none", "OTEL_LOGS_EXPORTER=none"}
}

// composeProject loads compose.yaml with the library of docker compose. Only the variables of env are set.
func composeProject(t *testing.T, env ...string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{root + "/deploy/compose/compose.yaml"}, cli.WithEnv(env), cli.WithResolvedPaths(true))
	must(t, err)
	p, err := cli.ProjectFromOptions(t.Context(), options)
	must(t, err)
	return p
}

// mounted returns the content of the file that a service mounts at a path.
func mounted(t *testing.T, s types.ServiceConfig, path string) string {
	t.Helper()
	for _, v := range s.Volumes {
		if v.Target == path {
			failIf(t, !v.ReadOnly, "service %s: the mount %s is not read-only", s.Name, path)
			b, err := os.ReadFile(v.Source)
			stopIf(t, err != nil, "service %s: %v", s.Name, err)
			return string(b)
		}
	}
	t.Fatalf("service %s has no mount at %s", s.Name, path)
	return ""
}

func TestComposePinsImagesAndPublishesOnLoopbackOnly(t *testing.T) {
	p := composeProject(t)
	for name, s := range p.Services {
		failIf(t, strings.HasSuffix(s.Image, ":latest") || !strings.Contains(s.Image, ":"), "service %s: image %q has no version", name, s.Image)
		for _, v := range s.Volumes {
			if v.Type == "bind" {
				mounted(t, s, v.Target)
			}
		}
		for _, port := range s.Ports {
			failIf(t, port.HostIP != "127.0.0.1", "service %s: port %s is published on %q, want 127.0.0.1", name, port.Published, port.HostIP)
		}
		for dependency := range s.DependsOn {
			failIf(t, p.Services[dependency].HealthCheck == nil, "service %s depends on the health of %s, which has no health check", name, dependency)
		}
	}
	got, want := strings.Join(slices.Sorted(maps.Keys(p.Services)), " "), "collector grafana jaeger prometheus redis service weir"
	failIf(t, got != want, "services %s, want %s", got, want)
	if s := p.Services["weir"]; s.ReadOnly {
		t.Error("weir is read-only, but docker cannot mount secrets from the environment in a read-only container")
	}
}

func TestComposeConfigurationStartsGateway(t *testing.T) {
	p := composeProject(t)
	s := p.Services["weir"]
	for name, secret := range p.Secrets {
		_, known := composeSecrets()[name]
		failIf(t, !known || secret.Environment == "", "secret %s is unknown or does not come from the environment: %+v", name, secret)
	}
	var env []string
	for name, value := range s.Environment {
		switch name {
		case "REDIS_URL":
			env = append(env, "REDIS_URL="+startRedis(t))
		case "OTEL_EXPORTER_OTLP_ENDPOINT":
			env = append(env, name+"="+telemetryReceiver(t))
		default:
			env = append(env, name+"="+*value)
		}
	}
	upstream := *s.Environment["UPSTREAM_URL"]
	service := p.Services["service"].Command
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(upstream, "http://"))
	failIf(t, upstream != "http://service:"+port || service[len(service)-1] != ":"+port, "the upstream is %s, but the service runs %v", upstream, service)
	r := startGateway(t, mounted(t, s, "/etc/weir/weir.yaml"), "/run/secrets", composeSecrets(), env...)
	r.checkAdmin("weir:9090")
	r.want(http.StatusForbidden, "", r.admin+"/metrics", "Host: elsewhere:9090", "Authorization: Bearer "+adminToken)
}

// telemetryReceiver starts a server that accepts telemetry, and returns its URL.
func telemetryReceiver(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestComposePrometheusScrapesWeirWithToken(t *testing.T) {
	p := composeProject(t)
	s := p.Services["prometheus"]
	// promtool needs the files in one folder, as in the container.
	folder := t.TempDir()
	for _, name := range []string{"prometheus.yml", "weir.rules.yml", "admin"} {
		content := adminToken
		if name != "admin" {
			content = strings.ReplaceAll(mounted(t, s, "/etc/prometheus/"+name), "/run/secrets/admin", folder+"/admin")
		}
		writeFile(t, folder, name, content)
	}
	runTool(t, "promtool", "check", "config", folder+"/prometheus.yml")
	failIf(t, !slices.ContainsFunc(s.Secrets, func(c types.ServiceSecretConfig) bool { return c.Source == "admin" }), "service prometheus does not get the secret admin")
	var file struct {
		Global  map[string]string `yaml:"global"`
		Rules   []string          `yaml:"rule_files"`
		Scrapes []struct {
			Job           string            `yaml:"job_name"`
			Authorization map[string]string `yaml:"authorization"`
			Static        []struct {
				Targets []string `yaml:"targets"`
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	decodeYAML(t, "deploy/compose/prometheus.yml", &file)
	got := file.Scrapes[0].Static[0].Targets[0]
	failIf(t, got != "weir:9090" || file.Scrapes[0].Authorization["credentials_file"] != "/run/secrets/admin", "prometheus.yml does not scrape weir:9090 with the token: %+v", file)
}

func TestComposeCollectorForwardsTracesToAService(t *testing.T) {
	p := composeProject(t)
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
	decodeYAML(t, "deploy/compose/collector.yaml", &c)
	to := *p.Services["weir"].Environment["OTEL_EXPORTER_OTLP_ENDPOINT"]
	_, port, _ := net.SplitHostPort(c.Receivers["otlp"].Protocols["http"].Endpoint)
	failIf(t, to != "http://collector:"+port, "Weir sends to %s, the collector listens on %s", to, port)
	traces := c.Service.Pipelines["traces"]
	for _, name := range traces.Processors {
		_, ok := c.Processors[name]
		failIf(t, !ok, "the processor %s is not defined", name)
	}
	for _, name := range traces.Exporters {
		host, _, _ := net.SplitHostPort(c.Exporters[name].Endpoint)
		_, ok := p.Services[host]
		failIf(t, !ok, "the exporter %s sends to %q, which is not a service", name, host)
	}
	failIf(t, len(traces.Receivers) != 1 || len(traces.Exporters) == 0, "want one receiver and an exporter for traces, got %+v", traces)
}

func TestComposeGrafanaDataSourcesAreServices(t *testing.T) {
	p := composeProject(t)
	s := p.Services["grafana"]
	mounted(t, s, "/etc/grafana/provisioning/dashboards/weir.yaml")
	mounted(t, s, "/var/lib/grafana/dashboards/weir.json")
	for _, path := range []string{"deploy/grafana/provisioning/datasources/prometheus.yaml", "deploy/compose/jaeger.yaml"} {
		got := mounted(t, s, "/etc/grafana/provisioning/datasources/"+filepath.Base(path))
		failIf(t, got != readFile(t, path), "service grafana does not mount %s", path)
		var file struct {
			APIVersion  int `yaml:"apiVersion"`
			Datasources []struct {
				Name, Type, Access, URL string
				Default                 bool `yaml:"isDefault"`
			}
		}
		decodeYAML(t, path, &file)
		for _, source := range file.Datasources {
			host, _, _ := net.SplitHostPort(strings.TrimPrefix(source.URL, "http://"))
			_, ok := p.Services[host]
			failIf(t, !ok, "%s: data source %s: %q is not a service", path, source.Name, host)
		}
	}
}
