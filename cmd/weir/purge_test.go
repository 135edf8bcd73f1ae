package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// validated answers with a lifetime and an ETag, and with 304 to the ETag.
func validated(cacheControl string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", cacheControl)
		w.Header().Set("Etag", `"one"`)
		if r.Header.Get("If-None-Match") != "" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = fmt.Fprint(w, "[]")
	}
}

// adminOf serves the admin API of a gateway, and returns its URL.
func adminOf(t *testing.T, g *gateway) string { return serveAPI(t, g.admin(g.started.Admin).ServeHTTP) }

func TestPurge(t *testing.T) {
	up := serveAPI(t, validated("max-age=600"))
	g := open(t, configure(up, trusting))
	address := adminOf(t, g)
	send := func(path string) string { return sendTo(g, http.MethodGet, path, "").Header().Get("Cache-Status") }
	const target = "/repos/acme/widgets/subscription"
	for _, c := range []struct {
		args  []string
		code  int
		text  string
		cache string // Cache-Status of the next request for the target
	}{
		{[]string{"--url", target}, 0, "2 entries will be revalidated", "fwd=stale; fwd-status=304"},
		{[]string{"--url", up + target + "?x=1"}, 0, "2 entries", "fwd=stale; fwd-status=304"},
		{[]string{"--url", "https://weir.example.com/api/v3/repos/Acme/widgets/subscription"}, 0, "2 entries", "fwd=stale; fwd-status=304"},
		{[]string{"--tag", "repo:acme/widgets"}, 0, "2 entries", "fwd=stale; fwd-status=304"},
		{[]string{"--tag", "org:acme"}, 0, "2 entries", "fwd=stale; fwd-status=304"},
		{[]string{"--tag", "account:egress:shared"}, 0, "2 entries", "fwd=stale; fwd-status=304"},
		{[]string{"--tag", "repo:acme/widgets", "--hard"}, 0, "2 entries removed", "fwd=uri-miss; fwd-status=200"},
		{[]string{"--tag", "repo:acme/other"}, 0, "0 entries", "hit"},
		{[]string{"--url", target, "--tag", "org:acme"}, 2, "give only one", "hit"},
		{nil, 2, "required", "hit"},
		{[]string{"--url", "/a%2"}, 1, "", "hit"},
	} {
		send(target)
		send(target + "?page=2")
		wantWeir(t, c.code, c.text, append([]string{"cache", "purge", "--admin", address}, c.args...)...)
		got := send(target)
		failIf(t, !strings.HasPrefix(got, "weir; "+c.cache), "%v: Cache-Status %q, want %q", c.args, got, c.cache)
		send(target + "?page=2")
	}
	wantWeir(t, 1, "not the admin listener", "cache", "purge", "--tag", "t", "--admin", up)
}

// TestDeliveryPurgesTagsOfCatalogue checks which responses each kind of event makes stale.
func TestDeliveryPurgesTagsOfCatalogue(t *testing.T) {
	g := open(t, configure(serveAPI(t, validated("max-age=600")), trusting, func(c *config.Config) { c.Webhooks.Secret, c.Cache.Lag = "secret", 0 }))
	send := func(path string) string { return sendTo(g, http.MethodGet, path, "").Header().Get("Cache-Status") }
	paths := map[string]string{
		"statistics": "/repos/acme/widgets/stats/participation", "another repository": "/repos/acme/other/stats/participation",
		"by number": "/repositories/42/stats/participation", "rulesets": "/repos/acme/widgets/rulesets", "organization": "/orgs/acme/rulesets",
	}
	const payload = `{"repository": {"full_name": "Acme/Widgets"}, "organization": {"login": "acme"}}`
	for i, c := range []struct {
		event, secret, body string
		code                int
		stale               string
	}{
		{"push", "secret", payload, 202, "statistics, by number"},
		{"push", "other", payload, 401, ""},
		{"branch_protection_rule", "secret", payload, 409, ""}, // a replayed body keeps its event
		{"made_up", "secret", payload + " ", 202, ""},
		{"branch_protection_rule", "secret", payload + "  ", 202, "rulesets"},
		{"custom_property", "secret", `{"organization": {"login": "acme"}}`, 202, "rulesets"},
		{"push", "secret", `{}`, 202, "by number"},
		{
			"repository", "secret", `{"changes": {"repository": {"name": {"from": "Other"}}}, "repository": {"full_name": "acme/gears"}}`, 202,
			"another repository, by number",
		},
		{
			"organization", "secret", `{"changes": {"login": {"from": "Acme"}}, "organization": {"login": "umbrella"}}`, 202,
			"statistics, another repository, by number, rulesets, organization",
		},
	} {
		for _, path := range paths {
			send(path)
		}
		testservers.Equal(t, c.event, deliver(g, "X-Service-", c.secret, c.event, fmt.Sprint(i), c.body), c.code)
		var stale []string
		for _, name := range []string{"statistics", "another repository", "by number", "rulesets", "organization"} {
			if strings.Contains(send(paths[name]), "fwd=stale") {
				stale = append(stale, name)
			}
		}
		got := strings.Join(stale, ", ")
		failIf(t, got != c.stale, "%s, %s: stale: %s; want %s", c.event, c.body, got, c.stale)
	}
	send(paths["statistics"])
	deliver(g, "X-Service-", "secret", "push", "0", payload) // the second delivery
	got := send(paths["statistics"])
	failIf(t, !strings.Contains(got, "hit"), "after a replayed delivery: %s", got)
}

// TestReplicasUseResponsesUntilAnEvent delivers the ping of a webhook to one of two replicas on one Redis. Both replicas
// then use responses after their lifetime, until an event that arrives at the other replica.
func TestReplicasUseResponsesUntilAnEvent(t *testing.T) {
	t.Parallel()
	cfg := configure(serveAPI(t, validated("private, max-age=1")), func(c *config.Config) {
		c.Upstream.Dialect, c.Store.URL = "github", "unix://"+testservers.Redis(t)
		c.Webhooks.Secret, c.Webhooks.Fresh = "secret", time.Hour
	})
	replicas := []*gateway{open(t, cfg), open(t, cfg)}
	const repository = `"repository": {"full_name": "acme/widgets"}`
	for i, event := range []struct {
		name, body, condition string
		fresh                 bool
	}{
		{"ping", `{"hook": {"type": "Repository", "events": ["*"]}, ` + repository + "}", "the replica knows the webhook", true},
		{"issues", "{" + repository + "}", "the event reached the replica", false},
	} {
		code := deliver(replicas[i], "X-GitHub-", "secret", event.name, event.name, event.body, "X-GitHub-Hook-Installation-Target-Type: repository")
		failIf(t, code != http.StatusAccepted, "%s: status %d, want 202", event.name, code)
		for _, g := range replicas {
			testservers.Eventually(t, event.condition, func(context.Context) bool {
				w := sendTo(g, http.MethodGet, "/repos/acme/widgets/issues", "", "Authorization: Bearer token")
				return strings.Contains(w.Header().Get("Cache-Status"), "detail=webhook") == event.fresh
			})
		}
	}
}

func TestWebhooksRequireSecret(t *testing.T) {
	w := sendTo(open(t, configure(nowhere)), http.MethodPost, "/_weir/webhooks", "{}")
	failIf(t, w.Code != http.StatusNotFound, "got %d, want 404", w.Code)
}

func TestWebhooksObeyTheRateOfAnAddress(t *testing.T) {
	g := open(t, configure(nowhere, inboundRate(1, 3), func(c *config.Config) { c.Webhooks.Secret = "secret" }))
	for address, c := range map[string]struct {
		body string
		want []int
	}{
		"192.0.2.1:1": {"{}", []int{401, 401, 401, 429}},
		"192.0.2.2:1": {strings.Repeat("a", 40<<10), []int{401, 429}}, // 40 KiB count as three requests
	} {
		var codes []int
		for range c.want {
			r := newRequest(http.MethodPost, "/_weir/webhooks", c.body)
			r.RemoteAddr = address
			codes = append(codes, serveRequest(g, r).Code)
		}
		failIf(t, !slices.Equal(codes, c.want), "%d bytes: got %v, want %v", len(c.body), codes, c.want)
	}
}

// withClients adds clients of one account, a group with one client, and a client of another account.
func withClients(cfg *config.Config) {
	cfg.Credentials = []config.Credential{userToken("ci", "octo-bot", "held-token"), userToken("own", "own", "own-token")}
	cfg.Groups = []config.Group{{Name: "team", Limit: 1}}
	cfg.Clients = []config.Client{
		{Name: "job", Key: keyHash("job-key"), Credentials: []string{"ci"}, Limit: 1},
		{Name: "bot", Key: keyHash("bot-key"), Credentials: []string{"ci"}, Limit: 1, Group: "team"},
		{Name: "alone", Key: keyHash("alone-key"), Credentials: []string{"own"}, Limit: 0.9},
	}
}

// TestReloadRaisesTheGuaranteeOfAClient changes the part of a client while the window is open.
func TestReloadRaisesTheGuaranteeOfAClient(t *testing.T) {
	g := open(t, configure(nowhere, trusting, withClients))
	want := func(guarantee int) {
		t.Helper()
		client := g.current.Load().callers.Client("bot")
		claim := limits.Claim{Operation: "op", Resource: policy.Core, Points: 1}
		must(g.limiter.Acquire(t.Context(), claim, client.Caller, time.Now().Add(time.Second)))(t)
		for _, b := range must(g.accounts(t.Context(), 1))(t)[0].Budgets {
			if b.Resource == "client:core:job" && b.Guarantee == guarantee {
				return
			}
		}
		t.Errorf("the guarantee of the client is not %d", guarantee)
	}
	want(0)
	reloadChanged(t, g, func(c *config.Config) { c.Clients[0].Guarantee = 0.1 })
	want(500)
}

func TestOpenAccount(t *testing.T) {
	g := open(t, configure(nowhere, trusting, func(c *config.Config) { c.Limits.Probes = 1 }))
	ledger := g.current.Load().ledger
	for id, retryAfter := range []time.Duration{time.Microsecond, time.Hour} { // a limit error, then a failed probe
		c := limits.Claim{ID: uint64(id + 1), Account: "user:ci", Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1}
		testservers.Eventually(t, "the cool-down ends", func(ctx context.Context) bool {
			return ledger.Admit(ctx, c).Granted
		})
		limited := limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitSecondary, RetryAfter: retryAfter}
		noError(t, ledger.Settle(t.Context(), limits.Permit{Claim: c}, limited))
	}
	address := adminOf(t, g)
	for _, c := range []struct {
		args string
		code int
		text string
	}{
		{"budget", 0, "s, because probes failed: weir account open user:ci"},
		{"account open user:other", 1, `open account "user:other": the account is not closed`},
		{"account open user:ci", 0, "user:ci is open; its next request is a probe"},
		{"account open user:ci", 0, "user:ci is open"}, // the end of its cool-down
		{"account open user:ci", 1, "not closed, is in no cool-down, and no primary window is exhausted"},
		{"account open", 2, "account"},
	} {
		wantWeir(t, c.code, c.text, append(strings.Fields(c.args), "--admin", address)...)
	}
	last := g.trail.Last()
	failIf(t, len(last) != 4 || last[1].Action != "open account" || last[1].Target != "user:ci" || last[1].Outcome != "opened", "audit trail: %+v", last)
}
