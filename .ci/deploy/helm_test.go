package deploy

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	disruption "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

const chart = root + "/deploy/helm/weir"

// templateArgs returns the arguments of helm that render the chart.
func templateArgs(values string, more ...string) []string {
	return append([]string{"template", "weir", chart, "--namespace", "egress", "--kube-version", "1.34.0", "--values", chart + "/ci/" + values + "-values.yaml"}, more...)
}

// objects are the Kubernetes objects of the chart.
type objects struct {
	config     core.ConfigMap
	secret     *core.Secret
	account    *core.ServiceAccount
	deployment apps.Deployment
	services   []core.Service
	budget     *disruption.PodDisruptionBudget
	scaler     *autoscaling.HorizontalPodAutoscaler
	network    *networking.NetworkPolicy
	monitor    *monitoring.ServiceMonitor
	rules      *monitoring.PrometheusRule
	dashboard  *core.ConfigMap
	ingress    *networking.Ingress
	route      *httpRoute
	test       *core.Pod
}

// httpRoute is the part of a route of the Gateway API that the chart uses.
type httpRoute struct {
	Kind, APIVersion string
	Metadata         map[string]any
	Spec             struct {
		ParentRefs []map[string]string
		Hostnames  []string
		Rules      []struct {
			BackendRefs []struct {
				Name string
				Port int32
			}
		}
	}
}

// render renders the chart and decodes its objects. A field that Kubernetes does not define is an
// error.
func render(t *testing.T, values string, more ...string) objects {
	t.Helper()
	var r objects
	kinds := map[string]any{
		"ConfigMap": &r.config, "Secret": &r.secret, "ServiceAccount": &r.account, "Deployment": &r.deployment, "Service": nil,
		"PodDisruptionBudget": &r.budget, "HorizontalPodAutoscaler": &r.scaler, "NetworkPolicy": &r.network, "ServiceMonitor": &r.monitor, "Pod": &r.test,
		"PrometheusRule": &r.rules, "Ingress": &r.ingress, "HTTPRoute": &r.route,
	}
	for _, document := range strings.Split(runTool(t, root+"/bin/helm", templateArgs(values, more...)...), "\n---\n") {
		var head struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		object, known := kinds[head.Kind]
		if !known {
			t.Errorf("the kind %q is not checked by this test", head.Kind)
			continue
		}
		if head.Kind == "ConfigMap" && strings.Contains(document, "\n  weir.json: |") {
			object = &r.dashboard
		}
		if head.Kind == "Service" {
			r.services = append(r.services, core.Service{})
			object = &r.services[len(r.services)-1]
		}
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Errorf("%s: %v", head.Kind, err)
		}
	}
	return r
}

func TestChartRendersOptionalObjects(t *testing.T) {
	for _, values := range []string{"one", "all", "sentinel", "cluster", "tls"} {
		runTool(t, root+"/bin/helm", "lint", "--strict", chart, "--values", chart+"/ci/"+values+"-values.yaml")
	}
	one, all := render(t, "one"), render(t, "all")
	if one.secret != nil || one.budget != nil || one.scaler != nil || one.network != nil || one.monitor != nil || one.rules != nil ||
		one.dashboard != nil || one.ingress != nil || one.route != nil || one.account == nil {
		t.Errorf("one-values.yaml: unexpected objects %+v", one)
	}
	failIf(t, *one.deployment.Spec.Replicas != 1 || one.deployment.Spec.Strategy.Type != apps.RecreateDeploymentStrategyType, "with a ledger in memory: want one replica and the strategy Recreate")
	if all.secret == nil || all.budget == nil || all.scaler == nil || all.network == nil || all.monitor == nil || all.rules == nil || all.dashboard == nil || all.ingress == nil || all.deployment.Spec.Replicas != nil {
		t.Errorf("all-values.yaml: missing objects, or a number of replicas despite the autoscaler: %+v", all)
	}
}

// TestChartOfAGatewayWithTLS checks the values for HTTPS, and what both sets of values say about images, memory and labels.
func TestChartOfAGatewayWithTLS(t *testing.T) {
	r, all := render(t, "tls"), render(t, "all")
	container := r.deployment.Spec.Template.Spec.Containers[0]
	service, backend := r.services[0], r.route.Spec.Rules[0].BackendRefs[0]
	if p := service.Spec.Ports[0]; p.Name != "https" || p.Port != 443 || p.TargetPort.StrVal != container.Ports[0].Name || container.Ports[0].ContainerPort != 8443 ||
		backend.Name != service.Name || backend.Port != p.Port {
		t.Errorf("service %+v, container %+v, route %+v", p, container.Ports[0], backend)
	}
	rule := all.ingress.Spec.Rules[0]
	b := rule.HTTP.Paths[0].Backend.Service
	failIf(t, rule.Host != "weir.example.com" || b.Name != all.services[0].Name || b.Port.Name != all.services[0].Spec.Ports[0].Name, "the ingress sends %s to %+v", rule.Host, b)
	if want := "weirgate/weir@sha256:" + strings.Repeat("0", 64); container.Image != want {
		t.Errorf("got the image %s, want %s", container.Image, want)
	}
	for want, env := range map[string]core.EnvVar{"1932735283": container.Env[0], "966367641": all.deployment.Spec.Template.Spec.Containers[0].Env[0]} {
		failIf(t, env.Name != "GOMEMLIMIT" || env.Value != want, "got %s=%s, want GOMEMLIMIT=%s, nine tenths of the limit", env.Name, env.Value, want)
	}
	own := render(t, "tls", "--set", "env[0].name=GOMEMLIMIT,env[0].value=1GiB").deployment.Spec.Template.Spec.Containers[0].Env
	failIf(t, len(own) != 1 || own[0].Value != "1GiB", "an own GOMEMLIMIT does not take precedence: %v", own)
	for _, labels := range []map[string]string{r.deployment.Labels, r.deployment.Spec.Template.Labels, r.config.Labels, service.Labels, r.network.Labels, r.test.Labels} {
		failIf(t, labels["team"] != "platform", "the labels %v lack the common labels", labels)
	}
	v, m := r.deployment.Spec.Template.Spec.Volumes, container.VolumeMounts
	failIf(t, v[len(v)-1].Name != "tls" || m[len(m)-1].MountPath != "/etc/weir-tls", "the extra volume is missing: %v, %v", v, m)
	ports := fmt.Sprint(r.network.Spec.Egress[1].Ports)
	failIf(t, !strings.Contains(ports, "9091") || !strings.Contains(ports, "3128"), "the network policy does not let the pods reach the ports of admin.prometheus and upstream.proxy: %s", ports)
	if !slices.ContainsFunc(all.network.Spec.Ingress[1].From, func(p networking.NetworkPolicyPeer) bool {
		return p.PodSelector != nil && p.PodSelector.MatchLabels["app.kubernetes.io/name"] == "prometheus"
	}) {
		t.Error("the network policy does not let Prometheus reach the admin listener")
	}
	if rules, want := all.rules.Spec, readFile(t, "deploy/prometheus/weir.rules.yml"); len(rules.Groups) == 0 || strings.Count(want, "- alert: ") != countAlerts(rules) {
		t.Errorf("the PrometheusRule has %d alerts, want those of deploy/prometheus", countAlerts(rules))
	}
	got := all.dashboard.Data["weir.json"]
	failIf(t, strings.TrimSpace(got) != strings.TrimSpace(readFile(t, "deploy/grafana/weir.json")) || all.dashboard.Labels["grafana_dashboard"] != "1", "the ConfigMap has not the dashboard of deploy/grafana")
}

// countAlerts returns the number of alerts of a rule object.
func countAlerts(spec monitoring.PrometheusRuleSpec) (n int) {
	for _, group := range spec.Groups {
		for _, rule := range group.Rules {
			if rule.Alert != "" {
				n++
			}
		}
	}
	return n
}

// TestChartOpensThePortOfTheForwardProxy checks that clients reach the forward proxy if it is configured.
func TestChartOpensThePortOfTheForwardProxy(t *testing.T) {
	for listen, want := range map[string]string{
		"":      "service http, container http, container admin, network http, ",
		":3128": "service http, service proxy, container http, container proxy, container admin, network http, network proxy, ",
	} {
		r := render(t, "all", "--set", "config.proxy.listen="+listen)
		ports := ""
		for _, p := range r.services[0].Spec.Ports {
			ports += "service " + p.Name + ", "
		}
		for _, p := range r.deployment.Spec.Template.Spec.Containers[0].Ports {
			ports += "container " + p.Name + ", "
		}
		for _, p := range r.network.Spec.Ingress[0].Ports {
			ports += "network " + p.Port.StrVal + ", "
		}
		failIf(t, ports != want, "proxy.listen %q: got %s, want %s", listen, ports, want)
	}
}

// TestChartNotesNameTheURLOfClients checks what helm install prints.
func TestChartNotesNameTheURLOfClients(t *testing.T) {
	for values, want := range map[string]string{"one": "http://weir.egress:80\n", "tls": "https://weir.egress:443\n", "all": "http://weir.egress:8080\n"} {
		loaded, err := loader.Load(chart)
		must(t, err)
		own, err := chartutil.ReadValuesFile(chart + "/ci/" + values + "-values.yaml")
		must(t, err)
		all, err := chartutil.ToRenderValues(loaded, own, chartutil.ReleaseOptions{Name: "weir", Namespace: "egress"}, nil)
		must(t, err)
		texts, err := engine.Render(loaded, all)
		must(t, err)
		notes := texts["weir/templates/NOTES.txt"]
		failIf(t, !strings.Contains(notes, "Clients in this cluster: "+want) || strings.Contains(notes, "WARNING"), "%s: want %s in: %s", values, want, notes)
	}
}

func TestChartRefusesInvalidValues(t *testing.T) {
	for _, c := range []struct{ name, values, set, want string }{
		{"no upstream", "all", "config.upstream.url=", "config.upstream.url: required"},
		{"several replicas without Redis", "one", "replicas=2", "config.store.url: several replicas need Redis"},
		{"an autoscaler without Redis", "one", "autoscaling.enabled=true", "config.store.url: several replicas need Redis"},
		{"no admin token", "one", "secret.existing=", "secret.values.admin: token of the admin listener is missing"},
		{"two sources of secrets", "one", "secret.values.admin=x", "set existing or values, not both"},
		{"an admin listener on loopback", "all", "config.admin.listen=127.0.0.1:9090", "config.admin.listen: a loopback address"},
		{"a maximum below the minimum", "all", "autoscaling.maxReplicas=2", "autoscaling.maxReplicas: less than minReplicas"},
		{"a digest without sha256", "all", "image.digest=abc", "/image/digest"},
		{"a fraction of memory", "all", "resources.limits.memory=1.5Gi", "resources.limits.memory: use an integer"},
		{"an ingress without a host", "one", "ingress.enabled=true", "ingress.hosts: name a host"},
		{"a route without a gateway", "one", "httpRoute.enabled=true", "httpRoute.parentRefs: name a Gateway"},
		{"a label of the selector", "all", `podLabels.app\.kubernetes\.io/name=x`, "invalid propertyName"},
		{"a label of the chart", "all", `commonLabels.helm\.sh/chart=x`, "invalid propertyName"},
		{"an unknown value", "all", "replica=3", "'replica' not allowed"},
	} {
		out, err := exec.CommandContext(t.Context(), root+"/bin/helm", templateArgs(c.values, "--set", c.set)...).CombinedOutput()
		failIf(t, err == nil || !strings.Contains(string(out), c.want), "%s: got %v, want %q in: %s", c.name, err, c.want, out)
	}
}

// TestChartPodsAreRestricted checks the restricted Pod Security Standard of Kubernetes.
func TestChartPodsAreRestricted(t *testing.T) {
	r := render(t, "all")
	for _, pod := range []core.PodSpec{r.deployment.Spec.Template.Spec, r.test.Spec} {
		s := pod.Containers[0].SecurityContext
		if len(pod.Containers) != 1 || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL" || len(s.Capabilities.Add) > 0 {
			t.Errorf("the container is not restricted: %+v", s)
		}
		p := pod.SecurityContext
		failIf(t, !*p.RunAsNonRoot || *p.RunAsUser != 65532 || p.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault || *pod.AutomountServiceAccountToken, "the pod is not restricted: %+v", p)
	}
	pod := r.deployment.Spec.Template.Spec
	c := pod.Containers[0]
	i := dockerfile(t)
	failIf(t, i.user != "65532:65532" || strings.Join(i.command, " ") != strings.Join(c.Args, " ") || c.Command != nil, "the image runs %v as %s, but the chart runs %v", i.command, i.user, c.Args)
	if grace := *pod.TerminationGracePeriodSeconds; grace < 5+10+10 || !strings.Contains(r.config.Data["weir.yaml"], "drain:\n  delay: 5s\n") {
		t.Errorf("terminationGracePeriodSeconds is %d, want drain.delay plus drain.timeout plus 10 s:\n%s", grace, r.config.Data["weir.yaml"])
	}
}

func TestChartConfigurationStartsGatewayForProbes(t *testing.T) {
	r := render(t, "all")
	var env []string
	for _, e := range r.deployment.Spec.Template.Spec.Containers[0].Env {
		switch e.Name {
		case "REDIS_URL":
			env = append(env, "REDIS_URL="+startRedis(t))
		case "OTEL_EXPORTER_OTLP_ENDPOINT":
			env = append(env, e.Name+"="+telemetryReceiver(t))
		}
	}
	g := startGateway(t, r.config.Data["weir.yaml"], "/run/secrets/weir", r.secret.StringData, env...)
	g.checkAdmin("10.1.2.3:9090")
	c := r.deployment.Spec.Template.Spec.Containers[0]
	for _, p := range []*core.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		g.want(http.StatusOK, "", g.admin+p.HTTPGet.Path, "Host: 10.1.2.3:9090")
		failIf(t, p.HTTPGet.Port.StrVal != "admin" || p.HTTPGet.Scheme != core.URISchemeHTTP, "probe %s goes to %s", p.HTTPGet.Path, p.HTTPGet.String())
	}
}

func TestChartConfigurationWithoutRedisStartsGateway(t *testing.T) {
	startGateway(t, render(t, "one").config.Data["weir.yaml"], "/run/secrets/weir", map[string]string{"admin": adminToken}).checkAdmin("10.1.2.3:9090")
}

func TestChartNamesLabelsAndPortsMatch(t *testing.T) {
	r := render(t, "all")
	pod := r.deployment.Spec.Template
	matches := func(kind string, selector map[string]string, labels map[string]string) {
		t.Helper()
		failIf(t, !selects(selector, labels), "%s selects %v, but the labels are %v", kind, selector, labels)
	}
	ports := map[string]int32{}
	for _, p := range pod.Spec.Containers[0].Ports {
		ports[p.Name] = p.ContainerPort
	}
	failIf(t, ports["http"] != 8080 || ports["admin"] != 9090, "got the container ports %v, want http 8080 and admin 9090", ports)
	matches("Deployment", r.deployment.Spec.Selector.MatchLabels, pod.Labels)
	matches("PodDisruptionBudget", r.budget.Spec.Selector.MatchLabels, pod.Labels)
	matches("NetworkPolicy", r.network.Spec.PodSelector.MatchLabels, pod.Labels)
	failIf(t, r.scaler.Spec.ScaleTargetRef.Name != r.deployment.Name, "the autoscaler scales %+v", r.scaler.Spec.ScaleTargetRef)
	var admin *core.Service
	for i, s := range r.services {
		matches("Service", s.Spec.Selector, pod.Labels)
		for _, p := range s.Spec.Ports {
			_, ok := ports[p.TargetPort.StrVal]
			failIf(t, !ok || (p.TargetPort == intstr.FromString("admin")) != strings.HasSuffix(s.Name, "-admin"), "service %s has the target port %s", s.Name, p.TargetPort.StrVal)
		}
		if strings.HasSuffix(s.Name, "-admin") {
			admin = &r.services[i]
		}
	}
	matches("ServiceMonitor", r.monitor.Spec.Selector.MatchLabels, admin.Labels)
	e := r.monitor.Spec.Endpoints[0]
	if e.Port != admin.Spec.Ports[0].Name || e.Path != "/metrics" || r.secret.StringData[e.Authorization.Credentials.Key] != adminToken || e.Authorization.Credentials.Name != r.secret.Name {
		t.Errorf("the ServiceMonitor does not scrape /metrics with the token: %+v", e)
	}
	var volumes []string
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.ConfigMap != nil && v.ConfigMap.Name == r.config.Name, v.Secret != nil && v.Secret.SecretName == r.secret.Name, v.EmptyDir != nil:
			volumes = append(volumes, v.Name)
		}
	}
	if len(volumes) != len(pod.Spec.Containers[0].VolumeMounts) || pod.Spec.ServiceAccountName != r.account.Name {
		t.Errorf("service account %q, volumes %v, mounts %v", pod.Spec.ServiceAccountName, volumes, pod.Spec.Containers[0].VolumeMounts)
	}
}

// selects reports whether a selector selects an object with the labels.
func selects(selector, labels map[string]string) bool {
	for name, value := range selector {
		if labels[name] != value {
			return false
		}
	}
	return true
}

// TestChartTestFindsReadyGateway runs the command of the pod of helm test against a gateway.
func TestChartTestFindsReadyGateway(t *testing.T) {
	r := render(t, "all")
	c, replica := r.test.Spec.Containers[0], r.deployment.Spec.Template
	failIf(t, r.test.Annotations["helm.sh/hook"] != "test" || r.test.Spec.RestartPolicy != core.RestartPolicyNever || c.Image != replica.Spec.Containers[0].Image, "the pod is no test of the image: %+v", r.test)
	var admin string
	for _, s := range r.services {
		failIf(t, selects(s.Spec.Selector, r.test.Labels), "service %s sends clients to the test", s.Name)
		if s.Spec.Ports[0].Name == "admin" {
			admin = fmt.Sprintf("http://%s:%d", s.Name, s.Spec.Ports[0].Port)
		}
	}
	failIf(t, !slices.Equal(c.Args, []string{"health", "--admin", admin}), "the test runs %v, want health --admin %s", c.Args, admin)
	if !slices.ContainsFunc(r.network.Spec.Ingress, func(rule networking.NetworkPolicyIngressRule) bool {
		return rule.Ports[0].Port.StrVal == "admin" && slices.ContainsFunc(rule.From, func(p networking.NetworkPolicyPeer) bool {
			return p.PodSelector != nil && selects(p.PodSelector.MatchLabels, r.test.Labels)
		})
	}) {
		t.Error("the network policy does not let the test reach the admin listener")
	}
	g := startGateway(t, render(t, "one").config.Data["weir.yaml"], "/run/secrets/weir", map[string]string{"admin": adminToken})
	g.want(http.StatusOK, "", g.admin+"/readyz", "Host: "+strings.TrimPrefix(admin, "http://"))
	got := runTool(t, weirBinary(t), append(slices.Clone(c.Args[:2]), g.admin)...)
	failIf(t, got != "ready\n", "health: got %q, want ready", got)
	if r := render(t, "all", "--set", "config.admin.tls.cert=a,config.admin.tls.key=b"); r.test != nil {
		t.Error("with config.admin.tls the chart has a test that knows no CA")
	}
}

// TestChartReachesSentinelAndClusterStores starts a gateway with the store of the values, and checks that the network
// policy permits each port in the URL of the store.
func TestChartReachesSentinelAndClusterStores(t *testing.T) {
	for values, start := range map[string]func(*testing.T) string{"sentinel": startSentinel, "cluster": startCluster} {
		t.Run(values, func(t *testing.T) {
			r := render(t, values)
			if r.deployment.Spec.Strategy.Type != apps.RollingUpdateDeploymentStrategyType || *r.deployment.Spec.Replicas != 2 {
				t.Errorf("want two replicas that are replaced one after another, got %d and %s", *r.deployment.Spec.Replicas, r.deployment.Spec.Strategy.Type)
			}
			config := r.config.Data["weir.yaml"]
			addresses := regexp.MustCompile(`redis-[0-9]\.redis:([0-9]+)`)
			for _, m := range addresses.FindAllStringSubmatch(config, -1) {
				if !slices.ContainsFunc(r.network.Spec.Egress, func(rule networking.NetworkPolicyEgressRule) bool {
					return slices.ContainsFunc(rule.Ports, func(p networking.NetworkPolicyPort) bool { return p.Port.String() == m[1] })
				}) {
					t.Errorf("the network policy does not let the pods reach %s", m[0])
				}
			}
			g := startGateway(t, addresses.ReplaceAllString(config, start(t)), "/run/secrets/weir", map[string]string{"admin": adminToken})
			g.checkAdmin("10.1.2.3:9090")
		})
	}
}

// startSentinel starts a Redis server and a sentinel of its master "weir", and returns the address of the sentinel.
func startSentinel(t *testing.T) string {
	t.Helper()
	host, port, _ := net.SplitHostPort(startRedisServer(t))
	return startRedisServer(t, writeFile(t, t.TempDir(), "sentinel.conf", fmt.Sprintf("sentinel monitor weir %s %s 1\n", host, port)), "--sentinel")
}

// startCluster starts a Redis Cluster of one node and returns its address.
func startCluster(t *testing.T) string {
	t.Helper()
	address := startRedisServer(t, "--cluster-enabled", "yes")
	host, port, _ := net.SplitHostPort(address)
	runTool(t, "redis-cli", "-h", host, "-p", port, "cluster", "addslotsrange", "0", "16383")
	eventually(t, "the cluster is ready", func() bool {
		return strings.Contains(runTool(t, "redis-cli", "-h", host, "-p", port, "cluster", "info"), "cluster_state:ok")
	})
	return address
}
