package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	trace "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/internal/testservers"
)

// scriptedUpstream responds as the last segment of the path names.
func scriptedUpstream() http.HandlerFunc {
	var computed atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/contributors"):
			if computed.Add(1) <= 2 {
				w.WriteHeader(http.StatusAccepted)
			} else {
				w.WriteHeader(http.StatusInternalServerError)
			}
		case strings.HasSuffix(r.URL.Path, "/rulesets"):
			w.WriteHeader(http.StatusBadGateway)
		case strings.HasSuffix(r.URL.Path, "/rulesuites"):
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			w.Header().Set("Cache-Control", "max-age=60")
		}
	}
}

var tableOfSpans = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (server|client|internal) \\| (.*) \\|$")

// TestEverySpanIsDocumented compares the exported spans, their kinds and their attributes with
// the documentation.
func TestEverySpanIsDocumented(t *testing.T) {
	socket := testservers.Redis(t)
	redisGateway := func(c *config.Config) {
		c.Store.URL = "unix://" + socket
		c.Limits.Points.REST = 3
		c.Credentials = []config.Credential{{Name: "ci", Kind: "user", Account: "octo-bot", Token: "held-token"}}
		for _, name := range []string{"builds", "docs"} {
			c.Clients = append(c.Clients, config.Client{Name: name, Key: keyHash(name), Credentials: []string{"ci"}, Share: 1, Priority: "normal"})
		}
	}
	w := startTraced(t, scriptedUpstream(), redisGateway)
	const user = "Authorization: Bearer tok-owner"
	w.send(http.MethodGet, "/repos/acme/widgets/subscribers", user, "User-Agent: test/1", "Weir-Tag: run-7")
	w.send(http.MethodGet, "/repos/acme/widgets/subscribers", user) // a hit
	w.send(http.MethodGet, "/repos/acme/wheels/subscribers", user)
	w.send(http.MethodGet, "/repos/acme/cogs/subscribers", user)
	w.send(http.MethodGet, "/repos/acme/gears/subscribers", user, "Prefer: respond-async") // out of points
	for _, repository := range []string{"widgets", "wheels", "cogs"} {
		w.send(http.MethodGet, "/repos/acme/"+repository+"/branches", "Authorization: Bearer docs")
	}
	w.send(http.MethodGet, "/repos/acme/gears/branches", "Authorization: Bearer docs", "Prefer: respond-async")       // out of shared points
	w.send(http.MethodGet, "/repos/acme/widgets/rulesets", user)                                                      // fails with an upstream error
	w.send(http.MethodGet, "/repos/acme/widgets/stats/contributors", "Authorization: Bearer tok2", "Weir-Tag: run-7") // fails in the background
	graphQL := httptest.NewRequest(http.MethodPost, "/graphql", strings.NewReader(`{"query": "query Viewer { viewer { login } }"}`))
	graphQL.Header.Set("Authorization", "Bearer tok-owner")
	w.ServeHTTP(httptest.NewRecorder(), graphQL)
	w.send(http.MethodGet, "/repos/acme/widgets/rulesuites", "Authorization: Bearer tok3") // a limit error
	w.runPipeline(socket)
	w.flush()

	page, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string][]string{}, map[string][]string{}
	for _, row := range tableOfSpans.FindAllStringSubmatch(string(page), -1) {
		for _, a := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[3], -1) {
			want[row[1]+" "+row[2]] = append(want[row[1]+" "+row[2]], a[1])
		}
	}
	for _, s := range w.received.Spans() {
		name := documentedAs(s)
		got[name] = slices.AppendSeq(got[name], maps.Keys(s.Attributes))
	}
	for _, list := range []map[string][]string{want, got} {
		for name, attributes := range list {
			slices.Sort(attributes)
			list[name] = slices.Compact(attributes)
		}
	}
	for name := range got {
		if len(got[name]) == 0 && strings.Contains(string(page), "| `"+strings.Fields(name)[0]+"` |") {
			delete(got, name) // a span without attributes
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-documented +sent:\n%s", diff)
	}
}

// documentedAs returns the name and kind of a span as in the documentation.
func documentedAs(s testservers.Span) string {
	kind := strings.ToLower(strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_"))
	switch {
	case s.Attributes["db.system.name"] != "":
		return "{COMMAND} " + kind
	case strings.HasPrefix(s.Name, "background "):
		return "background {METHOD} {route} " + kind
	case s.Attributes["http.request.method"] != "":
		return "{METHOD} {route} " + kind
	}
	return s.Name + " " + kind
}

// runPipeline sends a pipeline of commands with one error to Redis inside a span.
func (w *tracedGateway) runPipeline(socket string) {
	w.Helper()
	client, err := redisclient.Open("unix://"+socket, nil)
	if err != nil {
		w.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	ctx, span := w.telemetry.Tracer().Start(context.Background(), "poll")
	defer span.End()
	p := client.Pipeline()
	p.Set(ctx, "secret-key", "secret-value", time.Minute)
	p.Get(ctx, "secret-key")
	if _, err := p.Exec(ctx); err != nil {
		w.Fatal(err)
	}
	if client.LPush(ctx, "secret-key", "secret-value").Err() == nil {
		w.Error("the command on a wrong type succeeded")
	}
	if err := client.Get(ctx, "no-key").Err(); err == nil {
		w.Error("the command on a missing key succeeded")
	}
}

// TestRedisCommandsAreTraced checks that each command is a span without keys and values.
func TestRedisCommandsAreTraced(t *testing.T) {
	socket := testservers.Redis(t)
	w := startTraced(t, scriptedUpstream(), func(c *config.Config) { c.Store.URL = "unix://" + socket })
	w.send(http.MethodGet, "/repos/acme/widgets/subscribers", "Authorization: Bearer tok-owner")
	w.send(http.MethodGet, "/repos/acme/widgets/rulesuites", "Authorization: Bearer tok3") // a limit error
	w.runPipeline(socket)
	byName, drawn := w.spans()
	for _, want := range []string{"queue internal > EVALSHA client", "poll internal > PIPELINE client", "poll internal > LPUSH client"} {
		if !slices.Contains(drawn, want) {
			t.Errorf("missing span %s in\n%s", want, strings.Join(drawn, "\n"))
		}
	}
	if s := byName["LPUSH"][0]; !s.Failed || s.Attributes["error.type"] != "WRONGTYPE" {
		t.Errorf("the span of a failed command is %+v", s)
	}
	if s := byName["GET"][0]; s.Failed {
		t.Errorf("a missing key counts as failed: %+v", s)
	}
	for _, s := range w.received.Spans() {
		if text := fmt.Sprint(s); strings.Contains(text, "secret-") || strings.Contains(text, "weir:") || s.Kind == trace.Span_SPAN_KIND_UNSPECIFIED {
			t.Errorf("span with a secret, a key or no kind: %s", text)
		}
	}
}
