package credential

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
)

func TestVerifyFetchesKeysAtMostOncePerPause(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		token := w.token(map[string]any{"exp": time.Now().Add(time.Hour).Unix()})
		var flood sync.WaitGroup
		for n := range 1000 {
			flood.Go(func() {
				time.Sleep(time.Duration(n) * 59 * time.Millisecond) // spread over 59 seconds
				w.verify("unknown key ID", sign(w.key.private, "ES256", fmt.Sprintf("kid %d", n), testClaims(nil)), "publishes no key")
				w.verify("known key ID", token, "")
			})
		}
		flood.Wait()
		w.expectFetches(5, 6)
	})
}

func TestConcurrentVerificationsShareOneFetch(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		w.answer(func(http.ResponseWriter) { time.Sleep(time.Second); w.answer(nil) })
		var all sync.WaitGroup
		for _, c := range []struct{ name, want string }{{"during the outage", "unavailable"}, {"after the outage", ""}} {
			for range 100 {
				all.Go(func() { w.verify(c.name, w.token(nil), c.want) })
			}
			all.Wait()
			time.Sleep(keysFetchPause)
		}
		w.expectFetches(2, 2)
	})
}

func TestVerifyAfterKeyRotation(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		second := newSigningKey("2")
		w.verify("first key", w.token(nil), "")
		time.Sleep(keysFetchPause)
		w.change(func() { w.publish["tenant"] = []jose.JSONWebKey{w.key.public, second.public} })
		w.verify("added key", second.token(nil), "")
		w.change(func() { w.publish["tenant"] = []jose.JSONWebKey{second.public} })
		time.Sleep(keysRefreshAfter)
		w.verify("added key during the refresh", second.token(nil), "")
		synctest.Wait()
		w.verify("removed key", w.token(nil), "publishes no key")
		w.verify("added key after the refresh", second.token(nil), "")
	})
}

func TestVerifyUsesCachedKeysForAnHourWithoutTheIssuer(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		w.verify("before the outage", w.token(nil), "")
		w.answer(func(rw http.ResponseWriter) { rw.WriteHeader(http.StatusBadGateway) })
		for range 11 {
			time.Sleep(5 * time.Minute)
			w.verify("during the outage", w.token(nil), "")
		}
		synctest.Wait()
		w.expectFetches(5, 15)
		time.Sleep(5 * time.Minute)
		w.verify("after an hour of outage", w.token(nil), "unavailable")
		w.answer(nil)
		time.Sleep(keysFetchPause)
		w.verify("after the outage", w.token(nil), "")
	})
}

func TestVerifyStopsWaitingForAHangingIssuer(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		hang, start := make(chan struct{}), time.Now()
		w.answer(func(http.ResponseWriter) { <-hang })
		for _, name := range []string{"after the timeout", "within the pause"} {
			w.verify(name, w.token(nil), "unavailable")
			equal(w, name+", waited", time.Since(start), keysFetchTimeout)
		}
		time.Sleep(keysFetchPause)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := w.keys.verify(ctx, testIssuer(issuerAddress), w.token(nil))
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrIssuerUnavailable) {
			w.Errorf("client disconnected: %v", err)
		}
		w.keys.Close() // cancels the fetch
		close(hang)
		w.verify("after Close", w.token(nil), "unavailable")
	})
}

func TestVerifyRefusesInvalidKeyResponses(t *testing.T) {
	key, followed := string(must(newSigningKey("a").public.MarshalJSON())), false
	body := func(text string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { _, _ = io.WriteString(w, text) }
	}
	for name, respond := range map[string]func(http.ResponseWriter){
		"not JSON":   body("<html>"),
		"no keys":    body("{}"),
		"status 500": func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		"redirect to keys": func(w http.ResponseWriter) {
			if followed = !followed; followed {
				w.Header().Set("Location", "/tenant/keys")
				w.WriteHeader(http.StatusFound)
				return
			}
			body(`{"keys":[` + key + `]}`)(w)
		},
		"response over the size limit": body(`{"keys":[` + strings.Repeat(" ", 1<<20) + key + `]}`),
		"truncated response":           func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"unsupported keys":             body(`{"keys":[{"kty":"XYZ","kid":"a"},{"kty":"EC"},7,null,{"kty":"oct","k":"c2VjcmV0","kid":"a"}]}`),
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(w *fakeIssuer) {
				w.answer(respond)
				w.verify("no keys", w.token(nil), "unavailable")
			})
		})
	}
}

func TestVerifyRefusesInvalidMetadata(t *testing.T) {
	for name, c := range map[string]struct{ field, value, want string }{
		"metadata of another issuer": {"issuer", "https://evil.example", "metadata name the issuer"},
		"keys over plain HTTP":       {"jwks_uri", "http://evil.example/keys", "https://"},
		"keys from a file":           {"jwks_uri", "file:///etc/passwd", "absolute"},
		"no key URL":                 {"jwks_uri", "", "absolute"},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(w *fakeIssuer) {
				w.change(func() { w.replace = map[string]string{c.field: c.value} })
				w.verify("invalid metadata", w.token(nil), c.want)
				w.expectFetches(0, 0)
			})
		})
	}
}

// Two issuers may publish keys with the same key ID.
func TestVerifyUsesOnlyKeysOfTheTokensIssuer(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		w.verify("token of the key's issuer", w.token(nil), "")
		token := w.token(map[string]any{"iss": otherAddress})
		if _, err := w.keys.verify(context.Background(), testIssuer(otherAddress), token); !errors.Is(err, ErrIssuerUnavailable) {
			w.Errorf("token of another issuer: %v", err)
		}
	})
}

func TestKeepDiscardsKeysOfOtherIssuers(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		w.verify("before the outage", w.token(nil), "")
		w.keys.Keep([]string{issuerAddress})
		w.verify("issuer kept", w.token(nil), "")
		w.expectFetches(1, 1)
		w.keys.Keep(nil)
		w.verify("issuer discarded", w.token(nil), "")
		w.expectFetches(2, 2)
	})
}
