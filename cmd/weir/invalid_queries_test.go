package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/service"
)

// TestInvalidQueriesCauseNoViolation sends many queries that parse and fail validation. The gateway counts them as queries, and
// so does the service.
func TestInvalidQueriesCauseNoViolation(t *testing.T) {
	cfg := config.Default()
	cfg.Limits.ColdStart = "trust"
	s, err := newService(cfg, 1, service.Faults{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	up := httptest.NewServer(s)
	t.Cleanup(up.Close)
	cfg.Upstream.URL = up.URL
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	queries := []string{"{ nosuch%d: nosuch }", "query($unused%d: Int) { viewer { login } }", "query Q%d($n: String!) { repository(owner: \\\"acme\\\", name: $n) { id } }", "{ viewer { x%d: login @nosuch } }"}
	for i := range 95 { // more than the contents of a minute
		query := strings.ReplaceAll(queries[i%len(queries)], "%d", strings.Repeat("i", 1+i))
		r := httptest.NewRequest(http.MethodPost, "/graphql", strings.NewReader(`{"query":"`+query+`"}`))
		r.Header.Set("Authorization", "Bearer tok-owner")
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if text, _ := io.ReadAll(w.Body); w.Code != http.StatusOK || !strings.Contains(string(text), "errors") {
			t.Fatalf("query %d: got status %d: %s", i, w.Code, text)
		}
	}
	if v := s.Violations(); v.Violations != 0 || v.Banned {
		t.Errorf("got %+v", v)
	}
}
