package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/policy"
)

// mintingAPI is an upstream that mints installation tokens, and knows them only some time later.
type mintingAPI struct {
	*credentialRig
	unknownFor time.Duration // after minting
	early      int           // status of the response to an unknown or revoked token
	latency    time.Duration

	mu      sync.Mutex
	minted  []time.Time
	revoked map[string]bool
	refused []time.Time // responses to unknown and revoked tokens
	testing int         // requests with an unknown token in progress
	most    int         // largest number of them
	wrote   int
	fails   map[string]int // responses to clients that are not a success, by their text
}

func newMintingAPI(t *testing.T, held ...config.Credential) *mintingAPI {
	t.Helper()
	a := &mintingAPI{
		credentialRig: newCredentialRig(t, held...), latency: 10 * time.Millisecond, early: http.StatusUnauthorized,
		revoked: map[string]bool{}, fails: map[string]int{},
	}
	a.answer = a.serve
	return a
}

// installedApp returns an app with a new key.
func installedApp(t *testing.T) config.Credential {
	t.Helper()
	app := config.Credential{Name: "bot", Kind: policy.Installation}
	app.App.ID, app.App.Key, app.App.Installation = "7", privateKey(t), 42
	return app
}

func (a *mintingAPI) serve(token string, w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	if r.URL.Path == "/app/installations/42/access_tokens" {
		a.minted = append(a.minted, time.Now())
		n := len(a.minted)
		a.mu.Unlock()
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"token":"minted-%d","expires_at":%q}`, n, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		return
	}
	n := 0
	_, _ = fmt.Sscanf(token, "minted-%d", &n)
	unknown := n == 0 || a.revoked[token] || time.Since(a.minted[n-1]) < a.unknownFor
	if unknown {
		a.testing++
		a.most = max(a.most, a.testing)
		a.refused = append(a.refused, time.Now())
	} else if r.Method != http.MethodGet {
		a.wrote++
	}
	a.mu.Unlock()
	time.Sleep(a.latency)
	if unknown {
		a.mu.Lock()
		a.testing--
		a.mu.Unlock()
		w.WriteHeader(a.early)
		return
	}
	h := w.Header()
	h.Set("X-Ratelimit-Limit", "5000")
	h.Set("X-Ratelimit-Remaining", "4000")
	h.Set("X-Ratelimit-Used", "1000")
	h.Set("X-Ratelimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
	h.Set("X-Ratelimit-Resource", map[bool]string{true: "graphql", false: "core"}[r.URL.Path == "/graphql"])
}

// send sends a request of a client that waits, and records a failure.
func (a *mintingAPI) send(method, path string, fields ...string) (status int, took time.Duration) {
	body := http.NoBody
	r := httptest.NewRequest(method, path, body)
	if method == http.MethodPost {
		r = httptest.NewRequest(method, path, strings.NewReader(`{"query":"{viewer{login}}"}`))
	}
	r.Header.Set("Authorization", "Bearer key-of-builds")
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Set(name, value)
	}
	w, began := httptest.NewRecorder(), time.Now()
	a.g.ServeHTTP(w, r)
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.Code >= 300 {
		a.fails[fmt.Sprintf("%s: %d %s %s", method, w.Code, w.Header()["Cache-Status"], w.Body)]++
	}
	return w.Code, time.Since(began)
}

// quiet checks that no request failed.
func (a *mintingAPI) quiet(mints, refused int) {
	a.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for text, n := range a.fails {
		a.Errorf("%d times %s", n, text)
	}
	if len(a.minted) != mints || len(a.refused) > refused || a.most > 1 {
		a.Errorf("%d tokens minted, want %d; %d refusals, want at most %d; %d at a time, want 1",
			len(a.minted), mints, len(a.refused), refused, a.most)
	}
}

// TestClientsWaitForATokenThatTheUpstreamDoesNotKnowYet has 20 clients with different requests.
func TestClientsWaitForATokenThatTheUpstreamDoesNotKnowYet(t *testing.T) {
	app := installedApp(t)
	for _, unknown := range []time.Duration{0, 1500 * time.Millisecond, 5 * time.Second, 9 * time.Second} {
		for _, early := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound} {
			for _, question := range []string{"GET /repos/acme/r%d/rulesets", "POST /repos/acme/r%d/rulesets", "POST /graphql?r%d"} {
				method, path, _ := strings.Cut(question, " ")
				if strings.HasPrefix(question, "POST /repos") && early != http.StatusUnauthorized {
					continue // a write is not repeated after a 403 or 404
				}
				t.Run(fmt.Sprint(unknown, early, question), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						a := newMintingAPI(t, app)
						a.unknownFor, a.early = unknown, early
						var clients sync.WaitGroup
						for i := range 20 {
							clients.Go(func() { a.send(method, fmt.Sprintf(path, i)) })
						}
						clients.Wait()
						if len(a.g.credentialHealth.Quarantined()) > 0 {
							t.Error("the credential is quarantined")
						}
						a.quiet(1, 8)
						if method == http.MethodPost && a.wrote != 20 {
							t.Errorf("%d writes reached the API, want 20", a.wrote)
						}
					})
				})
			}
		}
	}
}

// TestOneQuestionOfManyClientsWaitsForANewToken has 20 clients with one request.
func TestOneQuestionOfManyClientsWaitsForANewToken(t *testing.T) {
	app := installedApp(t)
	synctest.Test(t, func(t *testing.T) {
		a := newMintingAPI(t, app)
		a.unknownFor = 5 * time.Second
		var clients sync.WaitGroup
		for range 20 {
			clients.Go(func() { a.send(http.MethodGet, "/repos/acme/r/subscribers") })
		}
		clients.Wait()
		a.quiet(1, 8)
	})
}

// TestNewTokenOfAPoolHidesNothing has a second credential without access. Clients that cannot wait get its response, or 503.
func TestNewTokenOfAPoolHidesNothing(t *testing.T) {
	app := installedApp(t)
	for _, early := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound} {
		synctest.Test(t, func(t *testing.T) {
			a := newMintingAPI(t, app, user("b"))
			a.unknownFor, a.early = 5*time.Second, early
			serve := a.answer
			a.answer = func(token string, w http.ResponseWriter, r *http.Request) {
				if token == "tok-b" {
					w.WriteHeader(http.StatusNotFound)
					return
				}
				serve(token, w, r)
			}
			if status, took := a.send(http.MethodGet, "/repos/acme/r/subscribers", "Prefer: wait=0"); status == http.StatusOK || took > 3*time.Second {
				t.Errorf("without a wait: got %d after %v", status, took)
			}
			a.fails = map[string]int{}
			a.send(http.MethodGet, "/repos/acme/r/subscribers")
			a.quiet(1, 8)
			a.wantTokens("/repos/acme/r/subscribers", 200, "minted-1") // the token is not known to lack access
		})
	}
}

// TestUploadWaitsForAKnownToken has a request that cannot be repeated. It waits for the test of another request, or until the
// token is probably known.
func TestUploadWaitsForAKnownToken(t *testing.T) {
	app := installedApp(t)
	for _, alone := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			a := newMintingAPI(t, app)
			a.unknownFor = 1500 * time.Millisecond
			var clients sync.WaitGroup
			if !alone {
				clients.Go(func() { a.send(http.MethodGet, "/repos/acme/r/subscribers") })
			}
			clients.Go(func() {
				if _, took := a.send(http.MethodPost, "/repos/acme/r/rulesets", "Expect: 100-continue"); took > 6*time.Second || !alone && took > 2*time.Second {
					t.Errorf("alone %v: took %v", alone, took)
				}
			})
			clients.Wait()
			if a.wrote != 1 {
				t.Errorf("%d writes", a.wrote)
			}
			a.quiet(1, 8)
		})
	}
}

// TestRenewalIsInvisible renews a token under traffic. No request waits for the new token.
func TestRenewalIsInvisible(t *testing.T) {
	app := installedApp(t)
	for _, early := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound} {
		synctest.Test(t, func(t *testing.T) {
			a := newMintingAPI(t, app)
			a.early = early
			a.send(http.MethodGet, "/repos/acme/r/tags")
			a.unknownFor = 5 * time.Second
			time.Sleep(54 * time.Minute)
			var clients sync.WaitGroup
			for i := range 1200 { // four minutes, two of them before the renewal
				clients.Go(func() {
					method, path := http.MethodGet, fmt.Sprintf("/repos/acme/r%d/tags", i)
					if i%5 == 0 {
						method, path = http.MethodPost, fmt.Sprintf("/repos/acme/r%d/rulesets", i)
					}
					if _, took := a.send(method, path); took > time.Second/4 {
						t.Errorf("%s took %v", method, took)
					}
				})
				time.Sleep(200 * time.Millisecond)
			}
			clients.Wait()
			a.quiet(2, 7)
		})
	}
}

// TestRevokedTokenIsReplacedOnce revokes a token under traffic. One 401 confirms another.
func TestRevokedTokenIsReplacedOnce(t *testing.T) {
	app := installedApp(t)
	synctest.Test(t, func(t *testing.T) {
		a := newMintingAPI(t, app)
		a.unknownFor = 1500 * time.Millisecond
		a.send(http.MethodGet, "/repos/acme/r/subscribers")
		time.Sleep(time.Minute)
		a.mu.Lock()
		a.revoked["minted-1"], a.refused = true, nil
		a.mu.Unlock()
		for range 3 {
			var clients sync.WaitGroup
			for i := range 20 {
				clients.Go(func() { a.send(http.MethodGet, fmt.Sprintf("/repos/acme/s%d/subscribers", i)) })
			}
			clients.Wait()
		}
		a.most = 1 // requests in progress at the time of the revocation
		a.quiet(2, 20+1+3)
	})
}

// TestRevokedInstallationSendsFewBadCredentials revokes everything: the API mints tokens that it never accepts.
func TestRevokedInstallationSendsFewBadCredentials(t *testing.T) {
	app := installedApp(t)
	synctest.Test(t, func(t *testing.T) {
		a := newMintingAPI(t, app)
		a.unknownFor = time.Hour
		for minute := range 20 {
			mints := len(a.minted)
			a.refused = nil
			var clients sync.WaitGroup
			for i := range 60 {
				clients.Go(func() {
					if status, _ := a.send(http.MethodGet, fmt.Sprintf("/repos/acme/r%d/subscribers", i)); status != 503 && status != 401 {
						t.Errorf("got %d", status)
					}
				})
				time.Sleep(time.Second)
			}
			clients.Wait()
			if len(a.refused) > 20 || len(a.minted)-mints > 3 || a.most > 1 {
				t.Errorf("minute %d: %d refusals, %d tokens minted, %d requests at a time", minute, len(a.refused), len(a.minted)-mints, a.most)
			}
		}
		if list := a.g.credentialHealth.Quarantined(); len(list) != 1 || list[0].Name != "bot" {
			t.Errorf("quarantine %+v", list)
		}
		for text := range a.fails {
			if !strings.Contains(text, "detail=credential") && !strings.Contains(text, "fwd-status=401") {
				t.Errorf("a client got %s", text)
			}
		}
		a.unknownFor, a.fails = 0, map[string]int{}
		time.Sleep(16 * time.Minute)
		a.send(http.MethodGet, "/repos/acme/r/subscribers")
		a.quiet(len(a.minted), 1000)
	})
}

// TestRequestsRefusedInQuarantineUseNothing refuses 20 searches. Afterwards a search may use the whole slow start.
func TestRequestsRefusedInQuarantineUseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentialRig(t, user("a"))
		status := http.StatusUnauthorized
		c.answer = func(_ string, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
		c.wantTokens("/repos/acme/x/subscribers", 401, "tok-a")
		for range 20 {
			c.wantTokens("/search/labels?q=x&repository_id=1", 503)
		}
		time.Sleep(11 * time.Second)
		status = http.StatusOK
		c.wantTokens("/repos/acme/x/subscribers", 200, "tok-a")
		var sent []time.Time
		c.answer = func(string, http.ResponseWriter, *http.Request) {
			c.mu.Lock()
			sent = append(sent, time.Now())
			c.mu.Unlock()
			time.Sleep(5 * time.Second)
		}
		began := time.Now()
		a := &mintingAPI{credentialRig: c, fails: map[string]int{}}
		var clients sync.WaitGroup
		for i := range 4 {
			clients.Go(func() { a.send(http.MethodGet, fmt.Sprintf("/search/labels?q=x%d&repository_id=1", i)) })
		}
		clients.Wait()
		if len(sent) != 4 || sent[2].Sub(began) > time.Second/2 || sent[3].Sub(began) < time.Second {
			t.Errorf("4 requests were sent at %v after %v; want three at once", sent, began)
		}
	})
}

// TestOneBad401IsInvisible has one bad 401 among the responses to clients of a token. Only two in a row quarantine it.
func TestOneBad401IsInvisible(t *testing.T) {
	for _, bad := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			c := newCredentialRig(t, user("a"))
			c.wantTokens("/repos/acme/x/subscribers", 200, "tok-a")
			left, refused := bad, 0
			c.answer = func(_ string, w http.ResponseWriter, _ *http.Request) {
				c.mu.Lock()
				if left > 0 {
					left--
					refused++
					w.WriteHeader(http.StatusUnauthorized)
				}
				c.mu.Unlock()
				time.Sleep(10 * time.Millisecond)
			}
			a := &mintingAPI{credentialRig: c, fails: map[string]int{}}
			var clients sync.WaitGroup
			for i := range 20 {
				clients.Go(func() { a.send(http.MethodGet, fmt.Sprintf("/repos/acme/r%d/subscribers", i)) })
				time.Sleep(50 * time.Millisecond)
			}
			clients.Wait()
			quarantined := len(c.g.credentialHealth.Quarantined())
			if bad == 1 && (len(a.fails) > 0 || quarantined > 0) || bad == 2 && quarantined != 1 || refused != bad {
				t.Errorf("%d bad responses of %d: %d quarantined, %v", refused, bad, quarantined, a.fails)
			}
		})
	}
}
