package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/history"
)

// An account has the configured name, else the login in a response to GET /user, else a shortened hash.
func TestAccountsHaveReadableLabels(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/user" {
			return
		}
		if r.Header.Get("Authorization") == "Bearer of-ci" {
			_, _ = fmt.Fprint(w, `{"login": "CI", "id": 583232}`)
		} else {
			_, _ = fmt.Fprint(w, `{"login": "mona", "id": 583231}`)
		}
	}))
	t.Cleanup(up.Close)
	key, line := newClientKey(t, "builds")
	cfg, err := config.Parse(config.Source{Path: "weir.yaml", Getenv: func(string) (string, bool) { return "", false }}, []byte(`
upstream: {url: "`+up.URL+`"}
limits: {cold_start: trust}
callers: {pass_through: true}
credentials: [{name: ci, kind: user, token: first}]
clients:
  `+line+`
`))
	if err != nil {
		t.Fatal(err)
	}
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	call := func(path, credential string) {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer "+credential)
		g.ServeHTTP(httptest.NewRecorder(), r)
	}
	call("/repos/acme/widgets", key)
	call("/user", "of-mona")
	call("/user", "of-ci") // a stranger whose login is the name of a configured credential
	call("/repos/acme/widgets", "of-a-stranger")
	w := httptest.NewRecorder()
	g.admin(cfg.Admin).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/api/v1/accounts", nil))
	var accounts []history.Account
	if err := json.Unmarshal(w.Body.Bytes(), &accounts); err != nil {
		t.Fatal(err)
	}
	labels := map[string]bool{}
	for _, a := range accounts {
		labels[regexp.MustCompile(`^account [0-9a-f]{8}$`).ReplaceAllString(a.Label, "account HASH")] = true
	}
	if diff := cmp.Diff([]string{"account HASH", "ci", "mona", "user:583232"}, slices.Sorted(maps.Keys(labels))); diff != "" {
		t.Error(diff)
	}
}
