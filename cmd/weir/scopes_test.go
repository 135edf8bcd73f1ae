package main

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// TestScopesByKeyAndByToken sends requests of clients with repositories. The token of a run names its repository, and the scope stays
// with each credential of the client.
func TestScopesByKeyAndByToken(t *testing.T) {
	var logged testservers.Output
	api := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer first" && r.URL.Path == "/repos/acme/widgets" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte("{}"))
	})
	issuer, bearer := startIssuer(t)
	key, line := newClientKey(t, "builds")
	line = strings.Replace(line, "{", "{repositories: [\"acme/*\", \"!acme/secret\"], ", 1)
	g := openLogged(t, parse(t, `
upstream: {url: "`+api+`", dialect: github}
limits: {cold_start: trust}
credentials: [{name: ci, kind: user, account: octo-bot, token: first}, {name: cd, kind: user, account: hexa-bot, token: second}]
issuers: [{name: actions, url: "`+issuer+`", audiences: [weir]}]
hosts: [{name: raw.githubusercontent.com, url: "`+api+`"}]
proxy: {others: tunnel}
clients:
  `+line+`
  - {name: runs, jwt: {issuer: actions, claims: {sub: "*/*"}, repositories: sub}, credentials: [ci, cd], repositories: ["acme/*"]}
`), &logged)
	widgets, foreign := bearer("acme/widgets", time.Hour), bearer("other/x", time.Hour)
	for _, c := range []struct {
		name, path, authorization string
		status                    int
	}{
		{"key", "/repos/acme/gadgets", "Bearer " + key, 200},
		{"key, excluded", "/repos/acme/secret", "Bearer " + key, 403},
		{"token", "/repos/acme/widgets", widgets, 200},
		{"token, again", "/repos/acme/widgets", widgets, 200},
		{"token, another repository", "/repos/acme/gadgets", widgets, 403},
		{"token of a repository outside of the client's", "/repos/other/x", foreign, 403},
		{"token with a pattern", "/repos/acme/widgets", bearer("acme/*", time.Hour), 403},
	} {
		w := sendTo(g, "GET", c.path, "", "Authorization: "+c.authorization)
		failIf(t, w.Code != c.status, "%s: got %d, want %d: %s", c.name, w.Code, c.status, w.Body)
	}
	for path, want := range map[string]int{"/acme/gadgets/main/a": 200, "/acme/secret/main/a": 403} {
		w := sendTo(g, "GET", path, "", "Authorization: Bearer "+key, "Host: raw.githubusercontent.com")
		failIf(t, w.Code != want, "%s: got %d, want %d", path, w.Code, want)
	}
	current := g.current.Load()
	for name, want := range map[string]bool{"github.com": true, "codeload.github.com": true, "pypi.org": false} {
		failIf(t, current.scopedTunnel("runs", name) != want || current.scopedTunnel("other", name), "tunnels to %s: got %v for a client with a scope, want %v", name, !want, want)
	}
	testservers.Eventually(t, "the refusals are logged", func(context.Context) bool { return strings.Count(logged.String(), "detail=scope") == 5 })
}
