package deploy

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/batchprocessor"
	"go.opentelemetry.io/collector/processor/memorylimiterprocessor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc"
)

const tracesRecipe = "docs/recipes/traces.md"

// recipeBlock returns the block of the recipe for traces whose first line names the file.
func recipeBlock(t *testing.T, file string) string {
	t.Helper()
	m := regexp.MustCompile("(?ms)^```ya?ml\n# " + regexp.QuoteMeta(file) + `.*?\n(.*?)^` + "```").FindStringSubmatch(readFile(t, tracesRecipe))
	stopIf(t, m == nil, "%s has no block for %s", tracesRecipe, file)
	return m[1]
}

// traceBackend receives the traces that the collector exports to Jaeger or Tempo.
type traceBackend struct {
	collectortrace.UnimplementedTraceServiceServer
	address string
	mu      sync.Mutex
	spans   []*trace.Span
}

func (b *traceBackend) Export(_ context.Context, in *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range in.GetResourceSpans() {
		for _, s := range r.GetScopeSpans() {
			b.spans = append(b.spans, s.GetSpans()...)
		}
	}
	return &collectortrace.ExportTraceServiceResponse{}, nil
}

// server returns the span of kind server of a trace, or nil.
func (b *traceBackend) server(id string) *trace.Span {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.spans {
		if hex.EncodeToString(s.GetTraceId()) == id && s.GetKind() == trace.Span_SPAN_KIND_SERVER {
			return s
		}
	}
	return nil
}

func startTraceBackend(t *testing.T) *traceBackend {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	b := &traceBackend{address: listener.Addr().String()}
	server := grpc.NewServer()
	collectortrace.RegisterTraceServiceServer(server, b)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return b
}

// startCollector runs the OpenTelemetry collector with a configuration.
func startCollector(t *testing.T, config string) {
	t.Helper()
	path := writeFile(t, t.TempDir(), "collector.yaml", config)
	c, err := otelcol.NewCollector(otelcol.CollectorSettings{
		BuildInfo: component.NewDefaultBuildInfo(),
		Factories: func() (f otelcol.Factories, err error) {
			if f.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory()); err != nil {
				return f, err
			}
			if f.Processors, err = otelcol.MakeFactoryMap[processor.Factory](batchprocessor.NewFactory(), memorylimiterprocessor.NewFactory()); err != nil {
				return f, err
			}
			f.Telemetry = telemetry.NewFactory(func() component.Config { return struct{}{} }) // the collector has no factory for it
			f.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](otlpexporter.NewFactory())
			return f, err
		},
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			URIs: []string{"file:" + path}, ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
		}},
		DisableGracefulShutdown: true,
	})
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(context.WithoutCancel(t.Context())) }()
	t.Cleanup(func() {
		c.Shutdown()
		err := <-ended
		failIf(t, err != nil, "collector: %v", err)
	})
	eventually(t, "the collector runs", func() bool {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("collector: %v\n%s", err, config)
		default:
		}
		return c.GetState() == otelcol.StateRunning
	})
}

// startPrometheus runs the documented command with a configuration and returns the URL of the server.
func startPrometheus(t *testing.T, config string) string {
	t.Helper()
	path := writeFile(t, t.TempDir(), "prometheus.yml", config)
	runTool(t, "promtool", "check", "config", path)
	m := regexp.MustCompile(`(?m)^prometheus --config.file=prometheus.yml (.*)$`).FindStringSubmatch(readFile(t, tracesRecipe))
	stopIf(t, m == nil, "%s has no command for Prometheus", tracesRecipe)
	address := freeAddress(t)
	cmd := exec.Command("prometheus", append(strings.Fields(m[1]), "--config.file="+path, "--storage.tsdb.path="+t.TempDir(), "--web.listen-address="+address)...)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	return "http://" + address
}

// TestTracesRecipeLeadsFromExemplarToTrace runs the programs of the recipe, sends a request of a client that traces it,
// and finds its trace by traceresponse and by the exemplar that Prometheus stored.
func TestTracesRecipeLeadsFromExemplarToTrace(t *testing.T) {
	t.Parallel()
	backend := startTraceBackend(t)
	otlp := freeAddress(t)
	startCollector(t, strings.NewReplacer("0.0.0.0:4318", otlp, "tempo:4317", backend.address).Replace(recipeBlock(t, "collector.yaml")))

	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }))
	t.Cleanup(upstream.Close)
	m := regexp.MustCompile(`(?m)^export (OTEL_.*)$`).FindStringSubmatch(readFile(t, tracesRecipe))
	stopIf(t, m == nil || !strings.Contains(m[1], "=http://collector:4318 "), "%s does not set the variables of Weir, got %q", tracesRecipe, m)
	env := strings.Fields(strings.ReplaceAll(m[1], "collector:4318", otlp))
	config := strings.NewReplacer("https://api.github.com", upstream.URL, "${ADMIN_TOKEN_FILE}", "/run/secrets/weir/admin").Replace(recipeBlock(t, "weir.yaml"))
	g := startGateway(t, config, "/run/secrets/weir", map[string]string{"admin": adminToken}, append(env, "OTEL_BSP_SCHEDULE_DELAY=100")...)
	g.checkAdmin("weir:9090")

	token := filepath.Join(filepath.Dir(g.config), "admin")
	prometheus := startPrometheus(t, strings.NewReplacer("/run/secrets/weir/admin", token, "15s", "1s",
		`"weir:9090"`, `"`+strings.TrimPrefix(g.admin, "http://")+`"`).Replace(recipeBlock(t, "prometheus.yml")))

	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	req, err := http.NewRequest(http.MethodGet, g.url+"/users/octocat", http.NoBody)
	must(t, err)
	req.Header.Set("Traceparent", "00-"+id+"-"+parent+"-01")
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	_ = resp.Body.Close()

	eventually(t, "the collector forwards the trace", func() bool { return backend.server(id) != nil })
	span := backend.server(id)
	if got, want := resp.Header.Get("Traceresponse"), "00-"+id+"-"+hex.EncodeToString(span.GetSpanId())+"-01"; got != want {
		t.Errorf("traceresponse %q, want %q", got, want)
	}
	if got := hex.EncodeToString(span.GetParentSpanId()); got != parent || span.GetName() != "GET /users/{username}" {
		t.Errorf("span %s with the parent %s, want GET /users/{username} with the parent %s", span.GetName(), got, parent)
	}

	var answer struct {
		Data []struct {
			Exemplars []struct{ Labels map[string]string }
		}
	}
	query := url.Values{"query": {"http_server_request_duration_seconds_bucket"}, "start": {fmt.Sprint(time.Now().Add(-time.Hour).Unix())}, "end": {fmt.Sprint(time.Now().Add(time.Hour).Unix())}}
	eventually(t, "Prometheus stores an exemplar", func() bool {
		resp, err := http.Get(prometheus + "/api/v1/query_exemplars?" + query.Encode())
		if err != nil {
			return false // Prometheus starts
		}
		defer func() { _ = resp.Body.Close() }()
		return json.NewDecoder(resp.Body).Decode(&answer) == nil && len(answer.Data) > 0
	})
	exemplar := answer.Data[0].Exemplars[0].Labels
	label := exemplarLabel(t)
	failIf(t, exemplar[label] != id, "exemplar %v, want the label %s with the trace %s", exemplar, label, id)
	checkTrends(g, prometheus)
}

// checkTrends checks that the dashboard of a gateway, whose configuration names Prometheus, reads the spent requests and
// the budgets of the test from the real Prometheus.
func checkTrends(g *gateway, prometheus string) {
	g.Helper()
	const documented = "http://prometheus:9090"
	config := readBytes(g.T, g.config)
	stopIf(g, !strings.Contains(string(config), documented), "%s does not configure admin.prometheus", tracesRecipe)
	writeFile(g.T, filepath.Dir(g.config), "weir.yaml", strings.ReplaceAll(string(config), documented, prometheus))
	eventually(g.T, "Prometheus has a sample of the first request", func() bool {
		_, text := g.get(prometheus + "/api/v1/query?query=weir_spent_total")
		return strings.Contains(text, `"weir_client":"pass-through"`)
	})
	g.want(http.StatusOK, "", g.url+"/users/hubot")
	var trends struct {
		Spent []struct {
			Client string
			Values []float64
		}
		Budgets []struct {
			Resource string
			Values   []*float64
		}
	}
	var last string
	eventually(g.T, "the trends have the second request and the budget", func() bool {
		var status int
		status, last = g.get(g.admin+"/api/v1/trends?range=1d", "Authorization: Bearer "+adminToken)
		return status == http.StatusOK && json.Unmarshal([]byte(last), &trends) == nil &&
			len(trends.Spent) == 1 && slices.Max(trends.Spent[0].Values) >= 1 && len(trends.Budgets) > 0
	})
	failIf(g, trends.Spent[0].Client != "pass-through", "spent by %q, want pass-through: %s", trends.Spent[0].Client, last)
	for _, b := range trends.Budgets {
		share := b.Values[len(b.Values)-1]
		failIf(g, b.Resource == "core" && (share == nil || *share <= 0 || *share >= 1), "share of core: %s", last)
	}
}

// exemplarLabel returns the label of exemplars that Grafana links to the data source of traces.
func exemplarLabel(t *testing.T) string {
	t.Helper()
	var file struct {
		Datasources []struct {
			UID, Type, URL string
			JSONData       struct {
				Destinations []struct {
					Name          string
					DatasourceUID string `yaml:"datasourceUid"`
				} `yaml:"exemplarTraceIdDestinations"`
			} `yaml:"jsonData"`
		}
	}
	must(t, yaml.Unmarshal([]byte(recipeBlock(t, "datasources.yaml")), &file))
	traces, metrics := file.Datasources[0], file.Datasources[1]
	destination := metrics.JSONData.Destinations[0]
	if traces.Type != "tempo" || traces.UID == "" || metrics.Type != "prometheus" || destination.DatasourceUID != traces.UID {
		t.Errorf("data source %s leads from exemplars to %q, want %q", metrics.Type, destination.DatasourceUID, traces.UID)
	}
	var tempo struct {
		Server struct {
			Port int `yaml:"http_listen_port"`
		}
		Distributor struct {
			Receivers map[string]struct {
				Protocols map[string]struct{ Endpoint string }
			}
		}
	}
	must(t, yaml.Unmarshal([]byte(recipeBlock(t, "tempo.yaml")), &tempo))
	want := fmt.Sprint("http://tempo:", tempo.Server.Port)
	failIf(t, traces.URL != want, "Grafana reads traces from %s, Tempo listens at %s", traces.URL, want)
	endpoint := tempo.Distributor.Receivers["otlp"].Protocols["grpc"].Endpoint
	failIf(t, !strings.HasSuffix(endpoint, ":4317"), "Tempo receives at %s, the collector sends to tempo:4317", endpoint)
	return destination.Name
}
