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
	synctest.Test(t, func(t *testing.T) {
		k := newSigningKey(t, "a")
		w := newFakeIssuer(t, k.public)
		token := k.token(t, map[string]any{"exp": time.Now().Add(time.Hour).Unix()})
		var flood sync.WaitGroup
		for n := range 1000 {
			flood.Go(func() {
				time.Sleep(time.Duration(n) * 59 * time.Millisecond) // spread over 59 seconds
				w.verify("unknown key ID", sign(t, k.private, "ES256", fmt.Sprintf("kid %d", n), testClaims(nil)), "publishes no key")
				w.verify("known key ID", token, "")
			})
		}
		flood.Wait()
		if n := w.fetches(); n < 5 || n > 6 {
			t.Errorf("%d fetches in a minute, want 5 or 6", n)
		}
	})
}

func TestConcurrentVerificationsShareOneFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newSigningKey(t, "a")
		w := newFakeIssuer(t, k.public)
		w.change(func() {
			w.respond = func(http.ResponseWriter) { time.Sleep(time.Second); w.change(func() { w.respond = nil }) }
		})
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { w.verify("during the outage", k.token(t, nil), "unavailable") })
		}
		all.Wait()
		time.Sleep(keysFetchPause)
		for range 100 {
			all.Go(func() { w.verify("after the outage", k.token(t, nil), "") })
		}
		all.Wait()
		if n := w.fetches(); n != 2 {
			t.Errorf("%d fetches", n)
		}
	})
}

func TestVerifyAfterKeyRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newSigningKey(t, "1"), newSigningKey(t, "2")
		w := newFakeIssuer(t, first.public)
		w.verify("first key", first.token(t, nil), "")
		time.Sleep(keysFetchPause)
		w.change(func() { w.publish = []jose.JSONWebKey{first.public, second.public} })
		w.verify("added key", second.token(t, nil), "")
		w.change(func() { w.publish = []jose.JSONWebKey{second.public} })
		time.Sleep(keysRefreshAfter)
		w.verify("added key during the refresh", second.token(t, nil), "")
		synctest.Wait()
		w.verify("removed key", first.token(t, nil), "publishes no key")
		w.verify("added key after the refresh", second.token(t, nil), "")
	})
}

func TestVerifyUsesCachedKeysForAnHourWithoutTheIssuer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newSigningKey(t, "a")
		w := newFakeIssuer(t, k.public)
		w.verify("before the outage", k.token(t, nil), "")
		w.change(func() { w.respond = func(rw http.ResponseWriter) { rw.WriteHeader(http.StatusBadGateway) } })
		for range 11 {
			time.Sleep(5 * time.Minute)
			w.verify("during the outage", k.token(t, nil), "")
		}
		synctest.Wait()
		if n := w.fetches(); n < 5 || n > 15 {
			t.Errorf("%d fetches in an hour, want 5 to 15", n)
		}
		time.Sleep(5 * time.Minute)
		w.verify("after an hour of outage", k.token(t, nil), "unavailable")
		w.change(func() { w.respond = nil })
		time.Sleep(keysFetchPause)
		w.verify("after the outage", k.token(t, nil), "")
	})
}

func TestVerifyStopsWaitingForAHangingIssuer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newSigningKey(t, "a")
		w := newFakeIssuer(t, k.public)
		hang := make(chan struct{})
		w.change(func() { w.respond = func(http.ResponseWriter) { <-hang } })
		start := time.Now()
		w.verify("after the timeout", k.token(t, nil), "unavailable")
		if waited := time.Since(start); waited != keysFetchTimeout {
			t.Errorf("waited %s", waited)
		}
		w.verify("within the pause", k.token(t, nil), "unavailable")
		if waited := time.Since(start); waited != keysFetchTimeout {
			t.Errorf("waited %s", waited)
		}
		time.Sleep(keysFetchPause)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := w.keys.verify(ctx, testIssuer(), k.token(t, nil)); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrIssuerUnavailable) {
			t.Errorf("client disconnected: %v", err)
		}
		w.keys.Close() // cancels the fetch
		close(hang)
		w.verify("after Close", k.token(t, nil), "unavailable")
	})
}

func TestVerifyRefusesInvalidKeyResponses(t *testing.T) {
	public := newSigningKey(t, "a").public
	text, err := public.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	key, followed := string(text), false
	for name, respond := range map[string]func(http.ResponseWriter){
		"not JSON":   func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<html>") },
		"no keys":    func(w http.ResponseWriter) { _, _ = io.WriteString(w, "{}") },
		"status 500": func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		"redirect to keys": func(w http.ResponseWriter) {
			if followed = !followed; followed {
				w.Header().Set("Location", "/keys")
				w.WriteHeader(http.StatusFound)
				return
			}
			_, _ = io.WriteString(w, `{"keys":[`+key+`]}`)
		},
		"response over the size limit": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"keys":[`+strings.Repeat(" ", 1<<20)+key+`]}`)
		},
		"truncated response": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"unsupported keys": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"keys":[{"kty":"XYZ","kid":"a"},{"kty":"EC"},7,null,{"kty":"oct","k":"c2VjcmV0","kid":"a"}]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFakeIssuer(t)
				w.change(func() { w.respond = respond })
				w.verify("no keys", newSigningKey(t, "a").token(t, nil), "unavailable")
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
			synctest.Test(t, func(t *testing.T) {
				k := newSigningKey(t, "a")
				w := newFakeIssuer(t, k.public)
				w.change(func() { w.replace = map[string]string{c.field: c.value} })
				w.verify("invalid metadata", k.token(t, nil), c.want)
				if n := w.fetches(); n != 0 {
					t.Errorf("%d fetches", n)
				}
			})
		})
	}
}

// Two issuers may publish keys with the same key ID.
func TestVerifyUsesOnlyKeysOfTheTokensIssuer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newSigningKey(t, "a")
		w := newFakeIssuer(t, k.public)
		w.verify("token of the key's issuer", k.token(t, nil), "")
		other := testIssuer()
		other.URL = "http://localhost/other"
		token := k.token(t, map[string]any{"iss": other.URL})
		if _, err := w.keys.verify(context.Background(), other, token); !errors.Is(err, ErrIssuerUnavailable) {
			t.Errorf("token of another issuer: %v", err)
		}
	})
}

func TestKeepDiscardsKeysOfOtherIssuers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newSigningKey(t, "a")
		w := newFakeIssuer(t, k.public)
		w.verify("before the outage", k.token(t, nil), "")
		w.keys.Keep([]string{issuerAddress})
		w.verify("issuer kept", k.token(t, nil), "")
		if n := w.fetches(); n != 1 {
			t.Errorf("%d fetches after keeping the issuer, want 1", n)
		}
		w.keys.Keep(nil)
		w.verify("issuer discarded", k.token(t, nil), "")
		if n := w.fetches(); n != 2 {
			t.Errorf("%d fetches after discarding the issuer, want 2", n)
		}
	})
}
