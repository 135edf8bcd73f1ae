package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

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
			setup(c.upstream, limitAddresses, func(c *Config) { c.Timeout, c.Wait = 5*time.Second, time.Second }).sub(t, c.name+" over "+protocol, func(w *world) {
				client := w.client
				if protocol == "HTTP/2" {
					client = w.overHTTP2()
				}
				method := map[bool]string{true: http.MethodGet, false: http.MethodPost}[c.body == ""]
				began := time.Now()
				together(2, func(i int) {
					for j := 0; time.Since(began) < 3*failedWindow && j < 70; j++ {
						w.leave(client, c.stay, method, tags, c.body, fmt.Sprintf("Authorization: Bearer bad %d of %d", j, i))
						time.Sleep(time.Second)
					}
				})
				minutes := int(time.Since(began)/failedWindow) + 1
				if n := w.upstreamSaw(); n < maxUnverified || n > minutes*maxUnverified {
					w.Errorf("%d requests upstream in %v", n, time.Since(began))
				}
			})
		}
	}
}

func TestRepetitionsOfOneUnverifiedTokenAreBounded(t *testing.T) {
	setup(hang, limitAddresses).run(t, func(w *world) {
		for i := range 590 {
			w.leave(w.client, 5*time.Millisecond, http.MethodGet, tags, "", fmt.Sprint("Authorization: Bearer bad ", i%3))
			time.Sleep(95 * time.Millisecond)
		}
		if n := w.upstreamSaw(); n > maxUnverified {
			w.Errorf("%d requests upstream", n)
		}
	})
}

// Behind a trusted proxy, each client address has a bound of its own.
func TestUnverifiedTokensAreBoundedPerForwardedAddress(t *testing.T) {
	setup(responds(401), limitAddresses, trusting("10.0.0.0/8")).run(t, func(w *world) {
		for i := range 3 * maxUnverified {
			for _, address := range []string{"203.0.113.1", "203.0.113.2"} {
				w.from("10.1.2.3:4567", http.MethodGet, tags, bearer(fmt.Sprint("bad ", i, address)), "X-Forwarded-For: "+address)
			}
		}
		w.want("requests upstream", w.upstreamSaw(), 2*maxUnverified)
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
		for i := range 3 * maxUnverified {
			w.want("status without a connection", w.get(tags, fmt.Sprint("Authorization: Bearer unsent ", i)).StatusCode/100, 5)
		}
		down = false
		time.Sleep(2 * trialInterval)
		w.get(tags, owner) // closes the circuit breaker
		for i := range maxUnverified {
			w.leave(w.client, 10*time.Millisecond, http.MethodGet, tags, "", fmt.Sprint("Authorization: Bearer slow ", i%2))
			time.Sleep(time.Second)
		}
		w.want("status of a new token", w.get(tags, "Authorization: Bearer new").StatusCode, 429)
		time.Sleep(failedWindow - maxUnverified*time.Second)
		for i := range 2 {
			w.want("status of a token whose clients left", w.get(tags, fmt.Sprint("Authorization: Bearer slow ", i)).StatusCode, 200)
		}
		for i := range maxUnverified / 2 {
			w.leave(w.client, 10*time.Millisecond, http.MethodGet, tags, "", fmt.Sprint("Authorization: Bearer slow, other ", i))
		}
		w.want("status of a new token after the successes", w.get(tags, "Authorization: Bearer new").StatusCode, 200)
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
					w.leave(w.client, 50*time.Millisecond, http.MethodGet, tags, "", token)
				}
				w.want("status", w.get(tags, token).StatusCode, 200)
			})
			if took := time.Since(began); took > 2*time.Second {
				w.Errorf("200 tokens took %v", took)
			}
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
				w.leave(w.client, 5*time.Millisecond, http.MethodGet, tags, "", owner)
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
			w.leave(w.client, time.Millisecond, http.MethodGet, tags, "", bearer(fmt.Sprint("bad ", i)))
		}
		time.Sleep(time.Second)
		if n, minutes := len(w.accounts(requests)), 1+int(requests*time.Millisecond/failedWindow); n > maxUnverified*minutes {
			w.Errorf("%d accounts", n)
		}
		named := map[string]bool{}
		for _, r := range records.list {
			named[r.Account] = true
		}
		if len(named) > maxUnverified+1 {
			w.Errorf("%d accounts in records", len(named))
		}
	})
}
