package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// longToken returns a token of 520 characters in the form ghs_APP_JWT.
func longToken(n int) string {
	text := base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte(fmt.Sprintf(`{"iss":"api","n":%d}`, n)), 30))
	token := "ghs_4200_eyJhbGciOiJSUzI1NiJ9.eyJ" + text
	return token[:400] + "." + text[:119]
}

// TestLongTokensWorkEverywhere sends tokens of 520 characters in every way, through two replicas on one Redis, to an upstream
// at a ghe.com address.
func TestLongTokensWorkEverywhere(t *testing.T) {
	own, held, minted := longToken(1), longToken(2), longToken(3)
	var log testservers.Output
	var mu sync.Mutex
	var seen []string // Authorization of the requests
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if mints(r) {
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, `{"token":%q,"expires_at":%q}`, minted, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
			return
		}
		mu.Lock()
		seen = append(seen, r.Header.Get("Authorization"))
		mu.Unlock()
		w.Header().Set("Cache-Control", "private, max-age=60")
		_, _ = fmt.Fprintf(w, `{"id":1,"path":%q}`, r.URL.Path)
	})
	socket := testservers.Redis(t)
	app := installedApp()
	cfg := configure("http://api.octo.ghe.com", trusting, inboundRate(0, 0), func(c *config.Config) {
		c.Upstream.Dialect, c.Store.URL, c.Cache.Key = "github", "unix://"+socket, credential.Secret(strings.Repeat("k", 32))
		c.Credentials = []config.Credential{userToken("held", "octo-bot", credential.Secret(held)), app}
		c.Credentials[0].Kind = policy.Installation
		c.Clients = []config.Client{clientOf("a", "key-of-a", "held"), clientOf("b", "key-of-b", "bot")}
		c.Webhooks.Secret = "webhook-secret"
	})
	listener := testservers.ServePipe(t, "api.octo.ghe.com:80", &http.Server{Handler: api})
	replica := func() *gateway {
		g := openLogged(t, cfg, &log)
		g.transport.DialContext = listener.Dial
		return g
	}
	first, second := replica(), replica()
	for i, c := range []struct{ name, authorization, want string }{
		{"Bearer", "Bearer " + own, "Bearer " + own},
		{"token", "token " + own, "token " + own},
		{"Basic", basic("x-access-token:" + own), basic("x-access-token:" + own)},
		{"held", "Bearer key-of-a", "Bearer " + held},
		{"minted", "Bearer key-of-b", "Bearer " + minted},
	} {
		path := fmt.Sprint("/repos/acme/r", i)
		for n, g := range []*gateway{first, first, second} {
			if g == second {
				testservers.Eventually(t, "the response is in Redis", func(context.Context) bool {
					return sendTo(g, http.MethodGet, path, "", "Authorization: "+c.authorization, "Cache-Control: only-if-cached").Code == http.StatusOK
				})
			}
			w := sendTo(g, http.MethodGet, path, "", "Authorization: "+c.authorization)
			sent := strings.Contains(w.Header().Get("Cache-Status"), "fwd-status")
			failIf(t, w.Code != http.StatusOK || sent != (n == 0), "%s, request %d: %d, %v", c.name, n, w.Code, w.Header())
		}
		got := seen[len(seen)-1]
		failIf(t, len(seen) != i+1 || got != c.want, "%s: %d requests upstream, the last with %q", c.name, len(seen), got)
		// A token in another place is neither a tag nor text of a log.
		sendTo(first, http.MethodGet, "/repos/acme/"+own, "", "Authorization: "+c.authorization)
		seen = seen[:i+1]
	}
	w := sendTo(first, http.MethodGet, "/repos/acme/r0", "", "Authorization: Bearer "+own, "Weir-Tag: "+own[:60])
	failIf(t, w.Code != http.StatusBadRequest, "a token as a tag: %d", w.Code)
	// Deliveries of a tenant name it in a field.
	body := fmt.Sprintf(`{"repository":{"full_name":"acme/r0"},"token":%q}`, own)
	code := deliver(first, "X-GitHub-", "webhook-secret", "push", "1", body, "X-GitHub-Tenant: octo")
	failIf(t, code != http.StatusAccepted, "delivery of a tenant: %d", code)
	accounts := must(first.store.Accounts(t.Context(), 100))(t)
	first.observer.Flush()
	for _, token := range []string{own, held, minted} {
		for place, text := range map[string]string{"log": log.String(), "metrics": first.metrics(), "accounts": fmt.Sprint(accounts), "recent requests": fmt.Sprint(first.recent())} {
			failIf(t, strings.Contains(text, token[20:60]) || strings.Contains(text, token[460:]), "%s: a part of a token", place)
		}
	}
}
