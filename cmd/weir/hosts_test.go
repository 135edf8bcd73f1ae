package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
)

// hostsWorld is a gateway with an API and further hosts, and the requests that each of them received.
type hostsWorld struct {
	*testing.T
	gateway *gateway
	mu      sync.Mutex
	got     map[string][]string // "TARGET AUTHORIZATION" by host
}

// callsPerHour is the limit of the API in these tests.
const callsPerHour = 8

func startHosts(t *testing.T) *hostsWorld {
	t.Helper()
	w := &hostsWorld{T: t, got: map[string][]string{}}
	reset := fmt.Sprint(time.Now().Add(time.Hour).Unix())
	serve := func(name string) string {
		s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.got[name] = append(w.got[name], strings.TrimSpace(r.RequestURI+" "+r.Header.Get("Authorization")))
			rw.Header().Set("Location", "http://"+r.Host+"/next")
			rw.Header().Set("Cache-Control", "no-store")
			if used := len(w.got["api"]) + len(w.got["uploads"]); name == "api" {
				for field, value := range map[string]string{"Resource": "core", "Limit": fmt.Sprint(callsPerHour), "Used": fmt.Sprint(used), "Remaining": fmt.Sprint(callsPerHour - used), "Reset": reset} {
					rw.Header().Set("X-Ratelimit-"+field, value)
				}
			}
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Limits.ColdStart, cfg.Limits.Wait, cfg.Callers.PassThrough = serve("api"), "trust", 0, false
	cfg.Limits.Primary.User = callsPerHour
	cfg.Credentials = []config.Credential{{Name: "ci", Kind: "user", Account: "ci", Token: "tok-held"}}
	cfg.Clients = []config.Client{{Name: "builds", Key: keyHash("weir_key"), Share: 1, Limit: 0.9, Priority: "normal", Pace: "burst", Credentials: []string{"ci"}}}
	cfg.Hosts = []config.Host{
		{Name: "uploads.test", URL: serve("uploads"), Kind: "api", Path: "/api/uploads"},
		{Name: "raw.test", URL: serve("raw"), Kind: "files", Credential: true},
		{Name: "storage.test", URL: serve("storage"), Kind: "files", Path: "/storage"},
	}
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	w.gateway = g
	return w
}

// send sends a request with an Authorization field to the gateway.
func (w *hostsWorld) send(method, host, target, authorization string) *http.Response {
	r := httptest.NewRequest(method, target, nil)
	r.Host = host
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	recorded := httptest.NewRecorder()
	w.gateway.ServeHTTP(recorded, r)
	return recorded.Result()
}

// want checks the requests that a host has received since the last call.
func (w *hostsWorld) want(host string, want ...string) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := w.got[host]; fmt.Sprint(got) != fmt.Sprint(want) {
		w.Errorf("%s received %q, want %q", host, got, want)
	}
	delete(w.got, host)
}

func TestHostIsChosenByNameOrPath(t *testing.T) {
	w := startHosts(t)
	const key = "Bearer weir_key"
	w.send("GET", "weir.internal", "/user", key)
	w.want("api", "/user Bearer tok-held")
	w.send("POST", "Uploads.test:443", "/repos/a/b/releases/1/assets?name=x", key)
	w.want("uploads", "/repos/a/b/releases/1/assets?name=x Bearer tok-held")
	resp := w.send("POST", "weir.internal", "/api/uploads/repos/a/b/releases/1/assets?name=x", key)
	w.want("uploads", "/repos/a/b/releases/1/assets?name=x Bearer tok-held")
	if got, want := resp.Header.Get("Location"), "http://weir.internal/api/uploads/next"; got != want {
		t.Errorf("Location: got %s, want %s", got, want)
	}
	w.send("GET", "storage.test", "/storage/a", key)
	w.want("storage", "/storage/a")
	w.send("GET", "weir.internal", "/storage/storage/a", key)
	w.want("storage", "/storage/a")
	w.send("GET", "raw.test", "/a/b/main/README", key)
	w.want("raw", "/a/b/main/README Bearer tok-held")
	for _, own := range []string{"/_weir/x", "/api/uploads/_weir/x", "/storage/_weir/x"} {
		if resp := w.send("GET", "weir.internal", own, key); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: got %d", own, resp.StatusCode)
		}
	}
	w.want("api")
	w.want("uploads")
	w.want("storage")
}

// TestUploadsSpendTheBudgetOfTheAPI checks that a host of kind api has the ledger of the API, and that files do not.
func TestUploadsSpendTheBudgetOfTheAPI(t *testing.T) {
	w := startHosts(t)
	for i := range callsPerHour {
		host := []string{"uploads.test", "weir.internal"}[i%2]
		if resp := w.send("POST", host, "/repos/a/b/releases/1/assets", "Bearer weir_key"); resp.StatusCode != http.StatusOK {
			t.Fatalf("call %d: got %d", i, resp.StatusCode)
		}
	}
	for host, want := range map[string]int{"uploads.test": 429, "weir.internal": 429, "raw.test": 200, "storage.test": 200} {
		if resp := w.send("GET", host, "/repos/a/b", "Bearer weir_key"); resp.StatusCode != want {
			t.Errorf("%s after the last call: got %d, want %d", host, resp.StatusCode, want)
		}
	}
}

// TestCredentialReachesOnlyItsHosts checks that a host without a credential gets none: neither the credential of a
// client, nor a key of the gateway, nor a token that a client sends.
func TestCredentialReachesOnlyItsHosts(t *testing.T) {
	w := startHosts(t)
	for _, authorization := range []string{"", "Bearer weir_key", "Bearer tok-held", "Bearer tok-other", "Basic d2Vpcjp3ZWlyX2tleQ=="} {
		if resp := w.send("GET", "storage.test", "/a?sig=x", authorization); resp.StatusCode != http.StatusOK {
			t.Errorf("storage with %q: got %d", authorization, resp.StatusCode)
		}
		w.want("storage", "/a?sig=x")
	}
	for _, host := range []string{"uploads.test", "raw.test", "weir.internal"} {
		for _, authorization := range []string{"", "Bearer tok-held", "Bearer tok-other"} {
			if resp := w.send("GET", host, "/a", authorization); resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s with %q: got %d, want 401", host, authorization, resp.StatusCode)
			}
		}
	}
}

// TestFilesKeepTheirTarget checks that the target of a file is sent byte for byte, because signatures depend on it.
func TestFilesKeepTheirTarget(t *testing.T) {
	w := startHosts(t)
	for _, target := range []string{
		"/a//b/./c/../d", "/api/v3/user", "/api/graphql", "/a%2Fb%2fc", "/a?z=1&a=2&a=1;b", "/a?sig=a%2Bb%3D%2F+x&empty", "/%7Euser/~user", "/a?", "/",
	} {
		w.send("GET", "storage.test", target, "")
		w.want("storage", strings.TrimSuffix(target, "?"))
	}
}
