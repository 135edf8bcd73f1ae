package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// credentialRig is a gateway with credentials in virtual time. Its upstream records which
// token each request used.
type credentialRig struct {
	*testing.T
	g       *gateway
	answer  func(token string, w http.ResponseWriter, r *http.Request) // answers of the upstream
	log     testservers.Output
	mu      sync.Mutex
	spent   []string // tokens, in the order of the requests
	replies []string // all responses to clients
}

// withCredentials runs a test with a gateway. The client "builds" has all credentials. The client "docs" has only the last
// credential.
func withCredentials(t *testing.T, test func(c *credentialRig), held ...config.Credential) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &credentialRig{T: t, answer: func(string, http.ResponseWriter, *http.Request) {}}
		t.Cleanup(c.checkNoSecrets)
		c.g = openVerbose(t, configure("http://upstream.test", trusting, inboundRate(0, 0), func(cfg *config.Config) {
			cfg.Credentials = held
			var names []string
			for _, h := range held {
				names = append(names, h.Name)
			}
			cfg.Clients = []config.Client{
				{Name: "builds", Key: keyHash("key-of-builds"), Credentials: names, Share: 1, Priority: "normal"},
				{Name: "docs", Key: keyHash("key-of-docs"), Credentials: names[len(names)-1:], Share: 1, Priority: "normal"},
			}
		}), &c.log, slog.LevelDebug)
		connectTo(t, c.g, http.HandlerFunc(c.upstream))
		test(c)
	})
}

func user(name string) config.Credential {
	return userToken(name, "account-"+name, credential.Secret("tok-"+name))
}

func (c *credentialRig) upstream(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	c.mu.Lock()
	c.spent = append(c.spent, token)
	c.mu.Unlock()
	c.answer(token, w, r)
}

// takeTokens returns the tokens of the upstream requests since the last call.
func (c *credentialRig) takeTokens() (spent []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	spent, c.spent = c.spent, nil
	return spent
}

// request sends a request of a client, checks the status, and returns the tokens of the upstream requests.
func (c *credentialRig) request(client, method, path string, want int) []string {
	c.Helper()
	c.takeTokens()
	body := ""
	if method == http.MethodPost {
		body = "{}"
	}
	w := sendTo(c.g, method, path, body, "Authorization: Bearer key-of-"+client)
	synctest.Wait()
	failIf(c, w.Code != want, "%s %s: got %d, want %d: %v %s", method, path, w.Code, want, w.Header(), w.Body)
	c.replies = append(c.replies, fmt.Sprint(w.Header(), w.Body))
	return c.takeTokens()
}

// wantTokens checks the tokens that a GET request uses, in order.
func (c *credentialRig) wantTokens(path string, status int, want ...string) {
	c.Helper()
	c.wantTokensOf("builds", http.MethodGet, path, status, want...)
}

func (c *credentialRig) wantTokensOf(client, method, path string, status int, want ...string) {
	c.Helper()
	got := c.request(client, method, path, status)
	failIf(c, !slices.Equal(got, want), "%s %s: %q was used, want %q", method, path, got, want)
}

// wantQuarantined checks the names of the credentials in quarantine.
func (c *credentialRig) wantQuarantined(want ...string) {
	c.Helper()
	var got []string
	for _, q := range c.g.credentialHealth.Quarantined() {
		got = append(got, q.Name)
	}
	failIf(c, !slices.Equal(got, want), "credentials in quarantine: %q, want %q", got, want)
}

// statuses answers each token with a status, and other tokens with 200.
func (c *credentialRig) statuses(byToken map[string]int) {
	c.answer = func(token string, w http.ResponseWriter, _ *http.Request) {
		if status := byToken[token]; status > 0 {
			w.WriteHeader(status)
		}
	}
}

// hide answers the requests with 404 for which a function returns true.
func (c *credentialRig) hide(hidden func(token, path string) bool) {
	c.answer = func(token string, w http.ResponseWriter, r *http.Request) {
		if hidden(token, r.URL.Path) {
			w.WriteHeader(http.StatusNotFound)
		}
	}
}

// checkNoSecrets searches the log and the admin data for tokens.
func (c *credentialRig) checkNoSecrets() {
	for _, text := range append(c.replies, c.log.String()) {
		for _, secret := range []string{"tok-", "key-of-", "minted-", "eyJ", base64.StdEncoding.EncodeToString([]byte("tok-id:secret"))} {
			failIf(c, strings.Contains(text, secret), "%q is in %s", secret, text)
		}
	}
}

// secondaryLimit writes a limit error.
func secondaryLimit(w http.ResponseWriter, retryAfter string) {
	w.Header().Set("Retry-After", retryAfter)
	w.WriteHeader(http.StatusForbidden)
	_, _ = io.WriteString(w, `{"message":"You have exceeded a secondary rate limit"}`)
}

// setRate sets the header fields that describe a budget of 5000 requests.
func setRate(h http.Header, resource string, remaining int) {
	h.Set("X-Ratelimit-Limit", "5000")
	h.Set("X-Ratelimit-Remaining", fmt.Sprint(remaining))
	h.Set("X-Ratelimit-Used", fmt.Sprint(5000-remaining))
	h.Set("X-Ratelimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
	h.Set("X-Ratelimit-Resource", resource)
}

func TestCredentialWithMostQuotaIsUsed(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		left := map[string]int{"tok-a": 5000, "tok-b": 5000}
		c.answer = func(token string, w http.ResponseWriter, _ *http.Request) {
			left[token]--
			setRate(w.Header(), "core", left[token])
			w.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
		}
		for i := range 5 {
			c.wantTokens(fmt.Sprintf("/repos/acme/r%d/tags", i), 200, "tok-a")
		}
		left["tok-a"] = 2402 // other programs use the same token
		c.wantTokens("/repos/acme/x/tags", 200, "tok-a")
		c.wantTokens("/repos/acme/y/tags", 200, "tok-b") // has more than twice the quota
		left["tok-b"] = 1300
		c.wantTokens("/repos/acme/z/tags", 200, "tok-b")
		c.wantTokens("/repos/acme/z/branches", 200, "tok-b") // 2401 is not twice 1299
		c.wantTokensOf("docs", http.MethodGet, "/repos/acme/w/tags", 200, "tok-b")
	}, user("a"), user("b"))
}

func TestLimitedCredentialIsSkipped(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		c.answer = func(token string, w http.ResponseWriter, _ *http.Request) {
			if token == "tok-a" {
				secondaryLimit(w, "60")
			}
		}
		began := time.Now()
		c.wantTokens("/repos/acme/x/tags", 200, "tok-a", "tok-b")
		c.wantTokens("/repos/acme/y/tags", 200, "tok-b")
		waited := time.Since(began)
		failIf(c, waited > time.Second, "waited %v", waited)
	}, user("a"), user("b"))
}

func TestRefusedCredentialIsQuarantined(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		c.statuses(map[string]int{"tok-a": 401})
		c.wantTokens("/repos/acme/x/subscribers", 200, "tok-a", "tok-b")
		c.wantTokens("/repos/acme/y/subscribers", 200, "tok-b")
		c.wantQuarantined("a")
		failIf(c, c.g.credentialHealth.Quarantined()[0].Times != 1, "quarantine list: %+v", c.g.credentialHealth.Quarantined())
		failIf(c, !strings.Contains(c.log.String(), "credential quarantined after 401"), "the log contains no refusal")
		time.Sleep(11 * time.Second)
		c.wantTokens("/repos/acme/z/subscribers", 200, "tok-a", "tok-b")
		time.Sleep(11 * time.Second) // the quarantine has doubled
		c.wantTokens("/repos/acme/u/subscribers", 200, "tok-b")
		c.statuses(nil)
		time.Sleep(10 * time.Second)
		c.wantTokens("/repos/acme/v/subscribers", 200, "tok-a")
		c.wantQuarantined()
	}, user("a"), user("b"))
}

func TestWriteIsSentOnce(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		c.statuses(map[string]int{"tok-a": 401})
		c.wantTokensOf("builds", http.MethodPost, "/repos/acme/x/rulesets", 401, "tok-a")
		c.wantTokensOf("builds", http.MethodPost, "/repos/acme/x/rulesets", 200, "tok-b")
	}, user("a"), user("b"))
}

// TestWriteIsNotRetriedWithOtherCredential checks 404 and 403 responses to a write.
func TestWriteIsNotRetriedWithOtherCredential(t *testing.T) {
	for name, refuse := range map[string]func(w http.ResponseWriter){
		"403 secondary limit": func(w http.ResponseWriter) { secondaryLimit(w, "60") },
		"403 forbidden":       func(w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden) },
		"404 not found":       func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) },
	} {
		t.Run(name, func(t *testing.T) {
			withCredentials(t, func(c *credentialRig) {
				c.answer = func(_ string, w http.ResponseWriter, _ *http.Request) { refuse(w) }
				want := map[string]int{"403": 403, "404": 404}[name[:3]]
				c.wantTokensOf("builds", http.MethodPost, "/repos/acme/x/rulesets", want, "tok-a")
			}, user("a"), user("b"))
		})
	}
}

func TestRefusalOfOnlyCredentialIsReported(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		c.statuses(map[string]int{"tok-a": 401})
		c.wantTokens("/repos/acme/x/subscribers", 401, "tok-a")
		c.wantTokens("/repos/acme/x/subscribers", 503)
		last := c.replies[1]
		failIf(c, !strings.Contains(last, "Retry-After:[10]") || !strings.Contains(last, "detail=credential"), "response %s", last)
	}, user("a"))
}

func TestResourceHiddenFromOneCredentialIsTriedWithAnother(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		c.hide(func(token, path string) bool {
			return token == "tok-a" && strings.HasPrefix(path, "/repos/acme/secret") || strings.HasSuffix(path, "/none")
		})
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
	}, user("a"), user("b"))
}

func TestHiddenOperationHidesNoOtherOperation(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		reloadChanged(t, c.g, func(cfg *config.Config) { cfg.Clients = credentialsOfDocs(cfg, "a", "c") })
		c.hide(func(token, path string) bool {
			return token == "tok-c" || token == "tok-a" && strings.HasSuffix(path, "/hooks")
		})
		c.wantTokens("/repos/acme/widgets/hooks", 200, "tok-a", "tok-b")
		c.wantTokensOf("docs", http.MethodGet, "/repos/acme/widgets/tags", 200, "tok-a")
		c.wantTokensOf("docs", http.MethodGet, "/repos/acme/widgets/labels", 200, "tok-a")
	}, user("a"), user("b"), user("c"))
}

// credentialsOfDocs returns the clients of a configuration with other credentials for the client "docs".
func credentialsOfDocs(cfg *config.Config, credentials ...string) []config.Client {
	clients := slices.Clone(cfg.Clients)
	clients[slices.IndexFunc(clients, func(c config.Client) bool { return c.Name == "docs" })].Credentials = credentials
	return clients
}

// TestCredentialWithoutAccessIsTriedLast checks that a remembered 404 only moves a credential
// to the end of the order.
func TestCredentialWithoutAccessIsTriedLast(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		hidden := map[string]string{"tok-a": "/repos/acme/widgets"}
		c.hide(func(token, path string) bool { return hidden[token] != "" && strings.HasPrefix(path, hidden[token]) })
		c.wantTokens("/repos/acme/widgets", 200, "tok-a", "tok-b")
		c.wantTokens("/repos/acme/widgets/tags", 200, "tok-b")
		hidden = map[string]string{"tok-b": "/repos/acme", "tok-c": "/repos/acme"} // the access is reversed
		c.wantTokens("/repos/acme/widgets/labels", 200, "tok-b", "tok-c", "tok-a")
	}, user("a"), user("b"), user("c"))
}

func TestCredentialWithoutAccessIsTriedDuringQuarantine(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		c.statuses(map[string]int{"tok-a": 404})
		c.wantTokens("/repos/acme/widgets/subscribers", 200, "tok-a", "tok-b")
		c.statuses(map[string]int{"tok-b": 401})
		c.wantTokens("/repos/acme/widgets/subscribers", 200, "tok-b", "tok-b", "tok-a") // the 401 is confirmed
		c.wantTokens("/repos/acme/widgets/subscribers", 200, "tok-a")                   // the other credential is in quarantine
	}, user("a"), user("b"))
}

// TestCachedDenialAppliesToOneCredential checks that a stored 404 of one credential does not hide the resource from
// another credential.
func TestCachedDenialAppliesToOneCredential(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		reloadChanged(t, c.g, func(cfg *config.Config) { cfg.Clients = credentialsOfDocs(cfg, "a") })
		allowed := "tok-b"
		c.answer = func(token string, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "private, max-age=60")
			if token != allowed {
				w.WriteHeader(http.StatusNotFound)
			}
		}
		c.wantTokensOf("docs", http.MethodGet, "/repos/acme/secret/tags", 404, "tok-a")
		c.wantTokensOf("docs", http.MethodGet, "/repos/acme/secret/tags", 404) // the pool has no other credential
		c.wantTokens("/repos/acme/secret/tags", 200, "tok-b")
		c.wantTokens("/repos/acme/secret/tags", 200)
		allowed = "none"
		c.wantTokens("/repos/acme/secret/none", 404, "tok-a", "tok-b")
		c.wantTokens("/repos/acme/secret/none", 404) // both denials are stored
		last := c.replies[len(c.replies)-1]
		failIf(c, !strings.Contains(last, "weir; hit"), "response %s", last)
	}, user("a"), user("b"))
}

// TestDelayedDenialIsForwardedCompletely checks the 404 that is returned after another credential was tried. The 404
// holds no permit during the attempt, and its body is complete.
func TestDelayedDenialIsForwardedCompletely(t *testing.T) {
	for _, size := range []int{100, 200_000} {
		withCredentials(t, func(c *credentialRig) {
			c.answer = func(token string, w http.ResponseWriter, _ *http.Request) {
				if token != "tok-a" {
					time.Sleep(20 * time.Second)
					accounts, err := c.g.store.Accounts(c.Context(), 10)
					i := slices.IndexFunc(accounts, func(a limits.Account) bool { return a.Name == "account-a" })
					failIf(c, err != nil || i < 0 || accounts[i].InUse > 0, "want no permit of account-a in use, got %+v, %v", accounts, err)
				}
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, strings.Repeat("x", size))
			}
			c.wantTokens("/repos/acme/x/tags", 404, "tok-a", "tok-b", "tok-c")
			last := c.replies[0]
			failIf(c, strings.Count(last, "xxxx") != size/4, "%d bytes arrived", len(last))
		}, user("a"), user("b"), user("c"))
	}
}

func TestCallerSpecificOperationUsesOneCredential(t *testing.T) {
	app := config.Credential{Name: "app", Kind: policy.OAuthApp, Token: "tok-id:secret"}
	withCredentials(t, func(c *credentialRig) {
		basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("tok-id:secret"))
		c.statuses(map[string]int{basic: 404, "tok-a": 404, "tok-b": 404})
		c.wantTokens("/repos/acme/widgets/subscription", 404, "tok-a")
		c.wantTokens("/user/subscriptions", 404, "tok-a")
		c.statuses(nil)
		c.wantTokens("/gitignore/templates", 200, basic) // public
		c.wantTokens("/orgs/acme/organization-roles", 200, "tok-a")
		c.statuses(map[string]int{"tok-a": 401})
		c.wantTokens("/user/subscriptions", 401, "tok-a", "tok-a") // the subscriptions belong to the caller; the 401 is confirmed
		c.wantTokens("/user/migrations", 503)
		c.wantTokens("/orgs/acme/rulesets", 200, "tok-b")
	}, app, user("a"), user("b"))
}

func TestCredentialDoesNotExtendScopeOfClient(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		reloadChanged(t, c.g, func(cfg *config.Config) {
			cfg.Clients = slices.Clone(cfg.Clients)
			for i := range cfg.Clients {
				cfg.Clients[i].Methods = []string{http.MethodGet}
			}
		})
		c.wantTokens("/repos/acme/x/tags", 200, "tok-a")
		c.wantTokensOf("builds", http.MethodPost, "/repos/acme/x/rulesets", 403)
	}, user("a"), user("b"))
}

// TestUnknownOperationCannotQuarantineCredential checks that a 401 for an undocumented
// operation does not quarantine the credential.
func TestUnknownOperationCannotQuarantineCredential(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		c.answer = func(_ string, w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/app" { // requires a JWT of an app
				w.WriteHeader(http.StatusUnauthorized)
			}
		}
		c.wantTokensOf("docs", http.MethodGet, "/app", 401, "tok-a")
		c.wantTokens("/repos/acme/x/tags", 200, "tok-a")
		c.wantQuarantined()
	}, user("a"))
}

func TestLateResponseDoesNotEndQuarantine(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		began := time.Now()
		c.answer = func(_ string, w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/repos/acme/slow/subscribers":
				time.Sleep(5 * time.Second)
			case time.Since(began) >= time.Second:
				w.WriteHeader(http.StatusUnauthorized)
			}
		}
		var slow sync.WaitGroup
		slow.Go(func() {
			w := sendTo(c.g, http.MethodGet, "/repos/acme/slow/subscribers", "", "Authorization: Bearer key-of-docs")
			failIf(c, w.Code != http.StatusOK, "got %d", w.Code)
		})
		time.Sleep(time.Second)
		c.wantTokens("/repos/acme/x/subscribers", 401, "tok-a")
		slow.Wait()
		c.wantTokens("/repos/acme/x/subscribers", 503)
	}, user("a"))
}

func TestCancelledProbeBlocksNoRequest(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		c.statuses(map[string]int{"tok-a": 401})
		c.wantTokens("/repos/acme/x/subscribers", 401, "tok-a")
		time.Sleep(11 * time.Second)
		c.answer = func(_ string, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		ctx, leave := context.WithTimeout(c.Context(), time.Second)
		defer leave()
		serveRequest(c.g, newRequest(http.MethodGet, "/repos/acme/y/subscribers", "", "Authorization: Bearer key-of-docs").WithContext(ctx))
		synctest.Wait()
		c.statuses(nil)
		c.wantTokens("/repos/acme/x/subscribers", 200, "tok-a")
	}, user("a"))
}

// privateKey returns a private key in PEM. Its computation takes long, so that all tests use the same one.
var privateKey = sync.OnceValue(func() credential.Secret {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return credential.Secret(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
})

// installedApp returns an app.
func installedApp() config.Credential {
	app := config.Credential{Name: "bot", Kind: policy.Installation}
	app.App.ID, app.App.Key, app.App.Installation = "7", privateKey(), 42
	return app
}

// mints reports whether a request mints an installation token.
func mints(r *http.Request) bool { return r.URL.Path == "/app/installations/42/access_tokens" }

// mint writes an installation token.
func mint(w http.ResponseWriter, n int) {
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, `{"token":"minted-%d","expires_at":%q}`, n, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
}

func TestAppSpendsInstallationToken(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		minted, bad := 0, ""
		c.answer = func(token string, w http.ResponseWriter, r *http.Request) {
			if mints(r) {
				minted++
				mint(w, minted)
			} else if token == bad {
				w.WriteHeader(http.StatusUnauthorized)
			}
		}
		last := func(path string, want string) {
			c.Helper()
			got := c.request("builds", http.MethodGet, path, 200)
			failIf(c, len(got) == 0 || got[len(got)-1] != want, "%s: %q was used, want %s", path, got, want)
		}
		last("/repos/acme/a/subscribers", "minted-1")
		last("/repos/acme/b/subscribers", "minted-1")
		time.Sleep(2 * time.Hour)
		last("/repos/acme/c/subscribers", "minted-2")
		bad = "minted-2"
		last("/repos/acme/d/subscribers", "minted-3")
		last("/repos/acme/e/subscribers", "minted-3")
		accounts, err := c.g.store.Accounts(c.Context(), 10)
		failIf(c, err != nil || len(accounts) != 1 || accounts[0].Name != "installation:42", "want only the account installation:42, got %+v, %v", accounts, err)
	}, installedApp())
}

// TestAppTokenIsNotSentToNewUpstream loads another upstream URL. The gateway must not send
// tokens of the previous upstream to the new upstream.
func TestAppTokenIsNotSentToNewUpstream(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		minted, got := 0, map[string]string{} // received tokens, by upstream host
		c.answer = func(token string, w http.ResponseWriter, r *http.Request) {
			if !mints(r) {
				got[r.Host] += token
				return
			}
			minted++
			mint(w, minted)
		}
		c.request("builds", http.MethodGet, "/repos/acme/x/tags", 200)
		reloadChanged(t, c.g, func(cfg *config.Config) { cfg.Upstream.URL = "http://other.test" })
		c.request("builds", http.MethodGet, "/repos/acme/x/tags", 200)
		want := map[string]string{"upstream.test": "minted-1", "other.test": "minted-2"}
		failIf(c, !maps.Equal(got, want), "got %v, want %v", got, want)
	}, installedApp())
}

// TestRecordContainsEveryAttempt checks the cost of each credential attempt, also across a
// reload.
func TestRecordContainsEveryAttempt(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
		until := time.Now().Add(4 * time.Second)
		c.answer = func(_ string, w http.ResponseWriter, _ *http.Request) {
			if time.Now().Before(until) {
				secondaryLimit(w, "4")
			}
		}
		used := c.request("builds", http.MethodGet, "/repos/acme/widgets/tags", http.StatusOK)
		reloadChanged(t, c.g)
		records := c.g.recent()
		stopIf(c, len(records) == 0, "no records after the reload")
		attempts := 0
		for _, s := range records[0].Stages {
			if s.Name == "attempt" {
				attempts++
			}
		}
		r := records[0]
		failIf(c, len(used) != 3 || r.Sent != 3 || r.Spent != 3 || attempts != 3, "%q was used; %d attempts, %d spent, %d stages of attempts", used, r.Sent, r.Spent, attempts)
	}, user("a"), user("b"))
}

func TestPollsSurviveReload(t *testing.T) {
	withCredentials(t, func(c *credentialRig) {
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
		reloadChanged(t, c.g)
		after := polls()
		<-done
		end := polls()
		failIf(c, before != 1 || after != 1 || end != 0, "%d, %d after the reload, %d at the end", before, after, end)
	}, user("a"))
}
