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

func TestAFloodOfUnknownKeysAsksTheIssuerOnceInTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newSigningKey(t, "a")
		w := newIssuerWorld(t, k.public)
		token := k.token(t, map[string]any{"exp": time.Now().Add(time.Hour).Unix()})
		var flood sync.WaitGroup
		for n := range 1000 {
			flood.Go(func() {
				time.Sleep(time.Duration(n) * 59 * time.Millisecond) // for 59 seconds
				w.verify("a flood", sign(t, k.private, "ES256", fmt.Sprintf("kid %d", n), testClaims(nil)), "does not publish")
				w.verify("who has nothing to do with it", token, "")
			})
		}
		flood.Wait()
		if n := w.fetches(); n < 5 || n > 6 {
			t.Errorf("%d fetches in a minute", n)
		}
	})
}

func TestManyWhoNeedKeysAtOnceCauseOneFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newSigningKey(t, "a")
		w := newIssuerWorld(t, k.public)
		w.change(func() {
			w.answer = func(http.ResponseWriter) { time.Sleep(time.Second); w.change(func() { w.answer = nil }) }
		})
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { w.verify("one of many", k.token(t, nil), "cannot be had") })
		}
		all.Wait()
		time.Sleep(fetchPause)
		for range 100 {
			all.Go(func() { w.verify("one of many, later", k.token(t, nil), "") })
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
		w := newIssuerWorld(t, first.public)
		w.verify("the first key", first.token(t, nil), "")
		time.Sleep(fetchPause)
		w.change(func() { w.publish = []jose.JSONWebKey{first.public, second.public} })
		w.verify("a key that is new", second.token(t, nil), "")
		w.change(func() { w.publish = []jose.JSONWebKey{second.public} })
		time.Sleep(refreshAfter)
		w.verify("the new one, while the old one goes", second.token(t, nil), "")
		synctest.Wait()
		w.verify("the old one", first.token(t, nil), "does not publish")
		w.verify("the new one", second.token(t, nil), "")
	})
}

func TestWithoutTheIssuerKeysLastAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newSigningKey(t, "a")
		w := newIssuerWorld(t, k.public)
		w.verify("at first", k.token(t, nil), "")
		w.change(func() { w.answer = func(rw http.ResponseWriter) { rw.WriteHeader(http.StatusBadGateway) } })
		for range 11 {
			time.Sleep(5 * time.Minute)
			w.verify("during an outage", k.token(t, nil), "")
		}
		synctest.Wait()
		if n := w.fetches(); n < 5 || n > 15 {
			t.Errorf("%d fetches in an hour", n)
		}
		time.Sleep(5 * time.Minute)
		w.verify("after an hour", k.token(t, nil), "cannot be had")
		w.change(func() { w.answer = nil })
		time.Sleep(fetchPause)
		w.verify("when it is back", k.token(t, nil), "")
	})
}

func TestAnIssuerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newSigningKey(t, "a")
		w := newIssuerWorld(t, k.public)
		hang := make(chan struct{})
		w.change(func() { w.answer = func(http.ResponseWriter) { <-hang } })
		start := time.Now()
		w.verify("within the fetchTimeout", k.token(t, nil), "cannot be had")
		if waited := time.Since(start); waited != fetchTimeout {
			t.Errorf("waited %s", waited)
		}
		w.verify("at once", k.token(t, nil), "cannot be had")
		if waited := time.Since(start); waited != fetchTimeout {
			t.Errorf("waited %s", waited)
		}
		time.Sleep(fetchPause)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := w.keys.Verify(ctx, testIssuer(), k.token(t, nil)); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrIssuerUnavailable) {
			t.Errorf("a client that leaves: %v", err)
		}
		w.keys.Close() // ends what hangs
		close(hang)
		w.verify("after the end", k.token(t, nil), "cannot be had")
	})
}

func TestAnswersThatAreNoKeys(t *testing.T) {
	public := newSigningKey(t, "a").public
	text, err := public.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	flooded, followed := string(text), false
	for name, answer := range map[string]func(http.ResponseWriter){
		"no JSON":  func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<html>") },
		"no keys":  func(w http.ResponseWriter) { _, _ = io.WriteString(w, "{}") },
		"an error": func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		"a redirect to keys": func(w http.ResponseWriter) {
			if followed = !followed; followed {
				w.Header().Set("Location", "/keys")
				w.WriteHeader(http.StatusFound)
				return
			}
			_, _ = io.WriteString(w, `{"keys":[`+flooded+`]}`)
		},
		"a flood": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"keys":[`+strings.Repeat(" ", 1<<20)+flooded+`]}`)
		},
		"a break-off": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"unknown kinds": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"keys":[{"kty":"XYZ","kid":"a"},{"kty":"EC"},7,null,{"kty":"oct","k":"c2VjcmV0","kid":"a"}]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newIssuerWorld(t)
				w.change(func() { w.answer = answer })
				w.verify("no keys", newSigningKey(t, "a").token(t, nil), "cannot be had")
			})
		})
	}
}

func TestMetadataThatLeadAstray(t *testing.T) {
	for name, c := range map[string]struct{ field, value, want string }{
		"of another issuer":             {"issuer", "https://evil.example", "they are of the issuer"},
		"keys from a place in the open": {"jwks_uri", "http://evil.example/keys", "https://"},
		"keys from a file":              {"jwks_uri", "file:///etc/passwd", "absolute"},
		"keys from nowhere":             {"jwks_uri", "", "absolute"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newSigningKey(t, "a")
				w := newIssuerWorld(t, k.public)
				w.change(func() { w.replace = map[string]string{c.field: c.value} })
				w.verify("astray", k.token(t, nil), c.want)
				if n := w.fetches(); n != 0 {
					t.Errorf("%d fetches", n)
				}
			})
		})
	}
}

// TestAttack59KeysAreTheirIssuers: two issuers, one key ID.
func TestAttack59KeysAreTheirIssuers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newSigningKey(t, "a")
		w := newIssuerWorld(t, k.public)
		w.verify("its own", k.token(t, nil), "")
		other := testIssuer()
		other.URL = "http://localhost/other"
		token := k.token(t, map[string]any{"iss": other.URL})
		if _, err := w.keys.Verify(context.Background(), other, token); !errors.Is(err, ErrIssuerUnavailable) {
			t.Errorf("another's: %v", err)
		}
	})
}

func TestKeepForgetsOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newSigningKey(t, "a")
		w := newIssuerWorld(t, k.public)
		w.verify("at first", k.token(t, nil), "")
		w.keys.Keep([]string{issuerAddress})
		w.verify("kept", k.token(t, nil), "")
		if n := w.fetches(); n != 1 {
			t.Errorf("%d fetches for what was kept", n)
		}
		w.keys.Keep(nil)
		w.verify("forgotten, and fetched anew", k.token(t, nil), "")
		if n := w.fetches(); n != 2 {
			t.Errorf("%d fetches for what was not", n)
		}
	})
}
