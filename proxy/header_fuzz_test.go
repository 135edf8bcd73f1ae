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

// FuzzHeaderPolicy: whatever fields a client sends, upstream sees only those that are
// allowed, none of which can be taken for the credential or for who asks; and whatever
// the upstream sends, clients of the documents' operations see only those that are
// allowed.
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
		for _, out := range []http.Header{sentOn(g, in, true), sentOn(g, in, false)} {
			for _, never := range []string{"Authorization", "Cookie", "Connection", "Proxy-Authorization", "Host", "Forwarded", "X-Forwarded-For", "X-Service-Otp"} {
				if _, there := out[never]; there {
					t.Errorf("%s went upstream: %q", never, out)
				}
			}
			if out.Get("Via") != "1.1 weir" || len(out["Via"]) != 1 || out.Get("User-Agent") == "" {
				t.Errorf("%q", out)
			}
			for sent := range out {
				nominated := slices.ContainsFunc(strings.Split(connection, ","), func(s string) bool {
					return textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(s)) == sent
				})
				if nominated && sent != "Via" && sent != "User-Agent" && sent != "Surrogate-Capability" {
					t.Errorf("%s was nominated by Connection and went upstream", sent)
				}
			}
		}
		for sent := range sentOn(g, in, true) {
			if !slices.Contains(forwardedFields, sent) && !slices.Contains(dialect.Forward, sent) && sent != "Via" {
				t.Errorf("%s went upstream", sent)
			}
		}
		answered := http.Header{"Content-Type": {"text/plain"}, "X-Service-Media-Type": {"v3"}, "Ratelimit": {"theirs"}}
		answered.Add(name, value)
		g.filterResponse(classified.Operation, answered)
		if answered.Get("Ratelimit") != "" {
			t.Error("another's budget came through")
		}
		g.filterResponse(known, answered)
		for sent := range answered {
			if !returnedFields[sent] && !strings.Contains(strings.ToLower(sent), "service") {
				t.Errorf("%s came through", sent)
			}
		}
		if answered.Get("Content-Type") != "text/plain" && name != "Content-Type" {
			t.Errorf("%q", answered)
		}
	})
}

// sentOn are the fields of a request that go on.
func sentOn(g *Gateway, in http.Header, known bool) http.Header {
	out := http.Header{}
	g.outbound(out, in, known)
	return out
}
