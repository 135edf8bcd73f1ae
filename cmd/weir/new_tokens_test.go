package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
)

// mintingAPI is an upstream that mints installation tokens, and knows them only some time later.
type mintingAPI struct {
	*credentialRig
	unknownFor time.Duration // after minting
	early      int           // status of the response to an unknown or revoked token

	mu      sync.Mutex
	minted  []time.Time
	revoked map[string]bool
	refused []time.Time // responses to unknown and revoked tokens
	testing int         // requests with an unknown token in progress
	most    int         // largest number of them
	wrote   int
	fails   map[string]int // responses to clients that are not a success, by their text
}

// withMintingAPI runs a test with an app, or with other credentials.
func withMintingAPI(t *testing.T, test func(a *mintingAPI), held ...config.Credential) {
	t.Helper()
	if held == nil {
		held = []config.Credential{installedApp()}
	}
	withCredentials(t, func(c *credentialRig) {
		a := &mintingAPI{credentialRig: c, early: http.StatusUnauthorized, revoked: map[string]bool{}, fails: map[string]int{}}
		a.answer = a.serve
		test(a)
	}, held...)
}

func (a *mintingAPI) serve(token string, w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	if mints(r) {
		a.minted = append(a.minted, time.Now())
		n := len(a.minted)
		a.mu.Unlock()
		mint(w, n)
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
	time.Sleep(10 * time.Millisecond)
	if unknown {
		a.mu.Lock()
		a.testing--
		a.mu.Unlock()
		w.WriteHeader(a.early)
		return
	}
	setRate(w.Header(), map[bool]string{true: "graphql", false: "core"}[r.URL.Path == "/graphql"], 4000)
}

// send sends a request of a client that waits, and records a failure.
func (a *mintingAPI) send(method, path string, fields ...string) (status int, took time.Duration) {
	body, began := "", time.Now()
	if method == http.MethodPost {
		body = `{"query":"{viewer{login}}"}`
	}
	w := sendTo(a.g, method, path, body, append(fields, "Authorization: Bearer key-of-builds")...)
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.Code >= 300 {
		a.fails[fmt.Sprintf("%s: %d %s %s", method, w.Code, w.Header()["Cache-Status"], w.Body)]++
	}
	return w.Code, time.Since(began)
}

// sendMany sends n requests of concurrent clients, and waits between two of them. The path may contain their number.
func (a *mintingAPI) sendMany(n int, method, path string, pause time.Duration) {
	var clients sync.WaitGroup
	for i := range n {
		clients.Go(func() { a.send(method, strings.ReplaceAll(path, "%d", fmt.Sprint(i))) })
		time.Sleep(pause)
	}
	clients.Wait()
}

// quiet checks that no request failed.
func (a *mintingAPI) quiet(mints, refused int) {
	a.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for text, n := range a.fails {
		a.Errorf("%d times %s", n, text)
	}
	failIf(a, len(a.minted) != mints || len(a.refused) > refused || a.most > 1, "%d tokens minted, want %d; %d refusals, want at most %d; %d at a time, want 1",
		len(a.minted), mints, len(a.refused), refused, a.most)
}

// earlyStatuses are the statuses of a response to a token that the API does not know yet.
var earlyStatuses = []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound}

// TestClientsWaitForATokenThatTheUpstreamDoesNotKnowYet runs 20 clients with different requests, or with the same request.
func TestClientsWaitForATokenThatTheUpstreamDoesNotKnowYet(t *testing.T) {
	for _, unknown := range []time.Duration{0, 1500 * time.Millisecond, 5 * time.Second, 9 * time.Second} {
		for _, early := range earlyStatuses {
			for _, question := range []string{
				"GET /repos/acme/r%d/rulesets", "GET /repos/acme/r/subscribers", "POST /repos/acme/r%d/rulesets", "POST /graphql?r%d",
			} {
				if strings.HasPrefix(question, "POST /repos") && early != http.StatusUnauthorized {
					continue // a write is not repeated after a 403 or 404
				}
				t.Run(fmt.Sprint(unknown, early, question), func(t *testing.T) {
					withMintingAPI(t, func(a *mintingAPI) {
						a.unknownFor, a.early = unknown, early
						method, path, _ := strings.Cut(question, " ")
						a.sendMany(20, method, path, 0)
						a.wantQuarantined()
						a.quiet(1, 8)
						failIf(t, method == http.MethodPost && a.wrote != 20, "%d writes reached the API, want 20", a.wrote)
					})
				})
			}
		}
	}
}

// TestNewTokenOfAPoolHidesNothing adds a second credential without access. Clients that cannot wait get its response, or 503.
func TestNewTokenOfAPoolHidesNothing(t *testing.T) {
	for _, early := range earlyStatuses {
		withMintingAPI(t, func(a *mintingAPI) {
			a.unknownFor, a.early = 5*time.Second, early
			a.answer = func(token string, w http.ResponseWriter, r *http.Request) {
				if token == "tok-b" {
					w.WriteHeader(http.StatusNotFound)
					return
				}
				a.serve(token, w, r)
			}
			status, took := a.send(http.MethodGet, "/repos/acme/r/subscribers", "Prefer: wait=0")
			failIf(a, status == 200 || took > 3*time.Second, "without a wait: got %d after %v", status, took)
			a.fails = map[string]int{}
			a.send(http.MethodGet, "/repos/acme/r/subscribers")
			a.quiet(1, 8)
			a.wantTokens("/repos/acme/r/subscribers", 200, "minted-1") // the token is not known to lack access
		}, installedApp(), user("b"))
	}
}

// TestUploadWaitsForAKnownToken sends a request that cannot be repeated. The request waits for the test of another request, or until the
// token is probably known.
func TestUploadWaitsForAKnownToken(t *testing.T) {
	for _, alone := range []bool{true, false} {
		withMintingAPI(t, func(a *mintingAPI) {
			a.unknownFor = 1500 * time.Millisecond
			var clients sync.WaitGroup
			if !alone {
				clients.Go(func() { a.send(http.MethodGet, "/repos/acme/r/subscribers") })
			}
			clients.Go(func() {
				_, took := a.send(http.MethodPost, "/repos/acme/r/rulesets", "Expect: 100-continue")
				failIf(a, took > 6*time.Second || !alone && took > 2*time.Second, "alone %v: took %v", alone, took)
			})
			clients.Wait()
			failIf(a, a.wrote != 1, "%d writes", a.wrote)
			a.quiet(1, 8)
		})
	}
}

// TestRenewalIsInvisible renews a token under traffic. No request waits for the new token.
func TestRenewalIsInvisible(t *testing.T) {
	for _, early := range earlyStatuses {
		withMintingAPI(t, func(a *mintingAPI) {
			a.early = early
			a.send(http.MethodGet, "/repos/acme/r/tags")
			a.unknownFor = 5 * time.Second
			time.Sleep(54 * time.Minute)
			var clients sync.WaitGroup
			for i := range 400 { // four minutes, two of them before the renewal
				clients.Go(func() {
					method, path := http.MethodGet, fmt.Sprintf("/repos/acme/r%d/tags", i)
					if i%5 == 0 {
						method, path = http.MethodPost, fmt.Sprintf("/repos/acme/r%d/rulesets", i)
					}
					_, took := a.send(method, path)
					failIf(a, took > time.Second/4, "%s took %v", method, took)
				})
				time.Sleep(600 * time.Millisecond)
			}
			clients.Wait()
			a.quiet(2, 7)
		})
	}
}

// TestRevokedTokenIsReplacedOnce revokes a token under traffic. One 401 confirms another.
func TestRevokedTokenIsReplacedOnce(t *testing.T) {
	withMintingAPI(t, func(a *mintingAPI) {
		a.unknownFor = 1500 * time.Millisecond
		a.send(http.MethodGet, "/repos/acme/r/subscribers")
		time.Sleep(time.Minute)
		a.mu.Lock()
		a.revoked["minted-1"], a.refused = true, nil
		a.mu.Unlock()
		for range 3 {
			a.sendMany(20, http.MethodGet, "/repos/acme/s%d/subscribers", 0)
		}
		a.most = 1 // requests in progress at the time of the revocation
		a.quiet(2, 20+1+3)
	})
}

// TestRevokedInstallationSendsFewBadCredentials revokes everything: the API mints tokens that it never accepts.
func TestRevokedInstallationSendsFewBadCredentials(t *testing.T) {
	withMintingAPI(t, func(a *mintingAPI) {
		a.unknownFor = time.Hour
		for minute := range 20 {
			mints := len(a.minted)
			a.refused = nil
			a.sendMany(60, http.MethodGet, "/repos/acme/r%d/subscribers", time.Second)
			failIf(a, len(a.refused) > 20 || len(a.minted)-mints > 3 || a.most > 1, "minute %d: %d refusals, %d tokens minted, %d requests at a time", minute, len(a.refused), len(a.minted)-mints, a.most)
		}
		a.wantQuarantined("bot")
		for text := range a.fails { // 503 or 401
			failIf(a, !strings.Contains(text, "GET: 503 [weir; detail=credential") && !strings.Contains(text, "fwd-status=401"), "a client got %s", text)
		}
		a.unknownFor, a.fails = 0, map[string]int{}
		time.Sleep(16 * time.Minute)
		a.send(http.MethodGet, "/repos/acme/r/subscribers")
		a.quiet(len(a.minted), 1000)
	})
}

// TestRequestsRefusedInQuarantineUseNothing refuses 20 searches. Afterwards a search may use the whole slow start.
func TestRequestsRefusedInQuarantineUseNothing(t *testing.T) {
	withMintingAPI(t, func(a *mintingAPI) {
		a.statuses(map[string]int{"tok-a": 401})
		a.wantTokens("/repos/acme/x/subscribers", 401, "tok-a")
		for range 20 {
			a.wantTokens("/search/labels?q=x&repository_id=1", 503)
		}
		time.Sleep(11 * time.Second)
		a.statuses(nil)
		a.wantTokens("/repos/acme/x/subscribers", 200, "tok-a")
		var sent []time.Time
		a.answer = func(string, http.ResponseWriter, *http.Request) {
			a.mu.Lock()
			sent = append(sent, time.Now())
			a.mu.Unlock()
			time.Sleep(5 * time.Second)
		}
		began := time.Now()
		a.sendMany(4, http.MethodGet, "/search/labels?q=x%d&repository_id=1", 0)
		failIf(a, len(sent) != 4 || sent[2].Sub(began) > time.Second/2 || sent[3].Sub(began) < time.Second, "4 requests were sent at %v after %v; want three at once", sent, began)
	}, user("a"))
}

// TestOneBad401IsInvisible returns one bad 401 to the clients of a token. Only two in a row quarantine the token.
func TestOneBad401IsInvisible(t *testing.T) {
	for _, bad := range []int{1, 2} {
		withMintingAPI(t, func(a *mintingAPI) {
			a.answer = func(string, http.ResponseWriter, *http.Request) {}
			a.wantTokens("/repos/acme/x/subscribers", 200, "tok-a")
			refused := 0
			a.answer = func(_ string, w http.ResponseWriter, _ *http.Request) {
				a.mu.Lock()
				if refused < bad {
					refused++
					w.WriteHeader(http.StatusUnauthorized)
				}
				a.mu.Unlock()
				time.Sleep(10 * time.Millisecond)
			}
			a.sendMany(20, http.MethodGet, "/repos/acme/r%d/subscribers", 50*time.Millisecond)
			quarantined := len(a.g.credentialHealth.Quarantined())
			failIf(a, bad == 1 && (len(a.fails) > 0 || quarantined > 0) || bad == 2 && quarantined != 1 || refused != bad, "%d bad responses of %d: %d quarantined, %v", refused, bad, quarantined, a.fails)
		}, user("a"))
	}
}

// A request that lacks a permission is repeated with a new token, because the installation may have got the permission. Without
// the permission the client gets the denial, and the gateway mints one token in five minutes.
func TestDeniedRequestsAreRepeatedWithANewToken(t *testing.T) {
	for _, c := range []struct {
		method, path, body string
		granted            bool
		status, sent       int
	}{
		{http.MethodGet, "/repos/acme/w/actions/runs", "", true, 200, 2},
		{http.MethodGet, "/repos/acme/w/actions/runs", "", false, 403, 2},
		{http.MethodPost, "/repos/acme/w/issues", `{"title":"a"}`, true, 200, 2},
		{http.MethodPost, "/graphql", `{"query":"{viewer{login}}"}`, true, 200, 2},
		{http.MethodPost, "/graphql", `{"query":"mutation{a:addStar(input:{starrableId:\"x\"}){clientMutationId}}"}`, true, 403, 1},
	} {
		t.Run(fmt.Sprint(c.method, c.path, c.granted, c.sent), func(t *testing.T) {
			withMintingAPI(t, func(a *mintingAPI) {
				var granted time.Time
				sent := 0
				a.answer = func(token string, w http.ResponseWriter, r *http.Request) {
					a.mu.Lock()
					n, changes := len(a.minted), !granted.IsZero() && !mints(r)
					a.mu.Unlock()
					if !changes || c.granted && token != "minted-1" && n > 1 {
						if changes {
							sent++
						}
						a.serve(token, w, r)
						return
					}
					sent++
					w.WriteHeader(http.StatusForbidden)
					_, _ = fmt.Fprint(w, `{"message":"Resource not accessible by integration"}`)
				}
				do := func(path, body string) int {
					return sendTo(a.g, c.method, path, body, "Authorization: Bearer key-of-builds").Code
				}
				a.send(http.MethodGet, "/repos/acme/w")
				time.Sleep(10 * time.Minute)
				granted = time.Now()
				status := do(c.path, c.body)
				failIf(t, status != c.status || sent != c.sent, "the client got %d after %d requests, want %d after %d", status, sent, c.status, c.sent)
				if c.status == http.StatusForbidden {
					sent = 0
					time.Sleep(time.Minute)
					do(c.path+"?page=2", c.body)
					time.Sleep(time.Second)
					failIf(t, sent > 2 || len(a.minted) > 2, "%d requests and %d tokens after another denial, want 1 and 2", sent, len(a.minted))
				}
			})
		})
	}
}
