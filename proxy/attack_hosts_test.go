package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weirgate/weir/internal/testservers"
)

// redirects are the statuses with which an upstream can send a client to another URL.
var redirects = []int{301, 302, 303, 307, 308}

// onlyTo returns an option that reports every request to another host than the upstream.
func onlyTo(t *testing.T) option {
	return func(c *Config) {
		next := c.Transport
		c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			failIf(t, r.URL.Scheme != "http" || r.URL.Host != "upstream.test", "a request was sent to %s", r.URL)
			return next.RoundTrip(r)
		})
	}
}

// lookalikes returns URLs that a careless comparison takes for URLs of upstreamURL. A client that follows one of them leaves
// the upstream, or at least the gateway, so the gateway must not put its own host in their place.
func lookalikes() []string {
	return []string{
		"http://evil.test/", "//evil.test/", "/user", "/basement/user", "http://u:p@upstream.test/base/user",
		"http://upstream.test.evil.test/base/user", "http://evil.test/base/user", "http://evil.test/?http://upstream.test/base/user", "http://evil.test/#http://upstream.test/base/user",
		"http://evilupstream.test/base/user", "http://evil.upstream.test/base/user", "http://upstream.tes/base/user", "http://upstream-test/base/user", "http://upstream.test./base/user",
		"http://upstream.test@evil.test/base/user", "http://upstream.test:80@evil.test/base/user", "http://user@upstream.test/base/user", "http://:@upstream.test/base/user", "http://@upstream.test/base/user",
		"http://upstream.test%40evil.test/base/user", "http://upstream.test%2eevil.test/base/user", "http://upstream.test%00.evil.test/base/user", "http://%75pstream.test/base/user",
		"http://upstream.test:8080/base/user", "http://upstream.test:443/base/user", "http://upstream.test:0/base/user", "http://upstream.test:18446744073709551696/base/user", "http://upstream.test:80:80/base/user",
		"https://upstream.test/base/user", "https://upstream.test:80/base/user", "ftp://upstream.test/base/user", "javascript://upstream.test/base/%0aalert(1)", "data:text/html,http://upstream.test/base/", "http:upstream.test/base/user", "http:/upstream.test/base/user", "http:///upstream.test/base/user",
		"//evil.test/base/user", "//upstream.test/base/user", "///upstream.test/base/user", `/\evil.test/base/user`, `\\evil.test\base\user`, `http:\\upstream.test\base\user`, `http://upstream.test\@evil.test/base/user`, `http://evil.test\@upstream.test/base/user`, `http://evil.test\.upstream.test/base/user`,
		"http://upstream.test /base/user", "http://upstream.test\t/base/user", " //evil.test", "http://[::ffff:upstream.test]/base/user", "http://[upstream.test]/base/user",
		"http://\uff55pstream.test/base/user", "http://upstream\u3002test/base/user", "http://upstre\u0430m.test/base/user", "http://xn--upstrem-5fg.test/base/user", "http://ups\u200btream.test/base/user",
		"http://upstream.test/BASE/user", "http://upstream.test/basement/user", "http://upstream.test/bas", "http://upstream.test", "http://upstream.test/%62ase/user", "http://upstream.test//base/user", "http://upstream.test/./base/user", "http://upstream.test/x/../base/user", `http://upstream.test/\base/user`, "http://upstream.test?/base/user", "http://upstream.test#/base/user",
	}
}

// TestOnlyExactURLsOfTheUpstreamAreRewritten sends URLs that resemble the upstream, from the upstream and from the cache.
// The gateway requests none of them.
func TestOnlyExactURLsOfTheUpstreamAreRewritten(t *testing.T) {
	same := map[string]string{}
	for _, uri := range lookalikes() {
		same[uri] = strings.TrimSpace(uri)
	}
	for uri, want := range map[string]string{ // other spellings of the same origin; IDNA maps \u017f to s
		"http://up\u017ftream.test/base/user": "http://gateway.test/user",
		"http://upstream.test/base/user":      "http://gateway.test/user", "HTTP://UPSTREAM.TEST:80/base/user": "http://gateway.test/user", "http://upstream.test:/base/user": "http://gateway.test/user",
		"http://upstream.test:080/base/user": "http://gateway.test/user", "http://upstream.test/base": "http://gateway.test", "http://upstream.test/base//evil.test/x": "http://gateway.test//evil.test/x",
		"http://upstream.test/base/../../evil": "http://gateway.test/../../evil", "http://upstream.test/base/@evil.test": "http://gateway.test/@evil.test", "http://upstream.test/base?next=http://evil.test": "http://gateway.test?next=http://evil.test",
		"/base/user": "http://gateway.test/user", "/base/user?page=2#x": "http://gateway.test/user?page=2#x", "/base": "http://gateway.test", "/base//evil.test/x": "http://gateway.test//evil.test/x",
	} {
		same[uri] = want
	}
	synctest.Test(t, func(t *testing.T) {
		var uri string
		n := 0
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h["Location"], h["Content-Location"] = []string{uri, "http://evil.test/second"}, []string{uri}
			h["Link"] = []string{"<" + uri + `>; rel="next"; title="` + uri + `"`, `<http://evil.test/>; rel="last"`}
			h.Set("Cache-Control", "max-age=60")
			if r.Method == http.MethodPost {
				w.WriteHeader(http.StatusCreated)
			} else {
				w.WriteHeader(redirects[n%len(redirects)])
			}
		}, onlyTo(t))
		for from, want := range same {
			uri = from
			for _, method := range []string{"GET", "GET", "POST"} {
				path := fmt.Sprint([]string{"/made/up/", "/users/"}[n/2%2], n)
				r := parseResponse(t, w.raw(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: gateway.test\r\nAuthorization: Bearer a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", method, path)))
				if method == "GET" {
					w.want("status", r.StatusCode, redirects[n%len(redirects)])
				}
				if got := r.Header["Location"]; len(got) != 1 || got[0] != want {
					t.Errorf("%s: Location of %q: got %q, want %q", method, from, got, want)
				}
				if got := r.Header["Link"]; len(got) != 2 || got[0] != "<"+linkOf(from, want)+`>; rel="next"; title="`+from+`"` || got[1] != `<http://evil.test/>; rel="last"` {
					t.Errorf("%s: Link of %q: got %q", method, from, got)
				}
				testservers.Equal(t, fmt.Sprintf("%s: Content-Location of %q", method, from), r.Header.Get("Content-Location"), want)
			}
			n++
		}
		w.want("requests upstream", w.upstreamSaw(), 2*len(same)) // one of two GETs, and the POST
	})
}

// linkOf returns the URL in the Link field: unchanged with its spaces, or rewritten.
func linkOf(from, want string) string {
	if want == strings.TrimSpace(from) {
		return from
	}
	return want
}

// TestFieldsAboutHostsInResponses lists what happens to each field with which an upstream can send a client to another
// host, or change how a browser uses the host of the gateway.
func TestFieldsAboutHostsInResponses(t *testing.T) {
	for _, c := range []struct {
		field          string
		known, unknown bool // whether clients get the field for known and for unknown operations
	}{
		{"Alt-Svc: h3=\"evil.test:443\"", false, false},
		{"Strict-Transport-Security: max-age=31536000; includeSubDomains", false, false},
		{"Proxy-Authenticate: Basic realm=evil", false, false},
		{"Nel: {\"report_to\":\"evil\",\"max_age\":31536000,\"include_subdomains\":true}", false, false},
		{"Report-To: {\"group\":\"evil\",\"max_age\":31536000,\"endpoints\":[{\"url\":\"https://evil.test/\"}]}", false, false},
		{"Reporting-Endpoints: default=\"https://evil.test/\"", false, false},
		{"Service-Worker-Allowed: /", false, false},
		{"Refresh: 0; url=http://evil.test/", false, false},
		{"Access-Control-Allow-Credentials: true", false, false},
		{"Clear-Site-Data: \"cookies\", \"storage\"", false, true},
		{"Access-Control-Allow-Methods: DELETE", false, true},
		{"Access-Control-Allow-Headers: authorization", false, true},
		{"Access-Control-Allow-Origin: http://evil.test", true, true},
		{"Access-Control-Expose-Headers: x-evil", true, true},
		{"Set-Cookie: weir-session=x; Domain=evil.test; Path=/", true, true},
		{"Www-Authenticate: Basic realm=\"http://evil.test\"", true, true},
		{"Content-Location: http://evil.test/", true, true},
		{"Content-Security-Policy: report-uri http://evil.test/", true, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			name, value, _ := strings.Cut(c.field, ": ")
			w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(name, value) }, onlyTo(t))
			for path, returned := range map[string]bool{"/gitignore/templates": c.known, "/made/up": c.unknown} {
				want := map[bool]string{true: value}[returned]
				w.want(path+" "+name, w.get(path, "Authorization: Bearer a", "Origin: http://evil.test").Header.Get(name), want)
			}
		})
	}
}

// TestInterimResponsesHaveTheFieldsOfFinalResponses checks that a field that is withheld from a response is also
// withheld from an interim response.
func TestInterimResponsesHaveTheFieldsOfFinalResponses(t *testing.T) {
	setup(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Link", "<"+upstreamURL+"/style>; rel=preload")
		h.Set("Alt-Svc", `h3="evil.test:443"`)
		h.Set("X-Ratelimit-Remaining", "4711")
		h.Set("Via", "1.1 evil")
		w.WriteHeader(http.StatusEarlyHints)
		clear(h)
	}, onlyTo(t)).run(t, func(w *world) {
		for _, path := range []string{"/gitignore/templates", "/made/up"} {
			interim, _, _ := strings.Cut(w.raw(fmt.Sprintf("GET %s HTTP/1.1\r\nHost: gateway.test\r\nConnection: close\r\n\r\n", path)), "\r\n\r\n")
			w.want(path, interim, "HTTP/1.1 103 Early Hints\r\nLink: <http://gateway.test/style>; rel=preload")
		}
	})
}
