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
	noError(f, err)
	f.Fuzz(func(t *testing.T, name, value, connection string) {
		in := http.Header{"Accept": {"*/*"}, "Authorization": {"Bearer mine"}, "Cookie": {"mine"}, "Via": {"mine"}, "Connection": {connection}}
		in.Add(name, value)
		for _, out := range []http.Header{Outbound(in, true, via).Header, Outbound(in, false, via).Header} {
			for _, never := range []string{"Authorization", "Cookie", "Connection", "Proxy-Authorization", "Host", "Forwarded", "X-Forwarded-For", "X-Service-Otp"} {
				_, ok := out[never]
				failIf(t, ok, "%s was forwarded: %q", never, out)
			}
			got := out["Via"]
			failIf(t, got[len(got)-1] != via[0] || out.Get("User-Agent") == "", "Via or User-Agent is wrong in %q", out)
			for sent := range out {
				named := slices.ContainsFunc(strings.Split(connection, ","), func(s string) bool {
					return textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(s)) == sent
				})
				failIf(t, named && sent != "Via" && sent != "User-Agent" && sent != "Surrogate-Capability", "%s is named by Connection but was forwarded", sent)
			}
		}
		sent := Outbound(in, true, via)
		for name := range sent.Header {
			rule, _ := policy.RequestField(name)
			keyed := slices.Contains(sent.Keyed, name) || name == "Accept"
			failIf(t, rule != policy.FieldPassed && !keyed, "%s was forwarded, and is not in the key", name)
		}
		response := http.Header{"Content-Type": {"text/plain"}, "X-Service-Media-Type": {"v3"}, "Ratelimit": {"theirs"}}
		response.Add(name, value)
		FilterResponse(classified.Operation, "service", response)
		failIf(t, response.Get("Ratelimit") != "", "the upstream's RateLimit field was returned")
		FilterResponse(known, "service", response)
		for sent := range response {
			failIf(t, !returnedFields[sent] && !strings.Contains(strings.ToLower(sent), "service"), "%s was returned", sent)
		}
		failIf(t, response.Get("Content-Type") != "text/plain" && name != "Content-Type", "Content-Type is missing in %q", response)
	})
}
