package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// setCredentials sets the credentials of the client "docs".
func (c *credentialRig) setCredentials(credentials ...string) {
	c.Helper()
	c.reload(func(cfg *config.Config) {
		for i := range cfg.Clients {
			if cfg.Clients[i].Name == "docs" {
				cfg.Clients[i].Credentials = credentials
			}
		}
	})
}

// reload applies a changed configuration.
func (c *credentialRig) reload(change func(*config.Config)) {
	c.Helper()
	next := *c.g.current.Load().config
	next.Clients = slices.Clone(next.Clients)
	change(&next)
	if err := reloadWith(c.g, &next); err != nil {
		c.Fatal(err)
	}
}

// checkTokens compares the tokens of the upstream requests with the expected tokens.
func (c *credentialRig) checkTokens(got []string, want ...string) {
	c.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		c.Errorf("%q was used, want %q", got, want)
	}
}

// hiddenFrom responds with 404 to the given tokens under /hooks.
func hiddenFrom(none ...string) func(string, http.ResponseWriter, *http.Request) {
	return func(token string, w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/hooks") && slices.Contains(none, token) {
			w.WriteHeader(http.StatusNotFound)
		}
	}
}

func TestHiddenOperationHidesNoOtherOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"), user("b"), user("c"))
		c.setCredentials("a", "c")
		hooks := hiddenFrom("tok-a")
		c.answer = func(token string, w http.ResponseWriter, r *http.Request) {
			if token == "tok-c" { // has no access
				w.WriteHeader(http.StatusNotFound)
				return
			}
			hooks(token, w, r)
		}
		c.checkTokens(c.request("builds", http.MethodGet, "/repos/acme/widgets/hooks", 200), "tok-a", "tok-b")
		c.checkTokens(c.request("docs", http.MethodGet, "/repos/acme/widgets/tags", 200), "tok-a")
		c.checkTokens(c.request("docs", http.MethodGet, "/repos/acme/widgets/labels", 200), "tok-a")
	})
}

// TestCredentialWithoutAccessIsTriedLast checks that a remembered 404 only moves a credential
// to the end of the order.
func TestCredentialWithoutAccessIsTriedLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"), user("b"), user("c"))
		hidden := map[string]string{"tok-a": "/repos/acme/widgets"}
		c.answer = func(token string, w http.ResponseWriter, r *http.Request) {
			if at := hidden[token]; at != "" && strings.HasPrefix(r.URL.Path, at) {
				w.WriteHeader(http.StatusNotFound)
			}
		}
		c.wantTokens("/repos/acme/widgets", 200, "tok-a", "tok-b")
		c.wantTokens("/repos/acme/widgets/tags", 200, "tok-b")
		hidden = map[string]string{"tok-b": "/repos/acme", "tok-c": "/repos/acme"} // the access is reversed
		c.wantTokens("/repos/acme/widgets/labels", 200, "tok-b", "tok-c", "tok-a")
	})
}

func TestCredentialWithoutAccessIsTriedDuringQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"), user("b"))
		statuses := map[string]int{"tok-a": http.StatusNotFound, "tok-b": http.StatusOK}
		c.answer = func(token string, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(statuses[token]) }
		c.wantTokens("/repos/acme/widgets/subscribers", 200, "tok-a", "tok-b")
		statuses = map[string]int{"tok-a": http.StatusOK, "tok-b": http.StatusUnauthorized}
		c.wantTokens("/repos/acme/widgets/subscribers", 200, "tok-b", "tok-b", "tok-a") // the 401 is confirmed
		c.wantTokens("/repos/acme/widgets/subscribers", 200, "tok-a")                   // the other credential is in quarantine
	})
}

// TestCachedDenialAppliesToOneCredential checks that a stored 404 of one credential does not hide the resource from
// another credential.
func TestCachedDenialAppliesToOneCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"), user("b"))
		c.setCredentials("a")
		allowed := "tok-b"
		c.answer = func(token string, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "private, max-age=60")
			if token != allowed {
				w.WriteHeader(http.StatusNotFound)
			}
		}
		c.checkTokens(c.request("docs", http.MethodGet, "/repos/acme/secret/tags", 404), "tok-a")
		c.checkTokens(c.request("docs", http.MethodGet, "/repos/acme/secret/tags", 404)) // the pool has no other credential
		c.wantTokens("/repos/acme/secret/tags", 200, "tok-b")
		c.wantTokens("/repos/acme/secret/tags", 200)
		allowed = "none"
		c.wantTokens("/repos/acme/secret/none", 404, "tok-a", "tok-b")
		c.wantTokens("/repos/acme/secret/none", 404) // both denials are stored
		if last := c.replies[len(c.replies)-1]; !strings.Contains(last, "weir; hit") {
			t.Errorf("response %s", last)
		}
	})
}

// TestUnknownOperationCannotQuarantineCredential checks that a 401 for an undocumented
// operation does not quarantine the credential.
func TestUnknownOperationCannotQuarantineCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"))
		c.answer = func(_ string, w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/app" { // requires a JWT of an app
				w.WriteHeader(http.StatusUnauthorized)
			}
		}
		c.checkTokens(c.request("docs", http.MethodGet, "/app", 401), "tok-a")
		c.checkTokens(c.request("builds", http.MethodGet, "/repos/acme/x/tags", 200), "tok-a")
		if list := c.g.credentialHealth.Quarantined(); len(list) > 0 {
			t.Errorf("credentials in quarantine: %+v", list)
		}
	})
}

// TestAppTokenIsNotSentToNewUpstream loads another upstream URL. The gateway must not send
// tokens of the previous upstream to the new upstream.
func TestAppTokenIsNotSentToNewUpstream(t *testing.T) {
	app := config.Credential{Name: "bot", Kind: policy.Installation}
	app.App.ID, app.App.Key, app.App.Installation = "7", privateKey(t), 42
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, app)
		minted := 0
		got := map[string]string{} // received tokens, by upstream host
		c.answer = func(token string, w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/app/installations/42/access_tokens" {
				got[r.Host] += token
				return
			}
			minted++
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, `{"token":"minted-%d","expires_at":%q}`, minted, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		}
		c.request("builds", http.MethodGet, "/repos/acme/x/tags", 200)
		c.reload(func(cfg *config.Config) { cfg.Upstream.URL = "http://other.test" })
		c.request("builds", http.MethodGet, "/repos/acme/x/tags", 200)
		if want := map[string]string{"upstream.test": "minted-1", "other.test": "minted-2"}; !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestLateResponseDoesNotEndQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"))
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
			r := httptest.NewRequest(http.MethodGet, "/repos/acme/slow/subscribers", http.NoBody)
			r.Header.Set("Authorization", "Bearer key-of-docs")
			w := httptest.NewRecorder()
			if c.g.ServeHTTP(w, r); w.Code != http.StatusOK {
				t.Errorf("got %d", w.Code)
			}
		})
		time.Sleep(time.Second)
		c.wantTokens("/repos/acme/x/subscribers", 401, "tok-a")
		slow.Wait()
		c.wantTokens("/repos/acme/x/subscribers", 503)
	})
}

// TestWriteIsNotRetriedWithOtherCredential checks 404 and 403 responses to a write.
func TestWriteIsNotRetriedWithOtherCredential(t *testing.T) {
	for name, refuse := range map[string]http.HandlerFunc{
		"secondary limit": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"message":"You have exceeded a secondary rate limit"}`)
		},
		"forbidden": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"not found": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCredentialRig(t, user("a"), user("b"))
				c.answer = func(_ string, w http.ResponseWriter, r *http.Request) { refuse(w, r) }
				want := http.StatusForbidden
				if name == "not found" {
					want = http.StatusNotFound
				}
				c.checkTokens(c.request("builds", http.MethodPost, "/repos/acme/x/rulesets", want), "tok-a")
			})
		})
	}
}

// TestDelayedDenialIsForwardedCompletely checks the 404 that is returned after another credential was tried. The 404
// holds no permit during the attempt, and its body is complete.
func TestDelayedDenialIsForwardedCompletely(t *testing.T) {
	for _, size := range []int{100, 200_000} {
		synctest.Test(t, func(t *testing.T) {
			c := newCredentialRig(t, user("a"), user("b"), user("c"))
			c.answer = func(token string, w http.ResponseWriter, _ *http.Request) {
				if token != "tok-a" {
					time.Sleep(20 * time.Second)
					accounts, err := c.g.store.Accounts(t.Context(), 10)
					i := slices.IndexFunc(accounts, func(a limits.Account) bool { return a.Name == "account-a" })
					if err != nil || i < 0 || accounts[i].InUse > 0 {
						t.Errorf("want no permit of account-a in use, got %+v, %v", accounts, err)
					}
				}
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, strings.Repeat("x", size))
			}
			c.wantTokens("/repos/acme/x/tags", 404, "tok-a", "tok-b", "tok-c")
			if last := c.replies[0]; strings.Count(last, "xxxx") != size/4 {
				t.Errorf("%d bytes arrived", len(last))
			}
		})
	}
}

func TestCancelledProbeBlocksNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"))
		var answer atomic.Pointer[http.HandlerFunc]
		responses := func(h http.HandlerFunc) { answer.Store(&h) }
		c.answer = func(_ string, w http.ResponseWriter, r *http.Request) { (*answer.Load())(w, r) }
		responses(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
		c.wantTokens("/repos/acme/x/subscribers", 401, "tok-a")
		time.Sleep(11 * time.Second)
		responses(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/repos/acme/y/subscribers", http.NoBody)
		r.Header.Set("Authorization", "Bearer key-of-docs")
		c.g.ServeHTTP(httptest.NewRecorder(), r)
		responses(func(http.ResponseWriter, *http.Request) {})
		c.wantTokens("/repos/acme/x/subscribers", 200, "tok-a")
	})
}
