package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// webhookPair is a reference service, and a gateway in front of it that receives its webhooks.
type webhookPair struct {
	*testing.T
	gateway *gateway
	service *service.Service
}

// startWebhookPair starts a service and a gateway. The service signs deliveries with signedWith, and the gateway
// expects signatures with the secret "secret".
func startWebhookPair(t *testing.T, signedWith credential.Secret, contentType string) *webhookPair {
	t.Helper()
	g := open(t, configure("http://service.test", trusting, func(c *config.Config) { c.Webhooks.Secret = "secret" }))
	d := newTestService(t, testservers.ServePipe(t, "gateway.test:80", &http.Server{Handler: g}), quirk.Set{}, policy.DefaultLimits())
	connectTo(t, g, d)
	noError(t, d.SetWebhooks([]service.Webhook{
		{URL: "http://gateway.test/_weir/webhooks", Secret: signedWith, ContentType: contentType, Events: []string{"*"}, Target: "acme"},
	}))
	return &webhookPair{t, g, d}
}

// newTestService returns a service that sends deliveries to a listener.
func newTestService(t *testing.T, to *testservers.PipeListener, quirks quirk.Set, limits policy.Limits) *service.Service {
	t.Helper()
	dialect := must(policy.LoadDialect("service"))(t)
	s := must(service.New(service.Config{Limits: limits, Seed: 1, Dialect: dialect, Dial: to.Dial, Quirks: quirks}))(t)
	t.Cleanup(s.Close)
	return s
}

// commits returns the number of commits in the statistics, and whether they are a hit.
func (d *webhookPair) commits() (hit bool, n int) {
	d.Helper()
	w := sendTo(d.gateway, http.MethodGet, "/repos/acme/widgets/stats/punch_card", "", "Authorization: Bearer tok-member")
	var triples [][3]int
	err := json.Unmarshal(w.Body.Bytes(), &triples)
	stopIf(d, err != nil || w.Code != http.StatusOK, "%d %s, %v", w.Code, w.Body, err)
	for _, triple := range triples {
		n += triple[2]
	}
	return strings.HasPrefix(w.Header().Get("Cache-Status"), "weir; hit"), n
}

// cause creates an event at the service, and checks the status of its delivery.
func (d *webhookPair) cause(event string, want int) {
	d.Helper()
	w := sendTo(d.service, http.MethodPost, "/_service/events", event)
	stopIf(d, w.Code != http.StatusAccepted, "create the event: got %d %s", w.Code, w.Body)
	synctest.Wait()
	var records []struct{ Status int }
	noError(d, json.Unmarshal(sendTo(d.service, http.MethodGet, "/_service/deliveries", "").Body.Bytes(), &records))
	failIf(d, records[0].Status != want, "%s: status %d for the delivery, want %d", event, records[0].Status, want)
}

// TestPushWebhookRefreshesStatistics checks that a push to the default branch changes the
// statistics of the gateway, and that a push to another branch, or with a wrong signature, does not.
func TestPushWebhookRefreshesStatistics(t *testing.T) {
	const push = `{"event": "push", "repository": "acme/widgets", "commits": 3}`
	for _, c := range []struct {
		secret             credential.Secret
		contentType, event string
		status             int
		hit                bool
		added              int
	}{
		{"secret", "json", `{"event": "push", "repository": "acme/widgets", "ref": "refs/heads/side", "commits": 3}`, http.StatusAccepted, true, 0},
		{"secret", "form", `{"event": "push", "repository": "acme/widgets", "ref": "refs/heads/side", "commits": 3}`, http.StatusAccepted, true, 0},
		{"secret", "json", push, http.StatusAccepted, false, 3},
		{"secret", "form", push, http.StatusAccepted, false, 3},
		{"another", "json", push, http.StatusUnauthorized, true, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := startWebhookPair(t, c.secret, c.contentType)
			_, first := d.commits()
			if hit, n := d.commits(); !hit || n != first {
				t.Errorf("%d, then %d, a hit: %t", first, n, hit)
			}
			d.cause(c.event, c.status)
			if hit, n := d.commits(); hit != c.hit || n != first+c.added {
				t.Errorf("%s as %s, signed with %s: %d commits after %d, a hit: %t", c.event, c.contentType, c.secret.Reveal(), n, first, hit)
			}
		})
	}
}

// TestServiceWebhookFlagSignsDeliveries checks the webhook that the service command configures
// with a secret from the environment.
func TestServiceWebhookFlagSignsDeliveries(t *testing.T) {
	for _, secret := range []string{"", "two"} {
		synctest.Test(t, func(t *testing.T) {
			var got string
			l := testservers.ServePipe(t, "hooks.test:80", &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				body := must(io.ReadAll(r.Body))(t)
				got = r.Header.Get("X-Hub-Signature-256")
				want := signature(secret, string(body))
				failIf(t, "X-Hub-Signature-256: "+got != want && secret != "", "signature %s, want %s", got, want)
			})})
			d := &webhookPair{T: t, service: newTestService(t, l, quirk.Set{}, policy.DefaultLimits())}
			p := &process{getenv: func(name string) (string, bool) { return secret, name == "WEIR_WEBHOOK_SECRET" && secret != "" }}
			noError(t, (&serviceCommand{Webhook: "http://hooks.test"}).addWebhook(p, d.service))
			d.cause(`{"event": "push", "repository": "acme/secret"}`, http.StatusOK)
			failIf(t, (got == "") != (secret == ""), "secret %q: signature %q", secret, got)
		})
	}
}
