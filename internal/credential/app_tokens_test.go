package credential

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// appUpstream issues tokens and records the requests for them.
type appUpstream struct {
	key        *rsa.PublicKey
	mu         sync.Mutex
	issued     int
	requests   []string // method, URL and body
	respond    func() (status int, body string)
	delay      time.Duration
	retryAfter string        // of every response; none if it is "-"
	reset      time.Duration // of the exhausted budget of every response, or zero
	life       time.Duration // of tokens; an hour if it is zero
	clock      time.Duration // by which the upstream's clock is ahead, or zero
}

func (u *appUpstream) RoundTrip(r *http.Request) (*http.Response, error) {
	valid := u.isValid(r.Header.Get("Authorization"))
	select {
	case <-time.After(u.delay):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.requests = append(u.requests, r.Method+" "+r.URL.String()+" "+string(must(io.ReadAll(r.Body))))
	response := &http.Response{StatusCode: http.StatusUnauthorized, Header: http.Header{}, Body: http.NoBody, Request: r}
	if valid {
		u.issued++
		response = tokenResponse(r, fmt.Sprint("ghs_", u.issued), cmp.Or(u.life, time.Hour))
	}
	if u.respond != nil {
		status, text := u.respond()
		response.StatusCode, response.Body = status, io.NopCloser(strings.NewReader(text))
	}
	if u.clock != 0 {
		response.Header.Set("Date", time.Now().Add(u.clock).UTC().Format(http.TimeFormat))
	}
	if u.retryAfter != "-" {
		response.Header.Set("Retry-After", cmp.Or(u.retryAfter, "90"))
	}
	if u.reset != 0 {
		response.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
		response.Header.Set("X-Ratelimit-Remaining", "0")
		response.Header.Set("X-Ratelimit-Reset", fmt.Sprint(time.Now().Add(u.reset).Unix()))
	}
	return response, nil
}

// isValid checks an assertion like the upstream: signature, issuer and times.
func (u *appUpstream) isValid(authorization string) bool {
	token, err := jwt.ParseSigned(strings.TrimPrefix(authorization, "Bearer "), []jose.SignatureAlgorithm{jose.RS256})
	var claims struct {
		Issuer  string `json:"iss"`
		Issued  int64  `json:"iat"`
		Expires int64  `json:"exp"`
	}
	if err != nil || token.Claims(u.key, &claims) != nil {
		return false
	}
	now, issued, expires := time.Now().Add(u.clock).Unix(), claims.Issued, claims.Expires
	return token.Headers[0].ExtraHeaders["typ"] == "JWT" && claims.Issuer == "7" && issued == now-60 && expires > now && expires-issued <= 600
}

// appTest holds an app and its upstream.
type appTest struct {
	*testing.T
	up  *appUpstream
	app App
	log bytes.Buffer
}

func newAppTest(t *testing.T) *appTest {
	block, _ := pem.Decode([]byte(testservers.AppKey()))
	key := must(x509.ParsePKCS1PrivateKey(block.Bytes))
	return &appTest{T: t, up: &appUpstream{key: &key.PublicKey}, app: testApp()}
}

func testApp() App {
	return App{ID: "7", Installation: 42, Upstream: must(url.Parse("http://api.test/api/v3")), Key: Secret(testservers.AppKey())}
}

// inBubble runs a test with an app in virtual time.
func inBubble(t *testing.T, test func(r *appTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newAppTest(t)) })
}

func (r *appTest) cache(store TokenStore) *AppTokens {
	m := NewAppTokens(r.up, store, slog.New(slog.NewTextHandler(&r.log, nil)))
	r.Cleanup(m.Close)
	return m
}

func (r *appTest) source(m *AppTokens, permissions map[string]string) *Source {
	app := r.app
	app.Permissions = permissions
	return m.Source("bot", &app)
}

// want checks that a source returns a token.
func (r *appTest) want(s *Source, token string) {
	r.Helper()
	got, err := s.get(r.Context())
	failIf(r, err != nil || got.Reveal() != token, "got %s, %v; want %s", got.Reveal(), err, token)
}

// answered sends requests with the tokens of a source, one after the other, and records the answers to them.
func (r *appTest) answered(s *Source, answers ...answer) {
	r.Helper()
	for _, a := range answers {
		for {
			token, wait, err := s.try(policy.CredentialUse{Safe: true, Repeatable: true}, true, time.Now())
			noError(r, err)
			if token != nil {
				s.observe(token, a, time.Now(), time.Now())
				break
			}
			noError(r.T, wait.wait(r.Context()))
		}
	}
}

func TestTokenIsRenewedInTheBackgroundBeforeItExpires(t *testing.T) {
	inBubble(t, func(r *appTest) {
		r.up.delay = time.Second
		s := r.source(r.cache(nil), nil)
		var clients sync.WaitGroup
		for range 20 {
			clients.Go(func() { r.want(s, "ghs_1") })
		}
		clients.Wait()
		time.Sleep(54 * time.Minute)
		r.want(s, "ghs_1")
		synctest.Wait()
		equal(r, "issued tokens", r.up.issued, 1)
		time.Sleep(2 * time.Minute)
		began := time.Now()
		r.want(s, "ghs_1")
		equal(r, "waiting for the renewal", time.Since(began), 0)
		time.Sleep(2 * time.Second)
		r.want(s, "ghs_2")
		failIf(r, r.up.issued != 2 || r.up.requests[0] != "POST http://api.test/api/v3/app/installations/42/access_tokens {}", "%d tokens were issued, first request %s", r.up.issued, r.up.requests[0])
	})
}

// An upstream may issue tokens that need a renewal at once. Such tokens are used, and renewed once in firstPause.
func TestShortLivedTokensAreRenewedWithPauses(t *testing.T) {
	inBubble(t, func(r *appTest) {
		r.up.life = renewBefore - time.Second
		s := r.source(r.cache(nil), nil)
		for range 4 * int(firstPause/time.Second) {
			_, err := s.get(r.Context())
			failIf(r, err != nil, "%v", err)
			time.Sleep(time.Second)
		}
		equal(r, "issued tokens", r.up.issued, 4)
	})
}

func TestAppsWithDifferentPermissionsShareNoToken(t *testing.T) {
	inBubble(t, func(r *appTest) {
		m := r.cache(nil)
		r.want(r.source(m, map[string]string{"contents": "read", "issues": "read"}), "ghs_1")
		r.want(r.source(m, map[string]string{"contents": "write"}), "ghs_2")
		r.want(r.source(m, map[string]string{"issues": "read", "contents": "read"}), "ghs_1")
		failIf(r, !strings.HasSuffix(r.up.requests[0], `{"permissions":{"contents":"read","issues":"read"}}`), "requested %s", r.up.requests[0])
	})
}

// Two APIs may have installations with the same number.
func TestAppsOfDifferentUpstreamsShareNoToken(t *testing.T) {
	inBubble(t, func(r *appTest) {
		m := r.cache(nil)
		for _, c := range []struct{ upstream, token string }{
			{"https://api.test", "ghs_1"}, {"https://api.example", "ghs_2"}, {"https://api.test", "ghs_1"},
		} {
			r.app.Upstream = must(url.Parse(c.upstream))
			r.want(r.source(m, nil), c.token)
		}
	})
}

// The lifetime of a token counts from the Date of the response, because the clocks may differ. It is at most an hour.
func TestLifetimeOfATokenHasARange(t *testing.T) {
	for _, c := range []struct{ clock, life, want time.Duration }{
		{0, 40 * time.Minute, 40 * time.Minute}, {0, 100 * 365 * 24 * time.Hour, time.Hour},
		{-3 * time.Hour, time.Hour, time.Hour}, {3 * time.Hour, time.Hour, time.Hour}, {time.Hour, 10 * time.Minute, 10 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			app := testApp()
			token, err := app.issue(t.Context(), roundTripper(func(r *http.Request) (*http.Response, error) {
				resp := tokenResponse(r, "ghs_1", c.clock+c.life)
				resp.Header.Set("Date", time.Now().Add(c.clock).UTC().Format(http.TimeFormat))
				return resp, nil
			}))
			got := time.Until(token.Expires)
			failIf(t, err != nil || got != c.want, "clock %v ahead, lifetime %v: got %v, %v; want %v", c.clock, c.life, got, err, c.want)
		})
	}
}

// An assertion with the times of a wrong clock gets 401. The Date of the response shows the right time.
func TestTokensAreIssuedAlthoughTheClockIsWrong(t *testing.T) {
	for _, c := range []struct {
		clock    time.Duration
		issued   int
		requests int
	}{
		{-5 * time.Minute, 1, 2}, {20 * time.Minute, 1, 2}, {3 * time.Hour, 1, 2},
		{-48 * time.Hour, 0, 1}, // no such Date is believed
	} {
		inBubble(t, func(r *appTest) {
			r.up.clock = c.clock
			_, _ = r.source(r.cache(nil), nil).get(r.Context())
			equal(r, fmt.Sprint("tokens of an upstream whose clock is ahead by ", c.clock), r.up.issued, c.issued)
			equal(r, fmt.Sprint("requests to an upstream whose clock is ahead by ", c.clock), len(r.up.requests), c.requests)
		})
	}
	inBubble(t, func(r *appTest) {
		r.app.ID, r.up.clock = "8", time.Second // the app is wrong, and not the clock
		_, err := r.source(r.cache(nil), nil).get(r.Context())
		equal(r, "requests", len(r.up.requests), 1)
		remedy := "check app.id, app.key and the clock"
		failIf(r, err == nil || !strings.Contains(err.Error(), remedy), "got %v, want the remedy %q", err, remedy)
	})
}

func TestFailedTokenRequestIsRetriedAfterAPause(t *testing.T) {
	inBubble(t, func(r *appTest) {
		for _, c := range []struct {
			name, body, retryAfter string
			status                 int
			pause                  time.Duration
			reset                  time.Duration
		}{
			{"not found", `{"message":"ghs_secret"}`, "90", 404, 90 * time.Second, 0},
			{"redirect", "", "90", 307, 90 * time.Second, 0},
			{"Retry-After above an hour", "{}", "9000000000", 403, time.Hour, 0},
			{"not JSON", "ghs_secret", "90", 201, 5 * time.Second, 0},
			{"token with a line break", `{"token":"ghs_secret\n","expires_at":"2999-01-01T00:00:00Z"}`, "90", 201, 5 * time.Second, 0},
			{"expired token", `{"token":"ghs_secret","expires_at":"1999-01-01T00:00:00Z"}`, "90", 201, 5 * time.Second, 0},
			{"error without Retry-After", "{}", "-", 500, 5 * time.Second, 0},
			{"secondary limit", `{"message":"You have exceeded a secondary rate limit."}`, "-", 403, time.Minute, 0},
			{"secondary limit, short Retry-After", `{"message":"You have exceeded a secondary rate limit."}`, "1", 429, time.Minute, 0},
			{"secondary limit, Retry-After", `{"message":"You have exceeded a secondary rate limit."}`, "90", 429, 90 * time.Second, 0},
			{"several values of Retry-After", "{}", "30, 120", 403, 2 * time.Minute, 0},
			{"Retry-After as a date", "{}", "in ten minutes", 429, 10 * time.Minute, 0},
			{"secondary limit, nothing remains", `{"message":"You have exceeded a secondary rate limit."}`, "-", 403, 20 * time.Minute, 20 * time.Minute},
			{"primary limit", `{"message":"API rate limit exceeded for app 7."}`, "-", 403, 20 * time.Minute, 20 * time.Minute},
			{"reset in the past", `{"message":"API rate limit exceeded for app 7."}`, "-", 403, time.Minute, -time.Hour},
		} {
			r.up.requests, r.up.retryAfter, r.up.reset, r.up.respond = nil, c.retryAfter, c.reset, func() (int, string) { return c.status, c.body }
			if c.retryAfter == "in ten minutes" {
				r.up.retryAfter = time.Now().Add(c.pause).UTC().Format(http.TimeFormat)
			}
			s := r.source(r.cache(nil), nil)
			for range 10 {
				got, err := s.get(r.Context())
				var unusable *policy.UnusableError
				if got != "" || !errors.As(err, &unusable) || time.Until(unusable.Until) != c.pause || strings.Contains(err.Error(), "secret") {
					r.Errorf("%s: got token %q and error %v", c.name, got.Reveal(), err)
				}
			}
			before := len(r.up.requests)
			time.Sleep(c.pause)
			_, _ = s.get(r.Context())
			failIf(r, before != 1 || len(r.up.requests) != 2, "%s: %d requests, and %d after the pause; want 1 and 2", c.name, before, len(r.up.requests))
		}
		failIf(r, strings.Contains(r.log.String(), "secret") || strings.Contains(r.log.String(), "eyJ"), "the log contains a secret: %s", r.log.String())
	})
}

func TestRetryEndsThePauseAfterAFailedTokenRequest(t *testing.T) {
	inBubble(t, func(r *appTest) {
		for name, ends := range map[string]bool{"bot": true, "installation:42": true, "installation:4": false, "": false} {
			r.up.requests, r.up.retryAfter, r.up.respond = nil, "3600", func() (int, string) { return 403, "{}" }
			m := r.cache(nil)
			s := r.source(m, nil)
			_, _ = s.get(r.Context())
			r.up.respond = nil
			equal(r, fmt.Sprintf("%q", name), m.Retry(name), ends)
			_, err := s.get(r.Context())
			failIf(r, (err == nil) != ends || m.Retry(name) && ends, "%q: %v", name, err)
		}
	})
}

// net/http quotes malformed responses in its errors, and such a response may contain a token.
func TestErrorsQuoteNoTokenOfAResponse(t *testing.T) {
	for _, response := range []string{
		"HTTP/1.1 2x1 ghs_secret\r\n\r\n",
		"HTTP/1.1 201 Created\r\n{\"token\":\"ghs_secret\"}\r\n\r\n",
		"{\"token\":\"ghs_secret\"}\r\n\r\n",
		"HTTP/1.1 201 Created\r\nContent-Length: 22\r\n\r\n{\"token\":\"ghs_secret\"}",
		"HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n{\"token\":\"ghs_secret\"}",
	} {
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				if _, err := http.ReadRequest(bufio.NewReader(far)); err == nil {
					_, _ = io.WriteString(far, response)
				}
				_ = far.Close()
			}()
			return near, nil
		}}
		app := testApp()
		_, err := app.issue(t.Context(), transport)
		failIf(t, err == nil || strings.Contains(err.Error(), "secret"), "%q: %v", response, err)
		transport.CloseIdleConnections()
	}
}

func TestWaitForATokenEndsWithTheClientsContext(t *testing.T) {
	inBubble(t, func(r *appTest) {
		r.up.delay = time.Hour
		s := r.source(r.cache(nil), nil)
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if _, err := s.get(ctx); !errors.Is(err, context.DeadlineExceeded) {
			r.Error(err)
		}
		time.Sleep(issueTimeout) // the cache stops waiting too
		_, err := s.get(r.Context())
		failIf(r, err == nil, "got a token from an upstream that does not respond")
	})
}

func TestRejectedTokenIsReplaced(t *testing.T) {
	inBubble(t, func(r *appTest) {
		s := r.source(r.cache(nil), nil)
		r.want(s, "ghs_1")
		time.Sleep(freshFor)
		r.answered(s, answerSuccess)
		older := s.newest
		r.answered(s, answerRefused, answerRefused)
		r.want(s, "ghs_2")
		s.observe(older, answerRefused, time.Now(), time.Now())
		r.want(s, "ghs_2")
	})
}

// A reload with another key does not wait for the pause after the failures of the old key.
func TestCorrectedKeyIsUsedWithoutPause(t *testing.T) {
	inBubble(t, func(r *appTest) {
		m, right := r.cache(nil), r.app.Key
		der := x509.MarshalPKCS1PrivateKey(newRSAKey("", 2048).private.(*rsa.PrivateKey))
		wrong := Secret(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: der}))
		r.app.Key = wrong
		var unusable *policy.UnusableError
		for range 20 {
			time.Sleep(time.Minute)
			_, err := r.source(m, nil).get(r.Context())
			stopIf(r, !errors.As(err, &unusable), "%v", err)
		}
		before := len(r.up.requests)
		r.app.Key = right
		r.want(r.source(m, nil), "ghs_1")
		r.app.Key = wrong
		_, err := r.source(m, nil).get(r.Context())
		failIf(r, err == nil || len(r.up.requests) != before+1, "%v; %d more requests, want 1", err, len(r.up.requests)-before)
	})
}

func TestReplicasShareALimitOfTokenRequests(t *testing.T) {
	inBubble(t, func(r *appTest) {
		store := &memoryTokens{}
		r.up.retryAfter, r.up.respond = "-", func() (int, string) { return 403, `{"message":"You have exceeded a secondary rate limit."}` }
		a := r.source(r.cache(store), nil)
		b := r.source(r.cache(store), nil)
		for began := time.Now(); time.Since(began) < limitPause; time.Sleep(time.Second) {
			synctest.Wait()
			failIf(r, len(r.up.requests) > 1, "%d requests, %v after the limit error", len(r.up.requests), time.Since(began))
			go func() { _, _ = a.get(r.Context()) }()
			go func() { _, _ = b.get(r.Context()) }()
		}
		synctest.Wait()
		r.up.respond = nil
		time.Sleep(limitPause)
		r.want(a, "ghs_2")
		r.want(b, "ghs_2")
	})
}

// memoryTokens is a [TokenStore] in memory that works with virtual time.
type memoryTokens struct {
	mu    sync.Mutex
	token AppToken
	owner string
	until time.Time
}

func (v *memoryTokens) Load(context.Context, string) (AppToken, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.token, nil
}

func (v *memoryTokens) Lease(_ context.Context, _, owner string, lifetime time.Duration) (bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Now().Before(v.until) && v.owner != owner {
		return false, nil
	}
	v.owner, v.until = owner, time.Now().Add(lifetime)
	return true, nil
}

func (v *memoryTokens) Return(_ context.Context, _, owner string, t AppToken) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t.Value != "" {
		v.token = t
	}
	if v.owner == owner {
		v.until = time.Time{}
	}
	return nil
}

// A change of the permissions, or a denial that a permission may explain, renews the token. Denials cost at most one token in
// deniedAfter.
func TestNewPermissionsRenewTheToken(t *testing.T) {
	inBubble(t, func(r *appTest) {
		m := r.cache(nil)
		s := r.source(m, nil)
		deny := func() {
			token, _, err := s.try(policy.CredentialUse{Safe: true, Repeatable: true}, true, time.Now())
			noError(r.T, err)
			s.denied(token, time.Now())
			synctest.Wait()
		}
		r.want(s, "ghs_1")
		m.Renew(43) // of another installation
		synctest.Wait()
		r.want(s, "ghs_1")
		m.Renew(42) // within firstPause of the first token
		m.Renew(42)
		time.Sleep(firstPause)
		r.want(s, "ghs_1") // the renewal begins
		synctest.Wait()
		r.want(s, "ghs_2")
		time.Sleep(time.Minute)
		r.answered(s, answerSuccess)
		deny() // a young token
		equal(r, "issued tokens after a denial of a young token", r.up.issued, 2)
		time.Sleep(deniedAfter)
		for range 10 {
			deny()
		}
		equal(r, "issued tokens after ten denials", r.up.issued, 3)
		time.Sleep(time.Minute)
		m.Renew(42)
		synctest.Wait()
		r.want(s, "ghs_4")
		equal(r, "issued tokens", r.up.issued, 4)
	})
}

// The other replicas use the token that the replica with the event has stored.
func TestReplicasShareATokenWithNewPermissions(t *testing.T) {
	inBubble(t, func(r *appTest) {
		store := &memoryTokens{}
		m := r.cache(store)
		a, b := r.source(m, nil), r.source(r.cache(store), nil)
		r.want(a, "ghs_1")
		r.want(b, "ghs_1")
		time.Sleep(deniedAfter)
		m.Renew(42)
		synctest.Wait()
		r.want(a, "ghs_2")
		b.denied(b.newest, time.Now())
		synctest.Wait()
		r.want(b, "ghs_2")
		equal(r, "issued tokens", r.up.issued, 2)
	})
}

func TestReplicasShareRenewalsAndSurviveALostLeaseOwner(t *testing.T) {
	inBubble(t, func(r *appTest) {
		r.up.delay = time.Second
		store := &memoryTokens{}
		a, b := r.source(r.cache(store), nil), r.source(r.cache(store), nil)
		both := func(token string) {
			r.Helper()
			var replicas sync.WaitGroup
			for _, s := range []*Source{a, b} {
				replicas.Go(func() { r.want(s, token) })
			}
			replicas.Wait()
		}
		both("ghs_1")
		time.Sleep(56 * time.Minute)
		both("ghs_1") // the renewal runs in the background
		time.Sleep(3 * time.Second)
		both("ghs_2")
		time.Sleep(2 * time.Hour)
		mine, _ := store.Lease(r.Context(), "", "crashed replica", leaseLifetime)
		failIf(r, !mine, "another replica holds the lease")
		began := time.Now()
		both("ghs_3")
		waited := time.Since(began)
		failIf(r, waited < leaseLifetime || waited > leaseLifetime+3*time.Second, "waited %v for the lease of a crashed replica", waited)
		time.Sleep(freshFor)
		r.answered(a, answerRefused) // the stored token is the rejected one
		time.Sleep(firstPause)
		r.want(a, "ghs_4")
	})
}

func TestParseAppKeyRefusesOtherTexts(t *testing.T) {
	pkcs8 := must(x509.MarshalPKCS8PrivateKey(newRSAKey("", 2048).private))
	for text, valid := range map[string]bool{
		testservers.AppKey(): true, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})): true,
		"": false, "hunter2": false, "-----BEGIN PRIVATE KEY-----\naHVudGVyMg==\n-----END PRIVATE KEY-----\n": false,
	} {
		_, err := ParseAppKey(Secret(text))
		failIf(t, (err == nil) != valid || err != nil && strings.Contains(err.Error(), "unter"), "%q: %v", text, err)
	}
}
