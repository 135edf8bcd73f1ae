package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// webhookPair is a reference service, and a gateway in front of it that receives its webhooks.
type webhookPair struct {
	*testing.T
	service *service.Service
	client  http.Client
}

// startWebhookPair starts a service and a gateway. The service signs deliveries with signedWith, and the gateway
// expects signatures with the secret expected.
func startWebhookPair(t *testing.T, signedWith, expected, contentType string) *webhookPair {
	t.Helper()
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Limits.ColdStart, cfg.Webhooks.Secret = "http://service.test", "trust", credential.Secret(expected)
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	listener := testservers.ServePipe(t, "gateway.test:80", &http.Server{Handler: g})
	s := newTestService(t, listener)
	g.transport.DialContext = testservers.ServePipe(t, "service.test:80", &http.Server{Handler: s}).Dial
	if err := s.SetWebhooks([]service.Webhook{{URL: "http://gateway.test" + cfg.Webhooks.Path, Secret: credential.Secret(signedWith), ContentType: contentType, Events: []string{"*"}, Target: "acme"}}); err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: listener.Dial}
	t.Cleanup(transport.CloseIdleConnections)
	return &webhookPair{t, s, http.Client{Transport: transport}}
}

// newTestService returns a service that sends deliveries to a listener.
func newTestService(t *testing.T, to *testservers.PipeListener) *service.Service {
	t.Helper()
	dialect, err := policy.LoadDialect("service")
	if err != nil {
		t.Fatal(err)
	}
	s := service.New(service.Config{Limits: policy.DefaultLimits(), Seed: 1, Dialect: dialect, Dial: to.Dial})
	t.Cleanup(s.Close)
	return s
}

// send sends a request to the gateway.
func (d *webhookPair) send(path string) (cacheStatus, body string) {
	d.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://gateway.test"+path, http.NoBody)
	if err != nil {
		d.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer tok-member")
	resp, err := d.client.Do(req)
	if err != nil {
		d.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		d.Fatalf("%s: %d %s, %v", path, resp.StatusCode, text, err)
	}
	return resp.Header.Get("Cache-Status"), string(text)
}

// commits returns the number of commits in the statistics.
func (d *webhookPair) commits() (cacheStatus string, n int) {
	d.Helper()
	status, body := d.send("/repos/acme/widgets/stats/punch_card")
	var triples [][3]int
	if err := json.Unmarshal([]byte(body), &triples); err != nil {
		d.Fatal(err)
	}
	for _, triple := range triples {
		n += triple[2]
	}
	return status, n
}

// cause creates an event at the service, and returns the status of its delivery.
func (d *webhookPair) cause(event string) (status int) {
	d.Helper()
	w := httptest.NewRecorder()
	d.service.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "http://service.test/_service/events", strings.NewReader(event)))
	if w.Code != http.StatusAccepted {
		d.Fatalf("create the event: got %d %s", w.Code, w.Body)
	}
	synctest.Wait()
	var records []struct{ Status int }
	w = httptest.NewRecorder()
	d.service.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://service.test/_service/deliveries", http.NoBody))
	if err := json.Unmarshal(w.Body.Bytes(), &records); err != nil {
		d.Fatal(err)
	}
	return records[0].Status
}

// TestPushWebhookRefreshesStatistics checks that a push to the default branch changes the
// statistics of the gateway, and that a push to another branch does not.
func TestPushWebhookRefreshesStatistics(t *testing.T) {
	for _, contentType := range []string{"json", "form"} {
		t.Run(contentType, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := startWebhookPair(t, "secret", "secret", contentType)
				_, first := d.commits()
				if status, n := d.commits(); !strings.HasPrefix(status, "weir; hit") || n != first {
					t.Errorf("%d, then %d: %s", first, n, status)
				}
				if status := d.cause(`{"event": "push", "repository": "acme/widgets", "ref": "refs/heads/side", "commits": 3}`); status != http.StatusAccepted {
					t.Errorf("status %d for the delivery", status)
				}
				if status, n := d.commits(); !strings.HasPrefix(status, "weir; hit") || n != first {
					t.Errorf("after a push to another branch %d: %s", n, status)
				}
				if status := d.cause(`{"event": "push", "repository": "acme/widgets", "commits": 3}`); status != http.StatusAccepted {
					t.Errorf("status %d for the delivery", status)
				}
				if status, n := d.commits(); strings.HasPrefix(status, "weir; hit") || n != first+3 {
					t.Errorf("%d before the push, %d after it: %s", first, n, status)
				}
			})
		})
	}
}

func TestDeliveryWithWrongSecretChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := startWebhookPair(t, "secret", "another", "json")
		_, first := d.commits()
		if status := d.cause(`{"event": "push", "repository": "acme/widgets", "commits": 3}`); status != http.StatusUnauthorized {
			t.Errorf("status %d for the delivery", status)
		}
		if status, n := d.commits(); !strings.HasPrefix(status, "weir; hit") || n != first {
			t.Errorf("got %d commits with Cache-Status %s, want a hit with %d", n, status, first)
		}
	})
}

// TestServiceWebhookFlagSignsDeliveries checks the webhook that the service command configures
// with a secret from the environment.
func TestServiceWebhookFlagSignsDeliveries(t *testing.T) {
	for _, secret := range []string{"", "two"} {
		synctest.Test(t, func(t *testing.T) {
			var signature string
			l := testservers.ServePipe(t, "hooks.test:80", &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				sum := hmac.New(sha256.New, []byte(secret))
				_, _ = io.Copy(sum, r.Body)
				signature = r.Header.Get("X-Hub-Signature-256")
				if want := "sha256=" + hex.EncodeToString(sum.Sum(nil)); signature != want && secret != "" {
					t.Errorf("signature %s, want %s", signature, want)
				}
			})})
			d := &webhookPair{T: t, service: newTestService(t, l)}
			p := &process{getenv: func(name string) (string, bool) {
				return secret, name == "WEIR_WEBHOOK_SECRET" && secret != ""
			}}
			command := serviceCommand{Webhook: "http://hooks.test"}
			if err := command.addWebhook(p, d.service); err != nil {
				t.Fatal(err)
			}
			if status := d.cause(`{"event": "push", "repository": "acme/secret"}`); status != http.StatusOK || (signature == "") != (secret == "") {
				t.Errorf("secret %q: %d, signature %q", secret, status, signature)
			}
		})
	}
}
