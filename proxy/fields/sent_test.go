package fields

import (
	"net/http"
	"net/textproto"
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
	via := []string{"1.1 weir"}
	known := policy.Embedded().Operation("gitignore/list-templates")
	classified, err := policy.Embedded().Classify(http.MethodGet, "/made/up", "")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, name, value, connection string) {
		in := http.Header{"Accept": {"*/*"}, "Authorization": {"Bearer mine"}, "Cookie": {"mine"}, "Via": {"mine"}, "Connection": {connection}}
		in.Add(name, value)
		for _, out := range []http.Header{Outbound(in, true, via).Header, Outbound(in, false, via).Header} {
			for _, never := range []string{"Authorization", "Cookie", "Connection", "Proxy-Authorization", "Host", "Forwarded", "X-Forwarded-For", "X-Service-Otp"} {
				if _, ok := out[never]; ok {
					t.Errorf("%s was forwarded: %q", never, out)
				}
			}
			if got := out["Via"]; got[len(got)-1] != via[0] || out.Get("User-Agent") == "" {
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
		sent := Outbound(in, true, via)
		for name := range sent.Header {
			rule, _ := policy.RequestField(name)
			if keyed := slices.Contains(sent.Keyed, name) || name == "Accept"; rule != policy.FieldPassed && !keyed {
				t.Errorf("%s was forwarded, and is not in the key", name)
			}
		}
		response := http.Header{"Content-Type": {"text/plain"}, "X-Service-Media-Type": {"v3"}, "Ratelimit": {"theirs"}}
		response.Add(name, value)
		FilterResponse(classified.Operation, "service", response)
		if response.Get("Ratelimit") != "" {
			t.Error("the upstream's RateLimit field was returned")
		}
		FilterResponse(known, "service", response)
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
