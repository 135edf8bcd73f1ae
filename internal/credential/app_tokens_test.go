package credential

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// appUpstream counts what it issues, in virtual time.
type appUpstream struct {
	key    *rsa.PublicKey
	mu     sync.Mutex
	issued int
	asked  []string // path and body
	answer func() (status int, body string)
	takes  time.Duration
	// retryAfter is that of every answer.
	retryAfter string
}

func (u *appUpstream) RoundTrip(r *http.Request) (*http.Response, error) {
	known := u.knows(r.Header.Get("Authorization"))
	select {
	case <-time.After(u.takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	u.asked = append(u.asked, r.Method+" "+r.URL.String()+" "+string(body))
	status, text := http.StatusUnauthorized, "{}"
	if known {
		u.issued++
		status = http.StatusCreated
		text = fmt.Sprintf(`{"token":"ghs_%d","expires_at":%q}`, u.issued, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}
	if u.answer != nil {
		status, text = u.answer()
	}
	h := http.Header{"Retry-After": {cmp.Or(u.retryAfter, "90")}}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}

// knows checks an assertion as the upstream does: signature, issuer, and times.
func (u *appUpstream) knows(authorization string) bool {
	parts := strings.Split(strings.TrimPrefix(authorization, "Bearer "), ".")
	if len(parts) != 3 {
		return false
	}
	var text [3][]byte
	for i, part := range parts {
		decoded, err := base64.RawURLEncoding.DecodeString(part)
		if err != nil {
			return false
		}
		text[i] = decoded
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	var claims struct {
		Issuer  string `json:"iss"`
		Issued  int64  `json:"iat"`
		Expires int64  `json:"exp"`
	}
	if json.Unmarshal(text[1], &claims) != nil {
		return false
	}
	now, issued, expires := time.Now().Unix(), claims.Issued, claims.Expires
	return rsa.VerifyPKCS1v15(u.key, crypto.SHA256, sum[:], text[2]) == nil && string(text[0]) == `{"alg":"RS256","typ":"JWT"}` &&
		claims.Issuer == "7" && issued == now-60 && expires > now && expires-issued <= 600
}

// appRig is a mint, or several, before one upstream.
type appRig struct {
	*testing.T
	up  *appUpstream
	app App
	log bytes.Buffer
}

func newAppRig(t *testing.T) *appRig {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	app := App{ID: "7", Installation: 42, Key: Secret(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}))}
	return &appRig{T: t, up: &appUpstream{key: &key.PublicKey}, app: app}
}

func (r *appRig) mint(v TokenStore) *AppTokens {
	m := NewAppTokens(v, slog.New(slog.NewTextHandler(&r.log, nil)))
	r.Cleanup(m.Close)
	return m
}

func (r *appRig) source(m *AppTokens, permissions map[string]string) *Source {
	app := r.app
	app.Permissions = permissions
	at, err := url.Parse("http://api.test/api/v3")
	if err != nil {
		r.Fatal(err)
	}
	return m.Source("bot", &app, &TokenEndpoint{Upstream: at, Transport: r.up})
}

// want has it that a source gives a token.
func (r *appRig) want(s *Source, token string) {
	r.Helper()
	got, err := s.Token(r.Context())
	if err != nil || got.Reveal() != token {
		r.Errorf("got %s, %v; want %s", got.Reveal(), err, token)
	}
}

func TestATokenIsRenewedBeforeItsEndAndNobodyWaits(t *testing.T) {
	r := newAppRig(t)
	synctest.Test(t, func(t *testing.T) {
		r.T, r.up.takes = t, time.Second
		s := r.source(r.mint(nil), nil)
		var clients sync.WaitGroup
		for range 20 {
			clients.Go(func() { r.want(s, "ghs_1") })
		}
		clients.Wait()
		time.Sleep(54 * time.Minute)
		r.want(s, "ghs_1")
		synctest.Wait()
		if r.up.issued != 1 {
			t.Errorf("%d were issued", r.up.issued)
		}
		time.Sleep(2 * time.Minute)
		began := time.Now()
		r.want(s, "ghs_1")
		if time.Since(began) != 0 {
			t.Error("somebody waits for a renewal")
		}
		time.Sleep(2 * time.Second)
		r.want(s, "ghs_2")
		if r.up.issued != 2 || r.up.asked[0] != "POST http://api.test/api/v3/app/installations/42/access_tokens {}" {
			t.Errorf("%d were issued: %s", r.up.issued, r.up.asked[0])
		}
	})
}

func TestOtherPermissionsAreAnotherToken(t *testing.T) {
	r := newAppRig(t)
	synctest.Test(t, func(t *testing.T) {
		r.T = t
		m := r.mint(nil)
		r.want(r.source(m, map[string]string{"contents": "read", "issues": "read"}), "ghs_1")
		r.want(r.source(m, map[string]string{"contents": "write"}), "ghs_2")
		r.want(r.source(m, map[string]string{"issues": "read", "contents": "read"}), "ghs_1")
		if !strings.HasSuffix(r.up.asked[0], `{"permissions":{"contents":"read","issues":"read"}}`) {
			t.Errorf("asked %s", r.up.asked[0])
		}
	})
}

func TestAfterAFailureTheUpstreamIsLeftAlone(t *testing.T) {
	r := newAppRig(t)
	synctest.Test(t, func(t *testing.T) {
		r.T = t
		for _, c := range []struct {
			name, body string
			status     int
			rest       time.Duration
		}{
			{"not found", `{"message":"ghs_secret"}`, 404, 90 * time.Second}, // Retry-After
			{"a redirect", "", 307, 90 * time.Second},
			{"no JSON", "ghs_secret", 201, 5 * time.Second},
			{"a token with a line break", `{"token":"ghs_secret\n","expires_at":"2999-01-01T00:00:00Z"}`, 201, 5 * time.Second},
			{"one that has ended", `{"token":"ghs_secret","expires_at":"1999-01-01T00:00:00Z"}`, 201, 5 * time.Second},
		} {
			r.up.asked, r.up.answer = nil, func() (int, string) { return c.status, c.body }
			s := r.source(r.mint(nil), nil)
			for range 10 {
				got, err := s.Token(t.Context())
				var unusable *UnusableError
				if got != "" || !errors.As(err, &unusable) || time.Until(unusable.Until) != c.rest || strings.Contains(err.Error(), "secret") {
					t.Errorf("%s: %s, %v", c.name, got.Reveal(), err)
				}
			}
			if len(r.up.asked) != 1 {
				t.Errorf("%s: asked %d times", c.name, len(r.up.asked))
			}
			time.Sleep(c.rest)
			_, _ = s.Token(t.Context())
			if len(r.up.asked) != 2 {
				t.Errorf("%s: asked %d times after a while", c.name, len(r.up.asked))
			}
		}
		if strings.Contains(r.log.String(), "secret") || strings.Contains(r.log.String(), "eyJ") {
			t.Errorf("a secret is logged: %s", r.log.String())
		}
	})
}

func TestAClientThatWaitsForATokenCanLeave(t *testing.T) {
	r := newAppRig(t)
	synctest.Test(t, func(t *testing.T) {
		r.T, r.up.takes = t, time.Hour
		s := r.source(r.mint(nil), nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Token(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(issuing) // nor does the mint wait for ever
		if _, err := s.Token(t.Context()); err == nil {
			t.Error("a token from nowhere")
		}
	})
}

func TestARefusedTokenIsNotGivenOutAgain(t *testing.T) {
	r := newAppRig(t)
	synctest.Test(t, func(t *testing.T) {
		r.T = t
		s := r.source(r.mint(nil), nil)
		r.want(s, "ghs_1")
		s.Reject(time.Now().Add(-time.Second)) // that was about another
		r.want(s, "ghs_1")
		time.Sleep(firstPause)
		s.Reject(time.Now())
		r.want(s, "ghs_2")
	})
}

// TestAMendedKeyWaitsForNothing: the pause was the old one's.
func TestAMendedKeyWaitsForNothing(t *testing.T) {
	r := newAppRig(t)
	wrong := newAppRig(t).app.Key
	synctest.Test(t, func(t *testing.T) {
		r.T = t
		m, right := r.mint(nil), r.app.Key
		r.app.Key = wrong
		var unusable *UnusableError
		for range 20 {
			time.Sleep(time.Minute)
			if _, err := r.source(m, nil).Token(t.Context()); !errors.As(err, &unusable) {
				t.Fatal(err)
			}
		}
		asked := len(r.up.asked)
		r.app.Key = right
		r.want(r.source(m, nil), "ghs_1")
		r.app.Key = wrong
		if _, err := r.source(m, nil).Token(t.Context()); err == nil || len(r.up.asked) != asked+1 {
			t.Errorf("%v; asked %d times more", err, len(r.up.asked)-asked)
		}
	})
}

func TestARetryAfterIsHeededForAnHourAtMost(t *testing.T) {
	r := newAppRig(t)
	synctest.Test(t, func(t *testing.T) {
		r.T = t
		r.up.retryAfter = "60000"
		r.up.answer = func() (int, string) { return http.StatusForbidden, "{}" }
		s := r.source(r.mint(nil), nil)
		var unusable *UnusableError
		if _, err := s.Token(t.Context()); !errors.As(err, &unusable) || !unusable.Until.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("%v", err)
		}
	})
}

// memoryTokens is a store in memory, in virtual time.
type memoryTokens struct {
	mu     sync.Mutex
	token  AppToken
	holder string
	until  time.Time
}

func (v *memoryTokens) Load(context.Context, string) (AppToken, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.token, nil
}

func (v *memoryTokens) Lease(_ context.Context, _, owner string, lives time.Duration) (bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Now().Before(v.until) {
		return false, nil
	}
	v.holder, v.until = owner, time.Now().Add(lives)
	return true, nil
}

func (v *memoryTokens) Return(_ context.Context, _, owner string, t AppToken) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t.Value != "" {
		v.token = t
	}
	if v.holder == owner {
		v.until = time.Time{}
	}
	return nil
}

func TestReplicasRenewOnceAndOutliveTheHolder(t *testing.T) {
	r := newAppRig(t)
	synctest.Test(t, func(t *testing.T) {
		r.T, r.up.takes = t, time.Second
		store := &memoryTokens{}
		a, b := r.source(r.mint(store), nil), r.source(r.mint(store), nil)
		both := func(token string) {
			t.Helper()
			var replicas sync.WaitGroup
			for _, s := range []*Source{a, b} {
				replicas.Go(func() { r.want(s, token) })
			}
			replicas.Wait()
		}
		both("ghs_1")
		time.Sleep(56 * time.Minute)
		both("ghs_1") // and a new one is on its way
		time.Sleep(3 * time.Second)
		both("ghs_2")
		time.Sleep(2 * time.Hour)
		if mine, _ := store.Lease(t.Context(), "", "one that dies", leaseLives); !mine {
			t.Error("somebody else asks")
		}
		began := time.Now()
		both("ghs_3")
		if waited := time.Since(began); waited < leaseLives || waited > leaseLives+3*time.Second {
			t.Errorf("waited %v for a dead holder", waited)
		}
		a.Reject(time.Now()) // what the store has is not taken for a new one
		time.Sleep(firstPause)
		r.want(a, "ghs_4")
	})
}

func TestWhatIsNoKey(t *testing.T) {
	r := newAppRig(t)
	if err := CheckAppKey(r.app.Key); err != nil {
		t.Error(err)
	}
	for _, text := range []string{"", "hunter2", "-----BEGIN PRIVATE KEY-----\naHVudGVyMg==\n-----END PRIVATE KEY-----\n"} {
		if err := CheckAppKey(Secret(text)); err == nil || strings.Contains(err.Error(), "unter") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
