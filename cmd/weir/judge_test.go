package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/judge"
)

func TestJudgedGatewayHasTheLimitsOfTheJudge(t *testing.T) {
	cfg, err := config.Load(config.Source{Path: "../../.ci/judge/weir.yaml", Getenv: noEnv})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(judge.Limits(), cfg.Limits.Limits); diff != "" {
		t.Error(diff)
	}
}

func TestJudgeReportsProxyWithAnotherUpstream(t *testing.T) {
	proxy := httptest.NewServer(http.NotFoundHandler())
	defer proxy.Close()
	var out output
	if code := run(t.Context(), []string{"judge", "--listen", "127.0.0.1:0", proxy.URL}, noEnv, &out, &out); code != exitFailure {
		t.Errorf("exit code %d, want %d", code, exitFailure)
	}
	want := "weir: judge " + proxy.URL + ": the proxy forwarded no request that succeeded; set its upstream to http://127.0.0.1:"
	if got := out.String(); !strings.HasPrefix(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}
}
