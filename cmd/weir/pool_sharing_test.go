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

// gives lets the client "docs" spend these.
func (c *counter) gives(credentials ...string) {
	c.Helper()
	c.reloads(func(cfg *config.Config) {
		for i := range cfg.Clients {
			if cfg.Clients[i].Name == "docs" {
				cfg.Clients[i].Credentials = credentials
			}
		}
	})
}

// reloads changes the configuration.
func (c *counter) reloads(change func(*config.Config)) {
	c.Helper()
	next := *c.g.current.Load().config
	next.Clients = slices.Clone(next.Clients)
	change(&next)
	if err := c.g.update(&next, nil); err != nil {
		c.Fatal(err)
	}
}

// paid has it that these have paid.
func (c *counter) paid(got []string, want ...string) {
	c.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		c.Errorf("%q paid, want %q", got, want)
	}
}

// forAdministrators responses 404 to who is none at /hooks.
func forAdministrators(none ...string) func(string, http.ResponseWriter, *http.Request) {
	return func(token string, w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/hooks") && slices.Contains(none, token) {
			w.WriteHeader(http.StatusNotFound)
		}
	}
}

func TestWhatOneOperationHidesFromACredentialHidesNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCounter(t, user("a"), user("b"), user("c"))
		c.gives("a", "c")
		hooks := forAdministrators("tok-a")
		c.answer = func(token string, w http.ResponseWriter, r *http.Request) {
			if token == "tok-c" { // sees nothing of it
				w.WriteHeader(http.StatusNotFound)
				return
			}
			hooks(token, w, r)
		}
		c.paid(c.asks("builds", http.MethodGet, "/repos/acme/widgets/hooks", 200), "tok-a", "tok-b")
		c.paid(c.asks("docs", http.MethodGet, "/repos/acme/widgets/tags", 200), "tok-a")
		c.paid(c.asks("docs", http.MethodGet, "/repos/acme/widgets/labels", 200), "tok-a")
	})
}

// TestWhoIsPresumedBlindIsAskedLast: what is known of a credential was another client's
// to learn, and is up to five minutes old.
func TestWhoIsPresumedBlindIsAskedLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCounter(t, user("a"), user("b"), user("c"))
		hidden := map[string]string{"tok-a": "/repos/acme/widgets"}
		c.answer = func(token string, w http.ResponseWriter, r *http.Request) {
			if at := hidden[token]; at != "" && strings.HasPrefix(r.URL.Path, at) {
				w.WriteHeader(http.StatusNotFound)
			}
		}
		c.pays("/repos/acme/widgets", 200, "tok-a", "tok-b")
		c.pays("/repos/acme/widgets/tags", 200, "tok-b")
		hidden = map[string]string{"tok-b": "/repos/acme", "tok-c": "/repos/acme"} // it is the other way round now
		c.pays("/repos/acme/widgets/labels", 200, "tok-b", "tok-c", "tok-a")
	})
}

func TestWhoIsPresumedBlindIsAskedWhileAnotherIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCounter(t, user("a"), user("b"))
		says := map[string]int{"tok-a": http.StatusNotFound, "tok-b": http.StatusOK}
		c.answer = func(token string, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(says[token]) }
		c.pays("/repos/acme/widgets/subscribers", 200, "tok-a", "tok-b")
		says = map[string]int{"tok-a": http.StatusOK, "tok-b": http.StatusUnauthorized}
		c.pays("/repos/acme/widgets/subscribers", 200, "tok-b", "tok-a")
		c.pays("/repos/acme/widgets/subscribers", 200, "tok-a") // the other is in quarantine
	})
}

// TestADenialInTheCacheIsOneCredentialsOnly: what one is known to be told 404 for
// another may see.
func TestADenialInTheCacheIsOneCredentialsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCounter(t, user("a"), user("b"))
		c.gives("a")
		sees := "tok-b"
		c.answer = func(token string, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "private, max-age=60")
			if token != sees {
				w.WriteHeader(http.StatusNotFound)
			}
		}
		c.paid(c.asks("docs", http.MethodGet, "/repos/acme/secret/tags", 404), "tok-a")
		c.paid(c.asks("docs", http.MethodGet, "/repos/acme/secret/tags", 404)) // it has no other
		c.pays("/repos/acme/secret/tags", 200, "tok-b")
		c.pays("/repos/acme/secret/tags", 200)
		sees = "nobody"
		c.pays("/repos/acme/secret/none", 404, "tok-a", "tok-b")
		c.pays("/repos/acme/secret/none", 404) // both are known
		if last := c.replies[len(c.replies)-1]; !strings.Contains(last, "weir; hit") {
			t.Errorf("told %s", last)
		}
	})
}

// TestNoClientHasASharedCredentialRefused: a 401 to a call that the documents do not
// know is about the call as well as it may be about the credential.
func TestNoClientHasASharedCredentialRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCounter(t, user("a"))
		c.answer = func(_ string, w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/app" { // wants the assertion of an app
				w.WriteHeader(http.StatusUnauthorized)
			}
		}
		c.paid(c.asks("docs", http.MethodGet, "/app", 401), "tok-a")
		c.paid(c.asks("builds", http.MethodGet, "/repos/acme/x/tags", 200), "tok-a")
		if list := c.g.credentialHealth.Quarantined(); len(list) > 0 {
			t.Errorf("%+v", list)
		}
	})
}

// TestATokenOfAnAppGoesToNoOtherAPI: after a reload that names another API the token
// of the last one is not sent there.
func TestATokenOfAnAppGoesToNoOtherAPI(t *testing.T) {
	app := config.Credential{Name: "bot", Kind: policy.Installation}
	app.App.ID, app.App.Key, app.App.Installation = "7", privateKey(t), 42
	synctest.Test(t, func(t *testing.T) {
		c := openCounter(t, app)
		minted := 0
		got := map[string]string{} // what each has got, by its host
		c.answer = func(token string, w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/app/installations/42/access_tokens" {
				got[r.Host] += token
				return
			}
			minted++
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, `{"token":"minted-%d","expires_at":%q}`, minted, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		}
		c.asks("builds", http.MethodGet, "/repos/acme/x/tags", 200)
		c.reloads(func(cfg *config.Config) { cfg.Upstream.URL = "http://other.test" })
		c.asks("builds", http.MethodGet, "/repos/acme/x/tags", 200)
		if want := map[string]string{"upstream.test": "minted-1", "other.test": "minted-2"}; !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestAnAnswerToWhatWasSentBeforeAQuarantineDoesNotEndIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCounter(t, user("a"))
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
		c.pays("/repos/acme/x/subscribers", 401, "tok-a")
		slow.Wait()
		c.pays("/repos/acme/x/subscribers", 503)
	})
}

// TestWhatIsWrittenIsSentOnceWhateverTheAnswer: that another credential might be told
// more is no reason to write again.
func TestWhatIsWrittenIsSentOnceWhateverTheAnswer(t *testing.T) {
	for name, refuse := range map[string]http.HandlerFunc{
		"a limit": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"message":"You have exceeded a secondary rate limit"}`)
		},
		"forbidden": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"not found": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := openCounter(t, user("a"), user("b"))
				c.answer = func(_ string, w http.ResponseWriter, r *http.Request) { refuse(w, r) }
				want := http.StatusForbidden
				if name == "not found" {
					want = http.StatusNotFound
				}
				c.paid(c.asks("builds", http.MethodPost, "/repos/acme/x/rulesets", want), "tok-a")
			})
		})
	}
}

// TestADenialIsWholeHoweverLongOthersTake: it was held back for what they might see, and
// holds no place meanwhile.
func TestADenialIsWholeHoweverLongOthersTake(t *testing.T) {
	for _, size := range []int{100, 200_000} {
		synctest.Test(t, func(t *testing.T) {
			c := openCounter(t, user("a"), user("b"), user("c"))
			c.answer = func(token string, w http.ResponseWriter, _ *http.Request) {
				if token != "tok-a" {
					time.Sleep(20 * time.Second)
					accounts, err := c.g.store.Accounts(t.Context(), 10)
					i := slices.IndexFunc(accounts, func(a limits.Account) bool { return a.Name == "account-a" })
					if err != nil || i < 0 || accounts[i].InUse > 0 {
						t.Errorf("%+v, %v", accounts, err)
					}
				}
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, strings.Repeat("x", size))
			}
			c.pays("/repos/acme/x/tags", 404, "tok-a", "tok-b", "tok-c")
			if last := c.replies[0]; strings.Count(last, "xxxx") != size/4 {
				t.Errorf("%d bytes came", len(last))
			}
		})
	}
}

func TestAProbeWhoseClientLeavesHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCounter(t, user("a"))
		var answer atomic.Pointer[http.HandlerFunc]
		responses := func(h http.HandlerFunc) { answer.Store(&h) }
		c.answer = func(_ string, w http.ResponseWriter, r *http.Request) { (*answer.Load())(w, r) }
		responses(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
		c.pays("/repos/acme/x/subscribers", 401, "tok-a")
		time.Sleep(11 * time.Second)
		responses(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/repos/acme/y/subscribers", http.NoBody)
		r.Header.Set("Authorization", "Bearer key-of-docs")
		c.g.ServeHTTP(httptest.NewRecorder(), r)
		responses(func(http.ResponseWriter, *http.Request) {})
		c.pays("/repos/acme/x/subscribers", 200, "tok-a")
	})
}
