package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/breaker"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/learned"
)

// acceptOnly returns an upstream that answers after a delay, and refuses every token without the word good.
func acceptOnly(delay time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(delay)
		w.Header().Set("Cache-Control", "no-store")
		if !strings.Contains(r.Header.Get("Authorization"), "good") {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}
}

// limitAddresses bounds the unverified tokens of each address. All clients of a world have one address.
func limitAddresses(c *Config) {
	c.Tokens = &learned.ClientTokens{}
	c.Tokens.LimitAddresses(true)
}

const tagList = "/repos/acme/widgets/tags"

func TestRefusedTokenIsNotSentAgain(t *testing.T) {
	setup(acceptOnly(0)).run(t, func(w *world) {
		w.wantReply("first", w.get(tagList, "Authorization: Bearer bad"), 401)
		for range 100 {
			r := w.wantReply("", w.get(tagList, "Authorization: Bearer bad"), 401, "Cache-Status: weir; detail=refused-token", `WWW-Authenticate: Bearer realm="weir"`)
			failIf(w, !strings.Contains(r.body, `"message":"Bad credentials"`) || !strings.Contains(r.body, "documentation_url"), "body %s", r.body)
		}
		w.want("requests", w.upstreamSaw(), 1)
		w.want("status of another token", w.get(tagList, "Authorization: Bearer good").StatusCode, 200)
		w.want("requests with another token", w.upstreamSaw(), 2)

		// The time grows to five minutes: 1, 4, 16, 64 and 256 s, then 300 s.
		for range 3600 {
			time.Sleep(time.Second)
			w.get(tagList, "Authorization: Bearer bad")
		}
		n := w.upstreamSaw() - 2
		failIf(w, n < 12 || n > 18, "%d requests upstream in an hour of one request per second, want about 16", n)
	})
}

func TestAcceptedTokenIsNotRefusedForOneMistake(t *testing.T) {
	accepted, refused := responds(200, "Cache-Control: no-store"), responds(401)
	setup(inOrder(accepted, refused, accepted, refused)).run(t, func(w *world) {
		for i, status := range []int{200, 401, 200, 401, 401, 401, 401, 401} { // one mistake, and then the token is revoked
			w.want(fmt.Sprint("status ", i), w.get(tagList, owner).StatusCode, status)
		}
		w.want("requests", w.upstreamSaw(), 5)
	})
}

// A 401 to an operation for the credentials of apps, or for users only, says nothing about other tokens.
func TestOnlyConclusiveRefusalsAreRemembered(t *testing.T) {
	upstream := byPath(responds(401), map[string]http.HandlerFunc{tagList: responds(200, "Cache-Control: no-store")})
	setup(upstream, wholeAPI(t, unchanged), func(c *Config) {
		identifying(func(r *http.Request, id *caller.Identity) {
			id.Kind = c.Dialect.Kind("Bearer", strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		})(c)
	}).run(t, func(w *world) {
		for path, token := range map[string]string{"/app": "Authorization: Bearer ghp_user", "/user": "Authorization: Bearer ghs_app"} {
			w.want(path, w.get(path, token).StatusCode, 401)
			w.want(tagList+" after "+path, w.get(tagList, token).StatusCode, 200)
		}
	})
}

func TestMadeUpTokensOfOneAddressAreBounded(t *testing.T) {
	for _, delay := range []time.Duration{0, 100 * time.Millisecond} {
		setup(acceptOnly(delay), limitAddresses).sub(t, fmt.Sprint("upstream delay ", delay), func(w *world) {
			w.get(tagList, "Authorization: Bearer good, known")
			began, saw := time.Now(), w.upstreamSaw()
			var mu sync.Mutex
			statuses := map[int]int{}
			together(50, func(i int) {
				for j := range 10 {
					r := w.get(tagList, fmt.Sprintf("Authorization: Bearer bad %d of %d", j, i))
					mu.Lock()
					statuses[r.StatusCode]++
					mu.Unlock()
				}
			})
			w.want("requests upstream", w.upstreamSaw()-saw, learned.MaxUnverified)
			w.want("401", statuses[401], learned.MaxUnverified)
			w.want("429", statuses[429], 500-learned.MaxUnverified)

			r := w.wantReply("a new token", w.get(tagList, "Authorization: Bearer good, new"), 429, "Cache-Status: weir; detail=unverified-token")
			after, err := strconv.Atoi(r.Header.Get("Retry-After"))
			failIf(w, err != nil || after < 59 || after > 60, "Retry-After %q after %v", r.Header.Get("Retry-After"), time.Since(began))
			w.want("status of a known token", w.get(tagList, "Authorization: Bearer good, known").StatusCode, 200)
			w.want("status without a token", w.get(tagList).StatusCode, 401) // the upstream's response
			time.Sleep(time.Duration(after) * time.Second)
			w.want("status after Retry-After", w.get(tagList, "Authorization: Bearer good, new").StatusCode, 200)
		})
	}
}

func TestHeldCredentialsNeedNoVerification(t *testing.T) {
	setup(acceptOnly(0), limitAddresses, identifying(func(r *http.Request, id *caller.Identity) {
		id.Passed, id.Credential = false, fixedCredential{value: r.Header.Get("Authorization")}
	})).run(t, func(w *world) {
		for i := range 3 * learned.MaxUnverified {
			w.want("status", w.get(tagList, fmt.Sprint("Authorization: Bearer bad ", i)).StatusCode, 401)
			w.get(tagList, fmt.Sprint("Authorization: Bearer bad ", i))
		}
		w.want("requests", w.upstreamSaw(), 6*learned.MaxUnverified)
	})
}

// The tokens come from different addresses, so that each is sent upstream once.
func TestRefusedTokensLeaveNoAccounts(t *testing.T) {
	setup(acceptOnly(0)).run(t, func(w *world) {
		for i := range 500 {
			w.get(tagList, bearer(fmt.Sprint("bad ", i)))
		}
		w.get(tagList, bearer("good"))
		list := w.accounts(1000)
		stopIf(w, len(list) != 1 || !strings.Contains(list[0].Name, "good"), "%d accounts; want only the accepted one", len(list))
		w.want("kind", list[0].Kind, policy.User)
	})
}

// leave sends a request whose client disconnects after a time. It reports whether the client got no response before.
func (w *world) leave(client *http.Client, after time.Duration, method, path, body string, fields ...string) bool {
	w.Helper()
	ctx, cancel := context.WithTimeoutCause(w.Context(), after, errors.New("the client leaves"))
	defer cancel()
	r := w.newRequest(ctx, method, "http://gateway.test"+path, strings.NewReader(body), fields...)
	return receive(client.Do(r)).Response == nil
}

// overHTTP2 returns a client with one connection to the gateway, on which a disconnect resets a stream.
func (w *world) overHTTP2() *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	front := testservers.ServePipe(w.T, "gateway.test:80", &http.Server{Handler: w.gateway, Protocols: protocols})
	transport := &http.Transport{DialContext: front.Dial, Protocols: protocols, DisableCompression: true}
	w.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// hang is an upstream that never responds.
func hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // net/http then notices the end of the connection
	<-r.Context().Done()
}

func impatient(c *Config) { c.Timeout, c.Wait = 5*time.Second, time.Second }

// Strangers cannot send more unverified tokens upstream by any end of their requests.
func TestUnverifiedTokensAreBoundedHoweverTheirRequestsEnd(t *testing.T) {
	for _, c := range []struct {
		name     string
		upstream http.HandlerFunc
		stay     time.Duration // of each client
		body     string        // of a POST; empty for a GET
	}{
		{"disconnect before the response", hang, 10 * time.Millisecond, ""},
		{"disconnect from a write", hang, 10 * time.Millisecond, "{}"},
		{"disconnect during the body", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000000")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, 10 * time.Millisecond, ""},
		{"timeout", hang, time.Minute, ""},
		{"broken connection", breakConn, time.Minute, ""},
		{"401", responds(401), time.Minute, ""},
		{"403", responds(403), time.Minute, ""},
		{"404", responds(404), time.Minute, ""},
		{"422 to a write", responds(422), time.Minute, "{}"},
		{"429", responds(429), time.Minute, ""},
		{"500", responds(500), time.Minute, ""},
		{"502", responds(502), time.Minute, ""},
		{"redirect", responds(301, "Location: /elsewhere"), time.Minute, ""},
		{"redirect to a login", responds(302, "Location: https://login.example/"), time.Minute, ""},
		{"redirect of a write", responds(307, "Location: /elsewhere"), time.Minute, "{}"},
	} {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
			setup(c.upstream, limitAddresses, impatient).sub(t, c.name+" over "+protocol, func(w *world) {
				client := w.client
				if protocol == "HTTP/2" {
					client = w.overHTTP2()
				}
				method := map[bool]string{true: http.MethodGet, false: http.MethodPost}[c.body == ""]
				began := time.Now()
				together(12, func(i int) { // more than may wait for their first response at a time
					for j := 0; time.Since(began) < 3*learned.FailedWindow && j < 8; j++ {
						w.leave(client, c.stay, method, tagList, c.body, fmt.Sprintf("Authorization: Bearer bad %d of %d", j, i))
						time.Sleep(10 * time.Second)
					}
				})
				minutes := int(time.Since(began)/learned.FailedWindow) + 1
				n := w.upstreamSaw()
				failIf(w, n < learned.MaxUnverified || n > minutes*learned.MaxUnverified, "%d requests upstream in %v", n, time.Since(began))
			})
		}
	}
}

func TestRepetitionsOfOneUnverifiedTokenAreBounded(t *testing.T) {
	setup(hang, limitAddresses).run(t, func(w *world) {
		for i := range 590 {
			w.leave(w.client, 5*time.Millisecond, http.MethodGet, tagList, "", fmt.Sprint("Authorization: Bearer bad ", i%3))
			time.Sleep(95 * time.Millisecond)
		}
		n := w.upstreamSaw()
		failIf(w, n > learned.MaxUnverified, "%d requests upstream", n)
	})
}

// Behind a trusted proxy, each client address has a separate bound.
func TestUnverifiedTokensAreBoundedPerForwardedAddress(t *testing.T) {
	setup(responds(401), limitAddresses, trusting("10.0.0.0/8")).run(t, func(w *world) {
		for i := range 3 * learned.MaxUnverified {
			for _, address := range []string{"203.0.113.1", "203.0.113.2"} {
				w.from("10.1.2.3:4567", http.MethodGet, tagList, bearer(fmt.Sprint("bad ", i, address)), "X-Forwarded-For: "+address)
			}
		}
		w.want("requests upstream", w.upstreamSaw(), 2*learned.MaxUnverified)
	})
}

// A request that was not sent costs nothing, and a success ends the counts of its token.
func TestOnlySentRequestsOfUnverifiedTokensCount(t *testing.T) {
	down := true
	setup(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Authorization"), "slow") {
			time.Sleep(time.Second)
		}
		w.Header().Set("Cache-Control", "no-store")
	}, limitAddresses, func(c *Config) {
		onDial(c, func() error {
			if down {
				return errors.New("no route to host")
			}
			return nil
		})
	}).run(t, func(w *world) {
		for i := range 3 * learned.MaxUnverified {
			w.want("status without a connection", w.get(tagList, fmt.Sprint("Authorization: Bearer unsent ", i)).StatusCode/100, 5)
		}
		down = false
		time.Sleep(2 * breaker.TrialInterval)
		w.get(tagList, owner) // closes the circuit breaker
		for i := range learned.MaxUnverified {
			w.leave(w.client, 10*time.Millisecond, http.MethodGet, tagList, "", fmt.Sprint("Authorization: Bearer slow ", i%2))
			time.Sleep(time.Second)
		}
		w.want("status of a new token", w.get(tagList, "Authorization: Bearer new").StatusCode, 429)
		time.Sleep(learned.FailedWindow - learned.MaxUnverified*time.Second)
		for i := range 2 {
			w.want("status of a token whose clients left", w.get(tagList, fmt.Sprint("Authorization: Bearer slow ", i)).StatusCode, 200)
		}
		for i := range learned.MaxUnverified / 2 {
			w.leave(w.client, 10*time.Millisecond, http.MethodGet, tagList, "", fmt.Sprint("Authorization: Bearer slow, other ", i))
		}
		w.want("status of a new token after the successes", w.get(tagList, "Authorization: Bearer new").StatusCode, 200)
	})
}

// After a restart, all tokens of a fleet are unverified. They wait for each other instead of being refused. Some clients
// leave before their first response.
func TestValidTokensOfOneAddressAreNotRefused(t *testing.T) {
	for _, leaving := range []bool{false, true} {
		setup(acceptOnly(100*time.Millisecond), limitAddresses).sub(t, fmt.Sprint("clients leave: ", leaving), func(w *world) {
			began := time.Now()
			together(400, func(i int) {
				token := bearer(fmt.Sprint("good ", i/2))
				if leaving && i%40 == 0 {
					w.leave(w.client, 50*time.Millisecond, http.MethodGet, tagList, "", token)
				}
				w.want("status", w.get(tagList, token).StatusCode, 200)
			})
			took := time.Since(began)
			failIf(w, took > 2*time.Second, "200 tokens took %v", took)
		})
	}
}

// An account whose responses are missing is kept, so that a valid token gets no more than its limit.
func TestUnansweredRequestsOfAValidTokenAreCharged(t *testing.T) {
	for name, option := range map[string]option{"with the bound for addresses": limitAddresses, "without it": func(*Config) {}} {
		bubble(t, name, func(t *testing.T) {
			const limit = 60
			documented := policy.DefaultLimits()
			documented.Primary.User = limit
			ledger := limits.NewMemory(limits.Rules{Limits: documented, ColdStart: "trust"})
			running, stop := context.WithCancel(t.Context())
			t.Cleanup(stop)
			go ledger.Run(running)
			w := newWorld(t, hang, option, withLedger(ledger), func(c *Config) { c.Wait = 0 })
			for began := time.Now(); time.Since(began) < documented.Primary.Window; time.Sleep(10 * time.Second) {
				w.leave(w.client, 5*time.Millisecond, http.MethodGet, tagList, "", owner)
			}
			w.want("requests upstream in a window", w.upstreamSaw(), limit)
		})
	}
}

// Requests that are refused, or were certainly not sent, leave no account. A record names no account if the token may not
// exist, because history and metrics have a bounded number of accounts.
func TestRefusedRequestsOfStrangersLeaveNoAccounts(t *testing.T) {
	const requests = 1000
	var records recordLog
	setup(hang, limitAddresses, func(c *Config) { c.Observe = records.observe }).run(t, func(w *world) {
		for i := range requests {
			w.leave(w.client, time.Millisecond, http.MethodGet, tagList, "", bearer(fmt.Sprint("bad ", i)))
		}
		time.Sleep(time.Second)
		n, minutes := len(w.accounts(requests)), 1+int(requests*time.Millisecond/learned.FailedWindow)
		failIf(w, n > learned.MaxUnverified*minutes, "%d accounts", n)
		named := map[string]bool{}
		for _, r := range records.list {
			named[r.Account] = true
		}
		failIf(w, len(named) > learned.MaxUnverified+1, "%d accounts in records", len(named))
	})
}
