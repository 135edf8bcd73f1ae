package proxy

import (
	"log/slog"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/weirgate/weir/policy"
)

// FuzzHeaderPolicy checks that clients cannot send credential or identity fields upstream, and that responses of known
// operations contain only allowed fields.
func FuzzHeaderPolicy(f *testing.F) {
	for _, seed := range [][3]string{
		{"Authorization", "Bearer x", ""}, {"X_Forwarded_For", "1.2.3.4", "authorization"}, {"x-github-otp", "1", "Via, user-agent"},
		{"accept", "*/*", "close, accept"}, {"Cookie", "a=b", "cookie"}, {"X-HTTP-Method-Override", "DELETE", ""}, {"Forwarded", "for=1", "te"},
		{"Proxy-Authorization", "Basic eA==", ""}, {"X-Service-Api-Version", "1", "x-service-api-version"}, {"Set-Cookie", "a", ""}, {"Ratelimit", "1", ""},
		{"Alt-Svc", "h3", "alt-svc"}, {"authorization ", "x", ""}, {"Cf-Connecting-Ip", "1", ""}, {"\u017fet-cookie", "1", ""}, {"X-Ratelimit-Limit", "1", ""},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	dialect, err := policy.LoadDialect("service")
	if err != nil {
		f.Fatal(err)
	}
	g := New(Config{Dialect: dialect, Upstream: &url.URL{Scheme: "http", Host: "upstream.test"}, Log: slog.New(slog.DiscardHandler)})
	known := policy.Embedded().Operation("gitignore/list-templates")
	classified, err := policy.Embedded().Classify(http.MethodGet, "/made/up", "")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, name, value, connection string) {
		in := http.Header{"Accept": {"*/*"}, "Authorization": {"Bearer mine"}, "Cookie": {"mine"}, "Via": {"mine"}, "Connection": {connection}}
		in.Add(name, value)
		for _, out := range []http.Header{g.outbound(in, true).header, g.outbound(in, false).header} {
			for _, never := range []string{"Authorization", "Cookie", "Connection", "Proxy-Authorization", "Host", "Forwarded", "X-Forwarded-For", "X-Service-Otp"} {
				if _, ok := out[never]; ok {
					t.Errorf("%s was forwarded: %q", never, out)
				}
			}
			if via := out["Via"]; via[len(via)-1] != g.via[0] || out.Get("User-Agent") == "" {
				t.Errorf("Via or User-Agent is wrong in %q", out)
			}
			for sent := range out {
				named := slices.ContainsFunc(strings.Split(connection, ","), func(s string) bool {
					return textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(s)) == sent
				})
				if named && sent != "Via" && sent != "User-Agent" && sent != "Surrogate-Capability" {
					t.Errorf("%s is named by Connection but was forwarded", sent)
				}
			}
		}
		fields := g.outbound(in, true)
		for sent := range fields.header {
			rule, _ := policy.RequestField(sent)
			if keyed := slices.Contains(fields.keyed, sent) || sent == "Accept"; rule != policy.FieldPassed && !keyed {
				t.Errorf("%s was forwarded, and is not in the key", sent)
			}
		}
		response := http.Header{"Content-Type": {"text/plain"}, "X-Service-Media-Type": {"v3"}, "Ratelimit": {"theirs"}}
		response.Add(name, value)
		g.filterResponse(classified.Operation, response)
		if response.Get("Ratelimit") != "" {
			t.Error("the upstream's RateLimit field was returned")
		}
		g.filterResponse(known, response)
		for sent := range response {
			if !returnedFields[sent] && !strings.Contains(strings.ToLower(sent), "service") {
				t.Errorf("%s was returned", sent)
			}
		}
		if response.Get("Content-Type") != "text/plain" && name != "Content-Type" {
			t.Errorf("Content-Type is missing in %q", response)
		}
	})
}
