package deploy

import (
	"net/http"
	"os/exec"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	disruption "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

const chart = root + "/deploy/helm/weir"

// helm is the arguments by which the chart is rendered.
func helm(values string, more ...string) []string {
	return append([]string{"template", "weir", chart, "--namespace", "egress", "--kube-version", "1.34.0", "--values", chart + "/ci/" + values + "-values.yaml"}, more...)
}

// release is what the chart makes, each object read as Kubernetes reads it: a field that it
// does not know is a mistake.
type release struct {
	config     core.ConfigMap
	secret     *core.Secret
	account    *core.ServiceAccount
	deployment apps.Deployment
	services   []core.Service
	budget     *disruption.PodDisruptionBudget
	scaler     *autoscaling.HorizontalPodAutoscaler
	network    *networking.NetworkPolicy
	monitor    *monitoring.ServiceMonitor
}

func render(t *testing.T, values string, more ...string) release {
	t.Helper()
	var r release
	for _, document := range strings.Split(tool(t, root+"/bin/helm", helm(values, more...)...), "\n---\n") {
		var head struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		read := func(v any) {
			if err := yaml.UnmarshalStrict([]byte(document), v); err != nil {
				t.Errorf("%s: %v", head.Kind, err)
			}
		}
		switch head.Kind {
		case "ConfigMap":
			read(&r.config)
		case "Secret":
			r.secret = &core.Secret{}
			read(r.secret)
		case "ServiceAccount":
			r.account = &core.ServiceAccount{}
			read(r.account)
		case "Deployment":
			read(&r.deployment)
		case "Service":
			r.services = append(r.services, core.Service{})
			read(&r.services[len(r.services)-1])
		case "PodDisruptionBudget":
			r.budget = &disruption.PodDisruptionBudget{}
			read(r.budget)
		case "HorizontalPodAutoscaler":
			r.scaler = &autoscaling.HorizontalPodAutoscaler{}
			read(r.scaler)
		case "NetworkPolicy":
			r.network = &networking.NetworkPolicy{}
			read(r.network)
		case "ServiceMonitor":
			r.monitor = &monitoring.ServiceMonitor{}
			read(r.monitor)
		default:
			t.Errorf("%q: nobody looks at it here", head.Kind)
		}
	}
	return r
}

func TestTheChartIsInOrder(t *testing.T) {
	for _, values := range []string{"one", "all"} {
		tool(t, root+"/bin/helm", "lint", "--strict", chart, "--values", chart+"/ci/"+values+"-values.yaml")
	}
	one, all := render(t, "one"), render(t, "all")
	if one.secret != nil || one.budget != nil || one.scaler != nil || one.network != nil || one.monitor != nil || one.account == nil {
		t.Errorf("one: %+v", one)
	}
	if *one.deployment.Spec.Replicas != 1 || one.deployment.Spec.Strategy.Type != apps.RecreateDeploymentStrategyType {
		t.Error("a ledger in memory is of one pod at a time")
	}
	if all.secret == nil || all.budget == nil || all.scaler == nil || all.network == nil || all.monitor == nil || all.deployment.Spec.Replicas != nil {
		t.Errorf("all: %+v", all)
	}
}

// TestTheChartRefusesWhatWouldNotWork: each of these is found before anything is installed.
func TestTheChartRefusesWhatWouldNotWork(t *testing.T) {
	for _, c := range []struct{ name, values, set, says string }{
		{"no API", "all", "config.upstream.url=", "config.upstream.url: required"},
		{"replicas that share nothing", "one", "replicas=2", "config.store.url: several replicas need Redis"},
		{"a scaler of what is not shared", "one", "autoscaling.enabled=true", "config.store.url: several replicas need Redis"},
		{"no token", "one", "secret.existing=", "secret.values.admin: token of the admin listener is missing"},
		{"two places for secrets", "one", "secret.values.admin=x", "set existing or values, not both"},
		{"an admin listener that no probe reaches", "all", "config.admin.listen=127.0.0.1:9090", "config.admin.listen: a loopback address"},
		{"fewer at most than at least", "all", "autoscaling.maxReplicas=2", "autoscaling.maxReplicas: less than minReplicas"},
		{"a name with a mistake", "all", "replica=3", "'replica' not allowed"},
	} {
		out, err := exec.CommandContext(t.Context(), root+"/bin/helm", helm(c.values, "--set", c.set)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.says) {
			t.Errorf("%s: %v, %s", c.name, err, out)
		}
	}
}

// TestTheChartsPodsHaveNoMoreThanTheyNeed is the restricted standard of Kubernetes for pods.
func TestTheChartsPodsHaveNoMoreThanTheyNeed(t *testing.T) {
	r := render(t, "all")
	pod := r.deployment.Spec.Template.Spec
	c := pod.Containers[0]
	s := c.SecurityContext
	if len(pod.Containers) != 1 || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL" || len(s.Capabilities.Add) > 0 {
		t.Errorf("%+v", s)
	}
	p := pod.SecurityContext
	if !*p.RunAsNonRoot || *p.RunAsUser != 65532 || p.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault || *pod.AutomountServiceAccountToken {
		t.Errorf("%+v", p)
	}
	if i := dockerfile(t); i.user != "65532:65532" || strings.Join(i.command, " ") != strings.Join(c.Args, " ") || c.Command != nil {
		t.Errorf("the image runs %v as %s, the chart %v", i.command, i.user, c.Args)
	}
	if grace := *pod.TerminationGracePeriodSeconds; grace < 5+10+10 || !strings.Contains(r.config.Data["weir.yaml"], "drain:\n  delay: 5s\n") {
		t.Errorf("%d s are too few for drain.delay, drain.timeout and 10 s more:\n%s", grace, r.config.Data["weir.yaml"])
	}
}

// TestTheChartsConfigurationRuns starts the binary with the file of the ConfigMap, and asks
// it what the probes and Prometheus ask.
func TestTheChartsConfigurationRuns(t *testing.T) {
	r := render(t, "all")
	var env []string
	for _, e := range r.deployment.Spec.Template.Spec.Containers[0].Env {
		switch e.Name {
		case "REDIS_URL":
			env = append(env, "REDIS_URL="+redis(t))
		case "OTEL_EXPORTER_OTLP_ENDPOINT":
			env = append(env, e.Name+"="+backend(t))
		}
	}
	g := run(t, r.config.Data["weir.yaml"], "/run/secrets/weir", r.secret.StringData, env...)
	g.operated("10.1.2.3:9090")
	c := r.deployment.Spec.Template.Spec.Containers[0]
	for _, p := range []*core.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if status, body := g.asks(g.admin+p.HTTPGet.Path, "Host: 10.1.2.3:9090"); status != http.StatusOK || p.HTTPGet.Port.StrVal != "admin" || p.HTTPGet.Scheme != core.URISchemeHTTP {
			t.Errorf("%s: %d %s", p.HTTPGet.Path, status, body)
		}
	}
}

// TestTheChartsConfigurationWithoutAStoreIsValid is the smallest one there is.
func TestTheChartsConfigurationWithoutAStoreIsValid(t *testing.T) {
	run(t, render(t, "one").config.Data["weir.yaml"], "/run/secrets/weir", map[string]string{"admin": adminToken}).operated("10.1.2.3:9090")
}

// TestTheChartsObjectsFindEachOther follows names, labels and ports.
func TestTheChartsObjectsFindEachOther(t *testing.T) {
	r := render(t, "all")
	pod := r.deployment.Spec.Template
	fits := func(what string, selector map[string]string, labels map[string]string) {
		t.Helper()
		for name, value := range selector {
			if labels[name] != value {
				t.Errorf("%s looks for %s=%s, not %q", what, name, value, labels[name])
			}
		}
	}
	ports := map[string]int32{}
	for _, p := range pod.Spec.Containers[0].Ports {
		ports[p.Name] = p.ContainerPort
	}
	if ports["http"] != 8080 || ports["admin"] != 9090 {
		t.Errorf("%v", ports)
	}
	fits("Deployment", r.deployment.Spec.Selector.MatchLabels, pod.Labels)
	fits("PodDisruptionBudget", r.budget.Spec.Selector.MatchLabels, pod.Labels)
	fits("NetworkPolicy", r.network.Spec.PodSelector.MatchLabels, pod.Labels)
	if r.scaler.Spec.ScaleTargetRef.Name != r.deployment.Name {
		t.Errorf("%+v", r.scaler.Spec.ScaleTargetRef)
	}
	var watched *core.Service
	for i, s := range r.services {
		fits("Service", s.Spec.Selector, pod.Labels)
		for _, p := range s.Spec.Ports {
			if _, ok := ports[p.TargetPort.StrVal]; !ok || (p.TargetPort == intstr.FromString("admin")) != strings.HasSuffix(s.Name, "-admin") {
				t.Errorf("%s leads to %s", s.Name, p.TargetPort.StrVal)
			}
		}
		if strings.HasSuffix(s.Name, "-admin") {
			watched = &r.services[i]
		}
	}
	fits("ServiceMonitor", r.monitor.Spec.Selector.MatchLabels, watched.Labels)
	e := r.monitor.Spec.Endpoints[0]
	if e.Port != watched.Spec.Ports[0].Name || e.Path != "/metrics" || r.secret.StringData[e.Authorization.Credentials.Key] != adminToken || e.Authorization.Credentials.Name != r.secret.Name {
		t.Errorf("%+v", e)
	}
	var volumes []string
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.ConfigMap != nil && v.ConfigMap.Name == r.config.Name, v.Secret != nil && v.Secret.SecretName == r.secret.Name:
			volumes = append(volumes, v.Name)
		}
	}
	if len(volumes) != len(pod.Spec.Containers[0].VolumeMounts) || pod.Spec.ServiceAccountName != r.account.Name {
		t.Errorf("%v, %v", volumes, pod.Spec.Containers[0].VolumeMounts)
	}
}
