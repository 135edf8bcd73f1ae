package proxy

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
)

// TestEveryNameOfTheUpstreamLeadsToTheGateway checks Link, Location and Content-Location for upstreams that name themselves
// by an alias, or with and without the enterprise prefix.
func TestEveryNameOfTheUpstreamLeadsToTheGateway(t *testing.T) {
	const plain, enterprise, user = "http://upstream.test", "http://upstream.test/api/v3", "/user/repos?page=2"
	for _, c := range []struct{ upstream, alias, path, uri, want string }{
		{plain, "", "/user", plain + "/api/v3" + user, "http://gateway.test" + user},
		{plain, "", "/api/v3/user", plain + "/api/v3" + user, "http://gateway.test/api/v3" + user},
		{plain, "", "/api/v3/user", plain + user, "http://gateway.test/api/v3" + user},
		{enterprise, "", "/user", enterprise + user, "http://gateway.test" + user},
		{enterprise, "", "/api/v3/user", enterprise + user, "http://gateway.test/api/v3" + user},
		{enterprise, "", "/user", plain + user, "http://gateway.test" + user},
		{enterprise, "", "/user", plain + "/login", ""},
		{enterprise, "", "/user", plain + "/api/v30/user", ""},
		{plain, "https://api.alias.test", "/user", "https://API.alias.test:443" + user, "http://gateway.test" + user},
		{plain, "https://alias.test/api/v3", "/user", "https://alias.test/api/v3" + user, "http://gateway.test" + user},
		{enterprise, "https://api.alias.test", "/api/v3/user", "https://api.alias.test" + user, "http://gateway.test/api/v3" + user},
		{plain, "https://alias.test/base", "/user", "https://alias.test/base" + user, "http://gateway.test" + user},
		{plain, "https://alias.test/base", "/user", "https://alias.test/basement" + user, ""},
		{plain, "https://alias.test", "/user", "https://alias.test.evil.test" + user, ""},
		{plain, "https://alias.test", "/user", "https://u@alias.test" + user, ""},
		{plain, "https://alias.test", "/user", "https://alias.test:444" + user, ""},
	} {
		named := func(config *Config) {
			config.Upstream, _ = url.Parse(c.upstream)
			if alias, _ := url.Parse(c.alias); c.alias != "" {
				config.Aliases = []*url.URL{alias}
			}
			next := config.Transport
			config.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				r.URL.Path = "/base" + strings.TrimPrefix(r.URL.Path, "/api/v3") // where the upstream of the tests has its handler
				return next.RoundTrip(r)
			})
		}
		want := c.want
		if want == "" {
			want = c.uri
		}
		setup(responds(200, "Link: <"+c.uri+`>; rel="next"`, "Location: "+c.uri, "Content-Location: "+c.uri, "Cache-Control: max-age=60"), withCatalogue, named).sub(t, c.upstream+" "+c.path+" "+c.uri, func(w *world) {
			for range 2 { // from the upstream and from the cache
				w.wantHeader(w.get(c.path), "Link: <"+want+`>; rel="next"`, "Location: "+want, "Content-Location: "+want)
			}
		})
	}
}

// TestForeignNamesOfTheUpstreamAreLoggedOnce checks which URLs show that the upstream has another name.
func TestForeignNamesOfTheUpstreamAreLoggedOnce(t *testing.T) {
	for field, want := range map[string]int{
		`Link: <https://other.test/made/up?page=2>; rel="next"`:                       1,
		"Location: https://other.test/api/v3/repos/a/b":                               1,
		"Location: https://upstream.test/base/repos/a/b":                              1, // another scheme
		"Content-Location: https://other.test/users/octocat":                          1,
		`Link: <https://docs.test/changes>; rel="deprecation"`:                        0,
		"Location: https://storage.test/bucket/archive.tar.gz?signature=x":            0,
		"Location: https://u:p@other.test/repos/a/b":                                  0,
		"Location: " + upstreamURL + "/repos/a/b":                                     0,
		"Location: /base/repos/a/b":                                                   0,
		`Link: <` + upstreamURL + `/user?page=2>; rel="next", <https://x.test/>; x=1`: 0,
	} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			w := newWorld(t, responds(200, field), withCatalogue, logTo(&log))
			for range 3 {
				w.get("/user")
			}
			got := strings.Count(log.String(), "upstream.aliases")
			failIf(t, got != want, "%s: %d warnings, want %d\n%s", field, got, want, &log)
		})
	}
}
