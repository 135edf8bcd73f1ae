package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/config"
)

// fieldTreatments are request fields by their treatment. Fields of the key and passed fields reach the upstream.
var fieldTreatments = []struct{ treatment, names string }{
	{"key", `
		X-MCP-Toolsets X-MCP-Readonly X-MCP-Tools X-MCP-Lockdown X-MCP-Insiders Mcp-Session-Id Mcp-Protocol-Version Last-Event-Id
		X-GitHub-Api-Version X-GitHub-Next-Global-ID X-GitHub-Made-Up GraphQL-Features Accept-Language Accept-Charset From Referer Origin
		X-Requested-With X-Foo Foo Idempotency-Key Tenant-Id X-Amz-Content-Sha256 X-Amz-Acl X-Ms-Version X-Ms-Blob-Type X-Goog-User-Project
		X-Hub-Signature-256 X_MCP_Readonly Digest Want-Digest Content-Digest Save-Data Acme-Token Signature X-CSRF-Token`},
	{"passed", `
		User-Agent Date Priority DNT Sec-Fetch-Mode Sec-Fetch-Site Sec-CH-UA Sec-CH-UA-Platform Sec-GPC Upgrade-Insecure-Requests Pragma X-Request-Id
		X-Correlation-Id X-Client-Request-Id X-Trace-Id X-Stainless-Lang X-Stainless-Retry-Count Amz-Sdk-Invocation-Id Amz-Sdk-Request
		X-Amz-User-Agent X-Amz-Date X-Ms-Client-Request-Id X-Goog-Api-Client X-Gh-Cache-Ttl Time-Zone`},
	{"withheld", `
		Connection Keep-Alive Proxy-Connection TE Expect Max-Forwards Proxy-Authorization Weir-Tag Cookie Cookie2 Set-Cookie Forwarded
		X-Forwarded-For X-Forwarded-Host X-Forwarded-Made-Up X-Real-Ip X-Client-Ip True-Client-Ip CF-Connecting-IP CF-Made-Up Fastly-Client-Ip
		CloudFront-Viewer-Address X-Azure-ClientIP X-Envoy-External-Address X_Forwarded_For X.Real.Ip Remote-User X-Remote-User X-WebAuth-User
		X-Auth-Request-Email X-Goog-Authenticated-User-Email X-Ms-Client-Principal X-Amzn-Oidc-Data Client-Cert X-SSL-Client-Cert Traceparent
		Tracestate Baggage B3 X-B3-TraceId X-Amzn-Trace-Id X-Cloud-Trace-Context Sentry-Trace X-Datadog-Trace-Id Uber-Trace-Id Newrelic
		X-HTTP-Method-Override X-Original-URL X-Rewrite-URL Proxy`},
	// Credentials are not forwarded, separate the stored responses, and may hold no key for the gateway.
	{"refused", `
		Private-Token Job-Token Api-Key Api_Key X-Api-Key X-Access-Token X-Auth-Token X-Amz-Security-Token X-Goog-Api-Key X-GitHub-OTP X-Vault-Token
		Ocp-Apim-Subscription-Key DPoP X-Figma-Token`},
}

// fieldValue returns a value of a field that net/http and the gateway accept.
func fieldValue(name string, n int) string {
	switch name {
	case "Connection":
		return "keep-alive"
	case "Expect":
		return "100-continue"
	}
	return fmt.Sprint(n)
}

// TestFieldsAreTreatedAlikeOnAllRoutes sends all fields of the table at once on every way to an upstream.
func TestFieldsAreTreatedAlikeOnAllRoutes(t *testing.T) {
	w, p := startHosts(t), startForwardProxy(t)
	var fields []string
	for _, row := range fieldTreatments {
		for name := range strings.FieldsSeq(row.names) {
			fields = append(fields, name+": "+fieldValue(name, 7))
		}
	}
	failIf(t, len(fields) < 60, "the table has %d fields", len(fields))
	direct := slices.Concat(fields, []string{"Authorization: Bearer weir_key", "Weir-Debug: 1"})
	for _, c := range []struct {
		name string
		send func()
	}{
		{"known route", func() {
			sendTo(w.gateway, "GET", "/repos/a/b/subscribers", "", append(direct, "Host: weir.internal")...)
		}},
		{"unknown route", func() { sendTo(w.gateway, "GET", "/made/up", "", append(direct, "Host: weir.internal")...) }},
		{"GraphQL", func() {
			sendTo(w.gateway, "POST", "/graphql", `{"query":"{viewer{login}}"}`, append(direct, "Host: weir.internal")...)
		}},
		{"host", func() { sendTo(w.gateway, "GET", "/a/b", "", append(direct, "Host: raw.test")...) }},
		{"forward proxy", func() {
			alike := slices.DeleteFunc(slices.Clone(fields), func(f string) bool { // net/http sends neither of them over HTTP/2
				name, _, _ := strings.Cut(f, ":")
				return slices.Contains([]string{"Connection", "Keep-Alive", "Proxy-Connection", "TE", "Expect"}, name)
			})
			getWith(t, p.client("weir_key"), "https://uploads.test/made/up", alike...)
		}},
	} {
		w.fields, p.fields = nil, nil
		c.send()
		seen := w.fields
		if c.name == "forward proxy" {
			seen = p.fields
		}
		for _, row := range fieldTreatments {
			for name := range strings.FieldsSeq(row.names) {
				got, want := seen.Get(name) != "", row.treatment == "key" || row.treatment == "passed"
				if name == "Keep-Alive" || name == "Connection" { // those of the connection to the upstream
					got = seen.Get(name) == "7"
				}
				failIf(t, got != want, "%s: %s reached the upstream: %t, want %t", c.name, name, got, want)
			}
		}
	}
}

// TestFieldsOfTheKeySeparateResponses sends each field with two values, and a key of the gateway in the fields for credentials.
func TestFieldsOfTheKeySeparateResponses(t *testing.T) {
	up := serveAPI(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "private, max-age=60")
		w.Header().Set("Content-Type", "text/plain")
	})
	const key = "weir_key_that_is_long_enough"
	g := open(t, configure(up, trusting, func(c *config.Config) {
		c.Credentials, c.Clients = []config.Credential{userToken("ci", "ci", "tok-held")}, []config.Client{clientOf("builds", key, "ci")}
		c.Clients[0].Debug = true
	}))
	for i, path := range []string{"/repos/a/b/subscribers", "/made/up"} {
		for _, row := range fieldTreatments {
			for name := range strings.FieldsSeq(row.names) {
				send := func(value string) (int, string) {
					w := sendTo(g, "GET", fmt.Sprint(path, "?", i, name), "", "Authorization: Bearer "+key, name+": "+value, "Weir-Debug: 1")
					return w.Code, w.Header().Get("Cache-Status") + w.Header().Get("Weir-Debug")
				}
				send(fieldValue(name, 1))
				_, second := send(fieldValue(name, 2))
				hit, want := strings.HasPrefix(second, "weir; hit"), row.treatment == "passed" || row.treatment == "withheld"
				failIf(t, hit != want, "%s with another %s: got %s", path, name, second)
				visible := row.treatment == "refused" || slices.Contains([]string{"Cookie", "X-Forwarded-For", "X-Real-Ip", "Traceparent", "X-HTTP-Method-Override"}, name)
				failIf(t, visible && !strings.Contains(second, "withheld="), "%s: got %s", name, second)
				code, _ := send(key)
				failIf(t, (code == http.StatusBadRequest) != (row.treatment == "refused" || row.treatment == "key") && row.treatment != "passed", "%s with a key: got %d", name, code)
			}
		}
	}
}
