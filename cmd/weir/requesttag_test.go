package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/history"
)

// The admin API lists what each tag spends: the claim of a client with a JWT, and the field Weir-Tag of another client.
// The client with a JWT cannot choose its tag, also after a change of its credential.
func TestSpendIsShownByTag(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Weir-Tag") != "" {
			t.Error("the tag was forwarded")
		}
		if r.Header.Get("Authorization") == "Bearer first" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(up.Close)
	issuer, bearer := startIssuer(t)
	key, line := newClientKey(t, "builds")
	cfg, err := config.Parse(config.Source{Path: "weir.yaml", Getenv: func(string) (string, bool) { return "", false }}, []byte(`
upstream: {url: "`+up.URL+`"}
limits: {cold_start: trust}
credentials:
  - {name: ci, kind: user, account: octo-bot, token: first}
  - {name: cd, kind: user, account: other-bot, token: second}
issuers: [{name: actions, url: "`+issuer+`", audiences: [weir]}]
clients:
  `+line+`
  - {name: jobs, jwt: {issuer: actions, claims: {sub: "acme/*"}, tag: sub}, credentials: [ci, cd]}
`))
	if err != nil {
		t.Fatal(err)
	}
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	for _, c := range []struct{ authorization, tag string }{
		{bearer("acme/widgets", time.Hour), "forged"},
		{bearer("acme/widgets", time.Hour), ""},
		{bearer("acme/"+strings.Repeat("x", 64), time.Hour), "forged"},
		{"Bearer " + key, "nightly/42"},
		{"Bearer " + key, ""},
	} {
		r := httptest.NewRequest(http.MethodDelete, "/repos/acme/widgets", nil)
		r.Header.Set("Authorization", c.authorization)
		r.Header.Set("Weir-Tag", c.tag)
		g.ServeHTTP(httptest.NewRecorder(), r)
	}
	w := httptest.NewRecorder()
	g.admin(cfg.Admin).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/api/v1/series", nil))
	var got history.Costs
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := []history.Spender{ // each request of jobs was sent with both credentials
		{Client: "jobs", Tag: "acme/widgets", ClientLabel: "jobs", Use: history.Use{Requests: 2, Spent: 4, Upstream: 4}},
		{Client: "builds", Tag: "nightly/42", ClientLabel: "builds", Use: history.Use{Requests: 1, Spent: 1, Upstream: 1}},
	}
	if diff := cmp.Diff(want, got.Tags); diff != "" {
		t.Error(diff)
	}
}
