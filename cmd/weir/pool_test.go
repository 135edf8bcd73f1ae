package main

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// credentialRig is a gateway with credentials in virtual time. Its upstream records which
// token each request used.
type credentialRig struct {
	*testing.T
	g       *gateway
	answer  func(token string, w http.ResponseWriter, r *http.Request) // answers of the upstream
	log     bytes.Buffer
	mu      sync.Mutex
	spent   []string // tokens, in the order of the requests
	replies []string // all responses to clients
}

const poolUpstream = "http://upstream.test"

// newCredentialRig starts the gateway. The client "builds" has all credentials. The client "docs" has only the last
// credential.
func newCredentialRig(t *testing.T, held ...config.Credential) *credentialRig {
	t.Helper()
	c := &credentialRig{T: t}
	c.answer = func(string, http.ResponseWriter, *http.Request) {}
	up := testservers.ServePipe(t, "upstream.test:80", &http.Server{Handler: http.HandlerFunc(c.upstream)})
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Limits.ColdStart, cfg.Limits.Inbound.Rate = poolUpstream, "trust", 0
	cfg.Credentials = held
	var names []string
	for _, h := range held {
		names = append(names, h.Name)
	}
	for name, credentials := range map[string][]string{"builds": names, "docs": names[len(names)-1:]} {
		key := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("key-of-"+name)))
		cfg.Clients = append(cfg.Clients, config.Client{Name: name, Key: key, Credentials: credentials, Share: 1, Priority: "normal"})
	}
	g, err := newGateway(cfg, slog.New(slog.NewTextHandler(&c.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	g.transport.DialContext = up.Dial
	c.g = g
	t.Cleanup(func() {
		g.close()
		c.checkNoSecrets()
	})
	return c
}

func user(name string) config.Credential {
	return config.Credential{Name: name, Kind: policy.User, Account: "account-" + name, Token: credential.Secret("tok-" + name)}
}

func (c *credentialRig) upstream(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	c.mu.Lock()
	c.spent = append(c.spent, token)
	c.mu.Unlock()
	c.answer(token, w, r)
}

// request sends a request of a client, checks the status, and returns the tokens of the upstream requests.
func (c *credentialRig) request(client, method, path string, want int) []string {
	c.Helper()
	c.mu.Lock()
	c.spent = nil
	c.mu.Unlock()
	var body io.Reader = http.NoBody
	if method == http.MethodPost {
		body = strings.NewReader("{}")
	}
	r := httptest.NewRequest(method, path, body)
	r.Header.Set("Authorization", "Bearer key-of-"+client)
	w := httptest.NewRecorder()
	c.g.ServeHTTP(w, r)
	synctest.Wait()
	if w.Code != want {
		c.Errorf("%s %s: got %d, want %d: %v %s", method, path, w.Code, want, w.Header(), w.Body)
	}
	c.replies = append(c.replies, fmt.Sprint(w.Header(), w.Body))
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spent
}

// wantTokens checks the tokens that a GET request uses, in order.
func (c *credentialRig) wantTokens(path string, status int, want ...string) {
	c.Helper()
	if got := c.request("builds", http.MethodGet, path, status); fmt.Sprint(got) != fmt.Sprint(want) {
		c.Errorf("%s: %q was used, want %q", path, got, want)
	}
}

// checkNoSecrets searches the log and the admin data for tokens.
func (c *credentialRig) checkNoSecrets() {
	for _, text := range append(c.replies, c.log.String()) {
		for _, secret := range []string{"tok-", "key-of-", "minted-", "eyJ", base64.StdEncoding.EncodeToString([]byte("tok-id:secret"))} {
			if strings.Contains(text, secret) {
				c.Errorf("%q is in %s", secret, text)
			}
		}
	}
}

// rates sets the remaining quota of each token.
func rates(left map[string]int) func(string, http.ResponseWriter, *http.Request) {
	return func(token string, w http.ResponseWriter, _ *http.Request) {
		left[token]--
		h := w.Header()
		h.Set("X-Ratelimit-Limit", "5000")
		h.Set("X-Ratelimit-Remaining", fmt.Sprint(left[token]))
		h.Set("X-Ratelimit-Used", fmt.Sprint(5000-left[token]))
		h.Set("X-Ratelimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
		h.Set("X-Ratelimit-Resource", "core")
		h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusOK)
	}
}

func TestCredentialWithMostQuotaIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"), user("b"))
		left := map[string]int{"tok-a": 5000, "tok-b": 5000}
		c.answer = rates(left)
		for i := range 5 {
			c.wantTokens(fmt.Sprintf("/repos/acme/r%d/tags", i), 200, "tok-a")
		}
		left["tok-a"] = 2402 // other programs use the same token
		c.wantTokens("/repos/acme/x/tags", 200, "tok-a")
		c.wantTokens("/repos/acme/y/tags", 200, "tok-b") // has more than twice the quota
		left["tok-b"] = 1300
		c.wantTokens("/repos/acme/z/tags", 200, "tok-b")
		c.wantTokens("/repos/acme/z/branches", 200, "tok-b") // 2401 is not twice 1299
		if got := c.request("docs", http.MethodGet, "/repos/acme/w/tags", 200); fmt.Sprint(got) != "[tok-b]" {
			t.Errorf("the client docs used %q", got)
		}
	})
}

func TestLimitedCredentialIsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"), user("b"))
		c.answer = func(token string, w http.ResponseWriter, _ *http.Request) {
			if token == "tok-a" {
				w.Header().Set("Retry-After", "60")
				w.WriteHeader(http.StatusForbidden)
				_, _ = io.WriteString(w, `{"message":"You have exceeded a secondary rate limit"}`)
			}
		}
		began := time.Now()
		c.wantTokens("/repos/acme/x/tags", 200, "tok-a", "tok-b")
		c.wantTokens("/repos/acme/y/tags", 200, "tok-b")
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("waited %v", waited)
		}
	})
}

func TestRefusedCredentialIsQuarantined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"), user("b"))
		revoked := true
		c.answer = func(token string, w http.ResponseWriter, _ *http.Request) {
			if token == "tok-a" && revoked {
				w.WriteHeader(http.StatusUnauthorized)
			}
		}
		c.wantTokens("/repos/acme/x/subscribers", 200, "tok-a", "tok-b")
		c.wantTokens("/repos/acme/y/subscribers", 200, "tok-b")
		if list := c.g.credentialHealth.Quarantined(); len(list) != 1 || list[0].Name != "a" || list[0].Times != 1 {
			t.Errorf("quarantine list: %+v", list)
		}
		if !strings.Contains(c.log.String(), "credential quarantined after 401") {
			t.Error("the log contains no refusal")
		}
		time.Sleep(11 * time.Second)
		c.wantTokens("/repos/acme/z/subscribers", 200, "tok-a", "tok-b")
		time.Sleep(11 * time.Second) // the quarantine has doubled
		c.wantTokens("/repos/acme/u/subscribers", 200, "tok-b")
		revoked = false
		time.Sleep(10 * time.Second)
		c.wantTokens("/repos/acme/v/subscribers", 200, "tok-a")
		if list := c.g.credentialHealth.Quarantined(); len(list) != 0 {
			t.Errorf("quarantine list: %+v", list)
		}
	})
}

func TestWriteIsSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"), user("b"))
		c.answer = func(token string, w http.ResponseWriter, _ *http.Request) {
			if token == "tok-a" {
				w.WriteHeader(http.StatusUnauthorized)
			}
		}
		if got := c.request("builds", http.MethodPost, "/repos/acme/x/rulesets", 401); fmt.Sprint(got) != "[tok-a]" {
			t.Errorf("%q was used", got)
		}
		if got := c.request("builds", http.MethodPost, "/repos/acme/x/rulesets", 200); fmt.Sprint(got) != "[tok-b]" {
			t.Errorf("%q was used after the refusal", got)
		}
	})
}

func TestRefusalOfOnlyCredentialIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"))
		c.answer = func(_ string, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }
		c.wantTokens("/repos/acme/x/subscribers", 401, "tok-a")
		c.wantTokens("/repos/acme/x/subscribers", 503)
		if last := c.replies[1]; !strings.Contains(last, "Retry-After:[10]") || !strings.Contains(last, "detail=credential") {
			t.Errorf("response %s", last)
		}
	})
}

func TestResourceHiddenFromOneCredentialIsTriedWithAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"), user("b"))
		c.answer = func(token string, w http.ResponseWriter, r *http.Request) {
			if token == "tok-a" && strings.HasPrefix(r.URL.Path, "/repos/acme/secret") || strings.HasSuffix(r.URL.Path, "/none") {
				w.WriteHeader(http.StatusNotFound)
			}
		}
		c.wantTokens("/repos/acme/secret/tags", 200, "tok-a", "tok-b")
		c.wantTokens("/repos/acme/secret/tags", 200, "tok-b")
		c.wantTokens("/repos/acme/secret/branches", 200, "tok-a", "tok-b") // only tags were hidden so far
		c.wantTokens("/repos/acme/secret", 200, "tok-a", "tok-b")
		c.wantTokens("/repos/Acme/Secret/labels", 200, "tok-b") // the whole repository is hidden
		c.wantTokens("/repos/acme/widgets/tags", 200, "tok-a")
		c.wantTokens("/repos/acme/widgets/none", 404, "tok-a", "tok-b") // no credential has access
		c.wantTokens("/repos/acme/widgets/none", 404, "tok-a", "tok-b") // both are tried again
		c.wantTokens("/repos/acme/widgets/branches", 200, "tok-a")
		c.wantTokens("/repos/acme/widgets/subscription", 200, "tok-a")
		time.Sleep(6 * time.Minute)
		c.wantTokens("/repos/acme/secret/milestones", 200, "tok-a", "tok-b")
	})
}

func TestCallerSpecificOperationUsesOneCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := config.Credential{Name: "app", Kind: policy.OAuthApp, Token: "tok-id:secret"}
		c := newCredentialRig(t, app, user("a"), user("b"))
		c.answer = func(_ string, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }
		c.wantTokens("/repos/acme/widgets/subscription", 404, "tok-a")
		c.wantTokens("/user/subscriptions", 404, "tok-a")
		c.answer = func(string, http.ResponseWriter, *http.Request) {}
		basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("tok-id:secret"))
		c.wantTokens("/gitignore/templates", 200, basic) // public
		c.wantTokens("/orgs/acme/organization-roles", 200, "tok-a")
		c.answer = func(token string, w http.ResponseWriter, _ *http.Request) {
			if token == "tok-a" {
				w.WriteHeader(http.StatusUnauthorized)
			}
		}
		c.wantTokens("/user/subscriptions", 401, "tok-a", "tok-a") // the subscriptions belong to the caller; the 401 is confirmed
		c.wantTokens("/user/migrations", 503)
		c.wantTokens("/orgs/acme/rulesets", 200, "tok-b")
	})
}

func TestCredentialDoesNotExtendScopeOfClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"), user("b"))
		bounded := *c.g.current.Load().config
		bounded.Clients = slices.Clone(bounded.Clients)
		for i := range bounded.Clients {
			bounded.Clients[i].Methods = []string{http.MethodGet}
		}
		if err := reloadWith(c.g, &bounded); err != nil {
			t.Fatal(err)
		}
		c.wantTokens("/repos/acme/x/tags", 200, "tok-a")
		if got := c.request("builds", http.MethodPost, "/repos/acme/x/rulesets", 403); len(got) > 0 {
			t.Errorf("%q was used", got)
		}
	})
}

// privateKey returns a private key in PEM.
func privateKey(t *testing.T) credential.Secret {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return credential.Secret(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

func TestAppSpendsInstallationToken(t *testing.T) {
	app := config.Credential{Name: "bot", Kind: policy.Installation}
	app.App.ID, app.App.Key, app.App.Installation = "7", privateKey(t), 42
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, app)
		minted, bad := 0, ""
		c.answer = func(token string, w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/app/installations/42/access_tokens" {
				minted++
				w.WriteHeader(http.StatusCreated)
				_, _ = fmt.Fprintf(w, `{"token":"minted-%d","expires_at":%q}`, minted, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
			} else if token == bad {
				w.WriteHeader(http.StatusUnauthorized)
			}
		}
		last := func(path string, status int, want string) {
			t.Helper()
			got := c.request("builds", http.MethodGet, path, status)
			if len(got) == 0 || got[len(got)-1] != want {
				t.Errorf("%s: %q was used, want %s", path, got, want)
			}
		}
		last("/repos/acme/a/subscribers", 200, "minted-1")
		last("/repos/acme/b/subscribers", 200, "minted-1")
		time.Sleep(2 * time.Hour)
		last("/repos/acme/c/subscribers", 200, "minted-2")
		bad = "minted-2"
		last("/repos/acme/d/subscribers", 200, "minted-3")
		last("/repos/acme/e/subscribers", 200, "minted-3")
		accounts, err := c.g.store.Accounts(t.Context(), 10)
		if err != nil || len(accounts) != 1 || accounts[0].Name != "installation:42" {
			t.Errorf("want only the account installation:42, got %+v, %v", accounts, err)
		}
	})
}

// TestRecordContainsEveryAttempt checks the cost of each credential attempt, also across a
// reload.
func TestRecordContainsEveryAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"), user("b"))
		until := time.Now().Add(4 * time.Second)
		c.answer = func(_ string, w http.ResponseWriter, _ *http.Request) {
			if time.Now().Before(until) {
				w.Header().Set("Retry-After", "4")
				w.WriteHeader(http.StatusForbidden)
				_, _ = io.WriteString(w, `{"message":"You have exceeded a secondary rate limit"}`)
			}
		}
		used := c.request("builds", http.MethodGet, "/repos/acme/widgets/tags", http.StatusOK)
		if err := reloadWith(c.g, c.g.current.Load().config); err != nil {
			t.Fatal(err)
		}
		records := c.g.current.Load().proxy.Recent()
		if len(records) == 0 {
			t.Fatal("no records after the reload")
		}
		attempts := 0
		for _, s := range records[0].Stages {
			if s.Name == "attempt" {
				attempts++
			}
		}
		if r := records[0]; len(used) != 3 || r.Attempts != 3 || r.Spent != 3 || attempts != 3 {
			t.Errorf("%q was used; %d attempts, %d spent, %d stages of attempts", used, r.Attempts, r.Spent, attempts)
		}
	})
}

func TestPollsSurviveReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"))
		computed := time.Now().Add(5 * time.Second)
		c.answer = func(_ string, w http.ResponseWriter, _ *http.Request) {
			if time.Now().Before(computed) {
				w.WriteHeader(http.StatusAccepted)
			}
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.request("builds", http.MethodGet, "/repos/acme/widgets/stats/commit_activity", http.StatusOK)
		}()
		time.Sleep(time.Second / 2)
		polls := func() int { return len(c.g.state().(gatewayState).Polling) }
		before := polls()
		if err := reloadWith(c.g, c.g.current.Load().config); err != nil {
			t.Fatal(err)
		}
		after := polls()
		<-done
		if end := polls(); before != 1 || after != 1 || end != 0 {
			t.Errorf("%d, %d after the reload, %d at the end", before, after, end)
		}
	})
}
